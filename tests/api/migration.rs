//! From OpenKruise, and back: what one has written, the other goes on with.

use std::sync::Arc;

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use leadsman_tests::{
    History, Scene, openkruise, wait_for_answer, wait_for_deletion, wait_for_object,
};
use serde_json::{Value, json};

use crate::Installation;
use crate::lifecycle::{give_back_our_crds, install_openkruises_crds};
use crate::marks::{idle, marked};

const PODS: [&str; 2] = ["idle", "busy"];

// PPM-8, PPM-11, DEF-8
/// A cluster as OpenKruise left it: nothing that anybody can see changes while leadsman takes over, and all of it goes with
/// the markers.
pub(crate) async fn what_openkruise_left_is_taken_over(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "taken-over").await?;
    installation.stop_manager().await?;
    for pod in PODS {
        scene.pod_with(pod, openkruise::annotations()).await?;
    }
    openkruise::leave_behind(&scene).await?;
    let history = History::of(&scene.client, &scene.ns).await?;
    installation.start_manager().await?;
    // Its agents run probes that are OpenKruise's, and come to the same.
    let entries = ["idle#idle", "web#port", "web#page"];
    let expected = PODS.map(|pod| entries.map(|entry| format!("{pod}/{entry}")));
    let expected: Vec<_> = expected.iter().flatten().map(String::as_str).collect();
    wait_for_object(
        &scene.probes(),
        &scene.node,
        "entries of leadsman's",
        |probe| {
            let pods = &probe.spec.pod_probes;
            let mut entries = pods.iter().flat_map(|pod| &pod.probes);
            ensure!(entries.all(|entry| entry.revision.is_some()), "{pods:?}");
            Ok(())
        },
    )
    .await?;
    scene.wait_for_entries(&expected).await?;
    for pod in PODS {
        owned(&scene, pod).await?;
    }
    for marker in ["idle", "web"] {
        scene.wait_for_reason(marker, "Probing").await?;
    }
    openkruise::nothing_flapped(&history, &PODS).await?;
    for (pod, states) in [
        ("idle", ["Succeeded", "Succeeded", "Succeeded"]),
        ("busy", ["Failed", "Succeeded", "Failed"]),
    ] {
        for (entry, state) in entries.iter().zip(states) {
            scene.report_verdict(pod, entry, state).await?;
        }
    }
    let fence = scene.pod("fence").await?;
    drop(fence);
    for entry in entries {
        scene.report_verdict("fence", entry, "Succeeded").await?;
    }
    scene
        .wait_for_marks("fence", json!({"labels": {"gameserver-idle": "true"}}))
        .await?;
    openkruise::nothing_flapped(&history, &PODS).await?;
    nothing_stays(&scene).await
}

/// All marks of a pod that OpenKruise wrote are in our entry too.
async fn owned(scene: &Scene, pod: &str) -> Result<()> {
    wait_for_object(&scene.pods(), pod, "our entry", |pod| {
        let entries = pod.metadata.managed_fields.iter().flatten();
        let fields = |manager: &str| {
            let mut entries = entries.clone();
            let entry = entries.find(|entry| entry.manager.as_deref() == Some(manager));
            entry
                .and_then(|entry| entry.fields_v1.clone())
                .unwrap_or_default()
                .0
        };
        let keys = |fields: Value| -> Vec<String> {
            let places = [
                "/f:metadata/f:labels",
                "/f:metadata/f:annotations",
                "/f:status/f:conditions",
            ];
            let maps = places
                .iter()
                .filter_map(|place| fields.pointer(place)?.as_object());
            maps.flat_map(|map| map.keys().cloned()).collect()
        };
        let (ours, theirs) = (
            keys(fields("leadsman-podprobe")),
            keys(fields("kruise-manager")),
        );
        ensure!(
            !theirs.is_empty() && ours == theirs,
            "ours {ours:?}, theirs {theirs:?}"
        );
        Ok(())
    })
    .await
}

/// The markers are deleted: they go, and everything that they and OpenKruise made of them. The annotations of OpenKruise's pod
/// webhook stay: it never takes them away itself.
async fn nothing_stays(scene: &Scene) -> Result<()> {
    for marker in ["idle", "web"] {
        scene.delete_marker(marker).await?;
        wait_for_deletion(&scene.markers(), marker).await?;
    }
    scene.wait_for_entries(&[]).await?;
    for pod in PODS {
        let none = json!({
            "labels": {"gameserver-idle": null, "page": null, "app": scene.ns},
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": null,
                "kruise.io/podprobemarker-list": "idle,web"},
            "conditions": {"game.io/idle": null, "game.io/port": null, "Initialized": "True"}});
        scene.wait_for_marks(pod, none).await?;
    }
    Ok(())
}

// PPM-6, PPM-9
/// leadsman stops, and OpenKruise's CRDs come back: what its manager and daemon read and write from then on works on what is
/// there, and no mark changes meanwhile.
pub(crate) async fn openkruise_goes_on_with_what_is_there(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "way-back").await?;
    installation.stop_manager().await?;
    installation
        .start_manager_with(&["--compatibility=openkruise"])
        .await?;
    for (pod, state) in [("idle", "Succeeded"), ("busy", "Failed")] {
        scene.pod(pod).await?;
        if pod == "idle" {
            scene.marker("m", idle()).await?;
        }
        scene.report_verdict(pod, "m#Idle", state).await?;
        scene.wait_for_marks(pod, marked(state)).await?;
    }
    wait_for_object(&scene.markers(), "m", "OpenKruise's finalizer", |marker| {
        let finalizers = marker.metadata.finalizers.iter().flatten();
        ensure!(finalizers.eq([openkruise::FINALIZER]), "{marker:?}");
        Ok(())
    })
    .await?;
    wait_for_object(&scene.markers(), "m", "both pods counted", |marker| {
        let status = marker.status.clone().unwrap_or_default();
        // A generation is observed once the nodes' objects are of it, which may be a status later.
        let counted = (status.observed_generation, status.matched_pods);
        ensure!(counted == (1, Some(2)), "{status:?}");
        Ok(())
    })
    .await?;
    let history = History::of(&scene.client, &scene.ns).await?;
    installation.stop_manager().await?;
    let crds: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
    let ours = install_openkruises_crds(&crds).await?;
    let went_on = goes_on(&scene, &history).await;
    give_back_our_crds(&crds, ours).await?;
    installation.start_manager().await?;
    went_on
}

/// OpenKruise's own requests, each of which must be taken.
async fn goes_on(scene: &Scene, history: &History) -> Result<()> {
    let marker = wait_for_answer("a schema of OpenKruise's", || async {
        let marker = scene.markers().get("m").await?;
        let status = marker.status.clone().unwrap_or_default();
        Ok(status.conditions.is_empty().then_some(marker))
    })
    .await?;
    let status = marker.status.clone().unwrap_or_default();
    ensure!(
        (status.observed_generation, status.matched_pods) == (1, Some(2)),
        "{status:?}"
    );
    openkruise::write_marker(&scene.markers(), marker).await?;
    // The node's object: entries and verdicts are OpenKruise's to the letter.
    let mut object = scene.probes().get(&scene.node).await?;
    let entries = object.spec.pod_probes.iter().flat_map(|pod| &pod.probes);
    let named: Vec<_> = entries
        .map(|entry| (entry.name.as_str(), &entry.revision))
        .collect();
    ensure!(named == [("m#Idle", &None), ("m#Idle", &None)], "{named:?}");
    let mut status = object.status.clone().unwrap_or_default();
    let verdicts = status
        .pod_probe_statuses
        .iter_mut()
        .flat_map(|pod| &mut pod.probe_states);
    for verdict in verdicts {
        ensure!(
            verdict.revision.is_none() && verdict.container_id.is_none(),
            "{verdict:?}"
        );
        "Failed".clone_into(&mut verdict.state);
    }
    object.status = Some(status);
    openkruise::write_node_pod_probe(&scene.probes(), object).await?;
    openkruise::nothing_flapped(history, &PODS).await?;
    // The pod that was idle is busy now.
    let failed = json!({"metadata": {"name": "idle", "labels": {"gameserver-idle": "false"},
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": "10"}},
        "status": {"conditions": [{"type": "game.io/idle", "status": "False"}]}});
    openkruise::mark(&scene.pods(), failed).await?;
    for pod in PODS {
        scene.wait_for_marks(pod, marked("Failed")).await?;
    }
    scene.delete_marker("m").await?;
    let mut marker = scene.markers().get("m").await?;
    marker.metadata.finalizers = None;
    openkruise::let_go(&scene.markers(), marker).await?;
    wait_for_deletion(&scene.markers(), "m").await
}

//! What a marker's status tells its author.

use std::sync::Arc;

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::DeleteParams;
use leadsman_tests::{Scene, wait_for_answer, wait_for_deletion, wait_for_object};
use serde_json::{Value, json};

use crate::Installation;
use crate::lifecycle::set_spec;
use crate::marks::{idle, marked};

fn message(marker: leadsman_api::PodProbeMarker) -> String {
    marker
        .status
        .unwrap_or_default()
        .conditions
        .into_iter()
        .map(|c| c.message)
        .collect()
}

// PPM-13
pub(crate) async fn counts_follow_the_verdicts(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "counts").await?;
    for pod in ["one", "two", "three", "four"] {
        scene.pod(pod).await?;
    }
    scene.marker("m", idle()).await?;
    let counts = async |expected: (i64, i64, i64, i64, i64)| {
        wait_for_object(
            &scene.markers(),
            "m",
            &format!("counts {expected:?}"),
            |marker| {
                let status = marker.status.clone().unwrap_or_default();
                let found = status.probes.first().map(|p| {
                    (
                        status.matched_pods.unwrap_or(0),
                        p.succeeded,
                        p.failed,
                        p.unknown,
                        p.pending,
                    )
                });
                ensure!(found == Some(expected), "the status is {status:?}");
                Ok(())
            },
        )
        .await
    };
    counts((4, 0, 0, 0, 4)).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.report_verdict("two", "m#Idle", "Failed").await?;
    counts((4, 1, 1, 0, 2)).await?;
    scene.report_verdict("two", "m#Idle", "Unknown").await?;
    scene.delete_pod("four").await?;
    counts((3, 1, 0, 1, 1)).await
}

// PPM-13
pub(crate) async fn observed_generation_moves_when_the_entries_are_written(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "generation").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.wait_for_reason("m", "Probing").await?;
    let mut probes = idle();
    probes[0]["probe"]["periodSeconds"] = json!(7);
    let edited = scene
        .edit_marker("m", json!({"spec": {"probes": probes}}))
        .await?;
    ensure!(
        edited.metadata.generation == Some(2),
        "{:?}",
        edited.metadata.generation
    );
    scene.wait_for_reason("m", "Probing").await?;
    // Others wait for it: by then the node's object has the edit.
    let probe = scene.probes().get(&scene.node).await?;
    ensure!(
        probe.spec.pod_probes[0].probes[0].probe.period_seconds == Some(7),
        "{probe:?}"
    );
    Ok(())
}

/// Reason and message of a marker that is seen to be pending so.
async fn wait_for_pending(scene: &Scene, reason: &str, progress: &str) -> Result<String> {
    wait_for_object(&scene.markers(), "m", progress, |marker| {
        let conditions = marker.status.clone().unwrap_or_default().conditions;
        let ready = conditions.iter().find(|one| one.type_ == "Ready");
        let found = ready.filter(|one| one.reason == reason && one.message.ends_with(progress));
        ensure!(found.is_some(), "the conditions are {conditions:?}");
        Ok(found.map(|one| one.message.clone()).unwrap_or_default())
    })
    .await
}

// PPM-13
pub(crate) async fn pending_is_never_silent(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "pending").await?;
    scene
        .add_node("pending-virtual", json!({"type": "virtual-kubelet"}))
        .await?;
    scene.pod("here").await?;
    scene
        .pod_with(
            "slow",
            json!({"spec": {"containers": [
            {"name": "main", "image": "none", "startupProbe": {"tcpSocket": {"port": 1}}}]}}),
        )
        .await?;
    let not_started = json!([{"name": "main", "started": false, "ready": false, "restartCount": 0,
        "image": "none", "imageID": "", "containerID": "containerd://slow"}]);
    scene
        .report_pod_status("slow", json!({"containerStatuses": not_started}))
        .await?;
    scene.marker("m", idle()).await?;
    let two = "0 of 2 matching pods have their verdicts; 2 pending: 1 StartupProbe, 1 Starting";
    wait_for_pending(&scene, "Probing", two).await?;
    scene.report_verdict("here", "m#Idle", "Succeeded").await?;
    let one = "1 of 2 matching pods have their verdicts; 1 pending: 1 StartupProbe";
    wait_for_pending(&scene, "Probing", one).await?;

    let on = |node: &str| json!({"spec": {"nodeName": node}});
    scene.pod_with("virtual", on("pending-virtual")).await?;
    let three =
        "1 of 3 matching pods have their verdicts; 2 pending: 1 VirtualNode, 1 StartupProbe";
    let told = wait_for_pending(&scene, "VirtualNode", three).await?;
    ensure!(told.contains("virtual-kubelet"), "{told}");
    scene.pod_with("lost", on("pending-nowhere")).await?;
    let four = "1 of 4 matching pods have their verdicts; 3 pending: 1 NoNode, 1 VirtualNode, 1 StartupProbe";
    let told = wait_for_pending(&scene, "NoNode", four).await?;
    ensure!(told.contains("lost on pending-nowhere"), "{told}");
    scene.delete_pod("lost").await?;
    scene.delete_pod("virtual").await?;
    scene.delete_pod("slow").await?;
    wait_for_pending(&scene, "Probing", "all matching pods have their verdicts").await?;
    Ok(())
}

/// On a node of its own, so that no other case's agent is there.
// PPM-13
pub(crate) async fn an_agent_is_silent_when_it_has_not_been_ready_for_long(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "silent").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    scene.add_agent().await?;
    let ready = |status: &str, since: &str| {
        json!({"conditions": [
            {"type": "Ready", "status": status, "lastTransitionTime": since}]})
    };
    // Not Ready since this moment is an agent's restart.
    let now = leadsman_tests::now().to_string();
    scene.report_agent_status(ready("False", &now)).await?;
    scene.report_verdict("one", "m#Idle", "Failed").await?;
    scene.wait_for_marks("one", marked("Failed")).await?;
    wait_for_pending(&scene, "Probing", "all matching pods have their verdicts").await?;
    let long_ago = "2026-01-01T00:00:00Z";
    scene.report_agent_status(ready("False", long_ago)).await?;
    let told = message(scene.wait_for_reason("m", "AgentSilent").await?);
    ensure!(told.contains("one"), "{told}");
    scene.report_agent_status(ready("True", &now)).await?;
    wait_for_pending(&scene, "Probing", "all matching pods have their verdicts").await?;
    scene.wait_for_marks("one", marked("Failed")).await?;
    scene.remove_agent().await
}

// PPM-13
/// Each selects by the label that the other sets: the younger one is stopped, until the other is gone.
pub(crate) async fn of_markers_that_feed_each_other_the_younger_is_stopped(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "feeding").await?;
    scene.pod("one").await?;
    let marker = async |name: &str, reads: &str, sets: &str| {
        let selector = json!({"matchLabels": {"app": scene.ns},
            "matchExpressions": [{"key": reads, "operator": "NotIn", "values": ["gone"]}]});
        let mut probes = idle();
        probes[0]["markerPolicy"] = json!([{"state": "Succeeded", "labels": {sets: "yes"}}]);
        scene.marker_of(name, selector, probes).await
    };
    // Made within one second, the name decides.
    marker("a", "role", "stage").await?;
    marker("b", "stage", "role").await?;
    let stopped = scene.wait_for_reason("b", "Cycle").await?;
    let message = message(stopped);
    for words in ["label role", "marker a", "label stage"] {
        ensure!(message.contains(words), "{message}");
    }
    scene.wait_for_entries(&["one/a#Idle"]).await?;
    scene.delete_marker("a").await?;
    scene.wait_for_entries(&["one/b#Idle"]).await?;
    scene.wait_for_reason("b", "Probing").await?;
    Ok(())
}

// PPM-13
pub(crate) async fn an_unknown_container_is_named(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "no-container").await?;
    scene.pod("one").await?;
    let mut probes = idle();
    let mut lost = probes[0].clone();
    lost["name"] = json!("lost");
    lost["containerName"] = json!("nowhere");
    lost["podConditionType"] = json!("t.io/lost");
    lost["markerPolicy"] = Value::Null;
    probes
        .as_array_mut()
        .into_iter()
        .for_each(|p| p.push(lost.clone()));
    scene.marker("m", probes).await?;
    let told = message(scene.wait_for_reason("m", "ContainerNotFound").await?);
    ensure!(told.contains("nowhere") && told.contains("one"), "{told}");
    // The other probe of the marker is not disturbed.
    scene.wait_for_entries(&["one/m#Idle"]).await?;
    Ok(())
}

// PPM-13, PRB-4, DEF-16
pub(crate) async fn an_unresolvable_port_is_named(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "no-port").await?;
    scene.pod("one").await?;
    let port = |name: &str, port: &str| {
        json!({"name": name, "containerName": "main", "podConditionType": format!("t.io/{name}"),
               "probe": {"tcpSocket": {"port": port}}})
    };
    scene
        .marker("m", json!([port("good", "web"), port("bad", "nowhere")]))
        .await?;
    let told = message(scene.wait_for_reason("m", "PortNotFound").await?);
    ensure!(told.contains("nowhere") && told.contains("one"), "{told}");
    scene.wait_for_entries(&["one/m#good"]).await?;
    Ok(())
}

// PPM-15, PRB-2, PRB-3
pub(crate) async fn bad_markers_are_refused(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "refused").await?;
    let probe = |probe: Value| json!([{"name": "p", "containerName": "main", "podConditionType": "t.io/p", "probe": probe}]);
    let exec = json!({"command": ["true"]});
    let rows = [
        ("no handler", probe(json!({})), "spec.probes[0].probe"),
        (
            "two handlers",
            probe(json!({"exec": exec, "tcpSocket": {"port": 1}})),
            "spec.probes[0].probe",
        ),
        ("port 0", probe(json!({"tcpSocket": {"port": 0}})), "port"),
        (
            "a host",
            probe(json!({"httpGet": {"port": 1, "host": "169.254.169.254"}})),
            "host",
        ),
        (
            "a grace period",
            probe(json!({"exec": exec, "terminationGracePeriodSeconds": 1})),
            "terminationGracePeriodSeconds",
        ),
        (
            "a negative period",
            probe(json!({"exec": exec, "periodSeconds": -1})),
            "periodSeconds",
        ),
        (
            "no effect",
            json!([{"name": "p", "containerName": "main", "probe": {"exec": exec}}]),
            "spec.probes[0]",
        ),
        (
            "the kubelet's condition",
            json!([{"name": "p", "containerName": "main", "podConditionType": "Ready",
            "probe": {"exec": exec}}]),
            "podConditionType",
        ),
        (
            "the selector's own key",
            json!([{"name": "p", "containerName": "main", "probe": {"exec": exec},
            "markerPolicy": [{"state": "Succeeded", "labels": {"app": "x"}}]}]),
            "selector",
        ),
        (
            "a state of its own",
            json!([{"name": "p", "containerName": "main", "probe": {"exec": exec},
            "markerPolicy": [{"state": "Maybe", "labels": {"a": "x"}}]}]),
            "state",
        ),
    ];
    for (what, probes, told) in rows {
        match scene.marker("bad", probes).await {
            Ok(_) => anyhow::bail!("{what} was accepted"),
            Err(error) => ensure!(
                error.to_string().contains(told),
                "{what}: the error does not name {told}: {error}"
            ),
        }
    }
    Ok(())
}

// PPM-15
pub(crate) async fn the_selector_is_immutable(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "immutable").await?;
    scene.marker("m", idle()).await?;
    let edit = scene
        .edit_marker(
            "m",
            json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}}),
        )
        .await;
    let error = edit.err().map(|e| e.to_string()).unwrap_or_default();
    ensure!(error.contains("immutable"), "the edit answered: {error}");
    Ok(())
}

// PPM-1, PPM-15
pub(crate) async fn a_stored_invalid_marker_is_not_acted_on(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "slipped").await?;
    scene.pod("one").await?;
    // As on a cluster whose CRD was OpenKruise's when the marker was made: types only, no rules.
    let crds: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
    let name = "podprobemarkers.apps.kruise.io";
    let strict = crds.get(name).await?;
    let mut lax = serde_json::to_value(&strict)?;
    without_rules(&mut lax);
    set_spec(&crds, name, &lax["spec"]).await?;
    let mut probes = idle();
    probes[0]["probe"] = json!({"exec": {"command": ["true"]}, "tcpSocket": {"port": 80}});
    // The API server takes a moment to serve a new schema.
    let slipped = wait_for_answer("the lax CRD", || async {
        Ok(scene.marker("m", probes.clone()).await.ok())
    })
    .await;
    let wide = scene.marker_of("wide", json!({}), idle()).await;
    let told = scene.wait_for_reason("m", "InvalidSpec").await;
    let told_wide = scene.wait_for_reason("wide", "InvalidSpec").await;
    set_spec(&crds, name, &serde_json::to_value(strict.spec)?).await?;
    slipped?;
    wide?;
    let told = message(told?);
    ensure!(told.contains("spec.probes[0].probe"), "{told}");
    let told = message(told_wide?);
    ensure!(told.contains("spec.selector"), "{told}");
    scene.wait_for_entries(&[]).await?;
    still_in_hand(&scene, &probes).await
}

/// What breaks the rules from before them can still be labelled, finalised and deleted (KEP-4008, validation
/// ratcheting: on since Kubernetes 1.30).
async fn still_in_hand(scene: &Scene, probes: &Value) -> Result<()> {
    let markers = scene.markers();
    wait_for_answer("the strict CRD", || async {
        let again = scene.marker("again", probes.clone()).await;
        if again.is_ok() {
            markers.delete("again", &DeleteParams::default()).await?;
        }
        Ok(again.err())
    })
    .await?;
    for name in ["m", "wide"] {
        let edit = json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/wait"]}});
        scene.edit_marker(name, edit).await?;
        markers.delete(name, &DeleteParams::default()).await?;
        scene
            .edit_marker(name, json!({"metadata": {"finalizers": null}}))
            .await?;
        wait_for_deletion(&markers, name).await?;
    }
    Ok(())
}

/// Takes every CEL rule out of a CRD.
fn without_rules(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("x-kubernetes-validations");
            map.values_mut().for_each(without_rules);
        }
        Value::Array(list) => list.iter_mut().for_each(without_rules),
        _ => {}
    }
}

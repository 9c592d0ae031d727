//! The release as a whole: what `helm` does to it, and what stays.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use kube::api::{ListParams, PostParams};
use leadsman_api::PodProbeMarker;
use leadsman_testkit::Release;
use leadsman_testkit::release::Component;
use leadsman_tests::room::target;
use leadsman_tests::{kubectl_leadsman, wait_for_answer, wait_for_object};
use serde_json::json;

use crate::room::{PODS, flip, place_pods, roles_were};
use crate::{Room, install, marked_pods};

/// The marker of OpenKruise's manual, as the demo applies it.
const MANUALS_MARKER: &str = include_str!("../../examples/game-server/marker.yaml");

pub(crate) async fn the_manuals_marker_marks_pods_of_both_nodes(
    release: Arc<Release>,
) -> Result<()> {
    // With the manual's line, and with the preflight that every install begins with.
    let gates = "PodProbeMarkerGate=true,EnablePodProbeMarkerOnServerless=true";
    let values = json!({"featureGates": gates, "preflight": {"enabled": true}});
    install(&release, values).await?;
    let room = Room::new(&release, "manual").await?;
    let pods = json!({"metadata": {"labels": {"app": "game-server"}},
        "spec": {"containers": [target("game-server")]}});
    place_pods(&room, pods).await?;
    let mut marker: PodProbeMarker = serde_norway::from_str(MANUALS_MARKER)?;
    marker.metadata.namespace = Some("manual".to_owned());
    let markers = room.scene.markers();
    markers.create(&PostParams::default(), &marker).await?;
    let is_idle = json!({"labels": {"gameserver-idle": "true"},
        "annotations": {"controller.kubernetes.io/pod-deletion-cost": "-10"},
        "conditions": {"game.io/idle": "True"}});
    for pod in PODS {
        room.scene.wait_for_marks(pod, is_idle.clone()).await?;
    }
    all_is_well(&release).await
}

/// `kubectl leadsman doctor` finds nothing of what was just installed, the webhook and its certificate included.
async fn all_is_well(release: &Release) -> Result<()> {
    wait_for_answer("doctor to find no problem", || async {
        let kubeconfig = release.bed.admin_kubeconfig();
        let examined = kubectl_leadsman(kubeconfig, &["doctor"], "").await?;
        eprintln!("{}{}", examined.out, examined.err);
        let checks = [
            " of 2 are Ready",
            "each of 2 nodes has an agent",
            "2 ready endpoints serve it",
            "the CA expires in",
            "every agent with something to probe reports",
            "no pod lacks the mark",
        ];
        let all = checks.iter().all(|check| examined.out.contains(check));
        let is_complete = !examined.out.contains("unread");
        Ok((examined.success && all && is_complete).then_some(()))
    })
    .await
}

/// The arguments of an agent, as its pod has them.
async fn agents_arguments(release: &Release) -> Result<Vec<String>> {
    let pods = release.pods(Component::Agent).await?;
    let spec = pods.into_iter().find_map(|pod| pod.spec);
    let containers = spec.context("no agent")?.containers.into_iter();
    Ok(containers.filter_map(|it| it.args).flatten().collect())
}

pub(crate) async fn changed_values_and_a_rollback_move_no_mark(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "values").await?;
    let before = agents_arguments(&release).await?;
    install(
        &release,
        json!({"agent": {"port": 10371}, "log": {"filter": "debug"}}),
    )
    .await?;
    let changed = agents_arguments(&release).await?;
    ensure!(changed.iter().any(|it| it.contains("10371")), "{changed:?}");
    flip(&room, "first", false).await?;
    release.helm(&["rollback", "leadsman"]).await?;
    release.wait_for_rollout().await?;
    let after = agents_arguments(&release).await?;
    ensure!(after == before, "{after:?}, before {before:?}");
    flip(&room, "second", false).await?;
    roles_were(&history, [&["main", "secondary"]; 2]).await
}

// PPM-17
pub(crate) async fn a_gate_that_is_off_stops_marks_until_it_is_on(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "gate").await?;
    install(
        &release,
        json!({"featureGates": "PodProbeMarkerGate=false"}),
    )
    .await?;
    room.set("first", "role=secondary").await?;
    let node = room.node_of("first").await?.name();
    // The agents go on: what they find is there to be marked by.
    wait_for_object(&room.scene.probes(), node, "a verdict", |probes| {
        let status = probes.status.clone().unwrap_or_default();
        let mut pods = status.pod_probe_statuses.into_iter();
        let pod = pods.find(|pod| pod.namespace == "gate");
        let verdicts = pod.context("no verdicts of the pod")?.probe_states;
        ensure!(
            verdicts.iter().any(|it| it.state == "Failed"),
            "{verdicts:?}"
        );
        Ok(())
    })
    .await?;
    roles_were(&history, [&["main"]; 2]).await?;
    install(&release, json!({})).await?;
    room.scene
        .wait_for_marks("first", leadsman_tests::room::is_main(false))
        .await?;
    roles_were(&history, [&["main", "secondary"], &["main"]]).await
}

/// Waits until the manager has made what the chart does not have, and what is to go all the same.
async fn made_for_the_webhook(release: &Release) -> Result<()> {
    let objects = [
        "mutatingwebhookconfiguration/leadsman",
        "secret/leadsman-webhook",
    ];
    wait_for_answer("the manager's own objects", || async {
        let get = [&["get", "--ignore-not-found", "-o=name"], &objects[..]].concat();
        let found = release.kubectl(&get).await?;
        Ok((found.lines().count() == objects.len()).then_some(()))
    })
    .await
}

/// Waits until nothing of leadsman's is left but its CRDs: of all kinds that can be listed, by its label.
async fn wait_until_crds_are_left(release: &Release) -> Result<()> {
    let kinds = ["api-resources", "--verbs=list", "-o=name"];
    let kinds = release.kubectl(&kinds).await?.trim().replace('\n', ",");
    let ours = "--selector=app.kubernetes.io/name=leadsman";
    let expected = [
        "customresourcedefinition.apiextensions.k8s.io/nodepodprobes.apps.kruise.io",
        "customresourcedefinition.apiextensions.k8s.io/podprobemarkers.apps.kruise.io",
    ];
    let left = Mutex::new(String::new());
    let waiting = wait_for_answer("the end of all but the CRDs", || async {
        let get = ["get", &kinds, "--all-namespaces", ours, "-o=name"];
        let found = release.kubectl(&get).await?;
        let mut lines: Vec<_> = found.lines().collect();
        lines.sort_unstable();
        let is_all = lines == expected;
        *left.lock().expect("nobody panicked") = found;
        Ok(is_all.then_some(()))
    });
    let outcome = waiting.await;
    outcome.with_context(|| left.lock().expect("nobody panicked").clone())
}

pub(crate) async fn an_uninstall_keeps_marks_and_the_next_install_goes_on(
    release: Arc<Release>,
) -> Result<()> {
    let gate = json!({"featureGates": "EnablePodProbeMarkerOnServerless=true"});
    install(&release, gate).await?;
    let (room, history) = marked_pods(&release, "uninstall").await?;
    made_for_the_webhook(&release).await?;
    // Without foreground deletion pods wait for the garbage collector, which takes its time after CRDs have come.
    let uninstall = ["uninstall", "leadsman", "--wait", "--cascade=foreground"];
    release.helm(&uninstall).await?;
    let of_leadsman = "app.kubernetes.io/component in (manager, agent)";
    let of_leadsman = ListParams::default().labels(of_leadsman);
    wait_for_answer("the end of all its pods", || async {
        let pods = release.pods_api().list(&of_leadsman).await?.items;
        Ok(pods.is_empty().then_some(()))
    })
    .await?;
    wait_until_crds_are_left(&release).await?;
    room.scene.markers().get("m").await?;
    room.set("first", "role=secondary").await?;
    install(&release, json!({})).await?;
    flip(&room, "first", false).await?;
    flip(&room, "second", false).await?;
    roles_were(&history, [&["main", "secondary"]; 2]).await
}

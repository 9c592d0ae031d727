//! The gate of `SidecarSet`, switched off and on again while a roll-out is under way.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use leadsman_api::SidecarSet;
use leadsman_testkit::Release;
use leadsman_testkit::images::SIDECAR;
use leadsman_tests::{wait_for_answer, wait_for_object};
use serde_json::{Value, json};

use crate::room::{PODS, flip, mark_pods};
use crate::{Room, install};

/// The set, its only container, and the namespace of its pods.
const NAME: &str = "gate-of-sets";
/// What the chart and the manager have only with the gate. The set and its CRD stay.
const OURS: [&str; 9] = [
    "mutatingwebhookconfiguration/leadsman",
    "validatingwebhookconfiguration/leadsman",
    "clusterrole/leadsman-manager-sidecarset",
    "clusterrole/leadsman-manager-webhooks",
    "clusterrole/leadsman-manager-validating-webhooks",
    "validatingadmissionpolicy/leadsman-manager-pods",
    "validatingadmissionpolicy/leadsman-manager-sidecarsets",
    "validatingadmissionpolicy/leadsman-manager-revisions",
    "validatingadmissionpolicy/leadsman-manager-secrets",
];

/// How many of [`OURS`] there are.
async fn count_ours(release: &Release) -> Result<usize> {
    let get = [&["get", "--ignore-not-found", "-o=name"], &OURS[..]].concat();
    Ok(release.kubectl(&get).await?.lines().count())
}

async fn wait_for_ours(release: &Release, expected: usize) -> Result<()> {
    wait_for_answer("what comes with the gate, or goes", || async {
        Ok((count_ours(release).await? == expected).then_some(()))
    })
    .await
}

fn containers(release: &str) -> Value {
    let image = format!("{SIDECAR}:{release}");
    json!([{"name": NAME, "image": image, "imagePullPolicy": "Never"}])
}

/// Waits until the set is in force and counts so many pods matched, updated, ready, and both.
async fn wait_for_counts(sets: &Api<SidecarSet>, expected: [i64; 4]) -> Result<()> {
    wait_for_object(sets, NAME, &format!("counts {expected:?}"), |set| {
        let status = set.status.clone().unwrap_or_default();
        let found = [
            status.matched_pods,
            status.updated_pods,
            status.ready_pods,
            status.updated_ready_pods,
        ];
        let generation = status.in_force.as_ref().map(|in_force| in_force.generation);
        ensure!(
            found == expected && generation == set.metadata.generation,
            "{status:?}"
        );
        Ok(())
    })
    .await
}

/// The sidecar's image by the spec of a pod, and the restarts of all its containers by name.
fn state(pod: &Pod) -> Value {
    let spec = pod.spec.iter().flat_map(|spec| &spec.containers);
    let image = spec
        .filter(|it| it.name == NAME)
        .find_map(|it| it.image.clone());
    let statuses = pod
        .status
        .iter()
        .flat_map(|it| it.container_statuses.iter().flatten());
    let restarts = statuses.map(|it| (it.name.clone(), json!(it.restart_count)));
    json!({"image": image, "restarts": restarts.collect::<serde_json::Map<_, _>>()})
}

/// Waits until the API server reaches the webhook: a set may be in force before kube-proxy leads there.
async fn wait_until_new_pods_are_injected(room: &Room) -> Result<()> {
    let pod: Pod = serde_json::from_value(room.manifest("tried", json!({})))?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    wait_for_answer("a pod that would be injected", || async {
        let made = room.scene.pods().create(&dry_run, &pod).await?;
        Ok((!state(&made)["image"].is_null()).then_some(()))
    })
    .await
}

async fn states(room: &Room) -> Result<[Value; 2]> {
    let [first, second] = PODS;
    let pods = room.scene.pods();
    Ok([
        state(&pods.get(first).await?),
        state(&pods.get(second).await?),
    ])
}

// SCS-46, SCS-80
pub(crate) async fn a_gate_of_sets_switched_off_in_a_roll_out_leaves_pods_alone_until_it_is_on(
    release: Arc<Release>,
) -> Result<()> {
    let on = json!({"featureGates": "SidecarSetGate=true"});
    install(&release, on.clone()).await?;
    let sets: Api<SidecarSet> = Api::all(release.client.clone());
    let set = json!({
        "apiVersion": "apps.kruise.io/v1beta1",
        "kind": "SidecarSet",
        "metadata": {"name": NAME},
        "spec": {
            "selector": {"matchLabels": {"app": NAME}},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAME}},
            "containers": containers("1"),
        },
    });
    let set: SidecarSet = serde_json::from_value(set)?;
    sets.create(&PostParams::default(), &set).await?;
    wait_for_counts(&sets, [0; 4]).await?;
    // The configuration of the webhook that injects is made with the first set.
    wait_for_ours(&release, OURS.len()).await?;
    let outcome = switch_off_and_on(&release, &sets, &on).await;
    sets.delete(NAME, &DeleteParams::default()).await?;
    outcome
}

async fn switch_off_and_on(
    release: &Arc<Release>,
    sets: &Api<SidecarSet>,
    on: &Value,
) -> Result<()> {
    let edit = async |spec: Value| {
        let patch = Patch::Merge(json!({"spec": spec}));
        sets.patch(NAME, &PatchParams::default(), &patch).await
    };
    let room = Room::new(release, NAME).await?;
    wait_until_new_pods_are_injected(&room).await?;
    mark_pods(&room).await?;
    wait_for_counts(sets, [2; 4]).await?;
    edit(json!({"containers": containers("2"), "updateStrategy": {"partition": 1}})).await?;
    wait_for_counts(sets, [2, 1, 2, 1]).await?;
    let before = states(&room).await?;

    install(release, json!({})).await?;
    // What the manager has made goes with the roles, by the garbage collector.
    wait_for_ours(release, 0).await?;
    let account = "--as=system:serviceaccount:leadsman-system:leadsman-manager";
    for resource in ["sidecarsets.apps.kruise.io", "controllerrevisions.apps"] {
        // Its exit code is 1 for "no".
        let ask = [
            "auth",
            "can-i",
            "list",
            resource,
            "--all-namespaces",
            account,
        ];
        let asked = release.kubectl(&ask);
        let answer = asked.await.unwrap_or_else(|error| format!("{error:#}"));
        ensure!(!answer.trim().ends_with("yes"), "{resource}: {answer}");
    }
    // With the gate on the second pod would be upgraded now, and a new one injected.
    edit(json!({"updateStrategy": {"partition": 0}})).await?;
    let third = room.pod("third", json!({})).await?;
    ensure!(state(&third)["image"].is_null(), "{third:?}");
    // The manager is there, and does what its other gate says.
    flip(&room, "first", false).await?;
    let meanwhile = states(&room).await?;
    ensure!(meanwhile == before, "{meanwhile:?}, before {before:?}");

    install(release, on.clone()).await?;
    wait_for_counts(sets, [2; 4]).await?;
    wait_for_ours(release, OURS.len()).await?;
    wait_until_new_pods_are_injected(&room).await?;
    let after = states(&room).await?;
    let expected = json!({"image": format!("{SIDECAR}:2"), "restarts": {"main": 0, NAME: 1}});
    ensure!(after == [expected.clone(), expected], "{after:?}");
    room.pod("fourth", json!({})).await?;
    wait_for_counts(sets, [3; 4]).await.context("a new pod")?;
    room.scene
        .pods()
        .delete("third", &DeleteParams::default())
        .await?;
    flip(&room, "second", false).await?;
    Ok(())
}

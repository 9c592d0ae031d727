//! A node that dies with all that runs on it, and comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use leadsman_api::CloneSet;
use leadsman_testkit::Release;
use leadsman_testkit::audit::{Mark, Request};
use leadsman_testkit::leadsman::MANAGER;
use leadsman_tests::room::{is_main, role};
use leadsman_tests::scene::differs;
use leadsman_tests::{History, wait_for_answer, wait_for_object, wait_longer_for_answer};
use serde_json::{Value, json};

use crate::room::flip;
use crate::{Room, install, marked_pods};

/// From the death of a node to other pods that serve: it is silent for 20 s, evictions begin at one node in ten seconds and 5 s
/// later, and meanwhile another manager may have to take over. The rest is for a busy machine.
const REPLACED_WITHIN: Duration = Duration::from_mins(2);
/// The pods of the set.
const REPLICAS: usize = 4;

/// A template of pods with this label.
fn template(room: &Room, app: &str) -> Value {
    let mut template = room.manifest("unused", json!({"metadata": {"labels": {"app": app}}}));
    template["metadata"]["name"] = Value::Null;
    template
}

/// A Deployment of one pod that prefers this node.
fn mover(room: &Room, node: &str) -> Value {
    let mut template = template(room, "mover");
    let hostname = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    template["spec"]["affinity"] = json!({"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": {"matchExpressions": [hostname]}}]}});
    json!({"metadata": {"name": "mover"}, "spec": {"replicas": 1,
        "selector": {"matchLabels": {"app": "mover"}}, "template": template}})
}

/// Waits until a pod of the Deployment on this node is marked.
async fn marked_on(room: &Room, node: &str) -> Result<()> {
    let choice = ListParams::default().labels("app=mover");
    wait_for_answer(&format!("a marked pod on {node}"), || async {
        let pods = room.scene.pods().list(&choice).await?.items;
        let is_there = |pod: &Pod| {
            let place = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            place == Some(node) && differs(pod, &is_main(false)).is_ok()
        };
        Ok(pods.iter().any(is_there).then_some(()))
    })
    .await
}

// PRB-11
pub(crate) async fn a_pod_moves_from_a_node_that_dies_and_is_marked_there(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "dies").await?;
    let [second] = release.bed.workers() else {
        bail!("the bed has not two nodes")
    };
    let deployments: Api<Deployment> = Api::namespaced(release.client.clone(), "dies");
    let deployment = serde_json::from_value(mover(&room, second.name()))?;
    deployments
        .create(&PostParams::default(), &deployment)
        .await?;
    let selector = json!({"matchLabels": {"app": "mover"}});
    room.scene
        .marker_of("mover", selector, json!([role()]))
        .await?;
    marked_on(&room, second.name()).await?;
    second.kill().await?;
    let marked_elsewhere = async {
        marked_on(&room, release.bed.node_name()).await?;
        flip(&room, "first", false).await?;
        // What nobody can ask stays as it was.
        history
            .never("a pod of the dead node lost its mark", |pod| {
                pod.metadata.name.as_deref() == Some("second")
                    && differs(pod, &is_main(true)).is_err()
            })
            .await
    };
    let marked_elsewhere = marked_elsewhere.await;
    second.start().await?;
    marked_elsewhere?;
    wait_for_object(&room.scene.pods(), "second", "its new container", |pod| {
        let status = pod.status.clone().unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let runs = |it: &ContainerStatus| {
            it.restart_count == 1 && it.state.as_ref().is_some_and(|it| it.running.is_some())
        };
        ensure!(
            containers.iter().all(runs) && status.pod_ip.is_some(),
            "{containers:?}"
        );
        Ok(())
    })
    .await?;
    // Its container is new, and so is its answer.
    room.scene.wait_for_marks("second", is_main(false)).await?;
    release.wait_for_rollout().await?;
    flip(&room, "second", true).await
}

/// A set whose pods are on all nodes that run pods, equally many on each.
fn spread_set(room: &Room) -> Value {
    let name = &room.scene.ns;
    let selector = json!({"matchLabels": {"app": name}});
    let mut template = template(room, name);
    // With none a pod would be gone once it is evicted, also from a node that is dead.
    template["spec"]["terminationGracePeriodSeconds"] = json!(1);
    // A node that is tainted is none on which too few are.
    template["spec"]["topologySpreadConstraints"] = json!([
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
            "nodeTaintsPolicy": "Honor", "labelSelector": selector}]);
    json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": {"name": name},
        "spec": {"replicas": REPLICAS, "selector": selector, "template": template}})
}

fn is_active(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Failed" | "Succeeded"))
}

/// A pod's name, uid and restarts.
type PodState = (String, Option<String>, i32);

/// The pods that do not terminate, by the node on which they are.
fn placed(pods: &[Pod]) -> BTreeMap<&str, BTreeSet<PodState>> {
    let mut placed: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| is_active(pod)) {
        let node = pod.spec.as_ref().and_then(|it| it.node_name.as_deref());
        let containers = pod.status.iter().flat_map(|it| &it.container_statuses);
        let restarts = containers.flatten().map(|it| it.restart_count).sum();
        let pods = placed.entry(node.unwrap_or_default()).or_default();
        pods.insert((pod.name_any(), pod.uid(), restarts));
    }
    placed
}

/// Waits until the set counts as many pods as these nodes are to have, all available, and they are there. Returns all its pods,
/// also those that terminate.
async fn wait_until_placed(room: &Room, wanted: &[(&str, usize)]) -> Result<Vec<Pod>> {
    let sets: Api<CloneSet> = Api::namespaced(room.scene.client.clone(), &room.scene.ns);
    let wanted: BTreeMap<_, _> = wanted.iter().copied().collect();
    let replicas = i32::try_from(wanted.values().sum::<usize>())?;
    let what = format!("a set with pods on {wanted:?}");
    wait_longer_for_answer(&what, REPLACED_WITHIN, || async {
        let set = sets.get(&room.scene.ns).await?;
        let pods = room.scene.pods().list(&ListParams::default()).await?.items;
        let status = set.status.unwrap_or_default();
        let counts = [status.replicas, status.available_replicas];
        let is_observed = Some(status.observed_generation) == set.metadata.generation;
        let counted: BTreeMap<_, _> = placed(&pods)
            .into_iter()
            .map(|(node, pods)| (node, pods.len()))
            .collect();
        let is_there = is_observed && counts == [replicas; 2] && counted == wanted;
        Ok(is_there.then_some(pods))
    })
    .await
}

/// What the managers have written in the namespace since then.
fn writes(room: &Room, since: Mark) -> Result<Vec<Request>> {
    let mut requests = room.cluster.bed.audit(since)?;
    requests.retain(|it| {
        it.user == MANAGER && it.namespace == room.scene.ns && it.is_write() && it.code < 300
    });
    Ok(requests)
}

fn created(writes: &[Request]) -> BTreeSet<&str> {
    let creations = writes.iter().filter(|it| it.kind() == "create pods");
    creations.map(|it| it.name.as_str()).collect()
}

// CLS-22, CLD-2, CLD-66
pub(crate) async fn a_set_replaces_the_pods_of_a_node_that_dies_once_and_rests_when_it_is_back(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({"featureGates": "CloneSetGate=true"})).await?;
    let room = Room::new(&release, "replaced").await?;
    let sets: Api<CloneSet> = Api::namespaced(release.client.clone(), "replaced");
    let set = serde_json::from_value(spread_set(&room))?;
    sets.create(&PostParams::default(), &set).await?;
    let outcome = replace_pods_of_a_dead_node(&release, &room, &sets).await;
    sets.delete("replaced", &DeleteParams::default()).await?;
    outcome
}

async fn replace_pods_of_a_dead_node(
    release: &Release,
    room: &Room,
    sets: &Api<CloneSet>,
) -> Result<()> {
    let [second] = release.bed.workers() else {
        bail!("the bed has not two nodes")
    };
    let (first, half) = (release.bed.node_name(), REPLICAS / 2);
    let before = wait_until_placed(room, &[(first, half), (second.name(), half)]).await?;
    let before = placed(&before);
    let history = History::of(&release.client, &room.scene.ns).await?;
    let dies = release.bed.audit_mark()?;
    second.kill().await?;
    let replaced = async {
        let pods = wait_until_placed(room, &[(first, REPLICAS)]).await?;
        let lost: Vec<_> = pods.iter().filter(|pod| !is_active(pod)).collect();
        ensure!(lost.len() == half, "{} pods terminate", lost.len());
        // One goes as with the taint node.kubernetes.io/out-of-service, the other one waits for its kubelet.
        let rests = release.bed.audit_mark()?;
        let now = DeleteParams::default().grace_period(0);
        let gone = lost[0].name_any();
        room.scene.pods().delete(&gone, &now).await?;
        anyhow::Ok((pods, rests))
    };
    let replaced = replaced.await;
    second.start().await?;
    let (pods, rests) = replaced?;

    let after = placed(&pods);
    let survivors = &before[first];
    ensure!(
        after[first].is_superset(survivors),
        "{after:?}, before {before:?}"
    );
    let most = history.most_at_once(is_active).await?;
    ensure!(most == REPLICAS, "{most} pods were active at once");
    wait_longer_for_answer("the end of all lost pods", REPLACED_WITHIN, || async {
        let pods = room.scene.pods().list(&ListParams::default()).await?.items;
        Ok(pods.iter().all(is_active).then_some(()))
    })
    .await?;
    release.wait_for_rollout().await?;
    let rested = writes(room, rests)?;
    ensure!(rested.is_empty(), "written without a reason: {rested:?}");

    // The next pod is the only one since, and it is on the node that is back.
    let larger = Patch::Merge(json!({"spec": {"replicas": REPLICAS + 1}}));
    sets.patch(&room.scene.ns, &PatchParams::default(), &larger)
        .await?;
    let pods = wait_until_placed(room, &[(first, REPLICAS), (second.name(), 1)]).await?;
    let last = placed(&pods);
    ensure!(last[first] == after[first], "{last:?}, before {after:?}");
    let fifth = last[second.name()].first().context("it has one")?;
    let all = writes(room, dies)?;
    let mut expected: BTreeSet<_> = after[first].difference(survivors).collect();
    expected.insert(fifth);
    let expected: BTreeSet<_> = expected.iter().map(|(name, ..)| name.as_str()).collect();
    ensure!(created(&all) == expected, "{all:?}, not {expected:?}");
    let is_other = |it: &&Request| it.resource == "pods" && !expected.contains(it.name.as_str());
    let others: Vec<_> = all.iter().filter(is_other).collect();
    ensure!(others.is_empty(), "other pods were written: {others:?}");
    let kinds: Vec<_> = all.iter().map(Request::kind).collect();
    let creations = kinds.iter().filter(|kind| *kind == "create pods");
    ensure!(creations.count() == expected.len(), "{kinds:?}");
    ensure!(
        kinds.iter().all(|kind| !kind.starts_with("delete")),
        "{kinds:?}"
    );
    Ok(())
}

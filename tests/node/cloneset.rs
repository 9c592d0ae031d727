//! `CloneSet` on a real kubelet, with Kubernetes' own scheduler, proxy, volumes, quotas and garbage collector.

mod outside;
mod restarts;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use leadsman_api::CloneSet;
use leadsman_testkit::Cluster;
use leadsman_tests::room::{role, target};
use leadsman_tests::scene::{differs, merge};
use leadsman_tests::{History, wait_for_answer, wait_for_deletion, wait_for_object};
use serde_json::{Value, json};

use crate::Room;
use crate::sidecarset::{MAIN, MANY, condition, image, image_in, status_of, wait_for_answers};

pub(crate) use outside::*;
pub(crate) use restarts::*;

/// A set of the room's name, whose pods answer with their release at port 8080. It is deleted with this.
struct Set<'a> {
    room: &'a Room,
    sets: Api<CloneSet>,
}

impl<'a> Set<'a> {
    /// Creates a set with these fields beside the least that it needs.
    async fn create(room: &'a Room, spec: Value) -> Result<Self> {
        let labels = json!({"app": room.scene.ns});
        let mut whole = json!({"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"terminationGracePeriodSeconds": 5, "automountServiceAccountToken": false,
                "containers": [container("1")]}}});
        merge(&mut whole, spec);
        let set = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
            "metadata": {"name": room.scene.ns}, "spec": whole});
        let sets = Api::namespaced(room.scene.client.clone(), &room.scene.ns);
        let set: CloneSet = serde_json::from_value(set)?;
        sets.create(&PostParams::default(), &set).await?;
        Ok(Self { room, sets })
    }

    /// A merge patch of the spec.
    async fn edit(&self, spec: Value) -> Result<()> {
        let (name, patch) = (&self.room.scene.ns, Patch::Merge(json!({"spec": spec})));
        self.sets
            .patch(name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn release(&self, release: &str) -> Result<()> {
        let pod = json!({"containers": [container(release)]});
        self.edit(json!({"template": {"spec": pod}})).await
    }

    /// Waits until the status is about the spec and the counts are these: all, updated, available, updated and available.
    async fn wait_for_counts(&self, wanted: [i32; 4]) -> Result<()> {
        let what = format!("counts {wanted:?}");
        wait_for_object(&self.sets, &self.room.scene.ns, &what, |set| {
            has_counts(set, wanted)
        })
        .await
    }

    /// Waits until so many pods are there, all of the present template and available.
    async fn wait_until_done(&self, pods: i32) -> Result<()> {
        self.wait_for_counts([pods; 4]).await
    }

    /// The pods that do not terminate, by their names.
    async fn pods(&self) -> Result<Vec<Pod>> {
        let own = ListParams::default().labels(&format!("app={}", self.room.scene.ns));
        let mut pods = self.room.scene.pods().list(&own).await?.items;
        pods.retain(is_active);
        pods.sort_by_key(ResourceExt::name_any);
        Ok(pods)
    }

    /// What an update in place keeps of the pods: names, uids and addresses.
    async fn identities(&self) -> Result<Vec<[Option<String>; 3]>> {
        let pods = self.pods().await?.into_iter();
        let address = |pod: &Pod| pod.status.as_ref().and_then(|it| it.pod_ip.clone());
        let identities = pods.map(|pod| [Some(pod.name_any()), pod.uid(), address(&pod)]);
        Ok(identities.collect())
    }
}

impl Drop for Set<'_> {
    fn drop(&mut self) {
        let (sets, name) = (self.sets.clone(), self.room.scene.ns.clone());
        tokio::spawn(async move { sets.delete(&name, &DeleteParams::default()).await });
    }
}

/// The container of the pods in this release. A busy machine takes no pod out of service.
fn container(release: &str) -> Value {
    json!({"name": MAIN, "image": image(release), "imagePullPolicy": "Never", "args": ["--http", "8080"],
        "ports": [{"name": "web", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "web"}, "periodSeconds": 1,
            "timeoutSeconds": 5, "failureThreshold": 3}})
}

fn has_counts(set: &CloneSet, wanted: [i32; 4]) -> Result<()> {
    let status = set.status.clone().unwrap_or_default();
    let counts = [
        status.replicas,
        status.updated_replicas,
        status.available_replicas,
        status.updated_available_replicas,
    ];
    let is_newest = Some(status.observed_generation) == set.metadata.generation;
    ensure!(is_newest && counts == wanted, "{status:?}");
    Ok(())
}

fn is_active(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Failed" | "Succeeded"))
}

fn serves(pod: &Pod) -> bool {
    is_active(pod) && condition(pod, "Ready").0 == "True"
}

/// Whether the spec of a pod has this release.
fn has_release(pod: &Pod, release: &str) -> bool {
    image_in(pod, MAIN) == Some(&image(release))
}

fn image_id(pod: &Pod) -> String {
    status_of(pod, MAIN).map_or_else(String::new, |it| it.image_id.clone())
}

/// How often the container of each pod has restarted.
fn restarts_of(pods: &[Pod]) -> BTreeMap<String, i32> {
    let restarts = pods
        .iter()
        .map(|pod| (pod.name_any(), crate::sidecarset::restarts(pod, MAIN)));
    restarts.collect()
}

/// A pod that asks the service of a set's pods all the time.
async fn start_client(room: &Room) -> Result<()> {
    let services: Api<Service> = Api::namespaced(room.scene.client.clone(), &room.scene.ns);
    let service = json!({"metadata": {"name": "web"},
        "spec": {"selector": {"app": room.scene.ns}, "ports": [{"port": 80, "targetPort": 8080}]}});
    let service = serde_json::from_value(service)?;
    let service = services.create(&PostParams::default(), &service).await?;
    let address = service.spec.and_then(|it| it.cluster_ip);
    let url = format!("http://{}/healthz", address.context("it has an address")?);
    wait_for_answer("the service answers", || async {
        Ok(room.cluster.bed.get_from_inside(&url).await.ok())
    })
    .await?;
    let mut main = target(MAIN);
    main["args"] = json!(["load", url, url, url]);
    let client = json!({"metadata": {"labels": {"app": "client"}}, "spec": {"containers": [main]}});
    room.pod("client", client).await.map(drop)
}

// CLS-9, CLS-12, CLS-13, CLS-37, CLS-38, CLS-41, CLS-42, CLS-44, CLS-46, CLD-32
pub(crate) async fn an_update_in_place_keeps_each_pod_and_fails_no_request(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "clones-in-place").await?;
    let strategy = json!({"type": "InPlaceIfPossible", "maxUnavailable": 1,
        "inPlaceUpdateStrategy": {"gracePeriodSeconds": 3}});
    let set = Set::create(&room, json!({"replicas": 3, "updateStrategy": strategy})).await?;
    set.wait_until_done(3).await?;
    let conditions = json!({"labels": {"lifecycle.apps.kruise.io/state": "Normal"},
        "conditions": {"InPlaceUpdateReady": "True", "KruisePodReady": "True", "Ready": "True"}});
    for pod in set.pods().await? {
        differs(&pod, &conditions)?;
    }
    start_client(&room).await?;
    wait_for_answers(&room, "client", "1", MANY).await?;
    let (before, history) = (
        set.identities().await?,
        History::of(&cluster.client, &room.scene.ns).await?,
    );
    set.release("2").await?;
    set.wait_until_done(3).await?;
    wait_for_answers(&room, "client", "2", MANY).await?;
    let after = set.identities().await?;
    ensure!(after == before, "{after:?}, not {before:?}");
    let restarts = restarts_of(&set.pods().await?);
    ensure!(restarts.values().all(|count| *count == 1), "{restarts:?}");
    let is_early = |pod: &Pod| {
        let runs = status_of(pod, MAIN).map(|it| it.image.as_str());
        has_release(pod, "2") && runs == Some(&image("1")) && serves(pod)
    };
    history.never("changed while in service", is_early).await?;
    let is_out = |pod: &Pod| condition(pod, "InPlaceUpdateReady").0 == "False";
    let most = history.most_at_once(is_out).await?;
    ensure!(most == 1, "{most} pods were out of service");
    Ok(())
}

// CLS-21, CLS-22, CLS-40, CLD-40
pub(crate) async fn with_a_surge_another_pod_comes_before_one_goes(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "clones-surge").await?;
    let strategy = json!({"maxUnavailable": 0, "maxSurge": 1});
    let set = Set::create(&room, json!({"replicas": 3, "updateStrategy": strategy})).await?;
    set.wait_until_done(3).await?;
    let before = set.identities().await?;
    let history = History::of(&cluster.client, &room.scene.ns).await?;
    set.release("2").await?;
    set.wait_until_done(3).await?;
    let after = set.identities().await?;
    let is_new = |[_, uid, _]: &[Option<String>; 3]| before.iter().all(|[_, old, _]| old != uid);
    ensure!(after.iter().all(is_new), "{after:?} after {before:?}");
    let (there, served) = (
        history.count_at_once(is_active).await?,
        history.count_at_once(serves).await?,
    );
    ensure!(there == (3..=4), "{there:?} pods were there");
    ensure!(*served.start() == 3, "{served:?} pods served");
    Ok(())
}

// CLS-20, CLS-22, CLS-34, CLS-38, CLS-46, CLD-27
pub(crate) async fn a_partition_keeps_pods_and_going_back_heals_a_broken_image(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "clones-partition").await?;
    let strategy = json!({"type": "InPlaceIfPossible", "maxUnavailable": 1, "partition": 2});
    let set = Set::create(&room, json!({"replicas": 4, "updateStrategy": strategy})).await?;
    set.wait_until_done(4).await?;
    set.release("2").await?;
    set.wait_for_counts([4, 2, 4, 2]).await?;
    // What others delete comes back on the template that is missing.
    let old = |pods: &[Pod]| {
        let old = pods.iter().filter(|pod| has_release(pod, "1"));
        old.map(ResourceExt::name_any).collect::<Vec<_>>()
    };
    let lost = old(&set.pods().await?).pop().context("two are old")?;
    let pods = room.scene.pods();
    pods.delete(&lost, &DeleteParams::default()).await?;
    wait_for_answer("another in its place", || async {
        let pods = set.pods().await?;
        let is_whole = pods.iter().filter(|pod| serves(pod)).count() == 4;
        Ok((is_whole && old(&pods).len() == 2).then_some(()))
    })
    .await?;

    let before = set.identities().await?;
    let history = History::of(&cluster.client, &room.scene.ns).await?;
    let all = json!({"updateStrategy": {"partition": 0},
        "template": {"spec": {"containers": [container("none")]}}});
    set.edit(all).await?;
    set.wait_for_counts([4, 1, 3, 0]).await?;
    let is_stuck = |pod: &Pod| {
        let waits = crate::sidecarset::waits_for(pod, MAIN);
        waits == Some("ErrImageNeverPull")
    };
    history.wait_for_version("no image", is_stuck).await?;
    set.release("2").await?;
    set.wait_until_done(4).await?;
    let after = set.identities().await?;
    ensure!(after == before, "{after:?}, not {before:?}");
    let broken = history.most_at_once(|pod| has_release(pod, "none")).await?;
    ensure!(broken == 1, "{broken} pods got the broken image");

    // Another name of the same image: its id stays.
    let other = "2-of-clones";
    let tag = ["images", "tag", &image("2"), &image(other)];
    cluster.bed.ctr(&tag).await?;
    let before = set.pods().await?;
    set.edit(json!({"updateStrategy": {"maxUnavailable": "100%"}}))
        .await?;
    set.release(other).await?;
    set.wait_until_done(4).await?;
    let after = set.pods().await?;
    for (before, after) in before.iter().zip(&after) {
        ensure!(image_id(before) == image_id(after), "{:?}", after.status);
    }
    let (before, after) = (restarts_of(&before), restarts_of(&after));
    let more = before.iter().map(|(pod, count)| (pod.clone(), count + 1));
    ensure!(after == more.collect(), "{after:?} after {before:?}");
    Ok(())
}

// CLS-25, CLS-27, CLD-18, PPM-8
pub(crate) async fn a_named_pod_goes_first_and_then_an_idle_one(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "clones-idle").await?;
    let cost = |cost: &str| json!({"controller.kubernetes.io/pod-deletion-cost": cost});
    let (cheap, dear) = (cost("-10"), cost("10"));
    let mut probe = role();
    probe["probe"]["timeoutSeconds"] = json!(10);
    probe["markerPolicy"] = json!([
        {"state": "Succeeded", "annotations": cheap}, {"state": "Failed", "annotations": dear}]);
    room.scene.marker("idle", json!([probe])).await?;
    let set = Set::create(&room, json!({"replicas": 4})).await?;
    set.wait_until_done(4).await?;
    let pods = set.pods().await?;
    let names: Vec<_> = pods.iter().map(ResourceExt::name_any).collect();
    let (idle, chosen) = (&names[1], &names[2]);
    room.set(idle, "role=main").await?;
    for name in &names {
        let cost = if name == idle { &cheap } else { &dear };
        let marks = json!({"annotations": cost});
        room.scene.wait_for_marks(name, marks).await?;
    }
    let left = async |wanted: &[&String]| {
        set.wait_until_done(i32::try_from(wanted.len())?).await?;
        let left = set.pods().await?;
        let left: Vec<_> = left.iter().map(ResourceExt::name_any).collect();
        ensure!(left.iter().eq(wanted.iter().copied()), "{left:?}");
        anyhow::Ok(())
    };
    set.edit(json!({"replicas": 3, "scaleStrategy": {"podsToDelete": [chosen]}}))
        .await?;
    left(&[&names[0], idle, &names[3]]).await?;
    set.edit(json!({"replicas": 2})).await?;
    left(&[&names[0], &names[3]]).await
}

// CLS-29, CLS-30, CLS-32, CLD-16, CLD-17
pub(crate) async fn a_hook_holds_a_pod_until_it_may_go(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "clones-hook").await?;
    let marks = json!({"hook": "on"});
    let set = Set::create(
        &room,
        json!({"replicas": 2, "template": {"metadata": {"labels": marks}},
            "lifecycle": {"preDelete": {"labelsHandler": marks, "markPodNotReady": true}}}),
    )
    .await?;
    set.wait_until_done(2).await?;
    let before = set.identities().await?;
    let in_state = |state: &str, ready: &str| {
        json!({"labels": {"lifecycle.apps.kruise.io/state": state},
            "conditions": {"KruisePodReady": ready, "Ready": ready, "ContainersReady": "True"}})
    };
    let held = in_state("PreparingDelete", "False");
    let wait_until_held = async || {
        set.edit(json!({"replicas": 1})).await?;
        wait_for_answer("a held pod", || async {
            let pods = set.pods().await?.into_iter();
            let mut pods = pods.filter(|pod| differs(pod, &held).is_ok());
            Ok(pods.next().map(|pod| pod.name_any()))
        })
        .await
    };
    let pod = wait_until_held().await?;
    set.edit(json!({"replicas": 2})).await?;
    let normal = in_state("Normal", "True");
    room.scene.wait_for_marks(&pod, normal).await?;
    set.wait_until_done(2).await?;
    ensure!(set.identities().await? == before, "others came");
    let pod = wait_until_held().await?;
    let off = json!({"metadata": {"labels": {"hook": null}}});
    room.scene.edit(&pod, "tests", off).await?;
    wait_for_deletion(&room.scene.pods(), &pod).await?;
    set.wait_until_done(1).await
}

//! `SidecarSet` on a real kubelet: what is injected runs, and what is upgraded in place restarts, alone.

mod gated;
mod hot;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, LimitRange, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use leadsman_api::SidecarSet;
use leadsman_api::sidecar_set::SidecarSetStatus;
use leadsman_testkit::Cluster;
use leadsman_testkit::images::SIDECAR;
use leadsman_tests::room::target;
use leadsman_tests::{History, wait_for_object};
use serde_json::{Value, json};

use crate::Room;

pub(crate) use gated::*;
pub(crate) use hot::*;

/// The container that is injected, where it is one.
const SIDE: &str = "side";
/// Of the app.
pub(crate) const MAIN: &str = "main";
/// Where the annotations of a pod say which revision it was injected in, among other things.
const HASH: &str = "kruise.io/sidecarset-hash";

/// A sidecar of this release; it answers at port 7000. There is no release `none`.
fn sidecar(release: &str) -> Value {
    json!({"name": SIDE, "image": image(release), "imagePullPolicy": "Never"})
}

pub(crate) fn image(release: &str) -> String {
    format!("{SIDECAR}:{release}")
}

/// A set for the pods of a room, of the room's name. It is deleted with this.
struct Set<'a> {
    room: &'a Room,
    sets: Api<SidecarSet>,
}

impl<'a> Set<'a> {
    /// Returns once new pods are injected.
    async fn create(room: &'a Room, mut spec: Value) -> Result<Self> {
        let name = &room.scene.ns;
        spec["selector"] = json!({"matchLabels": {"app": name}});
        spec["namespaceSelector"] = json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
        let set = json!({"metadata": {"name": name}, "spec": spec});
        let sets = Api::all(room.scene.client.clone());
        let set: SidecarSet = serde_json::from_value(set)?;
        sets.create(&PostParams::default(), &set).await?;
        let set = Self { room, sets };
        set.wait_until_in_force().await?;
        Ok(set)
    }

    async fn wait_until_in_force(&self) -> Result<()> {
        wait_for_object(&self.sets, &self.room.scene.ns, "it in force", |set| {
            let in_force = set.status.as_ref().and_then(|it| it.in_force.as_ref());
            let generation = in_force.map(|it| it.generation);
            ensure!(generation == set.metadata.generation, "{:?}", set.status);
            Ok(())
        })
        .await
    }

    /// A merge patch of the spec.
    async fn edit(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        let params = PatchParams::default();
        self.sets
            .patch(&self.room.scene.ns, &params, &patch)
            .await?;
        Ok(())
    }

    async fn annotate(&self, key: &str, value: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let params = PatchParams::default();
        self.sets
            .patch(&self.room.scene.ns, &params, &patch)
            .await?;
        Ok(())
    }

    async fn release(&self, release: &str) -> Result<()> {
        self.edit(json!({"containers": [sidecar(release)]})).await
    }

    /// Waits until the status is about the spec and the counts are these: matched, updated, ready, updated and ready.
    async fn wait_for_counts(&self, wanted: [i64; 4]) -> Result<SidecarSetStatus> {
        let what = format!("counts {wanted:?}");
        wait_for_object(&self.sets, &self.room.scene.ns, &what, |set| {
            let status = set.status.clone().unwrap_or_default();
            let counts = [
                status.matched_pods,
                status.updated_pods,
                status.ready_pods,
                status.updated_ready_pods,
            ];
            let is_newest = Some(status.observed_generation) == set.metadata.generation;
            ensure!(is_newest && counts == wanted, "{status:?}");
            Ok(status)
        })
        .await
    }
}

impl Drop for Set<'_> {
    fn drop(&mut self) {
        let (sets, name) = (self.sets.clone(), self.room.scene.ns.clone());
        tokio::spawn(async move { sets.delete(&name, &DeleteParams::default()).await });
    }
}

/// Makes so many pods, and waits until they are ready.
async fn pods(room: &Room, names: &[&str]) -> Result<()> {
    pods_with(room, names, &json!({})).await
}

/// The same, with this in their manifests.
async fn pods_with(room: &Room, names: &[&str], changes: &Value) -> Result<()> {
    for name in names {
        let pod = serde_json::from_value(room.manifest(name, changes.clone()))?;
        room.scene
            .pods()
            .create(&PostParams::default(), &pod)
            .await?;
    }
    for name in names {
        wait_until_ready(room, name).await?;
    }
    Ok(())
}

async fn wait_until_ready(room: &Room, name: &str) -> Result<Pod> {
    wait_for_object(&room.scene.pods(), name, "it ready", |pod| {
        ensure!(condition(pod, "Ready").0 == "True", "{:?}", pod.status);
        Ok(pod.clone())
    })
    .await
}

/// Status and reason of a condition.
pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> (&'a str, &'a str) {
    let conditions = pod.status.as_ref().and_then(|it| it.conditions.as_ref());
    let found = conditions.into_iter().flatten().find(|it| it.type_ == kind);
    found.map_or(("", ""), |it| {
        (&it.status, it.reason.as_deref().unwrap_or_default())
    })
}

/// The containers of a pod, then its init containers.
pub(crate) fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    })
}

pub(crate) fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses);
    all.flatten().find(|it| it.name == container)
}

pub(crate) fn restarts(pod: &Pod, container: &str) -> i32 {
    status_of(pod, container).map_or(0, |it| it.restart_count)
}

/// Why a container waits.
pub(crate) fn waits_for<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let state = status_of(pod, container)?.state.as_ref()?;
    state.waiting.as_ref()?.reason.as_deref()
}

/// Whether the spec of a pod has the sidecar in this release.
fn has_release(pod: &Pod, release: &str) -> bool {
    let wanted = image(release);
    containers(pod).any(|it| it.name == SIDE && it.image.as_deref() == Some(&wanted))
}

/// Fails unless these containers have restarted so often in each pod: the sidecar, and the app.
async fn expect_restarts(room: &Room, pods: &[&str], side: i32, main: i32) -> Result<()> {
    for name in pods {
        let pod = room.scene.pods().get(name).await?;
        let found = (restarts(&pod, SIDE), restarts(&pod, MAIN));
        ensure!(found == (side, main), "{name}: {found:?} restarts");
    }
    Ok(())
}

/// What the sidecar of a pod says that it is.
async fn release_that_answers(room: &Room, pod: &str) -> Result<String> {
    let url = room.url(pod, "/healthz").await?.replace(":8080", ":7000");
    room.cluster.bed.get_from_inside(&url).await
}

// SCS-9, SCS-10, SCS-12, SCS-17, SCS-18, SDF-8
pub(crate) async fn containers_are_injected_and_start_in_the_order_declared(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "injected-order").await?;
    let limits = json!({"metadata": {"name": "default"}, "spec": {"limits": [
        {"type": "Container", "default": {"memory": "64Mi"}, "defaultRequest": {"memory": "1Mi"}}]}});
    let ranges: Api<LimitRange> = Api::namespaced(cluster.client.clone(), &room.scene.ns);
    let limits = serde_json::from_value(limits)?;
    ranges.create(&PostParams::default(), &limits).await?;
    let runs = |name: &str, args: &[&str], policy: &str| {
        let mut container = target(name);
        container["args"] = json!(args);
        container["ports"] = json!([]);
        container["podInjectPolicy"] = json!(policy);
        container
    };
    let (before, after) = ("BeforeAppContainer", "AfterAppContainer");
    let mut native = runs("native", &["pause"], after);
    native["restartPolicy"] = json!("Always");
    let spec = json!({
        "containers": [
            runs("z-first", &["pause"], before),
            runs("last", &["pause"], after),
            runs("a-second", &["pause"], before),
        ],
        "initContainers": [
            runs("z-init", &["emit", "1"], before),
            runs("y-init", &["emit", "1"], after),
            native,
            runs("a-init", &["emit", "1"], after),
        ],
    });
    let _set = Set::create(&room, spec).await?;
    let mut own = target("own-init");
    own["args"] = json!(["emit", "1"]);
    let over = json!({"spec": {"automountServiceAccountToken": true, "initContainers": [own]}});
    let pod = serde_json::from_value(room.manifest("one", over))?;
    let pod = room
        .scene
        .pods()
        .create(&PostParams::default(), &pod)
        .await?;
    let names: Vec<_> = containers(&pod).map(|it| it.name.as_str()).collect();
    let inits = ["z-init", "own-init", "y-init", "native", "a-init"];
    ensure!(
        names == [&["z-first", "a-second", MAIN, "last"][..], &inits].concat(),
        "{names:?}"
    );
    for container in containers(&pod) {
        let mounts = container.volume_mounts.iter().flatten();
        let token = "/var/run/secrets/kubernetes.io/serviceaccount";
        ensure!(
            mounts.clone().any(|it| it.mount_path == token),
            "{container:?}"
        );
        let limits = container
            .resources
            .as_ref()
            .and_then(|it| it.limits.as_ref());
        let memory = limits.and_then(|limits| limits.get("memory"));
        ensure!(memory.is_some_and(|it| it.0 == "64Mi"), "{container:?}");
    }
    let pod = wait_until_ready(&room, "one").await?;
    let ended = |name| {
        let state = status_of(&pod, name).and_then(|it| it.state.as_ref());
        state
            .and_then(|it| it.terminated.as_ref())
            .and_then(|it| it.finished_at.clone())
    };
    let ends: Vec<_> = ["z-init", "own-init", "y-init", "a-init"].map(ended).into();
    ensure!(
        ends.iter().all(Option::is_some) && ends.is_sorted(),
        "{ends:?}"
    );
    for name in ["z-first", "a-second", "last", "native"] {
        let variables = room.exec("one", name, &["env"]).await?;
        ensure!(
            variables.contains("IS_INJECTED=true"),
            "{name}: {variables}"
        );
    }
    Ok(())
}

// SCS-46, SCS-47, SCS-53, SCS-54, SCS-55, SCS-66, SDF-32, SDF-39
pub(crate) async fn a_cold_upgrade_restarts_the_sidecar_once_and_the_app_never(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "cold-upgrade").await?;
    let set = Set::create(&room, json!({"containers": [sidecar("1")]})).await?;
    let names = ["a", "b"];
    pods(&room, &names).await?;
    set.wait_for_counts([2, 2, 2, 2]).await?;
    set.release("2").await?;
    set.wait_for_counts([2, 2, 2, 2]).await?;
    expect_restarts(&room, &names, 1, 0).await?;
    for name in names {
        ensure!(release_that_answers(&room, name).await? == "2", "{name}");
    }

    // Another name of the same image: neither its digest nor its name in the status changes.
    let other = "2-by-another-name";
    cluster
        .bed
        .ctr(&["images", "tag", &image("2"), &image(other)])
        .await?;
    let before = room.scene.pods().get("a").await?;
    set.release(other).await?;
    set.wait_for_counts([2, 2, 2, 2]).await?;
    expect_restarts(&room, &names, 2, 0).await?;
    let after = room.scene.pods().get("a").await?;
    let id = |pod: &Pod| status_of(pod, SIDE).map(|it| it.image_id.clone());
    ensure!(id(&before) == id(&after), "{:?}", status_of(&after, SIDE));

    // A variable cannot be changed in place: the pods stay as they are, and say so.
    let mut changed = sidecar(other);
    changed["env"] = json!([{"name": "A", "value": "1"}]);
    set.edit(json!({"containers": [changed]})).await?;
    set.wait_for_counts([2, 0, 2, 0]).await?;
    let upgradable = async |wanted: (&str, &str)| {
        for name in names {
            wait_for_object(&room.scene.pods(), name, wanted.1, |pod| {
                let found = condition(pod, "SidecarSetUpgradable");
                ensure!(found == wanted, "{found:?}");
                Ok(())
            })
            .await?;
        }
        anyhow::Ok(())
    };
    upgradable(("False", "UpdateImmutableField")).await?;
    set.release(other).await?;
    set.wait_for_counts([2, 2, 2, 2]).await?;
    upgradable(("True", "AllSidecarsetUpgradable")).await?;
    expect_restarts(&room, &names, 2, 0).await
}

// SCS-50, SCS-55, SCS-62
pub(crate) async fn a_broken_image_stops_after_max_unavailable_and_heals(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "broken-image").await?;
    let spec = json!({"containers": [sidecar("1")], "updateStrategy": {"maxUnavailable": 2}});
    let set = Set::create(&room, spec).await?;
    let names = ["a", "b", "c", "d"];
    pods(&room, &names).await?;
    let history = History::of(&cluster.client, &room.scene.ns).await?;
    set.release("none").await?;
    set.wait_for_counts([4, 2, 2, 0]).await?;
    let is_broken = |pod: &Pod| waits_for(pod, SIDE) == Some("ErrImageNeverPull");
    for name in names {
        wait_for_object(&room.scene.pods(), name, "it broken or left alone", |pod| {
            ensure!(
                is_broken(pod) == has_release(pod, "none"),
                "{:?}",
                pod.status
            );
            Ok(())
        })
        .await?;
    }
    set.release("2").await?;
    set.wait_for_counts([4, 4, 4, 4]).await?;
    let broken = history.most_at_once(|pod| has_release(pod, "none")).await?;
    ensure!(broken == 2, "{broken} pods got the broken image");
    // The kubelet does not count a start that failed for want of an image.
    expect_restarts(&room, &names, 1, 0).await?;
    for name in names {
        ensure!(release_that_answers(&room, name).await? == "2", "{name}");
    }
    Ok(())
}

// SCS-36, SCS-39, SCS-49, SDF-51
pub(crate) async fn a_partition_keeps_pods_and_a_pin_holds_new_ones(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "partition-and-pin").await?;
    let spec = json!({"containers": [sidecar("1")], "customVersion": "one",
        "updateStrategy": {"maxUnavailable": "100%"}});
    let set = Set::create(&room, spec).await?;
    let names = ["a", "b", "c", "d"];
    pods(&room, &names).await?;
    let first = set.wait_for_counts([4, 4, 4, 4]).await?.latest_revision;
    let first = first.context("the set has a revision")?;
    set.edit(json!({
        "containers": [sidecar("2")],
        "customVersion": "two",
        "injectionStrategy": {"revision": {"customVersion": "one"}},
        "updateStrategy": {"partition": "50%"},
    }))
    .await?;
    set.wait_for_counts([4, 2, 4, 2]).await?;
    set.wait_until_in_force().await?;
    pods(&room, &["new"]).await?;
    let new = room.scene.pods().get("new").await?;
    ensure!(has_release(&new, "1"), "{:?}", new.spec);
    let hashes = new
        .metadata
        .annotations
        .as_ref()
        .and_then(|it| it.get(HASH));
    let hashes: Value = serde_json::from_str(hashes.context("it was injected")?)?;
    let revision = &hashes[&room.scene.ns]["controllerRevision"];
    ensure!(*revision == json!(first), "{revision}, not {first}");
    ensure!(release_that_answers(&room, "new").await? == "1");

    set.edit(json!({"injectionStrategy": null, "updateStrategy": {"partition": 0}}))
        .await?;
    set.wait_for_counts([5, 5, 5, 5]).await?;
    expect_restarts(&room, &names, 1, 0).await?;
    expect_restarts(&room, &["new"], 1, 0).await
}

// SCS-18, SDF-57
pub(crate) async fn a_native_sidecar_is_upgraded_in_place(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, "native-upgrade").await?;
    let native = |release| {
        let mut native = sidecar(release);
        native["restartPolicy"] = json!("Always");
        json!([native])
    };
    let set = Set::create(&room, json!({"initContainers": native("1")})).await?;
    let names = ["a", "b"];
    pods(&room, &names).await?;
    set.wait_for_counts([2, 2, 2, 2]).await?;
    set.edit(json!({"initContainers": native("none")})).await?;
    // One pod is unavailable, which is all that may be.
    set.wait_for_counts([2, 1, 1, 0]).await?;
    set.edit(json!({"initContainers": native("2")})).await?;
    set.wait_for_counts([2, 2, 2, 2]).await?;
    expect_restarts(&room, &names, 1, 0).await?;
    for name in names {
        ensure!(release_that_answers(&room, name).await? == "2", "{name}");
    }
    Ok(())
}

// SCS-50, SDF-34
pub(crate) async fn a_manager_killed_in_mid_roll_out_upgrades_each_pod_once(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "killed-in-roll-out").await?;
    let set = Set::create(&room, json!({"containers": [sidecar("1")]})).await?;
    let names = ["a", "b", "c", "d"];
    pods(&room, &names).await?;
    set.wait_for_counts([4, 4, 4, 4]).await?;
    let history = History::of(&cluster.client, &room.scene.ns).await?;
    set.release("2").await?;
    let begun = history.wait_for_version("an upgrade", |pod| has_release(pod, "2"));
    begun.await?;
    cluster.kill_manager().await?;
    cluster.start_manager().await?;
    set.wait_for_counts([4, 4, 4, 4]).await?;
    expect_restarts(&room, &names, 1, 0).await?;
    let away = |pod: &Pod| has_release(pod, "2") && restarts(pod, SIDE) == 0;
    let away = history.most_at_once(away).await?;
    ensure!(away == 1, "{away} pods were upgraded at the same time");
    Ok(())
}

//! A control plane whose manager acts on `SidecarSet`s, and a set with its pods on it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use leadsman_api::SidecarSet;
use leadsman_core::sidecarset::metadata::Whitelist;
use leadsman_core::sidecarset::render::{Injection, RenderOptions, inject_sets};
use leadsman_core::sidecarset::set::SidecarSet as ParsedSet;
use leadsman_testkit::FakeKubelet;
use leadsman_testkit::leadsman::NAMESPACE;
use leadsman_testkit::ports::free_addresses;
use leadsman_tests::scene::merge;
use leadsman_tests::{Scene, wait_for_object};
use serde_json::{Value, json};
use tokio::sync::{Mutex, SemaphorePermit};

use crate::stage::PLACES;
use crate::{Installation, SIDECAR_SET_GATE};

/// How long a container takes to start again.
const RESTART: Duration = Duration::from_millis(50);
/// The world of those cases that run at the same time, for as long as one of them does.
static SHARED: Mutex<Weak<World>> = Mutex::const_new(Weak::new());

/// A control plane, and a manager that acts on `SidecarSet`s.
pub(super) struct World {
    pub(super) installation: Installation,
    flags: [String; 5],
    _place: SemaphorePermit<'static>,
}

impl World {
    pub(super) async fn raise() -> Result<Self> {
        let place = PLACES.acquire().await?;
        let installation = Installation::raise_idle().await?;
        installation.allow_sidecar_sets().await?;
        let [free] = free_addresses()?;
        let world = Self {
            installation,
            flags: [
                SIDECAR_SET_GATE.to_owned(),
                "--webhook-bind-address".to_owned(),
                free.to_string(),
                "--webhook-url".to_owned(),
                format!("https://{free}"),
            ],
            _place: place,
        };
        world.start_manager().await?;
        Ok(world)
    }

    /// The one that other cases use, too.
    pub(super) async fn shared() -> Result<Arc<Self>> {
        let mut shared = SHARED.lock().await;
        if let Some(world) = shared.upgrade() {
            return Ok(world);
        }
        let world = Arc::new(Self::raise().await?);
        *shared = Arc::downgrade(&world);
        Ok(world)
    }

    pub(super) async fn start_manager(&self) -> Result<()> {
        let flags = self.flags.each_ref().map(String::as_str);
        self.installation.start_manager_with(&flags).await
    }

    pub(super) fn sets(&self) -> Api<SidecarSet> {
        Api::all(self.installation.client.clone())
    }

    pub(super) fn revisions(&self) -> Api<ControllerRevision> {
        Api::namespaced(self.installation.client.clone(), NAMESPACE)
    }
}

/// A set and a namespace, both of one name: the set selects the pods there that have the label `app` of that value.
pub(super) struct Place {
    pub(super) world: Arc<World>,
    pub(super) scene: Scene,
    _kubelet: FakeKubelet,
}

impl Place {
    pub(super) async fn new(world: Arc<World>, name: &str) -> Result<Self> {
        let client = &world.installation.client;
        let scene = Scene::new(client, name).await?;
        let kubelet = FakeKubelet::start(client, Some(name), RESTART);
        Ok(Self {
            world,
            scene,
            _kubelet: kubelet,
        })
    }

    /// The name of the set, and of the namespace.
    pub(super) fn name(&self) -> &str {
        &self.scene.ns
    }

    /// Makes the set, with one container `log` of this image and the rest merged into its spec, and waits until it has a
    /// status.
    pub(super) async fn set(&self, image: &str, spec: Value) -> Result<SidecarSet> {
        let mut set = json!({
            "apiVersion": "apps.kruise.io/v1beta1",
            "kind": "SidecarSet",
            "metadata": {"name": self.name()},
            "spec": {
                "selector": {"matchLabels": {"app": self.name()}},
                "namespace": self.name(),
                "containers": [{"name": "log", "image": image}],
            },
        });
        merge(&mut set["spec"], spec);
        let set: SidecarSet = serde_json::from_value(set)?;
        let sets = self.world.sets();
        sets.create(&PostParams::default(), &set).await?;
        self.observed().await
    }

    /// A merge patch of the set; returns it when its status is about that.
    pub(super) async fn edit(&self, patch: Value) -> Result<SidecarSet> {
        let sets = self.world.sets();
        let patch = Patch::Merge(patch);
        sets.patch(self.name(), &PatchParams::default(), &patch)
            .await?;
        self.observed().await
    }

    /// Another image for its container.
    pub(super) async fn upgrade_to(&self, image: &str) -> Result<SidecarSet> {
        self.edit(json!({"spec": {"containers": [{"name": "log", "image": image}]}}))
            .await
    }

    /// The set, when its status is about its generation.
    pub(super) async fn observed(&self) -> Result<SidecarSet> {
        let sets = self.world.sets();
        wait_for_object(&sets, self.name(), "a status of its generation", |set| {
            let status = set.status.clone().unwrap_or_default();
            let generation = set.metadata.generation.unwrap_or_default();
            ensure!(
                status.observed_generation == generation && status.latest_revision.is_some(),
                "generation {generation}, status {status:?}"
            );
            Ok(set.clone())
        })
        .await
    }

    /// Waits until the status counts so many pods matched, updated, ready, and both.
    pub(super) async fn wait_for_counts(&self, expected: [i64; 4]) -> Result<SidecarSet> {
        let sets = self.world.sets();
        let what = format!("matched, updated, ready, both: {expected:?}");
        wait_for_object(&sets, self.name(), &what, |set| {
            let status = set.status.clone().unwrap_or_default();
            let found = [
                status.matched_pods,
                status.updated_pods,
                status.ready_pods,
                status.updated_ready_pods,
            ];
            let is_current = Some(status.observed_generation) == set.metadata.generation;
            ensure!(is_current && found == expected, "{found:?}, {status:?}");
            Ok(set.clone())
        })
        .await
    }

    /// Waits until the condition `Ready` of the set has this reason; returns its message.
    pub(super) async fn wait_for_reason(&self, reason: &str) -> Result<String> {
        let sets = self.world.sets();
        wait_for_object(&sets, self.name(), reason, |set| {
            let status = set.status.clone().unwrap_or_default();
            let mut conditions = status.conditions.into_iter();
            let ready = conditions.find(|condition| condition.type_ == "Ready");
            let ready = ready.context("no condition Ready")?;
            ensure!(
                ready.reason == reason,
                "{}: {}",
                ready.reason,
                ready.message
            );
            Ok(ready.message)
        })
        .await
    }

    /// Makes pods that the set as it is stored was injected into, and waits until they run and are counted.
    pub(super) async fn pods<const N: usize>(&self, names: [&str; N]) -> Result<()> {
        let set = self.observed().await?;
        for name in names {
            self.inject(&set, name, json!({})).await?;
        }
        for name in names {
            self.wait_for_pod(name, "that it is ready", |pod| {
                ensure!(is_ready(pod), "{:?}", pod.status);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// A pod as the webhook would let it in.
    pub(super) async fn inject(&self, set: &SidecarSet, name: &str, over: Value) -> Result<Pod> {
        let parsed = ParsedSet::parse(set).map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
        let revision = set
            .status
            .as_ref()
            .and_then(|status| status.latest_revision.as_deref());
        let whitelist = Whitelist::default();
        let injection = Injection {
            template: &parsed.template,
            hashes: &parsed.hashes,
            revision: revision.unwrap_or_default(),
            allowed_keys: whitelist.allowed_keys(|_| None, true),
            newest: None,
            missing_pin: None,
            set: &parsed,
        };
        let mut pod = json!({
            "metadata": {"name": name, "namespace": self.name(), "labels": {"app": self.name()}},
            "spec": {
                "nodeName": self.scene.node,
                "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "app:1"}],
            },
        });
        merge(&mut pod, over);
        let pod = pod.as_object().context("a pod is an object")?;
        let now = Timestamp::UNIX_EPOCH;
        let injected = inject_sets(pod, &[injection], RenderOptions::default(), now);
        let pod = Value::Object(injected.additions.apply(pod));
        let pods = self.scene.pods();
        let pod: Pod = serde_json::from_value(pod)?;
        Ok(pods.create(&PostParams::default(), &pod).await?)
    }

    pub(super) async fn wait_for_pod<T>(
        &self,
        name: &str,
        what: &str,
        condition: impl FnMut(&Pod) -> Result<T>,
    ) -> Result<T> {
        wait_for_object(&self.scene.pods(), name, what, condition).await
    }

    /// The image of the container `log` by pod.
    pub(super) async fn images(&self) -> Result<BTreeMap<String, String>> {
        let pods = self.scene.pods().list(&ListParams::default()).await?;
        let images = pods.items.iter().map(|pod| (pod.name_any(), image(pod)));
        Ok(images.collect())
    }

    /// How many pods have this image.
    pub(super) async fn count(&self, image: &str) -> Result<usize> {
        let images = self.images().await?;
        Ok(images.values().filter(|own| *own == image).count())
    }

    /// The revisions of the set: number and name, the newest last.
    pub(super) async fn revisions(&self) -> Result<Vec<ControllerRevision>> {
        let own = format!("kruise.io/sidecarset-name={}", self.name());
        let own = ListParams::default().labels(&own);
        let mut revisions = self.world.revisions().list(&own).await?.items;
        revisions.sort_by_key(|revision| revision.revision);
        Ok(revisions)
    }

    pub(super) async fn delete_set(&self) -> Result<()> {
        let sets = self.world.sets();
        sets.delete(self.name(), &DeleteParams::default()).await?;
        leadsman_tests::wait_for_deletion(&sets, self.name()).await
    }

    /// Labels of the namespace.
    pub(super) async fn label_namespace(&self, labels: Value) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.scene.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        let params = PatchParams::default();
        namespaces.patch(self.name(), &params, &patch).await?;
        Ok(())
    }
}

/// The image of the container `log` in the spec.
pub(super) fn image(pod: &Pod) -> String {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut log = containers.filter(|container| container.name == "log");
    log.next()
        .and_then(|log| log.image.clone())
        .unwrap_or_default()
}

/// The image of the container `log` in the status.
pub(super) fn running_image(pod: &Pod) -> String {
    let statuses = pod.status.iter();
    let mut statuses = statuses.flat_map(|status| status.container_statuses.iter().flatten());
    let log = statuses.find(|container| container.name == "log");
    log.map(|log| log.image.clone()).unwrap_or_default()
}

/// How often a container was restarted.
pub(super) fn restarts(pod: &Pod, container: &str) -> i32 {
    let statuses = pod.status.iter();
    let mut statuses = statuses.flat_map(|status| status.container_statuses.iter().flatten());
    let found = statuses.find(|status| status.name == container);
    found.map_or(0, |status| status.restart_count)
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|(status, _)| status == "True")
}

/// Status and message of a condition.
pub(super) fn condition(pod: &Pod, kind: &str) -> Option<(String, String)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|condition| condition.type_ == kind)?;
    Some((
        found.status.clone(),
        found.message.clone().unwrap_or_default(),
    ))
}

/// An annotation of a pod, as JSON.
pub(super) fn annotation(pod: &Pod, key: &str) -> Result<Value> {
    let text = pod
        .annotations()
        .get(key)
        .with_context(|| format!("no annotation {key}"))?;
    Ok(serde_json::from_str(text)?)
}

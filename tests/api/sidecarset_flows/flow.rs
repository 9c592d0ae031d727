//! A flow: a namespace and two sets of its own, in which steps happen. It knows when the installation is as the model says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use leadsman_api::SidecarSet;
use leadsman_testkit::kubelet::BROKEN;
use leadsman_tests::oracle::{container, declared_container, is_injected, set_faults};
use leadsman_tests::{History, Scene, wait_for_deletion};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::step::{IMAGES, SETS, Step};

/// How long the installation may take to be as the model says. Generous: the manager may be killed meanwhile.
const PATIENCE: Duration = Duration::from_mins(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);
/// The label `app` of pods. The last one is of no set.
const APPS: [&str; 3] = ["x", "y", "z"];
/// The containers of the two sets.
const CONTAINERS: [&str; SETS] = ["log", "mesh"];

/// The labels `app` that a set selects: the first set of a flow two of three, the second one.
fn apps(set: usize) -> &'static [&'static str] {
    [&["x", "y"][..], &["x"]][set]
}

pub(crate) struct Flow {
    scene: Scene,
    sets: BTreeSet<usize>,
    /// Sets that were deleted, of which the webhook may not have heard yet: it still injects them then.
    deleted: BTreeSet<usize>,
    pods: BTreeSet<usize>,
    history: History,
    /// Injections, and pods that a set selects and that were not injected by it.
    tally: [usize; 2],
}

impl Flow {
    pub(crate) async fn begin(client: &Client, ns: &str) -> Result<Self> {
        Ok(Self {
            scene: Scene::new(client, ns).await?,
            history: History::of(client, ns).await?,
            sets: BTreeSet::new(),
            deleted: BTreeSet::new(),
            pods: BTreeSet::new(),
            tally: [0; 2],
        })
    }

    pub(crate) fn tally(&self) -> [usize; 2] {
        self.tally
    }

    fn sets(&self) -> Api<SidecarSet> {
        Api::all(self.scene.client.clone())
    }

    fn set_name(&self, set: usize) -> String {
        format!("{}-{}", self.scene.ns, CONTAINERS[set])
    }

    /// How many of its pods a set may take down at a time.
    fn most(set: usize) -> usize {
        set + 1
    }

    pub(crate) async fn play(&mut self, step: &Step) -> Result<()> {
        let strategy = |field: &str, value: Value| json!({"updateStrategy": {field: value}});
        match *step {
            Step::MakeSet { set } => self.make_set(set).await,
            Step::DeleteSet { set } => self.delete_set(set).await,
            Step::Image { set, image } => {
                let image = json!({"image": IMAGES[image]});
                self.edit_container(set, image).await
            }
            Step::Variable { set, value } => {
                let variable = json!([{"name": "LEVEL", "value": value.to_string()}]);
                self.edit_container(set, json!({"env": variable})).await
            }
            Step::Pause { set, paused } => self.edit(set, strategy("paused", json!(paused))).await,
            Step::Partition { set, pods } => {
                self.edit(set, strategy("partition", json!(pods))).await
            }
            Step::MakePod { pod, app } => {
                if self.pods.insert(pod) {
                    self.create(&format!("pod-{pod}"), APPS[app]).await?;
                }
                Ok(())
            }
            Step::DeletePod { pod } => {
                if self.pods.remove(&pod) {
                    let (pods, name) = (self.scene.pods(), format!("pod-{pod}"));
                    pods.delete(&name, &DeleteParams::default()).await?;
                    wait_for_deletion(&pods, &name).await?;
                }
                Ok(())
            }
            Step::Relabel { pod, app } => {
                if self.pods.contains(&pod) {
                    let labels = json!({"metadata": {"labels": {"app": APPS[app]}}});
                    let name = format!("pod-{pod}");
                    self.scene.edit(&name, "kubectl", labels).await?;
                }
                Ok(())
            }
            Step::Settle => self.settle().await,
        }
    }

    async fn make_set(&mut self, set: usize) -> Result<()> {
        if !self.sets.insert(set) {
            return Ok(());
        }
        let values = apps(set);
        let wire = json!({
            "apiVersion": "apps.kruise.io/v1beta1",
            "kind": "SidecarSet",
            "metadata": {"name": self.set_name(set)},
            "spec": {
                "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]},
                "namespace": self.scene.ns,
                "containers": [{
                    "name": CONTAINERS[set],
                    "image": IMAGES[0],
                    "env": [{"name": "LEVEL", "value": "0"}],
                }],
                "updateStrategy": {"maxUnavailable": Self::most(set)},
            },
        });
        let wire: SidecarSet = serde_json::from_value(wire)?;
        self.sets().create(&PostParams::default(), &wire).await?;
        Ok(())
    }

    async fn delete_set(&mut self, set: usize) -> Result<()> {
        if self.sets.remove(&set) {
            let (sets, name) = (self.sets(), self.set_name(set));
            sets.delete(&name, &DeleteParams::default()).await?;
            wait_for_deletion(&sets, &name).await?;
            self.deleted.insert(set);
        }
        Ok(())
    }

    /// A merge patch of a set's spec.
    async fn edit(&self, set: usize, spec: Value) -> Result<()> {
        if self.sets.contains(&set) {
            let patch = Patch::Merge(json!({"spec": spec}));
            let (sets, name) = (self.sets(), self.set_name(set));
            sets.patch(&name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    async fn edit_container(&self, set: usize, fields: Value) -> Result<()> {
        if !self.sets.contains(&set) {
            return Ok(());
        }
        let stored = self.sets().get(&self.set_name(set)).await?;
        let mut own = serde_json::to_value(stored.spec.containers.first().context("a container")?)?;
        leadsman_tests::scene::merge(&mut own, fields);
        self.edit(set, json!({"containers": [own]})).await
    }

    fn pod(&self, name: &str, app: &str) -> Result<Pod> {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": app}},
            "spec": {
                "nodeName": self.scene.node,
                "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "app:1"}],
            },
        });
        Ok(serde_json::from_value(pod)?)
    }

    /// Creates a pod, and looks at what the webhook has made of it.
    async fn create(&mut self, name: &str, app: &str) -> Result<Pod> {
        let (pods, pod) = (self.scene.pods(), self.pod(name, app)?);
        let pod = pods.create(&PostParams::default(), &pod).await?;
        for (set, own) in CONTAINERS.iter().enumerate() {
            let is_listed = is_injected(&pod, &self.set_name(set));
            let is_there = container(&pod, own).is_some();
            ensure!(is_listed == is_there, "{name}: {own} is half injected");
            let is_selected = self.sets.contains(&set) && apps(set).contains(&app);
            ensure!(
                is_selected || !is_there || self.deleted.contains(&set),
                "{name} got {own}, which is not for it"
            );
            self.tally[usize::from(!is_there)] += usize::from(is_selected);
        }
        Ok(pod)
    }

    /// Waits until the webhook injects no set any more that was deleted.
    async fn wait_for_the_end_of_deleted_sets(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let (pods, pod) = (self.scene.pods(), self.pod("last", APPS[0])?);
        let trial = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        loop {
            let pod = pods.create(&trial, &pod).await?;
            let mut gone = self.deleted.iter().filter(|set| !self.sets.contains(set));
            let Some(set) = gone.find(|set| container(&pod, CONTAINERS[**set]).is_some()) else {
                break;
            };
            ensure!(
                Instant::now() < deadline,
                "{} was deleted, and is injected after {PATIENCE:?}",
                self.set_name(*set)
            );
            tokio::time::sleep(PAUSE).await;
        }
        self.deleted.clear();
        Ok(())
    }

    /// A pod that all sets select, which they are injected into as they are.
    pub(crate) async fn make_last_pod(&mut self) -> Result<()> {
        self.wait_for_the_end_of_deleted_sets().await?;
        let pod = self.create("last", APPS[0]).await?;
        for set in &self.sets {
            let wire = self.sets().get(&self.set_name(*set)).await?;
            let wanted = declared_container(&wire)?;
            let own = container(&pod, CONTAINERS[*set]);
            let own = own.with_context(|| format!("{} is not injected", self.set_name(*set)))?;
            ensure!(own.image == wanted.image, "{own:?}, not {wanted:?}");
            let values = |env: &Option<Vec<k8s_openapi::api::core::v1::EnvVar>>| {
                let env = env.iter().flatten();
                let level = env.filter(|one| one.name == "LEVEL");
                level.map(|one| one.value.clone()).collect::<Vec<_>>()
            };
            ensure!(
                values(&own.env) == values(&wanted.env),
                "{own:?}, not {wanted:?}"
            );
        }
        Ok(())
    }

    /// Waits until the installation is as the model says; then looks at how it came there.
    pub(crate) async fn settle(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let faults = self.faults().await?;
            if faults.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                let faults = anyhow!(faults.join("\n"));
                return Err(faults.context(format!("not so within {PATIENCE:?}")));
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.expect_few_taken_down().await
    }

    async fn faults(&self) -> Result<Vec<String>> {
        let all = ListParams::default();
        // The sets first: what they count is no older than the pods then.
        let mut sets = Vec::new();
        for set in &self.sets {
            sets.push(self.sets().get(&self.set_name(*set)).await?);
        }
        let pods = self.scene.pods().list(&all).await?.items;
        let mut found = Vec::new();
        for set in sets {
            found.extend(set_faults(&set, &pods)?);
        }
        let unreported = pods.iter().filter(|pod| !is_reported(pod));
        found.extend(
            unreported.map(|pod| format!("{}: no kubelet has reported it", pod.name_any())),
        );
        Ok(found)
    }

    /// No set has ever taken down more pods at a time than it may: pods that were ready when it gave them another image, and
    /// were not ready with it since. A pod that leaves the set frees its place.
    async fn expect_few_taken_down(&self) -> Result<()> {
        let versions = self.history.versions().await?;
        let mut in_order: Vec<_> = versions.into_values().flatten().collect();
        in_order.sort_by_key(|pod| {
            let version = pod.resource_version().unwrap_or_default();
            version.parse::<u64>().unwrap_or_default()
        });
        for (set, own) in CONTAINERS.iter().enumerate() {
            let mut before: BTreeMap<String, Pod> = BTreeMap::new();
            let mut down = BTreeSet::new();
            for pod in &in_order {
                let (uid, app) = (pod.uid().unwrap_or_default(), pod.labels().get("app"));
                let is_member = pod.metadata.deletion_timestamp.is_none()
                    && app.is_some_and(|app| apps(set).contains(&app.as_str()));
                let Some(image) = container(pod, own).and_then(|own| own.image.as_deref()) else {
                    continue;
                };
                let former = before.get(&uid);
                let former_image = former.and_then(|pod| container(pod, own)?.image.as_deref());
                let is_new = former_image.is_some_and(|former| former != image);
                if is_new && former.is_some_and(is_ready) {
                    down.insert(uid.clone());
                } else if !is_member || (is_ready(pod) && running(pod, own) == Some(image)) {
                    down.remove(&uid);
                }
                ensure!(
                    down.len() <= Self::most(set),
                    "{own}: {} pods were down at {:?}",
                    down.len(),
                    pod.resource_version()
                );
                before.insert(uid, pod.clone());
            }
        }
        Ok(())
    }
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod
        .status
        .iter()
        .flat_map(|it| it.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether the status is of the containers as they are: each runs, or waits for an image that cannot be pulled.
fn is_reported(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref();
    let statuses = statuses.and_then(|status| status.container_statuses.as_deref());
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.all(|container| {
        let mut statuses = statuses.unwrap_or_default().iter();
        let image = container.image.as_deref().unwrap_or_default();
        let status = statuses.find(|status| status.name == container.name);
        status.is_some_and(|status| {
            let state = status.state.clone().unwrap_or_default();
            let is_waiting = state.waiting.is_some();
            is_waiting == image.contains(BROKEN) && (is_waiting || status.image == image)
        })
    })
}

/// The image that a kubelet says that it runs.
fn running<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let status = statuses.iter().find(|status| status.name == container)?;
    Some(&status.image)
}

//! A stand-in for kubelets on a control plane without nodes: it reports what a kubelet would of the pods that are bound to
//! a node, and starts containers again whose image was changed.
//!
//! What it says follows from the pod alone, so nothing is lost with a watch that breaks: a container runs if its status
//! names the image of the spec. It runs nothing. An image whose name contains [`BROKEN`] cannot be pulled: its container
//! waits, and the pod is not ready, until it gets another image.
//!
//! It does not know: probes, restart policies, pulls that take time, and that a container is down while it starts again (a
//! status is written once it runs). Which containers a real kubelet restarts is the matter of tests on a node.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::{Object, ObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::clock;

/// What is in the name of an image that cannot be pulled.
pub const BROKEN: &str = "broken";
/// Statuses written at the same time.
const AT_ONCE: usize = 32;
/// Before a status is written again that could not be.
const PAUSE: Duration = Duration::from_millis(200);

/// The kubelets of all nodes. They end when it is dropped.
#[derive(Debug)]
pub struct FakeKubelet(JoinHandle<()>);

impl FakeKubelet {
    /// Begins to run the pods of a namespace, or of all. A change of a container is carried out after `delay`.
    pub fn start(client: &Client, namespace: Option<&str>, delay: Duration) -> Self {
        let resource = ApiResource::erase::<Pod>(&());
        let pods = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let kubelet = Kubelet {
            client: client.clone(),
            delay,
            pods: HashMap::new(),
            places: Arc::new(Semaphore::new(AT_ONCE)),
            working: FuturesUnordered::new(),
        };
        Self(tokio::spawn(kubelet.run(pods)))
    }
}

impl Drop for FakeKubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What is read of a pod.
type BoundPod = Object<BoundSpec, BoundStatus>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BoundSpec {
    node_name: String,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    readiness_gates: Vec<ReadinessGate>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReadinessGate {
    condition_type: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    name: String,
    image: String,
    restart_policy: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BoundStatus {
    phase: String,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: String,
    image: String,
    #[serde(rename = "imageID")]
    image_id: String,
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    container_id: String,
    ready: bool,
    started: bool,
    restart_count: u32,
    state: Value,
}

/// A pod, and whether something is done for it.
struct Known {
    pod: BoundPod,
    is_busy: bool,
}

/// The end of something that was done for a pod, by its uid: how the pod is now, if that is known.
type Done = (String, Option<BoundPod>);

struct Kubelet {
    client: Client,
    delay: Duration,
    /// By uid.
    pods: HashMap<String, Known>,
    places: Arc<Semaphore>,
    /// No more than one for each pod.
    working: FuturesUnordered<BoxFuture<'static, Done>>,
}

impl Kubelet {
    async fn run(mut self, pods: Api<BoundPod>) {
        let mut events = pin!(watcher(pods, watcher::Config::default()));
        loop {
            tokio::select! {
                Some(event) = events.next() => match event {
                    Ok(Event::InitApply(pod) | Event::Apply(pod)) => self.observe(pod),
                    Ok(Event::Delete(pod)) => {
                        self.pods.remove(&pod.uid().unwrap_or_default());
                    }
                    // The watch begins again by itself.
                    Ok(Event::Init | Event::InitDone) | Err(_) => {}
                },
                Some((uid, pod)) = self.working.next() => {
                    if let Some(known) = self.pods.get_mut(&uid) {
                        known.is_busy = false;
                    }
                    match pod {
                        Some(pod) => self.observe(pod),
                        None => self.act(&uid),
                    }
                }
                else => return,
            }
        }
    }

    /// Takes in a pod unless a later state of it is known, and does what is due for it.
    fn observe(&mut self, mut pod: BoundPod) {
        // A large cluster's pods fit into memory without the rest, `managedFields` above all.
        pod.metadata = ObjectMeta {
            namespace: pod.metadata.namespace,
            name: pod.metadata.name,
            uid: pod.metadata.uid,
            resource_version: pod.metadata.resource_version,
            deletion_timestamp: pod.metadata.deletion_timestamp,
            ..ObjectMeta::default()
        };
        let uid = pod.uid().unwrap_or_default();
        match self.pods.get_mut(&uid) {
            Some(known) if version(&known.pod) > version(&pod) => {}
            Some(known) => known.pod = pod,
            None => {
                let is_busy = false;
                self.pods.insert(uid.clone(), Known { pod, is_busy });
            }
        }
        self.act(&uid);
    }

    fn act(&mut self, uid: &str) {
        let Some(known) = self.pods.get_mut(uid).filter(|known| !known.is_busy) else {
            return;
        };
        let Some(work) = Work::due(&known.pod) else {
            return;
        };
        known.is_busy = true;
        let delay = self.delay;
        let (pod, places) = (known.pod.clone(), Arc::clone(&self.places));
        let resource = ApiResource::erase::<Pod>(&());
        let namespace = pod.namespace().unwrap_or_default();
        let pods = Api::namespaced_with(self.client.clone(), &namespace, &resource);
        self.working
            .push(work.carry_out(pods, pod, delay, places).boxed());
    }
}

fn version(pod: &BoundPod) -> u64 {
    let version = pod.resource_version().unwrap_or_default();
    version.parse().unwrap_or_default()
}

/// What is to be done for a pod.
#[derive(Debug, PartialEq)]
enum Work {
    /// Its containers have ended: its object goes.
    Remove,
    /// Another status.
    Report(Value),
}

impl Work {
    fn due(pod: &BoundPod) -> Option<Self> {
        let status = pod.status.clone().unwrap_or_default();
        let is_over = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        if pod.spec.node_name.is_empty() {
            return None;
        }
        if pod.metadata.deletion_timestamp.is_some() {
            return Some(Self::Remove);
        }
        let containers = run(pod, &pod.spec.containers, &status.container_statuses);
        let init = run(
            pod,
            &pod.spec.init_containers,
            &status.init_container_statuses,
        );
        let natives = pod.spec.init_containers.iter().zip(&init);
        let natives = natives.filter(|(container, _)| container.is_native());
        let mut of_pod = containers.iter().chain(natives.map(|(_, status)| status));
        let are_ready = of_pod.all(|container| container.ready);
        let holds = |kind: &str| status.conditions.iter().find(|one| one.kind == kind);
        let holds = |kind: &str| holds(kind).is_some_and(|one| one.status == "True");
        let mut gates = pod.spec.readiness_gates.iter();
        let is_ready = are_ready && gates.all(|gate| holds(&gate.condition_type));
        let is_same = containers == status.container_statuses
            && init == status.init_container_statuses
            && status.phase == "Running"
            // A test may say that a pod without gates is not ready.
            && (pod.spec.readiness_gates.is_empty() || holds("Ready") == is_ready);
        if is_over || is_same {
            return None;
        }
        Some(Self::Report(json!({
            "phase": "Running",
            "conditions": conditions(&status.conditions, [are_ready, is_ready]),
            "containerStatuses": containers,
            "initContainerStatuses": init,
        })))
    }

    async fn carry_out(
        self,
        pods: Api<BoundPod>,
        pod: BoundPod,
        delay: Duration,
        places: Arc<Semaphore>,
    ) -> Done {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        tokio::time::sleep(delay).await;
        let _place = places.acquire().await;
        let done = match self {
            Self::Remove => {
                let preconditions = Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: None,
                };
                let delete = DeleteParams::default()
                    .grace_period(0)
                    .preconditions(preconditions);
                pods.delete(&name, &delete).await.map(|_| None)
            }
            Self::Report(status) => {
                let params = PatchParams {
                    field_manager: Some("kubelet".to_owned()),
                    ..PatchParams::default()
                };
                let patch = json!({"metadata": {"uid": uid}, "status": status});
                let patch = Patch::Strategic(&patch);
                pods.patch_status(&name, &params, &patch).await.map(Some)
            }
        };
        let Ok(pod) = done else {
            // It is gone or was made anew, as the watch says; or the API server is away, and it is tried again.
            tokio::time::sleep(PAUSE).await;
            return (uid, None);
        };
        (uid, pod)
    }
}

/// The statuses of containers that run as the spec says.
fn run(
    pod: &BoundPod,
    containers: &[Container],
    before: &[ContainerStatus],
) -> Vec<ContainerStatus> {
    let statuses = containers.iter().map(|container| {
        let before = before.iter().find(|status| status.name == container.name);
        container.run(&pod.uid().unwrap_or_default(), before)
    });
    statuses.collect()
}

impl Container {
    fn is_native(&self) -> bool {
        self.restart_policy == "Always"
    }

    fn run(&self, pod: &str, before: Option<&ContainerStatus>) -> ContainerStatus {
        let runs = |status: &&ContainerStatus| status.state.get("running").is_some();
        let is_done = |status: &&ContainerStatus| status.state.get("terminated").is_some();
        if let Some(before) = before.filter(|before| before.image == self.image)
            && (runs(&before) || is_done(&before))
        {
            return before.clone();
        }
        let name = self.name.clone();
        if self.image.contains(BROKEN) {
            // A kubelet goes on to name the container that ran last.
            return ContainerStatus {
                name,
                image: before.map_or(self.image.clone(), |before| before.image.clone()),
                ready: false,
                started: false,
                state: json!({"waiting": {"reason": "ErrImagePull"}}),
                ..before.cloned().unwrap_or_default()
            };
        }
        let has_run = |before: &ContainerStatus| u32::from(!before.container_id.is_empty());
        let restart_count = before.map_or(0, |before| before.restart_count + has_run(before));
        let id = digest(&format!("{pod}/{name}/{restart_count}"));
        ContainerStatus {
            image: self.image.clone(),
            image_id: format!("{}@sha256:{}", repository(&self.image), digest(&self.image)),
            container_id: format!("containerd://{id}"),
            ready: true,
            started: true,
            restart_count,
            state: json!({"running": {"startedAt": now()}}),
            name,
        }
    }
}

/// Conditions by which a pod is running; their times change with their statuses.
fn conditions(before: &[Condition], [are_ready, is_ready]: [bool; 2]) -> Vec<Value> {
    let kinds = [
        ("PodScheduled", true),
        ("Initialized", true),
        ("ContainersReady", are_ready),
        ("Ready", is_ready),
    ];
    let conditions = kinds.into_iter().map(|(kind, holds)| {
        let status = if holds { "True" } else { "False" };
        let mut condition = json!({"type": kind, "status": status});
        let is_same = |before: &&Condition| before.kind == kind && before.status == status;
        if !before.iter().any(|before| is_same(&before)) {
            condition["lastTransitionTime"] = json!(now());
        }
        condition
    });
    conditions.collect()
}

/// In whole seconds, as kubelets report it.
fn now() -> String {
    format!("{:.0}", clock::time_of_day())
}

/// An image's name without tag and digest.
fn repository(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    }
}

fn digest(text: &str) -> String {
    format!("{:x}", Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod of one container, bound to a node, with this image and this status.
    fn pod(image: &str, status: &Value) -> BoundPod {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "shop", "uid": "u"},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "image": image}]},
            "status": status,
        }))
        .unwrap()
    }

    fn reported(image: &str, status: &Value) -> Value {
        match Work::due(&pod(image, status)) {
            Some(Work::Report(status)) => status,
            other => panic!("{image}: {other:?}"),
        }
    }

    fn is_ready(status: &Value) -> bool {
        let conditions = status["conditions"].as_array().unwrap();
        let ready = conditions.iter().find(|one| one["type"] == "Ready");
        ready.unwrap()["status"] == "True"
    }

    #[test]
    fn a_pod_runs_and_another_image_starts_another_container() {
        let first = reported("app:1", &json!({"phase": "Pending"}));
        assert!(is_ready(&first) && first["phase"] == "Running");
        assert_eq!(Work::due(&pod("app:1", &first)), None, "nothing is new");
        let second = reported("app:2", &first);
        let [before, after] = [&first, &second].map(|status| &status["containerStatuses"][0]);
        assert_eq!([&before["restartCount"], &after["restartCount"]], [0, 1]);
        for id in ["containerID", "imageID"] {
            assert_ne!(before[id], after[id]);
        }
    }

    #[test]
    fn an_image_that_cannot_be_pulled_makes_its_pod_unready_until_it_gets_another() {
        let runs = reported("app:1", &json!({}));
        let waits = reported("app:broken", &runs);
        let [before, after] = [&runs, &waits].map(|status| &status["containerStatuses"][0]);
        assert!(!is_ready(&waits) && after["state"]["waiting"].is_object());
        assert_eq!(before["containerID"], after["containerID"]);
        assert_eq!(Work::due(&pod("app:broken", &waits)), None);
        for image in ["app:1", "app:2"] {
            let healed = reported(image, &waits);
            let healed = &healed["containerStatuses"][0];
            assert!(is_ready(&reported(image, &waits)), "{image}");
            assert_eq!(healed["restartCount"], 1, "{image}");
            assert_ne!(healed["containerID"], before["containerID"], "{image}");
        }
    }

    #[test]
    fn a_pod_is_ready_while_its_gates_are_open() {
        let gated = |status: &Value| {
            let mut pod = pod("app:1", status);
            let condition_type = "gate".to_owned();
            pod.spec.readiness_gates = vec![ReadinessGate { condition_type }];
            Work::due(&pod)
        };
        let Some(Work::Report(mut status)) = gated(&json!({})) else {
            panic!("it does not run");
        };
        assert!(!is_ready(&status));
        assert_eq!(gated(&status), None, "nothing is new");
        let open = json!({"type": "gate", "status": "True"});
        status["conditions"].as_array_mut().unwrap().push(open);
        assert!(matches!(gated(&status), Some(Work::Report(status)) if is_ready(&status)));
    }

    #[test]
    fn a_pod_that_is_over_stays_and_one_that_is_deleted_goes() {
        assert_eq!(
            Work::due(&pod("app:1", &json!({"phase": "Succeeded"}))),
            None
        );
        let mut deleted = pod("app:1", &json!({}));
        deleted.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(Work::due(&deleted), Some(Work::Remove));
        let mut unbound = pod("app:1", &json!({}));
        unbound.spec.node_name.clear();
        assert_eq!(Work::due(&unbound), None);
    }
}

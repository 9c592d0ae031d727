//! Kubelets, which act late: they start the containers of their pods, restart what has ended or has got another image, tell the
//! API server, and end pods that are being deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use http::StatusCode;
use serde_json::{Value, json};

use crate::ground::{Ground, GroundContainer};
use crate::rest::{PatchKind, RestClient, pod_path};

/// An image with this in its name cannot be pulled.
const BROKEN: &str = "broken";
/// How late a kubelet acts, at most.
const LATE_MS: u64 = 1500;

/// The kubelet of a node.
pub(crate) struct Kubelet {
    node: usize,
    rest: RestClient,
    ground: Ground,
    rng: Rng,
    /// The time at which the next step of each pod is due, by uid.
    due: BTreeMap<String, Duration>,
    /// Pods with nothing to do as long as their version, their containers and their process are as they were.
    idle: BTreeMap<String, (String, u64, bool)>,
    /// Whether there was anything to do when it acted last.
    is_busy: bool,
}

/// The next task of a kubelet for a pod.
enum Task {
    /// Start the next container of this name, after the one before.
    Start {
        name: String,
        image: String,
        attempt: u32,
    },
    /// End the container that has another image.
    End { name: String },
    /// Report this status.
    Report(Value),
    /// All containers have ended: delete the pod.
    Delete,
}

impl Kubelet {
    /// The kubelet of this node.
    pub(crate) fn new(node: usize, rest: RestClient, ground: Ground, rng: Rng) -> Self {
        Self {
            node,
            rest,
            ground,
            rng,
            due: BTreeMap::new(),
            idle: BTreeMap::new(),
            is_busy: true,
        }
    }

    /// Does what is due for the pods of the node. `is_ready` says of a pod of leadsman's own whether its process is ready.
    pub(crate) async fn act(&mut self, pods: &[Arc<Value>], is_ready: bool) {
        let now = self.ground.elapsed();
        let node = node_name(self.node);
        let own: Vec<_> = pods
            .iter()
            .filter(|pod| pod["spec"]["nodeName"] == *node)
            .collect();
        let is_there = |uid: &str| own.iter().any(|pod| pod["metadata"]["uid"] == *uid);
        self.due.retain(|uid, _| is_there(uid));
        self.idle.retain(|uid, _| is_there(uid));
        // Containers of pods that the API server knows nothing of, any more, are killed.
        let is_gone = |one: &GroundContainer| {
            one.node == self.node && !own.iter().any(|pod| pod["metadata"]["uid"] == *one.pod[0])
        };
        self.ground.end_containers(false, is_gone);
        self.is_busy = false;
        for pod in own {
            let version = text(pod, "resourceVersion").to_owned();
            let state = (version, self.ground.lock().revision, is_ready);
            if self.idle.get(text(pod, "uid")) == Some(&state) {
                continue;
            }
            let Some(task) = self.next_task(pod, is_ready) else {
                self.idle.insert(text(pod, "uid").to_owned(), state);
                self.due.remove(text(pod, "uid"));
                continue;
            };
            self.is_busy = true;
            let late = Duration::from_millis(self.rng.u64(50..LATE_MS));
            let due = *self
                .due
                .entry(text(pod, "uid").to_owned())
                .or_insert(now + late);
            if due <= now {
                self.due.remove(text(pod, "uid"));
                self.carry_out(pod, task).await;
            }
        }
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_done(&self) -> bool {
        !self.is_busy
    }

    fn next_task(&self, pod: &Value, is_ready: bool) -> Option<Task> {
        let uid = text(pod, "uid");
        let state = self.ground.lock();
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            return Some(Task::Delete);
        }
        if is_ended(pod) {
            return None;
        }
        for container in pod["spec"]["containers"].as_array().into_iter().flatten() {
            let [name, image] =
                ["name", "image"].map(|key| container[key].as_str().unwrap_or_default());
            let newest = state.newest(uid, name);
            let running = newest.filter(|one| one.ended.is_none());
            if running.is_some_and(|one| one.image != image) {
                return Some(Task::End {
                    name: name.to_owned(),
                });
            }
            if running.is_none() && !image.contains(BROKEN) {
                let attempt = newest.map_or(0, |one| one.attempt + 1);
                let (name, image) = (name.to_owned(), image.to_owned());
                return Some(Task::Start {
                    name,
                    image,
                    attempt,
                });
            }
        }
        let containers: Vec<_> = pod["spec"]["containers"]
            .as_array()
            .into_iter()
            .flatten()
            .collect();
        let newest: Vec<_> = containers
            .iter()
            .map(|one| {
                state
                    .newest(uid, one["name"].as_str().unwrap_or_default())
                    .cloned()
            })
            .collect();
        drop(state);
        let is_own = pod["metadata"]["namespace"] != crate::resources::TENANT;
        let status = self.status(pod, &containers, &newest, !is_own || is_ready);
        (!is_covered(&pod["status"], &status)).then_some(Task::Report(status))
    }

    fn status(
        &self,
        pod: &Value,
        containers: &[&Value],
        newest: &[Option<GroundContainer>],
        is_ready: bool,
    ) -> Value {
        let mut statuses = Vec::new();
        let mut all_run = is_ready;
        for (container, newest) in containers.iter().zip(newest) {
            let running = newest.as_ref().filter(|one| one.ended.is_none());
            all_run &= running.is_some();
            statuses.push(container_status(container, newest.as_ref()));
        }
        let phase = if all_run {
            "Running"
        } else {
            pod["status"]["phase"].as_str().unwrap_or("Pending")
        };
        let now = self.ground.now();
        let condition = |kind: &str, is_true: bool| {
            let status = if is_true { "True" } else { "False" };
            let mut known = pod["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|one| one["type"] == kind && one["status"] == status);
            let since = known
                .next()
                .map_or_else(|| json!(at(now)), |one| one["lastTransitionTime"].clone());
            json!({"type": kind, "status": status, "lastTransitionTime": since})
        };
        let number = text(pod, "uid")
            .bytes()
            .fold(7_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        json!({
            "phase": phase,
            "podIP": format!("10.0.{}.{number}", self.node),
            "conditions": [
                condition("Initialized", true),
                condition("Ready", all_run),
                condition("ContainersReady", all_run),
                condition("PodScheduled", true),
            ],
            "containerStatuses": statuses,
        })
    }

    async fn carry_out(&mut self, pod: &Value, task: Task) {
        let path = pod_path(pod);
        let uid = text(pod, "uid").to_owned();
        match task {
            Task::Start {
                name,
                image,
                attempt,
            } => {
                let names = [&*uid, text(pod, "namespace"), text(pod, "name")];
                self.ground
                    .start_container(self.node, names, &name, &image, attempt);
            }
            Task::End { name } => {
                self.ground
                    .end_containers(true, |one| one.pod[0] == uid && one.name == name);
            }
            Task::Report(status) => {
                let body = json!({"metadata": {"uid": uid}, "status": status});
                let path = format!("{path}/status");
                let reply = self.rest.patch(&path, PatchKind::Strategic, &body).await;
                // A pod that has gone meanwhile is met again by nobody.
                debug_assert!(
                    reply.is_ok()
                        || matches!(reply, Err(StatusCode::NOT_FOUND | StatusCode::CONFLICT)),
                    "{path}: {reply:?}"
                );
            }
            Task::Delete => {
                self.ground.end_containers(false, |one| one.pod[0] == uid);
                let _gone = self.rest.delete(&path, true).await;
            }
        }
    }
}

fn container_status(container: &Value, newest: Option<&GroundContainer>) -> Value {
    let running = newest.filter(|one| one.ended.is_none());
    let state = match running {
        Some(one) => json!({"running": {"startedAt": at(one.started_at)}}),
        None => json!({"waiting": {"reason": "ImagePullBackOff"}}),
    };
    json!({
        "name": container["name"],
        "image": newest.map_or_else(|| container["image"].clone(), |one| json!(one.image)),
        "imageID": newest.map_or_else(String::new, |one| format!("id-of-{}", one.image)),
        "containerID": newest.map_or_else(String::new, |one| format!("containerd://{}", one.id)),
        "ready": running.is_some(),
        "started": running.is_some(),
        "restartCount": newest.map_or(0, |one| one.attempt),
        "state": state,
    })
}

/// Whether a status says already what a kubelet would report.
fn is_covered(status: &Value, report: &Value) -> bool {
    let conditions = report["conditions"].as_array().into_iter().flatten();
    let known = status["conditions"].as_array();
    let mut are_known = conditions.map(|one| {
        known.is_some_and(|known| {
            known
                .iter()
                .any(|other| other["type"] == one["type"] && other["status"] == one["status"])
        })
    });
    are_known.all(|is_known| is_known)
        && status["phase"] == report["phase"]
        && status["podIP"] == report["podIP"]
        && status["containerStatuses"] == report["containerStatuses"]
}

/// The name of a node.
pub(crate) fn node_name(node: usize) -> String {
    format!("node-{node}")
}

/// A text of an object's metadata.
pub(crate) fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"][key].as_str().unwrap_or_default()
}

/// Whether all containers of a pod have ended for good.
pub(crate) fn is_ended(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

/// A time as Kubernetes writes it, in whole seconds.
pub(crate) fn at(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

//! A pod that may be upgraded in place: what the rules read of it, and the order in which pods are upgraded.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leadsman_api::slim::Pairs;
use leadsman_api::slim::{Container, ContainerStatus, Pod};

use crate::cluster::{Interner, Interners, ObjectName, SortedMap};

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedPod {
    /// Namespace and name.
    pub name: Arc<ObjectName>,
    /// The pod's uid.
    pub uid: Arc<str>,
    /// The pod's resourceVersion, as it was written.
    pub resource_version: Option<Arc<str>>,
    /// The pod's labels.
    pub labels: Arc<SortedMap<Arc<str>>>,
    /// The pod's annotations.
    pub annotations: SortedMap<Arc<str>>,
    /// The time of its creation.
    pub created: Option<Timestamp>,
    /// Whether it is bound to a node.
    pub is_scheduled: bool,
    /// How long its containers may take to end.
    pub grace_period: Duration,
    /// Whether it has begun to terminate.
    pub is_terminating: bool,
    /// The pod's phase.
    pub phase: PodPhase,
    /// The time since which it is ready, by its condition; `None` if it is not.
    pub ready: Option<ReadySince>,
    /// The time since which it is not ready, by its condition; `None` if it is, or if the condition
    /// does not say.
    pub unready_since: Option<Timestamp>,
    /// The containers, then the init containers.
    pub containers: Box<[ObservedContainer]>,
    /// Whether each container, init containers apart, has a status.
    pub has_all_statuses: bool,
}

/// The phase of a pod, as far as it orders pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodPhase {
    /// Some container has not been started yet.
    Pending,
    /// Any other phase.
    Unknown,
    /// All containers have been started.
    Running,
    /// All containers have ended.
    Ended,
}

/// The time since which a pod is ready; `None` if its condition does not say.
pub type ReadySince = Option<Timestamp>;

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedContainer {
    /// The container's name.
    pub name: Arc<str>,
    /// The image that it is to have.
    pub image: Arc<str>,
    /// The policy that says when the image is pulled.
    pub pull_policy: Option<Arc<str>>,
    /// Whether it is an init container.
    pub is_init: bool,
    /// The container's status; `None` while the kubelet has not written one.
    pub status: Option<ObservedStatus>,
}

/// The status of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedStatus {
    /// Whether it is ready.
    pub is_ready: bool,
    /// How often it was restarted.
    pub restarts: i32,
    /// The name of its image, as the runtime has it.
    pub image: Arc<str>,
    /// The container's image, with a digest.
    pub image_id: Arc<str>,
    /// The container's id, by [`short_container_id`].
    pub container_id: Option<Arc<str>>,
    /// Whether it runs, and since when.
    pub running: Option<Option<Timestamp>>,
    /// Whether it waits for what comes before its image: the pod's sandbox, volumes or init containers.
    pub waits_for_pod: bool,
}

/// The place of a pod in an upgrade; the fields are compared in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UpgradeOrder {
    is_scheduled: bool,
    phase: PodPhase,
    is_ready: bool,
    ready_since: (bool, Reverse<Option<Timestamp>>),
    restarts: Reverse<i32>,
    created: (bool, Reverse<Option<Timestamp>>),
    /// The pod.
    pub name: Arc<ObjectName>,
}

impl ObservedPod {
    /// Reads a pod.
    pub fn new(wire: &Pod) -> Self {
        Self::share(wire, &[], &mut Interners::default())
    }

    /// The text of an annotation; empty if it is absent.
    pub fn annotation(&self, key: &str) -> &str {
        self.annotations
            .get(key)
            .map(|text| &**text)
            .unwrap_or_default()
    }

    /// Reads a pod. What is the same in many pods is kept once; annotations that are `unique` are not looked for in others.
    pub fn share(wire: &Pod, unique: &[&str], interners: &mut Interners) -> Self {
        let Pod {
            identity,
            labels,
            annotations,
            spec,
            status,
            ..
        } = wire;
        let ready = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == "Ready");
        let (ready, unready) = match ready {
            Some(condition) if condition.status == "True" => (Some(condition), None),
            other => (None, other),
        };
        let Interners {
            strings,
            labels: label_maps,
            objects,
        } = interners;
        let lists = [
            (&spec.containers, &status.container_statuses, false),
            (&spec.init_containers, &status.init_container_statuses, true),
        ];
        let mut containers = Vec::with_capacity(spec.containers.len() + spec.init_containers.len());
        for (list, statuses, is_init) in lists {
            let list = list.iter();
            containers.extend(
                list.map(|container| ObservedContainer::new(container, statuses, is_init, strings)),
            );
        }
        let time = |time: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time| time.0;
        Self {
            // Others go on to name the pod by this: with a new one for each event, all pods had two.
            name: objects.share(ObjectName::of(identity)),
            uid: identity.uid.as_deref().unwrap_or_default().into(),
            resource_version: identity.resource_version.as_deref().map(Into::into),
            labels: label_maps.share(share_pairs(labels, &[], strings)),
            annotations: share_pairs(annotations, unique, strings),
            created: identity.creation_timestamp.as_ref().map(time),
            grace_period: grace_period(spec.termination_grace_period_seconds),
            is_scheduled: spec.node_name.as_ref().is_some_and(|name| !name.is_empty()),
            is_terminating: identity.deletion_timestamp.is_some(),
            phase: match status.phase.as_deref() {
                Some("Pending") => PodPhase::Pending,
                Some("Running") => PodPhase::Running,
                Some("Succeeded" | "Failed") => PodPhase::Ended,
                _ => PodPhase::Unknown,
            },
            ready: ready.map(|condition| condition.last_transition_time.as_ref().map(time)),
            unready_since: unready
                .and_then(|condition| condition.last_transition_time.as_ref().map(time)),
            containers: containers.into(),
            has_all_statuses: status.container_statuses.len() == spec.containers.len(),
        }
    }

    /// Whether nothing but its version differs from another state of the pod.
    pub fn is_same(&self, other: &Self) -> bool {
        let Self {
            name,
            uid,
            resource_version: _,
            labels,
            annotations,
            created,
            is_scheduled,
            grace_period,
            is_terminating,
            phase,
            ready,
            unready_since,
            containers,
            has_all_statuses,
        } = self;
        *name == other.name
            && *uid == other.uid
            && *labels == other.labels
            && *annotations == other.annotations
            && *created == other.created
            && *is_scheduled == other.is_scheduled
            && *grace_period == other.grace_period
            && *is_terminating == other.is_terminating
            && *phase == other.phase
            && *ready == other.ready
            && *unready_since == other.unready_since
            && *containers == other.containers
            && *has_all_statuses == other.has_all_statuses
    }

    /// Whether it neither terminates nor has ended.
    pub fn is_active(&self) -> bool {
        !self.is_terminating && self.phase != PodPhase::Ended
    }

    /// Whether it runs and is ready.
    pub fn is_ready(&self) -> bool {
        self.phase == PodPhase::Running && self.ready.is_some() && !self.is_terminating
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(|value| &**value)
    }

    /// A container or an init container.
    pub fn container(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers
            .iter()
            .find(|container| *container.name == *name)
    }

    /// The place of the pod in an upgrade: a lower one comes first. Pods that serve least come first, then younger ones
    /// (`ActivePods`, `pkg/controller/controller_utils.go`); of equal ones the name decides, so that the order is always the
    /// same.
    pub fn upgrade_order(&self) -> UpgradeOrder {
        let ready_since = self.ready.flatten();
        let statuses = self
            .containers
            .iter()
            .filter_map(|container| container.status.as_ref());
        // The most of any one container, as `maxContainerRestarts` has it, beside `ActivePods`.
        let restarts = statuses.map(|status| status.restarts).max().unwrap_or(0);
        UpgradeOrder {
            is_scheduled: self.is_scheduled,
            phase: self.phase,
            is_ready: self.ready.is_some(),
            // No time comes before any time, as `afterOrZero` has it (`pkg/controller/controller_utils.go`).
            ready_since: (ready_since.is_some(), Reverse(ready_since)),
            restarts: Reverse(restarts),
            created: (self.created.is_some(), Reverse(self.created)),
            name: self.name.clone(),
        }
    }
}

/// Digits by which `crictl` tells one container of a node from another (`getTruncatedID`, `cmd/crictl/util.go` of
/// `cri-tools`).
const SHORT_ID: usize = 13;

/// The part of a container's id that is kept, and written with each upgrade of each pod. Ids of all
/// runtimes are long and hexadecimal; any other is kept whole.
pub fn short_container_id(id: &str) -> &str {
    let digits = id.rsplit_once("://").map_or(id, |(_, digits)| digits);
    let is_usual =
        digits.len() >= 2 * SHORT_ID && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_usual { &digits[..SHORT_ID] } else { id }
}

/// The default is Kubernetes' (`DefaultTerminationGracePeriodSeconds` in `k8s.io/api/core/v1`).
fn grace_period(seconds: Option<i64>) -> Duration {
    const DEFAULT: u64 = 30;
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Duration::from_secs(seconds.unwrap_or(DEFAULT))
}

fn share_pairs(pairs: &Pairs, unique: &[&str], strings: &mut Interner<str>) -> SortedMap<Arc<str>> {
    let shared = pairs.iter().map(|(key, value)| {
        let value = if unique.contains(&key.as_str()) {
            value.as_str().into()
        } else {
            strings.share(value.as_str())
        };
        (strings.share(key.as_str()), value)
    });
    shared.collect()
}

/// Why a container waits for its pod, as its status says (`PodInitializing` and `ContainerCreating`,
/// `pkg/kubelet/kubelet_pods.go`). A kubelet that has tried to pull the image says so.
const WAITS_FOR_POD: [&str; 2] = ["PodInitializing", "ContainerCreating"];

impl ObservedContainer {
    /// Whether its kubelet has not come to it yet.
    pub fn is_untried(&self) -> bool {
        let status = self.status.as_ref();
        status.is_none_or(|status| status.waits_for_pod)
    }

    /// Whether its status says that it is ready.
    pub fn is_ready(&self) -> bool {
        let status = self.status.as_ref();
        status.is_some_and(|status| status.is_ready)
    }

    fn new(
        wire: &Container,
        statuses: &[ContainerStatus],
        is_init: bool,
        strings: &mut Interner<str>,
    ) -> Self {
        let status = statuses.iter().find(|status| status.name == wire.name);
        Self {
            name: strings.share(wire.name.as_str()),
            image: strings.share(wire.image.as_str()),
            pull_policy: wire
                .image_pull_policy
                .as_deref()
                .map(|policy| strings.share(policy)),
            is_init,
            status: status.map(|status| ObservedStatus {
                is_ready: status.ready,
                restarts: status.restart_count,
                image: strings.share(status.image.as_str()),
                image_id: strings.share(status.image_id.as_str()),
                container_id: status
                    .container_id
                    .as_deref()
                    .map(|id| short_container_id(id).into()),
                running: status.state.running.as_ref().map(|running| {
                    let started = running.started_at.as_ref();
                    started.map(|time| time.0)
                }),
                waits_for_pod: status.state.waiting.as_ref().is_some_and(|waiting| {
                    let reason = waiting.reason.as_deref();
                    reason.is_some_and(|reason| WAITS_FOR_POD.contains(&reason))
                }),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, change: &Value) -> ObservedPod {
        let mut pod = json!({
            "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n", "containers": [{"name": "a"}]},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "containerStatuses": [{"name": "a", "restartCount": 0}],
            },
        });
        for (pointer, value) in change.as_object().unwrap() {
            *pod.pointer_mut(pointer).unwrap() = value.clone();
        }
        ObservedPod::new(&serde_json::from_value(pod).unwrap())
    }

    // SCS-48
    #[test]
    fn pods_that_serve_least_come_first() {
        let ready = "/status/conditions/0/status";
        let since = "/status/conditions/0/lastTransitionTime";
        let expected = [
            pod("unscheduled", &json!({"/spec/nodeName": ""})),
            pod("pending", &json!({"/status/phase": "Pending"})),
            pod("unknown", &json!({"/status/phase": "Unknown"})),
            pod("not-ready", &json!({ready: "False"})),
            pod("ready-since-when", &json!({since: null})),
            pod("ready-later", &json!({since: "2026-01-02T00:00:00Z"})),
            pod(
                "restarted",
                &json!({"/status/containerStatuses/0/restartCount": 1}),
            ),
            pod(
                "younger",
                &json!({"/metadata/creationTimestamp": "2026-01-02T00:00:00Z"}),
            ),
            pod("a", &json!({})),
            pod("b", &json!({})),
        ];
        let mut sorted: Vec<_> = expected.iter().rev().cloned().collect();
        sorted.sort_by_key(ObservedPod::upgrade_order);
        assert_eq!(sorted, expected);
    }

    // SCS-6, SCS-56
    #[test]
    fn a_pod_that_ends_or_terminates_is_neither_active_nor_ready() {
        for change in [
            json!({"/status/phase": "Failed"}),
            json!({"/status/phase": "Succeeded"}),
        ] {
            assert!(!pod("a", &change).is_active() && !pod("a", &change).is_ready());
        }
        let mut terminating = pod("a", &json!({}));
        assert!(terminating.is_active() && terminating.is_ready());
        terminating.is_terminating = true;
        assert!(!terminating.is_active() && !terminating.is_ready());
    }

    #[rstest]
    #[case(
        "containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "0123456789abc"
    )]
    #[case("cri-o://0123456789ABCDEF0123456789ABCDEF", "0123456789ABC")]
    #[case("runtime://1", "runtime://1")]
    #[case(
        "runtime://a-name-that-is-no-number-at-all",
        "runtime://a-name-that-is-no-number-at-all"
    )]
    #[case("", "")]
    fn of_a_long_id_its_first_digits_are_kept(#[case] id: &str, #[case] expected: &str) {
        assert_eq!(short_container_id(id), expected);
    }
}

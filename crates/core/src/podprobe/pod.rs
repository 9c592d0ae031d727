//! A pod as the index keeps it: only what matching, planning and marking read.
//!
//! `managedFields` is kept as far as it says which labels, annotations and conditions our own apply owns, and what kind of
//! manager co-owns each. A mark that is present and not in our entry belongs to somebody else.

use std::num::{NonZeroU16, NonZeroU64};
use std::sync::Arc;

use leadsman_api::slim::{FieldOwner, Owned};
use leadsman_api::{limits, slim};

use super::injected::{self, MARKERS, PROBES};
use crate::cluster::{CompactTime, Interner, Interners, ObjectName, ResourceVersion, SortedMap};

/// The field manager of our applies on `pods/status`.
pub const FIELD_MANAGER: &str = "leadsman-podprobe";

/// Annotation of a mirror pod: the uid of its static pod, which is a hash of the manifest unless that names one
/// (`ConfigMirrorAnnotationKey`, `pkg/kubelet/types/pod_update.go`; `applyDefaults`, `pkg/kubelet/config/common.go`).
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Labels or annotations.
pub type SharedPairs = SortedMap<Arc<str>>;

/// The fields of a pod that the rules read, parsed; its strings are interned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedPod {
    /// Namespace and name.
    pub name: Arc<ObjectName>,
    /// The pod's uid.
    pub uid: Arc<str>,
    /// The uid by which the kubelet knows the pod. For a static pod it differs from `uid`: the API server has only a mirror
    /// pod, whose annotation `kubernetes.io/config.mirror` has it (`pkg/kubelet/pod/mirror_client.go`). The kubelet labels
    /// containers with this uid, hence entries and verdicts carry it. Since anybody who creates a pod may set that
    /// annotation, the agent probes a container only if its namespace and pod name match too.
    pub node_uid: Arc<str>,
    /// The uid of its controller, the owner reference with `controller: true`.
    pub controller: Option<Arc<str>>,
    /// The pod's resourceVersion.
    pub version: ResourceVersion,
    /// The pod's labels.
    pub labels: SharedPairs,
    /// The pod's annotations. Only values of ours are compared, and the values of others can be long: those are kept empty.
    pub annotations: SharedPairs,
    /// Fingerprint of the two annotations by which a pod passes its probes to the provider of a virtual node; None without
    /// either.
    pub injected: Option<NonZeroU64>,
    /// The bytes that the values of these two may have beside its other annotations.
    pub injected_room: usize,
    /// Whether it is neither in phase Succeeded or Failed nor being deleted.
    pub active: bool,
    /// Whether its condition `Initialized` is True.
    pub initialized: bool,
    /// Whether its condition `Ready` is True.
    pub ready: bool,
    /// The node it is bound to.
    pub node: Option<Arc<str>>,
    /// `status.podIP`, the first of its addresses; empty until it has one.
    pub ip: Arc<str>,
    /// The pod's containers and native sidecars.
    pub containers: Box<[IndexedContainer]>,
    /// The pod's conditions by type, without the reserved types, which no marker may set.
    pub conditions: SortedMap<IndexedCondition>,
    /// The marks that our last apply owns.
    pub ours: Ours,
}

/// Why no marker matches a pod, whatever its labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTarget {
    /// The pod is being deleted, or has ended (phase `Succeeded` or `Failed`).
    Inactive,
    /// The pod is bound to no node.
    NotScheduled,
    /// The pod's condition `Initialized` is not True.
    NotInitialized,
}

/// A container that can be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedContainer {
    /// The container's name.
    pub name: Arc<str>,
    /// The container's named ports and their numbers.
    pub ports: Box<[(Arc<str>, NonZeroU16)]>,
    /// Whether it has a startup probe.
    pub startup_probe: bool,
    /// The id that the kubelet reports, without the prefix `<runtime>://`.
    pub id: Option<Arc<str>>,
    /// Whether the kubelet reports `started`: the startup probe has passed, or there is none.
    pub started: bool,
    /// `state.running.startedAt`; None while it does not run.
    pub running_since: Option<CompactTime>,
}

/// A condition of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedCondition {
    /// `True`, `False` or `Unknown`.
    pub status: Arc<str>,
    /// Empty when there is none.
    pub message: Arc<str>,
    /// The time of the last change of the status.
    pub last_transition_time: Option<CompactTime>,
    /// `lastProbeTime`, which the kubelet leaves empty on its own conditions.
    pub last_probe_time: Option<CompactTime>,
}

/// The co-owner of a mark of ours by `managedFields`. Of several co-owners the greatest in the order of this enum counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CoOwner {
    /// We are the only owner: an apply that leaves the mark out removes it.
    Nobody,
    /// A user, a template, another controller.
    Other,
    /// A manager that updates the pod's status, as `OpenKruise`'s does when it marks a pod.
    Status,
}

/// The marks that our apply owns, each with its co-owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ours {
    /// Label keys.
    pub labels: SortedMap<CoOwner>,
    /// Annotation keys.
    pub annotations: SortedMap<CoOwner>,
    /// Condition types.
    pub conditions: SortedMap<CoOwner>,
    /// Whether the pod has labels that nobody owns, and no label that somebody else owns: a webhook changes a new pod after
    /// the API server has written down who owns what (`createHandler`, `k8s.io/apiserver/pkg/endpoints/handlers/create.go`).
    pub unowned_labels: bool,
    /// Whether the pod has annotations that nobody owns, and no annotation that somebody else owns.
    pub unowned_annotations: bool,
}

impl IndexedPod {
    /// A container that can be probed.
    pub fn container(&self, name: &str) -> Option<&IndexedContainer> {
        let mut containers = self.containers.iter();
        containers.find(|container| *container.name == *name)
    }

    /// Converts a pod as the API server sends it. Strings that only this pod has (name, uids, address, container ids) are
    /// reused from `known`, the state before, where they are equal: a comparison with a neighbour in memory is cheaper than a
    /// lookup among the strings of all pods.
    pub fn new(pod: &slim::Pod, known: Option<&Self>, interners: &mut Interners) -> Self {
        let meta = &pod.identity;
        let phase = pod.status.phase.as_deref();
        let is_true = |kind: &str| {
            let mut conditions = pod.status.conditions.iter();
            conditions.any(|condition| condition.type_ == kind && condition.status == "True")
        };
        let name = match known {
            Some(known) => known.name.clone(),
            None => interners.objects.share(ObjectName::of(meta)),
        };
        let names = &mut interners.strings;
        let uid = names.share_like(
            known.map(|known| &known.uid),
            meta.uid.as_deref().unwrap_or_default(),
        );
        let mirrored = pod
            .annotations
            .iter()
            .find(|(key, hash)| key == MIRROR && !hash.is_empty());
        let [probes, markers] = [PROBES, MARKERS].map(|key| {
            let mut annotations = pod.annotations.iter();
            let found = annotations.find(|(known, _)| known == key);
            found.map(|(_, value)| value.as_str())
        });
        let node = pod.spec.node_name.as_deref();
        let mut ours = Ours::from_owners(&pod.owners, names);
        ours.find_unowned(pod);
        let labels = pod.labels.iter();
        let annotations = pod.annotations.iter().map(|(key, value)| {
            let is_ours = ours.annotations.contains_key(key);
            // No other value is compared, and all annotations of a pod may have 256 KiB (`TotalAnnotationSizeLimitB`,
            // k8s.io/apimachinery/pkg/api/validation/objectmeta.go).
            let value = if is_ours { value.as_str() } else { "" };
            (names.share(key.as_str()), names.share(value))
        });
        Self {
            name,
            annotations: annotations.collect(),
            injected: injected::fingerprint_of(probes, markers),
            injected_room: injected::annotation_room_in(
                &pod.annotations,
                injected::Moment::Existence,
                |key| ours.annotations.contains_key(key),
            ),
            node_uid: match mirrored {
                None => uid.clone(),
                Some((_, hash)) => names.share_like(known.map(|known| &known.node_uid), hash),
            },
            uid,
            controller: (pod.controller.as_deref()).map(|uid| names.share(uid)),
            version: ResourceVersion::parse(meta.resource_version.as_deref()),
            labels: labels
                .map(|(key, value)| (names.share(key.as_str()), names.share(value.as_str())))
                .collect(),
            // The rule of `IsPodActive` (`pkg/controller/controller_utils.go`), by which workloads count their pods.
            active: meta.deletion_timestamp.is_none()
                && !matches!(phase, Some("Succeeded" | "Failed")),
            initialized: is_true("Initialized"),
            ready: is_true("Ready"),
            node: node
                .filter(|node| !node.is_empty())
                .map(|node| names.share(node)),
            ip: names.share_like(
                known.map(|known| &known.ip),
                pod.status.pod_ip.as_deref().unwrap_or_default(),
            ),
            containers: index_containers(pod, known, names),
            conditions: index_conditions(pod, names),
            ours,
        }
    }

    /// Whether the pod can be probed: it is active, initialized and bound to a node.
    pub fn is_target(&self) -> bool {
        self.why_no_target().is_none()
    }

    /// Why the pod cannot be probed, if so.
    pub fn why_no_target(&self) -> Option<NoTarget> {
        if !self.active {
            Some(NoTarget::Inactive)
        } else if self.node.is_none() {
            Some(NoTarget::NotScheduled)
        } else if !self.initialized {
            Some(NoTarget::NotInitialized)
        } else {
            None
        }
    }
}

/// Containers and native sidecars (init containers with `restartPolicy: Always`, KEP-753). Other init containers have ended
/// by the time a pod is `Initialized`.
fn index_containers(
    pod: &slim::Pod,
    known: Option<&IndexedPod>,
    names: &mut Interner<str>,
) -> Box<[IndexedContainer]> {
    let sidecars = pod.spec.init_containers.iter();
    let sidecars =
        sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let pairs = [
        (
            pod.spec.containers.iter().collect::<Vec<_>>(),
            &pod.status.container_statuses,
        ),
        (sidecars.collect(), &pod.status.init_container_statuses),
    ];
    let mut all = Vec::new();
    for (containers, statuses) in pairs {
        for container in containers {
            let status = statuses.iter().find(|status| status.name == container.name);
            let id = status.and_then(|status| status.container_id.as_deref());
            let ports = container
                .ports
                .iter()
                .filter_map(|port| {
                    let number = u16::try_from(port.container_port).ok()?;
                    Some((names.share(port.name.as_deref()?), NonZeroU16::new(number)?))
                })
                .collect();
            // The list of containers is immutable, so a known one is in the same place.
            let known = known.and_then(|known| known.containers.get(all.len()));
            all.push(IndexedContainer {
                name: names.share(container.name.as_str()),
                ports,
                startup_probe: container.startup_probe.is_some(),
                id: (id.map(bare_id).filter(|id| !id.is_empty()))
                    .map(|id| names.share_like(known.and_then(|known| known.id.as_ref()), id)),
                started: status.is_some_and(|status| status.started == Some(true)),
                running_since: status.and_then(running_since),
            });
        }
    }
    all.into()
}

fn running_since(status: &slim::ContainerStatus) -> Option<CompactTime> {
    let running = status.state.running.as_ref()?;
    running.started_at.as_ref().map(|time| time.0.into())
}

/// `containerd://id` without its prefix: the id by which the runtime knows the container (`ParseContainerID`,
/// `pkg/kubelet/container/runtime.go`).
fn bare_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, id)| id)
}

fn index_conditions(pod: &slim::Pod, names: &mut Interner<str>) -> SortedMap<IndexedCondition> {
    let conditions = pod.status.conditions.iter();
    // The kubelet's own conditions change most often, and no marker may set them.
    let open = conditions.filter(|condition| {
        let kind = condition.type_.as_str();
        !limits::RESERVED_CONDITION_TYPES.contains(&kind)
    });
    let conditions = open.map(|condition| {
        let message = condition.message.as_deref().unwrap_or_default();
        let seen = IndexedCondition {
            status: names.share(condition.status.as_str()),
            message: names.share(message),
            last_transition_time: condition
                .last_transition_time
                .as_ref()
                .map(|time| time.0.into()),
            last_probe_time: condition.last_probe_time.as_ref().map(|time| time.0.into()),
        };
        (names.share(condition.type_.as_str()), seen)
    });
    conditions.collect()
}

impl Ours {
    /// Whether no mark is ours.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty() && self.conditions.is_empty()
    }

    fn from_owners(owners: &[FieldOwner], names: &mut Interner<str>) -> Self {
        let mut own = |keys: fn(&Owned) -> &Vec<String>| {
            let ours = owners.iter().filter(|one| co_owner_of(one).is_none());
            let ours = ours.flat_map(|owner| keys(&owner.owned));
            ours.map(|key| (names.share(key.as_str()), CoOwner::Nobody))
                .collect()
        };
        let mut ours = Self {
            labels: own(|owned| &owned.labels),
            annotations: own(|owned| &owned.annotations),
            conditions: own(|owned| &owned.conditions),
            ..Self::default()
        };
        // Most pods have no mark of ours, and who owns the rest is of no interest.
        if ours.is_empty() {
            return ours;
        }
        for owner in owners {
            let Some(other) = co_owner_of(owner) else {
                continue;
            };
            let owned = &owner.owned;
            for (ours, keys) in [
                (&mut ours.labels, &owned.labels),
                (&mut ours.annotations, &owned.annotations),
                (&mut ours.conditions, &owned.conditions),
            ] {
                for key in keys {
                    if let Some(owner) = ours.get_mut(key) {
                        *owner = (*owner).max(other);
                    }
                }
            }
        }
        ours
    }

    /// Sees whether the pod has labels or annotations that nobody owns, where our apply owns some.
    fn find_unowned(&mut self, pod: &slim::Pod) {
        let has_unowned = |all: usize, ours: &SortedMap<_>, keys: fn(&Owned) -> &Vec<String>| {
            let mut others = pod.owners.iter();
            !ours.is_empty()
                && all > ours.iter().count()
                && others.all(|one| co_owner_of(one).is_none() || keys(&one.owned).is_empty())
        };
        self.unowned_labels = has_unowned(pod.labels.len(), &self.labels, |owned| &owned.labels);
        self.unowned_annotations = has_unowned(pod.annotations.len(), &self.annotations, |owned| {
            &owned.annotations
        });
    }
}

/// The kind of co-owner that an entry of `managedFields` shows for our marks; None for the entry of our apply.
///
/// `OpenKruise` marks a pod by an update of its status, so operation and subresource decide. The manager's name cannot: by
/// default it is the client's user agent, which begins with the binary's name (`managerOrUserAgent`,
/// `k8s.io/apiserver/pkg/endpoints/handlers/create.go`). That is `manager` for `OpenKruise` and for nearly every operator,
/// and under it `OpenKruise` also creates pods from the templates of its workloads, whose labels are their users'.
fn co_owner_of(owner: &FieldOwner) -> Option<CoOwner> {
    match (owner.operation.as_str(), owner.subresource.as_str()) {
        ("Apply", "status") if owner.manager == FIELD_MANAGER => None,
        ("Update", "status") => Some(CoOwner::Status),
        _ => Some(CoOwner::Other),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// The owners of a label and a condition, by letters: our apply, a user's apply, an update of the status.
    // PPM-9
    #[rstest]
    #[case("o", Some(CoOwner::Nobody))]
    #[case("ou", Some(CoOwner::Other))]
    #[case("os", Some(CoOwner::Status))]
    #[case("ous", Some(CoOwner::Status))]
    #[case("u", None)]
    #[case("s", None)]
    fn what_our_apply_owns_is_ours_with_the_greatest_co_owner(
        #[case] owners: &str,
        #[case] expected: Option<CoOwner>,
    ) {
        let owners: Vec<FieldOwner> = owners
            .chars()
            .map(|owner| {
                let (manager, operation, subresource) = match owner {
                    'o' => (FIELD_MANAGER, "Apply", "status"),
                    'u' => ("kubectl", "Apply", ""),
                    _ => ("manager", "Update", "status"),
                };
                let fields = json!({
                    "f:metadata": { "f:labels": { "f:role": {} } },
                    "f:status": { "f:conditions": { "k:{\"type\":\"t\"}": {} } },
                });
                serde_json::from_value(json!({
                    "manager": manager, "operation": operation, "subresource": subresource, "fieldsV1": fields,
                }))
                .unwrap()
            })
            .collect();
        let ours = Ours::from_owners(&owners, &mut Interner::default());
        assert_eq!(ours.labels.get("role").copied(), expected);
        assert_eq!(ours.conditions.get("t").copied(), expected);
    }
}

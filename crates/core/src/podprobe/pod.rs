//! A pod as the index keeps it: what matching, planning and marking read, and nothing else.
//!
//! Of managedFields one thing is kept: which labels, annotations and conditions are in our own apply entry, and who
//! else is named beside us. What is present and not in our entry belongs to others, whoever they are.

use std::num::{NonZeroU16, NonZeroU64};
use std::sync::Arc;

use jiff::Timestamp;
use leadsman_api::slim::{FieldOwner, Owned};
use leadsman_api::{limits, slim};

use super::injected::{self, MARKERS, PROBES};
use crate::cluster::{Interner, Interners, ObjectName, ResourceVersion, SortedMap};

/// The field manager of our applies on `pods/status`.
pub const FIELD_MANAGER: &str = "leadsman-podprobe";

/// On the mirror of a static pod: the static pod's uid, a hash of its file where the file names none (`ConfigMirrorAnnotationKey`,
/// `pkg/kubelet/types/pod_update.go`; `applyDefaults`, `pkg/kubelet/config/common.go`).
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Labels or annotations.
pub type Pairs = SortedMap<Arc<str>>;

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedPod {
    /// Namespace and name.
    pub name: Arc<ObjectName>,
    /// Its uid.
    pub uid: Arc<str>,
    /// The uid by which the node knows it, which is another one for a static pod: what the API server has is its mirror, and
    /// says in an annotation whose (`pkg/kubelet/pod/mirror_client.go`). The kubelet labels the containers with it, and so
    /// entries and verdicts bear it. Whoever makes a pod may set that annotation, and so the agent takes a container
    /// only if its namespace and pod's name fit too.
    pub node_uid: Arc<str>,
    /// The uid of the workload that controls it.
    pub controller: Option<Arc<str>>,
    /// Its resourceVersion.
    pub version: ResourceVersion,
    /// Its labels.
    pub labels: Pairs,
    /// Its annotations. Nothing is compared with a value that is not ours, and such values can be long: they are left
    /// empty.
    pub annotations: Pairs,
    /// Stands for the probes that it brings to the provider of a virtual node; none if it brings none.
    pub injected: Option<NonZeroU64>,
    /// Neither ended nor being deleted.
    pub active: bool,
    /// Condition `Initialized` is True.
    pub initialized: bool,
    /// Condition `Ready` is True.
    pub ready: bool,
    /// The node it is bound to.
    pub node: Option<Arc<str>>,
    /// Its first address; empty until it has one.
    pub ip: Arc<str>,
    /// What can be probed: containers and native sidecars.
    pub containers: Box<[IndexedContainer]>,
    /// Its conditions by type, but for those of Kubernetes itself, which no marker may name.
    pub conditions: SortedMap<IndexedCondition>,
    /// What our last apply says.
    pub ours: Ours,
}

/// A container that can be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedContainer {
    /// Its name.
    pub name: Arc<str>,
    /// Its named ports.
    pub ports: Box<[(Arc<str>, NonZeroU16)]>,
    /// Whether it has a startup probe.
    pub startup_probe: bool,
    /// The id that the kubelet reports, without the runtime's name.
    pub id: Option<Arc<str>>,
    /// Whether the kubelet reports it started.
    pub started: bool,
    /// Since when the kubelet reports it running.
    pub running_since: Option<Timestamp>,
}

/// A condition of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedCondition {
    /// `True`, `False` or `Unknown`.
    pub status: Arc<str>,
    /// Empty when there is none.
    pub message: Arc<str>,
    /// When the status last changed.
    pub last_transition_time: Option<Timestamp>,
    /// When it was last probed, as far as the pod says.
    pub last_probe_time: Option<Timestamp>,
}

/// Who else is named as an owner of a mark of ours; later ones outweigh earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CoOwner {
    /// We are alone: an apply that leaves the mark out removes it.
    Nobody,
    /// A former field manager of ours, beside us. It does not keep the mark.
    Former,
    /// A former field manager of ours instead of us: the mark is to be taken over, or taken away.
    FormerAlone,
    /// A user, a template, another controller.
    Other,
    /// Somebody who updates the status, as `OpenKruise`'s manager does when it marks a pod.
    Status,
}

/// The marks in our apply entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ours {
    /// Label keys.
    pub labels: SortedMap<CoOwner>,
    /// Annotation keys.
    pub annotations: SortedMap<CoOwner>,
    /// Condition types.
    pub conditions: SortedMap<CoOwner>,
}

impl IndexedPod {
    /// Keeps of a pod what is read of it. What no other pod has is taken from what is `known` of it, if it is there:
    /// searched for among that of all pods, it would be far away in the memory.
    pub fn new(
        pod: &slim::Pod,
        known: Option<&Self>,
        former: &[String],
        interners: &mut Interners,
    ) -> Self {
        let meta = &pod.identity;
        let phase = pod.status.phase.as_deref();
        let holds = |kind: &str| {
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
        let mut mirrored = pod.annotations.iter();
        let mirrored = mirrored.find(|(key, hash)| key == MIRROR && !hash.is_empty());
        let [probes, markers] = [PROBES, MARKERS].map(|key| {
            let mut annotations = pod.annotations.iter();
            let found = annotations.find(|(known, _)| known == key);
            found.map(|(_, value)| value.as_str())
        });
        let node = pod.spec.node_name.as_deref();
        let ours = Ours::read(&pod.owners, former, names);
        let labels = pod.labels.iter();
        let annotations = pod.annotations.iter().map(|(key, value)| {
            let is_ours = ours.annotations.contains_key(key);
            let value = if is_ours { value.as_str() } else { "" };
            (names.share(key.as_str()), names.share(value))
        });
        Self {
            name,
            annotations: annotations.collect(),
            injected: injected::fingerprint_of(probes, markers),
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
            active: meta.deletion_timestamp.is_none()
                && !matches!(phase, Some("Succeeded" | "Failed")),
            initialized: holds("Initialized"),
            ready: holds("Ready"),
            node: node
                .filter(|node| !node.is_empty())
                .map(|node| names.share(node)),
            ip: names.share_like(
                known.map(|known| &known.ip),
                pod.status.pod_ip.as_deref().unwrap_or_default(),
            ),
            containers: containers(pod, known, names),
            conditions: conditions(pod, names),
            ours,
        }
    }

    /// Active, initialized and bound to a node: it can be probed.
    pub fn is_target(&self) -> bool {
        self.active && self.initialized && self.node.is_some()
    }
}

/// Containers and native sidecars; other init containers have ended by the time a pod is probed.
fn containers(
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
            let ports = container.ports.iter().filter_map(|port| {
                let number = u16::try_from(port.container_port).ok()?;
                Some((names.share(port.name.as_deref()?), NonZeroU16::new(number)?))
            });
            let ports = ports.collect();
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

fn running_since(status: &slim::ContainerStatus) -> Option<Timestamp> {
    let running = status.state.running.as_ref()?;
    running.started_at.as_ref().map(|time| time.0)
}

/// `containerd://id` as the runtime itself has it.
fn bare_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, id)| id)
}

fn conditions(pod: &slim::Pod, names: &mut Interner<str>) -> SortedMap<IndexedCondition> {
    let conditions = pod.status.conditions.iter();
    let open = conditions.filter(|condition| {
        let kind = condition.type_.as_str();
        !limits::RESERVED_CONDITION_TYPES.contains(&kind)
    });
    let conditions = open.map(|condition| {
        let message = condition.message.as_deref().unwrap_or_default();
        let seen = IndexedCondition {
            status: names.share(condition.status.as_str()),
            message: names.share(message),
            last_transition_time: condition.last_transition_time.as_ref().map(|time| time.0),
            last_probe_time: condition.last_probe_time.as_ref().map(|time| time.0),
        };
        (names.share(condition.type_.as_str()), seen)
    });
    conditions.collect()
}

impl Ours {
    /// Whether our entry holds nothing.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty() && self.conditions.is_empty()
    }

    /// The marks of our entry, and those that our `former` field managers own and nobody keeps. What a user or a template
    /// owns beside a former one is as if it had never been ours.
    fn read(owners: &[FieldOwner], former: &[String], names: &mut Interner<str>) -> Self {
        let with_role = |role| {
            owners
                .iter()
                .filter(move |one| Role::of(one, former) == role)
        };
        let mut own = |keys: fn(&Owned) -> &Vec<String>| {
            let is_kept = |key: &String| {
                let mut others = with_role(Role::CoOwner(CoOwner::Other));
                others.any(|owner| keys(&owner.owned).contains(key))
            };
            let left = with_role(Role::Former).flat_map(|owner| keys(&owner.owned));
            let left = left.filter(|key| !is_kept(key));
            let left = left.map(|key| (key, CoOwner::FormerAlone));
            let ours = with_role(Role::Ours).flat_map(|owner| keys(&owner.owned));
            // Ours come last, and so count.
            let all = left.chain(ours.map(|key| (key, CoOwner::Nobody)));
            all.map(|(key, owner)| (names.share(key.as_str()), owner))
                .collect()
        };
        let mut ours = Self {
            labels: own(|owned| &owned.labels),
            annotations: own(|owned| &owned.annotations),
            conditions: own(|owned| &owned.conditions),
        };
        if ours.is_empty() {
            return ours;
        }
        for owner in owners {
            let other = match Role::of(owner, former) {
                Role::Ours => continue,
                Role::Former => CoOwner::Former,
                Role::CoOwner(other) => other,
            };
            let owned = &owner.owned;
            for (ours, keys) in [
                (&mut ours.labels, &owned.labels),
                (&mut ours.annotations, &owned.annotations),
                (&mut ours.conditions, &owned.conditions),
            ] {
                for key in keys {
                    if let Some(owner) = ours.get_mut(key)
                        && *owner != CoOwner::FormerAlone
                    {
                        *owner = (*owner).max(other);
                    }
                }
            }
        }
        ours
    }
}

/// Whose an entry of managedFields is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Ours,
    Former,
    CoOwner(CoOwner),
}

impl Role {
    /// `OpenKruise` marks a pod by a PUT of its status. The name of the field manager tells nothing: in a cluster
    /// `OpenKruise` is called `manager`, as nearly every operator is, and by that name it also creates pods from the
    /// templates of its workloads, whose labels are their users'.
    fn of(owner: &FieldOwner, former: &[String]) -> Self {
        match (owner.operation.as_str(), owner.subresource.as_str()) {
            ("Apply", "status") if owner.manager == FIELD_MANAGER => Self::Ours,
            ("Apply", "status") if former.contains(&owner.manager) => Self::Former,
            ("Update", "status") => Self::CoOwner(CoOwner::Status),
            _ => Self::CoOwner(CoOwner::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// By whom a label and a condition are owned, as letters: ours, former, a user, somebody's status.
    // PPM-9
    #[rstest]
    #[case("o", Some(CoOwner::Nobody))]
    #[case("of", Some(CoOwner::Former))]
    #[case("ou", Some(CoOwner::Other))]
    #[case("ofu", Some(CoOwner::Other))]
    #[case("os", Some(CoOwner::Status))]
    #[case("ofus", Some(CoOwner::Status))]
    #[case("f", Some(CoOwner::FormerAlone))]
    #[case("fs", Some(CoOwner::FormerAlone))]
    #[case("fu", None)]
    #[case("u", None)]
    #[case("s", None)]
    fn what_a_former_field_manager_owns_is_ours_unless_a_user_keeps_it(
        #[case] owners: &str,
        #[case] expected: Option<CoOwner>,
    ) {
        let owners: Vec<FieldOwner> = owners
            .chars()
            .map(|owner| {
                let (manager, operation, subresource) = match owner {
                    'o' => (FIELD_MANAGER, "Apply", "status"),
                    'f' => ("before", "Apply", "status"),
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
        let former = ["before".to_owned()];
        let ours = Ours::read(&owners, &former, &mut Interner::default());
        assert_eq!(ours.labels.get("role").copied(), expected);
        assert_eq!(ours.conditions.get("t").copied(), expected);
    }
}

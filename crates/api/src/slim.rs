//! Pod, Node, Namespace and others, reduced to the fields that leadsman reads.
//!
//! All other fields are skipped while parsing, so that they take no memory.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer};

use self::claim::PersistentVolumeClaim;
use self::config_map::ConfigMap;
use self::revision::ControllerRevision;
use self::run::{BroadcastJobRun, Job};
use crate::limits;
pub use crate::managed::{FieldOwner, Owned};
use crate::wire::{null_as_default, pairs};

pub mod claim;
pub mod config_map;
pub mod crd;
pub mod revision;
pub mod run;

/// Labels or annotations, in the order of the wire.
pub type Pairs = Vec<(String, String)>;

/// A pod: the fields that matching, planning, marking and upgrades in place read. All features read one type, so that a pod is
/// decoded once however many of them watch pods.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "PodWire")]
pub struct Pod {
    /// Name, namespace, uid, resourceVersion, generation, creationTimestamp, deletionTimestamp and finalizers; all other fields
    /// are empty.
    pub identity: ObjectMeta,
    /// The labels.
    pub labels: Pairs,
    /// The annotations.
    pub annotations: Pairs,
    /// The uid of the workload that controls it.
    pub controller: Option<String>,
    /// The field managers of its labels, annotations and conditions, from managedFields.
    pub owners: Vec<FieldOwner>,
    /// Desired state.
    pub spec: PodSpec,
    /// Observed state.
    pub status: PodStatus,
}

/// The part of a pod's spec that is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// The node it is bound to.
    pub node_name: Option<String>,
    /// The node that it is for, while it is not bound: the one that its required affinity names, as a controller with a pod a
    /// node writes it (`GetTargetNodeName`, `pkg/controller/daemon/util/daemonset_util.go`).
    #[serde(rename = "affinity", default, deserialize_with = "pinned_node")]
    pub pinned_node: Option<String>,
    /// The seconds from its start after which the kubelet ends it.
    pub active_deadline_seconds: Option<i64>,
    /// The conditions without which it is not ready.
    #[serde(default, deserialize_with = "null_as_default")]
    pub readiness_gates: Vec<ReadinessGate>,
    /// How long its containers may take to end, in seconds.
    pub termination_grace_period_seconds: Option<i64>,
    /// The containers.
    #[serde(default, deserialize_with = "null_as_default")]
    pub containers: Vec<Container>,
    /// The init containers; the restartable ones are sidecars.
    #[serde(default, deserialize_with = "null_as_default")]
    pub init_containers: Vec<Container>,
}

/// A readiness gate of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadinessGate {
    /// The type of the condition.
    pub condition_type: String,
}

/// The part of a container that is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// The container's name.
    pub name: String,
    /// The container's image.
    #[serde(default)]
    pub image: String,
    /// The policy that says when the image is pulled.
    pub image_pull_policy: Option<String>,
    /// The container's ports, by which a probe's port name is resolved.
    #[serde(default, deserialize_with = "null_as_default")]
    pub ports: Vec<ContainerPort>,
    /// Whether it has a startup probe, whose content does not matter.
    pub startup_probe: Option<Present>,
    /// `Always` makes an init container a native sidecar.
    pub restart_policy: Option<String>,
}

/// The part of a container's port that is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// The port's name.
    pub name: Option<String>,
    /// The port's number.
    pub container_port: i32,
}

/// A field whose content is skipped while parsing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Present;

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// The part of a pod's status that is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: Option<String>,
    /// The pod's first address.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// Conditions, those of probes among them.
    #[serde(default, deserialize_with = "null_as_default")]
    pub conditions: Vec<PodCondition>,
    /// State of the containers.
    #[serde(default, deserialize_with = "null_as_default")]
    pub container_statuses: Vec<ContainerStatus>,
    /// State of the init containers.
    #[serde(default, deserialize_with = "null_as_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// The part of a pod's condition that is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// The condition's type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A message for people.
    pub message: Option<String>,
    /// The time at which the status last changed.
    pub last_transition_time: Option<Time>,
    /// The time at which it was last probed.
    pub last_probe_time: Option<Time>,
}

/// The part of a container's status that is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// The container.
    pub name: String,
    /// The container's id, as `runtime://id`.
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
    /// The name of its image, as the runtime has it.
    #[serde(default)]
    pub image: String,
    /// The container's image, with a digest.
    #[serde(default, rename = "imageID")]
    pub image_id: String,
    /// Whether it is ready.
    #[serde(default)]
    pub ready: bool,
    /// How often it was restarted.
    #[serde(default)]
    pub restart_count: i32,
    /// Whether its startup probe has passed, true without one.
    pub started: Option<bool>,
    /// The container's current state.
    #[serde(default)]
    pub state: ContainerState,
}

/// The part of a container's state that is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ContainerState {
    /// `None` while it waits, and after it has terminated.
    pub running: Option<ContainerStateRunning>,
    /// Why it does not run yet, or not again.
    pub waiting: Option<ContainerStateReason>,
    /// How it ended.
    pub terminated: Option<ContainerStateReason>,
}

/// The part that is read of the state of a container that does not run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ContainerStateReason {
    /// The reason in one word, such as `CrashLoopBackOff` or `Completed`.
    pub reason: Option<String>,
}

/// The part that is read of the state of a running container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStateRunning {
    /// The time at which it was started, in whole seconds.
    pub started_at: Option<Time>,
}

/// A node: its name, its labels, and what decides which pods it takes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "NodeWire")]
pub struct Node {
    /// Name, uid and resourceVersion; all other fields are empty.
    pub identity: ObjectMeta,
    /// The labels.
    pub labels: Pairs,
    /// The taints, which keep pods away that do not tolerate them.
    pub taints: Vec<Taint>,
    /// Whether it is cordoned.
    pub unschedulable: bool,
    /// The amounts of resources that its pods may request together.
    pub allocatable: Pairs,
}

/// The part of a node's taint that is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// The taint's key.
    pub key: String,
    /// The taint's value.
    #[serde(deserialize_with = "null_as_default")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A namespace: its name and its labels.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "LabelledWire")]
pub struct Namespace {
    /// Name, uid and resourceVersion; all other fields are empty.
    pub identity: ObjectMeta,
    /// The labels.
    pub labels: Pairs,
}

#[derive(Deserialize)]
struct PodWire {
    metadata: PodMetadata,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

/// The metadata of a pod. kube's `Resource` needs an `ObjectMeta`, which is filled from these fields: its own
/// deserializer would parse managedFields into trees of values.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    #[serde(default, deserialize_with = "pairs")]
    labels: Pairs,
    #[serde(default, deserialize_with = "pairs")]
    annotations: Pairs,
    #[serde(default, deserialize_with = "null_as_default")]
    finalizers: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    owner_references: Vec<OwnerReference>,
    #[serde(default, deserialize_with = "null_as_default")]
    managed_fields: Vec<FieldOwner>,
}

#[derive(Deserialize)]
struct OwnerReference {
    #[serde(default)]
    uid: String,
    controller: Option<bool>,
}

/// Reads the node that a pod's affinity names: of all terms only the first, which such a controller writes alone.
fn pinned_node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Affinity {
        node_affinity: Option<NodeAffinity>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct NodeAffinity {
        #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
        required: Option<Required>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Required {
        #[serde(deserialize_with = "null_as_default")]
        node_selector_terms: Vec<NodeTerm>,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct NodeTerm {
        #[serde(deserialize_with = "null_as_default")]
        match_fields: Vec<FieldRequirement>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct FieldRequirement {
        key: String,
        operator: String,
        #[serde(deserialize_with = "null_as_default")]
        values: Vec<String>,
    }
    let affinity = Option::<Affinity>::deserialize(deserializer)?;
    let required = affinity.and_then(|it| it.node_affinity?.required);
    let mut terms = required
        .map_or_else(Vec::new, |it| it.node_selector_terms)
        .into_iter();
    let mut fields = terms
        .next()
        .map_or_else(Vec::new, |it| it.match_fields)
        .into_iter();
    let name = fields.find(|it| it.key == "metadata.name" && it.operator == "In");
    Ok(name.and_then(|it| it.values.into_iter().next()))
}

#[derive(Deserialize)]
struct NodeWire {
    metadata: LabelledMetadata,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    #[serde(deserialize_with = "null_as_default")]
    taints: Vec<Taint>,
    #[serde(deserialize_with = "null_as_default")]
    unschedulable: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    #[serde(deserialize_with = "pairs")]
    allocatable: Pairs,
}

#[derive(Deserialize)]
struct LabelledWire {
    metadata: LabelledMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LabelledMetadata {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    #[serde(default, deserialize_with = "pairs")]
    labels: Pairs,
}

/// A pod of which more would be kept than memory allows: Kubernetes bounds labels only by the size of the object, and a manager
/// keeps pods many times as large as their text.
struct OversizedPod;

impl fmt::Display for OversizedPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "its labels, the keys of its annotations, its containers, their ports and its readiness gates take more than {} bytes (each counts {} more \
             than its text): remove some",
            limits::KEPT_POD_BYTES,
            limits::KEPT_TEXT_BYTES,
        )
    }
}

impl PodWire {
    /// The bytes of what is kept of a pod however many there are: whoever creates a pod decides about them. A status is its
    /// kubelet's.
    fn kept_bytes(&self) -> usize {
        let labels = self
            .metadata
            .labels
            .iter()
            .map(|(key, value)| key.len() + value.len());
        // The values of annotations have a bound of their own (`TotalAnnotationSizeLimitB`,
        // `k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).
        let annotations = self.metadata.annotations.iter().map(|(key, _)| key.len());
        let lists = [&self.spec.containers, &self.spec.init_containers];
        let containers = || lists.into_iter().flatten();
        let names = containers().map(|one| one.name.len() + one.image.len());
        let ports = containers()
            .flat_map(|one| &one.ports)
            .map(|port| port.name.as_ref().map_or(0, String::len));
        // The keys that say which marks are ours are kept too, and a client may write any
        // managedFields. Ours are of applies on the status.
        let owners = self
            .metadata
            .managed_fields
            .iter()
            .filter(|one| one.operation == "Apply" && one.subresource == "status");
        let owned = owners.flat_map(|one| {
            let owned = [
                &one.owned.labels,
                &one.owned.annotations,
                &one.owned.conditions,
            ];
            owned.into_iter().flatten().map(String::len)
        });
        let pinned = self.spec.pinned_node.iter().map(String::len);
        let gates = self
            .spec
            .readiness_gates
            .iter()
            .map(|gate| gate.condition_type.len());
        let finalizers = self.metadata.finalizers.iter().map(String::len);
        let texts = labels
            .chain(annotations)
            .chain(pinned)
            .chain(finalizers)
            .chain(gates)
            .chain(names)
            .chain(ports)
            .chain(owned);
        texts.map(|text| text + limits::KEPT_TEXT_BYTES).sum()
    }
}

impl TryFrom<PodWire> for Pod {
    type Error = OversizedPod;

    fn try_from(wire: PodWire) -> Result<Self, OversizedPod> {
        if wire.kept_bytes() > limits::KEPT_POD_BYTES {
            return Err(OversizedPod);
        }
        let metadata = wire.metadata;
        let mut owners = metadata.managed_fields;
        owners.retain(|owner| !owner.is_empty());
        let mut references = metadata.owner_references.into_iter();
        let controller = references.find(|owner| owner.controller == Some(true));
        let mut spec = wire.spec;
        spec.pinned_node = spec.pinned_node.filter(|_| spec.node_name.is_none());
        Ok(Self {
            identity: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                generation: metadata.generation,
                creation_timestamp: metadata.creation_timestamp,
                deletion_timestamp: metadata.deletion_timestamp,
                finalizers: (!metadata.finalizers.is_empty()).then_some(metadata.finalizers),
                ..ObjectMeta::default()
            },
            labels: metadata.labels,
            annotations: metadata.annotations,
            controller: controller.map(|owner| owner.uid),
            owners,
            spec,
            status: wire.status,
        })
    }
}

impl LabelledMetadata {
    fn split(self) -> (ObjectMeta, Pairs) {
        let identity = ObjectMeta {
            name: self.name,
            uid: self.uid,
            resource_version: self.resource_version,
            ..ObjectMeta::default()
        };
        (identity, self.labels)
    }
}

impl From<NodeWire> for Node {
    fn from(wire: NodeWire) -> Self {
        let (identity, labels) = wire.metadata.split();
        Self {
            identity,
            labels,
            taints: wire.spec.taints,
            unschedulable: wire.spec.unschedulable,
            allocatable: wire.status.allocatable,
        }
    }
}

impl From<LabelledWire> for Namespace {
    fn from(wire: LabelledWire) -> Self {
        let (identity, labels) = wire.metadata.split();
        Self { identity, labels }
    }
}

macro_rules! resource {
    ($kind:ident, $name:literal, $group:literal, $plural:literal, $scope:ident) => {
        resource!($kind, $name, $group, "v1", $plural, $scope, identity);
    };
    ($kind:ident, $name:literal, $group:literal, $version:literal, $plural:literal, $scope:ident, $($identity:tt)+) => {
        impl kube::Resource for $kind {
            type DynamicType = ();
            type Scope = kube::core::$scope;
            fn kind((): &()) -> Cow<'_, str> {
                $name.into()
            }
            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> Cow<'_, str> {
                $version.into()
            }
            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.$($identity)+
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.$($identity)+
            }
        }
    };
}
resource!(Pod, "Pod", "", "pods", NamespaceResourceScope);
resource!(Node, "Node", "", "nodes", ClusterResourceScope);
resource!(
    Namespace,
    "Namespace",
    "",
    "namespaces",
    ClusterResourceScope
);
resource!(
    ConfigMap,
    "ConfigMap",
    "",
    "configmaps",
    NamespaceResourceScope
);
resource!(
    PersistentVolumeClaim,
    "PersistentVolumeClaim",
    "",
    "persistentvolumeclaims",
    NamespaceResourceScope
);
resource!(
    ControllerRevision,
    "ControllerRevision",
    "apps",
    "controllerrevisions",
    NamespaceResourceScope
);
resource!(
    Job,
    "Job",
    "batch",
    "v1",
    "jobs",
    NamespaceResourceScope,
    0.identity
);
resource!(
    BroadcastJobRun,
    "BroadcastJob",
    "apps.kruise.io",
    "v1beta1",
    "broadcastjobs",
    NamespaceResourceScope,
    0.identity
);

#[cfg(test)]
mod tests;

//! A pod as the rules read it that upgrade pods in place.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;

use super::{ContainerState, Pairs};
use crate::wire::{null_as_default, pairs};

/// A pod: the fields that an upgrade in place reads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WorkloadPodWire")]
pub struct WorkloadPod {
    /// Name, namespace, uid, resourceVersion, generation, creationTimestamp and deletionTimestamp; all other fields are
    /// empty.
    pub identity: ObjectMeta,
    /// Its labels.
    pub labels: Pairs,
    /// Its annotations.
    pub annotations: Pairs,
    /// Desired state.
    pub spec: WorkloadPodSpec,
    /// Observed state.
    pub status: WorkloadPodStatus,
}

#[derive(Deserialize)]
struct WorkloadPodWire {
    #[serde(default)]
    metadata: WorkloadPodMetadata,
    #[serde(default)]
    spec: WorkloadPodSpec,
    #[serde(default)]
    status: WorkloadPodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WorkloadPodMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    #[serde(deserialize_with = "pairs")]
    labels: Pairs,
    #[serde(deserialize_with = "pairs")]
    annotations: Pairs,
}

impl From<WorkloadPodWire> for WorkloadPod {
    fn from(wire: WorkloadPodWire) -> Self {
        let metadata = wire.metadata;
        Self {
            identity: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                generation: metadata.generation,
                creation_timestamp: metadata.creation_timestamp,
                deletion_timestamp: metadata.deletion_timestamp,
                ..ObjectMeta::default()
            },
            labels: metadata.labels,
            annotations: metadata.annotations,
            spec: wire.spec,
            status: wire.status,
        }
    }
}

/// What is read of a pod's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadPodSpec {
    /// The node it is bound to.
    pub node_name: Option<String>,
    /// How long its containers may take to end.
    pub termination_grace_period_seconds: Option<i64>,
    /// Its containers.
    #[serde(deserialize_with = "null_as_default")]
    pub containers: Vec<WorkloadContainer>,
    /// Its init containers.
    #[serde(deserialize_with = "null_as_default")]
    pub init_containers: Vec<WorkloadContainer>,
}

/// What is read of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadContainer {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// When its image is pulled.
    pub image_pull_policy: Option<String>,
}

/// What is read of a pod's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadPodStatus {
    /// The generation that the kubelet has seen (KEP-5067, from Kubernetes 1.33 on).
    pub observed_generation: Option<i64>,
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: Option<String>,
    /// Its conditions.
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<WorkloadPodCondition>,
    /// State of the containers.
    #[serde(deserialize_with = "null_as_default")]
    pub container_statuses: Vec<WorkloadContainerStatus>,
    /// State of the init containers.
    #[serde(deserialize_with = "null_as_default")]
    pub init_container_statuses: Vec<WorkloadContainerStatus>,
}

/// What is read of a pod's condition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadPodCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A message.
    pub message: Option<String>,
    /// When the status last changed.
    pub last_transition_time: Option<Time>,
}

/// What is read of a container's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadContainerStatus {
    /// The container.
    pub name: String,
    /// Whether it is ready.
    pub ready: bool,
    /// How often it was restarted.
    pub restart_count: i32,
    /// The name of its image, as the runtime has it.
    pub image: String,
    /// Its image, with a digest.
    #[serde(rename = "imageID")]
    pub image_id: String,
    /// Its id, as `runtime://id`.
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
    /// Its current state.
    pub state: ContainerState,
}

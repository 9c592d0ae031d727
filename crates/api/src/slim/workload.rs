//! A pod as the rules read it that upgrade pods in place.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

use super::{ContainerState, Pairs};
use crate::wire::{null_as_default, pairs};

/// A pod: the fields that an upgrade in place reads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct WorkloadPod {
    /// Name, labels, annotations, versions and times.
    pub metadata: WorkloadPodMetadata,
    /// Desired state.
    pub spec: WorkloadPodSpec,
    /// Observed state.
    pub status: WorkloadPodStatus,
}

/// What is read of a pod's metadata.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadPodMetadata {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion.
    pub resource_version: Option<String>,
    /// When it was created.
    pub creation_timestamp: Option<Time>,
    /// When it began to terminate.
    pub deletion_timestamp: Option<Time>,
    /// Its labels.
    #[serde(deserialize_with = "pairs")]
    pub labels: Pairs,
    /// Its annotations.
    #[serde(deserialize_with = "pairs")]
    pub annotations: Pairs,
}

/// What is read of a pod's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadPodSpec {
    /// The node it is bound to.
    pub node_name: Option<String>,
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

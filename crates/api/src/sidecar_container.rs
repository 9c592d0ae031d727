//! A sidecar as the schema of a `SidecarSet` describes it. Values of these types are read to check a sidecar, and then
//! dropped: what a pod gets is passed on as it was written ([`PassedOn`](crate::sidecar_set::PassedOn)), with fields that no
//! type here knows.

use k8s_openapi::api::core::v1::{Container, ObjectFieldSelector};
use schemars::JsonSchema;
use serde::Deserialize;

/// A container of a pod, and what a set says about it beside.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SidecarContainer {
    /// The container.
    #[serde(flatten)]
    pub container: Container,
    /// Whether it stands in front of the pod's own containers (`BeforeAppContainer`) or behind them (`AfterAppContainer`).
    pub pod_inject_policy: Option<String>,
    /// How it is upgraded in pods that have it.
    pub upgrade_strategy: Option<ContainerUpgradeStrategy>,
    /// Whether it gets the mounts of the pod's own containers.
    pub share_volume_policy: Option<SharePolicy>,
    /// Whether it gets the block devices of the pod's own containers.
    pub share_volume_device_policy: Option<SharePolicy>,
    /// Environment variables that it gets from containers of the pod.
    #[serde(rename = "transferEnv")]
    pub transfer_env: Option<Vec<TransferEnvVar>>,
    /// Resources computed from those of the pod's containers. Not supported yet: a set that has them is refused.
    pub resources_policy: Option<ResourcesPolicy>,
}

/// How a sidecar is upgraded.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerUpgradeStrategy {
    /// `ColdUpgrade`: its container is restarted with the new image. `HotUpgrade`: a second container takes over.
    pub upgrade_type: Option<String>,
    /// With `HotUpgrade`, the image of the container that does not work.
    pub hot_upgrade_empty_image: Option<String>,
}

/// Whether something of the pod's own containers is shared.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct SharePolicy {
    /// `enabled` or `disabled`.
    #[serde(rename = "type")]
    pub type_: Option<String>,
}

/// Variables of one container of the pod.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransferEnvVar {
    /// The container's name.
    pub source_container_name: Option<String>,
    /// Where the pod says which container; goes before the name.
    pub source_container_name_from: Option<SourceContainerName>,
    /// A variable.
    pub env_name: Option<String>,
    /// More variables.
    pub env_names: Option<Vec<String>>,
}

/// Where the pod says which container.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceContainerName {
    /// A label or an annotation of the pod: `metadata.labels['KEY']` or `metadata.annotations['KEY']`.
    pub field_ref: Option<ObjectFieldSelector>,
}

/// Resources computed from those of the pod's containers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourcesPolicy {
    /// `sum` or `max` of the containers' resources.
    pub target_containers_mode: Option<String>,
    /// The containers, by a regular expression.
    pub target_containers_name_regex: Option<String>,
    /// Expressions of `cpu` and `memory`.
    pub resources_expr: Option<ResourcesExpressions>,
}

/// Expressions for limits and requests.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ResourcesExpressions {
    /// Of the limits.
    pub limits: Option<ResourceExpressions>,
    /// Of the requests.
    pub requests: Option<ResourceExpressions>,
}

/// An expression for each resource.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ResourceExpressions {
    /// Of processors.
    pub cpu: Option<String>,
    /// Of memory.
    pub memory: Option<String>,
}

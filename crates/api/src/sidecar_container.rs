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
    /// Resources that are computed from those of the pod's own containers when the pod is created. Not beside limits or
    /// requests in `resources`; of init containers only native sidecars (`restartPolicy: Always`) have them.
    pub resources_policy: Option<ResourcesPolicy>,
}

/// How a sidecar is upgraded.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerUpgradeStrategy {
    /// `ColdUpgrade`: its container is restarted with the new image. `HotUpgrade`: a second container takes over.
    pub upgrade_type: Option<String>,
    /// The image of the container that waits, with `HotUpgrade`.
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
    /// The place where the pod says which container; goes before the name.
    pub source_container_name_from: Option<SourceContainerName>,
    /// A variable.
    pub env_name: Option<String>,
    /// The names of further variables.
    pub env_names: Option<Vec<String>>,
}

/// The place where the pod says which container.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceContainerName {
    /// A label or an annotation of the pod: `metadata.labels['KEY']` or `metadata.annotations['KEY']`.
    pub field_ref: Option<ObjectFieldSelector>,
}

/// Resources that are computed from those of the pod's own containers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourcesPolicy {
    /// How the resources of several containers are combined: the `sum`, or the `max`imum.
    pub target_containers_mode: Option<String>,
    /// The containers, native sidecars among them, whose names match this regular expression (RE2) somewhere: `^app$` is
    /// one container. Those that a set injects do not count.
    pub target_containers_name_regex: Option<String>,
    /// Expressions of what these containers have: `max(cpu*50%, 50m)`.
    pub resources_expr: Option<ResourcesExpressions>,
}

/// Expressions for limits and requests. At least one of the two is given.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ResourcesExpressions {
    /// Limits, of the limits that these containers have. If one of them has none, `cpu` is unlimited, and the sidecar gets
    /// no limit unless the expression bounds it.
    pub limits: Option<ResourceExpressions>,
    /// Requests, of the requests that these containers have. A request above the limit becomes the limit.
    pub requests: Option<ResourceExpressions>,
}

/// An expression for each resource.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ResourceExpressions {
    /// An expression of `cpu`: numbers, percentages, quantities (`50m`), `+`, `-`, `*`, `/`, parentheses, `max(a, b)` and
    /// `min(a, b)`.
    pub cpu: Option<String>,
    /// The same of `memory`.
    pub memory: Option<String>,
}

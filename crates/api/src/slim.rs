//! Pod and Node as far as leadsman reads them, parsed straight from the wire.

use std::borrow::Cow;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// A pod: metadata whole, of spec and status what matching, planning and marking read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Pod {
    /// Metadata, managedFields included: they say which marks are ours.
    pub metadata: ObjectMeta,
    /// Desired state.
    #[serde(default)]
    pub spec: PodSpec,
    /// Observed state.
    #[serde(default)]
    pub status: PodStatus,
}

/// What is read of a pod's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// The node it is bound to.
    pub node_name: Option<String>,
    /// Its containers.
    #[serde(default)]
    pub containers: Vec<Container>,
    /// Its init containers; the restartable ones are sidecars.
    #[serde(default)]
    pub init_containers: Vec<Container>,
}

/// What is read of a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Its ports, for named ones.
    #[serde(default)]
    pub ports: Vec<core::ContainerPort>,
    /// Whether it has a startup probe, whose content does not matter.
    pub startup_probe: Option<Present>,
    /// `Always` makes an init container a native sidecar.
    pub restart_policy: Option<String>,
}

/// Something that is there; what it holds is skipped while parsing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Present;

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// What is read of a pod's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: Option<String>,
    /// The pod's first address.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// Conditions, ours among them.
    #[serde(default)]
    pub conditions: Vec<core::PodCondition>,
    /// State of the containers.
    #[serde(default)]
    pub container_statuses: Vec<ContainerStatus>,
    /// State of the init containers.
    #[serde(default)]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// What is read of a container's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// The container.
    pub name: String,
    /// `runtime://id`.
    #[serde(rename = "containerID")]
    pub container_id: Option<String>,
    /// Whether its startup probe has passed, true without one.
    pub started: Option<bool>,
}

/// A node: its metadata is all that is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Node {
    /// Metadata.
    pub metadata: ObjectMeta,
}

macro_rules! core_resource {
    ($kind:ident, $plural:literal, $scope:ty) => {
        impl kube::Resource for $kind {
            type DynamicType = ();
            type Scope = $scope;
            fn kind((): &()) -> Cow<'_, str> {
                stringify!($kind).into()
            }
            fn group((): &()) -> Cow<'_, str> {
                "".into()
            }
            fn version((): &()) -> Cow<'_, str> {
                "v1".into()
            }
            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
core_resource!(Pod, "pods", kube::core::NamespaceResourceScope);
core_resource!(Node, "nodes", kube::core::ClusterResourceScope);

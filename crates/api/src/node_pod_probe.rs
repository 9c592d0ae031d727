//! `NodePodProbe`, one for each node and of the same name: the manager writes the spec, the node's agent the status.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::marker::{ExpectedOutput, FileProbe};
use crate::wire::null_as_default;

/// The probes that one node's agent runs.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "NodePodProbe",
    status = "NodePodProbeStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct NodePodProbeSpec {
    /// The node's probed pods.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pod_probes: Vec<PodProbe>,
}

/// One pod's probes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodProbe {
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid; for a static pod the one that its node knows. A pod of the same name with another uid is another pod.
    pub uid: String,
    /// The pod's IP as the API server shows it. The agent dials only what the runtime reports or what is its node's own.
    #[serde(rename = "IP")]
    pub ip: String,
    /// The probes.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ContainerProbe>,
}

/// One probe of one container. Ports are numbers and defaults filled in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerProbe {
    /// `<marker>#<probe>`.
    pub name: String,
    /// The container.
    pub container_name: String,
    /// The probe.
    pub probe: Probe,
    /// The file that is read in place of what `probe` would do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileProbe>,
    /// Hash of handler and container. The agent copies it into the verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Set if the container has a startup probe: the id of the container that has passed it, the only one that may be
    /// probed.
    #[serde(default, rename = "startedContainerID")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_container_id: Option<String>,
    /// The output that is expected of a successful run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<ExpectedOutput>,
}

/// The verdicts of the node's agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePodProbeStatus {
    /// Verdicts by pod.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pod_probe_statuses: Vec<PodProbeStatus>,
}

/// One pod's verdicts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodProbeStatus {
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's uid.
    pub uid: String,
    /// The verdicts.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probe_states: Vec<ContainerProbeState>,
    /// Probes that could not be run when they were last due, or that can never be run. Their verdicts stay as they are.
    /// Written when that begins, when the kind of cause changes, and when it ends.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cannot_probe: Vec<CannotProbeEntry>,
}

/// One probe that cannot be run, which says nothing about its container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CannotProbeEntry {
    /// `<marker>#<probe>`.
    pub name: String,
    /// Why, in at most 256 bytes.
    pub message: String,
}

/// One verdict.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerProbeState {
    /// `<marker>#<probe>`.
    pub name: String,
    /// `Succeeded`, `Failed` or `Unknown`.
    pub state: String,
    /// The time at which a probe last ran; refreshed every ten minutes while the verdict holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// The time at which the verdict last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// The output of the probe, or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The revision of the entry that this verdict is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The container that this verdict is about.
    #[serde(default, rename = "containerID")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// The values in the output, if the entry has an `output` and the verdict is Succeeded. The verdict counts as changed when
    /// they change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<BTreeMap<String, String>>,
}

impl ContainerProbeState {
    /// The verdict of an entry, with nothing said beside it.
    pub fn new(entry: &str, state: &str) -> Self {
        Self {
            name: entry.to_owned(),
            state: state.to_owned(),
            ..Self::default()
        }
    }
}

//! `PodProbeMarker`: probes of pods and the marks for their verdicts, as a user writes them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::wire::{null_as_default, whole_probe};

/// The pods that are probed, how, and what is written on them.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "PodProbeMarker",
    namespaced,
    status = "PodProbeMarkerStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct PodProbeMarkerSpec {
    /// Label query over the pods of this namespace. It cannot be changed, and must not be empty.
    #[serde(deserialize_with = "null_as_default")]
    pub selector: LabelSelector,
    /// The probes.
    #[serde(deserialize_with = "null_as_default")]
    pub probes: Vec<PodContainerProbe>,
}

/// One probe of one container, and the marks that its verdict puts on the pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodContainerProbe {
    /// Unique within the marker.
    pub name: String,
    /// The container that is probed.
    pub container_name: String,
    /// A native Kubernetes probe: exactly one of exec, httpGet, tcpSocket, grpc, or none beside `file`.
    #[serde(deserialize_with = "whole_probe")]
    pub probe: Probe,
    /// A file that is read in place of what `probe` would do, which has the timing alone then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileProbe>,
    /// The output that is expected of a successful run, and the values in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<ExpectedOutput>,
    /// Labels and annotations for a verdict, at most one policy for each state.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marker_policy: Vec<ProbeMarkerPolicy>,
    /// Type of the pod condition that shows the verdict; none is written when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_condition_type: Option<String>,
}

/// A file in a volume of the pod, which the node's agent reads: a success if it is there and as new as it has to be. Leadsman's
/// own field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileProbe {
    /// A volume of the pod, an `emptyDir`.
    pub volume: String,
    /// The file's path in the volume, without symbolic links. The first 10 KiB of its content are the output.
    pub path: String,
    /// Seconds since the file was last written, more than which is a failure. Left out, it may be of any age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_older_than_seconds: Option<i32>,
}

/// Output that is expected of a successful run. Leadsman's own field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedOutput {
    /// A regular expression that matches somewhere in the output, without look-around and back-references. A part
    /// `(?<name>...)` is a value, to which policies refer as `$(name)`.
    pub matches: String,
    /// The verdict on output that does not match: `Failed`, the default, or `Unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<String>,
}

/// Labels and annotations that a pod has while a probe's verdict is `state`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProbeMarkerPolicy {
    /// `Succeeded` or `Failed`.
    pub state: String,
    /// Labels of the pod while the state holds.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod while the state holds.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The message of the pod's condition in place of the probe's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Seconds for which the state and the values of the output have to hold until they count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<i32>,
    /// Further labels and annotations for certain values of the output: the first that fits.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputPolicy>,
    /// A label of this policy that only one pod of a group has with a certain value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<ExclusiveLabel>,
}

/// A value of a label that only one pod at a time has, of all pods of the marker or of those of a group. A pod claims it while
/// its verdict would give it the value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExclusiveLabel {
    /// The label, one that the policy or its `outputs` set.
    pub label: String,
    /// The value that one pod has. Other values of the label are not restricted.
    pub value: String,
    /// The value of the output, as `$(name)`, that is the version of a claim: a number of 64 bits without sign. The highest one
    /// wins, and none that is lower is accepted after it. Without it the claim wins that was made last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// A label: pods with the same value of it are a group of their own, and those without it are one more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_by: Option<String>,
}

/// Labels and annotations that a pod has beside those of the policy, and in place of those of the same keys, while the output
/// has certain values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputPolicy {
    /// Names of values, and what each of them has to be.
    #[serde(deserialize_with = "null_as_default")]
    pub when: BTreeMap<String, String>,
    /// Labels of the pod.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Replaces the policy's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<i32>,
}

/// The observed state of a marker, written by leadsman.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodProbeMarkerStatus {
    /// The last generation whose entries have been written to the `NodePodProbe` of every node concerned.
    #[serde(default)]
    pub observed_generation: i64,
    /// The number of pods that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched_pods: Option<i64>,
    /// The number of pods per verdict, for each probe.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeSummary>,
    /// The condition `Ready`, whose message says what is wrong.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Matched pods by the verdict of one probe. The first four add up to `matchedPods`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProbeSummary {
    /// The probe.
    pub name: String,
    /// Pods whose verdict is Succeeded.
    #[serde(default)]
    pub succeeded: i64,
    /// Pods whose verdict is Failed.
    #[serde(default)]
    pub failed: i64,
    /// Pods whose verdict is Unknown.
    #[serde(default)]
    pub unknown: i64,
    /// Pods without a verdict yet.
    #[serde(default)]
    pub pending: i64,
    /// Pods whose agent does not report. They are counted by their last verdict too.
    #[serde(default)]
    pub silent: i64,
    /// The pods that have the exclusive value, of the first groups by name.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<ExclusiveHolder>,
}

/// The pod that has an exclusive value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExclusiveHolder {
    /// The value of the label that groups the pods; left out where they are one group, and for those without the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The name of the pod.
    pub pod: String,
    /// The version of its claim, a number of 64 bits without sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Time at which the verdict changed that made the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

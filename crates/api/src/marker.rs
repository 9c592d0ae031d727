//! `PodProbeMarker`: probes of pods and the marks for their verdicts, as a user writes them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
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
    /// A native Kubernetes probe: exactly one of exec, httpGet, tcpSocket, grpc.
    #[serde(deserialize_with = "whole_probe")]
    pub probe: Probe,
    /// Labels and annotations for a verdict, at most one policy for each state.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub marker_policy: Vec<ProbeMarkerPolicy>,
    /// Type of the pod condition that shows the verdict; none is written when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_condition_type: Option<String>,
}

/// Labels and annotations that a pod has while a probe's verdict is `state`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProbeMarkerPolicy {
    /// `Succeeded` or `Failed`.
    pub state: String,
    /// Labels of the pod while the state holds.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod while the state holds.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
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
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub probes: Vec<ProbeSummary>,
    /// The condition `Ready`, whose message says what is wrong.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
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
}

//! `BroadcastJob`: a pod that runs to its end on each node, as a user writes it. `v1alpha1` and `v1beta1` are one type.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Verbatim;
use crate::sidecar_set::PassedOn;
use crate::wire::null_as_default;

/// The label of a job's pods with its name.
pub const JOB_NAME_LABEL: &str = "broadcastjob-name";
/// The label of a job's pods with its uid.
pub const JOB_UID_LABEL: &str = "broadcastjob-controller-uid";

/// The pod, the nodes that get it at a time, and what ends the job.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "BroadcastJob",
    namespaced,
    shortname = "bcj",
    status = "BroadcastJobStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct BroadcastJobSpec {
    /// The pod that runs on each node whose labels, taints and resources it fits. Later pods follow an edit, earlier ones stay.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(with = "PassedOn")]
    pub template: Verbatim,
    /// Number or percentage of nodes on which it runs at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<IntOrString>,
    /// Whether no further pod is created. Failures are acknowledged by setting it and taking it back.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Whether the job ends, and what becomes of it then.
    #[serde(default, deserialize_with = "null_as_default")]
    pub completion_policy: CompletionPolicy,
    /// The consequence of a pod that fails.
    #[serde(default, deserialize_with = "null_as_default")]
    pub failure_policy: JobFailurePolicy,
}

/// Whether a job ends, and what becomes of it then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompletionPolicy {
    /// `Always`: the job ends with its last pod. `Never`: it goes on with nodes that join later, and never fails.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Seconds from the start after which a job that has not ended fails. For `Always` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    /// Seconds after which a job that has ended is deleted. For `Always` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// The consequence of a pod that fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobFailurePolicy {
    /// `FailFast`: the job fails, and its other pods are deleted. `Continue`: the other nodes get their pods. `Pause`: no further
    /// pod is created until the failure is acknowledged.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Restarts of a pod's containers together (`restartPolicy: OnFailure`) above which the pod is stopped as failed; 0 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_limit: Option<i32>,
}

/// The observed state of a `BroadcastJob`, written by leadsman.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BroadcastJobStatus {
    /// `running`, `paused`, `completed` or `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// `Complete` or `Failed`, once the job has ended.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<JobCondition>,
    /// The time at which leadsman first saw the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// The time at which the job ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Pods that run or wait to run.
    #[serde(default)]
    pub active: i32,
    /// Nodes on which the pod has succeeded.
    #[serde(default)]
    pub succeeded: i32,
    /// Nodes on which the pod has failed.
    #[serde(default)]
    pub failed: i32,
    /// Nodes that have the pod or are to get it.
    #[serde(default)]
    pub desired: i32,
}

/// How a job has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobCondition {
    /// `Complete` or `Failed`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The time at which the condition was last checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// The time at which the status last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// The reason in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

//! A run of a cron job: a `Job` or a `BroadcastJob`, as far as a cron job reads it, which is the same for both.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;

use crate::wire::{metadata, null_as_default};

/// A `Job` of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Job(pub Run);

/// A `BroadcastJob`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct BroadcastJobRun(pub Run);

/// Either of them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Run {
    /// The metadata without `managedFields`.
    #[serde(rename = "metadata", deserialize_with = "metadata")]
    pub identity: ObjectMeta,
    /// Observed state.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: RunStatus,
}

/// The part of its status that is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunStatus {
    /// The time at which it began.
    pub start_time: Option<Time>,
    /// `Complete` or `Failed` is True when it has ended.
    #[serde(deserialize_with = "null_as_default")]
    pub conditions: Vec<RunCondition>,
}

/// A condition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RunCondition {
    /// The condition's type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

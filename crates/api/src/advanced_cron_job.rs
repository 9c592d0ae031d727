//! `AdvancedCronJob`: jobs at the times of a schedule, as a user writes it. `v1alpha1` and `v1beta1` in one type.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Verbatim;
use crate::sidecar_set::PassedOn;
use crate::wire::null_as_default;

/// Jobs, and the times at which they run.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "AdvancedCronJob",
    shortname = "acj",
    namespaced,
    status = "AdvancedCronJobStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct AdvancedCronJobSpec {
    /// The times in the format of cron: minute, hour, day of month, month, day of week; or `@daily` and the like, or `@every
    /// 1h30m`. `TZ=ZONE` and a blank before it name a time zone.
    #[serde(default, deserialize_with = "null_as_default")]
    pub schedule: String,
    /// The time zone, by its name in the IANA database. Without it that of the manager, which is UTC by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// How late a run may begin, in seconds. Without it a missed run begins however late it is; with zero none ever begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting_deadline_seconds: Option<i64>,
    /// The policy for a time at which an earlier run has not ended: `Allow` runs both, `Forbid` waits for the end of the earlier
    /// one, `Replace` deletes the earlier one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_policy: Option<String>,
    /// Whether no run begins.
    #[serde(default, deserialize_with = "null_as_default")]
    pub paused: bool,
    /// Number of runs that are kept after they have succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successful_jobs_history_limit: Option<i32>,
    /// Number of runs that are kept after they have failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_jobs_history_limit: Option<i32>,
    /// The template of what runs: exactly one.
    #[serde(default, deserialize_with = "null_as_default")]
    pub template: CronJobTemplate,
}

/// The template of what runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CronJobTemplate {
    /// A `Job` of Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_template: Option<RunTemplate>,
    /// A `BroadcastJob`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast_job_template: Option<RunTemplate>,
    /// An `ImageListPullJob`, which leadsman does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_list_pull_job_template: Option<RunTemplate>,
}

/// An object that is made of this, as it is: a type of its own would drop the fields of later versions of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct RunTemplate {
    /// Labels and annotations of the object.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: RunMetadata,
    /// The spec of the object.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(with = "PassedOn")]
    pub spec: Verbatim,
}

/// The metadata of what runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct RunMetadata {
    /// Labels.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The observed state of an `AdvancedCronJob`, written by leadsman.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdvancedCronJobStatus {
    /// `Job`, `BroadcastJob` or `ImageListPullJob`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// The runs that have not ended. One without a uid is about to be made.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub active: Vec<RunReference>,
    /// The latest time for which a run was begun. It never goes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Time>,
    /// The condition `Ready`, whose message says why nothing runs. `OpenKruise` has no such field.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunReference {
    /// `batch/v1` or `apps.kruise.io/v1beta1`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub api_version: String,
    /// `Job` or `BroadcastJob`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub kind: String,
    /// The namespace of the cron job.
    #[serde(default, deserialize_with = "null_as_default")]
    pub namespace: String,
    /// The name.
    #[serde(default, deserialize_with = "null_as_default")]
    pub name: String,
    /// The uid, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

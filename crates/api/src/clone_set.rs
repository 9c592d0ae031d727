//! `CloneSet`: pods of one template, which are counted, updated and deleted one by one, as a user writes it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Verbatim;
use crate::sidecar_set::{PassedOn, PriorityStrategy, ScatterTerm};
use crate::wire::null_as_default;

/// The label of a set's pods with the end of their names.
pub const INSTANCE_LABEL: &str = "apps.kruise.io/cloneset-instance-id";
/// The label of a pod that is to be deleted, with any value.
pub const SPECIFIED_DELETE_LABEL: &str = "apps.kruise.io/specified-delete";
/// The label of a set beside whose held pods others are created at once, with the value `true`.
pub const EXCLUDE_HELD_LABEL: &str = "apps.kruise.io/cloneset-scaling-exclude-preparing-delete";
/// The label of a pod that says how far its lifecycle is.
pub const LIFECYCLE_LABEL: &str = "lifecycle.apps.kruise.io/state";

/// The type of a strategy in the form of `v1beta1` whose pods are updated.
pub const ROLLING_UPDATE: &str = "RollingUpdate";
/// The type of a strategy whose pods are updated when others delete them.
pub const ON_DELETE: &str = "OnDelete";

/// How many pods of which template there are, and how they are replaced.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "CloneSet",
    namespaced,
    shortname = "clone",
    status = "CloneSetStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct CloneSetSpec {
    /// The number of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Label query over the pods; the template's labels match it.
    #[serde(default, deserialize_with = "null_as_default")]
    pub selector: LabelSelector,
    /// The pod. An edit of it updates the pods.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(with = "PassedOn")]
    pub template: Verbatim,
    /// Claims of each pod: templates of `PersistentVolumeClaim`s, each of which is a volume of its name. An edit counts for new
    /// pods.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<PassedOn>")]
    pub volume_claim_templates: Vec<Verbatim>,
    /// Rules by which pods are created and deleted.
    #[serde(default, deserialize_with = "null_as_default")]
    pub scale_strategy: ScaleStrategy,
    /// How the pods follow an edit of the template.
    #[serde(default, deserialize_with = "null_as_default")]
    pub update_strategy: CloneSetUpdateStrategy,
    /// Earlier templates that are kept, at most; 10 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
    /// Seconds for which a pod has to be ready before it counts as available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i32>,
    /// Hooks that hold a pod before it is deleted, updated in place or counts as available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Seconds without progress after which a roll-out counts as failed: the condition `Progressing` says so, and nothing stops. No
    /// limit if absent, or 2147483647.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
}

/// Rules by which pods are created and deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScaleStrategy {
    /// Names of pods that are deleted, before others if there are too many. Others take their place if not. A name that no pod
    /// has is ignored.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods_to_delete: Vec<String>,
    /// Number or percentage of pods that may be unavailable while further ones are created; any if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Whether claims of pods that others have deleted are deleted too. A new pod gets them if not.
    #[serde(
        default,
        rename = "disablePVCReuse",
        deserialize_with = "null_as_default",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub disable_pvc_reuse: bool,
    /// The same in the form of `v1beta1`, the other way round. Claims are reused if neither is set.
    #[serde(default, rename = "enablePVCReuse")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_pvc_reuse: Option<bool>,
    /// Whether others are created at once beside pods that a hook holds before their deletion. The label
    /// `apps.kruise.io/cloneset-scaling-exclude-preparing-delete: "true"` says the same.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exclude_preparing_delete: bool,
}

/// How the pods follow an edit of the template, in one of two forms. In that of `v1alpha1` the settings stand beside the type; in
/// that of `v1beta1`, with type `RollingUpdate` or `OnDelete`, they stand in `rollingUpdate`. Either counts in both versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloneSetUpdateStrategy {
    /// `ReCreate`: a pod is deleted, and another one created. `InPlaceIfPossible`: images and metadata are changed in the pod,
    /// anything else re-creates it. `InPlaceOnly`: with anything else nothing happens. `RollingUpdate`: as `rollingUpdate` says.
    /// `OnDelete`: no pod is updated, and one that is deleted comes back with the present template.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// The settings in the form of `v1alpha1`.
    #[serde(flatten)]
    pub settings: RollOutSettings,
    /// The settings in the form of `v1beta1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// The settings of a roll-out in the form of `v1beta1`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// `ReCreate`, the default, `InPlaceIfPossible` or `InPlaceOnly`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_update_policy: Option<String>,
    /// The other settings.
    #[serde(flatten)]
    pub settings: RollOutSettings,
}

impl CloneSetUpdateStrategy {
    /// Whether it is in the form of `v1beta1`.
    pub fn is_of_v1beta1(&self) -> bool {
        matches!(self.type_.as_deref(), Some(ROLLING_UPDATE | ON_DELETE))
    }

    /// The settings that count.
    pub fn settings(&self) -> RollOutSettings {
        if !self.is_of_v1beta1() {
            return self.settings.clone();
        }
        let of_v1beta1 = self.rolling_update.as_ref();
        of_v1beta1.map(|it| it.settings.clone()).unwrap_or_default()
    }

    /// How a pod gets another template: a type in the form of `v1alpha1`, or `OnDelete`.
    pub fn policy(&self) -> Option<&str> {
        match (self.type_.as_deref(), &self.rolling_update) {
            (Some(ROLLING_UPDATE), it) => it.as_ref()?.pod_update_policy.as_deref(),
            (type_, _) => type_,
        }
    }
}

/// The settings of a roll-out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollOutSettings {
    /// Number or percentage of pods that stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<IntOrString>,
    /// Number or percentage of pods that may be unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Number or percentage of pods that there may be beyond `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrString>,
    /// Whether no further pod is updated.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The pods that come first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_strategy: Option<PriorityStrategy>,
    /// The pods that are spread evenly over the roll-out.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scatter_strategy: Vec<ScatterTerm>,
    /// How a pod is updated in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place_update_strategy: Option<InPlaceUpdateStrategy>,
}

/// How a pod is updated in place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InPlaceUpdateStrategy {
    /// Seconds between the moment at which a pod is no longer ready and that at which its images change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i32>,
}

/// Hooks that hold a pod before it is deleted, updated in place or counts as available.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// A pod that has any of these is held before it is deleted, until it has none of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_delete: Option<LifecycleHook>,
    /// A pod that has any of these is held before it is updated in place, and afterwards until it has all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place_update: Option<LifecycleHook>,
    /// A new pod is not available before it has all of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_normal: Option<LifecycleHook>,
}

/// Marks of a pod that others set and take away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LifecycleHook {
    /// Labels, with their values.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels_handler: BTreeMap<String, String>,
    /// Finalizers.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers_handler: Vec<String>,
    /// Whether a pod that is held is not ready. Without effect in `preNormal`.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mark_pod_not_ready: bool,
}

/// The observed state of a `CloneSet`, written by leadsman.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloneSetStatus {
    /// The generation that the other fields are about.
    #[serde(default)]
    pub observed_generation: i64,
    /// Pods that neither terminate nor have ended.
    #[serde(default)]
    pub replicas: i32,
    /// Number of `replicas` that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Number of `replicas` that are available.
    #[serde(default)]
    pub available_replicas: i32,
    /// Number of `replicas` that are of the present template.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Number of `replicas` that are of the present template and ready.
    #[serde(default)]
    pub updated_ready_replicas: i32,
    /// Number of `replicas` that are of the present template and available.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub updated_available_replicas: i32,
    /// Pods that are to be of the present template.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub expected_updated_replicas: i32,
    /// Name of the `ControllerRevision` of the present template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_revision: Option<String>,
    /// Name of the `ControllerRevision` of the pods that are not updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<String>,
    /// How many names of revisions were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// The selector as text, for `kubectl scale` and autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<String>,
    /// `FailedScale` and `FailedUpdate`, while pods cannot be created, deleted or updated; `Progressing`, with a deadline.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<CloneSetCondition>,
}

/// A problem with a set, or how far its roll-out is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloneSetCondition {
    /// `FailedScale`, `FailedUpdate` or `Progressing`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`; `False` of `Progressing` once the deadline has passed.
    pub status: String,
    /// The time of the last progress, of `Progressing` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// The time since which it is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// The reason in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

// serde passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &i32) -> bool {
    *count == 0
}

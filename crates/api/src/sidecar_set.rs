//! `SidecarSet`: containers that are injected into pods, as a user writes it. `v1alpha1` and `v1beta1` in one type: either
//! has the fields of both.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LocalObjectReference, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sidecar_container::SidecarContainer;
use crate::wire::null_as_default;

/// An object that is passed on as it is: a container, a volume or a reference in a pod. A type of its own would drop the
/// fields of later versions of Kubernetes.
pub type PassedOn = serde_json::Map<String, serde_json::Value>;

/// The pods that get containers, which containers they get, and how those are upgraded.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kruise.io",
    version = "v1beta1",
    kind = "SidecarSet",
    status = "SidecarSetStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct SidecarSetSpec {
    /// Label query over pods. It must not be empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The namespace of the pods. Without it and without a selector, pods of all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Label query over the namespaces of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Init containers to inject: those of a pod, with the fields of a sidecar beside theirs.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<SidecarContainer>")]
    pub init_containers: Vec<PassedOn>,
    /// Containers to inject.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<SidecarContainer>")]
    pub containers: Vec<PassedOn>,
    /// Volumes that these containers mount.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<Volume>")]
    pub volumes: Vec<PassedOn>,
    /// Secrets for pulling their images.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<LocalObjectReference>")]
    pub image_pull_secrets: Vec<PassedOn>,
    /// Annotations for the pods.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patch_pod_metadata: Vec<PatchPodMetadata>,
    /// The parts of the set that new pods get.
    #[serde(default, deserialize_with = "null_as_default")]
    pub injection_strategy: InjectionStrategy,
    /// How pods are upgraded that were injected before.
    #[serde(default, deserialize_with = "null_as_default")]
    pub update_strategy: UpdateStrategy,
    /// Number of revisions that are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_history_limit: Option<i32>,
    /// A name for the present revision, by which new pods can be pinned to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_version: Option<String>,
}

/// Annotations for pods, and what becomes of those that are there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PatchPodMetadata {
    /// Keys and values.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The way to treat annotations that a pod has: `Retain`, `Overwrite` or `MergePatchJson`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch_policy: Option<String>,
}

/// The parts of the set that new pods get.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InjectionStrategy {
    /// Whether new pods get nothing.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The revision that new pods get; the present one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<InjectRevision>,
}

/// A revision that new pods are pinned to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InjectRevision {
    /// The custom version of the revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_version: Option<String>,
    /// The name of its `ControllerRevision`, which is looked at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_name: Option<String>,
    /// The new pods that get it: `Always` all, `Partial` as many as the partition of the update
    /// strategy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// How pods are upgraded that were injected before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// `RollingUpdate` or `NotUpdate`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Whether no further pod is upgraded.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Label query over the pods that are upgraded; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Number or percentage of pods that stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<IntOrString>,
    /// Number or percentage of pods that may be unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// The pods that come first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_strategy: Option<PriorityStrategy>,
    /// The pods that are spread evenly over the roll-out.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scatter_strategy: Vec<ScatterTerm>,
}

/// The pods that come first: by weights, or by a number in a label.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PriorityStrategy {
    /// Labels of the pods that come first, by key.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub order_priority: Vec<OrderTerm>,
    /// Weights, which add up.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weight_priority: Vec<WeightTerm>,
}

/// A label whose value ends with a number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderTerm {
    /// The key of the label.
    pub ordered_key: String,
}

/// A weight of some pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WeightTerm {
    /// The weight, from 0 to 100.
    pub weight: i32,
    /// Label query over the pods.
    #[serde(deserialize_with = "null_as_default")]
    pub match_selector: LabelSelector,
}

/// Pods that are spread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScatterTerm {
    /// Key of their label.
    pub key: String,
    /// The value of the label; `*` for each value that pods have.
    pub value: String,
}

/// The observed state of a `SidecarSet`, written by leadsman.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SidecarSetStatus {
    /// The generation that the other fields are about.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    /// Pods that were injected and match.
    #[serde(default)]
    pub matched_pods: i64,
    /// Matched pods whose containers are those of the spec.
    #[serde(default)]
    pub updated_pods: i64,
    /// Matched pods that are ready.
    #[serde(default)]
    pub ready_pods: i64,
    /// Matched pods that are both.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub updated_ready_pods: i64,
    /// Name of the `ControllerRevision` of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_revision: Option<String>,
    /// How many names of revisions were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// The generation from which on new pods are injected. `OpenKruise` has no such field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<InForce>,
    /// The condition `Ready`, whose message says what is wrong.
    #[serde(default, deserialize_with = "null_as_default")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The generation from which on new pods are injected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InForce {
    /// The generation that every replica injects. New pods may still be injected as an earlier one says until this is
    /// that of the set.
    pub generation: i64,
    /// The time since which pods that the set selects are injected, in whichever generation.
    pub since: Time,
}

// serde passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &i64) -> bool {
    *count == 0
}

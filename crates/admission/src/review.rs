//! The trait that a feature implements, with its request and its response.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::barrier::StateVersion;

/// A feature's reviewer of objects that are created or updated: a function of the request and of an immutable snapshot,
/// which the feature's control loop replaces when something changes.
///
/// The type of its response says what it may do: one that answers with a [`Mutation`] cannot refuse an object, unless the call
/// asked for that, and one that answers with a [`Validation`] cannot change it. The webhook is registered accordingly.
pub trait Reviewer: 'static {
    /// The fields that are read of the object. A request whose object cannot be decoded is answered with "no change",
    /// so fields that may be missing must be optional.
    type Object: DeserializeOwned;
    /// The state of the feature that reviews depend on.
    type Snapshot: Send + Sync + 'static;
    /// [`Mutation`] or [`Validation`].
    type Response: ReviewResponse;

    /// The version of a snapshot, which grows, for a feature that has barriers ([`WebhookCalls::barrier`]).
    ///
    /// [`WebhookCalls::barrier`]: crate::WebhookCalls::barrier
    fn snapshot_version(_snapshot: &Self::Snapshot) -> Option<StateVersion> {
        None
    }

    /// Whether a snapshot has all that the request depends on. If not, the request waits for another one, as long as its
    /// time allows.
    fn is_sufficient(
        _snapshot: &Self::Snapshot,
        _request: &AdmissionRequest<Self::Object>,
    ) -> bool {
        true
    }

    /// The response to a request. It runs on the thread that serves all webhooks, so it must neither block nor take
    /// long. The API server may ask again about the changed object (`reinvocationPolicy`), and about an object that is
    /// never created (a dry run, or another plugin refuses it): equal requests must get equal responses.
    fn review_request(
        snapshot: &Self::Snapshot,
        request: &AdmissionRequest<Self::Object>,
    ) -> Self::Response;
}

/// The request (`AdmissionRequest` in `k8s.io/api/admission/v1`).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest<O> {
    /// The id of the request, which the response repeats.
    pub uid: String,
    /// The kind of the object.
    #[serde(default)]
    pub kind: ObjectKind,
    /// The name of the object. Empty if the API server is yet to generate it.
    #[serde(default)]
    pub name: String,
    /// The namespace, empty for a cluster-scoped object. In the metadata of a new object it may be missing.
    #[serde(default)]
    pub namespace: String,
    /// The operation.
    pub operation: ReviewOperation,
    /// Whether it is a dry run, so that nothing is stored.
    #[serde(default)]
    pub dry_run: bool,
    /// The object as it would be stored without a patch.
    pub object: O,
    /// The object as it is stored, if it is updated.
    pub old_object: Option<O>,
    /// The tag of the call that this review is for ([`WebhookSpec::tag`]). `None` stands for a call
    /// without one, and for one of an earlier version of leadsman.
    ///
    /// [`WebhookSpec::tag`]: crate::WebhookSpec::tag
    #[serde(skip)]
    pub tag: Option<u16>,
}

/// The kind of an object (`GroupVersionKind` in `k8s.io/apimachinery/pkg/apis/meta/v1`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ObjectKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The kind's name.
    pub kind: String,
}

/// The operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ReviewOperation {
    /// The object is created.
    Create,
    /// The object is changed.
    Update,
}

/// The response of a reviewer that may change objects: the object is patched or unchanged, and allowed unless its call asked
/// for a refusal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mutation {
    /// The changes, in this order.
    pub patch: Vec<PatchOperation>,
    /// Why the object must not be stored as it is. It counts only in a call with [`WebhookFailurePolicy::Fail`], which prefers no
    /// object to one that is not as it should be.
    ///
    /// [`WebhookFailurePolicy::Fail`]: crate::WebhookFailurePolicy::Fail
    pub refusal: Option<String>,
    /// Warnings for the client. The API server cuts each to 256 characters and all together to 4,096
    /// (`k8s.io/apiserver/pkg/endpoints/filters/warning.go`).
    pub warnings: Vec<String>,
}

/// The response of a reviewer that judges objects: the object is allowed, or refused for its causes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validation {
    /// Why the object is refused. Empty if it is allowed.
    pub causes: Vec<RefusalCause>,
    /// Warnings for the client, as those of a [`Mutation`].
    pub warnings: Vec<String>,
}

/// Why an object is refused (`StatusCause` in `k8s.io/apimachinery/pkg/apis/meta/v1`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalCause {
    /// The field, as `spec.containers[0].name`.
    pub field: String,
    /// The message that says what is wrong.
    pub message: String,
}

/// A reviewer's answer: [`Mutation`] or [`Validation`].
pub trait ReviewResponse: sealed::Sealed {}
impl ReviewResponse for Mutation {}
impl ReviewResponse for Validation {}

/// The conversion of a response into an answer. Sealed, so that there are no other responses.
pub(crate) mod sealed {
    use super::{Mutation, PatchOperation, RefusalCause, Validation};

    /// The effect that a webhook may have on the objects that it reviews.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ReviewKind {
        /// A mutating reviewer: may change objects, and refuses one only if its call asked for
        /// that.
        Mutating,
        /// A validating reviewer: may refuse objects, never changes them.
        Validating,
    }

    /// The response of either kind, as it is sent.
    #[derive(Debug, Default)]
    pub struct Reviewed {
        pub patch: Vec<PatchOperation>,
        pub refusal: Option<String>,
        pub causes: Vec<RefusalCause>,
        pub warnings: Vec<String>,
    }

    pub trait Sealed {
        const KIND: ReviewKind;
        fn into_reviewed(self) -> Reviewed;
    }

    impl Sealed for Mutation {
        const KIND: ReviewKind = ReviewKind::Mutating;

        fn into_reviewed(self) -> Reviewed {
            Reviewed {
                patch: self.patch,
                refusal: self.refusal,
                warnings: self.warnings,
                ..Reviewed::default()
            }
        }
    }

    impl Sealed for Validation {
        const KIND: ReviewKind = ReviewKind::Validating;

        fn into_reviewed(self) -> Reviewed {
            Reviewed {
                causes: self.causes,
                warnings: self.warnings,
                ..Reviewed::default()
            }
        }
    }
}

/// An operation of a JSON patch (RFC 6902).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct PatchOperation(Value);

impl PatchOperation {
    /// Sets an entry of an object, or inserts an element into a list, at this path of keys and indices. The parent must
    /// exist: the first annotation of a pod is added together with its map.
    pub fn add_at<'a>(path: impl IntoIterator<Item = &'a str>, value: impl Into<Value>) -> Self {
        Self(json!({"op": "add", "path": json_pointer(path), "value": value.into()}))
    }

    /// Removes the value at this path, which must exist.
    pub fn remove_at<'a>(path: impl IntoIterator<Item = &'a str>) -> Self {
        Self(json!({"op": "remove", "path": json_pointer(path)}))
    }
}

/// An operation as it is sent.
impl From<Value> for PatchOperation {
    fn from(operation: Value) -> Self {
        Self(operation)
    }
}

/// A JSON pointer (RFC 6901, 3 and 4).
fn json_pointer<'a>(path: impl IntoIterator<Item = &'a str>) -> String {
    let mut pointer = String::new();
    for key in path {
        pointer.push('/');
        // The tilde first: otherwise that of `~1` would be escaped once more.
        pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
    }
    pointer
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn operations_are_those_of_a_json_patch_with_escaped_keys() {
        let key = ["metadata", "annotations", "kruise.io/pod~probe"];
        let path = "/metadata/annotations/kruise.io~1pod~0probe";
        assert_eq!(
            serde_json::to_value([
                PatchOperation::add_at(key, "x"),
                PatchOperation::remove_at(key)
            ])
            .unwrap(),
            json!([{"op": "add", "path": path, "value": "x"}, {"op": "remove", "path": path}])
        );
    }
}

//! The trait that a feature implements, with its request and its response.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::barrier::StateVersion;

/// A feature's reviewer of objects that are created or updated: a function of the request and of an immutable snapshot,
/// which the feature's control loop replaces when something changes.
pub trait Reviewer: 'static {
    /// The fields that are read of the object. A request whose object cannot be decoded is answered with "no change",
    /// so fields that may be missing must be optional.
    type Object: DeserializeOwned;
    /// The state of the feature that reviews depend on.
    type Snapshot: Send + Sync + 'static;

    /// The version of a snapshot, which grows, for a feature that has barriers ([`WebhookCalls::barrier`]).
    ///
    /// [`WebhookCalls::barrier`]: crate::WebhookCalls::barrier
    fn version(_snapshot: &Self::Snapshot) -> Option<StateVersion> {
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
    fn review(
        snapshot: &Self::Snapshot,
        request: &AdmissionRequest<Self::Object>,
    ) -> AdmissionResponse;
}

/// The request (`AdmissionRequest` in `k8s.io/api/admission/v1`).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest<O> {
    /// The id of the request, which the response repeats.
    pub uid: String,
    /// The namespace, empty for a cluster-scoped object. In the metadata of a new object it may be missing.
    #[serde(default)]
    pub namespace: String,
    /// The operation.
    pub operation: Operation,
    /// Whether it is a dry run, so that nothing is stored.
    #[serde(default)]
    pub dry_run: bool,
    /// The object as it would be stored without a patch.
    pub object: O,
}

/// The operation on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It is created.
    Create,
    /// It is changed.
    Update,
}

/// The response: the object is allowed, patched or unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionResponse {
    /// The changes, in this order.
    pub patch: Vec<PatchOperation>,
    /// Warnings for the client. The API server cuts each to 256 characters and all together to 4,096
    /// (`k8s.io/apiserver/pkg/endpoints/filters/warning.go`).
    pub warnings: Vec<String>,
}

/// An operation of a JSON patch (RFC 6902).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct PatchOperation(Value);

impl PatchOperation {
    /// Sets an entry of an object, or inserts an element into a list, at this path of keys and indices. The parent must
    /// exist: the first annotation of a pod is added together with its map.
    pub fn add<'a>(path: impl IntoIterator<Item = &'a str>, value: impl Into<Value>) -> Self {
        Self(json!({"op": "add", "path": pointer(path), "value": value.into()}))
    }

    /// Removes the value at this path, which must exist.
    pub fn remove<'a>(path: impl IntoIterator<Item = &'a str>) -> Self {
        Self(json!({"op": "remove", "path": pointer(path)}))
    }
}

/// An operation as it is sent.
impl From<Value> for PatchOperation {
    fn from(operation: Value) -> Self {
        Self(operation)
    }
}

/// A JSON pointer (RFC 6901, 3 and 4).
fn pointer<'a>(path: impl IntoIterator<Item = &'a str>) -> String {
    let mut pointer = String::new();
    for key in path {
        pointer.push('/');
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
            serde_json::to_value([PatchOperation::add(key, "x"), PatchOperation::remove(key)])
                .unwrap(),
            json!([{"op": "add", "path": path, "value": "x"}, {"op": "remove", "path": path}])
        );
    }
}

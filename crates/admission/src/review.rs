//! What a feature implements, and what it is asked.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a feature makes of objects as they are created or updated: a function of the request and of an immutable
/// snapshot that the feature's control loop replaces when something changes.
pub trait Reviewer: 'static {
    /// What is read of the object. A request whose object does not decode is answered with "no change", so each field
    /// that may be missing is optional.
    type Object: DeserializeOwned;
    /// What the feature knows when it is asked.
    type Snapshot: Send + Sync + 'static;

    /// The answer to a request. It is worked out on the thread that serves all webhooks, so it neither blocks nor takes
    /// long. The API server may ask again about the object that the answer led to (`reinvocationPolicy`), and about an
    /// object that is never created (a dry run, or another plugin refuses it): the same request gets the same answer.
    fn review(
        snapshot: &Self::Snapshot,
        request: &AdmissionRequest<Self::Object>,
    ) -> AdmissionResponse;
}

/// What is asked (`AdmissionRequest` in `k8s.io/api/admission/v1`).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest<O> {
    /// The id of the request, by which the answer is recognised.
    pub uid: String,
    /// The namespace, empty for an object of the cluster. The object's own may be empty at its creation.
    #[serde(default)]
    pub namespace: String,
    /// What is about to be done.
    pub operation: Operation,
    /// Whether nothing will be stored.
    #[serde(default)]
    pub dry_run: bool,
    /// The object as it would be stored without an answer.
    pub object: O,
}

/// What is about to be done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It is created.
    Create,
    /// It is changed.
    Update,
}

/// The answer: the object is allowed, changed or as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmissionResponse {
    /// What is changed, in this order.
    pub patch: Vec<PatchOperation>,
    /// What the client is told. The API server cuts each to 256 characters and all together to 4,096
    /// (`k8s.io/apiserver/pkg/endpoints/filters/warning.go`).
    pub warnings: Vec<String>,
}

/// An operation of a JSON patch (RFC 6902).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PatchOperation {
    op: &'static str,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

impl PatchOperation {
    /// An entry of an object is set, or an element of a list inserted, at this path of keys and indices. The parent has
    /// to exist: the first annotation of a pod is added together with its map.
    pub fn add<'a>(path: impl IntoIterator<Item = &'a str>, value: impl Into<Value>) -> Self {
        Self {
            op: "add",
            path: path.into_iter().map(pointer_token).collect(),
            value: Some(value.into()),
        }
    }

    /// What is at this path is removed. It has to exist.
    pub fn remove<'a>(path: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            op: "remove",
            path: path.into_iter().map(pointer_token).collect(),
            value: None,
        }
    }
}

/// A reference token of a JSON pointer with its slash (RFC 6901, 3 and 4).
fn pointer_token(key: &str) -> String {
    format!("/{}", key.replace('~', "~0").replace('/', "~1"))
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

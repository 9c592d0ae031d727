//! The history of workloads.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use crate::wire::metadata;

/// A `ControllerRevision`: what a workload was.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ControllerRevision {
    /// The metadata without `managedFields`.
    #[serde(rename = "metadata", deserialize_with = "metadata")]
    pub identity: ObjectMeta,
    /// The highest is that of the newest.
    #[serde(default)]
    pub revision: i64,
    /// The workload's earlier content.
    #[serde(default)]
    pub data: Value,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_is_read_but_for_its_managed_fields() {
        let wire = json!({
            "metadata": {
                "name": "log-1", "namespace": "n", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"a": "b"}, "annotations": {"c": "d"},
                "ownerReferences": [{"apiVersion": "v", "kind": "SidecarSet", "name": "log", "uid": "s", "controller": true}],
                "managedFields": [{"manager": "m", "operation": "Update", "fieldsV1": {"f:data": {}}}],
            },
            "revision": 3,
            "data": {"spec": {}},
        });
        let mut whole: ObjectMeta = serde_json::from_value(wire["metadata"].clone()).unwrap();
        whole.managed_fields = None;
        let revision: ControllerRevision = serde_json::from_value(wire).unwrap();
        assert_eq!(revision.identity, whole);
        assert_eq!((revision.revision, revision.data), (3, json!({"spec": {}})));
    }
}

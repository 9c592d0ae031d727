//! The CRD of `BroadcastJob`: two versions of one schema, which needs no conversion.
//!
//! The pod template is kept whole. Its schema names the few fields that the job's rules read; all else is judged by the API
//! server, and kept as it is. Defaults are those that `OpenKruise`'s webhook writes
//! (`SetDefaultsBroadcastJob`, `apis/apps/defaults/v1alpha1.go`), without those of the pod.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::{
    SchemaObject, add_rules, bound_name, bound_number, count_column, document_of, make_list_map,
    object, schema, schema_at, serve_versions,
};
use crate::rules;

/// The version in which jobs are stored, as in `OpenKruise` since 1.9.
const STORED: &str = "v1beta1";

pub(super) fn document(crd: &CustomResourceDefinition) -> Value {
    let mut document = document_of(crd);
    complete(schema(&mut document));
    let columns = json!([
        count_column("Desired", "desired", "Nodes that have the pod or are to get it."),
        count_column("Active", "active", "Pods that run or wait to run."),
        count_column("Succeeded", "succeeded", "Nodes on which the pod has succeeded."),
        count_column("Failed", "failed", "Nodes on which the pod has failed."),
        {"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]);
    serve_versions(&mut document, STORED, &columns);
    document
}

fn complete(schema: &mut SchemaObject) {
    let template = schema_at(schema, "spec.template");
    let description = template.remove("description");
    *template = object(pod_template());
    template.extend(description.map(|text| ("description".to_owned(), text)));
    schema_at(schema, "spec").insert("required".into(), json!(["template"]));
    bound_number(
        schema,
        "spec.completionPolicy.activeDeadlineSeconds",
        1,
        i32::MAX.into(),
    );
    bound_number(
        schema,
        "spec.completionPolicy.ttlSecondsAfterFinished",
        0,
        i32::MAX.into(),
    );
    bound_number(
        schema,
        "spec.failurePolicy.restartLimit",
        0,
        i32::MAX.into(),
    );
    for (path, value) in [
        ("spec.parallelism", json!(i32::MAX)),
        ("spec.completionPolicy", json!({})),
        ("spec.completionPolicy.type", json!("Always")),
        ("spec.failurePolicy", json!({})),
        ("spec.failurePolicy.type", json!("FailFast")),
    ] {
        schema_at(schema, path).insert("default".into(), value);
    }
    make_list_map(schema_at(schema, "status.conditions"), &["type"]);
    bound_name(schema);
    add_rules(schema, rules::broadcast_job());
}

/// The fields of a pod template that the rules of a job read.
pub(super) fn pod_template() -> Value {
    let open = |properties: Value| {
        json!({
            "type": "object",
            "properties": properties,
            "x-kubernetes-preserve-unknown-fields": true,
        })
    };
    let labels = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let mut template = open(json!({
        "metadata": open(json!({"labels": labels})),
        "spec": open(json!({
            "restartPolicy": {"type": "string"},
            "nodeName": {"type": "string"},
            "containers": {"type": "array", "items": open(json!({}))},
        })),
    }));
    template["required"] = json!(["spec"]);
    template
}

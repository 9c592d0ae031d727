//! The CRD of `AdvancedCronJob`: two versions of one schema, which needs no conversion.
//!
//! What runs has no schema of its own here: a dry run of the first object that is made of it says what is wrong with it, and
//! fields of later versions are kept. Labels and annotations of both kinds of runs are kept too, unlike in `OpenKruise`'s CRD.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::{
    SchemaObject, add_rules, document_of, make_list_map, schema, schema_at, serve_versions,
};
use crate::{limits, rules};

const STORED: &str = "v1beta1";

pub(super) fn document(crd: &CustomResourceDefinition) -> Value {
    let mut document = document_of(crd);
    complete(schema(&mut document));
    serve_versions(&mut document, STORED, &columns());
    document
}

fn columns() -> Value {
    let column = |name: &str, path: &str, kind: &str, description: &str| json!({"name": name, "type": kind, "jsonPath": path, "description": description});
    json!([
        column("Schedule", ".spec.schedule", "string", "The times at which it runs."),
        column("Type", ".status.type", "string", "The kind of what it runs."),
        column(
            "LastScheduleTime",
            ".status.lastScheduleTime",
            "date",
            "The latest time for which a run was begun.",
        ),
        {"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ])
}

fn complete(schema: &mut SchemaObject) {
    schema_at(schema, "spec").insert("required".into(), json!(["schedule", "template"]));
    for template in rules::RUN_TEMPLATES {
        let spec = schema_at(schema, &format!("spec.template.{template}.spec"));
        *spec = super::any_object();
    }
    make_list_map(schema_at(schema, "status.conditions"), &["type"]);
    for (field, most) in [("schedule", limits::SCHEDULE), ("timeZone", limits::LABEL)] {
        let field = schema_at(schema, &format!("spec.{field}"));
        field.insert("minLength".into(), json!(1));
        field.insert("maxLength".into(), json!(most));
    }
    for limit in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
        // The API server ignores `format: int32`.
        schema_at(schema, &format!("spec.{limit}")).insert("maximum".into(), json!(i32::MAX));
    }
    for number in [
        "startingDeadlineSeconds",
        "successfulJobsHistoryLimit",
        "failedJobsHistoryLimit",
    ] {
        schema_at(schema, &format!("spec.{number}")).insert("minimum".into(), json!(0));
    }
    let policies = ["", "Allow", "Forbid", "Replace"];
    schema_at(schema, "spec.concurrencyPolicy").insert("enum".into(), json!(policies));
    // The defaults that OpenKruise's webhook writes (`SetDefaultsAdvancedCronJob`, `apis/apps/defaults`).
    for (field, default) in [
        ("concurrencyPolicy", json!("Allow")),
        ("paused", json!(false)),
        ("successfulJobsHistoryLimit", json!(3)),
        ("failedJobsHistoryLimit", json!(1)),
    ] {
        schema_at(schema, &format!("spec.{field}")).insert("default".into(), default);
    }
    // Objects with longer names stay editable: the API server judges what is changed (KEP-4008).
    let name = json!({"type": "string", "maxLength": limits::CRON_JOB_NAME, "pattern": "^[^.]*$"});
    let metadata = json!({"type": "object", "properties": {"name": name}});
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties
        .expect("a cron job has properties")
        .insert("metadata".into(), metadata);
    add_rules(schema, rules::advanced_cron_job());
}

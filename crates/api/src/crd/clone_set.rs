//! The CRD of `CloneSet`: `v1alpha1`, which every release of `OpenKruise` up to 1.9 serves and stores.
//!
//! The pod template is kept whole, as that of a `BroadcastJob`. Defaults are those that `OpenKruise`'s webhook writes
//! (`SetDefaultsCloneSet`, `apis/apps/defaults/v1alpha1.go`), without those of the pod.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::broadcast_job::pod_template;
use super::{
    SchemaObject, add_rules, bound_number, complete_selector, count_column, document_of,
    make_list_map, object, schema, schema_at, set_keywords, set_selector_maxima,
};
use crate::{limits, rules};

pub(super) fn document(crd: &CustomResourceDefinition) -> Value {
    let mut document = document_of(crd);
    complete(schema(&mut document));
    document["spec"]["versions"][0]["additionalPrinterColumns"] = columns();
    document
}

fn columns() -> Value {
    let wide = |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path, "priority": 1});
    let pod = ".spec.template.spec.containers[*]";
    json!([
        {"name": "DESIRED", "type": "integer", "jsonPath": ".spec.replicas", "description": "The number of pods that there are to be."},
        count_column("UPDATED", "updatedReplicas", "Pods of the present template."),
        count_column("UPDATED_READY", "updatedReadyReplicas", "Pods of the present template that are ready."),
        count_column("UPDATED_AVAILABLE", "updatedAvailableReplicas", "Pods of the present template that are available."),
        count_column("READY", "readyReplicas", "Pods that are ready."),
        count_column("TOTAL", "replicas", "Pods that neither terminate nor have ended."),
        {"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        wide("CONTAINERS", &format!("{pod}.name")),
        wide("IMAGES", &format!("{pod}.image")),
        wide("SELECTOR", ".status.labelSelector"),
    ])
}

fn complete(schema: &mut SchemaObject) {
    let template = schema_at(schema, "spec.template");
    let description = template.remove("description");
    *template = object(pod_template());
    template.extend(description.map(|text| ("description".to_owned(), text)));
    let pod = schema_at(schema, "spec.template.spec").get_mut("properties");
    if let Some(properties) = pod.and_then(Value::as_object_mut) {
        properties.insert("activeDeadlineSeconds".into(), json!({"type": "integer"}));
        let name = json!({"type": "string", "maxLength": limits::LABEL});
        let volume = open(json!({"name": name}), &[]);
        let volumes = json!({"type": "array", "maxItems": limits::VOLUMES, "items": volume});
        properties.insert("volumes".into(), volumes);
    }
    *schema_at(schema, "spec.volumeClaimTemplates[]") = claim_template();
    schema_at(schema, "spec").insert("required".into(), json!(["selector", "template"]));
    for selector in rules::CLONE_SET_SELECTORS {
        set_selector_maxima(schema_at(schema, selector));
        complete_selector(schema_at(schema, selector));
    }
    // The rule would cost too much in a list of selectors.
    let value = format!("^{}$", rules::LABEL_VALUE);
    schema_at(schema, rules::CLONE_SET_WEIGHT_VALUES).insert("pattern".into(), json!(value));
    for number in ["replicas", "revisionHistoryLimit", "minReadySeconds"] {
        bound_number(schema, &format!("spec.{number}"), 0, i32::MAX.into());
    }
    let strategy = "spec.updateStrategy";
    for (path, most) in [
        (
            "inPlaceUpdateStrategy.gracePeriodSeconds",
            limits::GRACE_SECONDS,
        ),
        ("priorityStrategy.weightPriority[].weight", 100),
    ] {
        bound_number(schema, &format!("{strategy}.{path}"), 0, most);
    }
    for (path, value) in [
        ("spec.replicas", json!(1)),
        ("spec.revisionHistoryLimit", json!(10)),
        ("spec.scaleStrategy", json!({})),
        (strategy, json!({})),
        ("spec.updateStrategy.type", json!("ReCreate")),
        ("spec.updateStrategy.partition", json!(0)),
        ("spec.updateStrategy.maxUnavailable", json!("20%")),
        ("spec.updateStrategy.maxSurge", json!(0)),
    ] {
        schema_at(schema, path).insert("default".into(), value);
    }
    let labels = schema_at(schema, "spec.template.metadata.labels");
    labels.insert("maxProperties".into(), json!(limits::TEMPLATE_LABELS));
    schema_at(schema, "spec.scaleStrategy.podsToDelete")
        .insert("x-kubernetes-list-type".into(), "set".into());
    make_list_map(
        schema_at(schema, "spec.updateStrategy.scatterStrategy"),
        &["key", "value"],
    );
    make_list_map(schema_at(schema, "status.conditions"), &["type"]);
    set_keywords(schema, MAXIMA);
    // The hash of a revision is behind it in the name of a `ControllerRevision`, and five letters in that of a pod.
    let name = json!({"type": "string", "maxLength": limits::CLONE_SET_NAME});
    let metadata = json!({"type": "object", "properties": {"name": name}});
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties
        .expect("a set has properties")
        .insert("metadata".into(), metadata);
    add_rules(schema, rules::clone_set());
}

/// The fields of a template of claims without which no claim could be created, and no volume of its name mounted.
fn claim_template() -> SchemaObject {
    let pattern = format!("^{}$", rules::DNS_LABEL);
    let name = json!({"type": "string", "maxLength": limits::LABEL, "pattern": pattern});
    // An amount may be a number, as in a claim itself.
    let amount = json!({"x-kubernetes-int-or-string": true,
        "anyOf": [{"type": "integer"}, {"type": "string"}]});
    let requests = open(json!({"storage": amount}), &["storage"]);
    let modes = json!({"type": "array", "minItems": 1, "items": {"type": "string"}});
    let spec = json!({"accessModes": modes, "resources": open(json!({"requests": requests}), &["requests"])});
    object(open(
        json!({
            "metadata": open(json!({"name": name}), &["name"]),
            "spec": open(spec, &["accessModes", "resources"]),
        }),
        &["metadata", "spec"],
    ))
}

/// An object with these fields and any others.
fn open(properties: Value, required: &[&str]) -> Value {
    let mut open = json!({
        "type": "object",
        "properties": properties,
        "x-kubernetes-preserve-unknown-fields": true,
    });
    if !required.is_empty() {
        open["required"] = json!(required);
    }
    open
}

const MAXIMA: &[(&str, &str, usize)] = &[
    (
        "spec.volumeClaimTemplates",
        "maxItems",
        limits::CLAIM_TEMPLATES,
    ),
    (
        "spec.scaleStrategy.podsToDelete",
        "maxItems",
        limits::PODS_TO_DELETE,
    ),
    (
        "spec.scaleStrategy.podsToDelete[]",
        "maxLength",
        limits::SUBDOMAIN,
    ),
    (
        "spec.updateStrategy.scatterStrategy",
        "maxItems",
        limits::TERMS,
    ),
    (
        "spec.updateStrategy.scatterStrategy[].key",
        "maxLength",
        limits::QUALIFIED_NAME,
    ),
    (
        "spec.updateStrategy.scatterStrategy[].value",
        "maxLength",
        limits::LABEL,
    ),
    (
        "spec.updateStrategy.priorityStrategy.orderPriority",
        "maxItems",
        limits::TERMS,
    ),
    (
        "spec.updateStrategy.priorityStrategy.orderPriority[].orderedKey",
        "maxLength",
        limits::QUALIFIED_NAME,
    ),
    (
        "spec.updateStrategy.priorityStrategy.weightPriority",
        "maxItems",
        limits::TERMS,
    ),
    (
        "spec.lifecycle.preDelete.labelsHandler",
        "maxProperties",
        limits::HOOK_MARKS,
    ),
    (
        "spec.lifecycle.preDelete.finalizersHandler",
        "maxItems",
        limits::HOOK_MARKS,
    ),
    (
        "spec.lifecycle.inPlaceUpdate.labelsHandler",
        "maxProperties",
        limits::HOOK_MARKS,
    ),
    (
        "spec.lifecycle.inPlaceUpdate.finalizersHandler",
        "maxItems",
        limits::HOOK_MARKS,
    ),
    (
        "spec.lifecycle.preNormal.labelsHandler",
        "maxProperties",
        limits::HOOK_MARKS,
    ),
    (
        "spec.lifecycle.preNormal.finalizersHandler",
        "maxItems",
        limits::HOOK_MARKS,
    ),
];

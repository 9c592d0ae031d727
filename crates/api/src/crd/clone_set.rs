//! The CRD of `CloneSet`: two versions of one schema, which needs no conversion.
//!
//! Both have the fields of both forms of an update strategy, and an object is read in the form in which it was written. What differs
//! are defaults, and rules against clients that know one form alone: what they do not know they would drop.
//!
//! The pod template is kept whole, as that of a `BroadcastJob`. Defaults are those that `OpenKruise`'s webhook writes
//! (`SetDefaultsCloneSet`, `apis/apps/defaults/v1alpha1.go`), without those of the pod.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::broadcast_job::pod_template;
use super::{
    SchemaObject, add_rules, any_object, bound_number, complete_selector, count_column,
    document_of, limit_sizes, make_list_map, object, schema, schema_at, serve_versions,
    set_selector_maxima,
};
use crate::clone_set::ROLLING_UPDATE;
use crate::{limits, rules};

/// The version in which sets are stored: every release of `OpenKruise` has it, and those up to 1.9 have no other one.
const STORED: &str = "v1alpha1";

/// Strategies, in either form.
const STRATEGIES: [&str; 2] = ["spec.updateStrategy", "spec.updateStrategy.rollingUpdate"];

pub(super) fn document(crd: &CustomResourceDefinition) -> Value {
    let mut document = document_of(crd);
    complete(schema(&mut document));
    serve_versions(&mut document, STORED, &columns());
    for version in [0, 1] {
        let root = &mut document["spec"]["versions"][version]["schema"]["openAPIV3Schema"];
        let schema = root.as_object_mut().expect("a CRD has a schema");
        let is_of_v1beta1 = version == 1;
        for (path, v1alpha1, v1beta1) in defaults() {
            if let Some(value) = if is_of_v1beta1 { v1beta1 } else { v1alpha1 } {
                schema_at(schema, path).insert("default".into(), value);
            }
        }
        add_rules(schema, rules::clone_set_form(is_of_v1beta1));
    }
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
    for path in rules::CLONE_SET_WEIGHT_VALUES {
        schema_at(schema, path).insert("pattern".into(), json!(value));
    }
    for number in [
        "replicas",
        "revisionHistoryLimit",
        "minReadySeconds",
        "progressDeadlineSeconds",
    ] {
        bound_number(schema, &format!("spec.{number}"), 0, i32::MAX.into());
    }
    for strategy in STRATEGIES {
        for (path, most) in [
            (
                "inPlaceUpdateStrategy.gracePeriodSeconds",
                limits::GRACE_SECONDS,
            ),
            ("priorityStrategy.weightPriority[].weight", 100),
        ] {
            bound_number(schema, &format!("{strategy}.{path}"), 0, most);
        }
        limit_sizes(schema, &[(strategy, STRATEGY_MAXIMA)]);
        let scatter = format!("{strategy}.scatterStrategy");
        make_list_map(schema_at(schema, &scatter), &["key", "value"]);
    }
    let labels = schema_at(schema, "spec.template.metadata.labels");
    labels.insert("maxProperties".into(), json!(limits::TEMPLATE_LABELS));
    schema_at(schema, "spec.scaleStrategy.podsToDelete")
        .insert("x-kubernetes-list-type".into(), "set".into());
    make_list_map(schema_at(schema, "status.conditions"), &["type"]);
    limit_sizes(schema, MAXIMA);
    // The hash of a revision is behind it in the name of a `ControllerRevision`, and five letters in that of a pod.
    let name = json!({"type": "string", "maxLength": limits::CLONE_SET_NAME});
    let metadata = json!({"type": "object", "properties": {"name": name}});
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties
        .expect("a set has properties")
        .insert("metadata".into(), metadata);
    add_rules(schema, rules::clone_set());
}

/// The defaults by field, in either version.
fn defaults() -> Vec<(&'static str, Option<Value>, Option<Value>)> {
    let both = |path, value: Value| (path, Some(value.clone()), Some(value));
    let strategy = "spec.updateStrategy";
    vec![
        both("spec.replicas", json!(1)),
        both("spec.revisionHistoryLimit", json!(10)),
        both("spec.scaleStrategy", json!({})),
        // A default is judged by the rules as it stands.
        (
            strategy,
            Some(json!({})),
            Some(json!({"type": ROLLING_UPDATE})),
        ),
        (
            "spec.updateStrategy.type",
            Some(json!("ReCreate")),
            Some(json!(ROLLING_UPDATE)),
        ),
        ("spec.updateStrategy.partition", Some(json!(0)), None),
        (
            "spec.updateStrategy.maxUnavailable",
            Some(json!("20%")),
            None,
        ),
        ("spec.updateStrategy.maxSurge", Some(json!(0)), None),
    ]
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
    let mut open = any_object();
    open.insert("properties".into(), properties);
    if !required.is_empty() {
        open.insert("required".into(), json!(required));
    }
    Value::Object(open)
}

const MAXIMA: &[(&str, &[(&str, usize)])] = &[
    ("spec", &[("volumeClaimTemplates", limits::CLAIM_TEMPLATES)]),
    (
        "spec.scaleStrategy",
        &[
            ("podsToDelete", limits::PODS_TO_DELETE),
            ("podsToDelete[]", limits::SUBDOMAIN),
        ],
    ),
    (
        "spec.lifecycle",
        &[
            ("preDelete.labelsHandler", limits::HOOK_MARKS),
            ("preDelete.finalizersHandler", limits::HOOK_MARKS),
            ("inPlaceUpdate.labelsHandler", limits::HOOK_MARKS),
            ("inPlaceUpdate.finalizersHandler", limits::HOOK_MARKS),
            ("preNormal.labelsHandler", limits::HOOK_MARKS),
            ("preNormal.finalizersHandler", limits::HOOK_MARKS),
        ],
    ),
];

const STRATEGY_MAXIMA: &[(&str, usize)] = &[
    ("scatterStrategy", limits::TERMS),
    ("scatterStrategy[].key", limits::QUALIFIED_NAME),
    ("scatterStrategy[].value", limits::LABEL),
    ("priorityStrategy.orderPriority", limits::TERMS),
    (
        "priorityStrategy.orderPriority[].orderedKey",
        limits::QUALIFIED_NAME,
    ),
    ("priorityStrategy.weightPriority", limits::TERMS),
];

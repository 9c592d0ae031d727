//! The CRDs as they are installed, made from the types.
//!
//! The types give names, nesting and types of fields; this module adds the rest. Types and maxima are in the schema,
//! semantic rules in CEL (module `rules`), since one error of the schema hides all those of CEL. Defaults of a marker's
//! absent fields are filled in by the manager: they depend on its flags. Those of a set do not, and stand in its schema.

mod advanced_cron_job;
mod broadcast_job;
mod clone_set;
mod sidecar_set;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::rules::CelRule;
use crate::{
    AdvancedCronJob, BroadcastJob, CloneSet, NodePodProbe, PodProbeMarker, SidecarSet, limits,
    rules,
};

/// An object of JSON, such as a schema is.
type SchemaObject = Map<String, Value>;

/// The CRDs of probes, ready to be applied.
pub fn podprobe_crds() -> [CustomResourceDefinition; 2] {
    [
        typed(marker_document(&PodProbeMarker::crd())),
        typed(node_pod_probe_document(&NodePodProbe::crd())),
    ]
}

/// The CRD of sets of sidecars, likewise.
pub fn sidecar_set_crd() -> CustomResourceDefinition {
    typed(sidecar_set::document(&SidecarSet::crd()))
}

/// The CRD of jobs on each node, likewise.
pub fn broadcast_job_crd() -> CustomResourceDefinition {
    typed(broadcast_job::document(&BroadcastJob::crd()))
}

/// The CRD of sets of pods, likewise.
pub fn clone_set_crd() -> CustomResourceDefinition {
    typed(clone_set::document(&CloneSet::crd()))
}

/// The CRD of cron jobs, likewise.
pub fn advanced_cron_job_crd() -> CustomResourceDefinition {
    typed(advanced_cron_job::document(&AdvancedCronJob::crd()))
}

/// All CRDs as YAML, each with its file's name; those that a gate adds are in its folder.
pub fn render() -> Vec<(String, String)> {
    let documents = [
        ("", marker_document(&PodProbeMarker::crd())),
        ("", node_pod_probe_document(&NodePodProbe::crd())),
        ("SidecarSetGate/", sidecar_set::document(&SidecarSet::crd())),
        (
            "BroadcastJobGate/",
            broadcast_job::document(&BroadcastJob::crd()),
        ),
        ("CloneSetGate/", clone_set::document(&CloneSet::crd())),
        (
            "AdvancedCronJobGate/",
            advanced_cron_job::document(&AdvancedCronJob::crd()),
        ),
    ];
    let files = documents.map(|(folder, document)| {
        let plural = document["spec"]["names"]["plural"]
            .as_str()
            .expect("a CRD has a plural");
        let yaml = serde_norway::to_string(&document).expect("JSON is YAML");
        (format!("{folder}{}_{plural}.yaml", crate::GROUP), yaml)
    });
    files.into()
}

fn typed(document: Value) -> CustomResourceDefinition {
    serde_json::from_value(document).expect("a CRD with more fields is a CRD")
}

fn marker_document(crd: &CustomResourceDefinition) -> Value {
    let mut document = document_of(crd);
    document["spec"]["versions"][0]["additionalPrinterColumns"] = marker_columns();
    let schema = schema(&mut document);
    complete_probe(schema_at(schema, "spec.probes[].probe"));
    complete_selector(schema_at(schema, "spec.selector"));
    set_maxima(schema);
    make_list_map(schema_at(schema, "spec.probes"), &["name"]);
    make_list_map(schema_at(schema, "spec.probes[].markerPolicy"), &["state"]);
    make_list_map(schema_at(schema, "status.conditions"), &["type"]);
    // OpenKruise's CRD requires it too; the type itself has a default.
    schema_at(schema, "status").insert("required".into(), json!(["observedGeneration"]));
    add_rules(schema, rules::marker());
    document
}

/// Serves one schema in both versions of `OpenKruise`, which needs no conversion.
fn serve_versions(document: &mut Value, stored: &str, columns: &Value) {
    let versions = ["v1alpha1", "v1beta1"].map(|name| {
        let mut version = document["spec"]["versions"][0].clone();
        version["name"] = json!(name);
        version["storage"] = json!(name == stored);
        version["additionalPrinterColumns"] = columns.clone();
        version
    });
    document["spec"]["versions"] = json!(versions);
    document["spec"]["conversion"] = json!({"strategy": "None"});
}

/// A column of `kubectl get` with a count in the status.
fn count_column(name: &str, field: &str, description: &str) -> Value {
    json!({
        "name": name,
        "type": "integer",
        "jsonPath": format!(".status.{field}"),
        "description": description,
    })
}

/// Bounds the name of objects that have it in a label of others. The API server requires a domain's name.
fn bound_name(schema: &mut SchemaObject) {
    let name = json!({"type": "string", "maxLength": limits::LABEL, "pattern": "^[^.]*$"});
    let metadata = json!({"type": "object", "properties": {"name": name}});
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties
        .expect("an object has properties")
        .insert("metadata".into(), metadata);
}

/// Bounds a number. The API server ignores `format: int32`
/// (`k8s.io/apiextensions-apiserver/pkg/apiserver/validation/formats.go`).
fn bound_number(schema: &mut SchemaObject, path: &str, least: i64, most: i64) {
    let number = schema_at(schema, path);
    number.insert("minimum".into(), json!(least));
    number.insert("maximum".into(), json!(most));
}

fn object(value: Value) -> SchemaObject {
    let Value::Object(object) = value else {
        unreachable!("it is written as an object")
    };
    object
}

fn add_rules(schema: &mut SchemaObject, rules: Vec<CelRule>) {
    for rule in rules {
        let object = schema_at(schema, &rule.path);
        let rules = object
            .entry("x-kubernetes-validations")
            .or_insert_with(|| json!([]))
            .as_array_mut()
            .expect("only this loop fills it");
        rules.push(rule.to_json());
    }
}

/// The columns of `kubectl get`. A column shows one value, so the counts are those of the first probe: most markers have
/// just one.
fn marker_columns() -> Value {
    let count = |name: &str, field: &str| {
        json!({
            "name": name,
            "type": "integer",
            "jsonPath": format!(".status.probes[0].{field}"),
            "description": format!("Matched pods on which the first probe's verdict is {name}."),
        })
    };
    json!([
        {
            "name": "Matched",
            "type": "integer",
            "jsonPath": ".status.matchedPods",
            "description": "Pods that the marker probes.",
        },
        count("Succeeded", "succeeded"),
        count("Failed", "failed"),
        count("Unknown", "unknown"),
        {
            "name": "Ready",
            "type": "string",
            "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status",
        },
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ])
}

fn node_pod_probe_document(crd: &CustomResourceDefinition) -> Value {
    let mut document = document_of(crd);
    document["spec"]["versions"][0]["additionalPrinterColumns"] =
        json!([{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]);
    let schema = schema(&mut document);
    complete_probe(schema_at(schema, "spec.podProbes[].probes[].probe"));
    let cannot_probe = "status.podProbeStatuses[].cannotProbe";
    schema_at(schema, cannot_probe).insert("maxItems".into(), limits::CANNOT_PROBE.into());
    for (field, most) in [
        ("name", limits::CANNOT_PROBE_NAME),
        ("message", limits::CANNOT_PROBE_MESSAGE),
    ] {
        let field = schema_at(schema, &format!("{cannot_probe}[].{field}"));
        field.insert("maxLength".into(), most.into());
    }
    document
}

fn document_of(crd: &CustomResourceDefinition) -> Value {
    let mut document = serde_json::to_value(crd).expect("a CRD is JSON");
    drop_nullable_and_defaults(schema(&mut document).values_mut());
    document
}

fn schema(document: &mut Value) -> &mut SchemaObject {
    let root = document
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .and_then(Value::as_object_mut)
        .expect("a CRD has a schema");
    // The name of a Rust type, which says nothing to who reads the CRD.
    root.remove("title");
    root
}

/// Removes what the derived schema has beyond the types on the wire: `null` is an absent field, and defaults are filled in
/// by the manager.
fn drop_nullable_and_defaults<'a>(schemas: impl Iterator<Item = &'a mut Value>) {
    for schema in schemas {
        if let Some(object) = schema.as_object_mut() {
            let is_schema = object.get("type").is_some_and(Value::is_string)
                || object.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
            if is_schema {
                object.remove("nullable");
                object.remove("default");
            }
            drop_nullable_and_defaults(object.values_mut());
        }
    }
}

/// The schema at a path: `.` leads to a property, `[]` to the items of a list, `{}` to the values of a map.
fn schema_at<'a>(schema: &'a mut SchemaObject, path: &str) -> &'a mut SchemaObject {
    let path = path.replace("[]", ".[]").replace("{}", ".{}");
    path.split('.')
        .filter(|part| !part.is_empty())
        .fold(schema, |schema, part| {
            let below = match part {
                "[]" => schema.get_mut("items"),
                "{}" => schema.get_mut("additionalProperties"),
                property => schema
                    .get_mut("properties")
                    .and_then(|properties| properties.get_mut(property)),
            };
            let next = below.and_then(Value::as_object_mut);
            next.unwrap_or_else(|| unreachable!("the types have {path}"))
        })
}

/// Makes a list a map by its keys: no two items have the same ones, and server-side apply merges it item by item.
fn make_list_map(schema: &mut SchemaObject, keys: &[&str]) {
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), json!(keys));
}

/// Adds what upstream's schema of a native probe has and the derived one lacks.
fn complete_probe(probe: &mut SchemaObject) {
    // `+default=""` of `GRPCAction` (`k8s.io/api/core/v1/types.go`).
    schema_at(probe, "grpc.service").insert("default".into(), "".into());
    for path in ["httpGet.port", "tcpSocket.port"] {
        schema_at(probe, path).insert(
            "anyOf".into(),
            json!([{"type": "integer"}, {"type": "string"}]),
        );
    }
}

fn complete_selector(selector: &mut SchemaObject) {
    selector.insert("x-kubernetes-map-type".into(), "atomic".into());
}

/// Sets the maxima: some are limits of the wire, others keep the estimated cost of the rules within the API server's limit.
fn set_maxima(schema: &mut SchemaObject) {
    set_selector_maxima(schema_at(schema, "spec.selector"));
    limit_sizes(schema, MAXIMA);
    for field in TIMINGS {
        let timing = schema_at(schema_at(schema, "spec.probes[].probe"), field);
        // The API server ignores `format: int32` (`k8s.io/apiextensions-apiserver/pkg/apiserver/validation/formats.go`).
        // Zero equals an absent field.
        timing.insert("minimum".into(), json!(0));
        let most = if *field == "timeoutSeconds" {
            limits::TIMEOUT_SECONDS
        } else {
            i32::MAX
        };
        timing.insert("maximum".into(), json!(most));
    }
    for policy in ["", ".outputs[]"] {
        let path = format!("spec.probes[].markerPolicy[]{policy}.holdSeconds");
        bound_number(schema, &path, 0, limits::HOLD_SECONDS.into());
    }
    let age = "spec.probes[].file.notOlderThanSeconds";
    bound_number(schema, age, 1, i32::MAX.into());
}

/// An object that is passed on as it is.
fn any_object() -> SchemaObject {
    object(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}))
}

/// Limits texts, lists and maps, each by the path to its object and that of the field in it: of what it is the maximum follows from
/// the type.
fn limit_sizes(schema: &mut SchemaObject, maxima: &[(&str, &[(&str, usize)])]) {
    for (path, fields) in maxima {
        let object = schema_at(schema, path);
        for (field, most) in *fields {
            let field = schema_at(object, field);
            let keyword = match field.get("type").and_then(Value::as_str) {
                Some("array") => "maxItems",
                Some("object") => "maxProperties",
                _ => "maxLength",
            };
            field.insert(keyword.into(), json!(most));
        }
    }
}

fn set_selector_maxima(selector: &mut SchemaObject) {
    let maxima: &[(&str, usize)] = &[
        ("matchLabels", limits::SELECTOR_EXPRESSIONS),
        ("matchLabels{}", limits::LABEL),
        ("matchExpressions", limits::SELECTOR_EXPRESSIONS),
        ("matchExpressions[].key", limits::QUALIFIED_NAME),
        ("matchExpressions[].values", limits::SELECTOR_VALUES),
        ("matchExpressions[].values[]", limits::LABEL),
    ];
    limit_sizes(selector, &[("", maxima)]);
}

const TIMINGS: &[&str] = &[
    "initialDelaySeconds",
    "periodSeconds",
    "timeoutSeconds",
    "successThreshold",
    "failureThreshold",
];

const MAXIMA: &[(&str, &[(&str, usize)])] = &[
    ("spec", &[("probes", limits::PROBES)]),
    (
        "spec.probes[]",
        &[
            ("name", limits::PROBE_NAME),
            ("containerName", limits::LABEL),
            ("podConditionType", limits::QUALIFIED_NAME),
            ("markerPolicy", 2),
            ("file.volume", limits::LABEL),
            ("file.path", limits::FILE_PATH),
            ("output.matches", limits::OUTPUT_EXPRESSION),
        ],
    ),
    (
        "spec.probes[].markerPolicy[]",
        &[
            ("labels", limits::POLICY_KEYS),
            ("labels{}", limits::LABEL),
            ("annotations", limits::POLICY_KEYS),
            ("annotations{}", limits::ANNOTATION_VALUE),
            ("message", limits::POLICY_MESSAGE),
            ("outputs", limits::OUTPUT_POLICIES),
            ("exclusive.label", limits::QUALIFIED_NAME),
            ("exclusive.value", limits::LABEL),
            ("exclusive.version", limits::LABEL),
            ("exclusive.groupBy", limits::QUALIFIED_NAME),
        ],
    ),
    (
        "spec.probes[].markerPolicy[].outputs[]",
        &[
            ("when", limits::OUTPUT_VALUES),
            ("when{}", limits::OUTPUT_VALUES_BYTES),
            ("labels", limits::OUTPUT_POLICY_KEYS),
            ("labels{}", limits::LABEL),
            ("annotations", limits::OUTPUT_POLICY_KEYS),
            ("annotations{}", limits::ANNOTATION_VALUE),
        ],
    ),
    ("status.probes[]", &[("holders", limits::EXCLUSIVE_HOLDERS)]),
    (
        "spec.probes[].probe",
        &[
            ("exec.command", limits::COMMAND_WORDS),
            ("exec.command[]", limits::COMMAND_CHARS),
            ("httpGet.path", limits::PATH),
            ("grpc.service", limits::GRPC_SERVICE),
            ("httpGet.port", limits::PORT_NAME),
            ("httpGet.httpHeaders", limits::HEADERS),
            ("httpGet.httpHeaders[].name", limits::HEADER_NAME),
            ("httpGet.httpHeaders[].value", limits::HEADER_VALUE),
            ("tcpSocket.port", limits::PORT_NAME),
        ],
    ),
];

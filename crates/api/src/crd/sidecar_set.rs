//! The CRD of `SidecarSet`: two versions of one schema, which needs no conversion.
//!
//! Both versions have the fields of both (`namespace` of v1alpha1, `customVersion` of v1beta1), so that whoever reads one
//! version and writes it back loses nothing of the other.
//!
//! What a pod gets has the schema of a pod, as loose as that of the API server: whatever has another type is refused here,
//! since it would be refused in every pod, and fields of later versions of Kubernetes are kept at every level. Defaults are
//! those that `OpenKruise`'s webhook writes, as far as they are the same for every set. They change no hash, which is taken
//! of a completed set; those that follow from other fields, as a pull policy from a tag, are not written, since they would
//! look like a wish.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::{
    SchemaObject, add_rules, any_object, bound_name, bound_number, complete_selector, count_column,
    document_of, limit_sizes, make_list_map, object, schema, schema_at, serve_versions,
    set_selector_maxima,
};
use crate::{limits, rules};

/// The version in which sets are stored.
///
/// It is the older one, because `OpenKruise`'s conversion then keeps a set's `namespace` when a cluster goes back to it. A
/// v1beta1 of `OpenKruise` has no such field, and the API server would drop it: the set would select pods of all
/// namespaces. And CRDs before 1.9 have no v1beta1, so objects that were stored in it could not be read.
const STORED: &str = crate::VERSION;

pub(super) fn document(crd: &CustomResourceDefinition) -> Value {
    let mut document = document_of(crd);
    complete(schema(&mut document));
    let columns = json!([
        count_column("MATCHED", "matchedPods", "Pods that were injected and match."),
        count_column("UPDATED", "updatedPods", "Matched pods whose containers are those of the spec."),
        count_column("READY", "readyPods", "Matched pods that are ready."),
        {"name": "AGE", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]);
    serve_versions(&mut document, STORED, &columns);
    document
}

fn complete(schema: &mut SchemaObject) {
    for list in LISTS {
        complete_containers(schema_at(schema, list));
    }
    let volumes = schema_at(schema, "spec.volumes");
    loosen(schema_at(volumes, "[]"));
    let template = "[].ephemeral.volumeClaimTemplate";
    *schema_at(volumes, &format!("{template}.metadata")) = any_object();
    make_list_map(volumes, &["name"]);
    let secret = schema_at(schema, "spec.imagePullSecrets[]");
    loosen(secret);
    // A reference may have an empty name, as in a pod.
    secret.remove("required");
    for selector in rules::SELECTORS {
        let selector = schema_at(schema, selector);
        set_selector_maxima(selector);
        complete_selector(selector);
    }
    let pattern = format!("^{}$", rules::LABEL_VALUE);
    schema_at(schema, rules::WEIGHT_VALUES).insert("pattern".into(), json!(pattern));
    limit_sizes(schema, MAXIMA);
    set_bounds(schema);
    let scatter = schema_at(schema, "spec.updateStrategy.scatterStrategy");
    // Keys of a list are unique without a rule, which would use up some of the budget for CEL.
    make_list_map(scatter, &["key", "value"]);
    make_list_map(schema_at(schema, "status.conditions"), &["type"]);
    schema_at(schema, "spec").insert("required".into(), json!(["selector"]));
    for (path, value) in defaults() {
        let field = schema_at(schema, &format!("spec.{path}"));
        field.insert("default".into(), value);
    }
    // A longer name is no value of a label, which a set's revisions have.
    bound_name(schema);
    add_rules(schema, rules::sidecar_set());
}

/// The two lists of containers.
const LISTS: [&str; 2] = ["spec.initContainers", "spec.containers"];

fn complete_containers(list: &mut SchemaObject) {
    make_list_map(list, &["name"]);
    let ours = OURS.map(|field| (field, schema_at(list, &format!("[].{field}")).clone()));
    let container = schema_at(list, "[]");
    loosen(container);
    for (field, schema) in ours {
        *schema_at(container, field) = schema;
    }
    // Kubernetes refuses a pod that has a path twice (`ValidateVolumeMounts`, `pkg/apis/core/validation/validation.go`).
    make_list_map(schema_at(container, "volumeMounts"), &["mountPath"]);
    make_list_map(schema_at(container, "volumeDevices"), &["devicePath"]);
    schema_at(container, "resourcesPolicy").insert(
        "required".into(),
        json!(["targetContainersMode", "resourcesExpr"]),
    );
    // The name of a container's port may be left empty, as that of a port that is referred to may not.
    let name = schema_at(container, "ports[].name");
    name.extend(port_name());
    name.insert("pattern".into(), json!(format!("^({PORT_NAME})?$")));
    limit_sizes(container, CONTAINER_MAXIMA);
}

/// The name of a port: words of letters and digits with single '-' between them; the first one with a letter is the one
/// after the group.
const PORT_NAME: &str = "([0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*";

fn port_name() -> SchemaObject {
    object(json!({"maxLength": limits::PORT_NAME, "pattern": format!("^{PORT_NAME}$")}))
}

/// The fields of a sidecar that no container of a pod has.
const OURS: [&str; 6] = [
    "podInjectPolicy",
    "upgradeStrategy",
    "shareVolumePolicy",
    "shareVolumeDevicePolicy",
    "transferEnv",
    "resourcesPolicy",
];

/// Lets an object of Kubernetes have fields that it will have in later versions. Amounts may be numbers, as in a pod
/// (`0.5`), and descriptions are those of `kubectl explain pod.spec`.
fn loosen(schema: &mut SchemaObject) {
    schema.remove("description");
    if schema.contains_key("properties") {
        schema.insert("x-kubernetes-preserve-unknown-fields".into(), json!(true));
    }
    for (keyword, inner) in schema.iter_mut() {
        match (keyword.as_str(), inner.as_object_mut()) {
            ("properties", Some(properties)) => {
                for (name, property) in properties {
                    loosen_value(name, property);
                }
            }
            ("items" | "additionalProperties", Some(_)) => loosen_value(keyword, inner),
            _ => {}
        }
    }
}

/// Keeps of the required fields those without which Kubernetes accepts no pod. It reads others, which the types declare
/// without `omitempty`, as empty.
fn require_what_pods_need(name: &str, schema: &mut SchemaObject) {
    const ABSENT: [&str; 7] = [
        "lun",
        "monitors",
        "seconds",
        "secretRef",
        "sources",
        "spec",
        "value",
    ];
    let required = schema.get_mut("required").and_then(Value::as_array_mut);
    if let Some(required) = required {
        // The name of a reference may be empty, that of an item may not.
        required.retain(|field| match field.as_str().unwrap_or_default() {
            "name" => name == "items",
            field => !ABSENT.contains(&field),
        });
    }
    for field in required_fields(schema) {
        let property = schema_at(schema, &field);
        if property.get("type").is_some_and(|kind| kind == "string") {
            property.insert("minLength".into(), json!(1));
        }
    }
    let is_empty = |required: &Value| required.as_array().is_some_and(Vec::is_empty);
    if schema.get("required").is_some_and(is_empty) {
        schema.remove("required");
    }
}

fn loosen_value(name: &str, schema: &mut Value) {
    let is_amount = schema["x-kubernetes-int-or-string"] == true && name != "port";
    if is_amount {
        *schema = json!({"x-kubernetes-preserve-unknown-fields": true});
    } else if let Some(object) = schema.as_object_mut() {
        require_what_pods_need(name, object);
        restrict(name, object);
        loosen(object);
        // The name of a port's field, with other words, which later versions of Kubernetes may add to.
        if name == "httpGet" {
            schema_at(object, "protocol").remove("enum");
        }
    }
}

fn required_fields(schema: &SchemaObject) -> Vec<String> {
    let required = schema.get("required").and_then(Value::as_array);
    let fields = required.into_iter().flatten().filter_map(Value::as_str);
    fields.map(str::to_owned).collect()
}

/// Restricts ports and words to those that a pod may have.
fn restrict(field: &str, schema: &mut SchemaObject) {
    if ["port", "containerPort"].contains(&field) {
        schema.insert("minimum".into(), json!(1));
        schema.insert("maximum".into(), json!(65535));
    }
    if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
        schema.extend(port_name());
    }
    let mut words = limits::POD_WORDS.iter();
    if let Some((_, words)) = words.find(|(name, _)| *name == field) {
        let words: Vec<_> = std::iter::once(&"").chain(*words).collect();
        schema.insert("enum".into(), json!(words));
    }
}

/// Numbers that the types can hold.
fn set_bounds(schema: &mut SchemaObject) {
    let weight = "spec.updateStrategy.priorityStrategy.weightPriority[].weight";
    bound_number(schema, weight, 0, 100);
    bound_number(
        schema,
        "spec.revisionHistoryLimit",
        i32::MIN.into(),
        i32::MAX.into(),
    );
}

/// The defaults that `OpenKruise`'s webhook writes into a set, whatever the set
/// (`SetDefaultsSidecarSetV1beta1`, `apis/apps/defaults`).
fn defaults() -> Vec<(String, Value)> {
    let of_list = |list: &str, policy: &str| {
        let fields = [
            ("podInjectPolicy", json!(policy)),
            ("upgradeStrategy", json!({})),
            ("upgradeStrategy.upgradeType", json!("ColdUpgrade")),
            ("shareVolumePolicy", json!({})),
            ("shareVolumePolicy.type", json!("disabled")),
            ("resourcesPolicy.targetContainersNameRegex", json!(".*")),
        ];
        fields.map(|(field, value)| (format!("{list}[].{field}"), value))
    };
    let of_set = [
        ("patchPodMetadata[].patchPolicy", json!("Retain")),
        ("injectionStrategy.revision.policy", json!("Always")),
        ("updateStrategy", json!({})),
        ("updateStrategy.type", json!("RollingUpdate")),
        ("updateStrategy.partition", json!(0)),
        ("updateStrategy.maxUnavailable", json!(1)),
        ("revisionHistoryLimit", json!(10)),
    ]
    .map(|(field, value)| (field.to_owned(), value));
    let of_containers = of_list("containers", "BeforeAppContainer")
        .into_iter()
        .chain(of_list("initContainers", "AfterAppContainer"));
    of_containers.chain(of_set).collect()
}

const CONTAINER_MAXIMA: &[(&str, &[(&str, usize)])] = &[
    (
        "",
        &[
            ("name", limits::LABEL),
            ("image", limits::IMAGE),
            ("volumeMounts", limits::MOUNTS),
            ("volumeMounts[].name", limits::LABEL),
            ("volumeDevices", limits::MOUNTS),
            ("volumeDevices[].name", limits::LABEL),
            ("upgradeStrategy.upgradeType", limits::LABEL),
            ("transferEnv", limits::TRANSFERS),
            (
                "transferEnv[].sourceContainerNameFrom.fieldRef.fieldPath",
                limits::FIELD_PATH,
            ),
        ],
    ),
    (
        "resourcesPolicy",
        &[
            ("targetContainersMode", limits::LABEL),
            ("targetContainersNameRegex", limits::TARGETS_REGEX),
            ("resourcesExpr.limits.cpu", limits::EXPRESSION),
            ("resourcesExpr.limits.memory", limits::EXPRESSION),
            ("resourcesExpr.requests.cpu", limits::EXPRESSION),
            ("resourcesExpr.requests.memory", limits::EXPRESSION),
        ],
    ),
];

const MAXIMA: &[(&str, &[(&str, usize)])] = &[
    (
        "spec",
        &[
            ("containers", limits::SIDECARS),
            ("initContainers", limits::SIDECARS),
            ("volumes", limits::VOLUMES),
            ("volumes[].name", limits::LABEL),
            ("patchPodMetadata", limits::PATCHES),
            ("patchPodMetadata[].annotations", limits::PATCH_KEYS),
            ("customVersion", limits::LABEL),
            ("namespace", limits::LABEL),
        ],
    ),
    (
        "spec.updateStrategy",
        &[
            ("scatterStrategy", limits::TERMS),
            ("scatterStrategy[].key", limits::QUALIFIED_NAME),
            ("priorityStrategy.orderPriority", limits::TERMS),
            (
                "priorityStrategy.orderPriority[].orderedKey",
                limits::QUALIFIED_NAME,
            ),
            ("priorityStrategy.weightPriority", limits::TERMS),
        ],
    ),
];

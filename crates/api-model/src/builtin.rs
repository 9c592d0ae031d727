//! The kinds that Kubernetes has itself, as far as they are needed: which lists are merged, what is filled in, what is refused.
//!
//! Sources: the markers of `k8s.io/api`, and the strategies in `pkg/registry` of Kubernetes 1.34.

use serde_json::{Map, Value, json};

use crate::resource::{Generation, Resource};
use crate::schema::{MergedList, ValueSchema};
use crate::status::StatusCause;

/// The fields of each list of containers.
const CONTAINER: &[(&str, &[&str], Option<&str>)] = &[
    ("", &["name"], Some("name")),
    ("[].env", &["name"], Some("name")),
    (
        "[].ports",
        &["containerPort", "protocol"],
        Some("containerPort"),
    ),
    ("[].volumeMounts", &["mountPath"], Some("mountPath")),
    ("[].volumeDevices", &["devicePath"], Some("devicePath")),
    ("[].resources.claims", &["name"], None),
];

const POD: &[MergedList] = &[
    ("spec.volumes", &["name"], Some("name")),
    ("spec.imagePullSecrets", &["name"], Some("name")),
    ("spec.hostAliases", &["ip"], Some("ip")),
    ("spec.schedulingGates", &["name"], Some("name")),
    ("spec.resourceClaims", &["name"], Some("name")),
    (
        "spec.topologySpreadConstraints",
        &["topologyKey", "whenUnsatisfiable"],
        Some("topologyKey"),
    ),
    ("status.conditions", &["type"], Some("type")),
    ("status.podIPs", &["ip"], Some("ip")),
];

const CONDITIONS: &[MergedList] = &[("status.conditions", &["type"], Some("type"))];
const WEBHOOKS: &[MergedList] = &[
    ("webhooks", &["name"], Some("name")),
    ("webhooks[].matchConditions", &["name"], Some("name")),
];

/// Maps of which an empty one is not written.
const MAPS: [&str; 8] = [
    "labels",
    "annotations",
    "data",
    "binaryData",
    "matchLabels",
    "limits",
    "requests",
    "nodeSelector",
];

/// All of them.
pub fn kubernetes() -> Vec<Resource> {
    let builtin = Resource::builtin;
    let webhooks = |kind: &str, plural: &str| Resource {
        namespaced: false,
        generation: Generation::OfField("webhooks"),
        unconditional_update: false,
        normalize: normalize_webhooks,
        ..builtin("admissionregistration.k8s.io", "v1", plural, kind).with_fields(
            WEBHOOKS,
            &["webhooks[].namespaceSelector", "webhooks[].objectSelector"],
        )
    };
    vec![
        namespaces(),
        nodes(),
        pods(),
        with_maps(
            builtin("", "v1", "configmaps", "ConfigMap"),
            &["data", "binaryData"],
        ),
        secrets(),
        // An event of the one group is the other's in other words, which are not translated here.
        builtin("", "v1", "events", "Event"),
        builtin("events.k8s.io", "v1", "events", "Event"),
        Resource {
            unconditional_update: false,
            create_on_update: true,
            skeleton: json!({"spec": {}}),
            ..builtin("coordination.k8s.io", "v1", "leases", "Lease")
        },
        Resource {
            raw_fields: &["data"],
            ..builtin("apps", "v1", "controllerrevisions", "ControllerRevision")
                .with_fields(&[], &["data"])
        },
        builtin("", "v1", "services", "Service"),
        builtin("", "v1", "podtemplates", "PodTemplate"),
        Resource {
            namespaced: false,
            ..builtin(
                "rbac.authorization.k8s.io",
                "v1",
                "clusterroles",
                "ClusterRole",
            )
        },
        builtin("rbac.authorization.k8s.io", "v1", "roles", "Role"),
        webhooks(
            "MutatingWebhookConfiguration",
            "mutatingwebhookconfigurations",
        ),
        webhooks(
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
        ),
        Resource {
            namespaced: false,
            has_status: true,
            generation: Generation::OfContent,
            unconditional_update: false,
            ..builtin(
                "apiextensions.k8s.io",
                "v1",
                "customresourcedefinitions",
                "CustomResourceDefinition",
            )
            .with_fields(CONDITIONS, &[])
        },
    ]
}

fn namespaces() -> Resource {
    Resource {
        namespaced: false,
        has_status: true,
        skeleton: json!({"spec": {}, "status": {}}),
        normalize: |namespace| {
            if let Some(name) = namespace["metadata"].get("name").cloned() {
                namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            }
        },
        complete: |namespace| {
            namespace["spec"] = json!({"finalizers": ["kubernetes"]});
            namespace["status"] = json!({"phase": "Active"});
        },
        ..Resource::builtin("", "v1", "namespaces", "Namespace").with_fields(CONDITIONS, &[])
    }
}

fn nodes() -> Resource {
    Resource {
        namespaced: false,
        has_status: true,
        skeleton: json!({"spec": {}, "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {}}}),
        ..Resource::builtin("", "v1", "nodes", "Node").with_fields(
            &[
                ("status.conditions", &["type"], Some("type")),
                ("status.addresses", &["type"], Some("type")),
                ("spec.podCIDRs", &[], Some("")),
            ],
            &[],
        )
    }
}

fn secrets() -> Resource {
    let secrets = Resource {
        normalize: |secret| {
            if secret.get("type").is_none() {
                secret["type"] = json!("Opaque");
            }
        },
        ..Resource::builtin("", "v1", "secrets", "Secret")
    };
    with_maps(secrets, &["data"])
}

/// Adds maps of the root.
fn with_maps(mut resource: Resource, maps: &[&str]) -> Resource {
    for map in maps {
        let schema = ValueSchema {
            additional: Some(Box::new(ValueSchema::open())),
            ..ValueSchema::open()
        };
        resource.schema.fields.insert((*map).to_owned(), schema);
    }
    resource
}

fn pods() -> Resource {
    let containers = ["containers", "initContainers", "ephemeralContainers"];
    let mut lists = POD.to_vec();
    for list in containers {
        let of_container = CONTAINER.iter().map(|(path, keys, merge)| {
            let path: &'static str = format!("spec.{list}{path}").leak();
            (path, *keys, *merge)
        });
        lists.extend(of_container);
    }
    Resource {
        has_status: true,
        generation: Generation::OfField("spec"),
        skeleton: json!({"spec": {"containers": null}, "status": {}}),
        normalize: normalize_pod,
        admit: admit_pod,
        complete: |pod| pod["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"}),
        validate: validate_pod,
        returns_deleted: true,
        ..Resource::builtin("", "v1", "pods", "Pod").with_fields(&lists, &["spec.nodeSelector"])
    }
}

/// The defaults of a pod (`pkg/apis/core/v1/defaults.go`).
fn normalize_pod(pod: &mut Value) {
    if let Some(Value::Object(spec)) = pod.get_mut("spec") {
        let defaults = json!({
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": 30, "securityContext": {}, "enableServiceLinks": true,
        });
        fill_in(spec, &defaults);
        for list in ["containers", "initContainers"] {
            let items = spec.get_mut(list).and_then(Value::as_array_mut);
            items.into_iter().flatten().for_each(normalize_container);
        }
    }
    let conditions = pod
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if let Value::Object(condition) = condition {
            // Times without `omitempty` that works: Go writes a zero one as null.
            fill_in(
                condition,
                &json!({"lastProbeTime": null, "lastTransitionTime": null}),
            );
        }
    }
}

fn normalize_container(container: &mut Value) {
    let Value::Object(container) = container else {
        return;
    };
    let image = container
        .get("image")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    let is_latest = !name.contains('@') && (!name.contains(':') || name.ends_with(":latest"));
    let policy = if is_latest { "Always" } else { "IfNotPresent" };
    let defaults = json!({
        "imagePullPolicy": policy, "resources": {}, "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    });
    fill_in(container, &defaults);
    let ports = container.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten() {
        if let Value::Object(port) = port {
            fill_in(port, &json!({"protocol": "TCP"}));
        }
    }
}

/// Sets what admission plugins set (`DefaultTolerationSeconds`, `Priority`).
fn admit_pod(pod: &mut Value) {
    let tolerations = ["not-ready", "unreachable"].map(|taint| {
        json!({
            "key": format!("node.kubernetes.io/{taint}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
        })
    });
    if let Some(Value::Object(spec)) = pod.get_mut("spec") {
        let defaults = json!({
            "tolerations": tolerations, "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
        });
        fill_in(spec, &defaults);
    }
}

fn normalize_webhooks(configuration: &mut Value) {
    let is_mutating = configuration["kind"] == "MutatingWebhookConfiguration";
    let webhooks = configuration
        .get_mut("webhooks")
        .and_then(Value::as_array_mut);
    for webhook in webhooks.into_iter().flatten() {
        let Value::Object(webhook) = webhook else {
            continue;
        };
        fill_in(
            webhook,
            &json!({
                "failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": 10, "namespaceSelector": {},
                "objectSelector": {},
            }),
        );
        if is_mutating {
            fill_in(webhook, &json!({"reinvocationPolicy": "Never"}));
        }
        let rules = webhook.get_mut("rules").and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten() {
            if let Value::Object(rule) = rule {
                fill_in(rule, &json!({"scope": "*"}));
            }
        }
        if let Some(Value::Object(service)) = webhook["clientConfig"].get_mut("service") {
            fill_in(service, &json!({"port": 443}));
        }
    }
}

fn fill_in(map: &mut Map<String, Value>, defaults: &Value) {
    for (key, value) in defaults.as_object().into_iter().flatten() {
        if !map.contains_key(key) {
            map.insert(key.clone(), value.clone());
        }
    }
}

/// Checks that only images of a pod's spec change, and a few fields that nobody here writes
/// (`ValidatePodUpdate`, `pkg/apis/core/validation/validation.go`).
fn validate_pod(new: &Value, old: Option<&Value>, subresource: Option<&str>) -> Vec<StatusCause> {
    const MAY: &str = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,\
        `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
        `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    if subresource.is_some() {
        return Vec::new();
    }
    let count = |pod: &Value| pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    let of_containers = |reason, message: &str| StatusCause {
        reason,
        field: "spec.containers".to_owned(),
        message: message.to_owned(),
    };
    let mut causes = Vec::new();
    if count(new) == 0 {
        causes.push(of_containers("FieldValueRequired", "Required value"));
    }
    let required = missing_images(new);
    let Some(old) = old else {
        causes.extend(required);
        return causes;
    };
    if count(new) != count(old) {
        let message = "Forbidden: pod updates may not add or remove containers";
        causes.push(of_containers("FieldValueForbidden", message));
        return causes;
    }
    // An update is asked for the image once as a pod and once as a change.
    causes.extend(required.clone().into_iter().chain(required));
    if without_images(&new["spec"]) != without_images(&old["spec"]) {
        causes.push(StatusCause {
            reason: "FieldValueForbidden",
            field: "spec".to_owned(),
            message: MAY.trim_start_matches("spec: ").to_owned(),
        });
    }
    causes
}

fn missing_images(pod: &Value) -> Vec<StatusCause> {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let missing = containers
        .enumerate()
        .filter(|(_, container)| container["image"].as_str().unwrap_or_default().is_empty());
    let causes = missing.map(|(place, _)| StatusCause {
        reason: "FieldValueRequired",
        field: format!("spec.containers[{place}].image"),
        message: "Required value".to_owned(),
    });
    causes.collect()
}

fn without_images(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for list in ["containers", "initContainers"] {
        let items = spec.get_mut(list).and_then(Value::as_array_mut);
        for item in items.into_iter().flatten() {
            item["image"] = Value::Null;
        }
    }
    if let Value::Object(spec) = &mut spec {
        spec.remove("activeDeadlineSeconds");
    }
    spec
}

/// Texts of which an empty one is not written.
const TEXTS: [&str; 2] = ["message", "reason"];

/// Drops what Go drops of a struct when it writes it: null, and texts, lists and maps that are
/// empty.
pub(crate) fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| match value {
                Value::Null => key == "lastProbeTime" || key == "lastTransitionTime",
                Value::String(text) => !text.is_empty() || !TEXTS.contains(&key.as_str()),
                Value::Array(items) => !items.is_empty(),
                Value::Object(below) => !below.is_empty() || !MAPS.contains(&key.as_str()),
                _ => true,
            });
            for value in map.values_mut() {
                drop_empty(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}

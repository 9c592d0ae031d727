//! What pods get from sets: the recorded pods, case by case, and what holds for any pod and any sets.

mod annotations;
mod left_out;
mod mounts_and_resources;
mod order;
mod properties;
mod recorded_pods;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::sidecarset::annotations::missing_variables;
use crate::sidecarset::metadata::Whitelist;
use crate::sidecarset::tests::recorded;
use crate::workload::object::{inner, items};
use crate::workload::revision::{revision_hash, revision_name};

fn parse(set: &Value) -> SidecarSet {
    let wire = serde_json::from_value(set.clone()).unwrap();
    SidecarSet::parse(&wire).unwrap_or_else(|errors| panic!("{set}: {errors:?}"))
}

/// A set that selects every pod of the tests.
fn set(name: &str, created: &str, spec: &Value) -> SidecarSet {
    let mut wire = json!({
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
    });
    for (field, value) in spec.as_object().unwrap() {
        wire["spec"][field] = value.clone();
    }
    parse(&wire)
}

fn object(value: &Value) -> JsonObject {
    value.as_object().unwrap().clone()
}

const NOW: &str = "2026-11-22T01:58:33.5Z";

/// The names under which OpenKruise sorts init containers.
const AS_RECORDED: RenderOptions = RenderOptions {
    containers: ContainerOrder::BySet,
    init_containers: ContainerOrder::ByName,
};

fn inject_all(
    pod: &JsonObject,
    sets: &[SidecarSet],
    options: RenderOptions,
    now: &str,
) -> Injected {
    let revisions: Vec<_> = sets
        .iter()
        .map(|set| revision_name(&set.name, &revision_hash(&set.template.revision_data(), 0)))
        .collect();
    let whitelist = Whitelist::default();
    let injections: Vec<_> = sets
        .iter()
        .zip(&revisions)
        .map(|(set, revision)| Injection {
            set,
            template: &set.template,
            hashes: &set.hashes,
            revision,
            newest: None,
            allowed_keys: whitelist.allowed_keys(|_| None, true),
            missing_pin: None,
        })
        .collect();
    inject_sets(pod, &injections, options, now.parse().unwrap())
}

/// A recorded pod as it came in: without what was injected.
fn before_injection(pod: &Value, volumes: &[&str], secrets: &[&str]) -> JsonObject {
    let mut pod = object(pod);
    pod.remove("status");
    let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.retain(|key, _| !is_ours(key));
    if annotations.is_empty() {
        pod["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("annotations");
    }
    let spec = pod["spec"].as_object_mut().unwrap();
    for (list, names) in [("volumes", volumes), ("imagePullSecrets", secrets)] {
        if let Some(list) = spec.get_mut(list).and_then(Value::as_array_mut) {
            list.retain(|one| names.contains(&one["name"].as_str().unwrap()));
        }
    }
    for list in ["containers", "initContainers"] {
        if let Some(list) = spec.get_mut(list).and_then(Value::as_array_mut) {
            list.retain(|one| !is_injected(one.as_object().unwrap()));
        }
    }
    spec.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
    pod
}

fn without_status(pod: &Value) -> Value {
    let mut pod = object(pod);
    pod.remove("status");
    pod.into()
}

fn pod() -> JsonObject {
    object(&json!({
        "metadata": {"name": "p", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "app:1", "newerField": {"x": 1}}], "newerList": [1]},
    }))
}

fn one(name: &str) -> Value {
    json!({"containers": [{"name": name, "image": "i:1"}]})
}

fn names(pod: &JsonObject) -> Vec<&str> {
    let spec = inner(pod, "spec").unwrap();
    items(spec, "containers")
        .filter_map(|one| text(one, "name"))
        .collect()
}

/// What is said of a set with this spec and a pod whose spec has these fields.
fn remarks(spec: &Value, own: &Value) -> Vec<String> {
    let mut pod = pod();
    for (field, value) in own.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    let set = set("s", "2026-01-01T00:00:00Z", spec);
    let injected = inject_all(&pod, &[set], RenderOptions::default(), NOW);
    let remarks = injected.remarks.into_iter();
    remarks.map(|(_, remark)| remark.to_string()).collect()
}

fn list_mut(pod: &mut JsonObject) -> &mut Vec<Value> {
    pod["spec"]["containers"].as_array_mut().unwrap()
}

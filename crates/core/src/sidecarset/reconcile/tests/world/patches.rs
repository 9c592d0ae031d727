//! Patches as an API server carries them out, of the fields that the index writes.

use serde_json::{Value, json};

/// RFC 7396.
pub(super) fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    let object = value.as_object_mut().unwrap();
    for (key, patch) in patch {
        if patch.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key.clone()).or_insert(Value::Null), patch);
        }
    }
}

pub(super) fn patch_pod(value: &mut Value, patch: &Value) {
    for (key, text) in patch["metadata"]["annotations"].as_object().unwrap() {
        value["metadata"]["annotations"][key] = text.clone();
    }
    for patch in patch["spec"]["containers"].as_array().into_iter().flatten() {
        let containers = value["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .iter_mut();
        for container in containers {
            if container["name"] == patch["name"] {
                container["image"] = patch["image"].clone();
            }
        }
    }
}

pub(super) fn patch_conditions(value: &mut Value, patch: &Value) {
    let patch = &patch["status"]["conditions"][0];
    let conditions = value["status"]["conditions"].as_array_mut().unwrap();
    let place = conditions
        .iter()
        .position(|one| one["type"] == patch["type"]);
    match (place, patch.get("$patch")) {
        (Some(place), Some(_)) => drop(conditions.remove(place)),
        (Some(place), None) => merge(&mut conditions[place], patch),
        (None, Some(_)) => {}
        (None, None) => conditions.push(patch.clone()),
    }
}

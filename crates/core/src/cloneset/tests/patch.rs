//! Patches as an API server carries them out.

use serde_json::{Value, json};

/// A JSON merge patch (RFC 7396), or a strategic one of a pod: containers are merged by name, conditions by type, finalizers as
/// a set.
pub(super) fn merge(object: &mut Value, patch: &Value, is_strategic: bool) {
    let Some(fields) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (field, value) in fields {
        let key = match &**field {
            "containers" => "name",
            "conditions" => "type",
            "ownerReferences" => "uid",
            "finalizers" => "",
            _ => "-",
        };
        if value.is_null() {
            object.as_object_mut().unwrap().remove(field);
        } else if !is_strategic || key == "-" {
            merge(&mut object[field], value, is_strategic);
        } else {
            merge_list(&mut object[field], value, key);
        }
    }
}

fn merge_list(list: &mut Value, patch: &Value, key: &str) {
    if !list.is_array() {
        *list = json!([]);
    }
    let list = list.as_array_mut().unwrap();
    for item in patch.as_array().unwrap() {
        let is_it = |one: &Value| {
            if key.is_empty() {
                one == item
            } else {
                one[key] == item[key]
            }
        };
        let place = list.iter().position(is_it);
        match place {
            Some(place) if item["$patch"] == "delete" => {
                list.remove(place);
            }
            Some(place) => merge(&mut list[place], item, true),
            None => {
                let mut item = item.clone();
                if let Some(fields) = item.as_object_mut() {
                    fields.retain(|_, value| !value.is_null());
                }
                list.push(item);
            }
        }
    }
}

//! The patches that are computed without owners: merge patch (RFC 7386), JSON patch (RFC 6902) and strategic merge patch.

use serde_json::{Map, Value};

use crate::status::Failure;

mod strategic;

pub(crate) use strategic::strategic_merge;

/// RFC 7386.
pub(crate) fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge_patch(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// RFC 6902, all operations.
pub(crate) fn json_patch(target: &mut Value, operations: &Value) -> Result<(), Failure> {
    let operations = operations.as_array().ok_or_else(|| {
        Failure::bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    })?;
    for operation in operations {
        let carried_out = apply_operation(target, operation);
        carried_out.ok_or_else(|| {
            let message = format!(
                "the server rejected our request due to an error in our request: {operation}"
            );
            Failure::new(422, "Invalid", message)
        })?;
    }
    Ok(())
}

fn apply_operation(target: &mut Value, operation: &Value) -> Option<()> {
    let text = |key: &str| operation.get(key).and_then(Value::as_str);
    let (op, path) = (text("op")?, text("path")?);
    let value = operation.get("value");
    match op {
        "add" => add(target, path, value?.clone()),
        "remove" => remove(target, path).map(drop),
        "replace" => {
            *target.pointer_mut(path)? = value?.clone();
            Some(())
        }
        "test" => (target.pointer(path) == value).then_some(()),
        "copy" => {
            let copied = target.pointer(text("from")?)?.clone();
            add(target, path, copied)
        }
        "move" => {
            let moved = remove(target, text("from")?)?;
            add(target, path, moved)
        }
        _ => None,
    }
}

fn split_pointer(path: &str) -> Option<(&str, String)> {
    let (parent, key) = path.rsplit_once('/')?;
    Some((parent, key.replace("~1", "/").replace("~0", "~")))
}

fn add(target: &mut Value, path: &str, value: Value) -> Option<()> {
    if path.is_empty() {
        *target = value;
        return Some(());
    }
    let (parent, key) = split_pointer(path)?;
    match target.pointer_mut(parent)? {
        Value::Object(map) => {
            map.insert(key, value);
        }
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            let place = key.parse().ok().filter(|place| *place <= items.len())?;
            items.insert(place, value);
        }
        _ => return None,
    }
    Some(())
}

fn remove(target: &mut Value, path: &str) -> Option<Value> {
    let (parent, key) = split_pointer(path)?;
    match target.pointer_mut(parent)? {
        Value::Object(map) => map.remove(&key),
        Value::Array(items) => {
            let place = key.parse().ok().filter(|place| *place < items.len())?;
            Some(items.remove(place))
        }
        _ => None,
    }
}

//! Fields of an object of JSON. A field of another type than expected reads as absent: what a set is wrong in is reported
//! where it is parsed, and what a pod is wrong in by the API server.

use serde_json::Value;

use super::JsonObject;

/// The text in a field; None if it is absent or empty, which Go does not tell apart.
pub fn text<'a>(object: &'a JsonObject, field: &str) -> Option<&'a str> {
    let text = object.get(field).and_then(Value::as_str);
    text.filter(|text| !text.is_empty())
}

/// The object in a field.
pub fn inner<'a>(object: &'a JsonObject, field: &str) -> Option<&'a JsonObject> {
    object.get(field).and_then(Value::as_object)
}

/// The objects of a list in a field.
pub fn items<'a>(
    object: &'a JsonObject,
    field: &str,
) -> impl Iterator<Item = &'a JsonObject> + use<'a> {
    let items = object.get(field).and_then(Value::as_array);
    items.into_iter().flatten().filter_map(Value::as_object)
}

/// The objects of a list in a field, to be changed. An absent list is made.
pub fn list_mut<'a>(object: &'a mut JsonObject, field: &str) -> &'a mut Vec<Value> {
    let list = object
        .entry(field)
        .or_insert_with(|| Value::Array(Vec::new()));
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    list.as_array_mut().expect("it is an array now")
}

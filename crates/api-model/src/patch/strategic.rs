//! Strategic merge patch (`k8s.io/apimachinery/pkg/util/strategicpatch/patch.go`): lists that have a merge key are merged item
//! by item, and `$patch`, `$retainKeys` and `$deleteFromPrimitiveList` direct it. `$setElementOrder` is left out of account: items
//! that both have stay in their order, and new ones come before those that the patch does not name.

use serde_json::{Map, Value};

use crate::schema::ValueSchema;
use crate::status::Failure;

const DIRECTIVE: &str = "$patch";
const RETAINED: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETED: &str = "$deleteFromPrimitiveList/";

/// Applies a patch to an object.
pub(crate) fn strategic_merge(
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    schema: &ValueSchema,
) -> Result<(), Failure> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("replace") => {
            *target = without_directives(patch);
            return Ok(());
        }
        Some("delete") => {
            target.clear();
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => {
            return Err(Failure::new(500, "", format!("unknown patch type {other}")));
        }
    }
    if let Some(Value::Array(retained)) = patch.get(RETAINED) {
        target.retain(|key, _| retained.iter().any(|kept| kept.as_str() == Some(key)));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETED) {
            if let (Some(Value::Array(items)), Value::Array(deleted)) =
                (target.get_mut(list), value)
            {
                items.retain(|item| !deleted.contains(item));
            }
        } else if key == RETAINED || key == DIRECTIVE || key.starts_with(ORDER) {
            // Carried out above, or left out of account.
        } else if value.is_null() {
            target.remove(key);
        } else {
            let merged = merge_field(target.remove(key), value, schema.field(key))?;
            target.insert(key.clone(), merged);
        }
    }
    Ok(())
}

fn merge_field(
    target: Option<Value>,
    patch: &Value,
    schema: &ValueSchema,
) -> Result<Value, Failure> {
    match (target, patch) {
        (Some(Value::Object(mut target)), Value::Object(patch)) => {
            strategic_merge(&mut target, patch, schema)?;
            Ok(Value::Object(target))
        }
        (None | Some(Value::Null), Value::Object(patch)) => {
            let mut target = Map::new();
            // Nothing is there to be replaced, and what the patch has instead is dropped with the directive (seen).
            if patch.get(DIRECTIVE).and_then(Value::as_str) == Some("replace") {
                return Ok(Value::Object(target));
            }
            strategic_merge(&mut target, patch, schema)?;
            Ok(Value::Object(target))
        }
        (target, Value::Array(items)) => {
            let target = match target {
                Some(Value::Array(target)) => target,
                _ => Vec::new(),
            };
            merge_list(&target, items, schema).map(Value::Array)
        }
        (_, patch) => Ok(patch.clone()),
    }
}

fn merge_list(
    target: &[Value],
    patch: &[Value],
    schema: &ValueSchema,
) -> Result<Vec<Value>, Failure> {
    match schema.merge_key {
        None => Ok(patch.to_vec()),
        Some("") => {
            let same = |one: &Value, other: &Value| one == other;
            let mut merged = target.to_owned();
            merged.extend(patch.iter().filter(|item| !target.contains(item)).cloned());
            Ok(in_order(merged, target, patch, same))
        }
        Some(key) => merge_items(target, patch, key, schema.item()),
    }
}

fn merge_items(
    target: &[Value],
    patch: &[Value],
    key: &str,
    schema: &ValueSchema,
) -> Result<Vec<Value>, Failure> {
    let directive = |item: &Value| {
        item.get(DIRECTIVE)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    if patch
        .iter()
        .any(|item| directive(item).as_deref() == Some("replace"))
    {
        let kept = patch.iter().filter(|item| directive(item).is_none());
        return Ok(kept.cloned().collect());
    }
    let mut merged = target.to_owned();
    for item in patch {
        let Some(name) = item.get(key) else {
            let message = format!("map: {item} does not contain declared merge key: {key}");
            return Err(Failure::new(500, "", message));
        };
        let place = merged.iter().position(|own| own.get(key) == Some(name));
        if directive(item).as_deref() == Some("delete") {
            if let Some(place) = place {
                merged.remove(place);
            }
            continue;
        }
        match place {
            Some(place) => {
                merged[place] = merge_field(Some(merged[place].take()), item, schema)?;
            }
            None => merged.push(merge_field(None, item, schema)?),
        }
    }
    let same = |one: &Value, other: &Value| one.get(key) == other.get(key);
    Ok(in_order(merged, target, patch, same))
}

/// `normalizeElementOrder` and `mergeSortedSlice`: what the patch names is in its order, and what it does not name goes before
/// an item of it only if it did so before.
fn in_order(
    merged: Vec<Value>,
    before: &[Value],
    patch: &[Value],
    same: impl Fn(&Value, &Value) -> bool,
) -> Vec<Value> {
    let place = |items: &[Value], item: &Value| items.iter().position(|own| same(own, item));
    let (mut named, others): (Vec<_>, Vec<_>) = merged
        .into_iter()
        .partition(|item| place(patch, item).is_some());
    named.sort_by_key(|item| place(patch, item));
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    let mut ordered = Vec::new();
    loop {
        let goes_first = match (others.peek(), named.peek()) {
            (Some(other), Some(next)) => {
                let places = place(before, other).zip(place(before, next));
                places.is_some_and(|(other, next)| other < next)
            }
            (other, _) => other.is_some(),
        };
        let next = if goes_first {
            others.next()
        } else {
            named.next()
        };
        match next {
            Some(item) => ordered.push(item),
            None => return ordered,
        }
    }
}

fn without_directives(patch: &Map<String, Value>) -> Map<String, Value> {
    let kept = patch.iter().filter(|(key, _)| *key != DIRECTIVE);
    kept.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

//! The changes of a set since one of its revisions.

use serde_json::Value;

use crate::sidecarset::container::ContainerKind;
use crate::sidecarset::set::SidecarSet;
use crate::workload::JsonObject;
use crate::workload::object::text;

/// The parts of a revision.
const PARTS: [&str; 5] = [
    "containers",
    "initContainers",
    "volumes",
    "imagePullSecrets",
    "patchPodMetadata",
];

/// The fields in which a revision, given by its data, differs from a set as it is now: `containers[log].env`, say.
pub fn changed_fields(data: &Value, set: &SidecarSet) -> Vec<String> {
    let present: Value = serde_json::from_str(&set.template.revision_data()).unwrap_or_default();
    let part = |data: &Value, part: &str| data["spec"][part].clone();
    let mut differing = Vec::new();
    for name in PARTS {
        let (before, after) = (part(data, name), part(&present, name));
        if before != after {
            differing.extend(of_part(name, &items(&before), &items(&after)));
        }
    }
    differing
}

/// The parts in which a revision differs from a set and that are in no hash: no upgrade in place changes them.
pub fn changed_outside_of_hash(data: &Value, set: &SidecarSet) -> Vec<&'static str> {
    let fields = changed_fields(data, set);
    let is_native = |field: &str| {
        let mut sidecars = set.template.init_containers.iter();
        let name = field.split(['[', ']']).nth(1);
        // Native sidecars are in the hash, though they stand among the init containers.
        sidecars.any(|own| Some(&*own.name) == name && own.kind != ContainerKind::Init)
    };
    let is_in = |part: &str| {
        let mut fields = fields.iter();
        fields.any(|field| field.split('[').next() == Some(part) && !is_native(field))
    };
    // The first one, the containers, is in the hash.
    let parts = PARTS.into_iter().skip(1);
    parts.filter(|part| is_in(part)).collect()
}

fn items(list: &Value) -> Vec<JsonObject> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(|item| item.as_object().cloned()).collect()
}

fn of_part(part: &str, before: &[JsonObject], after: &[JsonObject]) -> Vec<String> {
    let find = |items: &[JsonObject], name: &str| {
        let mut items = items.iter();
        items.find(|item| text(item, "name") == Some(name)).cloned()
    };
    let mut differing = Vec::new();
    for item in after {
        // Entries of `patchPodMetadata` have no name to be told apart by.
        let Some(name) = text(item, "name") else {
            return vec![part.to_owned()];
        };
        match find(before, name) {
            None => differing.push(format!("{part}[{name}]")),
            Some(before) => {
                let mut keys: Vec<_> = item
                    .keys()
                    .chain(before.keys())
                    .filter(|key| item.get(*key) != before.get(*key))
                    .collect();
                keys.sort();
                keys.dedup();
                differing.extend(keys.into_iter().map(|key| format!("{part}[{name}].{key}")));
            }
        }
    }
    let gone = before
        .iter()
        .filter_map(|item| text(item, "name"))
        .filter(|name| find(after, name).is_none());
    differing.extend(gone.map(|name| format!("{part}[{name}]")));
    if differing.is_empty() {
        // The same items in another order.
        differing.push(part.to_owned());
    }
    differing
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(spec: &Value) -> SidecarSet {
        let mut wire = json!({"metadata": {"name": "s"}, "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": "log", "image": "i:1"}],
        }});
        for (key, value) in spec.as_object().unwrap() {
            wire["spec"][key] = value.clone();
        }
        SidecarSet::parse(&serde_json::from_value(wire).unwrap()).unwrap()
    }

    // SDF-41, SDF-47
    #[test]
    fn fields_that_differ_are_named_by_container() {
        let before = set(&json!({}));
        let data: Value = serde_json::from_str(&before.template.revision_data()).unwrap();
        let differing = |spec: Value| changed_fields(&data, &set(&spec));
        assert_eq!(differing(json!({})), [] as [&str; 0]);
        let image = json!({"containers": [{"name": "log", "image": "i:2"}]});
        assert_eq!(differing(image), ["containers[log].image"]);
        let env = json!({"containers": [{"name": "log", "image": "i:1", "env": [{"name": "A"}]}]});
        assert_eq!(differing(env), ["containers[log].env"]);
        let other =
            json!({"containers": [{"name": "new", "image": "i:1"}], "volumes": [{"name": "v"}]});
        assert_eq!(
            differing(other),
            ["containers[new]", "containers[log]", "volumes[v]"]
        );
        let metadata = json!({"patchPodMetadata": [{"annotations": {"a": "b"}}]});
        assert_eq!(differing(metadata), ["patchPodMetadata"]);
        let outside = |spec: Value| changed_outside_of_hash(&data, &set(&spec));
        let init = |policy: Value| json!({"initContainers": [{"name": "i", "image": "i:1", "restartPolicy": policy}]});
        assert_eq!(outside(init(Value::Null)), ["initContainers"]);
        assert_eq!(outside(init(json!("Always"))), [] as [&str; 0]);
        let two = json!({"volumes": [{"name": "v"}], "imagePullSecrets": [{"name": "s"}]});
        assert_eq!(outside(two), ["volumes", "imagePullSecrets"]);
    }
}

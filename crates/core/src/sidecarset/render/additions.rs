//! The additions to a pod, and the patch that makes them.

use std::collections::BTreeMap;
use std::io;

use serde_json::{Value, json};

use crate::workload::JsonObject;
use crate::workload::core_types::CONTAINER;
use crate::workload::defaults::complete_container;
use crate::workload::go_json::GoValue;
use crate::workload::object::{inner, items, list_mut};

/// The additions to a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Additions {
    /// Additions to the containers.
    pub containers: ListAdditions,
    /// Additions to the init containers.
    pub init_containers: ListAdditions,
    /// Volumes.
    pub volumes: Vec<JsonObject>,
    /// Secrets for pulling images.
    pub secrets: Vec<JsonObject>,
    /// Annotations; None for those that are removed.
    pub annotations: BTreeMap<String, Option<String>>,
}

/// The additions to a list of containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListAdditions {
    /// Containers in front of all others.
    pub before: Vec<JsonObject>,
    /// Containers instead of those at these places.
    pub replaced: Vec<(usize, JsonObject)>,
    /// Containers behind all others.
    pub after: Vec<JsonObject>,
}

impl Additions {
    /// Whether the pod stays as it is.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The bytes of what is added to the spec, as JSON.
    pub(super) fn bytes(&self) -> usize {
        let added = [&self.init_containers, &self.containers].map(ListAdditions::bytes);
        let objects = self.volumes.iter().chain(&self.secrets);
        added.into_iter().sum::<usize>() + objects.map(json_bytes).sum::<usize>()
    }

    /// Whether no container, volume or secret is new to the pod, and the containers that it has are those that would replace
    /// them. The API server may have completed them since, and nobody else has: between two webhooks of one configuration it
    /// fills in defaults alone (`mutatingDispatcher`, `k8s.io/apiserver/pkg/admission/plugin/webhook/mutating/dispatcher.go`).
    pub fn has_nothing_new(&self, pod: &JsonObject) -> bool {
        let spec = inner(pod, "spec");
        let has_all = |field: &str, list: &ListAdditions| {
            let present: Vec<_> = spec
                .into_iter()
                .flat_map(|spec| items(spec, field))
                .collect();
            let mut replaced = list.replaced.iter();
            let is_same = replaced.all(|(place, container)| {
                let present = present.get(*place);
                let read = |container| GoValue::structure(container, &[CONTAINER]);
                let mut completed = container.clone();
                complete_container(&mut completed);
                present.is_some_and(|present| {
                    let present = read(present);
                    has_all_of(&present, &read(container))
                        && has_all_of(&read(&completed), &present)
                })
            });
            is_same && list.before.is_empty() && list.after.is_empty()
        };
        let mut lists = self.lists().into_iter();
        lists.all(|(field, list)| has_all(field, &list))
    }

    /// The pod with what is added.
    #[must_use]
    pub fn apply(&self, pod: &JsonObject) -> JsonObject {
        let mut pod = pod.clone();
        for (field, additions) in self.lists() {
            if additions != ListAdditions::default() {
                additions.apply(list_mut(object_mut(&mut pod, "spec"), field));
            }
        }
        if !self.annotations.is_empty() {
            let annotations = object_mut(object_mut(&mut pod, "metadata"), "annotations");
            for (key, value) in &self.annotations {
                match value {
                    Some(value) => annotations.insert(key.clone(), value.as_str().into()),
                    None => annotations.remove(key),
                };
            }
        }
        pod
    }

    /// The lists of a pod's spec with what is added to each.
    fn lists(&self) -> [(&'static str, ListAdditions); 4] {
        let behind = |after: &Vec<JsonObject>| ListAdditions {
            after: after.clone(),
            ..ListAdditions::default()
        };
        [
            ("initContainers", self.init_containers.clone()),
            ("containers", self.containers.clone()),
            ("volumes", behind(&self.volumes)),
            ("imagePullSecrets", behind(&self.secrets)),
        ]
    }

    /// The operations of a JSON patch (RFC 6902) that adds to `pod`. It names what is added and nothing else.
    pub fn json_patch(&self, pod: &JsonObject) -> Vec<Value> {
        let mut operations = Vec::new();
        let spec = inner(pod, "spec");
        for (field, additions) in self.lists() {
            let is_there = spec.is_some_and(|spec| spec.get(field).is_some_and(Value::is_array));
            if additions == ListAdditions::default() {
                continue;
            }
            // An item can be added only to a list that is there (RFC 6902, section 4.1).
            if !is_there {
                operations
                    .push(json!({"op": "add", "path": format!("/spec/{field}"), "value": []}));
            }
            additions.json_patch(field, &mut operations);
        }
        let metadata = inner(pod, "metadata");
        let annotations = metadata.and_then(|metadata| inner(metadata, "annotations"));
        if annotations.is_none() && !self.annotations.is_empty() {
            let path = "/metadata/annotations";
            operations.push(json!({"op": "add", "path": path, "value": {}}));
        }
        for (key, value) in &self.annotations {
            // RFC 6901.
            let key = key.replace('~', "~0").replace('/', "~1");
            let path = format!("/metadata/annotations/{key}");
            operations.push(match value {
                Some(value) => json!({"op": "add", "path": path, "value": value}),
                None => json!({"op": "remove", "path": path}),
            });
        }
        operations
    }
}

impl ListAdditions {
    /// The containers with those of a pod, in the order in which they will stand.
    pub(super) fn beside<'a>(&'a self, present: &[&'a JsonObject]) -> Vec<&'a JsonObject> {
        let present = present.iter().enumerate().map(|(place, own)| {
            let mut replaced = self.replaced.iter();
            let replaced = replaced.find(|(replaced, _)| *replaced == place);
            replaced.map_or(*own, |(_, container)| container)
        });
        let all = self.before.iter().chain(present).chain(&self.after);
        all.collect()
    }

    fn bytes(&self) -> usize {
        let replaced = self.replaced.iter().map(|(_, container)| container);
        let all = self.before.iter().chain(replaced).chain(&self.after);
        all.map(json_bytes).sum()
    }

    /// The bytes of the containers that a pod has and that are replaced.
    pub(super) fn replaced_bytes(&self, present: &[&JsonObject]) -> usize {
        let places = self.replaced.iter().map(|(place, _)| *place);
        let containers = places.filter_map(|place| present.get(place));
        containers.map(|container| json_bytes(container)).sum()
    }

    fn apply(self, list: &mut Vec<Value>) {
        // Places are those before anything is added in front.
        for (place, object) in self.replaced {
            if let Some(item) = list.get_mut(place) {
                *item = object.into();
            }
        }
        list.splice(0..0, self.before.into_iter().map(Value::Object));
        list.extend(self.after.into_iter().map(Value::Object));
    }

    fn json_patch(&self, field: &str, operations: &mut Vec<Value>) {
        // Places are those before anything is added in front.
        for (place, object) in &self.replaced {
            let path = format!("/spec/{field}/{place}");
            operations.push(json!({"op": "replace", "path": path, "value": object}));
        }
        // Additions in front go from the first on, so that each place is the final one.
        for (place, object) in self.before.iter().enumerate() {
            let path = format!("/spec/{field}/{place}");
            operations.push(json!({"op": "add", "path": path, "value": object}));
        }
        for object in &self.after {
            let path = format!("/spec/{field}/-");
            operations.push(json!({"op": "add", "path": path, "value": object}));
        }
    }
}

/// The bytes of an object as JSON, without the escapes of custom resources (`cluster::go_json`): the API server stores pods as
/// protobuf.
pub(super) fn json_bytes(object: &JsonObject) -> usize {
    struct Counter(usize);

    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, object)
        .expect("an object with keys of text is JSON, and counting does not fail");
    counter.0
}

/// The object in a field, made if it is absent.
fn object_mut<'a>(object: &'a mut JsonObject, field: &str) -> &'a mut JsonObject {
    let value = object
        .entry(field)
        .or_insert_with(|| JsonObject::new().into());
    if !value.is_object() {
        *value = JsonObject::new().into();
    }
    value.as_object_mut().expect("it is an object now")
}

/// Whether a value has all fields of another, and perhaps more.
fn has_all_of(present: &GoValue, wanted: &GoValue) -> bool {
    match (present, wanted) {
        (GoValue::Object(present), GoValue::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| {
                let mut fields = present.iter();
                fields.any(|(own, present)| own == key && has_all_of(present, wanted))
            })
        }
        (GoValue::List(present), GoValue::List(wanted)) => {
            let mut pairs = present.iter().zip(wanted);
            present.len() == wanted.len()
                && pairs.all(|(present, wanted)| has_all_of(present, wanted))
        }
        _ => present == wanted,
    }
}

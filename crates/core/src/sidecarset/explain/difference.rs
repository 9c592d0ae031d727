//! The fields in which a pod differs from what it would get from a set if it were created now.
//!
//! A field differs if what the set gives stands otherwise in the pod. What the pod has beside that may come from the API
//! server's defaults or from other webhooks; it counts only where the revision that the pod was injected by gave it and
//! the set does not any more, as `kubectl apply` tells it.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::sidecarset::annotations::is_ours;
use crate::sidecarset::container::SetContainer;
use crate::sidecarset::render::{
    Additions, Injected, Injection, ListAdditions, Remark, RenderOptions, inject_sets,
};
use crate::sidecarset::template::Template;
use crate::workload::JsonObject;
use crate::workload::core_types::CONTAINER;
use crate::workload::go_json::{FieldOrder, GoValue};
use crate::workload::object::{inner, items, text};

/// A field of a pod that differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldDifference {
    /// The field, its list entries by name: `containers[log].env[LEVEL]`.
    pub field: String,
    /// The pod's value, as JSON; None if it has nothing there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has: Option<String>,
    /// The value that it would get, as JSON; None if nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_get: Option<String>,
}

impl FieldDifference {
    /// Whether it is the image of a container, which can be replaced in the pod.
    pub fn is_image(&self) -> bool {
        self.field.ends_with("].image")
    }
}

/// Finds the differences; `former` is the injection of the revision that the pod was injected by, if that is known.
pub(super) fn find(
    pod: &JsonObject,
    injection: Injection<'_>,
    former: Option<Injection<'_>>,
    options: RenderOptions,
    now: Timestamp,
) -> Vec<FieldDifference> {
    let mut differences = Differences::default();
    let template = injection.template;
    if let Some(former) = &former {
        differences.of_resources_policies(template, former.template);
    }
    let wanted = inject_sets(pod, &[injection], options, now);
    let former = former.map(|former| inject_sets(pod, &[former], options, now));
    let spec = inner(pod, "spec");
    let computed = with_computed_resources(template);
    let former = former.as_ref().map(|former| lists(former, &computed));
    for (list, wanted) in lists(&wanted, &computed) {
        let present: Vec<_> = spec
            .into_iter()
            .flat_map(|spec| items(spec, list))
            .collect();
        let listed = former.iter().flatten().find(|(name, _)| *name == list);
        let former = listed.map(|(_, former)| former);
        differences.of_containers(list, &present, &wanted, former);
    }
    differences.of_volumes(&wanted);
    differences.of_annotations(pod, &wanted.additions);
    differences.found.into_iter().collect()
}

/// The containers of a set in a pod, with the places of those that are there.
type Rendered = Vec<(Option<usize>, JsonObject)>;

/// The containers of a set whose resources are computed. These follow from the pod as it was created; its containers may
/// have been resized since, and a difference from what they have now would be none that an edit of the set made.
fn with_computed_resources(template: &Template) -> BTreeSet<Arc<str>> {
    let computed = template.all().filter(|sidecar| sidecar.resources.is_some());
    computed.flat_map(SetContainer::names_in_pod).collect()
}

/// The containers and the init containers, without resources that are computed.
fn lists(injected: &Injected, computed: &BTreeSet<Arc<str>>) -> [(&'static str, Rendered); 2] {
    let additions = &injected.additions;
    [
        ("containers", rendered(&additions.containers, computed)),
        (
            "initContainers",
            rendered(&additions.init_containers, computed),
        ),
    ]
}

fn rendered(list: &ListAdditions, computed: &BTreeSet<Arc<str>>) -> Rendered {
    let replaced = list
        .replaced
        .iter()
        .map(|(place, object)| (Some(*place), object.clone()));
    let added = list
        .before
        .iter()
        .chain(&list.after)
        .map(|object| (None, object.clone()));
    let mut rendered: Rendered = replaced.chain(added).collect();
    for (_, container) in &mut rendered {
        if text(container, "name").is_some_and(|name| computed.contains(name)) {
            container.remove("resources");
        }
    }
    rendered
}

#[derive(Default)]
struct Differences {
    found: BTreeSet<FieldDifference>,
}

impl Differences {
    fn add(&mut self, field: String, has: Option<&Value>, would_get: Option<&Value>) {
        self.found.insert(FieldDifference {
            field,
            has: has.map(ToString::to_string),
            would_get: would_get.map(ToString::to_string),
        });
    }

    fn of_containers(
        &mut self,
        list: &str,
        present: &[&JsonObject],
        wanted: &Rendered,
        former: Option<&Rendered>,
    ) {
        let former_of = |name: Option<&str>| {
            let mut former = former.into_iter().flatten();
            former.find(|(_, object)| text(object, "name") == name)
        };
        for (place, object) in wanted {
            let name = text(object, "name").unwrap_or_default();
            let path = format!("{list}[{name}]");
            match place.and_then(|place| present.get(place)) {
                Some(present) => {
                    let former = former_of(Some(name)).map(|(_, former)| canonical(former));
                    let (present, wanted) = (canonical(present), canonical(object));
                    self.compare(&path, former.as_ref(), &wanted, &present);
                }
                None => self.add(path, None, Some(&object.clone().into())),
            }
        }
        for (place, object) in former.into_iter().flatten() {
            let name = text(object, "name");
            let mut wanted = wanted.iter();
            let is_wanted = wanted.any(|(_, wanted)| text(wanted, "name") == name);
            if let (Some(present), false) = (place.and_then(|place| present.get(place)), is_wanted)
            {
                let path = format!("{list}[{}]", name.unwrap_or_default());
                self.add(path, Some(&(*present).clone().into()), None);
            }
        }
    }

    /// Compares a value that is wanted with that of the pod.
    fn compare(&mut self, path: &str, former: Option<&Value>, wanted: &Value, present: &Value) {
        match (wanted, present) {
            (Value::Object(wanted), Value::Object(present)) => {
                let former = former.and_then(Value::as_object);
                self.compare_fields(path, former, wanted, present);
            }
            (Value::Array(wanted), Value::Array(present)) if is_named(wanted) => {
                let named = |list: &Vec<Value>| by_name(list);
                let former = former.and_then(Value::as_array).map(named);
                self.compare_entries(path, former.as_ref(), &by_name(wanted), &by_name(present));
            }
            // Go leaves out what is empty, so it is the same as what is absent.
            _ if wanted == present || is_empty(wanted) && is_empty(present) => {}
            _ => self.add(path.to_owned(), some(present), some(wanted)),
        }
    }

    fn compare_fields(
        &mut self,
        path: &str,
        former: Option<&Map<String, Value>>,
        wanted: &Map<String, Value>,
        present: &Map<String, Value>,
    ) {
        for (field, value) in wanted {
            let path = format!("{path}.{field}");
            let former = former.and_then(|former| former.get(field));
            let own = present.get(field).unwrap_or(&Value::Null);
            // An absent list is compared as an empty one, so that each entry is a difference of its own.
            if own.is_null() && value.is_array() {
                self.compare(&path, former, value, &Value::Array(Vec::new()));
            } else {
                self.compare(&path, former, value, own);
            }
        }
        for field in former.into_iter().flat_map(Map::keys) {
            let own = present.get(field).filter(|own| !is_empty(own));
            if let (Some(own), false) = (own, wanted.contains_key(field)) {
                self.add(format!("{path}.{field}"), Some(own), None);
            }
        }
    }

    /// The same of list entries, which are told apart by a name.
    fn compare_entries(
        &mut self,
        path: &str,
        former: Option<&Map<String, Value>>,
        wanted: &Map<String, Value>,
        present: &Map<String, Value>,
    ) {
        for (name, value) in wanted {
            let path = format!("{path}[{name}]");
            let former = former.and_then(|former| former.get(name));
            match present.get(name) {
                Some(own) => self.compare(&path, former, value, own),
                None => self.add(path, None, Some(value)),
            }
        }
        for name in former.into_iter().flat_map(Map::keys) {
            if let (Some(own), false) = (present.get(name), wanted.contains_key(name)) {
                self.add(format!("{path}[{name}]"), Some(own), None);
            }
        }
    }

    /// Adds the resources policies that differ from those of the revision that the pod was injected by.
    fn of_resources_policies(&mut self, wanted: &Template, former: &Template) {
        let lists = [
            ("containers", &wanted.containers),
            ("initContainers", &wanted.init_containers),
        ];
        for (list, sidecars) in lists {
            for sidecar in sidecars.iter().filter(|one| one.resources.is_some()) {
                let mut all = former.all();
                let former = all.find(|former| former.name == sidecar.name);
                // A sidecar that the revision lacks is a difference as a whole.
                if let Some(former) = former.filter(|one| one.resources != sidecar.resources) {
                    let (has, would_get) = (former.resources_policy(), sidecar.resources_policy());
                    self.add(
                        format!("{list}[{}].resourcesPolicy", sidecar.name),
                        has,
                        would_get,
                    );
                }
            }
        }
    }

    fn of_volumes(&mut self, wanted: &Injected) {
        let additions = &wanted.additions;
        for (list, objects) in [
            ("volumes", &additions.volumes),
            ("imagePullSecrets", &additions.secrets),
        ] {
            for object in objects {
                let name = text(object, "name").unwrap_or_default();
                self.add(
                    format!("{list}[{name}]"),
                    None,
                    Some(&object.clone().into()),
                );
            }
        }
        for (_, remark) in &wanted.remarks {
            if let Remark::OwnVolume(name) = remark {
                self.add(format!("volumes[{name}]"), None, None);
            }
        }
    }

    fn of_annotations(&mut self, pod: &JsonObject, additions: &Additions) {
        let metadata = inner(pod, "metadata");
        let annotations = metadata.and_then(|metadata| inner(metadata, "annotations"));
        let patched = additions.annotations.iter();
        // Ours record the injection itself, with its time: each time they would be others.
        for (key, value) in patched.filter(|(key, _)| !is_ours(key)) {
            let has = annotations.and_then(|annotations| annotations.get(key));
            let value = value.as_deref().map(Value::from);
            self.add(format!("annotations[{key}]"), has, value.as_ref());
        }
    }
}

/// A container as Go holds it: amounts in one form, and nothing that is empty.
fn canonical(container: &JsonObject) -> Value {
    let text = GoValue::structure(container, &[CONTAINER]).to_text(FieldOrder::Sorted);
    serde_json::from_str(&text).unwrap_or_default()
}

/// The fields by which entries of lists are told apart, as the API server merges them (`patchMergeKey`,
/// `k8s.io/api/core/v1/types.go`).
const NAMES: [&str; 4] = ["mountPath", "devicePath", "name", "containerPort"];

fn name_of(entry: &Value) -> Option<String> {
    // A mount has a name as well: that of its volume, which several mounts may share.
    let name = NAMES.iter().find_map(|field| entry.get(field))?;
    Some(
        name.as_str()
            .map_or_else(|| name.to_string(), str::to_owned),
    )
}

fn is_named(list: &[Value]) -> bool {
    list.iter().all(|entry| name_of(entry).is_some())
}

fn by_name(list: &[Value]) -> Map<String, Value> {
    let entries = list
        .iter()
        .filter_map(|entry| Some((name_of(entry)?, entry.clone())));
    entries.collect()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn some(value: &Value) -> Option<&Value> {
    Some(value).filter(|value| !is_empty(value))
}

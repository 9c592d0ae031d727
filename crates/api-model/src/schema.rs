//! The API server's knowledge of a kind's fields: how lists and maps are merged, what is filled in and what is dropped.
//!
//! A [`ValueSchema`] is read from the schema of a CRD, or built from a table for the kinds that Kubernetes has itself. The table
//! names only what differs from the rule: maps and structs are merged field by field, and lists are replaced as a whole.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The schema of a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueSchema {
    /// Fields that are declared.
    pub(crate) fields: BTreeMap<String, ValueSchema>,
    /// The schema of all other keys of a map.
    pub(crate) additional: Option<Box<ValueSchema>>,
    /// The schema of the items of a list.
    pub(crate) items: Option<Box<ValueSchema>>,
    /// The fields by which items of an associative list are told apart (`x-kubernetes-list-map-keys`).
    pub(crate) keys: Vec<String>,
    /// Whether a list is a set of scalars.
    pub(crate) is_set: bool,
    /// Whether a map or struct has one owner as a whole.
    pub(crate) is_atomic: bool,
    /// Whether fields that are not declared are kept.
    pub(crate) keeps_unknown: bool,
    /// The value that is filled in where the field is missing.
    pub(crate) default: Option<Value>,
    /// The field by which a strategic merge patch finds items (`patchMergeKey`). Empty for a list of scalars that is merged.
    pub(crate) merge_key: Option<&'static str>,
}

/// The schema of a value that no schema describes.
static UNKNOWN: ValueSchema = ValueSchema {
    fields: BTreeMap::new(),
    additional: None,
    items: None,
    keys: Vec::new(),
    is_set: false,
    is_atomic: false,
    keeps_unknown: true,
    default: None,
    merge_key: None,
};

/// A list that is merged: its path, the keys of server-side apply (none for a set of scalars), and the key of a strategic merge
/// patch.
pub(crate) type MergedList = (&'static str, &'static [&'static str], Option<&'static str>);

/// The lists of `metadata`.
const METADATA: &[MergedList] = &[
    ("metadata.ownerReferences", &["uid"], Some("uid")),
    ("metadata.finalizers", &[], Some("")),
];

impl ValueSchema {
    /// The schema of a kind that Kubernetes has itself: lists that are merged, and structs and maps that have one owner. A
    /// path names the items of a list with `[]`.
    pub(crate) fn builtin(lists: &[MergedList], atomic: &[&str]) -> Self {
        let mut root = Self::open();
        for (path, keys, merge_key) in METADATA.iter().chain(lists) {
            let list = root.at_path(path);
            list.keys = keys.iter().map(ToString::to_string).collect();
            list.is_set = keys.is_empty();
            list.merge_key = *merge_key;
            // `protocol` of a port is the only key that may be left out.
            if keys.contains(&"protocol") {
                let protocol = list.item_schema().at_path("protocol");
                protocol.default = Some("TCP".into());
            }
        }
        for path in atomic.iter().chain(&["metadata.ownerReferences[]"]) {
            root.at_path(path).is_atomic = true;
        }
        root.add_metadata();
        root
    }

    /// The schema of a custom resource, from `openAPIV3Schema` of a version of its CRD.
    pub fn from_openapi(openapi: &Value) -> Self {
        let mut root = Self::read_openapi(openapi);
        for field in ["apiVersion", "kind"] {
            root.fields.insert(field.to_owned(), Self::default());
        }
        let lists = Self::builtin(&[], &[]);
        root.fields.extend(lists.fields);
        root
    }

    /// A schema that keeps everything, of a custom resource without one.
    pub fn open() -> Self {
        UNKNOWN.clone()
    }

    fn read_openapi(openapi: &Value) -> Self {
        let is_true = |key: &str| openapi.get(key) == Some(&Value::Bool(true));
        let is = |key: &str, value: &str| openapi.get(key).and_then(Value::as_str) == Some(value);
        let properties = openapi.get("properties").and_then(Value::as_object);
        let fields = properties.into_iter().flatten();
        let keys = openapi
            .get("x-kubernetes-list-map-keys")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        Self {
            fields: fields
                .map(|(name, schema)| (name.clone(), Self::read_openapi(schema)))
                .collect(),
            additional: match openapi.get("additionalProperties") {
                Some(schema @ Value::Object(_)) => Some(Box::new(Self::read_openapi(schema))),
                Some(Value::Bool(true)) => Some(Box::new(Self::open())),
                _ => None,
            },
            items: openapi
                .get("items")
                .map(|items| Box::new(Self::read_openapi(items))),
            keys: keys.map(str::to_owned).collect(),
            is_set: is("x-kubernetes-list-type", "set"),
            is_atomic: is("x-kubernetes-map-type", "atomic"),
            keeps_unknown: is_true("x-kubernetes-preserve-unknown-fields"),
            default: openapi.get("default").cloned(),
            merge_key: None,
        }
    }

    fn add_metadata(&mut self) {
        for field in ["labels", "annotations"] {
            let map = self.at_path(&format!("metadata.{field}"));
            map.additional = Some(Box::new(Self::open()));
        }
    }

    /// The schema at a path, created where it is missing.
    fn at_path(&mut self, path: &str) -> &mut Self {
        let mut at = self;
        for step in path.split('.') {
            let (name, is_item) = step.strip_suffix("[]").map_or((step, false), |n| (n, true));
            at = at.fields.entry(name.to_owned()).or_insert_with(Self::open);
            if is_item {
                at = at.item_schema();
            }
        }
        at
    }

    fn item_schema(&mut self) -> &mut Self {
        self.items.get_or_insert_with(|| Box::new(Self::open()))
    }

    /// Whether this is a field of its own, and not a key of a map.
    pub(crate) fn declares(&self, name: &str) -> bool {
        // A built-in kind has a struct wherever its table names no map.
        self.fields.contains_key(name) || (self.keeps_unknown && self.additional.is_none())
    }

    /// The schema of a field.
    pub(crate) fn field(&self, name: &str) -> &Self {
        let declared = self.fields.get(name).or(self.additional.as_deref());
        declared.unwrap_or(&UNKNOWN)
    }

    /// The schema of a list's items.
    pub(crate) fn item(&self) -> &Self {
        self.items.as_deref().unwrap_or(&UNKNOWN)
    }

    /// Whether items of a list have owners of their own.
    pub(crate) fn is_associative(&self) -> bool {
        self.is_set || !self.keys.is_empty()
    }

    /// How a set of fields names an item of an associative list: `k:{"type":"Ready"}` or `v:"a"`. None if a key is missing.
    pub(crate) fn path_element(&self, item: &Value) -> Option<String> {
        if self.is_set {
            return Some(format!("v:{item}"));
        }
        let mut key = Map::new();
        for name in &self.keys {
            let default = || self.item().field(name).default.as_ref();
            let value = item.get(name).or_else(default)?;
            key.insert(name.clone(), value.clone());
        }
        Some(format!("k:{}", Value::Object(key)))
    }

    /// Drops what is not declared (`pkg/apiserver/schema/pruning` of k8s.io/apiextensions-apiserver).
    pub(crate) fn prune(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                if !self.keeps_unknown && self.additional.is_none() {
                    map.retain(|key, _| self.fields.contains_key(key));
                }
                for (key, value) in map {
                    self.field(key).prune(value);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.item().prune(item)),
            _ => {}
        }
    }

    /// The first field that is not declared, as `.spec.unknown`.
    pub(crate) fn find_undeclared(&self, value: &Value) -> Option<String> {
        match value {
            Value::Object(map) => map.iter().find_map(|(key, value)| {
                let is_known = self.keeps_unknown
                    || self.additional.is_some()
                    || self.fields.contains_key(key);
                if !is_known {
                    return Some(format!(".{key}"));
                }
                let below = self.field(key).find_undeclared(value)?;
                Some(format!(".{key}{below}"))
            }),
            Value::Array(items) => items.iter().find_map(|item| {
                let below = self.item().find_undeclared(item)?;
                let element = self.path_element(item).unwrap_or_default();
                let name = element.get(2..).unwrap_or_default();
                Some(format!("[{name}]{below}"))
            }),
            _ => None,
        }
    }

    /// Fills in what is missing and has a default.
    pub(crate) fn fill_in(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (name, schema) in &self.fields {
                    if let Some(default) = &schema.default
                        && map.get(name).is_none_or(Value::is_null)
                    {
                        map.insert(name.clone(), default.clone());
                    }
                }
                for (key, value) in map {
                    self.field(key).fill_in(value);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.item().fill_in(item)),
            _ => {}
        }
    }
}

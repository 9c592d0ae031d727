//! Sets of fields, and what of two objects differs (`sigs.k8s.io/structured-merge-diff`, `fieldpath` and `typed`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::schema::ValueSchema;

/// A set of fields, by the elements of their paths as `FieldsV1` writes them: `f:name`, `k:{"type":"Ready"}`, `v:"a"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    pub(crate) members: BTreeSet<String>,
    pub(crate) children: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.is_empty()
    }

    pub(crate) fn insert(&mut self, path: &[String]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    /// The set of paths that are written `metadata.labels`.
    pub(crate) fn of_paths<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let mut set = Self::default();
        for path in paths {
            let path: Vec<_> = path.split('.').map(|step| format!("f:{step}")).collect();
            set.insert(&path);
        }
        set
    }

    pub(crate) fn union(&mut self, other: &Self) {
        self.members.extend(other.members.iter().cloned());
        for (element, child) in &other.children {
            self.children
                .entry(element.clone())
                .or_default()
                .union(child);
        }
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let children = self.children.iter().filter_map(|(element, child)| {
            let both = child.intersection(other.children.get(element)?);
            (!both.is_empty()).then(|| (element.clone(), both))
        });
        Self {
            members: self.members.intersection(&other.members).cloned().collect(),
            children: children.collect(),
        }
    }

    pub(crate) fn difference(&self, other: &Self) -> Self {
        self.subtract(other, false)
    }

    /// Returns the set without the fields of the other one, and without what is below them.
    pub(crate) fn recursive_difference(&self, other: &Self) -> Self {
        self.subtract(other, true)
    }

    fn subtract(&self, other: &Self, is_recursive: bool) -> Self {
        let children = self.children.iter().filter_map(|(element, child)| {
            if is_recursive && other.members.contains(element) {
                return None;
            }
            let left = match other.children.get(element) {
                Some(other) => child.subtract(other, is_recursive),
                None => child.clone(),
            };
            (!left.is_empty()).then(|| (element.clone(), left))
        });
        Self {
            members: self.members.difference(&other.members).cloned().collect(),
            children: children.collect(),
        }
    }

    /// Returns the set with the structs above its fields (`EnsureNamedFieldsAreMembers`,
    /// `fieldpath/set.go`).
    pub(crate) fn with_structs(&self, schema: &ValueSchema) -> Self {
        let mut with = Self {
            members: self.members.clone(),
            children: BTreeMap::new(),
        };
        for (element, child) in &self.children {
            let below = match element.strip_prefix("f:") {
                Some(name) => {
                    if schema.declares(name) {
                        with.members.insert(element.clone());
                    }
                    schema.field(name)
                }
                None => schema.item(),
            };
            with.children
                .insert(element.clone(), child.with_structs(below));
        }
        with
    }

    pub(crate) fn from_fields(fields: &Value) -> Self {
        let mut set = Self::default();
        for (element, below) in fields.as_object().into_iter().flatten() {
            if element == "." {
                continue;
            }
            let child = Self::from_fields(below);
            if child.is_empty() || below.get(".").is_some() {
                set.members.insert(element.clone());
            }
            if !child.is_empty() {
                set.children.insert(element.clone(), child);
            }
        }
        set
    }

    pub(crate) fn to_fields(&self) -> Value {
        let mut fields = Map::new();
        for (element, child) in &self.children {
            fields.insert(element.clone(), child.to_fields());
        }
        for element in &self.members {
            match fields.get_mut(element) {
                Some(child) => child["."] = Value::Object(Map::new()),
                None => {
                    fields.insert(element.clone(), Value::Object(Map::new()));
                }
            }
        }
        Value::Object(fields)
    }

    /// The paths, as conflicts name them: `.metadata.labels.a`, `.status.conditions[type="Ready"].status`.
    pub(crate) fn to_paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        for element in &self.members {
            paths.push(format!("{prefix}{}", readable_element(element)));
        }
        for (element, child) in &self.children {
            child.collect_paths(&format!("{prefix}{}", readable_element(element)), paths);
        }
    }

    /// The fields that a configuration names (`typed/tofieldset.go`).
    pub(crate) fn of_value(value: &Value, schema: &ValueSchema) -> Self {
        let mut set = Self::default();
        set.add_value(value, schema);
        set
    }

    /// Adds what is below a value. Returns whether the value is a leaf.
    fn add_value(&mut self, value: &Value, schema: &ValueSchema) -> bool {
        match value {
            Value::Object(map) if !schema.is_atomic => {
                for (name, value) in map {
                    let mut child = Self::default();
                    let is_leaf = child.add_value(value, schema.field(name));
                    let is_empty = value.as_object().is_some_and(Map::is_empty);
                    let is_member = is_leaf || is_empty || !schema.declares(name);
                    self.add_child(format!("f:{name}"), child, is_member);
                }
                false
            }
            Value::Array(items) if schema.is_associative() => {
                for item in items {
                    let Some(element) = schema.path_element(item) else {
                        continue;
                    };
                    let mut child = Self::default();
                    child.add_value(item, schema.item());
                    self.add_child(element, child, true);
                }
                false
            }
            _ => true,
        }
    }

    fn add_child(&mut self, element: String, child: Self, is_member: bool) {
        if is_member {
            self.members.insert(element.clone());
        }
        if !child.is_empty() {
            self.children.insert(element, child);
        }
    }
}

fn readable_element(element: &str) -> String {
    let (kind, rest) = element.split_at(2);
    match kind {
        "f:" => format!(".{rest}"),
        "k:" => {
            let fields: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let keys: Vec<_> = fields
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            format!("[{}]", keys.join(","))
        }
        _ => format!("[={rest}]"),
    }
}

/// The difference of two objects (`typed/compare.go`).
#[derive(Debug, Default)]
pub(crate) struct FieldComparison {
    pub(crate) removed: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) added: FieldSet,
    path: Vec<String>,
}

impl FieldComparison {
    pub(crate) fn of_objects(old: &Value, new: &Value, schema: &ValueSchema) -> Self {
        let mut comparison = Self::default();
        comparison.compare(Some(old), Some(new), schema);
        comparison
    }

    /// Leaves out these fields and what is below them.
    pub(crate) fn exclude(&mut self, fields: &FieldSet) {
        for set in [&mut self.removed, &mut self.modified, &mut self.added] {
            *set = set.recursive_difference(fields);
        }
    }

    fn compare(&mut self, old: Option<&Value>, new: Option<&Value>, schema: &ValueSchema) {
        if old == new {
            return;
        }
        let is_in_parts = |value: Option<&Value>| match value {
            None | Some(Value::Null) => None,
            Some(Value::Object(map)) => Some(!schema.is_atomic && !map.is_empty()),
            Some(Value::Array(items)) => Some(schema.is_associative() && !items.is_empty()),
            Some(_) => Some(false),
        };
        let is_alike = match (old, new) {
            (Some(Value::Object(_)), Some(Value::Array(_)))
            | (Some(Value::Array(_)), Some(Value::Object(_))) => false,
            (Some(one), Some(other)) => {
                one.is_null()
                    || other.is_null()
                    || (one.is_object() == other.is_object() && one.is_array() == other.is_array())
            }
            _ => true,
        };
        let has_parts = is_in_parts(old).unwrap_or(false) || is_in_parts(new).unwrap_or(false);
        if !is_alike || !has_parts {
            return self.note_leaf(old, new);
        }
        if [old, new].into_iter().flatten().any(Value::is_object) {
            self.compare_maps(old, new, schema);
        } else {
            self.compare_lists(old, new, schema);
        }
        if old.is_none() {
            self.added.insert(&self.path);
        } else if new.is_none() {
            self.removed.insert(&self.path);
        }
    }

    fn note_leaf(&mut self, old: Option<&Value>, new: Option<&Value>) {
        match (old, new) {
            (None, _) => self.added.insert(&self.path),
            (_, None) => self.removed.insert(&self.path),
            _ => self.modified.insert(&self.path),
        }
    }

    fn compare_maps(&mut self, old: Option<&Value>, new: Option<&Value>, schema: &ValueSchema) {
        let empty = Map::new();
        let old = old.and_then(Value::as_object).unwrap_or(&empty);
        let new = new.and_then(Value::as_object).unwrap_or(&empty);
        let added = new.keys().filter(|key| !old.contains_key(*key));
        for name in old.keys().chain(added) {
            self.path.push(format!("f:{name}"));
            self.compare(old.get(name), new.get(name), schema.field(name));
            self.path.pop();
        }
    }

    fn compare_lists(&mut self, old: Option<&Value>, new: Option<&Value>, schema: &ValueSchema) {
        let (old, new) = (index_items(old, schema), index_items(new, schema));
        let elements: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        for element in elements {
            self.path.push(element.clone());
            let (old, new) = (old.get(element).copied(), new.get(element).copied());
            self.compare(old, new, schema.item());
            self.path.pop();
        }
    }
}

fn index_items<'a>(list: Option<&'a Value>, schema: &ValueSchema) -> BTreeMap<String, &'a Value> {
    let items = list.and_then(Value::as_array).into_iter().flatten();
    items
        .filter_map(|item| Some((schema.path_element(item)?, item)))
        .collect()
}

/// A live object with a configuration laid over it (`typed/merge.go`). None where nothing is left.
pub(crate) fn merge_values(
    live: Option<&Value>,
    config: Option<&Value>,
    schema: &ValueSchema,
) -> Option<Value> {
    let (Some(old), Some(new)) = (live, config) else {
        return config.or(live).cloned();
    };
    match (old, new) {
        (Value::Object(old), Value::Object(new)) if !schema.is_atomic => {
            let mut merged = old.clone();
            for (name, value) in new {
                match merge_values(old.get(name), Some(value), schema.field(name)) {
                    Some(value) => merged.insert(name.clone(), value),
                    None => merged.remove(name),
                };
            }
            Some(Value::Object(merged))
        }
        (Value::Array(old), Value::Array(new)) if schema.is_associative() => {
            Some(Value::Array(merge_lists(old, new, schema)))
        }
        _ => Some(new.clone()),
    }
}

/// Items of the live list stay where they are, those that both have are in the configuration's order, and new ones follow.
fn merge_lists(old: &[Value], new: &[Value], schema: &ValueSchema) -> Vec<Value> {
    let index = |items: &[Value]| -> Vec<(String, Value)> {
        let items = items.iter();
        items
            .filter_map(|item| Some((schema.path_element(item)?, item.clone())))
            .collect()
    };
    let (old, new) = (index(old), index(new));
    let find = |items: &[(String, Value)], element: &str| {
        items
            .iter()
            .find(|(own, _)| own == element)
            .map(|(_, item)| item.clone())
    };
    let merge = |element: &str| {
        let (live, config) = (find(&old, element), find(&new, element));
        merge_values(live.as_ref(), config.as_ref(), schema.item())
    };
    let mut shared = new
        .iter()
        .filter(|(element, _)| find(&old, element).is_some())
        .peekable();
    let (mut out, mut merged, mut l, mut r) = (Vec::new(), BTreeSet::new(), 0, 0);
    while l < old.len() || r < new.len() {
        if let (Some((left, _)), Some((right, _))) = (old.get(l), new.get(r)) {
            if left == right {
                merged.insert(left.clone());
                out.extend(merge(left));
                (l, r) = (l + 1, r + 1);
                shared.next();
                continue;
            }
            let is_other = shared.peek().is_some_and(|(next, _)| next != left);
            if find(&new, left).is_some() && is_other {
                l += 1;
                continue;
            }
        }
        if let Some((left, item)) = old.get(l) {
            if find(&new, left).is_none() {
                out.push(item.clone());
                l += 1;
                continue;
            } else if merged.contains(left) {
                l += 1;
            }
        }
        if let Some((right, _)) = new.get(r) {
            merged.insert(right.clone());
            out.extend(merge(right));
            r += 1;
            if shared.peek().is_some_and(|(next, _)| next == right) {
                shared.next();
            }
        }
    }
    out
}

/// A value without these fields (`typed/remove.go`). None where nothing is left.
pub(crate) fn remove_fields(
    value: &Value,
    fields: &FieldSet,
    schema: &ValueSchema,
) -> Option<Value> {
    match value {
        Value::Object(map) if !schema.is_atomic => {
            let mut left = Map::new();
            for (name, value) in map {
                let element = format!("f:{name}");
                if fields.members.contains(&element) {
                    continue;
                }
                let value = match fields.children.get(&element) {
                    Some(below) => {
                        remove_fields(value, below, schema.field(name)).unwrap_or(Value::Null)
                    }
                    None => value.clone(),
                };
                left.insert(name.clone(), value);
            }
            (!left.is_empty()).then_some(Value::Object(left))
        }
        Value::Array(items) if schema.is_associative() => {
            let left = items.iter().filter_map(|item| {
                let element = schema.path_element(item)?;
                if fields.members.contains(&element) {
                    return None;
                }
                match fields.children.get(&element) {
                    Some(below) => remove_fields(item, below, schema.item()),
                    None => Some(item.clone()),
                }
            });
            let left: Vec<_> = left.collect();
            (!left.is_empty()).then_some(Value::Array(left))
        }
        _ => Some(value.clone()),
    }
}

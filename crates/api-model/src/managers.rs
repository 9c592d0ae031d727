//! The owners of an object's fields: `metadata.managedFields`, for updates and for server-side apply
//! (`k8s.io/apimachinery/pkg/util/managedfields`, and `merge/update.go` in `sigs.k8s.io/structured-merge-diff`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::fields::{FieldComparison, FieldSet, merge_values, remove_fields};
use crate::schema::ValueSchema;
use crate::status::Failure;

/// The identity of a writer, and the way in which it writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Manager {
    pub(crate) name: String,
    pub(crate) is_apply: bool,
    pub(crate) api_version: String,
    pub(crate) subresource: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct OwnedFields {
    set: FieldSet,
    time: Option<Value>,
}

/// The owners of an object's fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Managers(BTreeMap<Manager, OwnedFields>);

/// How the fields of a kind are owned, for one request.
pub(crate) struct Ownership<'a> {
    pub(crate) schema: &'a ValueSchema,
    /// Fields that the endpoint does not write, so that nobody gets them by it.
    pub(crate) reset: &'a FieldSet,
    pub(crate) manager: Manager,
    /// The time, as `metadata.managedFields` has it.
    pub(crate) now: Value,
}

/// The fields that identify an object, and are nobody's (`stripmeta.go`).
const UNOWNED: [&str; 10] = [
    "apiVersion",
    "kind",
    "metadata",
    "metadata.name",
    "metadata.namespace",
    "metadata.creationTimestamp",
    "metadata.uid",
    "metadata.generation",
    "metadata.managedFields",
    "metadata.resourceVersion",
];

impl Managers {
    pub(crate) fn read(managed: Option<&Value>) -> Self {
        let entries = managed
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|entry| {
                let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
                let by = Manager {
                    name: text("manager").unwrap_or_default(),
                    is_apply: text("operation").as_deref() == Some("Apply"),
                    api_version: text("apiVersion").unwrap_or_default(),
                    subresource: text("subresource"),
                };
                let set = entry.get("fieldsV1").map(FieldSet::from_fields);
                let owned = OwnedFields {
                    set: set.unwrap_or_default(),
                    time: entry.get("time").cloned(),
                };
                (by, owned)
            });
        Self(entries.collect())
    }

    /// Writes them in the order of `sortEncodedManagedFields`. `None` if nothing is owned.
    pub(crate) fn to_value(&self) -> Option<Value> {
        let mut entries: Vec<_> = self.0.iter().collect();
        entries.sort_by_key(|(manager, owned)| {
            let time = owned
                .time
                .as_ref()
                .and_then(Value::as_str)
                .map(str::to_owned);
            (!manager.is_apply, time, (*manager).clone())
        });
        let entries: Vec<Value> = entries.into_iter().map(|(manager, owned)| {
            let operation = if manager.is_apply { "Apply" } else { "Update" };
            let mut entry = json!({
                "manager": manager.name, "operation": operation, "apiVersion": manager.api_version,
                "fieldsType": "FieldsV1", "fieldsV1": owned.set.to_fields(),
            });
            if let Some(time) = &owned.time {
                entry["time"] = time.clone();
            }
            if let Some(subresource) = &manager.subresource {
                entry["subresource"] = json!(subresource);
            }
            entry
        }).collect();
        (!entries.is_empty()).then_some(Value::Array(entries))
    }

    /// Whether the same fields are owned by the same, whenever they were written.
    pub(crate) fn equals_but_for_times(&self, other: &Self) -> bool {
        let sets = |managers: &Self| {
            let owned = managers.0.clone().into_iter();
            owned
                .map(|(manager, owned)| (manager, owned.set))
                .collect::<Vec<_>>()
        };
        sets(self) == sets(other)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes an update: whoever changes a field owns it.
    pub(crate) fn note_update(&mut self, live: &Value, new: &Value, by: &Ownership<'_>) {
        let mut comparison = FieldComparison::of_objects(live, new, by.schema);
        comparison.exclude(by.reset);
        self.take_changed(&comparison, None);
        let mut own = comparison.modified;
        own.union(&comparison.added);
        let own = own.difference(&FieldSet::of_paths(UNOWNED));
        if !own.is_empty() {
            let entry = self.0.entry(by.manager.clone());
            let owned = entry.or_insert_with(|| OwnedFields {
                set: FieldSet::default(),
                time: None,
            });
            owned.set.union(&own);
            owned.time = Some(by.now.clone());
        }
    }

    /// Takes what has changed from all but one manager.
    fn take_changed(&mut self, comparison: &FieldComparison, but: Option<&Manager>) {
        for (manager, owned) in &mut self.0 {
            if Some(manager) != but {
                owned.set = owned.set.difference(&comparison.modified);
                owned.set = owned.set.difference(&comparison.added);
                owned.set = owned.set.difference(&comparison.removed);
            }
        }
        self.0.retain(|_, owned| !owned.set.is_empty());
    }

    /// Applies a configuration to a live object. Returns the object as it is then.
    pub(crate) fn apply(
        &mut self,
        live: &Value,
        config: &Value,
        force: bool,
        by: &Ownership<'_>,
    ) -> Result<Value, Failure> {
        let merged =
            merge_values(Some(live), Some(config), by.schema).unwrap_or_else(|| live.clone());
        // An applier is the same whatever version it applies.
        let others = std::mem::take(&mut self.0).into_iter();
        let (last, kept): (Vec<_>, Vec<_>) = others.partition(|(manager, _)| {
            manager.is_apply
                && manager.name == by.manager.name
                && manager.subresource == by.manager.subresource
        });
        let last = last.into_iter().next().map(|(_, owned)| owned);
        self.0 = kept.into_iter().collect();
        let set = FieldSet::of_value(config, by.schema).recursive_difference(by.reset);
        let time = last.as_ref().and_then(|last| last.time.clone());
        self.0.insert(by.manager.clone(), OwnedFields { set, time });
        let new = match &last {
            Some(last) if !last.set.is_empty() => self.prune(&merged, &last.set, by.schema),
            _ => merged,
        };
        let mut comparison = FieldComparison::of_objects(live, &new, by.schema);
        comparison.exclude(by.reset);
        if !force {
            self.check_conflicts(&comparison, by)?;
        }
        self.take_changed(&comparison, Some(&by.manager));
        if let Some(own) = self.0.get_mut(&by.manager) {
            own.set = own.set.difference(&FieldSet::of_paths(UNOWNED));
        }
        self.0.retain(|_, owned| !owned.set.is_empty());
        // A manager that owns more without a change has the time of before, if there is one
        // (`managedfieldsupdater.go`).
        if new != *live
            && let Some(own) = self.0.get_mut(&by.manager)
        {
            own.time = Some(by.now.clone());
        }
        Ok(new)
    }

    fn check_conflicts(&self, with: &FieldComparison, by: &Ownership<'_>) -> Result<(), Failure> {
        let mut wanted = with.modified.clone();
        wanted.union(&with.added);
        let mut conflicts = Vec::new();
        for (manager, owned) in self.0.iter().filter(|(manager, _)| **manager != by.manager) {
            let fields = owned.set.intersection(&wanted).to_paths();
            if !fields.is_empty() {
                conflicts.push((manager.describe(owned), fields));
            }
        }
        if conflicts.is_empty() {
            return Ok(());
        }
        Err(describe_conflicts(&conflicts))
    }

    /// Removes what the last apply had, this one has not and nobody else owns (`prune`).
    fn prune(&self, merged: &Value, last: &FieldSet, schema: &ValueSchema) -> Value {
        let set_of = |value: &Value| FieldSet::of_value(value, schema).with_structs(schema);
        let last = last.with_structs(schema);
        let pruned = remove_fields(merged, &last, schema).unwrap_or_default();
        let mut kept = set_of(&pruned);
        for owned in self.0.values() {
            kept.union(&owned.set.with_structs(schema));
        }
        let all = set_of(merged);
        let pruned = remove_fields(merged, &all.difference(&kept), schema).unwrap_or_default();
        // Fields that were in the last apply go, and no others.
        let gone = all.difference(&set_of(&pruned)).intersection(&last);
        remove_fields(merged, &gone, schema).unwrap_or_default()
    }
}

impl Manager {
    fn describe(&self, owned: &OwnedFields) -> String {
        let mut text = format!("{:?}", self.name);
        if let Some(subresource) = &self.subresource {
            text = format!("{text} with subresource {subresource:?}");
        }
        if !self.is_apply {
            text = format!("{text} using {}", self.api_version);
            if let Some(time) = owned.time.as_ref().and_then(Value::as_str) {
                text = format!("{text} at {time}");
            }
        }
        text
    }
}

/// `NewConflictError` in `managedfields/internal/conflict.go`.
fn describe_conflicts(conflicts: &[(String, Vec<String>)]) -> Failure {
    let count: usize = conflicts.iter().map(|(_, fields)| fields.len()).sum();
    let texts: Vec<_> = conflicts
        .iter()
        .map(|(manager, fields)| match &fields[..] {
            [field] => format!("conflict with {manager}: {field}"),
            fields => format!("conflicts with {manager}:\n- {}", fields.join("\n- ")),
        })
        .collect();
    let plural = if count == 1 { "" } else { "s" };
    let message = format!(
        "Apply failed with {count} conflict{plural}: {}",
        texts.join("\n")
    );
    let causes = conflicts.iter().flat_map(|(manager, fields)| {
        let message = format!("conflict with {manager}");
        fields.iter().map(move |field| {
            json!({"reason": "FieldManagerConflict", "message": message, "field": field})
        })
    });
    let causes: Vec<_> = causes.collect();
    Failure::new(409, "Conflict", message).with(json!({"causes": causes}))
}

//! The kinds that the model serves.

use serde_json::{Value, json};

use crate::fields::FieldSet;
use crate::schema::{MergedList, ValueSchema};
use crate::status::StatusCause;

/// Judges an object that is about to be stored, by its former state if it is an update. The third argument is the
/// subresource.
pub type Validate = fn(&Value, Option<&Value>, Option<&str>) -> Vec<StatusCause>;

/// A kind that is served.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a field of a CRD or of Kubernetes' strategies"
)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The plural that paths have.
    pub plural: String,
    /// The kind that objects have.
    pub kind: String,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Whether it has the subresource `status`.
    pub has_status: bool,
    /// Whether a CRD defines it.
    pub is_custom: bool,
    /// The changes that `metadata.generation` counts.
    pub generation: Generation,
    /// Whether a PUT without a resourceVersion is let through (`AllowUnconditionalUpdate` of the kind's strategy).
    pub unconditional_update: bool,
    /// Whether a PUT creates what does not exist (`AllowCreateOnUpdate`).
    pub create_on_update: bool,
    /// The known fields.
    pub schema: ValueSchema,
    /// Fields that are stored as they are sent, also what is null in them (`RawExtension`).
    pub raw_fields: &'static [&'static str],
    /// Fills in and cleans what is decoded, beyond what the schema says.
    pub normalize: fn(&mut Value),
    /// Sets what admission plugins set in an object that is created or updated, and is nobody's
    /// field.
    pub admit: fn(&mut Value),
    /// Sets what is set when an object is created, and is nobody's field.
    pub complete: fn(&mut Value),
    /// Refuses objects.
    pub validate: Validate,
    /// An object of the kind without content, as Go encodes it.
    pub skeleton: Value,
    /// Whether a deletion answers with the object rather than with a `Status` (`ReturnDeletedObject`).
    pub returns_deleted: bool,
}

/// The changes that `metadata.generation` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The kind has no generation.
    Absent,
    /// Changes of this field count.
    OfField(&'static str),
    /// All but those of `metadata`; nor those of `status` where it is a subresource.
    OfContent,
}

impl Resource {
    /// A kind that Kubernetes has itself, of which nothing special is known.
    pub fn builtin(group: &str, version: &str, plural: &str, kind: &str) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            kind: kind.to_owned(),
            namespaced: true,
            has_status: false,
            is_custom: false,
            generation: Generation::Absent,
            unconditional_update: true,
            create_on_update: false,
            schema: ValueSchema::builtin(&[], &[]),
            raw_fields: &[],
            normalize: |_| {},
            admit: |_| {},
            complete: |_| {},
            validate: |_, _, _| Vec::new(),
            skeleton: json!({}),
            returns_deleted: false,
        }
    }

    /// The kind that a version of a CRD defines. None if the CRD has no such version.
    pub fn from_crd_version(crd: &Value, version: &str) -> Option<Self> {
        let spec = &crd["spec"];
        let versions = spec["versions"].as_array()?;
        let found = versions.iter().find(|one| one["name"] == version)?;
        let (group, names) = (spec["group"].as_str()?, &spec["names"]);
        let (plural, kind) = (names["plural"].as_str()?, names["kind"].as_str()?);
        let openapi = found.pointer("/schema/openAPIV3Schema");
        Some(Self {
            namespaced: spec["scope"] == "Namespaced",
            has_status: found.pointer("/subresources/status").is_some(),
            is_custom: true,
            generation: Generation::OfContent,
            unconditional_update: false,
            schema: openapi.map_or_else(ValueSchema::open, ValueSchema::from_openapi),
            ..Self::builtin(group, version, plural, kind)
        })
    }

    /// The kind that the storage version of a CRD defines. None if it is no CRD.
    pub fn from_crd(crd: &Value) -> Option<Self> {
        let versions = crd.pointer("/spec/versions")?.as_array()?;
        let stored = versions.iter().find(|one| one["storage"] == true)?;
        Self::from_crd_version(crd, stored["name"].as_str()?)
    }

    /// Adds lists that are merged, and fields that have one owner.
    pub(crate) fn with_fields(mut self, lists: &[MergedList], atomic: &[&str]) -> Self {
        self.schema = ValueSchema::builtin(lists, atomic);
        self
    }

    /// `podprobemarkers.apps.kruise.io`
    pub fn full_name(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// `apps.kruise.io/v1alpha1`
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Fields that an endpoint does not write (`GetResetFields` of the kinds' strategies).
    pub(crate) fn reset_fields(&self, subresource: Option<&str>) -> FieldSet {
        match subresource {
            None if self.has_status => FieldSet::of_paths(["status"]),
            Some("status") if self.is_custom => FieldSet::of_paths(["spec"]),
            Some("status") if self.plural == "pods" => FieldSet::of_paths([
                "spec",
                "metadata.deletionTimestamp",
                "metadata.ownerReferences",
            ]),
            Some("status") => FieldSet::of_paths(["spec"]),
            _ => FieldSet::default(),
        }
    }

    /// Takes what the endpoint does not write from the stored object (`PrepareForUpdate` of the
    /// kinds' strategies).
    pub(crate) fn keep_unwritten(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        match subresource {
            None if self.has_status => copy_field(new, old, "status"),
            Some(_) if self.is_custom => {
                let mut kept = old.clone();
                copy_field(&mut kept, new, "status");
                let (to, from) = (&mut kept["metadata"], &new["metadata"]);
                copy_field(to, from, "managedFields");
                *new = kept;
            }
            Some(_) => {
                copy_field(new, old, "spec");
                let (to, from) = (&mut new["metadata"], &old["metadata"]);
                copy_field(to, from, "ownerReferences");
                copy_field(to, from, "deletionTimestamp");
                if self.plural == "pods" && new["status"].get("qosClass").is_none() {
                    copy_field(&mut new["status"], &old["status"], "qosClass");
                }
            }
            None => {}
        }
    }

    /// Whether `metadata.generation` counts the change.
    pub(crate) fn counts(&self, old: &Value, new: &Value) -> bool {
        match self.generation {
            Generation::Absent => false,
            Generation::OfField(field) => old.get(field) != new.get(field),
            Generation::OfContent => {
                let content = |value: &Value| {
                    let all = value.as_object().into_iter().flatten().filter(|(key, _)| {
                        *key != "metadata" && !(self.has_status && *key == "status")
                    });
                    all.map(|(key, value)| (key.clone(), value.clone()))
                        .collect::<Vec<_>>()
                };
                content(old) != content(new)
            }
        }
    }
}

/// Makes a field what it is in another object, missing if it is missing there.
pub(crate) fn copy_field(to: &mut Value, from: &Value, field: &str) {
    match (from.get(field), to) {
        (Some(value), to @ (Value::Object(_) | Value::Null)) => to[field] = value.clone(),
        (None, Value::Object(to)) => {
            to.remove(field);
        }
        _ => {}
    }
}

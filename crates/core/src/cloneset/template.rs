//! The data of a revision.
//!
//! The data is a text that `OpenKruise` writes byte for byte alike, since the hash in a revision's name follows from it: the
//! stored template as Go writes it, with all keys sorted.

use std::sync::Arc;

use serde_json::{Value, json};

use super::pod::{REVISION_LABEL, hash_in};
use crate::workload::JsonObject;
use crate::workload::core_types::POD_TEMPLATE;
use crate::workload::go_json::{FieldOrder, Form, GoValue};
use crate::workload::object;

/// The data of a revision, as text.
pub(super) type RevisionText = Arc<str>;

/// A template, as the data of a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RevisionData(pub(super) RevisionText);

impl Default for RevisionData {
    fn default() -> Self {
        Self::of(&JsonObject::new())
    }
}

impl RevisionData {
    /// The data of a template.
    pub(super) fn of(template: &JsonObject) -> Self {
        let mut written = GoValue::structure(template, &[POD_TEMPLATE]);
        if let GoValue::Object(fields) = &mut written {
            let replace = GoValue::Scalar(json!("replace"));
            fields.push(("$patch".to_owned(), replace));
        }
        let of = |name: &str, inner: GoValue| GoValue::Object(vec![(name.to_owned(), inner)]);
        let mut data = of("spec", of("template", written));
        as_floats(&mut data);
        Self(data.to_text(FieldOrder::Sorted).into())
    }

    /// The data of a stored revision.
    pub(super) fn read(data: &Value) -> Self {
        Self(
            GoValue::read(data, Form::Plain)
                .to_text(FieldOrder::Sorted)
                .into(),
        )
    }

    /// The template; empty if there is none.
    pub(super) fn template(&self) -> JsonObject {
        let data: Value = serde_json::from_str(&self.0).unwrap_or_default();
        let mut template = data
            .pointer("/spec/template")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        template.remove("$patch");
        template
    }
}

/// Makes numbers what they are once Go has read them into floats, as it does before it writes the data.
fn as_floats(value: &mut GoValue) {
    const EXACT: u64 = 1 << 53;
    match value {
        GoValue::Scalar(Value::Number(number)) => {
            let whole = number.as_i64().filter(|whole| whole.unsigned_abs() > EXACT);
            if let Some(whole) = whole {
                #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
                let rounded = whole as f64 as i64;
                *number = rounded.into();
            }
        }
        GoValue::Scalar(_) => {}
        GoValue::List(items) => items.iter_mut().for_each(as_floats),
        GoValue::Object(fields) => fields.iter_mut().for_each(|(_, value)| as_floats(value)),
    }
}

/// The parts of a template that are read.
pub(super) struct TemplateParts<'a> {
    pub(super) metadata: Option<&'a JsonObject>,
    pub(super) labels: Option<&'a JsonObject>,
    pub(super) spec: Option<&'a JsonObject>,
}

pub(super) fn read_template(template: &JsonObject) -> TemplateParts<'_> {
    let metadata = object::inner(template, "metadata");
    TemplateParts {
        metadata,
        labels: metadata.and_then(|metadata| object::inner(metadata, "labels")),
        spec: object::inner(template, "spec"),
    }
}

/// The labels by which a pod is known to be of a revision. A long name has no room in a label, and its hash says the same.
pub(super) fn revision_labels(revision: &str) -> [(&'static str, String); 2] {
    let hash = hash_in(revision).to_owned();
    let is_short = revision.len() <= leadsman_api::limits::LABEL;
    let whole = if is_short {
        revision.to_owned()
    } else {
        hash.clone()
    };
    [(REVISION_LABEL, whole), ("pod-template-hash", hash)]
}

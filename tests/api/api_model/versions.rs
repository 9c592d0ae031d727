//! What differs by right: names of the moment, and versions, of which only the order is compared.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::Value;

/// The versions of both sides that were seen so far, as they belong together.
#[derive(Debug, Default)]
pub(super) struct Versions {
    real_of_model: BTreeMap<u64, u64>,
}

impl Versions {
    /// Blanks what differs by right, and checks that both sides order versions alike.
    pub(super) fn compare_and_blank(&mut self, model: &mut Value, real: &mut Value) -> Result<()> {
        let (mut of_model, mut of_real) = (Vec::new(), Vec::new());
        blank(model, &mut of_model);
        blank(real, &mut of_real);
        // Where the objects differ, that is told first.
        if model != real {
            return Ok(());
        }
        for (model, real) in of_model.into_iter().zip(of_real) {
            self.note(model, real)?;
        }
        Ok(())
    }

    fn note(&mut self, model: u64, real: u64) -> Result<()> {
        let known = *self.real_of_model.entry(model).or_insert(real);
        ensure!(
            known == real,
            "the model's version {model} is {known} and {real}"
        );
        let before = self.real_of_model.range(..model).next_back();
        let after = self.real_of_model.range(model + 1..).next();
        ensure!(
            before.is_none_or(|(_, before)| *before < real)
                && after.is_none_or(|(_, after)| real < *after),
            "the model's version {model} is {real}, between {before:?} and {after:?}"
        );
        Ok(())
    }
}

fn blank(value: &mut Value, versions: &mut Vec<u64>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match key.as_str() {
                    "resourceVersion" => {
                        versions.extend(value.as_str().and_then(|text| text.parse::<u64>().ok()));
                        *value = "".into();
                    }
                    // In the tables, times are of 2027.
                    "uid" if value != "u" => *value = "".into(),
                    "creationTimestamp" | "deletionTimestamp" | "time" => *value = "".into(),
                    "managedFields" => {
                        blank(value, versions);
                        sort(value);
                    }
                    _ => blank(value, versions),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| blank(item, versions)),
        _ => {}
    }
}

/// Entries are in the order of their times, which differ.
fn sort(entries: &mut Value) {
    if let Value::Array(entries) = entries {
        entries.sort_by_key(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            (text("manager"), text("operation"), text("subresource"))
        });
    }
}

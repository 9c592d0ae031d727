//! A selector for people: its requirements one by one, and what an object has instead.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::selector::{Operator, Selector};
use super::text::nearest;

/// One requirement of a selector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SelectorTerm {
    /// The requirement, as `kubectl -l` takes it.
    pub term: String,
    /// Whether the object's labels fulfil it.
    pub holds: bool,
    /// The label that the object has instead, or a note that it has none; empty if the requirement holds.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub found: String,
}

impl Selector {
    /// Lists the requirements, each with whether these labels fulfil it.
    pub fn terms<'a, I: Iterator<Item = (&'a str, &'a str)>>(
        &self,
        labels: impl Fn() -> I,
    ) -> Vec<SelectorTerm> {
        let terms = self.requirements().map(|(key, operator)| {
            let label = labels().find(|(own, _)| **own == **key);
            let value = label.map(|(_, value)| value);
            let holds = operator.matches(value);
            let found = match value {
                _ if holds => String::new(),
                Some(value) => format!("{key}={value}"),
                None => match nearest(key, labels().map(|(key, _)| key)) {
                    Some(near) => format!("no label {key}, but {near}"),
                    None => format!("no label {key}"),
                },
            };
            SelectorTerm {
                term: term(key, operator),
                holds,
                found,
            }
        });
        terms.collect()
    }
}

/// Writes the selector as `kubectl -l` takes it.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = self
            .requirements()
            .map(|(key, operator)| term(key, operator));
        f.write_str(&terms.collect::<Vec<_>>().join(","))
    }
}

fn term(key: &str, operator: &Operator) -> String {
    let list = |values: &[Arc<str>]| values.join(", ");
    match operator {
        Operator::In(values) if values.len() == 1 => format!("{key}={}", values[0]),
        Operator::In(values) => format!("{key} in ({})", list(values)),
        Operator::NotIn(values) if values.len() == 1 => format!("{key}!={}", values[0]),
        Operator::NotIn(values) => format!("{key} notin ({})", list(values)),
        Operator::Exists => key.to_owned(),
        Operator::DoesNotExist => format!("!{key}"),
    }
}

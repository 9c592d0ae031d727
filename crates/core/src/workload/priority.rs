//! The pods of a workload that come first, by their labels: by a sum of weights, or by a number at the end of a label.

use std::cmp::Reverse;
use std::sync::Arc;

use leadsman_api::limits;
use leadsman_api::sidecar_set::PriorityStrategy;

use crate::cluster::{FieldErrors, Selector, names};

/// The pods that come first.
#[derive(Clone, Debug, PartialEq)]
pub enum Priority {
    /// No pod comes first.
    None,
    /// Pods with the higher sum of weights.
    Weights(Vec<(Selector, i64)>),
    /// Pods with the higher number in the first of these labels that they have; before them those
    /// that have none.
    Order(Vec<Arc<str>>),
}

/// The place of a pod: a lower one comes first.
pub type PriorityKey = (i64, Reverse<i64>);

impl Priority {
    /// Reads a strategy.
    pub fn read(wire: Option<&PriorityStrategy>, report: &mut FieldErrors<'_>) -> Self {
        let Some(wire) = wire else {
            return Self::None;
        };
        let (weights, order) = (&wire.weight_priority, &wire.order_priority);
        if !weights.is_empty() && !order.is_empty() {
            report.add("has weightPriority and orderPriority, of which only one is possible");
        }
        let mut at = report.field("weightPriority");
        at.at_most(weights.len(), limits::TERMS, "terms");
        let weights: Vec<_> = weights
            .iter()
            .enumerate()
            .map(|(index, term)| {
                let mut at = at.index(index);
                if !(0..=100).contains(&term.weight) {
                    at.field("weight")
                        .add(format!("{} is not from 0 to 100", term.weight));
                }
                let mut at = at.field("matchSelector");
                let selector = Selector::read(&term.match_selector, &mut at);
                if selector.is_empty() {
                    at.add("must not be empty");
                }
                (selector, i64::from(term.weight))
            })
            .collect();
        let mut at = report.field("orderPriority");
        at.at_most(order.len(), limits::TERMS, "terms");
        let order: Vec<_> = order
            .iter()
            .enumerate()
            .map(|(index, term)| {
                let mut at = at.index(index);
                at.field("orderedKey")
                    .check(names::qualified_name(&term.ordered_key));
                Arc::from(term.ordered_key.as_str())
            })
            .collect();
        match (weights.is_empty(), order.is_empty()) {
            (false, _) => Self::Weights(weights),
            (true, false) => Self::Order(order),
            (true, true) => Self::None,
        }
    }

    /// The place of a pod with these labels.
    pub fn key<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> PriorityKey {
        match self {
            Self::None => (0, Reverse(0)),
            Self::Weights(terms) => {
                let matching = terms
                    .iter()
                    .filter(|(selector, _)| selector.matches(&label));
                (0, Reverse(matching.map(|(_, weight)| weight).sum()))
            }
            Self::Order(keys) => {
                let mut values = (0..).zip(keys.iter().map(|key| label(key)));
                values
                    .find_map(|(level, value)| Some((level, Reverse(last_number(value?)))))
                    // Pods without one come before all others, as in `getPodOrderPriority`
                    // (`pkg/util/updatesort/priority_sort.go` of `OpenKruise`).
                    .unwrap_or((-1, Reverse(0)))
            }
        }
    }
}

/// The number at the end of a text, 0 if there is none.
fn last_number(text: &str) -> i64 {
    let prefix = text.trim_end_matches(|c: char| c.is_ascii_digit());
    // A number that 64 bits do not hold is none there either (`getIntFromStringSuffix`, in the same
    // file).
    text[prefix.len()..].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::Invalid;

    fn read(wire: Value) -> (Priority, Vec<String>) {
        let wire = serde_json::from_value(wire).unwrap();
        let mut errors = Vec::new();
        let priority = Priority::read(Some(&wire), &mut FieldErrors::new(&mut errors, "p"));
        (priority, errors.iter().map(Invalid::to_string).collect())
    }

    /// Values of one label, sorted by a strategy.
    fn sorted(wire: Value, mut pods: Vec<&str>) -> Vec<&str> {
        let (priority, _) = read(wire);
        pods.sort_by_key(|pod| {
            priority.key(|key| {
                let mut pairs = pod.split(',').filter_map(|pair| pair.split_once('='));
                pairs.find(|(own, _)| *own == key).map(|(_, value)| value)
            })
        });
        pods
    }

    // SCS-48
    #[test]
    fn a_higher_sum_of_weights_comes_first() {
        let strategy = json!({"weightPriority": [
            {"weight": 20, "matchSelector": {"matchLabels": {"a": "x"}}},
            {"weight": 30, "matchSelector": {"matchLabels": {"b": "x"}}},
        ]});
        assert_eq!(
            sorted(strategy, vec!["a=x", "c=x", "b=x", "a=x,b=x"]),
            ["a=x,b=x", "b=x", "a=x", "c=x"]
        );
    }

    // SCS-48
    #[test]
    fn a_higher_number_comes_first_and_before_it_pods_without_a_label() {
        let strategy = json!({"orderPriority": [{"orderedKey": "a"}, {"orderedKey": "b"}]});
        let pods = vec![
            "b=9",
            "a=sts-2",
            "c=1",
            "a=sts-10",
            "a=none",
            "a=99999999999999999999",
        ];
        assert_eq!(
            sorted(strategy, pods),
            [
                "c=1",
                "a=sts-10",
                "a=sts-2",
                "a=none",
                "a=99999999999999999999",
                "b=9"
            ]
        );
    }

    // SCS-72
    #[test]
    fn weights_and_keys_are_checked() {
        let (_, errors) = read(json!({
            "weightPriority": [{"weight": 101, "matchSelector": {}}],
            "orderPriority": [{"orderedKey": ""}],
        }));
        let paths: Vec<_> = errors
            .iter()
            .map(|error| error.split(':').next().unwrap())
            .collect();
        assert_eq!(
            paths,
            [
                "p",
                "p.weightPriority[0].weight",
                "p.weightPriority[0].matchSelector",
                "p.orderPriority[0].orderedKey"
            ]
        );
    }
}

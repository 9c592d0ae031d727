//! Label selectors, parsed. Kubernetes' rules but one: an empty selector matches nothing.
//!
//! Which markers are looked at for a pod is not decided here; the index narrows them down by [`Selector::pairs`] first.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use leadsman_api::limits;

use super::invalid::{FieldErrors, Invalid};
use super::names;

/// A label query; its requirements all hold where it matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Requirement {
    key: Arc<str>,
    operator: Operator,
}

/// A requirement on a label. Values are sorted and unique, whatever their order in the object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The label has one of these values.
    In(Vec<Arc<str>>),
    /// The label has none of these values, or is absent.
    NotIn(Vec<Arc<str>>),
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl Operator {
    /// Whether no value of a label, nor its absence, fulfils both.
    fn excludes(&self, other: &Self) -> bool {
        let some_fulfils = |values: &[Arc<str>], other: &Self| {
            values.iter().any(|value| other.matches(Some(value)))
        };
        match (self, other) {
            (Self::In(values), other) | (other, Self::In(values)) => !some_fulfils(values, other),
            (Self::Exists, other) | (other, Self::Exists) => *other == Self::DoesNotExist,
            // The absent label fulfils both.
            (Self::NotIn(_) | Self::DoesNotExist, Self::NotIn(_) | Self::DoesNotExist) => false,
        }
    }

    /// Whether a label with this value fulfils it; None is an absent label. That one is in no set, as in Kubernetes:
    /// `NotIn` and `DoesNotExist` match it.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let is_in = |values: &[Arc<str>]| {
            value.is_some_and(|value| values.binary_search_by(|one| (**one).cmp(value)).is_ok())
        };
        match self {
            Self::In(values) => is_in(values),
            Self::NotIn(values) => !is_in(values),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
        }
    }
}

impl Selector {
    /// Parses a selector; errors have their path below the selector itself.
    pub fn parse(selector: &LabelSelector) -> Result<Self, Vec<Invalid>> {
        let mut errors = Vec::new();
        let parsed = Self::read(selector, &mut FieldErrors::new(&mut errors, String::new()));
        if errors.is_empty() {
            Ok(parsed)
        } else {
            Err(errors)
        }
    }

    /// Reads what can be read and reports the rest.
    pub fn read(selector: &LabelSelector, report: &mut FieldErrors<'_>) -> Self {
        let mut requirements = Vec::new();
        if let Some(labels) = &selector.match_labels {
            let mut at = report.field("matchLabels");
            at.at_most(labels.len(), limits::SELECTOR_EXPRESSIONS, "pairs");
            for (key, value) in labels {
                at.check(names::qualified_name(key));
                at.key(key).check(names::label_value(value));
                requirements.push(Requirement {
                    key: key.as_str().into(),
                    operator: Operator::In(vec![value.as_str().into()]),
                });
            }
        }
        if let Some(expressions) = &selector.match_expressions {
            let mut at = report.field("matchExpressions");
            at.at_most(
                expressions.len(),
                limits::SELECTOR_EXPRESSIONS,
                "expressions",
            );
            for (index, expression) in expressions.iter().enumerate() {
                requirements.extend(Requirement::read(expression, &mut at.index(index)));
            }
        }
        Self { requirements }
    }

    /// Whether an object with these labels is selected; `label` gives the value of a key.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        // Kubernetes takes an empty selector to select everything (`LabelSelectorAsSelector`,
        // `k8s.io/apimachinery/pkg/apis/meta/v1/helpers.go`). Here it is a slip, and must not mark or inject every pod.
        !self.is_empty()
            && self
                .requirements
                .iter()
                .all(|requirement| requirement.operator.matches(label(&requirement.key)))
    }

    /// Whether no object can be selected by both: some label would have to be two things at once.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.requirements.iter().any(|own| {
            let others = other.requirements.iter();
            let mut same_key = others.filter(|other| other.key == own.key);
            same_key.any(|other| own.operator.excludes(&other.operator))
        })
    }

    /// Whether it has no requirement at all, and so matches nothing.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements that can serve as a key of an index: every selected object has this label with one of these
    /// values.
    pub fn pairs(&self) -> impl Iterator<Item = (&Arc<str>, &[Arc<str>])> {
        self.requirements
            .iter()
            .filter_map(|requirement| match &requirement.operator {
                Operator::In(values) => Some((&requirement.key, values.as_slice())),
                Operator::NotIn(_) | Operator::Exists | Operator::DoesNotExist => None,
            })
    }

    /// All requirements: the key of a label, and what is required of it.
    pub fn requirements(&self) -> impl Iterator<Item = (&Arc<str>, &Operator)> {
        let requirements = self.requirements.iter();
        requirements.map(|requirement| (&requirement.key, &requirement.operator))
    }

    /// The same query as Kubernetes writes it.
    pub fn to_wire(&self) -> LabelSelector {
        let expressions = self.requirements.iter().map(|requirement| {
            let (operator, values) = match &requirement.operator {
                Operator::In(values) => ("In", Some(values)),
                Operator::NotIn(values) => ("NotIn", Some(values)),
                Operator::Exists => ("Exists", None),
                Operator::DoesNotExist => ("DoesNotExist", None),
            };
            LabelSelectorRequirement {
                key: requirement.key.to_string(),
                operator: operator.to_owned(),
                values: values.map(|values| values.iter().map(ToString::to_string).collect()),
            }
        });
        LabelSelector {
            match_expressions: Some(expressions.collect()),
            // A pair of `matchLabels` was read as an `In` of one value, and is written as one.
            match_labels: None,
        }
    }

    /// The keys it reads, with repetitions.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.requirements.iter().map(|requirement| &requirement.key)
    }
}

impl Requirement {
    fn read(expression: &LabelSelectorRequirement, report: &mut FieldErrors<'_>) -> Option<Self> {
        report
            .field("key")
            .check(names::qualified_name(&expression.key));
        let values = expression.values.as_deref().unwrap_or_default();
        report
            .field("values")
            .at_most(values.len(), limits::SELECTOR_VALUES, "values");
        for (index, value) in values.iter().enumerate() {
            report
                .field("values")
                .index(index)
                .check(names::label_value(value));
        }
        let sorted: BTreeSet<_> = values.iter().map(String::as_str).collect();
        let shared = || sorted.iter().map(|value| (*value).into()).collect();
        let operator = match expression.operator.as_str() {
            "In" => Operator::In(shared()),
            "NotIn" => Operator::NotIn(shared()),
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            other => {
                report.field("operator").add(format!(
                    "{other:?} is not one of In, NotIn, Exists, DoesNotExist"
                ));
                return None;
            }
        };
        let wants_values = matches!(operator, Operator::In(_) | Operator::NotIn(_));
        if wants_values == values.is_empty() {
            report.field("values").add(if wants_values {
                "In and NotIn need at least one value"
            } else {
                "Exists and DoesNotExist take no values"
            });
        }
        Some(Self {
            key: expression.key.as_str().into(),
            operator,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    fn selector(wire: Value) -> Selector {
        Selector::parse(&serde_json::from_value(wire).unwrap()).unwrap()
    }

    fn matches(selector: &Selector, labels: &[(&str, &str)]) -> bool {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        selector.matches(|key| labels.get(key).copied())
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
        json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
    }

    // PPM-1
    #[test]
    fn an_empty_selector_matches_nothing() {
        for empty in [
            json!({}),
            json!({"matchLabels": {}, "matchExpressions": []}),
        ] {
            let empty = selector(empty);
            assert!(empty.is_empty());
            assert!(!matches(&empty, &[]));
            assert!(!matches(&empty, &[("a", "b")]));
        }
    }

    // PPM-1
    #[test]
    fn each_operator_as_in_kubernetes() {
        // Against: no label at all, another label, the label with a value that is named, with one that is not.
        let pods: [&[(&str, &str)]; 4] = [&[], &[("b", "x")], &[("a", "x")], &[("a", "z")]];
        let table = [
            (
                json!({"matchLabels": {"a": "x"}}),
                [false, false, true, false],
            ),
            (
                expression("a", "In", &["x", "y"]),
                [false, false, true, false],
            ),
            (
                expression("a", "NotIn", &["x", "y"]),
                [true, true, false, true],
            ),
            (expression("a", "Exists", &[]), [false, false, true, true]),
            (
                expression("a", "DoesNotExist", &[]),
                [true, true, false, false],
            ),
        ];
        for (wire, expected) in table {
            let found = pods.map(|labels| matches(&selector(wire.clone()), labels));
            assert_eq!(found, expected, "{wire}");
        }
    }

    // PPM-1
    #[test]
    fn all_requirements_hold() {
        let both = selector(json!({
            "matchLabels": {"a": "1", "b": "2"},
            "matchExpressions": [{"key": "c", "operator": "DoesNotExist"}],
        }));
        assert!(matches(&both, &[("a", "1"), ("b", "2"), ("d", "")]));
        assert!(!matches(&both, &[("a", "1")]));
        assert!(!matches(&both, &[("a", "1"), ("b", "2"), ("c", "")]));
    }

    #[test]
    fn an_empty_value_is_a_value() {
        let empty = selector(json!({"matchLabels": {"a": ""}}));
        assert!(matches(&empty, &[("a", "")]));
        assert!(!matches(&empty, &[]));
    }

    #[test]
    fn what_is_in_a_set_of_values_can_be_looked_up() {
        let both = selector(json!({
            "matchLabels": {"b": "2"},
            "matchExpressions": [
                {"key": "a", "operator": "In", "values": ["1", "2"]},
                {"key": "c", "operator": "NotIn", "values": ["1"]},
                {"key": "d", "operator": "Exists"},
            ],
        }));
        let pairs: Vec<_> = both
            .pairs()
            .map(|(key, values)| (&**key, values.len()))
            .collect();
        assert_eq!(pairs, [("b", 1), ("a", 2)]);
        let keys: Vec<_> = both.keys().map(|key| &**key).collect();
        assert_eq!(keys, ["b", "a", "c", "d"]);
        assert_eq!(
            selector(expression("a", "NotIn", &["1"])).pairs().count(),
            0
        );
    }

    #[test]
    fn errors_name_their_place_in_the_selector() {
        let wire = serde_json::from_value(expression("a", "Gt", &["-"])).unwrap();
        let errors = Selector::parse(&wire).unwrap_err();
        let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "matchExpressions[0].values[0]",
                "matchExpressions[0].operator"
            ]
        );
    }

    // SDF-18
    #[test]
    fn two_selectors_are_disjoint_only_if_a_label_would_have_to_be_two_things() {
        let all = [
            json!({"matchLabels": {"a": "x"}}),
            expression("a", "In", &["x", "y"]),
            expression("a", "In", &["z"]),
            expression("a", "NotIn", &["x"]),
            expression("a", "NotIn", &["x", "y", "z"]),
            expression("a", "Exists", &[]),
            expression("a", "DoesNotExist", &[]),
            json!({"matchLabels": {"b": "x"}}),
            json!({"matchLabels": {"a": "x", "b": "y"}}),
        ];
        let selectors: Vec<_> = all.into_iter().map(selector).collect();
        let values = [None, Some("x"), Some("y"), Some("z"), Some("other")];
        for one in &selectors {
            for other in &selectors {
                let objects = values
                    .iter()
                    .flat_map(|a| values.iter().map(move |b| (*a, *b)));
                let both = |(a, b): (Option<&'static str>, Option<&'static str>)| {
                    let label = |key: &str| if key == "a" { a } else { b };
                    one.matches(label) && other.matches(label)
                };
                let is_disjoint = !objects.into_iter().any(both);
                assert_eq!(one.is_disjoint(other), is_disjoint, "{one:?} {other:?}");
            }
        }
    }
}

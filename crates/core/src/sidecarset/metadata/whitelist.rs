//! The administrator's list of annotations that sets may patch: JSON in a `ConfigMap`, as `OpenKruise` reads it from key
//! `SidecarSet_PatchPodMetadata_WhiteList` of `kruise-configuration`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::{FieldErrors, Invalid, Selector};
use crate::workload::JsonObject;

/// Name of the `ConfigMap` with the administrator's whitelist, in the manager's namespace, as `OpenKruise` has it.
pub const CONFIGURATION: &str = "kruise-configuration";
/// The key of the list in its `ConfigMap`.
pub const WHITELIST: &str = "SidecarSet_PatchPodMetadata_WhiteList";

/// The list.
#[derive(Clone, Debug, Default)]
pub struct Whitelist {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    /// The sets that the rule is about, by their labels; None for all.
    selector: Option<Selector>,
    keys: Vec<Regex>,
}

/// The keys that one set may patch.
#[derive(Clone, Debug)]
pub struct AllowedKeys<'a> {
    expressions: Vec<&'a Regex>,
    without_rules: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RuleWire {
    #[serde(default)]
    selector: Option<LabelSelector>,
    #[serde(default)]
    allowed_annotation_key_exprs: Option<Vec<String>>,
}

impl Whitelist {
    /// Reads the list. A rule that is wrong somewhere allows nothing: with a misspelt selector it would apply to every set.
    pub fn read(text: &str) -> (Self, Vec<Invalid>) {
        let mut errors = Vec::new();
        let mut report = FieldErrors::new(&mut errors, String::new());
        let rules = match serde_json::from_str::<JsonObject>(text) {
            Ok(mut object) => {
                let rules = object.remove("rules");
                // A misspelt `rules` would be a list without rules, under which any key may be
                // allowed.
                for key in object.keys() {
                    report.add(format!("{key:?} is not a known field; there is only rules"));
                }
                rules.unwrap_or_default()
            }
            Err(error) => {
                report.add(format!("is not JSON: {error}"));
                Value::Null
            }
        };
        let rules = match rules {
            Value::Array(rules) => rules,
            Value::Null => Vec::new(),
            _ => {
                report.field("rules").add("is not a list");
                Vec::new()
            }
        };
        let rules = rules.into_iter().enumerate().filter_map(|(index, wire)| {
            let mut at = report.field("rules");
            Rule::read(wire, &mut at.index(index))
        });
        (
            Self {
                rules: rules.collect(),
            },
            errors,
        )
    }

    /// The keys that a set with these labels may patch; `without_rules` tells whether it may patch any where no rule with an
    /// expression applies to it.
    pub fn allowed_keys<'a, 'b>(
        &'a self,
        label: impl Fn(&str) -> Option<&'b str>,
        without_rules: bool,
    ) -> AllowedKeys<'a> {
        let rules = self.rules.iter().filter(|rule| {
            let selector = rule.selector.as_ref();
            selector.is_none_or(|selector| selector.matches(&label))
        });
        AllowedKeys {
            expressions: rules.flat_map(|rule| &rule.keys).collect(),
            without_rules,
        }
    }
}

impl AllowedKeys<'_> {
    /// Whether a key may be patched. Expressions match anywhere in a key unless they are anchored.
    pub fn contains(&self, key: &str) -> bool {
        if self.expressions.is_empty() {
            return self.without_rules;
        }
        self.expressions
            .iter()
            .any(|expression| expression.is_match(key))
    }
}

impl Rule {
    fn read(wire: Value, report: &mut FieldErrors<'_>) -> Option<Self> {
        let wire: RuleWire = report.check(serde_json::from_value(wire).map_err(|error| {
            format!("{error}; the rule allows nothing until that is corrected")
        }))?;
        let selector = wire.selector.map(|selector| {
            let parsed = Selector::parse(&selector).map_err(|errors| {
                let errors = errors.iter().map(Invalid::to_string);
                errors.collect::<Vec<_>>().join("; ")
            });
            report.field("selector").check(parsed)
        });
        let expressions = wire.allowed_annotation_key_exprs.unwrap_or_default();
        let mut at = report.field("allowedAnnotationKeyExprs");
        let checked = expressions.iter().enumerate().map(|(index, expression)| {
            let parsed = Regex::new(expression).map_err(|error| error.to_string());
            at.index(index).check(parsed)
        });
        // All expressions first, then the rule: each of them that is wrong is to be told.
        let keys: Option<Vec<_>> = checked.collect::<Vec<_>>().into_iter().collect();
        let selector = match selector {
            None => None,
            // An empty selector is about every set, as Kubernetes reads it; a [`Selector`] would
            // match none.
            Some(parsed) => Some(parsed?).filter(|selector| !selector.is_empty()),
        };
        Some(Self {
            selector,
            keys: keys?,
        })
    }
}

//! The pods for which the API server has to call the webhook. Pods of other namespaces, or with other labels, cost no
//! call.
//!
//! A call in vain changes nothing, but a pod without a call gets no probes. So where a limit is reached, the scope is
//! widened.

use std::collections::BTreeMap;

use super::{MARKERS, Snapshot};
use crate::cluster::{Operator, Selector};

/// The pods that markers may match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Their namespaces, sorted. None for all namespaces, if there are too many to be named.
    pub namespaces: Option<Vec<String>>,
    /// The CEL condition for a call, over `request` and `object`: the labels of the pod match, or it has the
    /// annotations of another pod. None if it would be too long.
    pub expression: Option<String>,
}

impl Scope {
    /// Maximum number of namespaces that are named: the configuration must remain far below the limit of etcd.
    pub const NAMESPACES: usize = 1000;
    /// Maximum length of the expression. Its evaluation may cost 2,500,000 for each pod
    /// (`RuntimeCELCostBudgetMatchConditions`, `k8s.io/apiserver/pkg/apis/cel/config.go`), and a byte of this one costs
    /// about 1; where failures are ignored, an expression that exceeds it means no call for any pod
    /// (`pkg/admission/plugin/webhook/matchconditions/matcher.go`).
    pub const EXPRESSION_BYTES: usize = 16 * 1024;

    /// None if the webhook need not be called at all.
    pub fn new(markers: &Snapshot) -> Option<Self> {
        if markers.is_empty() {
            return None;
        }
        let mut selectors: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (namespace, markers) in &markers.namespaces {
            for marker in markers.iter() {
                let namespaces = selectors.entry(to_cel(&marker.selector)).or_default();
                if namespaces.last() != Some(&&**namespace) {
                    namespaces.push(namespace);
                }
            }
        }
        let is_named = markers.namespaces.len() <= Self::NAMESPACES;
        let by_namespace = selectors.iter().map(|(selector, namespaces)| {
            if is_named && selectors.len() == 1 {
                return selector.clone();
            }
            format!(
                "request.namespace in ['{}'] && {selector}",
                namespaces.join("', '")
            )
        });
        let expression = any(by_namespace).or_else(|| any(selectors.keys().cloned()));
        let namespaces = markers.namespaces.keys().map(ToString::to_string);
        Some(Self {
            namespaces: is_named.then(|| namespaces.collect()),
            expression,
        })
    }

    /// Whether a limit has widened the scope, so that the webhook is called for pods that no marker matches.
    pub fn is_widened(&self) -> bool {
        self.namespaces.is_none() || self.expression.is_none()
    }
}

/// A CEL expression that is true if one of the terms is, or if the pod was copied from another. None if it is too long.
fn any(terms: impl Iterator<Item = String>) -> Option<String> {
    let is_copy = format!("object.metadata.?annotations[?'{MARKERS}'].hasValue()");
    let mut text = String::new();
    for term in terms.chain([is_copy]) {
        if !text.is_empty() {
            text.push_str(" || ");
        }
        text.push_str(&term);
        if text.len() > Scope::EXPRESSION_BYTES {
            return None;
        }
    }
    Some(text)
}

/// Whether the labels of `object` match. No key and no value has a character that would have to be escaped. `#` stands
/// for an absent label: it is in no value, and of a type with them, without which the expression would not compile.
fn to_cel(selector: &Selector) -> String {
    let requirements = selector.requirements().map(|(key, operator)| {
        let label = format!("object.metadata.?labels[?'{key}']");
        let is_in = |values: &[_]| format!("{label}.orValue('#') in ['{}']", values.join("', '"));
        match operator {
            Operator::In(values) => is_in(values),
            Operator::NotIn(values) => format!("!({})", is_in(values)),
            Operator::Exists => format!("{label}.hasValue()"),
            Operator::DoesNotExist => format!("!{label}.hasValue()"),
        }
    });
    requirements.collect::<Vec<_>>().join(" && ")
}

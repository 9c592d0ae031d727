//! The pods for which the API server has to call the webhook. Other pods cost no call.
//!
//! A call in vain changes nothing, but a pod without a call gets no sidecar: so where a limit is reached, the scope is
//! widened. A webhook that refuses pods while nobody answers must not be widened: its sets are then injected as if
//! they had not asked for it.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::zip;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::annotations::HASH;
use super::namespaces_tag::{namespaces_tag, requirements, selector_text};
use super::selection::MIRROR;
use super::set::{FailurePolicy, NAMESPACE_NAME, Namespaces, SidecarSet};
use super::snapshot::Snapshot;
use crate::cluster::{Operator, Selector, cel};

/// The pods that sets may select.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SetScope {
    /// The calls; none if no set can be injected. A pod may be in several.
    pub calls: Vec<ScopeCall>,
    /// Whether a limit has widened it, so that the webhook is called for pods that no set selects.
    pub is_widened: bool,
    /// Sets that asked for [`FailurePolicy::Fail`] and cannot have it: their pods cannot be told exactly from others.
    pub not_failing: Vec<Arc<str>>,
}

/// Pods for which the API server calls the webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct ScopeCall {
    /// The rule for these pods while the webhook does not answer.
    pub failure_policy: FailurePolicy,
    /// The namespaces of these pods.
    pub namespaces: LabelSelector,
    /// The tag of the `namespaceSelector` of their sets, if these select namespaces by labels ([`namespaces_tag`]).
    pub tag: Option<u16>,
    /// The CEL condition for a call, over `request` and `object`. None if it would be too long, and for all pods.
    pub expression: Option<String>,
}

/// Pods of a set, or some of them.
#[derive(Clone, Copy, Debug)]
struct ScopePart<'a> {
    set: &'a SidecarSet,
    /// The names of their namespaces; None for all that the set has.
    within: Option<&'a [String]>,
}

/// Parts whose namespaces have the same selector, by its text; the empty text is no selector.
type Groups<'a> = BTreeMap<String, Vec<ScopePart<'a>>>;

impl SetScope {
    /// How many calls of each policy there may be, beside a standing one.
    pub const CALLS: usize = 8;
    /// Maximum number of namespaces that are named: the configuration must remain far below the limit of etcd.
    pub const NAMESPACES: usize = 1000;
    /// Maximum length of an expression. An API server refuses one of more than 100,000 characters (`parser.go` of
    /// `github.com/google/cel-go`), and takes 3 ms to evaluate that. Its evaluation may cost 2,500,000 for each pod
    /// (`RuntimeCELCostBudgetMatchConditions`, `k8s.io/apiserver/pkg/apis/cel/config.go`), and a byte of this one costs
    /// about 1, so that limit is not met before the other.
    pub const EXPRESSION_BYTES: usize = 16 * 1024;

    /// `protected` are the namespaces whose pods are never refused.
    pub fn new(snapshot: &Snapshot, protected: &[String]) -> Self {
        let sets: Vec<_> = snapshot
            .sets
            .iter()
            .map(|known| &*known.set)
            .filter(|set| !set.is_injection_paused)
            .collect();
        let standing = snapshot.standing_rule;
        let mut scope = Self {
            calls: standing
                .map(|policy| ScopeCall::standing(policy, protected))
                .into_iter()
                .collect(),
            ..Self::default()
        };
        let most_failing = Self::CALLS + scope.calls.len();
        let asks_to_fail = |set: &&&SidecarSet| set.failure_policy == FailurePolicy::Fail;
        // Invalid sets ask for nothing else: a call that refuses nothing has nothing to inject.
        let refusing = snapshot.refusing.iter().map(|known| &*known.set);
        let failing = sets
            .iter()
            .filter(asks_to_fail)
            .copied()
            .chain(refusing)
            .map(|set| ScopePart { set, within: None });
        for (_, parts) in group(failing) {
            let call = ScopeCall::refusing(&parts, protected);
            match call.filter(|_| scope.calls.len() < most_failing) {
                Some(call) => scope.calls.push(call),
                None => scope
                    .not_failing
                    .extend(parts.iter().map(|part| part.set.name.clone())),
            }
        }
        let others = sets.iter().filter_map(|set| {
            let fails =
                set.failure_policy == FailurePolicy::Fail && !scope.not_failing.contains(&set.name);
            // A set that asks for `Fail` is injected in the protected namespaces like others, by a call that refuses nothing. A
            // standing rule leaves them out as well.
            let within = (fails || standing.is_some()).then_some(protected);
            let has_some = within.is_none_or(|within| set.namespaces.may_contain_one_of(within));
            has_some.then_some(ScopePart { set, within })
        });
        let mut groups = group(others);
        // The API server evaluates each call for each pod that is created: one for all namespaces instead of many.
        if groups.len() > Self::CALLS {
            let all = groups.into_values().flatten().collect();
            groups = BTreeMap::from([(String::new(), all)]);
            scope.is_widened = true;
        }
        for (selector, parts) in groups {
            let (call, is_widened) = ScopeCall::ignoring(&parts, !selector.is_empty());
            scope.calls.push(call);
            scope.is_widened |= is_widened;
        }
        scope
    }

    /// Whether the scope of one snapshot is that of the other. A set's history and its versions have no part in it.
    pub fn is_same<'a>(one: &'a Snapshot, other: &'a Snapshot) -> bool {
        let is_same_set =
            |(one, other): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(one, other) || one == other;
        let sets = |of: &'a Snapshot| of.sets.iter().map(|known| &known.set);
        let refusing = |of: &'a Snapshot| of.refusing.iter().map(|known| &known.set);
        one.standing_rule == other.standing_rule
            && one.sets.len() == other.sets.len()
            && one.refusing.len() == other.refusing.len()
            && zip(sets(one), sets(other)).all(is_same_set)
            && zip(refusing(one), refusing(other)).all(is_same_set)
    }

    /// The CEL condition of every call: nothing can be injected into a pod that a kubelet runs from a file.
    pub fn no_mirror_pod() -> String {
        format!("!{}", cel::has_annotation(MIRROR))
    }
}

impl ScopeCall {
    /// A call for all pods, whatever the sets. Without it those of sets that have just been made are not asked about until every
    /// API server has seen another configuration. The protected namespaces have no part in it: what is down must not keep
    /// itself from coming back.
    fn standing(failure_policy: FailurePolicy, protected: &[String]) -> Self {
        let but_for = requirement(NAMESPACE_NAME, "NotIn", protected.to_vec());
        Self {
            failure_policy,
            namespaces: LabelSelector {
                match_expressions: Some(vec![but_for]),
                ..LabelSelector::default()
            },
            // No tag says which sets select the namespace, since the call is for all of them.
            tag: None,
            expression: None,
        }
    }

    /// A call without which pods are refused: for exactly those of the sets, or none.
    fn refusing(parts: &[ScopePart<'_>], protected: &[String]) -> Option<Self> {
        let expression = expression(parts, Detail::All, None)?;
        let mut namespaces = selector_of(parts)?;
        // A cluster whose own pods are refused while the webhook is down could not bring it up again.
        let but_for = requirement(NAMESPACE_NAME, "NotIn", protected.to_vec());
        namespaces
            .match_expressions
            .get_or_insert_default()
            .push(but_for);
        Some(Self {
            failure_policy: FailurePolicy::Fail,
            namespaces,
            tag: tag_of(parts),
            expression: Some(expression),
        })
    }

    /// A call without which pods are created as they are, and whether it is for more pods than those of the sets.
    fn ignoring(parts: &[ScopePart<'_>], has_selector: bool) -> (Self, bool) {
        // A copy of an injected pod has records that are not about it, and that the webhook
        // removes, whatever its labels.
        let copy = Some(cel::has_annotation(HASH));
        let of_detail = |detail| expression(parts, detail, copy.clone());
        let exact = of_detail(Detail::All);
        let (expression, is_widened) = match exact {
            Some(exact) => (Some(exact), false),
            None => (of_detail(Detail::OneLabel), true),
        };
        let namespaces = if has_selector || parts.iter().all(|part| part.names().is_some()) {
            selector_of(parts)
        } else {
            None
        };
        let call = Self {
            failure_policy: FailurePolicy::Ignore,
            namespaces: namespaces.unwrap_or_default(),
            tag: tag_of(parts).filter(|_| has_selector),
            expression,
        };
        (call, is_widened)
    }
}

impl<'a> ScopePart<'a> {
    /// The names of the namespaces, if they are named.
    fn names(&self) -> Option<Vec<&'a str>> {
        match (&self.set.namespaces, self.within) {
            (Namespaces::Named(name), _) => Some(vec![name]),
            (_, Some(within)) => Some(within.iter().map(String::as_str).collect()),
            _ => None,
        }
    }
}

impl Namespaces {
    /// Whether one of these namespaces may be one of them.
    fn may_contain_one_of(&self, names: &[String]) -> bool {
        match self {
            Self::Named(own) => names.iter().any(|name| **name == **own),
            Self::All | Self::Selected(_) => true,
        }
    }
}

fn group<'a>(parts: impl Iterator<Item = ScopePart<'a>>) -> Groups<'a> {
    let mut groups = Groups::new();
    for part in parts {
        let key = selector_text(&part.set.namespaces).unwrap_or_default();
        groups.entry(key).or_default().push(part);
    }
    groups
}

/// The tag of the namespace selector that these parts have in common.
fn tag_of(parts: &[ScopePart<'_>]) -> Option<u16> {
    namespaces_tag(&parts.first()?.set.namespaces)
}

/// The selector of the namespaces of parts: that which they have in common, or their names. None if there are too many.
fn selector_of(parts: &[ScopePart<'_>]) -> Option<LabelSelector> {
    let first = parts.first()?;
    if let Namespaces::Selected(selector) = &first.set.namespaces {
        return Some(selector.to_wire());
    }
    let mut names = BTreeSet::new();
    for part in parts {
        match part.names() {
            Some(own) => names.extend(own),
            None => return Some(LabelSelector::default()),
        }
    }
    let is_named = names.len() <= SetScope::NAMESPACES;
    let names = names.into_iter().map(str::to_owned).collect();
    is_named.then(|| LabelSelector {
        match_expressions: Some(vec![requirement(NAMESPACE_NAME, "In", names)]),
        ..LabelSelector::default()
    })
}

fn requirement(key: &str, operator: &str, values: Vec<String>) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: Some(values),
    }
}

/// How much of a selector is in an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    All,
    /// One of its labels: short, and true for more pods.
    OneLabel,
}

type Requirements<'a> = Vec<(&'a str, &'a Operator)>;

impl Detail {
    fn of(self, selector: &Selector) -> Requirements<'_> {
        let all: Vec<_> = requirements(selector).collect();
        let is_in = |(_, operator): &&(_, &Operator)| matches!(operator, Operator::In(_));
        match self {
            Self::All => all,
            Self::OneLabel => {
                // One with values, which fewer pods fulfil than the presence or absence of a label.
                let one = all.iter().find(is_in).or(all.first());
                one.copied().into_iter().collect()
            }
        }
    }
}

/// An expression that is true for the pods of these parts, or where `or` is.
fn expression(parts: &[ScopePart<'_>], detail: Detail, or: Option<String>) -> Option<String> {
    // Requirements by the text of their selector, and the namespaces in which they count; None for all.
    let mut selectors: BTreeMap<String, (Requirements<'_>, Option<BTreeSet<&str>>)> =
        BTreeMap::new();
    for part in parts {
        let requirements = detail.of(&part.set.selector);
        let text = cel::labels_match(requirements.iter().copied());
        let names = part.names();
        let known = selectors
            .entry(text)
            .or_insert_with(|| (requirements, Some(BTreeSet::new())));
        match (&mut known.1, names) {
            (Some(known), Some(names)) => known.extend(names),
            (within, _) => *within = None,
        }
    }
    let mut by_namespaces: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (requirements, within) in selectors.into_values() {
        by_namespaces.entry(within).or_default().push(requirements);
    }
    let mut terms = Vec::new();
    for (within, selectors) in by_namespaces {
        let selectors = merge(&selectors);
        match within {
            None => terms.extend(selectors),
            Some(names) => {
                let names: Vec<_> = names.into_iter().collect();
                let selectors = selectors.join(" || ");
                terms.push(format!("{} && ({selectors})", cel::namespace_in(&names)));
            }
        }
    }
    cel::any(terms.into_iter().chain(or), SetScope::EXPRESSION_BYTES)
}

/// Selectors as terms. Those that ask for nothing but a value of one label are one term.
fn merge(selectors: &[Requirements<'_>]) -> Vec<String> {
    let mut values: BTreeMap<&str, BTreeSet<Arc<str>>> = BTreeMap::new();
    let mut terms = Vec::new();
    for requirements in selectors {
        match &requirements[..] {
            [(key, Operator::In(own))] => {
                values.entry(key).or_default().extend(own.iter().cloned());
            }
            _ => terms.push(cel::labels_match(requirements.iter().copied())),
        }
    }
    let merged = values.into_iter().map(|(key, values)| {
        let operator = Operator::In(values.into_iter().collect());
        cel::labels_match([(key, &operator)])
    });
    merged.chain(terms).collect()
}

#[cfg(test)]
mod tests;

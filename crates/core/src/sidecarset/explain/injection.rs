//! The result if a pod were created now: the injection of the webhook, with everything that it leaves out. And why a set does
//! not select a pod: everything that is in the way, since who corrects the first thing wants to know of the second.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::{KnownSets, Labels, SetReason};
use crate::cluster::SelectorTerm;
use crate::sidecarset::metadata::{AllowedKeys, Whitelist};
use crate::sidecarset::render::{Injected, Remark, inject_sets};
use crate::sidecarset::selection::{NewPod, offer};
use crate::sidecarset::set::{Namespaces, SidecarSet};
use crate::workload::JsonObject;

/// The effects of sets on a pod that is created.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InjectionReport {
    /// Each set, by name.
    pub sets: Vec<SetReport>,
    /// The pod with what it gets.
    #[serde(skip)]
    pub pod: JsonObject,
}

/// The effect of a set on a pod that is created.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SetReport {
    /// The set's name.
    pub set: String,
    /// Whether it is injected, and why not.
    #[serde(flatten)]
    pub outcome: SetOutcome,
    /// Remarks on parts of the set that do not take effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// Whether a set is injected, and why not.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all_fields = "camelCase")]
pub enum SetOutcome {
    /// The set is injected.
    Injected {
        /// The injected revision.
        revision: String,
    },
    /// The set selects the pod, which cannot have it; a remark says why.
    LeftOut {
        /// The reason why the pod cannot have the set.
        reason: SetReason,
        /// The older set that has the same; None if the pod itself has.
        #[serde(skip_serializing_if = "Option::is_none")]
        older: Option<String>,
    },
    /// The set does not select the pod.
    NotSelected {
        /// Everything that is in the way.
        causes: Vec<NotSelected>,
    },
    /// The set breaks rules, and is not acted on.
    Invalid {
        /// The broken rules.
        errors: Vec<String>,
    },
}

impl SetOutcome {
    /// Whether it is injected.
    pub fn is_injected(&self) -> bool {
        matches!(self, Self::Injected { .. })
    }
}

/// Reports what sets do to a pod that is created in a namespace.
pub fn report(
    pod: &JsonObject,
    namespace: &str,
    sets: &KnownSets,
    now: Timestamp,
) -> InjectionReport {
    let new_pod = NewPod::new(pod, namespace);
    let labels = sets.namespaces.get(namespace);
    let none = Whitelist::default();
    let mut injections = Vec::new();
    let mut reports: Vec<_> = sets
        .invalid
        .iter()
        .map(|invalid| SetReport {
            set: invalid.name.clone(),
            outcome: SetOutcome::Invalid {
                errors: invalid.errors.clone(),
            },
            remarks: Vec::new(),
        })
        .collect();
    for known in &sets.valid {
        let allowed = sets.allowed_keys(&known.set, &none);
        let label = labels.map(|labels| |key: &str| labels.get(key).map(String::as_str));
        let outcome = match offer(&known.set, &known.history, allowed, &new_pod, label) {
            Ok(injection) => {
                let revision = injection.revision.to_owned();
                injections.push(injection);
                SetOutcome::Injected { revision }
            }
            Err(_) => SetOutcome::NotSelected {
                causes: NotSelected::find(&known.set, &new_pod, labels),
            },
        };
        reports.push(SetReport {
            set: known.set.name.to_string(),
            outcome,
            remarks: Vec::new(),
        });
    }
    // All sets at once, as in the webhook: one may be left out because of another.
    let injected = inject_sets(pod, &injections, sets.render, now);
    for report in &mut reports {
        report.add_remarks(&injected);
    }
    reports.sort_by(|a, b| a.set.cmp(&b.set));
    InjectionReport {
        sets: reports,
        pod: injected.additions.apply(pod),
    }
}

impl SetReport {
    fn add_remarks(&mut self, injected: &Injected) {
        let own = injected
            .remarks
            .iter()
            .filter(|(set, _)| **set == *self.set);
        for (_, remark) in own {
            if remark.leaves_out_the_set() {
                let (reason, older) = match remark {
                    Remark::Overlap { older, .. } => (SetReason::Conflict, Some(older.to_string())),
                    Remark::HostPort(_) | Remark::HostNetwork(_) => (SetReason::HostPort, None),
                    Remark::OwnDevice(_) => (SetReason::OwnVolume, None),
                    Remark::Misfit(_) => (SetReason::WouldBeInvalid, None),
                    _ => (SetReason::OwnContainer, None),
                };
                self.outcome = SetOutcome::LeftOut { reason, older };
            }
            self.remarks.push(remark.to_string());
        }
    }
}

impl KnownSets {
    /// The annotations that a set may patch. `none` is a list without rules.
    pub(super) fn allowed_keys<'a>(
        &'a self,
        set: &SidecarSet,
        none: &'a Whitelist,
    ) -> AllowedKeys<'a> {
        let label = |key: &str| set.labels.get(key).map(String::as_str);
        match &self.whitelist {
            Some(whitelist) => whitelist.allowed_keys(label, self.is_allowed_without_rules),
            None => none.allowed_keys(label, true),
        }
    }
}

/// Something because of which a set gives nothing to a pod that is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all_fields = "camelCase")]
pub enum NotSelected {
    /// The pod is the mirror of a static pod.
    MirrorPod,
    /// The set's injection is paused.
    InjectionPaused,
    /// The set's selector does not match the pod's labels.
    Labels {
        /// The selector's requirements.
        terms: Vec<SelectorTerm>,
    },
    /// The set is for another namespace.
    Namespace {
        /// The set's namespace.
        namespace: String,
    },
    /// The set's namespace selector does not match.
    NamespaceLabels {
        /// The pod's namespace.
        namespace: String,
        /// The requirements.
        terms: Vec<SelectorTerm>,
    },
    /// The set selects namespaces by labels, and those of the pod's namespace are not known.
    NamespaceUnknown {
        /// The pod's namespace.
        namespace: String,
        /// The selector.
        selector: String,
    },
}

impl NotSelected {
    /// All that is in the way of a set; nothing if it is offered to the pod.
    pub fn find(
        set: &SidecarSet,
        pod: &NewPod<'_>,
        namespace_labels: Option<&Labels>,
    ) -> Vec<Self> {
        let mut found = Vec::new();
        if pod.is_mirror {
            found.push(Self::MirrorPod);
        }
        if set.is_injection_paused {
            found.push(Self::InjectionPaused);
        }
        if !set.selector.matches(|key| pod.label(key)) {
            let terms = set.selector.terms(|| pod.labels());
            found.push(Self::Labels { terms });
        }
        found.extend(of_namespace(set, pod.namespace, namespace_labels));
        found
    }

    /// The requirements of a selector that does not match.
    pub fn terms(&self) -> &[SelectorTerm] {
        match self {
            Self::Labels { terms } | Self::NamespaceLabels { terms, .. } => terms,
            _ => &[],
        }
    }
}

fn of_namespace(set: &SidecarSet, name: &str, labels: Option<&Labels>) -> Option<NotSelected> {
    let namespace = name.to_owned();
    match (&set.namespaces, labels) {
        (Namespaces::All, _) => None,
        (Namespaces::Named(own), _) if **own == *name => None,
        (Namespaces::Named(own), _) => Some(NotSelected::Namespace {
            namespace: own.to_string(),
        }),
        (Namespaces::Selected(selector), None) => Some(NotSelected::NamespaceUnknown {
            namespace,
            selector: selector.to_string(),
        }),
        (Namespaces::Selected(selector), Some(labels)) => {
            let terms = selector.terms(|| labels.iter().map(|(key, value)| (&**key, &**value)));
            let matches = selector.matches(|key| labels.get(key).map(String::as_str));
            (!matches).then_some(NotSelected::NamespaceLabels { namespace, terms })
        }
    }
}

impl fmt::Display for NotSelected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MirrorPod => f.write_str(
                "the pod is static: it is changed by its file on the node, and sets are not injected",
            ),
            Self::InjectionPaused => {
                f.write_str("its injection is paused (spec.injectionStrategy.paused)")
            }
            Self::Labels { .. } => f.write_str("its selector does not match the pod's labels"),
            Self::Namespace { namespace } => {
                write!(f, "it is for pods of namespace {namespace} (spec.namespace)")
            }
            Self::NamespaceLabels { namespace, .. } => write!(
                f,
                "its namespaceSelector does not match the labels of namespace {namespace}"
            ),
            Self::NamespaceUnknown {
                namespace,
                selector,
            } => write!(
                f,
                "it is for namespaces with labels {selector}, and those of namespace {namespace} are not known"
            ),
        }
    }
}

//! Why a set does not select a pod: everything that is in the way, since who corrects the first thing wants to know of the
//! second.

use std::fmt;

use serde::Serialize;

use super::Labels;
use crate::cluster::SelectorTerm;
use crate::sidecarset::selection::NewPod;
use crate::sidecarset::set::{Namespaces, SidecarSet};

/// Something because of which a set gives nothing to a pod that is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all_fields = "camelCase")]
pub enum NotSelected {
    /// The pod is the mirror of a static pod.
    MirrorPod,
    /// Its injection is paused.
    InjectionPaused,
    /// Its selector does not match the pod's labels.
    Labels {
        /// Its requirements.
        terms: Vec<SelectorTerm>,
    },
    /// It is for another namespace.
    Namespace {
        /// Which.
        namespace: String,
    },
    /// Its namespace selector does not match.
    NamespaceLabels {
        /// The pod's namespace.
        namespace: String,
        /// The requirements.
        terms: Vec<SelectorTerm>,
    },
    /// It selects namespaces by labels that are not known.
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

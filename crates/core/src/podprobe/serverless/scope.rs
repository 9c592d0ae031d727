//! The pods for which the API server has to call the webhook. Pods of other namespaces, or with other labels, cost no
//! call.
//!
//! A call in vain changes nothing, but a pod without a call gets no probes. So where a limit is reached, the scope is
//! widened.

use std::collections::BTreeMap;

use super::{MARKERS, ProviderMarkers};
use crate::cluster::{Selector, cel};

/// The pods that markers may match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkerScope {
    /// The pods' namespaces, sorted. None for all namespaces, if there are too many to be named.
    pub namespaces: Option<Vec<String>>,
    /// The CEL condition for a call, over `request` and `object`: the labels of the pod match, or it has the
    /// annotations of another pod. None if it would be too long.
    pub expression: Option<String>,
}

impl MarkerScope {
    /// Maximum number of namespaces that are named: the configuration must remain far below the limit of etcd.
    pub const NAMESPACES: usize = 1000;
    /// Maximum length of the expression. Its evaluation may cost 2,500,000 for each pod
    /// (`RuntimeCELCostBudgetMatchConditions`, `k8s.io/apiserver/pkg/apis/cel/config.go`), and a byte of this one costs
    /// about 1; where failures are ignored, an expression that exceeds it means no call for any pod
    /// (`pkg/admission/plugin/webhook/matchconditions/matcher.go`).
    pub const EXPRESSION_BYTES: usize = 16 * 1024;

    /// The scope of these markers; None if the webhook need not be called at all.
    pub fn new(markers: &ProviderMarkers) -> Option<Self> {
        if markers.is_empty() {
            return None;
        }
        let mut selectors: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (namespace, markers) in &markers.namespaces {
            for marker in markers.iter() {
                let namespaces = selectors.entry(to_cel(&marker.selector)).or_default();
                // The markers of a namespace follow one another, so only the last one can be the
                // same.
                if namespaces.last() != Some(&&**namespace) {
                    namespaces.push(namespace);
                }
            }
        }
        let is_named = markers.namespaces.len() <= Self::NAMESPACES;
        let by_namespace = selectors.iter().map(|(selector, namespaces)| {
            // The webhook's namespaceSelector names just these namespaces, and the selector is that
            // of all.
            if is_named && selectors.len() == 1 {
                return selector.clone();
            }
            format!("{} && {selector}", cel::namespace_in(namespaces))
        });
        // True also for a pod that was copied from another.
        let is_copy = cel::has_annotation(MARKERS);
        let any = |terms: Vec<String>| {
            cel::any(
                terms.into_iter().chain([is_copy.clone()]),
                Self::EXPRESSION_BYTES,
            )
        };
        let expression =
            // The expression without namespaces is shorter, and true for more pods but for none less.
            any(by_namespace.collect()).or_else(|| any(selectors.keys().cloned().collect()));
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

fn to_cel(selector: &Selector) -> String {
    cel::labels_match(
        selector
            .requirements()
            .map(|(key, operator)| (&**key, operator)),
    )
}

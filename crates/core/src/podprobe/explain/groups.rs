//! Pods with the same causes, of a workload or a selector.

use std::collections::BTreeMap;

use serde::Serialize;

use super::explanation::{Cause, Explanation};

/// Pods for which the same is in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGroup {
    /// Their causes, in the words of the first pod; empty if nothing is in the way.
    pub causes: Vec<Cause>,
    /// Their names, as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
}

/// Groups pods by their causes: the largest group of those with a cause first, those without one last.
pub fn group_by_causes(explanations: &[Explanation]) -> Vec<PodGroup> {
    let mut groups: BTreeMap<Vec<_>, PodGroup> = BTreeMap::new();
    for explanation in explanations {
        let causes = &explanation.causes;
        // Without the message, which names times and the pod: each pod would be a group.
        let key = causes.iter().map(|cause| {
            (
                cause.reason,
                cause.marker.as_deref(),
                cause.probe.as_deref(),
            )
        });
        let group = groups.entry(key.collect()).or_insert_with(|| PodGroup {
            causes: causes.clone(),
            pods: Vec::new(),
        });
        group
            .pods
            .push(format!("{}/{}", explanation.namespace, explanation.name));
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| (group.causes.is_empty(), std::cmp::Reverse(group.pods.len())));
    groups
}

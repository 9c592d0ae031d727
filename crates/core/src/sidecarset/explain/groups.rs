//! The pods of a workload or a selector, by what each set does to them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::{SetCause, SetExplanation, SetReason};
use crate::cluster::ObjectName;

/// The pods that a set concerns, grouped by what it does to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodsBySet {
    /// The set.
    pub set: String,
    /// The pods that it concerns: first the largest group of those with a cause, last those without one.
    pub groups: Vec<SetPodGroup>,
}

/// Pods to which a set does the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SetPodGroup {
    /// Whether they were injected by it.
    pub injected: bool,
    /// The causes, in the words of the first pod; empty if the pods are as the set says.
    pub causes: Vec<SetCause>,
    /// The names of the pods, as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
}

impl SetExplanation {
    /// Whether the pod was injected by the set, or could be by its labels.
    pub fn concerns_the_pod(&self) -> bool {
        let is_of_others = |cause: &SetCause| {
            matches!(
                cause.reason,
                SetReason::Labels | SetReason::Namespace | SetReason::InvalidSpec
            )
        };
        self.injected || !self.causes.iter().any(is_of_others)
    }
}

/// Groups pods set by set. Sets that concern none of them are left out.
pub fn group_by_set<'a>(
    pods: impl IntoIterator<Item = (&'a ObjectName, &'a [SetExplanation])>,
) -> Vec<PodsBySet> {
    let mut sets = BTreeMap::<&str, BTreeMap<_, SetPodGroup>>::new();
    for (pod, explained) in pods {
        for set in explained.iter().filter(|set| set.concerns_the_pod()) {
            let reasons = set.causes.iter().map(|cause| cause.reason);
            // Groups go by reasons and not by words, which name what each pod has of its own.
            let key = (set.injected, reasons.collect::<Vec<_>>());
            let groups = sets.entry(&set.set).or_default();
            let group = groups.entry(key).or_insert_with(|| SetPodGroup {
                injected: set.injected,
                causes: set.causes.clone(),
                pods: Vec::new(),
            });
            group.pods.push(pod.to_string());
        }
    }
    let sets = sets.into_iter().map(|(set, groups)| {
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.sort_by_key(|group| (group.causes.is_empty(), Reverse(group.pods.len())));
        PodsBySet {
            set: set.to_owned(),
            groups,
        }
    });
    sets.collect()
}

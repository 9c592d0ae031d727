//! The order in which pods are deleted, and the order in which they are updated.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::member::Member;
use super::set::SetSpec;
use crate::workload::pod::{PodPhase, UpgradeOrder};
use crate::workload::scatter::{LabelCounts, scattered_labels};

/// Rank of a pod among those that are deleted: whatever serves least comes first. Fields are compared in this order.
type Worth = (bool, PodPhase, bool, bool, i32);

fn worth(member: &Member<'_>) -> Worth {
    let observed = &member.pod.observed;
    (
        observed.is_scheduled,
        observed.phase,
        member.is_available,
        member.pod.is_ready(),
        member.pod.deletion_cost(),
    )
}

/// Sorts pods that are deleted. Of those that are worth the same, the ones go first whose node has more of the set.
pub(super) fn sort_for_deletion(members: &mut Vec<&Member<'_>>, all: &[Member<'_>]) {
    if members.len() < 2 {
        return;
    }
    let key = |member: &Member<'_>| (worth(member), member.pod.observed.upgrade_order());
    let mut by_node = BTreeMap::<&str, Vec<(Worth, UpgradeOrder)>>::new();
    for member in all.iter().filter(|member| member.pod.node.is_some()) {
        let node = member.pod.node.as_deref().unwrap_or_default();
        by_node.entry(node).or_default().push(key(member));
    }
    for keys in by_node.values_mut() {
        keys.sort_unstable();
    }
    let rank = |member: &Member<'_>| {
        let keys = member
            .pod
            .node
            .as_deref()
            .and_then(|node| by_node.get(node));
        let of_node =
            keys.and_then(|keys| Some((keys.len(), keys.binary_search(&key(member)).ok()?)));
        of_node.map_or(0, |(count, place)| count - 1 - place)
    };
    members.sort_by_cached_key(|member| {
        let (worth, order) = key(member);
        (worth, Reverse(rank(member)), order)
    });
}

/// Sorts pods that are updated: by priority, those that are not available first, spread by labels, and those that are on their
/// way before all others.
pub(super) fn sort_for_update<'m, 'a>(
    candidates: Vec<&'m Member<'a>>,
    all: &[Member<'_>],
    spec: &SetSpec,
) -> Vec<&'m Member<'a>> {
    let mut sorted = candidates;
    sorted.sort_by_cached_key(|member| {
        let observed = &member.pod.observed;
        let priority = spec.priority.key(|key| observed.label(key));
        // A pod that is not available may be of a template that never is, which only an update ends.
        (priority, member.is_available, observed.upgrade_order())
    });
    if !spec.scatter.is_empty() {
        sorted = scatter(&sorted, all, spec);
    }
    let (on_way, others): (Vec<_>, Vec<_>) =
        sorted.into_iter().partition(|member| member.is_on_way());
    on_way.into_iter().chain(others).collect()
}

fn scatter<'m, 'a>(
    sorted: &[&'m Member<'a>],
    all: &[Member<'_>],
    spec: &SetSpec,
) -> Vec<&'m Member<'a>> {
    let labels = |member: &Member<'_>| {
        scattered_labels(&spec.scatter, |key| member.pod.observed.labels.get(key))
    };
    let candidates: BTreeSet<_> = sorted.iter().map(|member| &member.pod.name).collect();
    let mut counts = LabelCounts::default();
    for member in all {
        counts.add(&labels(member), candidates.contains(&member.pod.name));
    }
    let spreads = counts.spreads(&spec.scatter, all.len(), sorted.len());
    let first: Vec<_> = sorted.iter().map(|member| labels(member)).collect();
    let places = spreads.apply(first.iter().map(|labels| &**labels));
    places.into_iter().map(|place| sorted[place]).collect()
}

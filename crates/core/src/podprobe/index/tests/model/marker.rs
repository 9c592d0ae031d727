//! What a marker means by itself and beside others of its namespace: whether it is acted on, which labels it selects by
//! and sets, and whether it closes a loop of them.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use leadsman_api::PodProbeMarker;
use leadsman_api::marker::PodContainerProbe;

use super::super::pod::Marks;
use super::Model;
use crate::cluster::ObjectName;

/// Why a marker of the alphabet is not acted on.
pub(super) fn refusal(marker: &PodProbeMarker) -> Option<&'static str> {
    if feeds(marker, marker, &[]) {
        return Some("Cycle");
    }
    let spec = &marker.spec;
    let invalid = spec.probes.iter().any(|probe| probe.name.contains(' '));
    let (labels, expressions) = (
        &spec.selector.match_labels,
        &spec.selector.match_expressions,
    );
    let empty = labels.iter().flatten().count() + expressions.iter().flatten().count() == 0;
    (invalid || empty || spec.probes.is_empty()).then_some("InvalidSpec")
}

/// Whether one sets a label that the other selects by, on the same pods: two that require different values of a label
/// have no pod in common, unless one of `all` sets the label.
fn feeds(from: &PodProbeMarker, to: &PodProbeMarker, all: &[&PodProbeMarker]) -> bool {
    let are_disjoint = |key| match (required(from, key), required(to, key)) {
        (Some(one), Some(other)) => {
            !one.iter().any(|value| other.contains(value))
                && !all.iter().any(|marker| labels_set(marker).contains(&key))
        }
        _ => false,
    };
    if ["app", "tier"].into_iter().any(are_disjoint) {
        return false;
    }
    let selector = &to.spec.selector;
    let mut read: Vec<&String> = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(key, _)| key)
        .collect();
    read.extend(
        selector
            .match_expressions
            .iter()
            .flatten()
            .map(|one| &one.key),
    );
    let set = labels_set(from);
    set.iter().any(|key| read.iter().any(|read| read == key))
}

/// The values of a label that a marker requires one of.
fn required(marker: &PodProbeMarker, key: &str) -> Option<Vec<String>> {
    let selector = &marker.spec.selector;
    let mut labels = selector.match_labels.iter().flatten();
    let label = labels.find(|(own, _)| *own == key);
    let mut expressions = selector.match_expressions.iter().flatten();
    let values = expressions.find(|one| one.key == key && one.operator == "In");
    label
        .map(|(_, value)| vec![value.clone()])
        .or(values.and_then(|one| one.values.clone()))
}

fn labels_set(marker: &PodProbeMarker) -> Vec<&str> {
    let probes = marker.spec.probes.iter();
    let policies = probes.flat_map(|probe| &probe.marker_policy);
    let keys = policies.flat_map(|policy| policy.labels.keys());
    keys.map(String::as_str).collect()
}

pub(super) fn selects(selector: &LabelSelector, labels: &Marks) -> bool {
    let value = |key: &str| labels.get(key).and_then(|mark| mark.value.as_str());
    let pairs = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    if pairs.clone().count() + expressions.clone().count() == 0 {
        return false;
    }
    pairs
        .into_iter()
        .all(|(key, wanted)| value(key) == Some(wanted))
        && expressions.into_iter().all(|one| {
            let values = one.values.clone().unwrap_or_default();
            let is_in = value(&one.key).is_some_and(|value| values.iter().any(|one| one == value));
            match one.operator.as_str() {
                "In" => is_in,
                "NotIn" => !is_in,
                "Exists" => value(&one.key).is_some(),
                _ => value(&one.key).is_none(),
            }
        })
}

/// All marks that a probe names.
pub(super) fn marks_of(probe: &PodContainerProbe) -> BTreeSet<String> {
    let conditions = probe
        .pod_condition_type
        .iter()
        .map(|kind| format!("condition {kind}"));
    let policies = probe.marker_policy.iter().flat_map(|policy| {
        let labels = policy.labels.keys().map(|key| format!("label {key}"));
        labels.chain(
            policy
                .annotations
                .keys()
                .map(|key| format!("annotation {key}")),
        )
    });
    conditions.chain(policies).collect()
}

impl Model<'_> {
    /// Whether its namespace has too many older markers, or it closes a loop of labels that markers set and select by, among
    /// those that are older and not stopped themselves.
    pub(super) fn why_stopped(&self, name: &ObjectName) -> Option<&'static str> {
        let mut all: Vec<_> = self.cluster.markers.iter().collect();
        all.retain(|(other, marker)| {
            other.namespace == name.namespace
                && refusal(marker).is_none()
                && marker.metadata.deletion_timestamp.is_none()
        });
        all.sort_by_key(|(name, marker)| (marker.metadata.creation_timestamp.clone(), *name));
        let most = self.config.markers_per_namespace;
        if all.iter().skip(most).any(|(other, _)| *other == name) {
            return Some("TooManyProbes");
        }
        all.truncate(most);
        let valid: Vec<_> = all.iter().map(|(_, marker)| *marker).collect();
        let mut in_force: Vec<&PodProbeMarker> = Vec::new();
        for (other, marker) in all {
            in_force.push(marker);
            // All that it feeds, and what these feed, and so on.
            let mut fed: Vec<&PodProbeMarker> = vec![marker];
            for _ in 0..in_force.len() {
                let more = in_force
                    .iter()
                    .filter(|to| fed.iter().any(|from| feeds(from, to, &valid)));
                fed = more.copied().collect();
                if fed.iter().any(|one| std::ptr::eq(*one, marker)) {
                    in_force.pop();
                    if other == name {
                        return Some("Cycle");
                    }
                    break;
                }
            }
        }
        None
    }
}

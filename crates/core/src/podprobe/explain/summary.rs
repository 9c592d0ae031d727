//! Markers at a glance: what their statuses count, with what only the agents' reports show; pods with the same causes; and
//! whether what agents report is on the pods.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::{Guarded, PodProbeMarker};
use serde::Serialize;

use super::explanation::{Cause, Explanation};
use super::{ObservedCluster, ObservedObjects};
use crate::cluster::ObjectName;
use crate::podprobe::index::{InspectedFit, InspectedPod};
use crate::podprobe::marks::ProbePosition;
use crate::podprobe::status::READY;

/// A marker at a glance.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MarkerSummary {
    /// The marker's namespace.
    pub namespace: String,
    /// The marker's name.
    pub name: String,
    /// The time of the marker's creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// The marker's generation.
    pub generation: i64,
    /// The generation that every node's object reflects.
    pub observed_generation: i64,
    /// The number of pods that match; None while no manager has counted them.
    pub matched_pods: Option<i64>,
    /// The marker's probes, in its order.
    pub probes: Vec<ProbeCounts>,
    /// The reason of its condition `Ready`; `Unobserved` while no manager has written one, `Undecodable` if the marker
    /// cannot be decoded.
    pub reason: String,
    /// Whether nothing is wrong.
    pub ready: bool,
    /// A message that says what is wrong, and why pods are pending.
    pub message: String,
    /// The time when one of its probes last ran, as far as that could be read: an agent reports it when a verdict changes,
    /// and every ten minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_result: Option<Time>,
}

/// The pods of a marker by the verdict of one probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeCounts {
    /// The probe.
    pub name: String,
    /// Pods whose verdict is Succeeded.
    pub succeeded: i64,
    /// Pods whose verdict is Failed.
    pub failed: i64,
    /// Pods whose verdict is Unknown.
    pub unknown: i64,
    /// Pods without a verdict.
    pub pending: i64,
    /// Pods whose agent does not report.
    pub silent: i64,
}

/// The fleet at a glance.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetSummary {
    /// The markers, by namespace and name.
    pub markers: Vec<MarkerSummary>,
    /// The nodes whose agents do not report.
    pub silent_nodes: Vec<String>,
    /// Everything that could not be read: the rights that are missing, or the API server's answers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

/// Sums up markers.
pub fn summarize_markers(observed: ObservedObjects, now: Timestamp) -> FleetSummary {
    let markers: Vec<_> = observed.markers.iter().map(summarize_marker).collect();
    let cluster = ObservedCluster::new(observed, now);
    let newest = cluster.machines().newest_results();
    let mut markers: Vec<_> = markers
        .into_iter()
        .map(|(name, marker)| MarkerSummary {
            newest_result: newest.get(&name).copied().map(Time),
            ..marker
        })
        .collect();
    markers.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    FleetSummary {
        markers,
        silent_nodes: cluster.silent_nodes(),
        unread: cluster.unread,
    }
}

/// A marker by its own status, with its name.
pub fn summarize_marker(marker: &Guarded<PodProbeMarker>) -> (ObjectName, MarkerSummary) {
    match marker {
        Guarded::Decoded(marker) => (ObjectName::of(&marker.metadata), summarize_decoded(marker)),
        Guarded::Undecodable { metadata, error } => {
            let name = ObjectName::of(metadata);
            let summary = MarkerSummary {
                created: metadata.creation_timestamp.clone(),
                generation: metadata.generation.unwrap_or_default(),
                reason: "Undecodable".to_owned(),
                message: error.clone(),
                ..MarkerSummary::of_name(&name)
            };
            (name, summary)
        }
    }
}

impl MarkerSummary {
    fn of_name(name: &ObjectName) -> Self {
        Self {
            namespace: name.namespace.clone(),
            name: name.name.clone(),
            created: None,
            generation: 0,
            observed_generation: 0,
            matched_pods: None,
            probes: Vec::new(),
            reason: "Unobserved".to_owned(),
            ready: false,
            message: "no manager has written its status yet; look at the manager's pods".to_owned(),
            newest_result: None,
        }
    }
}

fn summarize_decoded(marker: &PodProbeMarker) -> MarkerSummary {
    let status = marker.status.clone().unwrap_or_default();
    // Counts are found by name and not by place: the status may be of an earlier generation, which had other probes.
    let known: BTreeMap<_, _> = status.probes.iter().map(|one| (&one.name, one)).collect();
    let probes = marker.spec.probes.iter().map(|probe| {
        let counts = known.get(&probe.name);
        let count =
            |of: fn(&leadsman_api::marker::ProbeSummary) -> i64| counts.map_or(0, |one| of(one));
        ProbeCounts {
            name: probe.name.clone(),
            succeeded: count(|one| one.succeeded),
            failed: count(|one| one.failed),
            unknown: count(|one| one.unknown),
            pending: count(|one| one.pending),
            silent: count(|one| one.silent),
        }
    });
    let mut summary = MarkerSummary {
        created: marker.metadata.creation_timestamp.clone(),
        generation: marker.metadata.generation.unwrap_or_default(),
        observed_generation: status.observed_generation,
        matched_pods: status.matched_pods,
        probes: probes.collect(),
        ..MarkerSummary::of_name(&ObjectName::of(&marker.metadata))
    };
    let mut conditions = status.conditions.iter();
    if let Some(ready) = conditions.find(|one| one.type_ == READY) {
        summary.reason.clone_from(&ready.reason);
        summary.ready = ready.status == "True";
        summary.message.clone_from(&ready.message);
    }
    summary
}

/// Pods for which the same is in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGroup {
    /// The pods' causes, in the words of the first pod; empty if nothing is in the way.
    pub causes: Vec<Cause>,
    /// The pods' names, as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
}

/// Groups pods by their causes: the largest group of those with a cause first, those without one last.
pub fn group_by_causes(explanations: &[Explanation]) -> Vec<PodGroup> {
    let mut groups: BTreeMap<Vec<_>, PodGroup> = BTreeMap::new();
    for explanation in explanations {
        let causes = &explanation.causes;
        // The key leaves out the message, which names times and the pod: each pod would be a group.
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

impl ObservedCluster {
    /// The nodes whose agents do not report, although probes of theirs are wanted.
    pub fn silent_nodes(&self) -> Vec<String> {
        let silent = self.machines().unreachable_agents().into_keys();
        silent.map(|name| name.to_string()).collect()
    }

    /// The pods that lack a mark whose verdict is older than this: a manager writes it within seconds.
    pub fn late_pods(&self, patience: SignedDuration) -> Vec<&ObjectName> {
        let is_late = |name: &&ObjectName| {
            let inspected = self.machines().inspect_pod(name, self.now);
            inspected.is_some_and(|pod| {
                let differing = pod.marks.iter().filter(|mark| mark.differs);
                // A mark that no probe sets any more has no verdict by which it could be late.
                let mut since = differing.filter_map(|mark| verdict_since(&pod, mark.setter?));
                since.any(|since| self.now.wall.duration_since(since) > patience)
            })
        };
        self.pods.keys().filter(is_late).collect()
    }
}

/// The time since which a probe has its verdict.
fn verdict_since(pod: &InspectedPod<'_>, (marker, probe): ProbePosition) -> Option<Timestamp> {
    let InspectedFit::Matches(_, probes) = &pod.markers.get(marker)?.fit else {
        return None;
    };
    probes.get(probe)?.verdict.as_ref()?.since
}

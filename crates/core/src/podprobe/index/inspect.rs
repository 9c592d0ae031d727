//! The inspection of a pod: what the index knows of it, for those who explain it to somebody. All of it comes from the same
//! functions that decide what is written; nothing is decided here, and nothing is changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use leadsman_api::PodProbeMarkerStatus;

use super::Machines;
use super::markers::MarkerPhase;
use super::nodes::AgentState;
use super::pod_plan::{InspectedProbe, PlannedEntries, markers_of_pod};
use crate::cluster::{Now, ObjectName};
use crate::podprobe::exclusive::Ruling;
use crate::podprobe::marker::Marker;
use crate::podprobe::marks::{
    self, Conflict, HeldVerdict, Mark, ProbePosition, RefusedValue, Wants,
};
use crate::podprobe::pod::IndexedPod;
use crate::podprobe::status::Trouble;

/// A pod as the index sees it.
#[derive(Debug)]
pub struct InspectedPod<'a> {
    /// The fields that the rules read.
    pub pod: &'a IndexedPod,
    /// The markers of its namespace: those that match in order of precedence, then the others by name.
    pub markers: Vec<InspectedMarker<'a>>,
    /// The wanted state of its marks.
    pub wants: Wants,
    /// All marks that are ours or claimed.
    pub marks: Vec<InspectedMark>,
    /// Probes that do not set a mark which they claim. Positions are those of the matching markers.
    pub conflicts: Vec<Conflict>,
    /// Values in outputs that are not valid where a policy uses them.
    pub refused: Vec<RefusedValue>,
    /// Verdicts that do not count yet.
    pub held: Vec<HeldVerdict>,
    /// The rulings on exclusive values, by the probes that set their labels.
    pub rulings: Vec<(ProbePosition, Ruling)>,
    /// Whether the object of its node lacks entries of it, or has others than it should.
    pub entries_differ: bool,
    /// Whether an agent is to run a probe of it.
    pub has_entries: bool,
    /// Whether the agent of its node works.
    pub agent: AgentState,
    /// Whether a pod of an agent is on its node.
    pub has_agent_pod: bool,
}

/// A marker of the pod's namespace.
#[derive(Debug)]
pub struct InspectedMarker<'a> {
    /// The marker's name.
    pub name: &'a ObjectName,
    /// The marker's generation.
    pub generation: i64,
    /// The status that was observed last.
    pub status: &'a PodProbeMarkerStatus,
    /// Whether the marker matches the pod, and why not.
    pub fit: InspectedFit<'a>,
}

/// Whether a marker matches a pod, and why not.
#[derive(Debug)]
pub enum InspectedFit<'a> {
    /// The marker matches the pod; its probes with what is known of each.
    Matches(&'a Marker, Vec<InspectedProbe>),
    /// The marker is acted on, and does not match: by its selector, or because the pod cannot be probed.
    DoesNotMatch(&'a Marker),
    /// The marker is stopped, because its marks would change without end or its namespace has too many markers; reason and
    /// message of its status.
    Stopped(&'a Marker, &'a Trouble, &'a str),
    /// The marker breaks a rule; the message of its status.
    Invalid(&'a str),
    /// The marker is being deleted.
    Deleting,
}

/// A mark that is ours or claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedMark {
    /// The mark.
    pub mark: Mark,
    /// The probe that sets it; None if no matching marker names it any more.
    pub setter: Option<ProbePosition>,
    /// Whether it has to be written.
    pub differs: bool,
}

impl Machines {
    /// Inspects a pod; None if it is not known. Before this process writes, its entries and verdicts are not compared yet.
    pub fn inspect_pod(&self, name: &ObjectName, now: Now) -> Option<InspectedPod<'_>> {
        let pod = self.pods.get(name)?;
        let node = self.nodes.view_of_pod(pod);
        let matching = self.markers.markers_matching(pod);
        let entries = PlannedEntries::new(pod, &matching, node.observed_entries());
        let plan = self
            .observations_of(pod, now)
            .inspect_plan(&matching, &entries, &self.groups);
        let desired = plan.desired;
        let markers: Vec<_> = matching.iter().map(|(_, marker)| *marker).collect();
        let of_probes = plan.probes.iter().flatten();
        // Entries are planned without looking at the node, and only on a real one an agent runs
        // them.
        let has_entries = node.is_virtual() == Some(false)
            && of_probes.into_iter().any(|probe| probe.entry.is_ok());
        // A pod that has ended is not written any more, so none of its marks can be due.
        let compared = if pod.active {
            marks::compare_marks(pod, &desired.wants, now.wall)
        } else {
            Vec::new()
        };
        let marks = compared
            .into_iter()
            .map(|compared| InspectedMark {
                setter: marks::find_setter(&markers_of_pod(&matching), pod, &compared.key),
                differs: compared.differs,
                mark: compared.key,
            })
            .collect();
        Some(InspectedPod {
            pod,
            markers: self
                .markers
                .inspect_markers(&name.namespace, &markers, plan.probes),
            wants: desired.wants,
            marks,
            conflicts: desired.conflicts,
            refused: desired.refused,
            held: desired.held,
            rulings: desired.rulings,
            entries_differ: node.has_unapplied_entries(),
            has_entries,
            agent: node.agent_state(),
            has_agent_pod: node.has_agent_pod(),
        })
    }

    /// The markers of other namespaces whose selectors match the labels of a pod: a marker matches pods of its own
    /// namespace alone.
    pub fn markers_elsewhere(&self, name: &ObjectName) -> Vec<&ObjectName> {
        let Some(pod) = self.pods.get(name) else {
            return Vec::new();
        };
        let label = |key: &str| pod.labels.get(key).map(|value| &**value);
        let mut markers: Vec<_> = self
            .markers
            .marker_names()
            .filter(|marker| {
                let selector = self.markers.selector_of(marker);
                marker.namespace != name.namespace
                    && selector.is_some_and(|selector| selector.matches(label))
            })
            .map(|name| &**name)
            .collect();
        // The maps are hashed: unsorted, two calls would name the same markers in another order.
        markers.sort();
        markers
    }

    /// The nodes whose agents do not report, with what is wrong.
    pub fn unreachable_agents(&self) -> BTreeMap<Arc<str>, AgentState> {
        self.nodes.unreachable_agents().collect()
    }

    /// The time of the last run of a probe of each marker, as far as the agents have reported it.
    pub fn newest_results(&self) -> BTreeMap<ObjectName, Timestamp> {
        let mut newest = BTreeMap::new();
        for (namespace, entry, probed) in self.nodes.latest_results() {
            let Some((marker, _)) = entry.split_once('#') else {
                continue;
            };
            let name = ObjectName {
                namespace: namespace.to_owned(),
                name: marker.to_owned(),
            };
            let known = newest.entry(name).or_insert(probed);
            *known = probed.max(*known);
        }
        newest
    }
}

impl super::Markers {
    /// The markers of a namespace. `matching` are those that match a pod, with what is known of their probes.
    fn inspect_markers<'a>(
        &'a self,
        namespace: &str,
        matching: &[&'a Marker],
        probes: Vec<Vec<InspectedProbe>>,
    ) -> Vec<InspectedMarker<'a>> {
        let matched = matching.iter().zip(probes);
        let matched =
            matched.map(|(marker, probes)| (&marker.name, InspectedFit::Matches(marker, probes)));
        let is_matched = |name: &ObjectName| matching.iter().any(|marker| marker.name == *name);
        let mut others: Vec<_> = self
            .phases_in(namespace)
            .filter(|(name, _)| !is_matched(name))
            .map(|(name, phase)| {
                let fit = match phase {
                    MarkerPhase::Active(marker) => InspectedFit::DoesNotMatch(marker),
                    MarkerPhase::Stopped(marker, reason) => {
                        InspectedFit::Stopped(marker, reason.trouble(), reason.message())
                    }
                    MarkerPhase::Invalid(_, message) => InspectedFit::Invalid(message),
                    MarkerPhase::Deleting => InspectedFit::Deleting,
                };
                (name, fit)
            })
            .collect();
        others.sort_by_key(|(name, _)| *name);
        let all = matched.chain(others);
        let inspected = all.filter_map(|(name, fit)| {
            let (generation, status) = self.observed_status(name)?;
            Some(InspectedMarker {
                name,
                generation,
                status,
                fit,
            })
        });
        inspected.collect()
    }
}

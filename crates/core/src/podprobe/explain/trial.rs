//! The trial of a marker: which pods it would match if it were applied, what would be in the way, what would be run in
//! each, and which marks would be written after runs with these outcomes.
//!
//! The marker is put among the observed objects ([`ObservedObjects::propose_marker`]), and outcomes are recorded as an agent
//! would report them ([`ObservedObjects::record_outcomes`]); all else follows from the index, as for a pod that is explained.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use leadsman_api::node_pod_probe::{ContainerProbeState, NodePodProbeSpec, PodProbeStatus};
use leadsman_api::{Guarded, NodePodProbe, PodProbeMarker, PodProbeMarkerStatus};
use serde::Serialize;

use super::explanation::Cause;
use super::explanation::CauseReason;
use super::{ObservedCluster, ObservedObjects, PodContext, words};
use crate::cluster::{ObjectName, SelectorTerm, nearest, truncate};
use crate::podprobe::index::{InspectedFit, InspectedMarker, InspectedProbe};
use crate::podprobe::marker::{Marker, MarkerProbe};
use crate::podprobe::marks::{self, Mark, Want};
use crate::podprobe::pod::FIELD_MANAGER;
use crate::podprobe::probe::{Handler, Outcome, State};
use crate::podprobe::status::Pending;
use crate::podprobe::verdict::{VERDICT_MESSAGE_BYTES, Verdict};

/// Causes that say no more than that the marker is new.
const OF_NEW_MARKERS: &[CauseReason] = &[
    CauseReason::NotWrittenYet,
    CauseReason::InitialDelay,
    CauseReason::ThresholdNotReached,
    CauseReason::NoVerdict,
];

/// A pod that a marker on trial selects.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TrialPod {
    /// The pod's name.
    pub name: String,
    /// The node it is bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether the marker would match it.
    pub matches: bool,
    /// The causes that would be in the way of its marks, conflicts with other markers included.
    pub causes: Vec<Cause>,
}

/// The pods of a marker's namespace, by whether its selector selects them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TrialPods {
    /// The pods that its selector selects.
    pub selected: Vec<TrialPod>,
    /// How many it does not select.
    pub not_selected: usize,
    /// If it selects none: the pod that comes nearest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<NearestPod>,
}

/// A pod that a selector does not select.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NearestPod {
    /// The pod's name.
    pub name: String,
    /// The requirements of the selector.
    pub terms: Vec<SelectorTerm>,
}

impl NearestPod {
    /// How many requirements do not hold, and how many of these are no typing error.
    fn mismatch_counts(&self) -> (usize, usize) {
        let failing = self.terms.iter().filter(|term| !term.holds);
        let is_near = |term: &SelectorTerm| nearest(&term.term, [term.found.as_str()]).is_some();
        let far = failing.clone().filter(|term| !is_near(term)).count();
        (failing.count(), far)
    }
}

/// A probe to be run once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialRun {
    /// The probe's name.
    pub probe: String,
    /// The container.
    pub container: String,
    /// The probe's action and period, in words.
    pub does: String,
    /// The probe's action, ports as numbers.
    pub handler: Handler,
    /// The time limit of the run.
    pub timeout: Duration,
    /// How many failures in a row turn the verdict to Failed.
    pub failure_threshold: u32,
    /// How many successes in a row turn it to Succeeded.
    pub success_threshold: u32,
}

/// A mark that would change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MarkChange {
    /// `label`, `annotation` or `condition`.
    pub kind: &'static str,
    /// The mark's key or type.
    pub key: String,
    /// The value before the change, of a condition its status. None if the pod lacks the mark.
    pub before: Option<String>,
    /// The value after the change. None if the mark is removed.
    pub after: Option<String>,
    /// The message of a condition; empty for other marks.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The probe that sets it, as `MARKER#PROBE`; None if no marker names it any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_by: Option<String>,
}

impl ObservedObjects {
    /// Puts a marker among those observed, as if it had been applied at `now`. Returns whether it replaces one.
    pub fn propose_marker(&mut self, mut marker: PodProbeMarker, now: Timestamp) -> bool {
        let name = ObjectName::of(&marker.metadata);
        let place = self.markers.iter().position(|known| match known {
            Guarded::Decoded(known) => ObjectName::of(&known.metadata) == name,
            Guarded::Undecodable { metadata, .. } => ObjectName::of(metadata) == name,
        });
        let known = place.map(|place| match self.markers.remove(place) {
            Guarded::Decoded(known) => known.metadata,
            Guarded::Undecodable { metadata, .. } => *metadata,
        });
        let replaces = known.is_some();
        let known = known.unwrap_or_else(|| ObjectMeta {
            // The youngest has the least precedence.
            creation_timestamp: Some(Time(now)),
            ..ObjectMeta::default()
        });
        marker.metadata = ObjectMeta {
            name: Some(name.name),
            namespace: Some(name.namespace),
            uid: Some(known.uid.unwrap_or_else(|| "proposed".to_owned())),
            generation: Some(known.generation.unwrap_or_default() + 1),
            creation_timestamp: known.creation_timestamp,
            ..ObjectMeta::default()
        };
        // Nothing is known of this generation.
        marker.status = Some(PodProbeMarkerStatus::default());
        self.markers.push(Guarded::Decoded(Box::new(marker)));
        replaces
    }

    /// Records outcomes of runs in a pod as its node's agent would report them, were they verdicts.
    pub fn record_outcomes(&mut self, report: &TrialReport<'_>, now: Timestamp) {
        let objects = match &mut self.node_pod_probes {
            Ok(objects) => objects,
            unread => {
                // Objects that could not be read are replaced by one of what was run here.
                *unread = Ok(Vec::new());
                return self.record_outcomes(report, now);
            }
        };
        let place = objects
            .iter()
            .position(|object| object.metadata.name.as_deref() == Some(report.node))
            .unwrap_or_else(|| {
                let mut object = NodePodProbe::new(report.node, NodePodProbeSpec::default());
                object.metadata.uid = Some("proposed".to_owned());
                objects.push(object);
                objects.len() - 1
            });
        let status = objects[place].status.get_or_insert_default();
        let pods = &mut status.pod_probe_statuses;
        let own = pods
            .iter()
            .position(|pod| pod.uid == report.uid)
            .unwrap_or_else(|| {
                pods.push(PodProbeStatus {
                    name: report.pod.name.clone(),
                    namespace: report.pod.namespace.clone(),
                    uid: report.uid.to_owned(),
                    ..PodProbeStatus::default()
                });
                pods.len() - 1
            });
        for (probe, outcome) in &report.outcomes {
            let entry = format!("{}#{probe}", report.marker);
            let pod = &mut pods[own];
            // An earlier report of the probe would count beside the outcome.
            pod.cannot_probe.retain(|one| one.name != entry);
            pod.probe_states.retain(|one| one.name != entry);
            pod.probe_states
                .push(verdict_of_outcome(&entry, outcome, now));
        }
    }
}

/// A verdict from one outcome.
fn verdict_of_outcome(entry: &str, outcome: &Outcome, now: Timestamp) -> ContainerProbeState {
    let (state, message) = match outcome {
        Outcome::Succeeded(message) => (State::Succeeded, message),
        Outcome::Failed(message) => (State::Failed, message),
    };
    ContainerProbeState {
        message: Some(truncate(message, VERDICT_MESSAGE_BYTES).to_owned()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
        // Neither revision nor container: then it counts for the entry and the container that there
        // are.
        ..ContainerProbeState::new(entry, state.as_str())
    }
}

/// The outcomes of the probes of a marker in a pod.
#[derive(Clone, Debug)]
pub struct TrialReport<'a> {
    /// The pod.
    pub pod: &'a ObjectName,
    /// The uid by which its node knows it.
    pub uid: &'a str,
    /// The pod's node.
    pub node: &'a str,
    /// The marker's name.
    pub marker: &'a str,
    /// Probes by name, with their outcomes.
    pub outcomes: Vec<(String, Outcome)>,
}

/// A pod in which probes are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialTarget {
    /// The uid by which its node knows it.
    pub uid: String,
    /// The pod's node.
    pub node: String,
    /// The pod's address; empty without one.
    pub ip: String,
    /// The marker's probes that can be run in the pod.
    pub runs: Vec<TrialRun>,
}

impl ObservedCluster {
    /// Tells which pods of its namespace a marker matches, and what is in the way; for a proposed marker, what would be.
    pub fn try_marker(&self, marker: &ObjectName) -> TrialPods {
        let mut trial = TrialPods::default();
        let mut nearest: Option<((usize, usize), NearestPod)> = None;
        for name in self
            .pods
            .keys()
            .filter(|pod| pod.namespace == marker.namespace)
        {
            let found =
                self.explain_in_context(name, |context| match context.find_trial_pod(marker)? {
                    TrialMatch::Selected(pod) => {
                        trial.selected.push(pod);
                        None
                    }
                    TrialMatch::NotSelected(pod) => Some(pod),
                });
            let Some(pod) = found.flatten() else {
                continue;
            };
            trial.not_selected += 1;
            let distance = pod.mismatch_counts();
            if nearest.as_ref().is_none_or(|(least, _)| distance < *least) {
                nearest = Some((distance, pod));
            }
        }
        if trial.selected.is_empty() {
            trial.nearest = nearest.map(|(_, pod)| pod);
        }
        trial
    }

    /// The probes of a marker that can be run in a pod now. None if the marker does not match it.
    pub fn trial_target(&self, pod: &ObjectName, marker: &ObjectName) -> Option<TrialTarget> {
        self.explain_in_context(pod, |context| {
            let (parsed, probes) = context.matching_marker(marker)?;
            let pairs = parsed.probes.iter().zip(probes);
            let runs = pairs.filter_map(|(probe, known)| context.trial_run_of(probe, known));
            let pod = context.inspected.pod;
            Some(TrialTarget {
                uid: pod.node_uid.to_string(),
                node: pod.node.as_deref()?.to_owned(),
                ip: pod.ip.to_string(),
                runs: runs.collect(),
            })
        })?
    }

    /// The marks of a pod that are to change because of a marker.
    pub fn mark_changes(&self, pod: &ObjectName, marker: &ObjectName) -> Vec<MarkChange> {
        let changes = self.explain_in_context(pod, |context| {
            let marks = context.inspected.marks.iter().filter(|mark| mark.differs);
            let changes = marks.filter_map(|mark| {
                let set_by = mark.setter.and_then(|place| context.probe_name(place));
                let is_own = set_by.as_ref().is_none_or(|name| {
                    name.split_once('#')
                        .is_some_and(|(name, _)| name == marker.name)
                });
                let (after, message) = context.value_after(&mark.mark)?;
                let (kind, key, before) = context.present_value(&mark.mark);
                is_own.then(|| MarkChange {
                    kind,
                    key: key.to_owned(),
                    before,
                    after,
                    message,
                    set_by,
                })
            });
            changes.collect()
        });
        changes.unwrap_or_default()
    }

    fn explain_in_context<T>(
        &self,
        name: &ObjectName,
        ask: impl FnOnce(&PodContext<'_>) -> T,
    ) -> Option<T> {
        let wire = self.pods.get(name)?;
        let inspected = self.machines().inspect_pod(name, self.now)?;
        Some(ask(&PodContext {
            cluster: self,
            wire,
            inspected: &inspected,
        }))
    }
}

/// A pod on trial, by whether a marker's selector selects it.
enum TrialMatch {
    Selected(TrialPod),
    NotSelected(NearestPod),
}

impl PodContext<'_> {
    fn find_trial_pod(&self, marker: &ObjectName) -> Option<TrialMatch> {
        let mut markers = self.inspected.markers.iter();
        let own = markers.find(|one| one.name == marker)?;
        let labels = &self.inspected.pod.labels;
        let label = |key: &str| labels.get(key).map(|value| &**value);
        let name = self.inspected.pod.name.name.clone();
        // Selected and not matched: the pod cannot be probed now, or the marker is stopped. The
        // causes say so.
        let matches = match &own.fit {
            InspectedFit::Matches(..) => true,
            InspectedFit::DoesNotMatch(parsed) | InspectedFit::Stopped(parsed, ..)
                if parsed.selector.matches(label) =>
            {
                false
            }
            InspectedFit::DoesNotMatch(parsed) | InspectedFit::Stopped(parsed, ..) => {
                let terms = self.selector_terms(&parsed.selector);
                return Some(TrialMatch::NotSelected(NearestPod { name, terms }));
            }
            InspectedFit::Invalid(_) | InspectedFit::Deleting => return None,
        };
        Some(TrialMatch::Selected(TrialPod {
            name,
            node: self.inspected.pod.node.as_deref().map(str::to_owned),
            matches,
            causes: self.causes_of(own),
        }))
    }

    /// The causes in the way of a marker in this pod, and of others because of it.
    fn causes_of(&self, marker: &InspectedMarker<'_>) -> Vec<Cause> {
        let name = &marker.name.name;
        let concerns = |cause: &Cause| match &cause.marker {
            None => true,
            Some(of) if of == name => true,
            Some(_) => {
                // The marker takes a mark from another one. Such a cause is the loser's; the winner
                // is in its message alone.
                let by = format!(" is set by {name}#");
                cause.reason == CauseReason::Conflict && cause.message.contains(&by)
            }
        };
        let mut causes = self.all_causes();
        causes.retain(|cause| concerns(cause) && !OF_NEW_MARKERS.contains(&cause.reason));
        if let InspectedFit::Matches(parsed, probes) = &marker.fit {
            let pairs = parsed.probes.iter().zip(probes);
            let waiting =
                pairs
                    .filter(|(_, known)| self.lacks_container(known))
                    .map(|(probe, _)| {
                        self.container_not_running_cause(probe)
                            .with_origin(parsed, Some(probe))
                    });
            for cause in waiting {
                if !causes.contains(&cause) {
                    causes.push(cause);
                }
            }
        }
        causes
    }

    fn matching_marker(&self, marker: &ObjectName) -> Option<(&Marker, &[InspectedProbe])> {
        let mut markers = self.inspected.markers.iter();
        let own = markers.find(|one| one.name == marker)?;
        match &own.fit {
            InspectedFit::Matches(parsed, probes) => Some((parsed, probes)),
            _ => None,
        }
    }

    /// Whether a probe's container exists and does not run.
    fn lacks_container(&self, known: &InspectedProbe) -> bool {
        let entry = known.entry.as_ref().ok();
        let container = entry.and_then(|entry| self.container_of_entry(entry));
        container.is_some_and(|container| container.running_since.is_none())
    }

    /// A run of a probe, if one is possible.
    fn trial_run_of(&self, probe: &MarkerProbe, known: &InspectedProbe) -> Option<TrialRun> {
        let resolved = known.entry.as_ref().ok()?.probe.as_ref()?;
        let is_providers = matches!(
            known.cause,
            Some(Pending::VirtualNode | Pending::AwaitingProvider | Pending::NoConditionType)
        );
        if is_providers || self.lacks_container(known) {
            return None;
        }
        Some(TrialRun {
            probe: probe.name.to_string(),
            container: probe.container.to_string(),
            does: words::describe_probe(probe),
            handler: resolved.handler.clone(),
            timeout: resolved.timeout(),
            failure_threshold: resolved.failure_threshold.get(),
            success_threshold: resolved.success_threshold.get(),
        })
    }

    /// The value of a mark that is to be written, of a condition with its message. None if it stays as it is.
    fn value_after(&self, mark: &Mark) -> Option<(Option<String>, String)> {
        let wants = &self.inspected.wants;
        let pair = |value: &Arc<str>| (value.to_string(), String::new());
        let condition = |verdict: &Verdict| {
            let status = marks::condition_status(verdict.state).to_owned();
            (status, verdict.message.to_string())
        };
        match mark {
            Mark::Label(key) => self.change_after(mark, wants.labels.get(key), pair),
            Mark::Annotation(key) => self.change_after(mark, wants.annotations.get(key), pair),
            Mark::Condition(kind) => self.change_after(mark, wants.conditions.get(kind), condition),
        }
    }

    fn change_after<T>(
        &self,
        mark: &Mark,
        want: Option<&Want<T>>,
        show: impl Fn(&T) -> (String, String),
    ) -> Option<(Option<String>, String)> {
        match want {
            Some(Want::Value(value)) => {
                let (value, message) = show(value);
                Some((Some(value), message))
            }
            Some(Want::Absent) => Some((None, String::new())),
            Some(Want::Hold) => None,
            // We give it up: it goes if nobody else owns it.
            Some(Want::Leave) | None => {
                let owners = self.owners_of(mark);
                let stays = owners.iter().any(|owner| owner.manager != FIELD_MANAGER);
                (!stays).then(|| (None, String::new()))
            }
        }
    }
}

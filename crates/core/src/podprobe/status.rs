//! A marker's status: counts of its pods by verdict, and the condition `Ready` with what is wrong.
//!
//! The counts are incremental: a pod's contribution to the tally of each marker that matches it is added once, and
//! removed or replaced when it changes, so that a status costs no walk over the marker's pods.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use leadsman_api::PodProbeMarkerStatus;
use leadsman_api::marker::{ExclusiveHolder, ProbeSummary};

use super::marker::MARKERS_PER_POD;
use super::probe::State;
use crate::cluster::{truncate, whole_seconds};

/// The type of the one condition that we write.
pub const READY: &str = "Ready";
/// The reason of a marker with which nothing is wrong.
pub(super) const PROBING: &str = "Probing";

/// Why a marker is not Ready. In the order of this enum: the condition's reason is the first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trouble {
    /// The marker breaks a rule, or the API server rejects the marks that it writes.
    InvalidSpec,
    /// The marker's verdicts would change which pods it matches.
    Cycle,
    /// An older marker, or an earlier probe of this one, sets one of its marks.
    Conflict,
    /// A value in the output of a probe is not valid where a policy uses it.
    InvalidValue {
        /// The probe.
        probe: Arc<str>,
    },
    /// A matching pod has no container or native sidecar of this name.
    ContainerNotFound {
        /// The probe.
        probe: Arc<str>,
        /// The container that it names.
        container: Arc<str>,
    },
    /// A container has no port of that name.
    PortNotFound {
        /// The probe.
        probe: Arc<str>,
        /// The container.
        container: Arc<str>,
        /// The port that the probe names.
        port: Arc<str>,
    },
    /// A probe of a pod on a virtual node has no condition type, the only way in which the provider can report.
    NoConditionType {
        /// The probe.
        probe: Arc<str>,
    },
    /// A pod has more than [`MARKERS_PER_POD`] matching markers, the namespace has too many older ones, or no space is left in
    /// a node's `NodePodProbe` or in the annotation of a pod on a virtual node.
    TooManyProbes,
    /// The `NodePodProbe` of a matching pod's node cannot be written: the API server rejects it, or a finalizer holds
    /// it.
    Refused,
    /// The node of a matching pod does not exist.
    NoNode,
    /// A matching pod is on a virtual node, which has no agent.
    VirtualNode,
    /// No agent runs on a matching pod's node, and nobody has acknowledged its `NodePodProbe`.
    NoAgent,
    /// The agent on a matching pod's node has stopped reporting.
    AgentSilent,
    /// The agent reports that it cannot run a probe, and why.
    CannotProbe,
    /// A probe needs the pod's IP address, and the running pod has none.
    NoAddress,
    /// Another client keeps removing or changing its marks, or its entries in a node's `NodePodProbe`.
    Contested,
}

impl Trouble {
    /// The condition's reason.
    pub fn as_reason(&self) -> &'static str {
        match self {
            Self::InvalidSpec => "InvalidSpec",
            Self::Cycle => "Cycle",
            Self::Conflict => "Conflict",
            Self::InvalidValue { .. } => "InvalidValue",
            Self::ContainerNotFound { .. } => Pending::ContainerNotFound.as_str(),
            Self::PortNotFound { .. } => Pending::PortNotFound.as_str(),
            Self::NoConditionType { .. } => "NoConditionType",
            Self::TooManyProbes => Pending::TooManyProbes.as_str(),
            Self::Refused => Pending::Refused.as_str(),
            Self::NoNode => Pending::NoNode.as_str(),
            Self::VirtualNode => Pending::VirtualNode.as_str(),
            Self::NoAgent => Pending::NoAgent.as_str(),
            Self::AgentSilent => Pending::AgentSilent.as_str(),
            Self::CannotProbe => Pending::CannotProbe.as_str(),
            Self::NoAddress => Pending::NoAddress.as_str(),
            Self::Contested => Pending::Contested.as_str(),
        }
    }

    /// The condition's message: what is wrong with `subjects`, and what to do about it.
    pub fn to_message(&self, subjects: &str) -> String {
        match self {
            Self::InvalidSpec => {
                format!(
                    "the API server rejects the marks that this marker writes; correct its labels, annotations or condition types: {subjects}"
                )
            }
            Self::Cycle => {
                format!("stopped: its verdicts would change which pods it matches: {subjects}")
            }
            Self::Conflict => format!(
                "another marker or an earlier probe sets the same label, annotation or condition type; rename it in one of them or delete one: {subjects}"
            ),
            Self::InvalidValue { probe } => format!(
                "probe {probe}: a value in its output is not valid where a policy uses it, so the mark is absent; correct the output or narrow output.matches: {subjects}"
            ),
            Self::ContainerNotFound { probe, container } => format!(
                "probe {probe}: no container or native sidecar named {container}; correct containerName or the selector (pods {subjects})"
            ),
            Self::PortNotFound {
                probe,
                container,
                port,
            } => format!(
                "probe {probe}: container {container} has no port named {port}; name it in the pod's ports or use its number (pods {subjects})"
            ),
            Self::NoConditionType { probe } => format!(
                "probe {probe}: podConditionType is required on virtual nodes, whose provider reports by conditions only; set it (pods {subjects})"
            ),
            Self::TooManyProbes => format!(
                "more than {MARKERS_PER_POD} markers match the pod, or no space is left in the NodePodProbe of the pod's node (512 KiB, of which each namespace has a share), or on a virtual node in the pod's annotations (128 KiB, or what the others leave of 224 KiB); merge markers, probe fewer pods, spread them over more nodes or shorten their annotations: {subjects}"
            ),
            Self::Refused => format!(
                "the NodePodProbe of the pod's node cannot be written; check for an admission webhook, a policy, an outdated CRD or a finalizer: {subjects}"
            ),
            Self::NoNode => {
                format!(
                    "the pod's node does not exist; delete the pod or restore the node: {subjects}"
                )
            }
            Self::VirtualNode => format!(
                "pods on a virtual node (label type=virtual-kubelet) are not probed without the feature gate EnablePodProbeMarkerOnServerless; enable it or exclude the pods by the selector: {subjects}"
            ),
            Self::NoAgent => format!(
                "no leadsman agent responds on the pod's node; check that the agents' DaemonSet has a running pod there: {subjects}"
            ),
            Self::AgentSilent => format!(
                "the agent on the pod's node has stopped reporting; check that its pod is running and Ready: {subjects}"
            ),
            Self::CannotProbe => format!(
                "the agent cannot run a probe, so its last verdict and marks stay: {subjects}"
            ),
            Self::NoAddress => format!(
                "the pod is running without an IP address to probe; check the node's network (CNI) or use exec: {subjects}"
            ),
            Self::Contested => format!(
                "another client or an admission webhook keeps removing or changing what is written; look for its field manager in managedFields: {subjects}"
            ),
        }
    }
}

/// Why a probe of a matching pod has no verdict. Every pending probe has one of these reasons; a pod counts under the
/// first of its probes' reasons in the order of this enum. The last three resolve by themselves, each of the others is
/// also a [`Trouble`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pending {
    /// [`Trouble::Conflict`]
    Conflict,
    /// [`Trouble::ContainerNotFound`]
    ContainerNotFound,
    /// [`Trouble::PortNotFound`]
    PortNotFound,
    /// [`Trouble::NoConditionType`]
    NoConditionType,
    /// [`Trouble::TooManyProbes`]
    TooManyProbes,
    /// [`Trouble::Refused`]
    Refused,
    /// [`Trouble::NoNode`]
    NoNode,
    /// [`Trouble::VirtualNode`]
    VirtualNode,
    /// [`Trouble::NoAgent`]
    NoAgent,
    /// [`Trouble::AgentSilent`]
    AgentSilent,
    /// [`Trouble::CannotProbe`]
    CannotProbe,
    /// [`Trouble::NoAddress`]
    NoAddress,
    /// [`Trouble::Contested`]
    Contested,
    /// The container's startup probe has not passed yet.
    StartupProbe,
    /// The container has yet to start, or its first run or first verdict is still due.
    Starting,
    /// The provider of a virtual node has not reported the probe's condition yet.
    AwaitingProvider,
}

impl Pending {
    /// The reason's name in a marker's status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "Conflict",
            Self::ContainerNotFound => "ContainerNotFound",
            Self::PortNotFound => "PortNotFound",
            Self::NoConditionType => "NoConditionType",
            Self::TooManyProbes => "TooManyProbes",
            Self::Refused => "Refused",
            Self::NoNode => "NoNode",
            Self::VirtualNode => "VirtualNode",
            Self::NoAgent => "NoAgent",
            Self::AgentSilent => "AgentSilent",
            Self::CannotProbe => "CannotProbe",
            Self::NoAddress => "NoAddress",
            Self::Contested => "Contested",
            Self::StartupProbe => "StartupProbe",
            Self::Starting => "Starting",
            Self::AwaitingProvider => "AwaitingProvider",
        }
    }
}

/// The contribution of one pod to the tally of one marker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodContribution {
    /// The contributions to the summaries of the marker's probes, in the order of these.
    pub probes: Vec<ProbeContribution>,
    /// The troubles, each with its subject: the pod, or the marker that wins a conflict. Sorted, without duplicates.
    pub troubles: Vec<(Trouble, Arc<str>)>,
    /// The first reason, in the order of [`Pending`], among its probes without a verdict. None if all have one.
    pub pending: Option<Pending>,
}

/// The contribution of one pod to the summary of one probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeContribution {
    /// The verdict's state; None while there is no verdict.
    pub state: Option<State>,
    /// Whether the node's agent has stopped reporting.
    pub silent: bool,
}

/// The sum of what all matching pods contribute to a marker's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    matched: i64,
    probes: Vec<ProbeSummary>,
    /// Number of pods that lack a verdict of some probe, by the reason.
    pending: BTreeMap<Pending, i64>,
    /// How many pods contribute each subject of each trouble.
    troubles: BTreeMap<Trouble, BTreeMap<Arc<str>, usize>>,
}

impl Tally {
    /// An empty tally for probes of these names, in the order of the marker.
    pub fn new<'a>(probes: impl IntoIterator<Item = &'a str>) -> Self {
        let probes = probes.into_iter().map(|name| ProbeSummary {
            name: name.to_owned(),
            ..ProbeSummary::default()
        });
        Self {
            probes: probes.collect(),
            ..Self::default()
        }
    }

    /// Adds a pod's contribution. None if the marker is beyond those of which the pod may have probes.
    pub fn add_pod(&mut self, contribution: Option<&PodContribution>) {
        let Some(contribution) = contribution else {
            let contribution = self.surplus_contribution();
            return self.add_pod(Some(&contribution));
        };
        self.count_pod(contribution, 1);
        for (trouble, subject) in &contribution.troubles {
            let subjects = self.troubles.entry(trouble.clone()).or_default();
            *subjects.entry(subject.clone()).or_default() += 1;
        }
    }

    /// Removes a contribution that was added before.
    pub fn remove_pod(&mut self, contribution: Option<&PodContribution>) {
        let Some(contribution) = contribution else {
            let contribution = self.surplus_contribution();
            return self.remove_pod(Some(&contribution));
        };
        self.count_pod(contribution, -1);
        for (trouble, subject) in &contribution.troubles {
            let subjects = self.troubles.get_mut(trouble);
            debug_assert!(
                (subjects.as_ref()).is_some_and(|subjects| subjects.contains_key(subject)),
                "a contribution was removed that was not added"
            );
            let Some(subjects) = subjects else {
                continue;
            };
            if let Some(count) = subjects.get_mut(subject) {
                *count -= 1;
                if *count == 0 {
                    subjects.remove(subject);
                }
            }
            if subjects.is_empty() {
                self.troubles.remove(trouble);
            }
        }
    }

    /// The contribution of each pod that may have no probes of this marker, as too many older ones match it. The subject names
    /// no pod: there would be one for each pair of marker and pod.
    fn surplus_contribution(&self) -> PodContribution {
        let subject = format!("pods that {MARKERS_PER_POD} older markers match");
        PodContribution {
            probes: vec![ProbeContribution::default(); self.probes.len()],
            troubles: vec![(Trouble::TooManyProbes, subject.into())],
            pending: Some(Pending::TooManyProbes),
        }
    }

    fn count_pod(&mut self, contribution: &PodContribution, by: i64) {
        self.matched += by;
        if let Some(pending) = contribution.pending {
            let count = self.pending.entry(pending).or_default();
            *count += by;
            debug_assert!(*count >= 0, "a contribution was removed that was not added");
            if *count == 0 {
                self.pending.remove(&pending);
            }
        }
        debug_assert!(
            self.matched >= 0,
            "a contribution was removed that was not added"
        );
        for (summary, probe) in self.probes.iter_mut().zip(&contribution.probes) {
            match probe.state {
                Some(State::Succeeded) => summary.succeeded += by,
                Some(State::Failed) => summary.failed += by,
                Some(State::Unknown) => summary.unknown += by,
                None => summary.pending += by,
            }
            summary.silent += i64::from(probe.silent) * by;
        }
    }

    /// The first trouble, if there is one, and the message of the condition.
    fn summarize_trouble(&self) -> (Option<&Trouble>, String) {
        let Some(first) = self.troubles.keys().next() else {
            let message = match self.matched {
                0 => "no pod matches".to_owned(),
                _ => self.describe_progress(),
            };
            return (None, message);
        };
        // Troubles of one reason differ in the probe that they name: one message for each of up to three probes.
        let alike = self
            .troubles
            .iter()
            .take_while(|(trouble, _)| trouble.as_reason() == first.as_reason());
        let mut messages: Vec<_> = alike
            .take(3)
            .map(|(trouble, subjects)| trouble.to_message(&first_three(subjects)))
            .collect();
        if !self.pending.is_empty() {
            messages.push(self.describe_progress());
        }
        (Some(first), messages.join("; "))
    }

    /// How many matching pods have all their verdicts, and why the others lack some.
    fn describe_progress(&self) -> String {
        if self.pending.is_empty() {
            return "all matching pods have their verdicts".to_owned();
        }
        let pending: i64 = self.pending.values().sum();
        let reasons: Vec<_> = self
            .pending
            .iter()
            .map(|(pending, count)| format!("{count} {}", pending.as_str()))
            .collect();
        let (matched, probed) = (self.matched, self.matched - pending);
        let reasons = reasons.join(", ");
        format!(
            "{probed} of {matched} matching pods have their verdicts; {pending} pending: {reasons}"
        )
    }
}

fn first_three(subjects: &BTreeMap<Arc<str>, usize>) -> String {
    let mut text = String::new();
    for (place, subject) in subjects.keys().take(3).enumerate() {
        text.push_str(if place > 0 { ", " } else { "" });
        text.push_str(subject);
    }
    if subjects.len() > 3 {
        // Writing to a String cannot fail.
        let _ = write!(text, " and {} more", subjects.len() - 3);
    }
    text
}

/// Bytes of the condition's message. A condition may have 32,768 characters (`metav1.Condition`,
/// `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`); the message of a rejected write, which goes into it, has no bound.
const CONDITION_MESSAGE_BYTES: usize = 4096;

/// The inputs of a marker's status besides the tally.
pub struct StatusInputs<'a> {
    /// The marker's generation.
    pub generation: i64,
    /// Whether every `NodePodProbe` reflects this generation.
    pub acknowledged: bool,
    /// The trouble and message of a marker that is not acted on at all.
    pub refused: Option<(&'a Trouble, &'a str)>,
    /// The status observed last.
    pub status: &'a PodProbeMarkerStatus,
    /// The pods that have exclusive values, by the name of the probe.
    pub holders: &'a BTreeMap<Arc<str>, Vec<ExclusiveHolder>>,
    /// Whether the API server keeps `probes` and `conditions`: `OpenKruise`'s CRD has neither field.
    pub summaries: bool,
}

/// The status to be written; None if the observed one is equal.
pub fn diff_status(
    tally: &Tally,
    inputs: &StatusInputs<'_>,
    now: Timestamp,
) -> Option<PodProbeMarkerStatus> {
    let observed = inputs.status;
    let (trouble, message) = match inputs.refused {
        Some((trouble, message)) => (Some(trouble), message.to_owned()),
        None => tally.summarize_trouble(),
    };
    let status = if trouble.is_none() { "True" } else { "False" };
    let reason = trouble.map_or(PROBING, Trouble::as_reason);
    // Clients wait for `observedGeneration`: it must not be ahead of the objects of the nodes.
    let generation = if inputs.acknowledged {
        inputs.generation
    } else {
        observed.observed_generation
    };
    let mut conditions = observed.conditions.clone();
    let place = conditions.iter().position(|one| one.type_ == READY);
    let before = place.map(|place| conditions.remove(place));
    // The time is of the last change of status, not of reason or message (`Condition`,
    // k8s.io/apimachinery/pkg/apis/meta/v1/types.go).
    let unchanged = before.filter(|before| before.status == status);
    let ready = Condition {
        type_: READY.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: truncate(&message, CONDITION_MESSAGE_BYTES).to_owned(),
        observed_generation: Some(generation),
        last_transition_time: unchanged.map_or_else(
            || Time(whole_seconds(now)),
            |before| before.last_transition_time,
        ),
    };
    // A JSON merge patch replaces a list as a whole (RFC 7396): conditions of other writers have to stay in it.
    conditions.insert(place.unwrap_or(conditions.len()), ready);
    let mut desired = PodProbeMarkerStatus {
        observed_generation: generation,
        matched_pods: Some(tally.matched),
        probes: tally.probes.clone(),
        conditions,
    };
    for probe in &mut desired.probes {
        let holders = inputs.holders.get(probe.name.as_str());
        probe.holders = holders.cloned().unwrap_or_default();
    }
    if desired.probes.is_empty() || !inputs.summaries {
        // An empty list is left out of the patch, which therefore cannot clear the observed one.
        desired.probes.clone_from(&observed.probes);
    }
    if !inputs.summaries {
        desired.conditions.clone_from(&observed.conditions);
    }
    (desired != *observed).then_some(desired)
}

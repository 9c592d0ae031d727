//! A marker's status: counts of its pods by verdict, and one condition that says whether it works.
//!
//! The counts are kept up by differences: each pod has a contribution in the tally of each marker that matches it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use leadsman_api::PodProbeMarkerStatus;
use leadsman_api::marker::ProbeSummary;

use super::probe::State;
use crate::cluster::{truncate, whole_seconds};

/// Why a marker does not work, the weightiest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trouble {
    /// It, or what it would write, breaks a rule.
    InvalidSpec,
    /// Its verdicts would change what it matches.
    Cycle,
    /// An older marker, or an earlier probe, has one of its marks.
    Conflict,
    /// A matching pod has no such container.
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
    /// A probe of a pod on a virtual node names no condition by which the provider could report.
    NoConditionType {
        /// The probe.
        probe: Arc<str>,
    },
    /// A node's object is full.
    TooManyProbes,
    /// The API server refuses the object of a matching pod's node.
    Refused,
    /// The node of a matching pod does not exist.
    NoNode,
    /// A matching pod is on a virtual node, which has no agent.
    VirtualNode,
    /// Nothing on a matching pod's node takes up what is asked of it.
    NoAgent,
    /// The agent of a matching pod's node does not report any more.
    AgentSilent,
    /// The agent cannot run a probe, and says why.
    CannotProbe,
    /// A probe over the network, and the running pod has no address.
    NoAddress,
    /// Somebody keeps taking its marks away.
    Contested,
}

impl Trouble {
    /// The condition's reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidSpec => "InvalidSpec",
            Self::Cycle => "Cycle",
            Self::Conflict => "Conflict",
            Self::ContainerNotFound { .. } => Pending::ContainerNotFound.reason(),
            Self::PortNotFound { .. } => Pending::PortNotFound.reason(),
            Self::NoConditionType { .. } => "NoConditionType",
            Self::TooManyProbes => Pending::TooManyProbes.reason(),
            Self::Refused => Pending::Refused.reason(),
            Self::NoNode => Pending::NoNode.reason(),
            Self::VirtualNode => Pending::VirtualNode.reason(),
            Self::NoAgent => Pending::NoAgent.reason(),
            Self::AgentSilent => Pending::AgentSilent.reason(),
            Self::CannotProbe => Pending::CannotProbe.reason(),
            Self::NoAddress => Pending::NoAddress.reason(),
            Self::Contested => "Contested",
        }
    }

    /// What is wrong with `subjects`, and what to do about it.
    fn message(&self, subjects: &str) -> String {
        match self {
            Self::InvalidSpec => {
                format!("the API server refuses what this marker writes; correct it: {subjects}")
            }
            Self::Cycle => format!("its verdicts would change what it matches: {subjects}"),
            Self::Conflict => format!(
                "another marker or an earlier probe already sets one of its labels, annotations or condition types; rename it or delete one: {subjects}"
            ),
            Self::ContainerNotFound { probe, container } => format!(
                "probe {probe}: no container {container} that stays running; correct containerName or the selector (pods {subjects})"
            ),
            Self::PortNotFound {
                probe,
                container,
                port,
            } => format!(
                "probe {probe}: container {container} has no port {port}; name it in the pod's ports or use its number (pods {subjects})"
            ),
            Self::NoConditionType { probe } => format!(
                "probe {probe}: the provider of a virtual node reports by conditions alone; set podConditionType (pods {subjects})"
            ),
            Self::TooManyProbes => format!(
                "the NodePodProbe of the node is full (512 KiB, or this namespace's contribution of it), or on a virtual node the pod's annotation (128 KiB); probe fewer pods or spread them over more nodes: {subjects}"
            ),
            Self::Refused => format!(
                "the API server refuses the NodePodProbe of the pod's node; see whether a webhook, a policy or an older CRD is in the way: {subjects}"
            ),
            Self::NoNode => {
                format!(
                    "the pod's node does not exist; delete the pod or bring the node back: {subjects}"
                )
            }
            Self::VirtualNode => format!(
                "pods on a virtual node (label type=virtual-kubelet) are not probed without the feature gate EnablePodProbeMarkerOnServerless; set it or let the selector leave them out: {subjects}"
            ),
            Self::NoAgent => format!(
                "no leadsman agent answers on the pod's node; see that the agents' DaemonSet runs there: {subjects}"
            ),
            Self::AgentSilent => format!(
                "the agent on the pod's node does not report; see that it runs and is Ready: {subjects}"
            ),
            Self::CannotProbe => format!("the agent cannot run a probe: {subjects}"),
            Self::NoAddress => format!(
                "the pod runs without an address to probe; see to the node's network or use exec: {subjects}"
            ),
            Self::Contested => format!(
                "somebody keeps taking marks away or changing them back; find out who writes them: {subjects}"
            ),
        }
    }
}

/// Why a probe of a matching pod has no verdict, the weightiest first: a closed list, so that pending is never silent.
/// The last three are over by themselves, the others are [`Trouble`].
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
    /// The container's startup probe has not passed yet.
    StartupProbe,
    /// The container, its first run or its first verdict is on its way.
    Starting,
    /// The provider of a virtual node has not reported the probe's condition yet.
    AwaitingProvider,
}

impl Pending {
    fn reason(self) -> &'static str {
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
            Self::StartupProbe => "StartupProbe",
            Self::Starting => "Starting",
            Self::AwaitingProvider => "AwaitingProvider",
        }
    }
}

/// One pod's part in a marker's tally.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodContribution {
    /// For each probe of the marker.
    pub probes: Vec<ProbeContribution>,
    /// What is wrong, and with what: a pod, or the marker that goes first. Without repetitions.
    pub troubles: Vec<(Trouble, Arc<str>)>,
    /// The weightiest reason among its probes without a verdict. None if all have one.
    pub pending: Option<Pending>,
}

/// One pod's part in the tally of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeContribution {
    /// None while there is no verdict.
    pub state: Option<State>,
    /// Whether the node's agent does not report.
    pub silent: bool,
}

/// The sum of all contributions in a marker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    matched: i64,
    probes: Vec<ProbeSummary>,
    /// Pods without a verdict of each probe, by the reason.
    pending: BTreeMap<Pending, i64>,
    troubles: BTreeMap<Trouble, BTreeMap<Arc<str>, usize>>,
}

impl Tally {
    /// Nothing counted yet for probes of these names.
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

    /// Counts a pod in.
    pub fn add(&mut self, contribution: &PodContribution) {
        self.count(contribution, 1);
        for (trouble, subject) in &contribution.troubles {
            let subjects = self.troubles.entry(trouble.clone()).or_default();
            *subjects.entry(subject.clone()).or_default() += 1;
        }
    }

    /// Counts out a pod that was counted in with this contribution.
    pub fn remove(&mut self, contribution: &PodContribution) {
        self.count(contribution, -1);
        for (trouble, subject) in &contribution.troubles {
            let Some(subjects) = self.troubles.get_mut(trouble) else {
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

    fn count(&mut self, contribution: &PodContribution, by: i64) {
        self.matched += by;
        if let Some(pending) = contribution.pending {
            let count = self.pending.entry(pending).or_default();
            *count += by;
            debug_assert!(*count >= 0, "a pod was counted out that was not counted in");
            if *count == 0 {
                self.pending.remove(&pending);
            }
        }
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

    /// The status and message of the condition, by the weightiest trouble.
    fn verdict(&self) -> (Option<&Trouble>, String) {
        let Some(first) = self.troubles.keys().next() else {
            let message = match self.matched {
                0 => "no pod matches".to_owned(),
                _ => self.progress(),
            };
            return (None, message);
        };
        // One for each probe that lacks something.
        let alike = self.troubles.iter();
        let alike = alike.take_while(|(trouble, _)| trouble.reason() == first.reason());
        let mut messages: Vec<_> = alike
            .take(3)
            .map(|(trouble, subjects)| trouble.message(&first_three(subjects)))
            .collect();
        if !self.pending.is_empty() {
            messages.push(self.progress());
        }
        (Some(first), messages.join("; "))
    }

    /// How many matching pods have a verdict, and why the others have none.
    fn progress(&self) -> String {
        if self.pending.is_empty() {
            return "all matching pods are probed".to_owned();
        }
        let pending: i64 = self.pending.values().sum();
        let reasons = self.pending.iter();
        let reasons: Vec<_> = reasons
            .map(|(pending, count)| format!("{count} {}", pending.reason()))
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
/// `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`); what a refused write is answered with may take any number.
const MESSAGE_BYTES: usize = 4096;

/// What is observed of a marker that its status depends on.
pub struct StatusInputs<'a> {
    /// Its generation.
    pub generation: i64,
    /// Whether every `NodePodProbe` says what this generation wants.
    pub acknowledged: bool,
    /// Why it is not acted on at all, if so.
    pub refused: Option<(&'a Trouble, &'a str)>,
    /// Its status.
    pub status: &'a PodProbeMarkerStatus,
    /// False where the API server drops probes and conditions from it.
    pub summaries: bool,
}

/// The status due, none if the observed one says the same.
pub fn difference(
    tally: &Tally,
    inputs: &StatusInputs<'_>,
    now: Timestamp,
) -> Option<PodProbeMarkerStatus> {
    let observed = inputs.status;
    let (trouble, message) = match inputs.refused {
        Some((trouble, message)) => (Some(trouble), message.to_owned()),
        None => tally.verdict(),
    };
    let status = if trouble.is_none() { "True" } else { "False" };
    let reason = trouble.map_or("Probing", Trouble::reason);
    let generation = if inputs.acknowledged {
        inputs.generation
    } else {
        observed.observed_generation
    };
    let mut conditions = observed.conditions.clone();
    let place = conditions.iter().position(|one| one.type_ == "Ready");
    let before = place.map(|place| conditions.remove(place));
    let unchanged = before.filter(|before| before.status == status);
    let ready = Condition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: truncate(&message, MESSAGE_BYTES).to_owned(),
        observed_generation: Some(generation),
        last_transition_time: unchanged.map_or_else(
            || Time(whole_seconds(now)),
            |before| before.last_transition_time,
        ),
    };
    // The patch replaces the list: conditions of others stay in it.
    conditions.insert(place.unwrap_or(conditions.len()), ready);
    let mut desired = PodProbeMarkerStatus {
        observed_generation: generation,
        matched_pods: Some(tally.matched),
        probes: tally.probes.clone(),
        conditions,
    };
    if desired.probes.is_empty() || !inputs.summaries {
        // An empty list is not written, so what is there cannot be emptied.
        desired.probes.clone_from(&observed.probes);
    }
    if !inputs.summaries {
        desired.conditions.clone_from(&observed.conditions);
    }
    (desired != *observed).then_some(desired)
}

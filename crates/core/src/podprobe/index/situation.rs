//! Why a probe of a matching pod has no verdict, as the marker's status counts and names it.

use std::sync::Arc;

use super::nodes::{Absence, AgentState, NodeView};
use crate::podprobe::marker::{MARKERS_PER_POD, MarkerProbe};
use crate::podprobe::plan::{Entry, Gap};
use crate::podprobe::pod::IndexedPod;
use crate::podprobe::probe::State;
use crate::podprobe::serverless::NotInjected;
use crate::podprobe::status::{Pending, PodContribution, ProbeContribution, Trouble};
use crate::podprobe::template::HandlerTemplate;

/// The party that runs a probe.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProbedBy<'a> {
    /// The agent of the node.
    Agent,
    /// The provider of a virtual node, or why it is not asked.
    Provider(Option<&'a NotInjected>),
}

/// The facts that all probes of one pod have in common.
pub(super) struct PodSituation<'a> {
    pod: &'a IndexedPod,
    node: NodeView<'a>,
    /// Why the object of the node was refused.
    refused_object: Option<&'a Arc<str>>,
    absence: Option<Pending>,
    agent: AgentState,
}

impl<'a> PodSituation<'a> {
    pub(super) fn new(
        pod: &'a IndexedPod,
        node: NodeView<'a>,
        refused_object: Option<&'a Arc<str>>,
    ) -> Self {
        let absence = match node.reason_for_absence() {
            Some(Absence::NoNode) => Some(Pending::NoNode),
            Some(Absence::VirtualNode) => Some(Pending::VirtualNode),
            Some(Absence::NoRoom) => Some(Pending::TooManyProbes),
            Some(Absence::BeingDeleted) => Some(Pending::Refused),
            None => (refused_object.is_some() && node.has_unapplied_entries())
                .then_some(Pending::Refused),
        };
        Self {
            pod,
            node,
            refused_object,
            absence,
            agent: node.agent_state(),
        }
    }

    /// Adds a probe to the pod's contribution to its marker's tally.
    pub(super) fn count_probe(
        &self,
        contribution: &mut PodContribution,
        probe: &MarkerProbe,
        entry: &Result<Entry, Gap>,
        (prober, state): (ProbedBy<'_>, Option<State>),
    ) {
        let cause = self.pending_cause(probe, entry, (prober, state));
        contribution.probes.push(ProbeContribution {
            state,
            silent: cause == Some(Pending::AgentSilent),
        });
        if state.is_none() {
            contribution.pending = contribution.pending.into_iter().chain(cause).min();
        }
        let trouble = cause.and_then(|cause| self.trouble_of_cause(cause, probe, entry));
        contribution.troubles.extend(trouble);
    }

    /// Why a probe has no verdict, or none that anybody keeps up to date.
    pub(super) fn pending_cause(
        &self,
        probe: &MarkerProbe,
        entry: &Result<Entry, Gap>,
        (prober, state): (ProbedBy<'_>, Option<State>),
    ) -> Option<Pending> {
        // The bound holds whoever would run the probe.
        if let Err(Gap::TooManyMarkers) = entry {
            return Some(Pending::TooManyProbes);
        }
        match (prober, state) {
            (ProbedBy::Provider(obstacle), None) => Some(pending_at_provider(obstacle)),
            (ProbedBy::Provider(_), Some(_)) => None,
            (ProbedBy::Agent, None) => Some(self.cause_before_verdict(probe, entry)),
            // The last report is still there, but nobody keeps it up to date.
            (ProbedBy::Agent, Some(_)) if self.agent == AgentState::Silent => {
                Some(Pending::AgentSilent)
            }
            (ProbedBy::Agent, Some(_)) => self
                .node
                .obstacle_of_entry(&probe.entry)
                .map(|_| Pending::CannotProbe),
        }
    }

    fn cause_before_verdict(&self, probe: &MarkerProbe, entry: &Result<Entry, Gap>) -> Pending {
        let entry = match entry {
            Err(Gap::ContainerNotFound) => return Pending::ContainerNotFound,
            Err(Gap::PortNotFound(_)) => return Pending::PortNotFound,
            // The state of the node's agent does not matter: the kubelet runs startup probes.
            Err(Gap::NotStarted) => return Pending::StartupProbe,
            Err(Gap::TooManyMarkers) => return Pending::TooManyProbes,
            Ok(entry) => entry,
        };
        // The order is from the outside in: while the object cannot have the entry, it does not
        // matter what the agent does.
        if let Some(absence) = self.absence {
            return absence;
        }
        match self.agent {
            AgentState::Silent => return Pending::AgentSilent,
            AgentState::NoAgent => return Pending::NoAgent,
            AgentState::Reporting => {}
        }
        if self.node.obstacle_of_entry(&probe.entry).is_some() {
            return Pending::CannotProbe;
        }
        let needs_address = entry
            .probe
            .as_ref()
            .is_some_and(|probe| probe.handler.needs_address());
        // A pod that only begins to run gets its address with its containers.
        if needs_address && self.pod.ip.is_empty() && self.has_container(entry) {
            return Pending::NoAddress;
        }
        if self.node.is_contested() {
            return Pending::Contested;
        }
        Pending::Starting
    }

    fn has_container(&self, entry: &Entry) -> bool {
        let mut containers = self.pod.containers.iter();
        containers.any(|one| one.name == entry.container && one.id.is_some())
    }

    /// The trouble that a reason stands for, and its subject. None if it resolves by itself.
    pub(super) fn trouble_of_cause(
        &self,
        cause: Pending,
        probe: &MarkerProbe,
        entry: &Result<Entry, Gap>,
    ) -> Option<(Trouble, Arc<str>)> {
        let pod: Arc<str> = self.pod.name.name.as_str().into();
        let node = self.pod.node.as_deref().unwrap_or_default();
        let (name, container) = (probe.name.clone(), probe.container.clone());
        Some(match cause {
            // The trouble of the conflict names the winner.
            Pending::Conflict
            | Pending::Starting
            | Pending::StartupProbe
            | Pending::AwaitingProvider => return None,
            Pending::NoConditionType => (Trouble::NoConditionType { probe: name }, pod),
            Pending::ContainerNotFound => {
                let probe = name;
                (Trouble::ContainerNotFound { probe, container }, pod)
            }
            Pending::PortNotFound => {
                let Err(Gap::PortNotFound(port)) = entry else {
                    return None;
                };
                let trouble = Trouble::PortNotFound {
                    probe: name,
                    container,
                    port: port.clone(),
                };
                (trouble, pod)
            }
            Pending::TooManyProbes => {
                let subject = match entry {
                    Err(Gap::TooManyMarkers) => {
                        format!("{pod} (matched by {MARKERS_PER_POD} older markers)").into()
                    }
                    _ => pod,
                };
                (Trouble::TooManyProbes, subject)
            }
            Pending::Refused => (Trouble::Refused, self.object_refusal(node)?),
            Pending::NoNode => (Trouble::NoNode, format!("{pod} on {node}").into()),
            Pending::VirtualNode => (Trouble::VirtualNode, pod),
            Pending::NoAgent => (Trouble::NoAgent, format!("{pod} on {node}").into()),
            Pending::AgentSilent => (Trouble::AgentSilent, pod),
            Pending::CannotProbe => {
                let obstacle = self.node.obstacle_of_entry(&probe.entry);
                let message = match (obstacle, &probe.template.handler) {
                    (Some(message), _) => &**message,
                    (None, HandlerTemplate::File(_)) => "a virtual node has no agent to read files",
                    (None, _) => return None,
                };
                let subject = format!("{pod}, probe {name}: {message}");
                (Trouble::CannotProbe, subject.into())
            }
            Pending::NoAddress => (Trouble::NoAddress, pod),
            Pending::Contested => {
                let subject = format!("{pod} (NodePodProbe {node})");
                (Trouble::Contested, subject.into())
            }
        })
    }

    /// Why the object of the pod's node cannot be written.
    fn object_refusal(&self, node: &str) -> Option<Arc<str>> {
        if let Some(finalizers) = self.node.blocking_finalizers() {
            let finalizers = finalizers.join(", ");
            let text = format!(
                "NodePodProbe {node} is being deleted and waits for finalizer {finalizers}: remove it"
            );
            return Some(text.into());
        }
        let reason = self.refused_object?;
        Some(format!("{node}: {reason}").into())
    }
}

/// Why the provider of a virtual node has not reported a probe.
fn pending_at_provider(obstacle: Option<&NotInjected>) -> Pending {
    match obstacle {
        None => Pending::AwaitingProvider,
        Some(NotInjected::NoConditionType) => Pending::NoConditionType,
        Some(NotInjected::ConditionTaken) => Pending::Conflict,
        Some(NotInjected::ContainerNotFound) => Pending::ContainerNotFound,
        Some(NotInjected::PortNotFound(_)) => Pending::PortNotFound,
        Some(NotInjected::ReadsFile) => Pending::CannotProbe,
        Some(NotInjected::TooManyProbes) => Pending::TooManyProbes,
    }
}

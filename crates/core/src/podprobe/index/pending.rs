//! Why a probe of a matching pod has no verdict: pending is never silent.

use std::sync::Arc;

use super::Index;
use super::agents::Hearing;
use crate::podprobe::event::WriteTarget;
use crate::podprobe::marker::MarkerProbe;
use crate::podprobe::plan::{Entry, Gap};
use crate::podprobe::pod::Pod;
use crate::podprobe::probe::{Handler, State};
use crate::podprobe::status::{Pending, ProbeShare, Share, Trouble};

/// What all probes of one pod have in common.
pub(super) struct Whereabouts<'a> {
    index: &'a Index,
    pod: &'a Pod,
    node: Option<Pending>,
    hearing: Hearing,
}

impl<'a> Whereabouts<'a> {
    pub(super) fn new(index: &'a Index, pod: &'a Pod) -> Self {
        Self {
            index,
            pod,
            node: index.unserved(pod),
            hearing: index.hearing(pod),
        }
    }

    /// Adds a probe of the pod to the share that it has in its marker.
    pub(super) fn count(
        &self,
        share: &mut Share,
        probe: &MarkerProbe,
        plan: &Result<Entry, Gap>,
        state: Option<State>,
    ) {
        let cause = match state {
            None => Some(self.pending(probe, plan)),
            // What was reported is still there, but nobody looks after it any more.
            Some(_) if self.hearing == Hearing::Silent => Some(Pending::AgentSilent),
            Some(_) => self.obstacle(probe).map(|_| Pending::CannotProbe),
        };
        share.probes.push(ProbeShare {
            state,
            silent: cause == Some(Pending::AgentSilent),
        });
        if state.is_none() {
            share.pending = share.pending.into_iter().chain(cause).min();
        }
        let trouble = cause.and_then(|cause| self.trouble(cause, probe, plan));
        share.troubles.extend(trouble);
    }

    fn pending(&self, probe: &MarkerProbe, plan: &Result<Entry, Gap>) -> Pending {
        let entry = match plan {
            Err(Gap::ContainerNotFound) => return Pending::ContainerNotFound,
            Err(Gap::PortNotFound(_)) => return Pending::PortNotFound,
            // Whatever its node is like: the kubelet's word comes first.
            Err(Gap::NotStarted) => return Pending::StartupProbe,
            Ok(entry) => entry,
        };
        if let Some(node) = self.node {
            return node;
        }
        match self.hearing {
            Hearing::Silent => return Pending::AgentSilent,
            Hearing::Unanswered => return Pending::NoAgent,
            Hearing::Heard => {}
        }
        if self.obstacle(probe).is_some() {
            return Pending::CannotProbe;
        }
        let needs_address = entry
            .probe
            .as_ref()
            .is_some_and(|probe| !matches!(probe.handler, Handler::Exec { .. }));
        // A pod that only begins to run gets its address with its containers.
        if needs_address && self.pod.ip.is_empty() && self.runs(entry) {
            return Pending::NoAddress;
        }
        Pending::Starting
    }

    fn runs(&self, entry: &Entry) -> bool {
        let mut containers = self.pod.containers.iter();
        containers.any(|one| one.name == entry.container && one.id.is_some())
    }

    /// Why the agent cannot run a probe, as it says.
    fn obstacle(&self, probe: &MarkerProbe) -> Option<&Arc<str>> {
        let slot = self.index.slot(self.pod)?;
        let mut obstacles = slot.obstacles.iter();
        let own = obstacles.find(|one| one.name == probe.entry);
        own.map(|one| &one.message)
    }

    /// What is wrong, and with what; none if it is over by itself.
    fn trouble(
        &self,
        cause: Pending,
        probe: &MarkerProbe,
        plan: &Result<Entry, Gap>,
    ) -> Option<(Trouble, Arc<str>)> {
        let pod: Arc<str> = self.pod.name.name.as_str().into();
        let node = self.pod.node.clone().unwrap_or_default();
        let (name, container) = (probe.name.clone(), probe.container.clone());
        Some(match cause {
            // Whose mark it is, is told by the conflict itself.
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
                let Err(Gap::PortNotFound(port)) = plan else {
                    return None;
                };
                let trouble = Trouble::PortNotFound {
                    probe: name,
                    container,
                    port: port.clone(),
                };
                (trouble, pod)
            }
            Pending::TooManyProbes => (Trouble::TooManyProbes, pod),
            Pending::Refused => {
                if let Some(holders) = self.index.holders(self.pod) {
                    let holders = holders.join(", ");
                    let text = format!(
                        "NodePodProbe {node} is being deleted and held by finalizer {holders}; remove it"
                    );
                    return Some((Trouble::Refused, text.into()));
                }
                let refused = WriteTarget::NodePodProbe(node.to_string());
                let reason = &self.index.refused.get(&refused)?.reason;
                (Trouble::Refused, format!("{node}: {reason}").into())
            }
            Pending::NoNode => (Trouble::NoNode, format!("{pod} on {node}").into()),
            Pending::VirtualNode => (Trouble::VirtualNode, pod),
            Pending::NoAgent => (Trouble::NoAgent, format!("{pod} on {node}").into()),
            Pending::AgentSilent => (Trouble::AgentSilent, pod),
            Pending::CannotProbe => {
                let words = self.obstacle(probe)?;
                let subject = format!("{pod}, probe {name}: {words}");
                (Trouble::CannotProbe, subject.into())
            }
            Pending::NoAddress => (Trouble::NoAddress, pod),
        })
    }
}

impl Index {
    /// Why the object of a pod's node does not have its entries, if it never will by itself.
    fn unserved(&self, pod: &Pod) -> Option<Pending> {
        let node = self.nodes.get(pod.node.as_ref()?);
        let Some(seen) = node.and_then(|node| node.seen.as_ref()) else {
            return Some(Pending::NoNode);
        };
        if seen.is_virtual {
            return Some(Pending::VirtualNode);
        }
        if self.is_refused_for_size(pod) {
            return Some(Pending::TooManyProbes);
        }
        let object = WriteTarget::NodePodProbe(pod.node.as_ref()?.to_string());
        // What is being deleted takes no write, and what takes its place has to wait for its end.
        let is_refused = self.refused.contains_key(&object) || self.holders(pod).is_some();
        let differs = self.slot(pod).is_some_and(|slot| slot.differs.is_some());
        (is_refused && differs).then_some(Pending::Refused)
    }

    /// The finalizers that hold the object of a pod's node, if it is being deleted.
    fn holders(&self, pod: &Pod) -> Option<&[String]> {
        let node = self.nodes.get(pod.node.as_ref()?)?;
        node.object.as_ref()?.holders()
    }
}

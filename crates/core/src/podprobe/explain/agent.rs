//! Whether the agent of a pod's node runs, for whoever asks now.
//!
//! A marker's status says that an agent is missing or not Ready when that has lasted for two minutes, since each change of
//! a status is a write and a roll-out replaces all agents. An explanation writes nothing and need not wait.

use leadsman_api::slim::Pod;

use super::PodContext;
use super::explanation::Cause;
use super::reason::CauseReason;
use crate::podprobe::index::AgentState;

impl PodContext<'_> {
    /// That the node has no agent, or one that is not Ready.
    pub(super) fn agent_cause(&self) -> Option<Cause> {
        let node = self.inspected.pod.node.as_deref()?;
        let is_told = self.inspected.agent != AgentState::Reporting;
        // The probes have this cause already then, in the words of the marker's status.
        if is_told || !self.inspected.has_entries {
            return None;
        }
        let all = &self.cluster.agents;
        let own = all
            .iter()
            .filter(|pod| pod.spec.node_name.as_deref() == Some(node));
        let own: Vec<_> = own.collect();
        match own.as_slice() {
            // Agents need not be pods.
            [] if all.is_empty() => None,
            [] => Some(Cause::new_problem(
                CauseReason::NoAgent,
                format!(
                    "no pod of leadsman's agent is on node {node}, so nothing is probed there; check that the DaemonSet leadsman-agent tolerates the node's taints and selects its labels"
                ),
            )),
            [agent, ..] if !own.iter().any(|pod| is_ready(pod)) => {
                Some(agent_not_ready_cause(agent, node))
            }
            _ => None,
        }
    }
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.conditions.iter();
    conditions.any(|one| one.type_ == "Ready" && one.status == "True")
}

/// It resolves by itself in a roll-out; if it lasts, the agent counts as silent.
fn agent_not_ready_cause(agent: &Pod, node: &str) -> Cause {
    let name = agent.identity.name.as_deref().unwrap_or_default();
    let namespace = agent.identity.namespace.as_deref().unwrap_or_default();
    let states = agent.status.container_statuses.iter().map(|one| &one.state);
    let mut reasons = states.filter_map(|state| state.waiting.as_ref()?.reason.as_deref());
    let reason = reasons.next().map(|reason| format!(" ({reason})"));
    Cause::new_resolving(
        CauseReason::AgentNotReady,
        format!(
            "the agent's pod {name} on node {node} is not Ready{}, so no verdict there changes; if it stays so, its events and log say why, such as a container runtime that cannot be reached: kubectl -n {namespace} describe pod {name}, kubectl -n {namespace} logs {name}",
            reason.unwrap_or_default()
        ),
    )
}

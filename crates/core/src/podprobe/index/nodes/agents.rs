//! Agents' pods, and whether the agent of a node works, as far as a manager can see.
//!
//! An agent that runs as a pod is judged by the condition `Ready` of that pod, any other by what it writes. Writes of
//! the spec of a `NodePodProbe` are the manager's own and no sign of an agent. All times come from objects, so that a
//! manager that has just started reaches the same result as its predecessor. Only how long an agent's pod has been
//! deleted is remembered.

use std::time::Duration;

use jiff::Timestamp;
use leadsman_api::node_pod_probe::NodePodProbe;
use leadsman_api::slim;

use super::{NodeState, Nodes};
use crate::cluster::Now;
use crate::podprobe::index::context::{IndexContext, NodeName};
use crate::podprobe::pod::IndexedPod;

/// How long an agent's pod may be missing or not Ready before markers' statuses say so. A rolling update replaces the
/// pod of a node within that time, image pull included, so it writes no marker's status.
const GRACE: Duration = Duration::from_mins(2);
/// The time after which a node counts as silent without a sign of life of its agent, if the agent has no pod.
const SILENT_AFTER: Duration = Duration::from_mins(20);

/// Whether the agent of a node works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AgentState {
    /// The agent reports, as far as is known.
    #[default]
    Reporting,
    /// The node has no agent's pod, and nothing was reported since the spec was last written.
    NoAgent,
    /// The agent does not report any more.
    Silent,
}

/// The pod of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgentPod {
    /// The pod's condition `Ready` is True.
    Ready,
    /// The pod's condition `Ready` is not True.
    NotReady {
        /// The time of the condition's last transition; None if the pod does not say it.
        since: Option<Timestamp>,
        /// The end of the grace period, on the monotonic clock.
        silent_from: Duration,
    },
}

/// Two deadlines on the monotonic clock, which follow from the times in a `NodePodProbe`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AgentDeadlines {
    /// The time from which the agent's last sign of life is too old. None if there was never one.
    silent_from: Option<Duration>,
    /// The time by which an agent should have answered the last write of the spec. None if it has answered.
    unanswered_from: Option<Duration>,
}

impl AgentDeadlines {
    pub(super) fn new(object: &NodePodProbe, now: Now) -> Self {
        let (reported, asked) = (last_sign_of_life(object), last_spec_write(object));
        let unanswered = asked.filter(|asked| reported.is_none_or(|reported| reported < *asked));
        Self {
            silent_from: reported.map(|reported| end_of_wait(reported, SILENT_AFTER, now)),
            unanswered_from: unanswered.map(|asked| end_of_wait(asked, GRACE, now)),
        }
    }
}

/// The deadline, on the monotonic clock, of a wait that began at a time of day. The time of day counts only here: later
/// jumps of it change nothing, and a beginning in the future does not lengthen the wait.
fn end_of_wait(began: Timestamp, wait: Duration, now: Now) -> Duration {
    let age = Duration::try_from(now.wall.duration_since(began)).unwrap_or_default();
    now.monotonic.saturating_add(wait.saturating_sub(age))
}

/// The agent's last sign of life: a probe that it ran, or a write of the status.
fn last_sign_of_life(object: &NodePodProbe) -> Option<Timestamp> {
    let statuses = object.status.iter();
    let pods = statuses.flat_map(|status| &status.pod_probe_statuses);
    let states = pods.flat_map(|pod| &pod.probe_states);
    let probed = states.filter_map(|state| state.last_probe_time.as_ref());
    let entries = object.metadata.managed_fields.iter().flatten();
    let written = entries
        // Each write of a subresource has an entry of its own in managedFields (KEP-555), and only the agent writes
        // this status.
        .filter(|entry| entry.subresource.as_deref() == Some("status"))
        .filter_map(|entry| entry.time.as_ref());
    probed.chain(written).map(|time| time.0).max()
}

/// The time of the last write of the spec.
fn last_spec_write(object: &NodePodProbe) -> Option<Timestamp> {
    let meta = &object.metadata;
    let written = meta
        .managed_fields
        .iter()
        .flatten()
        .filter(|entry| entry.subresource.as_deref().unwrap_or_default().is_empty())
        .filter_map(|entry| entry.time.as_ref());
    // An object without managedFields, as some clients leave it, was written at least when it was created.
    let times = written.chain(&meta.creation_timestamp);
    times.map(|time| time.0).max()
}

impl NodeState {
    /// Whether its agent works, and when that may change without an event.
    fn agent_state(&self, now: Duration) -> (AgentState, Option<Duration>) {
        let is_over = |time: &Duration| *time <= now;
        if !self.agents.is_empty() {
            let ends = self.agents.values().map(|agent| match agent {
                AgentPod::Ready => None,
                AgentPod::NotReady { silent_from, .. } => Some(*silent_from),
            });
            // One pod that is Ready, or within its grace period, is enough.
            let end = ends.collect::<Option<Vec<_>>>();
            return match end.and_then(|ends| ends.into_iter().max()) {
                None => (AgentState::Reporting, None),
                Some(end) if is_over(&end) => (AgentState::Silent, None),
                waiting => (AgentState::Reporting, waiting),
            };
        }
        let deadlines = self.object.as_ref().map(|object| object.deadlines);
        let AgentDeadlines {
            silent_from,
            unanswered_from,
        } = deadlines.unwrap_or_default();
        if silent_from.is_some_and(|time| is_over(&time)) {
            return (AgentState::Silent, None);
        }
        // A rolling update of the DaemonSet deletes the pod before it creates the next one; that is no missing agent
        // yet.
        let unanswered_from = unanswered_from.map(|time| time.max(self.absent_from));
        if unanswered_from.is_some_and(|time| is_over(&time)) {
            return (AgentState::NoAgent, silent_from);
        }
        let next = silent_from.into_iter().chain(unanswered_from).min();
        (AgentState::Reporting, next)
    }
}

impl Nodes {
    /// Adds or replaces an agent's pod.
    pub(in crate::podprobe::index) fn observe_agent(
        &mut self,
        pod: &IndexedPod,
        wire: &slim::Pod,
        cx: &mut IndexContext,
    ) {
        let Some(name) = pod.node.as_ref() else {
            return;
        };
        let node = self.by_name.entry(name.clone()).or_default();
        let known = node.agents.get(&pod.name).copied();
        let agent = if pod.ready {
            AgentPod::Ready
        } else {
            not_ready(known, wire, cx.now)
        };
        if known != Some(agent) {
            node.agents.insert(pod.name.clone(), agent);
            self.judge_agent(name, cx);
        }
    }

    /// Removes a pod that is not, or no longer, an agent's.
    pub(in crate::podprobe::index) fn remove_agent(
        &mut self,
        pod: &IndexedPod,
        cx: &mut IndexContext,
    ) {
        let Some(name) = pod.node.as_ref() else {
            return;
        };
        if let Some(node) = self.by_name.get_mut(name)
            && node.agents.remove(&pod.name).is_some()
        {
            // The time counts from its deletion, not from the last answer: the agent may have had nothing to report for hours.
            node.absent_from = cx.now.monotonic.saturating_add(GRACE);
            self.judge_agent(name, cx);
            self.forget_if_empty(name);
        }
    }

    /// Does what waits for the passing of time: judges a node's agent again, and gives its object its whole room back.
    pub(super) fn end_waits(&mut self, name: &NodeName, cx: &mut IndexContext) {
        let Some(node) = self.by_name.get_mut(name) else {
            return;
        };
        let is_over = |time: &Duration| *time <= cx.now.monotonic;
        // The object may have been too large for something that has passed.
        if node
            .shrunk_room
            .take_if(|(_, until)| is_over(until))
            .is_some()
        {
            node.too_large = None;
            self.resized.entry(name.clone()).or_default();
        }
        if node.agent_changes_at.as_ref().is_some_and(is_over) {
            self.judge_agent(name, cx);
        }
    }

    /// Judges a node's agent again.
    pub(super) fn judge_agent(&mut self, name: &NodeName, cx: &mut IndexContext) {
        let Some(node) = self.by_name.get_mut(name) else {
            return;
        };
        let (state, next) = node.agent_state(cx.now.monotonic);
        if std::mem::replace(&mut node.agent, state) != state {
            cx.affected.pods.extend(node.wanting_pods().cloned());
        }
        if std::mem::replace(&mut node.agent_changes_at, next) != next {
            cx.affected.nodes.insert(name.clone());
        }
    }
}

/// An agent's pod that is not Ready. Its grace period goes on while its condition stays the same.
fn not_ready(known: Option<AgentPod>, wire: &slim::Pod, now: Now) -> AgentPod {
    let mut conditions = wire.status.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == "Ready");
    let since = ready
        .and_then(|ready| ready.last_transition_time.as_ref())
        .map(|time| time.0);
    match known {
        Some(AgentPod::NotReady { since: before, .. }) if before == since => known,
        _ => None,
    }
    .unwrap_or_else(|| AgentPod::NotReady {
        since,
        silent_from: end_of_wait(since.unwrap_or(now.wall), GRACE, now),
    })
}

//! The agents: whether the one of a node does its work, as far as a manager can tell.
//!
//! An agent that runs as a pod is judged by that pod's condition `Ready`, any other by what it writes. Only the agent's
//! own signs count: the spec of a `NodePodProbe` is ours. All times come from objects, so that a manager that starts
//! comes to the same result as the one before it; only how long an agent's pod has been away is remembered.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leadsman_api::node_pod_probe::NodePodProbe;
use leadsman_api::slim;

use super::nodes::NodeState;
use super::{Index, Pass, Timer};
use crate::cluster::Now;
use crate::podprobe::pod::Pod;

/// How long an agent's pod may be away or not Ready before that is told. A rolling update replaces the pod of a node
/// within that time, image pull included, and writes no marker's status.
const GRACE: SignedDuration = SignedDuration::from_mins(2);

/// Whether what a node is asked is taken up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Hearing {
    /// As far as is known.
    #[default]
    Heard,
    /// No agent's pod is there, and nothing was reported since the spec was last written.
    Unanswered,
    /// The agent does not report any more.
    Silent,
}

/// The pod of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgentPod {
    /// Its condition `Ready` is True.
    Ready,
    /// It is not.
    NotReady {
        /// Since when, in the pod's own words.
        since: Option<Timestamp>,
        /// When, on the monotonic clock, that has lasted too long.
        silent_from: Duration,
    },
}

/// The ends of two waits, on the monotonic clock, that begin with what an object shows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    /// Then the agent's last sign of life is too old. None if there was never one.
    silent_from: Option<Duration>,
    /// Then an agent would have answered what the spec asks. None if it has since.
    unanswered_from: Option<Duration>,
}

impl Waits {
    pub(super) fn new(object: &NodePodProbe, silent_after: SignedDuration, now: Now) -> Self {
        let (heard, asked) = (last_sign(object), last_asked(object));
        let unanswered = asked.filter(|asked| heard.is_none_or(|heard| heard < *asked));
        Self {
            silent_from: heard.map(|heard| end(heard, silent_after, now)),
            unanswered_from: unanswered.map(|asked| end(asked, GRACE, now)),
        }
    }
}

/// When, on the monotonic clock, a wait ends that began at a time of day. By the time of day only here: a jump of it later
/// changes nothing, and one into the past does not lengthen the wait.
fn end(began: Timestamp, wait: SignedDuration, now: Now) -> Duration {
    let age = now.wall.duration_since(began).max(SignedDuration::ZERO);
    let left = Duration::try_from(wait.saturating_sub(age)).unwrap_or_default();
    now.monotonic.saturating_add(left)
}

/// The agent's last sign of life: a probe that it ran, or a write of the status.
fn last_sign(object: &NodePodProbe) -> Option<Timestamp> {
    let statuses = object.status.iter();
    let pods = statuses.flat_map(|status| &status.pod_probe_statuses);
    let states = pods.flat_map(|pod| &pod.probe_states);
    let probed = states.filter_map(|state| state.last_probe_time.as_ref());
    let written = object.metadata.managed_fields.iter().flatten();
    let written = written
        .filter(|entry| entry.subresource.as_deref() == Some("status"))
        .filter_map(|entry| entry.time.as_ref());
    probed.chain(written).map(|time| time.0).max()
}

/// When the spec was last written.
fn last_asked(object: &NodePodProbe) -> Option<Timestamp> {
    let meta = &object.metadata;
    let written = meta.managed_fields.iter().flatten();
    let written = written
        .filter(|entry| entry.subresource.as_deref().unwrap_or_default().is_empty())
        .filter_map(|entry| entry.time.as_ref());
    let times = written.chain(&meta.creation_timestamp);
    times.map(|time| time.0).max()
}

impl NodeState {
    /// Whether its agent is heard, and when that may change by itself.
    fn hear(&self, now: Now) -> (Hearing, Option<Duration>) {
        let is_over = |time: &Duration| *time <= now.monotonic;
        if !self.agents.is_empty() {
            let ends = self.agents.values().map(|agent| match agent {
                AgentPod::Ready => None,
                AgentPod::NotReady { silent_from, .. } => Some(*silent_from),
            });
            // One that is Ready, or still has time, speaks for the node.
            let end = ends.collect::<Option<Vec<_>>>();
            return match end.and_then(|ends| ends.into_iter().max()) {
                None => (Hearing::Heard, None),
                Some(end) if is_over(&end) => (Hearing::Silent, None),
                waiting => (Hearing::Heard, waiting),
            };
        }
        let waits = self.object.as_ref().map(|object| object.waits);
        let Waits {
            silent_from,
            unanswered_from,
        } = waits.unwrap_or_default();
        if silent_from.is_some_and(|time| is_over(&time)) {
            return (Hearing::Silent, None);
        }
        let unanswered_from = unanswered_from.map(|time| time.max(self.absent_from));
        if unanswered_from.is_some_and(|time| is_over(&time)) {
            return (Hearing::Unanswered, silent_from);
        }
        let next = silent_from.into_iter().chain(unanswered_from).min();
        (Hearing::Heard, next)
    }
}

impl Index {
    /// How the agent of a pod's node is heard, if that has been told of the pod.
    pub(super) fn hearing(&self, pod: &Pod) -> Hearing {
        let node = pod.node.as_ref().and_then(|node| self.nodes.get(node));
        let is_told = self
            .slot(pod)
            .is_some_and(|slot| slot.observed.is_some() && slot.differs.is_none());
        let node = node.filter(|_| is_told);
        node.map(|node| node.hearing).unwrap_or_default()
    }

    /// Takes note of a pod that may be an agent.
    pub(super) fn see_agent(&mut self, pod: &Pod, wire: &slim::Pod, pass: &mut Pass) {
        let before = self.pod(&pod.name).and_then(|known| known.node.clone());
        if before != pod.node {
            // A pod is bound once, but a list may show another pod under its name.
            if let Some(known) = self.pod(&pod.name).cloned() {
                self.lose_agent(&known, pass);
            }
        }
        let config = &self.config;
        let is_agent = pod.active
            && pod.name.namespace == config.agent_namespace
            && config.agent_labels.iter().all(|(key, value)| {
                let known = pod.labels.get(key.as_str());
                known.is_some_and(|known| **known == **value)
            });
        let Some(name) = pod.node.as_ref() else {
            return;
        };
        if !is_agent {
            self.lose_agent(pod, pass);
            return;
        }
        let node = self.nodes.entry(name.clone()).or_default();
        let known = node.agents.get(&pod.name).copied();
        let agent = if pod.ready {
            AgentPod::Ready
        } else {
            not_ready(known, wire, pass.now)
        };
        if known != Some(agent) {
            node.agents.insert(pod.name.clone(), agent);
            self.listen(name, pass);
        }
    }

    pub(super) fn lose_agent(&mut self, pod: &Pod, pass: &mut Pass) {
        let Some(name) = pod.node.as_ref() else {
            return;
        };
        if let Some(node) = self.nodes.get_mut(name)
            && node.agents.remove(&pod.name).is_some()
        {
            let grace = Duration::try_from(GRACE).unwrap_or_default();
            node.absent_from = pass.now.monotonic.saturating_add(grace);
            self.listen(name, pass);
            self.forget_if_void(name);
        }
    }

    /// Decides anew whether a node's agent is heard.
    pub(super) fn listen(&mut self, name: &Arc<str>, pass: &mut Pass) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let (hearing, waiting) = node.hear(pass.now);
        let before = std::mem::replace(&mut node.timer, waiting);
        if std::mem::replace(&mut node.hearing, hearing) != hearing {
            pass.pods.extend(node.pods().cloned());
        }
        if before != waiting {
            if let Some(time) = before {
                self.timers.remove(&(time, Timer::Node(name.clone())));
            }
            let timer = waiting.map(|time| (time, Timer::Node(name.clone())));
            self.timers.extend(timer);
        }
    }
}

/// An agent's pod that is not Ready. The wait that it has begun goes on while its condition is the same.
fn not_ready(known: Option<AgentPod>, wire: &slim::Pod, now: Now) -> AgentPod {
    let mut conditions = wire.status.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == "Ready");
    let since = ready.and_then(|ready| ready.last_transition_time.as_ref());
    let since = since.map(|time| time.0);
    match known {
        Some(AgentPod::NotReady { since: before, .. }) if before == since => known,
        _ => None,
    }
    .unwrap_or_else(|| AgentPod::NotReady {
        since,
        silent_from: end(since.unwrap_or(now.wall), GRACE, now),
    })
}

//! What the state machine of a node is told, and what it answers with.

use std::sync::Arc;
use std::time::Duration;

use leadsman_api::NodePodProbe;

use super::container::ObservedContainers;
use super::entries::MalformedEntry;
use super::key::ProbeKey;
use super::reporter::StatusWriteEnd;
use super::run::{ProbeRun, RunId};
use crate::podprobe::probe::{CannotProbe, Outcome, State};

/// One thing that happened.
#[derive(Debug)]
pub enum NodeEvent<'a> {
    /// The node's object as the API server shows it; `None` when there is none.
    Plan(Option<&'a NodePodProbe>),
    /// The container runtime has answered a list of containers.
    ContainersListed {
        /// When the request was sent; since the agent's start.
        began: Duration,
        /// What it answered; `None` when that equals the list before it.
        containers: Option<ObservedContainers>,
    },
    /// A run has ended. Each [`NodeAction::StartRun`] is answered by exactly one of these.
    RunFinished {
        /// [`ProbeRun::id`].
        run: RunId,
        /// The executor's result, after [`NodeProbes::classify_result`](super::NodeProbes::classify_result) or before.
        result: Result<Outcome, CannotProbe>,
    },
    /// The time of [`NodeProbes::next`](super::NodeProbes::next) has come.
    Tick,
    /// The write that [`NodeProbes::write`](super::NodeProbes::write) began has ended.
    StatusWritten(StatusWriteEnd),
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeAction {
    /// Run a probe.
    StartRun(ProbeRun),
    /// Log and count a verdict whose state has changed, and send an event if it says so.
    VerdictChanged(VerdictChange),
    /// Log a run that could not be carried out and is not retried before its next due time.
    RunDropped {
        /// The probe.
        key: Arc<ProbeKey>,
        /// Why it could not be carried out.
        cause: CannotProbe,
        /// Whether the run before it was carried out.
        first: bool,
    },
    /// Log the entries of the plan that are ignored: all of them, whenever the list changes.
    MalformedEntries(Vec<MalformedEntry>),
}

/// A verdict whose state has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictChange {
    /// The probe.
    pub key: Arc<ProbeKey>,
    /// The state before; `None` for a first verdict.
    pub from: Option<State>,
    /// The state now.
    pub to: State,
    /// The probe's message, not truncated.
    pub message: Arc<str>,
    /// Whether the pod gets an event: the state is Succeeded or Failed, and differs from the last one of these two.
    pub send_event: bool,
}

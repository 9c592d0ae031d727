//! The events that the state machine of a node takes, and the actions that it returns.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leadsman_api::NodePodProbe;

use super::container::RuntimeContainers;
use super::entries::MalformedEntry;
use super::key::ProbeKey;
use super::reporter::StatusWriteEnd;
use super::run::{ProbeRun, RunId};
use crate::podprobe::probe::{CannotProbe, Outcome, State};

/// An event.
#[derive(Debug)]
pub enum NodeEvent<'a> {
    /// The node's `NodePodProbe` as the API server shows it; `None` if there is none.
    Plan(Option<&'a NodePodProbe>),
    /// The container runtime has answered a list of containers.
    ContainersListed {
        /// The time when the request was sent; since the agent's start.
        began: Duration,
        /// The containers; `None` if they equal those of the list before.
        containers: Option<RuntimeContainers>,
    },
    /// A run has ended. Exactly one of these follows each [`NodeAction::StartRun`], unless the run was aborted.
    RunFinished {
        /// [`ProbeRun::id`].
        run: RunId,
        /// The executor's result, after [`NodeProbes::classify_result`](super::NodeProbes::classify_result) or before.
        result: Result<Outcome, CannotProbe>,
        /// How long the executor took.
        took: Duration,
    },
    /// A run has ended without a result, soon after [`NodeAction::CancelRun`].
    RunAborted {
        /// [`ProbeRun::id`].
        run: RunId,
    },
    /// The file that a probe reads may have changed.
    FileChanged(Arc<ProbeKey>),
    /// The time of [`NodeProbes::next_tick_at`](super::NodeProbes::next_tick_at) has come.
    Tick,
    /// The write that [`NodeProbes::begin_due_write`](super::NodeProbes::begin_due_write) began has ended.
    StatusWritten(StatusWriteEnd),
}

/// An action to carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeAction {
    /// Run a probe.
    StartRun(ProbeRun),
    /// End a run whose result is not wanted any more: its probe was edited or removed, or its container replaced. Otherwise
    /// each edit of a probe whose target hangs would leave another connection open, until its timeout. The run has its
    /// permit until it has ended: [`NodeEvent::RunFinished`] or [`NodeEvent::RunAborted`] must follow.
    CancelRun(RunId),
    /// Log and count a change of a verdict, and send an event if [`VerdictChange::send_event`].
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
    /// The time of the change. None if the verdict before it had no time either.
    pub since: Option<Timestamp>,
    /// The probe's message, not truncated.
    pub message: Arc<str>,
    /// Whether the pod gets an event: the state is Succeeded or Failed, and differs from the last one of these two.
    pub send_event: bool,
}

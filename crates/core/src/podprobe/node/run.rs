//! One run of a probe, as it is handed to an executor.

use std::sync::Arc;
use std::time::Duration;

use super::key::ProbeKey;
use crate::podprobe::probe::Probe;

/// Identity of a run, unique within one agent's life. A retry keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub(super) u64);

/// A run to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeRun {
    /// Returned with the result, in [`NodeEvent::RunFinished`](super::NodeEvent::RunFinished).
    pub id: RunId,
    /// The probe that is run.
    pub key: Arc<ProbeKey>,
    /// Handler and timeout.
    pub probe: Arc<Probe>,
    /// The runtime's id of the only container that may be probed: after a restart the container of this name is
    /// another.
    pub container: Arc<str>,
    /// Time from the begin of the run's slot to the call that started it, without [`ProbeRun::waited`].
    pub lag: Duration,
    /// Time that the run waited for a permit.
    pub waited: Duration,
}

//! The interface between the host and its tasks.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use leadsman_cri::Runtime;
use leadsman_process::{ApiServer, Metrics, RandomSource};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::health::HealthChecks;

/// How long a task may take to finish what it has begun, once it is to stop.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);

/// Why a task failed: an error of its own type, which the host only logs.
pub type TaskError = Box<dyn Error + Send + Sync>;

/// The context that each task of the agent gets.
#[derive(Clone)]
pub(crate) struct TaskContext {
    /// The name of this node in the cluster.
    pub(crate) node_name: Arc<str>,
    /// The agent's start. Timers of all tasks should lie on a grid from here on, so that they share wake-ups.
    pub(crate) start: Instant,
    pub(crate) server: ApiServer,
    /// The connection to the container runtime, established on first use.
    pub(crate) runtime: Runtime,
    pub(crate) health: HealthChecks,
    pub(crate) metrics: Metrics,
    pub(crate) random: RandomSource,
    /// Cancelled when the agent is to stop.
    pub(crate) stop: CancellationToken,
}

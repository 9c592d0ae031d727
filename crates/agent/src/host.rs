//! The host of the agent's tasks: it starts them, checks their health, and ends them together.
//!
//! A task is a future that is given a [`TaskContext`] and runs until [`TaskContext::stop`] is cancelled; then it finishes
//! what it has begun, within [`DRAIN`], and returns. It has its own watches, registers its own health checks and metrics,
//! and sends its own requests. The host knows none of this: a further task is one more line in [`run`].
//!
//! A task that fails or panics ends the agent, since a kubelet restarts it with all of its tasks; the others are drained
//! before.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use leadsman_cri::Runtime;
use leadsman_process::{ApiServer, Component, Metrics, Process, RunError, clock};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::health::HealthChecks;
use crate::probing;

/// From one health check to the next.
const CHECK: Duration = Duration::from_secs(5);
/// How long tasks may take to finish what they have begun.
pub(crate) const DRAIN: Duration = Duration::from_secs(5);

/// Why the agent ended.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The container runtime's endpoint is not one.
    #[error("--runtime-endpoint: {0}")]
    Endpoint(#[from] leadsman_cri::Error),
    /// A task failed or panicked.
    #[error("the task {task:?} failed: {source}")]
    TaskFailed {
        /// Its name.
        task: &'static str,
        /// Its error.
        source: TaskError,
    },
    /// A task returned before it was told to stop.
    #[error("the task {task:?} ended, although it was not told to stop")]
    TaskEnded {
        /// Its name.
        task: &'static str,
    },
}

/// Why a task failed: an error of its own, which the host only shows.
pub type TaskError = Box<dyn Error + Send + Sync>;

/// Runs the agent until SIGTERM or SIGINT.
pub fn run(args: &Args) -> Result<(), RunError<AgentError>> {
    leadsman_process::run(&args.process, Component::Agent, async |process| {
        let context = TaskContext::new(args, &process)?;
        let mut tasks = Tasks::new(&context);
        tasks.start("probing", probing::run(context, args.probing()));
        tasks.run().await
    })
}

/// What each task of the agent is given.
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
    /// Cancelled when the agent is to stop.
    pub(crate) stop: CancellationToken,
}

impl TaskContext {
    fn new(args: &Args, process: &Process) -> Result<Self, AgentError> {
        Ok(Self {
            node_name: args.node_name.as_str().into(),
            start: clock::monotonic(),
            server: process.server.clone(),
            runtime: Runtime::connect(&args.runtime_endpoint)?,
            health: HealthChecks::new(process.readiness.clone()),
            metrics: process.metrics.clone(),
            stop: process.shutdown.child_token(),
        })
    }
}

/// The running tasks.
struct Tasks {
    start: Instant,
    health: HealthChecks,
    stop: CancellationToken,
    running: JoinSet<Result<(), TaskError>>,
    names: HashMap<Id, &'static str>,
}

type TaskEnd = Result<(Id, Result<(), TaskError>), JoinError>;

impl Tasks {
    fn new(context: &TaskContext) -> Self {
        Self {
            start: context.start,
            health: context.health.clone(),
            stop: context.stop.clone(),
            running: JoinSet::new(),
            names: HashMap::new(),
        }
    }

    /// Starts a task. Its name is for the log.
    fn start<E: Into<TaskError>>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let task = async { task.await.map_err(Into::into) };
        let handle = self.running.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Runs until the agent is to stop or a task ends, then drains the tasks.
    async fn run(mut self) -> Result<(), AgentError> {
        let mut checks = interval_at(self.start + CHECK, CHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let ended = loop {
            tokio::select! {
                () = self.stop.cancelled() => break Ok(()),
                Some(ended) = self.running.join_next_with_id() => break self.judge_end(ended),
                now = checks.tick() => self.health.check(now.saturating_duration_since(self.start)),
            }
        };
        self.stop.cancel();
        self.drain().await;
        ended
    }

    fn judge_end(&mut self, ended: TaskEnd) -> Result<(), AgentError> {
        let (id, result) = match ended {
            Ok((id, result)) => (id, result),
            Err(panicked) => (panicked.id(), Err(panicked.into())),
        };
        let task = self.names.remove(&id).unwrap_or("unknown");
        match result {
            Ok(()) if self.stop.is_cancelled() => Ok(()),
            Ok(()) => Err(AgentError::TaskEnded { task }),
            Err(source) => Err(AgentError::TaskFailed { task, source }),
        }
    }

    async fn drain(&mut self) {
        let drained = timeout(DRAIN, async {
            while let Some(ended) = self.running.join_next_with_id().await {
                if let Err(error) = self.judge_end(ended) {
                    tracing::error!(%error, "a task failed while the agent was stopping");
                }
            }
        });
        if drained.await.is_err() {
            let tasks: Vec<&str> = self.names.values().copied().collect();
            tracing::warn!(
                ?tasks,
                "tasks did not finish within {DRAIN:?} of the stop: their last writes may be missing"
            );
        }
    }
}

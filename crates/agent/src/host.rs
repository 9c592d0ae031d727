//! The host of the agent's tasks: it starts them, checks their health, and stops them together.
//!
//! A task is a future that is given a [`TaskContext`] and runs until [`TaskContext::stop`] is cancelled; then it
//! finishes what it has begun, within [`DRAIN`], and returns. It has its own watches, registers its own health checks
//! and metrics, and sends its own requests. The host knows none of this: a further task is one more line in `agent`.
//!
//! A task that fails or panics ends the agent after the other tasks have drained: the kubelet restarts it with all
//! tasks.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use crate::health::HealthChecks;
use crate::task::{DRAIN, TaskContext, TaskError};

/// The interval of health checks.
const CHECK: Duration = Duration::from_secs(5);

/// Why a task ended the agent.
#[derive(Debug, thiserror::Error)]
pub enum TaskFailure {
    /// A task failed or panicked.
    #[error("the task {task:?} failed: {source}")]
    Failed {
        /// The task's name.
        task: &'static str,
        /// The task's error.
        source: TaskError,
    },
    /// A task returned before the agent was to stop.
    #[error("the task {task:?} ended before the agent was asked to stop")]
    Ended {
        /// The task's name.
        task: &'static str,
    },
}

/// The running tasks.
pub(crate) struct Tasks {
    start: Instant,
    health: HealthChecks,
    stop: CancellationToken,
    running: JoinSet<Result<(), TaskError>>,
    names: HashMap<Id, &'static str>,
}

type TaskEnd = Result<(Id, Result<(), TaskError>), JoinError>;

impl Tasks {
    pub(crate) fn new(context: &TaskContext) -> Self {
        Self {
            start: context.start,
            health: context.health.clone(),
            stop: context.stop.clone(),
            running: JoinSet::new(),
            names: HashMap::new(),
        }
    }

    /// Starts a task. Its name is for the log.
    pub(crate) fn start<E: Into<TaskError>>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let task = async { task.await.map_err(Into::into) };
        let handle = self.running.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Runs until the agent is to stop or a task ends, then drains the tasks.
    pub(crate) async fn run(mut self) -> Result<(), TaskFailure> {
        // Checks are on the grid of the probes, so that one costs no wake-up of its own; after a
        // suspension one is made, not all that were missed.
        let mut checks = interval_at(self.start + CHECK, CHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let ended = loop {
            tokio::select! {
                // Either of the first two ends the loop.
                biased;
                () = self.stop.cancelled() => break Ok(()),
                Some(ended) = self.running.join_next_with_id() => break self.judge_end(ended),
                now = checks.tick() => self.health.fail_overdue_checks(now.saturating_duration_since(self.start)),
            }
        };
        self.stop.cancel();
        self.drain().await;
        ended
    }

    fn judge_end(&mut self, ended: TaskEnd) -> Result<(), TaskFailure> {
        let (id, result) = match ended {
            Ok((id, result)) => (id, result),
            Err(panicked) => (panicked.id(), Err(panicked.into())),
        };
        let task = self.names.remove(&id).unwrap_or("unknown");
        match result {
            Ok(()) if self.stop.is_cancelled() => Ok(()),
            Ok(()) => Err(TaskFailure::Ended { task }),
            Err(source) => Err(TaskFailure::Failed { task, source }),
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
            let tasks: BTreeSet<&str> = self.names.values().copied().collect();
            tracing::warn!(
                ?tasks,
                "tasks did not finish within {DRAIN:?} of the stop: their last writes may be missing"
            );
        }
    }
}

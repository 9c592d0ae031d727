//! The runs under way: each is a task on the agent's one thread, with a deadline of its own.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use leadsman_core::podprobe::node::{ProbeRun, RunId};
use leadsman_core::podprobe::{CannotProbe, Outcome};
use leadsman_probe::{EXEC_SLACK, Exec, ProbeTarget};
use leadsman_process::clock;
use tokio::task::JoinSet;

use super::metrics::{HandlerKind, result_label};

/// Added to the deadline of an executor, in case it does not keep that itself.
const SLACK: Duration = Duration::from_secs(1);

/// A run that has ended.
pub(crate) struct FinishedRun {
    pub(crate) run: RunId,
    pub(crate) handler: HandlerKind,
    pub(crate) result: Result<Outcome, CannotProbe>,
    pub(crate) took: Duration,
}

/// The runs under way. Dropping this aborts them.
pub(crate) struct Prober<E> {
    exec: E,
    runs: JoinSet<FinishedRun>,
}

impl<E: Exec + Clone + Send + Sync + 'static> Prober<E> {
    pub(crate) fn new(exec: E) -> Self {
        Self {
            exec,
            runs: JoinSet::new(),
        }
    }

    /// Starts a run. Without a target its container is gone.
    pub(crate) fn start_run(&mut self, run: ProbeRun, target: Option<ProbeTarget>) {
        let exec = self.exec.clone();
        self.runs.spawn(async move {
            let began = clock::monotonic();
            let probed = AssertUnwindSafe(run_probe(&run, target, &exec)).catch_unwind();
            let result = probed.await.unwrap_or_else(|_| {
                // The panic hook has logged the place. Other probes are not affected.
                tracing::error!(probe = %run.key, "the executor of a probe panicked, which is a bug in leadsman; the run does not count");
                Err(CannotProbe::Local("the run panicked".to_owned()))
            });
            let handler = HandlerKind::of_handler(&run.probe.handler);
            tracing::debug!(
                probe = %run.key,
                container = %run.container,
                handler = handler.as_label(),
                result = result_label(&result),
                output = ?result,
                "probe run ended"
            );
            FinishedRun {
                run: run.id,
                handler,
                result,
                took: clock::monotonic() - began,
            }
        });
    }

    /// Waits for the next run to end, for ever if none is under way.
    pub(crate) async fn next_finished(&mut self) -> FinishedRun {
        loop {
            match self.runs.join_next().await {
                Some(Ok(finished)) => return finished,
                Some(Err(error)) => {
                    tracing::error!(%error, "the task of a probe run ended without a result, which is a bug in leadsman");
                }
                None => std::future::pending().await,
            }
        }
    }

    /// A run that has ended already.
    pub(crate) fn try_next_finished(&mut self) -> Option<FinishedRun> {
        loop {
            match self.runs.try_join_next()? {
                Ok(finished) => return Some(finished),
                Err(error) => {
                    tracing::error!(%error, "the task of a probe run ended without a result, which is a bug in leadsman");
                }
            }
        }
    }
}

async fn run_probe<E: Exec>(
    run: &ProbeRun,
    target: Option<ProbeTarget>,
    exec: &E,
) -> Result<Outcome, CannotProbe> {
    let target = target.ok_or(CannotProbe::ContainerGone)?;
    let timeout = Duration::from_secs(run.probe.timeout_seconds.get().into());
    let probed = leadsman_probe::run_probe(&run.probe.handler, &target, timeout, exec);
    tokio::time::timeout(timeout + EXEC_SLACK + SLACK, probed)
        .await
        .unwrap_or(Err(CannotProbe::Deadline))
}

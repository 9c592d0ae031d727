//! The runs under way: each is a task on the agent's one thread, with a deadline of its own.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use leadsman_core::podprobe::node::{LoopLag, ProbeRun, RunId};
use leadsman_core::podprobe::{CannotProbe, Handler, HandlerKind, Outcome};
use leadsman_probe::{EXEC_SLACK, Exec, ProbeTarget, TimeLimit};
use leadsman_process::clock;
use leadsman_process::watch;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::files::FileReader;
use super::metrics::{handler_label, result_label};

/// Added to the deadline of an executor, in case it does not keep that itself.
const SLACK: Duration = Duration::from_secs(1);

/// How long a cancelled run may take to end by itself. A target that answers is so not reset by the edit of a probe.
const GRACE: Duration = Duration::from_secs(1);

/// A run that has ended.
pub(crate) struct FinishedRun {
    pub(crate) run: RunId,
    pub(crate) handler: HandlerKind,
    pub(crate) result: Result<Outcome, CannotProbe>,
    pub(crate) took: Duration,
}

/// The end of a run.
pub(crate) enum RunEnd {
    Finished(FinishedRun),
    /// The run was cancelled, and did not end within its grace.
    Aborted(RunId),
}

/// The runs under way. Dropping this aborts them.
pub(crate) struct Prober<E> {
    exec: E,
    files: Option<Arc<FileReader>>,
    /// The agent's start.
    start: Instant,
    lag: watch::Sender<LoopLag>,
    runs: JoinSet<FinishedRun>,
    /// The tasks of those that have not ended and are not cancelled.
    tasks: HashMap<RunId, AbortHandle>,
    /// The runs that are cancelled and have not ended.
    cancelled: HashMap<Id, RunId>,
}

impl<E: Exec + Clone + Send + Sync + 'static> Prober<E> {
    pub(crate) fn new(exec: E, start: Instant) -> Self {
        Self {
            exec,
            files: None,
            start,
            lag: watch::Sender::default(),
            runs: JoinSet::new(),
            tasks: HashMap::new(),
            cancelled: HashMap::new(),
        }
    }

    /// Reads files too.
    pub(crate) fn with_files(self, files: Option<Arc<FileReader>>) -> Self {
        Self { files, ..self }
    }

    /// Starts a run. Without a target its container is gone.
    pub(crate) fn start_run(&mut self, run: ProbeRun, target: Option<ProbeTarget>) {
        let (id, exec, files) = (run.id, self.exec.clone(), self.files.clone());
        let (start, lag) = (self.start, self.lag.subscribe());
        // The time includes what the loop does not know yet: after a pause, it may come later than
        // the run.
        let lost_by_now = move || lag.borrow().total_at(clock::monotonic() - start);
        let task = self.runs.spawn(async move {
            let began = clock::monotonic();
            // Safe to unwind: whatever the future has is dropped with it.
            let probed = AssertUnwindSafe(run_probe(&run, target, &exec, files, lost_by_now)).catch_unwind();
            let result = probed.await.unwrap_or_else(|_| {
                // The panic hook has logged the place. Other probes are not affected.
                tracing::error!(probe = %run.key, "the executor of a probe panicked, which is a bug in leadsman; the run does not count");
                Err(CannotProbe::Local("the run panicked".to_owned()))
            });
            let handler = run.probe.handler.kind();
            tracing::debug!(
                probe = %run.key,
                container = %run.container,
                handler = handler_label(handler),
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
        self.tasks.insert(id, task);
    }

    /// Ends a run soon, whose result is not wanted.
    pub(crate) fn cancel(&mut self, run: RunId) {
        if let Some(task) = self.tasks.remove(&run) {
            self.cancelled.insert(task.id(), run);
            tokio::spawn(async move {
                tokio::time::sleep(GRACE).await;
                task.abort();
            });
        }
    }

    /// Waits for the next run to end, for ever if none is under way.
    pub(crate) async fn next_ended(&mut self) -> RunEnd {
        loop {
            match self.runs.join_next_with_id().await {
                Some(ended) => {
                    if let Some(end) = self.forget_task(ended) {
                        return end;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    /// A run that has ended already.
    pub(crate) fn try_next_ended(&mut self) -> Option<RunEnd> {
        loop {
            let ended = self.runs.try_join_next_with_id()?;
            if let Some(end) = self.forget_task(ended) {
                return Some(end);
            }
        }
    }
}

impl<E> Prober<E> {
    /// Sets how late the loop was, by which the limits of runs are extended.
    pub(crate) fn set_loop_lag(&self, lag: LoopLag) {
        self.lag.send_replace(lag);
    }

    fn forget_task(&mut self, ended: Result<(Id, FinishedRun), JoinError>) -> Option<RunEnd> {
        match ended {
            Ok((id, finished)) => {
                if self.tasks.remove(&finished.run).is_none() {
                    self.cancelled.remove(&id);
                }
                Some(RunEnd::Finished(finished))
            }
            Err(error) => {
                if !error.is_cancelled() {
                    tracing::error!(%error, "the task of a probe run ended without a result, which is a bug in leadsman");
                }
                self.cancelled.remove(&error.id()).map(RunEnd::Aborted)
            }
        }
    }
}

async fn run_probe<E: Exec>(
    run: &ProbeRun,
    target: Option<ProbeTarget>,
    exec: &E,
    files: Option<Arc<FileReader>>,
    lost_by_now: impl Fn() -> Duration + Sync,
) -> Result<Outcome, CannotProbe> {
    let target = target.ok_or(CannotProbe::ContainerGone)?;
    let lost_before = lost_by_now();
    let lost_time = || lost_by_now().saturating_sub(lost_before);
    let limit = TimeLimit::new(run.probe.timeout(), &lost_time);
    let probed = async {
        match (&run.probe.handler, files) {
            (Handler::File(file), Some(files)) => files.read_file(run, file, limit).await,
            (handler, _) => leadsman_probe::run_probe(handler, &target, limit, exec).await,
        }
    };
    // A reading of a file has the limit twice: its wait for a permit is no failure of the probe.
    let wait = match run.probe.handler {
        Handler::File(_) => run.probe.timeout(),
        _ => Duration::ZERO,
    };
    let limit = limit.with_slack(wait + EXEC_SLACK + SLACK);
    let ended = limit.await_output(pin!(probed)).await;
    ended.unwrap_or(Err(CannotProbe::Deadline))
}

#[cfg(test)]
mod tests {
    use leadsman_core::cluster::Now;
    use leadsman_core::podprobe::node::{
        ContainerName, ExecLimits, HistoryLimits, NodeAction, NodeEvent, NodeProbes, PodIdentity,
        RuntimeContainer, RuntimeState, SLOT,
    };
    use leadsman_probe::{ExecError, Execution};
    use serde_json::json;

    use super::*;

    /// A runtime that never answers.
    #[derive(Clone)]
    struct Hangs;

    impl Exec for Hangs {
        async fn exec(&self, _: &str, _: &[String], _: Duration) -> Result<Execution, ExecError> {
            std::future::pending().await
        }
    }

    /// A run of a probe that may take an hour, and a loop that is to look at the clock in the next slot.
    fn long_run() -> (ProbeRun, LoopLag) {
        let now = Now {
            monotonic: Duration::ZERO,
            wall: clock::now(),
        };
        let limits = ExecLimits {
            per_node: 1,
            per_pod: 1,
            per_slot: 1,
        };
        let mut node = NodeProbes::new(limits, HistoryLimits::NONE, now);
        let probe = json!({"exec": {"command": ["a"]}, "timeoutSeconds": 3_600});
        let entry = json!({"name": "m#p", "containerName": "main", "probe": probe});
        let pod = json!({"name": "p", "namespace": "ns", "uid": "u", "IP": "", "probes": [entry]});
        let object = json!({"metadata": {"name": "n"}, "spec": {"podProbes": [pod]}});
        let object = serde_json::from_value(object).unwrap();
        node.apply_event(NodeEvent::Plan(Some(&object)), now);
        let name = ContainerName {
            pod: PodIdentity {
                namespace: "ns".into(),
                name: "p".into(),
                uid: "u".into(),
            },
            name: "main".into(),
        };
        let container = RuntimeContainer {
            id: "c".into(),
            state: RuntimeState::Running {
                started_at: now.wall,
            },
        };
        let listed = NodeEvent::ContainersListed {
            began: Duration::ZERO,
            containers: Some([(name, container)].into()),
        };
        match node.apply_event(listed, now).as_slice() {
            [NodeAction::StartRun(run)] => (run.clone(), node.loop_lag()),
            other => panic!("{other:?}"),
        }
    }

    // PRB-6
    #[tokio::test(start_paused = true)]
    async fn a_cancelled_run_ends_long_before_its_timeout() {
        let mut prober = Prober::new(Hangs, clock::monotonic());
        let (run, _) = long_run();
        let id = run.id;
        prober.start_run(run, Some(ProbeTarget::new(&[], "c")));
        let early = tokio::time::timeout(GRACE, prober.next_ended()).await;
        assert!(early.is_err() && prober.runs.len() == 1);
        prober.cancel(id);
        let ended = tokio::time::timeout(2 * GRACE, prober.next_ended()).await;
        assert!(matches!(ended, Ok(RunEnd::Aborted(run)) if run == id));
        assert!(prober.runs.is_empty() && prober.tasks.is_empty() && prober.cancelled.is_empty());
    }

    // PRB-13
    #[tokio::test(start_paused = true)]
    async fn the_limit_of_a_run_is_extended_once_by_what_the_loop_was_late() {
        let mut prober = Prober::new(Hangs, clock::monotonic());
        let (run, lag) = long_run();
        prober.start_run(run, Some(ProbeTarget::new(&[], "c")));
        // The loop never comes back.
        prober.set_loop_lag(lag);
        let RunEnd::Finished(ended) = prober.next_ended().await else {
            panic!("it was not cancelled");
        };
        assert_eq!(ended.result, Err(CannotProbe::Deadline));
        let limit = Duration::from_hours(1) + EXEC_SLACK;
        assert_eq!((ended.took + SLOT).as_secs(), 2 * limit.as_secs());
    }
}

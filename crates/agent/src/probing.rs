//! Probing: the agent's first task. It follows the node's `NodePodProbe`, runs its probes, and writes their verdicts
//! into its status.
//!
//! All decisions are made by [`NodeProbes`]: this module passes it events and carries out its actions.
//!
//! | module | holds |
//! |---|---|
//! | `plan` | the watch of the node's `NodePodProbe`, and which snapshot is the newest |
//! | `container_list` | the list of containers that the runtime is asked for |
//! | `targets` | the address that a run dials |
//! | `prober` | the runs under way |
//! | `files` | how files are read, and their changes noticed |
//! | `status` | one write of the status |
//! | `events` | events on pods |
//! | `event_queue` | the events that wait, of which each namespace has its share |
//! | `event_spam_filter` | the limit of a pod's events and log lines |
//! | `metrics` | the metrics of all this |

mod container_list;
mod event_queue;
mod event_spam_filter;
mod events;
mod files;
mod metrics;
mod plan;
mod prober;
mod status;
mod targets;

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use leadsman_core::cluster::Now;
use leadsman_core::podprobe::CannotProbe;
use leadsman_core::podprobe::node::{
    AllowedHandlers, ExecLimits, HistoryLimits, NodeAction, NodeEvent, NodeProbes, PodIdentity,
    ProbeKey, ProbeRun, StatusWriteEnd, VerdictChange,
};
use leadsman_cri::{Runtime, View};
use leadsman_process::clock;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use self::container_list::{ContainerLists, PolledContainers, poll_containers};
use self::event_spam_filter::EventSpamFilter;
use self::events::EventSender;
use self::files::FileReader;
use self::metrics::{ProbingMetrics, cause_label};
use self::plan::{NodePlan, PlanEvent, PlanFollower, watch_plan};
use self::prober::{FinishedRun, Prober, RunEnd};
use self::status::{StatusWrite, disposition_of, failed_write, shows_unprobed, write_status};
use self::targets::ProbeTargets;
use crate::health::Health;
use crate::history::HistoryRequests;
use crate::task::{DRAIN, TaskContext};

/// The longest time between two ticks.
const IDLE: Duration = Duration::from_mins(1);

/// Why probing ended by itself, which only a bug can cause.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbingError {
    #[error("the watch of this node's NodePodProbe ended")]
    WatchEnded,
    #[error("the container runtime poller ended")]
    PollEnded,
}

/// The flags of probing.
#[derive(Clone, Debug)]
pub(crate) struct ProbingConfig {
    pub(crate) exec_limits: ExecLimits,
    /// `--handlers`.
    pub(crate) handlers: AllowedHandlers,
    /// `--file-probes`.
    pub(crate) file_probes: Option<PathBuf>,
    pub(crate) history: HistoryLimits,
    /// `--node-ip`.
    pub(crate) node_ips: Vec<IpAddr>,
}

/// Probes the pods of the node until the task has to stop; then writes the last verdicts.
pub(crate) async fn run_probing(
    context: TaskContext,
    config: ProbingConfig,
    mut questions: HistoryRequests,
) -> Result<(), ProbingError> {
    let plans = watch_plan(
        context.server.clone(),
        &context.node_name,
        context.random.fork_rng(),
    );
    let mut probing = Probing::new(&context, config);
    // Room for one: while the loop is behind, the poller waits instead of piling up lists.
    let (sender, mut lists) = mpsc::channel(1);
    let view = View::new(context.runtime.clone());
    let polled = probing.lists.subscribe_to_pods();
    let mut polling = JoinSet::new();
    // Polling is a task of its own: a runtime that is slow to list must delay no probe.
    polling.spawn(poll_containers(view, context.start, polled, sender));
    let stopped = context.stop.cancelled();
    probing
        .run_until(stopped, pin!(plans), &mut lists, &mut questions)
        .await?;
    probing.write_pending_verdicts().await;
    Ok(())
}

/// The state of the loop.
struct Probing {
    context: TaskContext,
    node: NodeProbes,
    plan: PlanFollower,
    lists: ContainerLists,
    targets: ProbeTargets,
    prober: Prober<Runtime>,
    /// Reads files; None if the agent may not.
    files: Option<Arc<FileReader>>,
    /// The write under way, one at most.
    writes: JoinSet<StatusWrite>,
    /// Failed writes in a row.
    write_failures: u32,
    write_health: Health,
    events: EventSender,
    /// The lines that each pod may still have in the log at info and above.
    log_lines: EventSpamFilter,
    metrics: ProbingMetrics,
    random: fastrand::Rng,
}

impl Probing {
    fn new(context: &TaskContext, config: ProbingConfig) -> Self {
        let TaskContext {
            server,
            health,
            node_name,
            ..
        } = context;
        let metrics = ProbingMetrics::new(&context.metrics);
        let plan_health = health.register_check(
            "nodepodprobe",
            "this node's NodePodProbe has not been read yet",
        );
        let write_health = health.register_check("status", "");
        // The object has nothing to write yet, which is no failure.
        write_health.record_success();
        let files = config.file_probes.map(FileReader::new).map(Arc::new);
        Self {
            node: NodeProbes::new(config.exec_limits, config.history, now_since(context.start))
                .allow_only(config.handlers),
            plan: PlanFollower::new(node_name, plan_health),
            lists: ContainerLists::new(
                health.register_check("runtime", "the container runtime has not answered yet"),
            ),
            targets: ProbeTargets::new(config.node_ips),
            prober: Prober::new(context.runtime.clone(), context.start).with_files(files.clone()),
            files,
            writes: JoinSet::new(),
            write_failures: 0,
            write_health,
            events: EventSender::start_sender(
                server.clone(),
                node_name.clone(),
                &metrics,
                context.random.fork_rng(),
            ),
            log_lines: EventSpamFilter::default(),
            metrics,
            random: context.random.fork_rng(),
            context: context.clone(),
        }
    }

    async fn run_until(
        &mut self,
        stopped: impl Future<Output = ()>,
        mut plans: impl Stream<Item = PlanEvent> + Unpin,
        lists: &mut mpsc::Receiver<PolledContainers>,
        questions: &mut HistoryRequests,
    ) -> Result<(), ProbingError> {
        let mut stopped = pin!(stopped);
        let mut alarm = pin!(sleep_until(self.context.start));
        loop {
            // Due probes come on each turn, before other events: events cannot keep due probes
            // waiting, nor can many due probes keep events.
            self.tick_if_due();
            let wake_at = self
                .node
                .next_tick_at()
                .map_or_else(|| clock::monotonic() + IDLE, |at| self.context.start + at);
            // A timer is re-registered only when its time has changed, which most events do not do.
            if alarm.deadline() != wake_at || alarm.is_elapsed() {
                alarm.as_mut().reset(wake_at);
            }
            tokio::select! {
                // The stop first, which comes once; then what comes at most once a second, and runs, all of whose ends are
                // taken at once. The plan, which others write, comes after what the agent itself has begun, and questions
                // about it after that.
                biased;
                () = &mut stopped => return Ok(()),
                list = lists.recv() => self.observe_list(list.ok_or(ProbingError::PollEnded)?),
                Some(written) = self.writes.join_next() => self.end_write(written),
                run = self.prober.next_ended() => self.end_runs(run),
                event = plans.next() => {
                    self.follow_plan(event.ok_or(ProbingError::WatchEnded)?);
                }
                changed = next_changed(self.files.as_deref()) => {
                    for probe in changed {
                        self.apply_event(NodeEvent::FileChanged(probe));
                    }
                }
                Some(question) = questions.recv() => {
                    // The asker may have gone.
                    let _sent = question.reply.send(self.node.answer_history_query(&question.query));
                }
                () = &mut alarm => self.apply_event(NodeEvent::Tick),
            }
            self.begin_write();
        }
    }

    fn tick_if_due(&mut self) {
        let now = self.now_since_start().monotonic;
        if self.node.next_tick_at().is_some_and(|at| at <= now) {
            self.apply_event(NodeEvent::Tick);
        }
    }

    fn now_since_start(&self) -> Now {
        now_since(self.context.start)
    }

    fn apply_event(&mut self, event: NodeEvent<'_>) {
        let now = self.now_since_start();
        for action in self.node.apply_event(event, now) {
            match action {
                NodeAction::StartRun(run) => self.start_run(run),
                // Otherwise each edit of a probe would leave one more connection to a target that hangs, until its
                // timeout of up to an hour.
                NodeAction::CancelRun(run) => self.prober.cancel(run),
                NodeAction::VerdictChanged(change) => self.publish_change(change, now),
                NodeAction::RunDropped { key, cause, first } => {
                    self.log_dropped_run(&key, &cause, first);
                }
                NodeAction::MalformedEntries(entries) => {
                    self.metrics.set_malformed(entries.len());
                    for entry in entries {
                        tracing::warn!(%entry, "ignoring an invalid entry of this node's NodePodProbe");
                    }
                }
            }
        }
        self.metrics.set_execs(self.node.count_execs());
        self.metrics.set_connections(self.node.count_connections());
        let lag = self.node.loop_lag();
        self.metrics.set_loop_lag(lag.total_at(now.monotonic));
        self.prober.set_loop_lag(lag);
    }

    fn start_run(&mut self, run: ProbeRun) {
        self.metrics.observe_start(&run);
        let target = self.targets.target_of(&run, self.lists.last_containers());
        self.prober.start_run(run, target);
    }

    /// Whether a pod may have one more line in the log: one that flaps each second would turn the log over.
    fn may_log(&mut self, pod: &PodIdentity) -> bool {
        self.log_lines.take_token(pod, clock::monotonic())
    }

    fn log_dropped_run(&mut self, key: &ProbeKey, cause: &CannotProbe, first: bool) {
        let label = cause_label(cause);
        if let CannotProbe::Forbidden(_) = cause {
            self.metrics.count_forbidden(cause);
            if self.may_log(&key.pod) {
                tracing::warn!(probe = %key, error = %cause, "refusing a probe; its verdict is Unknown if it had one");
            }
            return;
        }
        if first && self.may_log(&key.pod) {
            tracing::warn!(probe = %key, cause = label, error = %cause, "cannot run a probe, its last verdict stays; retrying each period");
        } else {
            tracing::debug!(probe = %key, cause = label, error = %cause, "still cannot run a probe");
        }
    }

    fn publish_change(&mut self, change: VerdictChange, now: Now) {
        let from = change.from.map_or("none", |from| from.as_str());
        let to = change.to.as_str();
        // The message is left out: whoever reads the log need not be who may read what the pods of
        // all namespaces print. A run's own line has it, at debug.
        if self.may_log(&change.key.pod) {
            tracing::info!(probe = %change.key, from, to, "verdict changed");
        } else {
            tracing::debug!(probe = %change.key, from, to, "verdict changed");
        }
        self.metrics.count_change(change.to);
        if change.send_event {
            self.events.enqueue_change(change, now.wall);
        }
    }

    fn follow_plan(&mut self, event: PlanEvent) {
        let now = self.now_since_start().monotonic;
        let object = match self.plan.follow_event(event, now) {
            Some(NodePlan::Object(object)) => Some(object),
            Some(NodePlan::Absent) => None,
            None => return,
        };
        let object = object.as_deref();
        // Targets come before the event: runs that it starts are dialled at the addresses of this
        // plan.
        self.targets.follow_plan(object.map(|object| &object.spec));
        self.apply_event(NodeEvent::Plan(object));
        if let Some(files) = &self.files {
            files
                .watches()
                .keep_only(|probe| self.node.reads_file(probe));
        }
        let containers = self.node.probed_containers();
        let uids: HashSet<Arc<str>> = containers.map(|name| name.pod.uid).collect();
        self.metrics
            .set_probes(self.node.probed_containers().count());
        self.lists.follow_plan(
            uids,
            self.node.count_added_probes(),
            self.now_since_start().monotonic,
        );
    }

    fn observe_list(&mut self, list: PolledContainers) {
        self.metrics.count_list(list.succeeded());
        let now = self.now_since_start().monotonic;
        let names = self.node.probed_containers();
        if let Some(event) = self.lists.observe_list(list, names, now) {
            self.apply_event(event);
        }
    }

    /// Applies the end of this run and of all others that have ended: most runs of a slot end together.
    fn end_runs(&mut self, first: RunEnd) {
        self.end_run(first);
        while let Some(ended) = self.prober.try_next_ended() {
            self.end_run(ended);
        }
    }

    fn end_run(&mut self, ended: RunEnd) {
        let FinishedRun {
            run,
            handler,
            result,
            took,
        } = match ended {
            RunEnd::Finished(finished) => finished,
            RunEnd::Aborted(run) => return self.apply_event(NodeEvent::RunAborted { run }),
        };
        // The result is classified before it is counted: whether a timeout is a failure of the
        // probe depends on what the runtime has answered since.
        let result = self.node.classify_result(run, result);
        self.metrics.count_run(handler, &result, took);
        self.apply_event(NodeEvent::RunFinished { run, result, took });
    }

    fn begin_write(&mut self) {
        let now = self.now_since_start();
        if let Some(status) = self.node.begin_due_write(now) {
            let node_name = self.context.node_name.to_string();
            // `NodeProbes` returns no status while one is being written, so that no two writes overtake each other.
            let write = write_status(self.context.server.clone(), node_name, status);
            self.writes.spawn(write);
        } else if self.write_health.is_failing() && self.node.write_overdue_since().is_none() {
            // A status that could not be written need not be written any more.
            self.write_health.record_success();
        }
    }

    fn end_write(&mut self, written: Result<StatusWrite, JoinError>) {
        let written = written.unwrap_or_else(|lost| Err(lost.into()));
        if let Some(disposition) = disposition_of(&written) {
            self.metrics.count_write(disposition);
        }
        let end = match written {
            Ok(object) => {
                let shows_unprobed = shows_unprobed(&object);
                // The object first, or the write would seem to be due again.
                self.follow_plan(PlanEvent::Replied(object));
                self.write_health.record_success();
                self.write_failures = 0;
                StatusWriteEnd::Written { shows_unprobed }
            }
            Err(error) => {
                let now = self.now_since_start().monotonic;
                let since = self.node.write_overdue_since().unwrap_or(now);
                if self.write_health.record_failure(&error.to_string(), since) {
                    tracing::warn!(%error, "writing the verdicts failed, retrying; none is lost");
                }
                self.write_failures = self.write_failures.saturating_add(1);
                failed_write(&error, self.write_failures, self.random.f64())
            }
        };
        self.apply_event(NodeEvent::StatusWritten(end));
    }

    /// Writes the verdicts that are not written yet, as far as that is due soon. Runs under way are dropped.
    async fn write_pending_verdicts(&mut self) {
        loop {
            if let Some(written) = self.writes.join_next().await {
                self.end_write(written);
                continue;
            }
            self.begin_write();
            let soon = self.now_since_start().monotonic + DRAIN;
            match self.node.write_at().filter(|at| *at < soon) {
                // One was begun just now, and its end is waited for first.
                _ if !self.writes.is_empty() => {}
                Some(at) => sleep_until(self.context.start + at).await,
                None => return,
            }
        }
    }
}

async fn next_changed(files: Option<&FileReader>) -> Vec<Arc<ProbeKey>> {
    match files {
        Some(files) => files.watches().next_changed().await,
        None => std::future::pending().await,
    }
}

fn now_since(start: Instant) -> Now {
    Now {
        monotonic: clock::monotonic().saturating_duration_since(start),
        wall: clock::now(),
    }
}

//! The state machine of a node: events in, actions out.
//!
//! It connects its parts and decides little itself: a worker decides about one probe, the schedule knows which workers
//! are due, [`Runs`] which runs may start, and [`StatusReporter`] what is written and when.

mod plan;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leadsman_api::NodePodProbeStatus;

use super::container::{ContainerName, RuntimeContainers};
use super::entries::{AllowedHandlers, MalformedEntry};
use super::event::{NodeAction, NodeEvent, VerdictChange};
use super::judged_output::CompiledOutputs;
use super::key::{PodIdentity, ProbeKey};
use super::loop_lag::LoopLag;
use super::permits::RunPermits;
use super::recent_runs::HistoryLimits;
use super::reporter::StatusReporter;
use super::run::{ProbeRun, RunId};
use super::runs::Runs;
use super::schedule::{Schedule, TimeSlot, Weight};
use super::status_draft::{StatusRow, Unprobed};
use super::worker::{Reschedule, Worker};
use crate::cluster::Now;
use crate::podprobe::history::{HistoryQuery, ProbeHistory};
use crate::podprobe::probe::{CannotProbe, HandlerKind, Outcome, State};
use crate::podprobe::verdict::Verdict;

/// How many commands the node may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecLimits {
    /// Commands at once on the node, at least one.
    pub per_node: usize,
    /// Commands at once in one pod, at least one.
    pub per_pod: usize,
    /// Commands that start in one slot, at least one. An even share of all commands may exceed it.
    pub per_slot: u32,
}

/// All probes of one node, with their verdicts and containers.
#[derive(Debug)]
pub struct NodeProbes {
    workers: HashMap<Arc<ProbeKey>, Worker>,
    /// The keys of the workers in the order of the spec, in which the status lists them too.
    order: Vec<Arc<ProbeKey>>,
    malformed: Vec<MalformedEntry>,
    /// `None` until the runtime has answered a list that began when there was something to probe.
    containers: Option<RuntimeContainers>,
    /// The time when the last list was answered.
    listed_at: Timestamp,
    /// The time when the newest list began; since the agent's start.
    last_list_began: Option<Duration>,
    /// The time when the plan last became non-empty. Lists that began earlier were not asked about any probed pod.
    probing_since: Duration,
    /// Whether workers were added after the newest list began: for them an equal list is new.
    has_unobserved_workers: bool,
    schedule: Schedule<Arc<ProbeKey>>,
    runs: Runs,
    /// The number of workers ever added.
    added: u64,
    /// Whether an object was ever seen: only the status of the first one may hold verdicts of an earlier agent.
    has_had_plan: bool,
    /// The last known states of the probes of a deleted object. If it is created again, no event is repeated that a
    /// user has already got.
    states_of_deleted: HashMap<Arc<ProbeKey>, State>,
    reporter: StatusReporter,
    history: HistoryLimits,
    outputs: CompiledOutputs,
    allowed: AllowedHandlers,
}

impl NodeProbes {
    /// A node without a plan.
    pub fn new(limits: ExecLimits, history: HistoryLimits, now: Now) -> Self {
        // Runs in one slot beyond those that may run at once would only wait for permits.
        let most_per_slot = u32::try_from(limits.per_node).unwrap_or(u32::MAX);
        Self {
            workers: HashMap::new(),
            order: Vec::new(),
            malformed: Vec::new(),
            containers: None,
            listed_at: now.wall,
            last_list_began: None,
            probing_since: Duration::ZERO,
            has_unobserved_workers: false,
            schedule: Schedule::new(limits.per_slot, most_per_slot),
            runs: Runs::new(RunPermits::new(limits.per_pod, limits.per_node)),
            added: 0,
            has_had_plan: false,
            states_of_deleted: HashMap::new(),
            reporter: StatusReporter::new(),
            history,
            outputs: CompiledOutputs::default(),
            allowed: HandlerKind::ALL.into(),
        }
    }

    /// Never runs handlers of other kinds.
    #[must_use]
    pub fn allow_only(mut self, allowed: AllowedHandlers) -> Self {
        self.allowed = allowed;
        self
    }

    /// Applies an event. The actions are to be carried out in their order.
    pub fn apply_event(&mut self, event: NodeEvent<'_>, now: Now) -> Vec<NodeAction> {
        let mut actions = Vec::new();
        self.runs.observe_time(now.monotonic);
        match event {
            NodeEvent::Plan(object) => self.apply_plan(object, now, &mut actions),
            NodeEvent::ContainersListed { began, containers } => {
                self.observe_containers(began, containers, now, &mut actions);
            }
            NodeEvent::RunFinished { run, result, took } => {
                self.finish_run(run, result, took, now, &mut actions);
            }
            NodeEvent::RunAborted { run } => {
                if let Some(run) = self.runs.end_run(run) {
                    self.runs.release_permit(&run);
                    self.start_waiting_runs(now, &mut actions);
                }
            }
            NodeEvent::FileChanged(key) => {
                self.update_worker(&key, &mut actions, |worker, _| worker.observe_change(now));
            }
            NodeEvent::Tick => {}
            NodeEvent::StatusWritten(end) => self.reporter.end_write(end, now),
        }
        // Due runs start after each event, not only after a tick: an event may have queued a run in
        // the slot of now.
        self.start_due_runs(now, &mut actions);
        self.runs.plan_next_look(now.monotonic);
        #[cfg(debug_assertions)]
        assert!(self.runs.is_balanced(), "{:?}", self.runs);
        actions
    }

    /// The time to apply [`NodeEvent::Tick`] and then to call [`NodeProbes::begin_due_write`], unless another event comes
    /// first. Since the agent's start; may be in the past.
    pub fn next_tick_at(&self) -> Option<Duration> {
        let run_at = self.schedule.next_slot().map(TimeSlot::start_time);
        let look_at = self.runs.lag().look_at();
        let all = run_at.into_iter().chain(self.write_at());
        all.chain(look_at).min()
    }

    /// The time to call [`NodeProbes::begin_due_write`] next. Since the agent's start; may be in the past.
    ///
    /// Nothing is written before the runtime has answered once: until then the verdicts of an earlier agent are neither
    /// confirmed nor refuted.
    pub fn write_at(&self) -> Option<Duration> {
        let awaits_runtime = self.containers.is_none() && !self.workers.is_empty();
        self.reporter.write_at().filter(|_| !awaits_runtime)
    }

    /// The whole status, if a write is due. [`NodeEvent::StatusWritten`] must follow.
    pub fn begin_due_write(&mut self, now: Now) -> Option<NodePodProbeStatus> {
        // The check comes before the rows are built, since they clone the verdicts of the whole node.
        if self.write_at()? > now.monotonic {
            return None;
        }
        let rows: Vec<StatusRow<'_>> = self
            .order
            .iter()
            .filter_map(|key| status_row(key, self.workers.get(key)?, self.listed_at))
            .collect();
        let unprobed: Vec<Unprobed> = self.unprobed_entries().collect();
        self.reporter.begin_write(&rows, &unprobed, now)
    }

    fn unprobed_entries(&self) -> impl Iterator<Item = Unprobed> + '_ {
        let workers = self.order.iter().filter_map(|key| {
            let cause = self.workers.get(key)?.reported_cause()?;
            Some(Unprobed {
                pod: key.pod.clone(),
                probe: key.id.to_string(),
                why: cause.to_string(),
            })
        });
        // The status names pods by their uid.
        let malformed = self.malformed.iter().filter(|entry| !entry.uid.is_empty());
        workers.chain(malformed.map(|entry| Unprobed {
            pod: PodIdentity {
                namespace: entry.namespace.as_str().into(),
                name: entry.pod.as_str().into(),
                uid: entry.uid.as_str().into(),
            },
            probe: entry.probe.clone(),
            why: format!("the entry cannot be followed: {}", entry.reason),
        }))
    }

    /// The time when the write became due that has not succeeded yet, since the agent's start.
    pub fn write_overdue_since(&self) -> Option<Duration> {
        self.reporter.overdue_since()
    }

    /// The container of each probe in the plan.
    pub fn probed_containers(&self) -> impl Iterator<Item = ContainerName> + '_ {
        self.order.iter().map(|key| container_name_of(key))
    }

    /// Whether a probe of the plan reads a file.
    pub fn reads_file(&self, key: &ProbeKey) -> bool {
        self.workers.get(key).is_some_and(Worker::reads_file)
    }

    /// The recent runs of the probes that are asked about, in the order of the plan.
    pub fn answer_history_query(&self, query: &HistoryQuery) -> Vec<ProbeHistory> {
        let is_asked = |key: &&Arc<ProbeKey>| query.matches_pod(&key.pod.namespace, &key.pod.name);
        let keys = self.order.iter().filter(is_asked);
        keys.filter_map(|key| Some(probe_history(key, self.workers.get(key)?, query)))
            .collect()
    }

    /// The number of probes ever added by a plan. When it grows, a list of containers should follow: a new probe has no
    /// verdict before a list that began after it was added.
    pub fn count_added_probes(&self) -> u64 {
        self.added
    }

    /// The meaning of a run's result, before it is counted and passed to [`NodeEvent::RunFinished`]: a command that
    /// hangs beyond our own deadline has failed by its timeout, if the runtime has answered since.
    pub fn classify_result(
        &self,
        run: RunId,
        result: Result<Outcome, CannotProbe>,
    ) -> Result<Outcome, CannotProbe> {
        let began = self.last_list_began;
        self.runs.classify_result(run, result, began)
    }

    /// How late the loop was while runs were under way, by which the executor extends the limit of a run once.
    pub fn loop_lag(&self) -> LoopLag {
        *self.runs.lag()
    }

    /// The numbers of commands that run and that wait for a permit.
    pub fn count_execs(&self) -> (usize, usize) {
        self.runs.count_execs()
    }

    /// The numbers of connections under way, and of those that wait for a permit.
    pub fn count_connections(&self) -> (usize, usize) {
        self.runs.count_connections()
    }

    /// Verdicts, each with its state and its container.
    #[cfg(test)]
    pub(super) fn iter_verdicts(
        &self,
    ) -> impl Iterator<Item = (&ProbeKey, &'static str, Option<&str>)> {
        self.order.iter().filter_map(|key| {
            let verdict = self.workers[key].verdict()?;
            Some((&**key, verdict.state.as_str(), verdict.container.as_deref()))
        })
    }

    /// Messages of all verdicts.
    #[cfg(test)]
    pub(super) fn verdict_messages(&self) -> impl Iterator<Item = &str> {
        let verdicts = self.workers.values().filter_map(Worker::verdict);
        verdicts.map(|verdict| &*verdict.message)
    }

    fn observe_containers(
        &mut self,
        began: Duration,
        containers: Option<RuntimeContainers>,
        now: Now,
        actions: &mut Vec<NodeAction>,
    ) {
        // The time never moves back: it stays true that the runtime was alive then.
        self.last_list_began = self.last_list_began.max(Some(began));
        // A list that began before there was a plan may lack the containers of its pods.
        if began < self.probing_since || self.order.is_empty() {
            return;
        }
        self.listed_at = now.wall;
        let first = self.containers.is_none();
        // A runtime in which nothing has changed answers None; only new workers have not seen the list that it repeats.
        if containers.is_none() && !first && !self.has_unobserved_workers {
            return;
        }
        if containers.is_some() || first {
            self.containers = Some(containers.unwrap_or_default());
        }
        if first {
            self.reporter.compare_at_once();
        }
        self.has_unobserved_workers = false;
        // The order of the plan is kept: actions, and with them events and log lines, come in an order that a test can name.
        for key in self.order.clone() {
            self.has_unobserved_workers |= self.workers[&key].added_at() > began;
            self.observe_container(&key, now, actions);
        }
    }

    fn observe_container(&mut self, key: &Arc<ProbeKey>, now: Now, actions: &mut Vec<NodeAction>) {
        let began = self.last_list_began;
        self.update_worker(key, actions, |worker, containers| match containers {
            Some(_) if began < Some(worker.added_at()) => Reschedule::Keep,
            Some(containers) => {
                worker.observe_container(containers.get(&container_name_of(key)), now)
            }
            None => Reschedule::Keep,
        });
    }

    fn finish_run(
        &mut self,
        id: RunId,
        result: Result<Outcome, CannotProbe>,
        took: Duration,
        now: Now,
        actions: &mut Vec<NodeAction>,
    ) {
        // While the run is still known: its start and its timeout decide what a deadline means.
        let result = self.classify_result(id, result);
        let Some(run) = self.runs.end_run(id) else {
            return;
        };
        let key = &run.key;
        let worker = self.workers.get(key);
        let expected = worker.and_then(|worker| worker.planned().output.as_ref());
        let judged = self.outputs.judge_run(expected, result);
        let cause = judged.result.as_ref().err().cloned();
        // Asked before the worker takes the result, by which this run is a dropped one too.
        let first = worker.is_some_and(|worker| !worker.has_dropped_runs());
        let (times, limits) = (
            run.times_if_ended(now, took),
            self.history.share_of_one(self.workers.len()),
        );
        let change = self.update_worker(key, actions, |worker, _| {
            worker.finish_and_keep(id, judged, times, limits, now)
        });
        if change == Reschedule::Retry
            && let Some(retry) = self.retry_unprobed_run(key, id)
        {
            let retry = self
                .runs
                .restart_with_permit(retry, run.weight, now.monotonic);
            actions.push(NodeAction::StartRun(retry));
            return;
        }
        if change != Reschedule::Keep
            && let Some(cause) = cause
        {
            let key = key.clone();
            actions.push(NodeAction::RunDropped { key, cause, first });
        }
        // Not before the worker has decided: a retry keeps the permit.
        self.runs.release_permit(&run);
        self.start_waiting_runs(now, actions);
    }

    /// The run again, for a retry.
    fn retry_unprobed_run(&self, key: &Arc<ProbeKey>, id: RunId) -> Option<ProbeRun> {
        let worker = self.workers.get(key)?;
        Some(ProbeRun {
            id,
            key: key.clone(),
            probe: worker.planned().probe.clone(),
            container: worker.container()?.clone(),
            lag: Duration::ZERO,
            waited: Duration::ZERO,
        })
    }

    /// Lets a worker decide, updates its due time, and publishes a change of its verdict.
    fn update_worker(
        &mut self,
        key: &Arc<ProbeKey>,
        actions: &mut Vec<NodeAction>,
        decide: impl FnOnce(&mut Worker, Option<&RuntimeContainers>) -> Reschedule,
    ) -> Reschedule {
        let Some(worker) = self.workers.get_mut(key) else {
            return Reschedule::Keep;
        };
        let (before, last_known) = (worker.verdict().cloned(), worker.last_known_state());
        let running = worker.wanted_run();
        let cause = worker.reported_cause().cloned();
        let change = decide(worker, self.containers.as_ref());
        if cause.as_ref() != worker.reported_cause() {
            self.reporter.compare_at_once();
            if let Some(cause @ CannotProbe::Forbidden(_)) = worker.reported_cause() {
                actions.push(NodeAction::RunDropped {
                    key: key.clone(),
                    cause: cause.clone(),
                    first: true,
                });
            }
        }
        // One look-up: hashing keys is a considerable part of the cost of a run.
        let (weight, still, after) = (
            worker.weight(),
            worker.wanted_run(),
            worker.verdict().cloned(),
        );
        match change {
            Reschedule::Keep | Reschedule::Retry => {}
            Reschedule::Cancel => self.schedule.cancel(key),
            Reschedule::First(earliest) => {
                self.schedule.queue_first_run(key.clone(), weight, earliest);
            }
            Reschedule::Next(due) => self.schedule_next(key, weight, due),
            Reschedule::CatchUp(slot) => {
                let queued = self.schedule.queued_slot_of(key);
                if queued.is_none_or(|queued| queued > slot) {
                    self.schedule.queue_in_slot(key.clone(), weight, slot);
                }
            }
        }
        // The decision has ended the wanted run, by another container or another handler for
        // instance. A run that has ended by itself is not known to `runs` any more, so it is not
        // cancelled.
        if running != still
            && let Some(run) = running
            && self.runs.give_up(run)
        {
            actions.push(NodeAction::CancelRun(run));
        }
        if let Some(after) = after {
            self.publish_verdict(key, before.as_ref(), &after, last_known, actions);
        }
        change
    }

    fn schedule_next(&mut self, key: &Arc<ProbeKey>, weight: Weight, due: TimeSlot) {
        // A new period delays no run that is queued.
        let is_sooner = self
            .schedule
            .queued_slot_of(key)
            .is_some_and(|slot| slot <= due);
        if !is_sooner {
            self.schedule.queue_next_run(key.clone(), weight, due);
        }
    }

    fn publish_verdict(
        &mut self,
        key: &Arc<ProbeKey>,
        before: Option<&Verdict>,
        after: &Verdict,
        last_known: Option<State>,
        actions: &mut Vec<NodeAction>,
    ) {
        let same = before.filter(|before| {
            before.state == after.state
                && before.since == after.since
                // `since` has whole seconds, in which the content of a file may change twice.
                && before.values == after.values
                && before.container == after.container
        });
        match same {
            None => self.reporter.compare_at_once(),
            Some(before) if before.message != after.message => {
                self.reporter.compare_when_message_due(key);
            }
            Some(_) => {}
        }
        let from = before.map(|before| before.state);
        if from != Some(after.state) {
            actions.push(NodeAction::VerdictChanged(VerdictChange {
                key: key.clone(),
                from,
                to: after.state,
                since: after.since,
                message: after.message.clone(),
                // The last known state decides: an agent that restarts passes through Unknown, which is no event for a user.
                send_event: after.state != State::Unknown && last_known != Some(after.state),
            }));
        }
    }

    fn start_due_runs(&mut self, now: Now, actions: &mut Vec<NodeAction>) {
        for (key, slot) in self.schedule.take_due(TimeSlot::containing(now.monotonic)) {
            let Some(worker) = self.workers.get_mut(&key) else {
                continue;
            };
            let id = self.runs.next_id();
            let Some(container) = worker.begin_run(id, slot) else {
                continue;
            };
            let weight = worker.weight();
            let run = ProbeRun {
                id,
                key: key.clone(),
                probe: worker.planned().probe.clone(),
                container,
                lag: now.monotonic.saturating_sub(slot.start_time()),
                waited: Duration::ZERO,
            };
            let started = self.runs.start_or_queue(run, weight, now.monotonic);
            actions.extend(started.map(NodeAction::StartRun));
        }
    }

    fn start_waiting_runs(&mut self, now: Now, actions: &mut Vec<NodeAction>) {
        while let Some(run) = self.runs.start_waiting(now.monotonic) {
            actions.push(NodeAction::StartRun(run));
        }
    }
}

fn container_name_of(key: &ProbeKey) -> ContainerName {
    ContainerName {
        pod: key.pod.clone(),
        name: key.container.clone(),
    }
}

fn probe_history(key: &ProbeKey, worker: &Worker, query: &HistoryQuery) -> ProbeHistory {
    let probe = &worker.planned().probe;
    ProbeHistory {
        namespace: key.pod.namespace.clone(),
        pod: key.pod.name.clone(),
        uid: key.pod.uid.clone(),
        container: key.container.clone(),
        marker: key.id.marker.clone(),
        probe: key.id.probe.clone(),
        handler: probe.handler.field_name().into(),
        period_seconds: probe.period_seconds.get(),
        in_a_row: worker.results_in_a_row(),
        runs: worker.recent_runs().to_recorded_runs(query.without_output),
    }
}

/// The row of a verdict: confirmed by its last run, or, where nothing runs, by the last list of containers.
fn status_row<'a>(
    key: &'a Arc<ProbeKey>,
    worker: &Worker,
    listed_at: Timestamp,
) -> Option<StatusRow<'a>> {
    let mut verdict = worker.verdict()?.clone();
    debug_assert_eq!(verdict.revision, worker.planned().revision);
    let probed = verdict.probed.filter(|_| worker.is_probing());
    verdict.probed = Some(probed.unwrap_or(listed_at));
    Some(StatusRow { key, verdict })
}

//! A node to play with: a clock that jumps, an API server that keeps one object, runs that end when the test says so.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use leadsman_api::{NodePodProbe, NodePodProbeSpec, NodePodProbeStatus};
use serde_json::{Value, json};

use super::recent_runs::HistoryLimits;
use super::reporter::StatusWriteEnd;
use super::{ContainerName, PodIdentity, RuntimeContainer, RuntimeContainers, RuntimeState};
use super::{ExecLimits, NodeAction, NodeEvent, NodeProbes, ProbeRun, RunId, VerdictChange};
use crate::cluster::Now;
use crate::cluster::go_json::stored_bytes;
use crate::podprobe::probe::{CannotProbe, HandlerKind, Outcome, State};

pub(super) const LIMITS: ExecLimits = ExecLimits {
    per_node: 3,
    per_pod: 2,
    per_slot: 2,
};

pub(super) const HISTORY: HistoryLimits = HistoryLimits::with_runs_per_probe(3);

/// Second 1,000,000 of the world.
pub(super) fn world_epoch() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

pub(super) struct Sim {
    pub(super) node: NodeProbes,
    now: Duration,
    /// The agent's start; times of the node are since then.
    start: Duration,
    /// The time by which the clock was set back.
    pub(super) clock_behind: Duration,
    pub(super) object: NodePodProbe,
    pub(super) containers: RuntimeContainers,
    pub(super) runs: BTreeMap<RunId, ProbeRun>,
    /// The times at which runs were cancelled. Cancelled runs may end all the same, and are aborted a second later.
    pub(super) cancelled: BTreeMap<RunId, Duration>,
    pub(super) changes: Vec<VerdictChange>,
    pub(super) dropped: usize,
    /// Dropped runs that none was dropped before.
    pub(super) first_drops: usize,
    pub(super) malformed: usize,
    pub(super) writes: usize,
    /// Writes to come that fail.
    pub(super) failures: usize,
    failed_in_a_row: u32,
    /// A larger status, as it is stored, is refused for its size.
    pub(super) most_bytes: usize,
    /// The sizes of those that were.
    pub(super) too_large: Vec<usize>,
    /// How long a write takes.
    pub(super) write_takes: Duration,
    /// Writes wait for [`Sim::end_write`].
    pub(super) holds_writes: bool,
    /// The one that is under way.
    pub(super) in_flight: Option<NodePodProbeStatus>,
    /// Whether there is no object.
    pub(super) gone: bool,
    /// The times at which the runs that are on their way began.
    pub(super) begun: BTreeMap<RunId, Duration>,
    /// The API server drops the fields that OpenKruise does not know.
    pub(super) prunes: bool,
}

impl Sim {
    pub(super) fn new() -> Self {
        let start = Duration::ZERO;
        Self {
            node: NodeProbes::new(LIMITS, HISTORY, moment_at(start, start)),
            now: start,
            start,
            clock_behind: Duration::ZERO,
            object: NodePodProbe::new("node", NodePodProbeSpec::default()),
            containers: RuntimeContainers::new(),
            runs: BTreeMap::new(),
            cancelled: BTreeMap::new(),
            changes: Vec::new(),
            dropped: 0,
            first_drops: 0,
            malformed: 0,
            writes: 0,
            failures: 0,
            failed_in_a_row: 0,
            most_bytes: usize::MAX,
            too_large: Vec::new(),
            write_takes: Duration::from_millis(5),
            holds_writes: false,
            in_flight: None,
            gone: false,
            begun: BTreeMap::new(),
            prunes: false,
        }
    }

    /// One pod `p` with these probes, each `(name, probe)`, of container `main`; the node sees it, and lists containers if
    /// it had before.
    pub(super) fn plan_and_show(&mut self, probes: &[(&str, Value)]) {
        self.plan_unseen(probes);
        self.show_object();
        if !self.containers.is_empty() {
            self.list_containers();
        }
    }

    /// Likewise, not yet seen.
    pub(super) fn plan_unseen(&mut self, probes: &[(&str, Value)]) {
        let probes: Vec<Value> = probes
            .iter()
            .map(|(name, probe)| {
                let revision = (!self.prunes).then(|| probe.to_string());
                let mut probe = probe.clone();
                let mut beside = |field| probe.as_object_mut().and_then(|probe| probe.remove(field));
                let (file, output) = (beside("file"), beside("output"));
                json!({"name": name, "containerName": "main", "probe": probe, "file": file, "output": output,
                    "revision": revision})
            })
            .collect();
        let pod = json!({"name": "p", "namespace": "ns", "uid": "u", "IP": "", "probes": probes});
        self.object.spec = serde_json::from_value(json!({"podProbes": [pod]})).unwrap();
    }

    /// The node sees its object.
    pub(super) fn show_object(&mut self) {
        let object = (!self.gone).then(|| self.object.clone());
        self.apply_event(NodeEvent::Plan(object.as_ref()));
    }

    /// Container `main` of the pod is this one from now on, and the node sees it.
    pub(super) fn set_container(&mut self, container: Option<(&str, RuntimeState)>) {
        let name = ContainerName {
            pod: PodIdentity {
                namespace: "ns".into(),
                name: "p".into(),
                uid: "u".into(),
            },
            name: "main".into(),
        };
        match container {
            Some((id, state)) => {
                let id = id.into();
                self.containers.insert(name, RuntimeContainer { id, state });
            }
            None => {
                self.containers.remove(&name);
            }
        }
        self.list_containers();
    }

    pub(super) fn list_containers(&mut self) {
        self.list_containers_from(self.current_moment().monotonic);
    }

    /// A list that began then, and shows what is there now.
    pub(super) fn list_containers_from(&mut self, began: Duration) {
        let containers = Some(self.containers.clone());
        self.apply_event(NodeEvent::ContainersListed { began, containers });
    }

    pub(super) fn apply_event(&mut self, event: NodeEvent<'_>) {
        let now = self.current_moment();
        for action in self.node.apply_event(event, now) {
            match action {
                NodeAction::StartRun(run) => {
                    self.begun.insert(run.id, self.now);
                    let before = self.runs.insert(run.id, run);
                    assert_eq!(before, None, "a run that is on its way began again");
                }
                NodeAction::CancelRun(run) => {
                    assert!(self.runs.contains_key(&run), "it is not on its way");
                    let before = self.cancelled.insert(run, self.now);
                    assert_eq!(before, None, "it is cancelled once");
                }
                NodeAction::VerdictChanged(change) => self.changes.push(change),
                NodeAction::RunDropped { first, .. } => {
                    self.dropped += 1;
                    self.first_drops += usize::from(first);
                }
                NodeAction::MalformedEntries(entries) => self.malformed = entries.len(),
            }
        }
    }

    pub(super) fn finish_run(&mut self, run: RunId, result: Result<Outcome, CannotProbe>) {
        self.runs.remove(&run).expect("it is on its way");
        self.cancelled.remove(&run);
        let began = self.begun.remove(&run).unwrap_or(self.now);
        let took = self.now.saturating_sub(began);
        self.apply_event(NodeEvent::RunFinished { run, result, took });
    }

    /// Time passes in which the node is not called.
    pub(super) fn stall(&mut self, time: Duration) {
        self.now += time;
    }

    fn abort_cancelled_runs(&mut self) {
        let over = |at: Duration| self.now.saturating_sub(at) >= Duration::from_secs(1);
        let runs = self.cancelled.iter().filter(|(_, at)| over(**at));
        for run in runs.map(|(run, _)| *run).collect::<Vec<_>>() {
            self.runs.remove(&run).expect("it is on its way");
            self.cancelled.remove(&run);
            self.begun.remove(&run);
            self.apply_event(NodeEvent::RunAborted { run });
        }
    }

    /// Ends all runs that are on their way, and those that have waited for them.
    pub(super) fn finish_all_runs(&mut self, succeed: bool, message: &str) {
        while let Some(run) = self.runs.keys().next().copied() {
            self.finish_run(run, Ok(outcome_of(succeed, message)));
        }
    }

    /// Lets time pass; the node is called whenever it asked to be, and what it wants written is written.
    pub(super) fn pass_time(&mut self, time: Duration) {
        self.pass_time_doing(time, |_| ());
    }

    /// Likewise, with something done after each step.
    pub(super) fn pass_time_doing(&mut self, time: Duration, mut then: impl FnMut(&mut Self)) {
        let end = self.now + time;
        let mut idle = 0;
        loop {
            then(self);
            self.abort_cancelled_runs();
            self.perform_due_write();
            let next = self.node.next_tick_at().map(|next| self.start + next);
            let Some(next) = next.filter(|next| *next <= end) else {
                break;
            };
            idle = if next > self.now { 0 } else { idle + 1 };
            assert!(idle < 10, "the node asks to be called at once, for ever");
            self.now = next.max(self.now);
            self.apply_event(NodeEvent::Tick);
        }
        self.now = self.now.max(end);
        self.apply_event(NodeEvent::Tick);
        then(self);
        self.perform_due_write();
    }

    /// Runs succeed or fail as soon as they begin.
    pub(super) fn pass_time_with_results(&mut self, time: Duration, succeed: bool, message: &str) {
        self.pass_time_doing(time, |sim| sim.finish_all_runs(succeed, message));
    }

    fn perform_due_write(&mut self) {
        let Some(status) = self.node.begin_due_write(self.current_moment()) else {
            return;
        };
        self.writes += 1;
        if self.holds_writes {
            let other = self.in_flight.replace(status);
            assert_eq!(other, None, "two writes at once");
            return;
        }
        self.now += self.write_takes;
        let end = if self.failures > 0 {
            self.failures -= 1;
            self.failed_write()
        } else if stored_bytes(&status) > self.most_bytes {
            self.too_large.push(stored_bytes(&status));
            StatusWriteEnd::TooLarge {
                backoff: Duration::from_millis(150),
            }
        } else {
            self.store_status(status);
            self.show_object();
            self.completed_write()
        };
        self.apply_event(NodeEvent::StatusWritten(end));
    }

    /// Ends the write that is under way, if there is one; no object, no write.
    pub(super) fn end_write(&mut self, done: bool, answered: bool) {
        let Some(status) = self.in_flight.take() else {
            return;
        };
        if done && !self.gone {
            self.store_status(status);
            self.show_object();
        }
        let end = if done && answered && !self.gone {
            self.completed_write()
        } else {
            self.failed_write()
        };
        self.apply_event(NodeEvent::StatusWritten(end));
    }

    /// The agent's back-off doubles up to a longest one.
    fn failed_write(&mut self) -> StatusWriteEnd {
        let doubled = Duration::from_millis(150) * (1 << self.failed_in_a_row.min(5));
        self.failed_in_a_row += 1;
        StatusWriteEnd::Failed {
            backoff: doubled.min(Duration::from_millis(3_750)),
            retry_after: None,
        }
    }

    fn completed_write(&mut self) -> StatusWriteEnd {
        self.failed_in_a_row = 0;
        StatusWriteEnd::Written {
            shows_unprobed: !self.shown_obstacles().is_empty(),
        }
    }

    /// The API server has this status now.
    pub(super) fn store_status(&mut self, status: NodePodProbeStatus) {
        self.object.status = Some(self.as_stored(status));
    }

    fn as_stored(&self, mut status: NodePodProbeStatus) -> NodePodProbeStatus {
        for pod in &mut status.pod_probe_statuses {
            if self.prunes {
                pod.cannot_probe.clear();
            }
        }
        let pods = status.pod_probe_statuses.iter_mut();
        for state in pods.flat_map(|pod| &mut pod.probe_states) {
            if self.prunes {
                state.revision = None;
                state.container_id = None;
            }
        }
        status
    }

    /// Another agent takes over: all that it knows is what the API server and the runtime show.
    pub(super) fn restart_agent(&mut self) {
        self.replace_agent();
        self.show_object();
    }

    /// Likewise, and may run probes of these kinds alone.
    pub(super) fn restart_agent_allowing(&mut self, allowed: &[HandlerKind]) {
        self.replace_agent();
        let node = NodeProbes::new(LIMITS, HISTORY, self.current_moment());
        self.node = node.allow_only(allowed.iter().copied().collect());
        self.show_object();
        self.list_containers();
    }

    /// Likewise, and has seen nothing yet.
    pub(super) fn replace_agent(&mut self) {
        self.start = self.now;
        self.cancelled.clear();
        self.node = NodeProbes::new(LIMITS, HISTORY, self.current_moment());
        self.runs.clear();
        self.begun.clear();
        self.changes.clear();
        self.in_flight = None;
    }

    /// The time since the world began.
    pub(super) fn world_time(&self) -> Duration {
        self.now
    }

    /// The agent's start, since the world began.
    pub(super) fn agent_start(&self) -> Duration {
        self.start
    }

    pub(super) fn current_moment(&self) -> Now {
        let now = moment_at(self.now, self.start);
        Now {
            wall: now.wall - self.clock_behind,
            ..now
        }
    }

    /// Milliseconds since the world began.
    pub(super) fn world_millis(&self) -> u128 {
        self.now.as_millis()
    }

    /// States as the API server shows them, by the probe's name.
    pub(super) fn shown_states(&self) -> BTreeMap<String, String> {
        let status = self.object.status.clone().unwrap_or_default();
        let pods = status.pod_probe_statuses.into_iter();
        pods.flat_map(|pod| pod.probe_states)
            .map(|state| (state.name, state.state))
            .collect()
    }

    /// States as the API server shows them, by the pod's uid and the probe's name.
    pub(super) fn shown_by_pod(&self) -> BTreeMap<(String, String), String> {
        let status = self.object.status.clone().unwrap_or_default();
        let pods = status.pod_probe_statuses.into_iter();
        pods.flat_map(|pod| {
            pod.probe_states
                .into_iter()
                .map(move |s| (pod.uid.clone(), s))
        })
        .map(|(uid, state)| ((uid, state.name), state.state))
        .collect()
    }

    /// The probes that cannot be run and why, as the API server shows them.
    pub(super) fn shown_obstacles(&self) -> Vec<(String, String)> {
        let status = self.object.status.clone().unwrap_or_default();
        let pods = status.pod_probe_statuses.into_iter();
        pods.flat_map(|pod| pod.cannot_probe)
            .map(|one| (one.name, one.message))
            .collect()
    }

    /// The message that the API server shows for the first probe.
    pub(super) fn first_shown_message(&self) -> String {
        let status = self.object.status.clone().unwrap_or_default();
        let state = &status.pod_probe_statuses[0].probe_states[0];
        state.message.clone().unwrap_or_default()
    }

    /// Takes the changes of verdicts: the state before, the state after, and whether there is an event.
    pub(super) fn take_verdict_changes(&mut self) -> Vec<(Option<State>, State, bool)> {
        let changes = std::mem::take(&mut self.changes).into_iter();
        changes.map(|c| (c.from, c.to, c.send_event)).collect()
    }
}

fn moment_at(now: Duration, start: Duration) -> Now {
    Now {
        monotonic: now.saturating_sub(start),
        wall: world_epoch() + now,
    }
}

pub(super) fn outcome_of(succeed: bool, message: &str) -> Outcome {
    if succeed {
        Outcome::Succeeded(message.to_owned())
    } else {
        Outcome::Failed(message.to_owned())
    }
}

pub(super) fn running_state() -> RuntimeState {
    RuntimeState::Running {
        started_at: world_epoch(),
    }
}

pub(super) fn tcp_probe() -> Value {
    json!({"tcpSocket": {"port": 80}, "periodSeconds": 1, "failureThreshold": 1})
}

pub(super) fn exec_probe() -> Value {
    json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "failureThreshold": 1})
}

/// A probe that reads a file, with the file, which an entry has beside the probe.
pub(super) fn file_probe() -> Value {
    json!({"file": {"volume": "work", "path": "beat"}, "periodSeconds": 10, "failureThreshold": 1})
}

/// A pod with one probe that has succeeded; all is written.
pub(super) fn sim_with_succeeding_probe() -> Sim {
    let mut sim = Sim::new();
    sim.plan_and_show(&[("m#p", tcp_probe())]);
    sim.set_container(Some(("a", running_state())));
    sim.pass_time_with_results(Duration::from_secs(2), true, "ok");
    assert_eq!(
        sim.shown_states(),
        BTreeMap::from([("m#p".into(), "Succeeded".into())])
    );
    sim.writes = 0;
    sim.changes.clear();
    sim
}

//! The runs that are under way, and those that wait for a permit.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::key::{PodIdentity, ProbeKey};
use super::loop_lag::LoopLag;
use super::permits::RunPermits;
use super::recent_runs::RunTimes;
use super::run::{ProbeRun, RunId};
use super::schedule::Weight;
use crate::cluster::Now;
use crate::podprobe::probe::{CannotProbe, Outcome, Probe};

/// Connections of probes at once on a node. What each may hold of the agent's memory is bounded in `leadsman_probe`, and
/// so is what all hold. A node has 110 pods by default, so no namespace of it waits for its first one.
pub const MAX_CONNECTIONS: usize = 256;
/// Connections at once to one pod: as many as one marker has probes.
const MAX_CONNECTIONS_PER_POD: usize = 32;

/// A run that was started. It keeps its permit until it ends, also when its result is not wanted any more.
#[derive(Debug)]
pub(super) struct ActiveRun {
    pub(super) key: Arc<ProbeKey>,
    pub(super) weight: Weight,
    probe: Arc<Probe>,
    /// The start time; since the agent's start.
    started: Duration,
    /// [`ProbeRun::waited`].
    waited: Duration,
}

impl ActiveRun {
    /// The run's times, if it has ended now.
    pub(super) fn times_if_ended(&self, now: Now, took: Duration) -> RunTimes {
        RunTimes {
            ended: now.wall,
            took,
            waited: self.waited,
        }
    }
}

/// A run that waits for a permit.
#[derive(Debug)]
struct WaitingRun {
    run: ProbeRun,
    weight: Weight,
    /// The beginning of the wait; since the agent's start.
    since: Duration,
}

/// All runs of a node that have not ended.
#[derive(Debug)]
pub(super) struct Runs {
    active: HashMap<RunId, ActiveRun>,
    waiting: HashMap<RunId, WaitingRun>,
    execs: RunPermits<RunId>,
    connections: RunPermits<RunId>,
    lag: LoopLag,
    next_id: u64,
}

impl Runs {
    pub(super) fn new(execs: RunPermits<RunId>) -> Self {
        Self {
            active: HashMap::new(),
            waiting: HashMap::new(),
            execs,
            connections: RunPermits::new(MAX_CONNECTIONS_PER_POD, MAX_CONNECTIONS),
            lag: LoopLag::default(),
            next_id: 0,
        }
    }

    pub(super) fn next_id(&mut self) -> RunId {
        let id = RunId(self.next_id);
        self.next_id += 1;
        id
    }

    fn permits_for(&mut self, weight: Weight) -> &mut RunPermits<RunId> {
        if weight.is_exec() {
            &mut self.execs
        } else {
            &mut self.connections
        }
    }

    /// Starts a run; one for which there is no permit waits, and is returned by [`Runs::start_waiting`] later.
    pub(super) fn start_or_queue(
        &mut self,
        run: ProbeRun,
        weight: Weight,
        now: Duration,
    ) -> Option<ProbeRun> {
        let permits = self.permits_for(weight);
        if !permits.acquire_or_wait(&run.key.pod, run.id) {
            let (id, since) = (run.id, now);
            self.waiting.insert(id, WaitingRun { run, weight, since });
            return None;
        }
        Some(self.activate_run(run, weight, now))
    }

    /// Starts a run that has waited, if there is a permit for one.
    pub(super) fn start_waiting(&mut self, now: Duration) -> Option<ProbeRun> {
        let granted = self.execs.grant_next();
        let id = granted.or_else(|| self.connections.grant_next())?;
        let waited = self.waiting.remove(&id);
        let WaitingRun {
            mut run,
            weight,
            since,
        } = waited.expect("a run waits here as long as it waits for a permit");
        run.waited = now.saturating_sub(since);
        Some(self.activate_run(run, weight, now))
    }

    /// Starts a run again that [`Runs::end_run`] has returned, which still has its permit.
    pub(super) fn restart_with_permit(
        &mut self,
        run: ProbeRun,
        weight: Weight,
        now: Duration,
    ) -> ProbeRun {
        self.activate_run(run, weight, now)
    }

    fn activate_run(&mut self, run: ProbeRun, weight: Weight, now: Duration) -> ProbeRun {
        let active = ActiveRun {
            key: run.key.clone(),
            weight,
            probe: run.probe.clone(),
            started: now,
            waited: run.waited,
        };
        let other = self.active.insert(run.id, active);
        debug_assert!(other.is_none(), "a run ends before it is started again");
        run
    }

    /// Removes a run that has ended. Its permit has to be released or used for a retry.
    pub(super) fn end_run(&mut self, id: RunId) -> Option<ActiveRun> {
        self.active.remove(&id)
    }

    /// Releases the permit of a run that has ended.
    pub(super) fn release_permit(&mut self, ended: &ActiveRun) {
        let permits = self.permits_for(ended.weight);
        permits.release_permit(&ended.key.pod);
    }

    /// Gives up a run whose result is not wanted any more. One that waits leaves the queue; one under way keeps its permit
    /// until it ends, since the runtime may not end a command, and a connection takes a second to close. Returns whether
    /// the run is to be cancelled.
    pub(super) fn give_up(&mut self, id: RunId) -> bool {
        if let Some(waiting) = self.waiting.remove(&id) {
            self.permits_for(waiting.weight)
                .cancel_waiting(&waiting.run.key.pod, &id);
            return false;
        }
        let is_connection = |run: &ActiveRun| !run.weight.is_exec();
        self.active.get(&id).is_some_and(is_connection)
    }

    /// Divides the permits among the pods that have probes of these weights. Afterwards a waiting run may get one.
    pub(super) fn divide_permits<'a>(
        &mut self,
        pods: impl Iterator<Item = (&'a PodIdentity, Weight)> + Clone,
    ) {
        let with_execs = pods.clone().filter(|(_, weight)| weight.is_exec());
        self.execs.set_pods(count_pods(with_execs));
        let with_connections = pods.filter(|(_, weight)| !weight.is_exec());
        self.connections.set_pods(count_pods(with_connections));
    }

    /// Notes that the loop has come this far, before what has happened is applied.
    pub(super) fn observe_time(&mut self, now: Duration) {
        self.lag.observe_time(now);
    }

    /// Decides when the loop is to look at the clock next, after what has happened was applied.
    pub(super) fn plan_next_look(&mut self, now: Duration) {
        self.lag.plan_next_look(!self.active.is_empty(), now);
    }

    pub(super) fn lag(&self) -> &LoopLag {
        &self.lag
    }

    /// Decides the meaning of a result that came at the run's deadline.
    ///
    /// Our own deadline of a command is a failure by timeout if the runtime was alive when it should have ended the command:
    /// a list that began after the timeout has succeeded, so the command hangs. An earlier list proves nothing, since the
    /// runtime may have hung afterwards.
    pub(super) fn classify_result(
        &self,
        id: RunId,
        result: Result<Outcome, CannotProbe>,
        last_list_began: Option<Duration>,
    ) -> Result<Outcome, CannotProbe> {
        let Some(run) = self.active.get(&id) else {
            return result;
        };
        let timeout = run.probe.timeout();
        if result == Err(CannotProbe::Deadline)
            && run.weight.is_exec()
            && last_list_began > Some(run.started + timeout)
        {
            return Ok(Outcome::timed_out(timeout));
        }
        result
    }

    /// The numbers of commands that run and that wait.
    pub(super) fn count_execs(&self) -> (usize, usize) {
        (self.execs.taken_permits(), self.execs.queued_runs())
    }

    /// The numbers of connections under way, and of those that wait.
    pub(super) fn count_connections(&self) -> (usize, usize) {
        let permits = &self.connections;
        (permits.taken_permits(), permits.queued_runs())
    }

    /// Whether each run under way has its permit, and no permit is without a run.
    #[cfg(debug_assertions)]
    pub(super) fn is_balanced(&self) -> bool {
        let (execs, connections) = (self.count_execs(), self.count_connections());
        let active = self.active.values().filter(|run| run.weight.is_exec());
        (active.count(), self.active.len(), self.waiting.len())
            == (execs.0, execs.0 + connections.0, execs.1 + connections.1)
    }
}

fn count_pods<'a>(
    pods: impl Iterator<Item = (&'a PodIdentity, Weight)>,
) -> HashMap<Arc<str>, usize> {
    let mut by_namespace: HashMap<Arc<str>, HashSet<&PodIdentity>> = HashMap::new();
    for (pod, _) in pods {
        // Pods and not probes: many probes do not enlarge a pod's share.
        let of_namespace = by_namespace.entry(pod.namespace.clone()).or_default();
        of_namespace.insert(pod);
    }
    let counts = by_namespace.into_iter();
    counts.map(|(name, pods)| (name, pods.len())).collect()
}

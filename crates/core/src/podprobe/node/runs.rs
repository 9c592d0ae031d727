//! The runs that are under way, and the commands that wait for a permit.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::exec_permits::ExecPermits;
use super::key::{PodIdentity, ProbeKey};
use super::recent_runs::RunTimes;
use super::run::{ProbeRun, RunId};
use super::schedule::Weight;
use crate::cluster::Now;
use crate::podprobe::probe::{CannotProbe, Outcome, Probe};

/// A run that was started. A command keeps its permit until it ends, also when its result is not wanted any more.
#[derive(Debug)]
pub(super) struct ActiveRun {
    pub(super) key: Arc<ProbeKey>,
    pub(super) weight: Weight,
    probe: Arc<Probe>,
    /// When it was started; since the agent's start.
    started: Duration,
    /// [`ProbeRun::waited`].
    waited: Duration,
}

impl ActiveRun {
    /// Its times, if it has ended now.
    pub(super) fn times_if_ended(&self, now: Now, took: Duration) -> RunTimes {
        RunTimes {
            ended: now.wall,
            took,
            waited: self.waited,
        }
    }
}

/// A command that waits for a permit.
#[derive(Debug)]
struct WaitingExec {
    run: ProbeRun,
    /// Since the agent's start.
    since: Duration,
}

/// All runs of a node that have not ended.
#[derive(Debug)]
pub(super) struct Runs {
    active: HashMap<RunId, ActiveRun>,
    waiting: HashMap<RunId, WaitingExec>,
    permits: ExecPermits<RunId>,
    next_id: u64,
}

impl Runs {
    pub(super) fn new(permits: ExecPermits<RunId>) -> Self {
        Self {
            active: HashMap::new(),
            waiting: HashMap::new(),
            permits,
            next_id: 0,
        }
    }

    pub(super) fn next_id(&mut self) -> RunId {
        let id = RunId(self.next_id);
        self.next_id += 1;
        id
    }

    /// Starts a run; a command for which there is no permit waits, and is returned by [`Runs::start_waiting`] later.
    pub(super) fn start_or_queue(
        &mut self,
        run: ProbeRun,
        weight: Weight,
        now: Duration,
    ) -> Option<ProbeRun> {
        if weight.is_exec() && !self.permits.acquire_or_wait(&run.key.pod, run.id) {
            self.waiting.insert(run.id, WaitingExec { run, since: now });
            return None;
        }
        Some(self.activate_run(run, weight, now))
    }

    /// Starts a command that has waited, if there is a permit for one.
    pub(super) fn start_waiting(&mut self, now: Duration) -> Option<ProbeRun> {
        let id = self.permits.grant_next()?;
        let WaitingExec { mut run, since } = self
            .waiting
            .remove(&id)
            .expect("a run waits here as long as it waits for a permit");
        run.waited = now.saturating_sub(since);
        // Only commands need permits, so whatever has waited for one is a command.
        let weight = Weight::of_exec(run.probe.period());
        Some(self.activate_run(run, weight, now))
    }

    /// Starts a run again that [`Runs::end_run`] has returned. A command still has its permit.
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

    /// Releases the permit of a run that has ended, if it had one.
    pub(super) fn release_permit(&mut self, ended: &ActiveRun) {
        if ended.weight.is_exec() {
            self.permits.release_permit(&ended.key.pod);
        }
    }

    /// Gives up a run whose result is not wanted any more. A command that waits leaves the queue; one that runs keeps its
    /// permit until it ends, since the runtime may not end it. Returns whether the run is to be cancelled.
    pub(super) fn give_up(&mut self, id: RunId) -> bool {
        if self.waiting.remove(&id).is_some() {
            self.permits.cancel_waiting(&id);
            return false;
        }
        let is_connection = |run: &ActiveRun| !run.weight.is_exec();
        self.active.get(&id).is_some_and(is_connection) && self.active.remove(&id).is_some()
    }

    /// Divides the permits among the pods that have commands. Afterwards a waiting command may get one.
    pub(super) fn divide_permits<'a>(&mut self, pods: impl Iterator<Item = &'a PodIdentity>) {
        let mut by_namespace: HashMap<Arc<str>, HashSet<&PodIdentity>> = HashMap::new();
        for pod in pods {
            // Pods and not probes: many commands do not enlarge a pod's share.
            let of_namespace = by_namespace.entry(pod.namespace.clone()).or_default();
            of_namespace.insert(pod);
        }
        let counts = by_namespace.into_iter();
        self.permits
            .set_pods(counts.map(|(name, pods)| (name, pods.len())).collect());
    }

    /// Turns our own deadline of a command into a failure by timeout if the runtime was alive when it should have ended
    /// the command: a list that began after the timeout has succeeded, so the command hangs. An earlier list proves
    /// nothing, since the runtime may have hung afterwards.
    pub(super) fn classify_result(
        &self,
        id: RunId,
        result: Result<Outcome, CannotProbe>,
        last_list_began: Option<Duration>,
    ) -> Result<Outcome, CannotProbe> {
        match self.active.get(&id) {
            Some(run)
                if result == Err(CannotProbe::Deadline)
                    && run.weight.is_exec()
                    && last_list_began > Some(run.started + run.probe.timeout()) =>
            {
                Ok(Outcome::timed_out(run.probe.timeout()))
            }
            _ => result,
        }
    }

    /// The numbers of commands that run and that wait.
    pub(super) fn count_execs(&self) -> (usize, usize) {
        (self.permits.taken_permits(), self.permits.queued_commands())
    }

    /// Whether each command under way has its permit, and no permit is without a command.
    #[cfg(debug_assertions)]
    pub(super) fn is_balanced(&self) -> bool {
        let execs = self.active.values().filter(|run| run.weight.is_exec());
        (execs.count(), self.waiting.len())
            == (self.permits.taken_permits(), self.permits.queued_commands())
    }
}

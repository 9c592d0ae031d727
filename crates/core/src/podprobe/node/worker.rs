//! One probe of one container: when it may run, and what its results make of the verdict.
//!
//! A worker only decides. The change that it needs in the schedule is returned as [`Reschedule`]. Its phases follow the
//! kubelet's worker (`doProbe` in `pkg/kubelet/prober/worker.go`), with the container runtime in place of the pod's
//! status.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::container::{RuntimeContainer, RuntimeState};
use super::entries::PlannedProbe;
use super::judged_output::JudgedRun;
use super::recent_runs::{ProbeHistoryLimits, RecentRuns, RunTimes};
use super::run::RunId;
use super::schedule::{TimeSlot, Weight, next_due};
use super::streak::ResultStreak;
use crate::cluster::{Now, truncate, whole_seconds};
use crate::podprobe::history::ResultsInARow;
use crate::podprobe::output::OutputValues;
use crate::podprobe::probe::{CannotProbe, Handler, Outcome, State};
use crate::podprobe::verdict::{VERDICT_MESSAGE_BYTES, Verdict};

/// Attempts at one run that cannot be carried out (`maxProbeRetries` in `pkg/kubelet/prober/prober.go`).
const MAX_ATTEMPTS: u32 = 3;

/// The phases of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The runtime knows no container that has started.
    AwaitingContainer,
    /// The container's startup probe has not passed: the plan names another one as started.
    AwaitingStart,
    /// Queued for its first run.
    Delayed {
        container: Arc<str>,
        started_at: Timestamp,
    },
    /// The first run was started.
    Probing {
        container: Arc<str>,
        streak: ResultStreak,
        run_state: RunState,
    },
    /// The container has ended.
    Exited { container: Arc<str> },
}

/// The next run of a probing worker, or the one under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunState {
    /// Queued; `caught_up` is the due time that passed during the last run and that this run makes up for, if there is
    /// one.
    Due { caught_up: Option<TimeSlot> },
    /// Under way, or waiting for a permit.
    Running {
        run: RunId,
        due: TimeSlot,
        attempt: u32,
        /// Whether what it reads has changed since it began: then it is run again.
        changed: bool,
    },
}

/// The change that is needed in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reschedule {
    /// Nothing.
    Keep,
    /// No run is due, and the result of one under way is not wanted.
    Cancel,
    /// A first run is due, in this slot or later.
    First(TimeSlot),
    /// The next run of a period is due.
    Next(TimeSlot),
    /// A run is due that makes up for a missed one, or follows a change.
    CatchUp(TimeSlot),
    /// The same run has to be retried at once.
    Retry,
}

/// One probe of one container.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    planned: PlannedProbe,
    added_at: Duration,
    phase: Phase,
    verdict: Option<Verdict>,
    last_known: Option<State>,
    dropped: Option<DroppedRuns>,
    recent: RecentRuns,
    /// The slot in which the last run was due.
    last_begun: Option<TimeSlot>,
}

/// Runs in a row that could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DroppedRuns {
    /// The first cause of its kind. The same kind with another text is not reported again.
    cause: CannotProbe,
    count: u32,
}

impl Worker {
    /// A worker without a container yet, possibly with the verdict of an earlier agent or an earlier entry.
    pub(super) fn new(planned: PlannedProbe, verdict: Option<Verdict>, added_at: Duration) -> Self {
        let state = verdict.as_ref().map(|verdict| verdict.state);
        let mut worker = Self {
            planned,
            added_at,
            phase: Phase::AwaitingContainer,
            verdict,
            last_known: state.filter(|state| *state != State::Unknown),
            dropped: None,
            recent: RecentRuns::default(),
            last_begun: None,
        };
        worker.adopt_revision();
        worker
    }

    /// Gives the verdict the revision of the planned probe. If it is about another, the caller makes it Unknown.
    fn adopt_revision(&mut self) {
        if let Some(verdict) = &mut self.verdict {
            verdict.revision.clone_from(&self.planned.revision);
        }
    }

    pub(super) fn planned(&self) -> &PlannedProbe {
        &self.planned
    }

    /// The time when the plan added it, since the agent's start. Lists of containers that began earlier may lack its
    /// container or show one that is gone.
    pub(super) fn added_at(&self) -> Duration {
        self.added_at
    }

    /// Takes over the last known state of an earlier entry.
    pub(super) fn remember_state(&mut self, state: State) {
        self.last_known.get_or_insert(state);
    }

    pub(super) fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    #[cfg(test)]
    pub(super) fn state(&self) -> Option<State> {
        self.verdict.as_ref().map(|verdict| verdict.state)
    }

    /// The last state other than Unknown, which is the one in the pod's last event.
    pub(super) fn last_known_state(&self) -> Option<State> {
        self.last_known
    }

    /// Whether it probes now: then its verdict is as recent as the last run, otherwise as the last list of containers.
    pub(super) fn is_probing(&self) -> bool {
        matches!(self.phase, Phase::Delayed { .. } | Phase::Probing { .. })
    }

    pub(super) fn weight(&self) -> Weight {
        match self.planned.probe.handler {
            Handler::Exec { .. } => Weight::of_exec(self.planned.probe.period()),
            _ => Weight::Light,
        }
    }

    pub(super) fn has_dropped_runs(&self) -> bool {
        self.dropped.is_some()
    }

    /// Why the probe cannot be run, as the node's status says. A container that is gone is reported from the second run
    /// on, since the next list of containers shows it anyway.
    pub(super) fn reported_cause(&self) -> Option<&CannotProbe> {
        let dropped = self.dropped.as_ref()?;
        let passes = dropped.cause == CannotProbe::ContainerGone && dropped.count < 2;
        (!passes).then_some(&dropped.cause)
    }

    /// The run that is under way or waits for a permit, and whose result is wanted.
    pub(super) fn wanted_run(&self) -> Option<RunId> {
        match self.phase {
            Phase::Probing {
                run_state: RunState::Running { run, .. },
                ..
            } => Some(run),
            _ => None,
        }
    }

    pub(super) fn container(&self) -> Option<&Arc<str>> {
        match &self.phase {
            Phase::AwaitingContainer | Phase::AwaitingStart => None,
            Phase::Delayed { container, .. }
            | Phase::Probing { container, .. }
            | Phase::Exited { container } => Some(container),
        }
    }

    /// The last runs, as far as they are kept.
    pub(super) fn recent_runs(&self) -> &RecentRuns {
        &self.recent
    }

    /// Removes recent runs beyond the limits.
    pub(super) fn trim_recent_runs(&mut self, limits: ProbeHistoryLimits) {
        self.recent.trim_to_limits(limits);
    }

    /// How many results in a row were equal.
    pub(super) fn results_in_a_row(&self) -> Option<ResultsInARow> {
        match &self.phase {
            Phase::Probing { streak, .. } => streak.results_in_a_row(&self.planned.probe),
            _ => None,
        }
    }

    /// Applies a new version of the entry. The caller observes the container again afterwards.
    pub(super) fn update_entry(&mut self, planned: PlannedProbe, now: Now) -> Reschedule {
        let old = std::mem::replace(&mut self.planned, planned);
        self.adopt_revision();
        let is_revised = match (&old.revision, &self.planned.revision) {
            (Some(old), Some(new)) => old != new,
            // The API server began or ceased to keep the field: the handler tells whether the probe is another one.
            _ => false,
        };
        if is_revised || old.probe.handler != self.planned.probe.handler {
            self.invalidate_verdict("the probe has changed", None, now);
            self.recent.clear();
            return self.stop_in_phase(Phase::AwaitingContainer);
        }
        match self.phase {
            // The initial delay may be another one.
            Phase::Delayed { started_at, .. } => self.first_run(started_at, now),
            Phase::Probing {
                run_state: RunState::Due { .. },
                ..
            // A shorter period counts at once, a longer one from the queued run on.
            } if self.planned.probe.period_seconds < old.probe.period_seconds => Reschedule::Next(
                TimeSlot::not_before(now.monotonic + self.planned.probe.period()),
            ),
            _ => Reschedule::Keep,
        }
    }

    /// Applies the newest container of its name; `None` if the runtime knows none.
    pub(super) fn observe_container(
        &mut self,
        container: Option<&RuntimeContainer>,
        now: Now,
    ) -> Reschedule {
        if self.planned.is_forbidden {
            return self.stop_forbidden(now);
        }
        let Some(container) = container else {
            // The verdict stays. An exit or a new container is a finding; that the runtime lists
            // none is not.
            return self.stop_in_phase(Phase::AwaitingContainer);
        };
        let id = &container.id;
        let started = self.planned.started_container.as_ref();
        // The gate comes first: until the startup probe has passed, it does not matter what the container does.
        if started.is_some_and(|started| started != id) {
            self.invalidate_verdict("the container has not started yet", Some(id), now);
            return self.stop_in_phase(Phase::AwaitingStart);
        }
        match container.state {
            RuntimeState::Exited { exit_code } => self.observe_exited(id, exit_code, now),
            RuntimeState::Running { started_at } => self.observe_running(id, started_at, now),
            // The runtime may not know for a moment; nothing says that the container has changed.
            RuntimeState::Unknown if self.container() == Some(id) => Reschedule::Keep,
            RuntimeState::Unknown if !self.is_about_another(id) => {
                self.stop_in_phase(Phase::AwaitingContainer)
            }
            RuntimeState::Created | RuntimeState::Unknown => {
                self.invalidate_if_about_another(id, None, now);
                self.stop_in_phase(Phase::AwaitingContainer)
            }
        }
    }

    /// Never runs the probe. What an earlier agent has found, which could run it, is void: nobody would ever say anything else.
    fn stop_forbidden(&mut self, now: Now) -> Reschedule {
        let cause = CannotProbe::Forbidden(self.planned.probe.handler.kind());
        self.invalidate_verdict(&cause.to_string(), None, now);
        let change = self.stop_in_phase(Phase::AwaitingContainer);
        self.dropped = Some(DroppedRuns { cause, count: 1 });
        change
    }

    fn observe_exited(&mut self, id: &Arc<str>, exit_code: i32, now: Now) -> Reschedule {
        if matches!(&self.phase, Phase::Exited { container } if container == id) {
            return Reschedule::Keep;
        }
        let name = &self.planned.container;
        let message = format!("container {name} is not running (exit code {exit_code})");
        // No threshold applies: the kubelet does the same for a container that does not run
        // (`doProbe`, `pkg/kubelet/prober/worker.go`).
        self.conclude_verdict((State::Failed, None), &message, Some(id), now);
        self.stop_in_phase(Phase::Exited {
            container: id.clone(),
        })
    }

    fn observe_running(&mut self, id: &Arc<str>, started_at: Timestamp, now: Now) -> Reschedule {
        if self.is_probing() && self.container() == Some(id) {
            return Reschedule::Keep;
        }
        self.invalidate_if_about_another(id, Some(started_at), now);
        // The dropped runs were about the container before, or about this one before it ran.
        self.dropped = None;
        self.phase = Phase::Delayed {
            container: id.clone(),
            started_at,
        };
        self.first_run(started_at, now)
    }

    /// The first run is due when the container has run for the initial delay. A start in the future, after the clock
    /// was set back, counts as now.
    fn first_run(&self, started_at: Timestamp, now: Now) -> Reschedule {
        let delay = SignedDuration::from_secs(self.planned.probe.initial_delay_seconds.into());
        let left = delay.saturating_sub(
            now.wall
                .duration_since(started_at)
                .max(SignedDuration::ZERO),
        );
        let left = Duration::try_from(left).unwrap_or(Duration::ZERO);
        Reschedule::First(TimeSlot::not_before(now.monotonic.saturating_add(left)))
    }

    /// Whether the verdict is known to be about a container other than this one.
    fn is_about_another(&self, id: &Arc<str>) -> bool {
        let about = self.verdict.as_ref().and_then(|v| v.container.as_ref());
        about.is_some_and(|about| about != id)
    }

    /// Makes a verdict about another container Unknown.
    fn invalidate_if_about_another(
        &mut self,
        id: &Arc<str>,
        started_at: Option<Timestamp>,
        now: Now,
    ) {
        let Some(verdict) = &mut self.verdict else {
            return;
        };
        let fits = match &verdict.container {
            Some(about) => about == id,
            // The API server drops the field: a container that started after the verdict is a new one.
            None => started_at.is_some_and(|at| Some(whole_seconds(at)) <= verdict.since),
        };
        if fits {
            verdict.container = Some(id.clone());
        } else {
            self.invalidate_verdict("the container has restarted", Some(id), now);
        }
    }

    /// Schedules a run at once, since the file that the probe reads has changed, and the next a period later. At most one in
    /// each slot, so that a file that is written without end costs ten runs a second.
    pub(super) fn observe_change(&mut self, now: Now) -> Reschedule {
        if !self.reads_file() {
            return Reschedule::Keep;
        }
        let slot = self.next_free_slot(now);
        match &mut self.phase {
            Phase::Probing {
                run_state: RunState::Due { .. },
                ..
            } => Reschedule::CatchUp(slot),
            Phase::Probing {
                run_state: RunState::Running { changed, .. },
                ..
            } => {
                *changed = true;
                Reschedule::Keep
            }
            _ => Reschedule::Keep,
        }
    }

    /// Whether the probe reads a file, and may.
    pub(super) fn reads_file(&self) -> bool {
        matches!(self.planned.probe.handler, Handler::File(_)) && !self.planned.is_forbidden
    }

    /// The slot of now, or the one after that of the last run.
    fn next_free_slot(&self, now: Now) -> TimeSlot {
        let slot = TimeSlot::containing(now.monotonic);
        let after = self.last_begun.map(|last| last.plus_slots(1));
        after.map_or(slot, |after| after.max(slot))
    }

    /// Starts the run that was due in `slot`, and returns the container to probe.
    pub(super) fn begin_run(&mut self, run: RunId, slot: TimeSlot) -> Option<Arc<str>> {
        let (container, streak, due) = match &self.phase {
            Phase::Delayed { container, .. } => (container, ResultStreak::default(), slot),
            Phase::Probing {
                container,
                streak,
                run_state: RunState::Due { caught_up },
            } => (container, *streak, caught_up.unwrap_or(slot)),
            _ => return None,
        };
        let container = container.clone();
        self.phase = Phase::Probing {
            container: container.clone(),
            streak,
            run_state: RunState::Running {
                run,
                due,
                attempt: 1,
                changed: false,
            },
        };
        self.last_begun = Some(slot);
        Some(container)
    }

    /// Applies the result of a run like [`Worker::finish_run`], and keeps it among the recent ones unless it is retried or
    /// not wanted any more.
    pub(super) fn finish_and_keep(
        &mut self,
        run: RunId,
        judged: JudgedRun,
        ended: RunTimes,
        limits: ProbeHistoryLimits,
        now: Now,
    ) -> Reschedule {
        let kept = limits
            .keeps_any()
            .then(|| self.recent.compact_run(&judged.result, ended, limits));
        let change = self.finish_run(run, judged, now);
        if let Some(kept) = kept
            && !matches!(change, Reschedule::Keep | Reschedule::Retry)
        {
            self.recent.push(kept, limits);
        }
        change
    }

    /// Applies the result of a run, if it is still the one under way.
    pub(super) fn finish_run(
        &mut self,
        run: RunId,
        judged: impl Into<JudgedRun>,
        now: Now,
    ) -> Reschedule {
        let judged = judged.into();
        let period = self.planned.probe.period();
        let free = self.next_free_slot(now);
        let Phase::Probing {
            container,
            streak,
            run_state,
        } = &mut self.phase
        else {
            return Reschedule::Keep;
        };
        let RunState::Running {
            run: current,
            due,
            attempt,
            changed,
        } = run_state
        else {
            return Reschedule::Keep;
        };
        // The result of an earlier run, whose container or entry is gone.
        if *current != run {
            return Reschedule::Keep;
        }
        let established =
            match &judged.result {
                Err(cause) if *attempt < MAX_ATTEMPTS && may_pass_by_retry(cause) => {
                    *attempt += 1;
                    return Reschedule::Retry;
                }
                // A run that could not be made counts towards no threshold, and ends no row of equal results.
                Err(_) => None,
                Ok(outcome) => streak
                    .count_result(outcome, &self.planned.probe)
                    .map(|state| match state {
                        State::Failed => judged.failure,
                        state => state,
                    }),
            };
        let changed = *changed;
        let (slot, caught_up) = next_due(*due, period, now.monotonic);
        *run_state = RunState::Due { caught_up };
        let container = container.clone();
        self.take_result(judged, established, &container, now);
        if changed {
            Reschedule::CatchUp(free)
        } else if caught_up.is_some() {
            Reschedule::CatchUp(slot)
        } else {
            Reschedule::Next(slot)
        }
    }

    fn take_result(
        &mut self,
        judged: JudgedRun,
        established: Option<State>,
        container: &Arc<str>,
        now: Now,
    ) {
        let message = match judged.result {
            Ok(Outcome::Succeeded(message) | Outcome::Failed(message)) => message,
            Err(cause) => {
                self.count_dropped_run(cause);
                return;
            }
        };
        self.dropped = None;
        if let Some(state) = established {
            let found = (state, judged.values);
            self.conclude_verdict(found, &message, Some(container), now);
        }
        // A result below its threshold counts too: the verdict that it leaves as it is still holds.
        if let Some(verdict) = &mut self.verdict {
            verdict.probed = Some(now.wall);
        }
    }

    fn count_dropped_run(&mut self, cause: CannotProbe) {
        match &mut self.dropped {
            Some(dropped) if is_same_kind(&dropped.cause, &cause) => {
                dropped.count = dropped.count.saturating_add(1);
            }
            _ => self.dropped = Some(DroppedRuns { cause, count: 1 }),
        }
    }

    /// Makes a verdict Unknown, if there is one.
    pub(super) fn invalidate_verdict(&mut self, why: &str, container: Option<&Arc<str>>, now: Now) {
        if self.verdict.is_some() {
            self.conclude_verdict((State::Unknown, None), why, container, now);
        }
    }

    fn conclude_verdict(
        &mut self,
        (state, values): (State, Option<Arc<OutputValues>>),
        message: &str,
        container: Option<&Arc<str>>,
        now: Now,
    ) {
        // Cut here, where it is kept: executors read ten times as much, and none of that is ever sent.
        let message = truncate(message, VERDICT_MESSAGE_BYTES);
        let old = self.verdict.take();
        let kept = old.as_ref().filter(|old| old.state == state);
        if state != State::Unknown {
            self.last_known = Some(state);
        }
        self.verdict = Some(Verdict {
            state,
            // A new message is no change of state, other values in it are one: what is marked by them may have to hold.
            since: kept
                .filter(|kept| kept.values.is_none() || kept.values == values)
                .map_or(Some(whole_seconds(now.wall)), |kept| kept.since),
            message: match kept {
                Some(kept) if &*kept.message == message => kept.message.clone(),
                _ => message.into(),
            },
            probed: old.as_ref().and_then(|old| old.probed),
            revision: self.planned.revision.clone(),
            container: container
                .cloned()
                .or_else(|| old.and_then(|old| old.container)),
            values,
        });
    }

    fn stop_in_phase(&mut self, phase: Phase) -> Reschedule {
        self.phase = phase;
        // Nothing is run now, so no cause is current; kept, the node's status would go on naming
        // it.
        self.dropped = None;
        Reschedule::Cancel
    }
}

fn is_same_kind(one: &CannotProbe, other: &CannotProbe) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// Whether an immediate retry may succeed. Not after our own deadline: a stuck runtime would start the same command
/// again. Not without a container or an address: only the next list of containers can show them.
fn may_pass_by_retry(cause: &CannotProbe) -> bool {
    matches!(cause, CannotProbe::Runtime(_) | CannotProbe::Local(_))
}

#[cfg(test)]
pub(super) mod tests;

//! One probe of one container, from phase to phase: when it may run, and what its results make of the verdict.
//!
//! A worker only decides. It says when it next wants a turn; the queue and the places for commands are [`super::Node`]'s.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Now;
use super::container::{Container, ContainerState};
use super::entries::Entry;
use super::machine::RunId;
use super::schedule::{Slot, Weight, following};
use super::verdict::{Tally, Verdict, whole_seconds};
use crate::podprobe::probe::{CannotProbe, Handler, Outcome, State};

/// Attempts of one run when we cannot probe, as the kubelet has it.
const ATTEMPTS: u32 = 3;

/// Where a worker stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The runtime knows no container that has started.
    AwaitingContainer,
    /// The container's startup probe has not passed.
    AwaitingStart,
    /// In the queue for its first run.
    Delayed {
        container: Arc<str>,
        started_at: Timestamp,
    },
    /// It has had a turn.
    Probing {
        container: Arc<str>,
        tally: Tally,
        turn: Turn,
    },
    /// Its container has ended.
    Exited { container: Arc<str> },
}

/// What a probing worker is about to do, or does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// In the queue; perhaps for a due time that passed during a run.
    Due { made_up: Option<Slot> },
    /// A run is on its way, or waits for a place.
    Running { run: RunId, due: Slot, attempt: u32 },
}

/// What a worker wants of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Leave things as they are.
    Keep,
    /// No turn, and no interest in a run that is on its way.
    Rest,
    /// A first run, in this slot or later.
    First(Slot),
    /// Another run.
    Further(Slot),
    /// A run that makes up for one that was missed.
    MakeUp(Slot),
    /// The same run once more, at once.
    Again,
}

/// One probe of one container.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    entry: Entry,
    /// When its entry came; since the agent's start.
    hired: Duration,
    phase: Phase,
    verdict: Option<Verdict>,
    /// The last of Succeeded and Failed that was held.
    told: Option<State>,
    trouble: Option<Trouble>,
}

/// Why the last run was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Trouble {
    /// The first of its kind: other words of the same kind are no news.
    cause: CannotProbe,
    /// Runs in a row that were dropped for it.
    runs: u32,
}

impl Worker {
    /// A worker that knows of no container yet, perhaps with a verdict that an earlier agent left behind.
    pub(super) fn new(entry: Entry, left: Option<Verdict>, hired: Duration) -> Self {
        Self {
            told: left
                .as_ref()
                .map(|v| v.state)
                .filter(|s| *s != State::Unknown),
            entry,
            hired,
            phase: Phase::AwaitingContainer,
            verdict: left,
            trouble: None,
        }
    }

    pub(super) fn entry(&self) -> &Entry {
        &self.entry
    }

    /// When its entry came: looks that began before it know nothing of its container, or something that is past.
    pub(super) fn hired(&self) -> Duration {
        self.hired
    }

    /// What users know from an earlier entry of its name.
    pub(super) fn remember_told(&mut self, told: State) {
        self.told.get_or_insert(told);
    }

    pub(super) fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    #[cfg(test)]
    pub(super) fn state(&self) -> Option<State> {
        self.verdict.as_ref().map(|verdict| verdict.state)
    }

    /// The last of Succeeded and Failed that was held, also if Unknown followed.
    pub(super) fn told(&self) -> Option<State> {
        self.told
    }

    /// Whether probes run now: then a verdict is as fresh as the last of them, else as the last look at the container.
    pub(super) fn is_probing(&self) -> bool {
        matches!(self.phase, Phase::Delayed { .. } | Phase::Probing { .. })
    }

    pub(super) fn weight(&self) -> Weight {
        match self.entry.probe.handler {
            Handler::Exec { .. } => Weight::exec(self.period()),
            _ => Weight::Light,
        }
    }

    pub(super) fn is_in_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    /// Why the probe cannot be run, as far as users are told: that the container is gone the next look will show.
    pub(super) fn cannot_probe(&self) -> Option<&CannotProbe> {
        let trouble = self.trouble.as_ref()?;
        let passes = trouble.cause == CannotProbe::ContainerGone && trouble.runs < 2;
        (!passes).then_some(&trouble.cause)
    }

    /// The run that is on its way.
    pub(super) fn running(&self) -> Option<RunId> {
        match self.phase {
            Phase::Probing {
                turn: Turn::Running { run, .. },
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

    /// Follows the plan. The container is to be observed again after it.
    pub(super) fn update(&mut self, entry: Entry, now: Now) -> Wish {
        let old = std::mem::replace(&mut self.entry, entry);
        let revised = match (&old.revision, &self.entry.revision) {
            (Some(old), Some(new)) => old != new,
            // The API server began, or ceased, to keep the field; the handler tells.
            _ => false,
        };
        if revised || old.probe.handler != self.entry.probe.handler {
            self.doubt("the probe has changed", None, now);
            return self.rest(Phase::AwaitingContainer);
        }
        match self.phase {
            Phase::Delayed { started_at, .. } => self.first(started_at, now),
            Phase::Probing {
                turn: Turn::Due { .. },
                ..
            } if self.entry.probe.period_seconds < old.probe.period_seconds => {
                Wish::Further(Slot::from(now.since_start + self.period()))
            }
            _ => Wish::Keep,
        }
    }

    /// Looks at the newest container of its name; `None` when the runtime knows none.
    pub(super) fn observe(&mut self, container: Option<&Container>, now: Now) -> Wish {
        let Some(container) = container else {
            return self.rest(Phase::AwaitingContainer);
        };
        let id = &container.id;
        if self
            .entry
            .started
            .as_ref()
            .is_some_and(|started| started != id)
        {
            self.doubt("the container has not started yet", Some(id), now);
            return self.rest(Phase::AwaitingStart);
        }
        match container.state {
            ContainerState::Exited { exit_code } => self.exited(id, exit_code, now),
            ContainerState::Running { started_at } => self.runs(id, started_at, now),
            ContainerState::Unknown if self.container() == Some(id) => Wish::Keep,
            ContainerState::Unknown if !self.is_about_another(id) => {
                self.rest(Phase::AwaitingContainer)
            }
            ContainerState::Created | ContainerState::Unknown => {
                self.renewed(id, None, now);
                self.rest(Phase::AwaitingContainer)
            }
        }
    }

    fn exited(&mut self, id: &Arc<str>, exit_code: i32, now: Now) -> Wish {
        if matches!(&self.phase, Phase::Exited { container } if container == id) {
            return Wish::Keep;
        }
        let name = &self.entry.container;
        let message = format!("container {name} is not running (exit code {exit_code})");
        self.conclude(State::Failed, &message, Some(id), now);
        self.rest(Phase::Exited {
            container: id.clone(),
        })
    }

    fn runs(&mut self, id: &Arc<str>, started_at: Timestamp, now: Now) -> Wish {
        if self.is_probing() && self.container() == Some(id) {
            return Wish::Keep;
        }
        self.renewed(id, Some(started_at), now);
        self.trouble = None;
        self.phase = Phase::Delayed {
            container: id.clone(),
            started_at,
        };
        self.first(started_at, now)
    }

    /// A first run, as soon as the container has run for the initial delay; one that is said to have started only later,
    /// since the clock was set back, has its delay before it.
    fn first(&self, started_at: Timestamp, now: Now) -> Wish {
        let delay = SignedDuration::from_secs(self.entry.probe.initial_delay_seconds.into());
        let left = delay.saturating_sub(
            now.wall
                .duration_since(started_at)
                .max(SignedDuration::ZERO),
        );
        let left = Duration::try_from(left).unwrap_or(Duration::ZERO);
        Wish::First(Slot::from(now.since_start.saturating_add(left)))
    }

    /// Whether there is a verdict that is known to be about a container other than this one.
    fn is_about_another(&self, id: &Arc<str>) -> bool {
        let about = self.verdict.as_ref().and_then(|v| v.container.as_ref());
        about.is_some_and(|about| about != id)
    }

    /// A verdict about another container holds no more.
    fn renewed(&mut self, id: &Arc<str>, started_at: Option<Timestamp>, now: Now) {
        let Some(verdict) = &mut self.verdict else {
            return;
        };
        let fits = match &verdict.container {
            Some(about) => about == id,
            // The field was not kept: a container that started after the verdict is another one.
            None => started_at.is_some_and(|at| whole_seconds(at) <= verdict.since),
        };
        if fits {
            verdict.container = Some(id.clone());
        } else {
            self.doubt("the container has restarted", Some(id), now);
        }
    }

    /// Takes the turn that was due in `slot`. The container to probe.
    pub(super) fn begin(&mut self, run: RunId, slot: Slot) -> Option<Arc<str>> {
        let (container, tally, due) = match &self.phase {
            Phase::Delayed { container, .. } => (container, Tally::default(), slot),
            Phase::Probing {
                container,
                tally,
                turn: Turn::Due { made_up },
            } => (container, *tally, made_up.unwrap_or(slot)),
            _ => return None,
        };
        let container = container.clone();
        self.phase = Phase::Probing {
            container: container.clone(),
            tally,
            turn: Turn::Running {
                run,
                due,
                attempt: 1,
            },
        };
        Some(container)
    }

    /// Takes what a run came to, if it is still the one that counts.
    pub(super) fn finish(
        &mut self,
        run: RunId,
        result: Result<Outcome, CannotProbe>,
        now: Now,
    ) -> Wish {
        let period = self.period();
        let Phase::Probing {
            container,
            tally,
            turn,
        } = &mut self.phase
        else {
            return Wish::Keep;
        };
        let Turn::Running {
            run: current,
            due,
            attempt,
        } = turn
        else {
            return Wish::Keep;
        };
        if *current != run {
            return Wish::Keep;
        }
        let established = match &result {
            Err(cause) if *attempt < ATTEMPTS && is_passing(cause) => {
                *attempt += 1;
                return Wish::Again;
            }
            Err(_) => None,
            Ok(outcome) => tally.count(outcome, &self.entry.probe),
        };
        let (slot, made_up) = following(*due, period, now.since_start);
        *turn = Turn::Due { made_up };
        let container = container.clone();
        self.take_result(result, established, &container, now);
        if made_up.is_some() {
            Wish::MakeUp(slot)
        } else {
            Wish::Further(slot)
        }
    }

    fn take_result(
        &mut self,
        result: Result<Outcome, CannotProbe>,
        established: Option<State>,
        container: &Arc<str>,
        now: Now,
    ) {
        let message = match result {
            Ok(Outcome::Succeeded(message) | Outcome::Failed(message)) => message,
            Err(cause) => {
                self.run_into(cause);
                return;
            }
        };
        self.trouble = None;
        if let Some(state) = established {
            self.conclude(state, &message, Some(container), now);
        }
        if let Some(verdict) = &mut self.verdict {
            verdict.probed = Some(now.wall);
        }
    }

    fn run_into(&mut self, cause: CannotProbe) {
        match &mut self.trouble {
            Some(trouble) if is_same_kind(&trouble.cause, &cause) => {
                trouble.runs = trouble.runs.saturating_add(1);
            }
            _ => self.trouble = Some(Trouble { cause, runs: 1 }),
        }
    }

    /// There was a verdict, and it is not known to hold any more.
    pub(super) fn doubt(&mut self, why: &str, container: Option<&Arc<str>>, now: Now) {
        if self.verdict.is_some() {
            self.conclude(State::Unknown, why, container, now);
        }
    }

    fn conclude(&mut self, state: State, message: &str, container: Option<&Arc<str>>, now: Now) {
        let old = self.verdict.take();
        let kept = old.as_ref().filter(|old| old.state == state);
        if state != State::Unknown {
            self.told = Some(state);
        }
        self.verdict = Some(Verdict {
            state,
            since: kept.map_or(whole_seconds(now.wall), |kept| kept.since),
            message: match kept {
                Some(kept) if &*kept.message == message => kept.message.clone(),
                _ => message.into(),
            },
            probed: old.as_ref().and_then(|old| old.probed),
            container: container
                .cloned()
                .or_else(|| old.and_then(|old| old.container)),
        });
    }

    fn rest(&mut self, phase: Phase) -> Wish {
        self.phase = phase;
        self.trouble = None;
        Wish::Rest
    }

    fn period(&self) -> Duration {
        Duration::from_secs(self.entry.probe.period_seconds.get().into())
    }
}

fn is_same_kind(one: &CannotProbe, other: &CannotProbe) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// Whether trying again at once can help. Not after our own deadline: a runtime that is stuck would be given the same
/// command once more. Not without a container or an address: the next look at the runtime tells.
fn is_passing(cause: &CannotProbe) -> bool {
    matches!(cause, CannotProbe::Runtime(_) | CannotProbe::Local(_))
}

#[cfg(test)]
pub(super) mod tests;

//! Who is written next: which objects wait for a write, which are being written, and which rest after a failure.
//!
//! A pure state machine: the control loop asks it for an object when there is room, and tells it how the write went.
//! It guarantees that an object has at most one write in flight, that an object which becomes dirty meanwhile is
//! looked at again afterwards, that all objects together stay below the limit, and that no failure is repeated
//! without a growing distance. It holds one entry for each object that is not at rest.
//!
//! When the API server asks one write to slow down (429, or 503 with Retry-After), all writes of its class do: none is
//! begun before the time that it asked for, and then one alone, until one of them is answered otherwise. The other
//! classes go on. A `Retry-After` is about a flow of requests and not about an object (API priority and fairness,
//! `apiserver/pkg/server/filters/priority-and-fairness.go`).
//!
//! A marker's status waits for specs: it says that they are written, so written before, it would be written twice.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use leadsman_core::podprobe::event::WriteTarget;
use tokio::time::Instant;

use leadsman_process::reply::Cause;

/// A marker's status changes with every pod; it is written at most once in this time.
const STATUS_SPACING: Duration = Duration::from_secs(2);
/// It waits no longer for specs, which may come without end.
const STATUS_HELD: Duration = Duration::from_secs(10);
/// An internal error this often in a row, over four seconds at least, is an answer and not an accident: API servers
/// answer so too while their store elects a leader.
const INTERNAL_ERRORS: u32 = 6;

/// All objects that are not at rest.
#[derive(Debug)]
pub(crate) struct Slots {
    objects: HashMap<WriteTarget, State>,
    ready: VecDeque<WriteTarget>,
    waiting: BTreeSet<(Instant, WriteTarget)>,
    /// By class.
    paces: [Pace; CLASSES],
    /// Ready, but for specs.
    held: VecDeque<WriteTarget>,
    held_until: Option<Instant>,
    /// Specs that are ready or in flight.
    specs: usize,
    in_flight: usize,
    limit: usize,
    random: fastrand::Rng,
}

/// How fast the writes of a class may go.
#[derive(Debug, Default)]
struct Pace {
    /// None is begun before this.
    until: Option<Instant>,
    /// How often in a row the API server asked it to slow down. While there are any, one write is in flight at most.
    slowed: u32,
    in_flight: usize,
    /// Ready, but for the pace.
    parked: VecDeque<WriteTarget>,
}

#[derive(Debug)]
enum State {
    /// In the queue.
    Ready { trouble: Trouble },
    /// A write is on its way, or being asked for.
    InFlight {
        began: Instant,
        trouble: Trouble,
        dirty: bool,
    },
    /// In the queue again at the time that it waits for.
    Waiting { trouble: Trouble },
}

/// Failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Trouble {
    failures: u32,
    internal_errors: u32,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There was nothing to write.
    NothingDue,
    /// It was written, and is seen as it is now.
    Written,
    /// It is over: the object is gone, the answer is final, or the watch shows what became of it.
    Over,
    /// It failed and may succeed later; not before this time has passed, if the API server named one.
    Failed {
        /// Why.
        cause: Cause,
        /// The API server's Retry-After.
        after: Option<Duration>,
    },
}

/// What becomes of an object after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Its turn comes again, or it is at rest.
    Goes,
    /// The failure has repeated itself too often; it is at rest.
    GivenUp,
}

impl Slots {
    /// `limit` writes in flight at most; `random` spreads those that failed together.
    pub(crate) fn new(limit: usize, random: fastrand::Rng) -> Self {
        Self {
            objects: HashMap::new(),
            ready: VecDeque::new(),
            waiting: BTreeSet::new(),
            paces: Default::default(),
            held: VecDeque::new(),
            held_until: None,
            specs: 0,
            in_flight: 0,
            limit,
            random,
        }
    }

    /// What is observed or desired of an object has changed.
    pub(crate) fn mark_dirty(&mut self, object: WriteTarget) {
        match self.objects.entry(object) {
            Entry::Vacant(vacant) => {
                self.specs += usize::from(is_spec(vacant.key()));
                self.ready.push_back(vacant.key().clone());
                let trouble = Trouble::default();
                vacant.insert(State::Ready { trouble });
            }
            Entry::Occupied(mut occupied) => match occupied.get_mut() {
                State::Ready { .. } | State::Waiting { .. } => {}
                State::InFlight { dirty, .. } => *dirty = true,
            },
        }
    }

    /// The next object whose turn it is, if there is room. End its turn with [`Slots::end`].
    pub(crate) fn take(&mut self, now: Instant) -> Option<WriteTarget> {
        self.wake(now);
        if self.in_flight == self.limit {
            return None;
        }
        let object = self.pop(now)?;
        if let Some(state) = self.objects.get_mut(&object) {
            let trouble = state.trouble();
            *state = State::InFlight {
                began: now,
                trouble,
                dirty: false,
            };
            self.in_flight += 1;
            self.paces[class(&object)].in_flight += 1;
        }
        Some(object)
    }

    /// The first that need not wait for its class or for specs.
    fn pop(&mut self, now: Instant) -> Option<WriteTarget> {
        for pace in &mut self.paces {
            if pace.may_begin(now) {
                pace.until = None;
                // While it is slow, one is enough to try.
                let count = if pace.slowed == 0 { usize::MAX } else { 1 };
                let parked = pace.parked.drain(..count.min(pace.parked.len()));
                for object in parked.rev() {
                    self.ready.push_front(object);
                }
            }
        }
        let overdue = self.held_until.is_some_and(|until| until <= now);
        if self.specs == 0 {
            self.held_until = None;
        }
        if self.specs == 0 || overdue {
            while let Some(object) = self.held.pop_back() {
                self.ready.push_front(object);
            }
        }
        loop {
            let object = self.ready.pop_front()?;
            let pace = &mut self.paces[class(&object)];
            if !pace.may_begin(now) {
                pace.parked.push_back(object);
                continue;
            }
            if self.specs == 0 || overdue || !matches!(object, WriteTarget::MarkerStatus(_)) {
                return Some(object);
            }
            self.held_until.get_or_insert(now + STATUS_HELD);
            self.held.push_back(object);
        }
    }

    /// Ends the turn of an object that [`Slots::take`] gave.
    pub(crate) fn end(&mut self, object: WriteTarget, turn: Turn, now: Instant) -> Next {
        let Some(State::InFlight {
            began,
            mut trouble,
            dirty,
        }) = self.objects.remove(&object)
        else {
            return Next::Goes;
        };
        self.in_flight -= 1;
        self.specs -= usize::from(is_spec(&object));
        let random = self.random.f64();
        self.paces[class(&object)].end(turn, random, now);
        match turn {
            Turn::NothingDue | Turn::Over => {
                if dirty {
                    self.mark_dirty(object);
                }
            }
            Turn::Written => match object {
                // What the reply showed may not be what is desired by now.
                WriteTarget::MarkerStatus(_) => {
                    self.wait(object, began + STATUS_SPACING, Trouble::default());
                }
                WriteTarget::PodMarks(_)
                | WriteTarget::NodePodProbe(_)
                | WriteTarget::MarkerFinalizer(_) => {
                    self.mark_dirty(object);
                }
            },
            Turn::Failed { cause, after } => {
                trouble.add(cause);
                if trouble.internal_errors == INTERNAL_ERRORS {
                    if dirty {
                        self.mark_dirty(object);
                    }
                    return Next::GivenUp;
                }
                let backoff = cause.backoff().delay(trouble.failures, self.random.f64());
                self.wait(object, now + after.unwrap_or_default() + backoff, trouble);
            }
        }
        Next::Goes
    }

    /// Forgets all whose turn is to come. Those in their turn are looked at again when it ends.
    pub(crate) fn clear(&mut self) {
        self.ready.clear();
        self.waiting.clear();
        self.held.clear();
        for pace in &mut self.paces {
            pace.parked.clear();
        }
        self.held_until = None;
        self.objects
            .retain(|_, state| matches!(state, State::InFlight { .. }));
        self.specs = self.objects.keys().filter(|object| is_spec(object)).count();
    }

    /// When [`Slots::take`] may give more without anything else happening.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let waiting = self.waiting.first().map(|(until, _)| *until);
        let held = self.held_until.filter(|_| {
            // Else an answer is what it waits for.
            !self.held.is_empty() && self.in_flight < self.limit
        });
        let parked = self.paces.iter().filter(|pace| {
            // A write in flight may end the wait, and wakes by its answer.
            !pace.parked.is_empty() && pace.in_flight == 0 && self.in_flight < self.limit
        });
        let parked = parked.filter_map(|pace| pace.until);
        waiting.into_iter().chain(held).chain(parked).min()
    }

    /// Objects in their turn.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Objects whose turn is to come, now or later.
    pub(crate) fn pending(&self) -> usize {
        self.objects.len() - self.in_flight
    }

    fn wait(&mut self, object: WriteTarget, until: Instant, trouble: Trouble) {
        self.waiting.insert((until, object.clone()));
        self.objects.insert(object, State::Waiting { trouble });
    }

    fn wake(&mut self, now: Instant) {
        while let Some((until, object)) = self.waiting.pop_first() {
            if until > now {
                self.waiting.insert((until, object));
                return;
            }
            if let Some(state) = self.objects.get_mut(&object) {
                let trouble = state.trouble();
                *state = State::Ready { trouble };
                self.specs += usize::from(is_spec(&object));
                self.ready.push_back(object);
            }
        }
    }
}

/// Classes of writes, which differ by what is written.
const CLASSES: usize = 3;

fn class(object: &WriteTarget) -> usize {
    match object {
        WriteTarget::PodMarks(_) => 0,
        WriteTarget::NodePodProbe(_) => 1,
        WriteTarget::MarkerStatus(_) | WriteTarget::MarkerFinalizer(_) => 2,
    }
}

impl Pace {
    fn may_begin(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now) && (self.slowed == 0 || self.in_flight == 0)
    }

    fn end(&mut self, turn: Turn, random: f64, now: Instant) {
        self.in_flight -= 1;
        match turn {
            Turn::Failed { cause, after } if cause == Cause::Throttled || after.is_some() => {
                // Those that were in flight together count once.
                if self.until.is_none_or(|until| until <= now) {
                    self.slowed = self.slowed.saturating_add(1);
                }
                let distance = Cause::Throttled.backoff().delay(self.slowed, random);
                let until = now + after.unwrap_or_default().max(distance);
                self.until = self.until.max(Some(until));
            }
            // They say nothing about the pace.
            Turn::NothingDue
            | Turn::Failed {
                cause: Cause::NoAnswer,
                ..
            } => {}
            // What was sent before the API server asked for patience may be answered after it.
            _ if self.until.is_some_and(|until| now < until) => {}
            _ => (self.until, self.slowed) = (None, 0),
        }
    }
}

fn is_spec(object: &WriteTarget) -> bool {
    matches!(object, WriteTarget::NodePodProbe(_))
}

impl State {
    fn trouble(&self) -> Trouble {
        match self {
            Self::Ready { trouble }
            | Self::InFlight { trouble, .. }
            | Self::Waiting { trouble } => *trouble,
        }
    }
}

impl Trouble {
    fn add(&mut self, cause: Cause) {
        self.failures += 1;
        self.internal_errors = match cause {
            Cause::InternalError => self.internal_errors + 1,
            _ => 0,
        };
    }
}

#[cfg(test)]
mod tests;

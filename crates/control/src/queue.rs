//! The queue of targets: which are ready, which are in flight, and which wait after a failure.
//!
//! A pure state machine: the loop asks it for a target when there is room, and reports how the request went. It
//! guarantees that a target has at most one request in flight, that a target which becomes dirty meanwhile is
//! reconsidered afterwards, and that the delay before a retry grows with each failure. It has one entry for each target
//! that is not at rest.
//!
//! The targets of a class are taken in turn by namespace ([`turns`]), so that one namespace delays another by about one
//! write, however many it has.
//!
//! When the API server asks one request to slow down (429, or any reply with a Retry-After that is repeated), its whole class slows down: no
//! request is begun before the time that was asked for, and then one at a time until one of them is answered otherwise.
//! The other classes go on. A `Retry-After` is about a flow of requests and not about an object (API priority and
//! fairness, `apiserver/pkg/server/filters/priority-and-fairness.go`).
//!
//! A target whose object is large rests after each write for a time that grows with its size: what others wait while it is
//! read is a constant share of the time.

mod turns;

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leadsman_process::reply::RetryCause;
use tokio::time::Instant;

use self::turns::ReadyByNamespace;
use crate::places::Places;
use crate::rules::Target;
use leadsman_reconcile::{After, Class};

/// A write whose answers have been internal errors alone for so long counts as refused. For less, the API server's store may
/// be away or elect a leader: then all writes end like this, and no object is at fault.
const INTERNAL_ERRORS: Duration = Duration::from_mins(1);
/// The size from which on an object of a class that is paced by size is written at most so often
/// that its replies have about as many bytes a second. A usual pod has a twentieth of it, and each
/// change of its verdict is written at once.
const PACED_BYTES: usize = 256 * 1024;
/// Room for so many targets is kept, whether there are any or not.
const KEPT_ROOM: usize = 1024;

/// All targets that are not at rest.
#[derive(Debug)]
pub(crate) struct WriteQueue<T> {
    targets: HashMap<T, TargetProgress>,
    waiting: BTreeSet<(Instant, T)>,
    classes: Vec<ClassQueue<T>>,
    class_of: fn(&T) -> usize,
    /// The flow of the first class; the others follow it.
    first_flow: usize,
    in_flight: usize,
    /// The number of writes in flight from which on a namespace begins no more than one in each
    /// class.
    most_of_namespace: usize,
    random: fastrand::Rng,
}

/// The ready targets of a class, and its pace.
#[derive(Debug)]
struct ClassQueue<T> {
    class: Class,
    ready: ReadyByNamespace<T>,
    /// The targets that wait for a time.
    waiting: usize,
    pace: ClassPace,
    /// The time until which it waits for the class with precedence; set when it has work while that
    /// class is busy.
    held_until: Option<Instant>,
}

/// The pace of the requests of a class.
#[derive(Debug, Default)]
struct ClassPace {
    /// The time before which no request is begun.
    until: Option<Instant>,
    /// How often in a row the API server asked it to slow down. If at all, at most one request is in flight.
    slowed: u32,
    in_flight: usize,
}

#[derive(Debug)]
enum TargetProgress {
    /// The target is in the queue of its class.
    Ready { failures: Failures },
    /// A request is in flight, or about to be made.
    InFlight {
        began: Instant,
        failures: Failures,
        dirty: bool,
    },
    /// Ready again at the time that it waits for.
    Waiting { failures: Failures },
}

/// Failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Failures {
    count: u32,
    /// The first of the internal errors that came last, without another failure in between.
    internal_since: Option<Instant>,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteResult {
    /// The target needed no write.
    NothingDue,
    /// The write was carried out, and the reply showed the object as it is now.
    Written {
        /// The bytes of the reply.
        bytes: usize,
    },
    /// The write is finished: the object is gone, the answer is final, or the watch shows the
    /// result.
    Over,
    /// The write failed and may succeed later.
    Failed {
        /// Why.
        cause: RetryCause,
        /// The API server's Retry-After.
        after: Option<Duration>,
    },
}

/// Whether a failed write is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retried {
    /// The write is repeated, if it failed.
    Yes,
    /// The write has failed too often in the same way.
    GivenUp,
}

impl<T: Target> WriteQueue<T> {
    /// An empty queue, whose classes become flows of `places`. `random` spreads the retries of requests that failed
    /// together.
    pub(crate) fn new(
        classes: &[Class],
        class_of: fn(&T) -> usize,
        namespace_of: fn(&T) -> Option<&str>,
        places: &mut Places,
        random: fastrand::Rng,
    ) -> Self {
        let queue = |class: &Class| ClassQueue {
            class: *class,
            ready: ReadyByNamespace::new(namespace_of),
            waiting: 0,
            pace: ClassPace::default(),
            held_until: None,
        };
        Self {
            targets: HashMap::new(),
            waiting: BTreeSet::new(),
            classes: classes.iter().map(queue).collect(),
            class_of,
            first_flow: places.add_flows(classes.len()),
            in_flight: 0,
            // Half of the places, so that the writes of one namespace never have all.
            most_of_namespace: (places.limit() / 2).max(1),
            random,
        }
    }

    /// Marks a target as dirty: its observed or wanted state has changed.
    pub(crate) fn mark_dirty(&mut self, target: T) {
        match self.targets.entry(target) {
            Entry::Vacant(vacant) => {
                let target = vacant.key().clone();
                let ready = &mut self.classes[(self.class_of)(&target)].ready;
                ready.push(target);
                let failures = Failures::default();
                vacant.insert(TargetProgress::Ready { failures });
            }
            Entry::Occupied(mut occupied) => match occupied.get_mut() {
                // A waiting target keeps its time: a change of the object must not shorten the back-off of its writes.
                TargetProgress::Ready { .. } | TargetProgress::Waiting { .. } => {}
                TargetProgress::InFlight { dirty, .. } => *dirty = true,
            },
        }
    }

    /// The next target to be written, if there is room for one. [`WriteQueue::end_write`] must follow.
    pub(crate) fn take_next(&mut self, now: Instant, places: &mut Places) -> Option<T> {
        self.wake_due(now);
        let class = self.next_class(now, places)?;
        let turn = self.next_turn(class)?;
        let queue = &mut self.classes[class];
        let target = queue.ready.take_turn(turn)?;
        queue.pace.in_flight += 1;
        self.in_flight += 1;
        if let Some(state) = self.targets.get_mut(&target) {
            let failures = state.failures();
            *state = TargetProgress::InFlight {
                began: now,
                failures,
                dirty: false,
            };
        }
        Some(target)
    }

    /// A class that may write and has a place now, the one with the fewest in flight first.
    fn next_class(&mut self, now: Instant, places: &mut Places) -> Option<usize> {
        let mut able = Vec::with_capacity(self.classes.len());
        for class in 0..self.classes.len() {
            if self.may_begin(class, now) {
                able.push(class);
            } else {
                // A class that waits for a place which it cannot use would hold up the others.
                places.stop_waiting(self.first_flow + class);
            }
        }
        // The sort is stable, so classes with equally many keep the order of the feature.
        able.sort_by_key(|class| self.classes[*class].pace.in_flight);
        let first_flow = self.first_flow;
        able.into_iter()
            .find(|class| places.try_take(first_flow + class))
    }

    /// Whether a class has something to write and is held up neither by its pace nor by another class.
    fn may_begin(&mut self, class: usize, now: Instant) -> bool {
        let after = self.classes[class].class.after;
        let is_after = after.is_some_and(|after| self.is_busy(after.class));
        let has_next = self.next_turn(class).is_some();
        let queue = &mut self.classes[class];
        // The class with precedence has come to rest: the next wait for it has its own limit.
        if !is_after {
            queue.held_until = None;
        }
        if !has_next || !queue.pace.may_begin(now) {
            return false;
        }
        match after {
            Some(After { at_most, .. }) if is_after => {
                *queue.held_until.get_or_insert(now + at_most) <= now
            }
            _ => true,
        }
    }

    /// The namespace whose turn it is in a class.
    fn next_turn(&self, class: usize) -> Option<Arc<str>> {
        self.classes[class].ready.next_turn(|namespace| {
            let in_flight = self
                .classes
                .iter()
                .map(|queue| queue.ready.in_flight_of(namespace));
            in_flight.sum::<usize>() >= self.most_of_namespace
        })
    }

    fn is_busy(&self, class: usize) -> bool {
        let queue = &self.classes[class];
        !queue.ready.is_empty() || queue.pace.in_flight > 0
    }

    /// Ends the write of a target that [`WriteQueue::take_next`] gave.
    pub(crate) fn end_write(
        &mut self,
        target: T,
        result: WriteResult,
        now: Instant,
        places: &mut Places,
    ) -> Retried {
        let Some(TargetProgress::InFlight {
            began,
            mut failures,
            dirty,
        }) = self.targets.remove(&target)
        else {
            // Cannot happen: only what was taken is ended, and `forget_idle` keeps what is in flight.
            return Retried::Yes;
        };
        let class = (self.class_of)(&target);
        places.give_back(self.first_flow + class);
        debug_assert!(self.is_balanced(), "before the end of {target}");
        self.in_flight -= 1;
        self.release_room();
        let random = self.random.f64();
        let queue = &mut self.classes[class];
        queue.pace.end_write(result, random, now);
        queue.ready.end_write(&target);
        match result {
            WriteResult::NothingDue | WriteResult::Over => {
                if dirty {
                    self.mark_dirty(target);
                }
            }
            // The state in the reply may no longer be the wanted one.
            WriteResult::Written { bytes } => {
                let spacing = spacing_after(&queue.class, bytes);
                if spacing.is_zero() {
                    self.mark_dirty(target);
                } else {
                    // The spacing counts from beginning to beginning, so that slow answers do not
                    // lower the rate.
                    self.wait_until(target, began + spacing, Failures::default());
                }
            }
            WriteResult::Failed { cause, after } => {
                failures.add_failure(cause, now);
                let since = failures.internal_since;
                if since.is_some_and(|since| now.duration_since(since) >= INTERNAL_ERRORS) {
                    if dirty {
                        self.mark_dirty(target);
                    }
                    // The target is at rest: the rules get this as a refusal, and decide when it is
                    // tried again.
                    return Retried::GivenUp;
                }
                let backoff = cause.backoff().delay(failures.count, self.random.f64());
                // The back-off is added to Retry-After, since all clients that were told the same second would come back
                // in it.
                self.wait_until(target, now + after.unwrap_or_default() + backoff, failures);
            }
        }
        Retried::Yes
    }

    /// Forgets all targets except those in flight. These are reconsidered afterwards only if they become dirty
    /// meanwhile.
    pub(crate) fn forget_idle(&mut self) {
        self.waiting.clear();
        // The paces stay: the API server has asked this process to slow down, whatever it writes next.
        for queue in &mut self.classes {
            queue.ready.clear();
            queue.waiting = 0;
            queue.held_until = None;
        }
        self.targets
            .retain(|_, state| matches!(state, TargetProgress::InFlight { .. }));
        self.release_room();
    }

    /// The next moment at which [`WriteQueue::take_next`], which returned nothing at `now`, may return a target without any
    /// other event.
    pub(crate) fn next_wake(&self, now: Instant) -> Option<Instant> {
        let waiting = self.waiting.first().map(|(until, _)| *until);
        let queues = self.classes.iter().filter(|queue| !queue.ready.is_empty());
        let held = queues.flat_map(|queue| [queue.pace.until, queue.held_until]);
        let times = held.chain([waiting]).flatten();
        // A time that has come was considered at `now`; returning it would make the loop spin.
        times.filter(|time| *time > now).min()
    }

    /// Makes no class wait for a place, since nothing may be written now.
    pub(crate) fn stop_all_waiting(&self, places: &mut Places) {
        for class in 0..self.classes.len() {
            places.stop_waiting(self.first_flow + class);
        }
    }

    /// Gives back the places of all requests in flight, whose answers are not waited for any more.
    pub(crate) fn give_back_in_flight(&self, places: &mut Places) {
        self.stop_all_waiting(places);
        for (class, queue) in self.classes.iter().enumerate() {
            for _ in 0..queue.pace.in_flight {
                places.give_back(self.first_flow + class);
            }
        }
    }

    /// Targets in flight.
    pub(crate) fn in_flight_count(&self) -> usize {
        self.in_flight
    }

    /// Whether all targets are at rest.
    pub(crate) fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// The targets of each class that are to be written, now or later.
    pub(crate) fn class_depths(&self) -> impl Iterator<Item = usize> {
        let classes = self.classes.iter();
        classes.map(|queue| queue.ready.len() + queue.waiting)
    }

    /// Whether the counters agree with what they count.
    fn is_balanced(&self) -> bool {
        let classes = || self.classes.iter();
        let in_flight: usize = classes().map(|queue| queue.pace.in_flight).sum();
        let waiting: usize = classes().map(|queue| queue.waiting).sum();
        let ready: usize = classes().map(|queue| queue.ready.len()).sum();
        // The target whose write ends is in flight and has been taken out already.
        self.in_flight == in_flight
            && self.waiting.len() == waiting
            && self.targets.len() + 1 == in_flight + waiting + ready
    }

    /// Gives up room that is not needed any more: when a cluster is marked for the first time, all its pods are here at once,
    /// and hardly ever again. What is moved is less than what has left since the last time.
    fn release_room(&mut self) {
        if self.targets.capacity() <= 2 * KEPT_ROOM.max(4 * self.targets.len()) {
            return;
        }
        self.targets
            .shrink_to(KEPT_ROOM.max(2 * self.targets.len()));
    }

    fn wait_until(&mut self, target: T, until: Instant, failures: Failures) {
        self.classes[(self.class_of)(&target)].waiting += 1;
        self.waiting.insert((until, target.clone()));
        self.targets
            .insert(target, TargetProgress::Waiting { failures });
    }

    fn wake_due(&mut self, now: Instant) {
        while let Some((until, target)) = self.waiting.pop_first() {
            if until > now {
                self.waiting.insert((until, target));
                return;
            }
            let queue = &mut self.classes[(self.class_of)(&target)];
            queue.waiting -= 1;
            // A target that waits is in both, so this finds it.
            if let Some(state) = self.targets.get_mut(&target) {
                let failures = state.failures();
                *state = TargetProgress::Ready { failures };
                queue.ready.push(target);
            }
        }
    }
}

/// How long after the beginning of a write of this class, whose reply had so many bytes, the next one begins. Each costs its
/// text twice on the thread that all share: in the reply, and in the event of the watch. The reply is not asked for as metadata
/// alone, since what is due next depends on the status too: once the version of the reply is known, an event from before it,
/// which has what others changed meanwhile, is passed over.
fn spacing_after(class: &Class, bytes: usize) -> Duration {
    if !class.is_paced_by_size || bytes < PACED_BYTES {
        return class.spacing;
    }
    let rest = Duration::from_secs(1)
        .saturating_mul(u32::try_from(bytes / PACED_BYTES).unwrap_or(u32::MAX));
    class.spacing.max(rest)
}

impl ClassPace {
    fn may_begin(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now) && (self.slowed == 0 || self.in_flight == 0)
    }

    fn end_write(&mut self, result: WriteResult, random: f64, now: Instant) {
        self.in_flight -= 1;
        match result {
            WriteResult::Failed { cause, after }
                if cause == RetryCause::Throttled || after.is_some() =>
            {
                // Requests that were in flight together count once.
                if self.until.is_none_or(|until| until <= now) {
                    self.slowed = self.slowed.saturating_add(1);
                }
                let distance = RetryCause::Throttled.backoff().delay(self.slowed, random);
                let until = now + after.unwrap_or_default().max(distance);
                // A longer pause that was asked for before stays.
                self.until = self.until.max(Some(until));
            }
            // Results like these say nothing about the pace.
            WriteResult::NothingDue
            | WriteResult::Failed {
                cause: RetryCause::NoAnswer | RetryCause::NotSent,
                ..
            } => {}
            // Requests that were sent before the API server asked to slow down may be answered
            // after it.
            _ if self.until.is_some_and(|until| now < until) => {}
            _ => (self.until, self.slowed) = (None, 0),
        }
    }
}

impl TargetProgress {
    fn failures(&self) -> Failures {
        match self {
            Self::Ready { failures }
            | Self::InFlight { failures, .. }
            | Self::Waiting { failures } => *failures,
        }
    }
}

impl Failures {
    fn add_failure(&mut self, cause: RetryCause, now: Instant) {
        self.count += 1;
        let is_internal = cause == RetryCause::InternalError;
        self.internal_since = is_internal.then(|| self.internal_since.unwrap_or(now));
    }
}

#[cfg(test)]
mod tests;

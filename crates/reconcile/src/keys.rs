//! The keys that have to run: by namespace in turn, and each at the pace that its cost allows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::feature::{Key, Precedence};
use crate::round_robin::{RoundRobin, TurnQueue};
use crate::timers::Timers;

/// A key runs again after so many times as long as its run took, so that no object takes more than a hundredth of the thread.
///
/// Writes that are sent meanwhile share that: a large object would have sent all that was planned, and wait. Writes that cannot be
/// sent, since the API server is the slower one, make no rest shorter.
const REST: u32 = 100;
/// The least of it: no object takes more than a half of the thread, whatever it has to write, but for runs beyond [`LONGEST`].
const LEAST: u32 = 2;
/// The longest rest.
const LONGEST: Duration = Duration::from_millis(500);
/// A rest that is shorter is not worth a timer.
const SHORTEST: Duration = Duration::from_millis(5);

/// The keys that have to run.
#[derive(Debug)]
pub(crate) struct KeyQueue<K> {
    ready: RoundRobin<KeyLine<K>>,
    /// The keys that run after those of their namespace, where none of these had to run when it was looked at last.
    free: RoundRobin<BTreeSet<K>>,
    /// The same where some have to.
    blocked: BTreeMap<Arc<str>, BTreeSet<K>>,
    /// The keys that run after all that run after none, with the time until which they wait at most.
    after_all: BTreeMap<K, Duration>,
    waits: Timers<K>,
    /// The keys that have to run before anything is written.
    first: BTreeSet<K>,
    /// How many of these run after none.
    first_ready: usize,
    /// The keys that rest.
    resting: BTreeMap<K, KeyRest>,
    /// How many keys of a namespace have to run after their rest, of those that run after none.
    late: BTreeMap<Box<str>, usize>,
    rests: Timers<K>,
    now: Duration,
}

/// The rest of a key after a run.
#[derive(Debug)]
struct KeyRest {
    /// The end of the run, and how long that took.
    since: Duration,
    took: Duration,
    /// Writes that were sent since, which share it.
    sent: u32,
    /// The time that its timer is set for.
    until: Option<Duration>,
    /// Whether it has to run afterwards.
    is_marked: bool,
    /// Whether its plan is void until then.
    is_void: bool,
}

impl KeyRest {
    /// The time at which the rest ends; `None` means no rest.
    fn end(&self) -> Option<Duration> {
        let rest = rest_after(self.took, self.sent)?;
        Some(self.since.saturating_add(rest))
    }
}

impl<K> Default for KeyQueue<K> {
    fn default() -> Self {
        Self {
            ready: RoundRobin::default(),
            free: RoundRobin::default(),
            blocked: BTreeMap::new(),
            after_all: BTreeMap::new(),
            waits: Timers::default(),
            first: BTreeSet::new(),
            first_ready: 0,
            resting: BTreeMap::new(),
            late: BTreeMap::new(),
            rests: Timers::default(),
            now: Duration::ZERO,
        }
    }
}

impl<K: Key> KeyQueue<K> {
    /// Has a key run: as soon as its namespace has its turn, but not before its rest is over, nor before the keys that it runs
    /// after. What it has planned is void until then.
    pub(crate) fn mark(&mut self, key: K) {
        if let Some(rest) = self.resting.get_mut(&key) {
            rest.is_void = true;
        }
        self.mark_by_event(key);
    }

    /// The same for an event or an answer. They might as well have come late, so that what a key that rests has planned stands.
    pub(crate) fn mark_by_event(&mut self, key: K) {
        if let Some(rest) = self.resting.get_mut(&key) {
            if !std::mem::replace(&mut rest.is_marked, true) && runs_after_none(&key) {
                *self.late.entry(key.namespace().into()).or_default() += 1;
            }
            return;
        }
        match key.runs_after() {
            Precedence::None => self.ready.queue_of(key.namespace()).push(key),
            Precedence::OfNamespace => {
                let keys = match self.blocked.get_mut(key.namespace()) {
                    Some(keys) => keys,
                    None => self.free.queue_of(key.namespace()),
                };
                keys.insert(key);
            }
            Precedence::Of(at_most) => {
                if !self.after_all.contains_key(&key) {
                    let until = self.now.saturating_add(at_most);
                    self.waits.set(until, key.clone());
                    self.after_all.insert(key, until);
                }
            }
        }
    }

    /// Whether a key has to run, now or after its rest.
    pub(crate) fn is_marked(&self, key: &K) -> bool {
        let is_late = self.resting.get(key).is_some_and(|rest| rest.is_marked);
        is_late || self.is_queued(key)
    }

    /// Whether what a key has planned is void, so that it is not sent before the next run. Of a key that rests, events hold up no
    /// writes but deletions, which nothing takes back. Once one of these has had its turn, the others wait too: their answers mark the
    /// key again and again, and a deletion would find it so each time.
    pub(crate) fn voids(&mut self, key: &K, is_deletion: bool) -> bool {
        let rest = self.resting.get_mut(key).filter(|rest| rest.is_marked);
        let is_void = rest.is_some_and(|rest| {
            rest.is_void |= is_deletion;
            rest.is_void
        });
        is_void || self.is_queued(key)
    }

    /// Whether a key has to run now.
    pub(crate) fn is_queued(&self, key: &K) -> bool {
        let name = key.namespace();
        let is_in = |keys: Option<&BTreeSet<K>>| keys.is_some_and(|keys| keys.contains(key));
        let is_ready = is_in(self.ready.get(name).map(|line| &line.known));
        let is_queued = is_ready || is_in(self.free.get(name)) || is_in(self.blocked.get(name));
        is_queued || self.after_all.contains_key(key)
    }

    /// Has nothing written before each of the keys that are marked has run, but for those that run after others of their namespace:
    /// it may always have others.
    pub(crate) fn begin_first_round(&mut self) {
        let ready = self.ready.iter().flat_map(|(_, keys)| &keys.order);
        self.first = ready.chain(self.after_all.keys()).cloned().collect();
        self.first_ready = self.first.len() - self.after_all.len();
    }

    /// Whether keys that were there at the beginning have not run yet.
    pub(crate) fn is_first_round(&self) -> bool {
        !self.first.is_empty()
    }

    /// The time from which on keys that are marked wait.
    pub(crate) fn set_now(&mut self, now: Duration) {
        self.now = now;
    }

    /// The next key to run.
    pub(crate) fn take_next(&mut self, now: Duration) -> Option<K> {
        self.now = now;
        while let Some(key) = self.rests.pop_due(now) {
            let Some(rest) = self.resting.remove(&key) else {
                continue;
            };
            if rest.is_marked {
                self.end_late(&key);
                self.mark(key);
            }
        }
        let late =
            (self.first_ready == 0).then(|| self.take_late(now).or_else(|| self.take_free()));
        let next = late
            .flatten()
            .or_else(|| self.take_ready())
            .or_else(|| self.take_last())?;
        self.note_run(&next);
        Some(next)
    }

    /// Takes a key that waits for all others, and need not. Returns whether it did.
    pub(crate) fn take_waiting(&mut self, key: &K) -> bool {
        let was_waiting = self.after_all.remove(key).is_some();
        if was_waiting {
            self.note_run(key);
        }
        was_waiting
    }

    fn note_run(&mut self, key: &K) {
        if self.first.remove(key) {
            self.first_ready -= usize::from(runs_after_none(key));
        }
    }

    /// A key that has waited for all others for long enough.
    fn take_late(&mut self, now: Duration) -> Option<K> {
        while let Some(key) = self.waits.pop_due(now) {
            // The key may have run since, and wait again.
            let until = self.after_all.get(&key);
            if until.is_some_and(|until| *until <= now) {
                self.after_all.remove(&key);
                return Some(key);
            }
        }
        None
    }

    fn take_free(&mut self) -> Option<K> {
        loop {
            let (ready, late) = (&self.ready, &self.late);
            let (namespace, key, blocked) = self.free.take_next(|namespace, keys| {
                let is_free = !ready.contains(namespace) && !late.contains_key(&**namespace);
                let key = is_free.then(|| keys.pop_first()).flatten();
                let blocked = key.is_none().then(|| std::mem::take(keys));
                Some((namespace.clone(), key, blocked))
            })?;
            if key.is_some() {
                return key;
            }
            self.blocked.insert(namespace, blocked.unwrap_or_default());
        }
    }

    fn take_ready(&mut self) -> Option<K> {
        let ready = &mut self.ready;
        let (namespace, key) =
            ready.take_next(|namespace, keys| Some((namespace.clone(), keys.pop()?)))?;
        self.unblock(&namespace);
        Some(key)
    }

    fn take_last(&mut self) -> Option<K> {
        let last = self.late.is_empty().then(|| self.after_all.pop_first());
        last.flatten().map(|(key, _)| key)
    }

    /// Frees the keys that wait for others of their namespace, if none of these has to run.
    fn unblock(&mut self, namespace: &str) {
        let is_free = !self.ready.contains(namespace) && !self.late.contains_key(namespace);
        if is_free && let Some(mut keys) = self.blocked.remove(namespace) {
            self.free.queue_of(namespace).append(&mut keys);
        }
    }

    fn end_late(&mut self, key: &K) {
        if runs_after_none(key)
            && let Some(late) = self.late.get_mut(key.namespace())
        {
            *late -= 1;
            if *late == 0 {
                self.late.remove(key.namespace());
            }
        }
    }

    /// Lets a key rest after a run that took so long.
    pub(crate) fn rest(&mut self, key: &K, took: Duration, now: Duration) {
        let mut rest = KeyRest {
            since: now,
            took,
            sent: 0,
            until: None,
            is_marked: false,
            is_void: false,
        };
        let Some(end) = rest.end() else { return };
        // One that has marked itself has run once more meanwhile.
        if let Some(before) = self.resting.remove(key) {
            rest.until = before.until;
            if before.is_marked {
                self.end_late(key);
                self.unblock(key.namespace());
            }
        }
        self.rests.reset(&mut rest.until, Some(end), || key.clone());
        self.resting.insert(key.clone(), rest);
    }

    /// A write of a key was sent.
    pub(crate) fn note_sent(&mut self, key: &K) {
        if let Some(rest) = self.resting.get_mut(key) {
            rest.sent = rest.sent.saturating_add(1);
            let end = rest.end();
            self.rests.reset(&mut rest.until, end, || key.clone());
        }
    }

    /// The time at which [`KeyQueue::take_next`] has something to do.
    pub(crate) fn deadline(&self, now: Duration) -> Option<Duration> {
        let is_last_free = !self.after_all.is_empty() && self.late.is_empty();
        if is_last_free || !self.free.is_empty() || !self.ready.is_empty() {
            return Some(now);
        }
        // Keys that wait for one that rests.
        let waits = (!self.after_all.is_empty()).then(|| self.waits.deadline());
        let deadlines = self.rests.deadline().into_iter().chain(waits.flatten());
        deadlines.min()
    }

    /// Forgets all keys.
    pub(crate) fn clear(&mut self) {
        *self = Self {
            now: self.now,
            ..Self::default()
        };
    }
}

/// Keys in the order in which they were marked: one that is marked again and again takes the place of none that waits.
#[derive(Debug)]
struct KeyLine<K> {
    order: VecDeque<K>,
    known: BTreeSet<K>,
}

impl<K> Default for KeyLine<K> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            known: BTreeSet::new(),
        }
    }
}

impl<K: Key> KeyLine<K> {
    fn push(&mut self, key: K) {
        if self.known.insert(key.clone()) {
            self.order.push_back(key);
        }
    }

    fn pop(&mut self) -> Option<K> {
        let key = self.order.pop_front()?;
        self.known.remove(&key);
        Some(key)
    }
}

impl<K> TurnQueue for KeyLine<K> {
    fn len(&self) -> usize {
        self.order.len()
    }
}

fn runs_after_none(key: &impl Key) -> bool {
    key.runs_after() == Precedence::None
}

/// How long a key rests that has sent so many writes since, if it does.
pub(crate) fn rest_after(took: Duration, sent: u32) -> Option<Duration> {
    if took.saturating_mul(REST) < SHORTEST {
        return None;
    }
    let rest = took.saturating_mul((REST / sent.max(1)).max(LEAST));
    Some(rest.clamp(SHORTEST, LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    use Part::{Marker, Node, Pod};

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Part {
        Pod(&'static str, u32),
        Marker(&'static str),
        Node,
    }

    impl Key for Part {
        fn namespace(&self) -> &str {
            match self {
                Self::Pod(namespace, _) | Self::Marker(namespace) => namespace,
                Self::Node => "",
            }
        }

        fn runs_after(&self) -> Precedence {
            match self {
                Self::Pod(..) => Precedence::None,
                Self::Marker(_) => Precedence::OfNamespace,
                Self::Node => Precedence::Of(Duration::from_secs(1)),
            }
        }
    }

    fn marked(keys: &[Part]) -> KeyQueue<Part> {
        let mut queue = KeyQueue::default();
        for key in keys {
            queue.mark(key.clone());
        }
        queue
    }

    fn take_all(queue: &mut KeyQueue<Part>, now: Duration) -> Vec<Part> {
        std::iter::from_fn(|| queue.take_next(now)).collect()
    }

    // PPM-20
    #[test]
    fn a_key_waits_for_those_it_runs_after_and_no_namespace_for_anothers() {
        let keys = [
            Node,
            Marker("busy"),
            Marker("calm"),
            Pod("busy", 1),
            Pod("busy", 2),
            Pod("calm", 3),
        ];
        let mut queue = marked(&keys);
        assert!(keys.iter().all(|key| queue.is_marked(key)));
        let taken = take_all(&mut queue, Duration::ZERO);
        let expected = [
            Pod("busy", 1),
            Pod("calm", 3),
            Marker("calm"),
            Pod("busy", 2),
            Marker("busy"),
            Node,
        ];
        assert_eq!(taken, expected);
        assert!(!keys.iter().any(|key| queue.is_marked(key)));
        assert_eq!(queue.deadline(Duration::ZERO), None);
    }

    #[test]
    fn a_key_that_has_to_run_does_so_at_once_whatever_it_runs_after() {
        let now = Duration::from_secs(7);
        for key in [Pod("calm", 1), Marker("calm"), Node] {
            let deadline = marked(std::slice::from_ref(&key)).deadline(now);
            assert_eq!(deadline, Some(now), "{key:?}");
        }
    }

    // PPM-20
    #[test]
    fn a_key_does_not_wait_for_others_that_never_end() {
        let mut queue = KeyQueue::default();
        queue.set_now(Duration::from_secs(7));
        for key in [Node, Pod("busy", 1), Pod("busy", 2)] {
            queue.mark(key);
        }
        let late = Duration::from_secs(8);
        let soon = Duration::from_millis(7_500);
        assert_eq!(queue.take_next(soon), Some(Pod("busy", 1)));
        assert_eq!(queue.take_next(late), Some(Node));
        assert_eq!(take_all(&mut queue, late), [Pod("busy", 2)]);
    }

    #[test]
    fn in_the_first_round_no_key_runs_before_those_it_runs_after_however_late_it_is() {
        let mut queue = marked(&[Node, Marker("calm"), Pod("busy", 1), Pod("busy", 2)]);
        queue.begin_first_round();
        let late = Duration::from_secs(9);
        assert_eq!(queue.take_next(late), Some(Pod("busy", 1)));
        assert!(queue.is_first_round());
        let taken = take_all(&mut queue, late);
        assert_eq!(taken, [Pod("busy", 2), Node, Marker("calm")]);
        assert!(!queue.is_first_round());
    }

    #[test]
    fn the_first_round_ends_although_a_namespace_marks_keys_without_end() {
        let mut queue = marked(&[Node, Marker("busy"), Pod("calm", 3)]);
        queue.begin_first_round();
        for number in 0..10 {
            queue.mark(Pod("busy", number));
        }
        let mut seconds = 0;
        while queue.is_first_round() {
            queue.mark(Pod("busy", 100 + seconds));
            queue.take_next(Duration::from_secs(seconds.into()));
            seconds += 1;
        }
        assert_eq!(
            seconds, 2,
            "one for the pod of the other namespace, one for the node"
        );
    }

    #[test]
    fn a_queue_that_is_cleared_has_nothing_to_do_and_no_rests() {
        let keys = [Node, Marker("calm"), Pod("calm", 1), Pod("calm", 2)];
        let mut queue = marked(&keys);
        let now = Duration::from_secs(1);
        let pod = queue.take_next(now).expect("it is marked");
        queue.rest(&pod, Duration::from_millis(1), now);
        queue.clear();
        assert_eq!(queue.deadline(now), None);
        queue.mark(pod.clone());
        assert_eq!(take_all(&mut queue, now), [pod]);
    }

    #[test]
    fn a_key_waits_also_for_those_that_rest_and_have_to_run() {
        let (begin, end) = (Duration::ZERO, Duration::from_millis(500));
        // Another event changes nothing.
        for events in 1..=2 {
            let mut queue = marked(&[Pod("calm", 1)]);
            let pod = queue.take_next(begin).expect("it is marked");
            queue.rest(&pod, Duration::from_millis(1), begin);
            queue.mark(Marker("calm"));
            queue.mark(Node);
            for _ in 0..events {
                queue.mark(pod.clone());
            }
            assert_eq!(queue.take_next(begin), None);
            assert!(queue.is_marked(&Marker("calm")));
            let rest_ends = queue.deadline(begin);
            assert_eq!(rest_ends, Some(Duration::from_millis(100)));
            assert_eq!(take_all(&mut queue, end), [pod, Marker("calm"), Node]);
        }
    }

    #[test]
    fn a_key_that_marks_itself_holds_up_no_other_one_for_good() {
        let now = Duration::ZERO;
        let mut queue = marked(&[Pod("calm", 1)]);
        let pod = queue.take_next(now).expect("it is marked");
        queue.mark(pod.clone());
        queue.rest(&pod, Duration::from_millis(1), now);
        queue.mark(pod.clone());
        queue.mark(Marker("calm"));
        assert_eq!(queue.take_next(now), Some(pod.clone()));
        queue.rest(&pod, Duration::from_millis(1), now);
        assert_eq!(take_all(&mut queue, now), [Marker("calm")]);
    }

    #[test]
    fn a_key_rests_less_with_each_write_that_it_sends() {
        let mut queue = marked(&[Pod("calm", 1)]);
        let pod = queue.take_next(Duration::ZERO).expect("it is marked");
        queue.note_sent(&pod);
        queue.rest(&pod, Duration::from_millis(1), Duration::ZERO);
        queue.mark(pod.clone());
        for (sent, millis) in [(0, 100), (1, 100), (2, 50), (10, 10)] {
            let known = queue.resting.get(&pod).map_or(sent, |rest| rest.sent);
            (known..sent).for_each(|_| queue.note_sent(&pod));
            let end = Duration::from_millis(millis);
            assert_eq!(queue.deadline(Duration::ZERO), Some(end), "{sent} writes");
        }
        assert_eq!(queue.take_next(Duration::from_millis(9)), None);
        assert_eq!(take_all(&mut queue, Duration::from_millis(10)), [pod]);
        assert_eq!(queue.deadline(Duration::ZERO), None);
    }

    #[test]
    fn once_a_deletion_has_had_its_turn_in_a_rest_all_waits_for_the_next_run() {
        let mut queue = marked(&[Pod("calm", 1)]);
        let (took, mut now) = (Duration::from_millis(1), Duration::ZERO);
        for _ in 0..2 {
            let pod = queue.take_next(now).expect("it is marked");
            queue.rest(&pod, took, now);
            assert!(!queue.voids(&pod, true), "nothing has changed since");
            queue.mark_by_event(pod.clone());
            let turns = [false, true, false].map(|is_deletion| queue.voids(&pod, is_deletion));
            assert_eq!(turns, [false, true, true]);
            now += took * REST;
        }
    }

    /// Such as by another key's run: that of a node which has no room for the pod.
    #[test]
    fn what_a_key_has_planned_is_void_once_it_is_marked_by_no_event() {
        let mut queue = marked(&[Pod("calm", 1)]);
        let pod = queue.take_next(Duration::ZERO).expect("it is marked");
        queue.rest(&pod, Duration::from_millis(1), Duration::ZERO);
        queue.mark_by_event(pod.clone());
        assert!(!queue.voids(&pod, false));
        queue.mark(pod.clone());
        assert!(queue.voids(&pod, false));
    }

    #[test]
    fn a_rest_is_a_hundred_times_the_run_shared_by_the_writes() {
        let rest = |micros: u64, sent| rest_after(Duration::from_micros(micros), sent);
        let millis = |millis| Some(Duration::from_millis(millis));
        assert_eq!(rest(49, 0), None);
        assert_eq!(rest(50, 0), millis(5));
        assert_eq!(rest(1_000, 0), millis(100));
        assert_eq!(rest(1_000, 1), millis(100));
        assert_eq!(rest(1_000, 10), millis(10));
        assert_eq!(rest(9_000, 1), millis(500));
        assert_eq!(rest(9_000, 60), millis(18));
        assert_eq!(rest(9_000, u32::MAX), millis(18));
        assert_eq!(rest(1_000, 60), millis(5));
        assert_eq!(rest(900_000, 60), millis(500));
    }
}

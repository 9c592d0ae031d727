//! The due times of all probes of a node, on a shared grid of slots of [`SLOT`].
//!
//! A wake-up costs more than a probe: a TCP probe took 328 µs of CPU when due times were spread evenly, and 132 µs on a
//! grid of 100 ms. So all probes that are due in a slot start together, except for commands. These are spread over the
//! slots, because the container runtime stalls when many start at once:
//!
//! - A slot has a limit of commands. A first run is put into the next slot with room. Commands beyond the limit, after
//!   a late wake-up for instance, start in the next slot, and their next due time does not change.
//! - The next run of a command is due one period after the last. If that slot already has more commands than an even
//!   spread would give it, the command is due one slot later. So a due time moves by at most one slot in each period,
//!   and never to an earlier slot.
//! - A command gives way only to commands that share a slot with it at every run: those whose period divides its own.
//!   It meets the others only now and then, for which the limit is enough. So the commands with the shortest period
//!   settle first, as if there were no others, then those with the next longer one, until none moves any more.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

const SLOT_MILLIS: u64 = 100;
/// Length of a slot.
pub const SLOT: Duration = Duration::from_millis(SLOT_MILLIS);
const _: () = assert!(
    1_000 % SLOT_MILLIS == 0,
    "a period, which is whole seconds, is whole slots"
);

/// A slot of the grid, as its number since the agent's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TimeSlot(u64);

impl TimeSlot {
    /// The slot that `at` lies in.
    pub(super) fn containing(at: Duration) -> Self {
        Self(u64::try_from(at.as_millis() / SLOT.as_millis()).unwrap_or(u64::MAX))
    }

    /// The first slot that begins at or after `at`.
    pub(super) fn not_before(at: Duration) -> Self {
        let slot = Self::containing(at);
        if slot.start_time() < at {
            slot.plus_slots(1)
        } else {
            slot
        }
    }

    /// The beginning of the slot, since the agent's start.
    pub(super) fn start_time(self) -> Duration {
        Duration::from_millis(self.0.saturating_mul(SLOT_MILLIS))
    }

    pub(super) fn plus_slots(self, slots: u64) -> Self {
        Self(self.0.saturating_add(slots))
    }

    /// The number of slots from `earlier` to this one; 0 if `earlier` is not earlier.
    pub(super) fn slots_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The cost of a run for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// The agent opens a connection.
    Light,
    /// The container runtime starts a command.
    Exec {
        /// The probe's period in slots, at least one.
        every: u64,
    },
}

impl Weight {
    /// A command with this period.
    pub(super) fn of_exec(period: Duration) -> Self {
        Self::Exec {
            every: TimeSlot::containing(period).0.max(1),
        }
    }

    pub(super) fn is_exec(self) -> bool {
        matches!(self, Self::Exec { .. })
    }
}

/// The order of the queue: by slot, within a slot by arrival.
type QueueKey = (TimeSlot, u64);

/// The due time of an exec, and its period in slots.
type ExecDue = (TimeSlot, u64);

/// The queue of due times. Each key is in it at most once.
#[derive(Debug)]
pub(super) struct Schedule<K> {
    queue: BTreeMap<QueueKey, (K, Weight)>,
    queue_keys: HashMap<K, QueueKey>,
    /// Execs in the queue by slot; no count is 0.
    queued_execs: BTreeMap<TimeSlot, u32>,
    /// The due time of each exec; while it runs the last one, from which the next one follows. It stays as it is when a
    /// surplus exec has to wait for the next slot.
    exec_due: HashMap<K, ExecDue>,
    /// The limit of execs in one slot, unless an even share is more.
    usual_limit: u32,
    /// The limit of execs in one slot, however large an even share is.
    max_limit: u32,
    /// The number of execs in each slot when all are spread evenly.
    even_share: u32,
    /// The newest slot in which execs have started, and how many.
    started: (TimeSlot, u32),
    arrivals: u64,
}

impl<K: Clone + Eq + Hash> Schedule<K> {
    /// An empty queue. `usual_limit` execs may start in one slot, at least one; up to `max_limit` when an even share of
    /// all is more than that.
    pub(super) fn new(usual_limit: u32, max_limit: u32) -> Self {
        let usual_limit = usual_limit.max(1);
        Self {
            queue: BTreeMap::new(),
            queue_keys: HashMap::new(),
            queued_execs: BTreeMap::new(),
            exec_due: HashMap::new(),
            usual_limit,
            max_limit: max_limit.max(usual_limit),
            even_share: 1,
            started: (TimeSlot(0), 0),
            arrivals: 0,
        }
    }

    /// Sets how many execs each slot has when all are spread evenly, rounded up.
    pub(super) fn set_even_share(&mut self, even_share: u32) {
        self.even_share = even_share.clamp(1, self.max_limit);
    }

    fn exec_limit(&self) -> u32 {
        self.usual_limit.max(self.even_share)
    }

    /// Queues a first run, in the first slot with room, `earliest` or later.
    pub(super) fn queue_first_run(&mut self, key: K, weight: Weight, earliest: TimeSlot) {
        let mut slot = earliest;
        if weight.is_exec() {
            // Ends at the latest behind the last slot in which an exec is queued.
            while self.count_execs_in(slot) >= self.exec_limit() {
                slot = slot.plus_slots(1);
            }
        }
        self.queue_in_slot(key, weight, slot);
    }

    /// Queues the run of the next period, in its slot, or one slot later while execs are not spread evenly.
    pub(super) fn queue_next_run(&mut self, key: K, weight: Weight, due: TimeSlot) {
        let is_crowded = match weight {
            Weight::Light => false,
            Weight::Exec { every } => self.count_execs_met(due, every, &key) >= self.even_share,
        };
        self.queue_in_slot(key, weight, due.plus_slots(u64::from(is_crowded)));
    }

    /// Queues a run in exactly this slot.
    pub(super) fn queue_in_slot(&mut self, key: K, weight: Weight, slot: TimeSlot) {
        self.remove_queued(&key);
        self.arrivals += 1;
        if let Weight::Exec { every } = weight {
            self.exec_due.insert(key.clone(), (slot, every));
        }
        self.insert_at(key, weight, (slot, self.arrivals));
    }

    /// The slot in which a key is queued.
    pub(super) fn queued_slot_of(&self, key: &K) -> Option<TimeSlot> {
        self.queue_keys.get(key).map(|(slot, _)| *slot)
    }

    /// Forgets a key, whether it is queued or [`Schedule::take_due`] has returned it.
    pub(super) fn cancel(&mut self, key: &K) {
        self.exec_due.remove(key);
        self.remove_queued(key);
    }

    /// The slot of the first key in the queue.
    pub(super) fn next_slot(&self) -> Option<TimeSlot> {
        self.queue.keys().next().map(|(slot, _)| *slot)
    }

    /// Takes out what is due by `now`, each with its due time. Execs beyond the limit move to the slot after `now`,
    /// with their due time unchanged.
    pub(super) fn take_due(&mut self, now: TimeSlot) -> Vec<(K, TimeSlot)> {
        // Counted by slot: two calls in one slot start no more than one call would.
        if self.started.0 != now {
            self.started = (now, 0);
        }
        let mut due = Vec::new();
        while let Some(first) = self.queue.keys().next().copied()
            && first.0 <= now
        {
            let Some((key, weight)) = self.remove_at(first) else {
                break;
            };
            if weight.is_exec() && self.started.1 >= self.exec_limit() {
                // The old arrival puts it before those that are due in that slot.
                self.insert_at(key, weight, (now.plus_slots(1), first.1));
                continue;
            }
            self.started.1 += u32::from(weight.is_exec());
            self.queue_keys.remove(&key);
            let exec_due = weight.is_exec().then(|| self.exec_due.get(&key)).flatten();
            due.push((key, exec_due.map_or(first.0, |(slot, _)| *slot)));
        }
        due
    }

    fn count_execs_in(&self, slot: TimeSlot) -> u32 {
        // Execs that have started are not in the queue any more, but have used the room of their
        // slot.
        let started = if self.started.0 == slot {
            self.started.1
        } else {
            0
        };
        self.queued_execs.get(&slot).copied().unwrap_or(0) + started
    }

    /// The number of other execs with which one of period `every` shares the slot `due` and the slots of all later
    /// runs.
    fn count_execs_met(&self, due: TimeSlot, every: u64, own: &K) -> u32 {
        let is_met = |(key, (slot, other)): &(&K, &ExecDue)| {
            every.is_multiple_of(*other)
                && *slot <= due
                && due.slots_since(*slot).is_multiple_of(*other)
                && *key != own
        };
        let met = self.exec_due.iter().filter(is_met).count();
        u32::try_from(met).unwrap_or(u32::MAX)
    }

    fn remove_queued(&mut self, key: &K) {
        if let Some(queue_key) = self.queue_keys.remove(key) {
            self.remove_at(queue_key);
        }
    }

    fn insert_at(&mut self, key: K, weight: Weight, queue_key: QueueKey) {
        if weight.is_exec() {
            *self.queued_execs.entry(queue_key.0).or_default() += 1;
        }
        self.queue_keys.insert(key.clone(), queue_key);
        let other = self.queue.insert(queue_key, (key, weight));
        debug_assert!(other.is_none(), "no two keys have one arrival");
    }

    fn remove_at(&mut self, queue_key: QueueKey) -> Option<(K, Weight)> {
        let (key, weight) = self.queue.remove(&queue_key)?;
        if weight.is_exec() {
            let count = self.queued_execs.get_mut(&queue_key.0);
            debug_assert!(count.is_some(), "each exec in the queue is counted");
            if let Some(count) = count {
                *count -= 1;
                if *count == 0 {
                    self.queued_execs.remove(&queue_key.0);
                }
            }
        }
        Some((key, weight))
    }
}

/// The slot of the next run after one that was due at `due` and has ended at `now`. If due times have passed meanwhile,
/// that run makes up for all of them at once, and the last of these is the second value.
///
/// The kubelet's ticker does likewise: of ticks that nobody has taken it keeps one (`time.Ticker`, `worker.run` in
/// `pkg/kubelet/prober/worker.go`).
pub(super) fn next_due(
    due: TimeSlot,
    period: Duration,
    now: Duration,
) -> (TimeSlot, Option<TimeSlot>) {
    let period = TimeSlot::containing(period).0.max(1);
    let after = TimeSlot::not_before(now);
    let next = due.plus_slots(period);
    if next >= after {
        return (next, None);
    }
    // The probe keeps its phase: the run after the one that makes up for it is due a period after
    // `missed`, so a slow run does not move the phase.
    let missed = due.plus_slots(after.slots_since(due) / period * period);
    (after, (missed < after).then_some(missed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const EXEC: Weight = Weight::Exec { every: 10 };

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_slot_lasts_from_its_start_to_the_next() {
        for (at, of, from) in [(0, 0, 0), (1, 0, 1), (99, 0, 1), (100, 1, 1), (101, 1, 2)] {
            assert_eq!(TimeSlot::containing(millis(at)), TimeSlot(of), "{at}");
            assert_eq!(TimeSlot::not_before(millis(at)), TimeSlot(from), "{at}");
        }
    }

    // PRB-6
    #[test]
    fn a_due_time_that_passed_is_made_up_once() {
        // Due in slot 10, every second; ends at; next slot, made up for.
        let table = [
            (1_050, 20, None),
            (2_000, 20, None),
            (2_001, 21, Some(20)),
            (2_950, 30, None),
            (3_001, 31, Some(30)),
            (9_999, 100, None),
            (10_001, 101, Some(100)),
        ];
        for (end, slot, made_up) in table {
            let expected = (TimeSlot(slot), made_up.map(TimeSlot));
            assert_eq!(
                next_due(TimeSlot(10), SECOND, millis(end)),
                expected,
                "{end}"
            );
        }
    }

    // PRB-5
    #[test]
    fn light_runs_share_a_slot_and_execs_take_the_next_with_room() {
        let mut schedule = Schedule::new(2, 2);
        for key in 0..5 {
            schedule.queue_first_run(key, EXEC, TimeSlot(3));
            schedule.queue_first_run(key + 10, Weight::Light, TimeSlot(3));
        }
        let slots = |keys: std::ops::Range<i32>| -> Vec<u64> {
            keys.map(|key| schedule.queued_slot_of(&key).unwrap().0)
                .collect()
        };
        assert_eq!(slots(0..5), [3, 3, 4, 4, 5]);
        assert_eq!(slots(10..15), [3; 5]);
    }

    #[test]
    fn surplus_execs_come_first_in_the_next_slot_and_keep_their_due_time() {
        let mut schedule = Schedule::new(1, 1);
        for key in ["a", "b", "c"] {
            schedule.queue_in_slot(key, EXEC, TimeSlot(1));
        }
        schedule.queue_in_slot("d", EXEC, TimeSlot(2));
        schedule.queue_in_slot("light", Weight::Light, TimeSlot(2));
        let at = |schedule: &mut Schedule<_>, slot| schedule.take_due(TimeSlot(slot));
        assert_eq!(at(&mut schedule, 1), [("a", TimeSlot(1))]);
        assert_eq!(at(&mut schedule, 1), [], "again in the same slot");
        assert_eq!(
            at(&mut schedule, 2),
            [("b", TimeSlot(1)), ("light", TimeSlot(2))]
        );
        assert_eq!(at(&mut schedule, 3), [("c", TimeSlot(1))]);
        assert_eq!(at(&mut schedule, 4), [("d", TimeSlot(2))]);
        assert_eq!(schedule.next_slot(), None);
    }

    #[test]
    fn a_wake_up_that_comes_late_does_not_start_them_all() {
        let mut schedule = Schedule::new(2, 2);
        for key in 0..20_u64 {
            schedule.queue_in_slot(key, EXEC, TimeSlot(key / 2));
        }
        assert_eq!(schedule.take_due(TimeSlot(9)).len(), 2);
        assert_eq!(schedule.take_due(TimeSlot(10)).len(), 2);
    }

    #[test]
    fn cancelled_is_gone_and_put_again_is_there_once() {
        let mut schedule = Schedule::new(1, 1);
        schedule.queue_in_slot("a", EXEC, TimeSlot(1));
        schedule.queue_in_slot("a", EXEC, TimeSlot(4));
        schedule.queue_in_slot("b", EXEC, TimeSlot(2));
        schedule.cancel(&"b");
        assert_eq!(schedule.take_due(TimeSlot(3)), []);
        assert_eq!(schedule.take_due(TimeSlot(4)), [("a", TimeSlot(4))]);
    }

    /// Execs of these periods, all first due at once, over so many seconds: by how many slots each run came later than
    /// one period after the last, and how many began in each slot of the last hundred.
    fn settled(periods: &[u64], limit: u32, even: u32, seconds: u64) -> (Vec<u64>, Vec<usize>) {
        let mut schedule = Schedule::new(limit, 2 * limit);
        schedule.set_even_share(even);
        let weight = |key: usize| Weight::of_exec(SECOND * u32::try_from(periods[key]).unwrap());
        let (mut lates, mut begun) = (vec![0; periods.len()], Vec::new());
        for key in 0..periods.len() {
            schedule.queue_first_run(key, weight(key), TimeSlot(1));
        }
        for now in 1..seconds * 10 {
            let due = schedule.take_due(TimeSlot(now));
            begun.push(due.len());
            for (key, slot) in due {
                let due = slot.plus_slots(periods[key] * 10);
                schedule.queue_next_run(key, weight(key), due);
                lates[key] = schedule.queued_slot_of(&key).unwrap().slots_since(due);
                assert!(lates[key] <= 1, "more than one slot later in one period");
            }
        }
        (lates, begun.split_off(begun.len() - 100))
    }

    /// How many begin in one slot when they are spread evenly, rounded up.
    fn even(periods: &[u64]) -> u32 {
        // In tenths of a second and thousandths of a run, so that nothing is lost: the periods here divide 1,000.
        let rate: u64 = periods.iter().map(|period| 1_000 / period).sum();
        u32::try_from(rate.div_ceil(10_000)).unwrap()
    }

    // PRB-5
    #[test]
    fn execs_spread_until_even_and_then_keep_their_period() {
        let table: [&[(usize, u64)]; 9] = [
            &[(10, 1)],
            &[(7, 1)],
            &[(25, 1)],
            &[(50, 1)],
            &[(100, 10)],
            &[(9, 1), (10, 10)],
            &[(5, 1), (50, 10)],
            &[(3, 1), (10, 5), (20, 10)],
            &[(15, 1), (3, 5), (49, 10)],
        ];
        for mix in table {
            let of = |&(count, period): &(usize, u64)| vec![period; count];
            let periods: Vec<u64> = mix.iter().flat_map(of).collect();
            let even = even(&periods);
            let (lates, begun) = settled(&periods, 4, even, 3_000);
            assert_eq!(lates, vec![0; periods.len()], "{mix:?}");
            let most = begun.iter().max().unwrap();
            assert_eq!(*most, even as usize, "{mix:?}: {begun:?}");
        }
    }

    #[test]
    fn execs_that_meet_now_and_then_do_not_give_way() {
        let mut periods = vec![2; 4];
        periods.extend([5; 10]);
        let (lates, begun) = settled(&periods, 4, even(&periods), 3_000);
        assert_eq!(lates, vec![0; periods.len()]);
        assert!(begun.iter().all(|begun| *begun <= 4), "{begun:?}");
    }

    #[test]
    fn as_many_as_an_even_share_may_start_in_a_slot() {
        let mut schedule = Schedule::new(2, 5);
        for (even, limit) in [(1, 2), (2, 2), (3, 3), (5, 5), (6, 5)] {
            schedule.set_even_share(even);
            for key in 0..20 {
                schedule.queue_in_slot(key, EXEC, TimeSlot(0));
            }
            schedule.started = (TimeSlot(0), 0);
            assert_eq!(schedule.take_due(TimeSlot(0)).len(), limit, "{even}");
        }
    }
}

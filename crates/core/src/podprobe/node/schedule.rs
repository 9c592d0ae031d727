//! Due times on a grid of slots that all probes of a node share: waking up costs more than probing.
//!
//! Commands weigh on the container runtime, so their starts are spread: at most so many in one slot, the surplus starts
//! in the next; and until all slots have about as many, a due time moves later by one slot a period. Everything else
//! runs in whatever slot it is due; there, together is cheap.
//!
//! Who moves is who comes less often: a command gives way to those whose period its own is a multiple of, since it
//! meets them each time. To others it need not: they meet now and then, and the limit bounds that. So those of the
//! shortest period come to rest first, as if they were alone, then the next; there is room for all, and no row of
//! evasions without end.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

/// The length of a slot.
pub const SLOT: Duration = Duration::from_millis(100);

/// A slot, by its distance from the agent's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slot(u64);

impl Slot {
    /// The slot that `at` lies in.
    pub(super) fn of(at: Duration) -> Self {
        Self(u64::try_from(at.as_millis() / SLOT.as_millis()).unwrap_or(u64::MAX))
    }

    /// The first slot that does not begin before `at`.
    pub(super) fn from(at: Duration) -> Self {
        let slot = Self::of(at);
        if slot.start() < at {
            slot.plus(1)
        } else {
            slot
        }
    }

    /// When it begins.
    pub(super) fn start(self) -> Duration {
        let millis = u64::try_from(SLOT.as_millis()).expect("a slot is short");
        Duration::from_millis(self.0.saturating_mul(millis))
    }

    pub(super) fn plus(self, slots: u64) -> Self {
        Self(self.0.saturating_add(slots))
    }

    /// The slots from `earlier` to here; 0 when it is not earlier.
    pub(super) fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How a run weighs on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// A connection of our own.
    Light,
    /// A command that the container runtime starts.
    Exec {
        /// Its period in slots, at least one.
        every: u64,
    },
}

impl Weight {
    /// That of a command with this period.
    pub(super) fn exec(period: Duration) -> Self {
        Self::Exec {
            every: Slot::of(period).0.max(1),
        }
    }

    /// Whether it is a command.
    pub(super) fn is_exec(self) -> bool {
        matches!(self, Self::Exec { .. })
    }
}

/// The place of one key: its slot, and who came first within it.
type Place = (Slot, u64);

/// The one queue. A key is in it at most once.
#[derive(Debug)]
pub(super) struct Schedule<K> {
    queue: BTreeMap<Place, (K, Weight)>,
    places: HashMap<K, Place>,
    /// Execs due by slot.
    execs: BTreeMap<Slot, u32>,
    /// The slot in which each exec was last due, or is, and its period in slots; also of one that was taken out by
    /// [`Schedule::due`], and is about to come again.
    comes: HashMap<K, (Slot, u64)>,
    /// Execs that may start in one slot, unless there are so many that an even share is more.
    usual: u32,
    /// Execs that may start in one slot, however many there are.
    most: u32,
    /// Execs that are due in one slot when they are spread evenly.
    even: u32,
    /// The newest slot that execs started in, and how many.
    started: (Slot, u32),
    arrivals: u64,
}

impl<K: Clone + Eq + Hash> Schedule<K> {
    /// An empty queue; `usual` is how many execs may start in one slot, at least one, and `most` how many when an even
    /// share of all is more than that.
    pub(super) fn new(usual: u32, most: u32) -> Self {
        let usual = usual.max(1);
        Self {
            queue: BTreeMap::new(),
            places: HashMap::new(),
            execs: BTreeMap::new(),
            comes: HashMap::new(),
            usual,
            most: most.max(usual),
            even: 1,
            started: (Slot(0), 0),
            arrivals: 0,
        }
    }

    /// Says how many execs a slot has when all are spread evenly, rounded up.
    pub(super) fn set_even(&mut self, even: u32) {
        self.even = even.clamp(1, self.most);
    }

    /// Execs that may start in one slot.
    fn limit(&self) -> u32 {
        self.usual.max(self.even)
    }

    /// A first run: in the first slot with room, `earliest` or later.
    pub(super) fn first(&mut self, key: K, weight: Weight, earliest: Slot) {
        let mut slot = earliest;
        if weight.is_exec() {
            while self.execs_in(slot) >= self.limit() {
                slot = slot.plus(1);
            }
        }
        self.put(key, weight, slot);
    }

    /// A further run: in its slot, or in the next one as long as the execs are not spread evenly.
    pub(super) fn further(&mut self, key: K, weight: Weight, due: Slot) {
        let crowded = match weight {
            Weight::Light => false,
            Weight::Exec { every } => self.met_in(due, every, &key) >= self.even,
        };
        self.put(key, weight, due.plus(u64::from(crowded)));
    }

    /// A run in this very slot.
    pub(super) fn exactly(&mut self, key: K, weight: Weight, slot: Slot) {
        self.put(key, weight, slot);
    }

    /// The slot of a key.
    pub(super) fn slot_of(&self, key: &K) -> Option<Slot> {
        self.places.get(key).map(|place| place.0)
    }

    /// Takes a key out, also one that [`Schedule::due`] took and that does not come again.
    pub(super) fn cancel(&mut self, key: &K) {
        self.comes.remove(key);
        self.leave(key);
    }

    /// The slot of the earliest key.
    pub(super) fn next(&self) -> Option<Slot> {
        self.queue.keys().next().map(|place| place.0)
    }

    /// Takes out what is due by `now`, each with the slot in which it was due. Execs beyond the limit wait for the slot
    /// after `now`; that they started late changes nothing about when they are due again.
    pub(super) fn due(&mut self, now: Slot) -> Vec<(K, Slot)> {
        if self.started.0 != now {
            self.started = (now, 0);
        }
        let mut due = Vec::new();
        while let Some(place) = self.queue.keys().next().copied()
            && place.0 <= now
        {
            let Some((key, weight)) = self.take(place) else {
                break;
            };
            if weight.is_exec() && self.started.1 >= self.limit() {
                // Its arrival stays, so it comes before those that are due there anyway.
                self.put_at(key, weight, (now.plus(1), place.1));
                continue;
            }
            self.started.1 += u32::from(weight.is_exec());
            self.places.remove(&key);
            let comes = weight.is_exec().then(|| self.comes.get(&key)).flatten();
            let slot = comes.map_or(place.0, |comes| comes.0);
            due.push((key, slot));
        }
        due
    }

    fn execs_in(&self, slot: Slot) -> u32 {
        let started = if self.started.0 == slot {
            self.started.1
        } else {
            0
        };
        self.execs.get(&slot).copied().unwrap_or(0) + started
    }

    /// How many others an exec with this period will meet in that slot, and again each time it comes.
    fn met_in(&self, due: Slot, every: u64, own: &K) -> u32 {
        let meets = |(key, (slot, other)): &(&K, &(Slot, u64))| {
            every.is_multiple_of(*other)
                && *slot <= due
                && due.since(*slot).is_multiple_of(*other)
                && *key != own
        };
        let met = self.comes.iter().filter(meets).count();
        u32::try_from(met).unwrap_or(u32::MAX)
    }

    fn leave(&mut self, key: &K) {
        if let Some(place) = self.places.remove(key) {
            self.take(place);
        }
    }

    fn put(&mut self, key: K, weight: Weight, slot: Slot) {
        self.leave(&key);
        self.arrivals += 1;
        if let Weight::Exec { every } = weight {
            self.comes.insert(key.clone(), (slot, every));
        }
        self.put_at(key, weight, (slot, self.arrivals));
    }

    fn put_at(&mut self, key: K, weight: Weight, place: Place) {
        if weight.is_exec() {
            *self.execs.entry(place.0).or_default() += 1;
        }
        self.places.insert(key.clone(), place);
        self.queue.insert(place, (key, weight));
    }

    fn take(&mut self, place: Place) -> Option<(K, Weight)> {
        let (key, weight) = self.queue.remove(&place)?;
        if weight.is_exec()
            && let Some(count) = self.execs.get_mut(&place.0)
        {
            *count -= 1;
            if *count == 0 {
                self.execs.remove(&place.0);
            }
        }
        Some((key, weight))
    }
}

/// The slot of the next run after one that was due at `due` and has ended at `now`, and, when that run makes up for due
/// times that passed meanwhile, the last of these.
pub(super) fn following(due: Slot, period: Duration, now: Duration) -> (Slot, Option<Slot>) {
    let period = Slot::of(period).0.max(1);
    let after = Slot::from(now);
    let next = due.plus(period);
    if next >= after {
        return (next, None);
    }
    let missed = due.plus(after.since(due) / period * period);
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
            assert_eq!(Slot::of(millis(at)), Slot(of), "{at}");
            assert_eq!(Slot::from(millis(at)), Slot(from), "{at}");
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
            let expected = (Slot(slot), made_up.map(Slot));
            assert_eq!(following(Slot(10), SECOND, millis(end)), expected, "{end}");
        }
    }

    // PRB-5
    #[test]
    fn light_runs_share_a_slot_and_execs_take_the_next_with_room() {
        let mut schedule = Schedule::new(2, 2);
        for key in 0..5 {
            schedule.first(key, EXEC, Slot(3));
            schedule.first(key + 10, Weight::Light, Slot(3));
        }
        let slots = |keys: std::ops::Range<i32>| -> Vec<u64> {
            keys.map(|key| schedule.slot_of(&key).unwrap().0).collect()
        };
        assert_eq!(slots(0..5), [3, 3, 4, 4, 5]);
        assert_eq!(slots(10..15), [3; 5]);
    }

    #[test]
    fn surplus_execs_come_first_in_the_next_slot_and_keep_their_due_time() {
        let mut schedule = Schedule::new(1, 1);
        for key in ["a", "b", "c"] {
            schedule.exactly(key, EXEC, Slot(1));
        }
        schedule.exactly("d", EXEC, Slot(2));
        schedule.exactly("light", Weight::Light, Slot(2));
        let at = |schedule: &mut Schedule<_>, slot| schedule.due(Slot(slot));
        assert_eq!(at(&mut schedule, 1), [("a", Slot(1))]);
        assert_eq!(at(&mut schedule, 1), [], "again in the same slot");
        assert_eq!(at(&mut schedule, 2), [("b", Slot(1)), ("light", Slot(2))]);
        assert_eq!(at(&mut schedule, 3), [("c", Slot(1))]);
        assert_eq!(at(&mut schedule, 4), [("d", Slot(2))]);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_wake_up_that_comes_late_does_not_start_them_all() {
        let mut schedule = Schedule::new(2, 2);
        for key in 0..20_u64 {
            schedule.exactly(key, EXEC, Slot(key / 2));
        }
        assert_eq!(schedule.due(Slot(9)).len(), 2);
        assert_eq!(schedule.due(Slot(10)).len(), 2);
    }

    #[test]
    fn cancelled_is_gone_and_put_again_is_there_once() {
        let mut schedule = Schedule::new(1, 1);
        schedule.exactly("a", EXEC, Slot(1));
        schedule.exactly("a", EXEC, Slot(4));
        schedule.exactly("b", EXEC, Slot(2));
        schedule.cancel(&"b");
        assert_eq!(schedule.due(Slot(3)), []);
        assert_eq!(schedule.due(Slot(4)), [("a", Slot(4))]);
    }

    /// Execs of these periods, all first due at once, over so many seconds: by how many slots each run came later than
    /// one period after the last, and how many began in each slot of the last hundred.
    fn settled(periods: &[u64], limit: u32, even: u32, seconds: u64) -> (Vec<u64>, Vec<usize>) {
        let mut schedule = Schedule::new(limit, 2 * limit);
        schedule.set_even(even);
        let weight = |key: usize| Weight::exec(SECOND * u32::try_from(periods[key]).unwrap());
        let (mut lates, mut begun) = (vec![0; periods.len()], Vec::new());
        for key in 0..periods.len() {
            schedule.first(key, weight(key), Slot(1));
        }
        for now in 1..seconds * 10 {
            let due = schedule.due(Slot(now));
            begun.push(due.len());
            for (key, slot) in due {
                let due = slot.plus(periods[key] * 10);
                schedule.further(key, weight(key), due);
                lates[key] = schedule.slot_of(&key).unwrap().since(due);
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
            schedule.set_even(even);
            for key in 0..20 {
                schedule.exactly(key, EXEC, Slot(0));
            }
            schedule.started = (Slot(0), 0);
            assert_eq!(schedule.due(Slot(0)).len(), limit, "{even}");
        }
    }
}

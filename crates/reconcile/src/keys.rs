//! The keys that have to run: by namespace in turn, and each at the pace that its cost allows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::feature::Key;
use crate::round_robin::{RoundRobin, TurnQueue};
use crate::timers::Timers;

/// A key runs again after so many times as long as its run took, so that no object takes more than a hundredth of the thread.
///
/// It does after a part of that if several writes are due after the run: an answer makes the key dirty, and what a dirty key has
/// planned is not sent before its next run, so a large object would send what fits into the requests in flight once a rest.
const REST: u32 = 100;
/// The least of it: no object takes more than a half of the thread, whatever it has to write, but for runs beyond [`LONGEST`].
const LEAST: u32 = 2;
/// More writes than these make no rest shorter.
pub(crate) const MOST_DUE: usize = (REST / LEAST) as usize;
/// The longest rest.
const LONGEST: Duration = Duration::from_millis(200);
/// A rest that is shorter is not worth a timer.
const SHORTEST: Duration = Duration::from_millis(5);

/// The keys that have to run.
#[derive(Debug)]
pub(crate) struct KeyQueue<K> {
    ready: RoundRobin<BTreeSet<K>>,
    /// The keys that rest, and whether they have to run afterwards.
    resting: BTreeMap<K, bool>,
    rests: Timers<K>,
}

impl<K> Default for KeyQueue<K> {
    fn default() -> Self {
        Self {
            ready: RoundRobin::default(),
            resting: BTreeMap::new(),
            rests: Timers::default(),
        }
    }
}

impl<K: Key> KeyQueue<K> {
    /// Has a key run: as soon as its namespace has its turn, but not before its rest is over.
    pub(crate) fn mark(&mut self, key: K) {
        if let Some(has_to_run) = self.resting.get_mut(&key) {
            *has_to_run = true;
            return;
        }
        let queue = self.ready.queue_of(key.namespace());
        queue.insert(key);
    }

    /// Whether a key has to run, now or after its rest.
    pub(crate) fn is_marked(&self, key: &K) -> bool {
        let rests = self.resting.get(key).copied().unwrap_or_default();
        rests
            || self
                .ready
                .get(key.namespace())
                .is_some_and(|keys| keys.contains(key))
    }

    /// The next key to run.
    pub(crate) fn take_next(&mut self, now: Duration) -> Option<K> {
        while let Some(key) = self.rests.pop_due(now) {
            if self.resting.remove(&key) == Some(true) {
                self.mark(key);
            }
        }
        self.ready.take_next(|_, keys| keys.pop_first())
    }

    /// Lets a key rest after a run that took so long, and after which so many writes are due.
    pub(crate) fn rest(&mut self, key: &K, took: Duration, due: usize, now: Duration) {
        if let Some(rest) = rest_after(took, due) {
            self.resting.insert(key.clone(), false);
            self.rests.set(now.saturating_add(rest), key.clone());
        }
    }

    /// When [`KeyQueue::take_next`] has something to do.
    pub(crate) fn deadline(&self, now: Duration) -> Option<Duration> {
        if self.ready.is_empty() {
            self.rests.deadline()
        } else {
            Some(now)
        }
    }

    /// Forgets all keys.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// How long a key rests, if it does.
fn rest_after(took: Duration, due: usize) -> Option<Duration> {
    if took.saturating_mul(REST) < SHORTEST {
        return None;
    }
    let due = u32::try_from(due).unwrap_or(REST).max(1);
    let rest = took.saturating_mul((REST / due).max(LEAST));
    Some(rest.clamp(SHORTEST, LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_much_to_write_rests_less() {
        let rest = |micros: u64, due| rest_after(Duration::from_micros(micros), due);
        let millis = |millis| Some(Duration::from_millis(millis));
        assert_eq!(rest(49, 0), None);
        assert_eq!(rest(50, 0), millis(5));
        assert_eq!(rest(1_000, 0), millis(100));
        assert_eq!(rest(1_000, 1), millis(100));
        assert_eq!(rest(1_000, 10), millis(10));
        assert_eq!(rest(9_000, 1), millis(200));
        assert_eq!(rest(9_000, 60), millis(18));
        assert_eq!(rest(9_000, usize::MAX), millis(18));
        assert_eq!(rest(1_000, 60), millis(5));
        assert_eq!(rest(900_000, 60), millis(200));
    }
}

//! The keys that have to run: by namespace in turn, and each at the pace that its cost allows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::feature::Key;
use crate::round_robin::{RoundRobin, TurnQueue};
use crate::timers::Timers;

/// A key rests after a run for so many times as long as it took, so that no object takes more than a hundredth of the thread.
const REST: u32 = 100;
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

    /// Lets a key rest after a run that took so long.
    pub(crate) fn rest(&mut self, key: &K, took: Duration, now: Duration) {
        let rest = took.saturating_mul(REST).min(LONGEST);
        if rest >= SHORTEST {
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

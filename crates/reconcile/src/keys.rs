//! The keys that have to run: by namespace in turn, and each at the pace that its cost allows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::feature::Key;
use crate::round_robin::{RoundRobin, TurnQueue};
use crate::timers::Timers;

/// A key rests after a run for so many times as long as it took, so that no object takes more than a hundredth of the thread.
///
/// Each write that it has sent since pays for a few hundredths more ([`PAID`]). Answers make the key dirty, and a dirty key sends nothing: with
/// the whole rest a large object would send what fits into the requests in flight, and then nothing until the next run.
/// A run that comes when one request has ended sends one write, and rests nearly as long as one that sends none: pods of a broadcast to
/// 5,000 nodes take six times as long as bare requests.
const REST: u32 = 100;
/// The hundredths of the thread that a write pays for: those that fit into the requests in flight let its key have a third.
const PAID: u32 = 4;
/// The longest rest.
const LONGEST: Duration = Duration::from_millis(200);
/// A rest that is shorter is not worth a timer.
const SHORTEST: Duration = Duration::from_millis(5);

/// The keys that have to run.
#[derive(Debug)]
pub(crate) struct KeyQueue<K> {
    ready: RoundRobin<BTreeSet<K>>,
    /// The keys that rest.
    resting: BTreeMap<K, Rest>,
    rests: Timers<K>,
}

/// The rest of a key.
#[derive(Debug)]
struct Rest {
    /// Whether it has to run afterwards.
    has_to_run: bool,
    since: Duration,
    until: Option<Duration>,
    /// What the run before it took.
    took: Duration,
    /// The writes that were sent since.
    sent: u32,
}

impl Rest {
    fn length(took: Duration, sent: u32) -> Duration {
        let shares = sent.saturating_mul(PAID).saturating_add(1);
        let rest = took.saturating_mul(REST) / shares;
        rest.min(LONGEST)
    }
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
        if let Some(rest) = self.resting.get_mut(&key) {
            rest.has_to_run = true;
            return;
        }
        let queue = self.ready.queue_of(key.namespace());
        queue.insert(key);
    }

    /// Whether a key has to run, now or after its rest.
    pub(crate) fn is_marked(&self, key: &K) -> bool {
        let rest = self.resting.get(key);
        rest.is_some_and(|rest| rest.has_to_run)
            || self
                .ready
                .get(key.namespace())
                .is_some_and(|keys| keys.contains(key))
    }

    /// The next key to run.
    pub(crate) fn take_next(&mut self, now: Duration) -> Option<K> {
        while let Some(key) = self.rests.pop_due(now) {
            if self
                .resting
                .remove(&key)
                .is_some_and(|rest| rest.has_to_run)
            {
                self.mark(key);
            }
        }
        self.ready.take_next(|_, keys| keys.pop_first())
    }

    /// Lets a key rest after a run that took so long.
    pub(crate) fn rest(&mut self, key: &K, took: Duration, now: Duration) {
        let length = Rest::length(took, 0);
        if length >= SHORTEST {
            let until = now.saturating_add(length);
            let rest = Rest {
                has_to_run: false,
                since: now,
                until: Some(until),
                took,
                sent: 0,
            };
            self.resting.insert(key.clone(), rest);
            self.rests.set(until, key.clone());
        }
    }

    /// Shortens the rest of a key that sends a write.
    pub(crate) fn note_sent(&mut self, key: &K) {
        if let Some(rest) = self.resting.get_mut(key) {
            rest.sent = rest.sent.saturating_add(1);
            let length = Rest::length(rest.took, rest.sent);
            let until = Some(rest.since.saturating_add(length));
            self.rests.reset(&mut rest.until, until, || key.clone());
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

#[cfg(test)]
mod tests {
    use super::*;

    impl Key for &'static str {
        fn namespace(&self) -> &str {
            self
        }
    }

    #[test]
    fn a_key_rests_by_what_its_run_took_for_each_write() {
        let at = Duration::from_millis;
        for (took, sent, rests) in [
            (1, 0, 100),
            (1, 1, 20),
            (9, 0, 200),
            (9, 1, 180),
            (9, 11, 20),
            (90, 11, 200),
        ] {
            let mut keys = KeyQueue::default();
            keys.mark("a");
            assert_eq!(keys.take_next(at(0)), Some("a"));
            keys.rest(&"a", at(took), at(0));
            for _ in 0..sent {
                keys.note_sent(&"a");
            }
            keys.mark("a");
            assert!(keys.is_marked(&"a"));
            assert_eq!(keys.take_next(at(rests - 1)), None, "{took} {sent}");
            assert_eq!(keys.deadline(at(0)), Some(at(rests)));
            assert_eq!(keys.take_next(at(rests)), Some("a"), "{took} {sent}");
            assert_eq!(keys.deadline(at(rests)), None, "no timer is left");
        }
    }
}

//! How many events a pod may have: so that a probe that flips each second does not flood the API server's store.
//!
//! The bounds are those of Kubernetes' own components (`EventSourceObjectSpamFilter` in
//! `k8s.io/client-go/tools/record/events_cache.go`): a burst of 25 per source and object, and one more each 5 minutes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Events of one pod at once.
const BURST: u32 = 25;
/// From one event to the next, when the burst is used up.
const REFILL: Duration = Duration::from_mins(5);
/// Pods that are remembered (`maxLruCacheEntries`). With more, those that were quiet for the longest begin anew.
const REMEMBERED: usize = 4096;

/// What each pod has left.
#[derive(Debug, Default)]
pub(crate) struct SpamFilter {
    pods: HashMap<Arc<str>, Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Events that may be sent.
    left: u32,
    /// When the last whole event was added.
    filled: Instant,
}

impl SpamFilter {
    /// Whether the pod of this uid may have one more event; then it has one less.
    pub(crate) fn take(&mut self, pod_uid: &Arc<str>, now: Instant) -> bool {
        if !self.pods.contains_key(pod_uid) && self.pods.len() >= REMEMBERED {
            self.forget_quietest(now);
        }
        let full = Bucket {
            left: BURST,
            filled: now,
        };
        let bucket = self.pods.entry(pod_uid.clone()).or_insert(full);
        bucket.fill(now);
        let allowed = bucket.left > 0;
        bucket.left = bucket.left.saturating_sub(1);
        allowed
    }

    /// All that are full again, or the one that is the nearest to it.
    fn forget_quietest(&mut self, now: Instant) {
        self.pods.retain(|_, bucket| {
            bucket.fill(now);
            bucket.left < BURST
        });
        if self.pods.len() >= REMEMBERED {
            let quietest = self.pods.iter().max_by_key(|(_, bucket)| bucket.left);
            let quietest = quietest.map(|(uid, _)| uid.clone());
            quietest.map(|uid| self.pods.remove(&uid));
        }
    }
}

impl Bucket {
    fn fill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.filled);
        let more = since.as_secs() / REFILL.as_secs();
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(more).min(BURST);
        self.filled = if self.left == BURST {
            now
        } else {
            self.filled + REFILL * more
        };
    }
}

#[cfg(test)]
mod tests {
    use leadsman_process::clock;

    use super::*;

    fn taken(filter: &mut SpamFilter, pod: &str, now: Instant) -> usize {
        let uid = pod.into();
        (0..100).filter(|_| filter.take(&uid, now)).count()
    }

    // PPM-14, DEF-11
    #[test]
    fn a_pod_has_25_events_and_then_one_in_five_minutes() {
        let mut filter = SpamFilter::default();
        let start = clock::monotonic();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(taken(&mut filter, "a", at(0)), 25);
        assert_eq!(taken(&mut filter, "b", at(0)), 25, "each pod has its own");
        for (seconds, more) in [(299, 0), (300, 1), (599, 0), (600, 1), (1_500, 3)] {
            assert_eq!(taken(&mut filter, "a", at(seconds)), more, "{seconds}");
        }
        assert_eq!(taken(&mut filter, "a", at(1_000_000)), 25);
    }

    #[test]
    fn pods_that_are_remembered_are_bounded_and_a_loud_one_stays() {
        let mut filter = SpamFilter::default();
        let now = clock::monotonic();
        assert_eq!(taken(&mut filter, "loud", now), 25);
        for number in 0..2 * REMEMBERED {
            assert!(filter.take(&number.to_string().into(), now));
            assert!(filter.pods.len() <= REMEMBERED);
        }
        assert_eq!(taken(&mut filter, "loud", now), 0);
    }
}

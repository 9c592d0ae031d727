//! A limit of events for each pod, so that a probe whose verdict changes every second does not fill etcd.
//!
//! The limits are those of Kubernetes' own components (`EventSourceObjectSpamFilter` in
//! `k8s.io/client-go/tools/record/events_cache.go`): a burst of 25 events, then one each 5 minutes. As in `getSpamKey`
//! there, a pod is known by namespace, name and uid: by the uid alone, the author of a static pod could spend the
//! events of another pod. Normal events and warnings share a pod's limit.

use std::collections::HashMap;
use std::time::Duration;

use leadsman_core::podprobe::node::PodIdentity;
use tokio::time::Instant;

/// Events of one pod at once (`defaultSpamBurst`).
const BURST: u32 = 25;
/// The time from one event to the next, when the burst is used up (`defaultSpamQPS`, 1 in 300 s).
const REFILL: Duration = Duration::from_mins(5);
/// Pods that are remembered (`maxLruCacheEntries`). With more, those that have most events left are forgotten first.
const MAX_PODS: usize = 4096;

/// The events that each pod may still have.
#[derive(Debug, Default)]
pub(crate) struct EventSpamFilter {
    pods: HashMap<PodIdentity, TokenBucket>,
}

#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    /// Events that may be sent.
    left: u32,
    /// The time at which the last event was added.
    filled_at: Instant,
}

impl EventSpamFilter {
    /// Takes one event of the pod, if it has any left.
    pub(crate) fn take_token(&mut self, pod: &PodIdentity, now: Instant) -> bool {
        if !self.pods.contains_key(pod) && self.pods.len() >= MAX_PODS {
            self.forget_quietest(now);
        }
        let full = TokenBucket {
            left: BURST,
            filled_at: now,
        };
        let bucket = self.pods.entry(pod.clone()).or_insert(full);
        bucket.refill_bucket(now);
        let allowed = bucket.left > 0;
        bucket.left = bucket.left.saturating_sub(1);
        allowed
    }

    /// Forgets all pods whose bucket is full again, or else the one whose bucket is the fullest.
    fn forget_quietest(&mut self, now: Instant) {
        // A pod without a bucket has a full one, so nothing is lost with these.
        self.pods.retain(|_, bucket| {
            bucket.refill_bucket(now);
            bucket.left < BURST
        });
        if self.pods.len() >= MAX_PODS {
            // The quietest pod loses least: one that is forgotten begins with a full bucket again.
            let pods = self.pods.iter();
            // The name decides among equals, since the map is hashed.
            let quietest = pods
                .max_by_key(|(pod, bucket)| (bucket.left, *pod))
                .map(|(pod, _)| pod.clone());
            quietest.map(|pod| self.pods.remove(&pod));
        }
    }
}

impl TokenBucket {
    fn refill_bucket(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.filled_at);
        let refills = since.as_secs() / REFILL.as_secs();
        let more = u32::try_from(refills).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(more).min(BURST);
        self.filled_at = if self.left == BURST {
            now
        } else {
            self.filled_at + REFILL * more
        };
    }
}

#[cfg(test)]
mod tests {
    use leadsman_process::clock;

    use super::*;

    fn pod(name: &str) -> PodIdentity {
        PodIdentity {
            namespace: "ns".into(),
            name: name.into(),
            uid: "uid".into(),
        }
    }

    /// How many events in a row the pod gets.
    fn taken(filter: &mut EventSpamFilter, name: &str, now: Instant) -> usize {
        let pod = pod(name);
        (0..100).filter(|_| filter.take_token(&pod, now)).count()
    }

    // PPM-14, DEF-11
    #[test]
    fn a_pod_has_25_events_and_then_one_in_five_minutes() {
        let mut filter = EventSpamFilter::default();
        let start = clock::monotonic();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(taken(&mut filter, "a", at(0)), 25);
        assert_eq!(
            taken(&mut filter, "b", at(0)),
            25,
            "each pod has its own, whatever its uid"
        );
        for (seconds, more) in [(299, 0), (300, 1), (599, 0), (600, 1), (1_500, 3)] {
            assert_eq!(taken(&mut filter, "a", at(seconds)), more, "{seconds}");
        }
        assert_eq!(taken(&mut filter, "a", at(1_000_000)), 25);
    }

    #[test]
    fn pods_that_are_remembered_are_bounded_and_a_loud_one_stays() {
        let mut filter = EventSpamFilter::default();
        let now = clock::monotonic();
        assert_eq!(taken(&mut filter, "loud", now), 25);
        for number in 0..2 * MAX_PODS {
            assert!(filter.take_token(&pod(&number.to_string()), now));
            assert!(filter.pods.len() <= MAX_PODS);
        }
        assert_eq!(taken(&mut filter, "loud", now), 0);
    }
}

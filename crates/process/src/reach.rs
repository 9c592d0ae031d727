//! Reachability of the API server, from the outcomes of all requests of a process.
//!
//! Each request records its outcome. The first reply after an outage, whichever request it answers, wakes each watch:
//! from its back-off, or from waiting on a dead connection.

use std::sync::Arc;

use crate::watch;
use tokio::time::Instant;

use crate::reply::{Disposition, RetryCause};

/// The record of the outcomes of all requests. Clones share it.
#[derive(Clone, Debug)]
pub struct Reachability {
    state: Arc<watch::Sender<ReachState>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReachState {
    /// The time of the last reply.
    last_reply: Option<Instant>,
    /// The last loss of the outage, if there is one.
    lost: Option<Instant>,
    /// The number of outages that are over, and the last loss of the last one.
    recoveries: u64,
    lost_before: Option<Instant>,
}

/// Waits for the ends of outages.
#[derive(Debug)]
pub struct RecoveryListener {
    state: watch::Receiver<ReachState>,
    /// The recoveries that were returned or skipped.
    seen: u64,
}

impl Default for Reachability {
    fn default() -> Self {
        Self {
            state: Arc::new(watch::Sender::new(ReachState::default())),
        }
    }
}

impl Reachability {
    /// Records the outcome of a request that began at `began`. A failure is no outage if another request was answered
    /// meanwhile: a slow webhook delays a single request.
    pub fn record_outcome(&self, disposition: &Disposition, began: Instant, now: Instant) {
        match disposition {
            Disposition::Retry {
                cause: RetryCause::NoAnswer | RetryCause::NotSent,
                ..
            } => self.record_loss(began, now),
            // An API server that starts, or whose etcd is unavailable, replies like this too.
            Disposition::Retry {
                cause: RetryCause::Throttled | RetryCause::Unavailable | RetryCause::InternalError,
                ..
            } => {}
            _ => self.record_reply(now),
        }
    }

    fn record_loss(&self, began: Instant, now: Instant) {
        self.state.send_if_modified(|state| {
            if state.last_reply.is_none_or(|replied| replied <= began) {
                // The last loss counts: connections on which nothing came since then may be dead. An earlier one may be long ago,
                // where no request was sent since and watches have shown events.
                state.lost = state.lost.max(Some(now));
            }
            // No listener waits for a loss.
            false
        });
    }

    fn record_reply(&self, now: Instant) {
        self.state.send_if_modified(|state| {
            state.last_reply = state.last_reply.max(Some(now));
            let Some(lost) = state.lost.take() else {
                return false;
            };
            state.recoveries += 1;
            state.lost_before = Some(lost);
            true
        });
    }

    /// A listener for recoveries from now on.
    pub fn subscribe(&self) -> RecoveryListener {
        let state = self.state.subscribe();
        let seen = state.borrow().recoveries;
        RecoveryListener { state, seen }
    }
}

impl RecoveryListener {
    /// Waits for the next recovery; returns when its outage was last noticed.
    pub async fn wait_for_recovery(&mut self) -> Instant {
        let seen = self.seen;
        let recovered = self.state.wait_for(|state| state.recoveries > seen).await;
        let state = recovered.ok().map(|state| *state);
        let Some((state, lost)) = state.and_then(|state| Some((state, state.lost_before?))) else {
            // The record is gone, and with it everything that could send a request.
            return std::future::pending().await;
        };
        self.seen = state.recoveries;
        lost
    }

    /// Skips the recoveries up to now: a request that begins now begins after them.
    pub fn skip_past(&mut self) {
        self.seen = self.state.borrow().recoveries;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;
    use crate::clock;
    use crate::reply::timed_out;

    fn retry(cause: RetryCause) -> Disposition {
        Disposition::Retry {
            cause,
            after: None,
            reason: String::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_reply_after_an_outage_is_a_recovery() {
        let reach = Reachability::default();
        let mut listener = reach.subscribe();
        let recovered =
            |listener: &mut RecoveryListener| listener.wait_for_recovery().now_or_never();
        let record = |disposition: &Disposition| {
            let now = clock::monotonic();
            reach.record_outcome(disposition, now, now);
        };
        record(&Disposition::Done);
        assert_eq!(recovered(&mut listener), None, "nothing was lost");
        record(&timed_out(Duration::from_secs(1)));
        // A process that only watches asks for nothing for a long time, and its watches go on.
        tokio::time::advance(Duration::from_hours(1)).await;
        let lost = clock::monotonic();
        record(&retry(RetryCause::NoAnswer));
        for starting in [
            RetryCause::Throttled,
            RetryCause::Unavailable,
            RetryCause::InternalError,
        ] {
            record(&retry(starting));
        }
        assert_eq!(recovered(&mut listener), None, "the outage goes on");
        record(&retry(RetryCause::NoRight));
        assert_eq!(recovered(&mut listener), Some(lost));
        assert_eq!(recovered(&mut listener), None, "each is returned once");
        record(&retry(RetryCause::NoAnswer));
        record(&Disposition::Done);
        listener.skip_past();
        assert_eq!(
            recovered(&mut listener),
            None,
            "a skipped recovery is not returned"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_reply_is_no_outage_while_other_requests_are_answered() {
        let reach = Reachability::default();
        let mut listener = reach.subscribe();
        let second = async || tokio::time::advance(Duration::from_secs(1)).await;
        let slow = clock::monotonic();
        second().await;
        let now = clock::monotonic();
        reach.record_outcome(&Disposition::Done, now, now);
        second().await;
        reach.record_outcome(&timed_out(Duration::from_secs(2)), slow, clock::monotonic());
        reach.record_outcome(&Disposition::Done, now, clock::monotonic());
        assert_eq!(listener.wait_for_recovery().now_or_never(), None);
        // This request begins after the last reply, and gets none.
        second().await;
        let lost = clock::monotonic();
        reach.record_outcome(&timed_out(Duration::ZERO), lost, lost);
        reach.record_outcome(&Disposition::Done, lost, lost);
        assert_eq!(listener.wait_for_recovery().now_or_never(), Some(lost));
    }
}

//! Whether the API server can be reached, as all requests of a process together have seen it.
//!
//! Each request records its outcome, and each watch is woken by the first success after an outage, whoever had it: out of
//! its back-off, or off a connection that died unnoticed.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::reply::{Cause, Disposition};

/// Outcomes of all requests of a process. Clones share them.
#[derive(Clone, Debug)]
pub struct Reachability {
    state: Arc<watch::Sender<ReachState>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReachState {
    /// When a reply came last.
    last_reply: Option<Instant>,
    /// When the outage began, if there is one.
    lost: Option<Instant>,
    /// How many outages are over, and when the last one of them began.
    recoveries: u64,
    lost_before: Option<Instant>,
}

/// Waits for the ends of outages.
#[derive(Debug)]
pub struct RecoveryListener {
    state: watch::Receiver<ReachState>,
    /// How many recoveries were seen.
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
    /// Records the outcome of a request that began then. One that fails while another is answered is no outage: a slow
    /// webhook makes a single request late.
    pub fn record(&self, disposition: &Disposition, began: Instant, now: Instant) {
        match disposition {
            Disposition::Retry {
                cause: Cause::NoAnswer,
                ..
            } => self.record_loss(began, now),
            // An API server that starts, or whose etcd is unavailable, replies like this too.
            Disposition::Retry {
                cause: Cause::Throttled | Cause::Unavailable | Cause::InternalError,
                ..
            } => {}
            _ => self.record_reply(now),
        }
    }

    fn record_loss(&self, began: Instant, now: Instant) {
        self.state.send_if_modified(|state| {
            if state.last_reply.is_none_or(|replied| replied <= began) {
                state.lost.get_or_insert(now);
            }
            // Nobody waits for this.
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
    /// Waits for a recovery that was not seen yet; returns when its outage began.
    pub async fn recovered(&mut self) -> Instant {
        let seen = self.seen;
        let recovered = self.state.wait_for(|state| state.recoveries > seen).await;
        let state = recovered.ok().map(|state| *state);
        let Some((state, lost)) = state.and_then(|state| Some((state, state.lost_before?))) else {
            // No request can be sent any more.
            return std::future::pending().await;
        };
        self.seen = state.recoveries;
        lost
    }

    /// Counts recoveries up to now as seen: a request that begins now begins after them.
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

    fn retry(cause: Cause) -> Disposition {
        Disposition::Retry {
            cause,
            after: None,
            reason: String::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_answer_after_a_loss_is_a_recovery_and_no_other() {
        let reach = Reachability::default();
        let mut listener = reach.subscribe();
        let recovered = |listener: &mut RecoveryListener| listener.recovered().now_or_never();
        let record = |disposition: &Disposition| {
            let now = clock::monotonic();
            reach.record(disposition, now, now);
        };
        record(&Disposition::Done);
        assert_eq!(recovered(&mut listener), None, "nothing was lost");
        let lost = clock::monotonic();
        record(&timed_out(Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(9)).await;
        record(&retry(Cause::NoAnswer));
        for starting in [Cause::Throttled, Cause::Unavailable, Cause::InternalError] {
            record(&retry(starting));
        }
        assert_eq!(recovered(&mut listener), None, "it is still away");
        record(&retry(Cause::NoRight));
        assert_eq!(recovered(&mut listener), Some(lost));
        assert_eq!(recovered(&mut listener), None, "each is seen once");
        record(&retry(Cause::NoAnswer));
        record(&Disposition::Done);
        listener.skip_past();
        assert_eq!(
            recovered(&mut listener),
            None,
            "what is begun now is begun after it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_request_is_no_outage_while_others_are_answered() {
        let reach = Reachability::default();
        let mut listener = reach.subscribe();
        let second = async || tokio::time::advance(Duration::from_secs(1)).await;
        let slow = clock::monotonic();
        second().await;
        let now = clock::monotonic();
        reach.record(&Disposition::Done, now, now);
        second().await;
        reach.record(&timed_out(Duration::from_secs(2)), slow, clock::monotonic());
        reach.record(&Disposition::Done, now, clock::monotonic());
        assert_eq!(listener.recovered().now_or_never(), None);
        // The next one begins after the last answer, and meets none.
        second().await;
        let lost = clock::monotonic();
        reach.record(&timed_out(Duration::ZERO), lost, lost);
        reach.record(&Disposition::Done, lost, lost);
        assert_eq!(listener.recovered().now_or_never(), Some(lost));
    }
}

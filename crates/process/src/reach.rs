//! Whether the API server can be reached, as all requests of a process together have seen it.
//!
//! Each request tells; each watch listens. So the first success after an outage, whoever had it, wakes all that wait for
//! their next attempt or hang on a connection that has died without a word.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::reply::{Cause, Disposition};

/// What all requests of a process have seen. Clones are the same.
#[derive(Clone, Debug)]
pub struct Reach {
    seen: Arc<watch::Sender<Seen>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// When an answer came last.
    answered: Option<Instant>,
    /// Since when nothing has been answered.
    lost: Option<Instant>,
    /// How often it has come back, and when it was lost before the last time.
    recoveries: u64,
    lost_before: Option<Instant>,
}

/// One who waits for the API server to come back.
#[derive(Debug)]
pub struct Listener {
    seen: watch::Receiver<Seen>,
    recoveries: u64,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            seen: Arc::new(watch::Sender::new(Seen::default())),
        }
    }
}

impl Reach {
    /// Takes in what came of a request that began then. One that fails while another is answered is no outage: a
    /// single slow webhook makes one request late.
    pub fn note(&self, disposition: &Disposition, began: Instant, now: Instant) {
        match disposition {
            Disposition::Retry {
                cause: Cause::NoAnswer,
                ..
            } => self.lost(began, now),
            // An API server that starts, or whose store is away, answers so too.
            Disposition::Retry {
                cause: Cause::Throttled | Cause::Unavailable | Cause::InternalError,
                ..
            } => {}
            _ => self.answered(now),
        }
    }

    fn lost(&self, began: Instant, now: Instant) {
        self.seen.send_if_modified(|seen| {
            if seen.answered.is_none_or(|answered| answered <= began) {
                seen.lost.get_or_insert(now);
            }
            // Nobody waits for this.
            false
        });
    }

    fn answered(&self, now: Instant) {
        self.seen.send_if_modified(|seen| {
            seen.answered = seen.answered.max(Some(now));
            let Some(lost) = seen.lost.take() else {
                return false;
            };
            seen.recoveries += 1;
            seen.lost_before = Some(lost);
            true
        });
    }

    /// One who hears of recoveries from now on.
    pub fn listen(&self) -> Listener {
        let seen = self.seen.subscribe();
        let recoveries = seen.borrow().recoveries;
        Listener { seen, recoveries }
    }
}

impl Listener {
    /// Waits until the API server has come back since this was last asked; since when it had been lost.
    pub async fn recovered(&mut self) -> Instant {
        let known = self.recoveries;
        let recovered = self.seen.wait_for(|seen| seen.recoveries > known).await;
        let seen = recovered.ok().map(|seen| *seen);
        let Some((seen, lost)) = seen.and_then(|seen| Some((seen, seen.lost_before?))) else {
            // No request can be sent any more.
            return std::future::pending().await;
        };
        self.recoveries = seen.recoveries;
        lost
    }

    /// Forgets recoveries up to now: what is begun now is begun after them.
    pub fn forget(&mut self) {
        self.recoveries = self.seen.borrow().recoveries;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;
    use crate::clock;
    use crate::reply::late;

    fn retry(cause: Cause) -> Disposition {
        Disposition::Retry {
            cause,
            after: None,
            reason: String::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_answer_after_a_loss_is_a_recovery_and_no_other() {
        let reach = Reach::default();
        let mut listener = reach.listen();
        let heard = |listener: &mut Listener| listener.recovered().now_or_never();
        let note = |disposition: &Disposition| {
            let now = clock::monotonic();
            reach.note(disposition, now, now);
        };
        note(&Disposition::Done);
        assert_eq!(heard(&mut listener), None, "nothing was lost");
        let lost = clock::monotonic();
        note(&late(Duration::from_secs(1)));
        tokio::time::advance(Duration::from_secs(9)).await;
        note(&retry(Cause::NoAnswer));
        for starting in [Cause::Throttled, Cause::Unavailable, Cause::InternalError] {
            note(&retry(starting));
        }
        assert_eq!(heard(&mut listener), None, "it is still away");
        note(&retry(Cause::NoRight));
        assert_eq!(heard(&mut listener), Some(lost));
        assert_eq!(heard(&mut listener), None, "told once");
        note(&retry(Cause::NoAnswer));
        note(&Disposition::Done);
        listener.forget();
        assert_eq!(
            heard(&mut listener),
            None,
            "what is begun now is begun after it"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_request_is_no_outage_while_others_are_answered() {
        let reach = Reach::default();
        let mut listener = reach.listen();
        let second = async || tokio::time::advance(Duration::from_secs(1)).await;
        let slow = clock::monotonic();
        second().await;
        let now = clock::monotonic();
        reach.note(&Disposition::Done, now, now);
        second().await;
        reach.note(&late(Duration::from_secs(2)), slow, clock::monotonic());
        reach.note(&Disposition::Done, now, clock::monotonic());
        assert_eq!(listener.recovered().now_or_never(), None);
        // The next one begins after the last answer, and meets none.
        second().await;
        let lost = clock::monotonic();
        reach.note(&late(Duration::ZERO), lost, lost);
        reach.note(&Disposition::Done, lost, lost);
        assert_eq!(listener.recovered().now_or_never(), Some(lost));
    }
}

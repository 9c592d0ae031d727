//! What the network and the API servers do to the requests of one process, and when it dies. Each fault ends by itself, or when
//! all are healed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

/// The faults of one process, over all its incarnations. Clones share them.
#[derive(Clone)]
pub(crate) struct Faults {
    start: Instant,
    state: Arc<Mutex<FaultState>>,
}

/// What is in force. Times are since the start of the simulation.
pub(crate) struct FaultState {
    rng: Rng,
    /// The current incarnation; requests of earlier ones are those of the dead.
    pub(crate) incarnation: u64,
    /// Whether the current incarnation has met its [`Crash`].
    pub(crate) is_dead: bool,
    /// How many versions the API server is behind that the process asks.
    pub(crate) lag: (u64, Duration),
    /// By how much events of a resource are late.
    pub(crate) late_events: BTreeMap<String, (Duration, Duration)>,
    /// Counted up to end all watches.
    pub(crate) watch_epoch: u64,
    /// No request is answered until then.
    pub(crate) silent_until: Duration,
    /// By how much requests are late.
    pub(crate) slow: (Duration, Duration),
    /// The status that requests are refused with, and the seconds of `Retry-After`.
    pub(crate) refusal: (u16, Option<u64>, Duration),
    /// How many replies are lost yet.
    pub(crate) lost_replies: usize,
    /// How many requests are lost yet.
    pub(crate) lost_requests: usize,
    /// The death to come.
    pub(crate) crash: Option<Crash>,
}

/// A process dies at a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crash {
    /// How many writes come before.
    pub(crate) writes: usize,
    /// Whether the write is carried out.
    pub(crate) is_done: bool,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFault {
    /// Nothing.
    Pass,
    /// It comes late.
    Late(Duration),
    /// Its reply does.
    LateReply(Duration),
    /// It is not carried out, and the connection breaks.
    RequestLost,
    /// It is carried out, and the connection breaks.
    ReplyLost,
    /// It is carried out, and never answered.
    ReplyHangs,
    /// It is neither carried out nor answered.
    Hangs,
    /// It is refused.
    Refused(u16, Option<u64>),
    /// It is carried out, and the process dies of it.
    DiesAfter,
    /// It is not carried out, since the process died before.
    DiesBefore,
}

impl Faults {
    /// None.
    pub(crate) fn new(rng: Rng) -> Self {
        let never = Duration::ZERO;
        let state = FaultState {
            rng,
            incarnation: 0,
            is_dead: false,
            lag: (0, never),
            late_events: BTreeMap::new(),
            watch_epoch: 0,
            silent_until: never,
            slow: (never, never),
            refusal: (0, None, never),
            lost_replies: 0,
            lost_requests: 0,
            crash: None,
        };
        let state = Arc::new(Mutex::new(state));
        Self {
            start: Instant::now(),
            state,
        }
    }

    /// The state, between two tasks' turns.
    pub(crate) fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Ends all faults. A process that died stays dead.
    pub(crate) fn heal(&self) {
        let healthy = Self::new(Rng::with_seed(0));
        let mut state = self.lock();
        let mut fresh = healthy.lock();
        let state = &mut *state;
        fresh.rng = state.rng.clone();
        fresh.incarnation = state.incarnation;
        fresh.is_dead = state.is_dead;
        fresh.watch_epoch = state.watch_epoch;
        std::mem::swap(state, &mut *fresh);
    }

    /// Begins the next incarnation, and returns its number.
    pub(crate) fn begin_incarnation(&self) -> u64 {
        let mut state = self.lock();
        state.incarnation += 1;
        state.is_dead = false;
        state.crash = None;
        state.incarnation
    }

    /// Whether an incarnation is still running.
    pub(crate) fn is_alive(&self, incarnation: u64) -> bool {
        let state = self.lock();
        state.incarnation == incarnation && !state.is_dead
    }

    /// Kills the current incarnation.
    pub(crate) fn kill(&self) {
        self.lock().is_dead = true;
    }

    /// What becomes of a request of this incarnation.
    pub(crate) fn judge(&self, incarnation: u64, is_write: bool, is_watch: bool) -> RequestFault {
        let now = self.elapsed();
        let mut state = self.lock();
        if state.incarnation != incarnation || state.is_dead || now < state.silent_until {
            return RequestFault::Hangs;
        }
        if is_write && let Some(crash) = &mut state.crash {
            if crash.writes == 0 {
                let is_done = crash.is_done;
                state.crash = None;
                state.is_dead = true;
                return if is_done {
                    RequestFault::DiesAfter
                } else {
                    RequestFault::DiesBefore
                };
            }
            crash.writes -= 1;
        }
        if state.lost_requests > 0 {
            state.lost_requests -= 1;
            return RequestFault::RequestLost;
        }
        if is_write && state.lost_replies > 0 {
            state.lost_replies -= 1;
            return if state.rng.bool() {
                RequestFault::ReplyLost
            } else {
                RequestFault::ReplyHangs
            };
        }
        let (status, after, until) = state.refusal;
        // A read meets no conflict.
        if now < until && (is_write || status != 409) && !is_watch && state.rng.u8(..) < 180 {
            return RequestFault::Refused(status, after);
        }
        let (by, until) = state.slow;
        if now < until {
            let by = by.mul_f64(state.rng.f64());
            return if state.rng.bool() {
                RequestFault::Late(by)
            } else {
                RequestFault::LateReply(by)
            };
        }
        RequestFault::Pass
    }

    /// How many versions the process is behind.
    pub(crate) fn lag(&self) -> u64 {
        let now = self.elapsed();
        let (versions, until) = self.lock().lag;
        if now < until { versions } else { 0 }
    }

    /// How late an event of a resource is; None if none comes at all.
    pub(crate) fn event_delay(&self, incarnation: u64, resource: &str) -> Option<Duration> {
        let now = self.elapsed();
        let state = self.lock();
        if state.incarnation != incarnation || state.is_dead {
            return None;
        }
        let late = state.late_events.get(resource);
        let by = late
            .filter(|(_, until)| now < *until)
            .map_or(Duration::ZERO, |(by, _)| *by);
        // What was sent during an outage arrives at its end, if the connection outlives it.
        Some(by.max(state.silent_until.saturating_sub(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_dies_at_the_write_that_was_chosen_and_asks_nothing_afterwards() {
        let faults = Faults::new(Rng::with_seed(1));
        let first = faults.begin_incarnation();
        faults.lock().crash = Some(Crash {
            writes: 1,
            is_done: true,
        });
        let judge = |incarnation, is_write| faults.judge(incarnation, is_write, false);
        assert_eq!(judge(first, true), RequestFault::Pass);
        assert_eq!(judge(first, false), RequestFault::Pass);
        assert_eq!(judge(first, true), RequestFault::DiesAfter);
        assert_eq!(judge(first, false), RequestFault::Hangs);
        let second = faults.begin_incarnation();
        assert_eq!(judge(first, false), RequestFault::Hangs);
        assert_eq!(judge(second, true), RequestFault::Pass);
    }

    #[tokio::test(start_paused = true)]
    async fn faults_end_with_their_time_and_when_all_are_healed() {
        let faults = Faults::new(Rng::with_seed(1));
        let only = faults.begin_incarnation();
        let judge = || faults.judge(only, true, false);
        faults.lock().silent_until = Duration::from_secs(1);
        assert_eq!(judge(), RequestFault::Hangs);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(judge(), RequestFault::Pass);
        faults.lock().lost_replies = 9;
        assert!(matches!(
            judge(),
            RequestFault::ReplyLost | RequestFault::ReplyHangs
        ));
        faults.heal();
        assert_eq!(judge(), RequestFault::Pass);
    }
}

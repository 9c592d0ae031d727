//! The faults of one process: what the network and the API servers do to its requests, and when it dies. Each fault ends by
//! itself, or when all are healed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use leadsman_api_model::{RequestFacts, RequestFate};
use tokio::time::Instant;

use crate::plan::{KINDS, WatchEnd};

/// The faults of one process, over all its incarnations. Clones share them.
#[derive(Clone)]
pub(crate) struct Faults {
    start: Instant,
    /// How long a request or an event takes at most, without any fault.
    pub(crate) latency: Duration,
    state: Arc<Mutex<FaultState>>,
}

/// The faults in force. Times are since the start of the simulation.
pub(crate) struct FaultState {
    rng: Rng,
    /// The current incarnation; requests of earlier ones are those of the dead.
    pub(crate) incarnation: u64,
    /// Whether the current incarnation has met its [`Crash`].
    pub(crate) is_dead: bool,
    /// How many versions the API server is behind that the process asks.
    pub(crate) lag: (u64, Duration),
    /// The delay of events by resource, and its end.
    pub(crate) late_events: BTreeMap<String, (Duration, Duration)>,
    /// How watches end at their next event.
    pub(crate) watch_ends: BTreeMap<String, WatchEnd>,
    /// No request is answered, and no event comes. Connections live on, and what was sent arrives at the end.
    pub(crate) silence: Lasting<()>,
    /// Likewise, and no watch of a time before its end shows anything, ever.
    pub(crate) outage: Lasting<()>,
    /// The longest delay of a request or its reply.
    pub(crate) slow: Lasting<Duration>,
    /// The status that requests are refused with, and the seconds of `Retry-After`.
    pub(crate) refusal: Lasting<(u16, Option<u64>)>,
    /// How many replies are lost yet.
    pub(crate) lost_replies: Lasting<usize>,
    /// How many requests are lost yet.
    pub(crate) lost_requests: Lasting<usize>,
    /// The death to come.
    pub(crate) crash: Option<Crash>,
    /// The time at which the last message arrives that an ended fault held back.
    held_until: Duration,
}

/// A fault that lasts for a time, for one resource or all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lasting<T> {
    pub(crate) what: T,
    pub(crate) only: Option<String>,
    pub(crate) until: Duration,
}

impl<T> Lasting<T> {
    fn find(&mut self, now: Duration, resource: &str) -> Option<&mut T> {
        let is_meant = self.only.as_ref().is_none_or(|only| only == resource);
        (now < self.until && is_meant).then_some(&mut self.what)
    }
}

impl Lasting<usize> {
    /// Counts one down.
    fn take_one(&mut self, resource: &str) -> bool {
        let left = self
            .find(Duration::ZERO, resource)
            .filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }
}

/// A process dies at a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crash {
    /// How many writes come before.
    pub(crate) writes: usize,
    /// Whether the write is carried out.
    pub(crate) is_done: bool,
}

/// The fault that a request meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFault {
    /// No fault.
    Pass,
    /// The request comes late.
    Late(Duration),
    /// The reply comes late.
    LateReply(Duration),
    /// The request is not carried out, and the connection breaks.
    RequestLost,
    /// The request is carried out, and the connection breaks.
    ReplyLost,
    /// The request is carried out, and never answered.
    ReplyHangs,
    /// The request is neither carried out nor answered.
    Hangs,
    /// The request is refused.
    Refused(u16, Option<u64>),
    /// The request is carried out, and the process dies of it.
    DiesAfter,
    /// The request is not carried out, since the process died before.
    DiesBefore,
}

impl Faults {
    /// No faults.
    pub(crate) fn new(rng: Rng, latency: Duration) -> Self {
        let calm = FaultState {
            rng,
            incarnation: 0,
            is_dead: false,
            lag: (0, Duration::ZERO),
            late_events: BTreeMap::new(),
            watch_ends: BTreeMap::new(),
            silence: Lasting::default(),
            outage: Lasting::default(),
            slow: Lasting::default(),
            refusal: Lasting::default(),
            lost_replies: Lasting::default(),
            lost_requests: Lasting::default(),
            crash: None,
            held_until: Duration::ZERO,
        };
        let state = Arc::new(Mutex::new(calm));
        Self {
            start: Instant::now(),
            latency,
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

    /// Ends all faults. A process that died stays dead. Returns when the last arrives of what they hold back.
    pub(crate) fn heal(&self) -> Duration {
        let healthy = Self::new(Rng::with_seed(0), self.latency);
        let now = self.elapsed();
        let mut state = self.lock();
        let mut fresh = healthy.lock();
        let state = &mut *state;
        fresh.rng = state.rng.clone();
        fresh.incarnation = state.incarnation;
        fresh.is_dead = state.is_dead;
        std::mem::swap(state, &mut *fresh);
        let slow = (fresh.slow.what, fresh.slow.until);
        let late = fresh.late_events.values().chain([&slow]);
        let arrivals = late.map(|(by, until)| now.min(*until) + *by);
        state.held_until = arrivals.fold(fresh.silence.until, Duration::max);
        state.held_until
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

    /// Decides which fault a request of this incarnation meets.
    pub(crate) fn judge(&self, incarnation: u64, request: &RequestFacts) -> RequestFault {
        let now = self.elapsed();
        let (is_write, resource) = (request.is_write(), &*request.resource);
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.incarnation != incarnation || state.is_dead {
            return RequestFault::Hangs;
        }
        let silence = state.silence.find(now, resource);
        if silence.or(state.outage.find(now, resource)).is_some() {
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
        if state.lost_requests.take_one(resource) {
            return RequestFault::RequestLost;
        }
        if is_write && state.lost_replies.take_one(resource) {
            return if state.rng.bool() {
                RequestFault::ReplyLost
            } else {
                RequestFault::ReplyHangs
            };
        }
        if let Some((status, after)) = state.refusal.find(now, resource).copied()
            // A read meets no conflict.
            && (is_write || status != 409)
            && request.verb != "watch"
            && state.rng.u8(..) < 180
        {
            return RequestFault::Refused(status, after);
        }
        if let Some(by) = state.slow.find(now, resource) {
            let by = by.mul_f64(state.rng.f64());
            return if state.rng.bool() {
                RequestFault::Late(by)
            } else {
                RequestFault::LateReply(by)
            };
        }
        RequestFault::Pass
    }

    /// Decides the fate of a request that meets no fault.
    pub(crate) fn take_time(&self) -> RequestFate {
        let mut state = self.lock();
        let by = self.latency.mul_f64(state.rng.f64());
        if by.is_zero() {
            RequestFate::Pass
        } else if state.rng.bool() {
            RequestFate::Delay(by)
        } else {
            RequestFate::DelayReply(by)
        }
    }

    /// How the watch of a resource ends now, if it does.
    pub(crate) fn take_watch_end(&self, resource: &str) -> Option<WatchEnd> {
        self.lock().watch_ends.remove(resource)
    }

    /// How many versions the process is behind.
    pub(crate) fn lag(&self) -> u64 {
        let now = self.elapsed();
        let (versions, until) = self.lock().lag;
        if now < until { versions } else { 0 }
    }

    /// The kinds whose events are late, or may be.
    pub(crate) fn late_kinds(&self) -> BTreeSet<String> {
        let now = self.elapsed();
        let state = self.lock();
        let is_late = |kind: &str| {
            let late = state.late_events.get(kind);
            let is_silent = state
                .silence
                .only
                .as_deref()
                .is_none_or(|only| only == kind);
            late.is_some_and(|(by, until)| now < *until + *by)
                || (is_silent && now < state.silence.until)
                || now < state.lag.1.max(state.held_until)
        };
        let late = KINDS.iter().filter(|kind| is_late(kind));
        late.map(|kind| (*kind).to_owned()).collect()
    }

    /// How late an event of a resource is; None if none comes at all, any more, by a watch of this age.
    pub(crate) fn event_delay(
        &self,
        incarnation: u64,
        resource: &str,
        began: Duration,
    ) -> Option<Duration> {
        let now = self.elapsed();
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.incarnation != incarnation || state.is_dead || began < state.outage.until {
            return None;
        }
        let usual = self.latency.mul_f64(state.rng.f64());
        let late = state.late_events.get(resource);
        let by = late
            .filter(|(_, until)| now < *until)
            .map_or(usual, |(by, _)| *by);
        let silence = state.silence.find(now, resource).is_some();
        let until = state.silence.until.saturating_sub(now);
        Some(if silence { by.max(until) } else { by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(resource: &str, is_write: bool) -> RequestFacts {
        RequestFacts {
            number: 0,
            user: String::new(),
            verb: if is_write { "patch" } else { "get" },
            patch: "",
            group: String::new(),
            resource: resource.to_owned(),
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
            body: Vec::<u8>::new().into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_dies_at_the_write_that_was_chosen_and_asks_nothing_afterwards() {
        let faults = Faults::new(Rng::with_seed(1), Duration::ZERO);
        let first = faults.begin_incarnation();
        faults.lock().crash = Some(Crash {
            writes: 1,
            is_done: true,
        });
        let judge = |incarnation, is_write| faults.judge(incarnation, &request("pods", is_write));
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
        let faults = Faults::new(Rng::with_seed(1), Duration::ZERO);
        let incarnation = faults.begin_incarnation();
        let judge = |resource| faults.judge(incarnation, &request(resource, true));
        faults.lock().silence = Lasting {
            what: (),
            only: Some("pods".to_owned()),
            until: Duration::from_secs(1),
        };
        assert_eq!(judge("pods"), RequestFault::Hangs);
        assert_eq!(judge("leases"), RequestFault::Pass);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(judge("pods"), RequestFault::Pass);
        faults.lock().lost_replies = Lasting {
            what: 9,
            only: None,
            until: Duration::MAX,
        };
        assert!(matches!(
            judge("pods"),
            RequestFault::ReplyLost | RequestFault::ReplyHangs
        ));
        faults.heal();
        assert_eq!(judge("pods"), RequestFault::Pass);
    }
}

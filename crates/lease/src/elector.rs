//! The decisions when to take, renew and release the Lease. A state machine without a clock, a client or a task.
//!
//! The guarantees of the crate's documentation are kept here: a term counts from the sending of a request, the wait for
//! another candidate's Lease from when its record was last seen to change, and each write carries the resourceVersion
//! that it is based on. At most one request is in flight.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use leadsman_process::Backoff;
use tokio::time::Instant;

use super::leadership::Leadership;
use super::record;
use super::watch::LeaseState;

/// The back-off of a request that may succeed soon.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
/// The back-off of a request that fails until somebody grants a right or creates the namespace.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(30));

/// The decisions of one candidate.
#[derive(Debug)]
pub(crate) struct Elector {
    name: String,
    identity: String,
    seconds: u16,
    goal: Goal,
    last_seen: LastSeen,
    tenure: Option<Tenure>,
    request: RequestState,
    refusals: u32,
    terms: u64,
    /// Whether another process may have written since the last term, or since the Lease was first read.
    others: bool,
    random: fastrand::Rng,
}

/// The goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// Take the Lease and keep it.
    Lead,
    /// Keep the Lease if it is held.
    Keep,
    /// Release the Lease.
    Release,
}

/// The Lease as it was last seen.
#[derive(Debug)]
enum LastSeen {
    /// The Lease has not been read yet.
    Unread,
    /// The Lease does not exist. Its holder at the deletion may lead until `free_at`.
    Absent { free_at: Option<Instant> },
    /// The Lease exists, and its record was last seen to change at `since`.
    Present { lease: Box<Lease>, since: Instant },
}

/// The current term.
#[derive(Clone, Copy, Debug)]
struct Tenure {
    term: u64,
    after_others: bool,
    renew_at: Instant,
    until: Instant,
}

/// The state of the one request.
#[derive(Clone, Copy, Debug)]
enum RequestState {
    /// No request is in flight.
    Idle,
    /// Another process wrote first: what was last seen is stale, so a GET is next.
    Conflicted,
    /// A request is in flight. `overtaken` if the watch has shown another state since it was sent.
    InFlight { sent: Instant, overtaken: bool },
    /// The last request failed.
    BackingOff { until: Instant },
}

/// The next action of the candidate.
#[derive(Debug)]
pub(crate) enum ElectorAction {
    /// Send this request, and pass its reply to [`Elector::on_reply`].
    Send(LeaseRequest),
    /// Nothing before this time, or before something is observed.
    Wait(Option<Instant>),
    /// Nothing more: the election is over.
    Finished,
}

/// A request on the Lease.
#[derive(Clone, Debug)]
pub(crate) enum LeaseRequest {
    /// GET.
    Get,
    /// POST.
    Create(Box<Lease>),
    /// PUT with the resourceVersion that was last seen.
    Replace(Box<Lease>),
}

/// The outcome of a request.
#[derive(Clone, Debug)]
pub(crate) enum LeaseReply {
    /// The Lease as a POST or PUT left it.
    Written(Box<Lease>),
    /// The Lease as a GET shows it.
    Read(Option<Box<Lease>>),
    /// Another process wrote, created or deleted the Lease first.
    Conflict,
    /// No reply, or an error that may pass; whether a write was carried out is unknown.
    Failed {
        /// How long the API server asked to wait.
        retry_after: Option<Duration>,
    },
    /// Refused, until somebody grants a right or creates the namespace.
    Refused,
}

impl Elector {
    /// An elector that has seen nothing.
    pub(crate) fn new(name: String, identity: String, seconds: u16, random: fastrand::Rng) -> Self {
        Self {
            name,
            identity,
            seconds,
            goal: Goal::Lead,
            last_seen: LastSeen::Unread,
            tenure: None,
            request: RequestState::Idle,
            refusals: 0,
            terms: 0,
            others: false,
            random,
        }
    }

    /// The action for this moment. A returned request counts as sent. `wall` is the time of day, for the record only.
    pub(crate) fn next_action(&mut self, now: Instant, wall: Timestamp) -> ElectorAction {
        self.tenure = self.tenure.filter(|tenure| now < tenure.until);
        let end = self.tenure.map(|tenure| tenure.until);
        let wait =
            |until: Instant| ElectorAction::Wait(Some(end.map_or(until, |end| end.min(until))));
        match self.request {
            RequestState::InFlight { .. } => return ElectorAction::Wait(end),
            RequestState::BackingOff { until } if now < until => return wait(until),
            RequestState::Conflicted | RequestState::BackingOff { .. } | RequestState::Idle => {}
        }
        // The request in flight and its back-off come first: one whose outcome is not known may
        // still take the Lease.
        let finished = match self.goal {
            Goal::Lead => false,
            // A Lease that is held is kept until the writes in flight have ended.
            Goal::Keep => self.tenure.is_none(),
            // The Lease was released, or somebody else has it, whose record must stay.
            Goal::Release => self.last_seen_holder() != Some(&self.identity),
        };
        if finished {
            return ElectorAction::Finished;
        }
        // Read and not waited for: the watch may be the thing that is behind.
        let request = if matches!(self.request, RequestState::Conflicted) {
            LeaseRequest::Get
        } else {
            match self.next_write(now) {
                NextWrite::Now => self.build_write(wall),
                NextWrite::At(time) => return wait(time),
                NextWrite::Unknown => return ElectorAction::Wait(end),
            }
        };
        self.request = RequestState::InFlight {
            sent: now,
            overtaken: false,
        };
        ElectorAction::Send(request)
    }

    fn next_write(&self, now: Instant) -> NextWrite {
        if self.goal == Goal::Release {
            return NextWrite::Now;
        }
        let from = |time: Instant| {
            if now < time {
                NextWrite::At(time)
            } else {
                NextWrite::Now
            }
        };
        match (&self.last_seen, self.tenure) {
            (LastSeen::Unread, _) => NextWrite::Unknown,
            // A Lease that was deleted during our tenure is created again before others see that it
            // is free.
            (LastSeen::Absent { .. }, Some(_)) | (LastSeen::Absent { free_at: None }, None) => {
                NextWrite::Now
            }
            (
                LastSeen::Absent {
                    free_at: Some(free),
                },
                None,
            ) => from(*free),
            (LastSeen::Present { lease, since }, held) => match (record::holder_of(lease), held) {
                (Some(holder), Some(held)) if holder == self.identity => from(held.renew_at),
                (Some(holder), _) if holder != self.identity => {
                    // The duration in the record counts, as its holder may have another than this
                    // candidate (`isLeaseValid`,
                    // `k8s.io/client-go/tools/leaderelection/leaderelection.go`).
                    from(*since + record::duration_of(lease, self.lease_duration()))
                }
                // Free, or still ours after a time without a renewal.
                _ => NextWrite::Now,
            },
        }
    }

    /// The request that takes, renews or releases the Lease as last seen.
    fn build_write(&self, wall: Timestamp) -> LeaseRequest {
        let (identity, seconds) = (&self.identity, self.seconds);
        let lease = match &self.last_seen {
            LastSeen::Unread | LastSeen::Absent { .. } => {
                let lease = record::new_lease(&self.name, identity, seconds, wall);
                return LeaseRequest::Create(Box::new(lease));
            }
            LastSeen::Present { lease, .. } => lease,
        };
        let is_ours = record::holder_of(lease) == Some(identity);
        LeaseRequest::Replace(Box::new(match (self.goal, is_ours) {
            (Goal::Release, _) => record::release_lease(lease, wall),
            (Goal::Lead | Goal::Keep, true) => record::renew_lease(lease, seconds, wall),
            (Goal::Lead | Goal::Keep, false) => record::take_lease(lease, identity, seconds, wall),
        }))
    }

    /// Applies the state of the Lease in the watch.
    pub(crate) fn observe_state(&mut self, state: LeaseState, now: Instant) {
        let lease = match &state {
            LeaseState::Present(lease) | LeaseState::Deleted(lease) => Some(lease),
            LeaseState::Absent => None,
        };
        // A watch may lag behind the replies to our own requests.
        if let (Some(lease), LastSeen::Present { lease: known, .. }) = (lease, &self.last_seen)
            && !record::is_newer(lease, known)
        {
            return;
        }
        match state {
            LeaseState::Present(lease) => self.remember_lease(Some(lease), now),
            LeaseState::Deleted(_) | LeaseState::Absent => self.remember_lease(None, now),
        }
        match &mut self.request {
            RequestState::InFlight { overtaken, .. } => *overtaken = true,
            // The cause of the last failure may be gone.
            RequestState::BackingOff { .. } => self.request = RequestState::Idle,
            RequestState::Idle | RequestState::Conflicted => {}
        }
    }

    /// Applies the outcome of the request in flight.
    pub(crate) fn on_reply(&mut self, reply: LeaseReply, now: Instant) {
        let RequestState::InFlight { sent, overtaken } = self.request else {
            return;
        };
        self.request = match reply {
            LeaseReply::Written(lease) | LeaseReply::Read(Some(lease))
                if overtaken && self.knows_later(&lease) =>
            {
                self.refusals = 0;
                RequestState::Idle
            }
            LeaseReply::Written(lease) => {
                self.on_written(lease, sent, now);
                RequestState::Idle
            }
            LeaseReply::Read(lease) => {
                self.refusals = 0;
                self.remember_lease(lease, now);
                RequestState::Idle
            }
            LeaseReply::Conflict => RequestState::Conflicted,
            LeaseReply::Failed { retry_after } => {
                // A held Lease gets one more attempt before it expires.
                let asked = retry_after
                    .unwrap_or_default()
                    .min(self.lease_duration() / 3);
                let wait = RETRY.delay(1, self.random.f64()).max(asked);
                RequestState::BackingOff { until: now + wait }
            }
            LeaseReply::Refused => {
                self.refusals = self.refusals.saturating_add(1);
                // A right may be granted again before the Lease ends; the long back-off would outlast it.
                let backoff = self.tenure.map_or(REFUSED, |_| RETRY);
                let wait = backoff.delay(self.refusals, self.random.f64());
                RequestState::BackingOff { until: now + wait }
            }
        };
    }

    /// Whether a later state of the Lease than this one was seen.
    fn knows_later(&self, lease: &Lease) -> bool {
        matches!(&self.last_seen, LastSeen::Present { lease: known, .. }
            if known.metadata.resource_version != lease.metadata.resource_version
                && !record::is_newer(lease, known))
    }

    fn on_written(&mut self, lease: Box<Lease>, sent: Instant, now: Instant) {
        self.refusals = 0;
        // The reply may come after the release was asked for.
        let is_ours =
            record::holder_of(&lease) == Some(&self.identity) && self.goal != Goal::Release;
        let before = self.tenure.filter(|tenure| now < tenure.until);
        self.tenure = is_ours.then(|| {
            let (term, after_others) = before.map_or_else(
                || {
                    self.terms += 1;
                    (self.terms, std::mem::take(&mut self.others))
                },
                |held| (held.term, held.after_others),
            );
            Tenure {
                term,
                after_others,
                // Time counts from the sending on: the API server may have stored it at once, and
                // others count from what they see, which is later. A third leaves time for two more
                // attempts.
                renew_at: sent + self.lease_duration() / 3,
                until: sent + self.lease_duration(),
            }
        });
        self.last_seen = LastSeen::Present { lease, since: now };
    }

    fn remember_lease(&mut self, lease: Option<Box<Lease>>, now: Instant) {
        let ours = self.lease_duration();
        let is_first = matches!(self.last_seen, LastSeen::Unread);
        // One that was free when it was first read, and is now as somebody else left it.
        let was_used = match (&lease, &self.last_seen) {
            (Some(lease), LastSeen::Present { lease: known, .. }) => !record::is_same(lease, known),
            (Some(_), LastSeen::Absent { .. }) => true,
            (Some(_), LastSeen::Unread) | (None, _) => false,
        };
        self.last_seen = match (lease, &self.last_seen) {
            (
                Some(lease),
                LastSeen::Present {
                    lease: known,
                    since,
                },
            ) if record::is_same(&lease, known) => {
                // The holder has not renewed it, so its time runs on; only metadata has changed.
                let since = *since;
                LastSeen::Present { lease, since }
            }
            (Some(lease), _) => LastSeen::Present { lease, since: now },
            (None, LastSeen::Present { lease, since }) => {
                // The holder may not know yet that the Lease was deleted, and writes until then.
                let end = *since + record::duration_of(lease, ours);
                let free_at = record::holder_of(lease).and(Some(end));
                LastSeen::Absent { free_at }
            }
            (None, LastSeen::Absent { free_at }) => LastSeen::Absent { free_at: *free_at },
            (None, LastSeen::Unread) => LastSeen::Absent { free_at: None },
        };
        let has_led = self.terms > 0;
        match &self.last_seen {
            LastSeen::Present { lease, .. } if record::holder_of(lease) != Some(&self.identity) => {
                // If it was ours, somebody took it by hand, or with a clock that runs too fast.
                self.tenure = None;
                self.others |= has_led || was_used || record::holder_of(lease).is_some();
            }
            // Somebody may have deleted it under its holder, before the first read or between two terms.
            LastSeen::Absent { .. } => self.others |= has_led || is_first,
            LastSeen::Present { .. } | LastSeen::Unread => {}
        }
    }

    /// Begins the shutdown: the Lease is renewed if it is held, but not taken any more.
    pub(crate) fn stop_taking(&mut self) {
        self.goal = Goal::Keep;
    }

    /// Ends leadership and releases the Lease.
    pub(crate) fn begin_release(&mut self) {
        self.goal = Goal::Release;
        self.tenure = None;
        // The release does not wait for the back-off of a renewal.
        if matches!(self.request, RequestState::BackingOff { .. }) {
            self.request = RequestState::Idle;
        }
    }

    /// The leadership at this time.
    pub(crate) fn leadership_at(&self, now: Instant) -> Leadership {
        match self.tenure {
            Some(held) if now < held.until => Leadership::Leads {
                term: held.term,
                after_others: held.after_others,
                until: held.until,
            },
            _ if matches!(self.last_seen, LastSeen::Unread) => Leadership::Unknown,
            _ => Leadership::Standby,
        }
    }

    /// The holder of the Lease as last seen.
    pub(crate) fn last_seen_holder(&self) -> Option<&str> {
        match &self.last_seen {
            LastSeen::Present { lease, .. } => record::holder_of(lease),
            LastSeen::Unread | LastSeen::Absent { .. } => None,
        }
    }

    /// The `holderIdentity` of this candidate.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    fn lease_duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// The time at which the Lease is to be written.
enum NextWrite {
    Now,
    At(Instant),
    /// Whether it exists is not known.
    Unknown,
}

#[cfg(test)]
mod proof;
#[cfg(test)]
mod tests;

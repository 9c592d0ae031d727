//! When to take, renew and give up the Lease. A state machine without a clock, a client or a task.
//!
//! It guarantees that of all electors, with whatever clocks, at most one holds at an instant, however requests are
//! lost, late or answered to nobody, and however long one of them is stopped, as long as nobody else writes the Lease:
//!
//! - What is held is held until one duration after the *sending* of the request that took or renewed it.
//! - What another holds is over one duration after its record was last *seen* to change, which is later; no time of day
//!   is compared with that of another machine.
//! - Each write bears the resourceVersion that it was made from, so that of two writers one is refused.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use leadsman_core::podprobe::pod::Version;
use leadsman_process::Backoff;
use tokio::time::Instant;

use super::leadership::Leadership;
use super::record;

/// After a request that failed and may succeed soon.
const SOON: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
/// After one that fails until somebody does something.
const HELPED: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(30));

/// One of those who want the Lease.
#[derive(Debug)]
pub(super) struct Elector {
    name: &'static str,
    identity: String,
    seconds: u16,
    aim: Aim,
    known: Known,
    held: Option<Held>,
    exchange: Exchange,
    failures: u32,
    terms: u64,
    /// Another one may have written since the last term, or since the start.
    others: bool,
    random: fastrand::Rng,
}

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// To have it and to keep it.
    Lead,
    /// To keep it if it is ours.
    Keep,
    /// To give it back.
    Release,
}

/// What is known of the Lease.
#[derive(Debug)]
enum Known {
    /// It has not been looked at.
    Nothing,
    /// It is not there. Whoever held it when it was deleted may go on until then.
    Absent { free: Option<Instant> },
    /// It is there, and its record has been so since then.
    Seen { lease: Box<Lease>, since: Instant },
}

/// What is ours.
#[derive(Clone, Copy, Debug)]
struct Held {
    term: u64,
    after_others: bool,
    renew: Instant,
    until: Instant,
}

/// Requests, one at a time.
#[derive(Clone, Copy, Debug)]
enum Exchange {
    /// None is under way.
    Idle,
    /// Somebody was quicker: what is known is old.
    Outrun,
    /// One has been sent.
    UnderWay { sent: Instant },
    /// One failed.
    Resting { until: Instant },
}

/// What to do.
#[derive(Debug)]
pub(super) enum Step {
    /// Send this, and tell what came of it.
    Send(Request),
    /// Nothing before this time, or before something is told.
    Wait(Option<Instant>),
    /// Nothing any more.
    Over,
}

/// A request about the Lease.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// GET.
    Look,
    /// POST.
    Create(Box<Lease>),
    /// PUT with the resourceVersion that was seen.
    Replace(Box<Lease>),
}

/// What came of a request.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// The Lease as it is after a POST or PUT.
    Written(Box<Lease>),
    /// The Lease as a GET shows it.
    Shown(Option<Box<Lease>>),
    /// Somebody else wrote, created or deleted it first.
    Outrun,
    /// No answer, or none that says anything; whether a write was carried out is unknown.
    Failed {
        /// Not to be repeated before this, if the API server asked for it.
        after: Option<Duration>,
    },
    /// Refused, until somebody grants a right or makes the namespace.
    Refused,
}

/// What a watch shows.
#[derive(Clone, Debug)]
pub(crate) enum Sight {
    /// The Lease as it is.
    There(Box<Lease>),
    /// It was deleted; so it was last.
    Deleted(Box<Lease>),
    /// A list does not have it.
    NotListed,
}

impl Elector {
    /// Knows nothing yet.
    pub(super) fn new(
        name: &'static str,
        identity: String,
        seconds: u16,
        random: fastrand::Rng,
    ) -> Self {
        Self {
            name,
            identity,
            seconds,
            aim: Aim::Lead,
            known: Known::Nothing,
            held: None,
            exchange: Exchange::Idle,
            failures: 0,
            terms: 0,
            others: false,
            random,
        }
    }

    /// What to do now. `wall` is the time of day, for the record only.
    pub(super) fn next(&mut self, now: Instant, wall: Timestamp) -> Step {
        self.held = self.held.filter(|held| now < held.until);
        let end = self.held.map(|held| held.until);
        let wait = |until: Instant| Step::Wait(Some(end.map_or(until, |end| end.min(until))));
        match self.exchange {
            Exchange::UnderWay { .. } => return Step::Wait(end),
            Exchange::Resting { until } if now < until => return wait(until),
            Exchange::Outrun | Exchange::Resting { .. } | Exchange::Idle => {}
        }
        let over = match self.aim {
            Aim::Lead => false,
            Aim::Keep => self.held.is_none(),
            Aim::Release => self.holder() != Some(&self.identity),
        };
        if over {
            return Step::Over;
        }
        let request = if matches!(self.exchange, Exchange::Outrun) {
            Request::Look
        } else {
            match self.due(now) {
                Due::Now => self.claim(wall),
                Due::At(time) => return wait(time),
                Due::Unknown => return Step::Wait(end),
            }
        };
        self.exchange = Exchange::UnderWay { sent: now };
        Step::Send(request)
    }

    fn due(&self, now: Instant) -> Due {
        if self.aim == Aim::Release {
            return Due::Now;
        }
        let from = |time: Instant| if now < time { Due::At(time) } else { Due::Now };
        match (&self.known, self.held) {
            (Known::Nothing, _) => Due::Unknown,
            (Known::Absent { .. }, Some(_)) | (Known::Absent { free: None }, None) => Due::Now,
            (Known::Absent { free: Some(free) }, None) => from(*free),
            (Known::Seen { lease, since }, held) => match (record::holder(lease), held) {
                (Some(holder), Some(held)) if holder == self.identity => from(held.renew),
                (Some(holder), _) if holder != self.identity => {
                    from(*since + record::duration(lease, self.duration()))
                }
                // Free, or ours after a time in which it could not be renewed.
                _ => Due::Now,
            },
        }
    }

    /// The request that takes, renews or releases what is known.
    fn claim(&self, wall: Timestamp) -> Request {
        let (identity, seconds) = (&self.identity, self.seconds);
        let lease = match &self.known {
            Known::Nothing | Known::Absent { .. } => {
                let lease = record::created(self.name, identity, seconds, wall);
                return Request::Create(Box::new(lease));
            }
            Known::Seen { lease, .. } => lease,
        };
        let is_ours = record::holder(lease) == Some(identity);
        Request::Replace(Box::new(match (self.aim, is_ours) {
            (Aim::Release, _) => record::released(lease, wall),
            (Aim::Lead | Aim::Keep, true) => record::renewed(lease, seconds, wall),
            (Aim::Lead | Aim::Keep, false) => record::taken(lease, identity, seconds, wall),
        }))
    }

    /// Takes in what a watch shows.
    pub(super) fn saw(&mut self, sight: Sight, now: Instant) {
        let lease = match &sight {
            Sight::There(lease) | Sight::Deleted(lease) => Some(lease),
            Sight::NotListed => None,
        };
        // A watch may lag behind the answers to our own requests.
        if let (Some(lease), Known::Seen { lease: known, .. }) = (lease, &self.known)
            && !version(lease).is_newer_than(version(known))
        {
            return;
        }
        match sight {
            Sight::There(lease) => self.learn(Some(lease), now),
            Sight::Deleted(_) | Sight::NotListed => self.learn(None, now),
        }
        // Whatever stood in the way may be gone.
        if matches!(self.exchange, Exchange::Resting { .. }) {
            self.exchange = Exchange::Idle;
        }
    }

    /// Takes in what came of the request under way.
    pub(super) fn answered(&mut self, answer: Answer, now: Instant) {
        let Exchange::UnderWay { sent } = self.exchange else {
            return;
        };
        self.exchange = match answer {
            Answer::Written(lease) => {
                self.wrote(lease, sent, now);
                Exchange::Idle
            }
            Answer::Shown(lease) => {
                self.failures = 0;
                self.learn(lease, now);
                Exchange::Idle
            }
            Answer::Outrun => Exchange::Outrun,
            Answer::Failed { after } => {
                // A Lease that is held is worth one more attempt before it ends.
                let asked = after.unwrap_or_default().min(self.duration() / 3);
                let rest = SOON.distance(1, self.random.f64()).max(asked);
                Exchange::Resting { until: now + rest }
            }
            Answer::Refused => {
                self.failures = self.failures.saturating_add(1);
                let backoff = self.held.map_or(HELPED, |_| SOON);
                let rest = backoff.distance(self.failures, self.random.f64());
                Exchange::Resting { until: now + rest }
            }
        };
    }

    fn wrote(&mut self, lease: Box<Lease>, sent: Instant, now: Instant) {
        self.failures = 0;
        // An answer may come after the release was asked for.
        let is_ours = record::holder(&lease) == Some(&self.identity) && self.aim != Aim::Release;
        let before = self.held.filter(|held| now < held.until);
        self.held = is_ours.then(|| {
            let (term, after_others) = before.map_or_else(
                || {
                    self.terms += 1;
                    (self.terms, std::mem::take(&mut self.others))
                },
                |held| (held.term, held.after_others),
            );
            Held {
                term,
                after_others,
                renew: sent + self.duration() / 3,
                until: sent + self.duration(),
            }
        });
        self.known = Known::Seen { lease, since: now };
    }

    fn learn(&mut self, lease: Option<Box<Lease>>, now: Instant) {
        let ours = self.duration();
        self.known = match (lease, &self.known) {
            (
                Some(lease),
                Known::Seen {
                    lease: known,
                    since,
                },
            ) if record::is_same(&lease, known) => {
                let since = *since;
                Known::Seen { lease, since }
            }
            (Some(lease), _) => Known::Seen { lease, since: now },
            (None, Known::Seen { lease, since }) => {
                let end = *since + record::duration(lease, ours);
                let free = record::holder(lease).and(Some(end));
                Known::Absent { free }
            }
            (None, Known::Absent { free }) => Known::Absent { free: *free },
            (None, Known::Nothing) => Known::Absent { free: None },
        };
        if let Known::Seen { lease, .. } = &self.known
            && record::holder(lease) != Some(&self.identity)
        {
            // If it was ours, somebody took it by hand or with a clock that runs fast.
            self.held = None;
            self.others |= self.terms > 0 || record::holder(lease).is_some();
        }
    }

    /// From now on it is kept if it is ours, but not taken.
    pub(super) fn keep(&mut self) {
        self.aim = Aim::Keep;
    }

    /// From now on it is given back, and not ours any more.
    pub(super) fn release(&mut self) {
        self.aim = Aim::Release;
        self.held = None;
        // An attempt to renew may rest; this one is the last.
        if matches!(self.exchange, Exchange::Resting { .. }) {
            self.exchange = Exchange::Idle;
        }
    }

    /// Whether we lead.
    pub(super) fn leadership(&self, now: Instant) -> Leadership {
        match self.held {
            Some(held) if now < held.until => Leadership::Leads {
                term: held.term,
                after_others: held.after_others,
                until: held.until,
            },
            Some(_) | None => Leadership::Standby,
        }
    }

    /// Who holds the Lease, by its record.
    pub(super) fn holder(&self) -> Option<&str> {
        match &self.known {
            Known::Seen { lease, .. } => record::holder(lease),
            Known::Nothing | Known::Absent { .. } => None,
        }
    }

    /// Our own name in the record.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// When the Lease may be written.
enum Due {
    Now,
    At(Instant),
    /// It is not known whether it is there.
    Unknown,
}

fn version(lease: &Lease) -> Version {
    Version::parse(lease.metadata.resource_version.as_deref())
}

#[cfg(test)]
mod proof;
#[cfg(test)]
mod tests;

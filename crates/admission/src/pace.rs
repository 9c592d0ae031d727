//! Delays between writes of one object: none at first, then longer each time, so that a contest with another client
//! that undoes them costs little. The contest ends after a quiet time, or when the desired state changes.

use std::time::Duration;

use leadsman_process::Backoff;
use leadsman_process::reply::{Disposition, RetryCause};
use tokio::time::Instant;

const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// The average time between writes in the long run, however often the desired state changes.
pub(crate) const CHANGE: Duration = Duration::from_secs(3);
/// The number of changes that are written without a delay.
pub(crate) const AT_ONCE: u32 = 4;
/// Much longer than the longest delay: a write that is undone so late is no contest.
const QUIET: Duration = Duration::from_mins(10);

/// The pace of writes of one object.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    writes: u32,
    last: Option<Instant>,
    not_before: Option<Instant>,
    /// The end of the API server's Retry-After.
    throttled_until: Option<Instant>,
    /// The time at which all changes so far would have been written with [`CHANGE`] between them.
    even: Option<Instant>,
}

impl Pace {
    /// The time until which the next write has to wait. `None` means that it may be sent now.
    pub(crate) fn held_until(&self, now: Instant) -> Option<Instant> {
        let held_until = self.not_before.max(self.throttled_until);
        held_until.filter(|held_until| now < *held_until)
    }

    /// Records a write, whatever its outcome. `random` is in 0 to 1.
    pub(crate) fn record_write(&mut self, disposition: &Disposition, now: Instant, random: f64) {
        if self.last.is_some_and(|last| now >= last + QUIET) {
            self.writes = 0;
        }
        self.writes = self.writes.saturating_add(1);
        self.last = Some(now);
        self.even = Some(self.even.unwrap_or(now).max(now) + CHANGE);
        self.not_before = Some(now + BACKOFF.delay(self.writes, random));
        if let Disposition::Retry {
            after: Some(after), ..
        } = disposition
        {
            self.throttled_until = Some(now + *after);
        }
    }

    /// Ends the contest, since the desired state has changed. The next write is sent at once, unless there were many
    /// changes lately.
    pub(crate) fn end_contest(&mut self, now: Instant) {
        let not_before = self
            .even
            .and_then(|even| even.checked_sub(AT_ONCE * CHANGE));
        *self = Self {
            // The API server's own request to wait holds, whatever is desired.
            throttled_until: self.throttled_until,
            not_before: not_before.filter(|not_before| now < *not_before),
            even: self.even,
            ..Self::default()
        };
    }
}

/// Why a request failed, with what an operator can do about it. `action` is what was tried, such as "apply".
pub(crate) fn describe_failure(action: &str, object: &str, disposition: &Disposition) -> String {
    match disposition {
        Disposition::Retry {
            cause: RetryCause::NoSuchKind,
            reason,
            ..
        } => {
            format!("cannot {action} the {object}: there is no such namespace or kind ({reason})")
        }
        _ => format!(
            "cannot {action} the {object}: {}",
            disposition.explain_reason()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_to_create_or_whose_reply_it_is() {
        let table = [
            (
                RetryCause::NoSuchKind,
                "cannot get the Role r: there is no such namespace or kind (the reply)",
            ),
            (
                RetryCause::NotApiServer,
                "cannot get the Role r: the reply is not the API server's: check the proxy or load balancer before it, and \
                 the address of the API server in the kubeconfig (the reply)",
            ),
        ];
        for (cause, expected) in table {
            let failed = Disposition::Retry {
                cause,
                after: None,
                reason: "the reply".to_owned(),
            };
            assert_eq!(describe_failure("get", "Role r", &failed), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn distances_grow_in_a_contest_and_are_forgotten_after_it() {
        let mut pace = Pace::default();
        let mut now = leadsman_process::clock::monotonic();
        assert_eq!(pace.held_until(now), None, "the first is sent at once");
        let mut write = |pace: &mut Pace, after| {
            pace.record_write(&after, now, 1.0);
            let held = pace.held_until(now).unwrap() - now;
            now += held;
            held.as_secs()
        };
        let distances = [0; 8].map(|_: u8| write(&mut pace, Disposition::Done));
        assert_eq!(distances, [1, 2, 4, 8, 16, 32, 60, 60]);
        let throttled = Disposition::Retry {
            cause: RetryCause::Throttled,
            after: Some(Duration::from_secs(90)),
            reason: String::new(),
        };
        assert_eq!(write(&mut pace, throttled), 90);
        pace.record_write(&Disposition::Done, now + QUIET, 1.0);
        let again = pace.held_until(now + QUIET).unwrap() - (now + QUIET);
        assert_eq!(again.as_secs(), 1);
        pace.end_contest(now + QUIET);
        assert_eq!(pace.held_until(now + QUIET), None);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_written_at_once_but_not_for_ever() {
        let mut pace = Pace::default();
        let begin = leadsman_process::clock::monotonic();
        let mut now = begin;
        for _ in 0..20 {
            // However many changes come while one is held.
            for _ in 0..10 {
                pace.end_contest(now);
            }
            now = pace.held_until(now).unwrap_or(now);
            pace.record_write(&Disposition::Done, now, 1.0);
        }
        assert_eq!(now - begin, (19 - AT_ONCE) * CHANGE);
        pace.end_contest(now + AT_ONCE * CHANGE);
        assert_eq!(pace.held_until(now + AT_ONCE * CHANGE), None);
    }
}

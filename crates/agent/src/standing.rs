//! What the agent lives on: a runtime that answers, a watch that stands, a status that can be written. `/readyz` says
//! when one of them has been missing for so long that verdicts may be stale.

use std::time::Duration;

use leadsman_process::{Condition, Readiness};

/// How long something may be missing.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than any two attempts are apart: what has been silent for so long after an error works again.
const SILENCE: Duration = Duration::from_secs(25);

/// One of them. Times are since the agent's start.
pub(crate) struct Standing {
    condition: Condition,
    failing: Option<Failing>,
}

struct Failing {
    since: Duration,
    last: Duration,
    reason: String,
}

impl Standing {
    /// Not ready until it has worked once.
    pub(crate) fn new(readiness: &Readiness, name: &'static str, reason: &str) -> Self {
        Self {
            condition: readiness.condition(name, reason),
            failing: None,
        }
    }

    /// It works.
    pub(crate) fn works(&mut self) {
        self.failing = None;
        self.condition.ready();
    }

    /// An attempt failed, of something that has not worked since then. Whether it is the first to.
    pub(crate) fn fails(&mut self, reason: &str, since: Duration, now: Duration) -> bool {
        let first = self.failing.is_none();
        let since = self.failing.as_ref().map_or(since, |failing| failing.since);
        self.failing = Some(Failing {
            since,
            last: now,
            reason: reason.to_owned(),
        });
        first
    }

    /// Says when it has been failing for too long. `silent` when a success makes no sound: then silence is one.
    pub(crate) fn check(&mut self, now: Duration, silent: bool) {
        let Some(failing) = &self.failing else {
            return;
        };
        if silent && now.saturating_sub(failing.last) > SILENCE {
            self.works();
        } else if now.saturating_sub(failing.since) >= PATIENCE {
            self.condition.not_ready(&failing.reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_is_lost_after_half_a_minute_and_found_by_one_success() {
        let readiness = Readiness::default();
        let mut standing = Standing::new(&readiness, "thing", "not tried yet");
        assert!(!readiness.is_ready());
        standing.works();
        assert!(standing.fails("away", seconds(100), seconds(110)));
        standing.check(seconds(129), false);
        assert!(readiness.is_ready());
        assert!(!standing.fails("still away", seconds(130), seconds(130)));
        standing.check(seconds(130), false);
        assert_eq!(readiness.text(), "[-] thing: still away\n");
        standing.works();
        assert!(readiness.is_ready());
    }

    #[test]
    fn silence_after_an_error_is_success_where_success_is_silent() {
        let readiness = Readiness::default();
        let mut standing = Standing::new(&readiness, "watch", "not listed yet");
        standing.works();
        standing.fails("a blip", seconds(0), seconds(0));
        standing.check(seconds(30), true);
        assert!(readiness.is_ready());
        for attempt in [40, 50, 60, 70] {
            standing.fails("away", seconds(attempt), seconds(attempt));
        }
        standing.check(seconds(71), true);
        assert!(!readiness.is_ready());
        standing.check(seconds(96), true);
        assert!(readiness.is_ready());
    }
}

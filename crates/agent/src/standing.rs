//! What the agent lives on: a runtime that answers, a watch that stands, a status that can be written. `/readyz` says
//! when one of them has been missing for so long that verdicts may be stale.

use std::time::Duration;

use leadsman_process::{Condition, Readiness};

/// How long something may be missing.
const PATIENCE: Duration = Duration::from_secs(30);

/// One of them. Times are since the agent's start.
pub(crate) struct Standing {
    condition: Condition,
    failing: Option<Failing>,
}

struct Failing {
    since: Duration,
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
    pub(crate) fn fails(&mut self, reason: &str, since: Duration) -> bool {
        let first = self.failing.is_none();
        let since = self.failing.as_ref().map_or(since, |failing| failing.since);
        self.failing = Some(Failing {
            since,
            reason: reason.to_owned(),
        });
        first
    }

    /// Says when it has been failing for too long.
    pub(crate) fn check(&mut self, now: Duration) {
        if let Some(failing) = &self.failing
            && now.saturating_sub(failing.since) >= PATIENCE
        {
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
        assert!(standing.fails("away", seconds(100)));
        standing.check(seconds(129));
        assert!(readiness.is_ready());
        assert!(!standing.fails("still away", seconds(130)));
        standing.check(seconds(130));
        assert_eq!(readiness.text(), "[-] thing: still away\n");
        standing.works();
        assert!(readiness.is_ready());
    }

    #[test]
    fn silence_is_no_success() {
        let readiness = Readiness::default();
        let mut standing = Standing::new(&readiness, "watch", "not listed yet");
        standing.works();
        standing.fails("away", seconds(0));
        standing.check(seconds(30));
        assert!(!readiness.is_ready());
        standing.check(seconds(3600));
        assert!(!readiness.is_ready());
    }
}

//! Health checks of the agent's tasks. Each is about something that a task depends on, such as an established watch,
//! and knows since when it has failed. `/readyz` fails when a check has been failing for so long that the agent's
//! reports may be outdated, and until the first success: an agent that has never worked has nothing to report.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leadsman_process::{Readiness, ReadinessCheck};

/// How long a check may fail before `/readyz` fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// The health checks of all tasks. Clones share them.
#[derive(Clone)]
pub(crate) struct HealthChecks {
    readiness: Readiness,
    checks: Arc<Mutex<Vec<Health>>>,
}

/// One health check. Clones share it; times are since the agent's start.
#[derive(Clone)]
pub(crate) struct Health(Arc<Mutex<HealthState>>);

struct HealthState {
    check: ReadinessCheck,
    last: LastAttempt,
}

/// The outcome of the last attempt.
enum LastAttempt {
    /// No attempt was made yet.
    Untried,
    Succeeded,
    Failed {
        /// The time at which the dependency last worked; `None` if it never did.
        worked: Option<Duration>,
        reason: String,
    },
}

impl HealthChecks {
    pub(crate) fn new(readiness: Readiness) -> Self {
        Self {
            readiness,
            checks: Arc::default(),
        }
    }

    /// Registers a check, which fails `/readyz` for this reason until its first success.
    pub(crate) fn register_check(&self, name: &'static str, reason: &str) -> Health {
        let health = Health(Arc::new(Mutex::new(HealthState {
            check: self.readiness.add_check(name, reason),
            last: LastAttempt::Untried,
        })));
        lock_mutex(&self.checks).push(health.clone());
        health
    }

    /// Fails `/readyz` for each check that has been failing for too long.
    pub(crate) fn fail_overdue_checks(&self, now: Duration) {
        for health in &*lock_mutex(&self.checks) {
            health.fail_if_overdue(now);
        }
    }
}

impl Health {
    /// Records a success.
    pub(crate) fn record_success(&self) {
        let mut state = lock_mutex(&self.0);
        state.last = LastAttempt::Succeeded;
        state.check.set_ready();
    }

    /// Records a failure; `worked` is when the dependency last worked, if it ever did. Returns whether it is the first
    /// failure after a success, or at all.
    pub(crate) fn record_failure(&self, reason: &str, worked: Duration) -> bool {
        let mut state = lock_mutex(&self.0);
        let (is_first, worked) = match &state.last {
            LastAttempt::Untried => (true, None),
            LastAttempt::Succeeded => (true, Some(worked)),
            LastAttempt::Failed { worked, .. } => (false, *worked),
        };
        // Patience gains nothing, since it is not ready anyway, and the newest reason is the one to
        // show.
        if worked.is_none() {
            state.check.set_not_ready(reason);
        }
        let reason = reason.to_owned();
        state.last = LastAttempt::Failed { worked, reason };
        is_first
    }

    pub(crate) fn is_failing(&self) -> bool {
        matches!(lock_mutex(&self.0).last, LastAttempt::Failed { .. })
    }

    fn fail_if_overdue(&self, now: Duration) {
        let state = lock_mutex(&self.0);
        if let LastAttempt::Failed {
            worked: Some(worked),
            reason,
        } = &state.last
            && now.saturating_sub(*worked) >= PATIENCE
        {
            state.check.set_not_ready(reason);
        }
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one assignment, so a panic leaves no half-made state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn readiness_is_lost_after_half_a_minute_and_regained_by_one_success() {
        let readiness = Readiness::default();
        let checks = HealthChecks::new(readiness.clone());
        let health = checks.register_check("thing", "not tried yet");
        assert!(!readiness.is_ready());
        health.record_success();
        assert!(health.record_failure("away", seconds(100)));
        checks.fail_overdue_checks(seconds(129));
        assert!(readiness.is_ready());
        assert!(!health.record_failure("still away", seconds(130)));
        checks.fail_overdue_checks(seconds(130));
        assert_eq!(readiness.to_text(), "[-] thing: still away\n");
        health.record_success();
        assert!(readiness.is_ready());
    }

    #[test]
    fn what_has_never_worked_says_why_at_once() {
        let readiness = Readiness::default();
        let checks = HealthChecks::new(readiness.clone());
        let health = checks.register_check("thing", "not tried yet");
        assert!(health.record_failure("away", seconds(0)));
        assert_eq!(readiness.to_text(), "[-] thing: away\n");
        assert!(!health.record_failure("forbidden", seconds(0)));
        checks.fail_overdue_checks(seconds(1));
        assert_eq!(readiness.to_text(), "[-] thing: forbidden\n");
        health.record_success();
        assert!(health.record_failure("away", seconds(2)));
        assert!(readiness.is_ready(), "it has worked a moment ago");
    }

    #[test]
    fn silence_is_no_success() {
        let readiness = Readiness::default();
        let checks = HealthChecks::new(readiness.clone());
        let health = checks.register_check("watch", "not listed yet");
        health.record_success();
        health.record_failure("away", seconds(0));
        checks.fail_overdue_checks(seconds(30));
        assert!(!readiness.is_ready());
        checks.fail_overdue_checks(seconds(3600));
        assert!(!readiness.is_ready());
    }
}

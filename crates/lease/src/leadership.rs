//! Leadership as the rest of the process is told of it.

use std::time::Duration;

use tokio::time::Instant;

/// With less than this left of the Lease no request is begun: it would hardly be answered in time, and the monotonic
/// clocks of two machines do not run at quite the same rate.
const MARGIN: Duration = Duration::from_millis(500);

/// Whether this process may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// It may not: another one leads, or nobody does.
    Standby,
    /// It may.
    Leads {
        /// Counts this process's terms: between two of them others may have written.
        term: u64,
        /// Whether another one may have written since this process started, and before this term.
        after_others: bool,
        /// When the Lease ends unless it is renewed. Who writes compares it with the clock: a process that was stopped
        /// learns of the end in no other way.
        until: Instant,
    },
}

impl Leadership {
    /// The number of the term; none of a standby.
    pub fn term(self) -> Option<u64> {
        match self {
            Self::Standby => None,
            Self::Leads { term, .. } => Some(term),
        }
    }

    /// The same leadership with `after_others` set.
    #[must_use]
    pub fn after_others(mut self) -> Self {
        if let Self::Leads { after_others, .. } = &mut self {
            *after_others = true;
        }
        self
    }

    /// How long a request that is sent now may take; none if none may be sent.
    pub fn time_left(self, now: Instant) -> Option<Duration> {
        match self {
            Self::Standby => None,
            Self::Leads { until, .. } => {
                let left = until.saturating_duration_since(now);
                (left >= MARGIN).then_some(left)
            }
        }
    }
}

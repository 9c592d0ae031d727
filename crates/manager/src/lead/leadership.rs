//! What the elector tells the rest of the manager.

use std::time::Duration;

use tokio::time::Instant;

/// With less than this left of the Lease nothing is begun: the request would hardly be answered in time, and clocks of
/// two machines do not run at quite the same rate.
pub(crate) const MARGIN: Duration = Duration::from_millis(500);

/// Whether this manager may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leadership {
    /// Another one may, or nobody may.
    Standby,
    /// This one may.
    Leads {
        /// Which of this process's terms it is: between two of them others may have written.
        term: u64,
        /// Whether another one may have written before it, while this process ran.
        after_others: bool,
        /// When the Lease ends unless it is renewed. Whoever writes compares the clock with it: a process that was
        /// stopped hears of nothing else.
        until: Instant,
    },
}

impl Leadership {
    /// The term, if it is one.
    pub(crate) fn term(self) -> Option<u64> {
        match self {
            Self::Standby => None,
            Self::Leads { term, .. } => Some(term),
        }
    }

    /// The same, after another one that may have written.
    pub(crate) fn after_others(mut self) -> Self {
        if let Self::Leads { after_others, .. } = &mut self {
            *after_others = true;
        }
        self
    }

    /// How long a request that is sent now may take, if one may be sent.
    pub(crate) fn left(self, now: Instant) -> Option<Duration> {
        match self {
            Self::Standby => None,
            Self::Leads { until, .. } => {
                let left = until.saturating_duration_since(now);
                (left >= MARGIN).then_some(left)
            }
        }
    }
}

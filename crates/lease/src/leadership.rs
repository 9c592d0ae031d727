//! Leadership, as the rest of the process sees it.

use std::time::Duration;

use tokio::time::Instant;

/// No request is begun with less than this left of the Lease: it would hardly be answered in time, and the monotonic
/// clocks of two machines do not run at exactly the same rate.
const MARGIN: Duration = Duration::from_millis(500);

/// Whether this process may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// The process may not write: the Lease has not been read yet, so it is not known who leads.
    Unknown,
    /// The process may not write: another one leads, or none does.
    Standby,
    /// The process may write.
    Leads {
        /// The number of this process's term. Between two terms others may have written.
        term: u64,
        /// Whether another process may have written between the first read of the Lease and this term.
        after_others: bool,
        /// The end of the Lease unless it is renewed. Each write compares it with the clock.
        until: Instant,
    },
}

impl Leadership {
    /// The number of the term. None for a standby.
    pub fn term_number(self) -> Option<u64> {
        match self {
            Self::Unknown | Self::Standby => None,
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

    /// How long a request that is sent now may take. None if no request may be sent.
    pub fn time_left(self, now: Instant) -> Option<Duration> {
        match self {
            Self::Unknown | Self::Standby => None,
            Self::Leads { until, .. } => {
                let left = until.saturating_duration_since(now);
                (left >= MARGIN).then_some(left)
            }
        }
    }
}

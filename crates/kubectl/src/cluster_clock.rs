//! The time of day by the API server's clock, as its replies show it.
//!
//! Ages are differences between now and times that a cluster has written. A laptop's clock may be minutes off, and an agent that
//! is well would look silent by it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderValue;
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};
use leadsman_process::clock;

/// A reply's date is in whole seconds, and some time passes on the way: a smaller difference is none.
const RESOLUTION: SignedDuration = SignedDuration::from_secs(2);
/// A difference from here on is worth a remark.
const WORTH_A_REMARK: SignedDuration = SignedDuration::from_secs(30);

/// The clock of the API server, against that of this machine.
#[derive(Debug, Default)]
pub(crate) struct ClusterClock {
    /// The lead of the API server's clock over ours, by the first reply with a date; negative if it is behind.
    ahead: OnceLock<SignedDuration>,
    is_remarked: AtomicBool,
}

impl ClusterClock {
    /// Takes in the date of a reply to a request that was sent and answered at these times, by our clock.
    pub(crate) fn observe_date(
        &self,
        date: Option<&HeaderValue>,
        sent: Timestamp,
        answered: Timestamp,
    ) {
        let Some(date) = date.and_then(read_date) else {
            return;
        };
        // A date is cut to whole seconds, so the time is half a second later on average.
        let half = SignedDuration::from_millis(500);
        // The way there and the way back are taken for equally long, as NTP does (RFC 5905, 8).
        let on_the_way = answered.duration_since(sent) / 2;
        let ahead = date.duration_since(sent) + half - on_the_way;
        let is_none = ahead.abs() <= RESOLUTION + on_the_way;
        // The first reply decides: all ages in an answer are by one clock.
        self.ahead
            .get_or_init(|| if is_none { SignedDuration::ZERO } else { ahead });
    }

    /// Whether a reply has shown it.
    pub(crate) fn is_known(&self) -> bool {
        self.ahead.get().is_some()
    }

    /// The time of day: ours, where no reply has had a date.
    pub(crate) fn now(&self) -> Timestamp {
        let ahead = self.ahead.get().copied().unwrap_or_default();
        clock::now()
            .checked_add(ahead)
            .unwrap_or_else(|_| clock::now())
    }

    /// A remark on the difference, once, if it is worth one.
    pub(crate) fn difference_remark(&self) -> Option<String> {
        let ahead = self.ahead.get()?;
        let is_worth = ahead.abs() >= WORTH_A_REMARK;
        if !is_worth || self.is_remarked.swap(true, Ordering::Relaxed) {
            return None;
        }
        let how = if ahead.is_positive() {
            "behind"
        } else {
            "ahead of"
        };
        let seconds = SignedDuration::from_secs(ahead.abs().as_secs());
        Some(format!(
            "the clock of this machine is {seconds:#} {how} the API server's, by which all ages here are"
        ))
    }
}

fn read_date(header: &HeaderValue) -> Option<Timestamp> {
    static PARSER: DateTimeParser = DateTimeParser::new();
    PARSER.parse_timestamp(header.to_str().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::the_same("Fri, 02 Jan 2026 03:04:05 GMT", 0, None)]
    #[case::a_second_late("Fri, 02 Jan 2026 03:04:04 GMT", 0, None)]
    #[case::a_little("Fri, 02 Jan 2026 03:04:15 GMT", 10, None)]
    #[case::behind(
        "Fri, 02 Jan 2026 03:14:05 GMT",
        600,
        Some("10m behind the API server's")
    )]
    #[case::ahead("Fri, 02 Jan 2026 02:04:05 GMT", -3600, Some("1h ahead of the API server's"))]
    #[case::no_date("yesterday", 0, None)]
    fn ages_are_by_the_clock_of_the_api_server(
        #[case] date: &'static str,
        #[case] ahead: i64,
        #[case] remark: Option<&str>,
    ) {
        let clock = ClusterClock::default();
        let sent: Timestamp = "2026-01-02T03:04:05.4Z".parse().unwrap();
        let answered = sent + SignedDuration::from_millis(200);
        let header = HeaderValue::from_static(date);
        clock.observe_date(Some(&header), sent, answered);
        let shown = clock.ahead.get().copied().unwrap_or_default();
        assert_eq!(shown.as_secs(), ahead);
        let said = clock.difference_remark();
        assert_eq!(said.is_some(), remark.is_some(), "{said:?}");
        assert!(
            said.unwrap_or_default()
                .contains(remark.unwrap_or_default())
        );
        assert_eq!(clock.difference_remark(), None, "once");
    }
}

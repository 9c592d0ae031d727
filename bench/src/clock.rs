//! The bench's one door to the clock.

use std::time::Instant;

use jiff::Timestamp;

/// The present moment, to time things by.
#[expect(
    clippy::disallowed_methods,
    reason = "what is measured here is time; this is the bench's only door to it"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The time of day.
#[expect(
    clippy::disallowed_methods,
    reason = "a result says when it was taken; this is the bench's only door to the clock"
)]
pub(crate) fn wall() -> Timestamp {
    Timestamp::now()
}

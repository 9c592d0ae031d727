//! The test bed's one door to the clock: deadlines and durations of raising a bed. No rule of ours
//! is timed by it.

use std::time::Instant;

use jiff::Timestamp;

/// The present moment, for deadlines and measured durations.
#[expect(
    clippy::disallowed_methods,
    reason = "the test bed waits for real programs; this is its only door to the clock"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// The time of day, for what stands in objects.
#[expect(
    clippy::disallowed_methods,
    reason = "the test bed's only door to the time of day"
)]
pub fn time_of_day() -> Timestamp {
    Timestamp::now()
}

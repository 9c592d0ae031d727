//! The test bed's one door to the clock: deadlines and durations of raising a bed. No rule of ours
//! is timed by it.

use std::time::Instant;

/// The present moment, for deadlines and measured durations.
#[expect(
    clippy::disallowed_methods,
    reason = "the test bed waits for real programs; this is its only door to the clock"
)]
pub fn now() -> Instant {
    Instant::now()
}

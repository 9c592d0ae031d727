//! The one door to the clocks. Everywhere else time is an argument.

use std::future::pending;

use jiff::Timestamp;
use tokio::time::Instant;

/// The time of day. It may jump; use it for what is shown or compared with times on the wire.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the door that the lint sends everybody to"
)]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// The monotonic clock, for durations and due times. It stands still under `tokio::time::pause`.
pub fn monotonic() -> Instant {
    Instant::now()
}

/// Sleeps until then; without a time, for ever.
pub async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => pending().await,
    }
}

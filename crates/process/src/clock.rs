//! The only access to the clocks. Everywhere else time is an argument.
//!
//! With the feature `sim`, a thread can have a time of day of its own ([`simulate_time_of_day`]).

use std::future::pending;

use jiff::Timestamp;
use tokio::time::Instant;

#[cfg(feature = "sim")]
mod sim;

#[cfg(feature = "sim")]
pub use sim::{SimulatedTime, jump_time_of_day, simulate_time_of_day};

/// The time of day. It may jump; use it for what is shown or compared with times on the wire.
#[expect(
    clippy::disallowed_methods,
    reason = "the lint refers everybody to this function"
)]
pub fn now() -> Timestamp {
    #[cfg(feature = "sim")]
    if let Some(simulated) = sim::time_of_day() {
        return simulated;
    }
    Timestamp::now()
}

/// The monotonic clock, for durations and due times. `tokio::time::pause` stops it.
pub fn monotonic() -> Instant {
    Instant::now()
}

/// Sleeps until this time; for ever if there is none.
pub async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => pending().await,
    }
}

//! The only access to the clocks. Everywhere else time is an argument.
//!
//! With the feature `sim`, a thread can have a time of day of its own ([`simulate_time_of_day`]), and work that costs what
//! chance says ([`simulate_costs`]).

use std::future::pending;
use std::time::Duration;

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

#[cfg(feature = "sim")]
mod sim;

#[cfg(feature = "sim")]
pub use sim::{SimulatedTime, jump_time_of_day, simulate_costs, simulate_time_of_day};

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

/// The CPU time that this thread has used, which measures what work costs: also on a machine where it waits for a processor.
pub fn cpu_time() -> Duration {
    #[cfg(feature = "sim")]
    if let Some(simulated) = sim::cpu_time() {
        return simulated;
    }
    // Each Linux has this clock.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Sleeps until this time; for ever if there is none.
pub async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => pending().await,
    }
}

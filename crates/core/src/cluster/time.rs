//! A moment by both clocks.

use std::time::Duration;

use jiff::Timestamp;

/// A moment by both clocks. Everything that is waited for is on the monotonic clock, so that a jump of the time of day
/// shortens or lengthens no wait; what goes to the API server or came from it is on the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The time since a moment of the process's own, its start for instance.
    pub monotonic: Duration,
    /// The time of day.
    pub wall: Timestamp,
}

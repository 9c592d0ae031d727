//! How late the agent is: one thread does all of its work, and what does not get its turn there would run into its timeout.
//!
//! As long as runs are under way, the loop is to look at the clock once in each slot. The time by which it comes later
//! was lost to every run under way. The sum is a lower bound of what a run was delayed by, as each of its steps (the
//! connection, the request, the response) has to wait for its turn.

use std::time::Duration;

use super::schedule::TimeSlot;

/// How late the agent's loop was, as it was last observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopLag {
    /// The time when the loop is to look next, since the agent's start. None while no run is under way.
    look_at: Option<Duration>,
    total: Duration,
}

impl LoopLag {
    /// Notes that the loop has come this far.
    pub(super) fn observe_time(&mut self, now: Duration) {
        if self.look_at.is_some_and(|at| at <= now) {
            self.total = self.total_at(now);
            self.look_at = None;
        }
    }

    /// The time lost by now, since the agent's start.
    pub fn total_at(&self, now: Duration) -> Duration {
        let late = self.look_at.map(|at| now.saturating_sub(at));
        self.total + late.unwrap_or_default()
    }

    /// Decides when the loop is to look next. Runs that end within their slot cost no look.
    pub(super) fn plan_next_look(&mut self, has_runs: bool, now: Duration) {
        self.look_at = has_runs.then(|| {
            let next = TimeSlot::containing(now).plus_slots(1).start_time();
            self.look_at.unwrap_or(next)
        });
    }

    pub(super) fn look_at(&self) -> Option<Duration> {
        self.look_at
    }
}

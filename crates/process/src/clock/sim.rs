//! The time of day in a simulation, which runs on one thread under `tokio::time::pause`. It follows tokio's clock, so that
//! one run of a seed reads the same times as another one. What work costs is drawn as well ([`simulate_costs`]).

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::time::Duration;

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The most that is done between two looks at the CPU time, one in [`CHEAP`] of which finds any.
const WORK: Duration = Duration::from_millis(8);
const CHEAP: u32 = 4;

thread_local! {
    static COSTS: RefCell<Option<Costs>> = const { RefCell::new(None) };
    static TIME_OF_DAY: Cell<Option<TimeOfDay>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct TimeOfDay {
    /// The time of day at `since`, jumps included.
    base: Timestamp,
    since: Instant,
}

/// CPU time that work has used, and the numbers by which the next is drawn.
struct Costs {
    cpu_time: Duration,
    random: Rng,
}

/// The simulation of the time of day on this thread, which ends when this is dropped.
#[derive(Debug)]
#[must_use = "the simulation ends when this is dropped"]
pub struct SimulatedTime {
    /// Ties the guard to its thread.
    _not_send: PhantomData<*const ()>,
}

/// Makes [`now`](super::now) `base` on this thread from here on, plus what passes by tokio's clock.
pub fn simulate_time_of_day(base: Timestamp) -> SimulatedTime {
    let since = super::monotonic();
    TIME_OF_DAY.set(Some(TimeOfDay { base, since }));
    SimulatedTime {
        _not_send: PhantomData,
    }
}

/// Makes work on this thread cost what is drawn, until the simulation ends. Without this it costs nothing.
pub fn simulate_costs(random: Rng) {
    let cpu_time = Duration::ZERO;
    COSTS.set(Some(Costs { cpu_time, random }));
}

/// Sets the simulated time of day forward or back. The monotonic clock goes on as it was.
///
/// # Panics
/// Without a simulation on this thread.
pub fn jump_time_of_day(by: SignedDuration) {
    let mut time = TIME_OF_DAY.get().expect("time is simulated");
    time.base += by;
    TIME_OF_DAY.set(Some(time));
}

pub(super) fn time_of_day() -> Option<Timestamp> {
    let time = TIME_OF_DAY.get()?;
    Some(time.base + (super::monotonic() - time.since))
}

pub(super) fn cpu_time() -> Option<Duration> {
    TIME_OF_DAY.get()?;
    COSTS.with_borrow_mut(|costs| {
        let Some(Costs { cpu_time, random }) = costs else {
            return Some(Duration::ZERO);
        };
        if random.u32(..CHEAP) == 0 {
            *cpu_time += WORK.mul_f64(random.f64());
        }
        Some(*cpu_time)
    })
}

impl Drop for SimulatedTime {
    fn drop(&mut self) {
        TIME_OF_DAY.set(None);
        COSTS.set(None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::now;

    #[tokio::test(start_paused = true)]
    async fn the_time_of_day_follows_the_paused_clock_and_jumps_when_told() {
        let base: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let simulated = simulate_time_of_day(base);
        assert_eq!(now(), base);
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert_eq!(now(), base + Duration::from_hours(1));
        jump_time_of_day(SignedDuration::from_hours(-3));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            now() + Duration::from_hours(2),
            base + Duration::from_secs(1)
        );
        drop(simulated);
        assert!(now() > base + Duration::from_hours(24));
    }
}

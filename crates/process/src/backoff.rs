//! Growing delays between attempts at the same thing, with the one jitter. The random number is an argument, so that
//! its users can be tested.

use std::time::Duration;

/// Delays that double from the first to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// A back-off from `first` to `longest`, both before the jitter.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The delay after so many failures in a row (at least one), multiplied by 0.5 to 1 so that requests that failed
    /// together are not repeated together. `random` is in 0 to 1.
    pub fn delay(self, failures: u32, random: f64) -> Duration {
        // A shift of 32 would overflow. 2^16 times the shortest first delay (50 ms) is nearly an hour, and so beyond
        // every `longest`.
        let doubled = self
            .first
            .saturating_mul(1 << failures.saturating_sub(1).min(16));
        // The jitter only shortens: callers promise `longest` as the bound of what they wait.
        doubled.min(self.longest).mul_f64(0.5 + random / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_are_spread() {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
        let millis = |failures, random| backoff.delay(failures, random).as_millis();
        assert_eq!(
            [0, 1, 2, 3, 9, 99, u32::MAX].map(|n| millis(n, 1.0)),
            [50, 50, 100, 200, 10_000, 10_000, 10_000]
        );
        assert_eq!(
            [0.0, 0.5, 1.0].map(|random| millis(2, random)),
            [50, 75, 100]
        );
    }
}

//! The back-off of every request: growing distances between attempts at the same thing. The random number is an
//! argument, so that who uses it stays testable.

use std::time::Duration;

/// Distances that double from the first to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Distances from `first` to `longest`, before they are spread.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The distance after so many failures in a row (at least one), scaled by 0.5 to 1 so that those who failed
    /// together do not come back together. `random` is in 0 to 1.
    pub fn distance(self, failures: u32, random: f64) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.longest).mul_f64(0.5 + random / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_double_up_to_the_longest_and_are_spread() {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
        let millis = |failures, random| backoff.distance(failures, random).as_millis();
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

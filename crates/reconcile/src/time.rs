//! A moment by both clocks, and times as Kubernetes keeps them.

use std::time::Duration;

use jiff::Timestamp;

/// A moment by both clocks. Waits use the monotonic clock, so that no jump of the time of day shortens or lengthens
/// them. Times from and for the API server use the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The time since a fixed moment of the process, such as its start.
    pub monotonic: Duration,
    /// The time of day.
    pub wall: Timestamp,
}

/// A time as `metav1.Time` has it, in whole seconds (`k8s.io/apimachinery/pkg/apis/meta/v1/time.go`).
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    // Down, also before 1970.
    let second = i64::from(time.subsec_nanosecond() < 0);
    Timestamp::from_second(time.as_second() - second).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_are_rounded_down() {
        for (nanoseconds, second) in [(1_999_999_999, 1), (-1, -1), (0, 0)] {
            let time = Timestamp::from_nanosecond(nanoseconds).unwrap();
            assert_eq!(whole_seconds(time).as_second(), second);
        }
    }
}

//! The verdict about a probe.

use std::sync::Arc;

use jiff::Timestamp;

use crate::podprobe::probe::State;

/// What is held about a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) state: State,
    /// The probe's words, uncut.
    pub(super) message: Arc<str>,
    /// When the state came to be, in whole seconds as on the wire.
    pub(super) since: Timestamp,
    /// When a probe last ended.
    pub(super) probed: Option<Timestamp>,
    /// The container that it is about. Not known when it was read back from an API server that does not keep the field.
    pub(super) container: Option<Arc<str>>,
}

/// `time` as the wire has it.
pub(super) fn whole_seconds(time: Timestamp) -> Timestamp {
    // Down, also before 1970.
    let second = i64::from(time.subsec_nanosecond() < 0);
    Timestamp::from_second(time.as_second() - second).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_cut_to_whole_seconds() {
        for (nanoseconds, second) in [(1_999_999_999, 1), (-1, -1), (0, 0)] {
            let time = Timestamp::from_nanosecond(nanoseconds).unwrap();
            assert_eq!(whole_seconds(time).as_second(), second);
        }
    }
}

//! What a row of results adds up to.

use std::sync::Arc;

use jiff::Timestamp;

use super::super::probe::{Outcome, Probe, State};

/// Equal results in a row, as the kubelet counts them: another result begins a new row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    succeeded: bool,
    count: u32,
}

impl Tally {
    /// Counts one result; the state that is now established, if the row is long enough.
    pub(super) fn count(&mut self, outcome: &Outcome, probe: &Probe) -> Option<State> {
        let succeeded = matches!(outcome, Outcome::Succeeded(_));
        if self.succeeded != succeeded {
            *self = Self {
                succeeded,
                count: 0,
            };
        }
        self.count = self.count.saturating_add(1);
        let (state, threshold) = if succeeded {
            (State::Succeeded, probe.success_threshold)
        } else {
            (State::Failed, probe.failure_threshold)
        };
        (self.count >= threshold.get()).then_some(state)
    }
}

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
    use super::super::worker::tests::probe;
    use super::*;

    /// The state after each result: `+` success, `-` failure; `.` when none is established.
    fn states(success: u32, failure: u32, results: &str) -> String {
        let mut probe = probe();
        probe.success_threshold = success.try_into().unwrap();
        probe.failure_threshold = failure.try_into().unwrap();
        let mut tally = Tally::default();
        let state = |result| {
            let outcome = if result == '+' {
                Outcome::Succeeded(String::new())
            } else {
                Outcome::Failed(String::new())
            };
            match tally.count(&outcome, &probe) {
                Some(State::Succeeded) => '+',
                Some(_) => '-',
                None => '.',
            }
        };
        results.chars().map(state).collect()
    }

    // PRB-12
    #[test]
    fn a_state_needs_as_many_in_a_row_as_its_threshold() {
        let table = [
            (1, 1, "+-+-", "+-+-"),
            (1, 3, "---+--+---", "..-+..+..-"),
            (2, 3, "++-++", ".+..+"),
            (3, 1, "++-+++", "..-..+"),
        ];
        for (success, failure, results, expected) in table {
            assert_eq!(states(success, failure, results), expected, "{results}");
        }
    }

    #[test]
    fn times_are_cut_to_whole_seconds() {
        for (nanoseconds, second) in [(1_999_999_999, 1), (-1, -1), (0, 0)] {
            let time = Timestamp::from_nanosecond(nanoseconds).unwrap();
            assert_eq!(whole_seconds(time).as_second(), second);
        }
    }
}

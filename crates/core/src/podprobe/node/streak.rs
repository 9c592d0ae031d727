//! Thresholds: how many equal results in a row establish a state.

use crate::podprobe::history::{ResultsInARow, RunResult};
use crate::podprobe::probe::{Outcome, Probe, State};

/// Equal results in a row; another result begins a new streak (`resultRun` in `pkg/kubelet/prober/worker.go`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ResultStreak {
    succeeded: bool,
    count: u32,
}

impl ResultStreak {
    /// Counts one result, and returns the state that the streak establishes, if it is long enough.
    pub(super) fn count_result(&mut self, outcome: &Outcome, probe: &Probe) -> Option<State> {
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

    /// The results counted so far, towards the threshold of this probe. None before the first result.
    pub(super) fn results_in_a_row(self, probe: &Probe) -> Option<ResultsInARow> {
        let (result, threshold) = if self.succeeded {
            (RunResult::Succeeded, probe.success_threshold)
        } else {
            (RunResult::Failed, probe.failure_threshold)
        };
        (self.count > 0).then_some(ResultsInARow {
            result,
            count: self.count,
            threshold: threshold.get(),
        })
    }
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
        let mut streak = ResultStreak::default();
        let state = |result| {
            let outcome = if result == '+' {
                Outcome::Succeeded(String::new())
            } else {
                Outcome::Failed(String::new())
            };
            match streak.count_result(&outcome, &probe) {
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
}

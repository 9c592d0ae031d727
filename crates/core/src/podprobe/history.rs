//! The recent runs of a node's probes, as its agent answers whoever asks: plain values, written as JSON.
//!
//! A question is one line, a [`HistoryQuery`]. The answer is a [`HistoryHead`] and a [`ProbeHistory`] for each probe, a line
//! each, so that neither side ever has the whole text in memory. Fields that are missing have their defaults: whoever asks
//! may be older or newer than the agent.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::{Deserialize, Serialize};

/// A question about the probes of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HistoryQuery {
    /// The namespace of the pods; None for all namespaces.
    pub namespace: Option<String>,
    /// The name of the pods; None for all names.
    pub pod: Option<String>,
    /// Whether the output of each run is left out.
    pub without_output: bool,
}

/// The first line of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HistoryHead {
    /// How many runs are kept of each probe (`--history`).
    pub runs_kept: usize,
    /// How many lines follow. Fewer of them are an answer that broke off.
    pub probes: usize,
}

/// The recent runs of one probe of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeHistory {
    /// The pod's namespace.
    pub namespace: Arc<str>,
    /// The pod's name.
    pub pod: Arc<str>,
    /// The pod's uid.
    pub uid: Arc<str>,
    /// The container.
    pub container: Arc<str>,
    /// The marker.
    pub marker: Arc<str>,
    /// The probe's name.
    pub probe: Arc<str>,
    /// `exec`, `httpGet`, `tcpSocket` or `grpc`, as a marker has it.
    #[serde(default)]
    pub handler: Arc<str>,
    /// The seconds from one run to the next.
    #[serde(default)]
    pub period_seconds: u32,
    /// The equal results that count towards a threshold. None before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_a_row: Option<ResultsInARow>,
    /// The runs that are kept, the newest one last.
    #[serde(default)]
    pub runs: Vec<RecordedRun>,
}

impl HistoryQuery {
    /// Whether it is about the probes of this pod.
    pub fn matches_pod(&self, namespace: &str, pod: &str) -> bool {
        let is =
            |wanted: &Option<String>, name: &str| wanted.as_deref().is_none_or(|it| it == name);
        is(&self.namespace, namespace) && is(&self.pod, pod)
    }
}

/// How many results in a row were equal, and how many turn the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResultsInARow {
    /// [`RunResult::Succeeded`] or [`RunResult::Failed`].
    pub result: RunResult,
    /// How many there were.
    pub count: u32,
    /// How many establish a verdict.
    pub threshold: u32,
}

/// `2 of 3 failures in a row`; beyond the threshold, `7 failures in a row`.
impl fmt::Display for ResultsInARow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (one, many) = match self.result {
            RunResult::Succeeded => ("success", "successes"),
            RunResult::Failed | RunResult::CannotProbe => ("failure", "failures"),
        };
        let Self {
            count, threshold, ..
        } = self;
        match (*count, *threshold) {
            (count, threshold) if count < threshold => {
                write!(f, "{count} of {threshold} {many} in a row")
            }
            (1, _) => write!(f, "1 {one}"),
            (count, _) => write!(f, "{count} {many} in a row"),
        }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedRun {
    /// The start time, by the node's clock.
    pub time: MicroTime,
    /// How long it took.
    pub duration_seconds: f64,
    /// How long it had waited for a permit before.
    #[serde(default)]
    pub waited_seconds: f64,
    /// The run's result.
    pub result: RunResult,
    /// The output of the probe, why it failed, or why it could not be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Arc<str>>,
}

/// The result of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunResult {
    /// The probe succeeded.
    Succeeded,
    /// The probe failed.
    Failed,
    /// The probe could not be run, which says nothing about the container and counts towards no threshold.
    CannotProbe,
}

impl RunResult {
    /// The result's name, as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::CannotProbe => "CannotProbe",
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    // PRB-12
    #[rstest]
    #[case(RunResult::Failed, 2, 3, "2 of 3 failures in a row")]
    #[case(RunResult::Failed, 3, 3, "3 failures in a row")]
    #[case(RunResult::Succeeded, 1, 1, "1 success")]
    #[case(RunResult::Succeeded, 9, 2, "9 successes in a row")]
    fn results_in_a_row_are_counted_towards_their_threshold(
        #[case] result: RunResult,
        #[case] count: u32,
        #[case] threshold: u32,
        #[case] expected: &str,
    ) {
        let in_a_row = ResultsInARow {
            result,
            count,
            threshold,
        };
        assert_eq!(in_a_row.to_string(), expected);
    }

    #[test]
    fn fields_of_other_versions_are_ignored_or_have_defaults() {
        let query: HistoryQuery = serde_json::from_value(json!({"pod": "p", "new": 1})).unwrap();
        assert_eq!((query.namespace, query.pod.as_deref()), (None, Some("p")));
        let probe = json!({"namespace": "ns", "pod": "p", "uid": "u", "container": "c", "marker": "m", "probe": "a",
            "runs": [{"time": "2026-01-02T03:04:05.600000Z", "durationSeconds": 0.5, "result": "Failed", "new": 1}]});
        let probe: ProbeHistory = serde_json::from_value(probe).unwrap();
        assert_eq!((probe.period_seconds, probe.runs.len()), (0, 1));
        assert_eq!(probe.runs[0].output, None);
    }
}

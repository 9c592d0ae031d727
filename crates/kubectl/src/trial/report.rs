//! The answer of `try`, and whether something is wrong.

use std::time::Duration;

use leadsman_api::PodProbeMarker;
use leadsman_core::cluster::Invalid;
use leadsman_core::podprobe::explain::{Cause, MarkChange, TrialPods, TrialRun};
use leadsman_core::podprobe::{Handler, Outcome};
use serde::Serialize;

use super::documents::MarkerCandidate;

/// The report on what a marker would do.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MarkerTrial {
    #[serde(flatten)]
    pub(super) validation: MarkerValidation,
    #[serde(flatten)]
    pub(super) pods: TrialPods,
    /// The number of pods in which its probes can be run now.
    pub(super) can_run: usize,
    /// The pods in which they were.
    pub(super) tried: Vec<PodTrial>,
    /// Objects that could not be read, and the right that is missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unread: Vec<String>,
}

/// The errors of the marker itself.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MarkerValidation {
    pub(super) namespace: String,
    pub(super) marker: String,
    /// Whether a marker of this name exists.
    pub(super) replaces: bool,
    /// All errors, field by field.
    pub(super) errors: Vec<FieldError>,
    /// Why the API server did not check it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_asked: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct FieldError {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) field: String,
    pub(super) message: String,
}

/// The probes of a marker in one pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodTrial {
    pub(super) pod: String,
    pub(super) runs: Vec<ProbeTrial>,
    /// The obstacles to its marks, were these outcomes verdicts.
    pub(super) causes: Vec<Cause>,
    /// The marks that would be written then.
    pub(super) changes: Vec<MarkChange>,
}

/// One run of one probe.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProbeTrial {
    pub(super) probe: String,
    pub(super) container: String,
    pub(super) does: String,
    /// `Succeeded`, `Failed`, or `NotRun`.
    pub(super) result: &'static str,
    /// The output of the probe, why it failed, or why it was not run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seconds: Option<f64>,
    /// How many such results in a row make a verdict.
    pub(super) threshold: u32,
    /// Whether it connected by the API server's port-forward.
    pub(super) by_port_forward: bool,
    #[serde(skip)]
    pub(super) outcome: Option<Outcome>,
}

impl MarkerValidation {
    pub(super) fn new(
        candidate: &MarkerCandidate,
        replaces: bool,
        errors: Vec<Invalid>,
        not_asked: Option<String>,
    ) -> Self {
        let mut errors: Vec<_> = errors
            .into_iter()
            .map(|error| FieldError {
                field: error.path,
                message: error.message,
            })
            .collect();
        // An error of the API server that names the field says more.
        if let (Err(error), true) = (&candidate.decoded, errors.is_empty()) {
            errors.push(FieldError {
                field: String::new(),
                message: format!("cannot be decoded: {error}"),
            });
        }
        Self {
            namespace: candidate.namespace.clone(),
            marker: candidate.name.clone(),
            replaces,
            errors,
            not_asked,
        }
    }

    /// The marker, if nothing is wrong with it.
    pub(super) fn usable_marker<'a>(
        &self,
        candidate: &'a MarkerCandidate,
    ) -> Option<&'a PodProbeMarker> {
        let decoded = candidate.decoded.as_deref().ok();
        decoded.filter(|_| self.errors.is_empty())
    }
}

impl MarkerTrial {
    /// A marker that has no pods, since it would not be stored.
    pub(super) fn invalid_trial(validation: MarkerValidation) -> Self {
        Self {
            validation,
            pods: TrialPods::default(),
            can_run: 0,
            tried: Vec::new(),
            unread: Vec::new(),
        }
    }

    /// The causes of a pod: after the runs if there were any, else before.
    pub(super) fn causes_of_pod<'a>(&'a self, pod: &'a str) -> &'a [Cause] {
        if let Some(tried) = self.tried.iter().find(|tried| tried.pod == pod) {
            return &tried.causes;
        }
        let mut selected = self.pods.selected.iter();
        let pod = selected.find(|selected| selected.name == pod);
        pod.map_or(&[], |pod| &pod.causes)
    }
}

impl ProbeTrial {
    pub(super) fn new(
        run: &TrialRun,
        outcome: Result<(Outcome, Option<Duration>), String>,
    ) -> Self {
        let (outcome, took) = match outcome {
            Ok((outcome, took)) => (Ok(outcome), took),
            Err(reason) => (Err(reason), None),
        };
        let (result, message, threshold) = match &outcome {
            Ok(Outcome::Succeeded(message)) => ("Succeeded", message, run.success_threshold),
            Ok(Outcome::Failed(message)) => ("Failed", message, run.failure_threshold),
            Err(reason) => ("NotRun", reason, 0),
        };
        Self {
            probe: run.probe.clone(),
            container: run.container.clone(),
            does: run.does.clone(),
            result,
            message: message.trim_end().to_owned(),
            seconds: took.map(|took| took.as_secs_f64()),
            threshold,
            by_port_forward: !matches!(run.handler, Handler::Exec { .. }),
            outcome: outcome.ok(),
        }
    }
}

/// How many things are wrong: errors of markers, a selector that selects nothing, what stays in the way until somebody does
/// something, runs that could not be made. That a probe fails is not wrong: it may be what is to be found out.
pub(super) fn count_problems(trials: &[MarkerTrial]) -> usize {
    let of_one = |trial: &MarkerTrial| {
        let is_valid = trial.validation.errors.is_empty();
        let selects_none = is_valid && trial.pods.selected.is_empty();
        let mut causes = Vec::new();
        for pod in &trial.pods.selected {
            let found = trial.causes_of_pod(&pod.name).iter();
            for cause in found.filter(|cause| !cause.resolves) {
                let key = (cause.reason, &cause.marker, &cause.probe);
                if !causes.contains(&key) {
                    causes.push(key);
                }
            }
        }
        let runs = trial.tried.iter().flat_map(|tried| &tried.runs);
        let not_run = runs.filter(|run| run.outcome.is_none()).count();
        trial.validation.errors.len() + usize::from(selects_none) + causes.len() + not_run
    };
    trials.iter().map(of_one).sum()
}

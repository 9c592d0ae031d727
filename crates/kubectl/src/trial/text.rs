//! The answer of `try` as text.

use leadsman_core::podprobe::explain::{Cause, CauseReason, MarkChange};

use super::Trials;
use super::report::{MarkerTrial, PodTrial, ProbeTrial};
use crate::report::{Report, Text, bad, bold, good, line, verdict, waiting};
use crate::text::after_colon;

impl Report for Trials {
    fn add_text(&self, text: &mut Text) {
        for trial in &self.markers {
            text.add_gap();
            add_marker(text, trial);
        }
        let tried = self.markers.iter().flat_map(|trial| &trial.tried);
        let mut runs = tried.flat_map(|tried| &tried.runs);
        if runs.any(|run| run.by_port_forward && run.outcome.is_some()) {
            text.add_line(0, "\nPorts were reached by the API server's port-forward, which ends at the pod's loopback interface.");
            text.add_line(0, "The agent connects to the pod's address: a server that listens on one of the two alone answers only one of them.");
        }
    }

    fn names(&self) -> Vec<String> {
        let pods = self.markers.iter().flat_map(|trial| &trial.pods.selected);
        pods.map(|pod| format!("pod/{}", pod.name)).collect()
    }
}

fn add_marker(text: &mut Text, trial: &MarkerTrial) {
    let validation = &trial.validation;
    let state = match (validation.errors.len(), validation.replaces) {
        (0, false) => format!("{}, new", good("valid")),
        (0, true) => format!("{}, replaces the one that exists", good("valid")),
        (1, _) => bad("invalid"),
        (count, _) => format!("{}, {count} errors", bad("invalid")),
    };
    let name = format!("Marker {}/{}", validation.namespace, validation.marker);
    line!(text, 0 => "{}: {state}", bold(name));
    if let Some(why) = &validation.not_asked {
        line!(text, 2 => "{}: {why}", waiting("not checked by the API server"));
    }
    for error in &validation.errors {
        let colon = if error.field.is_empty() { "" } else { ": " };
        line!(text, 2 => "{}{colon}{}", error.field, error.message);
    }
    if !validation.errors.is_empty() {
        return;
    }
    add_selected(text, trial);
    add_obstacles(text, trial);
    for tried in &trial.tried {
        add_pod(text, tried);
    }
    let (ran, can) = (trial.tried.len(), trial.can_run);
    if ran < can {
        line!(text, 0 => "\nThe probes were run in {ran} of {can} pods (--sample for more).");
    }
    text.add_unread(&trial.unread);
}

fn add_selected(text: &mut Text, trial: &MarkerTrial) {
    let pods = &trial.pods;
    let (count, all) = (pods.selected.len(), pods.selected.len() + pods.not_selected);
    let matching = pods.selected.iter().filter(|pod| pod.matches).count();
    let verb = if count == 1 { "is" } else { "are" };
    match (count, &pods.nearest) {
        (0, None) => text.add_line(2, "the namespace has no pods"),
        (0, Some(nearest)) => {
            let none = bad("selects none");
            line!(text, 2 => "{none} of {all} pods; {} comes nearest", nearest.name);
            text.add_terms("the pod", &nearest.terms);
        }
        _ if matching == count => line!(text, 2 => "selects {count} of {all} pods"),
        _ => line!(text, 2 => "selects {count} of {all} pods, {matching} of which {verb} probed"),
    }
}

/// Adds what is in the way, each with the pods concerned.
fn add_obstacles(text: &mut Text, trial: &MarkerTrial) {
    let mut found: Vec<(&Cause, Vec<String>)> = Vec::new();
    for pod in &trial.pods.selected {
        for cause in trial.causes_of_pod(&pod.name) {
            // A conflict names the other marker, which may be another one for each pod.
            let is_same = |other: &Cause| {
                (other.reason, &other.marker, &other.probe)
                    == (cause.reason, &cause.marker, &cause.probe)
                    && (cause.reason != CauseReason::Conflict || other.message == cause.message)
            };
            match found.iter_mut().find(|(other, _)| is_same(other)) {
                Some((_, names)) => names.push(pod.name.clone()),
                None => found.push((cause, vec![pod.name.clone()])),
            }
        }
    }
    for (cause, names) in found {
        text.add_causes(std::slice::from_ref(cause));
        if trial.pods.selected.len() > 1 {
            line!(text, 4 => "in {}", text.format_names(&names));
        }
    }
}

fn add_pod(text: &mut Text, tried: &PodTrial) {
    text.add_heading(format_args!("Pod {}", tried.pod));
    tried.runs.iter().for_each(|run| add_run(text, run));
    let is_any_run = tried.runs.iter().any(|run| run.outcome.is_some());
    if is_any_run && tried.changes.is_empty() {
        text.add_line(2, "its marks would stay as they are");
    }
    for change in &tried.changes {
        add_mark_change(text, change);
    }
}

fn add_run(text: &mut Text, run: &ProbeTrial) {
    line!(text, 2 => "{}: {}, in container {}", run.probe, run.does, run.container);
    let message = after_colon(&run.message.replace('\n', "\n      "));
    if run.result == "NotRun" {
        line!(text, 4 => "{}{message}", waiting("not run"));
        return;
    }
    let threshold = match run.threshold {
        1 => String::new(),
        count => format!(" (a verdict after {count} in a row)"),
    };
    let took = run
        .seconds
        .map(|seconds| format!(" in {seconds:.2} s"))
        .unwrap_or_default();
    line!(text, 4 => "{}{took}{threshold}{message}", verdict(run.result));
}

/// A change as a diff has it.
fn add_mark_change(text: &mut Text, change: &MarkChange) {
    let (kind, key) = (change.kind, &change.key);
    let mark = |value: &str, message: &str| match (kind, message.trim_end()) {
        ("condition", "") => format!("{kind} {key}: {value}"),
        ("condition", message) => format!("{kind} {key}: {value}  {message:?}"),
        _ => format!("{kind} {key}={value:?}"),
    };
    if let Some(before) = &change.before {
        text.add_line(2, bad(format!("- {}", mark(before, ""))));
    }
    if let Some(after) = &change.after {
        text.add_line(2, good(format!("+ {}", mark(after, &change.message))));
    }
}

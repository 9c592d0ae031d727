//! The answer of `try` as text.

use leadsman_core::podprobe::explain::{Cause, CauseReason, MarkChange};

use super::report::{MarkerTrial, PodTrial, ProbeTrial};
use crate::table::{BAD, GOOD, HEADING, WAITING};
use crate::text::{self, TextLines};

pub(super) fn trials_text(trials: &[MarkerTrial], with_all_names: bool) -> String {
    let mut lines = TextLines::default();
    for (number, trial) in trials.iter().enumerate() {
        if number > 0 {
            lines.add_line("");
        }
        add_marker(&mut lines, trial, with_all_names);
    }
    let runs = trials.iter().flat_map(|trial| &trial.tried);
    let mut runs = runs.flat_map(|tried| &tried.runs);
    if runs.any(|run| run.by_port_forward && run.outcome.is_some()) {
        lines.add_line(
            "\nPorts were reached by the API server's port-forward, which ends at the pod's loopback interface.\n\
             The agent connects to the pod's address: a server that listens on one of the two alone answers only one of them.",
        );
    }
    lines.0
}

fn add_marker(lines: &mut TextLines, trial: &MarkerTrial, with_all_names: bool) {
    let validation = &trial.validation;
    let name = format!("{}/{}", validation.namespace, validation.marker);
    let state = match (validation.errors.len(), validation.replaces) {
        (0, false) => format!("{GOOD}valid{GOOD:#}, new"),
        (0, true) => format!("{GOOD}valid{GOOD:#}, replaces the one that exists"),
        (1, _) => format!("{BAD}invalid{BAD:#}"),
        (count, _) => format!("{BAD}invalid{BAD:#}, {count} errors"),
    };
    lines.add_line(format_args!("{HEADING}Marker {name}{HEADING:#}: {state}"));
    if let Some(why) = &validation.not_asked {
        lines.add_line(format_args!(
            "  {WAITING}not checked by the API server{WAITING:#}: {why}"
        ));
    }
    for error in &validation.errors {
        let colon = if error.field.is_empty() { "" } else { ": " };
        lines.add_line(format_args!("  {}{colon}{}", error.field, error.message));
    }
    if !validation.errors.is_empty() {
        return;
    }
    add_selected(lines, trial);
    add_obstacles(lines, trial, with_all_names);
    for tried in &trial.tried {
        add_pod(lines, tried);
    }
    let (ran, can) = (trial.tried.len(), trial.can_run);
    if ran < can {
        lines.add_line(format_args!(
            "\nThe probes were run in {ran} of {can} pods (--sample for more)."
        ));
    }
    text::add_unread(lines, &trial.unread);
}

fn add_selected(lines: &mut TextLines, trial: &MarkerTrial) {
    let pods = &trial.pods;
    let (count, all) = (pods.selected.len(), pods.selected.len() + pods.not_selected);
    let matching = pods.selected.iter().filter(|pod| pod.matches).count();
    let verb = if count == 1 { "is" } else { "are" };
    match (count, &pods.nearest) {
        (0, None) => lines.add_line("  the namespace has no pods"),
        (0, Some(nearest)) => {
            lines.add_line(format_args!(
                "  {BAD}selects none{BAD:#} of {all} pods; {} comes nearest",
                nearest.name
            ));
            text::add_selector_terms(lines, "the pod", &nearest.terms);
        }
        _ if matching == count => lines.add_line(format_args!("  selects {count} of {all} pods")),
        _ => lines.add_line(format_args!(
            "  selects {count} of {all} pods, {matching} of which {verb} probed"
        )),
    }
}

/// What is in the way, each with the pods concerned.
fn add_obstacles(lines: &mut TextLines, trial: &MarkerTrial, with_all_names: bool) {
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
        text::add_causes(lines, std::slice::from_ref(cause));
        if trial.pods.selected.len() > 1 {
            let names = text::format_names(&names, with_all_names);
            lines.add_line(format_args!("    in {names}"));
        }
    }
}

fn add_pod(lines: &mut TextLines, tried: &PodTrial) {
    lines.add_line(format_args!("\n{HEADING}Pod {}{HEADING:#}", tried.pod));
    for run in &tried.runs {
        add_run_result(lines, run);
    }
    let is_any_run = tried.runs.iter().any(|run| run.outcome.is_some());
    if is_any_run && tried.changes.is_empty() {
        lines.add_line("  its marks would stay as they are");
    }
    for change in &tried.changes {
        add_mark_change(lines, change);
    }
}

fn add_run_result(lines: &mut TextLines, run: &ProbeTrial) {
    lines.add_line(format_args!(
        "  {}: {}, in container {}",
        run.probe, run.does, run.container
    ));
    let message = run.message.replace('\n', "\n      ");
    let colon = if message.is_empty() { "" } else { ": " };
    let (style, result) = match run.result {
        "Succeeded" => (GOOD, "Succeeded"),
        "Failed" => (BAD, "Failed"),
        _ => {
            lines.add_line(format_args!(
                "    {WAITING}not run{WAITING:#}{colon}{message}"
            ));
            return;
        }
    };
    let threshold = match run.threshold {
        1 => String::new(),
        count => format!(" (a verdict after {count} in a row)"),
    };
    let took = run.seconds.map(|seconds| format!(" in {seconds:.2} s"));
    let took = took.unwrap_or_default();
    lines.add_line(format_args!(
        "    {style}{result}{style:#}{took}{threshold}{colon}{message}"
    ));
}

/// A change as a diff has it.
fn add_mark_change(lines: &mut TextLines, change: &MarkChange) {
    let (kind, key) = (change.kind, &change.key);
    let line = |value: &str, message: &str| {
        let message = message.trim_end();
        let message = if message.is_empty() {
            String::new()
        } else {
            format!("  {message:?}")
        };
        if kind == "condition" {
            format!("{kind} {key}: {value}{message}")
        } else {
            format!("{kind} {key}={value:?}")
        }
    };
    if let Some(before) = &change.before {
        lines.add_line(format_args!("  {BAD}- {}{BAD:#}", line(before, "")));
    }
    if let Some(after) = &change.after {
        let after = line(after, &change.message);
        lines.add_line(format_args!("  {GOOD}+ {after}{GOOD:#}"));
    }
}

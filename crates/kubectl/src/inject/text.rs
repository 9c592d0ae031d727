//! The answer of `inject` as text.

use leadsman_core::sidecarset::explain::{NotSelected, SetOutcome, SetReport};
use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};

use super::{FileReport, FileReports};
use crate::report::{Report, Text, bad, bold, good, line, waiting};

/// The number of equal lines around those that differ.
const CONTEXT: usize = 3;

impl Report for FileReports<'_> {
    fn add_text(&self, text: &mut Text) {
        for report in self.reports {
            text.add_gap();
            add_pod(text, report);
        }
        text.add_unread(self.unread);
    }

    /// The sets that are injected.
    fn names(&self) -> Vec<String> {
        let sets = self.reports.iter().flat_map(|one| &one.report.sets);
        let injected = sets.filter(|set| set.outcome.is_injected());
        let names: std::collections::BTreeSet<_> = injected
            .map(|set| format!("sidecarset.apps.kruise.io/{}", set.set))
            .collect();
        names.into_iter().collect()
    }
}

fn add_pod(text: &mut Text, FileReport { pod, report }: &FileReport) {
    let injected = report.sets.iter().filter(|set| set.outcome.is_injected());
    let what = match (injected.count(), report.sets.len()) {
        (_, 0) => "there is no SidecarSet".to_owned(),
        (0, 1) => "the SidecarSet is not injected".to_owned(),
        (1, 1) => "the SidecarSet is injected".to_owned(),
        (0, all) => format!("none of {all} SidecarSets is injected"),
        (1, all) => format!("1 of {all} SidecarSets is injected"),
        (injected, all) => format!("{injected} of {all} SidecarSets are injected"),
    };
    let is_pod = pod.kind == "Pod";
    let template = if is_pod { "" } else { ", by its template" };
    let name = bold(format!("{} {}/{}", pod.kind, pod.namespace, pod.name));
    line!(text, 0 => "{name}{template}: {what}");
    for set in &report.sets {
        add_set(text, set);
    }
    if pod.object != report.pod {
        text.add_gap();
        add_diff(text, &pod.object, &report.pod);
    }
}

fn add_set(text: &mut Text, report: &SetReport) {
    let state = match &report.outcome {
        SetOutcome::Injected { revision } => format!("{}, revision {revision}", good("injected")),
        SetOutcome::LeftOut { .. } => bad("left out"),
        SetOutcome::NotSelected { .. } => "does not select it".to_owned(),
        SetOutcome::Invalid { .. } => bad("invalid"),
    };
    line!(text, 2 => "{}  {state}", report.set);
    for remark in &report.remarks {
        text.add_line(4, waiting(remark));
    }
    match &report.outcome {
        SetOutcome::NotSelected { causes } => causes.iter().for_each(|it| add_cause(text, it)),
        SetOutcome::Invalid { errors } => errors.iter().for_each(|it| text.add_line(4, it)),
        SetOutcome::Injected { .. } | SetOutcome::LeftOut { .. } => {}
    }
}

/// Why a set does not select a pod.
fn add_cause(text: &mut Text, cause: &NotSelected) {
    text.add_line(4, cause);
    let whose = match cause {
        NotSelected::NamespaceLabels { namespace, .. } => format!("namespace {namespace}"),
        _ => "the pod".to_owned(),
    };
    text.add_terms(&whose, cause.terms());
}

/// The lines of YAML that differ; all of them if wide.
fn add_diff(text: &mut Text, before: &Map<String, Value>, after: &Map<String, Value>) {
    let yaml = |pod| serde_norway::to_string(pod).unwrap_or_default();
    let (before, after) = (yaml(before), yaml(after));
    let all = before.lines().count();
    let context = if text.is_wide { all } else { CONTEXT };
    let diff = TextDiff::from_lines(&before, &after);
    for (number, group) in diff.grouped_ops(context).iter().enumerate() {
        if number > 0 {
            text.add_line(2, "...");
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let line = change.value().trim_end_matches('\n');
            match change.tag() {
                ChangeTag::Delete => text.add_line(0, bad(format!("- {line}"))),
                ChangeTag::Insert => text.add_line(0, good(format!("+ {line}"))),
                ChangeTag::Equal => text.add_line(2, line),
            }
        }
    }
}

//! The answer of `inject` as text.

use leadsman_core::sidecarset::explain::{NotSelected, SetOutcome, SetReport};
use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};

use super::FileReport;
use crate::table::{BAD, GOOD, HEADING, WAITING};
use crate::text::{self, TextLines};

/// So many equal lines stand around those that differ.
const CONTEXT: usize = 3;

pub(super) fn reports_text(reports: &[FileReport], unread: &[String], whole_pods: bool) -> String {
    let mut lines = TextLines::default();
    for (number, report) in reports.iter().enumerate() {
        if number > 0 {
            lines.add_line("");
        }
        add_pod(&mut lines, report, whole_pods);
    }
    text::add_unread(&mut lines, unread);
    lines.0
}

fn add_pod(lines: &mut TextLines, report: &FileReport, whole_pod: bool) {
    let FileReport { pod, report } = report;
    let injected = report.sets.iter().filter(|set| set.outcome.is_injected());
    let (injected, all) = (injected.count(), report.sets.len());
    let what = match (injected, all) {
        (_, 0) => "there is no SidecarSet".to_owned(),
        (0, 1) => "the SidecarSet is not injected".to_owned(),
        (1, 1) => "the SidecarSet is injected".to_owned(),
        (0, all) => format!("none of {all} SidecarSets is injected"),
        (1, all) => format!("1 of {all} SidecarSets is injected"),
        (injected, all) => format!("{injected} of {all} SidecarSets are injected"),
    };
    let template = if pod.kind == "Pod" {
        ""
    } else {
        ", by its template"
    };
    lines.add_line(format_args!(
        "{HEADING}{} {}/{}{HEADING:#}{template}: {what}",
        pod.kind, pod.namespace, pod.name
    ));
    for set in &report.sets {
        add_set(lines, set);
    }
    if pod.object != report.pod {
        lines.add_line("");
        add_diff(lines, &pod.object, &report.pod, whole_pod);
    }
}

fn add_set(lines: &mut TextLines, report: &SetReport) {
    let set = &report.set;
    match &report.outcome {
        SetOutcome::Injected { revision } => lines.add_line(format_args!(
            "  {set}  {GOOD}injected{GOOD:#}, revision {revision}"
        )),
        SetOutcome::LeftOut { .. } => lines.add_line(format_args!("  {set}  {BAD}left out{BAD:#}")),
        SetOutcome::NotSelected { .. } => {
            lines.add_line(format_args!("  {set}  does not select it"));
        }
        SetOutcome::Invalid { .. } => lines.add_line(format_args!("  {set}  {BAD}invalid{BAD:#}")),
    }
    for remark in &report.remarks {
        lines.add_line(format_args!("    {WAITING}{remark}{WAITING:#}"));
    }
    match &report.outcome {
        SetOutcome::NotSelected { causes } => add_not_selected(lines, causes),
        SetOutcome::Invalid { errors } => {
            for error in errors {
                lines.add_line(format_args!("    {error}"));
            }
        }
        SetOutcome::Injected { .. } | SetOutcome::LeftOut { .. } => {}
    }
}

/// Why a set does not select a pod.
pub(crate) fn add_not_selected(lines: &mut TextLines, causes: &[NotSelected]) {
    for cause in causes {
        lines.add_line(format_args!("    {cause}"));
        let whose = match cause {
            NotSelected::NamespaceLabels { namespace, .. } => format!("namespace {namespace}"),
            _ => "the pod".to_owned(),
        };
        text::add_selector_terms(lines, &whose, cause.terms());
    }
}

/// The lines of YAML that differ.
fn add_diff(
    lines: &mut TextLines,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    whole_pod: bool,
) {
    let yaml = |pod| serde_norway::to_string(pod).unwrap_or_default();
    let (before, after) = (yaml(before), yaml(after));
    let context = if whole_pod {
        before.lines().count()
    } else {
        CONTEXT
    };
    let diff = TextDiff::from_lines(&before, &after);
    for (number, group) in diff.grouped_ops(context).iter().enumerate() {
        if number > 0 {
            lines.add_line("  ...");
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let line = change.value().trim_end_matches('\n');
            match change.tag() {
                ChangeTag::Delete => lines.add_line(format_args!("{BAD}- {line}{BAD:#}")),
                ChangeTag::Insert => lines.add_line(format_args!("{GOOD}+ {line}{GOOD:#}")),
                ChangeTag::Equal => lines.add_line(format_args!("  {line}")),
            }
        }
    }
}

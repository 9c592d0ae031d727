//! An explanation as text.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_core::cluster::SelectorTerm;
use leadsman_core::podprobe::explain::{
    Cause, Explanation, MarkExplanation, MarkerExplanation, MarkerFit, Owner, PodGroup,
    ProbeExplanation, ShownVerdict, VerdictSource, format_age,
};
use leadsman_core::podprobe::history::{RecordedRun, RunResult};

use crate::table::{BAD, Cell, GOOD, HEADING, TextTable, WAITING};

/// So many names of a group are printed, unless all are asked for.
const FEW_NAMES: usize = 5;
/// So many runs of a probe; `history` prints all.
const FEW_RUNS: usize = 5;
/// So many characters of their output.
const LINE_CHARS: usize = 100;

/// Text that is written line by line; writing to a String cannot fail.
#[derive(Default)]
pub(crate) struct TextLines(pub(crate) String);

impl TextLines {
    pub(crate) fn add_line(&mut self, line: impl std::fmt::Display) {
        writeln!(self.0, "{line}").expect("writing to a String cannot fail");
    }

    pub(crate) fn add_heading(&mut self, heading: &str) {
        self.add_line(format_args!("\n{HEADING}{heading}{HEADING:#}"));
    }
}

/// One pod, with everything.
pub(crate) fn pod_text(pod: &Explanation, now: Timestamp) -> String {
    let mut lines = TextLines::default();
    lines.add_line(pod_headline(pod));
    add_causes(&mut lines, &pod.causes);
    if !pod.markers.is_empty() {
        lines.add_heading("Markers");
        for marker in &pod.markers {
            add_marker(&mut lines, marker, now);
        }
    }
    if !pod.marks.is_empty() {
        lines.add_heading("Marks");
        lines.0.push_str(&format_marks(&pod.marks, now));
    }
    add_unread(&mut lines, &pod.unread);
    lines.0
}

/// Several pods, grouped by what is in the way.
pub(crate) fn groups_text(
    groups: &[PodGroup],
    pods: &[Explanation],
    with_all_names: bool,
    now: Timestamp,
) -> String {
    if let [only] = pods {
        return pod_text(only, now);
    }
    let mut lines = TextLines::default();
    let well = groups.iter().filter(|group| group.causes.is_empty());
    let well: usize = well.map(|group| group.pods.len()).sum();
    // Pods that no marker matches are not "marked as they should be".
    if well == pods.len() && pods.iter().all(has_no_marker) {
        lines.add_line(self::format_pod_count(pods.len()));
        add_unread(&mut lines, &pods[0].unread);
        return lines.0;
    }
    lines.add_line(format_args!(
        "{} pods, {well} of them marked as they should be",
        pods.len()
    ));
    let is_complete = pods.iter().all(|pod| pod.complete);
    for group in groups {
        let count = self::format_pod_count(group.pods.len());
        // Without the objects of the nodes most causes cannot be found, which must not read as if all were well.
        let what = if group.causes.is_empty() && !is_complete {
            format!("{WAITING}marked as they should be, as far as you may read{WAITING:#}")
        } else if group.causes.is_empty() {
            format!("{GOOD}marked as they should be{GOOD:#}")
        } else {
            let reasons: Vec<_> = group
                .causes
                .iter()
                .map(|cause| cause.reason.as_str())
                .collect();
            reasons.join(", ")
        };
        lines.add_line(format_args!("\n{HEADING}{count}{HEADING:#}: {what}"));
        lines.add_line(format_args!(
            "  {}",
            format_names(&group.pods, with_all_names)
        ));
        add_causes(&mut lines, &group.causes);
    }
    // What could not be read is the same for all pods.
    let read = pods.first().map(|pod| pod.unread.as_slice());
    add_unread(&mut lines, read.unwrap_or_default());
    lines.0
}

/// How many pods.
pub(crate) fn format_pod_count(count: usize) -> String {
    match count {
        1 => "1 pod".to_owned(),
        count => format!("{count} pods"),
    }
}

/// Whether nothing is to be said of a pod's marks: it has none, and should have none.
fn has_no_marker(pod: &Explanation) -> bool {
    let is_matched = |marker: &MarkerExplanation| matches!(marker.fit, MarkerFit::Matches { .. });
    pod.causes.is_empty() && pod.marks.is_empty() && !pod.markers.iter().any(is_matched)
}

pub(crate) fn format_names(pods: &[String], all: bool) -> String {
    let shown = if all { pods.len() } else { FEW_NAMES };
    let first: Vec<_> = pods.iter().take(shown).map(String::as_str).collect();
    let more = pods.len() - first.len();
    let more = if more == 0 {
        String::new()
    } else {
        format!(" and {more} more (-o wide)")
    };
    format!("{}{more}", first.join(", "))
}

fn pod_headline(pod: &Explanation) -> String {
    let node = pod.node.as_deref().map(|node| format!(" on node {node}"));
    let phase = pod.phase.as_deref().map(|phase| format!(" ({phase})"));
    let place = format!("{}{}", node.unwrap_or_default(), phase.unwrap_or_default());
    if has_no_marker(pod) {
        return format!(
            "{HEADING}Pod {}/{}{HEADING:#}{place}",
            pod.namespace, pod.name
        );
    }
    let problems = pod.causes.iter().filter(|cause| !cause.resolves).count();
    let state = match (problems, pod.causes.len()) {
        (0, 0) if !pod.complete => {
            format!("{WAITING}marked as its verdicts say, as far as you may read{WAITING:#}")
        }
        (0, 0) => format!("{GOOD}marked as its verdicts say{GOOD:#}"),
        (0, _) => format!("{WAITING}not yet marked as it should be{WAITING:#}"),
        _ => format!("{BAD}something is in the way of its marks{BAD:#}"),
    };
    format!(
        "{HEADING}Pod {}/{}{HEADING:#}{place}: {state}",
        pod.namespace, pod.name
    )
}

pub(crate) fn add_causes(lines: &mut TextLines, causes: &[Cause]) {
    for cause in causes {
        let style = if cause.resolves { WAITING } else { BAD };
        let of = match (&cause.marker, &cause.probe) {
            (Some(marker), Some(probe)) => format!("  {marker}#{probe}"),
            (Some(marker), None) => format!("  {marker}"),
            _ => String::new(),
        };
        lines.add_line(format_args!("\n  {style}{}{style:#}{of}", cause.reason));
        // What it is, then what to do.
        for part in split_message(&cause.message) {
            lines.add_line(format_args!("    {part}"));
        }
    }
}

/// The parts of a message, which `; ` separates. What a probe printed is quoted in it, and is one part with its quotes.
fn split_message(message: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut is_quoted, mut is_escaped) = (0, false, false);
    for (at, c) in message.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_quoted,
            '"' => is_quoted = !is_quoted,
            ';' if !is_quoted && message[at..].starts_with("; ") => {
                parts.push(&message[start..at]);
                start = at + 2;
            }
            _ => {}
        }
    }
    parts.push(&message[start..]);
    parts
}

fn add_marker(lines: &mut TextLines, marker: &MarkerExplanation, now: Timestamp) {
    let name = &marker.name;
    match &marker.fit {
        MarkerFit::Matches { probes } => {
            lines.add_line(format_args!("  {name}  {GOOD}matches{GOOD:#}"));
            for probe in probes {
                add_probe(lines, probe, now);
            }
        }
        MarkerFit::DoesNotMatch { terms } => {
            lines.add_line(format_args!("  {name}  does not match"));
            self::add_selector_terms(lines, "the pod", terms);
        }
        MarkerFit::Stopped { message } => {
            lines.add_line(format_args!("  {name}  {BAD}stopped{BAD:#}: {message}"));
        }
        MarkerFit::Invalid { message } => {
            lines.add_line(format_args!("  {name}  {BAD}invalid{BAD:#}: {message}"));
        }
        MarkerFit::Undecodable { message } => {
            lines.add_line(format_args!(
                "  {name}  {BAD}cannot be decoded{BAD:#}: {message}"
            ));
        }
        MarkerFit::Deleting => lines.add_line(format_args!("  {name}  is being deleted")),
    }
    if let Some(reported) = &marker.reported {
        lines.add_line(format_args!("    its status says {reported}"));
    }
}

/// The requirements of a selector, and what `the pod` or another object has instead.
pub(crate) fn add_selector_terms(lines: &mut TextLines, whose: &str, terms: &[SelectorTerm]) {
    for term in terms {
        let (mark, style) = if term.holds {
            ("yes", GOOD)
        } else {
            ("no ", BAD)
        };
        let found = if term.found.is_empty() {
            String::new()
        } else {
            format!("   {whose} has {}", term.found)
        };
        lines.add_line(format_args!(
            "    {style}{mark}{style:#}  {}{found}",
            term.term
        ));
    }
}

fn add_probe(lines: &mut TextLines, probe: &ProbeExplanation, now: Timestamp) {
    lines.add_line(format_args!(
        "    {}: {}, in container {}",
        probe.name, probe.does, probe.container
    ));
    match &probe.verdict {
        Some(shown) => lines.add_line(format_args!("      {}", format_verdict(shown, now))),
        None => lines.add_line("      no verdict"),
    }
    if let Some(in_a_row) = probe.in_a_row {
        lines.add_line(format_args!("      {in_a_row}"));
    }
    if !probe.next.is_empty() {
        lines.add_line(format_args!("      next: {}", probe.next));
    }
    let newest = probe.runs.len().saturating_sub(FEW_RUNS);
    if let newest @ [_, ..] = &probe.runs[newest..] {
        let table = runs_table(newest, false, now);
        lines.0.push_str(&table.to_text("      ", true));
    }
}

/// Runs of a probe, the newest one last; if wide, with the time of day and all that they printed.
pub(crate) fn runs_table(runs: &[RecordedRun], is_wide: bool, now: Timestamp) -> TextTable {
    let mut table = TextTable::new(&["BEGAN", "TOOK", "WAITED", "RESULT", "OUTPUT"]);
    for run in runs {
        let style = match run.result {
            RunResult::Succeeded => GOOD,
            RunResult::Failed => BAD,
            RunResult::CannotProbe => WAITING,
        };
        let began = if is_wide {
            format!("{:.3}", run.time.0)
        } else {
            format!("{} ago", format_age(run.time.0, now))
        };
        let output = run.output.as_deref().unwrap_or_default();
        table.add_row(vec![
            began.into(),
            format_seconds(run.duration_seconds).into(),
            format_seconds(run.waited_seconds).into(),
            Cell::with_style(run.result.as_str(), style),
            one_line(output, is_wide).into(),
        ]);
    }
    table
}

/// `1.204s`, or `-` for no time at all.
pub(crate) fn format_seconds(seconds: f64) -> String {
    if seconds < 0.000_5 {
        "-".to_owned()
    } else {
        format!("{seconds:.3}s")
    }
}

/// What a probe has printed, on one line of a table.
pub(crate) fn one_line(output: &str, is_wide: bool) -> String {
    let text = output.trim_end();
    let text = text.replace('\n', "\\n").replace('\t', "\\t");
    match text.char_indices().nth(LINE_CHARS) {
        Some((end, _)) if !is_wide => format!("{}…", &text[..end]),
        _ => text,
    }
}

fn format_verdict(verdict: &ShownVerdict, now: Timestamp) -> String {
    let style = match verdict.state {
        "Succeeded" => GOOD,
        "Failed" => BAD,
        _ => WAITING,
    };
    let ago = |time: &Option<Time>| time.as_ref().map(|time| format_age(time.0, now));
    let since = ago(&verdict.since).map(|since| format!(" for {since}"));
    let probed = ago(&verdict.last_probe_time);
    let probed = probed.map(|probed| format!(", last reported run {probed} ago"));
    let by = match verdict.source {
        VerdictSource::Report => "",
        VerdictSource::Condition => ", by the pod's condition",
    };
    let message = verdict.message.trim_end().replace('\n', "\n        ");
    let colon = if message.is_empty() { "" } else { ": " };
    let (since, probed) = (since.unwrap_or_default(), probed.unwrap_or_default());
    format!(
        "{style}{}{style:#}{since}{probed}{by}{colon}{message}",
        verdict.state
    )
}

fn format_marks(marks: &[MarkExplanation], now: Timestamp) -> String {
    let mut table = TextTable::new(&[
        "KIND",
        "KEY",
        "ON THE POD",
        "SHOULD BE",
        "SET BY",
        "WRITTEN BY",
    ]);
    for mark in marks {
        // In quotes, so that an empty value and blanks can be seen.
        let value = mark
            .value
            .as_ref()
            .map_or("absent".to_owned(), |value| format!("{value:?}"));
        let style = if mark.differs { BAD } else { GOOD };
        let owners: Vec<_> = mark
            .owners
            .iter()
            .map(|one| format_owner(one, now))
            .collect();
        table.add_row(vec![
            mark.kind.into(),
            mark.key.clone().into(),
            Cell::with_style(value, style),
            mark.wanted.clone().into(),
            mark.set_by.clone().unwrap_or_else(|| "-".to_owned()).into(),
            owners.join("; ").into(),
        ]);
    }
    table.to_text("  ", true)
}

fn format_owner(owner: &Owner, now: Timestamp) -> String {
    let slash = if owner.subresource.is_empty() {
        ""
    } else {
        "/"
    };
    let when = owner
        .time
        .as_ref()
        .map(|time| format!(", {} ago", format_age(time.0, now)));
    let when = when.unwrap_or_default();
    format!(
        "{} ({}{slash}{}{when})",
        owner.manager, owner.operation, owner.subresource
    )
}

pub(crate) fn add_unread(lines: &mut TextLines, unread: &[String]) {
    if unread.is_empty() {
        return;
    }
    lines.add_heading("Not read");
    for why in unread {
        lines.add_line(format_args!("  {why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::split_message;

    #[test]
    fn what_a_probe_printed_is_not_taken_apart() {
        let message = r#"it fails with "a; \"b; c"; raise it; or not"#;
        let expected = [r#"it fails with "a; \"b; c""#, "raise it", "or not"];
        assert_eq!(split_message(message), expected);
    }
}

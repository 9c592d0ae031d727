//! An explanation of pods as text.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_core::podprobe::explain::{
    Cause, Explanation, MarkExplanation, MarkerExplanation, MarkerFit, Owner, PodGroup,
    ProbeExplanation, ShownVerdict, VerdictSource,
};
use leadsman_core::podprobe::history::{RecordedRun, RunResult};

use crate::report::{
    Text, TextTable, bad, bold, count_pods, format_seconds, good, line, or_dash, row, verdict,
    waiting,
};

/// The most runs of a probe that are shown; `history` prints all.
const FEW_RUNS: usize = 5;

impl Text {
    /// One pod, with everything.
    pub(crate) fn add_pod(&mut self, pod: &Explanation) {
        self.add_line(0, pod_headline(pod));
        self.add_causes(&pod.causes);
        if !pod.markers.is_empty() {
            self.add_heading("Markers");
        }
        for marker in &pod.markers {
            self.add_marker(marker);
        }
        if !pod.marks.is_empty() {
            self.add_heading("Marks");
            self.add_marks(&pod.marks);
        }
        self.add_unread(&pod.unread);
    }

    /// Several pods, grouped by what is in the way.
    pub(crate) fn add_groups(&mut self, groups: &[PodGroup], pods: &[Explanation]) {
        let well: usize = groups
            .iter()
            .filter(|group| group.causes.is_empty())
            .map(|group| group.pods.len())
            .sum();
        let all = count_pods(pods.len());
        // Pods that no marker matches are not "marked as they should be".
        if well == pods.len() && pods.iter().all(has_no_marker) {
            self.add_line(0, all);
        } else {
            line!(self, 0 => "{all}, {well} of them marked as they should be");
            let is_complete = pods.iter().all(|pod| pod.complete);
            for group in groups {
                self.add_group(group, is_complete);
            }
        }
        // The list of what could not be read is the same for all pods.
        self.add_unread(pods.first().map_or(&[], |pod| &pod.unread));
    }

    fn add_group(&mut self, PodGroup { causes, pods }: &PodGroup, is_complete: bool) {
        let what = match causes.as_slice() {
            // Most causes cannot be found without the objects of the nodes: their absence must not read as if all were well.
            [] if !is_complete => waiting("marked as they should be, as far as you may read"),
            [] => good("marked as they should be"),
            causes => {
                let reasons = causes.iter().map(|cause| cause.reason.as_str());
                reasons.collect::<Vec<_>>().join(", ")
            }
        };
        line!(self, 0 => "\n{}: {what}", bold(count_pods(pods.len())));
        self.add_line(2, self.format_names(pods));
        self.add_causes(causes);
    }

    pub(crate) fn add_causes(&mut self, causes: &[Cause]) {
        for cause in causes {
            let style = if cause.resolves { waiting } else { bad };
            let of = match (&cause.marker, &cause.probe) {
                (Some(marker), Some(probe)) => format!("  {marker}#{probe}"),
                (Some(marker), None) => format!("  {marker}"),
                _ => String::new(),
            };
            self.add_gap();
            line!(self, 2 => "{}{of}", style(&cause.reason));
            // The message says what it is, then what to do.
            for part in split_message(&cause.message) {
                self.add_line(4, part);
            }
        }
    }

    fn add_marker(&mut self, marker: &MarkerExplanation) {
        let name = &marker.name;
        let (state, message) = match &marker.fit {
            MarkerFit::Matches { .. } => (good("matches"), ""),
            MarkerFit::DoesNotMatch { .. } => ("does not match".to_owned(), ""),
            MarkerFit::Stopped { message } => (bad("stopped"), message.as_str()),
            MarkerFit::Invalid { message } => (bad("invalid"), message.as_str()),
            MarkerFit::Undecodable { message } => (bad("cannot be decoded"), message.as_str()),
            MarkerFit::Deleting => ("is being deleted".to_owned(), ""),
        };
        line!(self, 2 => "{name}  {state}{}", after_colon(message));
        match &marker.fit {
            MarkerFit::Matches { probes } => probes.iter().for_each(|it| self.add_probe(it)),
            MarkerFit::DoesNotMatch { terms } => self.add_terms("the pod", terms),
            _ => {}
        }
        if let Some(reported) = &marker.reported {
            line!(self, 4 => "its status says {reported}");
        }
    }

    fn add_probe(&mut self, probe: &ProbeExplanation) {
        let (name, does, container) = (&probe.name, &probe.does, &probe.container);
        line!(self, 4 => "{name}: {does}, in container {container}");
        match &probe.verdict {
            Some(shown) => self.add_verdict(shown),
            None => self.add_line(6, "no verdict"),
        }
        if let Some(in_a_row) = probe.in_a_row {
            self.add_line(6, in_a_row);
        }
        if !probe.next.is_empty() {
            line!(self, 6 => "next: {}", probe.next);
        }
        let newest = probe.runs.len().saturating_sub(FEW_RUNS);
        if let newest @ [_, ..] = &probe.runs[newest..] {
            self.add_table(6, &self.runs_table(newest, false));
        }
    }

    /// Runs of a probe, the newest one last; if wide, with the time of day and all that they printed.
    pub(crate) fn runs_table(&self, runs: &[RecordedRun], is_wide: bool) -> TextTable {
        let mut table = TextTable::new(&["BEGAN", "TOOK", "WAITED", "RESULT", "OUTPUT"]);
        for run in runs {
            let style = match run.result {
                RunResult::Succeeded => good,
                RunResult::Failed => bad,
                RunResult::CannotProbe => waiting,
            };
            let began = if is_wide {
                format!("{:.3}", run.time.0)
            } else {
                format!("{} ago", self.format_age(run.time.0))
            };
            let took = format_seconds(run.duration_seconds);
            let waited = format_seconds(run.waited_seconds);
            let output = self.one_line(run.output.as_deref().unwrap_or_default());
            row!(table => began, took, waited, style(run.result.as_str()), output);
        }
        table
    }

    fn add_verdict(&mut self, shown: &ShownVerdict) {
        let age = |time: &Option<Time>| time.as_ref().map(|time| self.format_age(time.0));
        let since = age(&shown.since).map(|age| format!(" for {age}"));
        let probed =
            age(&shown.last_probe_time).map(|age| format!(", last reported run {age} ago"));
        let by = match shown.source {
            VerdictSource::Report => "",
            VerdictSource::Condition => ", by the pod's condition",
        };
        let message = shown.message.trim_end().replace('\n', "\n        ");
        let (since, probed) = (since.unwrap_or_default(), probed.unwrap_or_default());
        let state = verdict(shown.state);
        line!(self, 6 => "{state}{since}{probed}{by}{}", after_colon(&message));
    }

    fn add_marks(&mut self, marks: &[MarkExplanation]) {
        let mut table = TextTable::new(&[
            "KIND",
            "KEY",
            "ON THE POD",
            "SHOULD BE",
            "SET BY",
            "WRITTEN BY",
        ]);
        for mark in marks {
            let style = if mark.differs { bad } else { good };
            // Quotes show an empty value and blanks.
            let value = mark
                .value
                .as_ref()
                .map_or("absent".to_owned(), |value| format!("{value:?}"));
            let owners: Vec<_> = mark
                .owners
                .iter()
                .map(|one| self.format_owner(one))
                .collect();
            let (set_by, owners) = (or_dash(mark.set_by.as_ref()), owners.join("; "));
            row!(table => mark.kind, mark.key, style(value), mark.wanted, set_by, owners);
        }
        self.add_table(2, &table);
    }

    fn format_owner(&self, owner: &Owner) -> String {
        let (manager, operation, below) = (&owner.manager, &owner.operation, &owner.subresource);
        let slash = if below.is_empty() { "" } else { "/" };
        let when = owner
            .time
            .as_ref()
            .map(|time| self.format_age(time.0))
            .map_or_else(String::new, |age| format!(", {age} ago"));
        format!("{manager} ({operation}{slash}{below}{when})")
    }
}

/// A colon and the text, if there is any.
pub(crate) fn after_colon(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!(": {text}")
    }
}

/// Whether nothing is to be said of a pod's marks: it has none, and should have none.
fn has_no_marker(pod: &Explanation) -> bool {
    let is_matched = |marker: &MarkerExplanation| matches!(marker.fit, MarkerFit::Matches { .. });
    pod.causes.is_empty() && pod.marks.is_empty() && !pod.markers.iter().any(is_matched)
}

fn pod_headline(pod: &Explanation) -> String {
    let node = pod.node.as_deref().map(|node| format!(" on node {node}"));
    let phase = pod.phase.as_deref().map(|phase| format!(" ({phase})"));
    let name = bold(format_args!("Pod {}/{}", pod.namespace, pod.name));
    let place = format!(
        "{name}{}{}",
        node.unwrap_or_default(),
        phase.unwrap_or_default()
    );
    if has_no_marker(pod) {
        return place;
    }
    let problems = pod.causes.iter().filter(|cause| !cause.resolves).count();
    let state = match (problems, pod.causes.len()) {
        (0, 0) if !pod.complete => waiting("marked as its verdicts say, as far as you may read"),
        (0, 0) => good("marked as its verdicts say"),
        (0, _) => waiting("not yet marked as it should be"),
        _ => bad("something is in the way of its marks"),
    };
    format!("{place}: {state}")
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

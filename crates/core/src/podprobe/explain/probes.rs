//! What is known of each probe of a matching marker.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::explanation::{ProbeExplanation, ShownVerdict, VerdictSource};
use super::{PodContext, words};
use crate::cluster::{Selector, SelectorTerm};
use crate::podprobe::index::InspectedProbe;
use crate::podprobe::marker::{Marker, MarkerProbe};
use crate::podprobe::probe::State;
use crate::podprobe::verdict::Verdict;

impl PodContext<'_> {
    pub(super) fn explain_probe(
        &self,
        marker: &Marker,
        probe: &MarkerProbe,
        inspected: &InspectedProbe,
    ) -> ProbeExplanation {
        let verdict = match &inspected.verdict {
            Some(verdict) => Some(to_shown_verdict(verdict, VerdictSource::Report)),
            None if self.cluster.knows_nodes => None,
            None => {
                let verdict = self.verdict_in_condition(probe);
                verdict.map(|verdict| to_shown_verdict(&verdict, VerdictSource::Condition))
            }
        };
        let next = match &verdict {
            None => self
                .describe_first_verdict(marker, probe, inspected)
                .unwrap_or_default(),
            Some(verdict) => describe_next_verdict(verdict.state, probe),
        };
        ProbeExplanation {
            name: probe.name.to_string(),
            container: probe.container.to_string(),
            does: words::describe_probe(probe),
            verdict,
            in_a_row: None,
            runs: Vec::new(),
            next,
        }
    }

    /// The verdict as the pod's condition shows it, which the manager wrote.
    pub(super) fn verdict_in_condition(&self, probe: &MarkerProbe) -> Option<Verdict> {
        let kind = probe.condition_type.as_ref()?;
        let pod = self.inspected.pod;
        let condition = pod.conditions.get(kind)?;
        let state = match &*condition.status {
            "True" => State::Succeeded,
            "False" => State::Failed,
            _ => State::Unknown,
        };
        Some(Verdict {
            since: condition.last_transition_time,
            probed: condition.last_probe_time,
            ..Verdict::new(state, condition.message.clone())
        })
    }

    /// A selector, requirement by requirement.
    pub(super) fn selector_terms(&self, selector: &Selector) -> Vec<SelectorTerm> {
        let labels = &self.inspected.pod.labels;
        selector.terms(|| labels.iter().map(|(key, value)| (&**key, &**value)))
    }
}

fn to_shown_verdict(verdict: &Verdict, source: VerdictSource) -> ShownVerdict {
    let time = |time: Option<Timestamp>| time.map(Time);
    ShownVerdict {
        state: verdict.state.as_str(),
        source,
        since: time(verdict.since),
        last_probe_time: time(verdict.probed),
        message: verdict.message.to_string(),
    }
}

/// What turns a verdict.
fn describe_next_verdict(state: &str, probe: &MarkerProbe) -> String {
    let template = &probe.template;
    let period = template.period_seconds.get();
    let after = |count: u32, what: &str, turns: &str| match count {
        1 => format!("the next {what} turns it to {turns} (one run every {period} s)"),
        count => format!("{count} {what}s in a row turn it to {turns} (one run every {period} s)"),
    };
    let succeeded = || after(template.success_threshold.get(), "success", "Succeeded");
    let failed = || after(template.failure_threshold.get(), "failure", "Failed");
    match state {
        "Succeeded" => failed(),
        "Failed" => succeeded(),
        _ => format!("{}; {}", succeeded(), failed()),
    }
    .replace("successs", "successes")
}

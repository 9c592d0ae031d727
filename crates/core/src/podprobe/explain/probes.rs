//! The probes of a matching marker: what is known of each, what its agent tells of recent runs beside that, and whether the
//! agent of the pod's node runs.
//!
//! A marker's status says that an agent is missing or not Ready when that has lasted for two minutes, since each change of
//! a status is a write and a roll-out replaces all agents. An explanation writes nothing and need not wait.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::slim::Pod;

use super::explanation::CauseReason;
use super::explanation::{
    Cause, Explanation, MarkerFit, ProbeExplanation, ShownVerdict, VerdictSource,
};
use super::{PodContext, words};
use crate::cluster::{Selector, SelectorTerm};
use crate::podprobe::history::ProbeHistory;
use crate::podprobe::index::AgentState;
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
            since: condition.last_transition_time.map(Into::into),
            probed: condition.last_probe_time.map(Into::into),
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

/// The results that turn a verdict, in words.
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

impl PodContext<'_> {
    /// The cause if the node has no agent, or one that is not Ready.
    pub(super) fn agent_cause(&self) -> Option<Cause> {
        let node = self.inspected.pod.node.as_deref()?;
        let is_told = self.inspected.agent != AgentState::Reporting;
        // The probes have this cause already then, in the words of the marker's status.
        if is_told || !self.inspected.has_entries {
            return None;
        }
        let all = &self.cluster.agents;
        let own: Vec<_> = all
            .iter()
            .filter(|pod| pod.spec.node_name.as_deref() == Some(node))
            .collect();
        match own.as_slice() {
            // Agents need not be pods.
            [] if all.is_empty() => None,
            [] => Some(Cause::new_problem(
                CauseReason::NoAgent,
                format!(
                    "no pod of leadsman's agent is on node {node}, so nothing is probed there; check that the DaemonSet leadsman-agent tolerates the node's taints and selects its labels"
                ),
            )),
            [agent, ..] if !own.iter().any(|pod| is_ready(pod)) => {
                Some(agent_not_ready_cause(agent, node))
            }
            _ => None,
        }
    }
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.conditions.iter();
    conditions.any(|one| one.type_ == "Ready" && one.status == "True")
}

/// The cause if an agent's pod is not Ready. It resolves by itself in a roll-out; if it lasts, the agent counts as silent.
fn agent_not_ready_cause(agent: &Pod, node: &str) -> Cause {
    let name = agent.identity.name.as_deref().unwrap_or_default();
    let namespace = agent.identity.namespace.as_deref().unwrap_or_default();
    let states = agent.status.container_statuses.iter().map(|one| &one.state);
    let mut reasons = states.filter_map(|state| state.waiting.as_ref()?.reason.as_deref());
    let reason = reasons.next().map(|reason| format!(" ({reason})"));
    Cause::new_resolving(
        CauseReason::AgentNotReady,
        format!(
            "the agent's pod {name} on node {node} is not Ready{}, so no verdict there changes; if it stays so, its events and log say why, such as a container runtime that cannot be reached: kubectl -n {namespace} describe pod {name}, kubectl -n {namespace} logs {name}",
            reason.unwrap_or_default()
        ),
    )
}

impl Explanation {
    /// Adds the recent runs of this pod's probes; those of others are passed over.
    pub fn add_recent_runs(&mut self, history: &[ProbeHistory]) {
        for recent in history {
            // The runs of a recreated pod's predecessor are kept for a while.
            if *recent.namespace != self.namespace
                || *recent.pod != self.name
                || *recent.uid != self.uid
            {
                continue;
            }
            if let Some(probe) = self.probe_mut(&recent.marker, &recent.probe) {
                probe.in_a_row = recent.in_a_row;
                probe.runs.clone_from(&recent.runs);
            }
            self.count_towards_threshold(recent);
        }
    }

    fn probe_mut(&mut self, marker: &str, probe: &str) -> Option<&mut ProbeExplanation> {
        let mut markers = self.markers.iter_mut();
        let marker = markers.find(|one| one.name == marker)?;
        match &mut marker.fit {
            MarkerFit::Matches { probes } => probes.iter_mut().find(|one| one.name == probe),
            _ => None,
        }
    }

    /// A verdict that is not there yet: how far it is.
    fn count_towards_threshold(&mut self, recent: &ProbeHistory) {
        let Some(in_a_row) = recent.in_a_row else {
            return;
        };
        let waits =
            |reason| [CauseReason::ThresholdNotReached, CauseReason::NoVerdict].contains(&reason);
        let causes = self.causes.iter_mut().filter(|cause| {
            waits(cause.reason)
                && cause.marker.as_deref() == Some(&*recent.marker)
                && cause.probe.as_deref() == Some(&*recent.probe)
        });
        for cause in causes {
            cause.message = format!("{}; so far {in_a_row}", cause.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::explanation::Cause;
    use super::super::{MarkerExplanation, PodGroup, group_by_causes};
    use super::*;

    fn explanation() -> Explanation {
        let probe = ProbeExplanation {
            name: "idle".to_owned(),
            container: "main".to_owned(),
            does: "exec idle".to_owned(),
            verdict: None,
            in_a_row: None,
            runs: Vec::new(),
            next: String::new(),
        };
        let cause = Cause {
            marker: Some("m".to_owned()),
            probe: Some("idle".to_owned()),
            ..Cause::new_resolving(CauseReason::ThresholdNotReached, "no verdict yet")
        };
        Explanation {
            namespace: "ns".to_owned(),
            name: "p".to_owned(),
            uid: "u".to_owned(),
            complete: true,
            node: None,
            phase: None,
            causes: vec![cause],
            markers: vec![MarkerExplanation {
                name: "m".to_owned(),
                fit: MarkerFit::Matches {
                    probes: vec![probe],
                },
                reported: None,
            }],
            marks: Vec::new(),
            unread: Vec::new(),
        }
    }

    fn history(pod: &str, probe: &str) -> ProbeHistory {
        let history = json!({"namespace": "ns", "pod": pod, "uid": "u", "container": "main", "marker": "m", "probe": probe,
            "inARow": {"result": "Failed", "count": 2, "threshold": 3},
            "runs": [{"time": "2026-01-02T03:04:05.000000Z", "durationSeconds": 0.5, "result": "Failed"}]});
        serde_json::from_value(history).unwrap()
    }

    // PRB-12, PRB-26
    #[test]
    fn recent_runs_are_told_beside_their_probe_and_counted_towards_its_threshold() {
        let mut explained = explanation();
        let untouched = explained.clone();
        let of_predecessor = ProbeHistory {
            uid: "before".into(),
            ..history("p", "idle")
        };
        let others = [
            history("other", "idle"),
            history("p", "another"),
            of_predecessor,
        ];
        explained.add_recent_runs(&others);
        assert_eq!(explained, untouched);
        explained.add_recent_runs(&[history("p", "idle")]);
        let MarkerFit::Matches { probes } = &explained.markers[0].fit else {
            panic!("{explained:?}");
        };
        assert_eq!(probes[0].runs.len(), 1);
        let expected = "no verdict yet; so far 2 of 3 failures in a row";
        assert_eq!(explained.causes[0].message, expected);
        let groups: Vec<PodGroup> = group_by_causes(&[explained]);
        assert_eq!(groups.len(), 1);
    }
}

//! The status that each marker should have: its counts, its condition and the message of that.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use leadsman_api::PodProbeMarker;
use leadsman_api::marker::ProbeSummary;
use serde_json::json;

use super::super::pod::SimPod;
use super::marker::{marks_of, refusal};
use super::{Model, Row};
use crate::cluster::ObjectName;

/// What the status of a marker should count.
#[derive(Default)]
struct ExpectedCounts {
    matched: i64,
    probes: Vec<ProbeSummary>,
    /// Subjects by the place of the reason.
    troubles: BTreeMap<usize, BTreeSet<String>>,
    /// Pods without a verdict by the place of the reason.
    pending: BTreeMap<usize, i64>,
}

impl ExpectedCounts {
    fn add_trouble(&mut self, reason: &str, subject: &str) {
        let subjects = self.troubles.entry(place_of(reason)).or_default();
        subjects.insert(subject.to_owned());
    }

    /// The message of a marker that is acted on names its weightiest trouble, and how far its pods are probed.
    fn check_message(&self, name: &ObjectName, message: &str, faults: &mut Vec<String>) {
        let subjects = self.troubles.values().next().into_iter().flatten();
        for named in subjects.take(3) {
            if !message.contains(named) {
                faults.push(format!("{name}: {message} should name {named:?}"));
            }
        }
        let progress = progress(self.matched, &self.pending);
        let tells_progress = self.troubles.is_empty() || !self.pending.is_empty();
        if tells_progress && !message.ends_with(&progress) {
            faults.push(format!("{name}: {message} should end with {progress}"));
        }
    }
}

/// How many pods have a verdict, and why the others have none.
fn progress(matched: i64, pending: &BTreeMap<usize, i64>) -> String {
    if matched == 0 {
        return "no pod matches".to_owned();
    }
    if pending.is_empty() {
        return "all matching pods have their verdicts".to_owned();
    }
    let sum: i64 = pending.values().sum();
    let reasons = pending.iter();
    let reasons = reasons.map(|(place, count)| format!("{count} {}", REASONS[*place]));
    let reasons = reasons.collect::<Vec<_>>().join(", ");
    let probed = matched - sum;
    format!("{probed} of {matched} matching pods have their verdicts; {sum} pending: {reasons}")
}

fn place_of(reason: &str) -> usize {
    REASONS.iter().position(|one| *one == reason).unwrap()
}

/// The markers that have marks which this row names: the first row that names a mark has it.
fn winners<'a>(pod: &SimPod, rows: &[Row<'a>], row: &Row<'a>) -> Vec<&'a ObjectName> {
    if !pod.has_container(row.probe) {
        return Vec::new();
    }
    let rivals = rows.iter().take_while(|rival| !std::ptr::eq(*rival, row));
    let rivals = rivals.filter(|rival| pod.has_container(rival.probe));
    let mut theirs: BTreeMap<String, &ObjectName> = BTreeMap::new();
    for rival in rivals {
        for key in marks_of(rival.probe) {
            theirs.entry(key).or_insert(rival.marker);
        }
    }
    let named = marks_of(row.probe).into_iter();
    named.filter_map(|key| theirs.get(&key).copied()).collect()
}

const REASONS: [&str; 14] = [
    "Conflict",
    "ContainerNotFound",
    "PortNotFound",
    "NoConditionType",
    "TooManyProbes",
    "NoNode",
    "VirtualNode",
    "NoAgent",
    "AgentSilent",
    "CannotProbe",
    "NoAddress",
    "StartupProbe",
    "Starting",
    "AwaitingProvider",
];

impl<'a> Model<'a> {
    /// The agent of a node that was asked something: whether it does not report any more, and whether it was never
    /// there to take up what was asked last.
    fn agent_state(&self, node: &str) -> (bool, bool) {
        let (grace, now) = (SignedDuration::from_mins(2), self.cluster.now);
        let agents = self.cluster.pods.iter().filter(|(name, pod)| {
            name.namespace == "leadsman-system"
                && pod.node.as_deref() == Some(node)
                && pod.is_active()
        });
        let mut agents = agents.map(|(_, pod)| pod).peekable();
        if agents.peek().is_some() {
            let silent = agents.all(|pod| !pod.ready && pod.ready_since + grace <= now);
            return (silent, false);
        }
        let Some(object) = self.cluster.node_pod_probes.get(node) else {
            return (false, false);
        };
        let statuses = object.status.iter();
        let states = statuses
            .flat_map(|status| &status.pod_probe_statuses)
            .flat_map(|pod| &pod.probe_states);
        let probed = states.filter_map(|state| state.last_probe_time.as_ref());
        let meta = &object.metadata;
        let written = |subresource: &str| {
            let entries = meta.managed_fields.iter().flatten();
            let own = entries.filter(|entry| entry.subresource.as_deref() == Some(subresource));
            own.filter_map(|entry| entry.time.clone())
                .collect::<Vec<_>>()
        };
        let (by_agent, by_manager) = (written("status"), written(""));
        let reported = probed.chain(&by_agent).map(|time| time.0).max();
        let asked = by_manager.iter().chain(&meta.creation_timestamp);
        let asked = asked.map(|time| time.0).max();
        let silent_after = SignedDuration::from_mins(20);
        let silent = reported.is_some_and(|reported| reported + silent_after <= now);
        let left = self.agents_left.get(node);
        let unanswered = asked.is_some_and(|asked| {
            reported.is_none_or(|reported| reported < asked) && asked + grace <= now
        }) && left.is_none_or(|left| *left + grace <= now);
        (silent, unanswered && !silent)
    }

    /// The agent's message if it cannot run a probe.
    fn obstacle(&self, name: &ObjectName, pod: &SimPod, row: &Row<'_>) -> Option<&'a str> {
        let statuses = &self.object(pod)?.status.as_ref()?.pod_probe_statuses;
        let own = statuses.iter().filter(|one| {
            one.uid == pod.node_uid() && one.name == name.name && one.namespace == name.namespace
        });
        let mut obstacles = own.flat_map(|one| &one.cannot_probe);
        let entry = format!("{}#{}", row.marker.name, row.probe.name);
        let found = obstacles.find(|one| one.name == entry);
        found.map(|one| one.message.as_str())
    }

    /// Why a probe has no verdict, or what is wrong though it has one.
    fn cause(&self, name: &ObjectName, pod: &SimPod, row: &Row<'_>) -> Option<&'static str> {
        if self.has_provider(pod) {
            let pending = row.injected.as_ref().err().copied();
            return self
                .verdict(name, pod, row)
                .is_none()
                .then(|| pending.unwrap_or("AwaitingProvider"));
        }
        let node = pod.node.as_deref().unwrap_or_default();
        let (silent, unanswered) = self.agent_state(node);
        let obstacle = self.obstacle(name, pod, row).is_some();
        if self.verdict(name, pod, row).is_some() {
            return if silent {
                Some("AgentSilent")
            } else {
                obstacle.then_some("CannotProbe")
            };
        }
        match row.entry {
            Err("wait") => return Some("StartupProbe"),
            Err(reason) => return Some(reason),
            Ok(_) => {}
        }
        Some(match self.cluster.nodes.get(node) {
            None => "NoNode",
            Some(true) => "VirtualNode",
            Some(false) if self.spec(node).1.contains(name) => "TooManyProbes",
            Some(false) => match &row.entry {
                Ok(_) if silent => "AgentSilent",
                Ok(_) if unanswered => "NoAgent",
                Ok(_) if obstacle => "CannotProbe",
                Ok(entry) if entry.probe.exec.is_none() && pod.ip.is_empty() => "NoAddress",
                _ => "Starting",
            },
        })
    }

    /// What the status of a marker should count.
    fn expected_counts(&self, name: &ObjectName, marker: &PodProbeMarker) -> ExpectedCounts {
        let probes = marker.spec.probes.iter().map(|probe| ProbeSummary {
            name: probe.name.clone(),
            ..ProbeSummary::default()
        });
        let mut expected = ExpectedCounts {
            probes: probes.collect(),
            ..ExpectedCounts::default()
        };
        for (pod_name, pod) in &self.cluster.pods {
            let rows = self.rows(pod_name, pod);
            let own: Vec<_> = rows.iter().filter(|row| row.marker == name).collect();
            expected.matched += i64::from(!own.is_empty());
            let mut causes = BTreeSet::new();
            for (place, row) in own.into_iter().enumerate() {
                let verdict = self.verdict(pod_name, pod, row);
                let verdict = verdict.as_ref();
                let cause = self.cause(pod_name, pod, row);
                let summary = &mut expected.probes[place];
                *match verdict.map(|verdict| verdict.state.as_str()) {
                    Some("Succeeded") => &mut summary.succeeded,
                    Some("Failed") => &mut summary.failed,
                    Some(_) => &mut summary.unknown,
                    None => &mut summary.pending,
                } += 1;
                summary.silent += i64::from(cause == Some("AgentSilent"));
                let lasting = |reason: &&str| {
                    !["Starting", "StartupProbe", "AwaitingProvider", "Conflict"].contains(reason)
                };
                if let Some(reason) = cause.filter(lasting) {
                    expected.add_trouble(reason, &pod_name.name);
                }
                causes.extend(cause.filter(|_| verdict.is_none()).map(place_of));
                for winner in winners(pod, &rows, row) {
                    expected.add_trouble("Conflict", &winner.name);
                }
            }
            if let Some(cause) = causes.first() {
                *expected.pending.entry(*cause).or_insert(0) += 1;
            }
        }
        expected
    }

    pub(super) fn check_status(
        &self,
        name: &ObjectName,
        marker: &PodProbeMarker,
        faults: &mut Vec<String>,
    ) {
        let status = marker.status.clone().unwrap_or_default();
        let expected = self.expected_counts(name, marker);
        let (matched, probes) = (expected.matched, &expected.probes);
        let generation = marker.metadata.generation.unwrap();
        let numbers =
            status.matched_pods == Some(matched) && status.observed_generation == generation;
        if self.cluster.drops_extensions {
            if !numbers {
                faults.push(format!("{name}: {matched} {generation} {}", json!(status)));
            }
            return;
        }
        let stopped = refusal(marker).or_else(|| self.why_stopped(name));
        let first = expected.troubles.first_key_value();
        let reason = stopped.or(first.map(|(place, _)| REASONS[*place]));
        let ready = reason.map_or(("True", "Probing"), |reason| ("False", reason));
        let observed = status.conditions.first();
        let observed = observed.map(|one| (one.status.as_str(), one.reason.as_str()));
        if observed != Some(ready) || status.probes != *probes || !numbers {
            faults.push(format!(
                "{name}: {} should be {ready:?} {matched} {probes:?} {generation}",
                json!(status)
            ));
        }
        if stopped.is_none()
            && let Some(condition) = status.conditions.first()
        {
            expected.check_message(name, &condition.message, faults);
        }
    }
}

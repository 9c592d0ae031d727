//! The marks that each pod should have, and whether it has them.

use std::collections::{BTreeMap, BTreeSet};

use leadsman_api::marker::PodContainerProbe;
use leadsman_api::node_pod_probe::ContainerProbeState;
use serde_json::{Value, json};

use super::super::pod::{Mark, Owner, SimPod};
use super::{Model, Row};
use crate::cluster::ObjectName;

/// Whether a condition is ours and says what a verdict says.
fn is_condition_of(mark: &Mark, verdict: &ContainerProbeState) -> bool {
    let status = match verdict.state.as_str() {
        "Succeeded" => "True",
        "Failed" => "False",
        _ => "Unknown",
    };
    mark.value["status"] == status
        && mark.value["message"].as_str().unwrap_or_default()
            == verdict.message.as_deref().unwrap_or_default()
        && mark.owners.contains(&Owner::Ours)
}

/// The labels and annotations that a probe names, each with its value by a verdict, or none.
fn wanted_pairs<'a>(
    probe: &'a PodContainerProbe,
    state: Option<&str>,
) -> [BTreeMap<&'a str, Option<&'a str>>; 2] {
    let mut wanted: [BTreeMap<&str, Option<&str>>; 2] = Default::default();
    for policy in &probe.marker_policy {
        let holds = state == Some(&policy.state);
        for (wanted, pairs) in wanted.iter_mut().zip([&policy.labels, &policy.annotations]) {
            for (key, value) in pairs {
                let before = wanted.get(key.as_str()).copied().flatten();
                wanted.insert(key, if holds { Some(value) } else { before });
            }
        }
    }
    wanted
}

/// The annotations say what the provider is to run.
fn check_annotations(name: &ObjectName, pod: &SimPod, rows: &[Row<'_>], faults: &mut Vec<String>) {
    let injected = rows.iter().filter_map(|row| row.injected.as_ref().ok());
    let injected: Vec<_> = injected.collect();
    let own = rows.iter().filter(|row| row.injected.is_ok());
    let own: BTreeSet<_> = own.map(|row| row.marker.name.as_str()).collect();
    let list = own.into_iter().collect::<Vec<_>>().join(",");
    let [probes, markers] =
        ["kruise.io/podprobe", "kruise.io/podprobemarker-list"].map(|key| pod.annotations.get(key));
    let is_right = if injected.is_empty() {
        markers.is_none() && probes.is_none_or(|mark| !mark.owners.contains(&Owner::Ours))
    } else {
        let text =
            |mark: Option<&Mark>| mark.and_then(|mark| Some(mark.value.as_str()?.to_owned()));
        let read = text(probes).and_then(|text| serde_json::from_str::<Value>(&text).ok());
        read == Some(json!(injected)) && text(markers) == Some(list)
    };
    if !is_right {
        faults.push(format!(
            "{name}: {probes:?} {markers:?} should be {}",
            json!(injected)
        ));
    }
}

impl Model<'_> {
    pub(super) fn check_marks(&self, name: &ObjectName, pod: &SimPod, faults: &mut Vec<String>) {
        let mut claimed: [BTreeSet<&str>; 3] = Default::default();
        let rows = self.rows(name, pod);
        let has_provider = self.has_provider(pod);
        if has_provider {
            check_annotations(name, pod, &rows, faults);
            claimed[1].extend(["kruise.io/podprobe", "kruise.io/podprobemarker-list"]);
        }
        let node = pod.node.as_ref();
        if self.config.serverless && node.is_some_and(|node| !self.cluster.nodes.contains_key(node))
        {
            claimed[1].extend(["kruise.io/podprobe", "kruise.io/podprobemarker-list"]);
        }
        let is_of_pod = |row: &&Row<'_>| pod.has_container(row.probe);
        let (of_pod, of_none) = rows.iter().partition::<Vec<_>, _>(is_of_pod);
        for row in of_pod.into_iter().chain(of_none) {
            let verdict = self.verdict(name, pod, row);
            let verdict = verdict.as_ref();
            // None is ours where a provider reports.
            if !has_provider
                && let Some(kind) = &row.probe.pod_condition_type
                && claimed[2].insert(kind)
                && let Some(verdict) = &verdict
            {
                let mark = pod.conditions.get(kind.as_str());
                if !mark.is_some_and(|mark| is_condition_of(mark, verdict)) {
                    faults.push(format!("{name}: condition {kind} {mark:?} for {verdict:?}"));
                }
            }
            let wanted = wanted_pairs(row.probe, verdict.map(|verdict| verdict.state.as_str()));
            let pairs = wanted.into_iter().zip([&pod.labels, &pod.annotations]);
            for (claimed, (wanted, marks)) in claimed.iter_mut().zip(pairs) {
                for (key, value) in wanted {
                    if !claimed.insert(key) || verdict.is_none() {
                        continue;
                    }
                    let mark = marks.get(key);
                    let is_right = match value {
                        None => mark.is_none(),
                        Some(value) => mark.is_some_and(|mark| {
                            mark.value == *value && mark.owners.contains(&Owner::Ours)
                        }),
                    };
                    if !is_right {
                        faults.push(format!("{name}: {key} is {mark:?}, should be {value:?}"));
                    }
                }
            }
        }
        let marks = [&pod.labels, &pod.annotations, &pod.conditions];
        for (claimed, marks) in claimed.iter().zip(marks) {
            for (key, mark) in marks {
                if mark.owners.contains(&Owner::Ours) && !claimed.contains(key.as_str()) {
                    faults.push(format!("{name}: {key} is ours, and no marker names it"));
                }
            }
        }
    }
}

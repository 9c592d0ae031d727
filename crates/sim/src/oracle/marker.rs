//! Markers: the entries of nodes, the verdicts of agents, the marks of pods and the status of markers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Probe};
use kube::ResourceExt;
use leadsman_api::PodProbeMarker;
use leadsman_api::marker::PodContainerProbe;
use leadsman_api::node_pod_probe::{ContainerProbe, ContainerProbeState, NodePodProbe};
use serde_json::json;

use leadsman_tests::oracle::{is_active, marks_after, node_of, pod_in};

use super::Oracle;
use crate::plan::ProbeAnswer;

/// The order in which a marker's status names them.
const TROUBLES: [&str; 2] = ["Conflict", "ContainerNotFound"];
/// Troubles that no marker of the simulation has.
const NEVER: [&str; 4] = ["InvalidSpec", "Cycle", "TooManyProbes", "PortNotFound"];

/// One probe of a marker on one pod.
pub(super) struct Row<'a> {
    pub(super) marker: &'a PodProbeMarker,
    pub(super) probe: &'a PodContainerProbe,
    pub(super) has_container: bool,
}

impl Row<'_> {
    pub(super) fn entry_name(&self) -> String {
        format!("{}#{}", self.marker.name_any(), self.probe.name)
    }

    /// The outcome that the command of the probe asks for.
    fn key(&self) -> usize {
        let exec = self.probe.probe.exec.as_ref();
        let command = exec.and_then(|exec| exec.command.as_ref()?.get(1));
        command.and_then(|key| key.parse().ok()).unwrap_or(0)
    }

    fn is(&self, found: &ContainerProbe) -> bool {
        found.container_name == self.probe.container_name
            && with_defaults(&found.probe) == with_defaults(&self.probe.probe)
            && found.revision.is_some()
            && found.started_container_id.is_none()
    }
}

/// Kubernetes' defaults.
fn with_defaults(probe: &Probe) -> Probe {
    let mut probe = probe.clone();
    probe.initial_delay_seconds.get_or_insert(0);
    probe.period_seconds.get_or_insert(10);
    probe.timeout_seconds.get_or_insert(1);
    probe.success_threshold.get_or_insert(1);
    probe.failure_threshold.get_or_insert(3);
    probe
}

impl Oracle<'_> {
    pub(super) fn rows(&self, pod: &Pod) -> Vec<Row<'_>> {
        if !is_active(pod) || !self.nodes.iter().any(|node| node == node_of(pod)) {
            return Vec::new();
        }
        let is_there = |marker: &&PodProbeMarker| marker.metadata.deletion_timestamp.is_none();
        let mut matching: Vec<_> = self.markers.iter().filter(is_there).collect();
        matching.retain(|marker| selects(marker, pod));
        matching.sort_by_key(|marker| (marker.creation_timestamp(), marker.name_any()));
        let probes = matching.into_iter().flat_map(|marker| {
            let probes = marker.spec.probes.iter();
            probes.map(move |probe| (marker, probe))
        });
        let containers: Vec<_> = pod
            .spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .map(|container| &container.name)
            .collect();
        let rows = probes.map(|(marker, probe)| Row {
            marker,
            probe,
            has_container: containers.contains(&&probe.container_name),
        });
        rows.collect()
    }

    /// The first pod that is probed, what a probe of it asks for, and how many of its probes ask for that.
    pub(crate) fn probed_key(&self) -> Option<(String, usize, usize)> {
        self.pods.iter().find_map(|pod| {
            let rows = self.rows(pod);
            let mut keys = rows.iter().filter(|row| row.has_container).map(Row::key);
            let key = keys.next()?;
            let others = keys.filter(|other| *other == key).count();
            Some((pod.name_any(), key, 1 + others))
        })
    }

    /// The objects of the nodes, and what they ask for.
    pub(super) fn check_nodes(&self, faults: &mut Vec<String>) {
        for node in &self.nodes {
            self.check_node(node, faults);
        }
        for node in self
            .node_pod_probes
            .keys()
            .filter(|node| !self.nodes.contains(node))
        {
            faults.push(format!("{node} has a NodePodProbe"));
        }
    }

    /// The object of a node that is there.
    pub(super) fn check_node(&self, node: &str, faults: &mut Vec<String>) {
        match self.node_pod_probes.get(node) {
            Some(object) => self.check_entries(node, object, faults),
            None => faults.push(format!("{node} has no NodePodProbe")),
        }
    }

    fn check_entries(&self, node: &str, object: &NodePodProbe, faults: &mut Vec<String>) {
        let mut expected = BTreeSet::new();
        for pod in self.pods.iter().filter(|pod| node_of(pod) == node) {
            let observed = pod_in(object, pod);
            for row in self.rows(pod).iter().filter(|row| row.has_container) {
                let name = row.entry_name();
                let found = observed.and_then(|it| it.probes.iter().find(|one| one.name == name));
                if !found.is_some_and(|found| row.is(found)) {
                    faults.push(format!("{node}: {name} of {} is {found:?}", pod.name_any()));
                }
                expected.insert((pod.uid().unwrap_or_default(), name));
            }
            let ip = pod
                .status
                .as_ref()
                .and_then(|status| status.pod_ip.as_deref());
            if observed.is_some_and(|it| Some(it.ip.as_str()) != ip) {
                faults.push(format!(
                    "{node}: the address of {} is not {ip:?}",
                    pod.name_any()
                ));
            }
        }
        let observed = object.spec.pod_probes.iter().flat_map(|pod| {
            let entries = pod.probes.iter();
            entries.map(|entry| (pod.uid.clone(), entry.name.clone()))
        });
        for entry in observed.filter(|entry| !expected.contains(entry)) {
            faults.push(format!("{node}: nobody asked for {entry:?}"));
        }
    }

    /// Checks that agents report what commands answer.
    pub(super) fn check_verdicts(&self, faults: &mut Vec<String>) {
        for pod in &self.pods {
            let uid = pod.uid().unwrap_or_default();
            for row in self.rows(pod).iter().filter(|row| row.has_container) {
                let ground = self.ground.lock();
                let container = ground
                    .newest(&uid, &row.probe.container_name)
                    .filter(|one| one.ended.is_none());
                let expected = match ground.answer(&pod.name_any(), row.key()) {
                    ProbeAnswer::Succeeds | ProbeAnswer::Leads(_) => "Succeeded",
                    ProbeAnswer::Fails => "Failed",
                    ProbeAnswer::CannotRun => continue,
                };
                let state = self.verdict(pod, row);
                let is_of_it =
                    state.and_then(|it| it.container_id.as_ref()) == container.map(|one| &one.id);
                if state.is_none_or(|state| state.state != expected) || !is_of_it {
                    let (pod, name) = (pod.name_any(), row.entry_name());
                    faults.push(format!(
                        "{name} of {pod} should be {expected} of {container:?}, is {state:?}"
                    ));
                }
            }
        }
    }

    pub(super) fn verdict(&self, pod: &Pod, row: &Row<'_>) -> Option<&ContainerProbeState> {
        let name = row.entry_name();
        let object = self
            .node_pod_probes
            .get(node_of(pod))
            .filter(|_| row.has_container)?;
        let entry = pod_in(object, pod)?
            .probes
            .iter()
            .find(|entry| entry.name == name)?;
        let statuses = object.status.as_ref()?.pod_probe_statuses.iter();
        let own = statuses.filter(|one| Some(&one.uid) == pod.metadata.uid.as_ref());
        let mut states = own.flat_map(|one| &one.probe_states);
        states.find(|state| state.name == name && state.revision == entry.revision)
    }

    /// The probes of a pod, as its marks follow from them.
    pub(super) fn mark_rows<'b>(
        &'b self,
        pod: &Pod,
    ) -> Vec<(&'b PodContainerProbe, bool, Option<&'b str>)> {
        let rows = self.rows(pod).into_iter();
        rows.map(|row| {
            let verdict = self.verdict(pod, &row);
            (
                row.probe,
                row.has_container,
                verdict.map(|it| it.state.as_str()),
            )
        })
        .collect()
    }

    /// The status of a marker.
    pub(super) fn check_status(&self, marker: &PodProbeMarker, faults: &mut Vec<String>) {
        let status = marker.status.clone().unwrap_or_default();
        let mut matched = 0;
        let mut counts = vec![[0; 4]; marker.spec.probes.len()];
        let mut troubles = BTreeSet::new();
        for pod in &self.pods {
            let rows = self.rows(pod);
            let own = |row: &&Row<'_>| row.marker.metadata.uid == marker.metadata.uid;
            matched += i64::from(rows.iter().any(|row| own(&row)));
            for (row, count) in rows.iter().filter(own).zip(&mut counts) {
                let verdict = self.verdict(pod, row).map(|it| it.state.as_str());
                let known = ["Succeeded", "Failed", "Unknown"];
                let place = known.iter().position(|it| Some(*it) == verdict);
                count[place.unwrap_or(3)] += 1;
                troubles.extend((!row.has_container).then_some("ContainerNotFound"));
                troubles.extend(loses(&rows, row).then_some("Conflict"));
            }
        }
        let found: Vec<_> = status
            .probes
            .iter()
            .map(|one| [one.succeeded, one.failed, one.unknown, one.pending])
            .collect();
        let generation = marker.metadata.generation.unwrap_or_default();
        let silent: i64 = status.probes.iter().map(|one| one.silent).sum();
        let numbers = (status.matched_pods, status.observed_generation);
        let mut conditions = status.conditions.iter();
        let reason = conditions
            .find(|one| one.type_ == "Ready")
            .map(|one| one.reason.as_str());
        let expected = TROUBLES.into_iter().find(|it| troubles.contains(it));
        let reason_fits = match expected {
            // A fight may be told of for a while.
            Some(trouble) => reason == Some(trouble) || reason == Some("Contested"),
            None => reason.is_some_and(|it| !TROUBLES.contains(&it) && !NEVER.contains(&it)),
        };
        if found != counts || numbers != (Some(matched), generation) || !reason_fits || silent > 0 {
            faults.push(format!(
                "{}: {} should count {matched} {counts:?}, none silent, generation {generation}, {expected:?}",
                marker.name_any(),
                json!(status)
            ));
        }
    }
}

/// Markers of the simulation select by values of `app`.
fn selects(marker: &PodProbeMarker, pod: &Pod) -> bool {
    let expressions = marker.spec.selector.match_expressions.iter().flatten();
    let values = expressions.flat_map(|one| one.values.iter().flatten());
    values
        .into_iter()
        .any(|value| pod.labels().get("app") == Some(value))
}

/// Whether a row before this one names one of its marks; rows whose containers the pod lacks are in nobody's way.
fn loses(rows: &[Row<'_>], row: &Row<'_>) -> bool {
    let own = marks_after(row.probe, None);
    let before = rows.iter().take_while(|other| !std::ptr::eq(*other, row));
    before
        .filter(|other| row.has_container && other.has_container)
        .flat_map(|other| marks_after(other.probe, None))
        .any(|(mark, _)| own.contains_key(&mark))
}

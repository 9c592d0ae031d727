//! What a namespace should look like, from the objects as they are, by the shortest code that can be read against the
//! rules of `docs/reference.md`. What only history tells (marks without a verdict) is not judged.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Probe};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use leadsman_api::marker::PodContainerProbe;
use leadsman_api::node_pod_probe::{ContainerProbe, ContainerProbeState};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_tests::oracle::{is_active, mark_faults, marks_after, node_of, pod_in};
use serde_json::json;

/// A flow's part of the cluster.
pub(crate) struct Observed<'a> {
    pub(crate) markers: &'a BTreeMap<String, PodProbeMarker>,
    pub(crate) pods: &'a BTreeMap<String, Pod>,
    /// Of the flow's own nodes.
    pub(crate) probes: &'a BTreeMap<String, NodePodProbe>,
    /// Which nodes are there and not virtual.
    pub(crate) real: &'a BTreeSet<String>,
    /// Where an agent's pod is Ready.
    pub(crate) reporting: &'a BTreeSet<String>,
}

/// What follows for one probe of a marker on one pod.
struct Row<'a> {
    marker: &'a PodProbeMarker,
    probe: &'a PodContainerProbe,
    entry: Result<Expected, &'static str>,
}

impl Row<'_> {
    /// Whether the pod has the container of the probe.
    fn has_container(&self) -> bool {
        !matches!(self.entry, Err("ContainerNotFound"))
    }
}

/// An entry that a node should have.
struct Expected {
    name: String,
    container: String,
    probe: Probe,
    gate: Gate,
}

/// What an entry says about the container that may be probed.
enum Gate {
    /// It has no startup probe.
    None,
    /// This one.
    Open(String),
    /// One before this one, which may be probed still, or none and no entry.
    Waits,
}

/// In the order in which a marker's status names them.
const TROUBLES: [&str; 3] = ["Conflict", "ContainerNotFound", "PortNotFound"];
/// What no marker of a flow is or does.
const NEVER: [&str; 3] = ["InvalidSpec", "Cycle", "TooManyProbes"];

impl<'a> Observed<'a> {
    /// All that differs from what it should be.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for node in self.real {
            if !self.probes.contains_key(node) {
                faults.push(format!("{node} has no NodePodProbe"));
            }
        }
        for (node, object) in self.probes {
            if self.real.contains(node) {
                self.check_entries(node, object, &mut faults);
            } else {
                faults.push(format!("{node} has a NodePodProbe"));
            }
        }
        for pod in self.pods.values().filter(|pod| is_active(pod)) {
            let rows = self.rows(pod).into_iter().map(|row| {
                let verdict = self.verdict(pod, &row);
                let state = verdict.map(|it| it.state.as_str());
                (row.probe, row.has_container(), state)
            });
            faults.extend(mark_faults(pod, rows));
        }
        for marker in self.markers.values() {
            self.check_status(marker, &mut faults);
        }
        faults
    }

    fn rows(&self, pod: &'a Pod) -> Vec<Row<'a>> {
        if !is_active(pod) {
            return Vec::new();
        }
        let mut matching: Vec<_> = self.markers.values().collect();
        matching.retain(|marker| selects(&marker.spec.selector, pod.labels()));
        matching.sort_by_key(|marker| (marker.creation_timestamp(), marker.name_any()));
        let probes = matching.into_iter().flat_map(|marker| {
            let probes = marker.spec.probes.iter();
            probes.map(move |probe| (marker, probe))
        });
        probes
            .map(|(marker, probe)| Row {
                marker,
                probe,
                entry: entry(pod, marker, probe),
            })
            .collect()
    }

    fn check_entries(&self, node: &str, object: &NodePodProbe, faults: &mut Vec<String>) {
        let mut expected = BTreeSet::new();
        for pod in self.pods.values().filter(|pod| node_of(pod) == node) {
            let observed = pod_in(object, pod);
            for row in self.rows(pod) {
                let Ok(entry) = row.entry else { continue };
                let found =
                    observed.and_then(|it| it.probes.iter().find(|one| one.name == entry.name));
                let is_optional = matches!(entry.gate, Gate::Waits);
                let right = found.map_or(is_optional, |found| entry.is(found));
                if !right {
                    faults.push(format!(
                        "{node}: {} of {} is {found:?}",
                        entry.name,
                        pod.name_any()
                    ));
                }
                expected.insert((pod.uid().unwrap_or_default(), entry.name));
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

    fn verdict(&self, pod: &Pod, row: &Row<'_>) -> Option<&'a ContainerProbeState> {
        let expected = row.entry.as_ref().ok()?;
        let object = self.probes.get(node_of(pod))?;
        let entries = &pod_in(object, pod)?.probes;
        let entry = entries.iter().find(|entry| entry.name == expected.name)?;
        let statuses = &object.status.as_ref()?.pod_probe_statuses;
        let mut states = statuses
            .iter()
            .filter(|one| Some(&one.uid) == pod.metadata.uid.as_ref())
            .flat_map(|one| &one.probe_states);
        states.find(|state| {
            let gate = &entry.started_container_id;
            state.name == entry.name
                && state.revision == entry.revision
                && (gate.is_none() || state.container_id == *gate)
        })
    }

    fn check_status(&self, marker: &PodProbeMarker, faults: &mut Vec<String>) {
        let status = marker.status.clone().unwrap_or_default();
        let mut matched = 0;
        let mut counts = vec![[0; 4]; marker.spec.probes.len()];
        let mut silent = 0;
        let mut troubles = BTreeSet::new();
        for pod in self.pods.values() {
            let rows = self.rows(pod);
            let own = |row: &&Row<'_>| row.marker.metadata.uid == marker.metadata.uid;
            matched += i64::from(rows.iter().any(|row| own(&row)));
            for (row, count) in rows.iter().filter(own).zip(&mut counts) {
                let verdict = self.verdict(pod, row).map(|it| it.state.as_str());
                let place = ["Succeeded", "Failed", "Unknown"]
                    .iter()
                    .position(|it| Some(*it) == verdict);
                count[place.unwrap_or(3)] += 1;
                troubles.extend(row.entry.as_ref().err());
                troubles.extend(loses(&rows, row).then_some("Conflict"));
                silent += i64::from(!self.reporting.contains(node_of(pod)));
            }
        }
        let found: Vec<_> = status
            .probes
            .iter()
            .map(|one| [one.succeeded, one.failed, one.unknown, one.pending])
            .collect();
        let generation = marker.metadata.generation.unwrap_or_default();
        let is_silent: i64 = status.probes.iter().map(|one| one.silent).sum();
        let numbers = (status.matched_pods, status.observed_generation);
        let reason = status
            .conditions
            .iter()
            .find(|one| one.type_ == "Ready")
            .map(|one| one.reason.as_str());
        let expected = TROUBLES.into_iter().find(|it| troubles.contains(it));
        let reason_fits = match expected {
            Some(trouble) => reason == Some(trouble),
            None => reason.is_some_and(|it| !TROUBLES.contains(&it) && !NEVER.contains(&it)),
        };
        if found != counts
            || numbers != (Some(matched), generation)
            || !reason_fits
            || is_silent > silent
        {
            faults.push(format!(
                "{}: {} should count {matched} {counts:?}, generation {generation}, at most {silent} silent, {expected:?}",
                marker.name_any(),
                json!(status)
            ));
        }
    }
}

impl Expected {
    fn is(&self, found: &ContainerProbe) -> bool {
        let mut probe = found.probe.clone();
        // An absent delay and one of 0 are the same.
        probe.initial_delay_seconds.get_or_insert(0);
        let gate = match &self.gate {
            Gate::None => found.started_container_id.is_none(),
            Gate::Open(id) => found.started_container_id.as_ref() == Some(id),
            Gate::Waits => found.started_container_id.is_some(),
        };
        found.container_name == self.container
            && probe == self.probe
            && found.revision.is_some()
            && gate
    }
}

fn entry(
    pod: &Pod,
    marker: &PodProbeMarker,
    probe: &PodContainerProbe,
) -> Result<Expected, &'static str> {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let container = containers
        .find(|one| one.name == probe.container_name)
        .ok_or("ContainerNotFound")?;
    Ok(Expected {
        name: format!("{}#{}", marker.name_any(), probe.name),
        container: container.name.clone(),
        probe: resolved(&probe.probe, container)?,
        gate: gate(pod, container),
    })
}

/// The probe with its port by number and Kubernetes' defaults.
fn resolved(probe: &Probe, container: &Container) -> Result<Probe, &'static str> {
    let mut probe = probe.clone();
    if let Some(tcp) = &mut probe.tcp_socket
        && let IntOrString::String(name) = &tcp.port
    {
        let mut ports = container.ports.iter().flatten();
        let port = ports.find(|one| one.name.as_ref() == Some(name));
        tcp.port = IntOrString::Int(port.ok_or("PortNotFound")?.container_port);
    }
    probe.initial_delay_seconds.get_or_insert(0);
    probe.period_seconds.get_or_insert(10);
    probe.timeout_seconds.get_or_insert(1);
    probe.success_threshold.get_or_insert(1);
    probe.failure_threshold.get_or_insert(3);
    Ok(probe)
}

fn gate(pod: &Pod, container: &Container) -> Gate {
    if container.startup_probe.is_none() {
        return Gate::None;
    }
    match container_status(pod, &container.name) {
        Some(status) if status.started == Some(true) => Gate::Open(id_of(status)),
        _ => Gate::Waits,
    }
}

/// What the kubelet says of a container.
pub(crate) fn container_status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|one| one.name == container)
}

/// The container's id as runtimes have it.
pub(crate) fn id_of(status: &ContainerStatus) -> String {
    let id = status.container_id.as_deref().unwrap_or_default();
    id.trim_start_matches("containerd://").to_owned()
}

/// Whether a row before this one names one of its marks; rows whose containers the pod lacks are in nobody's way.
fn loses(rows: &[Row<'_>], row: &Row<'_>) -> bool {
    let own = marks_after(row.probe, None);
    let before = rows.iter().take_while(|other| !std::ptr::eq(*other, row));
    before
        .filter(|other| row.has_container() && other.has_container())
        .flat_map(|other| marks_after(other.probe, None))
        .any(|(mark, _)| own.contains_key(&mark))
}

fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let pairs = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    pairs
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && expressions.into_iter().all(|one| {
            let value = labels.get(&one.key);
            let values = one.values.iter().flatten();
            let is_in = values.into_iter().any(|it| Some(it) == value);
            match one.operator.as_str() {
                "In" => is_in,
                "NotIn" => !is_in,
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
}

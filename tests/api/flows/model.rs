//! What a namespace should look like, from the objects as they are, by the shortest code that can be read against the
//! rules of `docs/reference.md`. What only history tells (marks without a verdict) is not judged.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Probe};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use leadsman_api::marker::PodContainerProbe;
use leadsman_api::node_pod_probe::{ContainerProbe, ContainerProbeState, PodProbe};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use serde_json::{Value, json};

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

const OURS: &str = "leadsman-podprobe";
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
            self.check_marks(pod, &mut faults);
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

    fn check_marks(&self, pod: &'a Pod, faults: &mut Vec<String>) {
        let (name, ours) = (pod.name_any(), Marks::ours(pod));
        let mut claimed = BTreeSet::new();
        let mut rows = self.rows(pod);
        rows.sort_by_key(|row| !row.has_container());
        for row in rows {
            let verdict = self.verdict(pod, &row);
            for (mark, value) in marks(row.probe, verdict.map(|it| it.state.as_str())) {
                let is_first = claimed.insert(mark.clone());
                if !is_first || verdict.is_none() {
                    continue;
                }
                let found = found(pod, &mark);
                let is_ours = value.is_none() || ours.0.contains(&mark);
                if found != value || !is_ours {
                    faults.push(format!(
                        "{name}: {mark:?} is {found:?}, should be {value:?}, ours: {is_ours}"
                    ));
                }
            }
        }
        for mark in ours.0.difference(&claimed) {
            faults.push(format!("{name}: {mark:?} is ours, and no marker names it"));
        }
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

fn is_active(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut initialized =
        conditions.filter(|one| one.type_ == "Initialized" && one.status == "True");
    pod.metadata.deletion_timestamp.is_none()
        && !matches!(phase, Some("Succeeded" | "Failed"))
        && initialized.next().is_some()
}

fn node_of(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

fn pod_in<'a>(object: &'a NodePodProbe, pod: &Pod) -> Option<&'a PodProbe> {
    let mut pods = object.spec.pod_probes.iter();
    pods.find(|one| Some(&one.uid) == pod.metadata.uid.as_ref() && one.name == pod.name_any())
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

/// A kind of mark and its key.
type Mark = (&'static str, String);

/// The marks that are in the entry of leadsman's field manager.
struct Marks(BTreeSet<Mark>);

impl Marks {
    fn ours(pod: &Pod) -> Self {
        let mut marks = BTreeSet::new();
        let entries = pod.metadata.managed_fields.iter().flatten();
        for entry in entries.filter(|entry| entry.manager.as_deref() == Some(OURS)) {
            let fields = entry
                .fields_v1
                .as_ref()
                .map_or(&Value::Null, |fields| &fields.0);
            for (kind, place) in [
                ("label", "/f:metadata/f:labels"),
                ("annotation", "/f:metadata/f:annotations"),
                ("condition", "/f:status/f:conditions"),
            ] {
                let keys = fields.pointer(place).and_then(Value::as_object);
                let keys = keys.into_iter().flatten().map(|(key, _)| key);
                marks.extend(keys.filter_map(|key| Some((kind, key_of(key)?))));
            }
        }
        Self(marks)
    }
}

/// `role` of `f:role`, `t.io/a` of `k:{"type":"t.io/a"}`.
fn key_of(field: &str) -> Option<String> {
    if let Some(key) = field.strip_prefix("k:") {
        let key: Value = serde_json::from_str(key).ok()?;
        return Some(key["type"].as_str()?.to_owned());
    }
    field.strip_prefix("f:").map(str::to_owned)
}

/// What a probe's marks are after this verdict; None: absent.
fn marks(probe: &PodContainerProbe, state: Option<&str>) -> BTreeMap<Mark, Option<String>> {
    let mut marks = BTreeMap::new();
    if let Some(kind) = &probe.pod_condition_type {
        let status = match state {
            Some("Succeeded") => "True",
            Some("Failed") => "False",
            _ => "Unknown",
        };
        marks.insert(("condition", kind.clone()), Some(status.to_owned()));
    }
    for policy in &probe.marker_policy {
        for (kind, pairs) in [
            ("label", &policy.labels),
            ("annotation", &policy.annotations),
        ] {
            for (key, value) in pairs {
                let mark: &mut Option<String> = marks.entry((kind, key.clone())).or_default();
                if state == Some(&policy.state) {
                    *mark = Some(value.clone());
                }
            }
        }
    }
    marks
}

fn found(pod: &Pod, (kind, key): &Mark) -> Option<String> {
    match *kind {
        "label" => pod.labels().get(key).cloned(),
        "annotation" => pod.annotations().get(key).cloned(),
        _ => {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let mut conditions = conditions.iter();
            Some(conditions.find(|one| one.type_ == *key)?.status.clone())
        }
    }
}

/// Whether a row before this one names one of its marks; rows whose containers the pod lacks are in nobody's way.
fn loses(rows: &[Row<'_>], row: &Row<'_>) -> bool {
    let own = marks(row.probe, None);
    let before = rows.iter().take_while(|other| !std::ptr::eq(*other, row));
    before
        .filter(|other| row.has_container() && other.has_container())
        .flat_map(|other| marks(other.probe, None))
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

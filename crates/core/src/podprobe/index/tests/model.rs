//! What the world should look like, worked out at once from the objects as they are, by the shortest code that can
//! be read against the rules. It shares the wire types with the index and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use leadsman_api::PodProbeMarker;
use leadsman_api::marker::{PodContainerProbe, ProbeSummary};
use leadsman_api::node_pod_probe::{ContainerProbe, ContainerProbeState, NodePodProbe, PodProbe};
use serde_json::{Value, json};

use super::cluster::{Cluster, Mark, Marks, Owner, SimPod};
use super::world::World;
use crate::cluster::ObjectName;
use crate::podprobe::index::Config;

/// What follows for one probe of a marker on one pod.
struct Row<'a> {
    marker: &'a ObjectName,
    probe: &'a PodContainerProbe,
    /// Or the reason why there is none.
    entry: Result<ContainerProbe, &'static str>,
    /// As it is given to a provider, or the reason why it is not.
    injected: Result<PodContainerProbe, &'static str>,
}

pub(super) struct Model<'a> {
    cluster: &'a Cluster,
    config: &'a Config,
    /// When the manager saw that a node's agent was gone.
    agents_left: &'a BTreeMap<String, Timestamp>,
}

impl<'a> Model<'a> {
    pub(super) fn new(world: &'a World) -> Self {
        Self {
            cluster: &world.cluster,
            config: &world.config,
            agents_left: &world.agents_left,
        }
    }

    /// All that differs from what it should be.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        self.check_nodes(&mut faults);
        for (name, pod) in &self.cluster.pods {
            if pod.is_active() {
                self.check_marks(name, pod, &mut faults);
            }
        }
        for (name, marker) in &self.cluster.markers {
            if marker.metadata.deletion_timestamp.is_none() {
                self.check_status(name, marker, &mut faults);
            } else {
                // Ours holds a marker while there is something to do, of which nothing is left.
                let finalizers = marker.metadata.finalizers.iter().flatten();
                if finalizers
                    .clone()
                    .any(|one| one == "kruise.io/node-pod-probe-cleanup")
                {
                    faults.push(format!("{name} is held by {finalizers:?}"));
                }
            }
        }
        faults
    }

    fn matching(
        &self,
        name: &ObjectName,
        pod: &SimPod,
    ) -> Vec<(&'a ObjectName, &'a PodProbeMarker)> {
        if !pod.is_active() || !pod.initialized || pod.node.is_none() {
            return Vec::new();
        }
        let mut found: Vec<_> = self
            .cluster
            .markers
            .iter()
            .filter(|(marker, _)| marker.namespace == name.namespace)
            .filter(|(_, marker)| {
                refusal(marker).is_none() && marker.metadata.deletion_timestamp.is_none()
            })
            .filter(|(marker, _)| !self.is_stopped(marker))
            .filter(|(_, marker)| selects(&marker.spec.selector, &pod.labels))
            .collect();
        found.sort_by_key(|(name, marker)| (marker.metadata.creation_timestamp.clone(), *name));
        found
    }

    /// Whether a marker closes a loop of labels that markers set and select by, among those of its namespace that are
    /// older and not stopped themselves.
    fn is_stopped(&self, name: &ObjectName) -> bool {
        let mut all: Vec<_> = self.cluster.markers.iter().collect();
        all.retain(|(other, marker)| {
            other.namespace == name.namespace
                && refusal(marker).is_none()
                && marker.metadata.deletion_timestamp.is_none()
        });
        all.sort_by_key(|(name, marker)| (marker.metadata.creation_timestamp.clone(), *name));
        let valid: Vec<_> = all.iter().map(|(_, marker)| *marker).collect();
        let mut in_force: Vec<&PodProbeMarker> = Vec::new();
        for (other, marker) in all {
            in_force.push(marker);
            // All that it feeds, and what these feed, and so on.
            let mut fed: Vec<&PodProbeMarker> = vec![marker];
            for _ in 0..in_force.len() {
                let more = in_force
                    .iter()
                    .filter(|to| fed.iter().any(|from| feeds(from, to, &valid)));
                fed = more.copied().collect();
                if fed.iter().any(|one| std::ptr::eq(*one, marker)) {
                    in_force.pop();
                    if other == name {
                        return true;
                    }
                    break;
                }
            }
        }
        false
    }

    fn rows(&self, name: &ObjectName, pod: &SimPod) -> Vec<Row<'a>> {
        let mut rows = Vec::new();
        let mut conditions = BTreeSet::new();
        let mut names = BTreeSet::new();
        for (marker_name, marker) in self.matching(name, pod) {
            for probe in &marker.spec.probes {
                let entry = self.entry(name, pod, marker_name, probe);
                let injected = match &probe.pod_condition_type {
                    None => Err("NoConditionType"),
                    Some(kind) if !conditions.insert(kind) => Err("Conflict"),
                    Some(_) => probe_of(pod, probe).map(|wire| {
                        let is_first = names.insert((&probe.container_name, &probe.name));
                        let name = format!("{}#{}", marker_name.name, probe.name);
                        PodContainerProbe {
                            name: if is_first { probe.name.clone() } else { name },
                            probe: wire,
                            marker_policy: Vec::new(),
                            ..probe.clone()
                        }
                    }),
                };
                rows.push(Row {
                    marker: marker_name,
                    probe,
                    entry,
                    injected,
                });
            }
        }
        rows
    }

    /// Whether the provider of a virtual node runs a pod's probes.
    fn has_provider(&self, pod: &SimPod) -> bool {
        let node = pod.node.as_ref();
        let is_virtual = node.and_then(|node| self.cluster.nodes.get(node)) == Some(&true);
        self.config.serverless && is_virtual && pod.is_active() && pod.initialized
    }

    fn entry(
        &self,
        pod_name: &ObjectName,
        pod: &SimPod,
        marker: &ObjectName,
        probe: &PodContainerProbe,
    ) -> Result<ContainerProbe, &'static str> {
        let container = pod
            .containers
            .iter()
            .find(|one| one.name == probe.container_name);
        let container = container.ok_or("ContainerNotFound")?;
        let wire = probe_of(pod, probe)?;
        let observed = self.observed(pod_name, pod);
        let remembered: Vec<_> = observed
            .iter()
            .flat_map(|observed| &observed.probes)
            .filter(|entry| entry.container_name == container.name)
            .filter_map(|entry| entry.started_container_id.clone())
            .collect();
        let started_container_id = if !container.startup_probe {
            None
        } else if container.started || remembered.contains(&container.id) {
            Some(container.id.clone())
        } else {
            Some(remembered.first().cloned().ok_or("wait")?)
        };
        Ok(ContainerProbe {
            name: format!("{}#{}", marker.name, probe.name),
            container_name: container.name.clone(),
            probe: wire,
            revision: Some("0123456789abcdef".to_owned()),
            started_container_id,
        })
    }

    fn object(&self, pod: &SimPod) -> Option<&'a NodePodProbe> {
        self.cluster.node_pod_probes.get(pod.node.as_ref()?)
    }

    fn observed(&self, name: &ObjectName, pod: &SimPod) -> Option<&'a PodProbe> {
        let mut pods = self.object(pod)?.spec.pod_probes.iter();
        pods.find(|one| {
            one.uid == pod.node_uid() && one.name == name.name && one.namespace == name.namespace
        })
    }

    /// The entries that the pods of a node want.
    fn wanted(&self, node: &str) -> Vec<(&'a ObjectName, PodProbe)> {
        let mut wanted = Vec::new();
        for (name, pod) in &self.cluster.pods {
            if pod.node.as_deref() != Some(node) {
                continue;
            }
            let rows = self.rows(name, pod).into_iter();
            let mut probes: Vec<_> = rows.filter_map(|row| row.entry.ok()).collect();
            probes.sort_by(|a, b| a.name.cmp(&b.name));
            let one = PodProbe {
                name: name.name.clone(),
                namespace: name.namespace.clone(),
                uid: pod.node_uid().to_owned(),
                ip: pod.ip.clone(),
                probes,
            };
            if !one.probes.is_empty() {
                wanted.push((name, one));
            }
        }
        wanted
    }

    /// The spec of a node that is served, and the pods it has no room for: who is in depends on who came first, so
    /// those are in whom the object names.
    fn spec(&self, node: &str) -> (Vec<PodProbe>, BTreeSet<&'a ObjectName>) {
        let (mut pods, mut refused) = (Vec::new(), BTreeSet::new());
        for (name, one) in self.wanted(node) {
            let pod = &self.cluster.pods[name];
            if self.is_served(node) && self.observed(name, pod).is_none() {
                refused.insert(name);
            } else {
                pods.push(one);
            }
        }
        (pods, refused)
    }

    /// No object is too large, and nobody is refused who would fit: in all, and in the three quarters that its
    /// namespace may have of what the others leave.
    fn check_room(&self, node: &str, faults: &mut Vec<String>) {
        let size = |one: &PodProbe| serde_json::to_string(one).unwrap().len();
        let (pods, refused) = self.spec(node);
        let total: usize = pods.iter().map(size).sum();
        let most = self.config.node_bytes;
        if total > most {
            faults.push(format!("{node}: {total} bytes"));
        }
        for (name, one) in self.wanted(node) {
            let own = pods.iter().filter(|pod| pod.namespace == name.namespace);
            let own: usize = own.map(size).sum();
            let share = (most + own).saturating_sub(total) / 4 * 3;
            if refused.contains(name) && own + size(&one) <= share {
                faults.push(format!("{node} has room for {name}"));
            }
        }
    }

    fn is_served(&self, node: &str) -> bool {
        self.cluster.nodes.get(node) == Some(&false)
    }

    fn check_nodes(&self, faults: &mut Vec<String>) {
        for node in self.cluster.nodes.keys() {
            if self.is_served(node) && !self.cluster.node_pod_probes.contains_key(node) {
                faults.push(format!("{node} has no NodePodProbe"));
            }
        }
        for (node, object) in &self.cluster.node_pod_probes {
            if !self.is_served(node) {
                faults.push(format!("{node} has a NodePodProbe"));
                continue;
            }
            self.check_room(node, faults);
            let mut observed = object.spec.pod_probes.clone();
            let mut expected = self.spec(node).0;
            for probe in observed.iter_mut().flat_map(|pod| &mut pod.probes) {
                if probe.revision.is_none() != self.cluster.drops_extensions {
                    faults.push(format!("{node}: revision of {}", probe.name));
                }
                probe.revision = None;
            }
            for probe in expected.iter_mut().flat_map(|pod| &mut pod.probes) {
                probe.revision = None;
                if self.cluster.drops_extensions {
                    probe.started_container_id = None;
                }
            }
            if observed != expected {
                faults.push(format!("{node}: {observed:#?} should be {expected:#?}"));
            }
        }
    }

    fn verdict(
        &self,
        name: &ObjectName,
        pod: &SimPod,
        row: &Row<'_>,
    ) -> Option<ContainerProbeState> {
        if self.has_provider(pod) {
            let kind = row.injected.as_ref().ok()?.pod_condition_type.as_ref()?;
            let condition = pod.conditions.get(kind)?;
            if condition.owners == [Owner::Ours].into() {
                return None;
            }
            let state = match condition.value["status"].as_str()? {
                "True" => "Succeeded",
                "False" => "Failed",
                "Unknown" => "Unknown",
                _ => return None,
            };
            return Some(ContainerProbeState::new("", state));
        }
        let entry = row.entry.as_ref().ok()?;
        let node = pod.node.as_ref()?;
        if !self.is_served(node) || self.spec(node).1.contains(name) {
            return None;
        }
        // The revision is opaque here: the observed entry has the right one.
        let observed = self.observed(name, pod)?;
        let revision = &observed
            .probes
            .iter()
            .find(|one| one.name == entry.name)?
            .revision;
        let statuses = &self.object(pod)?.status.as_ref()?.pod_probe_statuses;
        let mut states = statuses
            .iter()
            .filter(|one| {
                one.uid == pod.node_uid()
                    && one.name == name.name
                    && one.namespace == name.namespace
            })
            .flat_map(|one| &one.probe_states);
        let mut containers = pod.containers.iter();
        let container = containers.find(|one| one.name == entry.container_name)?;
        let is_about = |state: &ContainerProbeState| {
            let found = state.last_transition_time.as_ref();
            state.container_id.as_ref() == Some(&container.id)
                || found.is_none_or(|found| container.running_since <= found.0)
        };
        let fits = |a: &Option<String>, b: &Option<String>| a.is_none() || b.is_none() || a == b;
        let found = states.find(|state| {
            state.name == entry.name
                && is_about(state)
                && ["Succeeded", "Failed", "Unknown"].contains(&state.state.as_str())
                && fits(&state.revision, revision)
                && (self.cluster.drops_extensions
                    || fits(&state.container_id, &entry.started_container_id))
        });
        found.cloned()
    }

    fn check_marks(&self, name: &ObjectName, pod: &SimPod, faults: &mut Vec<String>) {
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
        for row in &rows {
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
        let silent = reported.is_some_and(|reported| reported + self.config.silent_after <= now);
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
                for winner in winners(&rows, row) {
                    expected.add_trouble("Conflict", &winner.name);
                }
            }
            if let Some(cause) = causes.first() {
                *expected.pending.entry(*cause).or_insert(0) += 1;
            }
        }
        expected
    }

    fn check_status(&self, name: &ObjectName, marker: &PodProbeMarker, faults: &mut Vec<String>) {
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
        let stopped = self.is_stopped(name).then_some("Cycle");
        let stopped = refusal(marker).or(stopped);
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
fn winners<'a>(rows: &[Row<'a>], row: &Row<'a>) -> Vec<&'a ObjectName> {
    let rivals = rows.iter().take_while(|rival| !std::ptr::eq(*rival, row));
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

/// The probe of a container, with all that it leaves out, or what the pod lacks for it.
fn probe_of(pod: &SimPod, probe: &PodContainerProbe) -> Result<Probe, &'static str> {
    let mut containers = pod.containers.iter();
    if !containers.any(|one| one.name == probe.container_name) {
        return Err("ContainerNotFound");
    }
    let mut wire = probe.probe.clone();
    if let Some(get) = &mut wire.http_get {
        match &get.port {
            IntOrString::Int(_) => {}
            IntOrString::String(name) if name == "http" => get.port = IntOrString::Int(8080),
            IntOrString::String(_) => return Err("PortNotFound"),
        }
        get.path.get_or_insert_with(|| "/".to_owned());
        get.scheme.get_or_insert_with(|| "HTTP".to_owned());
    }
    fill(&mut wire);
    Ok(wire)
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

/// All marks that a probe names.
fn marks_of(probe: &PodContainerProbe) -> BTreeSet<String> {
    let conditions = probe
        .pod_condition_type
        .iter()
        .map(|kind| format!("condition {kind}"));
    let policies = probe.marker_policy.iter().flat_map(|policy| {
        let labels = policy.labels.keys().map(|key| format!("label {key}"));
        labels.chain(
            policy
                .annotations
                .keys()
                .map(|key| format!("annotation {key}")),
        )
    });
    conditions.chain(policies).collect()
}

/// Why a marker of the alphabet is not acted on.
fn refusal(marker: &PodProbeMarker) -> Option<&'static str> {
    if feeds(marker, marker, &[]) {
        return Some("Cycle");
    }
    let spec = &marker.spec;
    let invalid = spec.probes.iter().any(|probe| probe.name.contains(' '));
    let (labels, expressions) = (
        &spec.selector.match_labels,
        &spec.selector.match_expressions,
    );
    let empty = labels.iter().flatten().count() + expressions.iter().flatten().count() == 0;
    (invalid || empty || spec.probes.is_empty()).then_some("InvalidSpec")
}

/// Whether one sets a label that the other selects by, on the same pods: two that require different values of a label
/// have no pod in common, unless one of `all` sets the label.
fn feeds(from: &PodProbeMarker, to: &PodProbeMarker, all: &[&PodProbeMarker]) -> bool {
    let are_disjoint = |key| match (required(from, key), required(to, key)) {
        (Some(one), Some(other)) => {
            !one.iter().any(|value| other.contains(value))
                && !all.iter().any(|marker| labels_set(marker).contains(&key))
        }
        _ => false,
    };
    if ["app", "tier"].into_iter().any(are_disjoint) {
        return false;
    }
    let selector = &to.spec.selector;
    let mut read: Vec<&String> = selector
        .match_labels
        .iter()
        .flatten()
        .map(|(key, _)| key)
        .collect();
    read.extend(
        selector
            .match_expressions
            .iter()
            .flatten()
            .map(|one| &one.key),
    );
    let set = labels_set(from);
    set.iter().any(|key| read.iter().any(|read| read == key))
}

/// The values of a label that a marker requires one of.
fn required(marker: &PodProbeMarker, key: &str) -> Option<Vec<String>> {
    let selector = &marker.spec.selector;
    let mut labels = selector.match_labels.iter().flatten();
    let label = labels.find(|(own, _)| *own == key);
    let mut expressions = selector.match_expressions.iter().flatten();
    let values = expressions.find(|one| one.key == key && one.operator == "In");
    label
        .map(|(_, value)| vec![value.clone()])
        .or(values.and_then(|one| one.values.clone()))
}

fn labels_set(marker: &PodProbeMarker) -> Vec<&str> {
    let probes = marker.spec.probes.iter();
    let policies = probes.flat_map(|probe| &probe.marker_policy);
    let keys = policies.flat_map(|policy| policy.labels.keys());
    keys.map(String::as_str).collect()
}

fn selects(selector: &LabelSelector, labels: &Marks) -> bool {
    let value = |key: &str| labels.get(key).and_then(|mark| mark.value.as_str());
    let pairs = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    if pairs.clone().count() + expressions.clone().count() == 0 {
        return false;
    }
    pairs
        .into_iter()
        .all(|(key, wanted)| value(key) == Some(wanted))
        && expressions.into_iter().all(|one| {
            let values = one.values.clone().unwrap_or_default();
            let is_in = value(&one.key).is_some_and(|value| values.iter().any(|one| one == value));
            match one.operator.as_str() {
                "In" => is_in,
                "NotIn" => !is_in,
                "Exists" => value(&one.key).is_some(),
                _ => value(&one.key).is_none(),
            }
        })
}

/// Kubernetes' defaults.
fn fill(probe: &mut Probe) {
    probe.initial_delay_seconds.get_or_insert(0);
    probe.period_seconds.get_or_insert(10);
    probe.timeout_seconds.get_or_insert(1);
    probe.success_threshold.get_or_insert(1);
    probe.failure_threshold.get_or_insert(3);
}

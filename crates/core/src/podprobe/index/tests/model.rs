//! What the world should look like, worked out at once from the objects as they are, by the shortest code that can
//! be read against the rules. It shares the wire types with the index and nothing else.

mod marker;
mod marks;
mod nodes;
mod status;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use leadsman_api::PodProbeMarker;
use leadsman_api::marker::PodContainerProbe;
use leadsman_api::node_pod_probe::{ContainerProbe, ContainerProbeState, NodePodProbe, PodProbe};

use self::marker::{refusal, selects};
use super::cluster::Cluster;
use super::pod::{Owner, SimPod};
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
            .filter(|(marker, _)| self.why_stopped(marker).is_none())
            .filter(|(_, marker)| selects(&marker.spec.selector, &pod.labels))
            .collect();
        found.sort_by_key(|(name, marker)| (marker.metadata.creation_timestamp.clone(), *name));
        found
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
                    Some(_) if !pod.has_container(probe) => Err("ContainerNotFound"),
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
            ..ContainerProbe::default()
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
}

/// The probe of a container, with all that it leaves out, or what the pod lacks for it.
fn probe_of(pod: &SimPod, probe: &PodContainerProbe) -> Result<Probe, &'static str> {
    if !pod.has_container(probe) {
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

/// Kubernetes' defaults.
fn fill(probe: &mut Probe) {
    probe.initial_delay_seconds.get_or_insert(0);
    probe.period_seconds.get_or_insert(10);
    probe.timeout_seconds.get_or_insert(1);
    probe.success_threshold.get_or_insert(1);
    probe.failure_threshold.get_or_insert(3);
}

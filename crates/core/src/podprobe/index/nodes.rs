//! Nodes in the index: their `NodePodProbe` as an object, their agents, and whether those report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_api::node_pod_probe::{NodePodProbe, NodePodProbeSpec};
use leadsman_api::slim::Node;

use super::slots::{Sight, Slot, SlotKey, observed_entries, read_entries, read_verdicts};
use super::{Index, Pass, Timer};
use crate::podprobe::event::{Kind, Object, ObjectName, Source, Write};
use crate::podprobe::pod::{Pod, Version};

/// A node, or what is known beside it under its name.
#[derive(Debug, Default)]
pub(super) struct NodeState {
    /// None while there is no such node.
    pub(super) seen: Option<SeenNode>,
    /// None while there is no such object.
    pub(super) object: Option<SeenObject>,
    /// The agent's pods here, and whether they are Ready.
    agents: BTreeMap<Arc<ObjectName>, bool>,
    silent: bool,
    pub(super) timer: Option<Duration>,
    pub(super) slots: BTreeMap<SlotKey, Slot>,
    /// How many slots differ.
    pub(super) differing: usize,
    /// Bytes of all that is wanted.
    pub(super) bytes: usize,
    /// Its object has been written since it was last seen.
    written: bool,
}

/// What is read of a node.
#[derive(Debug)]
pub(super) struct SeenNode {
    version: Version,
    /// A provider runs the probes of its pods.
    is_virtual: bool,
}

/// A `NodePodProbe`, but for its slots.
#[derive(Debug)]
pub(super) struct SeenObject {
    version: Version,
    /// What a replacement has to keep.
    meta: ObjectMeta,
    /// It names a pod twice.
    malformed: bool,
    /// When, on the monotonic clock, the last sign of life of the agent, or else of the object itself, is too old.
    silent_from: Option<Duration>,
}

impl NodeState {
    /// Whether it should have a `NodePodProbe`.
    pub(super) fn is_served(&self) -> bool {
        self.seen.as_ref().is_some_and(|node| !node.is_virtual)
    }

    fn is_void(&self) -> bool {
        self.seen.is_none()
            && self.object.is_none()
            && self.agents.is_empty()
            && self.slots.is_empty()
    }

    fn differs(&self) -> bool {
        match &self.object {
            Some(object) if object.meta.deletion_timestamp.is_some() => false,
            Some(object) => !self.is_served() || self.differing > 0 || object.malformed,
            None => self.is_served(),
        }
    }

    /// Pods whose entries are wanted here.
    fn pods(&self) -> impl Iterator<Item = &Arc<ObjectName>> {
        let slots = self.slots.iter();
        slots
            .filter(|(_, slot)| slot.wanted.is_some())
            .map(|((pod, _), _)| pod)
    }
}

impl Index {
    pub(super) fn see_node(&mut self, wire: &Node, source: Source, pass: &mut Pass) {
        let name = wire.identity.name.as_deref().unwrap_or_default();
        let name = self.shared.names.share(name);
        let version = Version::parse(wire.identity.resource_version.as_deref());
        let known = self.nodes.get(&name).and_then(|node| node.seen.as_ref());
        let known = known.map(|node| node.version);
        if self.is_stale(source, Kind::Node, &of_node(&name), version, known) {
            return;
        }
        let mut labels = wire.labels.iter();
        let is_virtual = labels.any(|(key, value)| key == "type" && value == "virtual-kubelet");
        let node = self.nodes.entry(name.clone()).or_default();
        let was_served = node.is_served();
        node.seen = Some(SeenNode {
            version,
            is_virtual,
        });
        if was_served != node.is_served() {
            self.check_all(&name, pass);
        }
        pass.nodes.insert(name);
    }

    pub(super) fn lose_node(&mut self, name: &ObjectName, pass: &mut Pass) -> Option<Version> {
        let (name, node) = self.nodes.get_key_value(name.name.as_str())?;
        let version = node.seen.as_ref()?.version;
        let name = name.clone();
        self.nodes.get_mut(&name)?.seen = None;
        self.check_all(&name, pass);
        self.forget_if_void(&name);
        Some(version)
    }

    pub(super) fn see_node_pod_probe(
        &mut self,
        wire: NodePodProbe,
        source: Source,
        pass: &mut Pass,
    ) {
        let name = wire.metadata.name.as_deref().unwrap_or_default();
        let name = self.shared.names.share(name);
        let version = Version::parse(wire.metadata.resource_version.as_deref());
        let (slots, malformed) = self.read(&name, &wire, source);
        self.learn_extensions(&name, &slots, pass);
        let known = self.nodes.get(&name).and_then(|node| node.object.as_ref());
        let known = known.map(|object| object.version);
        if self.is_stale(source, Kind::NodePodProbe, &of_node(&name), version, known) {
            return;
        }
        self.refused.remove(&Object::NodePodProbe(name.to_string()));
        let silent_from = freshest(&wire).map(|fresh| {
            // By the time of day only here: a jump of it later changes nothing.
            let age = pass.now.wall.duration_since(fresh);
            let left = self.config.silent_after.saturating_sub(age);
            let left = Duration::try_from(left).unwrap_or_default();
            pass.now.monotonic.saturating_add(left)
        });
        let node = self.nodes.entry(name.clone()).or_default();
        node.object = Some(SeenObject {
            version,
            meta: kept(wire.metadata),
            malformed,
            silent_from,
        });
        node.written = false;
        self.fill(&name, slots, pass);
        self.listen(&name, pass);
        pass.nodes.insert(name);
    }

    /// The slots of an object, and whether it names a pod twice. Most sights of an object show new verdicts alone, and
    /// its spec is what it was: entries are read where the generation moved. An API server that was restored may show
    /// an old generation with another spec, and does so in a list.
    fn read(
        &mut self,
        name: &Arc<str>,
        wire: &NodePodProbe,
        source: Source,
    ) -> (BTreeMap<SlotKey, Sight>, bool) {
        let known = self.nodes.get(name);
        let object = known.and_then(|node| node.object.as_ref());
        let same = object.filter(|object| {
            let (old, new) = (&object.meta, &wire.metadata);
            let moved = new.generation.is_none() || old.generation != new.generation;
            source == Source::Live && old.uid == new.uid && !moved
        });
        let known = known.map(|node| &node.slots);
        let (mut slots, malformed) = match (same, known) {
            (Some(object), Some(known)) => (observed_entries(known), object.malformed),
            _ => read_entries(&wire.spec, &mut self.shared),
        };
        read_verdicts(wire.status.as_ref(), known, &mut slots, &mut self.shared);
        (slots, malformed)
    }

    pub(super) fn lose_node_pod_probe(
        &mut self,
        name: &ObjectName,
        pass: &mut Pass,
    ) -> Option<Version> {
        let (name, node) = self.nodes.get_key_value(name.name.as_str())?;
        let version = node.object.as_ref()?.version;
        let name = name.clone();
        self.nodes.get_mut(&name)?.object = None;
        self.refused.remove(&Object::NodePodProbe(name.to_string()));
        self.fill(&name, BTreeMap::new(), pass);
        self.listen(&name, pass);
        pass.nodes.insert(name.clone());
        self.forget_if_void(&name);
        Some(version)
    }

    /// Learns from the answer to a write whether the API server keeps our optional fields: one with an older schema
    /// drops them.
    fn learn_extensions(
        &mut self,
        name: &Arc<str>,
        slots: &BTreeMap<SlotKey, Sight>,
        pass: &mut Pass,
    ) {
        let mut entries = slots
            .values()
            .filter_map(|(observed, _)| observed.as_ref())
            .flat_map(|observed| observed.entries.iter());
        let kept = entries.any(|entry| entry.revision.is_some());
        let Some(node) = self.nodes.get(name) else {
            return;
        };
        let dropped = || {
            let keys = node.slots.keys();
            let mut wanted = keys
                .filter_map(|key| Some((key, node.desired(key)?)))
                .peekable();
            wanted.peek().is_some()
                && wanted.all(|(key, wanted)| {
                    let observed = slots.get(key).and_then(|(observed, _)| observed.as_ref());
                    observed.is_some_and(|observed| wanted.is_equal(observed, false))
                })
        };
        let extensions = if self.extensions {
            !node.written || kept || !dropped()
        } else {
            kept
        };
        if extensions == self.extensions {
            return;
        }
        self.extensions = extensions;
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        for name in names {
            self.check_all(&name, pass);
        }
        let pods = self.nodes.values().flat_map(|node| node.pods());
        pass.pods.extend(pods.cloned());
    }

    pub(super) fn node_differs(&self, name: &Arc<str>) -> bool {
        self.nodes.get(name).is_some_and(|node| node.differs())
    }

    pub(super) fn node_pod_probe_due(&self, name: &str) -> Option<Write> {
        let node = self.nodes.get(name).filter(|node| node.differs())?;
        let object = node.object.as_ref();
        if !node.is_served() {
            return Some(Write::DeleteNodePodProbe {
                name: name.to_owned(),
                uid: object?.meta.uid.clone().unwrap_or_default(),
            });
        }
        let keys = node.slots.keys();
        let pods = keys.filter_map(|key| {
            let entries = node.desired(key)?;
            Some(entries.write(self.pod(&key.0)?, self.extensions))
        });
        let spec = NodePodProbeSpec {
            pod_probes: pods.collect(),
        };
        let mut replacement = NodePodProbe::new(name, spec);
        Some(match object {
            None => Write::CreateNodePodProbe(Box::new(replacement)),
            Some(object) => {
                replacement.metadata = object.meta.clone();
                Write::ReplaceNodePodProbe(Box::new(replacement))
            }
        })
    }

    pub(super) fn wrote_node_pod_probe(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.written = true;
        }
    }

    /// Whether the agent does not report though it has been told of the pod.
    pub(super) fn is_silent(&self, pod: &Pod) -> bool {
        let node = pod.node.as_ref().and_then(|node| self.nodes.get(node));
        let told = self
            .slot(pod)
            .is_some_and(|slot| slot.observed.is_some() && slot.differs.is_none());
        told && node.is_some_and(|node| node.silent)
    }

    pub(super) fn forget_if_void(&mut self, name: &Arc<str>) {
        if self.nodes.get(name).is_some_and(|node| node.is_void())
            && let Some(node) = self.nodes.remove(name)
            && let Some(time) = node.timer
        {
            self.timers.remove(&(time, Timer::Node(name.clone())));
        }
    }

    /// Takes note of a pod that may be an agent.
    pub(super) fn see_agent(&mut self, pod: &Pod, pass: &mut Pass) {
        let before = self.pod(&pod.name).and_then(|known| known.node.clone());
        if before != pod.node {
            // A pod is bound once, but a list may show another pod under its name.
            if let Some(known) = self.pod(&pod.name).cloned() {
                self.lose_agent(&known, pass);
            }
        }
        let config = &self.config;
        let is_agent = pod.active
            && pod.name.namespace == config.agent_namespace
            && config.agent_labels.iter().all(|(key, value)| {
                let known = pod.labels.get(key.as_str());
                known.is_some_and(|known| **known == **value)
            });
        let Some(name) = pod.node.as_ref() else {
            return;
        };
        if !is_agent {
            self.lose_agent(pod, pass);
            return;
        }
        let node = self.nodes.entry(name.clone()).or_default();
        if node.agents.insert(pod.name.clone(), pod.ready) != Some(pod.ready) {
            self.listen(name, pass);
        }
    }

    pub(super) fn lose_agent(&mut self, pod: &Pod, pass: &mut Pass) {
        let Some(name) = pod.node.as_ref() else {
            return;
        };
        if let Some(node) = self.nodes.get_mut(name)
            && node.agents.remove(&pod.name).is_some()
        {
            self.listen(name, pass);
            self.forget_if_void(name);
        }
    }

    /// Decides whether a node's agent is silent: its pod is not Ready, or it has none and has not been heard of for
    /// too long.
    pub(super) fn listen(&mut self, name: &Arc<str>, pass: &mut Pass) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let end = node.object.as_ref().and_then(|object| object.silent_from);
        let end = end.filter(|_| node.agents.is_empty());
        let waiting = end.filter(|end| pass.now.monotonic < *end);
        let silent = if node.agents.is_empty() {
            end.is_some() && waiting.is_none()
        } else {
            node.agents.values().all(|ready| !ready)
        };
        let before = std::mem::replace(&mut node.timer, waiting);
        if std::mem::replace(&mut node.silent, silent) != silent {
            pass.pods.extend(node.pods().cloned());
        }
        if before != waiting {
            if let Some(time) = before {
                self.timers.remove(&(time, Timer::Node(name.clone())));
            }
            let timer = waiting.map(|time| (time, Timer::Node(name.clone())));
            self.timers.extend(timer);
        }
    }
}

/// When the agent was last heard of; before it ever was, when the object was last written.
fn freshest(object: &NodePodProbe) -> Option<Timestamp> {
    let pods = object
        .status
        .iter()
        .flat_map(|status| &status.pod_probe_statuses);
    let probed = pods
        .flat_map(|pod| &pod.probe_states)
        .filter_map(|state| state.last_probe_time.as_ref())
        .map(|time| time.0)
        .max();
    let meta = &object.metadata;
    let entries = meta.managed_fields.iter().flatten();
    let written = entries.filter_map(|entry| entry.time.as_ref());
    let written = written.chain(&meta.creation_timestamp).map(|time| time.0);
    probed.or_else(|| written.max())
}

/// Metadata that a PUT has to repeat.
fn kept(meta: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        managed_fields: None,
        ..meta
    }
}

fn of_node(name: &str) -> ObjectName {
    ObjectName {
        namespace: String::new(),
        name: name.to_owned(),
    }
}

//! Nodes in the index: what their `NodePodProbe` should say and says, what their agent reports, and whether it does.
//!
//! A slot is the place of one pod in a node's object: its entries as wanted and as observed, and its verdicts. The
//! object differs while one slot does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_api::node_pod_probe::{NodePodProbe, NodePodProbeSpec, NodePodProbeStatus};
use leadsman_api::slim::Node;

use super::pods::slot_key;
use super::{Index, MarkerName, Pass, Timer};
use crate::podprobe::event::{Kind, Object, ObjectName, Source, Write};
use crate::podprobe::plan::{Entry, PodEntries, Verdict};
use crate::podprobe::pod::{Pod, Version};

/// Name and uid of a pod.
pub(super) type SlotKey = (Arc<ObjectName>, Arc<str>);

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
    pub(super) timer: Option<Timestamp>,
    slots: BTreeMap<SlotKey, Slot>,
    /// How many slots differ.
    differing: usize,
    /// Bytes of all that is wanted.
    bytes: usize,
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
    /// Last sign of life of the agent, or else of the object itself.
    fresh: Option<Timestamp>,
}

/// One pod's place in a node's object.
#[derive(Debug, Default)]
struct Slot {
    wanted: Option<Arc<PodEntries>>,
    /// Bytes of what is wanted.
    bytes: usize,
    /// There is no room for it.
    refused: bool,
    observed: Option<Arc<PodEntries>>,
    verdicts: Vec<Verdict>,
    /// None if it is as it should be; else the markers whose entries are not.
    differs: Option<BTreeSet<MarkerName>>,
}

impl NodeState {
    /// Whether it should have a `NodePodProbe`.
    fn is_served(&self) -> bool {
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

    /// The entries that the object should have for a pod.
    fn desired(&self, key: &SlotKey) -> Option<&Arc<PodEntries>> {
        let slot = self.slots.get(key)?;
        let wanted = slot.wanted.as_ref()?;
        (self.is_served() && !slot.refused).then_some(wanted)
    }
}

/// The markers whose entries are in one and not, or not so, in the other.
fn differing_markers(
    pod: &ObjectName,
    desired: Option<&PodEntries>,
    observed: Option<&PodEntries>,
    extensions: bool,
) -> Option<BTreeSet<MarkerName>> {
    match (desired, observed) {
        (None, None) => return None,
        (Some(desired), Some(observed)) if desired.is_equal(observed, extensions) => return None,
        _ => {}
    }
    let moved = match (desired, observed) {
        (Some(desired), Some(observed)) => desired.ip != observed.ip,
        _ => true,
    };
    let entries = |one: Option<&PodEntries>| one.map_or(Vec::new(), |one| one.entries.clone());
    let (desired, observed) = (entries(desired), entries(observed));
    let is_in =
        |entry: &Entry, all: &[Entry]| all.iter().any(|other| entry.is_equal(other, extensions));
    let lacking = desired
        .iter()
        .filter(|entry| moved || !is_in(entry, &observed));
    let surplus = observed
        .iter()
        .filter(|entry| moved || !is_in(entry, &desired));
    let markers = lacking.chain(surplus).filter_map(|entry| {
        let (marker, _) = entry.name.split_once('#')?;
        Some(Arc::new(ObjectName {
            namespace: pod.namespace.clone(),
            name: marker.to_owned(),
        }))
    });
    Some(markers.collect())
}

impl Index {
    pub(super) fn see_node(&mut self, wire: &Node, source: Source, pass: &mut Pass) {
        let name = wire.metadata.name.as_deref().unwrap_or_default();
        let name = self.names.share(name);
        let version = Version::parse(wire.metadata.resource_version.as_deref());
        let known = self.nodes.get(&name).and_then(|node| node.seen.as_ref());
        let known = known.map(|node| node.version);
        if self.is_stale(source, Kind::Node, &of_node(&name), version, known) {
            return;
        }
        let labels = wire.metadata.labels.as_ref();
        let kind = labels.and_then(|labels| labels.get("type"));
        let is_virtual = kind.is_some_and(|kind| kind == "virtual-kubelet");
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
        let name = self.names.share(name);
        let version = Version::parse(wire.metadata.resource_version.as_deref());
        let (slots, malformed) = read_slots(&wire.spec, wire.status.as_ref());
        self.learn_extensions(&name, &slots, pass);
        let known = self.nodes.get(&name).and_then(|node| node.object.as_ref());
        let known = known.map(|object| object.version);
        if self.is_stale(source, Kind::NodePodProbe, &of_node(&name), version, known) {
            return;
        }
        self.refused.remove(&Object::NodePodProbe(name.to_string()));
        let fresh = freshest(&wire);
        let node = self.nodes.entry(name.clone()).or_default();
        node.object = Some(SeenObject {
            version,
            meta: kept(wire.metadata),
            malformed,
            fresh,
        });
        node.written = false;
        self.fill(&name, slots, pass);
        self.listen(&name, pass);
        pass.nodes.insert(name);
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

    /// Replaces what is observed in all slots of a node.
    fn fill(&mut self, name: &Arc<str>, mut slots: BTreeMap<SlotKey, Sight>, pass: &mut Pass) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        for (key, slot) in &node.slots {
            if slot.observed.is_some() || !slot.verdicts.is_empty() {
                slots.entry(key.clone()).or_default();
            }
        }
        for (key, (observed, verdicts)) in slots {
            let slot = node.slots.entry(key.clone()).or_default();
            if slot.observed.as_deref() == observed.as_ref() && slot.verdicts == verdicts {
                continue;
            }
            if slot.observed.as_deref() != observed.as_ref() {
                slot.observed = observed.map(Arc::new);
            }
            slot.verdicts = verdicts;
            pass.pods.insert(key.0.clone());
        }
        self.check_all(name, pass);
    }

    /// Says which entries a pod should have on a node, as far as the node can have any.
    pub(super) fn want(
        &mut self,
        name: &Arc<str>,
        key: &SlotKey,
        wanted: Option<PodEntries>,
        pass: &mut Pass,
    ) {
        let pod = self.pod(&key.0).filter(|pod| pod.uid == key.1);
        let sizes = wanted
            .as_ref()
            .zip(pod)
            .map(|(wanted, pod)| bytes(wanted, pod));
        let node = self.nodes.entry(name.clone()).or_default();
        let slot = node.slots.entry(key.clone()).or_default();
        if slot.wanted.as_deref() != wanted.as_ref() {
            let size = sizes.unwrap_or_default();
            node.bytes = node.bytes - slot.bytes + size;
            slot.bytes = size;
            slot.wanted = wanted.map(Arc::new);
            pass.nodes.insert(name.clone());
            self.make_room(name, pass);
        }
        self.check(name, key, pass);
        self.forget_if_void(name);
    }

    /// Refuses the surplus of a node whose object would be too large; the pods that come first stay.
    fn make_room(&mut self, name: &Arc<str>, pass: &mut Pass) {
        let most = self.config.node_bytes;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if node.bytes <= most && node.slots.values().all(|slot| !slot.refused) {
            return;
        }
        let mut sum = 0;
        let mut turned = Vec::new();
        for (key, slot) in &mut node.slots {
            let refused = sum + slot.bytes > most;
            sum += if refused { 0 } else { slot.bytes };
            if std::mem::replace(&mut slot.refused, refused) != refused {
                turned.push(key.clone());
            }
        }
        for key in turned {
            self.check(name, &key, pass);
            pass.pods.insert(key.0);
        }
    }

    /// Compares all slots of a node anew, and has its pods worked out again.
    fn check_all(&mut self, name: &Arc<str>, pass: &mut Pass) {
        let Some(node) = self.nodes.get(name) else {
            return;
        };
        pass.nodes.insert(name.clone());
        let keys: Vec<_> = node.slots.keys().cloned().collect();
        for key in keys {
            self.check(name, &key, pass);
        }
    }

    /// Compares a slot anew.
    fn check(&mut self, name: &Arc<str>, key: &SlotKey, pass: &mut Pass) {
        let extensions = self.extensions;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let desired = node.desired(key).cloned();
        let Some(slot) = node.slots.get_mut(key) else {
            return;
        };
        let observed = slot.observed.as_deref();
        let differs = differing_markers(&key.0, desired.as_deref(), observed, extensions);
        if differs.is_none() && desired.is_some() && desired.as_deref() == observed {
            slot.observed = desired;
        }
        let void = slot.wanted.is_none() && slot.observed.is_none() && slot.verdicts.is_empty();
        let before = std::mem::replace(&mut slot.differs, differs.clone());
        if void {
            node.slots.remove(key);
        }
        if before == differs {
            return;
        }
        node.differing -= usize::from(before.is_some());
        node.differing += usize::from(differs.is_some());
        pass.nodes.insert(name.clone());
        pass.pods.insert(key.0.clone());
        self.acknowledge(
            before.unwrap_or_default(),
            differs.unwrap_or_default(),
            pass,
        );
    }

    /// Counts the places where markers' entries are not as they should be.
    fn acknowledge(
        &mut self,
        before: BTreeSet<MarkerName>,
        after: BTreeSet<MarkerName>,
        pass: &mut Pass,
    ) {
        for marker in &after {
            *self.unacknowledged.entry(marker.clone()).or_default() += 1;
        }
        for marker in &before {
            if let Some(count) = self.unacknowledged.get_mut(marker) {
                *count -= 1;
                if *count == 0 {
                    self.unacknowledged.remove(marker);
                }
            }
        }
        pass.markers.extend(before);
        pass.markers.extend(after);
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
            .flat_map(|observed| &observed.entries);
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
        let pods = self.nodes.values().flat_map(NodeState::pods);
        pass.pods.extend(pods.cloned());
    }

    pub(super) fn node_differs(&self, name: &Arc<str>) -> bool {
        self.nodes.get(name).is_some_and(NodeState::differs)
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

    /// What the node's object says of a pod.
    pub(super) fn observed(&self, pod: &Pod) -> Option<&PodEntries> {
        self.slot(pod)?.observed.as_deref()
    }

    /// The verdict about an entry, if there is one about this very entry.
    pub(super) fn verdict(&self, pod: &Pod, entry: &Entry) -> Option<&Verdict> {
        let (node, key) = slot_key(pod)?;
        let desired = self.nodes.get(&node)?.desired(&key)?;
        desired.get(&entry.name)?;
        let mut verdicts = self.slot(pod)?.verdicts.iter();
        verdicts.find(|verdict| entry.fits(verdict))
    }

    /// Whether there is no room for a pod's entries.
    pub(super) fn is_refused_for_size(&self, pod: &Pod) -> bool {
        self.slot(pod).is_some_and(|slot| slot.refused)
    }

    /// Whether the agent does not report though it has been told of the pod.
    pub(super) fn is_silent(&self, pod: &Pod) -> bool {
        let node = pod.node.as_ref().and_then(|node| self.nodes.get(node));
        let told = self
            .slot(pod)
            .is_some_and(|slot| slot.observed.is_some() && slot.differs.is_none());
        told && node.is_some_and(|node| node.silent)
    }

    fn slot(&self, pod: &Pod) -> Option<&Slot> {
        let (node, key) = slot_key(pod)?;
        self.nodes.get(&node)?.slots.get(&key)
    }

    fn forget_if_void(&mut self, name: &Arc<str>) {
        if self.nodes.get(name).is_some_and(NodeState::is_void)
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
        let patience = self.config.silent_after;
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let fresh = node.object.as_ref().and_then(|object| object.fresh);
        let end = fresh.and_then(|fresh| fresh.checked_add(patience).ok());
        let end = end.filter(|_| node.agents.is_empty());
        let waiting = end.filter(|end| pass.now < *end);
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

/// What is observed of one pod on a node.
type Sight = (Option<PodEntries>, Vec<Verdict>);

/// The slots of an object, and whether it names a pod twice.
fn read_slots(
    spec: &NodePodProbeSpec,
    status: Option<&NodePodProbeStatus>,
) -> (BTreeMap<SlotKey, Sight>, bool) {
    let key = |namespace: &str, name: &str, uid: &str| {
        let name = ObjectName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        (Arc::new(name), Arc::from(uid))
    };
    let mut slots: BTreeMap<SlotKey, Sight> = BTreeMap::new();
    let mut malformed = false;
    for pod in &spec.pod_probes {
        let slot = slots
            .entry(key(&pod.namespace, &pod.name, &pod.uid))
            .or_default();
        malformed |= slot.0.replace(PodEntries::read(pod)).is_some();
    }
    for pod in status.iter().flat_map(|status| &status.pod_probe_statuses) {
        let slot = slots
            .entry(key(&pod.namespace, &pod.name, &pod.uid))
            .or_default();
        slot.1
            .extend(pod.probe_states.iter().filter_map(Verdict::read));
    }
    (slots, malformed)
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

/// What a pod takes of the room in a node's object.
fn bytes(wanted: &PodEntries, pod: &Pod) -> usize {
    let written = serde_json::to_string(&wanted.write(pod, true));
    written.map_or(0, |written| written.len())
}

fn of_node(name: &str) -> ObjectName {
    ObjectName {
        namespace: String::new(),
        name: name.to_owned(),
    }
}

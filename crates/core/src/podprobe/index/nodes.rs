//! Nodes in the index, and their `NodePodProbe` as an object.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_api::node_pod_probe::{NodePodProbe, NodePodProbeSpec};
use leadsman_api::slim::Node;

use super::agents::{AgentPod, Hearing, Waits};
use super::slots::{SeenSlot, Slot, SlotKey, observed_entries, read_entries, read_verdicts};
use super::{DueWrite, Index, Pass, Sent, Timer};
use crate::cluster::{Now, ObjectName, ResourceVersion, Source};
use crate::podprobe::contest::{Contest, fingerprint};
use crate::podprobe::event::{Kind, Write, WriteTarget};

/// A node, or what is known beside it under its name.
#[derive(Debug, Default)]
pub(super) struct NodeState {
    /// None while there is no such node.
    pub(super) seen: Option<SeenNode>,
    /// None while there is no such object.
    pub(super) object: Option<SeenObject>,
    /// The agent's pods here.
    pub(super) agents: BTreeMap<Arc<ObjectName>, AgentPod>,
    /// When, on the monotonic clock, an agent's pod that has gone has been away for too long.
    pub(super) absent_from: Duration,
    pub(super) hearing: Hearing,
    pub(super) timer: Option<Duration>,
    pub(super) slots: BTreeMap<SlotKey, Slot>,
    /// How many slots differ.
    pub(super) differing: usize,
    /// Bytes of all that is wanted.
    pub(super) bytes: usize,
    /// Moves whenever what is wanted of its object may be another.
    pub(super) wanted: u64,
    pub(super) contest: Contest,
    pub(super) contest_timer: Option<Duration>,
}

/// What is read of a node.
#[derive(Debug)]
pub(super) struct SeenNode {
    pub(super) version: ResourceVersion,
    /// A provider runs the probes of its pods.
    pub(super) is_virtual: bool,
}

/// A `NodePodProbe`, but for its slots.
#[derive(Debug)]
pub(super) struct SeenObject {
    pub(super) version: ResourceVersion,
    /// What a replacement has to keep.
    meta: ObjectMeta,
    /// It names a pod twice.
    malformed: bool,
    pub(super) waits: Waits,
}

impl SeenObject {
    /// The finalizers that hold it, if it is being deleted. Without any it would be gone: nothing is shown as being
    /// deleted but what waits for a finalizer (`pkg/registry/generic/registry/store.go` of apiserver, `Delete`).
    pub(super) fn holders(&self) -> Option<&[String]> {
        holders(&self.meta)
    }
}

fn holders(meta: &ObjectMeta) -> Option<&[String]> {
    let finalizers = meta.finalizers.as_deref().unwrap_or_default();
    meta.deletion_timestamp.as_ref().map(|_| finalizers)
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
    pub(super) fn pods(&self) -> impl Iterator<Item = &Arc<ObjectName>> {
        let slots = self.slots.iter();
        slots
            .filter(|(_, slot)| slot.wanted.is_some())
            .map(|((pod, _), _)| pod)
    }
}

impl Index {
    pub(super) fn see_node(&mut self, wire: &Node, source: Source, pass: &mut Pass) {
        let name = wire.identity.name.as_deref().unwrap_or_default();
        let name = self.interners.strings.share(name);
        let version = ResourceVersion::parse(wire.identity.resource_version.as_deref());
        let known = self.nodes.get(&name).and_then(|node| node.seen.as_ref());
        let known = known.map(|node| node.version);
        if self
            .watches
            .is_stale(source, Kind::Node, &of_node(&name), version, known)
        {
            return;
        }
        let mut labels = wire.labels.iter();
        let is_virtual = labels.any(|(key, value)| key == "type" && value == "virtual-kubelet");
        let node = self.nodes.entry(name.clone()).or_default();
        let was_virtual = node.seen.as_ref().map(|seen| seen.is_virtual);
        node.seen = Some(SeenNode {
            version,
            is_virtual,
        });
        if was_virtual != Some(is_virtual) {
            pass.pods.extend(node.pods().cloned());
            self.check_all(&name, pass);
        }
        pass.nodes.insert(name);
    }

    pub(super) fn lose_node(
        &mut self,
        name: &ObjectName,
        pass: &mut Pass,
    ) -> Option<ResourceVersion> {
        let (name, node) = self.nodes.get_key_value(name.name.as_str())?;
        let version = node.seen.as_ref()?.version;
        let name = name.clone();
        let node = self.nodes.get_mut(&name)?;
        node.seen = None;
        pass.pods.extend(node.pods().cloned());
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
        let name = self.interners.strings.share(name);
        let version = ResourceVersion::parse(wire.metadata.resource_version.as_deref());
        let (slots, malformed) = self.read(&name, &wire, source);
        let known = self.nodes.get(&name).and_then(|node| node.object.as_ref());
        let known = known.map(|object| object.version);
        if self
            .watches
            .is_stale(source, Kind::NodePodProbe, &of_node(&name), version, known)
        {
            return;
        }
        // The agent's reports change nothing about a spec that is refused.
        let known = self.nodes.get(&name).and_then(|node| node.object.as_ref());
        let is_same = known.is_some_and(|known| {
            let (known, new) = (&known.meta, &wire.metadata);
            known.uid == new.uid && known.generation == new.generation
        });
        let object = WriteTarget::NodePodProbe(name.to_string());
        let held = known.and_then(SeenObject::holders);
        let is_turned = held != holders(&wire.metadata);
        if (!is_same && self.refused.remove(&object).is_some()) || is_turned {
            self.look_at(&object, pass);
        }
        let waits = Waits::new(&wire, self.config.silent_after, pass.now);
        let node = self.nodes.entry(name.clone()).or_default();
        node.object = Some(SeenObject {
            version,
            meta: kept(wire.metadata),
            malformed,
            waits,
        });
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
    ) -> (BTreeMap<SlotKey, SeenSlot>, bool) {
        let known = self.nodes.get(name);
        let object = known.and_then(|node| node.object.as_ref());
        let same = object.filter(|object| {
            let (old, new) = (&object.meta, &wire.metadata);
            let moved = new.generation.is_none() || old.generation != new.generation;
            source != Source::List && old.uid == new.uid && !moved
        });
        let known = known.map(|node| &node.slots);
        let (mut slots, malformed) = match (same, known) {
            (Some(object), Some(known)) => (observed_entries(known), object.malformed),
            _ => read_entries(&wire.spec, &mut self.interners, &mut self.entries),
        };
        read_verdicts(wire.status.as_ref(), known, &mut slots, &mut self.interners);
        (slots, malformed)
    }

    pub(super) fn lose_node_pod_probe(
        &mut self,
        name: &ObjectName,
        pass: &mut Pass,
    ) -> Option<ResourceVersion> {
        let (name, node) = self.nodes.get_key_value(name.name.as_str())?;
        let version = node.object.as_ref()?.version;
        let name = name.clone();
        let lost = self.nodes.get_mut(&name)?.object.take()?;
        let object = WriteTarget::NodePodProbe(name.to_string());
        if self.refused.remove(&object).is_some() || lost.holders().is_some() {
            self.look_at(&object, pass);
        }
        self.fill(&name, BTreeMap::new(), pass);
        self.listen(&name, pass);
        pass.nodes.insert(name.clone());
        self.forget_if_void(&name);
        Some(version)
    }

    /// Takes note of whether the API server keeps our optional fields of entries.
    pub(super) fn set_extensions(&mut self, extensions: bool, pass: &mut Pass) {
        if std::mem::replace(&mut self.extensions, extensions) == extensions {
            return;
        }
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        for name in names {
            self.check_all(&name, pass);
        }
        let pods = self.nodes.values().flat_map(|node| node.pods());
        pass.pods.extend(pods.cloned());
    }

    /// What stands for what is wanted of a node's object.
    fn wanted_of_node(&self, node: &NodeState) -> u64 {
        fingerprint((node.wanted, node.is_served(), self.extensions))
    }

    /// Takes note of how a node's object differs from what is wanted, and returns whether it is to be written now.
    pub(super) fn observe_node_pod_probe(&mut self, name: &Arc<str>, now: Now) -> bool {
        let Some(node) = self.nodes.get(name) else {
            return false;
        };
        let (wanted, differs) = (self.wanted_of_node(node), node.differs());
        let Some(node) = self.nodes.get_mut(name) else {
            return false;
        };
        node.contest.observe(wanted, differs, now.monotonic);
        let next = node.contest.deadline(now.monotonic);
        let before = std::mem::replace(&mut node.contest_timer, next);
        let due = differs && !node.contest.holds(now.monotonic);
        if before != next {
            let timer = |time| (time, Timer::Spec(name.clone()));
            before.map(|time| self.timers.remove(&timer(time)));
            self.timers.extend(next.map(timer));
        }
        due
    }

    pub(super) fn node_pod_probe_due(&self, name: &str, now: Now) -> Option<DueWrite> {
        let node = self.nodes.get(name).filter(|node| node.differs())?;
        if node.contest.holds(now.monotonic) {
            return None;
        }
        let wanted = self.wanted_of_node(node);
        let object = node.object.as_ref();
        if !node.is_served() {
            return Some(DueWrite {
                write: Write::DeleteNodePodProbe {
                    name: name.to_owned(),
                    uid: object?.meta.uid.clone().unwrap_or_default(),
                },
                // What is deleted is gone when the watch says so.
                sent: Sent::whole(wanted, false),
            });
        }
        let keys = node.slots.keys();
        let pods = keys.filter_map(|key| {
            let entries = node.desired(key)?;
            Some(entries.write(&key.0, &key.1, self.extensions))
        });
        let spec = NodePodProbeSpec {
            pod_probes: pods.collect(),
        };
        let mut replacement = NodePodProbe::new(name, spec);
        let write = match object {
            None => Write::CreateNodePodProbe(Box::new(replacement)),
            Some(object) => {
                replacement.metadata = object.meta.clone();
                Write::ReplaceNodePodProbe(Box::new(replacement))
            }
        };
        Some(DueWrite {
            write,
            sent: Sent::whole(wanted, true),
        })
    }

    pub(super) fn forget_if_void(&mut self, name: &Arc<str>) {
        if self.nodes.get(name).is_some_and(|node| node.is_void())
            && let Some(node) = self.nodes.remove(name)
        {
            let timer = node.timer.map(|time| (time, Timer::Node(name.clone())));
            timer.map(|timer| self.timers.remove(&timer));
            let timer = node
                .contest_timer
                .map(|time| (time, Timer::Spec(name.clone())));
            timer.map(|timer| self.timers.remove(&timer));
        }
    }
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

//! Slots: a slot is the place of one pod in a node's object, its entries as wanted and as observed, and its verdicts.
//!
//! The object differs while one slot does. Whether a marker's entries are acknowledged is counted over all slots, also
//! those of nodes and pods that are gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use leadsman_api::limits;
use leadsman_api::node_pod_probe::{NodePodProbeSpec, NodePodProbeStatus};

use super::nodes::NodeState;
use super::pods::slot_key;
use super::{Index, MarkerName, Pass};
use crate::cluster::{Interner, Interners, ObjectName};
use crate::podprobe::plan::{Entries, Entry, PodEntries};
use crate::podprobe::pod::Pod;
use crate::podprobe::verdict::Verdict;

/// Name of a pod, and its uid on the node.
pub(super) type SlotKey = (Arc<ObjectName>, Arc<str>);

/// One pod's place in a node's object.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) wanted: Option<PodEntries>,
    /// What is wanted takes so many bytes of the room in the node's object.
    pub(super) bytes: usize,
    /// There is no room for it.
    pub(super) refused: bool,
    pub(super) observed: Option<PodEntries>,
    pub(super) verdicts: Box<[(Arc<str>, Verdict)]>,
    pub(super) obstacles: Box<[Obstacle]>,
    /// None if it is as it should be; else the markers whose entries are not.
    pub(super) differs: Option<Box<[MarkerName]>>,
}

/// Why the agent cannot run a probe, as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// `<marker>#<probe>`.
    pub(super) name: Arc<str>,
    /// In the agent's words.
    pub(super) message: Arc<str>,
}

impl Slot {
    /// Whether the agent says anything of the pod.
    fn is_reported(&self) -> bool {
        !self.verdicts.is_empty() || !self.obstacles.is_empty()
    }
}

impl NodeState {
    /// The entries that the object should have for a pod.
    pub(super) fn desired(&self, key: &SlotKey) -> Option<&PodEntries> {
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
    interners: &mut Interners,
) -> Option<Box<[MarkerName]>> {
    match (desired, observed) {
        (None, None) => return None,
        (Some(desired), Some(observed)) if desired.is_equal(observed, extensions) => return None,
        _ => {}
    }
    let moved = match (desired, observed) {
        (Some(desired), Some(observed)) => desired.ip != observed.ip,
        _ => true,
    };
    let entries = |one: Option<&PodEntries>| one.map(|one| one.entries.clone()).unwrap_or_default();
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
        Some(interners.objects.share(ObjectName {
            namespace: pod.namespace.clone(),
            name: marker.to_owned(),
        }))
    });
    let markers: BTreeSet<_> = markers.collect();
    Some(markers.into_iter().collect())
}

impl Index {
    /// Replaces what is observed in all slots of a node.
    pub(super) fn fill(
        &mut self,
        name: &Arc<str>,
        mut slots: BTreeMap<SlotKey, SeenSlot>,
        pass: &mut Pass,
    ) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        for (key, slot) in &node.slots {
            if slot.observed.is_some() || slot.is_reported() {
                slots.entry(key.clone()).or_default();
            }
        }
        for (key, seen) in slots {
            let slot = node.slots.entry(key.clone()).or_default();
            if slot.observed == seen.observed
                && *slot.verdicts == *seen.verdicts
                && *slot.obstacles == *seen.obstacles
            {
                continue;
            }
            slot.observed = seen.observed;
            slot.verdicts = seen.verdicts.into();
            slot.obstacles = seen.obstacles.into();
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
        let known = self.nodes.get(name).and_then(|node| node.slots.get(key));
        let known = known.and_then(|slot| slot.wanted.as_ref());
        if known != wanted.as_ref() {
            // Measured only when it changes: a verdict must not cost a serialization of the pod's entries.
            let wanted_bytes = |wanted: &PodEntries| wanted.bytes(&key.0, &key.1);
            let size = wanted.as_ref().map_or(0, wanted_bytes);
            let node = self.nodes.entry(name.clone()).or_default();
            let slot = node.slots.entry(key.clone()).or_default();
            let had = if slot.refused { 0 } else { slot.bytes };
            let changed = pass.rooms.entry(name.clone()).or_default();
            changed.entry(key.clone()).or_insert(had);
            node.bytes = node.bytes - slot.bytes + size;
            slot.bytes = size;
            slot.wanted = wanted;
            node.wanted += 1;
            pass.nodes.insert(name.clone());
        }
        self.check(name, key, pass);
        self.forget_if_void(name);
    }

    /// Compares all slots of a node anew, and has its pods worked out again.
    pub(super) fn check_all(&mut self, name: &Arc<str>, pass: &mut Pass) {
        let Some(node) = self.nodes.get(name) else {
            return;
        };
        pass.nodes.insert(name.clone());
        // Whether a lack of room counts depends on whether the node is served.
        let refused = node.slots.iter().filter(|(_, slot)| slot.refused);
        pass.pods.extend(refused.map(|(key, _)| key.0.clone()));
        let keys: Vec<_> = node.slots.keys().cloned().collect();
        for key in keys {
            self.check(name, &key, pass);
        }
    }

    /// Compares a slot anew.
    pub(super) fn check(&mut self, name: &Arc<str>, key: &SlotKey, pass: &mut Pass) {
        let (extensions, interners) = (self.extensions, &mut self.interners);
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let desired = node.desired(key).filter(|_| self.synced).cloned();
        let Some(slot) = node.slots.get_mut(key) else {
            return;
        };
        let observed = slot.observed.as_ref().filter(|_| self.synced);
        let differs = differing_markers(&key.0, desired.as_ref(), observed, extensions, interners);
        let void = slot.wanted.is_none() && slot.observed.is_none() && !slot.is_reported();
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
            &before.unwrap_or_default(),
            &differs.unwrap_or_default(),
            pass,
        );
    }

    /// Counts the places where markers' entries are not as they should be.
    fn acknowledge(&mut self, before: &[MarkerName], after: &[MarkerName], pass: &mut Pass) {
        for marker in after {
            *self.unacknowledged.entry(marker.clone()).or_default() += 1;
        }
        for marker in before {
            if let Some(count) = self.unacknowledged.get_mut(marker) {
                *count -= 1;
                if *count == 0 {
                    self.unacknowledged.remove(marker);
                }
            }
        }
        pass.markers.extend(before.iter().chain(after).cloned());
    }

    /// What the node's object says of a pod.
    pub(super) fn observed(&self, pod: &Pod) -> Option<&PodEntries> {
        self.slot(pod)?.observed.as_ref()
    }

    /// The verdict about an entry, if there is one about this very entry and the container that runs now. One about a
    /// container before it counts as absent, so marks stay until the agent says that they are over: that takes it a
    /// second while it works, and while it does not, nothing changes a pod.
    pub(super) fn verdict(&self, pod: &Pod, entry: &Entry) -> Option<&Verdict> {
        let (node, key) = slot_key(pod)?;
        let desired = self.nodes.get(&node)?.desired(&key)?;
        desired.get(&entry.name)?;
        let mut verdicts = self.slot(pod)?.verdicts.iter();
        let mut containers = pod.containers.iter();
        let container = containers.find(|one| one.name == entry.container)?;
        let verdict = verdicts
            .find(|(name, verdict)| entry.fits(name, verdict) && verdict.is_about(container));
        verdict.map(|(_, verdict)| verdict)
    }

    /// Whether there is no room for a pod's entries.
    pub(super) fn is_refused_for_size(&self, pod: &Pod) -> bool {
        let node = pod.node.as_ref().and_then(|node| self.nodes.get(node));
        node.is_some_and(|node| node.is_served()) && self.slot(pod).is_some_and(|slot| slot.refused)
    }

    pub(super) fn slot(&self, pod: &Pod) -> Option<&Slot> {
        let (node, key) = slot_key(pod)?;
        self.nodes.get(&node)?.slots.get(&key)
    }
}

/// What is observed of one pod on a node.
#[derive(Debug, Default)]
pub(super) struct SeenSlot {
    pub(super) observed: Option<PodEntries>,
    verdicts: Vec<(Arc<str>, Verdict)>,
    obstacles: Vec<Obstacle>,
}

/// The entries of an object by pod, and whether it names a pod twice.
pub(super) fn read_entries(
    spec: &NodePodProbeSpec,
    interners: &mut Interners,
    pool: &mut Interner<Entries>,
) -> (BTreeMap<SlotKey, SeenSlot>, bool) {
    let mut slots: BTreeMap<SlotKey, SeenSlot> = BTreeMap::new();
    let mut malformed = false;
    for pod in &spec.pod_probes {
        let key = key(&pod.namespace, &pod.name, &pod.uid, interners);
        let observed = &mut slots.entry(key).or_default().observed;
        let entries = PodEntries::read(pod, interners, pool);
        malformed |= observed.replace(entries).is_some();
    }
    (slots, malformed)
}

/// The entries of an object as they were read before.
pub(super) fn observed_entries(slots: &BTreeMap<SlotKey, Slot>) -> BTreeMap<SlotKey, SeenSlot> {
    let observed = slots.iter().filter_map(|(key, slot)| {
        let observed = slot.observed.clone()?;
        let seen = SeenSlot {
            observed: Some(observed),
            ..SeenSlot::default()
        };
        Some((key.clone(), seen))
    });
    observed.collect()
}

/// Adds the verdicts. Of what is `known` of the node, keys and strings are taken that have not changed: searched for
/// among those of all nodes, they would be far away in the memory.
pub(super) fn read_verdicts(
    status: Option<&NodePodProbeStatus>,
    known: Option<&BTreeMap<SlotKey, Slot>>,
    slots: &mut BTreeMap<SlotKey, SeenSlot>,
    interners: &mut Interners,
) {
    let known: HashMap<_, _> = known
        .into_iter()
        .flatten()
        .map(|(key, slot)| {
            let (name, uid) = key;
            ((&*name.namespace, &*name.name, &**uid), (key, slot))
        })
        .collect();
    for pod in status.iter().flat_map(|status| &status.pod_probe_statuses) {
        let known = known.get(&(&*pod.namespace, &*pod.name, &*pod.uid));
        let key = match known {
            Some((key, _)) => (*key).clone(),
            None => key(&pod.namespace, &pod.name, &pod.uid, interners),
        };
        let seen = slots.entry(key).or_default();
        let names = &mut interners.strings;
        for (place, state) in pod.probe_states.iter().enumerate() {
            let known = known.and_then(|(_, slot)| slot.verdicts.get(place));
            let verdict = Verdict::read(state, known.map(|(_, verdict)| verdict), names);
            let name = names.share_like(known.map(|(name, _)| name), &state.name);
            seen.verdicts.extend(verdict.map(|verdict| (name, verdict)));
        }
        let obstacles = pod.cannot_probe.iter().map(|one| Obstacle {
            name: names.share(one.name.as_str()),
            message: names.share(obstacle_message(&one.message)),
        });
        seen.obstacles.extend(obstacles);
    }
}

/// The schema bounds it, but the API server may have another one.
fn obstacle_message(message: &str) -> &str {
    &message[..message.floor_char_boundary(limits::CANNOT_PROBE_MESSAGE)]
}

fn key(namespace: &str, name: &str, uid: &str, interners: &mut Interners) -> SlotKey {
    let name = ObjectName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    (interners.objects.share(name), interners.strings.share(uid))
}

//! One pod on a node: its entries, wanted and observed, and the agent's reports about it.
//!
//! The object of a node is written as long as the entries of one of its pods differ from what is wanted. For each
//! marker the pods with differing entries are counted over all nodes, deleted nodes and pods included.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Nodes;
use crate::cluster::{Interners, ObjectName};
use crate::podprobe::index::context::{IndexContext, MarkerName, NodeName, PodKey};
use crate::podprobe::plan::{Entry, PodEntries};
use crate::podprobe::verdict::Verdict;

/// One pod on a node.
#[derive(Debug, Default)]
pub(super) struct PodOnNode {
    pub(super) wanted: Option<PodEntries>,
    /// Size of the wanted entries in the object, in bytes.
    pub(super) bytes: usize,
    pub(super) room: Room,
    pub(super) observed: Option<PodEntries>,
    /// The verdicts by entry, `<marker>#<probe>`.
    pub(super) verdicts: Box<[(Arc<str>, Verdict)]>,
    pub(super) obstacles: Box<[Obstacle]>,
    /// The markers whose entries differ from what is wanted. None if all are equal.
    pub(super) differs: Option<Box<[MarkerName]>>,
}

/// The room for the entries of a pod in its node's object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Room {
    /// The pod keeps it.
    #[default]
    Given,
    /// The entries have grown beyond the share of their namespace: they stay until somebody within a share wants the room.
    Lent,
    /// The object has no room for the entries.
    Lacking,
}

/// The observed state of one pod on a node.
#[derive(Debug, Default)]
pub(super) struct PodObservation {
    pub(super) entries: Option<PodEntries>,
    pub(super) verdicts: Vec<(Arc<str>, Verdict)>,
    pub(super) obstacles: Vec<Obstacle>,
}

/// Why the agent cannot run a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    /// `<marker>#<probe>`.
    pub(super) entry: Arc<str>,
    /// The agent's message.
    pub(super) message: Arc<str>,
}

impl PodOnNode {
    /// Whether the object has no room for the wanted entries.
    pub(super) fn lacks_room(&self) -> bool {
        self.room == Room::Lacking
    }

    /// Whether the agent says anything of the pod.
    pub(super) fn is_reported(&self) -> bool {
        !self.verdicts.is_empty() || !self.obstacles.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.wanted.is_none() && self.observed.is_none() && !self.is_reported()
    }
}

impl Nodes {
    /// Replaces what is observed of all pods of a node.
    pub(super) fn set_observed(
        &mut self,
        name: &NodeName,
        mut pods: BTreeMap<PodKey, PodObservation>,
        cx: &mut IndexContext,
    ) {
        let Some(node) = self.by_name.get_mut(name) else {
            return;
        };
        for (key, pod) in &node.pods {
            if pod.observed.is_some() || pod.is_reported() {
                // A pod that the object does not name any more is replaced by nothing, and not left as it was.
                pods.entry(key.clone()).or_default();
            }
        }
        for (key, new) in pods {
            let pod = node.pods.entry(key.clone()).or_default();
            if pod.observed == new.entries
                && *pod.verdicts == *new.verdicts
                && *pod.obstacles == *new.obstacles
            {
                continue;
            }
            pod.observed = new.entries;
            pod.verdicts = new.verdicts.into();
            pod.obstacles = new.obstacles.into();
            cx.affected.pods.insert(key.0);
        }
        self.compare_pods(name, cx);
    }

    /// Compares all pods of a node.
    pub(super) fn compare_pods(&mut self, name: &NodeName, cx: &mut IndexContext) {
        let Some(node) = self.by_name.get(name) else {
            return;
        };
        cx.affected.nodes.insert(name.clone());
        // Whether a lack of room counts depends on whether the node is served.
        let lacking = node
            .pods
            .iter()
            .filter(|(_, pod)| pod.lacks_room())
            .map(|(key, _)| key.0.clone());
        cx.affected.pods.extend(lacking);
        let keys: Vec<_> = node.pods.keys().cloned().collect();
        for key in keys {
            self.compare_pod(name, &key, cx);
        }
    }

    /// Compares the entries of a pod with those that it should have.
    pub(super) fn compare_pod(&mut self, name: &NodeName, key: &PodKey, cx: &mut IndexContext) {
        let Some(node) = self.by_name.get_mut(name) else {
            return;
        };
        // Nothing counts as wanted or observed before every kind is listed: no difference may be acted on.
        let desired = node.desired_entries(key).filter(|_| cx.synced).cloned();
        let Some(pod) = node.pods.get_mut(key) else {
            return;
        };
        let observed = pod.observed.as_ref().filter(|_| cx.synced);
        let pair = (desired.as_ref(), observed);
        let differs = differing_markers(&key.0, pair, self.keeps_fields, &mut cx.interners);
        let is_empty = pod.is_empty();
        // Kept as names and not as a flag, since the count of each marker is changed by exactly what was added before.
        let before = std::mem::replace(&mut pod.differs, differs.clone());
        if is_empty {
            node.pods.remove(key);
        }
        if before == differs {
            return;
        }
        debug_assert!(
            node.differing >= usize::from(before.is_some()),
            "a pod that differed was not counted"
        );
        node.differing -= usize::from(before.is_some());
        node.differing += usize::from(differs.is_some());
        cx.affected.nodes.insert(name.clone());
        cx.affected.pods.insert(key.0.clone());
        self.count_unacknowledged(
            &before.unwrap_or_default(),
            &differs.unwrap_or_default(),
            cx,
        );
    }

    /// Counts the pods in which markers' entries are not as they should be.
    fn count_unacknowledged(
        &mut self,
        before: &[MarkerName],
        after: &[MarkerName],
        cx: &mut IndexContext,
    ) {
        for marker in after {
            *self.unacknowledged.entry(marker.clone()).or_default() += 1;
        }
        for marker in before {
            debug_assert!(
                self.unacknowledged.contains_key(marker),
                "a pod that differed was not counted"
            );
            if let Some(count) = self.unacknowledged.get_mut(marker) {
                *count -= 1;
                if *count == 0 {
                    self.unacknowledged.remove(marker);
                }
            }
        }
        let markers = before.iter().chain(after).cloned();
        cx.affected.markers.extend(markers);
    }
}

/// The markers whose entries are in one and not, or not equal, in the other of the entries desired and observed. None
/// if there is no difference.
fn differing_markers(
    pod: &ObjectName,
    (desired, observed): (Option<&PodEntries>, Option<&PodEntries>),
    keeps_fields: bool,
    interners: &mut Interners,
) -> Option<Box<[MarkerName]>> {
    match (desired, observed) {
        (None, None) => return None,
        (Some(desired), Some(observed)) if desired.is_equal(observed, keeps_fields) => return None,
        _ => {}
    }
    let moved = match (desired, observed) {
        // The address belongs to the pod: when it differs, all of its entries do.
        (Some(desired), Some(observed)) => desired.ip != observed.ip,
        _ => true,
    };
    let entries = |one: Option<&PodEntries>| one.map(|one| one.entries.clone()).unwrap_or_default();
    let (desired, observed) = (entries(desired), entries(observed));
    let is_in =
        |entry: &Entry, all: &[Entry]| all.iter().any(|other| entry.is_equal(other, keeps_fields));
    let lacking = desired
        .iter()
        .filter(|entry| moved || !is_in(entry, &observed));
    let surplus = observed
        .iter()
        .filter(|entry| moved || !is_in(entry, &desired));
    let markers = lacking.chain(surplus).filter_map(|entry| {
        // An entry without a marker's name delays nobody's status. The pod differs all the same, so
        // the object is written.
        let (marker, _) = entry.name.split_once('#')?;
        Some(interners.objects.share(ObjectName {
            namespace: pod.namespace.clone(),
            name: marker.to_owned(),
        }))
    });
    let markers: BTreeSet<_> = markers.collect();
    Some(markers.into_iter().collect())
}

//! The allocation of the room in a node's object, whose size is limited, to the pods of the node.
//!
//! A pod that has room keeps it, unless its entries have grown. Free room goes to the namespace that uses the least. A
//! namespace gets at most three quarters of what the others leave, so that some room is left for a namespace that comes
//! later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::pod::PodOnNode;
use super::{NodeState, Nodes};
use crate::podprobe::index::context::{IndexContext, NodeName, PodKey};

/// The largest part of the room that a namespace may have of what the others leave: three quarters.
const NAMESPACE_SHARE: (usize, usize) = (3, 4);

fn namespace_share(bytes: usize) -> usize {
    bytes / NAMESPACE_SHARE.1 * NAMESPACE_SHARE.0
}

/// The room in an object while it is allocated.
pub(super) struct Allocation<'a> {
    max_bytes: usize,
    used: usize,
    by_namespace: BTreeMap<&'a str, usize>,
    admitted: BTreeSet<PodKey>,
}

impl<'a> Allocation<'a> {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            used: 0,
            by_namespace: BTreeMap::new(),
            admitted: BTreeSet::new(),
        }
    }

    fn used_by(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).copied().unwrap_or(0)
    }

    fn has_share_for(&self, namespace: &str, bytes: usize) -> bool {
        let own = self.used_by(namespace);
        let left_by_others = (self.max_bytes + own).saturating_sub(self.used);
        own + bytes <= namespace_share(left_by_others)
    }

    fn admit_pod(&mut self, key: &'a PodKey, bytes: usize) {
        self.used += bytes;
        *self.by_namespace.entry(&key.0.namespace).or_default() += bytes;
        self.admitted.insert(key.clone());
    }

    /// Admits pods that have room already, in the order of their rank.
    pub(super) fn admit_present(&mut self, mut present: Vec<(Rank, &'a PodKey, usize)>) {
        // What this process has decided counts before what the object shows, which may be older.
        present.sort();
        for (_, key, bytes) in present {
            if self.used + bytes <= self.max_bytes {
                self.admit_pod(key, bytes);
            }
        }
    }

    /// Admits pods that wait for room, those of the namespace that uses least first.
    pub(super) fn admit_waiting(
        &mut self,
        waiting: impl IntoIterator<Item = (&'a PodKey, usize)>,
    ) -> &BTreeSet<PodKey> {
        let mut queues: BTreeMap<&str, VecDeque<(&PodKey, usize)>> = BTreeMap::new();
        for (key, bytes) in waiting {
            let queue = queues.entry(&key.0.namespace).or_default();
            queue.push_back((key, bytes));
        }
        // Chosen anew for each pod: a namespace that has just been given room may not use the least any more.
        while let Some(namespace) = queues.keys().min_by_key(|one| self.used_by(one)).copied() {
            match queues.get_mut(namespace).and_then(VecDeque::pop_front) {
                Some((key, bytes)) => {
                    if self.has_share_for(namespace, bytes) {
                        self.admit_pod(key, bytes);
                    }
                }
                None => {
                    queues.remove(namespace);
                }
            }
        }
        &self.admitted
    }
}

/// The order among pods that have room already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// This process admitted it.
    Admitted,
    /// The object has its entries: it was admitted before a restart, or written by another client.
    Observed,
}

impl Nodes {
    /// Allocates the room of one node whose entries changed in this event. Returns whether there was such a node.
    ///
    /// It is called after all pods of an event were planned, so that they compete for the room together instead of the
    /// first one taking it.
    pub(in crate::podprobe::index) fn allocate_room(&mut self, cx: &mut IndexContext) -> bool {
        let Some((name, had)) = self.resized.pop_first() else {
            return false;
        };
        if let Some(node) = self.by_name.get(&name)
            && let Some(admitted) = choose_admitted_pods(node, &had, self.max_bytes)
        {
            self.refuse_all_but(&name, &admitted, cx);
        }
        true
    }

    fn refuse_all_but(
        &mut self,
        name: &NodeName,
        admitted: &BTreeSet<PodKey>,
        cx: &mut IndexContext,
    ) {
        let Some(node) = self.by_name.get_mut(name) else {
            return;
        };
        let mut changed = Vec::new();
        for (key, pod) in &mut node.pods {
            // A pod that wants nothing lacks nothing; with the flag it would be reported as waiting for room.
            let lacks_room = pod.wanted.is_some() && !admitted.contains(key);
            if std::mem::replace(&mut pod.lacks_room, lacks_room) != lacks_room {
                changed.push(key.clone());
            }
        }
        node.wanted_revision += u64::from(!changed.is_empty());
        for key in changed {
            self.compare_pod(name, &key, cx);
            cx.affected.pods.insert(key.0);
        }
    }
}

/// The pods whose entries an object has room for. `had` is the room of each changed pod before this event. None if
/// there is room for all, and was before.
fn choose_admitted_pods(
    node: &NodeState,
    had: &BTreeMap<PodKey, usize>,
    max_bytes: usize,
) -> Option<BTreeSet<PodKey>> {
    let mut pods = node.pods.values();
    // Within one namespace's share of an empty object all fit, however the bytes are divided among
    // namespaces.
    if node.wanted_bytes <= namespace_share(max_bytes) && pods.all(|pod| !pod.lacks_room) {
        return None;
    }
    let mut present = Vec::new();
    let mut waiting = Vec::new();
    for (key, pod) in &node.pods {
        match rank_and_bytes_before(key, pod, had) {
            _ if pod.wanted.is_none() => {}
            Some((rank, had)) if pod.bytes <= had => present.push((rank, key, pod.bytes)),
            _ => waiting.push((key, pod.bytes)),
        }
    }
    let mut allocation = Allocation::new(max_bytes);
    allocation.admit_present(present);
    Some(allocation.admit_waiting(waiting).clone())
}

/// The room that a pod had before. What this process decided ranks before what the object shows, which counts after a
/// restart.
fn rank_and_bytes_before(
    key: &PodKey,
    pod: &PodOnNode,
    had: &BTreeMap<PodKey, usize>,
) -> Option<(Rank, usize)> {
    let decided = match had.get(key) {
        Some(had) => *had,
        None if pod.lacks_room => 0,
        None => pod.bytes,
    };
    if decided > 0 {
        return Some((Rank::Admitted, decided));
    }
    Some((
        Rank::Observed,
        pod.observed.as_ref()?.stored_bytes(&key.0, &key.1),
    ))
}

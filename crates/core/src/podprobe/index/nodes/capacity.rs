//! The allocation of the room in a node's object, whose size is limited, to the pods of the node.
//!
//! A pod that has room keeps it. Free room goes to the namespace that uses the least. A namespace gets at most three
//! quarters of what the others leave, so that some room is left for a namespace that comes later. Entries that grow
//! beyond that stay while they fit: they are lent the room, and are the first to lose it.
//!
//! Where the API server takes less than expected, the namespaces that use the most lose room.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use leadsman_reconcile::Purpose;

use super::pod::{PodOnNode, Room};
use super::{NodeState, Nodes};
use crate::podprobe::index::context::{IndexContext, NodeName, PodKey};

/// The largest part of the room that a namespace may have of what the others leave: three quarters.
const NAMESPACE_SHARE: (usize, usize) = (3, 4);

/// How long a node's object stays smaller after the API server has refused it for its size.
const SHRUNK: Duration = Duration::from_mins(30);
/// The part of the used room that such an object keeps: three quarters.
const SHRUNK_PART: (usize, usize) = (3, 4);

fn namespace_share(bytes: usize) -> usize {
    bytes / NAMESPACE_SHARE.1 * NAMESPACE_SHARE.0
}

/// The room in an object while it is allocated.
pub(super) struct Allocation<'a> {
    max_bytes: usize,
    used: usize,
    by_namespace: BTreeMap<&'a str, usize>,
    admitted: BTreeMap<PodKey, Room>,
}

impl<'a> Allocation<'a> {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            used: 0,
            by_namespace: BTreeMap::new(),
            admitted: BTreeMap::new(),
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

    fn has_room_for(&self, _namespace: &str, bytes: usize) -> bool {
        self.used + bytes <= self.max_bytes
    }

    /// Admits pods that have room already, in the order of their rank.
    pub(super) fn admit_present(&mut self, present: &[(Rank, &'a PodKey, usize)]) {
        // Decisions of this process count before what the object shows, which may be older.
        for rank in [Rank::Admitted, Rank::Observed] {
            let of_rank = present.iter().filter(|(one, ..)| *one == rank);
            let pods = of_rank.map(|(_, key, bytes)| (*key, *bytes));
            self.admit_in_turn(pods, Self::has_room_for, Room::Given);
        }
    }

    /// Admits pods that wait for room, or for more than they have, as far as the shares of their namespaces go.
    pub(super) fn admit_waiting(&mut self, waiting: impl IntoIterator<Item = (&'a PodKey, usize)>) {
        self.admit_in_turn(waiting, Self::has_share_for, Room::Given);
    }

    /// Lends room to pods that have grown and were not admitted.
    pub(super) fn lend_room(&mut self, grown: impl IntoIterator<Item = (&'a PodKey, usize)>) {
        let grown: Vec<_> = grown
            .into_iter()
            .filter(|(key, _)| !self.admitted.contains_key(*key))
            .collect();
        self.admit_in_turn(grown, Self::has_room_for, Room::Lent);
    }

    /// The room of each pod that has some.
    pub(super) fn into_rooms(self) -> BTreeMap<PodKey, Room> {
        self.admitted
    }

    /// Admits pods, those of the namespace that uses least first.
    fn admit_in_turn(
        &mut self,
        pods: impl IntoIterator<Item = (&'a PodKey, usize)>,
        fits: fn(&Self, &str, usize) -> bool,
        room: Room,
    ) {
        let mut queues: BTreeMap<&str, VecDeque<(&PodKey, usize)>> = BTreeMap::new();
        for (key, bytes) in pods {
            let queue = queues.entry(&key.0.namespace).or_default();
            queue.push_back((key, bytes));
        }
        // Chosen anew for each pod: a namespace that has just been given room may not use the least any more.
        while let Some(namespace) = queues.keys().min_by_key(|one| self.used_by(one)).copied() {
            match queues.get_mut(namespace).and_then(VecDeque::pop_front) {
                Some((key, bytes)) => {
                    if fits(self, namespace, bytes) {
                        self.used += bytes;
                        *self.by_namespace.entry(namespace).or_default() += bytes;
                        self.admitted.insert(key.clone(), room);
                    }
                }
                None => {
                    queues.remove(namespace);
                }
            }
        }
    }
}

/// The order among pods that have room already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// The pod was admitted by this process.
    Admitted,
    /// The object has its entries: it was admitted before a restart, or written by another client.
    Observed,
}

impl Nodes {
    /// Allocates the room of a node whose entries have changed.
    ///
    /// Its node runs after the pods that wait, as a rule, so that they compete for the room together instead of the first one taking it.
    pub(super) fn allocate_room(&mut self, name: &NodeName, cx: &mut IndexContext) {
        if let Some(had) = self.resized.remove(name)
            && let Some(node) = self.by_name.get(name)
            && let Some(rooms) = allocate_rooms(node, &had, self.max_bytes)
        {
            self.set_rooms(name, &rooms, cx);
        }
    }

    fn set_rooms(
        &mut self,
        name: &NodeName,
        rooms: &BTreeMap<PodKey, Room>,
        cx: &mut IndexContext,
    ) {
        let Some(node) = self.by_name.get_mut(name) else {
            return;
        };
        let mut changed = Vec::new();
        for (key, pod) in &mut node.pods {
            let room = match rooms.get(key) {
                Some(room) => *room,
                // A pod that wants nothing lacks nothing; otherwise it would be reported as waiting for room.
                None if pod.wanted.is_none() => Room::Given,
                None => Room::Lacking,
            };
            let lacked = pod.lacks_room();
            pod.room = room;
            if pod.lacks_room() != lacked {
                changed.push(key.clone());
            }
        }
        if !changed.is_empty() {
            self.revision += 1;
            node.wanted_revision = self.revision;
        }
        for key in changed {
            self.compare_pod(name, &key, cx);
            cx.affected.pods.insert(key.0);
        }
    }

    /// Gives the pods of a node less room than they use: the API server has refused the object for its size.
    pub(super) fn shrink_room(&mut self, name: &NodeName, purpose: Purpose, cx: &IndexContext) {
        let Some(node) = self.by_name.get_mut(name) else {
            return;
        };
        let pods = node.pods.values().filter(|pod| !pod.lacks_room());
        let used: usize = pods.map(|pod| pod.bytes).sum();
        let until = cx.now.monotonic.saturating_add(SHRUNK);
        node.shrunk_room = Some((used / SHRUNK_PART.1 * SHRUNK_PART.0, until));
        node.too_large = Some(purpose);
        self.resized.entry(name.clone()).or_default();
    }
}

/// The room of each pod of a node that has some. `had` is the room of each changed pod at the last plan. None if there
/// is room for all, and was before.
fn allocate_rooms(
    node: &NodeState,
    had: &BTreeMap<PodKey, usize>,
    max_bytes: usize,
) -> Option<BTreeMap<PodKey, Room>> {
    let max_bytes = node
        .shrunk_room
        .map_or(max_bytes, |(most, _)| most.min(max_bytes));
    let mut pods = node.pods.values();
    // All pods fit within one namespace's share of an empty object, however the bytes are divided
    // among namespaces.
    if node.wanted_bytes <= namespace_share(max_bytes) && pods.all(|pod| pod.room == Room::Given) {
        return None;
    }
    let (mut present, mut grown, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for (key, pod) in &node.pods {
        match rank_and_bytes_before(key, pod, had) {
            _ if pod.wanted.is_none() => {}
            Some((rank, had)) if pod.bytes <= had && pod.room != Room::Lent => {
                present.push((rank, key, pod.bytes));
            }
            Some(_) => grown.push((key, pod.bytes)),
            None => waiting.push((key, pod.bytes)),
        }
    }
    let mut allocation = Allocation::new(max_bytes);
    allocation.admit_present(&present);
    allocation.admit_waiting(grown.iter().copied().chain(waiting));
    allocation.lend_room(grown);
    Some(allocation.into_rooms())
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
        None if pod.lacks_room() => 0,
        None => pod.bytes,
    };
    if decided > 0 {
        return Some((Rank::Admitted, decided));
    }
    let observed = pod.observed.as_ref()?.stored_bytes(&key.0, &key.1);
    Some((Rank::Observed, observed))
}

//! Who has room in a node's object, which may not become too large.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::slots::{Slot, SlotKey};
use super::{Index, Pass};

/// What a namespace is given at most of the room that the others leave: three quarters.
const SHARE: (usize, usize) = (3, 4);

fn share_of(bytes: usize) -> usize {
    bytes / SHARE.1 * SHARE.0
}

/// The room in a node's object, as it is given away.
struct Room<'a> {
    most: usize,
    used: usize,
    by_namespace: BTreeMap<&'a str, usize>,
    admitted: Vec<&'a SlotKey>,
}

impl<'a> Room<'a> {
    fn of(most: usize) -> Self {
        Self {
            most,
            used: 0,
            by_namespace: BTreeMap::new(),
            admitted: Vec::new(),
        }
    }

    fn used_by(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).copied().unwrap_or(0)
    }

    fn has_share_for(&self, namespace: &str, bytes: usize) -> bool {
        let own = self.used_by(namespace);
        let left_by_others = (self.most + own).saturating_sub(self.used);
        own + bytes <= share_of(left_by_others)
    }

    fn admit(&mut self, key: &'a SlotKey, bytes: usize) {
        self.used += bytes;
        *self.by_namespace.entry(&key.0.namespace).or_default() += bytes;
        self.admitted.push(key);
    }
}

impl Index {
    /// Decides who has room in a node's object. `changed` has the room that slots had before this pass.
    ///
    /// Who is in stays in, unless its entries have grown. What room is left goes to the namespace that has least; a
    /// namespace is given no more than [`SHARE`] of what the others leave, so that there is room for one that comes
    /// later.
    pub(super) fn make_room(
        &mut self,
        name: &Arc<str>,
        changed: &BTreeMap<SlotKey, usize>,
        pass: &mut Pass,
    ) {
        let most = self.config.node_bytes;
        let Some(node) = self.nodes.get(name) else {
            return;
        };
        if node.bytes <= share_of(most) && node.slots.values().all(|slot| !slot.refused) {
            return;
        }
        let mut room = Room::of(most);
        let mut waiting: BTreeMap<&str, VecDeque<&SlotKey>> = BTreeMap::new();
        let mut stays = Vec::new();
        for (key, slot) in &node.slots {
            match Self::bytes_had(key, slot, changed) {
                _ if slot.wanted.is_none() => {}
                Some((rank, had)) if slot.bytes <= had => stays.push((rank, key, slot.bytes)),
                _ => waiting.entry(&key.0.namespace).or_default().push_back(key),
            }
        }
        stays.sort();
        for (_, key, bytes) in stays {
            if room.used + bytes <= most {
                room.admit(key, bytes);
            }
        }
        while let Some(namespace) = waiting.keys().min_by_key(|one| room.used_by(one)).copied() {
            match waiting.get_mut(namespace).and_then(VecDeque::pop_front) {
                Some(key) => {
                    let bytes = node.slots.get(key).map_or(0, |slot| slot.bytes);
                    if room.has_share_for(namespace, bytes) {
                        room.admit(key, bytes);
                    }
                }
                None => {
                    waiting.remove(namespace);
                }
            }
        }
        let admitted: BTreeSet<_> = room.admitted.into_iter().cloned().collect();
        self.refuse_all_but(name, &admitted, pass);
    }

    /// The room that a slot has had: its rank among those that stay, and its bytes. After a restart that is what the
    /// object says, and what was decided comes before what another one wrote there.
    fn bytes_had(
        key: &SlotKey,
        slot: &Slot,
        changed: &BTreeMap<SlotKey, usize>,
    ) -> Option<(u8, usize)> {
        let decided = match changed.get(key) {
            Some(had) => *had,
            None if slot.refused => 0,
            None => slot.bytes,
        };
        if decided > 0 {
            return Some((0, decided));
        }
        Some((1, slot.observed.as_ref()?.bytes(&key.0, &key.1)))
    }

    fn refuse_all_but(&mut self, name: &Arc<str>, admitted: &BTreeSet<SlotKey>, pass: &mut Pass) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let mut turned = Vec::new();
        for (key, slot) in &mut node.slots {
            let refused = slot.wanted.is_some() && !admitted.contains(key);
            if std::mem::replace(&mut slot.refused, refused) != refused {
                turned.push(key.clone());
            }
        }
        node.wanted += u64::from(!turned.is_empty());
        for key in turned {
            self.check(name, &key, pass);
            pass.pods.insert(key.0);
        }
    }
}

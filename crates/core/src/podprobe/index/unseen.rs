//! Pods that an object of a node names and that the watch of pods has yet to show.
//!
//! A new leader lists the objects of nodes again, so that it knows what its predecessor wrote, and not the pods, of which there
//! may be many. Where the watch of pods is late, such an object has entries of pods that are not known yet. They stay until the
//! watch has come to the version of the object: a pod that is still not known then is not there.

use std::collections::BTreeMap;
use std::time::Duration;

use leadsman_reconcile::Plan;

use super::context::{NodeName, PodKey};
use super::{Machines, PodProbes};
use crate::cluster::Now;

/// How long entries stay at most: where no pod changes, nothing says how far the watch has come. A connection that is silent for
/// longer is given up before.
const LONGEST: Duration = Duration::from_mins(2);

/// Entries that stay, with the version of the object that has them, and until when they do at most.
#[derive(Debug, Default)]
pub(super) struct UnseenPods(BTreeMap<(u64, NodeName, PodKey), Duration>);

impl Machines {
    /// Preserves the entries of pods that the watch cannot have shown, once the objects were listed beside their watch.
    pub(super) fn preserve_unseen(&mut self, now: Now) {
        self.cx.now = now;
        let mut unseen = self.nodes.entries_with_versions();
        unseen.retain(|(version, _, key)| {
            !self.groups.has_watched(Some(*version)) && !self.is_known(key)
        });
        let end = now.monotonic.saturating_add(LONGEST);
        for (version, node, key) in unseen {
            self.nodes.preserve_entries(&node, &key, true, &mut self.cx);
            self.cx.affected.nodes.insert(node.clone());
            self.unseen.0.insert((version, node, key), end);
        }
    }

    /// Ends what was preserved until the watch of pods has come so far, after what it has shown was observed.
    pub(super) fn release_watched(&mut self) {
        while let Some(((version, ..), _)) = self.unseen.0.first_key_value()
            && self.groups.has_watched(Some(*version))
            && let Some(((_, node, key), _)) = self.unseen.0.pop_first()
        {
            self.release(&node, key);
        }
    }

    /// Ends what was preserved on a node for too long.
    pub(super) fn release_unseen_in_time(
        &mut self,
        node: &NodeName,
        plan: &mut Plan<'_, PodProbes>,
    ) {
        let now = plan.now().monotonic;
        let of_node = self.unseen.0.iter().filter(|((_, on, _), _)| on == node);
        let (due, later): (Vec<_>, Vec<_>) = of_node.partition(|(_, end)| **end <= now);
        if let Some(end) = later.into_iter().map(|(_, end)| *end).min() {
            plan.wake_at(end);
        }
        let due: Vec<_> = due.into_iter().map(|(entry, _)| entry.clone()).collect();
        for entry in due {
            self.unseen.0.remove(&entry);
            self.release(node, entry.2);
        }
    }

    fn release(&mut self, node: &NodeName, key: PodKey) {
        // Entries that the plan of the pod has put in their place stay.
        let planned = self.pods.on_node(&key.0);
        if planned.is_none_or(|(on, of)| (on, of) != (node, &key)) {
            self.nodes.preserve_entries(node, &key, false, &mut self.cx);
            // One that waits for its turn has them again before the object is written.
            self.cx.affected.pods.insert(key.0);
        }
    }

    fn is_known(&self, (name, uid): &PodKey) -> bool {
        self.pods.get(name).is_some_and(|pod| pod.node_uid == *uid)
    }
}

//! Pods that an object of a node names and that the watch of pods has yet to show.
//!
//! A new leader lists the objects of nodes again, so that it knows what its predecessor wrote, and not the pods, of which there
//! may be many. Where the watch of pods is late, such an object has entries of pods that are not known yet. They stay until the
//! watch has come to the version of the object: a pod that is still not known then is not there.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Index;
use super::context::{NodeName, PodKey, Timer};

/// How long entries stay at most: where no pod changes, nothing says how far the watch has come. A connection that is silent for
/// longer is given up before.
const LONGEST: Duration = Duration::from_mins(2);

/// Entries that stay, with the version of the object that has them.
#[derive(Debug, Default)]
pub(super) struct UnseenPods(BTreeSet<(u64, NodeName, PodKey)>);

impl UnseenPods {
    /// Whether there are none.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Index {
    /// Preserves the entries of pods that the watch cannot have shown, once the objects were listed beside their watch.
    pub(super) fn preserve_unseen(&mut self) {
        let mut unseen = self.nodes.entries_with_versions();
        unseen.retain(|(version, _, key)| {
            !self.groups.has_watched(Some(*version)) && !self.is_known(key)
        });
        let end = self.cx.now.monotonic.saturating_add(LONGEST);
        for (version, node, key) in unseen {
            self.nodes.preserve_entries(&node, &key, true, &mut self.cx);
            self.cx.timers.set(end, Timer::UnseenPods(version));
            self.unseen.0.insert((version, node, key));
        }
    }

    /// Ends what was preserved until the watch of pods has come so far, after what it has shown was observed.
    pub(super) fn release_watched(&mut self) {
        while let Some((version, ..)) = self.unseen.0.first()
            && self.groups.has_watched(Some(*version))
        {
            self.release_first_unseen();
        }
    }

    /// Ends what was preserved by objects up to a version.
    pub(super) fn release_unseen(&mut self, version: u64) {
        while self
            .unseen
            .0
            .first()
            .is_some_and(|(first, ..)| *first <= version)
        {
            self.release_first_unseen();
        }
    }

    fn release_first_unseen(&mut self) {
        let Some((_, node, key)) = self.unseen.0.pop_first() else {
            return;
        };
        // What the plan of its pod has put in their place stays.
        let planned = self.pods.on_node(&key.0);
        if planned.is_none_or(|(on, of)| (on, of) != (&node, &key)) {
            self.nodes
                .preserve_entries(&node, &key, false, &mut self.cx);
            // One that waits for its turn has them again before the object is written.
            self.cx.affected.pods.insert(key.0);
        }
    }

    fn is_known(&self, (name, uid): &PodKey) -> bool {
        self.pods.get(name).is_some_and(|pod| pod.node_uid == *uid)
    }
}

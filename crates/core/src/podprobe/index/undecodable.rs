//! Markers and pods that exist, cannot be decoded, and have no known earlier state: entries and marks that may belong
//! to them stay as they are.
//!
//! A manager that knows an earlier state of such an object goes on with that. One that has just started knows none, and
//! would remove entries and marks as if the object had been deleted.

use std::collections::BTreeSet;

use super::feature::WatchedKind;
use crate::cluster::ObjectName;
use crate::podprobe::plan::{Entry, PodEntries};
use crate::podprobe::pod::IndexedPod;

/// The names of such objects. There are at most as many as objects.
#[derive(Debug, Default)]
pub(super) struct Undecodable(BTreeSet<(WatchedKind, ObjectName)>);

impl Undecodable {
    /// Adds an object. Returns whether it is new.
    pub(super) fn insert(&mut self, kind: WatchedKind, name: ObjectName) -> bool {
        self.0.insert((kind, name))
    }

    /// Removes an object, which can be decoded now or was deleted. Returns whether it was there.
    pub(super) fn remove(&mut self, kind: WatchedKind, name: &ObjectName) -> bool {
        // The set is empty as a rule, and each observation would clone a name to ask for it.
        !self.0.is_empty() && self.0.remove(&(kind, name.clone()))
    }

    pub(super) fn contains(&self, kind: WatchedKind, name: &ObjectName) -> bool {
        self.0.contains(&(kind, name.clone()))
    }

    /// Whether there is a marker in this namespace: it may be the one that claims otherwise unclaimed marks there.
    pub(super) fn has_marker_in(&self, namespace: &str) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let first = ObjectName {
            namespace: namespace.to_owned(),
            name: String::new(),
        };
        let mut from = self.0.range((WatchedKind::Marker, first)..);
        from.next()
            .is_some_and(|(kind, name)| *kind == WatchedKind::Marker && name.namespace == namespace)
    }

    /// The observed entries of a pod that belong to markers that cannot be decoded.
    pub(super) fn entries_of_markers(
        &self,
        pod: &IndexedPod,
        observed: Option<&PodEntries>,
    ) -> Vec<Entry> {
        let namespace = &pod.name.namespace;
        if !pod.is_target() || !self.has_marker_in(namespace) {
            return Vec::new();
        }
        let entries = observed.into_iter().flat_map(|one| one.entries.iter());
        let theirs = entries.filter(|entry| {
            let marker = entry.name.split_once('#').map(|(marker, _)| ObjectName {
                namespace: namespace.clone(),
                name: marker.to_owned(),
            });
            // An entry that cannot be parsed cannot be written back.
            entry.probe.is_some()
                && marker.is_some_and(|marker| self.contains(WatchedKind::Marker, &marker))
        });
        theirs.cloned().collect()
    }
}

//! Markers and pods that exist, cannot be decoded, and have no known earlier state: entries and marks that may belong
//! to them stay as they are.
//!
//! A manager that knows an earlier state of such an object goes on with that. One that has just started knows none, and
//! would remove entries and marks as if the object had been deleted.

use std::collections::{BTreeMap, BTreeSet};

use super::context::PodName;
use crate::cluster::ObjectName;
use crate::podprobe::event::WatchedKind;
use crate::podprobe::plan::{Entry, PodEntries};
use crate::podprobe::pod::IndexedPod;

/// The names of such objects. There are at most as many as objects.
#[derive(Debug, Default)]
pub(super) struct Undecodable {
    /// By namespace.
    markers: BTreeMap<String, BTreeSet<String>>,
    pods: BTreeSet<PodName>,
}

impl Undecodable {
    /// Adds a marker. Returns whether it is new.
    pub(super) fn insert_marker(&mut self, name: &ObjectName) -> bool {
        let names = self.markers.entry(name.namespace.clone()).or_default();
        names.insert(name.name.clone())
    }

    pub(super) fn insert_pod(&mut self, name: PodName) {
        self.pods.insert(name);
    }

    /// Removes a marker, which can be decoded now or was deleted. Returns whether it was there.
    pub(super) fn remove_marker(&mut self, name: &ObjectName) -> bool {
        let Some(names) = self.markers.get_mut(&name.namespace) else {
            return false;
        };
        let was_there = names.remove(&name.name);
        if names.is_empty() {
            self.markers.remove(&name.namespace);
        }
        was_there
    }

    /// Removes a pod, which can be decoded now or was deleted, if it was there.
    pub(super) fn remove_pod(&mut self, name: &ObjectName) -> Option<PodName> {
        self.pods.take(name)
    }

    pub(super) fn pod_names(&self) -> impl Iterator<Item = &PodName> {
        self.pods.iter()
    }

    pub(super) fn contains_pod(&self, name: &ObjectName) -> bool {
        self.pods.contains(name)
    }

    /// Whether there is a marker in this namespace: it may be the one that claims otherwise unclaimed marks there.
    pub(super) fn has_marker_in(&self, namespace: &str) -> bool {
        self.markers.contains_key(namespace)
    }

    /// All of a kind.
    pub(super) fn names_of_kind(&self, kind: WatchedKind) -> Vec<ObjectName> {
        match kind {
            WatchedKind::Marker => self.marker_names().collect(),
            WatchedKind::Pod => self.pods.iter().map(|name| (**name).clone()).collect(),
            WatchedKind::Node | WatchedKind::NodePodProbe => Vec::new(),
        }
    }

    fn marker_names(&self) -> impl Iterator<Item = ObjectName> {
        self.markers.iter().flat_map(|(namespace, names)| {
            names.iter().map(|name| ObjectName {
                namespace: namespace.clone(),
                name: name.clone(),
            })
        })
    }

    /// Those of a pod's observed entries that belong to markers that cannot be decoded.
    pub(super) fn entries_of_markers(
        &self,
        pod: &IndexedPod,
        observed: Option<&PodEntries>,
    ) -> Vec<Entry> {
        let markers = self.markers.get(&pod.name.namespace);
        let Some(markers) = markers.filter(|_| pod.is_target()) else {
            return Vec::new();
        };
        let entries = observed.into_iter().flat_map(|one| one.entries.iter());
        let theirs = entries.filter(|entry| {
            let marker = entry.name.split_once('#').map(|(marker, _)| marker);
            // An entry that cannot be parsed cannot be written back.
            entry.probe.is_some() && marker.is_some_and(|marker| markers.contains(marker))
        });
        theirs.cloned().collect()
    }
}

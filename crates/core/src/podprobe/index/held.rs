//! Objects that are there and do not decode, and of which nothing is known: what may be theirs stays as it is.
//!
//! A manager that knew such an object goes on with what it knows. One that has just started knows nothing, and would
//! take entries and marks that are well for those of an object that is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Index, Pass};
use crate::cluster::ObjectName;
use crate::podprobe::event::Kind;
use crate::podprobe::plan::Entry;
use crate::podprobe::pod::Pod;

/// No more than there are such objects.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Names of markers by namespace.
    markers: BTreeMap<String, BTreeSet<String>>,
    pub(super) pods: BTreeSet<Arc<ObjectName>>,
}

impl Held {
    /// Those that a complete list does not name.
    pub(super) fn missing(&self, kind: Kind, listed: &BTreeSet<ObjectName>) -> Vec<ObjectName> {
        let held: Vec<_> = match kind {
            Kind::Marker => self.markers().collect(),
            Kind::Pod => self.pods.iter().map(|name| (**name).clone()).collect(),
            Kind::Node | Kind::NodePodProbe => Vec::new(),
        };
        let missing = held.into_iter().filter(|name| !listed.contains(name));
        missing.collect()
    }

    fn markers(&self) -> impl Iterator<Item = ObjectName> {
        self.markers.iter().flat_map(|(namespace, names)| {
            names.iter().map(|name| ObjectName {
                namespace: namespace.clone(),
                name: name.clone(),
            })
        })
    }

    fn add_marker(&mut self, name: &ObjectName) -> bool {
        let names = self.markers.entry(name.namespace.clone()).or_default();
        names.insert(name.name.clone())
    }

    fn remove_marker(&mut self, name: &ObjectName) -> bool {
        let Some(names) = self.markers.get_mut(&name.namespace) else {
            return false;
        };
        let was_held = names.remove(&name.name);
        if names.is_empty() {
            self.markers.remove(&name.namespace);
        }
        was_held
    }
}

impl Index {
    /// Holds what may be the own of an object that does not decode, unless the object was known before.
    pub(super) fn hold(&mut self, kind: Kind, name: ObjectName, pass: &mut Pass) {
        if self.version(kind, &name).is_some() {
            return;
        }
        match kind {
            Kind::Marker => {
                if self.held.add_marker(&name) {
                    self.look_at_namespace(&name.namespace, pass);
                }
            }
            Kind::Pod => {
                let name = Arc::new(name);
                self.held.pods.insert(name.clone());
                pass.pods.insert(name);
            }
            // Of a node little is read, and what is not understood of a NodePodProbe is written anew.
            Kind::Node | Kind::NodePodProbe => {}
        }
    }

    /// Holds nothing for an object any more: it decodes, or is gone.
    pub(super) fn let_go(&mut self, kind: Kind, name: &ObjectName, pass: &mut Pass) {
        match kind {
            Kind::Marker => {
                if self.held.remove_marker(name) {
                    self.look_at_namespace(&name.namespace, pass);
                }
            }
            Kind::Pod => {
                if let Some(name) = self.held.pods.take(name) {
                    self.replace_slots(&name, false, pass);
                }
            }
            Kind::Node | Kind::NodePodProbe => {}
        }
    }

    fn look_at_namespace(&self, namespace: &str, pass: &mut Pass) {
        // Before that, nothing is worked out, and then everything is.
        if self.synced {
            let pods = self.namespaces.get(namespace).into_iter().flatten();
            pass.pods.extend(pods.cloned());
        }
    }

    /// Whether a marker of a namespace is held: our marks there that no marker claims may be its own.
    pub(super) fn holds_marker_in(&self, namespace: &str) -> bool {
        self.held.markers.contains_key(namespace)
    }

    /// The entries that a pod has of markers that are held, as its node's object says them.
    pub(super) fn held_entries(&self, pod: &Pod) -> Vec<Entry> {
        let markers = self.held.markers.get(&pod.name.namespace);
        let Some(markers) = markers.filter(|_| pod.is_target()) else {
            return Vec::new();
        };
        let observed = self.observed(pod).into_iter();
        let entries = observed.flat_map(|observed| observed.entries.iter());
        let held = entries.filter(|entry| {
            let marker = entry.name.split_once('#').map(|(marker, _)| marker);
            // One that cannot be read cannot be written as it is.
            entry.probe.is_some() && marker.is_some_and(|marker| markers.contains(marker))
        });
        held.cloned().collect()
    }

    /// Has the entries of a pod that is held stay as they are.
    pub(super) fn keep_slots(&mut self, name: &Arc<ObjectName>, pass: &mut Pass) {
        if self.held.pods.contains(name) {
            self.replace_slots(name, true, pass);
        }
    }

    /// Wants what is observed in all slots of a pod, or nothing. Of such a pod it is not known which node it is on.
    fn replace_slots(&mut self, name: &Arc<ObjectName>, kept: bool, pass: &mut Pass) {
        let first = (name.clone(), Arc::from(""));
        let slots = self.nodes.iter().flat_map(|(node, state)| {
            let slots = state.slots.range(first.clone()..);
            let slots = slots.take_while(|((pod, _), _)| pod == name);
            slots.map(|(key, slot)| {
                let observed = slot.observed.clone().filter(|observed| {
                    let mut entries = observed.entries.iter();
                    kept && entries.all(|entry| entry.probe.is_some())
                });
                (node.clone(), key.clone(), observed)
            })
        });
        let slots: Vec<_> = slots.collect();
        for (node, key, wanted) in slots {
            self.want(&node, &key, wanted, pass);
        }
    }
}

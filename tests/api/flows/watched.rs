//! What the watches of a flow's objects have shown.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use leadsman_api::{NodePodProbe, PodProbeMarker};

use super::step::NODES;

/// An event of one of the watches.
pub(crate) enum Seen {
    Pod(Box<Event<Pod>>),
    Marker(Event<PodProbeMarker>),
    Probe(usize, Event<NodePodProbe>),
}

/// Objects of one watch.
pub(crate) struct Table<K> {
    pub(crate) objects: BTreeMap<String, K>,
    is_listed: bool,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            is_listed: false,
        }
    }
}

impl<K: Resource> Table<K> {
    fn observe(&mut self, event: Event<K>) {
        match event {
            Event::Init => *self = Self::default(),
            Event::InitDone => self.is_listed = true,
            Event::InitApply(object) | Event::Apply(object) => {
                self.objects.insert(object.name_any(), object);
            }
            Event::Delete(object) => drop(self.objects.remove(&object.name_any())),
        }
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Watched {
    pub(crate) pods: Table<Pod>,
    pub(crate) markers: Table<PodProbeMarker>,
    /// By the number of the node.
    pub(crate) probes: [Table<NodePodProbe>; NODES],
}

impl Watched {
    pub(crate) fn observe(&mut self, event: Seen) {
        match event {
            Seen::Pod(event) => self.pods.observe(*event),
            Seen::Marker(event) => self.markers.observe(event),
            Seen::Probe(node, event) => self.probes[node].observe(event),
        }
    }

    pub(crate) fn is_listed(&self) -> bool {
        let probes = self.probes.iter().all(|table| table.is_listed);
        self.pods.is_listed && self.markers.is_listed && probes
    }
}

/// Objects by their names.
pub(crate) fn by_name<K: Resource>(objects: Vec<K>) -> BTreeMap<String, K> {
    let objects = objects.into_iter();
    objects.map(|object| (object.name_any(), object)).collect()
}

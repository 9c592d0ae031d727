//! An API server in one struct: who owns a mark, what an apply removes, when a version moves.

mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use leadsman_api::{NodePodProbe, PodProbeMarker, slim};
use serde_json::json;

use self::write::drop_extensions;
use super::driver::{Event, WatchedKind, Write};
use super::pod::SimPod;
use crate::cluster::{ObjectName, ResourceVersion, Source};

pub(super) fn name(namespace: &str, name: &str) -> ObjectName {
    ObjectName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// The version of an object or a list.
pub(super) fn at(version: u64) -> ResourceVersion {
    ResourceVersion::parse(Some(&version.to_string()))
}

/// What an admission webhook or policy does to the manager's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Writes to this kind are accepted and change nothing.
    Ignore(WatchedKind),
    /// A label or annotation is taken out.
    Strip(&'static str),
    /// A `NodePodProbe` is stored without entries.
    EmptySpec,
}

/// What comes of a write.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// It was carried out; the object as the reply shows it.
    Done(Option<Event>),
    /// Something else wrote the object.
    Conflict,
    /// There is no such object.
    Gone,
    /// There is one already.
    Exists,
}

/// The API server, and what its watchers have not seen yet.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) now: Timestamp,
    pub(super) version: u64,
    pub(super) markers: BTreeMap<ObjectName, PodProbeMarker>,
    pub(super) pods: BTreeMap<ObjectName, SimPod>,
    /// Whether a node is virtual.
    pub(super) nodes: BTreeMap<String, bool>,
    pub(super) node_pod_probes: BTreeMap<String, NodePodProbe>,
    /// Whether optional fields of ours are dropped.
    pub(super) drops_extensions: bool,
    /// What admission does to writes.
    pub(super) admission: Option<Admission>,
    /// What the watch of each kind has not shown yet, with its place in the order of all.
    pub(super) pending: BTreeMap<WatchedKind, VecDeque<(u64, Event)>>,
    published: u64,
    pub(super) history: Vec<Event>,
    /// Objects that the manager cannot decode.
    pub(super) undecodable: BTreeSet<(WatchedKind, ObjectName)>,
}

impl Cluster {
    pub(super) fn new() -> Self {
        Self {
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            version: 100,
            markers: BTreeMap::new(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            node_pod_probes: BTreeMap::new(),
            drops_extensions: false,
            admission: None,
            pending: BTreeMap::new(),
            published: 0,
            history: Vec::new(),
            undecodable: BTreeSet::new(),
        }
    }

    pub(super) fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn publish(&mut self, kind: WatchedKind, event: Event) {
        self.history.push(event.clone());
        self.queue(kind, event);
    }

    fn queue(&mut self, kind: WatchedKind, event: Event) {
        self.published += 1;
        self.pending
            .entry(kind)
            .or_default()
            .push_back((self.published, event));
    }

    /// The next watch event of a kind, or of the kind whose turn it is.
    pub(super) fn next_event(&mut self, kind: Option<WatchedKind>) -> Option<Event> {
        let first = |(kind, events): (&WatchedKind, &VecDeque<(u64, Event)>)| {
            Some((events.front()?.0, *kind))
        };
        let kind = match kind {
            Some(kind) => kind,
            None => self.pending.iter().filter_map(first).min()?.1,
        };
        Some(self.pending.get_mut(&kind)?.pop_front()?.1)
    }

    /// The watch of a kind broke and begins again: what it has not shown is not shown any more, a list is.
    pub(super) fn list_again(&mut self, kind: WatchedKind) {
        self.pending.remove(&kind);
        for event in self.list(kind) {
            self.queue(kind, event);
        }
    }

    /// Changes a pod; nothing happens if nothing changes.
    pub(super) fn edit_pod(&mut self, name: &ObjectName, edit: impl FnOnce(&mut SimPod)) {
        let Some(mut pod) = self.pods.get(name).cloned() else {
            return;
        };
        edit(&mut pod);
        if self.pods[name] != pod {
            self.put_pod(name, pod);
        }
    }

    pub(super) fn put_pod(&mut self, name: &ObjectName, mut pod: SimPod) {
        pod.version = self.next_version();
        if self.pods.get(name).map(|known| known.ready) != Some(pod.ready) {
            pod.ready_since = self.now;
        }
        let wire = pod.wire(name);
        self.pods.insert(name.clone(), pod);
        self.publish(WatchedKind::Pod, Event::Pod(Arc::new(wire), Source::Watch));
    }

    pub(super) fn put_marker(&mut self, name: &ObjectName, mut marker: PodProbeMarker) {
        let version = self.next_version();
        let known = self.markers.get(name);
        let new = || ObjectMeta {
            namespace: Some(name.namespace.clone()),
            name: Some(name.name.clone()),
            uid: Some(format!("{name}-{version}")),
            generation: Some(0),
            creation_timestamp: Some(Time(self.now)),
            ..ObjectMeta::default()
        };
        let mut meta = known.map_or_else(new, |known| known.metadata.clone());
        if known.is_none_or(|known| known.spec != marker.spec) {
            meta.generation = meta.generation.map(|generation| generation + 1);
        }
        marker.status = known.and_then(|known| known.status.clone());
        if known.is_none() {
            meta.finalizers = marker.metadata.finalizers.take();
        }
        meta.resource_version = Some(version.to_string());
        marker.metadata = meta;
        self.markers.insert(name.clone(), marker.clone());
        self.publish(
            WatchedKind::Marker,
            Event::Marker(Arc::new(marker), Source::Watch),
        );
    }

    /// Changes a marker's metadata or status.
    pub(super) fn edit_marker(
        &mut self,
        name: &ObjectName,
        edit: impl FnOnce(&mut PodProbeMarker),
    ) {
        let Some(mut marker) = self.markers.get(name).cloned() else {
            return;
        };
        edit(&mut marker);
        if self.markers[name] == marker {
            return;
        }
        marker.metadata.resource_version = Some(self.next_version().to_string());
        self.markers.insert(name.clone(), marker.clone());
        self.publish(
            WatchedKind::Marker,
            Event::Marker(Arc::new(marker), Source::Watch),
        );
    }

    pub(super) fn put_node(&mut self, name: &str, is_virtual: bool) {
        let version = self.next_version();
        self.nodes.insert(name.to_owned(), is_virtual);
        let node = node(name, is_virtual, version);
        self.publish(
            WatchedKind::Node,
            Event::Node(Arc::new(node), Source::Watch),
        );
    }

    pub(super) fn put_node_pod_probe(&mut self, mut object: NodePodProbe) {
        let version = self.next_version();
        if self.drops_extensions {
            drop_extensions(&mut object);
        }
        let name = object.metadata.name.clone().unwrap();
        object.metadata.resource_version = Some(version.to_string());
        let known = self.node_pod_probes.get(&name);
        if known.is_none_or(|known| known.spec != object.spec) {
            let generation = object.metadata.generation.unwrap_or_default();
            object.metadata.generation = Some(generation + 1);
        }
        if object.metadata.uid.is_none() {
            object.metadata.uid = Some(format!("{name}-{version}"));
            object.metadata.creation_timestamp = Some(Time(self.now));
        }
        let known = self.node_pod_probes.get(&name);
        let entries = object.metadata.managed_fields.get_or_insert_default();
        let now = self.now;
        let mut moved = |subresource: &str| {
            entries.retain(|entry| entry.subresource.as_deref() != Some(subresource));
            entries.push(ManagedFieldsEntry {
                subresource: Some(subresource.to_owned()),
                time: Some(Time(now)),
                ..ManagedFieldsEntry::default()
            });
        };
        // The manager's entry and the agent's, which move with each of their writes.
        if known.is_none_or(|known| known.spec != object.spec) {
            moved("");
        }
        if known.and_then(|known| known.status.as_ref()) != object.status.as_ref() {
            moved("status");
        }
        self.node_pod_probes.insert(name, object.clone());
        self.publish(
            WatchedKind::NodePodProbe,
            Event::NodePodProbe(Arc::new(object), Source::Watch),
        );
    }

    pub(super) fn edit_node_pod_probe(&mut self, name: &str, edit: impl FnOnce(&mut NodePodProbe)) {
        if let Some(known) = self.node_pod_probes.get(name) {
            let mut object = known.clone();
            edit(&mut object);
            if *known != object {
                self.put_node_pod_probe(object);
            }
        }
    }

    pub(super) fn delete(&mut self, kind: WatchedKind, name: &ObjectName) {
        let held = self.markers.get(name).is_some_and(|marker| {
            let finalizers = marker.metadata.finalizers.as_deref();
            !finalizers.unwrap_or_default().is_empty()
        });
        if kind == WatchedKind::Marker && held {
            self.edit_marker(name, |marker| {
                let now = Time("2026-01-01T00:00:00Z".parse().unwrap());
                marker.metadata.deletion_timestamp.get_or_insert(now);
            });
            return;
        }
        let known = match kind {
            WatchedKind::Marker => self.markers.remove(name).is_some(),
            WatchedKind::Pod => self.pods.remove(name).is_some(),
            WatchedKind::Node => self.nodes.remove(&name.name).is_some(),
            WatchedKind::NodePodProbe => self.node_pod_probes.remove(&name.name).is_some(),
        };
        if known {
            let version = self.next_version();
            self.queue(kind, Event::Deleted(kind, name.clone(), at(version)));
        }
    }

    /// All lists, in the order of `kinds`.
    pub(super) fn lists(&self, kinds: [WatchedKind; 4]) -> Vec<Event> {
        let mut events: Vec<_> = kinds.into_iter().flat_map(|kind| self.list(kind)).collect();
        events.extend(self.fields_kept());
        events.push(Event::Synced);
        events
    }

    pub(super) fn names(&self, kind: WatchedKind) -> BTreeSet<ObjectName> {
        let of = |name: &String| self::name("", name);
        match kind {
            WatchedKind::Marker => self.markers.keys().cloned().collect(),
            WatchedKind::Pod => self.pods.keys().cloned().collect(),
            WatchedKind::Node => self.nodes.keys().map(of).collect(),
            WatchedKind::NodePodProbe => self.node_pod_probes.keys().map(of).collect(),
        }
    }

    fn list(&self, kind: WatchedKind) -> Vec<Event> {
        let names = self.names(kind);
        let objects = names.iter();
        let source = Source::List(at(self.version));
        let objects = objects.filter_map(|name| self.snapshot(kind, name, source));
        let mut events: Vec<_> = objects.collect();
        events.push(Event::Listed(kind, names, at(self.version)));
        events
    }

    /// Which optional fields the CRDs' schemas keep.
    pub(super) fn fields_kept(&self) -> [Event; 2] {
        [WatchedKind::Marker, WatchedKind::NodePodProbe]
            .map(|kind| Event::FieldsKept(kind, !self.drops_extensions))
    }

    pub(super) fn snapshot(
        &self,
        kind: WatchedKind,
        name: &ObjectName,
        source: Source,
    ) -> Option<Event> {
        if self.undecodable.contains(&(kind, name.clone())) {
            let seen = source != Source::Reply;
            return seen.then(|| Event::Undecodable(kind, name.clone()));
        }
        Some(match kind {
            WatchedKind::Marker => Event::Marker(Arc::new(self.markers.get(name)?.clone()), source),
            WatchedKind::Pod => Event::Pod(Arc::new(self.pods.get(name)?.wire(name)), source),
            WatchedKind::Node => {
                let is_virtual = *self.nodes.get(&name.name)?;
                Event::Node(Arc::new(node(&name.name, is_virtual, self.version)), source)
            }
            WatchedKind::NodePodProbe => {
                let object = self.node_pod_probes.get(&name.name)?.clone();
                Event::NodePodProbe(Arc::new(object), source)
            }
        })
    }

    /// Carries a write out.
    pub(super) fn execute(&mut self, write: Write) -> Reply {
        let (name, kind) = match &write {
            Write::CreateNodePodProbe(new) => {
                let name = new.metadata.name.as_deref().unwrap();
                if self.node_pod_probes.contains_key(name) {
                    return Reply::Exists;
                }
                (self::name("", name), WatchedKind::NodePodProbe)
            }
            Write::ReplaceNodePodProbe(new) => {
                let name = new.metadata.name.as_deref().unwrap();
                (self::name("", name), WatchedKind::NodePodProbe)
            }
            Write::DeleteNodePodProbe { name, .. } => {
                (self::name("", name), WatchedKind::NodePodProbe)
            }
            Write::PodMarks(marks) => (marks.pod.clone(), WatchedKind::Pod),
            Write::MarkerStatus { marker, .. } | Write::MarkerFinalizers { marker, .. } => {
                (marker.clone(), WatchedKind::Marker)
            }
        };
        // The reply to what may end an object shows nothing.
        let is_delete = match &write {
            Write::DeleteNodePodProbe { .. } => true,
            Write::MarkerFinalizers { finalizers, .. } => finalizers.is_empty(),
            _ => false,
        };
        match self.admit(write) {
            Some(write) => match self.carry_out(write) {
                Some(event) => Reply::Done(Some(event)),
                None if is_delete => Reply::Done(None),
                None if self.names(kind).contains(&name) => Reply::Conflict,
                None => Reply::Gone,
            },
            None => match self.snapshot(kind, &name, Source::Reply) {
                Some(event) => Reply::Done(Some(event)),
                None => Reply::Gone,
            },
        }
    }
}

fn node(name: &str, is_virtual: bool, version: u64) -> slim::Node {
    let kind = if is_virtual {
        "virtual-kubelet"
    } else {
        "real"
    };
    serde_json::from_value(json!({
        "metadata": { "name": name, "resourceVersion": version.to_string(), "labels": { "type": kind } },
    }))
    .unwrap()
}

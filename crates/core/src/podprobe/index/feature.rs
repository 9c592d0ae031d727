//! `PodProbeMarker` as a feature of the kernel: the kinds that it watches, and the keys whose function is one of the
//! machines.
//!
//! The stores keep names and versions alone: what an object says is taken in by the machines, which are the feature's memory.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_api::slim::{Node, Pod};
use leadsman_api::{NodePodProbe, NodePodProbeSpec, PodProbeMarker};
use leadsman_reconcile::{
    Change, Class, Feature, Key, Plan, Precedence, Store, Stored, Watch, WatchAdvance, WriteKind,
};

use super::Machines;
use super::context::{MarkerName, NodeName, PodName};
use crate::cluster::{Now, ObjectName, ResourceVersion};
use crate::podprobe::writes;

/// How long the objects of nodes wait for pods that wait. An edit of a marker affects pods of many nodes: each object is
/// written once if it waits for all of them, and no namespace whose pods wait all the time may hold up its neighbours.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// `PodProbeMarker` as a feature.
pub struct PodProbes {
    publish: Publish,
}

type Publish = Box<dyn FnMut(&mut Machines, bool) + Send>;

impl PodProbes {
    /// A feature that passes its machines on after each event, with whether all markers have been listed.
    pub fn new(publish: impl FnMut(&mut Machines, bool) + Send + 'static) -> Self {
        Self {
            publish: Box::new(publish),
        }
    }
}

/// The objects by name and version.
#[derive(Default)]
pub struct ProbeWorld {
    pub(super) markers: Store<Handed<PodProbeMarker>>,
    pub(super) pods: Store<Handed<Pod>>,
    nodes: Store<Handed<Node>>,
    objects: Store<Handed<NodePodProbe>>,
    pub(super) dropped: DroppedFields,
}

/// A kind that the feature watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum WatchedKind {
    /// `PodProbeMarker`
    Marker,
    /// `Pod`
    Pod,
    /// `Node`
    Node,
    /// `NodePodProbe`
    NodePodProbe,
}

/// Whether the API server drops our optional fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DroppedFields {
    /// Fields in the status of a marker.
    pub(super) of_markers: bool,
    /// Fields in the entries of a `NodePodProbe`.
    pub(super) of_objects: bool,
}

/// An object of which the store keeps the name and the version. The rest is handed to the machines once.
pub struct Handed<K> {
    name: Arc<ObjectName>,
    /// Behind one pointer, as there are many without.
    uid: Option<Arc<String>>,
    version: ResourceVersion,
    object: Mutex<Option<Arc<K>>>,
}

#[cfg(test)]
impl ProbeWorld {
    /// The version in which an object is known.
    pub(super) fn version(&self, kind: WatchedKind, name: &ObjectName) -> Option<ResourceVersion> {
        match kind {
            WatchedKind::Marker => self.markers.version(name),
            WatchedKind::Pod => self.pods.version(name),
            WatchedKind::Node => self.nodes.version(name),
            WatchedKind::NodePodProbe => self.objects.version(name),
        }
    }

    /// All objects known of a kind.
    pub(super) fn names(&self, kind: WatchedKind) -> Vec<ObjectName> {
        fn of<K: Send + Sync + 'static>(store: &Store<Handed<K>>) -> Vec<ObjectName> {
            store.iter().map(|(name, _)| (**name).clone()).collect()
        }
        match kind {
            WatchedKind::Marker => of(&self.markers),
            WatchedKind::Pod => of(&self.pods),
            WatchedKind::Node => of(&self.nodes),
            WatchedKind::NodePodProbe => of(&self.objects),
        }
    }
}

impl<K> Handed<K> {
    pub(super) fn take(&self) -> Option<Arc<K>> {
        let mut object = self.object.lock().unwrap_or_else(PoisonError::into_inner);
        object.take()
    }
}

impl<K: Send + Sync + 'static> Stored for Handed<K> {
    fn name(&self) -> ObjectName {
        (*self.name).clone()
    }

    fn shared_name(&self) -> Arc<ObjectName> {
        self.name.clone()
    }

    fn uid(&self) -> &str {
        self.uid.as_ref().map_or("", |uid| uid)
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn is_same(&self, _: &Self) -> bool {
        // The machines find out what has changed.
        false
    }
}

/// A pod, marker or node that has to be planned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlanKey {
    /// The entries and marks of a pod.
    Pod(PodName),
    /// The status and the finalizers of a marker: after the pods of its namespace, as the status counts what all of them add.
    Marker(MarkerName),
    /// The object of a node: after all pods, or it would be written once for each of them.
    Node(NodeName),
}

impl Key for PlanKey {
    fn namespace(&self) -> &str {
        match self {
            Self::Pod(name) | Self::Marker(name) => &name.namespace,
            Self::Node(_) => "",
        }
    }

    fn runs_after(&self) -> Precedence {
        match self {
            Self::Pod(_) => Precedence::None,
            Self::Marker(_) => Precedence::OfNamespace,
            Self::Node(_) => Precedence::Of(LONGEST_WAIT),
        }
    }
}

impl Feature for PodProbes {
    const NAME: &'static str = "podprobe";
    const WRITES: &'static [WriteKind] = writes::WRITES;
    const CLASSES: &'static [Class] = writes::CLASSES;
    /// Entries that no pod wants yet would be removed from the object of its node.
    const RUNS_ALL_FIRST: bool = true;

    type Key = PlanKey;
    type World = ProbeWorld;
    type Memory = Machines;

    fn keys(&self, world: &ProbeWorld) -> Vec<PlanKey> {
        let markers = world
            .markers
            .iter()
            .map(|(name, _)| name)
            .map(|name| PlanKey::Marker(name.clone()));
        let pods = world.pods.iter().map(|(name, _)| name.clone());
        // Undecodable pods have keys too: their entries stay as they are, and would be removed if nothing wanted them.
        let undecodable = world
            .pods
            .undecodable()
            .iter()
            .map(|name| Arc::new(name.clone()));
        let pods = pods.chain(undecodable).map(PlanKey::Pod);
        let names = world.nodes.iter().map(|(name, _)| name);
        // Entries that no pod wants are found from the objects only.
        let nodes = names
            .chain(world.objects.iter().map(|(name, _)| name))
            .map(|name| PlanKey::Node(name.name.as_str().into()));
        markers.chain(pods).chain(nodes).collect()
    }

    fn begin_term(&self, world: &ProbeWorld, machines: &mut Machines, now: Now) {
        machines.begin_term(world.dropped, now);
    }

    fn reconcile(
        &self,
        key: &PlanKey,
        world: &ProbeWorld,
        machines: &mut Machines,
        plan: &mut Plan<'_, Self>,
    ) {
        machines.plan_key(key, world.dropped, plan);
    }

    fn publish(&mut self, world: &mut ProbeWorld, machines: &mut Machines) {
        (self.publish)(machines, world.markers.is_listed());
    }
}

/// A kind whose objects are handed to the machines.
pub(super) trait ObservedKind: Send + Sync + Sized + 'static {
    const KIND: WatchedKind;
    /// Whether the store has to know an object's uid. It need not where nothing is assumed of it.
    const KEEPS_UID: bool = true;

    fn metadata(&self) -> &ObjectMeta;
    fn store(world: &ProbeWorld) -> &Store<Handed<Self>>;
    fn store_mut(world: &mut ProbeWorld) -> &mut Store<Handed<Self>>;

    /// Hands an object to the machines.
    fn observe(self: Arc<Self>, is_listed: bool, machines: &mut Machines);

    /// The object that stands for one that cannot be decoded, if any does.
    fn of_undecodable(_metadata: &ObjectMeta) -> Option<Self> {
        None
    }

    /// Has the machines know how far the watch has come.
    fn note_progress(_progress: WatchAdvance, _machines: &mut Machines, _now: Now) {}

    /// Whether our optional fields are dropped, of the kinds that have some.
    fn dropped_fields(_world: &mut ProbeWorld) -> Option<&mut bool> {
        None
    }
}

fn handed<K: ObservedKind>(metadata: &ObjectMeta, object: Arc<K>) -> Arc<Handed<K>> {
    let uid = metadata.uid.as_ref().filter(|_| K::KEEPS_UID);
    Arc::new(Handed {
        name: Arc::new(ObjectName::of(metadata)),
        uid: uid.cloned().map(Arc::new),
        version: ResourceVersion::parse(metadata.resource_version.as_deref()),
        object: Mutex::new(Some(object)),
    })
}

impl<K: ObservedKind> Watch<K> for PodProbes {
    type Stored = Handed<K>;

    fn store(world: &mut ProbeWorld) -> &mut Store<Handed<K>> {
        K::store_mut(world)
    }

    fn read(&self, object: &Arc<K>) -> Arc<Handed<K>> {
        handed(object.metadata(), object.clone())
    }

    fn read_undecodable(&self, metadata: &ObjectMeta) -> Option<Arc<Handed<K>>> {
        let object = K::of_undecodable(metadata)?;
        Some(handed(metadata, Arc::new(object)))
    }

    fn take_in(
        &self,
        change: &Change<Handed<K>>,
        world: &ProbeWorld,
        machines: &mut Machines,
        now: Now,
        affected: &mut dyn FnMut(PlanKey),
    ) {
        machines.take_in(change, world, now);
        machines.pass_on(affected);
    }

    fn note_progress(
        &self,
        progress: WatchAdvance,
        _: &ProbeWorld,
        machines: &mut Machines,
        now: Now,
        affected: &mut dyn FnMut(PlanKey),
    ) {
        K::note_progress(progress, machines, now);
        machines.pass_on(affected);
    }

    fn find_affected(&self, _: &Change<Handed<K>>, _: &ProbeWorld, _: &mut dyn FnMut(PlanKey)) {}

    fn note_fields_kept(world: &mut ProbeWorld, kept: bool) {
        if let Some(dropped) = K::dropped_fields(world) {
            *dropped = !kept;
        }
    }
}

impl ObservedKind for PodProbeMarker {
    const KIND: WatchedKind = WatchedKind::Marker;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn store(world: &ProbeWorld) -> &Store<Handed<Self>> {
        &world.markers
    }

    fn store_mut(world: &mut ProbeWorld) -> &mut Store<Handed<Self>> {
        &mut world.markers
    }

    fn observe(self: Arc<Self>, _: bool, machines: &mut Machines) {
        machines.observe_marker(&self);
    }

    fn note_progress(progress: WatchAdvance, machines: &mut Machines, now: Now) {
        if let WatchAdvance::Listed(_) = progress {
            machines.note_markers_listed(now);
        }
    }

    fn dropped_fields(world: &mut ProbeWorld) -> Option<&mut bool> {
        Some(&mut world.dropped.of_markers)
    }
}

impl ObservedKind for Pod {
    const KIND: WatchedKind = WatchedKind::Pod;
    const KEEPS_UID: bool = false;

    fn metadata(&self) -> &ObjectMeta {
        &self.identity
    }

    fn store(world: &ProbeWorld) -> &Store<Handed<Self>> {
        &world.pods
    }

    fn store_mut(world: &mut ProbeWorld) -> &mut Store<Handed<Self>> {
        &mut world.pods
    }

    fn observe(self: Arc<Self>, _: bool, machines: &mut Machines) {
        machines.observe_pod(&self);
    }

    fn note_progress(progress: WatchAdvance, machines: &mut Machines, now: Now) {
        machines.note_pods_shown(progress, now);
    }
}

impl ObservedKind for Node {
    const KIND: WatchedKind = WatchedKind::Node;

    fn metadata(&self) -> &ObjectMeta {
        &self.identity
    }

    fn store(world: &ProbeWorld) -> &Store<Handed<Self>> {
        &world.nodes
    }

    fn store_mut(world: &mut ProbeWorld) -> &mut Store<Handed<Self>> {
        &mut world.nodes
    }

    fn observe(self: Arc<Self>, _: bool, machines: &mut Machines) {
        machines.observe_node(&self);
    }
}

impl ObservedKind for NodePodProbe {
    const KIND: WatchedKind = WatchedKind::NodePodProbe;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn store(world: &ProbeWorld) -> &Store<Handed<Self>> {
        &world.objects
    }

    fn store_mut(world: &mut ProbeWorld) -> &mut Store<Handed<Self>> {
        &mut world.objects
    }

    fn observe(self: Arc<Self>, is_listed: bool, machines: &mut Machines) {
        machines.observe_object(Arc::unwrap_or_clone(self), is_listed);
    }

    /// The spec is ours: an object that cannot be read is replaced, under the version that it has now.
    fn of_undecodable(metadata: &ObjectMeta) -> Option<Self> {
        Some(Self {
            metadata: metadata.clone(),
            spec: NodePodProbeSpec::default(),
            status: None,
        })
    }

    fn note_progress(progress: WatchAdvance, machines: &mut Machines, now: Now) {
        if let WatchAdvance::Relisted(_) = progress {
            machines.preserve_unseen(now);
        }
    }

    fn dropped_fields(world: &mut ProbeWorld) -> Option<&mut bool> {
        Some(&mut world.dropped.of_objects)
    }
}

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
use crate::podprobe::event::{self, WatchedKind};

/// How long the objects of nodes wait for pods that wait. An edit of a marker affects pods of many nodes: each object is
/// written once if it waits for all of them, and no namespace whose pods wait all the time may hold up its neighbours.
const LONGEST_HOLD: Duration = Duration::from_secs(1);

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

/// Whether the API server drops our optional fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DroppedFields {
    /// Those in the status of a marker.
    pub(super) of_markers: bool,
    /// Those in the entries of a `NodePodProbe`.
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
    fn new(metadata: &ObjectMeta, object: Arc<K>) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::new(ObjectName::of(metadata)),
            uid: metadata.uid.clone().map(Arc::new),
            version: ResourceVersion::parse(metadata.resource_version.as_deref()),
            object: Mutex::new(Some(object)),
        })
    }

    /// One whose uid the store need not know: nothing is assumed of it.
    fn without_uid(metadata: &ObjectMeta, object: Arc<K>) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::new(ObjectName::of(metadata)),
            uid: None,
            version: ResourceVersion::parse(metadata.resource_version.as_deref()),
            object: Mutex::new(Some(object)),
        })
    }

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

/// What has to be planned.
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
            Self::Node(_) => Precedence::Of(LONGEST_HOLD),
        }
    }
}

impl Feature for PodProbes {
    const NAME: &'static str = "podprobe";
    const WRITES: &'static [WriteKind] = event::WRITES;
    const CLASSES: &'static [Class] = event::CLASSES;
    /// What no pod wants yet would be removed from the object of its node.
    const RUNS_ALL_FIRST: bool = true;

    type Key = PlanKey;
    type World = ProbeWorld;
    type Memory = Machines;

    fn keys(&self, world: &ProbeWorld) -> Vec<PlanKey> {
        let markers = world.markers.iter().map(|(name, _)| name);
        let markers = markers.map(|name| PlanKey::Marker(name.clone()));
        let pods = world.pods.iter().map(|(name, _)| name.clone());
        // Their entries stay as they are, and would be removed if nothing wanted them.
        let undecodable = world.pods.undecodable().iter();
        let undecodable = undecodable.map(|name| Arc::new(name.clone()));
        let pods = pods.chain(undecodable).map(PlanKey::Pod);
        let nodes = world.nodes.iter().map(|(name, _)| name);
        // Entries that no pod wants are found from the objects only.
        let nodes = nodes.chain(world.objects.iter().map(|(name, _)| name));
        let nodes = nodes.map(|name| PlanKey::Node(name.name.as_str().into()));
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

impl Watch<PodProbeMarker> for PodProbes {
    type Stored = Handed<PodProbeMarker>;

    fn store(world: &mut ProbeWorld) -> &mut Store<Self::Stored> {
        &mut world.markers
    }

    fn read(&self, marker: &Arc<PodProbeMarker>) -> Arc<Self::Stored> {
        Handed::new(&marker.metadata, marker.clone())
    }

    fn take_in(
        &self,
        change: &Change<Self::Stored>,
        world: &ProbeWorld,
        machines: &mut Machines,
        now: Now,
        affected: &mut dyn FnMut(PlanKey),
    ) {
        let observe =
            |machines: &mut Machines, marker: Arc<PodProbeMarker>| machines.observe_marker(&marker);
        machines.take_in((WatchedKind::Marker, change, &world.markers), now, observe);
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
        if let WatchAdvance::Listed(_) = progress {
            machines.note_markers_listed(now);
            machines.pass_on(affected);
        }
    }

    fn find_affected(&self, _: &Change<Self::Stored>, _: &ProbeWorld, _: &mut dyn FnMut(PlanKey)) {}

    fn note_fields_kept(world: &mut ProbeWorld, kept: bool) {
        world.dropped.of_markers = !kept;
    }
}

impl Watch<Pod> for PodProbes {
    type Stored = Handed<Pod>;

    fn store(world: &mut ProbeWorld) -> &mut Store<Self::Stored> {
        &mut world.pods
    }

    fn read(&self, pod: &Arc<Pod>) -> Arc<Self::Stored> {
        Handed::without_uid(&pod.identity, pod.clone())
    }

    fn take_in(
        &self,
        change: &Change<Self::Stored>,
        world: &ProbeWorld,
        machines: &mut Machines,
        now: Now,
        affected: &mut dyn FnMut(PlanKey),
    ) {
        let observe = |machines: &mut Machines, pod: Arc<Pod>| machines.observe_pod(&pod);
        machines.take_in((WatchedKind::Pod, change, &world.pods), now, observe);
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
        machines.note_pods_shown(progress, now);
        machines.pass_on(affected);
    }

    fn find_affected(&self, _: &Change<Self::Stored>, _: &ProbeWorld, _: &mut dyn FnMut(PlanKey)) {}
}

impl Watch<Node> for PodProbes {
    type Stored = Handed<Node>;

    fn store(world: &mut ProbeWorld) -> &mut Store<Self::Stored> {
        &mut world.nodes
    }

    fn read(&self, node: &Arc<Node>) -> Arc<Self::Stored> {
        Handed::new(&node.identity, node.clone())
    }

    fn take_in(
        &self,
        change: &Change<Self::Stored>,
        world: &ProbeWorld,
        machines: &mut Machines,
        now: Now,
        affected: &mut dyn FnMut(PlanKey),
    ) {
        let observe = |machines: &mut Machines, node: Arc<Node>| machines.observe_node(&node);
        machines.take_in((WatchedKind::Node, change, &world.nodes), now, observe);
        machines.pass_on(affected);
    }

    fn find_affected(&self, _: &Change<Self::Stored>, _: &ProbeWorld, _: &mut dyn FnMut(PlanKey)) {}
}

impl Watch<NodePodProbe> for PodProbes {
    type Stored = Handed<NodePodProbe>;

    fn store(world: &mut ProbeWorld) -> &mut Store<Self::Stored> {
        &mut world.objects
    }

    fn read(&self, object: &Arc<NodePodProbe>) -> Arc<Self::Stored> {
        Handed::new(&object.metadata, object.clone())
    }

    /// The spec is ours: an object that cannot be read is replaced, under the version that it has now.
    fn read_undecodable(&self, metadata: &ObjectMeta) -> Option<Arc<Self::Stored>> {
        let empty = NodePodProbe {
            metadata: metadata.clone(),
            spec: NodePodProbeSpec::default(),
            status: None,
        };
        Some(Handed::new(metadata, Arc::new(empty)))
    }

    fn take_in(
        &self,
        change: &Change<Self::Stored>,
        world: &ProbeWorld,
        machines: &mut Machines,
        now: Now,
        affected: &mut dyn FnMut(PlanKey),
    ) {
        let is_listed = change.is_listed;
        let observe = |machines: &mut Machines, object: Arc<NodePodProbe>| {
            machines.observe_object(Arc::unwrap_or_clone(object), is_listed);
        };
        machines.take_in(
            (WatchedKind::NodePodProbe, change, &world.objects),
            now,
            observe,
        );
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
        if let WatchAdvance::Relisted(_) = progress {
            machines.preserve_unseen(now);
            machines.pass_on(affected);
        }
    }

    fn find_affected(&self, _: &Change<Self::Stored>, _: &ProbeWorld, _: &mut dyn FnMut(PlanKey)) {}

    fn note_fields_kept(world: &mut ProbeWorld, kept: bool) {
        world.dropped.of_objects = !kept;
    }
}

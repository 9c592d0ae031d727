//! Nodes: the entries wanted and observed in their `NodePodProbe`, and whether their agents work.
//!
//! | in | out |
//! |---|---|
//! | which entries a pod should have: [`Nodes::set_wanted`] | what a node's object and agent say of a pod: [`Nodes::view_of_pod`] |
//! | nodes and objects as they are observed: `observe_*`, `remove_*` | whether every object has a marker's entries: [`Nodes::is_acknowledged`] |
//! | agents' pods: [`Nodes::observe_agent`], [`Nodes::remove_agent`] | objects that differ: [`Nodes::plan_object`] |
//!
//! Markers are known by name only; marks are unknown.
//!
//! | module | holds |
//! |---|---|
//! | `pod` | one pod on a node: its entries, wanted and observed, and its verdicts |
//! | `read` | reading the pods of an object |
//! | `view` | what a node's object and agent say of one pod |
//! | `write` | what is to be written of a node's object |
//! | `capacity` | whose entries an object has room for |
//! | `agents` | whether the agent of a node works |

mod agents;
mod capacity;
mod pod;
mod read;
#[cfg(test)]
mod tests;
mod view;
mod write;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_api::node_pod_probe::NodePodProbe;
use leadsman_api::slim::Node;
use leadsman_reconcile::Purpose;

pub use self::agents::AgentState;
use self::agents::{AgentDeadlines, AgentPod};
use self::pod::PodOnNode;
pub(super) use self::view::{Absence, NodeView};
use super::context::{IndexContext, MarkerName, NodeName, PodKey, PodName};
use crate::cluster::{ObjectName, ResourceVersion};
use crate::podprobe::plan::PodEntries;

/// All nodes, and the `NodePodProbe`s.
#[derive(Debug)]
pub(super) struct Nodes {
    by_name: HashMap<NodeName, Box<NodeState>>,
    /// The number of pods whose entries in a `NodePodProbe` differ from what is wanted, for each marker.
    unacknowledged: HashMap<MarkerName, usize>,
    /// The nodes on which entries of pods changed since their last plan, with the room that each of these pods had then.
    resized: BTreeMap<NodeName, BTreeMap<PodKey, usize>>,
    /// Whether the API server keeps our optional fields of entries.
    keeps_fields: bool,
    /// Maximum size of the spec of an object, in bytes.
    max_bytes: usize,
    /// The number of the last change of what is wanted, of any node: one of an earlier node of the same name is none of this one.
    revision: u64,
}

/// Everything known under the name of a node: the node itself, its object, its pods, its agent.
#[derive(Debug, Default)]
struct NodeState {
    /// The node; None while there is none.
    node: Option<ObservedNode>,
    /// The node's object; None while there is none.
    object: Option<ObservedObject>,
    pods: BTreeMap<PodKey, PodOnNode>,
    /// The number of pods whose entries differ from what is wanted.
    differing: usize,
    /// Bytes of all entries that are wanted.
    wanted_bytes: usize,
    /// The bytes that the wanted entries may take, where the API server has refused the object for its size, and until when.
    shrunk_room: Option<(usize, Duration)>,
    /// The purpose of the write that was refused for its size.
    too_large: Option<Purpose>,
    /// The number of the last change of what is wanted.
    wanted_revision: u64,
    /// Why the API server refuses the object.
    refusal: Option<Arc<str>>,
    /// Whether somebody keeps changing the spec.
    is_contested: bool,
    /// The pods of the node's agent.
    agents: BTreeMap<PodName, AgentPod>,
    /// The end of the grace period after the deletion of an agent's pod, on the monotonic clock.
    absent_from: Duration,
    agent: AgentState,
    /// The time when the state of the agent may change without an event.
    agent_changes_at: Option<Duration>,
}

#[derive(Debug)]
struct ObservedNode {
    /// Whether it is a virtual node: its pods have no entries, and a provider runs their probes.
    is_virtual: bool,
}

/// A `NodePodProbe` without its pods.
#[derive(Debug)]
struct ObservedObject {
    version: ResourceVersion,
    /// The metadata that a PUT has to repeat.
    meta: ObjectMeta,
    /// Whether it names a pod twice.
    malformed: bool,
    deadlines: AgentDeadlines,
}

impl ObservedObject {
    /// The finalizers that delay its deletion, if it is being deleted. There is at least one: the API server shows an
    /// object as being deleted only while it waits for a finalizer (`Delete` in
    /// `k8s.io/apiserver/pkg/registry/generic/registry/store.go`).
    fn blocking_finalizers(&self) -> Option<&[String]> {
        blocking_finalizers(&self.meta)
    }
}

fn blocking_finalizers(meta: &ObjectMeta) -> Option<&[String]> {
    let finalizers = meta.finalizers.as_deref().unwrap_or_default();
    meta.deletion_timestamp.as_ref().map(|_| finalizers)
}

impl NodeState {
    /// Whether it should have a `NodePodProbe`.
    fn is_served(&self) -> bool {
        self.node.as_ref().is_some_and(|node| !node.is_virtual)
    }

    fn is_empty(&self) -> bool {
        self.node.is_none()
            && self.object.is_none()
            && self.agents.is_empty()
            && self.pods.is_empty()
    }

    /// Whether the object has to be written.
    fn must_be_written(&self) -> bool {
        match &self.object {
            // An object that is being deleted takes no write.
            Some(object) if object.meta.deletion_timestamp.is_some() => false,
            Some(object) => !self.is_served() || self.differing > 0 || object.malformed,
            None => self.is_served(),
        }
    }

    /// The entries that the object should have of a pod.
    fn desired_entries(&self, key: &PodKey) -> Option<&PodEntries> {
        let pod = self.pods.get(key)?;
        let wanted = pod.wanted.as_ref()?;
        (self.is_served() && !pod.lacks_room()).then_some(wanted)
    }

    /// The pods that want entries here.
    fn wanting_pods(&self) -> impl Iterator<Item = &PodName> {
        let pods = self.pods.iter();
        pods.filter(|(_, pod)| pod.wanted.is_some())
            .map(|((name, _), _)| name)
    }
}

impl Nodes {
    /// No node yet.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            by_name: HashMap::new(),
            unacknowledged: HashMap::new(),
            resized: BTreeMap::new(),
            keeps_fields: true,
            max_bytes,
            revision: 0,
        }
    }

    /// Whether the node is virtual, so that a provider runs its pods. None while there is no such node.
    pub(super) fn is_virtual(&self, name: &str) -> Option<bool> {
        let node = self.by_name.get(name)?.node.as_ref()?;
        Some(node.is_virtual)
    }

    pub(super) fn observe_node(&mut self, wire: &Node, cx: &mut IndexContext) {
        let name = wire.identity.name.as_deref().unwrap_or_default();
        let name = cx.interners.strings.share(name);
        let mut labels = wire.labels.iter();
        // `OpenKruise` tells such nodes by the same label (`VirtualKubelet`,
        // `pkg/controller/podprobemarker/podprobemarker_event_handler.go`).
        let is_virtual = labels.any(|(key, value)| key == "type" && value == "virtual-kubelet");
        let state = self.by_name.entry(name.clone()).or_default();
        let was_virtual = state.node.as_ref().map(|node| node.is_virtual);
        state.node = Some(ObservedNode { is_virtual });
        // Most events of a node report conditions or images, and nothing of these is read.
        if was_virtual != Some(is_virtual) {
            cx.affected.pods.extend(state.wanting_pods().cloned());
            self.compare_pods(&name, cx);
        }
    }

    /// Removes a node.
    pub(super) fn remove_node(&mut self, name: &str, cx: &mut IndexContext) {
        let Some((name, _)) = self.by_name.get_key_value(name) else {
            return;
        };
        let name = name.clone();
        if let Some(state) = self.by_name.get_mut(&name)
            && state.node.take().is_some()
        {
            cx.affected.pods.extend(state.wanting_pods().cloned());
            self.compare_pods(&name, cx);
            self.forget_if_empty(&name);
        }
    }

    /// Adds or replaces a `NodePodProbe`. `is_listed` says whether a list shows it, and not the watch or a reply.
    pub(super) fn observe_object(
        &mut self,
        wire: NodePodProbe,
        is_listed: bool,
        cx: &mut IndexContext,
    ) {
        let name = wire.metadata.name.as_deref().unwrap_or_default();
        let name = cx.interners.strings.share(name);
        let version = ResourceVersion::parse(wire.metadata.resource_version.as_deref());
        let (pods, malformed) = self.read_pods(&name, &wire, is_listed, cx);
        let deadlines = AgentDeadlines::new(&wire, cx.now);
        let state = self.by_name.entry(name.clone()).or_default();
        let known = state.object.as_ref();
        let was_blocked_by = known.and_then(ObservedObject::blocking_finalizers);
        // The status of their markers names these finalizers.
        if was_blocked_by != blocking_finalizers(&wire.metadata) {
            cx.affected.pods.extend(state.wanting_pods().cloned());
        }
        state.object = Some(ObservedObject {
            version,
            meta: ObjectMeta {
                // A PUT may leave them out, and they are the larger half of the object.
                managed_fields: None,
                ..wire.metadata
            },
            malformed,
            deadlines,
        });
        self.set_observed(&name, pods, cx);
        self.judge_agent(&name, cx);
        cx.affected.nodes.insert(name);
    }

    /// Removes a `NodePodProbe`.
    pub(super) fn remove_object(&mut self, name: &str, cx: &mut IndexContext) {
        let Some((name, _)) = self.by_name.get_key_value(name) else {
            return;
        };
        let name = name.clone();
        let Some(state) = self.by_name.get_mut(&name) else {
            return;
        };
        let Some(removed) = state.object.take() else {
            return;
        };
        if removed.blocking_finalizers().is_some() {
            cx.affected.pods.extend(state.wanting_pods().cloned());
        }
        self.set_observed(&name, BTreeMap::new(), cx);
        self.judge_agent(&name, cx);
        cx.affected.nodes.insert(name.clone());
        self.forget_if_empty(&name);
    }

    /// Records whether the API server keeps our optional fields of entries.
    pub(super) fn set_keeps_fields(&mut self, keeps_fields: bool, cx: &mut IndexContext) {
        if std::mem::replace(&mut self.keeps_fields, keeps_fields) == keeps_fields {
            return;
        }
        // Fields that are not kept would otherwise differ for ever, and each comparison would end in another write.
        self.compare_all(cx);
        let pods = self.by_name.values().flat_map(|node| node.wanting_pods());
        cx.affected.pods.extend(pods.cloned());
    }

    /// Replaces the entries that a pod should have on a node. They count as far as the node can have entries.
    pub(super) fn set_wanted(
        &mut self,
        name: &NodeName,
        key: &PodKey,
        wanted: Option<PodEntries>,
        cx: &mut IndexContext,
    ) {
        let known = self
            .by_name
            .get(name)
            .and_then(|node| node.pods.get(key))
            .and_then(|pod| pod.wanted.as_ref());
        if known != wanted.as_ref() {
            // Measured only when it changes: a verdict must not cost a serialization of the pod's entries.
            let bytes_of = |wanted: &PodEntries| wanted.stored_bytes(&key.0, &key.1);
            let bytes = wanted.as_ref().map_or(0, bytes_of);
            let node = self.by_name.entry(name.clone()).or_default();
            let pod = node.pods.entry(key.clone()).or_default();
            // The first change since the last plan counts: the room that a pod had before decides whether it keeps it.
            let had = if pod.lacks_room() { 0 } else { pod.bytes };
            let resized = self.resized.entry(name.clone()).or_default();
            resized.entry(key.clone()).or_insert(had);
            node.wanted_bytes = node.wanted_bytes - pod.bytes + bytes;
            pod.bytes = bytes;
            pod.wanted = wanted;
            self.revision += 1;
            node.wanted_revision = self.revision;
            cx.affected.nodes.insert(name.clone());
        }
        self.compare_pod(name, key, cx);
        self.forget_if_empty(name);
    }

    /// Makes what is observed of a pod the wanted state, or ends that. Used for a pod that cannot be decoded, so that
    /// its node is unknown.
    pub(super) fn set_wanted_as_observed(
        &mut self,
        name: &PodName,
        kept: bool,
        cx: &mut IndexContext,
    ) {
        // Keys are sorted by name and uid, and the empty uid comes before every other.
        let first = (name.clone(), Arc::from(""));
        let on_nodes: Vec<_> = self
            .by_name
            .iter()
            .flat_map(|(node, state)| {
                let pods = state
                    .pods
                    .range(first.clone()..)
                    .take_while(|((pod, _), _)| pod == name);
                pods.map(|(key, _)| (node.clone(), key.clone()))
            })
            .collect();
        for (node, key) in on_nodes {
            self.preserve_entries(&node, &key, kept, cx);
        }
    }

    /// Makes what is observed of a pod on a node the wanted state, or ends that.
    pub(super) fn preserve_entries(
        &mut self,
        node: &NodeName,
        key: &PodKey,
        kept: bool,
        cx: &mut IndexContext,
    ) {
        let pod = self.by_name.get(node).and_then(|node| node.pods.get(key));
        let observed = pod.and_then(|pod| pod.observed.clone());
        let wanted = observed.filter(|observed| {
            let mut entries = observed.entries.iter();
            // An entry that could not be read cannot be written back as it was.
            kept && entries.all(|entry| entry.probe.is_some())
        });
        self.set_wanted(node, key, wanted, cx);
    }

    /// The pods that nodes' objects have entries of, each with the version of the object, if that is known.
    pub(super) fn entries_with_versions(&self) -> Vec<(u64, NodeName, PodKey)> {
        let nodes = self.by_name.iter();
        let entries = nodes.flat_map(|(name, node)| {
            let version = node.object.as_ref().and_then(|one| one.version.number());
            let pods = node.pods.iter().filter(|(_, pod)| pod.observed.is_some());
            pods.filter_map(move |(key, _)| Some((version?, name.clone(), key.clone())))
        });
        entries.collect()
    }

    /// The nodes whose agents do not report.
    pub(super) fn unreachable_agents(&self) -> impl Iterator<Item = (NodeName, AgentState)> {
        let nodes = self.by_name.iter();
        let silent = nodes.filter(|(_, node)| node.agent != AgentState::Reporting);
        silent.map(|(name, node)| (name.clone(), node.agent))
    }

    /// Each verdict's namespace and entry, and when its probe last ran.
    pub(super) fn latest_results(&self) -> impl Iterator<Item = (&str, &str, Timestamp)> {
        let pods = self.by_name.values().flat_map(|node| &node.pods);
        pods.flat_map(|((pod, _), on_node)| {
            let verdicts = on_node.verdicts.iter();
            verdicts.filter_map(|(entry, verdict)| {
                Some((pod.namespace.as_str(), &**entry, verdict.probed?))
            })
        })
    }

    /// Whether every `NodePodProbe` has exactly the entries that a marker wants.
    pub(super) fn is_acknowledged(&self, marker: &ObjectName) -> bool {
        !self.unacknowledged.contains_key(marker)
    }

    /// Compares all pods of all nodes, those without a wanting pod included.
    pub(super) fn compare_all(&mut self, cx: &mut IndexContext) {
        let names: Vec<_> = self.by_name.keys().cloned().collect();
        for name in names {
            self.compare_pods(&name, cx);
        }
    }

    fn forget_if_empty(&mut self, name: &NodeName) {
        if self.by_name.get(name).is_some_and(|node| node.is_empty())
            && let Some(node) = self.by_name.remove(name)
        {
            debug_assert_eq!(
                (node.differing, node.wanted_bytes),
                (0, 0),
                "without pods nothing differs, and nothing is wanted"
            );
        }
    }
}

//! The state of one pod, as a node's object and agent tell it.

use std::sync::Arc;

use super::agents::AgentState;
use super::pod::PodOnNode;
use super::{NodeState, Nodes};
use crate::podprobe::index::context::pod_key;
use crate::podprobe::plan::{Entry, PodEntries};
use crate::podprobe::pod::IndexedPod;
use crate::podprobe::verdict::Verdict;

/// A pod on its node. Empty for a pod without a node, and for an unknown node.
#[derive(Clone, Copy, Debug)]
pub(in crate::podprobe::index) struct NodeView<'a> {
    node: Option<&'a NodeState>,
    pod: Option<&'a PodOnNode>,
}

/// Why a node's object does not have a pod's entries, and will not get them by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::podprobe::index) enum Absence {
    /// The node does not exist.
    NoNode,
    /// A provider runs the probes of the node's pods.
    VirtualNode,
    /// The object has no room for them.
    NoRoom,
    /// The object is being deleted and takes no write until it is gone.
    BeingDeleted,
}

impl Nodes {
    /// A pod on its node.
    pub(in crate::podprobe::index) fn view_of_pod(&self, pod: &IndexedPod) -> NodeView<'_> {
        let key = pod_key(pod);
        let node = key.as_ref().and_then(|(node, _)| self.by_name.get(node));
        let on_node = key
            .zip(node)
            .and_then(|((_, key), node)| node.pods.get(&key));
        NodeView {
            node: node.map(|node| &**node),
            pod: on_node,
        }
    }
}

impl<'a> NodeView<'a> {
    /// The entries that the node's object has of the pod.
    pub(in crate::podprobe::index) fn observed_entries(self) -> Option<&'a PodEntries> {
        self.pod?.observed.as_ref()
    }

    /// Whether a provider runs the probes of the node; none if there is no such node.
    pub(in crate::podprobe::index) fn is_virtual(self) -> Option<bool> {
        let node = self.node?.node.as_ref()?;
        Some(node.is_virtual)
    }

    /// The agent's verdict about an entry, if there is one about this version of the entry and the container that runs
    /// now. A verdict about an earlier container counts as absent, so marks stay until the agent reports Unknown. A
    /// working agent does so within a second; without one, nothing changes a pod.
    pub(in crate::podprobe::index) fn current_verdict(
        self,
        pod: &IndexedPod,
        entry: &Entry,
    ) -> Option<&'a Verdict> {
        let on_node = self.pod?;
        // Entries of a node that is not served, or without room, are about to be removed, and their verdicts with them.
        if !self.node?.is_served() || on_node.lacks_room() {
            return None;
        }
        on_node.wanted.as_ref()?.entry_named(&entry.name)?;
        let mut containers = pod.containers.iter();
        let container = containers.find(|one| one.name == entry.container)?;
        let mut verdicts = on_node.verdicts.iter();
        let found = verdicts.find(|(name, verdict)| {
            entry.matches_verdict(name, verdict) && verdict.is_about(container)
        });
        found.map(|(_, verdict)| verdict)
    }

    /// Why the object does not have the pod's entries and will not get them by itself, if so.
    pub(in crate::podprobe::index) fn reason_for_absence(self) -> Option<Absence> {
        let Some(node) = self.node.and_then(|node| node.node.as_ref()) else {
            return Some(Absence::NoNode);
        };
        if node.is_virtual {
            return Some(Absence::VirtualNode);
        }
        if self.pod.is_some_and(PodOnNode::lacks_room) {
            return Some(Absence::NoRoom);
        }
        // The replacement of the object has to wait until it is gone.
        let is_blocked = self.blocking_finalizers().is_some();
        (is_blocked && self.has_unapplied_entries()).then_some(Absence::BeingDeleted)
    }

    /// Whether the entries in the object differ from those wanted.
    pub(in crate::podprobe::index) fn has_unapplied_entries(self) -> bool {
        self.pod.is_some_and(|pod| pod.differs.is_some())
    }

    /// Whether they differ because somebody keeps changing the object.
    pub(in crate::podprobe::index) fn is_contested(self) -> bool {
        self.has_unapplied_entries() && self.node.is_some_and(|node| node.is_contested)
    }

    /// The finalizers that delay the deletion of the object, if it is being deleted.
    pub(in crate::podprobe::index) fn blocking_finalizers(self) -> Option<&'a [String]> {
        self.node?.object.as_ref()?.blocking_finalizers()
    }

    /// Whether the node's agent works. It counts as working while the object does not have the pod's entries as wanted:
    /// nothing is asked of it yet.
    pub(in crate::podprobe::index) fn agent_state(self) -> AgentState {
        let is_asked = self
            .pod
            .is_some_and(|pod| pod.observed.is_some() && pod.differs.is_none());
        let node = self.node.filter(|_| is_asked);
        node.map(|node| node.agent).unwrap_or_default()
    }

    /// Why the API server refuses the object.
    pub(in crate::podprobe::index) fn refusal(self) -> Option<&'a Arc<str>> {
        self.node?.refusal.as_ref()
    }

    /// Whether a pod of an agent is on the node.
    pub(in crate::podprobe::index) fn has_agent_pod(self) -> bool {
        self.node.is_some_and(|node| !node.agents.is_empty())
    }

    /// Why the agent cannot run the probe of this entry, in the agent's words.
    pub(in crate::podprobe::index) fn obstacle_of_entry(self, entry: &str) -> Option<&'a Arc<str>> {
        let mut obstacles = self.pod?.obstacles.iter();
        let own = obstacles.find(|one| *one.entry == *entry);
        own.map(|one| &one.message)
    }
}

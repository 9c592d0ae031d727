//! What a node says of one pod.

use std::sync::Arc;

use super::agents::AgentState;
use super::pod::PodOnNode;
use super::{NodeState, Nodes};
use crate::podprobe::index::context::pod_key;
use crate::podprobe::plan::{Entry, PodEntries};
use crate::podprobe::pod::IndexedPod;
use crate::podprobe::verdict::Verdict;

/// A pod and what its node says of it. Empty for a pod without a node, and for a node of which nothing is known.
#[derive(Clone, Copy, Debug)]
pub(in crate::podprobe::index) struct NodeView<'a> {
    node: Option<&'a NodeState>,
    pod: Option<&'a PodOnNode>,
}

/// Why a node's object does not have a pod's entries, and will not by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::podprobe::index) enum Absence {
    /// There is no such node.
    NoNode,
    /// A provider runs the probes of the node's pods.
    VirtualNode,
    /// The object has no room for them.
    NoRoom,
    /// They differ, and the object takes no write until it is deleted.
    BeingDeleted,
}

impl Nodes {
    /// What a pod's node says of it.
    pub(in crate::podprobe::index) fn view(&self, pod: &IndexedPod) -> NodeView<'_> {
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
    pub(in crate::podprobe::index) fn entries(self) -> Option<&'a PodEntries> {
        self.pod?.observed.as_ref()
    }

    /// Whether a provider runs the probes of the node; none if there is no such node.
    pub(in crate::podprobe::index) fn is_virtual(self) -> Option<bool> {
        let node = self.node?.node.as_ref()?;
        Some(node.is_virtual)
    }

    /// The agent's verdict about an entry, if there is one about this very entry and the container that runs now. One
    /// about a container before it counts as absent, so marks stay until the agent says that they are over: that takes
    /// it a second while it works, and while it does not, nothing changes a pod.
    pub(in crate::podprobe::index) fn verdict(
        self,
        pod: &IndexedPod,
        entry: &Entry,
    ) -> Option<&'a Verdict> {
        let on_node = self.pod?;
        if !self.node?.is_served() || on_node.lacks_room {
            return None;
        }
        on_node.wanted.as_ref()?.get(&entry.name)?;
        let mut containers = pod.containers.iter();
        let container = containers.find(|one| one.name == entry.container)?;
        let mut verdicts = on_node.verdicts.iter();
        let found = verdicts.find(|(name, verdict)| {
            entry.matches_verdict(name, verdict) && verdict.is_about(container)
        });
        found.map(|(_, verdict)| verdict)
    }

    /// Why the object does not have the pod's entries, if it will not by itself.
    pub(in crate::podprobe::index) fn absence(self) -> Option<Absence> {
        let Some(node) = self.node.and_then(|node| node.node.as_ref()) else {
            return Some(Absence::NoNode);
        };
        if node.is_virtual {
            return Some(Absence::VirtualNode);
        }
        if self.pod.is_some_and(|pod| pod.lacks_room) {
            return Some(Absence::NoRoom);
        }
        // What takes its place has to wait for its end.
        let is_blocked = self.blocking_finalizers().is_some();
        (is_blocked && self.differs()).then_some(Absence::BeingDeleted)
    }

    /// Whether the object has other entries of the pod than it should.
    pub(in crate::podprobe::index) fn differs(self) -> bool {
        self.pod.is_some_and(|pod| pod.differs.is_some())
    }

    /// Whether it has other entries because somebody keeps changing the object.
    pub(in crate::podprobe::index) fn is_contested(self) -> bool {
        self.differs() && self.node.is_some_and(|node| node.is_contested)
    }

    /// The finalizers that keep the object from being deleted, if it is being deleted.
    pub(in crate::podprobe::index) fn blocking_finalizers(self) -> Option<&'a [String]> {
        self.node?.object.as_ref()?.blocking_finalizers()
    }

    /// Whether the node's agent works, as far as its object asks anything of it for this pod.
    pub(in crate::podprobe::index) fn agent(self) -> AgentState {
        let is_asked = self
            .pod
            .is_some_and(|pod| pod.observed.is_some() && pod.differs.is_none());
        let node = self.node.filter(|_| is_asked);
        node.map(|node| node.agent).unwrap_or_default()
    }

    /// Why the agent cannot run the probe of this entry, as the agent says.
    pub(in crate::podprobe::index) fn obstacle(self, entry: &str) -> Option<&'a Arc<str>> {
        let mut obstacles = self.pod?.obstacles.iter();
        let own = obstacles.find(|one| *one.entry == *entry);
        own.map(|one| &one.message)
    }
}

//! State that the machines share: the time, the interners, and the list of what has to be planned.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leadsman_reconcile::rest_after_undone;

use crate::cluster::{Interner, Interners, Now, ObjectName};
use crate::podprobe::plan::Entries;
use crate::podprobe::pod::IndexedPod;
use crate::podprobe::status::PodContribution;

pub(super) use crate::cluster::PodName;

/// Name of a marker.
pub(super) type MarkerName = Arc<ObjectName>;
/// Name of a node, and of its `NodePodProbe`.
pub(super) type NodeName = Arc<str>;

/// Name of a pod, and the uid by which its node knows it.
pub(super) type PodKey = (PodName, Arc<str>);

/// The node of a pod, and the key of the pod's entries there. None while the pod is bound to no node.
pub(super) fn pod_key(pod: &IndexedPod) -> Option<(NodeName, PodKey)> {
    let node = pod.node.clone()?;
    Some((node, (pod.name.clone(), pod.node_uid.clone())))
}

/// Whether a write that was undone so many times rests for so long that the marker's status says so.
pub(super) fn is_contested(undone: u32) -> bool {
    rest_after_undone(undone.saturating_sub(1)) >= Duration::from_secs(4)
}

/// The contributions of a pod to the tallies of the markers that match it, in order of precedence.
#[derive(Debug, Default)]
pub(super) struct Contributions {
    /// The contributions to the markers that may give it probes.
    pub(super) of_pod: Box<[(MarkerName, PodContribution)]>,
    /// The markers beyond these. The names alone, as there may be many, and all pods add the same to their tallies.
    pub(super) surplus: Box<[MarkerName]>,
}

impl Contributions {
    /// The contribution to the tally of each marker; None stands for the contribution to that of a surplus one.
    pub(super) fn by_marker(
        &self,
        with_surplus: bool,
    ) -> impl Iterator<Item = (&MarkerName, Option<&PodContribution>)> {
        let of_pod = self
            .of_pod
            .iter()
            .map(|(name, contribution)| (name, Some(contribution)));
        let surplus = self.surplus.iter().filter(move |_| with_surplus);
        of_pod.chain(surplus.map(|name| (name, None)))
    }
}

/// The state that a machine uses besides its own.
#[derive(Debug, Default)]
pub(super) struct IndexContext {
    /// The time of the current event.
    pub(super) now: Now,
    /// Whether every kind has been listed. Nothing is planned or written before.
    pub(super) synced: bool,
    pub(super) affected: Affected,
    pub(super) interners: Interners,
    /// Equal for most pods of a marker.
    pub(super) entries: Interner<Entries>,
}

/// Everything that has to be planned because of an observation or of another plan.
#[derive(Debug, Default)]
pub(super) struct Affected {
    /// Pods.
    pub(super) pods: BTreeSet<PodName>,
    /// Nodes, of which the `NodePodProbe` may have to be written.
    pub(super) nodes: BTreeSet<NodeName>,
    /// Markers, of which the status or the finalizers may have to be written.
    pub(super) markers: BTreeSet<MarkerName>,
}

//! What the machines of the index share while an event is processed: the time, the interners, the timers, and the list
//! of what the event affects.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::{Interner, Interners, Now, ObjectName, Timers};
use crate::podprobe::contest::SentValue;
use crate::podprobe::event::{Write, WriteTarget};
use crate::podprobe::marks::Mark;
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

/// Where the entries of a pod are.
pub(super) fn pod_key(pod: &IndexedPod) -> Option<(NodeName, PodKey)> {
    let node = pod.node.clone()?;
    Some((node, (pod.name.clone(), pod.node_uid.clone())))
}

/// What a pod adds to the tallies of the markers that match it, in order of precedence.
#[derive(Debug, Default)]
pub(super) struct Contributions {
    /// Those of the markers of which it may have probes.
    pub(super) of_pod: Vec<(MarkerName, PodContribution)>,
    /// The markers beyond these. The names alone, as there may be many, and all pods add the same to their tallies.
    pub(super) surplus: Vec<MarkerName>,
}

impl Contributions {
    /// What is added to the tally of each marker; None stands for what is added to that of a surplus one.
    pub(super) fn by_marker(
        &self,
        with_surplus: bool,
    ) -> impl Iterator<Item = (&MarkerName, Option<&PodContribution>)> {
        let of_pod = self.of_pod.iter();
        let of_pod = of_pod.map(|(name, contribution)| (name, Some(contribution)));
        let surplus = self.surplus.iter().filter(move |_| with_surplus);
        of_pod.chain(surplus.map(|name| (name, None)))
    }
}

/// What a machine uses besides its own state.
#[derive(Debug, Default)]
pub(super) struct IndexContext {
    /// When the current event happened.
    pub(super) now: Now,
    /// Whether every kind has been listed. Nothing is planned or written before.
    pub(super) synced: bool,
    pub(super) affected: Affected,
    pub(super) timers: Timers<Timer>,
    pub(super) interners: Interners,
    /// Equal for most pods of a marker.
    pub(super) entries: Interner<Entries>,
}

/// What an event affects. Empty between events, but for nodes that wait for pods ([`PlanningTurns::hold_nodes`]).
///
/// [`PlanningTurns::hold_nodes`]: super::turns::PlanningTurns::hold_nodes
#[derive(Debug, Default)]
pub(super) struct Affected {
    /// Pods to be planned again.
    pub(super) pods: BTreeSet<PodName>,
    /// Nodes whose `NodePodProbe` has to be compared with what is wanted.
    pub(super) nodes: BTreeSet<NodeName>,
    /// Markers whose status and finalizers have to be compared with what is wanted.
    pub(super) markers: BTreeSet<MarkerName>,
    /// Targets whose write is due.
    pub(super) due: BTreeSet<WriteTarget>,
}

/// What is reconsidered when its time comes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Marks of a pod that are contested.
    PodContest(PodName),
    /// A verdict on a pod that has held for as long as its policy says.
    Hold(PodName),
    /// The spec of a `NodePodProbe` that is contested.
    SpecContest(NodeName),
    /// The status or the finalizers of a marker that are contested.
    MarkerContest(MarkerName),
    /// The room of a node whose object was too large for the API server.
    Room(NodeName),
    /// The state of a node's agent, which may change by the passing of time.
    Agent(NodeName),
    /// A marker that is being deleted and that our finalizer no longer holds.
    Deletion(MarkerName),
    /// A write that was refused and may be tried again.
    Refusal(WriteTarget),
    /// Entries of pods that the watch has not shown, in objects up to a version.
    UnseenPods(u64),
}

/// A write that is due, with what contests remember of it once it is sent.
#[derive(Debug)]
pub(super) struct DueWrite {
    pub(super) write: Write,
    pub(super) sent: Sent,
}

/// What a write changes, as [`contest`](crate::podprobe::contest) remembers it.
#[derive(Debug)]
pub(super) enum Sent {
    /// Marks of a pod, each with the fingerprint of the wanted value.
    Marks(Box<[(Mark, u64)]>),
    /// A spec, a status or a list of finalizers, which is written as a whole.
    Whole(SentValue),
}

impl Sent {
    /// `wanted` stands for the value; `is_shown` says whether the reply will show it.
    pub(super) fn of_single_value(wanted: u64, is_shown: bool) -> Self {
        Self::Whole(SentValue { wanted, is_shown })
    }
}

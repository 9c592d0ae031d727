//! What the index hears and what it answers: the whole surface between the rules and the manager that carries them
//! out.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leadsman_api::slim::{Node, Pod};
use leadsman_api::{NodePodProbe, PodProbeMarker, PodProbeMarkerStatus};

use crate::cluster::{ObjectName, ResourceVersion, Source};

/// The watched kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchedKind {
    /// `PodProbeMarker`
    Marker,
    /// `Pod`
    Pod,
    /// `Node`
    Node,
    /// `NodePodProbe`
    NodePodProbe,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A marker as the API server shows it.
    Marker(Arc<PodProbeMarker>, Source),
    /// A pod as the API server shows it.
    Pod(Arc<Pod>, Source),
    /// A node as the API server shows it.
    Node(Arc<Node>, Source),
    /// A `NodePodProbe` as the API server shows it.
    NodePodProbe(Arc<NodePodProbe>, Source),
    /// An object is there and does not decode, as a list or the watch shows it. What was known of it stays known; if
    /// nothing was, what may be its own is left as it is until it decodes or is gone.
    Undecodable(WatchedKind, ObjectName),
    /// An object was deleted, as the watch shows it, with the version of its deletion. A write that meets 404 is no such
    /// sign: another object may have the name by then, and the watch tells both in order.
    Deleted(WatchedKind, ObjectName, ResourceVersion),
    /// A list of a kind is complete. What is not named here did not exist at the version of the list.
    Listed(WatchedKind, BTreeSet<ObjectName>, ResourceVersion),
    /// All kinds have been listed once, and we are the one who writes from now on. Before it nothing is due to be
    /// written. It may come again, after a time in which another one wrote.
    Synced,
    /// Whether the API server keeps our optional fields of a kind, as its CRD's schema says : for markers
    /// those of the status, for `NodePodProbes` those of the entries. Other kinds have none.
    FieldsKept(WatchedKind, bool),
    /// The API server has carried out the last write of this object, and what the reply showed has been told. If the
    /// object still lacks what was written, somebody undid it.
    Written(WriteTarget),
    /// The API server refused this write of an object for good, and why. It is not repeated until another write is
    /// due, the spec of the `NodePodProbe` has changed, or some minutes have passed.
    Refused(WriteTarget, Box<Write>, String),
    /// The deadline of the last [`IndexEffects`] has passed.
    Deadline,
}

/// What a write is about: an object, or the part of one that is written by itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WriteTarget {
    /// The marks of a pod.
    PodMarks(ObjectName),
    /// The spec of a node's `NodePodProbe`.
    NodePodProbe(String),
    /// The status of a marker.
    MarkerStatus(ObjectName),
    /// The finalizer of a marker.
    MarkerFinalizer(ObjectName),
}

/// The object's name; the kind of the write says what of it is written.
impl fmt::Display for WriteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PodMarks(name) | Self::MarkerStatus(name) | Self::MarkerFinalizer(name) => {
                name.fmt(f)
            }
            Self::NodePodProbe(name) => f.write_str(name),
        }
    }
}

/// What an event changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexEffects {
    /// Objects whose desired or observed state changed: ask `Index::due` what is due, when there is room to write.
    pub dirty: Vec<WriteTarget>,
    /// When to call again with [`Event::Deadline`], if nothing else happens before. On the monotonic clock of
    /// [`Now`](crate::cluster::Now).
    pub deadline: Option<Duration>,
}

/// A request that is due.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// POST.
    CreateNodePodProbe(Box<NodePodProbe>),
    /// PUT of the main resource, with the resourceVersion that it was computed from.
    ReplaceNodePodProbe(Box<NodePodProbe>),
    /// DELETE with this uid as a precondition.
    DeleteNodePodProbe {
        /// Name of the node and the object.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// One request on `pods/status`, or two: the patch first.
    PodMarks(Box<PodMarks>),
    /// Merge patch of a marker's status.
    MarkerStatus {
        /// The marker.
        marker: ObjectName,
        /// Its uid, a precondition.
        uid: String,
        /// The whole status.
        status: Box<PodProbeMarkerStatus>,
    },
    /// Merge patch of a marker's finalizers. It replaces the whole list, so it carries the resourceVersion with which
    /// the list was read, and conflicts instead of undoing what somebody else did to it.
    MarkerFinalizers {
        /// The marker.
        marker: ObjectName,
        /// Its uid, a precondition.
        uid: String,
        /// The resourceVersion with which its finalizers were read, a precondition.
        resource_version: Option<String>,
        /// All finalizers that it is to have.
        finalizers: Vec<String>,
    },
}

/// The marks of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodMarks {
    /// The pod.
    pub pod: ObjectName,
    /// Its uid; it is inside both bodies.
    pub uid: String,
    /// A strategic merge patch that takes away governed marks that others co-own.
    pub remove: Option<serde_json::Value>,
    /// The body of a forced server-side apply: all of our marks.
    pub apply: Option<serde_json::Value>,
}

//! The interface of the index: the events that it takes, and the writes that it asks for. The manager passes in the
//! former and sends the latter.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use leadsman_api::slim::{Node, Pod};
use leadsman_api::{NodePodProbe, PodProbeMarker, PodProbeMarkerStatus};

use crate::cluster::{ObjectName, Refusal, ResourceVersion, Source};

/// A kind that the index needs watched.
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

/// A change in the cluster, or the end of a write.
#[derive(Clone, Debug)]
pub enum Event {
    /// The state of a marker.
    Marker(Arc<PodProbeMarker>, Source),
    /// The state of a pod.
    Pod(Arc<Pod>, Source),
    /// The state of a node.
    Node(Arc<Node>, Source),
    /// The state of a `NodePodProbe`.
    NodePodProbe(Arc<NodePodProbe>, Source),
    /// An object in a list or a watch event could not be decoded. Its last known state stays in force. Without one,
    /// entries and marks that may follow from it are left as they are until it decodes or is deleted.
    Undecodable(WatchedKind, ObjectName),
    /// The watch reports an object deleted, with the version of its deletion. A write that is answered with 404 must
    /// not send this event: another object may have the name by then, and only the watch has both in order.
    Deleted(WatchedKind, ObjectName, ResourceVersion),
    /// A list of a kind is complete, with all its names. Objects of other names did not exist at the version of the
    /// list.
    Listed(WatchedKind, BTreeSet<ObjectName>, ResourceVersion),
    /// A list of a kind beside its watch is complete, with all its names. The watch may be ahead of it or behind it.
    /// Objects of other names did not exist at the version of the list.
    Relisted(WatchedKind, BTreeSet<ObjectName>, ResourceVersion),
    /// All kinds have been listed, and this process holds the Lease: from now on writes are due. Sent again whenever
    /// the process regains the Lease, after another one may have written.
    Synced,
    /// Whether the API server keeps our optional fields of a kind, by its CRD's schema: those in the status of a
    /// marker, those in the entries of a `NodePodProbe`. The API server prunes fields that a structural schema does not
    /// list. Other kinds have no such fields.
    FieldsKept(WatchedKind, bool),
    /// The API server has carried out the last write of this target; the state in its reply was sent as an event
    /// before. If the object still lacks what was written, another client or an admission webhook undid it.
    Written(WriteTarget),
    /// The API server rejected this write for good, for this reason. It is not repeated until
    /// another write is due, the spec of the `NodePodProbe` has changed, or some minutes have passed. A `NodePodProbe` that
    /// is too large gets fewer entries instead.
    Refused(WriteTarget, Box<Write>, Refusal),
    /// The deadline of the last [`Effects`](crate::cluster::Effects) has passed.
    Deadline,
}

/// The object of a write, or the part of an object that is written separately.
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

/// The object's name alone, as logs have the kind of the write beside it.
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

/// A write that is due.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Creates a `NodePodProbe` (POST).
    CreateNodePodProbe(Box<NodePodProbe>),
    /// Replaces the spec of a `NodePodProbe` (PUT), with the resourceVersion from which it was computed.
    ReplaceNodePodProbe(Box<NodePodProbe>),
    /// Deletes a `NodePodProbe`, with its uid as a precondition.
    DeleteNodePodProbe {
        /// Name of the node and the object.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// Writes the marks of a pod by one or two requests on `pods/status`, the patch before the apply.
    PodMarks(Box<PodMarks>),
    /// Writes a marker's status by a JSON merge patch. As that replaces the whole list of conditions, those of other clients
    /// too, it carries the resourceVersion with which they were read.
    MarkerStatus {
        /// The marker.
        marker: ObjectName,
        /// Its uid, a precondition.
        uid: String,
        /// The resourceVersion with which its status was read, a precondition.
        resource_version: Option<String>,
        /// The whole status.
        status: Box<PodProbeMarkerStatus>,
    },
    /// Writes a marker's finalizers by a JSON merge patch. As that replaces the whole list (RFC 7396), it carries the
    /// resourceVersion with which the list was read, so that it conflicts (409) instead of undoing another client's
    /// change.
    MarkerFinalizers {
        /// The marker.
        marker: ObjectName,
        /// Its uid, a precondition.
        uid: String,
        /// The resourceVersion with which its finalizers were read, a precondition.
        resource_version: Option<String>,
        /// The whole list.
        finalizers: Vec<String>,
    },
}

/// The bodies that write the marks of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodMarks {
    /// The pod.
    pub pod: ObjectName,
    /// Its uid, in both bodies as a precondition.
    pub uid: String,
    /// A strategic merge patch that removes marks that others co-own.
    pub remove: Option<serde_json::Value>,
    /// A forced server-side apply of all our marks.
    pub apply: Option<serde_json::Value>,
}

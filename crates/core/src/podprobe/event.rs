//! The kinds of the feature's writes and their classes; and the events, targets and writes of the
//! [`Index`](super::Index) that is driven by hand, of which a manager knows nothing.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leadsman_api::slim::{Node, Pod};
use leadsman_api::{GROUP, NodePodProbe, PodProbeMarker, PodProbeMarkerStatus, VERSION};
use leadsman_reconcile::{After, Class, Purpose, RightScope, WriteKind, WriteVerb};
use serde_json::Value;

use super::pod::FIELD_MANAGER;
use crate::cluster::{ObjectName, Refusal, ResourceVersion, Source};

// Indices into CLASSES.
const MARKS: usize = 0;
const SPECS: usize = 1;
const STATUSES: usize = 2;
const FINALIZERS: usize = 3;

/// The classes of its writes.
pub const CLASSES: &[Class] = &[
    Class::new("pod_marks").paced_by_size(),
    Class::new("nodepodprobes"),
    // A marker's status changes with every pod. It says that specs are written: written before them, it would be
    // written twice. But specs may come without end.
    Class::new("marker_status")
        .paced_by_size()
        .spacing(Duration::from_secs(2))
        .after(After {
            class: SPECS,
            at_most: Duration::from_secs(10),
        }),
    Class::new("marker_finalizers").paced_by_size(),
];

/// All kinds of its writes.
pub const WRITES: &[WriteKind] = &[
    CREATE_NODE_POD_PROBE,
    REPLACE_NODE_POD_PROBE,
    DELETE_NODE_POD_PROBE,
    REMOVE_MARKS,
    APPLY_MARKS,
    MARKER_STATUS,
    MARKER_FINALIZERS,
];

pub(super) const CREATE_NODE_POD_PROBE: WriteKind =
    of_node("create_nodepodprobe", WriteVerb::Create);
pub(super) const REPLACE_NODE_POD_PROBE: WriteKind =
    of_node("replace_nodepodprobe", WriteVerb::Replace);
pub(super) const DELETE_NODE_POD_PROBE: WriteKind =
    of_node("delete_nodepodprobe", WriteVerb::Delete);
pub(super) const REMOVE_MARKS: WriteKind = WriteKind {
    label: "pod_mark_removal",
    ..of_marks(WriteVerb::StrategicPatch)
};
pub(super) const APPLY_MARKS: WriteKind = of_marks(WriteVerb::Apply(FIELD_MANAGER));
pub(super) const MARKER_STATUS: WriteKind = WriteKind {
    label: "marker_status",
    resource: "podprobemarkers/status",
    class: STATUSES,
    ..of_node("", WriteVerb::MergePatch)
};
pub(super) const MARKER_FINALIZERS: WriteKind = WriteKind {
    label: "marker_finalizers",
    resource: "podprobemarkers",
    class: FINALIZERS,
    ..of_node("", WriteVerb::MergePatch)
};

const fn of_node(label: &'static str, verb: WriteVerb) -> WriteKind {
    WriteKind {
        label,
        group: GROUP,
        version: VERSION,
        resource: "nodepodprobes",
        verb,
        scope: RightScope::Cluster,
        class: SPECS,
    }
}

const fn of_marks(verb: WriteVerb) -> WriteKind {
    WriteKind {
        label: "pod_marks",
        group: "",
        version: "v1",
        resource: "pods/status",
        verb,
        scope: RightScope::Cluster,
        class: MARKS,
    }
}

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
    /// The object of the last write of this target is gone or was replaced.
    Gone(WriteTarget),
    /// The last write of this target was not carried out for now, or it is not known whether it was (false).
    Unwritten(WriteTarget, bool),
    /// The API server rejected the last write of this target for good, for this reason. It is not repeated until another write
    /// is due, or some minutes have passed. A `NodePodProbe` that is too large gets fewer entries instead.
    Refused(WriteTarget, Refusal),
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

impl WriteTarget {
    /// The object.
    pub fn object(&self) -> Cow<'_, ObjectName> {
        match self {
            Self::PodMarks(name) | Self::MarkerStatus(name) | Self::MarkerFinalizer(name) => {
                Cow::Borrowed(name)
            }
            Self::NodePodProbe(name) => Cow::Owned(ObjectName {
                namespace: String::new(),
                name: name.clone(),
            }),
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
    /// Writes the marks of a pod by a request on `pods/status`: a patch that removes some, or an apply of all.
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

/// What a write of this body is to achieve. Two that differ in times and versions alone are refused for the same reason.
pub(super) fn purpose_of(body: &Value) -> Purpose {
    let mut body = body.clone();
    forget_times_and_versions(&mut body);
    Purpose::of(body.to_string())
}

fn forget_times_and_versions(body: &mut Value) {
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        // The version of a fenced write moves with each change of its pod.
        metadata.remove("resourceVersion");
    }
    let conditions = body.pointer_mut("/status/conditions");
    let conditions = conditions
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten();
    for condition in conditions.filter_map(Value::as_object_mut) {
        // No webhook and no schema refuses a condition for its time.
        condition.remove("lastTransitionTime");
        condition.remove("lastProbeTime");
    }
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

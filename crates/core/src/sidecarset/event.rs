//! The interface of the index: the events that it takes, and the writes that it asks for. The manager passes in the
//! former and sends the latter.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use leadsman_api::SidecarSet;
use leadsman_api::slim::Namespace;
use leadsman_api::slim::Pod;
use leadsman_api::slim::config_map::ConfigMap;
use leadsman_api::slim::revision::ControllerRevision;
use serde_json::Value;

use super::snapshot::SnapshotVersion;
use crate::cluster::{ObjectName, ResourceVersion, Source};

/// Name of the `ConfigMap` with the administrator's whitelist, in the manager's namespace, as `OpenKruise` has it.
pub const CONFIGURATION: &str = "kruise-configuration";

/// A kind that the index needs watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchedKind {
    /// `SidecarSet`
    Set,
    /// `Pod`, in all namespaces. A new leader lists them once more before its first write: otherwise it would not count
    /// the pods that its predecessor has just taken down.
    Pod,
    /// `Namespace`
    Namespace,
    /// `ControllerRevision`, in the manager's namespace, with label [`SET_LABEL`](super::revision::SET_LABEL).
    Revision,
    /// `ConfigMap`, in the manager's namespace; only [`CONFIGURATION`] counts.
    Configuration,
}

/// A change in the cluster, or the end of a write.
#[derive(Clone, Debug)]
pub enum Event {
    /// The state of a set.
    Set(Arc<SidecarSet>, Source),
    /// The state of a pod.
    Pod(Arc<Pod>, Source),
    /// The state of a namespace.
    Namespace(Arc<Namespace>, Source),
    /// The state of a revision.
    Revision(Arc<ControllerRevision>, Source),
    /// The state of a `ConfigMap`.
    Configuration(Arc<ConfigMap>, Source),
    /// An object in a list or a watch event could not be decoded. Its last known state stays in force.
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
    /// The API server has carried out the last write of this target; the state in its reply was sent as an event
    /// before.
    Written(WriteTarget),
    /// The API server did not carry out this write, and would not if it were repeated at once, for this reason. For a pod
    /// that includes what [`WriteTarget::Pod`] names. It is not repeated until another write is due or some minutes have
    /// passed; until then a pod takes up no place of another in a roll-out.
    Refused(WriteTarget, Box<Write>, String),
    /// The webhook configuration that the API server has stored has every replica inject by this version or a later one; None
    /// if there is no webhook. Before the first such event nothing is known.
    WebhookBarrier(Option<SnapshotVersion>),
    /// Whether the API server keeps the fields of a set's status that `OpenKruise`'s CRD lacks. It prunes fields that a
    /// structural schema does not list.
    FieldsKept(bool),
    /// The deadline of the last [`Effects`](crate::cluster::Effects) has passed.
    Deadline,
}

/// The object of a write, or the part of an object that is written separately.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WriteTarget {
    /// Images and annotations of a pod. A denial by admission (403) and a failure of the API server (500, where a webhook
    /// fails) count as refusals of this target: otherwise one pod would hold up the roll-out of all others.
    Pod(ObjectName),
    /// The condition `SidecarSetUpgradable` of a pod. Denials count as refusals here too.
    PodCondition(ObjectName),
    /// The status of a set, at most once in two seconds.
    SetStatus(String),
    /// The two hash annotations of a set.
    SetHashes(String),
    /// The revisions of a set, one write at a time.
    Revisions(String),
    /// An event about a set.
    SetEvent(String),
    /// An event about a pod.
    PodEvent(ObjectName),
}

/// The object's name alone, as logs have the kind of the write beside it.
impl fmt::Display for WriteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(name) | Self::PodCondition(name) | Self::PodEvent(name) => name.fmt(f),
            Self::SetStatus(name)
            | Self::SetHashes(name)
            | Self::Revisions(name)
            | Self::SetEvent(name) => f.write_str(name),
        }
    }
}

/// A write that is due.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Upgrades a pod, or resets a container of it, by a strategic merge patch (PATCH of `pods`). The patch has uid and
    /// resourceVersion in it. The reply shows the pod.
    Pod {
        /// The pod.
        pod: ObjectName,
        /// The patch.
        patch: Box<Value>,
    },
    /// Writes or removes the condition of a pod by a strategic merge patch (PATCH of `pods/status`). The patch has the uid
    /// in it. The reply shows the pod.
    PodCondition {
        /// The pod.
        pod: ObjectName,
        /// The patch.
        patch: Box<Value>,
    },
    /// Writes a set's status by a JSON merge patch (PATCH of `sidecarsets/status`), which has the uid in it. The reply shows
    /// the set.
    SetStatus {
        /// The set.
        set: String,
        /// The patch.
        patch: Box<Value>,
    },
    /// Writes annotations of a set by a JSON merge patch (PATCH of `sidecarsets`), which has the uid in it:
    /// the hashes are those of this spec. The reply shows the set.
    SetHashes {
        /// The set.
        set: String,
        /// The patch.
        patch: Box<Value>,
    },
    /// Creates a revision in the manager's namespace (POST of `controllerrevisions`). The reply shows the revision; where
    /// the name is taken, the revision that has it is read.
    CreateRevision(Box<Value>),
    /// Writes number and label of a revision by a JSON merge patch (PATCH of `controllerrevisions`), which has uid and
    /// resourceVersion in it. The reply shows the revision.
    PatchRevision {
        /// The revision.
        revision: ObjectName,
        /// The patch.
        patch: Box<Value>,
    },
    /// Deletes a revision (DELETE of `controllerrevisions`), in the background.
    DeleteRevision {
        /// The revision.
        revision: ObjectName,
        /// Its uid, a precondition.
        uid: String,
        /// Its resourceVersion, a precondition.
        resource_version: Option<String>,
    },
    /// Sends an event (POST of `events.k8s.io/v1`, in the namespace of its object, `default` for a set). It is sent once:
    /// nothing is due again, whatever becomes of it.
    Event(Box<EventNote>),
}

/// An event for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// What it is about: a pod, or a set, whose namespace is empty.
    pub regarding: ObjectName,
    /// The uid of that.
    pub uid: String,
    /// Whether it is a warning.
    pub is_warning: bool,
    /// In one word.
    pub reason: &'static str,
    /// What happened.
    pub note: String,
}

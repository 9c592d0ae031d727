//! The writes of sets and their pods, and the classes in which they are sent.

use std::sync::Arc;
use std::time::Duration;

use leadsman_api::GROUP;
use leadsman_reconcile::{After, Class, Fate, RightScope, WriteKind, WriteVerb};

// Indices into CLASSES.
const REVISIONS: usize = 0;
const PODS: usize = 1;
const CONDITIONS: usize = 2;
const SETS: usize = 3;
const STATUSES: usize = 4;
const EVENTS: usize = 5;

pub(super) const CLASSES: &[Class] = &[
    Class::new("sidecarset_revisions"),
    Class::new("sidecarset_pods").paced_by_size(),
    Class::new("sidecarset_conditions").paced_by_size(),
    Class::new("sidecarset_hashes"),
    // A status counts the pods and names the newest revision: written before that exists, it would be written twice.
    Class::new("sidecarset_status")
        .spacing(Duration::from_secs(2))
        .after(After {
            class: REVISIONS,
            at_most: Duration::from_secs(10),
        }),
    Class::new("sidecarset_events"),
];

pub(super) const WRITES: &[WriteKind] = &[
    UPGRADE_POD,
    POD_CONDITION,
    SET_STATUS,
    SET_HASHES,
    CREATE_REVISION,
    PATCH_REVISION,
    DELETE_REVISION,
    EVENT,
];

/// Images and annotations of a pod. A strategic merge patch, so that a container is found by its name and all that the patch
/// does not name stays (`patchMergeKey` in `k8s.io/api/core/v1/types.go`).
pub(super) const UPGRADE_POD: WriteKind = WriteKind {
    label: "upgrade_pod",
    group: "",
    version: "v1",
    resource: "pods",
    verb: WriteVerb::StrategicPatch,
    scope: RightScope::Cluster,
    class: PODS,
};
/// The condition of a pod that says whether it can be upgraded.
pub(super) const POD_CONDITION: WriteKind = WriteKind {
    label: "pod_upgradable_condition",
    resource: "pods/status",
    class: CONDITIONS,
    ..UPGRADE_POD
};
/// The status of a set. No apply, for the reason of a marker's status: the CRD may be `OpenKruise`'s.
pub(super) const SET_STATUS: WriteKind = WriteKind {
    label: "sidecarset_status",
    resource: "sidecarsets/status",
    class: STATUSES,
    ..SET_HASHES
};
/// The two hash annotations of a set.
pub(super) const SET_HASHES: WriteKind = WriteKind {
    label: "sidecarset_hashes",
    group: GROUP,
    version: "v1beta1",
    resource: "sidecarsets",
    verb: WriteVerb::MergePatch,
    scope: RightScope::Cluster,
    class: SETS,
};
pub(super) const CREATE_REVISION: WriteKind = WriteKind {
    label: "create_revision",
    group: "apps",
    version: "v1",
    resource: "controllerrevisions",
    verb: WriteVerb::Create,
    scope: RightScope::OwnNamespace,
    class: REVISIONS,
};
/// Number and label of a revision.
pub(super) const PATCH_REVISION: WriteKind = WriteKind {
    label: "patch_revision",
    verb: WriteVerb::MergePatch,
    ..CREATE_REVISION
};
pub(super) const DELETE_REVISION: WriteKind = WriteKind {
    label: "delete_revision",
    verb: WriteVerb::Delete,
    ..CREATE_REVISION
};

/// An event about a set or a pod.
pub(super) const EVENT: WriteKind = WriteKind {
    label: "sidecarset_event",
    group: "events.k8s.io",
    version: "v1",
    resource: "events",
    verb: WriteVerb::Create,
    scope: RightScope::Cluster,
    class: EVENTS,
};

/// The action that events name as done or tried.
pub(super) const ACTION: &str = "Upgrade";

/// Why a write that was carried out has changed nothing.
const UNDONE: &str = "the API server carried the write out, and another client or an admission webhook has undone it";

/// Why a write has no object.
const GONE: &str = "the API server answers that the object is gone, which the watch has not shown";

/// Why a write that rests was refused, or what has become of it.
pub(super) fn rest_reason(fate: Fate<'_>) -> Arc<str> {
    match fate {
        Fate::Refused(refusal) => refusal.clone().into_reason().into(),
        Fate::Undone(_) => UNDONE.into(),
        Fate::Gone(_) => GONE.into(),
    }
}

/// Why a write was refused, if it was.
pub(super) fn refusal_reason(fate: Fate<'_>) -> Option<Arc<str>> {
    match fate {
        Fate::Refused(refusal) => Some(refusal.clone().into_reason().into()),
        Fate::Undone(_) | Fate::Gone(_) => None,
    }
}

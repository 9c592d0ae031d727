//! The writes that are sent for sets.

use std::cell::RefCell;

use leadsman_reconcile::{RightScope, WriteKind, WriteVerb};

use crate::cluster::Interners;

/// The feature `CloneSet`.
#[derive(Debug, Default)]
pub struct CloneSets {
    /// Texts that are the same in many pods, kept once.
    pub(super) interners: RefCell<Interners>,
}

const PODS: usize = 0;
const STATUSES: usize = 1;
const REVISIONS: usize = 2;
const EVENTS: usize = 3;
const CLAIMS: usize = 4;

pub(super) const CREATE_POD: WriteKind = of_pods("cloneset_create_pod", WriteVerb::Create);
pub(super) const DELETE_POD: WriteKind = of_pods("cloneset_delete_pod", WriteVerb::Delete);
/// Gives a pod the images and the metadata of another revision, or releases it.
pub(super) const UPDATE_POD: WriteKind = of_pods("cloneset_update_pod", WriteVerb::StrategicPatch);
/// Takes a pod out of service or back, and says how far its lifecycle is.
pub(super) const MARK_POD: WriteKind = WriteKind {
    resource: "pods/status",
    ..of_pods("cloneset_mark_pod", WriteVerb::StrategicPatch)
};
pub(super) const CREATE_CLAIM: WriteKind = of_claims("cloneset_create_claim", WriteVerb::Create);
pub(super) const DELETE_CLAIM: WriteKind = of_claims("cloneset_delete_claim", WriteVerb::Delete);
pub(super) const STATUS: WriteKind = WriteKind {
    label: "cloneset_status",
    group: leadsman_api::GROUP,
    version: leadsman_api::VERSION,
    resource: "clonesets/status",
    verb: WriteVerb::MergePatch,
    scope: RightScope::Cluster,
    class: STATUSES,
};
pub(super) const CREATE_REVISION: WriteKind =
    of_revisions("cloneset_create_revision", WriteVerb::Create);
/// Gives a revision the highest number, or an owner.
pub(super) const PATCH_REVISION: WriteKind =
    of_revisions("cloneset_patch_revision", WriteVerb::MergePatch);
pub(super) const DELETE_REVISION: WriteKind =
    of_revisions("cloneset_delete_revision", WriteVerb::Delete);

pub(super) const TELL: WriteKind = WriteKind {
    label: "cloneset_event",
    group: "events.k8s.io",
    version: "v1",
    resource: "events",
    verb: WriteVerb::Create,
    scope: RightScope::Cluster,
    class: EVENTS,
};

const fn of_pods(label: &'static str, verb: WriteVerb) -> WriteKind {
    WriteKind {
        label,
        group: "",
        version: "v1",
        resource: "pods",
        verb,
        scope: RightScope::Cluster,
        class: PODS,
    }
}

const fn of_claims(label: &'static str, verb: WriteVerb) -> WriteKind {
    WriteKind {
        resource: "persistentvolumeclaims",
        class: CLAIMS,
        ..of_pods(label, verb)
    }
}

const fn of_revisions(label: &'static str, verb: WriteVerb) -> WriteKind {
    WriteKind {
        label,
        group: "apps",
        version: "v1",
        resource: "controllerrevisions",
        verb,
        scope: RightScope::Cluster,
        class: REVISIONS,
    }
}

//! The writes that are sent for jobs.

use leadsman_reconcile::{RightScope, WriteKind, WriteVerb};

/// The feature `BroadcastJob`.
#[derive(Clone, Copy, Debug, Default)]
pub struct BroadcastJobs;

pub(super) const PODS: usize = 0;
pub(super) const STATUSES: usize = 1;
pub(super) const JOBS: usize = 2;
pub(super) const EVENTS: usize = 3;

pub(super) const CREATE_POD: WriteKind = of_pods("broadcastjob_create_pod", WriteVerb::Create);
pub(super) const DELETE_POD: WriteKind = of_pods("broadcastjob_delete_pod", WriteVerb::Delete);
/// Ends a pod that would be restarted for ever, and leaves it as failed.
pub(super) const STOP_POD: WriteKind = of_pods("broadcastjob_stop_pod", WriteVerb::MergePatch);
pub(super) const STATUS: WriteKind = WriteKind {
    resource: "broadcastjobs/status",
    class: STATUSES,
    ..of_jobs("broadcastjob_status", WriteVerb::MergePatch)
};
pub(super) const RECORD: WriteKind = of_jobs("broadcastjob_record", WriteVerb::MergePatch);
pub(super) const DELETE_JOB: WriteKind = of_jobs("broadcastjob_delete", WriteVerb::Delete);

pub(super) const TELL: WriteKind = WriteKind {
    label: "broadcastjob_event",
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

const fn of_jobs(label: &'static str, verb: WriteVerb) -> WriteKind {
    WriteKind {
        label,
        group: leadsman_api::GROUP,
        version: "v1beta1",
        resource: "broadcastjobs",
        verb,
        scope: RightScope::Cluster,
        class: JOBS,
    }
}

//! The objects that are known, the writes that are sent, and what is remembered between them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leadsman_api::GROUP;
use leadsman_reconcile::{ObjectName, RightScope, Store, WriteKind, WriteVerb};

use super::cron_job::{CronJob, Run, RunKind};

/// `AdvancedCronJob` as a feature.
pub struct Cron {
    /// The zone of schedules that name none.
    pub default_zone: TimeZone,
}

/// The objects that are watched.
#[derive(Default)]
pub struct CronWorld {
    /// The cron jobs.
    pub cron_jobs: Store<CronJob>,
    /// The jobs of Kubernetes, of cron jobs or not.
    pub jobs: Store<Run>,
    /// The `BroadcastJob`s, likewise.
    pub broadcast_jobs: Store<Run>,
    /// Whether the CRD has a cron job's conditions.
    pub has_conditions: bool,
}

impl CronWorld {
    /// The objects of a kind of runs.
    pub fn runs(&self, kind: RunKind) -> &Store<Run> {
        match kind {
            RunKind::Job => &self.jobs,
            RunKind::BroadcastJob => &self.broadcast_jobs,
        }
    }
}

/// The memory that this process has of cron jobs.
pub type Memory = BTreeMap<ObjectName, Remembered>;

/// The memory that this process has of a cron job since it leads. A user may delete a run before a status shows it.
#[derive(Debug, Default)]
pub struct Remembered {
    /// The uid: another cron job of the name begins with nothing.
    pub uid: String,
    /// The time that it has written into the status before it made the run, which surely was not made since.
    pub announced: Option<Timestamp>,
    /// The latest time whose run it has seen.
    pub seen: Option<Timestamp>,
}

// Indices into CLASSES.
pub(super) const RUNS: usize = 0;
pub(super) const STATUSES: usize = 1;
pub(super) const OLD_RUNS: usize = 2;
pub(super) const EVENTS: usize = 3;
pub(super) const TEMPLATES: usize = 4;

const fn of_jobs(label: &'static str, verb: WriteVerb, class: usize) -> WriteKind {
    WriteKind {
        label,
        group: "batch",
        version: "v1",
        resource: "jobs",
        verb,
        scope: RightScope::Cluster,
        class,
    }
}

const fn of_broadcast_jobs(label: &'static str, verb: WriteVerb, class: usize) -> WriteKind {
    WriteKind {
        group: GROUP,
        version: "v1beta1",
        resource: "broadcastjobs",
        ..of_jobs(label, verb, class)
    }
}

pub(super) const CREATE_JOB: WriteKind =
    of_jobs("advancedcronjob_create_job", WriteVerb::Create, RUNS);
pub(super) const CREATE_BROADCAST_JOB: WriteKind = of_broadcast_jobs(
    "advancedcronjob_create_broadcastjob",
    WriteVerb::Create,
    RUNS,
);
pub(super) const JUDGE_JOB: WriteKind =
    of_jobs("advancedcronjob_judge_job", WriteVerb::DryRun, TEMPLATES);
pub(super) const JUDGE_BROADCAST_JOB: WriteKind = of_broadcast_jobs(
    "advancedcronjob_judge_broadcastjob",
    WriteVerb::DryRun,
    TEMPLATES,
);
pub(super) const DELETE_JOB: WriteKind =
    of_jobs("advancedcronjob_delete_job", WriteVerb::Delete, OLD_RUNS);
pub(super) const DELETE_BROADCAST_JOB: WriteKind = of_broadcast_jobs(
    "advancedcronjob_delete_broadcastjob",
    WriteVerb::Delete,
    OLD_RUNS,
);
pub(super) const STATUS: WriteKind = WriteKind {
    resource: "advancedcronjobs/status",
    ..of_broadcast_jobs("advancedcronjob_status", WriteVerb::MergePatch, STATUSES)
};
pub(super) const EVENT: WriteKind = WriteKind {
    group: "events.k8s.io",
    resource: "events",
    ..of_jobs("advancedcronjob_event", WriteVerb::Create, EVENTS)
};

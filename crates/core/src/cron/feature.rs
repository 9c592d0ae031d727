//! The kinds that are watched, the writes, and what makes a cron job run anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leadsman_api::slim::run::{BroadcastJobRun, Job};
use leadsman_api::{AdvancedCronJob, GROUP};
use leadsman_reconcile::{
    Change, Class, Feature, Key, ObjectName, Plan, RightScope, Store, Stored, Watch, WriteKind,
    WriteVerb,
};

use super::cron_job::{CronJob, Run, RunKind};
use super::reconcile::Look;

/// `AdvancedCronJob` as a feature.
pub struct Cron {
    /// The zone of schedules that name none.
    pub default_zone: TimeZone,
}

/// What is watched.
#[derive(Default)]
pub struct World {
    /// The cron jobs.
    pub cron_jobs: Store<CronJob>,
    /// The jobs of Kubernetes, of cron jobs or not.
    pub jobs: Store<Run>,
    /// The `BroadcastJob`s, likewise.
    pub broadcast_jobs: Store<Run>,
    /// Whether the CRD has a cron job's conditions.
    pub has_conditions: bool,
}

impl World {
    /// The objects of a kind of runs.
    pub fn runs(&self, kind: RunKind) -> &Store<Run> {
        match kind {
            RunKind::Job => &self.jobs,
            RunKind::BroadcastJob => &self.broadcast_jobs,
        }
    }
}

/// What this process remembers of cron jobs.
pub type Memory = BTreeMap<ObjectName, Remembered>;

/// What this process remembers of a cron job since it leads. A user may delete a run before a status shows it.
#[derive(Debug, Default)]
pub struct Remembered {
    /// The time that it has written into the status before it made the run, which surely was not made since.
    pub announced: Option<Timestamp>,
    /// The latest time whose run it has seen.
    pub seen: Option<Timestamp>,
}

/// A cron job by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CronJobKey(pub ObjectName);

impl Key for CronJobKey {
    fn namespace(&self) -> &str {
        &self.0.namespace
    }
}

// Indices into CLASSES.
const RUNS: usize = 0;
const STATUSES: usize = 1;
const OLD_RUNS: usize = 2;
const EVENTS: usize = 3;

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

pub(super) const CREATE_JOB: WriteKind = of_jobs("cron_create_job", WriteVerb::Create, RUNS);
pub(super) const CREATE_BROADCAST_JOB: WriteKind =
    of_broadcast_jobs("cron_create_broadcastjob", WriteVerb::Create, RUNS);
pub(super) const DELETE_JOB: WriteKind = of_jobs("cron_delete_job", WriteVerb::Delete, OLD_RUNS);
pub(super) const DELETE_BROADCAST_JOB: WriteKind =
    of_broadcast_jobs("cron_delete_broadcastjob", WriteVerb::Delete, OLD_RUNS);
pub(super) const STATUS: WriteKind = WriteKind {
    resource: "advancedcronjobs/status",
    ..of_broadcast_jobs("advancedcronjob_status", WriteVerb::MergePatch, STATUSES)
};
const EVENT: WriteKind = WriteKind {
    group: "events.k8s.io",
    resource: "events",
    ..of_jobs("advancedcronjob_event", WriteVerb::Create, EVENTS)
};

impl Feature for Cron {
    const NAME: &'static str = "cron";
    const EVENTS_FROM: &'static str = "advancedcronjob-controller";
    const WRITES: &'static [WriteKind] = &[
        CREATE_JOB,
        CREATE_BROADCAST_JOB,
        DELETE_JOB,
        DELETE_BROADCAST_JOB,
        STATUS,
        EVENT,
    ];
    const CLASSES: &'static [Class] = &[
        Class::new("cron_runs"),
        Class::new("cron_statuses"),
        Class::new("cron_old_runs"),
        Class::new("cron_events"),
    ];

    type Key = CronJobKey;
    type World = World;
    type Memory = Memory;

    fn keys(&self, world: &World) -> Vec<CronJobKey> {
        let jobs = world.cron_jobs.iter();
        jobs.map(|(name, _)| CronJobKey((**name).clone())).collect()
    }

    fn reconcile(
        &self,
        CronJobKey(name): &CronJobKey,
        world: &World,
        memory: &mut Memory,
        plan: &mut Plan<'_, Self>,
    ) {
        let job = world.cron_jobs.observed(name);
        match job.filter(|job| job.wire.metadata.deletion_timestamp.is_none()) {
            Some(job) => {
                let remembered = memory.entry(name.clone()).or_default();
                Look::new(job, world, plan.now().wall, remembered).reconcile(remembered, plan);
            }
            None => _ = memory.remove(name),
        }
    }
}

impl Watch<AdvancedCronJob> for Cron {
    type Stored = CronJob;

    fn store(world: &mut World) -> &mut Store<CronJob> {
        &mut world.cron_jobs
    }

    fn read(&self, job: &Arc<AdvancedCronJob>) -> Arc<CronJob> {
        Arc::new(CronJob::read(job, &self.default_zone))
    }

    fn find_affected(
        &self,
        change: &Change<CronJob>,
        _: &World,
        affected: &mut dyn FnMut(CronJobKey),
    ) {
        affected(CronJobKey((*change.name).clone()));
    }

    fn note_fields_kept(world: &mut World, kept: bool) {
        world.has_conditions = kept;
    }
}

impl Watch<Job> for Cron {
    type Stored = Run;

    fn store(world: &mut World) -> &mut Store<Run> {
        &mut world.jobs
    }

    fn read(&self, job: &Arc<Job>) -> Arc<Run> {
        Arc::new(Run::read(&job.0))
    }

    fn find_affected(
        &self,
        change: &Change<Run>,
        world: &World,
        affected: &mut dyn FnMut(CronJobKey),
    ) {
        find_owners(change, world, affected);
    }
}

impl Watch<BroadcastJobRun> for Cron {
    type Stored = Run;

    fn store(world: &mut World) -> &mut Store<Run> {
        &mut world.broadcast_jobs
    }

    fn read(&self, job: &Arc<BroadcastJobRun>) -> Arc<Run> {
        Arc::new(Run::read(&job.0))
    }

    fn find_affected(
        &self,
        change: &Change<Run>,
        world: &World,
        affected: &mut dyn FnMut(CronJobKey),
    ) {
        find_owners(change, world, affected);
    }
}

fn find_owners(change: &Change<Run>, world: &World, affected: &mut dyn FnMut(CronJobKey)) {
    let runs = change.before.iter().chain(&change.now);
    for owner in runs.filter_map(|run| run.owner.as_deref()) {
        for job in world.cron_jobs.find(owner) {
            affected(CronJobKey(job.name()));
        }
    }
}

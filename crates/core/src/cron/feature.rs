//! The kinds that are watched, the writes, and what makes a cron job run anew.

use std::sync::Arc;
use std::time::Duration;

use leadsman_api::AdvancedCronJob;
use leadsman_api::slim::run::{BroadcastJobRun, Job};
use leadsman_reconcile::{
    After, Change, Class, Feature, Key, ObjectName, Plan, Store, Stored, Watch, WriteKind,
};

use super::cron_job::{CronJob, Run};
use super::reconcile::Look;
use super::world::{
    CREATE_BROADCAST_JOB, CREATE_JOB, Cron, CronWorld, DELETE_BROADCAST_JOB, DELETE_JOB, EVENT,
    JUDGE_BROADCAST_JOB, JUDGE_JOB, Memory, RUNS, Remembered, STATUS,
};

/// A cron job by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CronJobKey(pub ObjectName);

impl Key for CronJobKey {
    fn namespace(&self) -> &str {
        &self.0.namespace
    }
}

const RUNS_FIRST: After = After {
    class: RUNS,
    at_most: Duration::from_secs(2),
};

impl Feature for Cron {
    const NAME: &'static str = "advancedcronjob";
    const EVENTS_FROM: &'static str = "advancedcronjob-controller";
    const WRITES: &'static [WriteKind] = &[
        CREATE_JOB,
        CREATE_BROADCAST_JOB,
        DELETE_JOB,
        DELETE_BROADCAST_JOB,
        JUDGE_JOB,
        JUDGE_BROADCAST_JOB,
        STATUS,
        EVENT,
    ];
    // Runs that are due at once are begun before it is written down and told.
    const CLASSES: &'static [Class] = &[
        Class::new("advancedcronjob_runs"),
        Class::new("advancedcronjob_statuses").after(RUNS_FIRST),
        Class::new("advancedcronjob_old_runs"),
        Class::new("advancedcronjob_events").after(RUNS_FIRST),
        Class::new("advancedcronjob_templates").after(RUNS_FIRST),
    ];

    type Key = CronJobKey;
    type World = CronWorld;
    type Memory = Memory;

    fn keys(&self, world: &CronWorld) -> Vec<CronJobKey> {
        let jobs = world.cron_jobs.iter();
        jobs.map(|(name, _)| CronJobKey((**name).clone())).collect()
    }

    fn reconcile(
        &self,
        CronJobKey(name): &CronJobKey,
        world: &CronWorld,
        memory: &mut Memory,
        plan: &mut Plan<'_, Self>,
    ) {
        let job = world.cron_jobs.observed(name);
        match job.filter(|job| job.wire.metadata.deletion_timestamp.is_none()) {
            Some(job) => {
                let remembered = memory.entry(name.clone()).or_default();
                if remembered.uid != job.uid() {
                    *remembered = Remembered {
                        uid: job.uid().to_owned(),
                        ..Remembered::default()
                    };
                }
                Look::new(job, world, plan.now().wall, remembered).reconcile(remembered, plan);
            }
            None => _ = memory.remove(name),
        }
    }
}

impl Watch<AdvancedCronJob> for Cron {
    type Stored = CronJob;

    fn store(world: &mut CronWorld) -> &mut Store<CronJob> {
        &mut world.cron_jobs
    }

    fn read(&self, job: &Arc<AdvancedCronJob>) -> Arc<CronJob> {
        Arc::new(CronJob::read(job, &self.default_zone))
    }

    fn find_affected(
        &self,
        change: &Change<CronJob>,
        _: &CronWorld,
        affected: &mut dyn FnMut(CronJobKey),
    ) {
        affected(CronJobKey((*change.name).clone()));
    }

    fn note_fields_kept(world: &mut CronWorld, kept: bool) {
        world.has_conditions = kept;
    }
}

impl Watch<Job> for Cron {
    type Stored = Run;

    fn store(world: &mut CronWorld) -> &mut Store<Run> {
        &mut world.jobs
    }

    fn read(&self, job: &Arc<Job>) -> Arc<Run> {
        Arc::new(Run::read(&job.0))
    }

    fn find_affected(
        &self,
        change: &Change<Run>,
        world: &CronWorld,
        affected: &mut dyn FnMut(CronJobKey),
    ) {
        find_owners(change, world, affected);
    }
}

impl Watch<BroadcastJobRun> for Cron {
    type Stored = Run;

    fn store(world: &mut CronWorld) -> &mut Store<Run> {
        &mut world.broadcast_jobs
    }

    fn read(&self, job: &Arc<BroadcastJobRun>) -> Arc<Run> {
        Arc::new(Run::read(&job.0))
    }

    fn find_affected(
        &self,
        change: &Change<Run>,
        world: &CronWorld,
        affected: &mut dyn FnMut(CronJobKey),
    ) {
        find_owners(change, world, affected);
    }
}

fn find_owners(change: &Change<Run>, world: &CronWorld, affected: &mut dyn FnMut(CronJobKey)) {
    let runs = change.before.iter().chain(&change.now);
    for owner in runs.filter_map(|run| run.owner.as_deref()) {
        for job in world.cron_jobs.find_in(&change.name.namespace, owner) {
            affected(CronJobKey(job.name()));
        }
    }
}

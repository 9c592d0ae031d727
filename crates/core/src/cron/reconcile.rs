//! The needs of a cron job: a run, fewer old runs, another status.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use leadsman_api::advanced_cron_job::RunReference;
use leadsman_api::slim::run::{BroadcastJobRun, Job};
use leadsman_api::{AdvancedCronJob, AdvancedCronJobStatus, limits};
use leadsman_reconcile::{
    Assumption, ObjectName, Plan, Purpose, ResourceVersion, Stored, WriteKind, whole_seconds,
};
use serde_json::json;

use super::cron_job::{CronJob, CronTemplate, Run, RunKind, RunOutcome};
use super::schedule::Schedule;
use super::schedule_error::ScheduleError;
use super::world::{
    CREATE_BROADCAST_JOB, CREATE_JOB, Cron, CronWorld, DELETE_BROADCAST_JOB, DELETE_JOB,
    JUDGE_BROADCAST_JOB, JUDGE_JOB, Remembered, STATUS,
};

/// The reason of the condition if the API server refuses what the template would make.
const TEMPLATE_REFUSED: &str = "TemplateRefused";

/// How far the latest run may be ahead of the clock, as the clocks of two managers differ.
const AHEAD: SignedDuration = SignedDuration::from_mins(1);

/// A cron job and its runs at a time.
pub(super) struct Look<'a> {
    job: &'a Arc<CronJob>,
    name: ObjectName,
    world: &'a CronWorld,
    now: Timestamp,
    /// The cron job's runs that exist.
    runs: Vec<(RunKind, &'a Arc<Run>)>,
    /// The latest time that has a run, or had one.
    last: Option<Timestamp>,
    /// The run that the status has announced and that does not exist.
    announced: Option<&'a RunReference>,
}

/// The fate of the announcement in the status.
#[derive(Clone, Copy)]
enum Announcement {
    Stays,
    /// The announcement of this run, which is about to be made.
    Made(RunKind, Timestamp),
    /// The announced run will not be made.
    Ends,
}

/// Whether the API server would create a run of the template.
enum TemplateJudgement {
    Awaited,
    Accepted,
    /// The API server would refuse the run, in these words.
    Refused(String),
}

/// A run that is due.
struct Due<'a> {
    time: Timestamp,
    name: ObjectName,
    template: CronTemplate,
    /// The reference that announces it.
    announced: Option<&'a RunReference>,
}

impl<'a> Look<'a> {
    pub(super) fn new(
        job: &'a Arc<CronJob>,
        world: &'a CronWorld,
        now: Timestamp,
        remembered: &mut Remembered,
    ) -> Self {
        let name = job.name();
        let mut runs = Vec::new();
        for kind in RunKind::ALL {
            let found = world.runs(kind).find_in(&name.namespace, job.uid());
            runs.extend(found.map(|run| (kind, run)));
        }
        let last = job.last_schedule_time();
        // Anybody may make a run of a time to come. Before a clock was put back it was that of a run that the status shows.
        let times = runs.iter().filter_map(|(_, run)| run.time);
        let latest = times
            .filter(|time| *time <= now || Some(*time) <= last)
            .max();
        remembered.seen = remembered.seen.max(latest);
        let without_uid = job.status.active.iter().find(|run| run.uid.is_none());
        // The announced run is that of the latest time, since the next one takes its place.
        let announced = without_uid.filter(|_| remembered.seen < last);
        Self {
            last: last.max(remembered.seen),
            name,
            job,
            world,
            now,
            runs,
            announced,
        }
    }

    pub(super) fn reconcile(&self, remembered: &mut Remembered, plan: &mut Plan<'_, Cron>) {
        if let Some(RunReference { name, .. }) = self.announced {
            let namespace = self.name.namespace.clone();
            let name = ObjectName {
                namespace,
                name: name.clone(),
            };
            let creations = [&CREATE_JOB, &CREATE_BROADCAST_JOB];
            if creations
                .iter()
                .any(|create| plan.is_fate_unknown(create, &name))
            {
                remembered.announced = None;
            }
        }
        self.delete_old_runs(plan);
        let announcement = match (&self.job.schedule, &self.job.template) {
            (Ok(schedule), Ok(template)) if self.may_run() => {
                if let Some(next) = schedule.next_after(self.now) {
                    plan.wake_at_time(next);
                }
                let due = self.find_due(schedule, *template, plan);
                due.map_or(Announcement::Stays, |due| {
                    self.start(&due, remembered, plan)
                })
            }
            _ => Announcement::Stays,
        };
        let judgement = self.judge_template(plan);
        if let Some((reason, message)) = self.problem(&judgement) {
            plan.tell(self.job.is_not_scheduled(reason, message));
        }
        self.tell_of_ends(plan);
        self.write_status(announcement, &judgement, plan);
    }

    /// Asks what the API server says of a run, once for each generation of the cron job: its author learns of a mistake now and
    /// not at the first time. The condition remembers that it was asked. Runs are tried whatever it says, since what refuses may
    /// be a policy or a quota that changes.
    fn judge_template(&self, plan: &mut Plan<'_, Cron>) -> TemplateJudgement {
        let (true, Ok(_), Ok(CronTemplate { kind, .. })) = (
            self.world.has_conditions && self.is_served(),
            &self.job.schedule,
            &self.job.template,
        ) else {
            return TemplateJudgement::Accepted;
        };
        let is_judged = self.job.status.conditions.first().is_some_and(|shown| {
            shown.observed_generation == self.job.wire.metadata.generation
                && shown.reason != TEMPLATE_REFUSED
        });
        if is_judged {
            return TemplateJudgement::Accepted;
        }
        let judge = match kind {
            RunKind::Job => &JUDGE_JOB,
            RunKind::BroadcastJob => &JUDGE_BROADCAST_JOB,
        };
        let (job, kind, time) = (self.job.clone(), *kind, Timestamp::UNIX_EPOCH);
        let name = job.run_name(time);
        let purpose = self.purpose_of_run(kind);
        let verdict = plan.judge(judge, name.clone(), purpose, move || {
            let mut run = job.run(kind, &name, time);
            // An object of the same name would be in the way.
            run["metadata"]["generateName"] = run["metadata"]["name"].take();
            run
        });
        match verdict {
            None => TemplateJudgement::Awaited,
            Some(Ok(())) => TemplateJudgement::Accepted,
            Some(Err(refusal)) => TemplateJudgement::Refused(refusal.clone().into_reason()),
        }
    }

    fn may_run(&self) -> bool {
        let spec = &self.job.wire.spec;
        !spec.paused && spec.starting_deadline_seconds != Some(0) && self.is_served()
    }

    /// Tells of the runs in the status that have ended or are gone, which it shows no longer then.
    fn tell_of_ends(&self, plan: &mut Plan<'_, Cron>) {
        for shown in self
            .job
            .status
            .active
            .iter()
            .filter(|run| run.uid.is_some())
        {
            let run = self
                .runs
                .iter()
                .find(|(_, run)| shown.uid.as_deref() == Some(run.uid()));
            match run {
                None => plan.tell(self.job.misses(&shown.name)),
                Some((kind, run)) => {
                    if let Some(outcome) = run.outcome {
                        plan.tell(self.job.has_seen_end(*kind, run, outcome));
                    }
                }
            }
        }
    }

    /// Deletes the runs above the limits, those first that began first.
    fn delete_old_runs(&self, plan: &mut Plan<'_, Cron>) {
        let spec = &self.job.wire.spec;
        for (outcome, limit, default) in [
            (RunOutcome::Succeeded, spec.successful_jobs_history_limit, 3),
            (RunOutcome::Failed, spec.failed_jobs_history_limit, 1),
        ] {
            let runs = self.runs.iter().copied();
            let mut ended: Vec<_> = runs
                .filter(|(_, run)| run.outcome == Some(outcome) && !run.is_terminating)
                .collect();
            ended.sort_by_key(|(_, run)| (run.began, run.time, &run.name));
            let limit = usize::try_from(limit.unwrap_or(default)).unwrap_or_default();
            ended.truncate(ended.len().saturating_sub(limit));
            for (kind, run) in ended {
                self.delete(kind, run, plan);
            }
        }
    }

    /// Deletes a run once the status shows its time, which would run again otherwise.
    fn delete(&self, kind: RunKind, run: &Run, plan: &mut Plan<'_, Cron>) {
        if run.time <= self.job.last_schedule_time() {
            let name = run.name.clone();
            let write = match kind {
                RunKind::Job => plan.delete::<Job>(&DELETE_JOB, name, &run.uid),
                RunKind::BroadcastJob => {
                    plan.delete::<BroadcastJobRun>(&DELETE_BROADCAST_JOB, name, &run.uid)
                }
            };
            write.tell_when_done(self.job.has_deleted(kind, &run.name));
        }
    }

    /// The latest time that was missed, or the one that the status has announced.
    fn find_due(
        &self,
        schedule: &Schedule,
        template: CronTemplate,
        plan: &mut Plan<'_, Cron>,
    ) -> Option<Due<'a>> {
        let since = self.last.unwrap_or_else(|| self.job.created());
        let missed = schedule.missed(since, self.now);
        let (time, announced) = match missed {
            Some(missed) => {
                if missed.count > 1 {
                    plan.tell(self.job.has_missed(missed, since));
                }
                if let Some(announced) = self.announced {
                    plan.tell(self.job.has_given_up(&announced.name));
                }
                (missed.latest, None)
            }
            None => (self.job.last_schedule_time()?, Some(self.announced?)),
        };
        Some(Due {
            time,
            name: self.job.run_name(time),
            template,
            announced,
        })
    }

    /// The content of a run follows from the template alone.
    fn purpose_of_run(&self, kind: RunKind) -> Purpose {
        Purpose::of((kind.name(), kind.template(&self.job.wire.spec.template)))
    }

    /// Whether the API server has the kind of its runs.
    fn is_served(&self) -> bool {
        let template = self.job.template.as_ref();
        template.is_ok_and(|template| self.world.runs(template.kind).is_served())
    }

    /// Starts a run, unless something is in its way.
    fn start(
        &self,
        due: &Due<'_>,
        remembered: &mut Remembered,
        plan: &mut Plan<'_, Cron>,
    ) -> Announcement {
        let seconds = self.job.wire.spec.starting_deadline_seconds;
        if let Some(deadline) = seconds.map(SignedDuration::from_secs)
            && self.now.duration_since(due.time) >= deadline
        {
            plan.tell(self.job.is_too_late(due.time));
            return Announcement::Ends;
        }
        if let Some(other) = self.world.runs(due.template.kind).observed(&due.name)
            && other.owner.as_deref() != Some(self.job.uid())
        {
            plan.tell(self.job.has_name_taken(due.template.kind, &due.name));
            return Announcement::Ends;
        }
        if self.waits_for_others(due, plan) {
            return Announcement::Stays;
        }
        let create = match due.template.kind {
            RunKind::Job => &CREATE_JOB,
            RunKind::BroadcastJob => &CREATE_BROADCAST_JOB,
        };
        match (due.announced, due.template.time_to_live) {
            (None, Some(_)) => {
                remembered.announced = Some(due.time);
                return Announcement::Made(due.template.kind, due.time);
            }
            (Some(reference), time_to_live) => {
                let is_new = remembered.announced == Some(due.time);
                let lives = time_to_live.unwrap_or_default();
                let lives_until = due.time.checked_add(lives).unwrap_or(Timestamp::MAX);
                // A clock that shows an earlier time says nothing about how long ago that was.
                let is_there = due.time <= self.now && self.now < lives_until;
                if reference.kind != due.template.kind.name() || !is_new && !is_there {
                    if self.world.runs(due.template.kind).is_asked(&due.name) {
                        return Announcement::Stays;
                    }
                    plan.tell(self.job.may_have_run(&due.name));
                    return Announcement::Ends;
                }
            }
            (None, None) => {}
        }
        self.create(due, create, plan);
        if due.announced.is_some() {
            Announcement::Stays
        } else {
            Announcement::Ends
        }
    }

    /// Whether a run has to wait for the runs that have not ended.
    fn waits_for_others(&self, due: &Due<'_>, plan: &mut Plan<'_, Cron>) -> bool {
        let policy = self.job.wire.spec.concurrency_policy.as_deref();
        let is_replacing = match policy {
            Some("Forbid") => false,
            Some("Replace") => true,
            _ => return false,
        };
        // One that is about to be deleted counts until the watch shows that it is gone: the request may get lost.
        let made = RunKind::ALL.into_iter().flat_map(|kind| {
            let runs = self.world.runs(kind);
            let runs = runs.find_created_in(&self.name.namespace, self.job.uid());
            runs.map(move |run| (kind, run))
        });
        let others: Vec<_> = self
            .runs
            .iter()
            .copied()
            .chain(made)
            .filter(|(kind, run)| {
                let is_going = is_replacing && run.is_terminating;
                run.outcome.is_none()
                    && !is_going
                    && (*kind, &run.name) != (due.template.kind, &due.name)
            })
            .collect();
        for (kind, run) in &others {
            if !is_replacing {
                plan.tell(self.job.is_waiting(due.time, *kind, run));
                break;
            }
            if !run.uid.is_empty() {
                self.delete(*kind, run, plan);
            }
        }
        !others.is_empty()
    }

    fn create(&self, due: &Due<'_>, create: &WriteKind, plan: &mut Plan<'_, Cron>) {
        let run = Arc::new(Run {
            name: due.name.clone(),
            uid: String::new(),
            version: ResourceVersion::UNKNOWN,
            owner: Some(self.job.uid().to_owned()),
            time: Some(due.time),
            began: None,
            outcome: None,
            is_terminating: false,
        });
        if self.name.name.len() > limits::CRON_JOB_NAME {
            plan.tell(self.job.has_long_name(limits::CRON_JOB_NAME));
        }
        let (job, kind, name, time) = (
            self.job.clone(),
            due.template.kind,
            due.name.clone(),
            due.time,
        );
        let purpose = self.purpose_of_run(kind);
        let build = move || job.run(kind, &name, time);
        let write = plan.create(create, due.name.clone(), purpose, build);
        write.tell_when_done(self.job.has_created(kind, &due.name));
        let (job, name) = (self.job.clone(), due.name.clone());
        write.tell_when_refused(move |refusal| job.cannot_create(kind, &name, refusal));
        match due.template.kind {
            RunKind::Job => write.assuming::<Job>(move || Assumption::Created(run.clone())),
            RunKind::BroadcastJob => {
                write.assuming::<BroadcastJobRun>(move || Assumption::Created(run.clone()))
            }
        };
    }

    fn write_status(
        &self,
        announcement: Announcement,
        judgement: &TemplateJudgement,
        plan: &mut Plan<'_, Cron>,
    ) {
        let status = self.status(announcement, judgement);
        if status == self.job.status {
            return;
        }
        let mut patch =
            json!({"type": null, "active": null, "lastScheduleTime": null, "conditions": null});
        let shown = json!(status);
        for (field, value) in shown.as_object().into_iter().flatten() {
            patch[field] = value.clone();
        }
        let mut timeless = status.clone();
        for condition in &mut timeless.conditions {
            condition.last_transition_time = Time(Timestamp::UNIX_EPOCH);
        }
        let purpose = Purpose::of(json!(timeless).to_string());
        // The patch has the version, or it could undo what another process has written since.
        let version = &self.job.wire.metadata.resource_version;
        let body = json!({"metadata": {"uid": self.job.uid(), "resourceVersion": version}, "status": patch});
        let write = plan.patch(&STATUS, self.name.clone(), &body);
        write.with_purpose(purpose);
        write.assuming_changed::<AdvancedCronJob>(move |job| CronJob {
            status: status.clone(),
            ..job.clone()
        });
    }

    /// The status as it is to be.
    fn status(
        &self,
        announcement: Announcement,
        judgement: &TemplateJudgement,
    ) -> AdvancedCronJobStatus {
        let mut active: Vec<_> = self
            .runs
            .iter()
            .filter(|(_, run)| run.outcome.is_none())
            .collect();
        active.sort_by_key(|(_, run)| (run.time, &run.name));
        let surplus = active.len().saturating_sub(limits::ACTIVE_RUNS);
        let mut active: Vec<_> = active
            .into_iter()
            .skip(surplus)
            .map(|(kind, run)| run.reference(*kind))
            .collect();
        let mut last = self.last;
        match announcement {
            Announcement::Stays => active.extend(self.announced.cloned()),
            Announcement::Ends => {}
            Announcement::Made(kind, time) => {
                last = Some(time);
                let ObjectName { namespace, name } = self.job.run_name(time);
                active.push(RunReference {
                    api_version: kind.api_version().to_owned(),
                    kind: kind.name().to_owned(),
                    namespace,
                    name,
                    uid: None,
                });
            }
        }
        let conditions =
            if self.world.has_conditions && !matches!(judgement, TemplateJudgement::Awaited) {
                vec![self.condition(judgement)]
            } else {
                self.job.status.conditions.clone()
            };
        AdvancedCronJobStatus {
            type_: self.type_(),
            active,
            last_schedule_time: last.map(Time),
            conditions,
        }
    }

    fn type_(&self) -> Option<String> {
        let template = &self.job.wire.spec.template;
        let kinds = [
            (template.job_template.is_some(), "Job"),
            (template.broadcast_job_template.is_some(), "BroadcastJob"),
            (
                template.image_list_pull_job_template.is_some(),
                "ImageListPullJob",
            ),
        ];
        let kind = kinds.into_iter().find(|(is_given, _)| *is_given);
        kind.map(|(_, kind)| kind.to_owned())
    }

    /// Why nothing runs, or no run will be created: the reason and the message of the condition.
    fn problem(&self, judgement: &TemplateJudgement) -> Option<(&'static str, String)> {
        if let TemplateJudgement::Refused(why) = judgement {
            let message = format!("the API server refuses the runs of spec.template: {why}");
            return Some((TEMPLATE_REFUSED, message));
        }
        match (&self.job.schedule, &self.job.template) {
            (Err(error @ ScheduleError::Zone(_)), _) => {
                Some(("UnknownTimeZone", error.to_string()))
            }
            (Err(error), _) => Some(("InvalidSchedule", error.to_string())),
            (_, Err(error)) => Some(("InvalidTemplate", error.to_string())),
            (Ok(_), Ok(CronTemplate { kind, .. })) if !self.is_served() => {
                let kind = kind.name();
                let message = format!(
                    "the cluster has no {kind}s: the administrator has to switch {kind}Gate of leadsman on"
                );
                Some(("NotServed", message))
            }
            (Ok(_), Ok(_)) => {
                let last = self
                    .last
                    .filter(|last| self.now.duration_since(*last) < -AHEAD)?;
                let message = format!(
                    "the latest run is of {last}, and no run begins before that time: the clock of the manager was ahead when it \
                     began, or is behind now"
                );
                Some(("LastScheduleAhead", message))
            }
        }
    }

    /// Why no run is wanted now, likewise.
    fn rest(&self) -> Option<(&'static str, String)> {
        let spec = &self.job.wire.spec;
        if spec.paused {
            Some(("Paused", "spec.paused is true: no run begins".to_owned()))
        } else if spec.starting_deadline_seconds == Some(0) {
            let message = "spec.startingDeadlineSeconds is 0: every run would be too late";
            Some(("NeverInTime", message.to_owned()))
        } else {
            None
        }
    }

    /// The condition `Ready`.
    fn condition(&self, judgement: &TemplateJudgement) -> Condition {
        let problem = self.problem(judgement).or_else(|| self.rest());
        let status = if problem.is_none() { "True" } else { "False" };
        let (reason, message) = problem.unwrap_or_else(|| {
            let message = "runs begin at the times of the schedule";
            ("Scheduled", message.to_owned())
        });
        let before = self.job.status.conditions.first();
        let since = before
            .filter(|before| before.status == status)
            .map(|before| before.last_transition_time.clone());
        Condition {
            type_: "Ready".to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: self.job.wire.metadata.generation,
            last_transition_time: since.unwrap_or_else(|| Time(whole_seconds(self.now))),
        }
    }
}

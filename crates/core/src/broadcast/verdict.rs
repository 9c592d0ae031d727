//! The verdict on a job, and its status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::broadcast_job::{BroadcastJobStatus, JobCondition};
use leadsman_reconcile::{Notice, whole_seconds};

use super::job::{Job, OnFailure};
use super::survey::Survey;

/// The verdict on a job that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobVerdict {
    /// The nodes that lack a pod get one.
    Running,
    /// No pod is created: its spec says so.
    Paused,
    /// No pod is created until a failure is acknowledged.
    PausedByFailure,
    /// Every node has had its pod.
    Complete,
    /// A pod has failed.
    PodFailed,
    /// The job has taken too long.
    DeadlineExceeded,
}

impl JobVerdict {
    /// Decides. Nothing ends while the spec pauses the job, and a job whose pods have all ended is complete, however late that is
    /// seen.
    pub(super) fn of(job: &Job, survey: &Survey<'_>, now: Timestamp) -> Self {
        let spec = &job.spec;
        let is_acknowledged = |hash| job.acknowledged.contains(hash);
        let are_acknowledged = || survey.failed.iter().all(|hash| is_acknowledged(&**hash));
        if spec.is_paused {
            Self::Paused
        } else if spec.on_failure == OnFailure::Fail && !survey.failed.is_empty() {
            Self::PodFailed
        } else if spec.on_failure == OnFailure::Pause && !are_acknowledged() {
            Self::PausedByFailure.unless_late(job, now)
        } else if spec.ends
            && spec.requirements.is_ok()
            && survey.count_unended() == 0
            && survey.count_desired() > 0
        {
            Self::Complete
        } else {
            Self::Running.unless_late(job, now)
        }
    }

    fn unless_late(self, job: &Job, now: Timestamp) -> Self {
        let is_late = job.deadline(now).is_some_and(|deadline| deadline <= now);
        if is_late {
            Self::DeadlineExceeded
        } else {
            self
        }
    }

    fn phase(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused | Self::PausedByFailure => "paused",
            Self::Complete => "completed",
            Self::PodFailed | Self::DeadlineExceeded => "failed",
        }
    }

    /// The condition of its end: the type, and the message. The words are `OpenKruise`'s.
    pub(super) fn end(self, job: &Job, survey: &Survey<'_>) -> Option<(&'static str, String)> {
        match self {
            Self::Running | Self::Paused | Self::PausedByFailure => None,
            Self::Complete => Some(("Complete", format!("Job completed, {}", counts(survey)))),
            Self::PodFailed => {
                let message = "failure policy is FailurePolicyTypeFailFast and failed pod is found";
                Some(("Failed", message.to_owned()))
            }
            Self::DeadlineExceeded => {
                let message = format!("Job {} was active longer than specified deadline", job.name);
                Some(("Failed", message))
            }
        }
    }
}

/// The notice to send once a status is written, if it says something new. The words are `OpenKruise`'s, but for the reason of a
/// failed pod, which was a sentence.
pub(super) fn notice(job: &Job, survey: &Survey<'_>, verdict: JobVerdict) -> Option<Notice> {
    let was_paused = job.status.phase.as_deref() == Some("paused");
    let counted = |message: String| format!("{message}: {}", counts(survey));
    let end = || verdict.end(job, survey).map(|(_, message)| message);
    Some(match verdict {
        JobVerdict::Running if was_paused => {
            job.notice(false, "Continue", "continue to process job".to_owned())
        }
        JobVerdict::PausedByFailure if !was_paused => job.notice(
            true,
            "Paused",
            "job is paused, due to failed pod".to_owned(),
        ),
        JobVerdict::Running | JobVerdict::Paused | JobVerdict::PausedByFailure => return None,
        JobVerdict::Complete => {
            let note = format!("Job {} is completed, {}", job.name, counts(survey));
            job.notice(false, "JobComplete", note)
        }
        JobVerdict::PodFailed => job.notice(true, "PodFailed", counted(end()?)),
        JobVerdict::DeadlineExceeded => job.notice(true, "DeadlineExceeded", counted(end()?)),
    })
}

/// The counts in messages.
fn counts(survey: &Survey<'_>) -> String {
    let (succeeded, failed) = (survey.count_succeeded(), survey.failed.len());
    format!("{succeeded} pods succeeded, {failed} pods failed")
}

/// The status of a job that has not ended before.
pub(super) fn status(
    job: &Job,
    survey: &Survey<'_>,
    verdict: JobVerdict,
    now: Timestamp,
) -> BroadcastJobStatus {
    let time = Time(whole_seconds(now));
    let mut status = BroadcastJobStatus {
        phase: Some(verdict.phase().to_owned()),
        active: number(survey.active.len()),
        succeeded: number(survey.count_succeeded()),
        failed: number(survey.failed.len()),
        desired: number(survey.count_desired()),
        ..job.status.clone()
    };
    status.start_time.get_or_insert_with(|| time.clone());
    if let Some((type_, message)) = verdict.end(job, survey) {
        status.completion_time = Some(time.clone());
        status
            .conditions
            .retain(|condition| condition.type_ != type_);
        status.conditions.push(JobCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            last_probe_time: Some(time.clone()),
            last_transition_time: Some(time),
            reason: Some(type_.to_owned()),
            message: Some(message),
        });
    }
    status
}

/// A count as the API has it.
pub(super) fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

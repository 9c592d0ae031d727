//! The events, with the reasons of `CronJob` where it has them (`pkg/controller/cronjob/cronjob_controllerv2.go`).

use jiff::Timestamp;
use leadsman_reconcile::{Notice, ObjectName, Refusal, Regarding, Stored};

use super::cron_job::{CronJob, Run, RunKind, RunOutcome};
use super::schedule::{MOST_COUNTED, Missed};

const CREATE: &str = "Create";
const DELETE: &str = "Delete";
const SCHEDULE: &str = "Schedule";

impl CronJob {
    fn notice(&self, reason: &'static str, action: &'static str, note: String) -> Notice {
        Notice {
            regarding: Regarding {
                api_version: RunKind::BroadcastJob.api_version(),
                kind: "AdvancedCronJob",
                name: self.name(),
                uid: self.uid().to_owned(),
            },
            is_warning: false,
            reason,
            action,
            note,
        }
    }

    fn warning(&self, reason: &'static str, action: &'static str, note: String) -> Notice {
        let notice = self.notice(reason, action, note);
        Notice {
            is_warning: true,
            ..notice
        }
    }

    /// Nothing runs, for a reason that the condition has too.
    pub(super) fn is_not_scheduled(&self, reason: &'static str, message: String) -> Notice {
        self.warning(reason, SCHEDULE, message)
    }

    pub(super) fn has_missed(&self, missed: Missed, since: Timestamp) -> Notice {
        let count = match missed.count {
            count if count > MOST_COUNTED => format!("more than {MOST_COUNTED}"),
            count => count.to_string(),
        };
        let note = format!(
            "{count} runs were due after {since} and up to {}: only the latest can still begin",
            missed.latest
        );
        self.warning("MissedSchedule", SCHEDULE, note)
    }

    pub(super) fn is_too_late(&self, time: Timestamp) -> Notice {
        let seconds = self.wire.spec.starting_deadline_seconds.unwrap_or_default();
        let note = format!(
            "the run of {time} was missed: startingDeadlineSeconds ({seconds}) have passed since"
        );
        self.warning("MissedSchedule", SCHEDULE, note)
    }

    /// Another time has come before an announced run was made.
    pub(super) fn has_given_up(&self, name: &str) -> Notice {
        let note =
            format!("the run {name} was not made before the next one was due: it is left out");
        self.warning("MissedSchedule", SCHEDULE, note)
    }

    pub(super) fn may_have_run(&self, name: &ObjectName) -> Notice {
        let note = format!(
            "the run {} was about to be made when leadsman lost sight of it. It may have ended and been cleaned up since \
             (ttlSecondsAfterFinished), so it is not made again",
            name.name
        );
        self.warning("MissedSchedule", SCHEDULE, note)
    }

    pub(super) fn has_name_taken(&self, kind: RunKind, name: &ObjectName) -> Notice {
        let note = format!(
            "the {} {} exists and is not controlled by this AdvancedCronJob: the run of its time is left out",
            kind.name(),
            name.name
        );
        self.warning("FailedCreate", CREATE, note)
    }

    pub(super) fn has_long_name(&self, longest: usize) -> Notice {
        let note = format!(
            "the name has more than {longest} characters: the names of the runs have a hash in the place of its end"
        );
        self.warning("LongName", CREATE, note)
    }

    pub(super) fn is_waiting(&self, time: Timestamp, kind: RunKind, other: &Run) -> Notice {
        let (kind, name) = (kind.name(), &other.name.name);
        let note = format!(
            "the run of {time} waits for the {kind} {name} to end: concurrencyPolicy is Forbid"
        );
        self.notice("JobAlreadyActive", SCHEDULE, note)
    }

    pub(super) fn has_created(&self, kind: RunKind, name: &ObjectName) -> Notice {
        let note = format!("created the {} {}", kind.name(), name.name);
        self.notice("SuccessfulCreate", CREATE, note)
    }

    pub(super) fn cannot_create(
        &self,
        kind: RunKind,
        name: &ObjectName,
        refusal: &Refusal,
    ) -> Notice {
        let refusal = refusal.clone().into_reason();
        let note = format!("cannot create the {} {}: {refusal}", kind.name(), name.name);
        self.warning("FailedCreate", CREATE, note)
    }

    pub(super) fn has_deleted(&self, kind: RunKind, name: &ObjectName) -> Notice {
        let note = format!("deleted the {} {}", kind.name(), name.name);
        self.notice("SuccessfulDelete", DELETE, note)
    }

    pub(super) fn has_seen_end(&self, kind: RunKind, run: &Run, outcome: RunOutcome) -> Notice {
        let ended = match outcome {
            RunOutcome::Succeeded => "is complete",
            RunOutcome::Failed => "has failed",
        };
        let note = format!("the {} {} {ended}", kind.name(), run.name.name);
        self.notice("SawCompletedJob", SCHEDULE, note)
    }

    pub(super) fn misses(&self, name: &str) -> Notice {
        let note = format!("the run {name} is gone, and its end was not seen");
        self.notice("MissingJob", SCHEDULE, note)
    }
}

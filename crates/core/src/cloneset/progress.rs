//! How far a roll-out is that has a deadline: the condition `Progressing`. It stops nothing.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::clone_set::{CloneSetCondition, CloneSetStatus};
use leadsman_reconcile::whole_seconds;

use super::set::PodSet;

pub(super) const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "CloneSetAvailable";
const PAUSED: &str = "CloneSetPaused";
const PARTITION_AVAILABLE: &str = "ProgressPartitionAvailable";
pub(super) const EXCEEDED: &str = "ProgressDeadlineExceeded";
const UPDATED: &str = "CloneSetUpdated";

/// The condition of a set with this status, and the time at which its deadline passes. None if the set has no deadline.
pub(super) fn progressing(
    set: &PodSet,
    status: &CloneSetStatus,
    now: Timestamp,
) -> Option<(CloneSetCondition, Option<Timestamp>)> {
    let deadline = set.spec.progress_deadline?;
    let now = whole_seconds(now);
    let before = set
        .status
        .conditions
        .iter()
        .find(|one| one.type_ == PROGRESSING);
    let state = state_of(set, status);
    let was = before.and_then(|one| one.reason.as_deref());
    let is_waiting = matches!(was, Some(UPDATED | EXCEEDED));
    let goes_on = is_waiting && !has_progress(&set.status, status);
    // A roll-out that rests has progressed when it came to its rest, and one that goes on when something was last better.
    let is_kept = state.map_or(goes_on, |state| was == Some(state));
    let last = before
        .and_then(|one| one.last_update_time.as_ref())
        .filter(|_| is_kept)
        .map_or(now, |time| time.0);
    let late = last.checked_add(deadline).unwrap_or(Timestamp::MAX);
    let reason = state.unwrap_or(if late <= now { EXCEEDED } else { UPDATED });
    let value = if reason == EXCEEDED { "False" } else { "True" };
    let since = before
        .filter(|one| one.status == value)
        .and_then(|one| one.last_transition_time.clone());
    let condition = CloneSetCondition {
        type_: PROGRESSING.to_owned(),
        status: value.to_owned(),
        last_update_time: Some(Time(last)),
        last_transition_time: since.or(Some(Time(now))),
        reason: Some(reason.to_owned()),
        message: Some(message(reason, status)),
    };
    Some((condition, (reason == UPDATED).then_some(late)))
}

/// Why a roll-out rests, if it does.
fn state_of(set: &PodSet, status: &CloneSetStatus) -> Option<&'static str> {
    let replicas = i32::try_from(set.spec.replicas).unwrap_or(i32::MAX);
    let is_whole = [
        status.replicas,
        status.updated_replicas,
        status.updated_available_replicas,
    ] == [replicas; 3];
    if is_whole && status.current_revision == status.update_revision {
        Some(AVAILABLE)
    } else if set.spec.is_paused {
        Some(PAUSED)
    } else if !set.spec.partition.is_zero()
        && status.updated_available_replicas >= status.expected_updated_replicas
    {
        Some(PARTITION_AVAILABLE)
    } else {
        None
    }
}

/// Whether something is better than before, or another template is wanted.
fn has_progress(before: &CloneSetStatus, now: &CloneSetStatus) -> bool {
    let counts = |status: &CloneSetStatus| {
        [
            status.updated_replicas,
            status.updated_ready_replicas,
            status.updated_available_replicas,
        ]
    };
    let (old, new) = (counts(before), counts(now));
    before.update_revision != now.update_revision
        || old.iter().zip(&new).any(|(old, new)| old < new)
}

fn message(reason: &str, status: &CloneSetStatus) -> String {
    match reason {
        AVAILABLE => "CloneSet is available".to_owned(),
        PAUSED => "CloneSet is paused".to_owned(),
        PARTITION_AVAILABLE => "CloneSet has been paused due to partition ready".to_owned(),
        EXCEEDED => {
            let revision = status.update_revision.as_deref().unwrap_or_default();
            format!("CloneSet revision {revision} has timed out progressing")
        }
        _ => "CloneSet is progressing".to_owned(),
    }
}

//! The status of a set, and what is wrong with it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::clone_set::{CloneSetCondition, CloneSetStatus};
use leadsman_reconcile::whole_seconds;

use super::history::Revisions;
use super::member::Member;
use super::progress::EXCEEDED;
use super::round::Round;
use super::set::PodSet;

pub(super) const FAILED_SCALE: &str = "FailedScale";
pub(super) const FAILED_UPDATE: &str = "FailedUpdate";
/// The reason of a set that is stopped by its [`Brake`](super::brake::Brake).
pub(super) const TOO_MANY_DELETIONS: &str = "TooManyDeletions";

/// Words for what is said of a set: how far it is, or the reason of a condition that says what is wrong.
pub(super) const REASONS: [&str; 7] = [
    "Complete",
    "UnderWay",
    TOO_MANY_DELETIONS,
    REFUSED,
    NOT_IN_PLACE,
    INVALID,
    EXCEEDED,
];
const REFUSED: &str = "Refused";
const NOT_IN_PLACE: &str = "NotInPlace";
const INVALID: &str = "Invalid";

/// The place in [`REASONS`] of what the status of a set says. None of one that goes.
pub(super) fn reason_of(set: &PodSet) -> Option<usize> {
    let status = &set.status;
    let place = |reason: &str| REASONS.iter().position(|known| *known == reason);
    let mut conditions = status.conditions.iter();
    let wrong = conditions.find_map(|one| place(one.reason.as_deref()?));
    let is_updated =
        !set.is_updated() || status.updated_replicas >= status.expected_updated_replicas;
    let replicas = number(set.spec.replicas);
    let is_complete = status.observed_generation == set.generation
        && is_updated
        && [status.replicas, status.available_replicas] == [replicas; 2];
    let reason = wrong.unwrap_or(usize::from(!is_complete));
    (!set.is_going).then_some(reason)
}

/// A problem with a set: a condition, while it is so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) type_: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Problems with a set: the first one of each type.
#[derive(Debug, Default)]
pub(super) struct Problems(pub(super) Vec<Problem>);

impl Problems {
    pub(super) fn add(&mut self, problem: Problem) {
        if self.0.iter().all(|known| known.type_ != problem.type_) {
            self.0.push(problem);
        }
    }
}

impl Problem {
    pub(super) fn of_objection(message: &str) -> Self {
        Self {
            type_: FAILED_UPDATE,
            reason: INVALID,
            message: format!("{message}: no pod is created, deleted or updated"),
        }
    }

    /// A refusal by the API server, in its own words.
    pub(super) fn refused(type_: &'static str, message: String) -> Self {
        Self {
            type_,
            reason: REFUSED,
            message,
        }
    }

    pub(super) fn of_brake(pods: usize) -> Self {
        Self {
            type_: FAILED_SCALE,
            reason: TOO_MANY_DELETIONS,
            message: format!(
                "{pods} pods are too many, and nobody has changed the set: none of them is deleted. Look at the pods that its \
                 selector matches; an edit of spec.replicas lets them go"
            ),
        }
    }

    pub(super) fn not_in_place(field: &str) -> Self {
        Self {
            type_: FAILED_UPDATE,
            reason: NOT_IN_PLACE,
            message: format!(
                "the type is InPlaceOnly, and {field} cannot be changed in place: the pods stay as they are"
            ),
        }
    }
}

/// The status as it is to be.
pub(super) fn status(
    set: &PodSet,
    revisions: &Revisions<'_>,
    round: &Round<'_>,
    problems: &Problems,
    now: Timestamp,
) -> CloneSetStatus {
    let shown = || round.members.iter().filter(|one| one.is_shown);
    let count =
        |counts: &dyn Fn(&Member<'_>) -> bool| number(shown().filter(|one| counts(one)).count());
    let (replicas, updated) = (number(shown().count()), count(&|one| one.is_new));
    let newest = &*revisions.newest.name;
    let is_whole = replicas == updated && updated == number(set.spec.replicas);
    let current = if is_whole && set.spec.partition.is_zero() {
        newest
    } else {
        revisions.current()
    };
    CloneSetStatus {
        observed_generation: set.generation,
        replicas,
        ready_replicas: count(&|one| one.pod.is_ready()),
        available_replicas: count(&|one| one.is_available),
        updated_replicas: updated,
        updated_ready_replicas: count(&|one| one.is_new && one.pod.is_ready()),
        updated_available_replicas: count(&|one| one.is_new && one.is_available),
        expected_updated_replicas: number(set.spec.replicas - round.targets.partition),
        update_revision: Some(newest.to_owned()),
        current_revision: Some(current.to_owned()),
        collision_count: Some(revisions.newest.collisions),
        label_selector: Some(set.spec.selector_text.clone()),
        conditions: conditions(set, problems, now),
    }
}

/// Whether a status says all that another one does. What an `OpenKruise` has left in it, which gives no reason, goes with the next
/// write: a take-over of many sets writes nothing.
pub(super) fn says(known: &CloneSetStatus, wanted: &CloneSetStatus) -> bool {
    let mut known = known.clone();
    known.conditions.retain(|one| one.reason.is_some());
    known == *wanted
}

/// One condition of each type. It keeps its time as long as its reason stays.
fn conditions(set: &PodSet, problems: &Problems, now: Timestamp) -> Vec<CloneSetCondition> {
    let of = |type_: &'static str| {
        let problem = problems.0.iter().find(|problem| problem.type_ == type_)?;
        let before = set
            .status
            .conditions
            .iter()
            .find(|one| one.type_ == type_)
            .filter(|one| one.reason.as_deref() == Some(problem.reason));
        let since = before.and_then(|one| one.last_transition_time.clone());
        Some(CloneSetCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            last_update_time: None,
            last_transition_time: since.or(Some(Time(whole_seconds(now)))),
            reason: Some(problem.reason.to_owned()),
            message: Some(crate::cluster::truncate(&problem.message, 1024).to_owned()),
        })
    };
    [FAILED_SCALE, FAILED_UPDATE]
        .into_iter()
        .filter_map(of)
        .collect()
}

/// A count as the API has it.
fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

//! Why the pods of a set are as they are, for `kubectl leadsman explain`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leadsman_api::CloneSet;
use leadsman_api::clone_set::CloneSetCondition;
use leadsman_api::slim::Pod;
use leadsman_api::slim::claim::PersistentVolumeClaim;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_reconcile::{ObjectName, Reconciler, Source};
use serde::Serialize;

use super::MOST;
use super::claims::{ClaimNotes, Claims};
use super::feature::World;
use super::history::Revisions;
use super::member::Member;
use super::progress::PROGRESSING;
use super::round::Round;
use super::scene::{Action, Scene};
use super::service::Service;
use super::set::{PodSet, UpdateKind};
use super::state::LifecycleState;
use super::steps::Ways;
use super::writes::CloneSets;

/// A set, and its pods by what they wait for.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CloneSetExplanation {
    /// The set's namespace.
    pub namespace: String,
    /// The set's name.
    pub name: String,
    /// The pods that there are to be, that there are, that are available, and that are of the present template.
    pub counts: [usize; 4],
    /// Problems of the whole set, and whatever keeps it from going on.
    pub set: Vec<String>,
    /// The pods that are not as they are to be, by the reason.
    pub pods: BTreeMap<String, Vec<String>>,
}

/// Explains a set by its pods and revisions, and by its claims if they are known.
pub fn explain_set(
    set: CloneSet,
    (pods, revisions): (Vec<Pod>, Vec<ControllerRevision>),
    claims: Option<Vec<PersistentVolumeClaim>>,
    now: Timestamp,
) -> CloneSetExplanation {
    let name = ObjectName::of(&set.metadata);
    let mut observed = Reconciler::new(CloneSets::default(), || Duration::ZERO);
    observed.observe_object(Arc::new(set), Source::Reply);
    for pod in pods {
        observed.observe_object(Arc::new(pod), Source::Reply);
    }
    for revision in revisions {
        observed.observe_object(Arc::new(revision), Source::Reply);
    }
    let knows_claims = claims.is_some();
    for claim in claims.into_iter().flatten() {
        observed.observe_object(Arc::new(claim), Source::Reply);
    }
    let set = observed
        .world()
        .sets
        .observed(&name)
        .expect("it was just observed");
    explain_in(set, observed.world(), knows_claims, now)
}

fn explain_in(
    set: &PodSet,
    world: &World,
    knows_claims: bool,
    now: Timestamp,
) -> CloneSetExplanation {
    let revisions = Revisions::find(set, &world.revisions);
    let mut notes = ClaimNotes::default();
    let claims = Claims::survey(set, &world.pods, &world.claims, &mut notes);
    let scene = Scene {
        set,
        revisions: &revisions,
        pods: &world.pods,
        claims: &claims,
        refused: &|_, _, _| false,
        now,
    };
    let (round, mut ways) = (Round::survey(scene), Ways::default());
    ways.update(scene, &round.members);
    let round = round.decide(scene, &ways, usize::MAX);
    let mut pods = BTreeMap::<_, Vec<_>>::new();
    for member in &round.members {
        if let Some(reason) = reason_of(set, &round, member) {
            pods.entry(reason)
                .or_default()
                .push(member.pod.name.name.clone());
        }
    }
    let count = |counts: &dyn Fn(&Member<'_>) -> bool| {
        round.members.iter().filter(|one| counts(one)).count()
    };
    CloneSetExplanation {
        namespace: set.name.namespace.clone(),
        name: set.name.name.clone(),
        counts: [
            set.spec.replicas,
            round.members.len(),
            count(&|one| one.is_available),
            count(&|one| one.is_new),
        ],
        set: of_set(set, &revisions, &round, knows_claims),
        pods,
    }
}

fn of_set(
    set: &PodSet,
    revisions: &Revisions<'_>,
    round: &Round<'_>,
    knows_claims: bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(why) = &set.spec.objection {
        lines.push(format!("{why}: nothing is done"));
    }
    let is_good = |one: &CloneSetCondition| one.type_ == PROGRESSING && one.status == "True";
    for condition in set.status.conditions.iter().filter(|one| !is_good(one)) {
        let message = condition.message.as_deref().unwrap_or_default();
        lines.push(format!("{}: {message}", condition.type_));
    }
    let difference = &round.difference;
    if revisions.get(&revisions.newest.name).is_none() {
        lines.push("the present template has no ControllerRevision yet: it comes first".to_owned());
    } else if difference.missing > difference.create {
        let limited = difference.missing - difference.create;
        lines.push(format!(
            "{limited} pods are not created before others are available: spec.scaleStrategy.maxUnavailable"
        ));
    } else if difference.missing > 0 {
        let (missing, waits) = (difference.missing, of_missing(set, round, knows_claims));
        lines.push(format!("{missing} pods are missing: {waits}"));
    }
    lines
}

/// Says what the pods that are missing wait for.
fn of_missing(set: &PodSet, round: &Round<'_>, knows_claims: bool) -> String {
    let whole = match (set.spec.claims.is_empty(), knows_claims) {
        (true, _) => "they are about to be created",
        (false, false) => "they are about to be created, after their claims",
        (false, true) => "",
    };
    if !whole.is_empty() {
        return whole.to_owned();
    }
    let (mut created, mut claimed) = (0, BTreeSet::new());
    for action in &round.actions {
        match action {
            Action::Create(..) => created += 1,
            Action::CreateClaim(pod, _) => {
                claimed.insert(pod);
            }
            _ => {}
        }
    }
    let claimed = claimed.len();
    let others = round
        .difference
        .missing
        .min(MOST)
        .saturating_sub(created + claimed);
    let parts: Vec<_> = [
        (created, "about to be created"),
        (claimed, "created after their claims"),
        (
            others,
            "created once a pod or a claim of their name, which terminates, is gone",
        ),
    ]
    .iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    parts.join(", ")
}

/// Why a pod is not as it is to be.
fn reason_of(set: &PodSet, round: &Round<'_>, member: &Member<'_>) -> Option<String> {
    let pod = member.pod;
    let is_out = pod.service.as_ref().is_some_and(Service::is_closed);
    let out = if is_out { ", and out of service" } else { "" };
    let most = round.targets.unavailable;
    let text = match pod.state() {
        LifecycleState::PreparingDelete if !set.spec.hooks.hold_deletion(pod) => {
            "about to be deleted, and its claims after it".to_owned()
        }
        LifecycleState::PreparingDelete => {
            format!(
                "held before its deletion until no mark of spec.lifecycle.preDelete is left{out}"
            )
        }
        _ if member.is_specified => {
            format!("is to be deleted, as soon as no more than {most} pods are unavailable")
        }
        LifecycleState::PreparingUpdate => {
            format!(
                "held before its update until no mark of spec.lifecycle.inPlaceUpdate is left{out}"
            )
        }
        LifecycleState::Updating => "updated in place: its containers are restarted".to_owned(),
        LifecycleState::Updated => {
            "updated in place, and held until it has all marks of spec.lifecycle.inPlaceUpdate"
                .to_owned()
        }
        _ if !member.is_new && set.spec.is_paused => "not updated: the set is paused".to_owned(),
        _ if !member.is_new && set.spec.kind == UpdateKind::OnDelete => {
            "not updated: the type is OnDelete, and it has the present template once it was deleted"
                .to_owned()
        }
        _ if !member.is_new && round.chosen.contains(&pod.name) => {
            if member.is_on_way() {
                "out of service, and about to be updated".to_owned()
            } else {
                let unavailable = round.members.iter().filter(|one| !one.is_available);
                let count = unavailable.count();
                format!("waits for its turn: {most} pods may be unavailable, {count} are")
            }
        }
        _ if !member.is_new => match &round.not_in_place {
            Some(field) => format!(
                "not updated: the type is InPlaceOnly, and {field} cannot be changed in place"
            ),
            None => "not updated: spec.updateStrategy.partition keeps it".to_owned(),
        },
        LifecycleState::PreparingNormal => {
            "not available before it has all marks of spec.lifecycle.preNormal".to_owned()
        }
        _ if !pod.is_ready() => "not ready".to_owned(),
        _ if !member.is_available => "ready, but not for spec.minReadySeconds yet".to_owned(),
        _ => return None,
    };
    Some(text)
}

//! The writes of what is wanted of pods and claims.

use std::sync::Arc;
use std::time::Duration;

use leadsman_api::slim::Pod;
use leadsman_api::slim::claim::PersistentVolumeClaim;
use leadsman_reconcile::{Assumption, Fate, ObjectName, Plan, Purpose, Write, WriteKind};

use super::MOST;
use super::brake::Memory;
use super::child::{new_pod, owner};
use super::claim::{ClaimTemplate, SetClaim};
use super::claims::templates_of;
use super::history::Revisions;
use super::pod::{ClonePod, PodChange, REVISION_LABEL};
use super::round::Round;
use super::scene::{Action, Refusals};
use super::set::PodSet;
use super::status::{FAILED_SCALE, FAILED_UPDATE, Problem, Problems};
use super::template::RevisionData;
use super::writes::{
    CREATE_CLAIM, CREATE_POD, CloneSets, DELETE_CLAIM, DELETE_POD, MARK_POD, UPDATE_POD,
};

/// How long a refused creation rests: what lets it through, a quota that is raised, shows in no watch.
pub(super) const RETRY: Duration = Duration::from_mins(1);

pub(super) fn plan_actions(
    set: &PodSet,
    (revisions, refusals): (&Revisions<'_>, &Refusals<'_>),
    round: &Round<'_>,
    memory: &mut Memory,
    plan: &mut Plan<'_, CloneSets>,
    problems: &mut Problems,
) {
    let now = plan.now().monotonic;
    let coming = round
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::CreateClaim(pod, _) | Action::Create(pod, _) => Some(pod),
            _ => None,
        })
        .filter(|_| !set.spec.claims.is_empty());
    if memory.claims(set).begin(coming) {
        // No pod comes for them, and what becomes of them is decided by whether claims are reused.
        plan.wake_at(now);
    }
    let mut room = MOST;
    for action in &round.actions {
        let (kind, what, name) = match action {
            Action::CreateClaim(pod, claim) => (&CREATE_CLAIM, "claim", claim.claim_name(pod)),
            Action::DeleteClaim(claim) => (&DELETE_CLAIM, "claim", claim.name.clone()),
            Action::Create(name, _) => (&CREATE_POD, "pod", name.clone()),
            Action::Delete(pod) => (&DELETE_POD, "pod", pod.name.clone()),
            Action::Mark(pod, _) => (&MARK_POD, "pod", pod.name.clone()),
            Action::Update(pod, _) => (&UPDATE_POD, "pod", pod.name.clone()),
        };
        let type_ = match action {
            Action::Mark(..) | Action::Update(..) => FAILED_UPDATE,
            _ => FAILED_SCALE,
        };
        if refusals.contains(&(kind.label, &name))
            && let Some(Fate::Refused(refusal)) = plan.fate(kind, &name)
        {
            // A write that rests takes nobody's place.
            let message = refusal.clone().into_reason();
            problems.add(Problem::refused(
                type_,
                format!("{what} {}: {message}", name.name),
            ));
        } else if room == 0 {
            continue;
        } else {
            room -= 1;
        }
        if let Action::Delete(pod) | Action::Mark(pod, _) = action
            && round.too_many.contains(&pod.name)
        {
            memory.of(set, round, now).count(&pod.observed.uid, now);
        }
        match action {
            Action::CreateClaim(pod, template) => {
                create_claim(set, (pod, template), plan);
            }
            Action::DeleteClaim(claim) => {
                plan.delete::<PersistentVolumeClaim>(&DELETE_CLAIM, name, &claim.uid);
            }
            Action::Create(name, hash) => create_pod(set, revisions, (name, hash), plan),
            Action::Delete(pod) => {
                let note = format!("succeed to delete pod {}", pod.name.name);
                plan.delete::<Pod>(&DELETE_POD, pod.name.clone(), &pod.observed.uid)
                    .tell_when_done(set.notice(false, "SuccessfulDelete", "Delete", note));
            }
            Action::Mark(pod, change) => {
                change_pod(&MARK_POD, pod, change, plan);
            }
            Action::Update(pod, change) => {
                let write = change_pod(&UPDATE_POD, pod, change, plan);
                if change.labels.iter().any(|(key, _)| key == REVISION_LABEL) {
                    let (pod, revision) = (&pod.name.name, &revisions.newest.name);
                    let note =
                        format!("successfully update pod {pod} in-place(revision {revision})");
                    let reason = "SuccessfulUpdatePodInPlace";
                    write.tell_when_done(set.notice(false, reason, "Update", note));
                }
            }
        }
    }
}

fn change_pod<'p>(
    kind: &'static WriteKind,
    pod: &ClonePod,
    change: &PodChange,
    plan: &'p mut Plan<'_, CloneSets>,
) -> &'p mut Write<CloneSets> {
    let assumed = change.clone();
    plan.patch(kind, pod.name.clone(), &change.patch(&pod.observed.uid))
        .with_purpose(Purpose::of(change.purpose()))
        .assuming_changed::<Pod>(move |pod| assumed.apply(pod))
}

fn create_pod(
    set: &PodSet,
    revisions: &Revisions<'_>,
    (name, hash): (&ObjectName, &str),
    plan: &mut Plan<'_, CloneSets>,
) {
    let Some(revision) = revisions.of_hash(hash) else {
        return;
    };
    let minute = minute_of_retry(&CREATE_POD, name, plan);
    let revision_name = leadsman_reconcile::Stored::name(revision).name;
    let purpose = Purpose::of((set.generation, &revision_name, minute));
    let claims: Vec<_> = templates_of(set, revision, &revisions.newest.name)
        .into_iter()
        .cloned()
        .collect();
    let parts: (
        PodSet,
        ObjectName,
        String,
        (RevisionData, Vec<ClaimTemplate>),
    ) = (
        set.clone(),
        name.clone(),
        revision_name,
        (revision.data.clone(), claims),
    );
    let at = leadsman_reconcile::whole_seconds(plan.now().wall);
    let build = Arc::new(move || {
        let (data, claims) = &parts.3;
        new_pod(&parts.0, (&parts.1, &parts.2), (data, claims), at)
    });
    let (assumed, uid) = (build.clone(), set.uid.clone());
    let refused = set.notice(true, "FailedCreate", "Create", String::new());
    let pod = name.name.clone();
    let note = format!("succeed to create pod {pod}");
    plan.create(&CREATE_POD, name.clone(), purpose, move || (*build)())
        .assuming::<Pod>(move || {
            Assumption::Created(Arc::new(ClonePod::created(&uid, &(*assumed)())))
        })
        .tell_when_done(set.notice(false, "SuccessfulCreate", "Create", note))
        .tell_when_refused(move |refusal| leadsman_reconcile::Notice {
            note: format!("pod {pod}: {}", refusal.clone().into_reason()),
            ..refused.clone()
        });
}

/// Creates a claim of a pod that comes. The pod is created once the claim has been seen.
fn create_claim(
    set: &PodSet,
    (pod, template): (&ObjectName, &ClaimTemplate),
    plan: &mut Plan<'_, CloneSets>,
) {
    let name = template.claim_name(pod);
    let minute = minute_of_retry(&CREATE_CLAIM, &name, plan);
    let (owner, template, pod) = (owner(set), template.clone(), pod.clone());
    let build = Arc::new(move || template.new_claim(&pod, &owner));
    let (assumed, purpose) = (build.clone(), Purpose::of((build().to_string(), minute)));
    plan.create(&CREATE_CLAIM, name, purpose, move || (*build)())
        .assuming::<PersistentVolumeClaim>(move || {
            Assumption::Created(Arc::new(SetClaim::created(&(*assumed)())))
        });
}

/// The minute of a creation, in each of which a refused one is tried once.
fn minute_of_retry(kind: &WriteKind, name: &ObjectName, plan: &mut Plan<'_, CloneSets>) -> u64 {
    let minute = plan.now().monotonic.as_secs() / RETRY.as_secs();
    if matches!(plan.fate(kind, name), Some(Fate::Refused(_))) {
        plan.wake_at(Duration::from_secs((minute + 1) * RETRY.as_secs()));
    }
    minute
}

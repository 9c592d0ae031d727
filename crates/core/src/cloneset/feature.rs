//! The sets as a feature of the kernel: what a change affects, and what is wanted for a set.

use std::sync::Arc;
use std::time::Duration;

use leadsman_api::CloneSet;
use leadsman_api::clone_set::CloneSetStatus;
use leadsman_api::slim::Pod;
use leadsman_api::slim::claim::PersistentVolumeClaim;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_reconcile::{
    Change, Class, Fate, Feature, Key, ObjectName, Plan, Purpose, ReasonGauge, Store, Watch,
    WriteKind,
};
use serde_json::json;

use super::actions::{RETRY, plan_actions};
use super::brake::Memory;
use super::claim::SetClaim;
use super::claims::Claims;
use super::history::{CloneSetRevision, Revisions};
use super::pod::{ClonePod, PodChange};
use super::progress::progressing;
use super::round::Round;
use super::scene::{Refusals, Scene};
use super::set::PodSet;
use super::status::{FAILED_UPDATE, Problem, Problems, REASONS, reason_of, says, status};
use super::writes::{
    CREATE_CLAIM, CREATE_POD, CREATE_REVISION, CloneSets, DELETE_CLAIM, DELETE_POD,
    DELETE_REVISION, MARK_POD, PATCH_REVISION, STATUS, TELL, UPDATE_POD,
};

/// Revisions that a run deletes, at most.
const REVISIONS: usize = 2;

/// The cluster as the feature knows it.
#[derive(Default)]
pub struct World {
    /// The sets.
    pub sets: Store<PodSet>,
    /// The pods.
    pub pods: Store<ClonePod>,
    /// The revisions.
    pub revisions: Store<CloneSetRevision>,
    /// The claims.
    pub claims: Store<SetClaim>,
    /// How many sets have each of the reasons of [`REASONS`].
    reasons: [usize; REASONS.len()],
}

/// A set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CloneSetKey(pub ObjectName);

impl Key for CloneSetKey {
    fn namespace(&self) -> &str {
        &self.0.namespace
    }
}

impl Feature for CloneSets {
    const NAME: &'static str = "cloneset";
    const EVENTS_FROM: &'static str = "cloneset-controller";
    const WRITES: &'static [WriteKind] = &[
        CREATE_POD,
        DELETE_POD,
        UPDATE_POD,
        MARK_POD,
        STATUS,
        CREATE_REVISION,
        PATCH_REVISION,
        DELETE_REVISION,
        TELL,
        CREATE_CLAIM,
        DELETE_CLAIM,
    ];
    const CLASSES: &'static [Class] = &[
        Class::new("cloneset_pods"),
        Class::new("cloneset_status").spacing(Duration::from_secs(2)),
        Class::new("cloneset_revisions"),
        Class::new("cloneset_events"),
        Class::new("cloneset_claims"),
    ];

    const GAUGE: Option<ReasonGauge> = Some(ReasonGauge {
        name: "clonesets",
        help: "CloneSets by the reason of a condition that says what is wrong; UnderWay if nothing is and pods are missing, not \
               ready or to be updated, else Complete",
        reasons: &REASONS,
    });

    type Key = CloneSetKey;
    type World = World;
    type Memory = Memory;

    fn count_reasons(world: &World) -> &[usize] {
        &world.reasons
    }

    fn keys(&self, world: &World) -> Vec<CloneSetKey> {
        let sets = world.sets.iter();
        sets.map(|(name, _)| CloneSetKey((**name).clone()))
            .collect()
    }

    fn reconcile(
        &self,
        CloneSetKey(name): &CloneSetKey,
        world: &World,
        memory: &mut Memory,
        plan: &mut Plan<'_, Self>,
    ) {
        match world.sets.observed(name).filter(|set| !set.is_going) {
            // The set is gone: Kubernetes collects its pods and revisions as garbage.
            None => {
                memory.forget(name);
            }
            Some(set) => carry_on(set, world, memory, plan),
        }
    }
}

fn carry_on(set: &PodSet, world: &World, memory: &mut Memory, plan: &mut Plan<'_, CloneSets>) {
    let now = plan.now();
    let revisions = Revisions::find(set, &world.revisions);
    let is_recorded = revisions.get(&revisions.newest.name).is_some();
    let claims = Claims::survey(set, &world.pods, &world.claims, memory.claims(set));
    let acts = set.spec.objection.is_none() && is_recorded;
    let refusals = find_refusals(plan, &set.name.namespace);
    let round = {
        let refused = |kind: &WriteKind, name: &ObjectName, change: Option<&PodChange>| {
            let is_same = |change: &PodChange| {
                let rest = plan.fate_of(kind, name, Purpose::of(change.purpose()));
                rest.is_some_and(|rest| matches!(rest.fate, Fate::Refused(_)))
            };
            refusals.contains(&(kind.label, name)) && change.is_none_or(is_same)
        };
        let scene = Scene {
            set,
            revisions: &revisions,
            pods: &world.pods,
            claims: &claims,
            refused: &refused,
            now: now.wall,
        };
        let round = Round::survey(scene);
        if acts {
            let allowance = memory.of(set, &round, now.monotonic).allowance(&round);
            let ways = memory.ways(set);
            ways.update(scene, &round.members);
            round.decide(scene, ways, allowance)
        } else {
            round
        }
    };
    let mut problems = Problems::default();
    if let Some(objection) = &set.spec.objection {
        problems.add(Problem::of_objection(objection));
    } else if !is_recorded {
        create_revision(set, &revisions, plan, &mut problems);
    } else {
        if round.braked > 0 {
            problems.add(Problem::of_brake(round.braked));
        }
        if let Some(field) = &round.not_in_place {
            problems.add(Problem::not_in_place(field));
        }
        let known = (&revisions, &refusals);
        plan_actions(set, known, &round, memory, plan, &mut problems);
        for pod in &round.resting {
            if let Some(Fate::Refused(refusal)) = plan.fate(&UPDATE_POD, &pod.name) {
                let reason = refusal.clone().into_reason();
                let message = format!("pod {}: {reason}", pod.name.name);
                problems.add(Problem::refused(FAILED_UPDATE, message));
            }
        }
        if !round.resting.is_empty() {
            plan.wake_at(now.monotonic.saturating_add(RETRY));
        }
        keep_revisions(set, &revisions, &round, plan);
    }
    if let Some(at) = round.wake {
        plan.wake_at_time(at);
    }
    let mut status = status(set, &revisions, &round, &problems, now.wall);
    if let Some((condition, late)) = progressing(set, &status, now.wall) {
        status.conditions.push(condition);
        if let Some(late) = late {
            plan.wake_at_time(late);
        }
    }
    for problem in &problems.0 {
        let note = problem.message.clone();
        plan.tell(set.notice(true, problem.type_, "Reconcile", note));
    }
    plan_status(set, &status, plan);
}

/// Finds what was refused of what a set writes.
fn find_refusals<'a>(plan: &Plan<'a, CloneSets>, namespace: &str) -> Refusals<'a> {
    let kinds = [
        CREATE_POD,
        DELETE_POD,
        UPDATE_POD,
        MARK_POD,
        CREATE_CLAIM,
        DELETE_CLAIM,
    ];
    let refused = kinds.into_iter().flat_map(|kind| {
        let names = plan.refused_in(&kind, namespace);
        names.map(move |name| (kind.label, name))
    });
    refused.collect()
}

/// Wants another status, in which the times of conditions do not count.
fn plan_status(set: &PodSet, status: &CloneSetStatus, plan: &mut Plan<'_, CloneSets>) {
    if says(&set.status, status) {
        return;
    }
    let mut body = json!({
        "metadata": {"uid": set.uid, "resourceVersion": set.version_text()},
        "status": status,
    });
    // A field that is left out stays in a merge patch.
    for field in [
        "updatedAvailableReplicas",
        "expectedUpdatedReplicas",
        "conditions",
    ] {
        if body["status"].get(field).is_none() {
            body["status"][field] = serde_json::Value::Null;
        }
    }
    let mut timeless = status.clone();
    for condition in &mut timeless.conditions {
        condition.last_transition_time = None;
        condition.last_update_time = None;
    }
    let purpose = Purpose::of(serde_json::to_string(&timeless).unwrap_or_default());
    plan.patch(&STATUS, set.name.clone(), &body)
        .with_purpose(purpose);
}

/// Records the present template. No pod is made of it before: whoever leads next has to find it.
fn create_revision(
    set: &PodSet,
    revisions: &Revisions<'_>,
    plan: &mut Plan<'_, CloneSets>,
    problems: &mut Problems,
) {
    let name = set.name.beside(&*revisions.newest.name);
    if let Some(Fate::Refused(refusal)) = plan.fate(&CREATE_REVISION, &name) {
        let message = refusal.clone().into_reason();
        problems.add(Problem::refused(FAILED_UPDATE, message));
    }
    if let Some(object) = revisions.new_object() {
        let purpose = Purpose::of(object.to_string());
        plan.create(&CREATE_REVISION, name, purpose, move || object.clone());
    }
}

fn keep_revisions(
    set: &PodSet,
    revisions: &Revisions<'_>,
    round: &Round<'_>,
    plan: &mut Plan<'_, CloneSets>,
) {
    if let Some((revision, patch)) = revisions.patch() {
        let name = set.name.beside(&*revisions.newest.name);
        debug_assert_eq!(patch["metadata"]["uid"], *revision.uid);
        plan.patch(&PATCH_REVISION, name, &patch);
    }
    let hashes = round.members.iter().map(|one| one.pod.revision_hash());
    let surplus = revisions.surplus(&hashes.collect());
    for revision in surplus.into_iter().take(REVISIONS) {
        let name = leadsman_reconcile::Stored::name(revision);
        plan.delete::<ControllerRevision>(&DELETE_REVISION, name, &revision.uid);
    }
}

impl Watch<CloneSet> for CloneSets {
    type Stored = PodSet;

    fn store(world: &mut World) -> &mut Store<PodSet> {
        &mut world.sets
    }

    fn read(&self, set: &Arc<CloneSet>) -> Arc<PodSet> {
        Arc::new(PodSet::read(set))
    }

    fn find_affected(
        &self,
        change: &Change<PodSet>,
        _: &World,
        affected: &mut dyn FnMut(CloneSetKey),
    ) {
        affected(CloneSetKey((*change.name).clone()));
    }

    fn note_change(&self, change: &Change<PodSet>, world: &mut World) {
        let reason = |set: &Option<Arc<PodSet>>| set.as_ref().and_then(|set| reason_of(set));
        if let Some(before) = reason(&change.before) {
            let count = &mut world.reasons[before];
            *count = count.saturating_sub(1);
        }
        if let Some(now) = reason(&change.now) {
            world.reasons[now] += 1;
        }
    }
}

impl Watch<Pod> for CloneSets {
    type Stored = ClonePod;

    fn store(world: &mut World) -> &mut Store<ClonePod> {
        &mut world.pods
    }

    fn read(&self, pod: &Arc<Pod>) -> Arc<ClonePod> {
        Arc::new(ClonePod::read(pod, &mut self.interners.borrow_mut()))
    }

    fn find_affected(
        &self,
        change: &Change<ClonePod>,
        world: &World,
        affected: &mut dyn FnMut(CloneSetKey),
    ) {
        set_named_in(&change.name, world)
            .into_iter()
            .for_each(affected);
    }
}

/// The set whose pod or revision it is, or whose are named so: a name that becomes free may be one that it waits for. Most pods
/// of a cluster are of no set.
fn set_named_in(child: &ObjectName, world: &World) -> Option<CloneSetKey> {
    let (set, _) = child.name.rsplit_once('-')?;
    let name = child.beside(set);
    let is_known = world.sets.observed(&name).is_some();
    is_known.then_some(CloneSetKey(name))
}

impl Watch<ControllerRevision> for CloneSets {
    type Stored = CloneSetRevision;

    fn store(world: &mut World) -> &mut Store<CloneSetRevision> {
        &mut world.revisions
    }

    fn read(&self, revision: &Arc<ControllerRevision>) -> Arc<CloneSetRevision> {
        Arc::new(CloneSetRevision::read(revision))
    }

    fn find_affected(
        &self,
        change: &Change<CloneSetRevision>,
        world: &World,
        affected: &mut dyn FnMut(CloneSetKey),
    ) {
        set_named_in(&change.name, world)
            .into_iter()
            .for_each(affected);
    }
}

impl Watch<PersistentVolumeClaim> for CloneSets {
    type Stored = SetClaim;

    fn store(world: &mut World) -> &mut Store<SetClaim> {
        &mut world.claims
    }

    fn read(&self, claim: &Arc<PersistentVolumeClaim>) -> Arc<SetClaim> {
        Arc::new(SetClaim::read(claim))
    }

    fn find_affected(
        &self,
        change: &Change<SetClaim>,
        _: &World,
        affected: &mut dyn FnMut(CloneSetKey),
    ) {
        let states = change.before.iter().chain(&change.now);
        states
            .filter_map(|claim| claim.set())
            .for_each(|set| affected(CloneSetKey(set)));
    }
}

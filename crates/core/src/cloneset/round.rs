//! The round of a set: what is wanted of each of its pods.
//!
//! What is wanted follows from the pods as events show them, so that a write whose fate is unknown is wanted until it is seen to
//! be done. What is counted are the pods as they are once that is done.

use std::collections::{BTreeSet, HashSet};

use jiff::Timestamp;
use leadsman_reconcile::ObjectName;

use super::MOST;
use super::claim::ClaimTemplate;
use super::claims::{NextStep, templates_of};
use super::in_place::{InPlaceProgress, progress};
use super::member::Member;
use super::order::{sort_for_deletion, sort_for_update};
use super::pod::{ClonePod, PodChange, REPLACED_FOR, WAS_NORMAL, hash_in, is_active};
use super::scale::{Difference, PodCounts, Targets};
use super::scene::{Action, Scene};
use super::state::LifecycleState;
use super::steps::{Steps, Ways, remove};
use super::writes::{DELETE_POD, MARK_POD, UPDATE_POD};
use crate::workload::amount::Amount;
use crate::workload::pod::PodPhase;

/// Pods that have ended and stay for whoever asks why, of each set.
const ENDED: usize = 10;

/// All that is wanted of the pods of a set.
#[derive(Debug, Default)]
pub(super) struct Round<'a> {
    pub(super) members: Vec<Member<'a>>,
    /// Pods whose deletion was asked for.
    leaving: Vec<&'a ClonePod>,
    ended: Vec<&'a ClonePod>,
    /// Pods that are not there, and may be created by a request whose answer was lost. Another pod of the name keeps such a one out,
    /// of whichever revision.
    vacant: Vec<&'a ClonePod>,
    pub(super) targets: Targets,
    pub(super) difference: Difference,
    pub(super) actions: Vec<Action<'a>>,
    /// Pods that stay in service as they are, since the API server has refused their update.
    pub(super) resting: Vec<&'a ClonePod>,
    /// Pods whose turn it is to be updated, or comes.
    pub(super) chosen: HashSet<&'a ObjectName>,
    /// The field that keeps pods from being updated in place.
    pub(super) not_in_place: Option<String>,
    /// How many pods are too many and are not deleted, since nobody has asked for it.
    pub(super) braked: usize,
    /// The pods that go because there are too many.
    pub(super) too_many: BTreeSet<&'a ObjectName>,
    /// Time at which it looks otherwise without an event.
    pub(super) wake: Option<Timestamp>,
}

impl<'a> Round<'a> {
    /// Counts the pods of a set.
    pub(super) fn survey(scene: Scene<'a, '_>) -> Self {
        let Scene { set, pods, now, .. } = scene;
        let namespace = &set.name.namespace;
        let mut round = Self {
            targets: set.targets(),
            ..Self::default()
        };
        for (pod, assumed) in pods.find_with_assumed_in(namespace, &set.uid) {
            let label = |key: &str| pod.observed.label(key);
            if pod.observed.phase == PodPhase::Ended && !pod.observed.is_terminating {
                round.ended.push(pod);
            } else if is_active(pod) {
                match assumed {
                    None => round.leaving.push(pod),
                    Some(assumed) if set.spec.selector.matches(label) => {
                        round.add(scene, pod, assumed, true);
                    }
                    Some(_) => {
                        let mut change = PodChange::new(now);
                        change.released_by = Some(set.uid.clone());
                        round.actions.push(Action::Update(pod, change));
                    }
                }
            }
        }
        let is_ours = |pod: &ClonePod| pod.owner.as_deref() == Some(&*set.uid) && is_active(pod);
        for coming in pods.find_coming_in(namespace, &set.uid) {
            match pods.observed(&coming.name) {
                // A pod that is there has this place already.
                Some(known) if is_ours(known) => {}
                // The next one is of the template that is wanted by then.
                None if !pods.is_under_way(&coming.name) => round.vacant.push(coming),
                // Another one may come by this creation in the place of one that has ended.
                _ => round.add(scene, coming, coming, false),
            }
        }
        let [old, new] = round.counts();
        round.targets.leaving = round.leaving.len() + round.vacant.len() + round.actions.len();
        round.difference = Difference::of(old, new, &round.targets);
        round
    }

    fn add(&mut self, scene: Scene<'a, '_>, pod: &'a ClonePod, assumed: &'a ClonePod, shown: bool) {
        let Scene {
            set,
            revisions,
            now,
            ..
        } = scene;
        let min_ready = set.spec.min_ready;
        let newest = &*revisions.newest.name;
        let is_new = assumed.revision_hash() == hash_in(newest);
        let is_replaced = !is_new && assumed.observed.annotation(REPLACED_FOR) == newest;
        let available_at = pod.available_at(min_ready);
        self.wake_at(available_at.filter(|at| *at > now));
        let is_available = available_at.is_some_and(|at| at <= now);
        self.members.push(Member {
            pod,
            is_shown: shown,
            is_new,
            is_available: is_available
                && (std::ptr::eq(pod, assumed) || assumed.is_available(min_ready, now)),
            is_held: assumed.state() == LifecycleState::PreparingDelete,
            is_specified: set.specifies(pod) || is_replaced,
        });
    }

    fn wake_at(&mut self, at: Option<Timestamp>) {
        self.wake = self.wake.into_iter().chain(at).min();
    }

    /// The counts of the pods that are not of the present template, and of those that are.
    pub(super) fn counts(&self) -> [PodCounts; 2] {
        let mut counts = [PodCounts::default(); 2];
        for member in &self.members {
            let count = &mut counts[usize::from(member.is_new)];
            if member.is_held {
                count.held += 1;
                continue;
            }
            count.active += 1;
            if member.is_specified {
                count.specified += 1;
                count.specified_unavailable += usize::from(!member.is_available);
            } else if !member.is_available {
                count.unavailable += 1;
            }
        }
        counts
    }

    /// Works out what is wanted. So many pods may be deleted that are too many.
    pub(super) fn decide(mut self, scene: Scene<'a, '_>, ways: &Ways, allowance: usize) -> Self {
        for pod in &self.leaving {
            self.actions.push(Action::Delete(pod));
        }
        self.ended.sort_by_key(|pod| pod.observed.created);
        let ended = self
            .ended
            .iter()
            .take(self.ended.len().saturating_sub(ENDED));
        self.actions.extend(ended.map(|pod| Action::Delete(pod)));
        let mut actions = Vec::new();
        let restored = self.restore(scene, &mut actions);
        self.create(scene, restored, &mut actions);
        let over = scene.claims.over.iter();
        actions.extend(over.map(|claim| Action::DeleteClaim(claim)));
        let deleted = self.delete(scene, allowance, &mut actions);
        let (mut updates, mut staying) = (Vec::new(), BTreeSet::new());
        if scene.set.is_updated() {
            staying = self.update(scene, ways, &mut updates);
        }
        // Pods that are on their way wait where they are while others are deleted.
        if !deleted {
            actions.append(&mut updates);
        }
        self.actions.extend(actions);
        let marks = self.mark(scene, &staying);
        // Actions that bring pods into service come before those that take others out of it.
        self.actions.splice(0..0, marks);
        self
    }

    /// Takes back pods that are held and need not go. Returns how many.
    fn restore(&self, scene: Scene<'a, '_>, actions: &mut Vec<Action<'a>>) -> usize {
        let going = self
            .members
            .iter()
            .filter(|one| one.is_specified || one.is_held)
            .count();
        let missing = (self.targets.replicas + going).saturating_sub(self.members.len());
        let held = self.members.iter().filter(|one| one.is_held);
        let mut restorable: Vec<_> = held
            .filter(|one| !one.is_specified && one.is_shown)
            .collect();
        sort_for_deletion(&mut restorable, &self.members);
        let restored = restorable.len().min(missing);
        let asked = self
            .members
            .iter()
            .filter(|one| !one.is_held && one.pod.state() == LifecycleState::PreparingDelete);
        for member in restorable.into_iter().rev().take(missing).chain(asked) {
            let hooks = &scene.set.spec.hooks;
            let mut change = hooks.bring(member.pod, hooks.restored(member.pod), scene.now);
            for key in [WAS_NORMAL, REPLACED_FOR] {
                change.annotations.push((key.to_owned(), None));
            }
            actions.push(Action::Mark(member.pod, change));
        }
        restored
    }

    /// Creates the pods that are missing.
    fn create(&self, scene: Scene<'a, '_>, restored: usize, actions: &mut Vec<Action<'a>>) {
        let Scene {
            set,
            revisions,
            pods,
            refused,
            ..
        } = scene;
        // Pods whose answers were lost have their place already. If there are too many now, none is asked for again: which of them
        // are there is not known, and the watch shows those that are. Nor is one that would be deleted at once.
        let (current, newest) = (
            hash_in(revisions.current()),
            hash_in(&revisions.newest.name),
        );
        let mut old = self.difference.create_old;
        let vacant = self.vacant.iter().filter(|pod| !set.specifies(pod));
        for pod in vacant.filter(|_| self.difference.beyond == 0) {
            let hash = if old > 0 { current } else { newest };
            old = old.saturating_sub(1);
            create_pod(scene, (&pod.name, hash), actions);
        }
        let stand_ins = if self.targets.excludes_held {
            restored
        } else {
            0
        };
        let unknown = super::names::count_undecodable(set, pods);
        let lacking = self.difference.create.saturating_sub(stand_ins + unknown);
        // Further ones follow: any number may be asked for.
        let missing = lacking.min(MOST);
        if missing == 0 {
            return;
        }
        // Names fit pods of either revision.
        let mut templates = claim_templates(scene, newest);
        for template in claim_templates(scene, current) {
            if templates.iter().all(|known| known.name != template.name) {
                templates.push(template);
            }
        }
        // Claims without a pod come first, and a pod that terminates leaves its own to the next one.
        let unused = scene.claims.unused(&templates).count().min(missing);
        let awaited = scene.claims.count_awaited(set, &templates);
        let missing = unused + (missing - unused).saturating_sub(awaited);
        let names = super::names::free_names(set, pods, (scene.claims, &templates));
        let (mut fresh, mut resting, mut kept) = (Vec::new(), Vec::new(), 0);
        for name in names {
            if fresh.len() + kept == missing || resting.len() == super::names::REFUSED {
                break;
            }
            let is_refused = refused(&super::writes::CREATE_POD, &name, None);
            // One that has claims keeps its place: each further name would get claims of its own.
            kept += usize::from(is_refused && scene.claims.has(&name));
            let list = if is_refused { &mut resting } else { &mut fresh };
            list.push(name);
        }
        let of_current = (0..old).map(|_| current);
        let hashes = of_current.chain(std::iter::repeat(newest));
        let names = fresh.into_iter().chain(resting).take(missing);
        for (name, hash) in names.zip(hashes) {
            create_pod(scene, (&name, hash), actions);
        }
    }

    /// Deletes pods that are named or too many. Returns whether any is.
    fn delete(
        &mut self,
        scene: Scene<'a, '_>,
        allowance: usize,
        actions: &mut Vec<Action<'a>>,
    ) -> bool {
        let set = scene.set;
        let is_refused = |member: &&Member<'_>| scene.refuses(member.pod, &[DELETE_POD, MARK_POD]);
        let mut available = self.difference.delete_available;
        let shown = || self.members.iter().filter(|one| one.is_shown);
        let mut gone: Vec<&Member<'_>> = Vec::new();
        let mut take = |member: &Member<'_>| {
            let is_free = !member.is_available || available > 0;
            available -= usize::from(is_free && member.is_available);
            is_free
        };
        let mut named: Vec<_> = shown()
            .filter(|one| one.is_specified && !one.is_held)
            .collect();
        sort_for_deletion(&mut named, &self.members);
        // The first may be unavailable for all: one that is refused keeps no other from going.
        named.sort_by_cached_key(is_refused);
        gone.extend(named.into_iter().filter(|member| take(member)));
        // Creations whose answer was lost are given up first.
        let asked = self.members.len() - shown().count();
        let given_up = asked.min(self.difference.beyond);
        let surplus = self.difference.delete.saturating_sub(given_up);
        let mut others: Vec<_> = shown()
            .filter(|one| !one.is_specified && !one.is_held)
            .collect();
        if surplus > 0 {
            sort_for_deletion(&mut others, &self.members);
            others.sort_by_cached_key(is_refused);
            // A share of old pods is met as pods come and go: never is one that serves deleted before one that does not. But what
            // was created beyond the replicas is to stay, or it would be created and deleted without end: also where an old pod
            // is refused, in whose place no new one goes.
            let is_share = matches!(set.spec.partition, Amount::Percent(1..));
            if !is_share || self.targets.surge > 0 {
                let mut old = self.difference.delete_old.min(surplus);
                others.sort_by_cached_key(|member| {
                    let is_first = !member.is_new && old > 0;
                    old -= usize::from(is_first);
                    !is_first
                });
            }
            // Pods that are chosen wait for their turn: others do not go in their place.
            let chosen = others.into_iter().take(surplus.min(allowance));
            let free: Vec<_> = chosen.filter(|member| take(member)).collect();
            self.too_many = free.iter().map(|one| &one.pod.name).collect();
            gone.extend(free);
        }
        self.braked = surplus.saturating_sub(allowance);
        let restored: BTreeSet<_> = actions.iter().filter_map(Action::pod).collect();
        for member in shown().filter(|one| one.is_held) {
            if restored.contains(&member.pod.name) {
                continue;
            }
            if member.pod.state() != LifecycleState::PreparingDelete {
                // The cause is that of the mark which was asked for and is not seen yet.
                let assumed = scene.pods.assumed(&member.pod.name);
                let cause = assumed
                    .map(|pod| pod.observed.annotation(REPLACED_FOR))
                    .filter(|revision| !revision.is_empty());
                actions.push(remove(scene, member.pod, cause));
            } else if !set.spec.hooks.hold_deletion(member.pod) {
                actions.push(Action::Delete(member.pod));
            }
        }
        let is_any = gone.iter().any(|member| !is_refused(member));
        actions.extend(gone.into_iter().map(|one| remove(scene, one.pod, None)));
        is_any
    }

    /// Updates pods. Returns those that have left service for it and stay out of it.
    fn update(
        &mut self,
        scene: Scene<'a, '_>,
        ways: &Ways,
        actions: &mut Vec<Action<'a>>,
    ) -> BTreeSet<&'a ObjectName> {
        let Scene { set, revisions, .. } = scene;
        let mut staying = BTreeSet::new();
        let mut steps = Steps::new(scene, ways);
        let target = hash_in(&revisions.newest.name);
        let candidates = self
            .members
            .iter()
            .filter(|one| one.is_shown && !one.is_held);
        let (asked, candidates): (Vec<_>, Vec<_>) = candidates
            .filter(|one| !one.is_specified && one.pod.revision_hash() != target)
            .partition(|one| one.is_new);
        let sorted = if self.difference.update > 0 {
            sort_for_update(candidates, &self.members, &set.spec)
        } else {
            Vec::new()
        };
        let is_refused =
            |member: &&Member<'_>| scene.refuses(member.pod, &[DELETE_POD, MARK_POD, UPDATE_POD]);
        let (last, fresh): (Vec<_>, Vec<_>) = sorted.into_iter().partition(is_refused);
        let (mut resting, mut chosen) = (Vec::new(), HashSet::new());
        let most = self.difference.update_unavailable;
        let unavailable = || self.members.iter().filter(|one| !one.is_available);
        let mut taken = unavailable().filter(|one| one.is_new).count();
        let mut missing = unavailable().count();
        let mut left = self.difference.update;
        for member in fresh.into_iter().chain(last) {
            if left == 0 {
                break;
            }
            let Some(way) = steps.way_of(member.pod) else {
                continue;
            };
            left -= 1;
            chosen.insert(&member.pod.name);
            if steps.is_refused(member.pod, way) {
                resting.push(member.pod);
                continue;
            }
            if member.is_on_way() {
                staying.insert(&member.pod.name);
            }
            if taken >= most || (member.is_available && missing >= most) {
                continue;
            }
            taken += 1;
            missing += usize::from(member.is_available);
            actions.extend(steps.next(member.pod, way));
        }
        for member in asked {
            let way = steps.way_of(member.pod);
            actions.extend(way.and_then(|way| steps.next(member.pod, way)));
        }
        (self.resting, self.chosen) = (resting, chosen);
        self.not_in_place = steps.not_in_place;
        let wake = steps.wake;
        self.wake_at(wake);
        staying
    }

    /// Moves lifecycles on: pods that are done with an update, that are not updated after all, or that have what they wait for.
    fn mark(&mut self, scene: Scene<'a, '_>, staying: &BTreeSet<&ObjectName>) -> Vec<Action<'a>> {
        let (set, now) = (scene.set, scene.now);
        let hooks = &set.spec.hooks;
        let target = hash_in(&scene.revisions.newest.name);
        let (mut actions, mut wakes) = (Vec::new(), Vec::new());
        let busy: BTreeSet<_> = self.actions.iter().filter_map(Action::pod).collect();
        for member in self.members.iter().filter(|one| one.is_shown) {
            let pod = member.pod;
            if busy.contains(&pod.name) {
                continue;
            }
            // An update that is under way, or whose fate nobody knows, keeps the pod out until it is seen to be done.
            if member.is_new && pod.revision_hash() != target {
                continue;
            }
            let state = pod.state();
            let next = match state {
                // One that is restored already is not seen to be.
                LifecycleState::PreparingDelete if !member.is_held => continue,
                _ if member.is_held || staying.contains(&pod.name) => None,
                LifecycleState::Updating => match progress(pod, now) {
                    InPlaceProgress::Done => Some(hooks.updated(pod)),
                    InPlaceProgress::Waits(at) => {
                        wakes.extend(at);
                        continue;
                    }
                },
                LifecycleState::PreparingUpdate if member.is_new || !set.spec.is_paused => {
                    Some(LifecycleState::Normal)
                }
                LifecycleState::PreparingUpdate => None,
                _ => hooks.next(pod),
            };
            let mut change = match next {
                Some(state) => hooks.bring(pod, state, now),
                None => PodChange::new(now),
            };
            if next.is_none() {
                change.service = hooks.service_in(pod, state);
            }
            let stays_out = member.is_held || staying.contains(&pod.name);
            let opens = pod.gate.is_none_or(|(is_open, _)| !is_open);
            change.gate = (opens && !stays_out).then_some(true);
            if next.is_some() || change.gate.is_some() || change.service.is_some() {
                actions.push(Action::Mark(pod, change));
            }
        }
        self.wake_at(wakes.into_iter().min());
        actions
    }
}

/// The templates of the claims of a new pod of the revision with this hash.
fn claim_templates<'a>(scene: Scene<'a, '_>, hash: &str) -> Vec<&'a ClaimTemplate> {
    let revision = scene.revisions.of_hash(hash);
    let newest = &scene.revisions.newest.name;
    revision.map_or_else(Vec::new, |it| templates_of(scene.set, it, newest))
}

/// Creates a pod of the revision with this hash, or what has to be there before.
fn create_pod<'a>(
    scene: Scene<'a, '_>,
    (name, hash): (&ObjectName, &str),
    actions: &mut Vec<Action<'a>>,
) {
    match scene.claims.next_step(name, &claim_templates(scene, hash)) {
        NextStep::Pod => actions.push(Action::Create(name.clone(), hash.to_owned())),
        NextStep::Claims(missing) => {
            let create =
                |template: &ClaimTemplate| Action::CreateClaim(name.clone(), template.clone());
            actions.extend(missing.into_iter().map(create));
        }
        NextStep::None => {}
    }
}

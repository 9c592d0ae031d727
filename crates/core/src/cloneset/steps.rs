//! The way of a pod to another revision, step by step, and out of the set.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::in_place::InPlaceChange;
use super::member::Member;
use super::pod::{ClonePod, PodChange, REPLACED_FOR, WAS_NORMAL, hash_in};
use super::scene::{Action, Scene};
use super::set::UpdateKind;
use super::state::LifecycleState;
use super::template::RevisionData;
use super::writes::UPDATE_POD;

/// How long a kubelet may take to say that a pod is not ready whose gate was closed.
const UNREADY: SignedDuration = SignedDuration::from_secs(5);

/// Deletes a pod, or holds it before: a pod with claims says by its state that the claims go with it. `replaced_for` is the
/// revision for which another one comes in its place.
pub(super) fn remove<'a>(
    scene: Scene<'a, '_>,
    pod: &'a ClonePod,
    replaced_for: Option<&str>,
) -> Action<'a> {
    if !scene.set.spec.hooks.hold_deletion(pod) && !scene.claims.has(&pod.name) {
        return Action::Delete(pod);
    }
    let hooks = &scene.set.spec.hooks;
    let mut change = hooks.bring(pod, LifecycleState::PreparingDelete, scene.now);
    if pod.state() != LifecycleState::PreparingNormal {
        change
            .annotations
            .push((WAS_NORMAL.to_owned(), Some("true".to_owned())));
    }
    if let Some(revision) = replaced_for {
        change
            .annotations
            .push((REPLACED_FOR.to_owned(), Some(revision.to_owned())));
    }
    Action::Mark(pod, change)
}

/// The way of a pod to the present template.
#[derive(Debug)]
pub(super) enum Way {
    InPlace(InPlaceChange),
    ReCreate,
    /// No way: this field cannot be changed in place, and nothing else may be done.
    None(String),
}

/// The ways from each revision that pods of a set have. Two templates are compared for each, so they are kept.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// The kind of update and the template for which they count.
    to: Option<(UpdateKind, RevisionData)>,
    /// Ways by the hashes of the revisions, with the template of each.
    by_hash: BTreeMap<String, (Option<RevisionData>, Way)>,
}

impl Ways {
    /// Works out the ways that are missing, and forgets those that no pod goes.
    pub(super) fn update(&mut self, scene: Scene<'_, '_>, members: &[Member<'_>]) {
        let Scene { set, revisions, .. } = scene;
        let mut known = std::mem::take(&mut self.by_hash);
        if set.spec.is_paused {
            return;
        }
        let to = (set.spec.kind, set.spec.data.clone());
        if self.to.as_ref() != Some(&to) {
            known.clear();
        }
        let newest = hash_in(&revisions.newest.name);
        for member in members.iter().filter(|one| one.is_shown) {
            let hash = member.pod.revision_hash();
            if hash == newest || self.by_hash.contains_key(hash) {
                continue;
            }
            let from = revisions.of_hash(hash).map(|one| &one.data);
            let way = match known.remove(hash) {
                Some((known, way)) if known.as_ref() == from => way,
                _ => Way::find(to.0, from, &to.1),
            };
            self.by_hash.insert(hash.to_owned(), (from.cloned(), way));
        }
        self.to = Some(to);
    }

    /// The way of a pod.
    fn of(&self, pod: &ClonePod) -> &Way {
        let known = self.by_hash.get(pod.revision_hash());
        known.map_or(&Way::ReCreate, |(_, way)| way)
    }
}

impl Way {
    fn find(kind: UpdateKind, from: Option<&RevisionData>, to: &RevisionData) -> Self {
        let change = match from {
            Some(from) => InPlaceChange::between(from, to),
            None => Err("the revision, whose ControllerRevision is gone".to_owned()),
        };
        let is_in_place = matches!(
            kind,
            UpdateKind::InPlaceIfPossible | UpdateKind::InPlaceOnly
        );
        match change {
            // A manifest that says less or more than was filled in, and means the same.
            Ok(change) if is_in_place || change.is_empty() => Self::InPlace(change),
            Err(field) if kind == UpdateKind::InPlaceOnly => Self::None(field),
            _ => Self::ReCreate,
        }
    }
}

/// The steps of updates.
pub(super) struct Steps<'a, 'r> {
    scene: Scene<'a, 'r>,
    ways: &'r Ways,
    pub(super) not_in_place: Option<String>,
    pub(super) wake: Option<Timestamp>,
}

impl<'a, 'r> Steps<'a, 'r> {
    pub(super) fn new(scene: Scene<'a, 'r>, ways: &'r Ways) -> Self {
        Self {
            scene,
            ways,
            not_in_place: None,
            wake: None,
        }
    }

    /// The way of a pod, if there is one.
    pub(super) fn way_of(&mut self, pod: &ClonePod) -> Option<&'r Way> {
        let way = self.ways.of(pod);
        if let Way::None(field) = way {
            self.not_in_place.get_or_insert_with(|| field.clone());
            return None;
        }
        Some(way)
    }

    /// The next step of a pod.
    pub(super) fn next(&mut self, pod: &'a ClonePod, way: &Way) -> Option<Action<'a>> {
        let Scene {
            set,
            revisions,
            now,
            ..
        } = self.scene;
        let Way::InPlace(in_place) = way else {
            return Some(remove(self.scene, pod, Some(&revisions.newest.name)));
        };
        let hooks = &set.spec.hooks;
        match pod.state() {
            LifecycleState::Updated if hooks.has_update_hook() => {
                let mut change = PodChange::new(now).in_state(LifecycleState::PreparingUpdate);
                hooks.hold_again(pod, &mut change);
                return Some(Action::Update(pod, change));
            }
            LifecycleState::PreparingUpdate if hooks.hold_update(pod) => return None,
            state if state != LifecycleState::Updating && hooks.hold_update(pod) => {
                let change = hooks.bring(pod, LifecycleState::PreparingUpdate, now);
                return Some(Action::Mark(pod, change));
            }
            _ => {}
        }
        let change = self.last_change(pod, in_place);
        if !in_place.restarts(pod) {
            return Some(Action::Update(pod, change));
        }
        let Some((false, since)) = pod.gate else {
            let mut change = PodChange::new(now);
            change.gate = Some(false);
            return Some(Action::Mark(pod, change));
        };
        // The kubelet says so before its containers end, and clients hear it from there.
        let is_out = pod.observed.ready.is_none();
        let least = if is_out {
            SignedDuration::ZERO
        } else {
            UNREADY
        };
        let wait = least.max(set.spec.grace);
        let at = since.and_then(|since| since.checked_add(wait).ok());
        if let Some(at) = at.filter(|at| *at > now) {
            self.wake = self.wake.into_iter().chain([at]).min();
            return None;
        }
        Some(Action::Update(pod, change))
    }

    /// The change that gives a pod the revision, whatever comes before it.
    fn last_change(&self, pod: &ClonePod, in_place: &InPlaceChange) -> PodChange {
        let Scene {
            set,
            revisions,
            now,
            ..
        } = self.scene;
        let change = in_place.of_pod(pod, &revisions.newest.name, now);
        if in_place.restarts(pod) {
            change.in_state(LifecycleState::Updating)
        } else if pod.state() == LifecycleState::PreparingUpdate || set.spec.hooks.hold_update(pod)
        {
            change.in_state(LifecycleState::Normal)
        } else {
            change
        }
    }

    /// Whether the API server has refused to give a pod this revision.
    pub(super) fn is_refused(&self, pod: &ClonePod, way: &Way) -> bool {
        let Way::InPlace(in_place) = way else {
            return false;
        };
        let is_refused =
            |change: Option<&PodChange>| (self.scene.refused)(&UPDATE_POD, &pod.name, change);
        is_refused(None) && is_refused(Some(&self.last_change(pod, in_place)))
    }
}

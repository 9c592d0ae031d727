//! The way of a pod to another revision, step by step, and out of the set.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::in_place::InPlaceChange;
use super::pod::{ClonePod, PodChange, REPLACED_FOR, WAS_NORMAL};
use super::scene::{Action, Scene};
use super::set::UpdateKind;
use super::state::State;
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
    let mut change = hooks.bring(pod, State::PreparingDelete, scene.now);
    if pod.state() != State::PreparingNormal {
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
#[derive(Clone, Debug)]
pub(super) enum Way {
    InPlace(InPlaceChange),
    ReCreate,
    /// No way: this field cannot be changed in place, and nothing else may be done.
    None(String),
}

/// The steps of updates.
pub(super) struct Steps<'a, 'r> {
    scene: Scene<'a, 'r>,
    /// The ways from each revision, by its hash.
    by_hash: BTreeMap<String, Way>,
    pub(super) not_in_place: Option<String>,
    pub(super) wake: Option<Timestamp>,
}

impl<'a, 'r> Steps<'a, 'r> {
    pub(super) fn new(scene: Scene<'a, 'r>) -> Self {
        Self {
            scene,
            by_hash: BTreeMap::new(),
            not_in_place: None,
            wake: None,
        }
    }

    pub(super) fn change_of(&mut self, pod: &ClonePod) -> Option<Way> {
        let Scene { set, revisions, .. } = self.scene;
        let hash = pod.revision_hash();
        let way = self.by_hash.entry(hash.to_owned()).or_insert_with(|| {
            let from = revisions.of_hash(hash);
            let change = match from {
                Some(from) => InPlaceChange::between(&from.data, &set.spec.data),
                None => Err("the revision, whose ControllerRevision is gone".to_owned()),
            };
            let kind = set.spec.kind;
            let is_in_place = matches!(
                kind,
                UpdateKind::InPlaceIfPossible | UpdateKind::InPlaceOnly
            );
            match change {
                // A manifest that says less or more than was filled in, and means the same.
                Ok(change) if is_in_place || change.is_empty() => Way::InPlace(change),
                Err(field) if kind == UpdateKind::InPlaceOnly => Way::None(field),
                _ => Way::ReCreate,
            }
        });
        if let Way::None(field) = way {
            self.not_in_place = Some(field.clone());
            return None;
        }
        Some(way.clone())
    }

    /// The next step of a pod.
    pub(super) fn next(&mut self, pod: &'a ClonePod, way: Way) -> Option<Action<'a>> {
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
            State::Updated if hooks.has_update_hook() => {
                let mut change = PodChange::new(now).in_state(State::PreparingUpdate);
                hooks.hold_again(pod, &mut change);
                return Some(Action::Update(pod, change));
            }
            State::PreparingUpdate if hooks.hold_update(pod) => return None,
            state if state != State::Updating && hooks.hold_update(pod) => {
                let change = hooks.bring(pod, State::PreparingUpdate, now);
                return Some(Action::Mark(pod, change));
            }
            _ => {}
        }
        let change = self.last_change(pod, &in_place);
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
        let wait = if is_out {
            SignedDuration::ZERO
        } else {
            UNREADY
        };
        let wait = wait.max(set.spec.grace);
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
            change.in_state(State::Updating)
        } else if pod.state() == State::PreparingUpdate || set.spec.hooks.hold_update(pod) {
            change.in_state(State::Normal)
        } else {
            change
        }
    }

    /// Whether the API server has refused to give a pod this revision.
    pub(super) fn is_refused(&self, pod: &ClonePod, way: &Way) -> bool {
        let Way::InPlace(in_place) = way else {
            return false;
        };
        let change = self.last_change(pod, in_place);
        (self.scene.refused)(&UPDATE_POD, &pod.name, Some(&change))
    }
}

//! The hooks that a pod waits for.

use jiff::Timestamp;
use leadsman_api::clone_set::{Lifecycle, LifecycleHook};

use super::pod::{ClonePod, PodChange};
use super::service::{PRE_DELETE, PRE_UPDATE, Service};
use super::state::LifecycleState;

/// The hooks of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hooks {
    pub(super) pre_delete: LifecycleHook,
    pub(super) in_place: LifecycleHook,
    pub(super) pre_normal: LifecycleHook,
}

impl Hooks {
    pub(super) fn read(lifecycle: Option<&Lifecycle>) -> Self {
        let of = |hook: fn(&Lifecycle) -> &Option<LifecycleHook>| {
            lifecycle
                .and_then(|it| hook(it).clone())
                .unwrap_or_default()
        };
        Self {
            pre_delete: of(|it| &it.pre_delete),
            in_place: of(|it| &it.in_place_update),
            pre_normal: of(|it| &it.pre_normal),
        }
    }

    /// Whether a pod is held before it is deleted.
    pub(super) fn hold_deletion(&self, pod: &ClonePod) -> bool {
        has_any(pod, &self.pre_delete)
    }

    /// Whether a pod is held before it is updated in place.
    pub(super) fn hold_update(&self, pod: &ClonePod) -> bool {
        has_any(pod, &self.in_place)
    }

    /// Whether pods are held before they are updated in place.
    pub(super) fn has_update_hook(&self) -> bool {
        !is_empty(&self.in_place)
    }

    /// The state of a pod that nothing is done to: a new one, or one that was not deleted after all. One that was normal is so
    /// again, though a hook may have taken its mark away since.
    pub(super) fn restored(&self, pod: &ClonePod) -> LifecycleState {
        if pod.was_normal || has_all(pod, &self.pre_normal) {
            LifecycleState::Normal
        } else {
            LifecycleState::PreparingNormal
        }
    }

    /// The state of a new pod.
    pub(super) fn first(&self) -> LifecycleState {
        if is_empty(&self.pre_normal) {
            LifecycleState::Normal
        } else {
            LifecycleState::PreparingNormal
        }
    }

    /// The state of a pod whose update in place is done.
    pub(super) fn updated(&self, pod: &ClonePod) -> LifecycleState {
        if has_all(pod, &self.in_place) {
            LifecycleState::Normal
        } else {
            LifecycleState::Updated
        }
    }

    /// The next state of a pod that waits for nothing that is done to it.
    pub(super) fn next(&self, pod: &ClonePod) -> Option<LifecycleState> {
        let is_over = match pod.state() {
            LifecycleState::PreparingNormal => has_all(pod, &self.pre_normal),
            LifecycleState::Updated => has_all(pod, &self.in_place),
            _ => false,
        };
        is_over.then_some(LifecycleState::Normal)
    }

    /// The change that brings a pod into a state, and out of service or back as its hooks want it there.
    pub(super) fn bring(&self, pod: &ClonePod, state: LifecycleState, now: Timestamp) -> PodChange {
        let mut change = PodChange::new(now).in_state(state);
        change.service = self.service_in(pod, state);
        change
    }

    /// The gate of a pod as it is to be in this state, if it is not so: it follows the state, so that whatever ends the state brings
    /// the pod back.
    pub(super) fn service_in(&self, pod: &ClonePod, state: LifecycleState) -> Option<Service> {
        let service = pod.service.as_ref()?;
        let holder = match state {
            LifecycleState::PreparingDelete if self.pre_delete.mark_pod_not_ready => {
                Some(PRE_DELETE)
            }
            LifecycleState::PreparingUpdate if self.in_place.mark_pod_not_ready => Some(PRE_UPDATE),
            // The containers do not run anew yet.
            LifecycleState::Updating if service.is_held_by(PRE_UPDATE) => Some(PRE_UPDATE),
            _ => None,
        };
        Some(service.held_by(holder)).filter(|wanted| wanted != service)
    }

    /// Puts back what holds a pod before it is updated in place: it was taken away for the last update.
    pub(super) fn hold_again(&self, pod: &ClonePod, change: &mut PodChange) {
        let labels = self.in_place.labels_handler.iter();
        change
            .labels
            .extend(labels.map(|(key, value)| (key.clone(), Some(value.clone()))));
        let missing = self
            .in_place
            .finalizers_handler
            .iter()
            .filter(|one| !pod.finalizers.contains(one));
        change.finalizers.extend(missing.cloned());
    }
}

fn is_empty(hook: &LifecycleHook) -> bool {
    hook.labels_handler.is_empty() && hook.finalizers_handler.is_empty()
}

/// Whether a pod has each mark of a hook, and if so which.
fn marks<'a>(pod: &'a ClonePod, hook: &'a LifecycleHook) -> impl Iterator<Item = bool> + use<'a> {
    let labels = hook
        .labels_handler
        .iter()
        .map(|(key, value)| pod.observed.label(key) == Some(value));
    let finalizers = hook.finalizers_handler.iter();
    labels.chain(finalizers.map(|one| pod.finalizers.contains(one)))
}

fn has_any(pod: &ClonePod, hook: &LifecycleHook) -> bool {
    marks(pod, hook).any(|is_there| is_there)
}

fn has_all(pod: &ClonePod, hook: &LifecycleHook) -> bool {
    marks(pod, hook).all(|is_there| is_there)
}

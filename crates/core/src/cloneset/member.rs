//! A pod as a round looks at it: what is counted of it, and by what it is sorted.

use super::pod::ClonePod;
use super::state::LifecycleState;

/// A pod that neither terminates nor has ended.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools)]
pub(super) struct Member<'a> {
    /// The pod as events show it; as it is created if none has.
    pub(super) pod: &'a ClonePod,
    pub(super) is_shown: bool,
    /// Whether it is of the present template.
    pub(super) is_new: bool,
    pub(super) is_available: bool,
    /// Whether a hook holds it before it is deleted.
    pub(super) is_held: bool,
    /// Whether it is to be deleted, whichever others are.
    pub(super) is_specified: bool,
}

impl Member<'_> {
    /// Whether it has left service for an update that has not begun.
    pub(super) fn is_on_way(&self) -> bool {
        self.pod.state() == LifecycleState::PreparingUpdate || self.pod.is_drained()
    }
}

//! Which pods of a set are upgraded next: `queue` keeps them in order, and tests hold it equal to `naive`, which looks at all
//! of them each time.

pub mod queue;

use super::pod::{LastUpgrade, PodState, Progress};

/// Whether a pod takes up a place of those that may be down. It does while it is down and an upgrade may be why, this one or
/// an earlier one: its image may start and never get ready, and the set may have been edited since.
///
/// A pod that was not ready before its upgrade, or was created with these containers, has lost nothing by them. It takes up
/// a place while they show that the image is bad, and none for what its application does: one that crashes again and again
/// would hold up all others of the set. A pod that was created with other containers, and never upgraded, says nothing about
/// these: where new ones come all the time, no other pod would ever be upgraded.
pub fn is_down(state: PodState) -> bool {
    let may_be_why = match state.last_upgrade {
        LastUpgrade::OfReady => true,
        // Its containers are about to be stopped, and it has become ready with them meanwhile. On a node that is gone they
        // never are.
        LastUpgrade::OfUnready if state.progress == Progress::BeforeRestart => state.is_ready(),
        _ if state.is_untried => false,
        LastUpgrade::Unreadable if !state.is_consistent() => true,
        _ => is_pending(state) || state.awaits_reset(),
    };
    may_be_why && !state.is_available()
}

/// What the upgrade of a pod records, so that [`is_down`] knows afterwards what it was before.
pub fn recorded_by_upgrade(state: PodState) -> LastUpgrade {
    let was_unready = state.last_upgrade == LastUpgrade::OfUnready || !is_down(state);
    // A pod that is down because of an upgrade stays so whatever image comes next: otherwise each edit would take down another.
    if !state.is_ready() && was_unready {
        LastUpgrade::OfUnready
    } else {
        LastUpgrade::OfReady
    }
}

/// Whether the upgrade of the pod has not shown yet that the image is good: the set's own containers do not run it, or are
/// not ready, or not for long enough. The pod's other containers count only if it was ready before: an application that was
/// broken anyway would hold up the others for ever, and one that the image may have broken would be followed by every pod
/// that is not ready for a moment.
pub fn is_pending(state: PodState) -> bool {
    let is_unproven = state.progress != Progress::Consistent
        || state.is_fresh
        || (state.last_upgrade == LastUpgrade::OfReady && !state.is_ready());
    state.is_updated() && is_unproven
}

#[cfg(test)]
pub(super) mod tests;

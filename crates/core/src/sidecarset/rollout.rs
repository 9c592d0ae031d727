//! Which pods of a set are upgraded next.

pub mod queue;

use self::queue::RollingCandidate;
use super::pod::{LastUpgrade, PodState, PodVersion, Progress};
use super::set::SidecarSet;
use super::strategy::UpdateMode;
use crate::workload::pod::ObservedPod;
use crate::workload::scatter::scatter;

/// A pod of a set, and what it is to it.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The pod.
    pub pod: &'a ObservedPod,
    /// What it is.
    pub state: PodState,
    /// Whether its last write was refused, and is not due again yet: it takes up no place of another.
    pub is_refused: bool,
}

/// Why no further pod is upgraded now, or which are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    /// Places of the pods that are upgraded now.
    pub next: Vec<usize>,
    /// How many could be upgraded, but wait until others are available again.
    pub waiting: usize,
    /// How many could be upgraded, but are kept by the partition.
    pub kept: usize,
    /// How many are not updated and differ in more than their images: they wait to be re-created.
    pub not_upgradable: usize,
}

/// The pods of a set that are upgraded next.
pub fn plan(set: &SidecarSet, members: &[Member<'_>]) -> Rollout {
    let states = || members.iter().map(|member| member.state);
    let not_upgradable = states()
        .filter(|state| state.version == PodVersion::NotUpgradable)
        .count();
    let mut rollout = Rollout {
        not_upgradable,
        ..Rollout::default()
    };
    if set.update.mode != UpdateMode::Rolling {
        return rollout;
    }
    let mut order = in_order(set, members);
    // Those that cannot be upgraded are among the pods that stay as they are.
    let old = states().filter(|state| !state.is_updated()).count();
    let staying = set.update.partition.staying(members.len());
    let most = old.saturating_sub(staying);
    rollout.kept = order.len().saturating_sub(most);
    order.truncate(most);
    let limit = set.update.max_unavailable.of(members.len());
    let mut down = states().filter(|state| is_down(*state)).count();
    // Of pods that are down anyway as many are upgraded at a time, so that a bad image is not pulled for all of them.
    let mut pending = states().filter(|state| is_pending(*state)).count();
    for place in order {
        // A pod that became ready just now counts as down already: a bad image is mended at once.
        let budget = if members[place].state.would_go_down() {
            &mut down
        } else {
            &mut pending
        };
        if *budget < limit {
            *budget += 1;
            rollout.next.push(place);
        } else {
            rollout.waiting += 1;
        }
    }
    rollout
}

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

/// The pods that can be upgraded, in the order in which they are.
fn in_order(set: &SidecarSet, members: &[Member<'_>]) -> Vec<usize> {
    let mut order: Vec<_> = (0..members.len())
        .filter(|place| members[*place].state.is_candidate() && !members[*place].is_refused)
        .collect();
    order.sort_by_cached_key(|place| {
        let Member { pod, state, .. } = members[*place];
        RollingCandidate::new(set, pod, state)
    });
    let pods: Vec<_> = members.iter().map(|member| member.pod).collect();
    scatter(&set.update.scatter, &pods, order, |pod, key| pod.label(key))
}

#[cfg(test)]
mod tests;

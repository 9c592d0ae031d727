//! The model of the roll-out: the pods that are upgraded next, in another form than the product's.

use super::super::{is_down, is_pending};
use crate::sidecarset::pod::{PodState, PodVersion};
use crate::sidecarset::set::SidecarSet;
use crate::sidecarset::strategy::UpdateMode;
use crate::workload::pod::ObservedPod;
use crate::workload::scatter::tests::naive::scatter;

/// A pod of a set, and what it is to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    /// The pod.
    pub(crate) pod: &'a ObservedPod,
    /// What it is.
    pub(crate) state: PodState,
    /// Whether its last write was refused, and is not due again yet: it takes up no place of another.
    pub(crate) is_refused: bool,
}

/// Why no further pod is upgraded now, or which are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rollout {
    /// Places of the pods that are upgraded now.
    pub(crate) next: Vec<usize>,
    /// How many could be upgraded, but wait until others are available again.
    pub(crate) waiting: usize,
    /// How many could be upgraded, but are kept by the partition.
    pub(crate) kept: usize,
    /// How many are not updated and differ in more than their images: they wait to be re-created.
    pub(crate) not_upgradable: usize,
}

/// The pods of a set that are upgraded next.
pub(crate) fn plan(set: &SidecarSet, members: &[Member<'_>]) -> Rollout {
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

/// The pods that can be upgraded, in the order in which they are.
fn in_order(set: &SidecarSet, members: &[Member<'_>]) -> Vec<usize> {
    let mut order: Vec<_> = (0..members.len())
        .filter(|place| members[*place].state.is_candidate() && !members[*place].is_refused)
        .collect();
    order.sort_by_cached_key(|place| {
        let pod = members[*place].pod;
        (
            set.update.priority.key(|key| pod.label(key)),
            pod.upgrade_order(),
        )
    });
    let pods: Vec<_> = members.iter().map(|member| member.pod).collect();
    scatter(&set.update.scatter, &pods, order, |pod, key| pod.label(key))
}

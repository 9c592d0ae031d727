//! The choice of a set's pods to upgrade next. It is worked out from all of its pods each time; tests hold its order and its
//! counts equal to another form. That form takes [`is_down`] from here: what counts as down has tables of its own.

use super::pod::{LastUpgrade, PodState, Progress};
use super::set::SidecarSet;
use super::strategy::UpdateMode;
use crate::workload::pod::{ObservedPod, UpgradeOrder};
use crate::workload::priority::PriorityKey;
use crate::workload::scatter::{LabelCounts, LabelPair};

/// The place of a pod that can be upgraded among others, but for how the set scatters them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UpgradePlace {
    priority: PriorityKey,
    order: UpgradeOrder,
}

impl UpgradePlace {
    /// The place of a pod.
    pub fn new(set: &SidecarSet, pod: &ObservedPod) -> Self {
        Self {
            priority: set.update.priority.key(|key| pod.label(key)),
            order: pod.upgrade_order(),
        }
    }
}

/// A pod of a set, as the roll-out sees it.
#[derive(Clone, Copy, Debug)]
pub struct RollingPod<'a> {
    /// The pod's state; if a write of it is under way, the state once that has been carried out.
    pub state: PodState,
    /// The pod's place, if it can be upgraded.
    pub place: Option<&'a UpgradePlace>,
    /// The labels by which the set scatters it.
    pub labels: &'a [LabelPair],
    /// Whether its upgrade was sent, and may have been carried out.
    pub is_sent: bool,
}

/// The pods that are upgraded and those that are not yet, by their places in the list of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    /// Pods that are upgraded now, in their order.
    pub next: Vec<usize>,
    /// Pods whose upgrade was sent, and is sent again if it was lost: they hold their places.
    pub again: Vec<usize>,
    /// Pods that could be upgraded, but wait until others are available again.
    pub waiting: Vec<usize>,
    /// Pods that could be upgraded, but are kept by the partition, or because nothing is upgraded.
    pub kept: Vec<usize>,
}

impl RollingPod<'_> {
    /// The budget that its upgrade takes a place of: 1 is that of pods that serve, and 0 that of those that are down anyway. A
    /// pod that became ready just now counts as down already: a bad image is mended at once.
    fn budget(&self) -> usize {
        usize::from(self.state.would_go_down())
    }
}

impl Rollout {
    /// The pods of a set that are upgraded next.
    pub fn plan(set: &SidecarSet, pods: &[RollingPod<'_>]) -> Self {
        let is_rolling = set.update.mode == UpdateMode::Rolling;
        // Pods that cannot be upgraded are among those that stay as they are.
        let old = pods.iter().filter(|pod| !pod.state.is_updated()).count();
        let staying = set.update.partition.staying(pods.len());
        let may_move = |old: usize| {
            if is_rolling {
                old.saturating_sub(staying)
            } else {
                0
            }
        };
        let mut again = places_of(pods, |pod| pod.is_sent);
        // Upgrades that were sent come before all others: another pod would be taken down as well otherwise.
        again.truncate(may_move(old + again.len()));
        let mut order = places_of(pods, |pod| !pod.is_sent);
        let most = may_move(old).min(order.len());
        let is_scattered = !set.update.scatter.is_empty();
        if is_scattered {
            order = spread(set, pods, order);
        } else {
            // The choice of the first pods matters, and not their order.
            split_first(pods, &mut order, most);
        }
        let kept = order.split_off(most);
        let limit = set.update.max_unavailable.of(pods.len());
        let count = |is: fn(PodState) -> bool| pods.iter().filter(|pod| is(pod.state)).count();
        // The same limit holds for pods that are down anyway, so that a bad image is not pulled for all of them.
        let budgets = [count(is_pending), count(is_down)];
        let free = budgets.map(|taken| limit.saturating_sub(taken));
        if !is_scattered {
            order = first_of_each_budget(pods, order, free);
        }
        let mut left = free;
        let (next, waiting) = order.into_iter().partition(|place| {
            let left = &mut left[pods[*place].budget()];
            let is_next = *left > 0;
            *left = left.saturating_sub(1);
            is_next
        });
        Self {
            next,
            again,
            waiting,
            kept,
        }
    }
}

/// Puts as many of each budget as are free to the front, in their order, and the others behind them in any.
fn first_of_each_budget(
    pods: &[RollingPod<'_>],
    places: Vec<usize>,
    free: [usize; 2],
) -> Vec<usize> {
    let of_serving = |place: &usize| pods[*place].budget() == 1;
    let (serving, down): (Vec<_>, Vec<_>) = places.into_iter().partition(of_serving);
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for (mut budget, free) in [down, serving].into_iter().zip(free) {
        let free = free.min(budget.len());
        split_first(pods, &mut budget, free);
        rest.extend(budget.split_off(free));
        first.extend(budget);
    }
    first.sort_unstable_by_key(|place| pods[*place].place);
    first.extend(rest);
    first
}

/// Brings the first pods of the order to the front, in any order among them.
fn split_first(pods: &[RollingPod<'_>], places: &mut [usize], first: usize) {
    if first > 0 && first < places.len() {
        places.select_nth_unstable_by_key(first, |place| pods[*place].place);
    }
}

/// Spreads pods that can be upgraded, by how the set scatters them.
fn spread(set: &SidecarSet, pods: &[RollingPod<'_>], mut order: Vec<usize>) -> Vec<usize> {
    order.sort_unstable_by_key(|place| pods[*place].place);
    let mut counts = LabelCounts::default();
    for pod in pods {
        counts.add(pod.labels, pod.place.is_some() && !pod.is_sent);
    }
    let spreads = counts.spreads(&set.update.scatter, pods.len(), order.len());
    let spread = spreads.apply(order.iter().map(|place| pods[*place].labels));
    spread.into_iter().map(|place| order[place]).collect()
}

/// The places of those that can be upgraded and that are so.
fn places_of(pods: &[RollingPod<'_>], is: fn(&RollingPod<'_>) -> bool) -> Vec<usize> {
    let of = |place: &usize| pods[*place].place.is_some() && is(&pods[*place]);
    (0..pods.len()).filter(of).collect()
}

/// Whether a pod counts against `maxUnavailable`: takes up a place of those that may be down. It does while it is down and this
/// upgrade or an earlier one may be why: its image may start and never get ready, and the set may have been edited since.
///
/// A pod that was not ready before its upgrade, or was created with these containers, has lost nothing by them. It takes up
/// a place while they show that the image is bad, and none for what its application does: one that crashes again and again
/// would hold up all others of the set. A pod that was created with other containers, and never upgraded, says nothing about
/// these: where new ones come all the time, no other pod would ever be upgraded.
pub fn is_down(state: PodState) -> bool {
    let may_be_why = match state.last_upgrade {
        LastUpgrade::OfReady => true,
        // The pod's containers are about to be stopped, and it has become ready with them meanwhile. On a node that is gone
        // they never are.
        LastUpgrade::OfUnready if state.progress == Progress::BeforeRestart => state.is_ready(),
        _ if state.is_untried => false,
        LastUpgrade::Unreadable if !state.is_consistent() => true,
        _ => is_pending(state) || state.awaits_reset(),
    };
    may_be_why && !state.is_available()
}

/// The record of a pod's upgrade, by which [`is_down`] knows afterwards what the pod was before.
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

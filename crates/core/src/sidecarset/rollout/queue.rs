//! The pods of a set in the order of their upgrade, kept as pods change. Which of them are upgraded next is the same as
//! [`plan`](super::plan) finds by looking at all of them, but costs what has changed.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{is_down, is_pending};
use crate::cluster::ObjectName;
use crate::sidecarset::pod::PodState;
use crate::sidecarset::set::SidecarSet;
use crate::sidecarset::strategy::UpdateMode;
use crate::workload::pod::{ObservedPod, UpgradeOrder};
use crate::workload::priority::PriorityKey;

/// A pod that can be upgraded, by its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RollingCandidate {
    priority: PriorityKey,
    order: UpgradeOrder,
    /// Whether its upgrade [takes it down](PodState::would_go_down).
    would_go_down: bool,
}

impl RollingCandidate {
    /// A pod that can be upgraded.
    pub fn new(set: &SidecarSet, pod: &ObservedPod, state: PodState) -> Self {
        Self {
            priority: set.update.priority.key(|key| pod.label(key)),
            order: pod.upgrade_order(),
            would_go_down: state.would_go_down(),
        }
    }

    /// Whether its upgrade takes it down, so that it waits for pods that are down; others wait for pods whose upgrade has not
    /// shown yet that the image is good.
    pub fn would_go_down(&self) -> bool {
        self.would_go_down
    }
}

/// The pods of a set.
#[derive(Debug, Default)]
pub struct RollingPods {
    matched: usize,
    updated: usize,
    /// Those that an upgrade has taken down.
    down: usize,
    /// Those whose upgrade has not shown yet that the image is good.
    pending: usize,
    /// Those that can be upgraded; first those that need not stay as they are.
    moving: Split<Arc<RollingCandidate>>,
    /// Of these the ones that are down or count as such, and the ones that would go down; first those that are upgraded now.
    budgets: [Split<Arc<RollingCandidate>>; 2],
    /// Those that are upgraded since [`Self::settle`], and may have left again.
    chosen: Vec<Arc<ObjectName>>,
}

impl RollingPods {
    /// Adds a pod; `candidate` if it can be upgraded.
    pub fn add(&mut self, state: PodState, candidate: Option<Arc<RollingCandidate>>) {
        self.matched += 1;
        self.updated += usize::from(state.is_updated());
        self.down += usize::from(is_down(state));
        self.pending += usize::from(is_pending(state));
        if let Some(candidate) = candidate {
            let moves = self.moving.insert(candidate);
            self.follow(moves);
        }
    }

    /// Takes a pod out, which was added as it is given here.
    pub fn remove(&mut self, state: PodState, candidate: Option<&RollingCandidate>) {
        self.matched -= 1;
        self.updated -= usize::from(state.is_updated());
        self.down -= usize::from(is_down(state));
        self.pending -= usize::from(is_pending(state));
        if let Some(candidate) = candidate {
            let moves = self.moving.remove(candidate);
            self.follow(moves);
        }
    }

    /// Moves the boundaries to where a set's strategy has them. Returns the pods that are upgraded now and were not before.
    pub fn settle(&mut self, set: &SidecarSet) -> Vec<Arc<ObjectName>> {
        debug_assert!(
            self.pending <= self.updated && self.updated.max(self.down) <= self.matched,
            "each count is of some of the pods: {self:?}"
        );
        let is_rolling = set.update.mode == UpdateMode::Rolling;
        // As `plan` counts it: pods that cannot be upgraded are among those that stay as they are.
        let old = self.matched - self.updated;
        let staying = set.update.partition.staying(self.matched);
        let most = old.saturating_sub(staying);
        // The partition before the budgets, which divide what it lets through.
        let moves = self.moving.resize(if is_rolling { most } else { 0 });
        let limit = set.update.max_unavailable.of(self.matched);
        self.follow(moves);
        for (budget, taken) in [(0, self.pending), (1, self.down)] {
            let moves = self.budgets[budget].resize(limit.saturating_sub(taken));
            self.chosen.extend(entered(moves));
        }
        debug_assert_eq!(
            self.moving.first.len(),
            self.budgets.iter().map(Split::len).sum::<usize>(),
            "what the partition lets through is in one of the budgets"
        );
        std::mem::take(&mut self.chosen)
    }

    /// Whether a pod is upgraded now.
    pub fn is_next(&self, candidate: &RollingCandidate) -> bool {
        self.budget(candidate).first.contains(candidate)
    }

    /// Whether a pod waits until others are available again.
    pub fn is_waiting(&self, candidate: &RollingCandidate) -> bool {
        self.budget(candidate).rest.contains(candidate)
    }

    fn budget(&self, candidate: &RollingCandidate) -> &Split<Arc<RollingCandidate>> {
        &self.budgets[usize::from(candidate.would_go_down)]
    }

    /// The pods that are upgraded now.
    pub fn next(&self) -> impl Iterator<Item = &Arc<ObjectName>> {
        let next = self.budgets.iter().flat_map(|budget| &budget.first);
        next.map(|candidate| &candidate.order.name)
    }

    /// How many wait until others are available again.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.budgets.iter().map(|budget| budget.rest.len()).sum()
    }

    /// Whether any pod need not stay as it is.
    pub fn has_moving(&self) -> bool {
        !self.moving.first.is_empty()
    }

    /// How many can be upgraded, and stay as they are for the partition or because nothing is upgraded.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.moving.rest.len()
    }

    /// Takes over into the budgets what has moved over the boundary of the partition.
    fn follow(&mut self, moves: Vec<Move<Arc<RollingCandidate>>>) {
        for Move {
            item,
            entered: is_in,
        } in moves
        {
            let budget = &mut self.budgets[usize::from(item.would_go_down)];
            let moves = if is_in {
                budget.insert(item)
            } else {
                budget.remove(&item)
            };
            self.chosen.extend(entered(moves));
        }
    }
}

fn entered(moves: Vec<Move<Arc<RollingCandidate>>>) -> impl Iterator<Item = Arc<ObjectName>> {
    let entered = moves.into_iter().filter(|one| one.entered);
    entered.map(|one| one.item.order.name.clone())
}

/// Items in order, of which the first `size` are told apart.
#[derive(Debug)]
struct Split<T> {
    size: usize,
    first: BTreeSet<T>,
    rest: BTreeSet<T>,
}

/// An item that became one of the first, or is none of them any more.
struct Move<T> {
    item: T,
    entered: bool,
}

impl<T> Default for Split<T> {
    fn default() -> Self {
        Self {
            size: 0,
            first: BTreeSet::new(),
            rest: BTreeSet::new(),
        }
    }
}

impl<T> Split<T> {
    fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }
}

impl<T: Ord + Clone> Split<T> {
    fn insert(&mut self, item: T) -> Vec<Move<T>> {
        // Into the rest where that keeps the order, and from there it moves by itself.
        let is_first = self.first.last().is_some_and(|last| item < *last);
        let mut moves = Vec::new();
        if is_first {
            self.first.insert(item.clone());
            moves.push(Move {
                item,
                entered: true,
            });
        } else {
            self.rest.insert(item);
        }
        self.balance(&mut moves);
        moves
    }

    fn remove<Q: Ord + ?Sized>(&mut self, item: &Q) -> Vec<Move<T>>
    where
        T: Borrow<Q>,
    {
        let mut moves = Vec::new();
        if let Some(item) = self.first.take(item) {
            moves.push(Move {
                item,
                entered: false,
            });
        } else {
            self.rest.remove(item);
        }
        self.balance(&mut moves);
        moves
    }

    fn resize(&mut self, size: usize) -> Vec<Move<T>> {
        self.size = size;
        let mut moves = Vec::new();
        self.balance(&mut moves);
        moves
    }

    fn balance(&mut self, moves: &mut Vec<Move<T>>) {
        while self.first.len() > self.size {
            let Some(item) = self.first.pop_last() else {
                break;
            };
            self.rest.insert(item.clone());
            moves.push(Move {
                item,
                entered: false,
            });
        }
        while self.first.len() < self.size {
            let Some(item) = self.rest.pop_first() else {
                break;
            };
            self.first.insert(item.clone());
            moves.push(Move {
                item,
                entered: true,
            });
        }
        let boundary = self.first.last().zip(self.rest.first());
        debug_assert!(
            boundary.is_none_or(|(last, next)| last < next),
            "the first ones come before the rest"
        );
    }
}

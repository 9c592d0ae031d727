//! The pods of a set in the order of their upgrade, kept as pods change. Which of them are upgraded next costs what has
//! changed, times the logarithm of the pods.
//!
//! Where the set scatters its pods, the order depends on all that wait, and another one is upgraded as soon as one more is. It
//! is worked out where a place is free and more pods wait than there are places: not all of it, but from as many of the first
//! pods as it takes to know who gets these places, for each label that pods are scattered by. Where pods with and without a
//! label take turns in the order before, these are few; where all with a label follow all others, they are all.

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
use crate::workload::scatter::{LabelCounts, LabelPair, Spreads};

/// A pod that can be upgraded, by its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RollingCandidate {
    priority: PriorityKey,
    order: UpgradeOrder,
    /// Whether its upgrade [takes it down](PodState::would_go_down).
    would_go_down: bool,
    /// The labels by which the set scatters it.
    labels: Box<[LabelPair]>,
}

impl RollingCandidate {
    /// A pod that can be upgraded.
    pub fn new(set: &SidecarSet, pod: &ObservedPod, state: PodState) -> Self {
        Self {
            priority: set.update.priority.key(|key| pod.label(key)),
            order: pod.upgrade_order(),
            would_go_down: state.would_go_down(),
            labels: set.update.scattered_labels(pod),
        }
    }

    /// Whether its upgrade takes it down, so that it waits for pods that are down; others wait for pods whose upgrade has not
    /// shown yet that the image is good.
    pub fn would_go_down(&self) -> bool {
        self.would_go_down
    }

    /// The place of its budget.
    fn budget(&self) -> usize {
        usize::from(self.would_go_down)
    }
}

/// From how many pods an order is worked out first. Tests have few pods.
const FIRST: usize = if cfg!(test) { 1 } else { 32 };

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
    /// How many pods have each label by which the set scatters them.
    labels: LabelCounts,
    /// How many of either budget can be upgraded.
    candidates: [usize; 2],
    /// Those that are upgraded now, where that depends on how the set scatters them, and not the first ones of the budgets;
    /// by their places without that.
    scattered: Option<Vec<Arc<RollingCandidate>>>,
    /// Those that are upgraded since [`Self::settle`], and may have left again.
    chosen: Vec<Arc<ObjectName>>,
}

impl RollingPods {
    /// Adds a pod with the labels by which the set scatters it; `candidate` if it can be upgraded.
    pub fn add(
        &mut self,
        state: PodState,
        labels: &[LabelPair],
        candidate: Option<Arc<RollingCandidate>>,
    ) {
        self.labels.add(labels, candidate.is_some());
        self.matched += 1;
        self.updated += usize::from(state.is_updated());
        self.down += usize::from(is_down(state));
        self.pending += usize::from(is_pending(state));
        if let Some(candidate) = candidate {
            self.candidates[candidate.budget()] += 1;
            let moves = self.moving.insert(candidate);
            self.follow(moves);
        }
    }

    /// Takes a pod out, which was added as it is given here.
    pub fn remove(
        &mut self,
        state: PodState,
        labels: &[LabelPair],
        candidate: Option<&RollingCandidate>,
    ) {
        self.labels.remove(labels, candidate.is_some());
        self.matched -= 1;
        self.updated -= usize::from(state.is_updated());
        self.down -= usize::from(is_down(state));
        self.pending -= usize::from(is_pending(state));
        if let Some(candidate) = candidate {
            self.candidates[candidate.budget()] -= 1;
            // If it is added again as it was, it enters again: what it waited for may be over.
            if let Some(next) = &mut self.scattered
                && let Ok(place) = find(next, candidate)
            {
                next.remove(place);
            }
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
        // As `naive` counts it: pods that cannot be upgraded are among those that stay as they are.
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
        let chosen = std::mem::take(&mut self.chosen);
        let next = self.next_if_scattered(set);
        let before = std::mem::replace(&mut self.scattered, next);
        let Some(next) = &self.scattered else {
            // What the budgets chose while others were upgraded was not returned.
            return if before.is_some() {
                self.next().cloned().collect()
            } else {
                chosen
            };
        };
        let before = before.unwrap_or_default();
        added(next, &before)
            .map(|one| one.order.name.clone())
            .collect()
    }

    /// The pods that are upgraded now where that depends on how the set scatters them.
    fn next_if_scattered(&self, set: &SidecarSet) -> Option<Vec<Arc<RollingCandidate>>> {
        let (most, candidates) = (self.moving.size, self.moving.len());
        let places = [0, 1].map(|budget| self.budgets[budget].size.min(self.candidates[budget]));
        let mut budgets = places.iter().zip(&self.candidates);
        let all_or_none = budgets.all(|(places, of)| *places == 0 || places == of);
        let is_order_idle = places == [0, 0] || (most >= candidates && all_or_none);
        if self.labels.is_empty() || most == 0 || is_order_idle {
            return None;
        }
        let spreads = self.spreads(set);
        // No fewer than there are places for.
        let mut length = places.iter().sum::<usize>().max(FIRST);
        loop {
            let first: Vec<_> = self.in_order().take(length).collect();
            let order = spreads.apply(first.iter().map(|one| &*one.labels));
            let mut places = places;
            let next = order.iter().copied().take(most).filter(|place| {
                let left = &mut places[first[*place].budget()];
                let is_next = *left > 0;
                *left = left.saturating_sub(1);
                is_next
            });
            let mut next: Vec<_> = next.collect();
            if places == [0, 0] || order.len() >= most.min(candidates) {
                next.sort_unstable();
                return Some(next.into_iter().map(|place| first[place].clone()).collect());
            }
            length *= 2;
        }
    }

    /// Those that can be upgraded, in their order without scattering.
    fn in_order(&self) -> impl Iterator<Item = &Arc<RollingCandidate>> {
        self.moving.first.iter().chain(&self.moving.rest)
    }

    fn spreads(&self, set: &SidecarSet) -> Spreads {
        self.labels
            .spreads(&set.update.scatter, self.matched, self.moving.len())
    }

    /// Whether a pod is upgraded now.
    pub fn is_next(&self, candidate: &RollingCandidate) -> bool {
        match &self.scattered {
            Some(next) => find(next, candidate).is_ok(),
            None => self.budgets[candidate.budget()].first.contains(candidate),
        }
    }

    /// Whether a pod waits until others are available again. Looks at all pods where the set scatters them.
    pub fn is_waiting(&self, set: &SidecarSet, candidate: &RollingCandidate) -> bool {
        let may_move = if self.labels.is_empty() {
            self.moving.first.contains(candidate)
        } else {
            let all: Vec<_> = self.in_order().collect();
            let order = self.spreads(set).apply(all.iter().map(|one| &*one.labels));
            let mut moving = order.iter().take(self.moving.size);
            moving.any(|place| **all[*place] == *candidate)
        };
        may_move && !self.is_next(candidate)
    }

    /// Whether a pod may be one that waits. Which ones the partition keeps is not worked out where pods are scattered.
    pub fn may_wait(&self, candidate: &RollingCandidate) -> bool {
        let moving = &self.moving.first;
        moving.contains(candidate) || !(moving.is_empty() || self.labels.is_empty())
    }

    /// The pods that are upgraded now.
    pub fn next(&self) -> impl Iterator<Item = &Arc<ObjectName>> {
        let budgets = self.budgets.iter().map(|budget| &budget.first);
        let budgets = budgets.filter(|_| self.scattered.is_none());
        let next = self.scattered.iter().flatten().chain(budgets.flatten());
        next.map(|candidate| &candidate.order.name)
    }

    /// How many wait until others are available again.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.moving.first.len() - self.next().count()
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
            let budget = &mut self.budgets[item.budget()];
            let moves = if is_in {
                budget.insert(item)
            } else {
                budget.remove(&item)
            };
            self.chosen.extend(entered(moves));
        }
    }
}

/// The place of a candidate in a list by place, or where it would be.
fn find(list: &[Arc<RollingCandidate>], candidate: &RollingCandidate) -> Result<usize, usize> {
    list.binary_search_by(|one| (**one).cmp(candidate))
}

/// The candidates of a list by place that another one lacks.
fn added<'a>(
    list: &'a [Arc<RollingCandidate>],
    before: &'a [Arc<RollingCandidate>],
) -> impl Iterator<Item = &'a Arc<RollingCandidate>> {
    let mut before = before.iter().peekable();
    list.iter().filter(move |one| {
        // Most of them are in both, and are compared by their addresses first.
        let is_ahead = |known: &&Arc<RollingCandidate>| *known != *one && *known < *one;
        while before.next_if(is_ahead).is_some() {}
        before.next_if_eq(one).is_none()
    })
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

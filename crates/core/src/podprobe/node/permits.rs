//! Permits for runs: how many may be under way at once in one pod, in one namespace and on the node, and who waits.
//! Commands have permits of their own, and so have connections (`runs`).
//!
//! containerd stalls for seconds to minutes when some twenty commands start in one container at once (measured with
//! containerd 1.6), and so do all probes then. A connection takes memory and a descriptor of the agent. Either may hang
//! until its timeout, and keeps its permit as long. So permits are divided:
//!
//! - The first permit of a namespace is granted as long as one is free.
//! - A further one within its share is granted only if as many stay free as there are namespaces with such probes that have
//!   none, and at least a share, for those to come. The shares of all together are a quarter of all permits. With up to
//!   [`SHARES`] namespaces they do not depend on the number of these, which grows while probes hang.
//! - One beyond its share is granted only if at least a quarter stays free.
//! - Beside other namespaces, one has at most half of all. A pod has at most `per_pod`, and beside other pods at most
//!   half of what its namespace may have.
//!
//! So as long as the node has no more namespaces with such probes than permits, a namespace that runs none starts its
//! next one at once, whatever hangs in the others. It has its share too: whoever was the last to be granted one beyond its
//! share left a quarter free, and needs none of it to have its own; the others, if they all hang, take less than that
//! quarter by a share. Waiting runs are served round-robin by namespace, within a namespace round-robin by pod, and within
//! a pod in the order of arrival.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use super::key::PodIdentity;
use crate::cluster::{RoundRobin, TurnQueue};

/// The quarter that is divided into shares is divided into at least so many.
const SHARES: usize = 10;

/// The permits, and the queue for them. `T` identifies a run to the caller.
#[derive(Debug)]
pub(super) struct RunPermits<T> {
    per_pod: usize,
    per_node: usize,
    taken: usize,
    /// Permits taken; no count is 0.
    by_pod: HashMap<PodIdentity, usize>,
    by_namespace: HashMap<Arc<str>, usize>,
    /// How many pods of each namespace have such probes in the plan.
    planned: HashMap<Arc<str>, usize>,
    /// How many namespaces in `planned` have no permit.
    planned_without: usize,
    /// Runs by namespace, then by the pod's uid.
    waiting: RoundRobin<RoundRobin<VecDeque<(PodIdentity, T)>>>,
}

impl<T: PartialEq> RunPermits<T> {
    /// All permits free; at least one of each kind.
    pub(super) fn new(per_pod: usize, per_node: usize) -> Self {
        Self {
            per_pod: per_pod.max(1),
            per_node: per_node.max(1),
            taken: 0,
            by_pod: HashMap::new(),
            by_namespace: HashMap::new(),
            planned: HashMap::new(),
            planned_without: 0,
            waiting: RoundRobin::default(),
        }
    }

    /// Sets how many pods of each namespace have such probes. [`RunPermits::grant_next`] may grant permits then.
    pub(super) fn set_pods(&mut self, pods: HashMap<Arc<str>, usize>) {
        self.planned = pods;
        let without = self
            .planned
            .keys()
            .filter(|namespace| !self.by_namespace.contains_key(*namespace));
        self.planned_without = without.count();
    }

    /// Takes a permit and returns true, or queues the run.
    pub(super) fn acquire_or_wait(&mut self, pod: &PodIdentity, who: T) -> bool {
        // Overtakes nobody who could start: whenever a permit is released or the limits change,
        // `grant_next` is asked until it grants none.
        if self.may_take(pod) {
            self.take_permit(pod);
            return true;
        }
        let pods = self.waiting.queue_of(&pod.namespace);
        pods.queue_of(&pod.uid).push_back((pod.clone(), who));
        false
    }

    pub(super) fn release_permit(&mut self, pod: &PodIdentity) {
        debug_assert!(self.taken > 0, "a permit is released once");
        self.taken = self.taken.saturating_sub(1);
        decrement_count(&mut self.by_pod, pod);
        if decrement_count(&mut self.by_namespace, &pod.namespace) {
            self.planned_without += usize::from(self.planned.contains_key(&pod.namespace));
        }
    }

    /// Grants a free permit to the first run that may have it; its namespace and its pod are served last then.
    pub(super) fn grant_next(&mut self) -> Option<T> {
        let mut waiting = std::mem::take(&mut self.waiting);
        // The first that may have one: who is at its limit holds up nobody behind it. The namespace first, so that one
        // with a thousand pods that wait costs the runs of others no time.
        let granted = waiting.take_next(|namespace, pods| {
            let limit = self.limit_left_to(namespace)?;
            pods.take_next(|_, queue| {
                queue.pop_front_if(|(pod, _)| self.has_room_in_pod(pod, limit))
            })
        });
        self.waiting = waiting;
        let (pod, who) = granted?;
        self.take_permit(&pod);
        Some(who)
    }

    /// Removes a run of this pod from the queue.
    pub(super) fn cancel_waiting(&mut self, pod: &PodIdentity, who: &T) {
        self.waiting.take_from(&pod.namespace, |pods| {
            pods.take_from(&pod.uid, |queue| {
                let index = queue.iter().position(|(_, waiting)| waiting == who)?;
                queue.remove(index)
            })
        });
    }

    /// Runs in the queue.
    pub(super) fn queued_runs(&self) -> usize {
        self.waiting.len()
    }

    /// Permits taken.
    pub(super) fn taken_permits(&self) -> usize {
        self.taken
    }

    fn may_take(&self, pod: &PodIdentity) -> bool {
        let limit = self.limit_left_to(&pod.namespace);
        limit.is_some_and(|limit| self.has_room_in_pod(pod, limit))
    }

    /// How many permits the namespace may have, if it may take another one.
    fn limit_left_to(&self, namespace: &Arc<str>) -> Option<usize> {
        let has = count_of(&self.by_namespace, namespace);
        let limit = self.limit_of_namespace(namespace);
        let quarter = self.per_node / 4;
        let share = quarter / self.planned.len().max(SHARES);
        // A namespace that the next plan brings is in no count yet. Its first run must not wait for runs that may
        // hang until their timeout.
        let reserved = match has {
            0 => 0,
            _ if has < share => self.planned_without.max(share),
            _ => self.planned_without.max(quarter),
        };
        (self.per_node - self.taken > reserved && has < limit).then_some(limit)
    }

    fn has_room_in_pod(&self, pod: &PodIdentity, limit_of_namespace: usize) -> bool {
        count_of(&self.by_pod, pod) < self.limit_of_pod(&pod.namespace, limit_of_namespace)
    }

    fn limit_of_namespace(&self, namespace: &Arc<str>) -> usize {
        let others = self.planned.keys().any(|planned| planned != namespace);
        halve_beside_others(others, self.per_node)
    }

    fn limit_of_pod(&self, namespace: &Arc<str>, limit_of_namespace: usize) -> usize {
        let others = count_of(&self.planned, namespace) > 1;
        self.per_pod
            .min(halve_beside_others(others, limit_of_namespace))
    }

    fn take_permit(&mut self, pod: &PodIdentity) {
        self.taken += 1;
        debug_assert!(
            self.taken <= self.per_node,
            "no more permits than there are"
        );
        *self.by_pod.entry(pod.clone()).or_default() += 1;
        let of_namespace = self.by_namespace.entry(pod.namespace.clone()).or_default();
        *of_namespace += 1;
        if *of_namespace == 1 && self.planned.contains_key(&pod.namespace) {
            self.planned_without -= 1;
        }
    }
}

fn halve_beside_others(others: bool, permits: usize) -> usize {
    // Rounded up: half of a single permit would be none, and nothing would ever run.
    if others { permits.div_ceil(2) } else { permits }
}

fn count_of<K: Eq + Hash>(counts: &HashMap<K, usize>, of: &K) -> usize {
    counts.get(of).copied().unwrap_or(0)
}

/// Returns whether it was the last one.
fn decrement_count<K: Eq + Hash>(counts: &mut HashMap<K, usize>, of: &K) -> bool {
    let Some(count) = counts.get_mut(of) else {
        return false;
    };
    *count -= 1;
    let is_last = *count == 0;
    // `planned_without` counts those without a key, so a count of 0 would pass for a permit.
    if is_last {
        counts.remove(of);
    }
    is_last
}

#[cfg(test)]
mod tests;

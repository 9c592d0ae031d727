//! Permits for runs: how many may be under way at once in one pod, in one namespace and on the node, and who waits.
//! Commands have permits of their own, and so have connections (`runs`).
//!
//! containerd stalls for seconds to minutes when some twenty commands start in one container at once (measured with
//! containerd 1.6), and so do all probes then. A connection takes memory and a descriptor of the agent. Either may hang
//! until its timeout, and keeps its permit as long. So permits are divided:
//!
//! - The first permit of a namespace is granted as long as one is free.
//! - A further one is granted only if as many stay free as there are namespaces with such probes that have none, and at
//!   least a quarter of all, for namespaces to come.
//! - Beside other namespaces, one has at most half of all. A pod has at most `per_pod`, and beside other pods at most
//!   half of what its namespace may have.
//!
//! So as long as the node has no more namespaces with such probes than permits, a namespace that runs none starts its
//! next one at once, whatever hangs in the others. Waiting runs are served round-robin by namespace, within a namespace
//! round-robin by pod, and within a pod in the order of arrival.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use super::key::PodIdentity;

/// Queues that are served round-robin, each with its name.
type RoundRobin<K, Q> = VecDeque<(K, Q)>;

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
    /// Runs by namespace, then by pod. No queue is empty.
    waiting: RoundRobin<Arc<str>, RoundRobin<PodIdentity, VecDeque<T>>>,
    /// Runs in `waiting`.
    queued: usize,
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
            waiting: VecDeque::new(),
            queued: 0,
        }
    }

    /// Sets how many pods of each namespace have such probes. [`RunPermits::grant_next`] may grant permits then.
    pub(super) fn set_pods(&mut self, pods: HashMap<Arc<str>, usize>) {
        self.planned = pods;
        let without = self.planned.keys();
        let without = without.filter(|namespace| !self.by_namespace.contains_key(*namespace));
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
        let pods = queue_of(&mut self.waiting, &pod.namespace);
        queue_of(pods, pod).push_back(who);
        self.queued += 1;
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
        let (first, second) = self.waiting.iter().enumerate().find_map(|(first, queue)| {
            let (namespace, pods) = queue;
            // The first that may have one: who is at its limit holds up nobody behind it. The namespace first, so that one
            // with a thousand pods that wait costs the runs of others no time.
            let limit = self.limit_left_to(namespace)?;
            let mut pods = pods.iter();
            let second = pods.position(|(pod, _)| self.has_room_in_pod(pod, limit));
            Some((first, second?))
        })?;
        let (namespace, mut pods) = self.waiting.remove(first)?;
        let (pod, mut queue) = pods.remove(second)?;
        let who = queue.pop_front()?;
        self.queued -= 1;
        self.take_permit(&pod);
        if !queue.is_empty() {
            // At the end, so that the next permit goes to another pod of the namespace, and to another namespace before
            // that.
            pods.push_back((pod, queue));
        }
        if !pods.is_empty() {
            self.waiting.push_back((namespace, pods));
        }
        Some(who)
    }

    /// Removes a run from the queue.
    pub(super) fn cancel_waiting(&mut self, who: &T) {
        // A walk through the whole queue: it has at most one run of each probe, and only edits and restarts of
        // containers cancel any.
        self.waiting.retain_mut(|(_, pods)| {
            pods.retain_mut(|(_, queue)| {
                let before = queue.len();
                queue.retain(|waiting| waiting != who);
                self.queued -= before - queue.len();
                !queue.is_empty()
            });
            !pods.is_empty()
        });
    }

    /// Runs in the queue.
    pub(super) fn queued_runs(&self) -> usize {
        self.queued
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
        // The reserve is kept for first permits, so only further ones leave it alone.
        let reserved = if has == 0 {
            0
        } else {
            // A namespace that the next plan brings is in no count yet. Its first run must not wait for runs that may
            // hang until their timeout.
            self.planned_without.max(self.per_node / 4)
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

/// The queue of this name, at the end when it is new.
fn queue_of<'a, K: Clone + Eq, Q: Default>(
    queues: &'a mut RoundRobin<K, Q>,
    name: &K,
) -> &'a mut Q {
    let known = queues.iter().position(|(of, _)| of == name);
    let index = known.unwrap_or_else(|| {
        queues.push_back((name.clone(), Q::default()));
        queues.len() - 1
    });
    &mut queues[index].1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod(namespace: usize, pod: usize) -> PodIdentity {
        PodIdentity {
            namespace: format!("ns{namespace}").into(),
            name: format!("p{pod}").into(),
            uid: format!("{namespace}/{pod}").into(),
        }
    }

    /// So many namespaces, each with so many pods that have commands.
    fn planned(namespaces: usize, pods: usize) -> HashMap<Arc<str>, usize> {
        let names = (0..namespaces).map(|number| pod(number, 0).namespace);
        names.map(|name| (name, pods)).collect()
    }

    // PRB-14
    #[test]
    fn pods_that_share_a_uid_share_no_permits() {
        let (a, mut b) = (pod(0, 0), pod(1, 0));
        b.uid = a.uid.clone();
        let mut permits = RunPermits::new(1, 3);
        assert!(permits.acquire_or_wait(&a, 1));
        assert!(permits.acquire_or_wait(&b, 2));
    }

    // PRB-14
    #[test]
    fn both_limits_hold_and_the_order_of_a_pod_is_kept() {
        let (a, b) = (pod(0, 0), pod(0, 1));
        let mut permits = RunPermits::new(2, 3);
        permits.set_pods(planned(1, 2));
        let entered: Vec<bool> = [(&a, 1), (&a, 2), (&a, 3), (&b, 4), (&b, 5), (&a, 6)]
            .map(|(pod, who)| permits.acquire_or_wait(pod, who))
            .into();
        assert_eq!(entered, [true, true, false, true, false, false]);
        assert_eq!(permits.grant_next(), None);
        permits.release_permit(&b);
        assert_eq!(
            permits.grant_next(),
            Some(5),
            "pod a is full, so 3 is passed over"
        );
        permits.cancel_waiting(&3);
        permits.release_permit(&a);
        assert_eq!(permits.grant_next(), Some(6));
        assert_eq!((permits.queued_runs(), permits.taken_permits()), (0, 3));
    }

    // PRB-14
    #[test]
    fn who_waits_is_served_by_namespace_then_by_pod() {
        let mut permits = RunPermits::new(1, 1);
        permits.set_pods(planned(2, 2));
        let busy = pod(0, 0);
        assert!(permits.acquire_or_wait(&busy, "runs"));
        for (namespace, number, who) in [
            (0, 0, "a0 first"),
            (0, 0, "a0 second"),
            (0, 0, "a0 third"),
            (0, 1, "a1"),
            (1, 0, "b0"),
        ] {
            assert!(!permits.acquire_or_wait(&pod(namespace, number), who));
        }
        let mut served = Vec::new();
        let mut running = busy;
        while permits.taken_permits() > 0 {
            permits.release_permit(&running);
            let Some(who) = permits.grant_next() else {
                break;
            };
            let number = usize::from(who == "a1");
            running = pod(usize::from(who.starts_with('b')), number);
            served.push(who);
        }
        assert_eq!(served, ["a0 first", "b0", "a1", "a0 second", "a0 third"]);
    }

    // PRB-14
    #[test]
    fn what_hangs_in_one_namespace_leaves_room_for_those_that_come() {
        let mut permits = RunPermits::new(4, 16);
        permits.set_pods(planned(1, 100));
        for number in 0..100 {
            permits.acquire_or_wait(&pod(0, number), number);
        }
        assert_eq!(permits.taken_permits(), 12);
        for namespace in 1..=4 {
            permits.set_pods(planned(namespace + 1, 100));
            assert!(permits.acquire_or_wait(&pod(namespace, 0), 1_000 + namespace));
        }
    }

    #[derive(Clone, Debug)]
    enum PermitStep {
        /// A command of this pod of this namespace is due.
        Due(usize, usize),
        /// The command that has run for so long that so many began after it ends.
        End(usize),
    }

    fn steps(namespaces: usize) -> impl Strategy<Value = Vec<PermitStep>> {
        let step = prop_oneof![
            3 => (0..namespaces, 0..4_usize).prop_map(|(namespace, pod)| PermitStep::Due(namespace, pod)),
            1 => (0..8_usize).prop_map(PermitStep::End),
        ];
        prop::collection::vec(step, 1..200)
    }

    fn histories() -> impl Strategy<Value = (usize, usize, usize, Vec<PermitStep>)> {
        (1..20_usize, 1..6_usize).prop_flat_map(|(per_node, per_pod)| {
            (1..=per_node).prop_flat_map(move |namespaces| {
                (
                    Just(per_node),
                    Just(per_pod),
                    Just(namespaces),
                    steps(namespaces),
                )
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

        // PRB-14
        #[test]
        fn a_namespace_without_a_command_begins_its_next_at_once_and_nobody_with_room_waits(
            (per_node, per_pod, namespaces, steps) in histories()
        ) {
            let mut permits = RunPermits::new(per_pod, per_node);
            permits.set_pods(planned(namespaces, 4));
            let mut running: Vec<(usize, PodIdentity)> = Vec::new();
            let mut waiting: HashMap<usize, PodIdentity> = HashMap::new();
            for (who, step) in steps.into_iter().enumerate() {
                match step {
                    PermitStep::Due(namespace, number) => {
                        let pod = pod(namespace, number);
                        let first = running.iter().all(|(_, of)| of.namespace != pod.namespace);
                        let began = permits.acquire_or_wait(&pod, who);
                        prop_assert!(began || !first, "{pod:?} has no command running and waits");
                        if began {
                            running.push((who, pod));
                        } else {
                            waiting.insert(who, pod);
                        }
                    }
                    PermitStep::End(ago) if ago < running.len() => {
                        let (_, pod) = running.remove(running.len() - 1 - ago);
                        permits.release_permit(&pod);
                        while let Some(who) = permits.grant_next() {
                            running.push((who, waiting.remove(&who).unwrap()));
                        }
                    }
                    PermitStep::End(_) => {}
                }
                prop_assert!(waiting.values().all(|pod| !permits.may_take(pod)));
                let without = permits.planned.keys().filter(|planned| !permits.by_namespace.contains_key(*planned));
                prop_assert_eq!(permits.planned_without, without.count());
                prop_assert_eq!((permits.taken_permits(), permits.queued_runs()), (running.len(), waiting.len()));
                let half = per_node.div_ceil(2);
                for (_, pod) in &running {
                    let of_pod = running.iter().filter(|(_, of)| of == pod).count();
                    let same = running.iter().filter(|(_, of)| of.namespace == pod.namespace);
                    prop_assert!(of_pod <= per_pod);
                    prop_assert!(namespaces == 1 || same.count() <= half);
                }
            }
        }
    }
}

//! How many commands may run at once, in one pod, in one namespace and on the node, and who waits for a place.
//!
//! A container runtime stalls for minutes when many commands start in one container at once, and then all probes do.
//! And a command may hang for as long as its timeout is, with its place, so places are shared out:
//!
//! - The first place is any namespace's own, as long as one is free.
//! - A further one it takes only if as many stay free as there are namespaces on the node that have none, and a quarter
//!   of all at least, for those that come.
//! - Beside other namespaces it has half of all at most. A pod has as many as a pod may have at most, and beside other
//!   pods half of what its namespace may have.
//!
//! So while the node has no more namespaces with commands than places, one that has no command running begins its next
//! at once, whatever hangs in the others. Who waits is served in turn: namespace by namespace, in each pod by pod, in
//! each in the order of arrival.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use super::PodName;

/// Queues that are served in turn.
type Turns<K, Q> = VecDeque<(K, Q)>;

/// The places, and the queue for them: `T` is whatever the caller knows a command by.
#[derive(Debug)]
pub(super) struct Execs<T> {
    per_pod: usize,
    per_node: usize,
    taken: usize,
    /// Places taken by pod and by namespace; none is 0.
    by_pod: HashMap<PodName, usize>,
    by_namespace: HashMap<Arc<str>, usize>,
    /// Pods with commands in the plan, by namespace.
    planned: HashMap<Arc<str>, usize>,
    /// By namespace, then by pod. No queue is empty.
    waiting: Turns<Arc<str>, Turns<PodName, VecDeque<T>>>,
}

impl<T: PartialEq> Execs<T> {
    /// All places free. Of each kind there is at least one.
    pub(super) fn new(per_pod: usize, per_node: usize) -> Self {
        Self {
            per_pod: per_pod.max(1),
            per_node: per_node.max(1),
            taken: 0,
            by_pod: HashMap::new(),
            by_namespace: HashMap::new(),
            planned: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Says how many pods of each namespace have commands. There may be room for others then.
    pub(super) fn plan(&mut self, pods: HashMap<Arc<str>, usize>) {
        self.planned = pods;
    }

    /// Takes a place if there is one, else waits in line.
    pub(super) fn enter(&mut self, pod: &PodName, who: T) -> bool {
        if self.has_room(pod) {
            self.occupy(pod);
            return true;
        }
        let pods = line_of(&mut self.waiting, &pod.namespace);
        line_of(pods, pod).push_back(who);
        false
    }

    /// Gives a place back.
    pub(super) fn leave(&mut self, pod: &PodName) {
        debug_assert!(self.taken > 0, "a place is given back once");
        self.taken = self.taken.saturating_sub(1);
        take_one(&mut self.by_pod, pod);
        take_one(&mut self.by_namespace, &pod.namespace);
    }

    /// Gives a free place to the first in line that may have it; its namespace and pod go to the end of their lines.
    pub(super) fn admit(&mut self) -> Option<T> {
        let (first, second) = self.waiting.iter().enumerate().find_map(|(first, line)| {
            let (_, pods) = line;
            let second = pods.iter().position(|(pod, _)| self.has_room(pod));
            Some((first, second?))
        })?;
        let (namespace, mut pods) = self.waiting.remove(first)?;
        let (pod, mut line) = pods.remove(second)?;
        let who = line.pop_front()?;
        self.occupy(&pod);
        if !line.is_empty() {
            pods.push_back((pod, line));
        }
        if !pods.is_empty() {
            self.waiting.push_back((namespace, pods));
        }
        Some(who)
    }

    /// Takes one that waits out of the line.
    pub(super) fn forget(&mut self, who: &T) {
        self.waiting.retain_mut(|(_, pods)| {
            pods.retain_mut(|(_, line)| {
                line.retain(|waiting| waiting != who);
                !line.is_empty()
            });
            !pods.is_empty()
        });
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        let pods = self.waiting.iter().flat_map(|(_, pods)| pods);
        pods.map(|(_, line)| line.len()).sum()
    }

    /// How many places are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    fn has_room(&self, pod: &PodName) -> bool {
        let namespace = &pod.namespace;
        let of_namespace = count(&self.by_namespace, namespace);
        let of_pod = count(&self.by_pod, pod);
        let free = self.per_node - self.taken;
        let most = self.most_of_namespace(namespace);
        let room_on_node = free > if of_namespace == 0 { 0 } else { self.kept() };
        room_on_node && of_namespace < most && of_pod < self.most_of_pod(namespace, most)
    }

    /// Places that no namespace takes as a further one.
    fn kept(&self) -> usize {
        let without = self.planned.keys();
        let without = without.filter(|namespace| !self.by_namespace.contains_key(*namespace));
        without.count().max(self.per_node / 4)
    }

    fn most_of_namespace(&self, namespace: &Arc<str>) -> usize {
        let others = self.planned.keys().any(|planned| planned != namespace);
        half_if(others, self.per_node)
    }

    fn most_of_pod(&self, namespace: &Arc<str>, most_of_namespace: usize) -> usize {
        let others = count(&self.planned, namespace) > 1;
        self.per_pod.min(half_if(others, most_of_namespace))
    }

    fn occupy(&mut self, pod: &PodName) {
        self.taken += 1;
        debug_assert!(self.taken <= self.per_node, "no more places than there are");
        *self.by_pod.entry(pod.clone()).or_default() += 1;
        *self.by_namespace.entry(pod.namespace.clone()).or_default() += 1;
    }
}

fn half_if(others: bool, places: usize) -> usize {
    if others { places.div_ceil(2) } else { places }
}

fn count<K: Eq + Hash>(counts: &HashMap<K, usize>, of: &K) -> usize {
    counts.get(of).copied().unwrap_or(0)
}

fn take_one<K: Eq + Hash>(counts: &mut HashMap<K, usize>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
    }
}

/// The queue of this name, at the end when it is new.
fn line_of<'a, K: Clone + Eq, Q: Default>(lines: &'a mut Turns<K, Q>, name: &K) -> &'a mut Q {
    let known = lines.iter().position(|(of, _)| of == name);
    let place = known.unwrap_or_else(|| {
        lines.push_back((name.clone(), Q::default()));
        lines.len() - 1
    });
    &mut lines[place].1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod(namespace: usize, pod: usize) -> PodName {
        PodName {
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
    fn pods_that_share_a_uid_share_no_places() {
        let (a, mut b) = (pod(0, 0), pod(1, 0));
        b.uid = a.uid.clone();
        let mut execs = Execs::new(1, 3);
        assert!(execs.enter(&a, 1));
        assert!(execs.enter(&b, 2));
    }

    // PRB-14
    #[test]
    fn both_limits_hold_and_the_order_of_a_pod_is_kept() {
        let (a, b) = (pod(0, 0), pod(0, 1));
        let mut execs = Execs::new(2, 3);
        execs.plan(planned(1, 2));
        let entered: Vec<bool> = [(&a, 1), (&a, 2), (&a, 3), (&b, 4), (&b, 5), (&a, 6)]
            .map(|(pod, who)| execs.enter(pod, who))
            .into();
        assert_eq!(entered, [true, true, false, true, false, false]);
        assert_eq!(execs.admit(), None);
        execs.leave(&b);
        assert_eq!(execs.admit(), Some(5), "pod a is full, so 3 is passed over");
        execs.forget(&3);
        execs.leave(&a);
        assert_eq!(execs.admit(), Some(6));
        assert_eq!((execs.waiting(), execs.taken()), (0, 3));
    }

    // PRB-14
    #[test]
    fn who_waits_is_served_by_namespace_then_by_pod() {
        let mut execs = Execs::new(1, 1);
        execs.plan(planned(2, 2));
        let busy = pod(0, 0);
        assert!(execs.enter(&busy, "runs"));
        for (namespace, number, who) in [
            (0, 0, "a0 first"),
            (0, 0, "a0 second"),
            (0, 0, "a0 third"),
            (0, 1, "a1"),
            (1, 0, "b0"),
        ] {
            assert!(!execs.enter(&pod(namespace, number), who));
        }
        let mut served = Vec::new();
        let mut running = busy;
        while execs.taken() > 0 {
            execs.leave(&running);
            let Some(who) = execs.admit() else { break };
            let number = usize::from(who == "a1");
            running = pod(usize::from(who.starts_with('b')), number);
            served.push(who);
        }
        assert_eq!(served, ["a0 first", "b0", "a1", "a0 second", "a0 third"]);
    }

    // PRB-14
    #[test]
    fn what_hangs_in_one_namespace_leaves_room_for_those_that_come() {
        let mut execs = Execs::new(4, 16);
        execs.plan(planned(1, 100));
        for number in 0..100 {
            execs.enter(&pod(0, number), number);
        }
        assert_eq!(execs.taken(), 12);
        for namespace in 1..=4 {
            execs.plan(planned(namespace + 1, 100));
            assert!(execs.enter(&pod(namespace, 0), 1_000 + namespace));
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// A command of this pod of this namespace is due.
        Due(usize, usize),
        /// The command that has run for so long that so many began after it ends.
        End(usize),
    }

    fn steps(namespaces: usize) -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..namespaces, 0..4_usize).prop_map(|(namespace, pod)| Step::Due(namespace, pod)),
            1 => (0..8_usize).prop_map(Step::End),
        ];
        prop::collection::vec(step, 1..200)
    }

    fn histories() -> impl Strategy<Value = (usize, usize, usize, Vec<Step>)> {
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
            let mut execs = Execs::new(per_pod, per_node);
            execs.plan(planned(namespaces, 4));
            let mut running: Vec<(usize, PodName)> = Vec::new();
            let mut waiting: HashMap<usize, PodName> = HashMap::new();
            for (who, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Due(namespace, number) => {
                        let pod = pod(namespace, number);
                        let first = running.iter().all(|(_, of)| of.namespace != pod.namespace);
                        let began = execs.enter(&pod, who);
                        prop_assert!(began || !first, "{pod:?} has no command running and waits");
                        if began {
                            running.push((who, pod));
                        } else {
                            waiting.insert(who, pod);
                        }
                    }
                    Step::End(ago) if ago < running.len() => {
                        let (_, pod) = running.remove(running.len() - 1 - ago);
                        execs.leave(&pod);
                        while let Some(who) = execs.admit() {
                            running.push((who, waiting.remove(&who).unwrap()));
                        }
                    }
                    Step::End(_) => {}
                }
                prop_assert!(waiting.values().all(|pod| !execs.has_room(pod)));
                prop_assert_eq!((execs.taken(), execs.waiting()), (running.len(), waiting.len()));
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

//! Whose pods are planned next, and how many of them before the process may do something else.
//!
//! What a pod costs is decided by the markers that match it, and how often by whoever changes it: both are authors of one
//! namespace. So a namespace has a share of the work between two turns; what goes beyond it waits, and is planned in
//! turns of the namespaces. A pod that changes while it waits is planned once. Between the turns the process takes in
//! events, writes, and renews its Lease.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::context::{MarkerName, PodName};
use crate::cluster::{RoundRobin, TurnQueue};
use crate::podprobe::marker::MARKERS_PER_NAMESPACE;

/// The work of one turn: about as many probes and comparisons of selectors, which are milliseconds.
const TURN: usize = 4096;
/// What each pod costs at least, in the same unit.
pub(super) const POD: usize = 16;
/// All namespaces together do so many times the work of one before the rest waits.
const NAMESPACES: usize = 4;

// A pod is planned as a whole, however much work it is.
const _: () = assert!(MARKERS_PER_NAMESPACE < TURN);

/// How long the objects of nodes wait for pods that wait. An edit of a marker affects pods of many nodes: each object is
/// written once if it waits for all of them, and no namespace whose pods wait all the time may hold up its neighbours.
const LONGEST_HOLD: Duration = Duration::from_secs(1);

/// The pods that wait to be planned.
#[derive(Debug)]
pub(super) struct PlanningTurns {
    /// The work of one turn.
    size: usize,
    spent: HashMap<String, usize>,
    spent_by_all: usize,
    waiting: RoundRobin<BTreeSet<PodName>>,
    /// Namespaces of which no pod waits any more since they were last taken.
    drained: Vec<String>,
    /// Markers that wait to be compared until no pod of their namespace does, by namespace.
    held_markers: HashMap<String, BTreeSet<MarkerName>>,
    /// The pods that were there when writing began. All are planned before anything is written: what no pod wants yet
    /// would be removed.
    first_round: BTreeSet<PodName>,
    /// Until when the objects of nodes wait.
    held_until: Option<Duration>,
}

impl Default for PlanningTurns {
    fn default() -> Self {
        Self {
            size: TURN,
            spent: HashMap::new(),
            spent_by_all: 0,
            waiting: RoundRobin::default(),
            drained: Vec::new(),
            held_markers: HashMap::new(),
            first_round: BTreeSet::new(),
            held_until: None,
        }
    }
}

impl PlanningTurns {
    /// Begins anew with these pods, which are all.
    pub(super) fn begin_first_round(&mut self, pods: BTreeSet<PodName>) {
        self.begin_turn();
        self.waiting = RoundRobin::default();
        // All are compared after the first round.
        self.held_markers.clear();
        self.first_round = pods;
    }

    /// Whether pods of the first round are left.
    pub(super) fn is_first_round(&self) -> bool {
        !self.first_round.is_empty()
    }

    /// The next pod of the first round, if this turn has work left.
    pub(super) fn next_of_first_round(&mut self) -> Option<PodName> {
        let has_work = self.spent_by_all < NAMESPACES * self.size;
        has_work.then(|| self.first_round.pop_first()).flatten()
    }

    /// Whether a pod may be planned at once. If not, it waits.
    pub(super) fn may_plan(&mut self, pod: &PodName) -> bool {
        let namespace = &pod.namespace;
        let spent = self.spent.get(namespace);
        let may = !self.is_waiting(namespace)
            && spent.is_none_or(|spent| *spent < self.size)
            && self.spent_by_all < NAMESPACES * self.size;
        if !may {
            let waiting = self.waiting.queue_of(namespace);
            waiting.insert(pod.clone());
        }
        may
    }

    /// Counts the work that a pod was.
    pub(super) fn count_work(&mut self, pod: &PodName, work: usize) {
        self.spent_by_all += work;
        match self.spent.get_mut(&pod.namespace) {
            Some(spent) => *spent += work,
            None => {
                self.spent.insert(pod.namespace.clone(), work);
            }
        }
    }

    /// Begins a turn: every namespace has its share again, and another one is first.
    pub(super) fn begin_turn(&mut self) {
        // Nothing is taken, but who had work in the last turn is the last one then.
        let has_begun = |namespace: &Arc<str>| self.spent.contains_key(&**namespace);
        self.waiting
            .take_next(|namespace, _| has_begun(namespace).then_some(()));
        self.spent.clear();
        self.spent_by_all = 0;
    }

    /// The next waiting pod, if this turn has work left. By cost: a namespace goes on until its share of this turn is spent,
    /// and not in the next turn.
    pub(super) fn next_waiting(&mut self) -> Option<PodName> {
        if self.spent_by_all >= self.size {
            return None;
        }
        let namespace = self.waiting.iter().next()?.0.clone();
        self.take_from(&namespace, BTreeSet::pop_first)
    }

    /// Takes a pod that waits out of its turn. Returns whether it did wait.
    pub(super) fn take_waiting(&mut self, pod: &PodName) -> bool {
        let taken = self.take_from(&pod.namespace, |pods| pods.take(pod));
        taken.is_some()
    }

    fn take_from(
        &mut self,
        namespace: &str,
        take: impl FnOnce(&mut BTreeSet<PodName>) -> Option<PodName>,
    ) -> Option<PodName> {
        let pod = self.waiting.take_from(namespace, take)?;
        if !self.is_waiting(namespace) {
            self.drained.push(namespace.to_owned());
        }
        Some(pod)
    }

    /// Whether the objects of nodes wait, because pods do. Asked before each comparison of these objects: if they are not
    /// held, they are compared, and may be held anew.
    pub(super) fn hold_nodes(&mut self, now: Duration) -> bool {
        let until = *self.held_until.get_or_insert(now + LONGEST_HOLD);
        let holds = !self.waiting.is_empty() && now < until;
        if !holds {
            self.held_until = None;
        }
        holds
    }

    /// Whether a pod of a namespace waits.
    pub(super) fn is_waiting(&self, namespace: &str) -> bool {
        self.waiting.contains(namespace)
    }

    /// Whether a marker may be compared at once. If not, it is held.
    pub(super) fn may_compare(&mut self, marker: &MarkerName) -> bool {
        let waits = self.is_waiting(&marker.namespace);
        if waits {
            let held = self.held_markers.entry(marker.namespace.clone());
            held.or_default().insert(marker.clone());
        }
        !waits
    }

    /// The markers that were held for pods of which none waits any more.
    pub(super) fn take_held_markers(&mut self) -> Vec<MarkerName> {
        let drained = std::mem::take(&mut self.drained).into_iter();
        let held = drained.filter_map(|namespace| self.held_markers.remove(&namespace));
        held.flatten().collect()
    }

    /// Whether no pod waits.
    pub(super) fn are_over(&self) -> bool {
        self.waiting.is_empty() && self.first_round.is_empty()
    }

    /// So that a few pods are more than one turn.
    #[cfg(test)]
    pub(super) fn set_size(&mut self, size: usize) {
        self.size = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ObjectName;

    fn pod(namespace: &str, own: &str) -> PodName {
        Arc::new(ObjectName {
            namespace: namespace.to_owned(),
            name: own.to_owned(),
        })
    }

    /// Each pod is half a turn.
    fn turns() -> PlanningTurns {
        PlanningTurns {
            size: 2,
            ..PlanningTurns::default()
        }
    }

    fn plan_at_once(turns: &mut PlanningTurns, pod: &PodName) -> bool {
        let may = turns.may_plan(pod);
        if may {
            turns.count_work(pod, 1);
        }
        may
    }

    /// The pods of one turn, by namespace.
    fn take_turn(turns: &mut PlanningTurns) -> Vec<String> {
        turns.begin_turn();
        let next = || {
            let pod = turns.next_waiting()?;
            turns.count_work(&pod, 1);
            Some(pod.namespace.clone())
        };
        std::iter::from_fn(next).collect()
    }

    // PPM-20
    #[test]
    fn pods_of_a_busy_namespace_wait_and_those_of_others_do_not() {
        let mut turns = turns();
        for number in 0..6 {
            let at_once = plan_at_once(&mut turns, &pod("busy", &number.to_string()));
            assert_eq!(at_once, number < 2);
        }
        assert!(plan_at_once(&mut turns, &pod("quiet", "p")));
        assert!(turns.is_waiting("busy") && !turns.is_waiting("quiet"));
        let markers = ["busy", "quiet"].map(|namespace| pod(namespace, "m"));
        let compared = markers.each_ref().map(|one| turns.may_compare(one));
        assert_eq!(compared, [false, true]);
        assert!(turns.take_held_markers().is_empty());
        // Whatever changes of a pod while it waits, it is planned once.
        assert!(!plan_at_once(&mut turns, &pod("busy", "5")));
        let taken = [take_turn(&mut turns), take_turn(&mut turns)];
        assert_eq!(taken, [["busy", "busy"], ["busy", "busy"]]);
        assert!(turns.are_over());
        assert_eq!(turns.take_held_markers(), markers[..1]);
        assert!(turns.may_compare(&markers[0]));
        turns.begin_turn();
        assert!(plan_at_once(&mut turns, &pod("busy", "0")));
    }

    #[test]
    fn objects_of_nodes_wait_for_pods_but_not_for_long() {
        let mut turns = turns();
        let at = Duration::from_millis;
        assert!(!turns.hold_nodes(at(0)));
        let busy: Vec<_> = (0..6).map(|own| pod("busy", &own.to_string())).collect();
        for pod in &busy {
            plan_at_once(&mut turns, pod);
        }
        assert!(turns.hold_nodes(at(10)) && turns.hold_nodes(at(1_009)));
        assert!(
            !turns.hold_nodes(at(1_010)),
            "a namespace whose pods wait all the time"
        );
        assert!(turns.hold_nodes(at(1_011)));
        for pod in &busy {
            turns.take_waiting(pod);
        }
        assert!(!turns.hold_nodes(at(1_012)));
    }

    // PPM-20
    #[test]
    fn many_busy_namespaces_have_a_turn_each() {
        let mut turns = turns();
        for round in ["0", "1", "2", "3"] {
            for namespace in ["a", "b", "c", "d", "e"] {
                plan_at_once(&mut turns, &pod(namespace, round));
            }
        }
        // Four times two were planned at once, and `d`, which waits first, had work in this turn.
        let taken: Vec<_> = (0..6).flat_map(|_| take_turn(&mut turns)).collect();
        assert_eq!(taken.concat(), "eeaabbccdded");
        assert!(turns.are_over());
    }

    #[test]
    fn what_was_there_at_the_beginning_comes_first_and_in_pieces() {
        let mut turns = turns();
        turns.begin_first_round((0..10).map(|own| pod("a", &own.to_string())).collect());
        let mut pieces = Vec::new();
        while turns.is_first_round() {
            turns.begin_turn();
            let mut taken = 0;
            while let Some(pod) = turns.next_of_first_round() {
                turns.count_work(&pod, 1);
                taken += 1;
            }
            pieces.push(taken);
        }
        assert_eq!(pieces, [8, 2]);
    }
}

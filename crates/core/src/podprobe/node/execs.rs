//! How many commands may run at once, in one pod and on the node, and who waits for a place.
//!
//! A container runtime stalls for minutes when many commands start in one container at once, and then all probes do.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Who is waiting: `T` is whatever the caller knows it by.
#[derive(Debug)]
struct Waiting<T> {
    pod_uid: Arc<str>,
    who: T,
}

/// The places, and the queue for them.
#[derive(Debug)]
pub(super) struct Execs<T> {
    per_pod: usize,
    per_node: usize,
    taken: usize,
    by_pod: HashMap<Arc<str>, usize>,
    waiting: VecDeque<Waiting<T>>,
}

impl<T: PartialEq> Execs<T> {
    /// All places free. Of each kind there is at least one.
    pub(super) fn new(per_pod: usize, per_node: usize) -> Self {
        Self {
            per_pod: per_pod.max(1),
            per_node: per_node.max(1),
            taken: 0,
            by_pod: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Takes a place if there is one, else waits in line.
    pub(super) fn enter(&mut self, pod_uid: &Arc<str>, who: T) -> bool {
        if self.has_room(pod_uid) {
            self.occupy(pod_uid);
            return true;
        }
        self.waiting.push_back(Waiting {
            pod_uid: pod_uid.clone(),
            who,
        });
        false
    }

    /// Gives a place back.
    pub(super) fn leave(&mut self, pod_uid: &Arc<str>) {
        self.taken = self.taken.saturating_sub(1);
        if let Some(count) = self.by_pod.get_mut(pod_uid) {
            *count -= 1;
            if *count == 0 {
                self.by_pod.remove(pod_uid);
            }
        }
    }

    /// Gives a free place to the first in line whose pod has room, too.
    pub(super) fn admit(&mut self) -> Option<T> {
        let first = self
            .waiting
            .iter()
            .position(|waiting| self.has_room(&waiting.pod_uid))?;
        let Waiting { pod_uid, who } = self.waiting.remove(first)?;
        self.occupy(&pod_uid);
        Some(who)
    }

    /// Takes one that waits out of the line.
    pub(super) fn forget(&mut self, who: &T) {
        self.waiting.retain(|waiting| waiting.who != *who);
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many places are taken.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    fn has_room(&self, pod_uid: &Arc<str>) -> bool {
        let in_pod = self.by_pod.get(pod_uid).copied().unwrap_or(0);
        self.taken < self.per_node && in_pod < self.per_pod
    }

    fn occupy(&mut self, pod_uid: &Arc<str>) {
        self.taken += 1;
        *self.by_pod.entry(pod_uid.clone()).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // PRB-14
    #[test]
    fn both_limits_hold_and_the_order_is_kept() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut execs = Execs::new(2, 3);
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
}

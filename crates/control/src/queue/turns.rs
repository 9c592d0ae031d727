//! The ready targets of a class, taken in turn by namespace.
//!
//! Pods whose verdicts change all the time are ready all the time, and whoever may create pods decides how many there are.
//! First come, first served, a single mark of another namespace would wait for all of them; here it waits for one write
//! of each namespace that has work. Nor may the writes of one namespace, which a slow admission webhook may hold up, take
//! all places: in all classes together it has at most so many in flight, and beyond them one in each class.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use leadsman_reconcile::{RoundRobin, TurnQueue};

/// Ready targets by namespace. Those without a namespace have a turn of their own, and any number of places.
#[derive(Debug)]
pub(super) struct ReadyByNamespace<T> {
    ready: RoundRobin<VecDeque<T>>,
    /// Writes in flight; no count is 0.
    in_flight: HashMap<Arc<str>, usize>,
    namespace_of: fn(&T) -> Option<&str>,
}

impl<T> ReadyByNamespace<T> {
    pub(super) fn new(namespace_of: fn(&T) -> Option<&str>) -> Self {
        Self {
            ready: RoundRobin::default(),
            in_flight: HashMap::new(),
            namespace_of,
        }
    }

    pub(super) fn push(&mut self, target: T) {
        let namespace = (self.namespace_of)(&target).unwrap_or_default();
        self.ready.queue_of(namespace).push_back(target);
    }

    /// The first namespace that may have another write in flight: one that has none in this class, or not too many in all. The
    /// others before it are few: each has a good part of all places.
    pub(super) fn next_turn(&self, has_too_many: impl Fn(&str) -> bool) -> Option<Arc<str>> {
        let mut namespaces = self.ready.iter().map(|(namespace, _)| namespace);
        let next = namespaces.find(|namespace| {
            namespace.is_empty() || self.in_flight_of(namespace) == 0 || !has_too_many(namespace)
        });
        next.cloned()
    }

    /// Takes the target of the namespace whose turn it is. [`ReadyByNamespace::end_write`] must follow.
    pub(super) fn take_turn(&mut self, namespace: Arc<str>) -> Option<T> {
        let target = self
            .ready
            .take_next(|name, targets| targets.pop_front_if(|_| *name == namespace))?;
        *self.in_flight.entry(namespace).or_default() += 1;
        Some(target)
    }

    /// How many writes of a namespace are in flight.
    pub(super) fn in_flight_of(&self, namespace: &str) -> usize {
        self.in_flight.get(namespace).copied().unwrap_or_default()
    }

    pub(super) fn end_write(&mut self, target: &T) {
        let namespace = (self.namespace_of)(target).unwrap_or_default();
        let in_flight = self.in_flight.get_mut(namespace);
        debug_assert!(in_flight.is_some(), "what ends was in flight");
        if let Some(in_flight @ 2..) = in_flight {
            *in_flight -= 1;
        } else {
            self.in_flight.remove(namespace);
        }
    }

    /// Forgets all ready targets.
    pub(super) fn clear(&mut self) {
        self.ready = RoundRobin::default();
    }

    /// The number of ready targets.
    pub(super) fn len(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}

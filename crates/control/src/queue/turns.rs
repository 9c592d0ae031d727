//! The ready targets of a class, taken in turn by namespace.
//!
//! Pods whose verdicts change all the time are ready all the time, and whoever may create pods decides how many there are.
//! First come, first served, a single mark of another namespace would wait for all of them; here it waits for one write
//! of each namespace that has work. Nor may the writes of one namespace, which a slow admission webhook may hold up, take
//! all places: in all classes together it has at most so many in flight, and beyond them one in each class.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Ready targets by namespace. Those without a namespace have a turn of their own, and any number of places.
#[derive(Debug)]
pub(super) struct ReadyByNamespace<T> {
    by_namespace: HashMap<Arc<str>, Share<T>>,
    /// The namespaces that have ready targets, each once.
    order: VecDeque<Arc<str>>,
    ready: usize,
    namespace_of: fn(&T) -> Option<&str>,
}

#[derive(Debug)]
struct Share<T> {
    ready: VecDeque<T>,
    in_flight: usize,
}

impl<T> ReadyByNamespace<T> {
    pub(super) fn new(namespace_of: fn(&T) -> Option<&str>) -> Self {
        Self {
            by_namespace: HashMap::new(),
            order: VecDeque::new(),
            ready: 0,
            namespace_of,
        }
    }

    pub(super) fn push(&mut self, target: T) {
        let namespace = (self.namespace_of)(&target).unwrap_or_default();
        let known = self.by_namespace.get_key_value(namespace);
        let name = known.map_or_else(|| namespace.into(), |(name, _)| Arc::clone(name));
        let share = self.by_namespace.entry(Arc::clone(&name));
        let share = share.or_insert_with(|| Share {
            ready: VecDeque::new(),
            in_flight: 0,
        });
        if share.ready.is_empty() {
            self.order.push_back(name);
        }
        share.ready.push_back(target);
        self.ready += 1;
    }

    /// Takes the target of a turn that [`ReadyByNamespace::next_turn`] gave. [`ReadyByNamespace::end_write`] must follow.
    pub(super) fn take_turn(&mut self, turn: usize) -> Option<T> {
        let name = self.order.remove(turn)?;
        let share = self.by_namespace.get_mut(&name)?;
        let target = share.ready.pop_front()?;
        share.in_flight += 1;
        self.ready -= 1;
        if !share.ready.is_empty() {
            self.order.push_back(name);
        }
        Some(target)
    }

    /// The place in the order of the first namespace that may have another write in flight: one that has none in this class,
    /// or not too many in all. The others before it are few: each has a good part of all places.
    pub(super) fn next_turn(&self, has_too_many: impl Fn(&str) -> bool) -> Option<usize> {
        self.order
            .iter()
            .position(|name| name.is_empty() || self.in_flight_of(name) == 0 || !has_too_many(name))
    }

    /// How many writes of a namespace are in flight.
    pub(super) fn in_flight_of(&self, namespace: &str) -> usize {
        let share = self.by_namespace.get(namespace);
        share.map_or(0, |share| share.in_flight)
    }

    pub(super) fn end_write(&mut self, target: &T) {
        let namespace = (self.namespace_of)(target).unwrap_or_default();
        let Some(share) = self.by_namespace.get_mut(namespace) else {
            return;
        };
        debug_assert!(share.in_flight > 0, "what ends was in flight");
        share.in_flight = share.in_flight.saturating_sub(1);
        if share.in_flight == 0 && share.ready.is_empty() {
            self.by_namespace.remove(namespace);
        }
    }

    /// Forgets all ready targets.
    pub(super) fn clear(&mut self) {
        self.order.clear();
        self.ready = 0;
        self.by_namespace.retain(|_, share| {
            share.ready.clear();
            share.in_flight > 0
        });
    }

    /// The number of ready targets.
    pub(super) fn len(&self) -> usize {
        self.ready
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready == 0
    }

    /// Gives up room that is not needed any more.
    pub(super) fn shrink_to(&mut self, room: usize) {
        self.by_namespace.shrink_to(room);
        self.order.shrink_to(room);
        for share in self.by_namespace.values_mut() {
            share.ready.shrink_to(room);
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        let shares = self.by_namespace.values();
        let ready = shares.map(|share| share.ready.capacity());
        ready
            .sum::<usize>()
            .max(self.by_namespace.capacity())
            .max(self.order.capacity())
    }
}

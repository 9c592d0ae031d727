//! Queues that are served in turn, such as one for each namespace: who fills one delays the others by its own turn only.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// A queue that has a turn as long as something is in it.
pub trait TurnQueue: Default {
    /// How much is in it.
    fn len(&self) -> usize;

    /// Whether nothing is in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> TurnQueue for VecDeque<T> {
    fn len(&self) -> usize {
        self.len()
    }
}

impl<T> TurnQueue for BTreeSet<T> {
    fn len(&self) -> usize {
        self.len()
    }
}

/// Queues `Q` by name. None is empty. Room is given up when there is no queue left.
#[derive(Debug, Default)]
pub struct RoundRobin<Q> {
    queues: HashMap<Arc<str>, Q>,
    /// The names of `queues`, the next one first.
    order: VecDeque<Arc<str>>,
}

/// A queue of queues: those in it take turns within its own turn.
impl<Q: TurnQueue> TurnQueue for RoundRobin<Q> {
    fn len(&self) -> usize {
        self.queues.values().map(Q::len).sum()
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

impl<Q: TurnQueue> RoundRobin<Q> {
    /// The queue of this name, in which the caller puts something. A new one has the last turn.
    pub fn queue_of(&mut self, name: &str) -> &mut Q {
        let known = self.queues.get_key_value(name);
        let name = known.map_or_else(|| name.into(), |(name, _)| name.clone());
        self.queues.entry(name).or_insert_with_key(|name| {
            self.order.push_back(name.clone());
            Q::default()
        })
    }

    /// Takes something from the first queue from which `take` returns something; it has the last turn then.
    pub fn take_next<T>(
        &mut self,
        mut take: impl FnMut(&Arc<str>, &mut Q) -> Option<T>,
    ) -> Option<T> {
        let mut names = self.order.iter().enumerate();
        let (index, taken) = names.find_map(|(index, name)| {
            let taken = take(name, self.queues.get_mut(name)?)?;
            Some((index, taken))
        })?;
        let name = self.order.remove(index)?;
        self.order.push_back(name);
        self.forget_last_if_empty();
        Some(taken)
    }

    /// Takes something from the queue of this name, whose turn stays the same.
    pub fn take_from<T>(
        &mut self,
        name: &str,
        take: impl FnOnce(&mut Q) -> Option<T>,
    ) -> Option<T> {
        let queue = self.queues.get_mut(name)?;
        let taken = take(queue);
        if queue.is_empty() {
            // Among all names: only what is cancelled or dropped is taken so.
            let place = self.order.iter().position(|known| **known == *name);
            let name = place.and_then(|place| self.order.remove(place))?;
            self.order.push_back(name);
            self.forget_last_if_empty();
        }
        taken
    }

    /// Forgets the queue that has the last turn, if it is empty.
    fn forget_last_if_empty(&mut self) {
        if let Some(last) = self.order.back()
            && self.queues.get(last).is_some_and(Q::is_empty)
        {
            self.queues.remove(last);
            self.order.pop_back();
        }
        if self.order.is_empty() {
            *self = Self::default();
        }
    }

    /// All queues, the next one first.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Q)> {
        let names = self.order.iter();
        names.filter_map(|name| self.queues.get_key_value(name))
    }

    /// The queue of a name, unless it is empty.
    pub fn get(&self, name: &str) -> Option<&Q> {
        self.queues.get(name)
    }

    /// Whether something is in the queue of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.queues.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_its_turn_and_one_that_may_not_take_it_holds_up_no_other() {
        let mut queues = RoundRobin::<VecDeque<u32>>::default();
        for (name, item) in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 5), ("c", 6)] {
            queues.queue_of(name).push_back(item);
        }
        let mut take =
            |held: &str| queues.take_next(|name, queue| queue.pop_front_if(|_| **name != *held));
        let taken = ["a", "", "", "b"].map(&mut take);
        assert_eq!(taken, [Some(4), Some(1), Some(6), Some(2)]);
        assert_eq!(queues.take_from("b", VecDeque::pop_back), Some(5));
        assert!(queues.contains("a") && !queues.contains("b") && queues.len() == 1);
    }
}

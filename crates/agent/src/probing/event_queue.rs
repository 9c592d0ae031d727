//! The events that wait to be sent, of which each namespace has its share.
//!
//! Namespaces are served in turn, one event each. When the queue is full, the namespace with the most events loses its
//! newest: pods of one namespace that flap push out no event of another. A namespace whose event is to be tried again
//! later waits by itself.

use std::collections::VecDeque;

use k8s_openapi::api::core::v1::Event;
use leadsman_core::cluster::{RoundRobin, TurnQueue};
use leadsman_core::podprobe::node::VerdictChange;
use tokio::time::Instant;

/// Events in the queue.
pub(crate) const QUEUE: usize = 256;

/// An event that waits.
pub(crate) struct QueuedEvent {
    pub(crate) change: VerdictChange,
    /// The event with its name: after an attempt whose reply was lost, the next one must not create
    /// a second event.
    pub(crate) event: Event,
    /// Attempts that failed.
    pub(crate) failures: u32,
}

/// The next event that can be sent.
pub(crate) enum NextEvent {
    Due(Box<QueuedEvent>),
    /// Nothing before this time.
    At(Instant),
    Empty,
}

/// The queue.
#[derive(Default)]
pub(crate) struct EventQueue {
    namespaces: RoundRobin<NamespaceQueue>,
}

#[derive(Default)]
struct NamespaceQueue {
    events: VecDeque<QueuedEvent>,
    not_before: Option<Instant>,
}

impl TurnQueue for NamespaceQueue {
    fn len(&self) -> usize {
        self.events.len()
    }
}

impl EventQueue {
    /// Adds an event. Returns the one that is dropped for it, or itself, if the queue is full.
    pub(crate) fn push(&mut self, queued: QueuedEvent) -> Option<QueuedEvent> {
        let queue = self.namespaces.queue_of(&queued.change.key.pod.namespace);
        queue.events.push_back(queued);
        if self.namespaces.len() <= QUEUE {
            return None;
        }
        // The last of several: who comes new beside others that have as many gives way.
        let known = self.namespaces.iter();
        let (largest, _) = known.max_by_key(|(_, queue)| queue.len())?;
        let largest = largest.clone();
        self.namespaces
            .take_from(&largest, |queue| queue.events.pop_back())
    }

    /// Puts back an event that was taken, before the others of its namespace, none of which is sent before this time.
    pub(crate) fn put_back(&mut self, queued: QueuedEvent, not_before: Instant) {
        let queue = self.namespaces.queue_of(&queued.change.key.pod.namespace);
        queue.events.push_front(queued);
        queue.not_before = Some(not_before);
    }

    /// Takes the next event that may be sent; its namespace is served last then.
    pub(crate) fn take_next(&mut self, now: Instant) -> NextEvent {
        let next = self.namespaces.take_next(|_, queue| {
            queue.not_before.take_if(|at| *at <= now);
            let is_due = queue.not_before.is_none();
            queue.events.pop_front_if(|_| is_due)
        });
        let waiting = self.namespaces.iter();
        let at = waiting.filter_map(|(_, queue)| queue.not_before).min();
        let later = at.map_or(NextEvent::Empty, NextEvent::At);
        next.map_or(later, |event| NextEvent::Due(Box::new(event)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use leadsman_core::podprobe::State;
    use leadsman_core::podprobe::node::{PodIdentity, ProbeKey};
    use leadsman_process::clock;

    use super::*;

    fn queued(namespace: &str, pod: usize) -> QueuedEvent {
        let pod = PodIdentity {
            namespace: namespace.into(),
            name: pod.to_string().into(),
            uid: "uid".into(),
        };
        let change = VerdictChange {
            key: Arc::new(ProbeKey {
                pod,
                container: "main".into(),
                id: "m#p".parse().unwrap(),
            }),
            from: None,
            to: State::Failed,
            since: None,
            message: "".into(),
            send_event: true,
        };
        QueuedEvent {
            change,
            event: Event::default(),
            failures: 0,
        }
    }

    fn name_of(queued: &QueuedEvent) -> String {
        let pod = &queued.change.key.pod;
        format!("{}/{}", pod.namespace, pod.name)
    }

    fn take(queue: &mut EventQueue, now: Instant) -> Option<QueuedEvent> {
        match queue.take_next(now) {
            NextEvent::Due(queued) => Some(*queued),
            _ => None,
        }
    }

    // PPM-14
    #[test]
    fn a_namespace_that_fills_the_queue_loses_its_own_events_and_is_served_in_turn() {
        let mut queue = EventQueue::default();
        let dropped = |dropped: Option<QueuedEvent>| dropped.as_ref().map(name_of);
        for pod in 0..QUEUE {
            assert!(queue.push(queued("loud", pod)).is_none());
        }
        assert_eq!(
            dropped(queue.push(queued("loud", 999))),
            Some("loud/999".into())
        );
        assert_eq!(dropped(queue.push(queued("b", 0))), Some("loud/255".into()));
        assert_eq!(dropped(queue.push(queued("b", 1))), Some("loud/254".into()));
        let now = clock::monotonic();
        let served: Vec<String> = (0..4)
            .filter_map(|_| take(&mut queue, now).as_ref().map(name_of))
            .collect();
        assert_eq!(served, ["loud/0", "b/0", "loud/1", "b/1"]);
        let left = std::iter::from_fn(|| take(&mut queue, now)).count();
        assert_eq!((left, queue.namespaces.len()), (QUEUE - 4, 0));
    }

    // PPM-14
    #[test]
    fn a_namespace_that_waits_holds_up_no_other_and_keeps_its_order() {
        let mut queue = EventQueue::default();
        let now = clock::monotonic();
        for (namespace, pod) in [("a", 0), ("a", 1), ("b", 0)] {
            queue.push(queued(namespace, pod));
        }
        let refused = take(&mut queue, now).unwrap();
        let later = now + Duration::from_secs(10);
        queue.put_back(refused, later);
        assert_eq!(name_of(&take(&mut queue, now).unwrap()), "b/0");
        assert!(matches!(queue.take_next(now), NextEvent::At(at) if at == later));
        assert_eq!(name_of(&take(&mut queue, later).unwrap()), "a/0");
        assert_eq!(name_of(&take(&mut queue, later).unwrap()), "a/1");
        assert!(matches!(queue.take_next(later), NextEvent::Empty));
    }
}

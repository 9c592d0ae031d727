//! The events that wait to be sent, of which each namespace has its share.
//!
//! Namespaces are served in turn, one event each. When the queue is full, the namespace with the most events loses its
//! newest: pods of one namespace that flap push out no event of another. A namespace whose event is to be tried again
//! later waits by itself.

use std::collections::VecDeque;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Event;
use leadsman_core::podprobe::node::VerdictChange;
use tokio::time::Instant;

/// Events in the queue.
pub(crate) const QUEUE: usize = 256;

/// An event that waits.
pub(crate) struct QueuedEvent {
    pub(crate) change: VerdictChange,
    /// With its name: after an attempt whose reply was lost, the next one must not create a second event.
    pub(crate) event: Event,
    /// Attempts that failed.
    pub(crate) failures: u32,
}

impl QueuedEvent {
    fn namespace(&self) -> &Arc<str> {
        &self.change.key.pod.namespace
    }
}

/// What can be sent.
pub(crate) enum NextEvent {
    Due(Box<QueuedEvent>),
    /// Nothing before this time.
    At(Instant),
    Empty,
}

/// The queue.
#[derive(Default)]
pub(crate) struct EventQueue {
    /// The next to be served first. None is empty.
    namespaces: VecDeque<NamespaceQueue>,
    len: usize,
}

struct NamespaceQueue {
    namespace: Arc<str>,
    events: VecDeque<QueuedEvent>,
    not_before: Option<Instant>,
}

impl EventQueue {
    /// Adds an event. Returns the one that is dropped for it, or itself, if the queue is full.
    pub(crate) fn push(&mut self, queued: QueuedEvent) -> Option<QueuedEvent> {
        let namespace = queued.namespace().clone();
        self.queue_of(namespace).events.push_back(queued);
        if self.len <= QUEUE {
            return None;
        }
        // The last of several: who comes new beside others that have as many gives way.
        let largest = self.namespaces.iter_mut();
        let largest = largest.max_by_key(|queue| queue.events.len())?;
        let dropped = largest.events.pop_back();
        self.len -= usize::from(dropped.is_some());
        self.namespaces.retain(|queue| !queue.events.is_empty());
        dropped
    }

    /// Puts back an event that was taken, before the others of its namespace, none of which is sent before this time.
    pub(crate) fn put_back(&mut self, queued: QueuedEvent, not_before: Instant) {
        let namespace = queued.namespace().clone();
        let queue = self.queue_of(namespace);
        queue.events.push_front(queued);
        queue.not_before = Some(not_before);
    }

    /// Takes the next event that may be sent; its namespace is served last then.
    pub(crate) fn take_next(&mut self, now: Instant) -> NextEvent {
        let mut namespaces = self.namespaces.iter();
        let is_due = |queue: &NamespaceQueue| queue.not_before.is_none_or(|at| at <= now);
        let due = namespaces.position(is_due);
        let next = due.and_then(|index| self.namespaces.remove(index));
        let Some(mut queue) = next else {
            let waiting = self.namespaces.iter().filter_map(|queue| queue.not_before);
            return waiting.min().map_or(NextEvent::Empty, NextEvent::At);
        };
        let Some(event) = queue.events.pop_front() else {
            return NextEvent::Empty;
        };
        self.len -= 1;
        queue.not_before = None;
        if !queue.events.is_empty() {
            self.namespaces.push_back(queue);
        }
        NextEvent::Due(Box::new(event))
    }

    /// The queue of this namespace, in which the caller puts one event.
    fn queue_of(&mut self, namespace: Arc<str>) -> &mut NamespaceQueue {
        self.len += 1;
        let mut known = self.namespaces.iter();
        let index = known.position(|queue| queue.namespace == namespace);
        let index = index.unwrap_or_else(|| {
            self.namespaces.push_back(NamespaceQueue {
                namespace,
                events: VecDeque::new(),
                not_before: None,
            });
            self.namespaces.len() - 1
        });
        &mut self.namespaces[index]
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!((left, queue.len), (QUEUE - 4, 0));
        assert!(queue.namespaces.is_empty());
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

//! The cluster and a manager that carries the index's writes out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::cluster::Cluster;
use crate::podprobe::event::{Effects, Event, Kind, Object, Write};
use crate::podprobe::index::{Config, Index, Now};

/// The cluster and its manager.
pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) index: Index,
    pub(super) config: Config,
    pub(super) dirty: BTreeSet<Object>,
    pub(super) monotonic: Duration,
    pub(super) deadline: Option<Duration>,
    /// When the manager saw that a node's agent was gone.
    pub(super) agents_left: BTreeMap<String, Timestamp>,
    /// All writes since this was last emptied.
    pub(super) writes: Vec<(Object, Write)>,
}

impl World {
    /// An empty cluster, its manager in sync.
    pub(super) fn new(config: Config) -> Self {
        let mut world = Self {
            cluster: Cluster::new(),
            index: Index::new(config.clone()),
            config,
            dirty: BTreeSet::new(),
            monotonic: Duration::ZERO,
            deadline: None,
            agents_left: BTreeMap::new(),
            writes: Vec::new(),
        };
        world.restart([Kind::Marker, Kind::Pod, Kind::Node, Kind::NodePodProbe]);
        world
    }

    /// A new manager that lists the kinds in this order.
    pub(super) fn restart(&mut self, kinds: [Kind; 4]) {
        self.index = Index::new(self.config.clone());
        self.dirty.clear();
        self.agents_left.clear();
        self.cluster.pending.clear();
        self.cluster.history.clear();
        for event in self.cluster.lists(kinds) {
            self.tell(event);
        }
    }

    pub(super) fn now(&self) -> Now {
        Now {
            monotonic: self.monotonic,
            wall: self.cluster.now,
        }
    }

    pub(super) fn tell(&mut self, event: Event) {
        if let Event::Gone(Kind::Pod, pod) = &event
            && let Some(node) = pod.name.strip_prefix("agent-")
        {
            self.agents_left.insert(node.to_owned(), self.cluster.now);
        }
        let Effects { dirty, deadline } = self.index.apply(event, self.now());
        self.dirty.extend(dirty);
        self.deadline = deadline;
    }

    /// Lets the manager see one more event.
    pub(super) fn deliver(&mut self) -> bool {
        let Some(event) = self.cluster.pending.pop_front() else {
            return false;
        };
        self.tell(event);
        true
    }

    /// Lets the manager write one object.
    pub(super) fn work(&mut self) -> bool {
        let Some(object) = self.dirty.pop_first() else {
            return false;
        };
        let Some(write) = self.index.write(&object, self.now()) else {
            return true;
        };
        self.writes.push((object.clone(), write.clone()));
        if let Some(event) = self.cluster.execute(write) {
            self.tell(event);
        } else {
            self.dirty.insert(object);
            // What was in the way is on its way.
            self.deliver();
        }
        true
    }

    /// Until nothing is left to see or to write.
    pub(super) fn drain(&mut self) {
        for _ in 0..2000 {
            if !self.deliver() && !self.work() {
                return;
            }
        }
        let last: Vec<_> = self.writes.iter().rev().take(6).collect();
        panic!("the writes have no end: {last:#?}");
    }

    /// Lets time pass until nothing is due any more.
    pub(super) fn rest(&mut self) {
        self.drain();
        for _ in 0..200 {
            let Some(deadline) = self.deadline else {
                return;
            };
            let left = deadline.saturating_sub(self.monotonic);
            self.pass(SignedDuration::try_from(left).unwrap());
            self.drain();
        }
        panic!("the deadlines have no end");
    }

    pub(super) fn pass(&mut self, time: SignedDuration) {
        self.cluster.now = self.cluster.now.checked_add(time).unwrap();
        self.monotonic += Duration::try_from(time).unwrap();
        self.tell(Event::Deadline);
    }
}

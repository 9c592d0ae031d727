//! The cluster and a manager that carries the index's writes out: what the manager's slots, requests and watches
//! guarantee, and nothing more. A write is in flight until its reply has come or is known not to come.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::cluster::{Cluster, Reply, at};
use super::driver::{Event, Index, WatchedKind, Write, WriteTarget};
use crate::cluster::{Effects, Now, ObjectName, Refusal, ResourceVersion, Source};
use crate::podprobe::index::Config;

/// A write without a reply counts as failed after this time, which is shorter than a deletion is remembered.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A write that failed is tried again after this time.
const RETRY: Duration = Duration::from_secs(1);

/// The cluster and its manager.
pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) index: Index,
    pub(super) config: Config,
    /// What a run costs, if keys wait for their turn.
    pub(super) run_cost: Option<Duration>,
    pub(super) dirty: BTreeSet<WriteTarget>,
    pub(super) monotonic: Duration,
    /// By how much the manager's time of day is ahead of the API server's.
    pub(super) clock_error: SignedDuration,
    pub(super) deadline: Option<Duration>,
    /// When the manager saw that a node's agent was gone.
    pub(super) agents_left: BTreeMap<String, Timestamp>,
    /// All writes since this was last emptied.
    pub(super) writes: Vec<(WriteTarget, Write)>,
    flights: BTreeMap<WriteTarget, Flight>,
    /// Objects whose writes failed, and when they are tried again.
    retries: BTreeMap<WriteTarget, Duration>,
    /// Another manager leads.
    standby: bool,
    /// The last list beside the watch of a kind: its names and its version.
    relisted: BTreeMap<WatchedKind, (BTreeSet<ObjectName>, ResourceVersion)>,
}

/// A write under way.
#[derive(Clone, Debug)]
struct Flight {
    write: Write,
    sent: Duration,
    /// What the API server has made of it; none before it got there.
    reply: Option<Reply>,
    /// It changed meanwhile what is due on the object.
    dirty: bool,
}

/// What becomes of a write under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The API server carries it out; the reply is on its way.
    CarriedOut,
    /// The reply arrives, if the write was carried out.
    Answered,
    /// It is carried out, and the reply is lost.
    ReplyLost,
    /// The API server is not there: 503, or no connection.
    Unavailable,
    /// The API server refuses it for good.
    Refused,
}

/// The object that an event shows.
fn shown(event: &Event) -> Option<(WatchedKind, ObjectName)> {
    let (kind, meta) = match event {
        Event::Marker(marker, _) => (WatchedKind::Marker, &marker.metadata),
        Event::Pod(pod, _) => (WatchedKind::Pod, &pod.identity),
        Event::Node(node, _) => (WatchedKind::Node, &node.identity),
        Event::NodePodProbe(object, _) => (WatchedKind::NodePodProbe, &object.metadata),
        _ => return None,
    };
    Some((kind, ObjectName::of(meta)))
}

thread_local! {
    static COST: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static ELAPSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The clock that measures runs: from one look at it to the next, one has cost what runs cost.
fn elapsed() -> Duration {
    ELAPSED.set(ELAPSED.get() + COST.get());
    ELAPSED.get()
}

/// What a run costs: nothing, so that none waits, or so much that all wait, for one turn, for a few, or for one each with a rest.
pub(super) fn any_run_cost() -> impl Strategy<Value = Option<Duration>> {
    let micros = prop_oneof![Just(0), Just(45), Just(3000)];
    proptest::option::of(micros.prop_map(Duration::from_micros))
}

impl World {
    /// An empty cluster, its manager in sync.
    pub(super) fn new(config: Config) -> Self {
        let mut world = Self {
            cluster: Cluster::new(),
            index: Index::new(config.clone()),
            config,
            run_cost: None,
            dirty: BTreeSet::new(),
            monotonic: Duration::ZERO,
            clock_error: SignedDuration::ZERO,
            deadline: None,
            agents_left: BTreeMap::new(),
            writes: Vec::new(),
            flights: BTreeMap::new(),
            retries: BTreeMap::new(),
            standby: false,
            relisted: BTreeMap::new(),
        };
        world.restart([
            WatchedKind::Marker,
            WatchedKind::Pod,
            WatchedKind::Node,
            WatchedKind::NodePodProbe,
        ]);
        world
    }

    /// A new manager that lists the kinds in this order. What the old one had under way may still get there.
    pub(super) fn restart(&mut self, kinds: [WatchedKind; 4]) {
        COST.set(self.run_cost.unwrap_or_default());
        self.index = Index::with_clock(self.config.clone(), elapsed);
        self.dirty.clear();
        self.agents_left.clear();
        self.retries.clear();
        self.flights.clear();
        self.standby = false;
        self.relisted.clear();
        self.cluster.pending.clear();
        self.cluster.history.clear();
        for event in self.cluster.lists(kinds) {
            self.observe(event);
        }
    }

    pub(super) fn now(&self) -> Now {
        Now {
            monotonic: self.monotonic,
            wall: self.cluster.now + self.clock_error,
        }
    }

    /// Replaces the CRDs.
    pub(super) fn drop_extensions(&mut self, drops: bool) {
        self.cluster.drops_extensions = drops;
        for event in self.cluster.fields_kept() {
            self.observe(event);
        }
    }

    pub(super) fn observe(&mut self, event: Event) {
        let shown = shown(&event);
        let version = |world: &Self| {
            let (kind, name) = shown.as_ref()?;
            world.index.known_version(*kind, name)
        };
        let known = version(self);
        self.note_list(&event);
        let before = self.known_agents();
        let now = self.now();
        let Effects { dirty, deadline } = if self.run_cost.is_some() {
            self.index.observe_in_turns(event, now)
        } else {
            self.index.observe(event, now)
        };
        let after = self.known_agents();
        if let (Some(known), Some(now)) = (known, version(self)) {
            let is_back = known.is_later_than(now);
            assert!(!is_back, "{shown:?} went back from {known:?} to {now:?}");
        }
        self.assert_nothing_is_back();
        for node in before.difference(&after) {
            self.agents_left.insert(node.clone(), self.cluster.now);
        }
        self.deadline = deadline;
        if !self.standby {
            for object in dirty {
                self.mark_dirty(object);
            }
        }
    }

    fn note_list(&mut self, event: &Event) {
        match event {
            Event::Relisted(kind, names, version) => {
                let list = (names.clone(), *version);
                self.relisted.insert(*kind, list);
            }
            // It may have been read before the list beside the watch, and the watch goes on from it.
            Event::Listed(kind, ..) => {
                self.relisted.remove(kind);
            }
            Event::Marker(_, Source::List(_)) => {
                self.relisted.remove(&WatchedKind::Marker);
            }
            Event::NodePodProbe(_, Source::List(_)) => {
                self.relisted.remove(&WatchedKind::NodePodProbe);
            }
            _ => {}
        }
    }

    /// However far a watch is behind a list beside it, what that list did not name is known only if it was made since.
    fn assert_nothing_is_back(&self) {
        for (kind, (names, listed)) in &self.relisted {
            for name in self.index.known_names(*kind) {
                let version = self.index.known_version(*kind, &name);
                let is_made_since = version.is_some_and(|version| version.is_later_than(*listed));
                let is_right = names.contains(&name) || is_made_since;
                assert!(
                    is_right,
                    "{name} was deleted before {listed:?}: {version:?}"
                );
            }
        }
    }

    /// The nodes whose agents' pods the manager has seen.
    fn known_agents(&self) -> BTreeSet<String> {
        let pods = self.index.pods.names();
        let agents = pods.filter_map(|pod| pod.name.strip_prefix("agent-"));
        agents.map(str::to_owned).collect()
    }

    fn mark_dirty(&mut self, object: WriteTarget) {
        match self.flights.get_mut(&object) {
            Some(flight) => flight.dirty = true,
            // A failed write waits for its time.
            None if self.retries.contains_key(&object) => {}
            None => {
                self.dirty.insert(object);
            }
        }
    }

    /// Lets the manager see one more event.
    pub(super) fn deliver(&mut self) -> bool {
        self.deliver_of(None)
    }

    /// Lets the manager see one more event of a kind.
    pub(super) fn deliver_of(&mut self, kind: Option<WatchedKind>) -> bool {
        let Some(event) = self.cluster.next_event(kind) else {
            return false;
        };
        self.observe(event);
        true
    }

    /// Lets the manager send the write that is due on one object, the first after so many others.
    pub(super) fn send(&mut self, which: usize) -> bool {
        let count = self.dirty.len().max(1);
        let Some(object) = self.dirty.iter().nth(which % count).cloned() else {
            return false;
        };
        self.dirty.remove(&object);
        if let Some(write) = self.index.due(&object, self.now()) {
            self.writes.push((object.clone(), write.clone()));
            let flight = Flight {
                write,
                sent: self.monotonic,
                reply: None,
                dirty: false,
            };
            self.flights.insert(object, flight);
        }
        true
    }

    /// Lets something become of one of the writes under way.
    pub(super) fn fly(&mut self, which: usize, fate: Fate) -> bool {
        let count = self.flights.len().max(1);
        let Some(object) = self.flights.keys().nth(which % count).cloned() else {
            return false;
        };
        let flight = self.flights.get_mut(&object).unwrap();
        let carried_out = flight.reply.is_some();
        if !carried_out && matches!(fate, Fate::CarriedOut | Fate::Answered | Fate::ReplyLost) {
            let reply = self.cluster.execute(flight.write.clone());
            flight.reply = Some(reply);
        }
        if fate == Fate::CarriedOut {
            return !carried_out;
        }
        let flight = self.flights.remove(&object).unwrap();
        match (flight.reply.clone(), fate) {
            // What was carried out is not refused.
            (Some(reply), Fate::Answered | Fate::Refused) => self.answer(&object, reply, &flight),
            (None, Fate::Refused) => {
                self.end(&object, &flight, false);
                let refusal = Refusal::Forbidden("no".to_owned());
                self.observe(Event::Refused(object, refusal));
            }
            _ => self.retry(object, false),
        }
        true
    }

    fn answer(&mut self, object: &WriteTarget, reply: Reply, flight: &Flight) {
        match reply {
            Reply::Done(shown) => {
                let again = shown.is_some();
                if let Some(event) = shown {
                    self.observe(event);
                }
                self.observe(Event::Written(object.clone()));
                self.end(object, flight, again);
            }
            Reply::Gone => {
                self.observe(Event::Gone(object.clone()));
                self.end(object, flight, false);
            }
            Reply::Conflict => self.retry(object.clone(), true),
            Reply::Exists => {
                if let WriteTarget::NodePodProbe(name) = object {
                    let name = super::cluster::name("", name);
                    let shown =
                        self.cluster
                            .snapshot(WatchedKind::NodePodProbe, &name, Source::Reply);
                    if let Some(event) = shown {
                        self.observe(event);
                    }
                }
                self.retry(object.clone(), true);
            }
        }
    }

    fn end(&mut self, object: &WriteTarget, flight: &Flight, again: bool) {
        if !self.standby && (again || flight.dirty) {
            self.mark_dirty(object.clone());
        }
    }

    fn retry(&mut self, object: WriteTarget, is_surely_not_done: bool) {
        self.observe(Event::Unwritten(object.clone(), is_surely_not_done));
        if !self.standby {
            self.dirty.remove(&object);
            self.retries.insert(object, self.monotonic + RETRY);
        }
    }

    /// Lets the manager write one object, and lets the reply arrive.
    pub(super) fn work(&mut self) -> bool {
        let before = self.flights.len();
        if !self.send(0) {
            return false;
        }
        if self.flights.len() > before {
            let (object, _) = self.writes.last().unwrap();
            let which = self.flights.keys().position(|one| one == object);
            self.fly(which.unwrap(), Fate::Answered);
        }
        true
    }

    /// Until nothing is left to see or to write.
    pub(super) fn drain(&mut self) {
        for _ in 0..2000 {
            if !self.deliver() && !self.fly(0, Fate::Answered) && !self.work() && !self.take_turn()
            {
                return;
            }
        }
        let last: Vec<_> = self.writes.iter().rev().take(6).collect();
        panic!("the writes have no end: {last:#?}");
    }

    /// Plans pods that wait for their turn, and what else the manager does at once.
    pub(super) fn take_turn(&mut self) -> bool {
        let is_past = |deadline| deadline <= self.monotonic;
        let waits = self.deadline.is_some_and(is_past);
        if waits {
            self.observe(Event::Deadline);
        }
        waits
    }

    /// When something is written or observed without anything else happening.
    fn next_time(&self) -> Option<Duration> {
        let retry = self.retries.values().min().copied();
        self.deadline.into_iter().chain(retry).min()
    }

    /// Lets time pass until nothing is due any more.
    pub(super) fn rest(&mut self) {
        self.drain();
        for _ in 0..2000 {
            let Some(time) = self.next_time() else {
                return;
            };
            let left = time.saturating_sub(self.monotonic);
            self.pass(SignedDuration::try_from(left).unwrap());
            self.drain();
        }
        panic!("the deadlines have no end");
    }

    /// Lets so much time pass, and all that happens in it.
    pub(super) fn rest_for(&mut self, time: Duration) {
        let end = self.monotonic + time;
        self.drain();
        while let Some(next) = self.next_time().filter(|next| *next <= end) {
            let left = next.saturating_sub(self.monotonic);
            self.pass(SignedDuration::try_from(left).unwrap());
            self.drain();
        }
    }

    pub(super) fn pass(&mut self, time: SignedDuration) {
        self.cluster.now = self.cluster.now.checked_add(time).unwrap();
        self.monotonic += Duration::try_from(time).unwrap();
        self.time_out();
        let due = self.retries.iter().filter(|(_, at)| **at <= self.monotonic);
        let due: Vec<_> = due.map(|(object, _)| object.clone()).collect();
        for object in due {
            self.retries.remove(&object);
            self.dirty.insert(object);
        }
        self.observe(Event::Deadline);
    }

    /// Gives up the writes that have had no reply for too long.
    fn time_out(&mut self) {
        let now = self.monotonic;
        let is_late = |flight: &Flight| now.saturating_sub(flight.sent) > REQUEST_TIMEOUT;
        while let Some(which) = self.flights.values().position(is_late) {
            self.fly(which, Fate::ReplyLost);
        }
    }

    /// The Lease is lost to another manager, which sees everything and writes what is due.
    pub(super) fn lose_lead(&mut self) {
        self.standby = true;
        self.dirty.clear();
        self.retries.clear();
        let mut other = Self::new(self.config.clone());
        std::mem::swap(&mut other.cluster, &mut self.cluster);
        (other.monotonic, other.index) = (self.monotonic, Index::new(self.config.clone()));
        let kinds = [
            WatchedKind::Pod,
            WatchedKind::NodePodProbe,
            WatchedKind::Marker,
            WatchedKind::Node,
        ];
        let lists = other.cluster.lists(kinds);
        for event in lists {
            other.observe(event);
        }
        for _ in 0..100 {
            if !other.work() {
                break;
            }
        }
        std::mem::swap(&mut other.cluster, &mut self.cluster);
    }

    /// The Lease is ours again: what decisions follow from is read again before anything is written.
    pub(super) fn lead_again(&mut self) {
        if !self.standby {
            return;
        }
        for kind in [WatchedKind::Marker, WatchedKind::NodePodProbe] {
            for name in self.cluster.names(kind) {
                let shown = self.cluster.snapshot(kind, &name, Source::Reply);
                if let Some(event) = shown {
                    self.observe(event);
                }
            }
            let (names, version) = (self.cluster.names(kind), self.cluster.version);
            self.observe(Event::Relisted(kind, names, at(version)));
        }
        self.standby = false;
        self.observe(Event::Synced);
    }

    /// The API server refuses the write that is due on an object.
    pub(super) fn refuse(&mut self, object: &WriteTarget, reason: &str) {
        self.refuse_due(object, Refusal::Forbidden(reason.to_owned()));
    }

    /// Refuses the write of a target that is due. Returns it.
    pub(super) fn refuse_due(&mut self, object: &WriteTarget, refusal: Refusal) -> Write {
        let write = self.index.due(object, self.now()).unwrap();
        self.observe(Event::Refused(object.clone(), refusal));
        write
    }
}

//! The machine around a feature's function: events in, writes out, and what became of them back in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::effects::Effects;
use crate::feature::{Feature, Watch, WriteVerb};
use crate::keys::{KeyQueue, MOST_DUE};
use crate::notices::{Notice, Notices};
use crate::object::{ObjectName, ResourceVersion, Source};
use crate::plan::{Plan, Write, WriteId};
use crate::refusal::Refusal;
use crate::store::Change;
use crate::time::Now;
use crate::timers::Timers;
use crate::writes::Histories;

/// How long keys run before events and replies are looked at again.
const TURN: Duration = Duration::from_millis(2);
/// How soon a clock that was set forward is noticed, while a key waits for a time of day.
const CLOCK_LOOK: SignedDuration = SignedDuration::from_secs(10);

/// A feature, its world, and the writes that it wants.
pub struct Reconciler<F: Feature> {
    feature: F,
    world: F::World,
    memory: F::Memory,
    keys: KeyQueue<F::Key>,
    /// The identities that the last run of a key planned. A key that wants nothing has none.
    planned: BTreeMap<F::Key, Vec<WriteId>>,
    /// What is wanted, by the keys that want it.
    wanted: BTreeMap<WriteId, BTreeMap<F::Key, Arc<Write<F>>>>,
    /// The writes whose outcome no event has shown.
    sent: BTreeMap<WriteId, Sent<F>>,
    histories: Histories,
    timers: Timers<Timer<F::Key>>,
    wakes: BTreeMap<F::Key, Duration>,
    times: Timers<F::Key, Timestamp>,
    wakes_at_time: BTreeMap<F::Key, Timestamp>,
    notices: Notices<F>,
    /// The writes that may be due.
    dirty: BTreeSet<WriteId>,
    is_writing: bool,
    /// Measures what a run costs.
    clock: fn() -> Duration,
}

/// A write that was sent, and the key that wanted it.
struct Sent<F: Feature> {
    write: Arc<Write<F>>,
    key: F::Key,
    /// Whether its answer is awaited. Of a request of an earlier term it is not.
    is_under_way: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer<K> {
    Wake(K),
    /// A write may be sent, or what is known of it is out of date.
    Write(WriteId),
    /// What a write has asked for is given up.
    Asked(WriteId, K),
}

impl<F: Feature> Reconciler<F> {
    /// A feature that has observed nothing yet. `clock` is a monotonic clock, which measures what runs cost.
    pub fn new(feature: F, clock: fn() -> Duration) -> Self {
        Self {
            feature,
            world: F::World::default(),
            memory: F::Memory::default(),
            keys: KeyQueue::default(),
            planned: BTreeMap::new(),
            wanted: BTreeMap::new(),
            sent: BTreeMap::new(),
            histories: Histories::default(),
            timers: Timers::default(),
            wakes: BTreeMap::new(),
            times: Timers::default(),
            wakes_at_time: BTreeMap::new(),
            notices: Notices::default(),
            dirty: BTreeSet::new(),
            is_writing: false,
            clock,
        }
    }

    /// What is known of the cluster.
    pub fn world(&self) -> &F::World {
        &self.world
    }

    /// What no object shows.
    pub fn memory(&self) -> &F::Memory {
        &self.memory
    }

    /// The state of an object was seen.
    pub fn observe_object<K>(&mut self, object: &Arc<K>, source: Source)
    where
        F: Watch<K>,
    {
        let object = self.feature.read(object);
        let change = F::store(&mut self.world).observe(object, source);
        self.note_changes(change.as_slice());
    }

    /// An object exists and cannot be decoded.
    pub fn observe_undecodable<K>(&mut self, name: &ObjectName)
    where
        F: Watch<K>,
    {
        let change = F::store(&mut self.world).observe_undecodable(name);
        self.note_changes(change.as_slice());
    }

    /// The watch shows a deletion, with its version.
    pub fn observe_deletion<K>(&mut self, name: &ObjectName, version: ResourceVersion, now: Now)
    where
        F: Watch<K>,
    {
        let change = F::store(&mut self.world).observe_deletion(name, version, now.monotonic);
        self.note_changes(change.as_slice());
    }

    /// A list is complete. One beside the watch may be ahead of it or behind it.
    pub fn observe_list<K>(
        &mut self,
        names: &BTreeSet<ObjectName>,
        version: ResourceVersion,
        is_beside_watch: bool,
        now: Now,
    ) where
        F: Watch<K>,
    {
        let store = F::store(&mut self.world);
        let was_served = store.is_served();
        let changes = store.observe_list(names, version, is_beside_watch, now.monotonic);
        let is_as_before = store.is_served() == was_served;
        self.note_changes(&changes);
        if !is_as_before {
            self.mark_all();
        }
    }

    /// Whether the API server keeps the optional fields of a kind is known, so that everything may have to be written anew.
    pub fn note_fields_kept<K>(&mut self, kept: bool)
    where
        F: Watch<K>,
    {
        F::note_fields_kept(&mut self.world, kept);
        self.mark_all();
    }

    /// This process writes from now on: every key runs, since another process may have written meanwhile.
    pub fn begin_term(&mut self) {
        self.is_writing = true;
        self.memory = F::Memory::default();
        self.histories.clear();
        for (id, mut sent) in std::mem::take(&mut self.sent) {
            let Some(effect) = &sent.write.effect else {
                continue;
            };
            // What was under way in the last term may still be carried out.
            let store = (effect.store)(&mut self.world);
            if sent.is_under_way {
                store.note_lost(&id.name);
            }
            store.end_asked(&id.name);
            if store.is_open(&id.name) {
                sent.is_under_way = false;
                self.sent.insert(id, sent);
            }
        }
        self.keys.clear();
        self.notices.clear();
        self.planned.clear();
        self.wanted.clear();
        self.mark_all();
    }

    fn mark_all(&mut self) {
        if self.is_writing {
            for key in self.feature.keys(&self.world) {
                self.keys.mark(key);
            }
        }
    }

    /// Takes in something that this process itself knows, and passes on the keys whose function reads it.
    pub fn update_world(&mut self, update: impl FnOnce(&mut F::World, &mut dyn FnMut(F::Key))) {
        let (keys, is_writing) = (&mut self.keys, self.is_writing);
        update(&mut self.world, &mut |key| {
            if is_writing {
                keys.mark(key);
            }
        });
    }

    /// Has the feature pass on what others in this process answer by. Called after each event.
    pub fn publish(&mut self) {
        self.feature.publish(&mut self.world, &self.memory);
    }

    fn note_changes<K>(&mut self, changes: &[Change<F::Stored>])
    where
        F: Watch<K>,
    {
        for change in changes {
            self.feature.note_change(change, &mut self.world);
            // Everything runs when this process begins to write.
            if self.is_writing {
                let keys = &mut self.keys;
                self.feature
                    .find_affected(change, &self.world, &mut |key| keys.mark(key));
            }
        }
    }

    /// Runs keys for a while. Called whenever the deadline of [`Reconciler::take_effects`] has passed.
    pub fn run_keys(&mut self, now: Now) {
        while let Some(timer) = self.timers.pop_due(now.monotonic) {
            self.handle_timer(timer, now);
        }
        while let Some(key) = self.times.pop_due(now.wall) {
            self.wakes_at_time.remove(&key);
            self.keys.mark(key);
        }
        let begun = (self.clock)();
        let mut before = begun;
        while let Some(key) = self.keys.take_next(now.monotonic) {
            self.run_key(&key, now);
            let after = (self.clock)();
            let took = after.saturating_sub(before);
            let due = self.count_due(&key, now);
            self.keys.rest(&key, took, due, now.monotonic);
            before = after;
            if after.saturating_sub(begun) >= TURN {
                break;
            }
        }
    }

    /// How many of the writes that a key has planned may be sent now, up to so many that more make no difference.
    fn count_due(&self, key: &F::Key, now: Now) -> usize {
        let planned = self.planned.get(key).into_iter().flatten();
        let is_due = |id: &&WriteId| {
            let write = self.wanted.get(*id).and_then(|by_key| by_key.get(key));
            let sent_at =
                write.and_then(|write| self.histories.sends_at(id, write.purpose, now.monotonic));
            sent_at.is_some_and(|at| at <= now.monotonic)
        };
        planned.filter(is_due).take(MOST_DUE).count()
    }

    fn handle_timer(&mut self, timer: Timer<F::Key>, now: Now) {
        match timer {
            Timer::Wake(key) => {
                self.wakes.remove(&key);
                self.keys.mark(key);
            }
            Timer::Write(id) => {
                let is_wanted = self.wanted.contains_key(&id);
                // A verdict stands until another one takes its place.
                if !(is_wanted && is_dry_run::<F>(&id)) {
                    self.histories.forget_past(&id, now.monotonic);
                }
                if is_wanted {
                    self.dirty.insert(id);
                }
            }
            Timer::Asked(id, key) => {
                self.histories.forget_unknown(&id, now.monotonic);
                if let Some(sent) = self.sent.get(&id)
                    && let Some(effect) = &sent.write.effect
                {
                    let store = (effect.store)(&mut self.world);
                    store.expire_asked(&id.name, now.monotonic);
                    if !store.is_open(&id.name) {
                        self.sent.remove(&id);
                        self.keys.mark(key);
                        self.wake_others(&id);
                    }
                }
            }
        }
    }

    /// Runs the function for a key, and takes what it plans in the place of what it planned before.
    fn run_key(&mut self, key: &F::Key, now: Now) {
        let mut plan = Plan {
            now,
            histories: &self.histories,
            writes: Vec::new(),
            wake_at: None,
            wake_at_time: None,
            notices: Vec::new(),
            marked: Vec::new(),
        };
        self.feature
            .reconcile(key, &self.world, &mut self.memory, &mut plan);
        let Plan {
            writes,
            wake_at,
            wake_at_time,
            notices,
            marked,
            ..
        } = plan;
        self.set_wakes(key, wake_at, wake_at_time);
        for marked in marked {
            self.keys.mark(marked);
        }
        for notice in self.notices.take_standing(key, notices) {
            self.tell(&notice, now);
        }
        let before = self.planned.remove(key).unwrap_or_default();
        for id in &before {
            if let Some(by_key) = self.wanted.get_mut(id) {
                by_key.remove(key);
                if by_key.is_empty() {
                    self.wanted.remove(id);
                }
            }
        }
        let ids: Vec<_> = writes.iter().map(|write| write.id.clone()).collect();
        for write in writes {
            let id = write.id.clone();
            let at = self.histories.sends_at(&id, write.purpose, now.monotonic);
            if let Some(at) = at.filter(|at| *at > now.monotonic) {
                // Here, and not when the write is asked for: by then it is settled when this is called again.
                self.timers.set(at, Timer::Write(id.clone()));
            }
            self.dirty.insert(id.clone());
            let by_key = self.wanted.entry(id).or_default();
            by_key.insert(key.clone(), Arc::new(write));
        }
        for id in before.iter().filter(|id| is_dry_run::<F>(id)) {
            if !self.wanted.contains_key(id) {
                self.histories.forget(id);
            }
        }
        if !ids.is_empty() {
            self.planned.insert(key.clone(), ids);
        }
    }

    fn tell(&mut self, notice: &Notice, now: Now) {
        let id = self.notices.push(notice, now.wall, now.monotonic);
        self.dirty.extend(id);
    }

    fn set_wakes(&mut self, key: &F::Key, at: Option<Duration>, at_time: Option<Timestamp>) {
        let mut set = self.wakes.remove(key);
        self.timers.reset(&mut set, at, || Timer::Wake(key.clone()));
        self.wakes.extend(set.map(|at| (key.clone(), at)));
        let mut set = self.wakes_at_time.remove(key);
        self.times.reset(&mut set, at_time, || key.clone());
        self.wakes_at_time.extend(set.map(|at| (key.clone(), at)));
    }

    /// The writes that may be due since the last call, and when [`Reconciler::run_keys`] has something to do.
    pub fn take_effects(&mut self, now: Now) -> Effects<WriteId> {
        let keys = self.keys.deadline(now.monotonic);
        let time = self.times.deadline().map(|time| {
            let wait = time.duration_since(now.wall).min(CLOCK_LOOK);
            now.monotonic
                .saturating_add(wait.try_into().unwrap_or_default())
        });
        let deadlines = self.timers.deadline().into_iter().chain(keys).chain(time);
        let deadline = deadlines.min();
        Effects {
            dirty: std::mem::take(&mut self.dirty).into_iter().collect(),
            deadline,
        }
    }

    /// All writes that are wanted, also those that are under way or rest. An identity that several keys want comes once for each.
    pub fn wanted(&self) -> impl Iterator<Item = &Write<F>> {
        let wanted = self.wanted.values().flat_map(BTreeMap::values);
        wanted.map(|write| &**write)
    }

    /// The write that is due for an identity, if there is one. It counts as sent.
    pub fn take_due(&mut self, id: &WriteId, now: Now) -> Option<Arc<Write<F>>> {
        if self.notices.is_waiting(id) {
            return self.notices.pop(id);
        }
        let by_key = self.wanted.get(id)?;
        let mut later: Option<Duration> = None;
        let mut due = None;
        for (key, write) in by_key {
            if self.keys.is_marked(key) {
                // What it plans is out of date; the next run says what is due.
                continue;
            }
            if is_dry_run::<F>(id)
                && let Some(Ok(())) = self.histories.verdict(id, write.purpose)
            {
                continue;
            }
            match self.histories.sends_at(id, write.purpose, now.monotonic) {
                Some(at) if at <= now.monotonic => {
                    due = Some((key.clone(), write.clone()));
                    break;
                }
                Some(at) => later = Some(later.map_or(at, |before| before.min(at))),
                None => {}
            }
        }
        let Some((key, write)) = due else {
            if let Some(at) = later {
                self.timers.set(at, Timer::Write(id.clone()));
            }
            return None;
        };
        if let Some(effect) = &write.effect
            && (effect.store)(&mut self.world).is_taken(&id.name)
        {
            return None;
        }
        self.histories.begin(id, write.purpose);
        if let Some(effect) = &write.effect {
            let until = (effect.begin)(&mut self.world, now);
            self.timers
                .set(until, Timer::Asked(id.clone(), key.clone()));
        }
        let sent = Sent {
            write: write.clone(),
            key,
            is_under_way: true,
        };
        self.sent.insert(id.clone(), sent);
        Some(write)
    }

    /// A write was carried out. The object that its reply showed was observed before; `has_reply` is whether it showed one.
    pub fn note_done(&mut self, id: &WriteId, has_reply: bool, now: Now) {
        let forget_at = self.histories.end_done(id, now.monotonic);
        if let Some(at) = forget_at {
            self.timers.set(at, Timer::Write(id.clone()));
        }
        let sent = self.sent.get(id).map(|sent| sent.write.clone());
        if let Some(notice) = sent
            .as_ref()
            .and_then(|write| write.told_when_done.as_ref())
        {
            self.tell(notice, now);
        }
        self.settle(id, Outcome::Done { has_reply });
    }

    /// The object of a write is gone or was replaced, which the watch has not shown. If the write is wanted all the same, it
    /// comes again at the distance of one that is undone.
    pub fn note_gone(&mut self, id: &WriteId, now: Now) {
        if let Some(at) = self.histories.end_done(id, now.monotonic) {
            self.timers.set(at, Timer::Write(id.clone()));
        }
        self.settle(id, Outcome::NotDone);
    }

    /// A write was refused for good.
    pub fn note_refused(&mut self, id: &WriteId, refusal: Refusal, now: Now) {
        let sent = self.sent.get(id).map(|sent| sent.write.clone());
        if let Some(tell) = sent
            .as_ref()
            .and_then(|write| write.told_when_refused.as_ref())
        {
            self.tell(&tell(&refusal), now);
        }
        if let Some(at) = self.histories.end_refused(id, refusal, now.monotonic) {
            self.timers.set(at, Timer::Write(id.clone()));
        }
        self.settle(id, Outcome::NotDone);
    }

    /// A write was not carried out for now, or it is not known whether it was.
    pub fn note_failed(&mut self, id: &WriteId, is_surely_not_done: bool) {
        self.histories.end(id);
        let sent = self.sent.get(id);
        if !is_surely_not_done && sent.is_some_and(|sent| sent.write.effect.is_some()) {
            self.histories.set_unknown(id);
        }
        let outcome = if is_surely_not_done {
            Outcome::NotDone
        } else {
            Outcome::Unknown
        };
        self.settle(id, outcome);
    }

    /// Corrects what was assumed of an object, and has the key run that wanted the write.
    fn settle(&mut self, id: &WriteId, outcome: Outcome) {
        let sent = self.sent.get_mut(id);
        let Some(sent) = sent.filter(|sent| sent.is_under_way) else {
            // It was a notice, and the next one about the object may be told.
            if self.notices.is_waiting(id) {
                self.dirty.insert(id.clone());
            }
            return;
        };
        sent.is_under_way = false;
        self.keys.mark(sent.key.clone());
        let Some(effect) = &sent.write.effect else {
            self.sent.remove(id);
            return;
        };
        let store = (effect.store)(&mut self.world);
        match outcome {
            Outcome::Done { has_reply: true } => store.end_asked(&id.name),
            Outcome::NotDone => store.end_attempt(&id.name),
            Outcome::Done { has_reply: false } => store.await_event(&id.name, true),
            Outcome::Unknown => {
                store.note_lost(&id.name);
                store.await_event(&id.name, false);
            }
        }
        if !store.is_open(&id.name) {
            self.sent.remove(id);
        }
        self.wake_others(id);
    }

    /// Another write of the object may have waited for one that has ended.
    fn wake_others(&mut self, id: &WriteId) {
        let kinds = (0..F::WRITES.len()).filter(|kind| *kind != id.kind);
        let others = kinds.map(|kind| WriteId {
            kind,
            name: id.name.clone(),
        });
        let wanted = others.filter(|other| self.wanted.contains_key(other));
        self.dirty.extend(wanted);
    }
}

fn is_dry_run<F: Feature>(id: &WriteId) -> bool {
    F::WRITES[id.kind].verb == WriteVerb::DryRun
}

/// What the answer to a write says.
#[derive(Clone, Copy)]
enum Outcome {
    /// It was carried out, and the object that its reply shows was observed, if it shows one.
    Done { has_reply: bool },
    /// It was not carried out.
    NotDone,
    /// It may have been carried out.
    Unknown,
}

//! The machine around a feature's function: events in, writes out, and what became of them back in.

mod answers;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::effects::Effects;
use crate::feature::{Feature, Key, Watch, WatchAdvance, WriteVerb};
use crate::keys::{KeyQueue, rest_after};
use crate::notices::{Notice, Notices};
use crate::object::{ObjectName, ResourceVersion, Source};
use crate::plan::{Plan, Write, WriteId};
use crate::store::{Change, Stored};
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
    /// The writes that are wanted, with the keys that want them.
    wanted: BTreeMap<WriteId, Wishes<F>>,
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
    now: Now,
    /// The end of the rest after the last publishing.
    publishes_from: Duration,
    /// Whether something may have to be published then.
    is_unpublished: bool,
    /// Measures what a run costs.
    clock: fn() -> Duration,
}

/// The writes of an identity that keys want, by key: nearly always one.
type Wishes<F> = Vec<(<F as Feature>::Key, Arc<Write<F>>)>;

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
    /// The assumption that a write is carried out is given up.
    Asked(WriteId, K),
}

impl<F: Feature> Reconciler<F> {
    /// A feature that has observed nothing yet. `clock` is that of the CPU time of the thread, which measures what runs cost.
    pub fn new(feature: F, clock: fn() -> Duration) -> Self {
        Self::with_memory(feature, F::Memory::default(), clock)
    }

    /// The same, with a memory that is not empty to begin with.
    pub fn with_memory(feature: F, memory: F::Memory, clock: fn() -> Duration) -> Self {
        Self {
            feature,
            world: F::World::default(),
            memory,
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
            now: Now::default(),
            publishes_from: Duration::ZERO,
            is_unpublished: false,
            clock,
        }
    }

    /// The state of the cluster, as far as it is known.
    pub fn world(&self) -> &F::World {
        &self.world
    }

    /// The state that no object shows.
    pub fn memory(&self) -> &F::Memory {
        &self.memory
    }

    /// The time at which something is observed next.
    pub fn set_now(&mut self, now: Now) {
        self.now = now;
        self.keys.set_now(now.monotonic);
    }

    /// The state of an object was seen. Passed by value, it is not kept while the feature takes it in, which then owns it.
    pub fn observe_object<K>(&mut self, object: impl Borrow<Arc<K>>, source: Source)
    where
        F: Watch<K>,
    {
        let stored = self.feature.read(object.borrow());
        drop(object);
        self.observe_stored::<K>(stored, source);
    }

    /// Objects were read once, so that their versions do not matter. Returns their names.
    pub fn observe_all<K>(&mut self, objects: impl IntoIterator<Item = K>) -> BTreeSet<ObjectName>
    where
        F: Watch<K>,
    {
        let read = objects.into_iter().map(|object| {
            let object = self.feature.read(&Arc::new(object));
            let name = object.name();
            self.observe_stored::<K>(object, Source::List(ResourceVersion::UNKNOWN));
            name
        });
        read.collect()
    }

    fn observe_stored<K>(&mut self, object: Arc<F::Stored>, source: Source)
    where
        F: Watch<K>,
    {
        let version = object.version();
        let change = F::store(&mut self.world).observe(object, source);
        self.note_changes::<K>(change.as_slice());
        if source == Source::Watch {
            self.note_progress::<K>(WatchAdvance::Shown(version));
        }
    }

    fn note_progress<K>(&mut self, progress: WatchAdvance)
    where
        F: Watch<K>,
    {
        let affected = &mut marking(&mut self.keys, self.is_writing);
        let (world, memory) = (&self.world, &mut self.memory);
        self.feature
            .note_progress(progress, world, memory, self.now, affected);
    }

    /// An object exists and cannot be decoded, but for its metadata.
    pub fn observe_metadata<K>(&mut self, metadata: &ObjectMeta, source: Source)
    where
        F: Watch<K>,
    {
        match self.feature.read_undecodable(metadata) {
            Some(object) => self.observe_stored::<K>(object, source),
            None => self.observe_undecodable::<K>(&ObjectName::of(metadata)),
        }
    }

    /// An object exists and cannot be decoded.
    pub fn observe_undecodable<K>(&mut self, name: &ObjectName)
    where
        F: Watch<K>,
    {
        let change = F::store(&mut self.world).observe_undecodable(name);
        self.note_changes::<K>(change.as_slice());
    }

    /// The watch shows a deletion, with its version.
    pub fn observe_deletion<K>(&mut self, name: &ObjectName, version: ResourceVersion, now: Now)
    where
        F: Watch<K>,
    {
        let change = F::store(&mut self.world).observe_deletion(name, version, now.monotonic);
        self.note_changes::<K>(change.as_slice());
        self.note_progress::<K>(WatchAdvance::Shown(version));
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
        self.note_changes::<K>(&changes);
        self.note_progress::<K>(if is_beside_watch {
            WatchAdvance::Relisted(version)
        } else {
            WatchAdvance::Listed(version)
        });
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

    /// Begins to write: every key runs, since another process may have written meanwhile.
    pub fn begin_term(&mut self) {
        self.is_writing = true;
        self.feature
            .begin_term(&self.world, &mut self.memory, self.now);
        self.histories.clear();
        for (id, mut sent) in std::mem::take(&mut self.sent) {
            let Some(effect) = &sent.write.effect else {
                continue;
            };
            // Writes that were under way in the last term may still be carried out.
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
        if F::RUNS_ALL_FIRST {
            self.keys.begin_first_round();
        }
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
        let affected = &mut marking(&mut self.keys, self.is_writing);
        update(&mut self.world, affected);
    }

    /// Has the feature pass on what others in this process answer by. Called after each event. It may take a step for each object
    /// that is there, so it rests afterwards as a key does, and events that come meanwhile are published together.
    pub fn publish(&mut self) {
        let now = self.now.monotonic;
        self.is_unpublished = now < self.publishes_from;
        if self.is_unpublished {
            return;
        }
        let begun = (self.clock)();
        self.feature.publish(&mut self.world, &mut self.memory);
        let took = (self.clock)().saturating_sub(begun);
        let rest = rest_after(took, 0).unwrap_or_default();
        self.publishes_from = now.saturating_add(rest);
    }

    fn note_changes<K>(&mut self, changes: &[Change<F::Stored>])
    where
        F: Watch<K>,
    {
        for change in changes {
            self.feature.note_change(change, &mut self.world);
            let (keys, is_writing) = (&mut self.keys, self.is_writing);
            let mut affected = |key| {
                if is_writing {
                    keys.mark_by_event(key);
                }
            };
            let (world, memory) = (&self.world, &mut self.memory);
            self.feature
                .take_in(change, world, memory, self.now, &mut affected);
            if self.is_writing {
                self.feature.find_affected(change, world, &mut affected);
                self.forget_wishes_of(&change.name);
            }
        }
    }

    /// Runs keys for a while. Called whenever the deadline of [`Reconciler::take_effects`] has passed.
    pub fn run_keys(&mut self, now: Now) {
        self.set_now(now);
        if self.is_unpublished {
            self.publish();
        }
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
            self.keys.rest(&key, took, now.monotonic);
            before = after;
            if after.saturating_sub(begun) >= TURN {
                break;
            }
        }
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
                        let (feature, world, keys) =
                            (&self.feature, &mut self.world, &mut self.keys);
                        (effect.find_affected)(feature, world, &id.name, &mut |key| keys.mark(key));
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
            parts: Vec::new(),
        };
        self.feature
            .reconcile(key, &self.world, &mut self.memory, &mut plan);
        let Plan {
            writes,
            wake_at,
            wake_at_time,
            notices,
            marked,
            parts,
            ..
        } = plan;
        for (id, wanted) in &parts {
            self.histories.want_parts(id, wanted);
        }
        self.set_wakes(key, wake_at, wake_at_time);
        for marked in marked {
            self.keys.mark(marked);
        }
        for notice in self.notices.take_standing(key, notices) {
            self.tell(&notice, now);
        }
        let before = self.planned.remove(key).unwrap_or_default();
        for id in &before {
            if let Some(wishes) = self.wanted.get_mut(id) {
                wishes.retain(|(by, _)| by != key);
                if wishes.is_empty() {
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
            let wishes = self.wanted.entry(id).or_default();
            let wish = (key.clone(), Arc::new(write));
            match wishes.binary_search_by(|(by, _)| by.cmp(key)) {
                Ok(place) => wishes[place] = wish,
                Err(place) => {
                    wishes.reserve_exact(1);
                    wishes.insert(place, wish);
                }
            }
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
        let publishing = self.is_unpublished.then_some(self.publishes_from);
        let deadlines = [self.timers.deadline(), keys, time, publishing];
        let deadline = deadlines.into_iter().flatten().min();
        let dirty = if self.keys.is_first_round() {
            BTreeSet::new()
        } else {
            std::mem::take(&mut self.dirty)
        };
        Effects {
            dirty: dirty.into_iter().collect(),
            deadline,
        }
    }

    /// All writes that are wanted, also those that are under way or rest. An identity that several keys want comes once for each.
    pub fn wanted(&self) -> impl Iterator<Item = &Write<F>> {
        let wanted = self.wanted.values().flatten();
        wanted.map(|(_, write)| &**write)
    }

    /// Runs the keys of a write that wait for all others alone: while a namespace has keys run without end, they would be marked each
    /// time that their write has its turn.
    fn run_waiting(&mut self, id: &WriteId, now: Now) {
        let wishes = self.wanted.get(id).into_iter().flatten();
        let keys = wishes.map(|(key, _)| key.clone());
        for key in keys.collect::<Vec<_>>() {
            if self.keys.take_waiting(&key) {
                self.run_key(&key, now);
            }
        }
    }

    /// The write that is due for an identity, if there is one. It counts as sent.
    pub fn take_due(&mut self, id: &WriteId, now: Now) -> Option<Arc<Write<F>>> {
        if self.notices.is_waiting(id) {
            return self.notices.pop(id);
        }
        if self.keys.is_first_round() {
            return None;
        }
        self.run_waiting(id, now);
        let wishes = self.wanted.get(id)?;
        let mut later: Option<Duration> = None;
        let mut due = None;
        for (key, write) in wishes {
            let is_deletion = write.kind().verb == WriteVerb::Delete;
            if self.keys.voids(key, is_deletion) {
                // The next run says what is due.
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
        if let Some(kind) = write.waits_for {
            let name = id.name.clone();
            if self.histories.is_under_way(&WriteId { kind, name }) {
                // The key runs when that is answered, and plans this one again.
                return None;
            }
        }
        self.histories.begin(id, write.purpose, write.parts.clone());
        self.keys.note_sent(&key);
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
}

/// Marks the keys that it is given. Everything runs when this process begins to write, so that none is marked before.
fn marking<K: Key>(keys: &mut KeyQueue<K>, is_writing: bool) -> impl FnMut(K) {
    move |key| {
        if is_writing {
            keys.mark(key);
        }
    }
}

fn is_dry_run<F: Feature>(id: &WriteId) -> bool {
    F::WRITES[id.kind].verb == WriteVerb::DryRun
}

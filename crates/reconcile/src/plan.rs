//! The writes that a feature wants for a key.

use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::feature::{Feature, Watch, WriteKind, WriteVerb};
use crate::notices::Notice;
use crate::object::ObjectName;
use crate::refusal::Refusal;
use crate::store::{AskedObjects, Assumption, Change};
use crate::time::Now;
use crate::writes::{Fate, Histories, PartRest, Rest};

/// A kind of write of one object: at most one of them is under way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId {
    /// An index into [`Feature::WRITES`].
    pub kind: usize,
    /// The object. A feature that shares the name has it in memory once.
    pub name: Arc<ObjectName>,
}

/// The object's name alone, as logs have the kind of the write beside it.
impl fmt::Display for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// The goal of a write, without its times and versions. Writes of one identity and purpose are refused for the same reason,
/// and undone by the same client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Purpose(u64);

impl Purpose {
    /// The purpose of a write that achieves this.
    pub fn of(what: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A part of a write, such as a mark of a pod, and what it is to achieve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritePart {
    /// The identity of the part.
    pub part: Purpose,
    /// The goal of the part.
    pub purpose: Purpose,
}

/// A write that is wanted.
pub struct Write<F: Feature> {
    pub(crate) id: WriteId,
    pub(crate) purpose: Purpose,
    body: Body,
    /// The write's parts, each with its purpose; empty for a write that is undone as a whole.
    pub(crate) parts: Box<[WritePart]>,
    /// The time since which another process has been waiting for the write, by the clock of that process.
    pub(crate) since: Option<Timestamp>,
    pub(crate) is_last: bool,
    /// The kind of write of the same object that it waits for.
    pub(crate) waits_for: Option<usize>,
    pub(crate) effect: Option<Effect<F>>,
    pub(crate) told_when_done: Option<Box<Notice>>,
    pub(crate) told_when_refused: Option<RefusalNotice>,
}

/// The body of a write. Many may wait: one is kept as text, which is a tenth of the tree, and an object that is made of a template
/// is built when it is sent.
enum Body {
    Ready(Box<str>),
    Built(Box<dyn Fn() -> String + Send + Sync>),
}

impl Body {
    fn of<T: Serialize>(build: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self::Built(Box::new(move || {
            serde_json::to_string(&build()).expect("objects of the API are plain JSON")
        }))
    }
}

type RefusalNotice = Box<dyn Fn(&Refusal) -> Notice + Send + Sync>;

/// How a write changes the world once it is sent.
pub(crate) struct Effect<F: Feature> {
    /// Assumes that it will be carried out. Returns when that is given up.
    pub(crate) begin: BeginEffect<F>,
    /// The store of its object.
    pub(crate) store: fn(&mut F::World) -> &mut dyn AskedObjects,
    /// Passes on the keys that read the object once nothing is assumed of it any more: they may have waited for it, whatever has
    /// become of the write.
    pub(crate) find_affected: FindAffected<F>,
}

type FindAffected<F> =
    fn(&F, &mut <F as Feature>::World, &Arc<ObjectName>, &mut dyn FnMut(<F as Feature>::Key));

type BeginEffect<F> = Box<dyn Fn(&mut <F as Feature>::World, Now) -> Duration + Send + Sync>;

impl<F: Feature> Write<F> {
    pub(crate) fn new(id: WriteId, body: &Value) -> Self {
        let body = body.to_string();
        Self::of_body(id, Purpose::of(&body), Body::Ready(body.into()))
    }

    fn of_body(id: WriteId, purpose: Purpose, body: Body) -> Self {
        Self {
            id,
            purpose,
            body,
            parts: Box::default(),
            since: None,
            is_last: false,
            waits_for: None,
            effect: None,
            told_when_done: None,
            told_when_refused: None,
        }
    }

    /// The kind of the write.
    pub fn kind(&self) -> &'static WriteKind {
        &F::WRITES[self.id.kind]
    }

    /// The name of the write's object.
    pub fn name(&self) -> &ObjectName {
        &self.id.name
    }

    /// The purpose of the write.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The body of its request, as it is sent; of a deletion, the preconditions of it.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.body {
            Body::Ready(text) => Cow::Borrowed(text),
            Body::Built(build) => Cow::Owned(build()),
        }
    }

    /// The same, read.
    pub fn body(&self) -> Value {
        serde_json::from_str(&self.text()).expect("it was written as JSON")
    }

    /// Restricts a deletion to an object that has not changed since this version.
    pub fn in_version(&mut self, version: &str) -> &mut Self {
        debug_assert_eq!(self.kind().verb, WriteVerb::Delete);
        let mut body = self.body();
        body["preconditions"]["resourceVersion"] = version.into();
        self.body = Body::Ready(body.to_string().into());
        self
    }

    /// Says what the write is to achieve, where its body has times and versions beside that.
    pub fn with_purpose(&mut self, purpose: Purpose) -> &mut Self {
        self.purpose = purpose;
        self
    }

    /// Says which parts it has: each is undone by itself, and rests by itself ([`Plan::part_rest`]).
    pub fn of_parts(&mut self, parts: impl IntoIterator<Item = WritePart>) -> &mut Self {
        self.parts = parts.into_iter().collect();
        self
    }

    /// Says since when it is late, by the clock of another process: that is measured.
    pub fn measured_since(&mut self, since: Option<Timestamp>) -> &mut Self {
        self.since = since;
        self
    }

    /// The time since which the write is late, if it is measured.
    pub fn since(&self) -> Option<Timestamp> {
        self.since
    }

    /// Says that it may end its object, so that no reply shows what is left of it: the watch does, in order with later events.
    pub fn ending_object(&mut self) -> &mut Self {
        self.is_last = true;
        self
    }

    /// Says that it waits while a write of another kind of its object is under way, which the same key wants: the two would be
    /// carried out in any order.
    pub fn waiting_for(&mut self, kind: &WriteKind) -> &mut Self {
        let place = F::WRITES.iter().position(|known| known.label == kind.label);
        self.waits_for = place;
        self
    }

    /// Whether it may end its object.
    pub fn may_end_object(&self) -> bool {
        self.is_last
    }

    /// Tells people when the write was carried out.
    pub fn tell_when_done(&mut self, notice: Notice) -> &mut Self {
        self.told_when_done = Some(Box::new(notice));
        self
    }

    /// Tells people when the API server refuses the write.
    pub fn tell_when_refused(
        &mut self,
        notice: impl Fn(&Refusal) -> Notice + Send + Sync + 'static,
    ) -> &mut Self {
        self.told_when_refused = Some(Box::new(notice));
        self
    }

    /// Says what the write makes of its object, of a kind `K`.
    pub fn assuming_changed<K>(
        &mut self,
        change: impl Fn(&F::Stored) -> F::Stored + Clone + Send + Sync + 'static,
    ) -> &mut Self
    where
        F: Watch<K>,
    {
        self.assuming::<K>(move || Assumption::Changed(Box::new(change.clone())))
    }

    /// Says what the write does to its object, of a kind `K`.
    pub fn assuming<K>(
        &mut self,
        assume: impl Fn() -> Assumption<F::Stored> + Send + Sync + 'static,
    ) -> &mut Self
    where
        F: Watch<K>,
    {
        let name = self.id.name.clone();
        self.effect = Some(Effect {
            begin: Box::new(move |world, now| F::store(world).ask(&name, assume(), now.monotonic)),
            store: |world| F::store(world),
            find_affected: |feature, world, name, affected| {
                let now = F::store(world).observed(name).cloned();
                let change = Change {
                    name: name.clone(),
                    before: None,
                    now,
                    is_listed: false,
                };
                feature.find_affected(&change, world, affected);
            },
        });
        self
    }
}

/// The plan of one run of a feature's function, and the answers to its questions about earlier plans.
pub struct Plan<'a, F: Feature> {
    pub(crate) now: Now,
    pub(crate) histories: &'a Histories,
    pub(crate) writes: Vec<Write<F>>,
    pub(crate) wake_at: Option<Duration>,
    pub(crate) wake_at_time: Option<Timestamp>,
    pub(crate) notices: Vec<Notice>,
    pub(crate) marked: Vec<F::Key>,
    pub(crate) parts: Vec<(WriteId, Vec<WritePart>)>,
}

impl<'a, F: Feature> Plan<'a, F> {
    /// The time of the run.
    pub fn now(&self) -> Now {
        self.now
    }

    /// Wants a patch or an apply.
    pub fn patch(
        &mut self,
        kind: &WriteKind,
        name: impl Into<Arc<ObjectName>>,
        body: &Value,
    ) -> &mut Write<F> {
        self.push(Write::new(Self::id(kind, name), body))
    }

    /// Wants an object created. Its name is computed, so that what is created twice meets itself. The object is built when the
    /// write is sent; the purpose is what its content follows from.
    pub fn create<T: Serialize>(
        &mut self,
        kind: &WriteKind,
        name: impl Into<Arc<ObjectName>>,
        purpose: Purpose,
        build: impl Fn() -> T + Send + Sync + 'static,
    ) -> &mut Write<F> {
        debug_assert!(matches!(kind.verb, WriteVerb::Create | WriteVerb::DryRun));
        let (id, body) = (Self::id(kind, name), Body::of(build));
        self.push(Write::of_body(id, purpose, body))
    }

    /// Wants an object replaced as a whole. It is built when the write is sent; the purpose is what its content follows from.
    pub fn replace<T: Serialize>(
        &mut self,
        kind: &WriteKind,
        name: impl Into<Arc<ObjectName>>,
        purpose: Purpose,
        build: impl Fn() -> T + Send + Sync + 'static,
    ) -> &mut Write<F> {
        debug_assert_eq!(kind.verb, WriteVerb::Replace);
        let (id, body) = (Self::id(kind, name), Body::of(build));
        self.push(Write::of_body(id, purpose, body))
    }

    /// Wants an object of a kind `K` deleted, if it is the one of this uid.
    pub fn delete<K>(
        &mut self,
        kind: &WriteKind,
        name: impl Into<Arc<ObjectName>>,
        uid: &str,
    ) -> &mut Write<F>
    where
        F: Watch<K>,
    {
        debug_assert_eq!(kind.verb, WriteVerb::Delete);
        let options = json!({"preconditions": {"uid": uid}});
        self.patch(kind, name, &options)
            .assuming::<K>(|| Assumption::Gone)
    }

    /// Runs the function again at this time of the monotonic clock, unless something else makes it run before.
    pub fn wake_at(&mut self, time: Duration) {
        self.wake_at = Some(self.wake_at.map_or(time, |before| before.min(time)));
    }

    /// Runs the function again at this time of day, unless something else makes it run before. A clock that is set forward is
    /// noticed within ten seconds.
    pub fn wake_at_time(&mut self, time: Timestamp) {
        self.wake_at_time = Some(self.wake_at_time.map_or(time, |before| before.min(time)));
    }

    /// Tells people of a state that stands: once when it begins, as long as each run of the key says so again.
    pub fn tell(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    /// Returns the API server's verdict on an object that would be created, asked for once for each purpose; `None` until it
    /// has answered. A refusal is asked for again after five minutes, since what refuses may be a webhook or a policy that
    /// changes.
    pub fn judge<T: Serialize>(
        &mut self,
        kind: &WriteKind,
        name: impl Into<Arc<ObjectName>>,
        purpose: Purpose,
        build: impl Fn() -> T + Send + Sync + 'static,
    ) -> Option<Result<(), &Refusal>> {
        debug_assert_eq!(kind.verb, WriteVerb::DryRun);
        let (histories, id) = (self.histories, Self::id(kind, name));
        self.create(kind, id.name.clone(), purpose, build);
        histories.verdict(&id, purpose)
    }

    /// Has the function run for another key, which reads what this run has put into the memory.
    pub fn mark(&mut self, key: F::Key) {
        self.marked.push(key);
    }

    /// The fate of a write of this purpose that is wanted again, and the time until which it rests.
    pub fn fate_of(
        &self,
        kind: &WriteKind,
        name: &ObjectName,
        purpose: Purpose,
    ) -> Option<Rest<'_>> {
        self.histories.rest(Self::place(kind), name, purpose)
    }

    /// The fate of a part of a write, if the part was carried out and is wanted again.
    pub fn part_rest(
        &self,
        kind: &WriteKind,
        name: &ObjectName,
        part: WritePart,
    ) -> Option<PartRest> {
        self.histories.part_rest(Self::place(kind), name, part)
    }

    /// Whether anything is remembered of the writes of an object. If not, none of its parts rests.
    pub fn remembers(&self, kind: &WriteKind, name: &ObjectName) -> bool {
        self.histories.knows(Self::place(kind), name)
    }

    /// Says what is wanted of all parts of a write of a kind, also of those that are as they should be: what was carried out of a
    /// part of which something else was wanted meanwhile is undone by nobody.
    pub fn want_parts(
        &mut self,
        kind: &WriteKind,
        name: impl Into<Arc<ObjectName>>,
        wanted: Vec<WritePart>,
    ) {
        self.parts.push((Self::id(kind, name), wanted));
    }

    /// The fates of the writes of a kind that were refused, or sent more than once, as if they were wanted again.
    pub fn refused_or_undone(
        &self,
        kind: &WriteKind,
    ) -> impl Iterator<Item = (&ObjectName, Rest<'_>)> {
        let rests = self.histories.rests_of(Self::place(kind));
        rests.filter(|(_, rest)| !matches!(rest.fate, Fate::Undone(1) | Fate::Gone(1)))
    }

    /// The objects of a namespace of which a write of a kind was refused: [`Plan::fate`] says so of each.
    pub fn refused_in(
        &self,
        kind: &WriteKind,
        namespace: &str,
    ) -> impl Iterator<Item = &'a ObjectName> + use<'a, F> {
        self.histories.refused_in(Self::place(kind), namespace)
    }

    /// The fate of the last write of an object, whatever its purpose, if it was refused or undone.
    pub fn fate(&self, kind: &WriteKind, name: &ObjectName) -> Option<Fate<'_>> {
        self.histories.fate(Self::place(kind), name)
    }

    /// Whether the answer to the last attempt at a write was lost: what it has made may be there, or gone again. It is said to
    /// the runs between that attempt and the next one. Only of a write that has an effect ([`Write::assuming`]).
    pub fn is_fate_unknown(&self, kind: &WriteKind, name: &ObjectName) -> bool {
        self.histories.is_unknown(Self::place(kind), name)
    }

    fn push(&mut self, write: Write<F>) -> &mut Write<F> {
        self.writes.push(write);
        let last = self.writes.len() - 1;
        &mut self.writes[last]
    }

    fn id(kind: &WriteKind, name: impl Into<Arc<ObjectName>>) -> WriteId {
        WriteId {
            kind: Self::place(kind),
            name: name.into(),
        }
    }

    fn place(kind: &WriteKind) -> usize {
        let place = F::WRITES.iter().position(|known| known.label == kind.label);
        place.expect("a feature plans writes of its own list alone")
    }
}

//! A little API server under a feature of the kernel: objects, watches that lag, replies that get lost, and the loop that carries
//! writes out. What users, kubelets and other controllers do to the objects is in the tests of the feature.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leadsman_reconcile::{
    Feature, Now, ObjectName, Reconciler, Refusal, ResourceVersion, Source, Watch, WriteId,
    WriteKind, WriteVerb,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const EPOCH: i64 = 1_795_000_000;
/// How often a status is written, at most.
const STATUS_SPACING: Duration = Duration::from_secs(2);
/// How long the answer to a request is waited for.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request may be on its way.
const LATEST: Duration = Duration::from_mins(1);

/// A feature on a [`TestServer`].
pub(crate) trait Tested: Feature + Default {
    /// Kinds of objects.
    type Kind: Copy + Debug + Ord + 'static;
    /// Facts that its tests know beside the objects.
    type Notes: Default;
    /// The kinds that it watches, and their resources.
    const KINDS: &'static [(Self::Kind, &'static str, Watched<Self>)];
    /// The kind of pods.
    const POD: Self::Kind;

    /// How many pods there may be, by what the feature knows.
    fn limit_pods(world: &Self::World) -> usize;

    /// Asserts what must hold where a pod is created: there may have been so many since the request was sent.
    fn check_creation(server: &TestServer<Self>, pod: &Value, limit: usize);

    /// Deletes an object, which may stay until whoever holds it lets it go.
    fn delete(server: &mut TestServer<Self>, kind: Self::Kind, name: &str);

    /// An object is stored, or goes.
    fn note_object(
        _: &mut TestServer<Self>,
        _: Self::Kind,
        _name: &str,
        _: &Value,
        _is_there: bool,
    ) {
    }

    /// The feature's function has run.
    fn note_run(_: &mut TestServer<Self>) {}

    /// A process begins to write.
    fn note_term(_: &mut TestServer<Self>) {}
}

/// How a feature is shown the objects of a kind.
pub(crate) struct Watched<F: Feature> {
    object: fn(&mut Reconciler<F>, &Value, Source),
    deletion: fn(&mut Reconciler<F>, &ObjectName, ResourceVersion, Now),
    list: fn(&mut Reconciler<F>, &BTreeSet<ObjectName>, ResourceVersion, Now),
}

impl<F: Feature> Watched<F> {
    pub(crate) const fn of<K: DeserializeOwned>() -> Self
    where
        F: Watch<K>,
    {
        Self {
            object: |reconciler, object, source| {
                // A template is kept as text.
                let object: K = serde_json::from_str(&object.to_string()).unwrap();
                reconciler.observe_object(Arc::new(object), source);
            },
            deletion: |reconciler, name, version, now| {
                reconciler.observe_deletion::<K>(name, version, now);
            },
            list: |reconciler, names, version, now| {
                reconciler.observe_list::<K>(names, version, false, now);
            },
        }
    }
}

/// The fate of a write that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Done,
    DoneAndLost,
    Lost,
    /// The answer is lost, and a creation is carried out later ([`TestServer::arrive`]), if at all.
    Late,
    NotDone,
    Refused,
}

/// A write that is under way.
struct Sent {
    kind: &'static WriteKind,
    body: Value,
    /// How many pods there may be, as the feature knew when it was sent or later.
    limit: usize,
    at: Duration,
}

/// Why a write was not carried out.
enum Failure {
    Conflict,
    Gone,
}

/// Whether the API server refuses a write, by label, name and body.
type Policy = Box<dyn Fn(&str, &str, &Value) -> bool>;

pub(crate) struct TestServer<F: Tested> {
    objects: BTreeMap<(F::Kind, String), Value>,
    pub(crate) version: u64,
    uids: u64,
    /// Events that the watch of each kind has not shown: the object, and whether it is gone.
    events: BTreeMap<F::Kind, VecDeque<(Value, bool)>>,
    pub(crate) reconciler: Reconciler<F>,
    pub(crate) now: Duration,
    dirty: BTreeSet<WriteId>,
    under_way: BTreeMap<WriteId, Sent>,
    late: Vec<(WriteId, Sent)>,
    retried: BTreeSet<WriteId>,
    status_written: BTreeMap<String, Duration>,
    pub(crate) policy: Policy,
    /// Requests so far, by label.
    pub(crate) writes: BTreeMap<&'static str, usize>,
    /// The pods that were created, in their order.
    pub(crate) created: Vec<String>,
    /// The pods that were deleted, in their order.
    pub(crate) deleted: Vec<String>,
    /// The events of the feature, by reason and note.
    pub(crate) told: Vec<(String, String)>,
    pub(crate) notes: F::Notes,
}

impl<F: Tested> TestServer<F> {
    pub(crate) fn new() -> Self {
        let mut server = Self {
            objects: BTreeMap::new(),
            version: 1,
            uids: 0,
            events: BTreeMap::new(),
            reconciler: Reconciler::new(F::default(), || Duration::ZERO),
            now: Duration::ZERO,
            dirty: BTreeSet::new(),
            under_way: BTreeMap::new(),
            late: Vec::new(),
            retried: BTreeSet::new(),
            status_written: BTreeMap::new(),
            policy: Box::new(|_, _, _| false),
            writes: BTreeMap::new(),
            created: Vec::new(),
            deleted: Vec::new(),
            told: Vec::new(),
            notes: F::Notes::default(),
        };
        server.begin_term();
        server
    }

    pub(crate) fn create(&mut self, kind: F::Kind, name: &str, mut object: Value) {
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        object["metadata"]["generation"] = json!(1);
        object["metadata"]["creationTimestamp"] = json!(self.time().wall.to_string());
        self.put(kind, name, object);
    }

    /// Patches an object, unless that changes nothing: a pod strategically, another one by a merge.
    pub(crate) fn patch(&mut self, kind: F::Kind, name: &str, patch: &Value) {
        let Some(mut object) = self.get(kind, name).cloned() else {
            return;
        };
        let before = object.clone();
        merge(&mut object, patch, kind == F::POD);
        if object == before {
            return;
        }
        if object["spec"] != before["spec"] {
            let generation = object["metadata"]["generation"].as_u64().unwrap();
            object["metadata"]["generation"] = json!(generation + 1);
        }
        self.put(kind, name, object);
    }

    fn put(&mut self, kind: F::Kind, name: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        F::note_object(self, kind, name, &object, true);
        self.objects.insert((kind, name.to_owned()), object.clone());
        let events = self.events.entry(kind).or_default();
        events.push_back((object, false));
    }

    pub(crate) fn remove(&mut self, kind: F::Kind, name: &str) {
        if let Some(mut object) = self.objects.remove(&(kind, name.to_owned())) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            F::note_object(self, kind, name, &object, false);
            let events = self.events.entry(kind).or_default();
            events.push_back((object, true));
        }
    }

    pub(crate) fn get(&self, kind: F::Kind, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, name.to_owned()))
    }

    pub(crate) fn names(&self, kind: F::Kind) -> Vec<String> {
        let names = self.objects.keys().filter(|(of, _)| *of == kind);
        names.map(|(_, name)| name.clone()).collect()
    }

    // Watches.

    fn watched(kind: F::Kind) -> &'static Watched<F> {
        let mut kinds = F::KINDS.iter();
        &kinds.find(|(of, _, _)| *of == kind).unwrap().2
    }

    pub(crate) fn watch(&mut self, kind: F::Kind, count: usize) {
        let watched = Self::watched(kind);
        for _ in 0..count {
            let Some((object, is_gone)) = self.events.entry(kind).or_default().pop_front() else {
                return;
            };
            if is_gone {
                let version = object["metadata"]["resourceVersion"].as_str();
                let (version, now) = (ResourceVersion::parse(version), self.time());
                (watched.deletion)(&mut self.reconciler, &name_of(&object), version, now);
            } else {
                (watched.object)(&mut self.reconciler, &object, Source::Watch);
            }
        }
    }

    fn watch_all(&mut self) {
        for (kind, _, _) in F::KINDS {
            self.watch(*kind, usize::MAX);
        }
    }

    /// The watch of a kind begins again with a list.
    pub(crate) fn list(&mut self, kind: F::Kind) {
        self.events.remove(&kind);
        let (watched, now) = (Self::watched(kind), self.time());
        let version = ResourceVersion::from(self.version);
        let objects = self.objects.iter().filter(|((of, _), _)| *of == kind);
        let mut names = BTreeSet::new();
        for (_, object) in objects {
            names.insert(name_of(object));
            (watched.object)(&mut self.reconciler, object, Source::List(version));
        }
        (watched.list)(&mut self.reconciler, &names, version, now);
    }

    /// Another process takes over. Of the writes that were under way all were carried out, or none.
    pub(crate) fn crash(&mut self, carried_out: bool) {
        let answer = if carried_out {
            Answer::DoneAndLost
        } else {
            Answer::Lost
        };
        while self.is_busy() {
            self.answer(answer);
        }
        self.late.clear();
        self.reconciler = Reconciler::new(F::default(), || Duration::ZERO);
        self.begin_term();
    }

    fn begin_term(&mut self) {
        for (kind, _, _) in F::KINDS {
            self.list(*kind);
        }
        (self.dirty, self.retried) = (BTreeSet::new(), BTreeSet::new());
        F::note_term(self);
        self.reconciler.begin_term();
    }

    // Writes.

    pub(crate) fn writes_under_way(&self) -> usize {
        self.under_way.len()
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// The label of the write that is answered next.
    pub(crate) fn first_under_way(&self) -> Option<&'static str> {
        let first = self.under_way.first_key_value();
        first.map(|(_, sent)| sent.kind.label)
    }

    /// Whether a write of this label and object is under way.
    pub(crate) fn is_under_way(&self, label: &str, name: &ObjectName) -> bool {
        let mut under_way = self.under_way.iter();
        under_way.any(|(id, sent)| sent.kind.label == label && *id.name == *name)
    }

    /// Answers the first write that is under way.
    pub(crate) fn answer(&mut self, answer: Answer) {
        if let Some((id, sent)) = self.under_way.pop_first() {
            self.end_write(id, sent, answer);
        }
    }

    /// Answers the first of the writes under way that have this label.
    pub(crate) fn answer_write(&mut self, label: &str, answer: Answer) {
        let mut labelled = self
            .under_way
            .extract_if(.., |_, sent| sent.kind.label == label);
        if let Some((id, sent)) = labelled.next() {
            drop(labelled);
            self.end_write(id, sent, answer);
        }
    }

    fn end_write(&mut self, id: WriteId, sent: Sent, answer: Answer) {
        let now = self.time();
        let is_refused = (self.policy)(sent.kind.label, &id.name.name, &sent.body);
        let answer = if is_refused { Answer::Refused } else { answer };
        let before = self.version;
        let outcome = match answer {
            Answer::Done | Answer::DoneAndLost => self.carry_out(&id, &sent),
            _ => Ok(None),
        };
        match (answer, outcome) {
            (Answer::DoneAndLost | Answer::Lost | Answer::Late, _) => {
                self.reconciler.note_failed(&id, false);
                self.retried.insert(id.clone());
                if matches!(answer, Answer::Late) && sent.kind.verb == WriteVerb::Create {
                    self.late.push((id, sent));
                }
            }
            (Answer::Refused, _) => {
                let refusal = Refusal::Forbidden("no".to_owned());
                self.reconciler.note_refused(&id, refusal, now);
            }
            (Answer::NotDone, _) | (Answer::Done, Err(Failure::Conflict)) => {
                self.reconciler.note_failed(&id, true);
                self.retried.insert(id);
            }
            (Answer::Done, Err(Failure::Gone)) => self.reconciler.note_gone(&id, now),
            (Answer::Done, Ok(reply)) => {
                if let Some((kind, object)) = &reply {
                    let watched = Self::watched(*kind);
                    (watched.object)(&mut self.reconciler, object, Source::Reply);
                }
                let is_creation = sent.kind.verb == WriteVerb::Create && reply.is_some();
                if is_creation && self.version == before {
                    // A creation reads what is in its way.
                    self.reconciler.note_failed(&id, true);
                    self.retried.insert(id);
                } else {
                    self.reconciler.note_done(&id, reply.is_some(), now);
                }
            }
        }
    }

    /// Carries out a creation whose answer was lost.
    pub(crate) fn arrive(&mut self, place: usize) {
        if !self.late.is_empty() {
            let (id, sent) = self.late.remove(place % self.late.len());
            drop(self.carry_out(&id, &sent));
        }
    }

    fn carry_out(
        &mut self,
        id: &WriteId,
        Sent {
            kind: write,
            body,
            limit,
            ..
        }: &Sent,
    ) -> Result<Option<(F::Kind, Value)>, Failure> {
        let name = &*id.name.name;
        let resource = write.resource.split('/').next();
        let mut kinds = F::KINDS.iter();
        let Some((kind, _, _)) = kinds.find(|(_, of, _)| Some(*of) == resource) else {
            let text = |field: &str| body[field].as_str().unwrap().to_owned();
            self.told.push((text("reason"), text("note")));
            return Ok(None);
        };
        let (kind, is_pod) = (*kind, *kind == F::POD);
        if write.verb == WriteVerb::Create {
            if self.get(kind, name).is_none() {
                if is_pod {
                    F::check_creation(self, body, *limit);
                    self.created.push(name.to_owned());
                }
                let mut object = body.clone();
                let metadata = object["metadata"].as_object_mut().unwrap();
                metadata.retain(|_, value| !value.is_null());
                self.create(kind, name, object);
            }
            return Ok(self.get(kind, name).map(|object| (kind, object.clone())));
        }
        let metadata = &self.get(kind, name).ok_or(Failure::Gone)?["metadata"];
        let uid = body.pointer("/preconditions/uid");
        if uid.or_else(|| body.pointer("/metadata/uid")) != Some(&metadata["uid"]) {
            return Err(Failure::Gone);
        }
        let version = body.pointer("/metadata/resourceVersion");
        if version.is_some_and(|version| *version != metadata["resourceVersion"]) {
            return Err(Failure::Conflict);
        }
        if write.verb != WriteVerb::Delete {
            self.patch(kind, name, body);
            return Ok(self.get(kind, name).map(|object| (kind, object.clone())));
        }
        if is_pod {
            self.deleted.push(name.to_owned());
        }
        F::delete(self, kind, name);
        Ok(None)
    }

    /// Runs the feature's function and sends what is due.
    pub(crate) fn turn(&mut self) {
        let now = self.time();
        loop {
            self.reconciler.run_keys(now);
            let effects = self.reconciler.take_effects(now);
            self.dirty.extend(effects.dirty);
            F::note_run(self);
            let limit = F::limit_pods(self.reconciler.world());
            let late = self.late.iter_mut().map(|(_, sent)| sent);
            for sent in self.under_way.values_mut().chain(late) {
                sent.limit = sent.limit.max(limit);
            }
            self.send();
            if effects.deadline.is_none_or(|deadline| deadline > self.now) {
                break;
            }
        }
        self.dirty.append(&mut self.retried);
    }

    pub(crate) fn send(&mut self) {
        let now = self.time();
        for id in std::mem::take(&mut self.dirty) {
            let kind = &F::WRITES[id.kind];
            let is_status = kind.label.ends_with("_status");
            let written = self.status_written.get(&id.name.name).copied();
            let is_early = is_status && written.is_some_and(|at| self.now < at);
            if self.under_way.contains_key(&id) || is_early {
                self.dirty.insert(id);
            } else if let Some(write) = self.reconciler.take_due(&id, now) {
                if is_status {
                    let next = self.now + STATUS_SPACING;
                    self.status_written.insert(id.name.name.clone(), next);
                }
                *self.writes.entry(kind.label).or_default() += 1;
                let sent = Sent {
                    kind,
                    body: write.body(),
                    limit: F::limit_pods(self.reconciler.world()),
                    at: self.now,
                };
                self.under_way.insert(id, sent);
            }
        }
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        // No request is waited for any longer.
        let begun = self.now.saturating_sub(TIMEOUT);
        let late = self.under_way.iter().filter(|(_, sent)| sent.at < begun);
        let late: Vec<_> = late.map(|(id, _)| id.clone()).collect();
        for id in late {
            self.under_way.remove(&id);
            self.reconciler.note_failed(&id, false);
            self.retried.insert(id);
        }
        self.late.retain(|(_, sent)| sent.at + LATEST > self.now);
        self.turn();
    }

    /// Carries everything out and shows everything, without letting time pass.
    pub(crate) fn step(&mut self) {
        self.watch_all();
        self.turn();
        while self.is_busy() {
            self.answer(Answer::Done);
        }
        self.watch_all();
        self.turn();
    }

    pub(crate) fn time(&self) -> Now {
        let epoch = Timestamp::from_second(EPOCH).unwrap();
        Now {
            monotonic: self.now,
            wall: epoch + SignedDuration::try_from(self.now).unwrap(),
        }
    }
}

pub(crate) fn name_of(object: &Value) -> ObjectName {
    let text = |field: &str| {
        let text = object["metadata"][field].as_str();
        text.unwrap_or_default().to_owned()
    };
    ObjectName {
        namespace: text("namespace"),
        name: text("name"),
    }
}

/// A JSON merge patch (RFC 7396), or a strategic one of a pod: containers are merged by name, conditions by type, finalizers as
/// a set.
fn merge(object: &mut Value, patch: &Value, is_strategic: bool) {
    let Some(fields) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (field, value) in fields {
        let key = match &**field {
            "containers" => "name",
            "conditions" => "type",
            "ownerReferences" => "uid",
            "finalizers" => "",
            _ => "-",
        };
        if value.is_null() {
            object.as_object_mut().unwrap().remove(field);
        } else if !is_strategic || key == "-" {
            merge(&mut object[field], value, is_strategic);
        } else {
            merge_list(&mut object[field], value, key);
        }
    }
}

fn merge_list(list: &mut Value, patch: &Value, key: &str) {
    if !list.is_array() {
        *list = json!([]);
    }
    let list = list.as_array_mut().unwrap();
    for item in patch.as_array().unwrap() {
        let is_it = |one: &Value| {
            if key.is_empty() {
                one == item
            } else {
                one[key] == item[key]
            }
        };
        let place = list.iter().position(is_it);
        match place {
            Some(place) if item["$patch"] == "delete" => {
                list.remove(place);
            }
            Some(place) => merge(&mut list[place], item, true),
            None => {
                let mut item = item.clone();
                if let Some(fields) = item.as_object_mut() {
                    fields.retain(|_, value| !value.is_null());
                }
                list.push(item);
            }
        }
    }
}

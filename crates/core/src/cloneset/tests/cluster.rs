//! A little API server with sets, pods, claims and revisions, watches that lag, replies that get lost, kubelets, and the loop that
//! carries writes out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leadsman_api::CloneSet;
use leadsman_api::slim::Pod;
use leadsman_api::slim::claim::PersistentVolumeClaim;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_reconcile::{
    Feature, Now, ObjectName, Reconciler, Refusal, ResourceVersion, Source, Watch, WriteId,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::CloneSets;
use super::patch::merge;

pub(super) const SET: &str = "s";
pub(super) const NAMESPACE: &str = "ns";
const EPOCH: i64 = 1_795_000_000;
/// How often a status is written, at most.
const STATUS_SPACING: Duration = Duration::from_secs(2);
/// How long the answer to a request is waited for.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Set,
    Pod,
    Revision,
    Claim,
}

pub(super) const KINDS: [Kind; 4] = [Kind::Set, Kind::Pod, Kind::Revision, Kind::Claim];

/// What becomes of a write that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Done,
    DoneAndLost,
    Lost,
    NotDone,
    Refused,
}

/// A write that is under way.
struct Sent {
    label: &'static str,
    body: Value,
    /// How many pods there may be, as the set was known when it was sent or later.
    limit: usize,
    at: Duration,
}

/// Whether the API server refuses a write.
type Policy = Box<dyn Fn(&str, &str, &Value) -> bool>;

pub(super) struct Cluster {
    objects: BTreeMap<(Kind, String), Value>,
    version: u64,
    uids: u64,
    /// What the watch of each kind has not shown: the object, and whether it is gone.
    events: BTreeMap<Kind, VecDeque<(Value, bool)>>,
    pub(super) reconciler: Reconciler<CloneSets>,
    pub(super) now: Duration,
    dirty: BTreeSet<WriteId>,
    under_way: BTreeMap<WriteId, Sent>,
    retried: BTreeSet<WriteId>,
    status_written: BTreeMap<String, Duration>,
    /// What is refused, by label, name and body.
    pub(super) policy: Policy,
    /// Requests so far, by label.
    pub(super) writes: BTreeMap<&'static str, usize>,
    /// The pods that were created, in their order.
    pub(super) created: Vec<String>,
    /// The pods that were deleted, in their order.
    pub(super) deleted: Vec<String>,
    /// What was told, by reason and note.
    pub(super) told: Vec<(String, String)>,
}

impl Cluster {
    pub(super) fn new() -> Self {
        let mut cluster = Self {
            objects: BTreeMap::new(),
            version: 1,
            uids: 0,
            events: BTreeMap::new(),
            reconciler: Reconciler::new(CloneSets, || Duration::ZERO),
            now: Duration::ZERO,
            dirty: BTreeSet::new(),
            under_way: BTreeMap::new(),
            retried: BTreeSet::new(),
            status_written: BTreeMap::new(),
            policy: Box::new(|_, _, _| false),
            writes: BTreeMap::new(),
            created: Vec::new(),
            deleted: Vec::new(),
            told: Vec::new(),
        };
        cluster.begin_term();
        cluster
    }

    /// With a set of this spec, all of whose pods run.
    pub(super) fn with_set(spec: Value) -> Self {
        let mut cluster = Self::new();
        cluster.create_set(SET, spec);
        cluster.settle();
        cluster
    }

    // What others do.

    /// A set with these fields beside a template with one container.
    pub(super) fn create_set(&mut self, name: &str, mut spec: Value) {
        if spec.get("template").is_none() {
            spec["template"] = json!({"metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "app:1"}]}});
        }
        spec["selector"] = json!({"matchLabels": {"app": name}});
        let metadata = json!({"name": name, "namespace": NAMESPACE});
        self.create(Kind::Set, name, json!({"metadata": metadata, "spec": spec}));
    }

    pub(super) fn edit(&mut self, spec: &Value) {
        self.patch(Kind::Set, SET, &json!({"spec": spec}));
    }

    pub(super) fn set_image(&mut self, image: &str) {
        let containers = json!([{"name": "main", "image": image}]);
        self.edit(&json!({"template": {"spec": {"containers": containers}}}));
    }

    pub(super) fn patch(&mut self, kind: Kind, name: &str, patch: &Value) {
        let Some(mut object) = self.get(kind, name).cloned() else {
            return;
        };
        let before = object.clone();
        merge(&mut object, patch, kind == Kind::Pod);
        if object == before {
            return;
        }
        if object["spec"] != before["spec"] {
            let generation = object["metadata"]["generation"].as_u64().unwrap();
            object["metadata"]["generation"] = json!(generation + 1);
        }
        self.put(kind, name, object);
    }

    /// Somebody deletes a pod: one that is bound to no node goes at once, another one when its kubelet says so.
    pub(super) fn delete_pod(&mut self, name: &str) {
        match self.get(Kind::Pod, name) {
            Some(pod) if !pod["spec"]["nodeName"].is_string() && finalizers(pod) == 0 => {
                self.remove(Kind::Pod, name);
            }
            _ => {
                let at = self.time().wall.to_string();
                self.patch(
                    Kind::Pod,
                    name,
                    &json!({"metadata": {"deletionTimestamp": at}}),
                );
            }
        }
    }

    /// The kubelets take one step with each pod: they end those that are being deleted, start containers and report. What is in
    /// an image `bad` is never ready.
    pub(super) fn run_kubelets(&mut self) {
        for name in self.pods() {
            self.run_kubelet(&name);
        }
    }

    pub(super) fn run_kubelet(&mut self, name: &str) {
        let Some(pod) = self.get(Kind::Pod, name).cloned() else {
            return;
        };
        if pod["metadata"].get("deletionTimestamp").is_some() {
            if finalizers(&pod) == 0 {
                self.remove(Kind::Pod, name);
            }
            return;
        }
        if pod["status"]["phase"] == "Failed" {
            return;
        }
        let node = format!("n{}", name.bytes().map(usize::from).sum::<usize>() % 3);
        let (image, runs) = (
            &pod["spec"]["containers"][0]["image"],
            &pod["status"]["containerStatuses"][0],
        );
        let image = image.as_str().unwrap().to_owned();
        let is_same = runs["image"] == json!(image);
        let id = if is_same {
            runs["containerID"].clone()
        } else {
            json!(format!("id://{}", self.version))
        };
        let is_good = !image.starts_with("bad");
        let condition = |type_: &str| {
            let conditions = pod["status"]["conditions"].as_array();
            conditions
                .into_iter()
                .flatten()
                .find(|one| one["type"] == type_)
                .cloned()
        };
        let gates = pod["spec"]["readinessGates"]
            .as_array()
            .into_iter()
            .flatten();
        let is_true = |type_: &Value| {
            condition(type_.as_str().unwrap()).is_some_and(|one| one["status"] == "True")
        };
        let is_open = gates.map(|gate| &gate["conditionType"]).all(is_true);
        let ready = if is_good && is_open { "True" } else { "False" };
        let mut since = json!(self.time().wall.to_string());
        if let Some(before) = condition("Ready").filter(|one| one["status"] == ready) {
            since = before["lastTransitionTime"].clone();
        }
        let started = if is_same {
            runs["state"]["running"]["startedAt"].clone()
        } else {
            json!(self.time().wall.to_string())
        };
        let container = json!({"name": "main", "image": image, "imageID": format!("sha256:{image}"), "containerID": id,
            "ready": is_good, "restartCount": 0, "state": {"running": {"startedAt": started}}});
        let status = json!({"phase": "Running", "containerStatuses": [container],
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": since}]});
        self.patch(
            Kind::Pod,
            name,
            &json!({"spec": {"nodeName": node}, "status": status}),
        );
    }

    pub(super) fn create(&mut self, kind: Kind, name: &str, mut object: Value) {
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        object["metadata"]["generation"] = json!(1);
        object["metadata"]["creationTimestamp"] = json!(self.time().wall.to_string());
        self.put(kind, name, object);
    }

    fn put(&mut self, kind: Kind, name: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert((kind, name.to_owned()), object.clone());
        self.events
            .entry(kind)
            .or_default()
            .push_back((object, false));
    }

    pub(super) fn remove(&mut self, kind: Kind, name: &str) {
        if let Some(mut object) = self.objects.remove(&(kind, name.to_owned())) {
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.events
                .entry(kind)
                .or_default()
                .push_back((object, true));
        }
        if kind == Kind::Pod {
            self.release_claims();
        }
    }

    /// A claim stays while a pod has it that has not ended (`pvc-protection`).
    pub(super) fn delete_claim(&mut self, name: &str) {
        let at = self.time().wall.to_string();
        self.patch(
            Kind::Claim,
            name,
            &json!({"metadata": {"deletionTimestamp": at}}),
        );
        self.release_claims();
    }

    fn release_claims(&mut self) {
        let pods = self.pods().into_iter().map(|pod| self.pod(&pod).clone());
        let used: BTreeSet<_> = pods
            .filter(|pod| pod["status"]["phase"] != "Failed")
            .flat_map(|pod| claims_of(&pod))
            .collect();
        for name in self.names(Kind::Claim) {
            let claim = self.get(Kind::Claim, &name).unwrap();
            if claim["metadata"].get("deletionTimestamp").is_some() && !used.contains(&name) {
                self.remove(Kind::Claim, &name);
            }
        }
    }

    // What there is.

    pub(super) fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, name.to_owned()))
    }

    pub(super) fn pod(&self, name: &str) -> &Value {
        self.get(Kind::Pod, name).unwrap()
    }

    pub(super) fn names(&self, kind: Kind) -> Vec<String> {
        let names = self.objects.keys().filter(|(of, _)| *of == kind);
        names.map(|(_, name)| name.clone()).collect()
    }

    pub(super) fn pods(&self) -> Vec<String> {
        self.names(Kind::Pod)
    }

    /// The pods that neither terminate nor have ended.
    pub(super) fn active(&self) -> Vec<String> {
        let mut pods = self.pods();
        pods.retain(|name| is_active(self.pod(name)));
        pods
    }

    /// The active pods whose container has this image.
    pub(super) fn with_image(&self, image: &str) -> Vec<String> {
        let mut pods = self.active();
        pods.retain(|name| self.pod(name)["spec"]["containers"][0]["image"] == image);
        pods
    }

    /// How many active pods are ready.
    pub(super) fn count_ready(&self) -> usize {
        let active = self.active().into_iter();
        active.filter(|name| is_ready(self.pod(name))).count()
    }

    pub(super) fn status(&self) -> &Value {
        &self.get(Kind::Set, SET).unwrap()["status"]
    }

    /// The reasons of the set's conditions.
    pub(super) fn reasons(&self) -> Vec<String> {
        let conditions = self.status()["conditions"].as_array();
        let conditions = conditions.into_iter().flatten();
        conditions
            .map(|one| one["reason"].as_str().unwrap().to_owned())
            .collect()
    }

    pub(super) fn state_of(&self, pod: &str) -> String {
        let state = &self.pod(pod)["metadata"]["labels"]["lifecycle.apps.kruise.io/state"];
        state.as_str().unwrap_or_default().to_owned()
    }

    // What the manager sees.

    pub(super) fn watch(&mut self, kind: Kind, count: usize) {
        for _ in 0..count {
            let Some((object, is_gone)) = self.events.entry(kind).or_default().pop_front() else {
                return;
            };
            if !is_gone {
                self.show(kind, &object, Source::Watch);
                continue;
            }
            let (name, now) = (name_of(&object), self.time());
            let version = ResourceVersion::parse(object["metadata"]["resourceVersion"].as_str());
            let reconciler = &mut self.reconciler;
            match kind {
                Kind::Set => reconciler.observe_deletion::<CloneSet>(&name, version, now),
                Kind::Pod => reconciler.observe_deletion::<Pod>(&name, version, now),
                Kind::Revision => {
                    reconciler.observe_deletion::<ControllerRevision>(&name, version, now);
                }
                Kind::Claim => {
                    reconciler.observe_deletion::<PersistentVolumeClaim>(&name, version, now);
                }
            }
        }
    }

    fn show(&mut self, kind: Kind, object: &Value, source: Source) {
        fn observe<K: DeserializeOwned>(
            reconciler: &mut Reconciler<CloneSets>,
            object: &Value,
            source: Source,
        ) where
            CloneSets: Watch<K>,
        {
            // As text, of which a template is kept.
            let object: K = serde_json::from_str(&object.to_string()).unwrap();
            reconciler.observe_object(&Arc::new(object), source);
        }
        match kind {
            Kind::Set => observe::<CloneSet>(&mut self.reconciler, object, source),
            Kind::Pod => observe::<Pod>(&mut self.reconciler, object, source),
            Kind::Revision => observe::<ControllerRevision>(&mut self.reconciler, object, source),
            Kind::Claim => observe::<PersistentVolumeClaim>(&mut self.reconciler, object, source),
        }
    }

    /// The watch of a kind begins again with a list.
    pub(super) fn list(&mut self, kind: Kind) {
        self.events.remove(&kind);
        let version = ResourceVersion::from(self.version);
        let objects = self.objects.iter().filter(|((of, _), _)| *of == kind);
        let objects: Vec<_> = objects.map(|(_, object)| object.clone()).collect();
        let names: BTreeSet<_> = objects.iter().map(name_of).collect();
        for object in &objects {
            self.show(kind, object, Source::List(version));
        }
        let now = self.time();
        let reconciler = &mut self.reconciler;
        match kind {
            Kind::Set => reconciler.observe_list::<CloneSet>(&names, version, false, now),
            Kind::Pod => reconciler.observe_list::<Pod>(&names, version, false, now),
            Kind::Revision => {
                reconciler.observe_list::<ControllerRevision>(&names, version, false, now);
            }
            Kind::Claim => {
                reconciler.observe_list::<PersistentVolumeClaim>(&names, version, false, now);
            }
        }
    }

    /// Another process takes over. Of the writes that were under way some were carried out.
    pub(super) fn crash(&mut self, carried_out: bool) {
        while !self.under_way.is_empty() {
            self.answer(if carried_out {
                Answer::DoneAndLost
            } else {
                Answer::Lost
            });
        }
        self.reconciler = Reconciler::new(CloneSets, || Duration::ZERO);
        self.begin_term();
    }

    fn begin_term(&mut self) {
        for kind in KINDS {
            self.list(kind);
        }
        (self.dirty, self.retried) = (BTreeSet::new(), BTreeSet::new());
        self.reconciler.begin_term();
    }

    /// Whether a request is under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Answers the first write that is under way.
    pub(super) fn answer(&mut self, answer: Answer) {
        let Some((id, sent)) = self.under_way.pop_first() else {
            return;
        };
        let now = self.time();
        let is_refused = (self.policy)(sent.label, &id.name.name, &sent.body);
        let answer = if is_refused { Answer::Refused } else { answer };
        let outcome = match answer {
            Answer::Done | Answer::DoneAndLost => self.carry_out(&id, &sent),
            _ => Ok(None),
        };
        match (answer, outcome) {
            (Answer::DoneAndLost | Answer::Lost, _) => {
                self.reconciler.note_failed(&id, false);
                self.retried.insert(id);
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
                    self.show(*kind, object, Source::Reply);
                }
                self.reconciler.note_done(&id, reply.is_some(), now);
            }
        }
    }

    fn carry_out(&mut self, id: &WriteId, sent: &Sent) -> Result<Option<(Kind, Value)>, Failure> {
        let name = &*id.name.name;
        let kind = match sent.label {
            "cloneset_event" => {
                let text = |field: &str| sent.body[field].as_str().unwrap().to_owned();
                self.told.push((text("reason"), text("note")));
                return Ok(None);
            }
            "cloneset_status" => Kind::Set,
            label if label.ends_with("_revision") => Kind::Revision,
            label if label.ends_with("_claim") => Kind::Claim,
            _ => Kind::Pod,
        };
        if sent.label.starts_with("cloneset_create") {
            if self.get(kind, name).is_none() {
                if kind == Kind::Pod {
                    let owned =
                        |pod: &String| self.pod(pod)["metadata"]["ownerReferences"] != json!([]);
                    let active = self.active().iter().filter(|pod| owned(pod)).count();
                    assert!(
                        active < sent.limit,
                        "{active} pods are there, of {}",
                        sent.limit
                    );
                    for claim in claims_of(&sent.body) {
                        let there = self.get(Kind::Claim, &claim);
                        let there = there
                            .unwrap_or_else(|| panic!("{name} mounts {claim}, which is not there"));
                        assert!(there["metadata"].get("deletionTimestamp").is_none());
                    }
                    self.created.push(name.to_owned());
                }
                let mut object = sent.body.clone();
                let metadata = object["metadata"].as_object_mut().unwrap();
                metadata.retain(|_, value| !value.is_null());
                self.create(kind, name, object);
            }
        } else {
            let object = self.get(kind, name).ok_or(Failure::Gone)?;
            let uid = sent.body.pointer("/preconditions/uid");
            let uid = uid.or_else(|| sent.body.pointer("/metadata/uid"));
            if uid != Some(&object["metadata"]["uid"]) {
                return Err(Failure::Gone);
            }
            let version = sent.body.pointer("/metadata/resourceVersion");
            if version.is_some_and(|version| *version != object["metadata"]["resourceVersion"]) {
                return Err(Failure::Conflict);
            }
            match sent.label {
                "cloneset_delete_pod" => {
                    self.deleted.push(name.to_owned());
                    self.delete_pod(name);
                }
                "cloneset_delete_revision" => self.remove(kind, name),
                "cloneset_delete_claim" => {
                    let active = self.active();
                    let mut users = active
                        .iter()
                        .filter(|pod| claims_of(self.pod(pod)).contains(&name.to_owned()));
                    assert_eq!(users.next(), None, "{name} is the claim of an active pod");
                    self.delete_claim(name);
                }
                _ => self.patch(kind, name, &sent.body),
            }
        }
        let is_deletion = sent.label.contains("delete");
        let reply = self.get(kind, name).filter(|_| !is_deletion).cloned();
        Ok(reply.map(|object| (kind, object)))
    }

    /// Runs the reconciler and sends what is due.
    pub(super) fn turn(&mut self) {
        let now = self.time();
        loop {
            self.reconciler.run_keys(now);
            let effects = self.reconciler.take_effects(now);
            self.dirty.extend(effects.dirty);
            let limit = self.known_limit();
            for sent in self.under_way.values_mut() {
                sent.limit = sent.limit.max(limit);
            }
            self.send();
            if effects.deadline.is_none_or(|deadline| deadline > self.now) {
                break;
            }
        }
        self.dirty.append(&mut self.retried);
    }

    pub(super) fn send(&mut self) {
        let now = self.time();
        for id in std::mem::take(&mut self.dirty) {
            let label = CloneSets::WRITES[id.kind].label;
            let written = self.status_written.get(&id.name.name).copied();
            let is_early = label == "cloneset_status" && written.is_some_and(|at| self.now < at);
            if self.under_way.contains_key(&id) || is_early {
                self.dirty.insert(id);
            } else if let Some(write) = self.reconciler.take_due(&id, now) {
                if label == "cloneset_status" {
                    let next = self.now + STATUS_SPACING;
                    self.status_written.insert(id.name.name.clone(), next);
                }
                *self.writes.entry(label).or_default() += 1;
                let sent = Sent {
                    label,
                    body: write.body().into_owned(),
                    limit: self.known_limit(),
                    at: self.now,
                };
                self.under_way.insert(id, sent);
            }
        }
    }

    /// How many pods of all sets there may be.
    fn known_limit(&self) -> usize {
        let sets = self.reconciler.world().sets.iter();
        let of_set = |set: &super::super::PodSet| {
            let targets = set.targets();
            // A held pod may have another one beside it.
            let held = if set.excludes_held { 100 } else { 0 };
            targets.replicas + targets.surge + held
        };
        sets.map(|(_, set)| of_set(set)).sum()
    }

    pub(super) fn wait(&mut self, time: Duration) {
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
        self.turn();
    }

    /// Carries everything out and shows everything, and has the kubelets work, for a while.
    pub(super) fn settle(&mut self) {
        for _ in 0..15 {
            self.step();
            self.run_kubelets();
            self.wait(Duration::from_secs(2));
        }
    }

    /// Carries everything out and shows everything, without letting time pass.
    pub(super) fn step(&mut self) {
        for kind in KINDS {
            self.watch(kind, usize::MAX);
        }
        self.turn();
        while !self.under_way.is_empty() {
            self.answer(Answer::Done);
        }
        for kind in KINDS {
            self.watch(kind, usize::MAX);
        }
        self.turn();
    }

    pub(super) fn time(&self) -> Now {
        let epoch = Timestamp::from_second(EPOCH).unwrap();
        Now {
            monotonic: self.now,
            wall: epoch + SignedDuration::try_from(self.now).unwrap(),
        }
    }
}

/// Why a write was not carried out.
enum Failure {
    Conflict,
    Gone,
}

fn name_of(object: &Value) -> ObjectName {
    let text = |field: &str| {
        object["metadata"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    ObjectName {
        namespace: text("namespace"),
        name: text("name"),
    }
}

/// The names of the claims that a pod has.
pub(super) fn claims_of(pod: &Value) -> Vec<String> {
    let volumes = pod["spec"]["volumes"].as_array();
    let claims = volumes.into_iter().flatten();
    let claims = claims.filter_map(|one| one.pointer("/persistentVolumeClaim/claimName")?.as_str());
    claims.map(str::to_owned).collect()
}

fn finalizers(pod: &Value) -> usize {
    pod["metadata"]["finalizers"].as_array().map_or(0, Vec::len)
}

fn is_active(pod: &Value) -> bool {
    pod["metadata"].get("deletionTimestamp").is_none() && pod["status"]["phase"] != "Failed"
}

/// Whether a pod is ready as the API server has it.
pub(super) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
}

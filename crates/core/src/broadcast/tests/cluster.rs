//! A little API server with jobs, pods and nodes, watches that lag, replies that get lost, kubelets, and the loop that carries
//! writes out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leadsman_api::BroadcastJob;
use leadsman_api::slim::{Node, Pod};
use leadsman_reconcile::{
    Feature, Now, ObjectName, Reconciler, Refusal, ResourceVersion, Source, Watch, WriteId,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::job::node_hash;
use super::super::pod::PodPhase;
use super::super::writes::BroadcastJobs;
use super::super::{ACKNOWLEDGED, SUCCEEDED};

pub(super) const JOB: &str = "ok";
const NAMESPACE: &str = "b";
const EPOCH: i64 = 1_795_000_000;
/// How often a status is written, at most.
const STATUS_SPACING: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Job,
    Pod,
    Node,
}

pub(super) const KINDS: [Kind; 3] = [Kind::Job, Kind::Pod, Kind::Node];

/// How long the answer to a request is waited for.
const TIMEOUT: Duration = Duration::from_secs(30);

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
    /// How many pods may run, as the job was known when it was sent or later.
    limit: usize,
    at: Duration,
}

pub(super) struct Cluster {
    objects: BTreeMap<(Kind, String), Value>,
    /// The pods for a node.
    by_node: BTreeSet<(String, String)>,
    version: u64,
    uids: u64,
    /// What the watch of each kind has not shown: the object, and whether it is gone.
    events: BTreeMap<Kind, VecDeque<(Value, bool)>>,
    pub(super) reconciler: Reconciler<BroadcastJobs>,
    pub(super) now: Duration,
    dirty: BTreeSet<WriteId>,
    under_way: BTreeMap<WriteId, Sent>,
    retried: BTreeSet<WriteId>,
    status_written: Duration,
    /// Requests so far, by label.
    pub(super) writes: BTreeMap<&'static str, usize>,
    /// What was told, by reason and note.
    pub(super) told: Vec<(String, String)>,
    /// The nodes whose success this process has taken in, or that stand in the job's annotation.
    seen: BTreeSet<String>,
}

impl Cluster {
    pub(super) fn new() -> Self {
        let mut cluster = Self {
            objects: BTreeMap::new(),
            by_node: BTreeSet::new(),
            version: 1,
            uids: 0,
            events: BTreeMap::new(),
            reconciler: Reconciler::new(BroadcastJobs, || Duration::ZERO),
            now: Duration::ZERO,
            dirty: BTreeSet::new(),
            under_way: BTreeMap::new(),
            retried: BTreeSet::new(),
            status_written: Duration::ZERO,
            writes: BTreeMap::new(),
            told: Vec::new(),
            seen: BTreeSet::new(),
        };
        cluster.begin_term();
        cluster
    }

    /// With three nodes, n1 to n3, and a job.
    pub(super) fn with_job(spec: Value) -> Self {
        let mut cluster = Self::new();
        for node in ["n1", "n2", "n3"] {
            cluster.add_node(node);
        }
        cluster.create_job(spec);
        cluster.settle();
        cluster
    }

    // What others do.

    /// A job with these fields beside a template.
    pub(super) fn create_job(&mut self, mut spec: Value) {
        if spec.get("template").is_none() {
            spec["template"] = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        }
        let job = json!({"metadata": {"name": JOB, "namespace": NAMESPACE}, "spec": spec});
        self.create(Kind::Job, JOB, job);
    }

    pub(super) fn add_node(&mut self, name: &str) {
        if self.get(Kind::Node, name).is_none() {
            let node = json!({"metadata": {"name": name, "labels": {"zone": "a"}}, "spec": {},
                "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}});
            self.create(Kind::Node, name, node);
        }
    }

    /// Its pods are collected later.
    pub(super) fn remove_node(&mut self, name: &str) {
        self.remove(Kind::Node, name);
        self.seen.remove(name);
    }

    pub(super) fn patch(&mut self, kind: Kind, name: &str, patch: &Value) {
        let Some(mut object) = self.get(kind, name).cloned() else {
            return;
        };
        let before = object.clone();
        merge(&mut object, patch);
        if object == before {
            return;
        }
        if object["spec"] != before["spec"] && kind == Kind::Job {
            let generation = object["metadata"]["generation"].as_u64().unwrap();
            object["metadata"]["generation"] = json!(generation + 1);
        }
        self.put(kind, name, object);
    }

    pub(super) fn edit_job(&mut self, spec: &Value) {
        self.patch(Kind::Job, JOB, &json!({"spec": spec}));
    }

    /// Taints a node; Kubernetes evicts what does not tolerate `NoExecute`.
    pub(super) fn taint(&mut self, node: &str, effect: Option<&str>) {
        let taints = effect.map(|effect| json!([{"key": "a", "effect": effect}]));
        self.patch(Kind::Node, node, &json!({"spec": {"taints": taints}}));
        if effect == Some("NoExecute") {
            self.delete_pod(node);
        }
    }

    /// The job's pod for a node.
    pub(super) fn pod_of(&self, node: &str) -> Option<(String, Value)> {
        let mut pods = self.by_node.range((node.to_owned(), String::new())..);
        let (_, name) = pods.next().filter(|(known, _)| known == node)?;
        Some((name.clone(), self.get(Kind::Pod, name)?.clone()))
    }

    /// The kubelet of a node reports a phase of the job's pod. One that has ended stays so.
    pub(super) fn report(&mut self, node: &str, phase: &str, restarts: i64) {
        if self.get(Kind::Node, node).is_none() {
            return;
        }
        if let Some((name, pod)) = self.pod_of(node).filter(|(_, pod)| !has_ended(pod)) {
            let is_stopped = pod["spec"]["activeDeadlineSeconds"] == 1;
            let phase = if is_stopped { "Failed" } else { phase };
            let status = json!({"phase": phase, "containerStatuses": [{"name": "c", "restartCount": restarts}]});
            self.patch(
                Kind::Pod,
                &name,
                &json!({"spec": {"nodeName": node}, "status": status}),
            );
        }
    }

    /// Deletes the job's pod for a node: one that has ended or is bound to no node goes at once, another one when its kubelet
    /// says so.
    pub(super) fn delete_pod(&mut self, node: &str) {
        if let Some((name, _)) = self.pod_of(node) {
            self.delete_pod_named(&name);
        }
    }

    fn delete_pod_named(&mut self, name: &str) {
        match self.get(Kind::Pod, name) {
            Some(pod) if has_ended(pod) || !is_bound(pod) => self.remove(Kind::Pod, name),
            _ => {
                let going =
                    json!({"metadata": {"deletionTimestamp": self.time().wall.to_string()}});
                self.patch(Kind::Pod, name, &going);
            }
        }
    }

    /// The kubelet ends the pods of a node that are being deleted, and the garbage collector those of nodes that are gone.
    pub(super) fn collect(&mut self, node: &str) {
        if let Some((name, pod)) = self.pod_of(node) {
            let is_going = pod["metadata"].get("deletionTimestamp").is_some();
            if is_going {
                self.remove(Kind::Pod, &name);
            } else if is_bound(&pod) && self.get(Kind::Node, node).is_none() {
                // Its last sight is that it has failed (`gcOrphaned`, `pkg/controller/podgc/gc_controller.go`).
                if !has_ended(&pod) {
                    self.patch(Kind::Pod, &name, &json!({"status": {"phase": "Failed"}}));
                }
                self.remove(Kind::Pod, &name);
            }
        }
    }

    pub(super) fn create(&mut self, kind: Kind, name: &str, mut object: Value) {
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.uids));
        object["metadata"]["generation"] = json!(1);
        self.put(kind, name, object);
    }

    fn put(&mut self, kind: Kind, name: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if kind == Kind::Pod {
            self.by_node.insert((pinned(&object), name.to_owned()));
        }
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
            self.by_node.remove(&(pinned(&object), name.to_owned()));
            self.events
                .entry(kind)
                .or_default()
                .push_back((object, true));
        }
    }

    pub(super) fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, name.to_owned()))
    }

    pub(super) fn job(&self) -> &Value {
        self.get(Kind::Job, JOB).unwrap()
    }

    /// Phase, and active, succeeded, failed and desired.
    pub(super) fn status(&self) -> (String, [i64; 4]) {
        let status = &self.job()["status"];
        let count = |field: &str| status[field].as_i64().unwrap_or(-1);
        let phase = status["phase"].as_str().unwrap_or_default().to_owned();
        let counts = ["active", "succeeded", "failed", "desired"].map(count);
        (phase, counts)
    }

    pub(super) fn condition(&self) -> Option<(String, String)> {
        let condition = self.job().pointer("/status/conditions/0")?;
        let text = |field: &str| condition[field].as_str().unwrap().to_owned();
        Some((text("type"), text("message")))
    }

    /// The nodes for which there is a pod.
    pub(super) fn nodes_with_pods(&self) -> Vec<String> {
        self.by_node.iter().map(|(node, _)| node.clone()).collect()
    }

    pub(super) fn nodes_with_pod_count(&self) -> usize {
        self.by_node.len()
    }

    /// The nodes that are done as far as a leader can know: a pod has succeeded there, or the annotation says so, or it was seen.
    pub(super) fn is_known_as_done(&self, node: &str) -> bool {
        self.seen.contains(node) || self.is_recorded(node)
    }

    fn is_recorded(&self, node: &str) -> bool {
        let Some(job) = self.get(Kind::Job, JOB) else {
            return false;
        };
        let hash = node_hash(job["metadata"]["uid"].as_str().unwrap(), node);
        let recorded = job["metadata"]["annotations"][SUCCEEDED].as_str();
        recorded.is_some_and(|recorded| recorded.split(',').any(|one| one == hash))
    }

    pub(super) fn acknowledged(&self) -> usize {
        let acknowledged = self.job()["metadata"]["annotations"][ACKNOWLEDGED].as_str();
        acknowledged.map_or(0, |text| text.split(',').count())
    }

    // What the manager sees.

    pub(super) fn watch(&mut self, kind: Kind, count: usize) {
        for _ in 0..count {
            let Some((object, is_gone)) = self.events.entry(kind).or_default().pop_front() else {
                return;
            };
            if is_gone {
                let now = self.time();
                let version =
                    ResourceVersion::parse(object["metadata"]["resourceVersion"].as_str());
                let name = name_of(&object);
                match kind {
                    Kind::Job => self
                        .reconciler
                        .observe_deletion::<BroadcastJob>(&name, version, now),
                    Kind::Pod => self.reconciler.observe_deletion::<Pod>(&name, version, now),
                    Kind::Node => self
                        .reconciler
                        .observe_deletion::<Node>(&name, version, now),
                }
            } else {
                self.show(kind, &object, Source::Watch);
            }
        }
    }

    fn show(&mut self, kind: Kind, object: &Value, source: Source) {
        fn observe<K: DeserializeOwned>(
            reconciler: &mut Reconciler<BroadcastJobs>,
            object: &Value,
            source: Source,
        ) where
            BroadcastJobs: Watch<K>,
        {
            let object: K = serde_json::from_value(object.clone()).unwrap();
            reconciler.observe_object(&Arc::new(object), source);
        }
        match kind {
            Kind::Job => observe::<BroadcastJob>(&mut self.reconciler, object, source),
            Kind::Pod => observe::<Pod>(&mut self.reconciler, object, source),
            Kind::Node => observe::<Node>(&mut self.reconciler, object, source),
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
        match kind {
            Kind::Job => self
                .reconciler
                .observe_list::<BroadcastJob>(&names, version, false, now),
            Kind::Pod => self
                .reconciler
                .observe_list::<Pod>(&names, version, false, now),
            Kind::Node => self
                .reconciler
                .observe_list::<Node>(&names, version, false, now),
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
        self.reconciler = Reconciler::new(BroadcastJobs, || Duration::ZERO);
        self.begin_term();
    }

    fn begin_term(&mut self) {
        for kind in KINDS {
            self.list(kind);
        }
        (self.dirty, self.retried) = (BTreeSet::new(), BTreeSet::new());
        let nodes: Vec<_> = self
            .seen
            .iter()
            .filter(|node| self.is_recorded(node))
            .cloned()
            .collect();
        self.seen = nodes.into_iter().collect();
        self.reconciler.begin_term();
    }

    /// Answers the first write that is under way.
    pub(super) fn answer(&mut self, answer: Answer) {
        let Some((id, sent)) = self.under_way.pop_first() else {
            return;
        };
        let now = self.time();
        let is_carried_out = matches!(answer, Answer::Done | Answer::DoneAndLost);
        let outcome = if is_carried_out {
            self.carry_out(&id, &sent)
        } else {
            Ok(None)
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
        if sent.label == "broadcastjob_event" {
            let text = |field: &str| sent.body[field].as_str().unwrap().to_owned();
            self.told.push((text("reason"), text("note")));
            return Ok(None);
        }
        let is_of_pods = matches!(
            sent.label,
            "broadcastjob_create_pod" | "broadcastjob_delete_pod" | "broadcastjob_stop_pod"
        );
        let kind = if is_of_pods { Kind::Pod } else { Kind::Job };
        if sent.label == "broadcastjob_create_pod" {
            if self.get(kind, name).is_none() {
                self.check_creation(&sent.body, sent.limit);
                self.create(kind, name, sent.body.clone());
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
                "broadcastjob_delete_pod" => self.delete_pod_named(name),
                "broadcastjob_delete" => self.remove(kind, name),
                _ => self.patch(kind, name, &sent.body),
            }
        }
        let is_deletion = sent.label.contains("delete");
        let reply = self.get(kind, name).filter(|_| !is_deletion).cloned();
        Ok(reply.map(|object| (kind, object)))
    }

    /// What always holds where a pod is created.
    fn check_creation(&self, pod: &Value, limit: usize) {
        let node = pinned(pod);
        assert!(
            self.pod_of(&node).is_none(),
            "{node} has a pod of the job already"
        );
        assert!(
            !self.is_known_as_done(&node),
            "{node} has succeeded already"
        );
        if limit > self.by_node.len() {
            return;
        }
        let pods = self
            .by_node
            .iter()
            .filter_map(|(_, name)| self.get(Kind::Pod, name));
        let running = pods.filter(|pod| !has_ended(pod)).count();
        assert!(running < limit, "{running} pods run already, of {limit}");
    }

    /// Runs the reconciler and sends what is due.
    pub(super) fn turn(&mut self) {
        let now = self.time();
        loop {
            self.reconciler.run_keys(now);
            let effects = self.reconciler.take_effects(now);
            self.dirty.extend(effects.dirty);
            self.note_seen();
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

    fn note_seen(&mut self) {
        let world = self.reconciler.world();
        let job = world.jobs.observed(&job_name());
        if let Some(job) = job.filter(|job| job.end().is_none()) {
            let pods = world.pods.find_in(&job.name.namespace, &job.uid);
            let done = pods.filter(|pod| pod.phase == PodPhase::Succeeded);
            let done = done.filter_map(|pod| pod.node.clone());
            let done = done.filter(|node| world.nodes.observed(&node_name(node)).is_some());
            let done: Vec<_> = done.collect();
            let there = done
                .into_iter()
                .filter(|node| self.get(Kind::Node, node).is_some());
            let there: Vec<_> = there.collect();
            self.seen.extend(there);
        }
    }

    pub(super) fn send(&mut self) {
        let now = self.time();
        for id in std::mem::take(&mut self.dirty) {
            let label = BroadcastJobs::WRITES[id.kind].label;
            let is_early = label == "broadcastjob_status" && self.now < self.status_written;
            if self.under_way.contains_key(&id) || is_early {
                self.dirty.insert(id);
            } else if let Some(write) = self.reconciler.take_due(&id, now) {
                if label == "broadcastjob_status" {
                    self.status_written = self.now + STATUS_SPACING;
                }
                *self.writes.entry(label).or_default() += 1;
                let body = write.body().into_owned();
                let limit = self.known_limit();
                let at = self.now;
                let sent = Sent {
                    label,
                    body,
                    limit,
                    at,
                };
                self.under_way.insert(id, sent);
            }
        }
    }

    fn known_limit(&self) -> usize {
        let job = self.reconciler.world().jobs.observed(&job_name());
        job.and_then(|job| job.spec.parallelism)
            .map_or(0, |amount| amount.of(1_000_000))
    }

    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
        // No request is waited for any longer.
        let begun = self.now.saturating_sub(TIMEOUT);
        let late = |(_, sent): &(&WriteId, &Sent)| sent.at < begun;
        let late: Vec<_> = self
            .under_way
            .iter()
            .filter(late)
            .map(|(id, _)| id.clone())
            .collect();
        for id in late {
            self.under_way.remove(&id);
            self.reconciler.note_failed(&id, false);
            self.retried.insert(id);
        }
        self.turn();
    }

    pub(super) fn writes_under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Whether the next answer is to a creation.
    pub(super) fn is_creation_first(&self) -> bool {
        let first = self.under_way.first_key_value();
        first.is_some_and(|(_, sent)| sent.label == "broadcastjob_create_pod")
    }

    /// Carries everything out and shows everything, for a while.
    pub(super) fn settle(&mut self) {
        for _ in 0..10 {
            self.step();
            self.wait(Duration::from_secs(2));
        }
    }

    /// Carries everything out and shows everything, without letting time pass.
    pub(super) fn step(&mut self) {
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

pub(super) fn job_name() -> ObjectName {
    ObjectName {
        namespace: NAMESPACE.to_owned(),
        name: JOB.to_owned(),
    }
}

pub(super) fn node_name(node: &str) -> ObjectName {
    ObjectName {
        namespace: String::new(),
        name: node.to_owned(),
    }
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

fn is_bound(pod: &Value) -> bool {
    pod["spec"]["nodeName"].is_string()
}

fn has_ended(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

/// The node that a pod is for.
fn pinned(object: &Value) -> String {
    const NAME: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0";
    let bound = object
        .pointer("/spec/nodeName")
        .or_else(|| object.pointer(NAME));
    bound.and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A JSON merge patch (RFC 7396).
fn merge(object: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (field, value) in fields {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(field);
        } else {
            merge(&mut object[field], value);
        }
    }
}

//! A small cluster: an API server that keeps objects as JSON, kubelets, and a webhook. What the index is told of it may
//! be late.

mod patches;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use self::patches::{merge, patch_conditions, patch_pod};
use crate::cluster::{Now, ObjectName, ResourceVersion, SortedMap, Source};
use crate::sidecarset::event::{Event, WatchedKind, Write, WriteTarget};
use crate::sidecarset::index::{Config, Index};
use crate::sidecarset::metadata::Whitelist;
use crate::sidecarset::pod::PodState;
use crate::sidecarset::render::{RenderOptions, inject_sets};
use crate::sidecarset::revision::{SET_LABEL, SetRevision};
use crate::sidecarset::selection::{NewPod, SetHistory, offer};
use crate::sidecarset::set::SidecarSet;
use crate::sidecarset::snapshot::SnapshotVersion;
use crate::workload::JsonObject;
use crate::workload::pod::ObservedPod;

pub(super) const NAMESPACE: &str = "leadsman-system";
pub(super) const START: &str = "2026-01-01T00:00:00Z";
/// An image that never starts.
pub(super) const BAD: &str = "i:bad";
/// An image that starts and never gets ready.
pub(super) const UNREADY: &str = "i:unready";

pub(super) type Key = (WatchedKind, ObjectName);

/// A write that was handed out and not answered yet.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) target: WriteTarget,
    pub(super) write: Write,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) objects: BTreeMap<Key, Value>,
    version: u64,
    uids: u64,
    containers: u64,
    seconds: i64,
    pub(super) index: Index,
    /// What the watches have not shown yet.
    late: VecDeque<Event>,
    pub(super) dirty: BTreeSet<WriteTarget>,
    pub(super) in_flight: Vec<InFlight>,
    pub(super) writes: Vec<Write>,
    /// The pods that an upgrade of this container has taken down: they were ready before, and not since.
    pub(super) taken_down: BTreeSet<(String, ObjectName)>,
    /// Whether kubelets hear late of what is written.
    pub(super) are_kubelets_late: bool,
}

pub(super) fn object(namespace: &str, name: &str) -> ObjectName {
    ObjectName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

pub(super) fn pod_name(number: usize) -> ObjectName {
    object("shop", &format!("web-{number:02}"))
}

/// The webhook injects by this version of everything.
pub(super) fn barrier(version: u64) -> Event {
    let version = ResourceVersion::from(version);
    Event::WebhookBarrier(Some(SnapshotVersion {
        sets: version,
        revisions: version,
        whitelist: version,
    }))
}

pub(super) fn set_key(name: &str) -> Key {
    (WatchedKind::Set, object("", name))
}

pub(super) fn pod_key(number: usize) -> Key {
    (WatchedKind::Pod, pod_name(number))
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = Self {
            objects: BTreeMap::new(),
            version: 10,
            uids: 0,
            containers: 0,
            seconds: 0,
            index: Index::new(Config::default()),
            late: VecDeque::new(),
            dirty: BTreeSet::new(),
            in_flight: Vec::new(),
            writes: Vec::new(),
            taken_down: BTreeSet::new(),
            are_kubelets_late: false,
        };
        let namespace = json!({"metadata": {"name": "shop", "labels": {"tier": "gold"}}});
        world.create(&(WatchedKind::Namespace, object("", "shop")), namespace);
        world.restart();
        world
    }

    pub(super) fn now(&self) -> Now {
        let start: Timestamp = START.parse().unwrap();
        Now {
            monotonic: Duration::from_secs(u64::try_from(self.seconds).unwrap()),
            wall: Timestamp::from_second(start.as_second() + self.seconds).unwrap(),
        }
    }

    /// The same moment and the same versions as another.
    pub(super) fn copy_clock(&mut self, other: &Self) {
        self.seconds = other.seconds;
        self.version = other.version;
    }

    /// Some time passes, and the deadline with it.
    pub(super) fn pass(&mut self, seconds: i64) {
        self.seconds += seconds;
        self.tell(Event::Deadline);
    }

    pub(super) fn tell(&mut self, event: Event) {
        let now = self.now();
        let effects = self.index.observe(event, now);
        self.dirty.extend(effects.dirty);
    }

    fn event(&self, key: &Key, source: Source) -> Event {
        let value = self.objects[key].clone();
        match key.0 {
            WatchedKind::Set => Event::Set(read(value), source),
            WatchedKind::Pod => Event::Pod(read(value), source),
            WatchedKind::Namespace => Event::Namespace(read(value), source),
            WatchedKind::Revision => Event::Revision(read(value), source),
            WatchedKind::Configuration => Event::Configuration(read(value), source),
        }
    }

    pub(super) fn create(&mut self, key: &Key, mut value: Value) {
        self.uids += 1;
        let meta = &mut value["metadata"];
        meta["name"] = key.1.name.as_str().into();
        if !key.1.namespace.is_empty() {
            meta["namespace"] = key.1.namespace.as_str().into();
        }
        meta["uid"] = format!("u-{}", self.uids).into();
        meta["creationTimestamp"] = self.now().wall.to_string().into();
        if matches!(key.0, WatchedKind::Set | WatchedKind::Pod) {
            meta["generation"] = 1.into();
        }
        self.objects.insert(key.clone(), value);
        self.store(key);
    }

    /// Gives an object its next version, which the watch shows later.
    fn store(&mut self, key: &Key) {
        self.version += 1;
        let version = self.version.to_string();
        self.objects.get_mut(key).unwrap()["metadata"]["resourceVersion"] = version.clone().into();
        let event = if self.is_watched(key) {
            self.event(key, Source::Watch)
        } else {
            let version = ResourceVersion::parse(Some(&version));
            Event::Deleted(key.0, key.1.clone(), version)
        };
        self.late.push_back(event);
    }

    /// Whether lists and watches show an object: of revisions those with the label. One that loses it looks deleted.
    fn is_watched(&self, key: &Key) -> bool {
        let labels = &self.objects[key]["metadata"]["labels"];
        key.0 != WatchedKind::Revision || labels.get(SET_LABEL).is_some()
    }

    /// Changes an object; a change of the spec of a set or a pod is another generation.
    pub(super) fn change(&mut self, key: &Key, change: impl FnOnce(&mut Value)) -> bool {
        let Some(before) = self.objects.get(key).cloned() else {
            return false;
        };
        let value = self.objects.get_mut(key).unwrap();
        change(value);
        if *value == before {
            return false;
        }
        if value["metadata"]["generation"].is_i64() && value["spec"] != before["spec"] {
            let generation = before["metadata"]["generation"].as_i64().unwrap();
            value["metadata"]["generation"] = (generation + 1).into();
        }
        self.store(key);
        true
    }

    pub(super) fn delete(&mut self, key: &Key) {
        let Some(value) = self.objects.remove(key) else {
            return;
        };
        self.version += 1;
        let version = ResourceVersion::parse(Some(&self.version.to_string()));
        self.late
            .push_back(Event::Deleted(key.0, key.1.clone(), version));
        if key.0 == WatchedKind::Set {
            // The garbage collector.
            let uid = value["metadata"]["uid"].clone();
            let is_owned = |value: &Value| value["metadata"]["ownerReferences"][0]["uid"] == uid;
            let owned = self.objects.iter();
            let owned: Vec<_> = owned
                .filter(|(_, value)| is_owned(value))
                .map(|(key, _)| key.clone())
                .collect();
            for key in owned {
                self.delete(&key);
            }
        }
        if key.0 == WatchedKind::Pod {
            self.taken_down.retain(|(_, pod)| *pod != key.1);
        }
    }

    /// The watches show what is late, or a part of it.
    pub(super) fn deliver(&mut self, most: usize) {
        for _ in 0..most {
            let Some(event) = self.late.pop_front() else {
                return;
            };
            self.tell(event);
        }
    }

    pub(super) fn deliver_all(&mut self) {
        self.deliver(usize::MAX);
    }

    pub(super) fn keys(&self, kind: WatchedKind) -> Vec<Key> {
        let keys = self.objects.keys().filter(|key| key.0 == kind);
        keys.cloned().collect()
    }

    /// Another process takes over: it lists everything.
    pub(super) fn restart(&mut self) {
        self.index = Index::new(Config::default());
        self.late.clear();
        self.dirty.clear();
        self.in_flight.clear();
        self.list();
        self.tell(barrier(999_999_999));
        self.tell(Event::Synced);
    }

    /// The watches begin again with a list.
    pub(super) fn list(&mut self) {
        self.late.clear();
        let version = ResourceVersion::parse(Some(&self.version.to_string()));
        for kind in [
            WatchedKind::Pod,
            WatchedKind::Set,
            WatchedKind::Namespace,
            WatchedKind::Revision,
            WatchedKind::Configuration,
        ] {
            let mut keys = self.keys(kind);
            keys.retain(|key| self.is_watched(key));
            for key in &keys {
                self.tell(self.event(key, Source::List(version)));
            }
            let names = keys.into_iter().map(|(_, name)| name).collect();
            self.tell(Event::Listed(kind, names, version));
        }
    }

    pub(super) fn set(&self, name: &str) -> Option<SidecarSet> {
        let wire = self.objects.get(&set_key(name))?;
        SidecarSet::parse(&serde_json::from_value(wire.clone()).unwrap()).ok()
    }

    pub(super) fn sets(&self) -> Vec<SidecarSet> {
        let names = self.keys(WatchedKind::Set);
        names
            .iter()
            .filter_map(|(_, name)| self.set(&name.name))
            .collect()
    }

    pub(super) fn namespace_labels(&self, name: &str) -> Option<SortedMap<Arc<str>>> {
        let namespace = self
            .objects
            .get(&(WatchedKind::Namespace, object("", name)))?;
        let labels = namespace["metadata"]["labels"].as_object().unwrap();
        let labels = labels
            .iter()
            .map(|(key, value)| (Arc::from(key.as_str()), Arc::from(value.as_str().unwrap())));
        Some(labels.collect())
    }

    /// A pod is created, and injected if a webhook answers; its containers run at once, but for the bad image.
    pub(super) fn create_pod(&mut self, number: usize, is_injected: bool) {
        let key = pod_key(number);
        if self.objects.contains_key(&key) {
            return;
        }
        let pod = json!({
            "metadata": {"name": key.1.name, "labels": {"app": "web"}, "annotations": {}},
            "spec": {"nodeName": "n", "containers": [{"name": "app", "image": "app:1"}]},
        });
        let mut pod: JsonObject = serde_json::from_value(pod).unwrap();
        if is_injected {
            pod = self.injected(&pod);
        }
        let mut pod = Value::Object(pod);
        pod["status"] = json!({
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [],
        });
        self.create(&key, pod);
        self.start_containers(&key);
    }

    fn injected(&self, pod: &JsonObject) -> JsonObject {
        let whitelist = Whitelist::default();
        let revisions: Vec<_> = self
            .keys(WatchedKind::Revision)
            .iter()
            .filter_map(|key| {
                let object = &self.objects[key];
                let meta = serde_json::from_value(object["metadata"].clone()).unwrap();
                SetRevision::read(&meta, object["revision"].as_i64().unwrap(), &object["data"])
            })
            .collect();
        let sets: Vec<_> = self
            .sets()
            .into_iter()
            .map(|set| {
                let wire = &self.objects[&set_key(&set.name)];
                let status = serde_json::from_value(wire["status"].clone()).ok();
                let history = SetHistory::new(&set, revisions.clone(), status.as_ref());
                (set, history)
            })
            .collect();
        let labels = self.namespace_labels("shop");
        let new = NewPod::new(pod, "shop");
        let offered = sets.iter().filter_map(|(set, history)| {
            let label = labels
                .as_ref()
                .map(|labels| |key: &str| labels.get(key).map(|value| &**value));
            let allowed = whitelist.allowed_keys(|_| None, false);
            offer(set, history, allowed, &new, label).ok()
        });
        let offered: Vec<_> = offered.collect();
        let injected = inject_sets(pod, &offered, RenderOptions::default(), self.now().wall);
        injected.additions.apply(pod)
    }

    /// A kubelet makes of a pod what its spec says: whatever has another image is started anew. The pod is ready with its
    /// containers, unless a readiness gate keeps it from that (`gate`).
    pub(super) fn start_containers(&mut self, key: &Key) {
        let Some(pod) = self.objects.get(key) else {
            return;
        };
        let before = pod["status"]["containerStatuses"].clone();
        let now = self.now();
        let mut statuses = Vec::new();
        for container in pod["spec"]["containers"].as_array().unwrap() {
            let name = &container["name"];
            let image = container["image"].as_str().unwrap().to_owned();
            let mut own = before.as_array().unwrap().iter();
            let own = own.find(|status| status["name"] == *name);
            let own = own.filter(|status| status["spec"] == image.as_str());
            let status = own.cloned().unwrap_or_else(|| {
                self.containers += 1;
                let does_start = image != BAD;
                let is_good = does_start && image != UNREADY;
                let running = json!({"running": {"startedAt": now.wall.to_string()}});
                let state = if does_start { running } else { json!({"waiting": {}}) };
                json!({
                    "name": name, "ready": is_good, "restartCount": 0, "image": image, "spec": image,
                    "imageID": "i@sha256:0", "containerID": format!("runtime://{}", self.containers), "state": state,
                })
            });
            statuses.push(status);
        }
        let is_ready =
            pod["status"]["gate"] != false && statuses.iter().all(|status| status["ready"] == true);
        if is_ready {
            self.taken_down.retain(|(_, pod)| *pod != key.1);
        }
        self.change(key, |pod| {
            pod["status"]["observedGeneration"] = pod["metadata"]["generation"].clone();
            pod["status"]["containerStatuses"] = statuses.into();
            show_readiness(pod, is_ready, now);
        });
    }

    /// Opens or closes a readiness gate of a pod; its containers run on.
    pub(super) fn open_gate(&mut self, key: &Key, is_open: bool) {
        let Some(pod) = self.objects.get(key) else {
            return;
        };
        let mut statuses = pod["status"]["containerStatuses"]
            .as_array()
            .unwrap()
            .iter();
        let is_ready = is_open && statuses.all(|status| status["ready"] == true);
        if is_ready {
            self.taken_down.retain(|(_, pod)| *pod != key.1);
        }
        let now = self.now();
        self.change(key, |pod| {
            pod["status"]["gate"] = is_open.into();
            show_readiness(pod, is_ready, now);
        });
    }

    /// The containers of a pod end by themselves, and its kubelet starts them with the images that they had.
    pub(super) fn crash(&mut self, key: &Key) {
        let containers = &mut self.containers;
        let Some(pod) = self.objects.get(key) else {
            return;
        };
        let mut statuses = pod["status"]["containerStatuses"].clone();
        for status in statuses.as_array_mut().unwrap() {
            *containers += 1;
            status["containerID"] = format!("runtime://{containers}").into();
            status["restartCount"] = (status["restartCount"].as_i64().unwrap() + 1).into();
        }
        self.change(key, |pod| pod["status"]["containerStatuses"] = statuses);
    }

    /// The kubelet notices that an image differs: the container is not ready until it is started.
    fn stop_containers(&mut self, key: &Key) {
        let now = self.now();
        self.change(key, |pod| {
            let containers = pod["spec"]["containers"].as_array().unwrap().clone();
            let mut is_stopped = false;
            pod["status"]["observedGeneration"] = pod["metadata"]["generation"].clone();
            for status in pod["status"]["containerStatuses"].as_array_mut().unwrap() {
                let differs = containers.iter().any(|container| {
                    container["name"] == status["name"] && container["image"] != status["spec"]
                });
                if differs && status["ready"] == true {
                    status["ready"] = false.into();
                    is_stopped = true;
                }
            }
            if is_stopped {
                show_readiness(pod, false, now);
            }
        });
    }

    pub(super) fn observed(&self, key: &Key) -> ObservedPod {
        ObservedPod::new(&serde_json::from_value(self.objects[key].clone()).unwrap())
    }

    pub(super) fn state(&self, set: &SidecarSet, key: &Key) -> Option<PodState> {
        let labels = self.namespace_labels(&key.1.namespace);
        let label = labels
            .as_ref()
            .map(|labels| |key: &str| labels.get(key).map(|value| &**value));
        PodState::read(set, &self.observed(key), label, self.now().wall)
    }

    /// Takes out a write that is due, if there is one, to be answered later.
    pub(super) fn send(&mut self, choice: usize) -> bool {
        let under_way =
            |target: &WriteTarget| self.in_flight.iter().any(|one| one.target == *target);
        let free: Vec<_> = self
            .dirty
            .iter()
            .filter(|target| !under_way(target))
            .cloned()
            .collect();
        if free.is_empty() {
            return false;
        }
        let target = free[choice % free.len()].clone();
        self.dirty.remove(&target);
        let now = self.now();
        if let Some(write) = self.index.due(&target, now) {
            self.in_flight.push(InFlight { target, write });
        }
        true
    }

    /// The API server carries a write out. `has_reply` tells whether its reply arrives.
    pub(super) fn carry_out(&mut self, place: usize, has_reply: bool) {
        let InFlight { target, write } = self.in_flight.remove(place);
        self.writes.push(write.clone());
        let Ok(shown) = self.apply(&write) else {
            // A conflict, or the object is gone: it is asked again what is due.
            self.dirty.insert(target);
            return;
        };
        if !has_reply {
            self.dirty.insert(target);
            return;
        }
        if let Some(key) = shown {
            self.tell(self.event(&key, Source::Reply));
        }
        self.tell(Event::Written(target));
    }

    pub(super) fn refuse(&mut self, place: usize) {
        let InFlight { target, write } = self.in_flight.remove(place);
        self.tell(Event::Refused(
            target,
            Box::new(write),
            "a policy forbids it".to_owned(),
        ));
    }

    /// Nothing was carried out, and it is asked again what is due.
    pub(super) fn lose(&mut self, place: usize) {
        let InFlight { target, .. } = self.in_flight.remove(place);
        let now = self.now();
        if let Some(write) = self.index.due(&target, now) {
            self.in_flight.push(InFlight { target, write });
        }
    }

    /// Whatever is due is written and answered, and kubelets act, until nothing is due any more. Returns how many writes
    /// that took.
    pub(super) fn settle(&mut self) -> usize {
        let before = self.writes.len();
        for _ in 0..400 {
            self.deliver_all();
            while !self.in_flight.is_empty() {
                self.carry_out(0, true);
            }
            let has_sent = self.send(0);
            for pod in self.keys(WatchedKind::Pod) {
                self.start_containers(&pod);
            }
            self.deliver_all();
            if !has_sent && self.in_flight.is_empty() && self.dirty.is_empty() {
                return self.writes.len() - before;
            }
        }
        panic!("there is always something due: {:?}", self.dirty);
    }

    fn apply(&mut self, write: &Write) -> Result<Option<Key>, ()> {
        match write {
            Write::Pod { pod, patch } => {
                let key = (WatchedKind::Pod, pod.clone());
                self.check(&key, &patch["metadata"])?;
                self.note_upgrade(&key, patch);
                self.change(&key, |value| patch_pod(value, patch));
                if !self.are_kubelets_late {
                    self.stop_containers(&key);
                }
                Ok(Some(key))
            }
            Write::PodCondition { pod, patch } => {
                let key = (WatchedKind::Pod, pod.clone());
                self.check(&key, &patch["metadata"])?;
                self.change(&key, |value| patch_conditions(value, patch));
                Ok(Some(key))
            }
            Write::SetStatus { set, patch } | Write::SetHashes { set, patch } => {
                let key = set_key(set);
                self.check(&key, &patch["metadata"])?;
                self.change(&key, |value| merge(value, patch));
                Ok(Some(key))
            }
            Write::CreateRevision(object) => {
                let name = object["metadata"]["name"].as_str().unwrap();
                let key = (WatchedKind::Revision, self::object(NAMESPACE, name));
                if self.objects.contains_key(&key) {
                    // It is read, and asked again what is due.
                    self.tell(self.event(&key, Source::Reply));
                    return Err(());
                }
                self.create(&key, (**object).clone());
                Ok(Some(key))
            }
            Write::PatchRevision { revision, patch } => {
                let key = (WatchedKind::Revision, revision.clone());
                self.check(&key, &patch["metadata"])?;
                self.change(&key, |value| merge(value, patch));
                Ok(Some(key))
            }
            Write::DeleteRevision { revision, uid, .. } => {
                let key = (WatchedKind::Revision, revision.clone());
                self.check(&key, &json!({"uid": uid}))?;
                self.delete(&key);
                Ok(None)
            }
            Write::Event(_) => Ok(None),
        }
    }

    fn check(&self, key: &Key, precondition: &Value) -> Result<(), ()> {
        let meta = &self.objects.get(key).ok_or(())?["metadata"];
        for field in ["uid", "resourceVersion"] {
            let wanted = precondition.get(field).filter(|wanted| !wanted.is_null());
            if wanted.is_some_and(|wanted| *wanted != meta[field]) {
                return Err(());
            }
        }
        Ok(())
    }

    fn note_upgrade(&mut self, key: &Key, patch: &Value) {
        if self.objects[key]["status"]["conditions"][0]["status"] != "True" {
            return;
        }
        for container in patch["spec"]["containers"].as_array().into_iter().flatten() {
            let name = container["name"].as_str().unwrap();
            self.taken_down.insert((name.to_owned(), key.1.clone()));
        }
    }
}

/// The condition of a pod that says whether it is ready; its time is that of its last change.
fn show_readiness(pod: &mut Value, is_ready: bool, now: Now) {
    let condition = &mut pod["status"]["conditions"][0];
    let status = if is_ready { "True" } else { "False" };
    if condition["status"] != status {
        condition["status"] = status.into();
        condition["lastTransitionTime"] = now.wall.to_string().into();
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).unwrap())
}

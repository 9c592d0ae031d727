//! A small cluster: an API server that keeps objects as JSON, kubelets, and a webhook. What the feature is told of it may
//! be late.

mod kubelet;
mod patches;
mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use leadsman_api::SidecarSet as SidecarSetWire;
use leadsman_api::slim::config_map::ConfigMap;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_api::slim::{Namespace, Pod};
use leadsman_reconcile::{Reconciler, WriteId, WriteKind};

use crate::cluster::{Now, ObjectName, PodName, ResourceVersion, SortedMap, Source};
use crate::sidecarset::metadata::Whitelist;
use crate::sidecarset::pod::PodState;
use crate::sidecarset::reconcile::writes::{SET_HASHES, SET_STATUS, UPGRADE_POD, WRITES};
use crate::sidecarset::reconcile::{
    Config, Inspection, Lack, Publisher, SetKey, SetSums, SetTotals, SetWorld, SidecarSets,
};
use crate::sidecarset::render::{RenderOptions, inject_sets};
use crate::sidecarset::revision::{SET_LABEL, SetRevision};
use crate::sidecarset::selection::{NewPod, SetHistory, offer};
use crate::sidecarset::set::SidecarSet;
use crate::sidecarset::snapshot::{Snapshot, SnapshotVersion};
use crate::workload::JsonObject;
use crate::workload::pod::ObservedPod;

pub(super) const START: &str = "2026-01-01T00:00:00Z";
/// An image that never starts.
pub(super) const BAD: &str = "i:bad";
/// An image that starts and never gets ready.
pub(super) const UNREADY: &str = "i:unready";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WatchedKind {
    Set,
    Pod,
    Namespace,
    Revision,
    Configuration,
}

pub(super) type Key = (WatchedKind, ObjectName);

/// A write, as its request says it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sent {
    pub(super) id: WriteId,
    pub(super) body: Value,
}

impl Sent {
    pub(super) fn is(&self, kind: &WriteKind) -> bool {
        WRITES[self.id.kind].label == kind.label
    }
}

/// What a watch or a list shows.
#[derive(Debug)]
pub(super) enum Shown {
    Object(WatchedKind, Value, Source),
    Deleted(Key, ResourceVersion),
    Listed(WatchedKind, BTreeSet<ObjectName>, ResourceVersion, bool),
}

/// Keeps what was published last.
#[derive(Clone, Default)]
pub(super) struct LastSnapshot(Arc<Mutex<(Option<Arc<Snapshot>>, SetTotals)>>);

impl Publisher for LastSnapshot {
    fn publish_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        self.0.lock().unwrap().0 = Some(snapshot);
    }

    fn publish_totals(&mut self, totals: &SetTotals) {
        self.0.lock().unwrap().1 = *totals;
    }
}

pub(super) struct World {
    pub(super) objects: BTreeMap<Key, Value>,
    pub(super) version: u64,
    uids: u64,
    containers: u64,
    seconds: i64,
    pub(super) config: Config,
    pub(super) reconciler: Reconciler<SidecarSets>,
    last: LastSnapshot,
    /// What the watches have not shown yet.
    late: VecDeque<Shown>,
    pub(super) dirty: BTreeSet<WriteId>,
    /// The writes that were handed out and not answered yet.
    pub(super) in_flight: Vec<Sent>,
    pub(super) writes: Vec<Sent>,
    /// The pods that an upgrade of this container has taken down: they were ready before, and not since.
    pub(super) taken_down: BTreeSet<(String, ObjectName)>,
    /// Whether kubelets hear late of what is written.
    pub(super) are_kubelets_late: bool,
}

/// The write of this kind of an object.
pub(super) fn write_id(kind: &WriteKind, name: ObjectName) -> WriteId {
    let place = WRITES.iter().position(|one| one.label == kind.label);
    WriteId {
        kind: place.unwrap(),
        name: name.into(),
    }
}

pub(super) fn upgrade_of(pod: usize) -> WriteId {
    write_id(&UPGRADE_POD, pod_name(pod))
}

pub(super) fn status_of(set: &str) -> WriteId {
    write_id(&SET_STATUS, object("", set))
}

pub(super) fn hashes_of(set: &str) -> WriteId {
    write_id(&SET_HASHES, object("", set))
}

fn new_reconciler(config: &Config, last: &LastSnapshot) -> Reconciler<SidecarSets> {
    let feature = SidecarSets::new(config.clone(), last.clone());
    // Runs cost nothing, so that no key rests.
    Reconciler::new(feature, || Duration::ZERO)
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

/// This version of everything.
pub(super) fn barrier(version: u64) -> SnapshotVersion {
    let version = ResourceVersion::from(version);
    SnapshotVersion {
        sets: version,
        revisions: version,
        whitelist: version,
    }
}

pub(super) fn set_key(name: &str) -> Key {
    (WatchedKind::Set, object("", name))
}

pub(super) fn pod_key(number: usize) -> Key {
    (WatchedKind::Pod, pod_name(number))
}

impl World {
    pub(super) fn new() -> Self {
        let (config, last) = (Config::default(), LastSnapshot::default());
        let mut world = Self {
            objects: BTreeMap::new(),
            version: 10,
            uids: 0,
            containers: 0,
            seconds: 0,
            reconciler: new_reconciler(&config, &last),
            config,
            last,
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
        self.run();
    }

    /// What has to run does.
    fn run(&mut self) {
        let now = self.now();
        self.reconciler.publish();
        loop {
            self.reconciler.run_keys(now);
            let effects = self.reconciler.take_effects(now);
            self.dirty.extend(effects.dirty);
            if effects.deadline.is_none_or(|at| at > now.monotonic) {
                break;
            }
        }
    }

    /// The webhook injects by this version, or there is none.
    pub(super) fn set_barrier(&mut self, barrier: Option<SnapshotVersion>) {
        let set =
            |world: &mut SetWorld, mark: &mut dyn FnMut(SetKey)| world.set_barrier(barrier, mark);
        self.reconciler.update_world(set);
        self.run();
    }

    pub(super) fn keep_fields(&mut self, are_kept: bool) {
        self.reconciler.note_fields_kept::<SidecarSetWire>(are_kept);
        self.run();
    }

    fn tell(&mut self, shown: Shown) {
        let now = self.now();
        let reconciler = &mut self.reconciler;
        match shown {
            Shown::Object(kind, value, source) => match kind {
                WatchedKind::Set => {
                    reconciler.observe_object::<SidecarSetWire>(&read(value), source);
                }
                WatchedKind::Pod => reconciler.observe_object::<Pod>(&read(value), source),
                WatchedKind::Namespace => {
                    reconciler.observe_object::<Namespace>(&read(value), source);
                }
                WatchedKind::Revision => {
                    reconciler.observe_object::<ControllerRevision>(&read(value), source);
                }
                WatchedKind::Configuration => {
                    reconciler.observe_object::<ConfigMap>(&read(value), source);
                }
            },
            Shown::Deleted((kind, name), version) => match kind {
                WatchedKind::Set => {
                    reconciler.observe_deletion::<SidecarSetWire>(&name, version, now);
                }
                WatchedKind::Pod => reconciler.observe_deletion::<Pod>(&name, version, now),
                WatchedKind::Namespace => {
                    reconciler.observe_deletion::<Namespace>(&name, version, now);
                }
                WatchedKind::Revision => {
                    reconciler.observe_deletion::<ControllerRevision>(&name, version, now);
                }
                WatchedKind::Configuration => {
                    reconciler.observe_deletion::<ConfigMap>(&name, version, now);
                }
            },
            Shown::Listed(kind, names, version, is_beside) => match kind {
                WatchedKind::Set => {
                    reconciler.observe_list::<SidecarSetWire>(&names, version, is_beside, now);
                }
                WatchedKind::Pod => {
                    reconciler.observe_list::<Pod>(&names, version, is_beside, now);
                }
                WatchedKind::Namespace => {
                    reconciler.observe_list::<Namespace>(&names, version, is_beside, now);
                }
                WatchedKind::Revision => {
                    reconciler.observe_list::<ControllerRevision>(&names, version, is_beside, now);
                }
                WatchedKind::Configuration => {
                    reconciler.observe_list::<ConfigMap>(&names, version, is_beside, now);
                }
            },
        }
        self.run();
    }

    fn shown(&self, key: &Key, source: Source) -> Shown {
        Shown::Object(key.0, self.objects[key].clone(), source)
    }

    /// What has changed since it was asked last of what webhooks answer by.
    pub(super) fn take_changed_snapshot(&mut self) -> Option<Arc<Snapshot>> {
        self.last.0.lock().unwrap().0.take()
    }

    /// The sums over the pods of all sets, as they were published last.
    pub(super) fn sums(&self) -> SetSums {
        self.last.0.lock().unwrap().1.pods
    }

    /// What is known of sets and pods.
    pub(super) fn inspect(&self) -> Inspection<'_> {
        Inspection::new(&self.config, self.reconciler.world(), self.now())
    }

    /// The pods that lack a set.
    pub(super) fn lacking(&self, set: &str) -> BTreeMap<PodName, Lack> {
        let memory = self.reconciler.memory().get(set);
        memory
            .map(|memory| memory.lacking.clone())
            .unwrap_or_default()
    }

    /// The writes that are wanted, by what they write.
    pub(super) fn wanted(&self) -> BTreeMap<WriteId, Value> {
        let wanted = self.reconciler.wanted();
        let wanted = wanted.map(|write| {
            let id = write_id(write.kind(), write.name().clone());
            (id, write.body())
        });
        wanted.collect()
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
            self.shown(key, Source::Watch)
        } else {
            Shown::Deleted(key.clone(), ResourceVersion::parse(Some(&version)))
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
        self.late.push_back(Shown::Deleted(key.clone(), version));
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
        self.reconciler = new_reconciler(&self.config, &self.last);
        self.late.clear();
        self.dirty.clear();
        self.in_flight.clear();
        self.list();
        self.set_barrier(Some(barrier(999_999_999)));
        self.reconciler.begin_term();
        self.run();
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
                self.tell(self.shown(key, Source::List(version)));
            }
            let names = keys.into_iter().map(|(_, name)| name).collect();
            self.tell(Shown::Listed(kind, names, version, false));
        }
    }

    /// All objects of a kind are listed beside a watch that shows nothing.
    pub(super) fn list_beside_watch(&mut self, kind: WatchedKind) {
        let keys = self.keys(kind);
        for key in &keys {
            self.tell(self.shown(key, Source::Reply));
        }
        let names = keys.into_iter().map(|(_, name)| name).collect();
        let version = ResourceVersion::from(self.version);
        self.tell(Shown::Listed(kind, names, version, true));
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

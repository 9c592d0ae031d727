//! A small API server with two kinds, watches that lag, and replies that get lost; and the loop that carries writes out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_reconcile::{Now, ObjectName, Reconciler, Refusal, ResourceVersion, Source, WriteId};

use super::feature::{Painting, Shop};

const MAPS: [&str; 2] = ["light", "dark"];
const PODS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Paint {
        map: usize,
        colour: Option<&'static str>,
    },
    DeleteMap {
        map: usize,
    },
    CreatePod {
        pod: usize,
        map: usize,
    },
    DeletePod {
        pod: usize,
    },
    /// Another client paints a pod.
    Scratch {
        pod: usize,
        colour: Option<&'static str>,
    },
    /// The paint of a pod dries.
    Dry {
        pod: usize,
    },
    /// The watch of a kind shows some events.
    Watch {
        pods: bool,
        events: usize,
    },
    /// The watch shows some events, and what was queued is sent before any key has run.
    WatchAndSend {
        pods: bool,
        events: usize,
    },
    /// Another client changes what nobody reads.
    Touch {
        pod: usize,
    },
    /// The watch of a kind begins again with a list.
    List {
        pods: bool,
    },
    /// A list beside the watch is read, and shown later.
    TakeListBeside {
        pods: bool,
    },
    ShowListBeside,
    /// etcd is restored to what it was some changes ago, and all watches begin again.
    Restore,
    /// The process loses the Lease and gets it again.
    NewTerm,
    Answer(Answer),
    Wait {
        millis: u64,
    },
}

/// What becomes of the write that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Done,
    DoneAndLost,
    Lost,
    Conflict,
    Refused,
    /// An admission webhook takes the change out again.
    Undone,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Object {
    uid: u64,
    version: u64,
    colour: Option<String>,
    dry: Option<String>,
    from: Option<String>,
    touched: u64,
    /// Whether it is wet because of a write of ours.
    wet_by_us: bool,
}

/// By whether it is a pod, and its name.
type Id = (bool, &'static str);
type Objects = BTreeMap<Id, Object>;

pub(crate) struct Play {
    objects: Objects,
    version: u64,
    uids: u64,
    /// The states of before, for a restore.
    past: VecDeque<(u64, Objects)>,
    /// What each watch has not shown: the object, or none and the version of the deletion.
    maps: VecDeque<(Id, Object, bool)>,
    pods: VecDeque<(Id, Object, bool)>,
    beside: Option<(bool, u64, Objects)>,
    reconciler: Reconciler<Painting>,
    now: Duration,
    dirty: BTreeSet<WriteId>,
    /// What is under way, with the uid of the pod and the colour that it gets.
    under_way: BTreeMap<WriteId, (String, Option<String>)>,
    retried: BTreeSet<WriteId>,
    written: usize,
}

impl Play {
    pub(crate) fn new() -> Self {
        let mut play = Self {
            objects: Objects::new(),
            version: 1,
            uids: 0,
            past: VecDeque::new(),
            maps: VecDeque::new(),
            pods: VecDeque::new(),
            beside: None,
            reconciler: Reconciler::new(Painting, || Duration::ZERO),
            now: Duration::ZERO,
            dirty: BTreeSet::new(),
            under_way: BTreeMap::new(),
            retried: BTreeSet::new(),
            written: 0,
        };
        play.list(false);
        play.list(true);
        play.reconciler.begin_term();
        play.turn();
        play
    }

    pub(crate) fn step(&mut self, step: &Step) {
        match step {
            Step::Paint { map, colour } => {
                let colour = colour.map(str::to_owned);
                self.change((false, MAPS[*map]), |map| map.colour = colour, true);
            }
            Step::DeleteMap { map } => self.delete((false, MAPS[*map])),
            Step::CreatePod { pod, map } => {
                let from = Some(MAPS[*map].to_owned());
                if !self.objects.contains_key(&(true, PODS[*pod])) {
                    self.change((true, PODS[*pod]), |pod| pod.from = from, true);
                }
            }
            Step::DeletePod { pod } => self.delete((true, PODS[*pod])),
            Step::Scratch { pod, colour } => {
                let colour = colour.map(str::to_owned);
                let scratch = |pod: &mut Object| (pod.colour, pod.wet_by_us) = (colour, false);
                self.change((true, PODS[*pod]), scratch, false);
            }
            Step::Dry { pod } => {
                let dry = |pod: &mut Object| (pod.dry, pod.wet_by_us) = (pod.colour.clone(), false);
                self.change((true, PODS[*pod]), dry, false);
            }
            Step::Watch { pods, events } => self.watch(*pods, *events),
            Step::WatchAndSend { pods, events } => {
                self.watch(*pods, *events);
                self.send();
            }
            Step::Touch { pod } => {
                self.change((true, PODS[*pod]), |pod| pod.touched += 1, false);
            }
            Step::List { pods } => self.list(*pods),
            Step::TakeListBeside { pods } => {
                self.beside = Some((*pods, self.version, self.objects.clone()));
            }
            Step::ShowListBeside => self.show_list_beside(),
            Step::Restore => self.restore(),
            Step::NewTerm => self.begin_term(),
            Step::Answer(answer) => self.answer(*answer),
            Step::Wait { millis } => self.now += Duration::from_millis(*millis),
        }
        self.turn();
    }

    /// Changes or creates an object, unless nothing changes.
    fn change(&mut self, id: Id, change: impl FnOnce(&mut Object), creates: bool) {
        let before = self.objects.get(&id).cloned();
        if before.is_none() && !creates {
            return;
        }
        let mut object = before.clone().unwrap_or_else(|| {
            self.uids += 1;
            Object {
                uid: self.uids,
                ..Object::default()
            }
        });
        change(&mut object);
        if before.as_ref() == Some(&object) {
            return;
        }
        self.remember();
        object.version = self.version;
        self.objects.insert(id, object.clone());
        self.events(id.0).push_back((id, object, false));
    }

    fn delete(&mut self, id: Id) {
        if self.objects.contains_key(&id) {
            self.remember();
            let mut object = self.objects.remove(&id).unwrap();
            object.version = self.version;
            self.events(id.0).push_back((id, object, true));
        }
    }

    /// Begins a version.
    fn remember(&mut self) {
        self.past.push_back((self.version, self.objects.clone()));
        if self.past.len() > 6 {
            self.past.pop_front();
        }
        self.version += 1;
    }

    fn events(&mut self, pods: bool) -> &mut VecDeque<(Id, Object, bool)> {
        if pods { &mut self.pods } else { &mut self.maps }
    }

    fn watch(&mut self, pods: bool, count: usize) {
        for _ in 0..count {
            let Some((id, object, is_deletion)) = self.events(pods).pop_front() else {
                return;
            };
            if is_deletion {
                let (name, version) = (name(id), ResourceVersion::from(object.version));
                let now = self.time();
                if pods {
                    self.reconciler.observe_deletion::<Pod>(&name, version, now);
                } else {
                    self.reconciler
                        .observe_deletion::<ConfigMap>(&name, version, now);
                }
            } else {
                self.show(id, &object, Source::Watch);
            }
        }
    }

    fn show(&mut self, id: Id, object: &Object, source: Source) {
        let metadata = metadata(id, object);
        if id.0 {
            let pod = Pod {
                metadata,
                ..Pod::default()
            };
            self.reconciler.observe_object(Arc::new(pod), source);
        } else {
            let map = ConfigMap {
                metadata,
                ..ConfigMap::default()
            };
            self.reconciler.observe_object(Arc::new(map), source);
        }
    }

    fn show_list(&mut self, pods: bool, version: u64, objects: &Objects, is_beside: bool) {
        let listed = ResourceVersion::from(version);
        let source = if is_beside {
            Source::Reply
        } else {
            Source::List(listed)
        };
        let mut names = BTreeSet::new();
        for (id, object) in objects.iter().filter(|((is_pod, _), _)| *is_pod == pods) {
            names.insert(name(*id));
            self.show(*id, object, source);
        }
        let now = self.time();
        if pods {
            self.reconciler
                .observe_list::<Pod>(&names, listed, is_beside, now);
        } else {
            self.reconciler
                .observe_list::<ConfigMap>(&names, listed, is_beside, now);
        }
    }

    fn list(&mut self, pods: bool) {
        self.events(pods).clear();
        self.show_list(pods, self.version, &self.objects.clone(), false);
    }

    fn show_list_beside(&mut self) {
        if let Some((pods, version, objects)) = self.beside.take() {
            self.show_list(pods, version, &objects, true);
        }
    }

    fn restore(&mut self) {
        // A watch has come at least as far as what was known otherwise: it has bookmarks.
        for pods in [false, true] {
            self.watch(pods, usize::MAX);
        }
        let Some((version, mut objects)) = self.past.pop_front() else {
            return;
        };
        self.past.clear();
        for object in objects.values_mut() {
            object.wet_by_us = false;
        }
        // Nothing that an answer of before says holds any more, and a new version has another content than it had.
        (self.version, self.objects, self.beside) = (version, objects, None);
        for (id, _) in std::mem::take(&mut self.under_way) {
            self.reconciler.note_failed(&id, false);
        }
        self.list(false);
        self.list(true);
    }

    fn begin_term(&mut self) {
        while !self.under_way.is_empty() {
            self.answer(Answer::DoneAndLost);
        }
        for pods in [false, true] {
            self.show_list(pods, self.version, &self.objects.clone(), true);
        }
        (self.beside, self.dirty) = (None, BTreeSet::new());
        self.reconciler.begin_term();
    }

    fn answer(&mut self, answer: Answer) {
        let Some((id, (uid, colour))) = self.under_way.pop_first() else {
            return;
        };
        let pod = PODS.into_iter().find(|pod| *pod == id.name.name).unwrap();
        let there = self.objects.get(&(true, pod));
        if there.is_none_or(|there| there.uid.to_string() != uid) {
            self.reconciler.note_gone(&id, self.time());
            return;
        }
        match answer {
            Answer::Done | Answer::DoneAndLost => self.paint((true, pod), colour),
            Answer::Lost | Answer::Conflict | Answer::Refused | Answer::Undone => {}
        }
        let now = self.time();
        match answer {
            Answer::Done | Answer::Undone => {
                let object = self.objects[&(true, pod)].clone();
                self.show((true, pod), &object, Source::Reply);
                self.reconciler.note_done(&id, true, now);
            }
            Answer::DoneAndLost | Answer::Lost => {
                self.reconciler.note_failed(&id, false);
                self.retried.insert(id);
            }
            Answer::Conflict => {
                self.reconciler.note_failed(&id, true);
                self.retried.insert(id);
            }
            Answer::Refused => {
                let refusal = Refusal::Forbidden("no".to_owned());
                self.reconciler.note_refused(&id, refusal, now);
            }
        }
    }

    fn paint(&mut self, id: Id, colour: Option<String>) {
        let paint = |pod: &mut Object| {
            pod.wet_by_us |= pod.colour == pod.dry;
            pod.wet_by_us &= colour != pod.dry;
            pod.colour = colour;
        };
        self.change(id, paint, false);
        for map in MAPS {
            let wet = self
                .objects
                .values()
                .filter(|pod| pod.wet_by_us && pod.from.as_deref() == Some(map));
            assert!(wet.count() <= 1, "two pods are wet by our doing");
        }
    }

    /// Runs the reconciler and sends what is due.
    fn turn(&mut self) {
        let now = self.time();
        loop {
            self.reconciler.run_keys(now);
            let effects = self.reconciler.take_effects(now);
            self.dirty.extend(effects.dirty);
            self.send();
            if effects.deadline.is_none_or(|deadline| deadline > self.now) {
                break;
            }
        }
        // Sent again with the next step.
        self.dirty.append(&mut self.retried);
    }

    fn send(&mut self) {
        let now = self.time();
        for id in std::mem::take(&mut self.dirty) {
            if self.under_way.contains_key(&id) {
                self.dirty.insert(id);
            } else if let Some(write) = self.reconciler.take_due(&id, now) {
                let metadata = &write.body()["metadata"];
                let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
                let painted = (
                    text(&metadata["uid"]).unwrap(),
                    text(&metadata["labels"]["colour"]),
                );
                self.written += 1;
                self.under_way.insert(id, painted);
            }
        }
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.turn();
    }

    /// Shows everything that the watches have not shown.
    pub(crate) fn show_all(&mut self) {
        for pods in [false, true] {
            self.watch(pods, usize::MAX);
        }
        self.turn();
    }

    pub(crate) fn writes_under_way(&self) -> usize {
        self.under_way.len()
    }

    pub(crate) fn is_asked(&self, pod: usize) -> bool {
        self.reconciler
            .world()
            .pods
            .is_asked(&name((true, PODS[pod])))
    }

    /// Ends all faults: what is known must be what is there, and every pod has its colour, without a write too many.
    pub(crate) fn heal(&mut self) {
        for _ in 0..40 {
            while !self.under_way.is_empty() {
                self.step(&Step::Answer(Answer::Done));
            }
            for pod in 0..PODS.len() {
                self.step(&Step::Dry { pod });
            }
            self.show_all();
            self.wait(Duration::from_secs(20));
        }
        self.check_world();
        let written = self.written;
        self.wait(Duration::from_mins(10));
        assert_eq!(self.written, written, "written without need");
    }

    fn check_world(&self) {
        let Shop { maps, pods } = self.reconciler.world();
        let known = maps.iter().map(|(name, map)| ((false, name), map));
        let known = known.chain(pods.iter().map(|(name, pod)| ((true, name), pod)));
        let known: Vec<_> = known
            .map(|((is_pod, name), object)| {
                (
                    is_pod,
                    name.name.clone(),
                    object.colour.clone(),
                    object.from.clone(),
                )
            })
            .collect();
        let there = self.objects.iter().map(|((is_pod, name), object)| {
            (
                *is_pod,
                (*name).to_owned(),
                object.colour.clone(),
                object.from.clone(),
            )
        });
        assert_eq!(known, there.collect::<Vec<_>>());
        for ((is_pod, name), pod) in &self.objects {
            let from = pod.from.as_deref().and_then(|from| {
                let map = MAPS.into_iter().find(|map| *map == from)?;
                self.objects.get(&(false, map))
            });
            let wanted = from.and_then(|map| map.colour.clone());
            assert!(
                !is_pod || pod.colour == wanted,
                "{name} is {:?}, not {wanted:?}",
                pod.colour
            );
        }
    }

    fn time(&self) -> Now {
        Now {
            monotonic: self.now,
            ..Now::default()
        }
    }
}

fn name((_, name): Id) -> ObjectName {
    ObjectName {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    }
}

fn metadata(id: Id, object: &Object) -> ObjectMeta {
    let labels = [
        ("colour", &object.colour),
        ("dry", &object.dry),
        ("from", &object.from),
    ];
    let labels = labels
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
    let name = name(id);
    ObjectMeta {
        name: Some(name.name),
        namespace: Some(name.namespace),
        uid: Some(object.uid.to_string()),
        resource_version: Some(object.version.to_string()),
        labels: Some(labels.collect()),
        ..ObjectMeta::default()
    }
}

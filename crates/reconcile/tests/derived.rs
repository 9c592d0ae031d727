//! A feature that keeps in its memory what follows from many objects, and whose writes have parts: `ConfigMap`s are lamps, and
//! of each namespace one object says how many of them there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_reconcile::{
    Change, Class, Feature, Key, Now, ObjectName, Plan, Precedence, Purpose, Reconciler,
    ResourceVersion, RightScope, Source, Store, Stored, Watch, WatchAdvance, WriteId, WriteKind,
    WritePart, WriteVerb,
};
use serde_json::{Value, json};

const COUNT: WriteKind = WriteKind {
    label: "count",
    group: "",
    version: "v1",
    resource: "secrets",
    verb: WriteVerb::MergePatch,
    scope: RightScope::Cluster,
    class: 0,
};
const LIGHT: WriteKind = WriteKind {
    label: "light",
    resource: "configmaps",
    ..COUNT
};

const DIM: WriteKind = WriteKind {
    label: "dim",
    ..LIGHT
};

struct Lamps;

#[derive(PartialEq)]
struct Lamp {
    name: ObjectName,
    version: ResourceVersion,
    /// What it is to have, and has: by key. None if it does not decode.
    wants: Option<BTreeMap<String, String>>,
    has: BTreeMap<String, String>,
}

impl Stored for Lamp {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn uid(&self) -> &'static str {
        "u"
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.wants, &self.has) == (&other.wants, &other.has)
    }
}

#[derive(Default)]
struct Derived {
    by_namespace: BTreeMap<String, usize>,
    terms: usize,
    shown: Vec<WatchAdvance>,
    /// Whether anything was remembered of the lamp that ran last.
    is_remembered: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LampKey {
    Lamp(ObjectName),
    Namespace(String),
}

impl Key for LampKey {
    fn namespace(&self) -> &str {
        match self {
            Self::Lamp(name) => &name.namespace,
            Self::Namespace(namespace) => namespace,
        }
    }

    fn runs_after(&self) -> Precedence {
        match self {
            Self::Lamp(_) => Precedence::None,
            Self::Namespace(_) => Precedence::OfNamespace,
        }
    }
}

impl Feature for Lamps {
    const NAME: &'static str = "lamps";
    const WRITES: &'static [WriteKind] = &[COUNT, LIGHT, DIM];
    const CLASSES: &'static [Class] = &[Class::new("lamps")];
    const RUNS_ALL_FIRST: bool = true;
    type Key = LampKey;
    type World = Store<Lamp>;
    type Memory = Derived;

    fn keys(&self, world: &Store<Lamp>) -> Vec<LampKey> {
        let lamps = world
            .iter()
            .map(|(name, _)| LampKey::Lamp((**name).clone()));
        lamps.collect()
    }

    fn begin_term(&self, _: &Store<Lamp>, memory: &mut Derived, _: Now) {
        memory.terms += 1;
    }

    fn reconcile(
        &self,
        key: &LampKey,
        world: &Store<Lamp>,
        memory: &mut Derived,
        plan: &mut Plan<'_, Self>,
    ) {
        match key {
            LampKey::Lamp(name) => {
                plan.mark(LampKey::Namespace(name.namespace.clone()));
                memory.is_remembered = plan.remembers(&LIGHT, name);
                if let Some(lamp) = world.observed(name) {
                    light(lamp, plan);
                }
            }
            LampKey::Namespace(namespace) => {
                let count = memory.by_namespace.get(namespace);
                let name = ObjectName {
                    namespace: namespace.clone(),
                    name: "count".to_owned(),
                };
                plan.patch(&COUNT, name, &json!({"data": {"count": count}}));
            }
        }
    }
}

fn part(key: &str, value: &str) -> WritePart {
    WritePart {
        part: Purpose::of(key),
        purpose: Purpose::of(value),
    }
}

/// Writes what a lamp lacks, but for what rests.
fn light(lamp: &Lamp, plan: &mut Plan<'_, Lamps>) {
    let wants = lamp.wants.iter().flatten();
    let wanted = wants.clone().map(|(key, value)| part(key, value));
    plan.want_parts(&LIGHT, lamp.name.clone(), wanted.collect());
    if lamp.wants.iter().any(|wants| wants.contains_key("dim")) {
        let write = plan.patch(&DIM, lamp.name.clone(), &json!({"data": {}}));
        write.waiting_for(&LIGHT);
        return;
    }
    let (mut data, mut parts) = (BTreeMap::new(), Vec::new());
    for (key, value) in wants.filter(|(key, value)| lamp.has.get(*key) != Some(value)) {
        let part = part(key, value);
        let rest = plan.part_rest(&LIGHT, &lamp.name, part);
        let until = rest.map(|rest| rest.until);
        if let Some(until) = until.filter(|until| *until > plan.now().monotonic) {
            plan.wake_at(until);
        } else {
            data.insert(key, value);
            parts.push(part);
        }
    }
    if !data.is_empty() {
        let body = json!({"data": data});
        plan.patch(&LIGHT, lamp.name.clone(), &body).of_parts(parts);
    }
}

impl Watch<ConfigMap> for Lamps {
    type Stored = Lamp;

    fn store(world: &mut Store<Lamp>) -> &mut Store<Lamp> {
        world
    }

    fn read(&self, map: &Arc<ConfigMap>) -> Arc<Lamp> {
        let lamp = lamp_of(&map.metadata);
        let annotations = map.metadata.annotations.clone();
        Arc::new(Lamp {
            wants: Some(annotations.unwrap_or_default()),
            has: map.data.clone().unwrap_or_default(),
            ..lamp
        })
    }

    fn read_undecodable(&self, metadata: &ObjectMeta) -> Option<Arc<Lamp>> {
        Some(Arc::new(lamp_of(metadata)))
    }

    fn take_in(
        &self,
        change: &Change<Lamp>,
        _: &Store<Lamp>,
        memory: &mut Derived,
        _: Now,
        affected: &mut dyn FnMut(LampKey),
    ) {
        let count = memory.by_namespace.entry(change.name.namespace.clone());
        let count = count.or_default();
        *count += usize::from(change.now.is_some());
        *count -= usize::from(change.before.is_some());
        affected(LampKey::Namespace(change.name.namespace.clone()));
    }

    fn note_progress(
        &self,
        progress: WatchAdvance,
        _: &Store<Lamp>,
        memory: &mut Derived,
        _: Now,
        _: &mut dyn FnMut(LampKey),
    ) {
        memory.shown.push(progress);
    }

    fn find_affected(
        &self,
        change: &Change<Lamp>,
        _: &Store<Lamp>,
        affected: &mut dyn FnMut(LampKey),
    ) {
        affected(LampKey::Lamp((*change.name).clone()));
    }
}

fn lamp_of(metadata: &ObjectMeta) -> Lamp {
    Lamp {
        name: ObjectName::of(metadata),
        version: ResourceVersion::parse(metadata.resource_version.as_deref()),
        wants: None,
        has: BTreeMap::new(),
    }
}

fn named(namespace: &str, name: &str) -> ObjectName {
    ObjectName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn lamp(name: &str, version: u64, wants: &Value, has: &Value) -> Arc<ConfigMap> {
    let lamp = json!({"metadata": {
        "namespace": "shop", "name": name, "resourceVersion": version.to_string(), "annotations": wants,
    }, "data": has});
    Arc::new(serde_json::from_value(lamp).expect("a ConfigMap"))
}

fn at(seconds: u64) -> Now {
    Now {
        monotonic: Duration::from_secs(seconds),
        ..Now::default()
    }
}

/// Each key takes all of a turn.
fn slow() -> Duration {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    Duration::from_millis(3 * CALLS.fetch_add(1, Ordering::Relaxed))
}

fn dirty(lamps: &mut Reconciler<Lamps>, now: Now) -> Vec<WriteId> {
    lamps.take_effects(now).dirty
}

fn id(kind: usize, name: ObjectName) -> WriteId {
    WriteId {
        kind,
        name: name.into(),
    }
}

#[test]
fn nothing_is_sent_before_each_key_has_run_and_the_last_ones_run_once() {
    let mut lamps = Reconciler::new(Lamps, slow);
    for number in 1..=3 {
        let lamp = lamp(
            &format!("l{number}"),
            number,
            &json!({"colour": "red"}),
            &json!({}),
        );
        lamps.observe_object(&lamp, Source::Watch);
    }
    lamps.begin_term();
    for _ in 0..2 {
        lamps.run_keys(at(0));
        assert_eq!(lamps.take_effects(at(0)).deadline, Some(Duration::ZERO));
        assert!(dirty(&mut lamps, at(0)).is_empty());
        assert!(lamps.take_due(&id(1, named("shop", "l1")), at(0)).is_none());
    }
    lamps.run_keys(at(0));
    let all: Vec<_> = dirty(&mut lamps, at(0));
    assert_eq!(all.len(), 3, "{all:?}");
    let count = id(0, named("shop", "count"));
    // The first round is over, whatever comes next.
    lamps.observe_object(lamp("l9", 9, &json!({}), &json!({})), Source::Watch);
    let light = id(1, named("shop", "l1"));
    assert!(lamps.take_due(&light, at(0)).is_some());
    lamps.run_keys(at(1));
    lamps.run_keys(at(1));
    let write = lamps.take_due(&count, at(1)).expect("it is due");
    assert_eq!(write.body()["data"]["count"], 4);
}

#[test]
fn what_was_written_of_an_object_that_is_gone_was_undone_by_nobody() {
    let mut lamps = Reconciler::new(Lamps, || Duration::ZERO);
    lamps.begin_term();
    let red = lamp("l1", 1, &json!({"colour": "red"}), &json!({}));
    lamps.observe_object(&red, Source::Watch);
    let light = id(1, named("shop", "l1"));
    for second in [0, 0, 1, 3] {
        lamps.run_keys(at(second));
        assert!(lamps.take_due(&light, at(second)).is_some(), "{second}");
        lamps.note_gone(&light, at(second));
        lamps.run_keys(at(second));
        // It rests as a whole, and is wanted whole.
        let wanted = lamps
            .wanted()
            .filter(|write| write.kind().label == LIGHT.label);
        assert_eq!(wanted.count(), 1);
    }
}

#[test]
fn what_is_kept_of_changes_outlives_the_term_if_the_feature_says_so() {
    let mut lamps = Reconciler::new(Lamps, || Duration::ZERO);
    lamps.observe_object(lamp("a", 1, &json!({}), &json!({})), Source::Watch);
    lamps.begin_term();
    lamps.begin_term();
    assert_eq!(lamps.memory().by_namespace["shop"], 1);
    assert_eq!(lamps.memory().terms, 2);
}

#[test]
fn the_progress_of_a_watch_is_known_also_by_what_shows_nothing_new() {
    let mut lamps = Reconciler::new(Lamps, || Duration::ZERO);
    let version = ResourceVersion::from;
    lamps.observe_list::<ConfigMap>(&[].into(), version(1), false, at(0));
    lamps.observe_object(lamp("a", 2, &json!({}), &json!({})), Source::Watch);
    lamps.observe_object(lamp("a", 3, &json!({}), &json!({})), Source::Watch);
    // It says nothing of how far the watch has come.
    lamps.observe_object(lamp("a", 9, &json!({}), &json!({})), Source::Reply);
    lamps.observe_deletion::<ConfigMap>(&named("shop", "b"), version(4), at(0));
    lamps.observe_list::<ConfigMap>(&[].into(), version(5), true, at(0));
    let expected = [
        WatchAdvance::Listed(version(1)),
        WatchAdvance::Shown(version(2)),
        WatchAdvance::Shown(version(3)),
        WatchAdvance::Shown(version(4)),
        WatchAdvance::Relisted(version(5)),
    ];
    assert_eq!(lamps.memory().shown, expected);
}

#[test]
fn another_state_may_stand_for_an_object_that_does_not_decode() {
    let mut lamps = Reconciler::new(Lamps, || Duration::ZERO);
    let object = lamp("a", 1, &json!({"colour": "red"}), &json!({}));
    lamps.observe_object(&object, Source::Watch);
    let metadata = ObjectMeta {
        resource_version: Some("2".to_owned()),
        ..object.metadata.clone()
    };
    lamps.observe_metadata::<ConfigMap>(&metadata, Source::Watch);
    let known = lamps
        .world()
        .observed(&named("shop", "a"))
        .expect("it stands");
    assert!(known.wants.is_none());
    assert_eq!(known.version, ResourceVersion::from(2));
}

/// Sends what is due of the lamp at this time. Returns the keys that it writes.
fn send(lamps: &mut Reconciler<Lamps>, now: Now) -> Vec<String> {
    lamps.run_keys(now);
    let id = id(1, named("shop", "a"));
    let Some(write) = lamps.take_due(&id, now) else {
        return Vec::new();
    };
    lamps.note_done(&id, true, now);
    let body = write.body();
    let data = body["data"].as_object().expect("the data");
    data.keys().cloned().collect()
}

#[test]
fn nothing_is_remembered_of_a_write_that_stood_for_long() {
    let mut lamps = Reconciler::new(Lamps, || Duration::ZERO);
    lamps.begin_term();
    let red = json!({"colour": "red"});
    lamps.observe_object(lamp("a", 1, &red, &json!({})), Source::Watch);
    assert_eq!(send(&mut lamps, at(0)), ["colour"]);
    let mut remembers_at = |version: u64, seconds| {
        lamps.run_keys(at(seconds));
        let has = json!({"colour": "red", "edit": version.to_string()});
        lamps.observe_object(lamp("a", version, &red, &has), Source::Watch);
        lamps.run_keys(at(seconds));
        lamps.memory().is_remembered
    };
    assert!(remembers_at(2, 1));
    assert!(!remembers_at(3, 3_600));
}

#[test]
fn a_write_waits_while_another_kind_of_its_object_is_under_way() {
    let mut lamps = Reconciler::new(Lamps, || Duration::ZERO);
    lamps.begin_term();
    let red = json!({"colour": "red"});
    lamps.observe_object(lamp("a", 1, &red, &json!({})), Source::Watch);
    lamps.run_keys(at(0));
    let [light, dim] = [1, 2].map(|kind| id(kind, named("shop", "a")));
    assert!(lamps.take_due(&light, at(0)).is_some());
    let none = json!({"dim": "yes"});
    lamps.observe_object(lamp("a", 2, &none, &json!({})), Source::Watch);
    lamps.run_keys(at(0));
    assert!(lamps.take_due(&dim, at(0)).is_none());
    lamps.note_failed(&light, true);
    lamps.run_keys(at(0));
    assert!(lamps.take_effects(at(0)).dirty.contains(&dim));
    assert!(lamps.take_due(&dim, at(0)).is_some());
}

#[test]
fn a_part_that_is_undone_rests_alone_and_not_for_another_value() {
    let mut lamps = Reconciler::new(Lamps, || Duration::ZERO);
    let wants = json!({"colour": "red", "on": "yes"});
    lamps.observe_object(lamp("a", 1, &wants, &json!({})), Source::Watch);
    lamps.begin_term();
    assert_eq!(send(&mut lamps, at(0)), ["colour", "on"]);
    assert!(!lamps.memory().is_remembered, "nothing was sent before");
    // Somebody takes the colour away each time.
    let on = json!({"on": "yes"});
    lamps.observe_object(lamp("a", 2, &wants, &on), Source::Watch);
    assert_eq!(send(&mut lamps, at(0)), ["colour"]);
    assert!(lamps.memory().is_remembered);
    assert!(send(&mut lamps, at(0)).is_empty());
    let wants_off = json!({"colour": "red", "on": "no"});
    lamps.observe_object(lamp("a", 3, &wants_off, &on), Source::Watch);
    assert_eq!(send(&mut lamps, at(0)), ["on"]);
    let off = json!({"on": "no"});
    lamps.observe_object(lamp("a", 4, &wants_off, &off), Source::Watch);
    assert!(send(&mut lamps, at(0)).is_empty());
    assert_eq!(send(&mut lamps, at(1)), ["colour"]);
    // The colour that is wanted for a moment is there already: what was taken away is another one.
    let blue = json!({"colour": "blue", "on": "no"});
    lamps.observe_object(lamp("a", 5, &blue, &blue), Source::Watch);
    assert!(send(&mut lamps, at(1)).is_empty());
    lamps.observe_object(lamp("a", 6, &wants_off, &off), Source::Watch);
    assert_eq!(send(&mut lamps, at(1)), ["colour"]);
}

//! What a plan asks for beside patches: wakes, notices, verdicts, deletions.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use leadsman_reconcile::{
    Change, Class, Feature, Key, Notice, Now, ObjectName, Plan, Purpose, Reconciler, Refusal,
    Regarding, ResourceVersion, RightScope, Source, Store, Stored, Watch, Write, WriteId,
    WriteKind, WriteVerb,
};
use serde_json::json;

const fn kind(label: &'static str, resource: &'static str, verb: WriteVerb) -> WriteKind {
    WriteKind {
        label,
        group: "",
        version: "v1",
        resource,
        verb,
        scope: RightScope::Cluster,
        class: 0,
    }
}

const RING: WriteKind = kind("ring", "configmaps", WriteVerb::MergePatch);
const REMOVE: WriteKind = kind("remove", "configmaps", WriteVerb::Delete);
const JUDGE: WriteKind = kind("judge", "pods", WriteVerb::DryRun);
const TELL: WriteKind = kind("tell", "events", WriteVerb::Create);

/// A `ConfigMap` says by its data what is to be done with it.
struct Bells;

#[derive(PartialEq)]
struct Bell {
    name: ObjectName,
    uid: String,
    version: ResourceVersion,
    data: Vec<(String, String)>,
}

impl Bell {
    fn says(&self, key: &str) -> Option<&str> {
        let found = self.data.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| &**value)
    }

    fn notice(&self, reason: &'static str, note: &str) -> Notice {
        Notice {
            regarding: Regarding {
                api_version: "v1",
                kind: "ConfigMap",
                name: self.name.clone(),
                uid: self.uid.clone(),
            },
            is_warning: true,
            reason,
            action: "Ring",
            note: note.to_owned(),
        }
    }
}

impl Stored for Bell {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn is_same(&self, other: &Self) -> bool {
        self.data == other.data
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BellKey(ObjectName);

impl Key for BellKey {
    fn namespace(&self) -> &str {
        &self.0.namespace
    }
}

impl Feature for Bells {
    const NAME: &'static str = "bells";
    const EVENTS_FROM: &'static str = "bell-controller";
    const WRITES: &'static [WriteKind] = &[RING, REMOVE, JUDGE, TELL];
    const CLASSES: &'static [Class] = &[Class::new("bells")];
    type Key = BellKey;
    type World = Store<Bell>;
    type Memory = ();

    fn keys(&self, world: &Store<Bell>) -> Vec<BellKey> {
        let names = world.iter().map(|(name, _)| BellKey((**name).clone()));
        names.collect()
    }

    fn reconcile(
        &self,
        key: &BellKey,
        world: &Store<Bell>,
        (): &mut (),
        plan: &mut Plan<'_, Self>,
    ) {
        let Some(bell) = world.assumed(&key.0) else {
            return;
        };
        let rings_at = bell.says("ring").and_then(|at| at.parse().ok());
        let wakes_at = bell.says("wake").and_then(|at| at.parse().ok());
        let (now, name) = (plan.now(), || key.0.clone());
        let mut rings = false;
        if let Some(at) = rings_at {
            plan.wake_at_time(at);
            rings |= at <= now.wall;
        }
        if let Some(at) = wakes_at.map(Duration::from_secs) {
            plan.wake_at(at);
            rings |= at <= now.monotonic;
        }
        if rings {
            let write = plan.patch(&RING, name(), &json!({"data": {"rang": "yes"}}));
            write.measured_since(rings_at);
            write.tell_when_done(bell.notice("Rang", "it has rung"));
            let bell = bell.notice("Silent", "");
            write.tell_when_refused(move |refusal| Notice {
                note: refusal.clone().into_reason(),
                ..bell.clone()
            });
        }
        if let Some(state) = bell.says("state") {
            plan.tell(bell.notice("Stands", state));
        }
        if let Some(pod) = bell.says("pod") {
            let purpose = Purpose::of(pod);
            let pod = json!({"spec": pod});
            let verdict = plan.judge(&JUDGE, name(), purpose, move || pod.clone());
            let note = verdict.map(|verdict| match verdict {
                Ok(()) => "accepted".to_owned(),
                Err(refusal) => refusal.clone().into_reason(),
            });
            if let Some(note) = note {
                plan.tell(bell.notice("Judged", &note));
            }
        }
        if bell.says("gone").is_some() {
            plan.delete::<ConfigMap>(&REMOVE, name(), &bell.uid);
        }
    }
}

impl Watch<ConfigMap> for Bells {
    type Stored = Bell;

    fn store(world: &mut Store<Bell>) -> &mut Store<Bell> {
        world
    }

    fn read(&self, map: &Arc<ConfigMap>) -> Arc<Bell> {
        Arc::new(Bell {
            name: ObjectName::of(&map.metadata),
            uid: map.metadata.uid.clone().unwrap_or_default(),
            version: ResourceVersion::parse(map.metadata.resource_version.as_deref()),
            data: map.data.clone().unwrap_or_default().into_iter().collect(),
        })
    }

    fn find_affected(
        &self,
        change: &Change<Bell>,
        _: &Store<Bell>,
        affected: &mut dyn FnMut(BellKey),
    ) {
        affected(BellKey((*change.name).clone()));
    }
}

/// A reconciler and its clocks.
struct Tower {
    bells: Reconciler<Bells>,
    now: Now,
    version: u64,
}

impl Tower {
    fn new() -> Self {
        let mut bells = Reconciler::new(Bells, || Duration::ZERO);
        bells.begin_term();
        let wall = "2026-11-01T12:00:00Z".parse().expect("a time");
        let now = Now {
            monotonic: Duration::ZERO,
            wall,
        };
        Self {
            bells,
            now,
            version: 0,
        }
    }

    fn show(&mut self, data: &[(&str, &str)]) {
        self.version += 1;
        let mut map = ConfigMap::default();
        map.metadata.name = Some("b".to_owned());
        map.metadata.namespace = Some("church".to_owned());
        map.metadata.uid = Some("u".to_owned());
        map.metadata.resource_version = Some(self.version.to_string());
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        map.data = Some(data.iter().map(owned).collect());
        self.bells.observe_object(Arc::new(map), Source::Watch);
    }

    fn pass(&mut self, seconds: u64) {
        self.now.monotonic += Duration::from_secs(seconds);
        self.now.wall += Duration::from_secs(seconds);
    }

    /// The writes that are due, taken as sent.
    fn due(&mut self) -> Vec<(WriteId, Arc<Write<Bells>>)> {
        self.bells.run_keys(self.now);
        let ids = self.bells.take_effects(self.now).dirty;
        let due = ids.into_iter().filter_map(|id| {
            let write = self.bells.take_due(&id, self.now)?;
            Some((id, write))
        });
        due.collect()
    }

    fn labels(&mut self) -> Vec<&'static str> {
        let due = self.due();
        due.iter().map(|(_, write)| write.kind().label).collect()
    }

    /// The notes of the events that are due, each of which is answered.
    fn notes(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        loop {
            let due = self.due();
            let told = due
                .into_iter()
                .filter(|(_, write)| write.kind().label == "tell");
            let told: Vec<_> = told.collect();
            if told.is_empty() {
                return notes;
            }
            for (id, write) in told {
                notes.push(write.body()["note"].as_str().unwrap_or_default().to_owned());
                self.bells.note_done(&id, false, self.now);
            }
        }
    }

    fn deadline(&mut self) -> Option<Duration> {
        self.bells.take_effects(self.now).deadline
    }
}

#[test]
fn a_write_needs_the_right_of_its_verb() {
    for (verb, right) in [
        (WriteVerb::Create, "create"),
        (WriteVerb::DryRun, "create"),
        (WriteVerb::MergePatch, "patch"),
        (WriteVerb::StrategicPatch, "patch"),
        (WriteVerb::Apply("manager"), "patch"),
        (WriteVerb::Replace, "update"),
        (WriteVerb::Delete, "delete"),
    ] {
        assert_eq!(verb.right(), right, "{verb:?}");
    }
}

#[test]
fn a_key_wakes_by_the_monotonic_clock() {
    let mut tower = Tower::new();
    tower.show(&[("wake", "30")]);
    assert!(tower.labels().is_empty());
    assert_eq!(tower.deadline(), Some(Duration::from_secs(30)));
    tower.pass(29);
    assert!(tower.labels().is_empty());
    tower.pass(1);
    assert_eq!(tower.labels(), ["ring"]);
}

#[test]
fn a_key_wakes_by_the_time_of_day_wherever_the_clock_is_set() {
    let mut tower = Tower::new();
    tower.show(&[("ring", "2026-11-01T12:00:04Z")]);
    assert!(tower.labels().is_empty());
    assert_eq!(tower.deadline(), Some(Duration::from_secs(4)));
    tower.show(&[("ring", "2026-11-01T18:00:00Z")]);
    assert!(tower.labels().is_empty());
    assert_eq!(
        tower.deadline(),
        Some(Duration::from_secs(10)),
        "the clock may be set"
    );
    tower.now.wall = "2026-11-01T17:59:59Z".parse().unwrap();
    tower.pass(0);
    assert!(tower.labels().is_empty());
    tower.now.wall = "2026-11-01T18:00:00Z".parse().unwrap();
    let [(_, ring)] = &tower.due()[..] else {
        panic!("it rings and does nothing else");
    };
    assert_eq!(ring.kind().label, "ring");
    assert_eq!(ring.since(), Some(tower.now.wall));
    // Nothing wakes for a time that is not asked for any more.
    tower.show(&[]);
    assert!(tower.labels().is_empty());
    assert_eq!(tower.deadline(), None);
}

#[test]
fn people_are_told_when_a_write_is_done_and_when_it_is_refused() {
    let mut tower = Tower::new();
    tower.show(&[("wake", "0")]);
    let (id, _) = tower.due().remove(0);
    tower.bells.note_done(&id, false, tower.now);
    let due = tower.due();
    let event = due.iter().find(|(_, write)| write.kind().label == "tell");
    let body = event.unwrap().1.body();
    assert_eq!(body["note"], "it has rung");
    assert_eq!(body["reportingController"], "bell-controller");
    assert_eq!(
        body["metadata"],
        json!({"generateName": "b-", "namespace": "church"})
    );
    let bell = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "namespace": "church", "name": "b", "uid": "u",
    });
    assert_eq!(body["regarding"], bell);
    assert_eq!(body["eventTime"], "2026-11-01T12:00:00.000000Z");
    let mut tower = Tower::new();
    tower.show(&[("wake", "0")]);
    let (id, _) = tower.due().remove(0);
    let refusal = Refusal::Forbidden("no bells at night".to_owned());
    tower.bells.note_refused(&id, refusal, tower.now);
    assert_eq!(tower.notes(), ["no bells at night"]);
}

#[test]
fn a_state_that_stands_is_told_once_and_again_after_it_has_ended() {
    let mut tower = Tower::new();
    let mut told = Vec::new();
    for data in [
        &[("state", "cracked")][..],
        &[("state", "cracked"), ("other", "edit")],
        &[],
        &[("state", "cracked")],
        &[("state", "mended")],
    ] {
        tower.show(data);
        told.push(tower.notes().join(","));
    }
    assert_eq!(told, ["cracked", "", "", "cracked", "mended"]);
}

#[test]
fn an_object_is_told_of_so_often_and_no_more() {
    let mut tower = Tower::new();
    let mut told = 0;
    for number in 0..100 {
        tower.show(&[("state", &number.to_string())]);
        told += tower.notes().len();
        if number == 0 {
            tower.pass(10);
        }
    }
    assert_eq!(told, 25);
    tower.pass(291);
    for state in ["x", "y"] {
        tower.show(&[("state", state)]);
        told += tower.notes().len();
    }
    assert_eq!(told, 26, "one more in five minutes");
}

#[test]
fn what_waits_in_a_namespace_counts_until_it_is_told() {
    let mut tower = Tower::new();
    let mut told = 0;
    // Each hour an object may be told of twelve times more.
    for number in 0..300 {
        tower.show(&[("state", &number.to_string())]);
        told += tower.notes().len();
        tower.pass(3_600);
    }
    assert_eq!(told, 300, "more than the 250 that may wait at once");
}

#[test]
fn a_process_that_begins_to_write_tells_of_the_state_that_it_finds() {
    let mut tower = Tower::new();
    tower.show(&[("state", "cracked")]);
    assert_eq!(tower.notes(), ["cracked"]);
    tower.bells.begin_term();
    assert_eq!(tower.notes(), ["cracked"]);
}

#[test]
fn a_template_is_judged_once_for_each_content() {
    let mut tower = Tower::new();
    tower.show(&[("pod", "a")]);
    let (id, write) = tower.due().remove(0);
    assert_eq!(write.kind().verb, WriteVerb::DryRun);
    assert!(tower.due().is_empty(), "it is under way");
    tower.bells.note_done(&id, false, tower.now);
    assert_eq!(tower.notes(), ["accepted"]);
    // Neither another edit nor time asks again.
    tower.show(&[("pod", "a"), ("other", "edit")]);
    tower.pass(1000);
    assert!(tower.labels().is_empty());
    tower.show(&[("pod", "b")]);
    let (id, _) = tower.due().remove(0);
    tower
        .bells
        .note_refused(&id, Refusal::Forbidden("no".to_owned()), tower.now);
    assert_eq!(tower.notes(), ["no"]);
    // What refuses may be a policy that changes. The refusal stands meanwhile.
    tower.pass(301);
    let due = tower.due();
    assert_eq!(due.len(), 1);
    tower.show(&[("pod", "b"), ("other", "edit")]);
    assert!(tower.notes().is_empty(), "nothing else is told");
    tower.bells.note_done(&due[0].0, false, tower.now);
    assert_eq!(tower.notes(), ["accepted"]);
}

#[test]
fn nothing_of_an_object_is_due_before_the_watch_shows_its_deletion() {
    let mut tower = Tower::new();
    tower.show(&[("gone", "yes")]);
    let (id, write) = tower.due().remove(0);
    assert_eq!(write.body(), json!({"preconditions": {"uid": "u"}}));
    tower.bells.note_done(&id, false, tower.now);
    tower.pass(100);
    assert!(tower.labels().is_empty());
    // It has a finalizer, and is shown once more.
    tower.show(&[("gone", "yes"), ("other", "edit")]);
    assert!(tower.labels().is_empty());
    // Nothing was shown for too long: it is asked for again.
    tower.pass(201);
    assert_eq!(tower.labels(), ["remove"]);
}

#[test]
fn a_write_that_is_wanted_no_more_wakes_nobody() {
    let mut tower = Tower::new();
    tower.show(&[("wake", "30")]);
    assert!(tower.labels().is_empty());
    tower.show(&[]);
    assert!(tower.labels().is_empty());
    assert_eq!(tower.deadline(), None);
}

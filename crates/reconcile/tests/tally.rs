//! A feature that adds up: each `ConfigMap` of a colour is looked at by itself, and one key writes how many there are.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use leadsman_reconcile::{
    Change, Class, Feature, Key, Now, ObjectName, Plan, Precedence, Purpose, Reconciler,
    ResourceVersion, RightScope, Source, Store, Stored, Watch, WriteId, WriteKind, WriteVerb,
};
use serde_json::{Value, json};

const TOTAL: WriteKind = WriteKind {
    label: "total",
    group: "",
    version: "v1",
    resource: "configmaps",
    verb: WriteVerb::MergePatch,
    scope: RightScope::Cluster,
    class: 0,
};
const DELETE: WriteKind = WriteKind {
    label: "delete",
    verb: WriteVerb::Delete,
    ..TOTAL
};

/// Publishes how many changes it has seen.
struct Tally(Arc<std::sync::Mutex<usize>>);

struct Item {
    map: Arc<ConfigMap>,
}

impl Item {
    fn label(&self, key: &str) -> Option<&str> {
        self.map
            .metadata
            .labels
            .as_ref()?
            .get(key)
            .map(String::as_str)
    }
}

impl Stored for Item {
    fn name(&self) -> ObjectName {
        ObjectName::of(&self.map.metadata)
    }

    fn uid(&self) -> &str {
        self.map.metadata.uid.as_deref().unwrap_or_default()
    }

    fn version(&self) -> ResourceVersion {
        ResourceVersion::parse(self.map.metadata.resource_version.as_deref())
    }

    fn is_hidden(&self) -> bool {
        self.label("colour").is_none()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.map.metadata.labels == other.map.metadata.labels
    }
}

#[derive(Default)]
struct Items {
    store: Store<Item>,
    changes: usize,
    /// Items of this colour are deleted.
    unwanted: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TallyKey {
    Total,
    Item(ObjectName),
}

impl Key for TallyKey {
    fn namespace(&self) -> &'static str {
        ""
    }

    fn runs_after(&self) -> Precedence {
        match self {
            Self::Total => Precedence::Of(Duration::from_secs(9)),
            Self::Item(_) => Precedence::None,
        }
    }
}

impl Feature for Tally {
    const NAME: &'static str = "tally";
    const WRITES: &'static [WriteKind] = &[TOTAL, DELETE];
    const CLASSES: &'static [Class] = &[Class::new("tally")];
    type Key = TallyKey;
    type World = Items;
    type Memory = BTreeMap<ObjectName, String>;

    fn keys(&self, world: &Items) -> Vec<TallyKey> {
        let names = world.store.iter().map(|(name, _)| (**name).clone());
        names.map(TallyKey::Item).collect()
    }

    fn reconcile(
        &self,
        key: &TallyKey,
        world: &Items,
        memory: &mut Self::Memory,
        plan: &mut Plan<'_, Self>,
    ) {
        let TallyKey::Item(name) = key else {
            let body = json!({"data": {"count": memory.len()}});
            plan.patch(&TOTAL, named("total"), &body)
                .with_purpose(Purpose::of("total"));
            return;
        };
        let item = world.store.observed(name);
        let colour = item.and_then(|item| item.label("colour"));
        match colour {
            Some(colour) => drop(memory.insert(name.clone(), colour.to_owned())),
            None => drop(memory.remove(name)),
        }
        plan.mark(TallyKey::Total);
        if let Some(item) = item.filter(|_| colour == world.unwanted.as_deref()) {
            plan.delete::<ConfigMap>(&DELETE, name.clone(), item.uid())
                .in_version("1");
        }
    }

    fn publish(&mut self, world: &mut Items, _: &mut Self::Memory) {
        *self.0.lock().expect("no thread has panicked") = world.changes;
    }
}

impl Watch<ConfigMap> for Tally {
    type Stored = Item;

    fn store(world: &mut Items) -> &mut Store<Item> {
        &mut world.store
    }

    fn read(&self, map: &Arc<ConfigMap>) -> Arc<Item> {
        Arc::new(Item { map: map.clone() })
    }

    fn note_change(&self, _: &Change<Item>, world: &mut Items) {
        world.changes += 1;
    }

    fn find_affected(&self, change: &Change<Item>, _: &Items, affected: &mut dyn FnMut(TallyKey)) {
        affected(TallyKey::Item((*change.name).clone()));
    }
}

fn named(name: &str) -> ObjectName {
    ObjectName {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    }
}

fn total() -> WriteId {
    WriteId {
        kind: 0,
        name: named("total").into(),
    }
}

fn item(name: &str, labels: &Value, version: &str) -> Arc<ConfigMap> {
    let item = json!({"metadata": {
        "namespace": "shop", "name": name, "uid": name, "resourceVersion": version, "labels": labels,
    }});
    Arc::new(serde_json::from_value(item).expect("a ConfigMap"))
}

fn at(seconds: u64) -> Now {
    Now {
        monotonic: Duration::from_secs(seconds),
        ..Now::default()
    }
}

fn tally() -> (Reconciler<Tally>, Arc<std::sync::Mutex<usize>>) {
    let shown = Arc::default();
    let feature = Tally(Arc::clone(&shown));
    (Reconciler::new(feature, || Duration::ZERO), shown)
}

/// The total that is due.
fn take_total(reconciler: &mut Reconciler<Tally>, now: Now) -> Option<u64> {
    reconciler.run_keys(now);
    let write = reconciler.take_due(&total(), now)?;
    write.body()["data"]["count"].as_u64()
}

#[test]
fn a_run_has_the_key_run_that_reads_what_it_has_put_into_the_memory() {
    let (mut reconciler, _) = tally();
    reconciler.begin_term();
    for name in ["a", "b"] {
        let item = item(name, &json!({"colour": "red"}), "1");
        reconciler.observe_object(&item, Source::Watch);
    }
    assert_eq!(take_total(&mut reconciler, at(0)), Some(2));
}

#[test]
fn the_memory_of_one_term_is_not_that_of_the_next() {
    let (mut reconciler, _) = tally();
    reconciler.begin_term();
    for name in ["a", "b"] {
        let item = item(name, &json!({"colour": "red"}), "1");
        reconciler.observe_object(&item, Source::Watch);
    }
    reconciler.run_keys(at(0));
    reconciler.observe_deletion::<ConfigMap>(&named("a"), ResourceVersion::from(2), at(0));
    reconciler.begin_term();
    assert_eq!(take_total(&mut reconciler, at(0)), Some(1));
}

#[test]
fn changes_are_published_also_while_this_process_does_not_write() {
    let (mut reconciler, shown) = tally();
    reconciler.observe_object(item("a", &json!({"colour": "red"}), "1"), Source::Watch);
    // It shows nothing new.
    reconciler.observe_object(item("a", &json!({"colour": "red"}), "2"), Source::Watch);
    reconciler.publish();
    assert_eq!(*shown.lock().expect("no thread has panicked"), 1);
    assert!(reconciler.take_effects(at(0)).deadline.is_none());
}

#[test]
fn a_costly_publishing_rests_and_then_shows_all_that_came_meanwhile() {
    thread_local!(static SPENT: Cell<Duration> = const { Cell::new(Duration::ZERO) });
    let clock = || {
        SPENT.set(SPENT.get() + Duration::from_millis(1));
        SPENT.get()
    };
    let shown = Arc::default();
    let mut reconciler = Reconciler::new(Tally(Arc::clone(&shown)), clock);
    let published = || *shown.lock().expect("no thread has panicked");
    for name in ["a", "b", "c"] {
        reconciler.observe_object(item(name, &json!({"colour": "red"}), "1"), Source::Watch);
        reconciler.publish();
        assert_eq!(published(), 1, "after {name}");
    }
    // A hundred times what the first one cost.
    let rested = Duration::from_millis(100);
    assert_eq!(reconciler.take_effects(at(0)).deadline, Some(rested));
    let after = |monotonic| Now {
        monotonic,
        ..Now::default()
    };
    reconciler.run_keys(after(Duration::from_millis(99)));
    assert_eq!(published(), 1);
    reconciler.run_keys(after(rested));
    assert_eq!(published(), 3);
    assert!(reconciler.take_effects(after(rested)).deadline.is_none());
}

#[test]
fn what_this_process_itself_knows_makes_keys_run_once_it_writes() {
    let (mut reconciler, _) = tally();
    reconciler.observe_object(item("a", &json!({"colour": "red"}), "1"), Source::Watch);
    let unwant = |colour: &'static str| {
        move |world: &mut Items, mark: &mut dyn FnMut(TallyKey)| {
            world.unwanted = Some(colour.to_owned());
            mark(TallyKey::Item(named("a")));
        }
    };
    reconciler.update_world(unwant("blue"));
    assert!(reconciler.take_effects(at(0)).deadline.is_none());
    reconciler.begin_term();
    reconciler.run_keys(at(0));
    reconciler.update_world(unwant("red"));
    reconciler.run_keys(at(0));
    let deletion = reconciler
        .wanted()
        .find(|write| write.kind().label == DELETE.label);
    let preconditions = json!({"preconditions": {"uid": "a", "resourceVersion": "1"}});
    let body = deletion.map(leadsman_reconcile::Write::body);
    assert_eq!(body, Some(preconditions));
}

#[test]
fn an_object_that_no_list_shows_is_known_from_a_reply_that_is_older_than_the_list() {
    let (mut reconciler, _) = tally();
    let listed = ResourceVersion::from(9);
    reconciler.observe_list::<ConfigMap>(&[].into(), listed, false, at(0));
    reconciler.observe_object(item("shown", &json!({"colour": "red"}), "3"), Source::Reply);
    reconciler.observe_object(item("hidden", &json!({}), "3"), Source::Reply);
    reconciler.observe_object(item("late", &json!({}), "3"), Source::Watch);
    let known: Vec<_> = reconciler
        .world()
        .store
        .iter()
        .map(|(name, _)| &*name.name)
        .collect();
    assert_eq!(known, ["hidden"]);
    assert!(reconciler.world().store.is_listed());
    assert_eq!(reconciler.world().store.known_until(), listed);
}

#[test]
fn a_key_that_waits_for_all_others_runs_when_its_write_has_its_turn() {
    let (mut reconciler, _) = tally();
    reconciler.begin_term();
    let show = |reconciler: &mut Reconciler<Tally>, name: &str| {
        let item = item(name, &json!({"colour": "red"}), "1");
        reconciler.observe_object(item, Source::Watch);
    };
    show(&mut reconciler, "a");
    reconciler.run_keys(at(0));
    show(&mut reconciler, "b");
    reconciler.update_world(|_, mark| mark(TallyKey::Total));
    let write = reconciler.take_due(&total(), at(0)).expect("it is due");
    assert_eq!(
        write.body()["data"]["count"],
        1,
        "the other key has not run"
    );
}

#[test]
fn a_kind_that_comes_or_goes_has_every_key_run() {
    let (mut reconciler, _) = tally();
    reconciler.begin_term();
    reconciler.observe_object(item("a", &json!({"colour": "red"}), "1"), Source::Watch);
    let (listed, unserved) = (ResourceVersion::from(2), ResourceVersion::UNKNOWN);
    let lists = [
        (["a"].as_slice(), listed, false),
        (&[], unserved, true),
        (&[], unserved, false),
        (&["a"], listed, true),
        (&["a"], listed, false),
    ];
    for (number, (names, version, has_to_run)) in lists.into_iter().enumerate() {
        reconciler.run_keys(at(0));
        let names = names.iter().map(|name| named(name)).collect();
        reconciler.observe_list::<ConfigMap>(&names, version, false, at(0));
        let deadline = reconciler.take_effects(at(0)).deadline;
        assert_eq!(deadline.is_some(), has_to_run, "list {number}");
    }
}

#[test]
fn every_key_runs_when_it_is_known_what_the_api_server_keeps() {
    let (mut reconciler, _) = tally();
    reconciler.begin_term();
    reconciler.observe_object(item("a", &json!({"colour": "red"}), "1"), Source::Watch);
    reconciler.run_keys(at(0));
    assert!(reconciler.take_effects(at(0)).deadline.is_none());
    reconciler.note_fields_kept::<ConfigMap>(true);
    assert!(reconciler.take_effects(at(0)).deadline.is_some());
}

//! Properties of any history: sets and pods come, change and go, watches are late, writes are lost, refused, or carried
//! out without a reply, and the process starts anew at any time.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::traffic::Traffic;
use leadsman_reconcile::WriteId;

use super::world::{
    BAD, UNREADY, WatchedKind, World, barrier, hashes_of, pod_key, pod_name, set_key, status_of,
    write_id,
};
use crate::cluster::ObjectName;
use crate::sidecarset::condition::{UPGRADABLE, UpgradableCondition, WhenWritten};
use crate::sidecarset::pod::{LastUpgrade, PodState, PodVersion};
use crate::sidecarset::reconcile::writes::{
    CREATE_REVISION, PATCH_REVISION, POD_CONDITION, UPGRADE_POD, WRITES,
};
use crate::sidecarset::rollout::tests::naive::{Member, plan};
use crate::sidecarset::set::CUSTOM_VERSION_LABEL;
use crate::sidecarset::status::Counts;

/// Sets that share all pods; `c` claims the container of `a`, and is younger unless `a` is made anew.
const SETS: [(&str, &str); 3] = [("a", "log"), ("b", "mesh"), ("c", "log")];
const PODS: usize = 7;

#[derive(Clone, Debug)]
enum Step {
    CreateSet(usize),
    DeleteSet(usize),
    Edit(usize, Edit),
    /// A set selects pods with the other label, or those with the usual one again.
    Select(usize, bool),
    /// API servers call a webhook of leadsman, or none.
    Webhook(bool),
    CreatePod(usize, bool),
    DeletePod(usize),
    Relabel(usize, bool),
    Rank(usize, u8),
    Namespace(bool),
    Kubelet(usize),
    LateKubelets(bool),
    Crash(usize),
    /// The application of a pod works, or does not.
    Gate(usize, bool),
    List,
    Traffic(Traffic),
}

/// An edit of a set.
#[derive(Clone, Debug)]
enum Edit {
    Image(&'static str),
    Env(u8),
    Partition(u8),
    Pause(bool),
    PauseInjection(bool),
    Scatter(bool),
    Break(bool),
    History(u8),
    Version(u8),
}

fn any_edit() -> impl Strategy<Value = Edit> {
    let image = proptest::sample::select(vec!["i:1", "i:2", "i:3", BAD, UNREADY]);
    prop_oneof![
        4 => image.prop_map(Edit::Image),
        1 => (0..3_u8).prop_map(Edit::Env),
        1 => (0..4_u8).prop_map(Edit::Partition),
        1 => any::<bool>().prop_map(Edit::Pause),
        1 => any::<bool>().prop_map(Edit::PauseInjection),
        1 => any::<bool>().prop_map(Edit::Scatter),
        1 => any::<bool>().prop_map(Edit::Break),
        1 => (1..4_u8).prop_map(Edit::History),
        1 => (0..3_u8).prop_map(Edit::Version),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let set = || 0..SETS.len();
    let pod = || 0..PODS;
    prop_oneof![
        2 => set().prop_map(Step::CreateSet),
        1 => set().prop_map(Step::DeleteSet),
        11 => (set(), any_edit()).prop_map(|(set, edit)| Step::Edit(set, edit)),
        2 => (set(), any::<bool>()).prop_map(|(set, other)| Step::Select(set, other)),
        1 => any::<bool>().prop_map(Step::Webhook),
        5 => (pod(), any::<bool>()).prop_map(|(pod, injected)| Step::CreatePod(pod, injected)),
        1 => pod().prop_map(Step::DeletePod),
        1 => (pod(), any::<bool>()).prop_map(|(pod, other)| Step::Relabel(pod, other)),
        3 => (pod(), 0..4_u8).prop_map(|(pod, rank)| Step::Rank(pod, rank)),
        1 => any::<bool>().prop_map(Step::Namespace),
        6 => pod().prop_map(Step::Kubelet),
        1 => any::<bool>().prop_map(Step::LateKubelets),
        3 => pod().prop_map(Step::Crash),
        3 => (pod(), any::<bool>()).prop_map(|(pod, is_open)| Step::Gate(pod, is_open)),
        1 => Just(Step::List),
        Traffic::WEIGHT + 1 => Traffic::any(8, 1, &[1, 30, 400]).prop_map(Step::Traffic),
    ]
}

fn spec(set: usize, most: usize) -> Value {
    let (name, container) = SETS[set];
    json!({
        "metadata": {"name": name, "labels": {}},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "namespaceSelector": {"matchLabels": {"tier": "gold"}},
            "containers": [{"name": container, "image": "i:1"}],
            "updateStrategy": {
                "maxUnavailable": most,
                "priorityStrategy": {"orderPriority": [{"orderedKey": "rank"}]},
            },
            "revisionHistoryLimit": 2,
        },
    })
}

fn edit(set: &mut Value, edit: &Edit) {
    let strategy = |field: &str| format!("/spec/updateStrategy/{field}");
    let mut put = |pointer: &str, value: Value| {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        set.pointer_mut(parent).unwrap()[field] = value;
    };
    match *edit {
        Edit::Image(image) => put("/spec/containers/0/image", image.into()),
        Edit::Env(env) => put(
            "/spec/containers/0/env",
            json!([{"name": format!("E{env}")}]),
        ),
        Edit::Partition(partition) => put(&strategy("partition"), partition.into()),
        Edit::Pause(is_paused) => put(&strategy("paused"), is_paused.into()),
        Edit::PauseInjection(is_paused) => {
            put("/spec/injectionStrategy", json!({"paused": is_paused}));
        }
        Edit::Scatter(is_scattered) => {
            let terms = if is_scattered {
                json!([{"key": "app", "value": "web"}])
            } else {
                json!([])
            };
            put(&strategy("scatterStrategy"), terms);
        }
        Edit::Break(is_broken) => {
            let kind = if is_broken {
                "OnDelete"
            } else {
                "RollingUpdate"
            };
            put(&strategy("type"), kind.into());
        }
        Edit::History(limit) => put("/spec/revisionHistoryLimit", limit.into()),
        Edit::Version(version) => {
            let labels = set["metadata"]["labels"].as_object_mut().unwrap();
            match version {
                0 => drop(labels.remove(CUSTOM_VERSION_LABEL)),
                _ => drop(labels.insert(
                    CUSTOM_VERSION_LABEL.to_owned(),
                    format!("v{version}").into(),
                )),
            }
        }
    }
}

fn select(set: &mut Value, is_other: bool) {
    let app = if is_other { "other" } else { "web" };
    set["spec"]["selector"]["matchLabels"]["app"] = app.into();
}

fn step(world: &mut World, step: &Step, most: usize) {
    match step {
        Step::CreateSet(set) => {
            let key = set_key(SETS[*set].0);
            if !world.objects.contains_key(&key) {
                world.create(&key, spec(*set, most));
                world.pass(1);
            }
        }
        Step::DeleteSet(set) => world.delete(&set_key(SETS[*set].0)),
        Step::Edit(set, change) => {
            world.change(&set_key(SETS[*set].0), |set| edit(set, change));
        }
        Step::Select(set, is_other) => {
            let (name, container) = SETS[*set];
            // Which pods a set has taken down is not told from those of another set that has the container.
            world.deliver_all();
            world.change(&set_key(name), |set| select(set, *is_other));
            world.taken_down.retain(|(down, _)| down != container);
            world.deliver_all();
        }
        Step::Webhook(is_there) => {
            world.set_barrier(is_there.then(|| barrier(999_999_999)));
        }
        Step::CreatePod(pod, is_injected) => {
            let is_good = world
                .sets()
                .iter()
                .all(|set| ![BAD, UNREADY].contains(&&*set.template.containers[0].image));
            if is_good {
                world.create_pod(*pod, *is_injected);
            }
        }
        Step::DeletePod(pod) => world.delete(&pod_key(*pod)),
        Step::Relabel(pod, is_other) => {
            // That a pod joins a set is not known before the watch shows it.
            world.deliver_all();
            world.change(&pod_key(*pod), |value| {
                value["metadata"]["labels"]["app"] = if *is_other { "other" } else { "web" }.into();
            });
            if *is_other {
                // It takes no place of the set that it has left.
                world.taken_down.retain(|(_, down)| *down != pod_name(*pod));
            }
            world.deliver_all();
        }
        Step::Rank(pod, rank) => {
            world.change(&pod_key(*pod), |value| {
                value["metadata"]["labels"]["rank"] = format!("r-{rank}").into();
            });
        }
        Step::Namespace(is_gold) => {
            world.deliver_all();
            let key = (WatchedKind::Namespace, super::world::object("", "shop"));
            world.change(&key, |value| {
                value["metadata"]["labels"]["tier"] = if *is_gold { "gold" } else { "tin" }.into();
            });
            if !is_gold {
                world.taken_down.clear();
            }
            world.deliver_all();
        }
        Step::Kubelet(pod) => world.start_containers(&pod_key(*pod)),
        Step::LateKubelets(are_late) => world.are_kubelets_late = *are_late,
        Step::Crash(pod) => world.crash(&pod_key(*pod)),
        Step::Gate(pod, is_open) => world.open_gate(&pod_key(*pod), *is_open),
        Step::List => world.list(),
        Step::Traffic(traffic) => world.happen(traffic),
    }
}

/// Every write that is wanted now, but for the upgrades of pods.
fn due(world: &World) -> BTreeMap<WriteId, Value> {
    let mut due = world.wanted();
    due.retain(|id, _| WRITES[id.kind].label != UPGRADE_POD.label);
    for (id, body) in &mut due {
        if let Some(set) = world.objects.get(&set_key(&id.name.name))
            && *id == status_of(&id.name.name)
        {
            forget_unstored(body, set);
        }
    }
    due
}

/// The pods whose upgrade is wanted now.
fn chosen(world: &World) -> BTreeSet<ObjectName> {
    let wanted = world.wanted().into_keys();
    let upgrades = wanted.filter(|id| WRITES[id.kind].label == UPGRADE_POD.label);
    upgrades.map(|id| (*id.name).clone()).collect()
}

/// Since when a generation is in force is remembered until the status says it, and which pods lack the set depends on it.
fn forget_unstored(patch: &mut Value, set: &Value) {
    if set["status"]["inForce"]["generation"] != set["metadata"]["generation"] {
        patch["status"]["inForce"] = Value::Null;
        patch["status"]["conditions"] = Value::Null;
    }
}

/// The pods that a set upgrades now, found by looking at all of them.
fn upgraded_now(world: &World) -> BTreeSet<ObjectName> {
    let mut sets = world.sets();
    sets.sort_by(|one, other| one.precedence().cmp(&other.precedence()));
    let mut all = BTreeSet::new();
    for (place, set) in sets.iter().enumerate() {
        let keys = world.keys(WatchedKind::Pod);
        let pods: Vec<_> = keys
            .iter()
            .filter_map(|key| Some((world.observed(key), world.state(set, key)?, key)))
            .collect();
        let members: Vec<_> = pods
            .iter()
            .map(|(pod, state, key)| {
                let loses = sets[..place].iter().any(|older| {
                    older.template.containers[0].name == set.template.containers[0].name
                        && world.state(older, key).is_some()
                });
                // All annotations are as old as the pod, or as a later upgrade.
                let hashes = pod.annotations.get("kruise.io/sidecarset-hash");
                let hashes: Value = serde_json::from_str(hashes.unwrap()).unwrap();
                let since = hashes[&*set.name]["updateTimestamp"].as_str().unwrap();
                let since: jiff::Timestamp = since.parse().unwrap();
                let is_former = pod.created.unwrap() < set.created && since < set.created;
                Member {
                    pod,
                    state: *state,
                    is_refused: loses || is_former,
                }
            })
            .collect();
        let next = plan(set, &members).next;
        all.extend(
            next.into_iter()
                .map(|place| (*members[place].pod.name).clone()),
        );
    }
    all
}

/// Compares what is wanted with what follows from the objects.
fn check_against_model(world: &World) {
    let fresh = restarted(world);
    let wanted = due(&fresh);
    assert_eq!(chosen(&fresh), upgraded_now(world), "upgrades");
    for set in world.sets() {
        let keys = world.keys(WatchedKind::Pod);
        let mut counts = Counts::default();
        for state in keys.iter().filter_map(|key| world.state(&set, key)) {
            counts.add(state);
        }
        let stored = &world.objects[&set_key(&set.name)]["status"];
        let status = wanted.get(&status_of(&set.name));
        let status = status.map_or(stored, |patch| &patch["status"]);
        let is_awaited = |id: &WriteId| {
            let kind = WRITES[id.kind].label;
            let is_of_set = id.name.name.starts_with(&format!("{}-", set.name));
            let is_of_revision = [CREATE_REVISION, PATCH_REVISION]
                .iter()
                .any(|it| it.label == kind);
            *id == hashes_of(&set.name) || (is_of_revision && is_of_set)
        };
        if !wanted.keys().any(is_awaited) {
            let expected = [counts.matched, counts.updated, counts.ready];
            let fields =
                ["matchedPods", "updatedPods", "readyPods"].map(|field| status[field].as_u64());
            assert_eq!(
                fields,
                expected.map(|count| Some(count as u64)),
                "{}",
                set.name
            );
            assert_eq!(status["observedGeneration"], set.generation);
        }
    }
    for key in world.keys(WatchedKind::Pod) {
        let sets = world.sets();
        let names = world.keys(WatchedKind::Set);
        let is_unknown = |name: &str| {
            let exists = names.iter().any(|(_, set)| set.name == name);
            exists && !sets.iter().any(|set| *set.name == *name)
        };
        let pod = world.observed(&key);
        let list = pod.annotations.get("kruise.io/sidecarset-injected-list");
        if list
            .into_iter()
            .flat_map(|list| list.split(','))
            .any(is_unknown)
        {
            continue;
        }
        let versions = sets.iter().filter_map(|set| {
            let state = world.state(set, &key)?;
            Some((set.name.clone(), state.version))
        });
        let versions: BTreeMap<_, PodVersion> = versions.collect();
        let conditions = world.objects[&key]["status"]["conditions"]
            .as_array()
            .unwrap();
        let present = conditions
            .iter()
            .find(|condition| condition["type"] == UPGRADABLE);
        let expected =
            UpgradableCondition::of(&versions, present.is_some(), WhenWritten::default());
        let is_due = wanted.contains_key(&write_id(&POD_CONDITION, key.1.clone()));
        let message = expected.as_ref().map(|one| one.message.as_str());
        let stored = present.and_then(|one| one["message"].as_str());
        assert_eq!(
            is_due,
            message != stored,
            "{} {message:?} {stored:?}",
            key.1
        );
    }
}

/// A good image reaches all pods of a set that can be upgraded. An application that does not work holds up none of the
/// others, unless an upgrade may have broken it.
fn check_that_nobody_is_held_up(world: &mut World) {
    for (number, (_, name)) in world.keys(WatchedKind::Set).iter().enumerate() {
        world.change(&set_key(&name.name), |set| {
            edit(set, &Edit::Break(false));
            edit(set, &Edit::Pause(false));
            edit(set, &Edit::Partition(0));
            // A pod that one set has broken and selects no more holds up the others that it has.
            select(set, false);
            set["spec"]["containers"][0]["image"] = format!("i:last-{number}").into();
        });
    }
    for set in world.sets() {
        for key in world.keys(WatchedKind::Pod) {
            let state = world.state(&set, &key);
            let Some(state) = state.filter(|state| state.last_upgrade == LastUpgrade::OfReady)
            else {
                continue;
            };
            // No image brings back a pod that the set has taken down and that it has to create anew by now: it takes up its
            // place until somebody deletes it.
            if state.version == PodVersion::NotUpgradable && !state.is_available() {
                world.delete(&key);
            } else {
                world.open_gate(&key, true);
            }
        }
    }
    let keys = world.keys(WatchedKind::Pod);
    world.settle();
    let inspection = world.inspect();
    for set in world.sets() {
        for key in &keys {
            let waits = world.state(&set, key).is_some_and(PodState::is_candidate);
            let is_held = inspection.inspect_pod(&key.1).iter().any(|own| {
                let membership = own.membership.as_ref();
                own.name == &*set.name && membership.is_some_and(|member| member.hold.is_some())
            });
            assert!(!waits || is_held, "{} of {}", key.1, set.name);
        }
    }
}

/// The same cluster with a process that was just told everything.
fn restarted(world: &World) -> World {
    let mut other = World::new();
    other.objects = world.objects.clone();
    other.copy_clock(world);
    other.restart();
    other
}

/// What both processes want, at one time.
fn check_against_restart(world: &mut World) {
    let fresh = restarted(world);
    world.keep_fields(true);
    assert_eq!(chosen(world), chosen(&fresh));
    assert_eq!(due(world), due(&fresh));
}

/// Compares which pods lack a set, once its status says since when it is in force.
fn check_lacking(world: &World) {
    let fresh = restarted(world);
    for set in world.sets() {
        let lacking = |world: &World| world.lacking(&set.name);
        assert_eq!(lacking(world), lacking(&fresh), "{}", set.name);
    }
}

/// How many histories are played; `LEADSMAN_FLOWS` says another number.
fn flows() -> u32 {
    let number = std::env::var("LEADSMAN_FLOWS").ok();
    number.map_or(100, |number| {
        number.parse().expect("LEADSMAN_FLOWS is a number")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: flows(), failure_persistence: None, ..ProptestConfig::default() })]

    // SCS-6, SCS-46, SCS-49, SCS-50, SCS-62, SDF-19, SDF-34, SDF-35, SDF-40, SDF-42, SDF-43, SDF-48
    #[test]
    fn any_history_ends_as_the_objects_say_and_takes_down_no_more_than_it_may(
        most in 1..4_usize,
        steps in proptest::collection::vec(any_step(), 1..120),
    ) {
        let mut world = World::new();
        for set in 0..2 {
            step(&mut world, &Step::CreateSet(set), most);
        }
        for pod in 0..4 {
            step(&mut world, &Step::CreatePod(pod, true), most);
        }
        world.deliver_all();
        for one in &steps {
            step(&mut world, one, most);
            for (_, container) in SETS {
                let down = world.taken_down.iter().filter(|(name, _)| name == container);
                prop_assert!(down.count() <= most, "{one:?}: {:?}", world.taken_down);
            }
        }
        // The watches have shown everything, nothing is under way, and no refusal is remembered.
        while !world.in_flight.is_empty() {
            world.carry_out(0, true);
        }
        world.deliver_all();
        world.pass(1000);
        world.set_barrier(Some(barrier(999_999_999)));
        check_against_restart(&mut world);
        check_against_model(&world);
        world.settle();
        check_against_model(&world);
        check_lacking(&world);
        // Another process finds nothing to do.
        world.restart();
        prop_assert_eq!(world.settle(), 0, "{:?}", world.writes.last());
        check_that_nobody_is_held_up(&mut world);
    }
}

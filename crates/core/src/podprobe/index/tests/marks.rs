//! The marks of a pod, rule by rule: which a verdict sets, who else owns them, and what is undone or fought over.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use rstest::rstest;
use serde_json::{Value, json};

use super::cluster::name;
use super::driver::{Event, Index, WatchedKind, WriteTarget};
use super::pod::{Owner, SimPod, mark};
use super::proof::marker;
use super::scene::{app_x, exec, idle, p0, plain, probe};
use super::world::World;

// PPM-6, PPM-7, PPM-8, DEF-8
#[rstest]
#[case::succeeded("Succeeded", "True", json!({ "app": "x", "idle": "true", "role": "main" }), json!({ "cost": "-10" }))]
#[case::failed("Failed", "False", json!({ "app": "x", "idle": "false" }), json!({ "cost": "10" }))]
#[case::unknown("Unknown", "Unknown", json!({ "app": "x" }), json!({}))]
fn a_verdict_says_which_marks_a_pod_has(
    #[case] state: &str,
    #[case] status: &str,
    #[case] labels: Value,
    #[case] annotations: Value,
    #[values("Succeeded", "Failed", "Unknown", "")] before: &str,
) {
    let mut world = World::probing(&[idle()]);
    // A template's value, before any verdict.
    world.edit(|pod| drop(pod.labels.insert("idle".into(), mark("false", Owner::User))));
    assert_eq!(world.pod_writes().len(), 0);
    if !before.is_empty() {
        world.verdict("way#idle", before, "before");
    }
    world.verdict("way#idle", state, "now");
    assert_eq!(plain(&world.pod().labels), labels);
    assert_eq!(plain(&world.pod().annotations), annotations);
    let condition = &world.pod().conditions["game.io/idle"].value;
    assert_eq!(
        (&condition["status"], &condition["message"]),
        (&json!(status), &json!("now"))
    );
}

// PPM-7
#[test]
fn one_policy_alone_loses_its_keys_by_the_other_verdict() {
    let policy = json!([{ "state": "Failed", "labels": { "sick": "yes" } }]);
    let one = json!({ "name": "one", "containerName": "main", "probe": exec("a"), "markerPolicy": policy });
    let mut world = World::probing(&[one]);
    for (state, has_it) in [
        ("Failed", true),
        ("Succeeded", false),
        ("Failed", true),
        ("Unknown", false),
    ] {
        world.verdict("way#one", state, "");
        assert_eq!(world.pod().labels.contains_key("sick"), has_it, "{state}");
    }
}

// PPM-8, PPM-12, DEF-17
#[test]
fn the_requests_are_an_apply_and_a_patch_with_the_uid_inside() {
    let mut world = World::probing(&[idle()]);
    world.edit(|pod| {
        pod.annotations
            .insert("cost".into(), mark("7", Owner::User));
    });
    world.verdict("way#idle", "Succeeded", "yes");
    let writes = world.pod_writes();
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0].remove, None);
    assert_eq!(
        writes[0].apply.as_ref().unwrap(),
        &json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "p0", "namespace": "a", "uid": "u0",
                "labels": { "idle": "true", "role": "main" }, "annotations": { "cost": "-10" },
            },
            "status": { "conditions": [{
                "type": "game.io/idle", "status": "True", "message": "yes",
                "lastTransitionTime": "2026-01-01T00:00:03Z", "lastProbeTime": "2026-01-01T00:00:03Z",
            }] },
        })
    );
    // Somebody else wants a key too, by the same value: only a patch takes it away.
    world.edit(|pod| {
        pod.labels
            .get_mut("role")
            .unwrap()
            .owners
            .insert(Owner::User);
    });
    world.settle();
    world.verdict("way#idle", "Failed", "yes");
    let writes = world.pod_writes();
    assert_eq!(writes.len(), 2, "what others want too goes first");
    assert_eq!(
        writes[0].remove.as_ref().unwrap(),
        &json!({ "metadata": { "uid": "u0", "labels": { "role": null } } })
    );
    assert_eq!(
        writes[1].apply.as_ref().unwrap()["metadata"]["labels"],
        json!({ "idle": "false" })
    );
}

// PPM-8, PPM-9, DEF-4
/// What is left of a mark of ours when no marker governs it any more.
// PPM-9, DEF-4
#[rstest]
#[case::ours_alone(None, false, false)]
#[case::a_users_too(Some(Owner::User), true, true)]
#[case::a_status_writers_too(Some(Owner::Status), false, false)]
#[case::openkruises_too(Some(Owner::Kruise), false, false)]
#[case::an_operators_called_manager_too(Some(Owner::Operator), true, true)]
fn ungoverned_marks_go_unless_a_user_wants_them_too(
    #[case] other: Option<Owner>,
    #[case] label_stays: bool,
    #[case] condition_stays: bool,
    #[values("delete", "empty", "relabel")] how: &str,
) {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "yes");
    world.edit(|pod| {
        pod.labels.get_mut("role").unwrap().owners.extend(other);
        pod.conditions
            .get_mut("game.io/idle")
            .unwrap()
            .owners
            .extend(other);
    });
    match how {
        "delete" => world.cluster.delete(WatchedKind::Marker, &name("a", "way")),
        "empty" => world.mark("way", &[probe("other", "main", exec("b"))]),
        _ => world.edit(|pod| drop(pod.labels.insert("app".into(), mark("y", Owner::User)))),
    }
    world.drain();
    assert_eq!(world.pod().labels.contains_key("role"), label_stays);
    assert_eq!(
        world.pod().conditions.contains_key("game.io/idle"),
        condition_stays
    );
    assert!(!world.pod().labels.contains_key("idle"));
    assert!(world.pod().labels.contains_key("app"));
    let marks = [&world.pod().labels, &world.pod().conditions];
    let mut owners = marks
        .into_iter()
        .flat_map(|marks| marks.values())
        .map(|mark| &mark.owners);
    assert!(owners.all(|owners| !owners.contains(&Owner::Ours)));
}

/// A webhook changes a pod after the API server has written down who owns what, so nobody owns what it adds.
// PPM-9
#[rstest]
#[case::nobody_owns_another(None, true)]
#[case::somebody_owns_another(Some(Owner::User), false)]
fn what_nobody_owns_stays_when_our_last_key_goes(
    #[case] other: Option<Owner>,
    #[case] by_patch: bool,
) {
    let mut world = World::probing(&[idle()]);
    world.edit(|pod| {
        let mut injected = mark("a,b", Owner::User);
        injected.owners.clear();
        pod.annotations.insert("injected".into(), injected);
        if let Some(other) = other {
            pod.annotations.insert("other".into(), mark("", other));
        }
    });
    world.verdict("way#idle", "Succeeded", "");
    world.verdict("way#idle", "Unknown", "");
    let annotations = &world.pod().annotations;
    assert!(annotations.contains_key("injected") && !annotations.contains_key("cost"));
    let writes = world.pod_writes();
    assert_eq!(writes.len(), 2 + usize::from(by_patch));
    assert_eq!(writes[1].remove.is_some(), by_patch);
}

// PPM-12
#[rstest]
#[case::status_wiped("wipe")]
#[case::object_deleted("delete")]
#[case::revision_of_another_handler("revision")]
#[case::state_that_is_none("state")]
#[case::handler_edited("edit")]
fn an_absent_verdict_holds(#[case] how: &str) {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "yes");
    let before = world.pod().clone();
    world.settle();
    match how {
        "wipe" => world
            .cluster
            .edit_node_pod_probe("n0", |object| object.status = None),
        "delete" => world
            .cluster
            .delete(WatchedKind::NodePodProbe, &name("", "n0")),
        "revision" => world.verdict_with("way#idle", "Failed", "no", |state| {
            state.revision = Some("another".to_owned());
        }),
        "state" => world.verdict("way#idle", "Odd", "no"),
        _ => {
            let mut edited = idle();
            edited["probe"] = exec("/other");
            world.mark("way", &[edited]);
        }
    }
    world.drain();
    assert_eq!(world.pod(), &before);
    assert_eq!(world.pod_writes().len(), 0);
    assert_eq!(world.status("way").probes[0].pending, 1);
    assert_eq!(world.entries(), ["way#idle"]);
}

#[test]
fn marks_that_are_held_stay_while_others_change() {
    let mut world = World::probing(&[idle(), probe("q", "main", exec("b"))]);
    world.verdict("way#idle", "Succeeded", "yes");
    world
        .cluster
        .edit_node_pod_probe("n0", |object| object.status = None);
    world.verdict("way#q", "Failed", "");
    world.verdict("way#q", "Succeeded", "");
    assert_eq!(
        plain(&world.pod().labels),
        json!({ "app": "x", "idle": "true", "role": "main" })
    );
    assert_eq!(
        world.pod().conditions["game.io/idle"].value["message"],
        "yes"
    );
    assert_eq!(world.pod().conditions["game.io/q"].value["status"], "True");
}

// PPM-12
#[test]
fn a_verdict_of_another_pod_or_node_is_not_taken() {
    let mut world = World::probing(&[idle()]);
    world.cluster.delete(WatchedKind::Pod, &p0());
    world
        .cluster
        .put_pod(&p0(), SimPod::new("u1", "n0", &[("app", "x")]));
    world.cluster.edit_node_pod_probe("n0", |object| {
        object.status = serde_json::from_value(json!({ "podProbeStatuses": [{
            "name": "p0", "namespace": "a", "uid": "u0",
            "probeStates": [{ "name": "way#idle", "state": "Succeeded" }],
        }] }))
        .unwrap();
    });
    world.drain();
    assert_eq!(world.pod_probe().unwrap().uid, "u1");
    assert!(world.pod().conditions.is_empty());
}

// PPM-6, PPM-11, DEF-10
#[test]
fn a_message_alone_keeps_the_transition_and_time_alone_costs_nothing() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "one");
    let transition = world.pod().conditions["game.io/idle"].value["lastTransitionTime"].clone();
    world.settle();
    world.verdict("way#idle", "Succeeded", "one");
    assert_eq!(world.writes, []);
    world.verdict("way#idle", "Succeeded", "two");
    let condition = world.pod().conditions["game.io/idle"].value.clone();
    assert_eq!(condition["message"], "two");
    assert_eq!(condition["lastTransitionTime"], transition);
    assert_ne!(condition["lastProbeTime"], transition);
    world.verdict("way#idle", "Failed", "two");
    assert_ne!(
        world.pod().conditions["game.io/idle"].value["lastTransitionTime"],
        transition
    );
}

// PPM-3, DEF-1
#[test]
fn deleting_a_marker_leaves_those_whose_names_contain_its_own() {
    let mut world = World::probing(&[probe("p", "main", exec("a"))]);
    world.mark("gateway", &[probe("q", "main", exec("b"))]);
    let gateway = world.entry("gateway#q").unwrap();
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    world.drain();
    assert_eq!(world.entries(), ["gateway#q"]);
    assert_eq!(world.entry("gateway#q").unwrap(), gateway);
}

// DEF-2
#[test]
fn two_probes_of_one_container_both_report() {
    let mut world = World::probing(&[probe("p", "main", exec("a")), probe("q", "main", exec("a"))]);
    world.verdict("way#p", "Succeeded", "same");
    world.verdict("way#q", "Succeeded", "same");
    assert_eq!(world.pod().conditions.len(), 2);
}

// PPM-9, DEF-3
#[test]
fn a_removed_probe_is_taken_out_in_one_write() {
    let mut world = World::probing(&[probe("p", "main", exec("a")), probe("q", "main", exec("b"))]);
    world.verdict("way#q", "Succeeded", "");
    world.settle();
    world.cluster.put_marker(
        &name("a", "way"),
        marker(&app_x(), &[probe("p", "main", exec("a"))]),
    );
    world.drain();
    assert_eq!(
        (world.entries(), world.node_writes()),
        (vec!["way#p".to_owned()], 1)
    );
    assert!(world.pod().conditions.is_empty());
    assert_eq!(world.pod_writes().len(), 1);
}

// PPM-8, DEF-13
#[test]
fn an_edited_policy_and_a_removed_label_are_put_right_at_once() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    world.edit(|pod| drop(pod.labels.remove("role")));
    assert_eq!(world.pod().labels["role"].value, "main");
    let mut edited = idle();
    edited["markerPolicy"][0]["labels"] = json!({ "role": "chief" });
    edited["markerPolicy"][1]["labels"] = json!({});
    world.mark("way", &[edited]);
    assert_eq!(
        plain(&world.pod().labels),
        json!({ "app": "x", "role": "chief" })
    );
}

// PPM-8
#[test]
fn what_another_wrote_is_not_claimed_before_a_verdict() {
    let mut world = World::probing(&[idle(), probe("q", "main", exec("b"))]);
    world.edit(|pod| {
        let mut theirs = mark("", Owner::Status);
        theirs.value = json!({ "type": "game.io/idle", "status": "True" });
        pod.conditions.insert("game.io/idle".into(), theirs);
        pod.labels.insert("role".into(), mark("main", Owner::User));
    });
    // An apply of other marks.
    world.verdict("way#q", "Succeeded", "");
    let (labels, conditions) = (&world.pod().labels, &world.pod().conditions);
    assert_eq!(conditions["game.io/idle"].owners, [Owner::Status].into());
    assert_eq!(labels["role"].owners, [Owner::User].into());
    assert_eq!(conditions["game.io/q"].owners, [Owner::Ours].into());
}

// PPM-8, DEF-17
#[test]
fn what_no_marker_names_is_never_touched() {
    let mut world = World::probing(&[idle()]);
    world.edit(|pod| {
        pod.labels.insert("other".into(), mark("1", Owner::Kruise));
        let mut own = mark("", Owner::Status);
        own.value = json!({ "type": "Future", "status": "True" });
        pod.conditions.insert("Future".into(), own);
    });
    for state in ["Succeeded", "Failed", "Unknown"] {
        world.verdict("way#idle", state, "");
    }
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    world.drain();
    assert_eq!(
        plain(&world.pod().labels),
        json!({ "app": "x", "other": "1" })
    );
    let kept: BTreeSet<_> = world.pod().conditions.keys().cloned().collect();
    assert_eq!(kept, ["Future".to_owned()].into());
}

// PPM-8
#[test]
fn a_mark_that_is_fought_over_is_put_back_ever_later() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    let mut waits = Vec::new();
    for _ in 0..10 {
        let start = world.cluster.now;
        world.edit(|pod| drop(pod.labels.remove("role")));
        while !world.pod().labels.contains_key("role") {
            world.pass(SignedDuration::from_secs(1));
            world.drain();
        }
        waits.push(world.cluster.now.duration_since(start).as_secs());
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
    assert_eq!(world.ready("way").0, "Contested");
    world.rest();
    assert_eq!(world.ready("way").0, "AgentSilent");
    let start = world.cluster.now;
    world.edit(|pod| drop(pod.labels.remove("role")));
    assert!(world.pod().labels.contains_key("role"));
    assert_eq!(world.cluster.now, start);
}

// PPM-8
#[rstest]
#[case::forwards(SignedDuration::from_hours(48))]
#[case::backwards(SignedDuration::from_hours(-48))]
fn a_jump_of_the_time_of_day_changes_no_wait(#[case] jump: SignedDuration) {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    let mut waits = Vec::new();
    for _ in 0..6 {
        let start = world.monotonic;
        world.edit(|pod| drop(pod.labels.remove("role")));
        world.cluster.now = world.cluster.now.checked_add(jump).unwrap();
        world.observe(Event::Deadline);
        world.drain();
        while !world.pod().labels.contains_key("role") {
            world.pass(SignedDuration::from_secs(1));
            world.drain();
        }
        waits.push(world.monotonic.saturating_sub(start).as_secs());
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 16]);
    // A refusal ends after five minutes, whatever the time of day.
    world
        .cluster
        .edit_node_pod_probe("n0", |object| object.spec.pod_probes.clear());
    while world.deliver() {}
    let object = WriteTarget::NodePodProbe("n0".to_owned());
    world.refuse(&object, "no");
    world.cluster.now = world.cluster.now.checked_add(jump).unwrap();
    world.observe(Event::Deadline);
    assert_eq!(world.index.due(&object, world.now()), None);
    world.pass(SignedDuration::from_mins(5));
    assert!(world.index.due(&object, world.now()).is_some());
}

// PPM-8
#[rstest]
#[case::label("labels")]
#[case::annotation("annotations")]
fn a_mark_without_a_condition_is_fought_over_alike(#[case] place: &str) {
    let policy = json!([{ "state": "Succeeded", place: { "role": "main" } }]);
    let one = json!({ "name": "one", "containerName": "main", "probe": exec("a"), "markerPolicy": policy });
    let mut world = World::probing(&[one]);
    world.verdict("way#one", "Succeeded", "");
    for is_put_back in [true, false] {
        world.edit(|pod| {
            pod.labels.remove("role");
            pod.annotations.remove("role");
        });
        let pod = world.pod();
        let is_there = pod.labels.contains_key("role") || pod.annotations.contains_key("role");
        assert_eq!(is_there, is_put_back);
    }
}

/// A former leader may see another's marks before the verdicts that they follow from.
#[test]
fn marks_that_another_wrote_before_a_take_over_were_no_fight() {
    let mut world = World::probing(&[idle()]);
    let mut standby = Index::new(world.config.clone());
    let kinds = [
        WatchedKind::Pod,
        WatchedKind::Marker,
        WatchedKind::Node,
        WatchedKind::NodePodProbe,
    ];
    for event in world.cluster.lists(kinds) {
        standby.observe(event, world.now());
    }
    for state in ["Succeeded", "Failed"].repeat(4) {
        world.verdict("way#idle", state, "");
        let lists = world.cluster.lists(kinds).into_iter();
        for event in lists.filter(|event| !matches!(event, Event::Synced)) {
            standby.observe(event, world.now());
        }
    }
    world.index = standby;
    world.observe(Event::Synced);
    world.settle();
    world.edit(|pod| drop(pod.labels.remove("idle")));
    assert!(world.pod().labels.contains_key("idle"));
    assert_ne!(world.ready("way").0, "Contested");
}

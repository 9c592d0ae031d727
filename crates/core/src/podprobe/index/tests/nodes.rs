//! Nodes, their objects, and a marker's status, rule by rule.

use std::sync::Arc;

use jiff::SignedDuration;
use leadsman_api::node_pod_probe::NodePodProbe;
use rstest::rstest;
use serde_json::{Value, json};

use super::cluster::{Owner, Reply, SimPod, at, mark, name};
use super::proof::marker;
use super::scene::{app_x, exec, idle, p0, probe};
use super::world::World;
use crate::cluster::Source;
use crate::podprobe::event::{Event, PodMarks, WatchedKind, Write, WriteTarget};
use crate::podprobe::index::{Config, Index};

// PPM-2, DEF-6
#[test]
fn a_node_that_comes_late_is_served_without_touching_the_marker() {
    let mut world = World::probing(&[idle()]);
    world.cluster.delete(WatchedKind::Node, &name("", "n0"));
    world.drain();
    assert!(world.cluster.node_pod_probes.is_empty());
    world.cluster.put_node("n0", false);
    world.drain();
    assert_eq!(world.entries(), ["way#idle"]);
}

// PPM-5
#[test]
fn a_node_has_an_object_unless_it_is_virtual() {
    let mut world = World::bare();
    assert_eq!(world.cluster.node_pod_probes.len(), 1);
    world.cluster.put_node("n0", true);
    world.drain();
    assert!(world.cluster.node_pod_probes.is_empty());
}

#[test]
fn an_object_that_is_being_deleted_is_left_alone_until_it_is_deleted() {
    let mut world = World::probing(&[]);
    world.cluster.edit_node_pod_probe("n0", |object| {
        object.metadata.deletion_timestamp = object.metadata.creation_timestamp.clone();
    });
    world.mark("way", &[idle()]);
    assert!(world.entries().is_empty());
    assert_eq!(
        world
            .index
            .due(&WriteTarget::NodePodProbe("n0".to_owned()), world.now()),
        None
    );
    world
        .cluster
        .delete(WatchedKind::NodePodProbe, &name("", "n0"));
    world.drain();
    assert_eq!(world.entries(), ["way#idle"]);
}

// PPM-2, PPM-3, PRB-1, PRB-4, DEF-7, DEF-20
#[test]
fn an_entry_is_whole_and_follows_the_address() {
    let handler = json!({ "httpGet": { "port": "http" } });
    let mut world = World::probing(&[probe("p", "main", handler)]);
    let written = |world: &World| serde_json::to_value(world.pod_probe().unwrap()).unwrap();
    let mut expected = json!({
        "name": "p0", "namespace": "a", "uid": "u0", "IP": "10.0.0.1",
        "probes": [{
            "name": "way#p", "containerName": "main",
            // Fixed for ever: a new version of the manager must not turn verdicts Unknown.
            "revision": "3f749468318538b6",
            "probe": {
                "httpGet": { "port": 8080, "path": "/", "scheme": "HTTP" },
                "initialDelaySeconds": 0, "periodSeconds": 10, "timeoutSeconds": 1,
                "successThreshold": 1, "failureThreshold": 3,
            },
        }],
    });
    assert_eq!(written(&world), expected);
    for ip in ["10.0.0.2", ""] {
        world.edit(|pod| ip.clone_into(&mut pod.ip));
        expected["IP"] = json!(ip);
        assert_eq!(written(&world), expected);
    }
}

// PRB-10
#[rstest]
#[case::period(json!({ "exec": { "command": ["a"] }, "periodSeconds": 3 }), true)]
#[case::handler(json!({ "exec": { "command": ["b"] } }), false)]
#[case::words(json!({ "exec": { "command": ["a", ""] } }), false)]
fn a_revision_stands_for_the_handler_and_not_for_timing(#[case] edited: Value, #[case] same: bool) {
    let mut world = World::probing(&[probe("p", "main", exec("a"))]);
    let before = world.entry("way#p").unwrap();
    world.mark("way", &[probe("p", "main", edited)]);
    let after = world.entry("way#p").unwrap();
    assert_ne!(after, before);
    assert_eq!(after.revision == before.revision, same);
}

// PRB-8, DEF-26
#[test]
fn the_startup_gate_opens_once_for_each_container() {
    let mut world = World::bare();
    let mut pod = SimPod::new("u0", "n0", &[("app", "x")]);
    pod.containers[1].id = "one".to_owned();
    world.cluster.put_pod(&p0(), pod);
    world.mark("way", &[probe("p", "slow", exec("a"))]);
    let steps = [
        ("one", false, None),
        ("one", true, Some("one")),
        // The kubelet restarts.
        ("one", false, Some("one")),
        ("one", true, Some("one")),
        // The container restarts.
        ("two", false, Some("one")),
        ("two", true, Some("two")),
    ];
    for (place, (id, started, expected)) in steps.into_iter().enumerate() {
        world.edit(|pod| {
            pod.containers[1].id = id.to_owned();
            pod.containers[1].started = started;
        });
        let entry = world.entry("way#p");
        let allowed = entry.and_then(|entry| entry.started_container_id);
        assert_eq!(allowed.as_deref(), expected, "step {place}");
        // A new manager knows no less.
        world.writes.clear();
        world.restart([
            WatchedKind::NodePodProbe,
            WatchedKind::Pod,
            WatchedKind::Marker,
            WatchedKind::Node,
        ]);
        world.drain();
        assert_eq!(world.writes, [], "step {place}");
    }
}

// PPM-12
#[test]
fn a_verdict_about_a_container_that_may_not_be_probed_is_not_taken() {
    let mut world = World::probing(&[probe("p", "slow", exec("a"))]);
    world.edit(|pod| pod.containers[1].started = true);
    world.verdict_with("way#p", "Succeeded", "", |state| {
        state.container_id = Some("old".to_owned());
    });
    assert!(world.pod().conditions.is_empty());
    world.verdict("way#p", "Succeeded", "");
    assert!(!world.pod().conditions.is_empty());
}

#[test]
fn foreign_entries_go_and_another_order_is_no_difference() {
    let mut world = World::probing(&[probe("p", "main", exec("a")), probe("q", "main", exec("b"))]);
    world
        .cluster
        .edit_node_pod_probe("n0", |object| object.spec.pod_probes[0].probes.reverse());
    world.drain();
    assert_eq!(world.node_writes(), 0);
    world.cluster.edit_node_pod_probe("n0", |object| {
        let mut foreign = object.spec.pod_probes[0].probes[0].clone();
        foreign.name = "gone#p".to_owned();
        object.spec.pod_probes[0].probes.push(foreign);
    });
    world.drain();
    assert_eq!((world.entries().len(), world.node_writes()), (2, 1));
}

#[test]
fn a_pod_that_is_named_twice_is_named_once_again() {
    let mut world = World::probing(&[idle()]);
    world.cluster.edit_node_pod_probe("n0", |object| {
        let twin = object.spec.pod_probes[0].clone();
        object.spec.pod_probes.push(twin);
    });
    world.drain();
    assert_eq!(world.cluster.node_pod_probes["n0"].spec.pod_probes.len(), 1);
}

#[test]
fn an_api_server_that_drops_our_fields_is_written_once() {
    let mut world = World::new(Config::default());
    world.drop_extensions(true);
    world.cluster.put_node("n0", false);
    world
        .cluster
        .put_pod(&p0(), SimPod::new("u0", "n0", &[("app", "x")]));
    world.mark("way", &[idle()]);
    assert_eq!(world.entries(), ["way#idle"]);
    assert_eq!(world.status("way").observed_generation, 1);
    world.verdict("way#idle", "Succeeded", "");
    assert_eq!(world.pod().labels["role"].value, "main");
    assert_eq!(world.node_writes(), 0);
}

/// What another writer left, or a snapshot that was on its way before our write, says nothing about the API server.
#[test]
fn a_stray_event_without_our_fields_is_not_taken_for_the_api_servers_doing() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    let marks = world.pod().labels.clone();
    let without_fields = |object: &mut NodePodProbe| {
        let probes = object.spec.pod_probes.iter_mut();
        for probe in probes.flat_map(|pod| &mut pod.probes) {
            probe.revision = None;
        }
    };
    world.cluster.edit_node_pod_probe("n0", without_fields);
    while world.deliver() {}
    let written = WriteTarget::NodePodProbe("n0".to_owned());
    let lost = world.index.due(&written, world.now());
    assert!(lost.is_some());
    world.cluster.edit_node_pod_probe("n0", without_fields);
    world.cluster.edit_marker(&name("a", "way"), |marker| {
        let status = marker.status.as_mut().unwrap();
        status.matched_pods = Some(7);
    });
    while world.deliver() {}
    let written = WriteTarget::MarkerStatus(name("a", "way"));
    let lost = world.index.due(&written, world.now());
    assert!(lost.is_some());
    world.cluster.edit_marker(&name("a", "way"), |marker| {
        let status = marker.status.as_mut().unwrap();
        status.matched_pods = Some(1);
        status.conditions.clear();
    });
    world.writes.clear();
    world.rest();
    assert!(world.entry("way#idle").unwrap().revision.is_some());
    assert!(!world.status("way").conditions.is_empty());
    assert_eq!(world.pod().labels, marks);
    assert_eq!(world.pod_writes(), Vec::<&_>::new());
}

/// A node of 1,050 bytes, of which a pod with one entry takes about 295.
fn small_node() -> World {
    World::with(Config {
        node_bytes: 1050,
        ..Config::default()
    })
}

fn put_pod(world: &mut World, namespace: &str, own: &str) {
    let uid = format!("{namespace}-{own}");
    let pod = SimPod::new(&uid, "n0", &[("app", "x")]);
    world.cluster.put_pod(&name(namespace, own), pod);
    world.drain();
}

fn pods_of_n0(world: &World) -> Vec<String> {
    let pods = &world.cluster.node_pod_probes["n0"].spec.pod_probes;
    pods.iter()
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect()
}

// PPM-13
#[test]
fn a_node_without_room_refuses_the_surplus_and_says_so() {
    let mut world = small_node();
    world.mark("way", &[idle()]);
    for own in ["p3", "p2", "p1"] {
        put_pod(&mut world, "a", own);
    }
    assert_eq!(pods_of_n0(&world), ["a/p2", "a/p3"]);
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "TooManyProbes");
    assert!(
        message.contains("p1") && !message.contains("p2"),
        "{message}"
    );
    world.cluster.delete(WatchedKind::Pod, &name("a", "p3"));
    world.drain();
    assert_eq!(pods_of_n0(&world), ["a/p1", "a/p2"]);
    assert_eq!(world.ready("way").0, "Probing");
}

// PPM-13
#[test]
fn who_is_in_a_full_node_stays_in_also_after_a_restart() {
    let mut world = small_node();
    for namespace in ["a", "z"] {
        world.mark_in(namespace, "way", &[idle()]);
    }
    put_pod(&mut world, "z", "late");
    put_pod(&mut world, "z", "later");
    // A new pod takes the rest that is kept for others, and another one nobody's place.
    put_pod(&mut world, "a", "new");
    put_pod(&mut world, "a", "newer");
    let names = ["a/new", "z/late", "z/later"];
    assert_eq!(pods_of_n0(&world), names);
    world.restart([
        WatchedKind::NodePodProbe,
        WatchedKind::Node,
        WatchedKind::Marker,
        WatchedKind::Pod,
    ]);
    world.settle();
    assert_eq!(pods_of_n0(&world), names);
}

// PPM-13
#[test]
fn entries_that_grow_in_a_full_node_throw_nobody_out() {
    let mut world = small_node();
    for namespace in ["a", "z"] {
        world.mark_in(namespace, "way", &[idle()]);
    }
    put_pod(&mut world, "a", "p");
    put_pod(&mut world, "z", "p");
    assert_eq!(pods_of_n0(&world), ["a/p", "z/p"]);
    world.mark_in("a", "way", &[probe("p", "main", exec(&"x".repeat(900)))]);
    assert_eq!(pods_of_n0(&world), ["z/p"]);
    world.mark_in("a", "way", &[idle()]);
    assert_eq!(pods_of_n0(&world), ["a/p", "z/p"]);
}

// PPM-13
#[test]
fn one_namespace_leaves_room_for_those_that_come_later() {
    let mut world = small_node();
    for namespace in ["a", "z"] {
        world.mark_in(namespace, "way", &[idle()]);
    }
    for own in ["p0", "p1", "p2", "p3"] {
        put_pod(&mut world, "a", own);
    }
    assert_eq!(pods_of_n0(&world), ["a/p0", "a/p1"]);
    put_pod(&mut world, "z", "p");
    assert_eq!(pods_of_n0(&world), ["a/p0", "a/p1", "z/p"]);
}

// PPM-13, PRB-4, DEF-16
#[rstest]
#[case::no_container(probe("p", "none", exec("a")), "ContainerNotFound", "p0")]
#[case::no_port(probe("p", "main", json!({ "tcpSocket": { "port": "none" } })), "PortNotFound", "p0")]
#[case::bad_name(
    probe("NO NAME", "main", exec("a")),
    "InvalidSpec",
    "spec.probes[0].name"
)]
#[case::own_label(json!({
    "name": "p", "containerName": "main", "probe": exec("a"),
    "markerPolicy": [{ "state": "Failed", "labels": { "app": "y" } }],
}), "Cycle", "app")]
#[case::fine(probe("p", "main", exec("a")), "Probing", "")]
fn what_is_wrong_with_a_marker_is_in_its_status(
    #[case] probe: Value,
    #[case] reason: &str,
    #[case] named: &str,
) {
    let world = World::probing(&[probe]);
    let ready = world.ready("way");
    assert_eq!(ready.0, reason);
    assert!(ready.1.contains(named), "{}", ready.1);
    assert_eq!(world.entries().is_empty(), reason != "Probing");
    assert_eq!(world.status("way").observed_generation, 1);
}

#[test]
fn a_marker_that_turns_invalid_is_not_acted_on_any_more() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    world.mark("way", &[probe("NO NAME", "main", exec("a"))]);
    assert!(world.entries().is_empty());
    assert!(world.pod().conditions.is_empty() && !world.pod().labels.contains_key("role"));
    assert_eq!(world.ready("way").0, "InvalidSpec");
}

// PPM-10, DEF-19
#[test]
fn the_older_of_two_markers_wins_and_the_other_says_so() {
    let mut world = World::probing(&[idle()]);
    // Older by age, not by name.
    let mut other = idle();
    other["markerPolicy"][0]["labels"]["role"] = json!("other");
    world.mark("also", &[other]);
    assert_eq!(world.ready("way").0, "Probing");
    let (reason, message) = world.ready("also");
    assert_eq!(reason, "Conflict");
    assert!(message.contains("way"), "{message}");
    world.verdict("way#idle", "Failed", "way");
    world.verdict("also#idle", "Succeeded", "also");
    assert_eq!(
        world.pod().conditions["game.io/idle"].value["message"],
        "way"
    );
    assert!(!world.pod().labels.contains_key("role"));
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    world.drain();
    assert_eq!(world.pod().labels["role"].value, "other");
    assert_eq!(world.ready("also").0, "Probing");
}

// PPM-13
#[test]
fn a_pod_is_counted_once_by_the_verdict_it_has_now() {
    let mut world = World::probing(&[idle()]);
    let table = [
        ("Succeeded", [1, 0, 0, 0]),
        ("Failed", [0, 1, 0, 0]),
        ("Unknown", [0, 0, 1, 0]),
        ("none of these", [0, 0, 0, 1]),
        ("Unknown", [0, 0, 1, 0]),
        ("Succeeded", [1, 0, 0, 0]),
    ];
    for (state, counts) in table {
        world.verdict("way#idle", state, "");
        // A status is written at most every two seconds.
        world.settle();
        let found = world.status("way").probes[0].clone();
        let found = [found.succeeded, found.failed, found.unknown, found.pending];
        assert_eq!(found, counts, "{state}");
    }
}

// PPM-13
#[test]
fn counts_add_up_and_the_message_names_three_pods() {
    let mut world = World::probing(&[idle(), probe("none", "none", exec("a"))]);
    for own in ["p1", "p2", "p3", "p4"] {
        world
            .cluster
            .put_pod(&name("a", own), SimPod::new(own, "n0", &[("app", "x")]));
    }
    world.verdict("way#idle", "Failed", "");
    let status = world.status("way");
    let first = &status.probes[0];
    assert_eq!(status.matched_pods, Some(5));
    assert_eq!((first.failed, first.pending, first.silent), (1, 4, 0));
    assert_eq!(
        world.ready("way").1,
        "probe none: no container or native sidecar named none; correct containerName or the selector \
         (pods p0, p1, p2 and 2 more); 0 of 5 matching pods have their verdicts; 5 pending: 5 ContainerNotFound"
    );
    for own in ["p3", "p4"] {
        world.cluster.delete(WatchedKind::Pod, &name("a", own));
    }
    world.settle();
    let message = world.ready("way").1;
    assert!(message.contains("(pods p0, p1, p2);"), "{message}");
}

// PPM-13, DEF-16
#[test]
fn each_probe_that_lacks_something_is_named() {
    let get = |port: &str| json!({ "httpGet": { "port": port } });
    let mut world = World::probing(&[
        probe("a", "main", get("admin")),
        probe("b", "slow", get("stats")),
        probe("c", "main", get("http")),
    ]);
    assert_eq!(world.entries(), ["way#c"]);
    let remedy = "name it in the pod's ports or use its number (pods p0)";
    assert_eq!(
        world.ready("way"),
        (
            "PortNotFound".to_owned(),
            format!(
                "probe a: container main has no port named admin; {remedy}; probe b: container slow has no port named stats; {remedy}; \
                 0 of 1 matching pods have their verdicts; 1 pending: 1 PortNotFound"
            )
        )
    );
    world.mark("way", &[probe("c", "main", get("http"))]);
    assert_eq!(world.ready("way").0, "Probing");
}

// PPM-13
#[rstest]
#[case::replaced(&["r"])]
#[case::added(&["p", "q", "r"])]
#[case::removed(&["p"])]
fn a_generation_counts_as_observed_when_its_entries_are_acknowledged(#[case] probes: &[&str]) {
    let of = |own: &&str| probe(own, "main", exec(own));
    let mut world = World::probing(&["p", "q"].each_ref().map(of));
    assert_eq!(world.status("way").observed_generation, 1);
    let probes: Vec<_> = probes.iter().map(of).collect();
    world
        .cluster
        .put_marker(&name("a", "way"), marker(&app_x(), &probes));
    while world.deliver() {}
    // The status is written first; the node's object is not there yet.
    let object = WriteTarget::MarkerStatus(name("a", "way"));
    let write = world.index.due(&object, world.now()).unwrap();
    let Reply::Done(Some(reply)) = world.cluster.execute(write) else {
        unreachable!()
    };
    world.observe(reply);
    assert_eq!(world.status("way").observed_generation, 1);
    world.drain();
    assert_eq!(world.status("way").observed_generation, 2);
}

#[test]
fn nothing_is_due_before_all_is_listed() {
    let mut world = World::probing(&[idle()]);
    world.cluster.node_pod_probes.clear();
    let mut index = Index::new(Config::default());
    let objects = [
        WriteTarget::NodePodProbe("n0".to_owned()),
        WriteTarget::PodMarks(p0()),
        WriteTarget::MarkerStatus(name("a", "way")),
    ];
    let kinds = [
        WatchedKind::Marker,
        WatchedKind::Pod,
        WatchedKind::Node,
        WatchedKind::NodePodProbe,
    ];
    for event in world.cluster.lists(kinds) {
        let synced = matches!(event, Event::Synced);
        let effects = index.observe(event, world.now());
        assert_eq!(!effects.dirty.is_empty(), synced);
        let mut due = objects
            .iter()
            .filter_map(|object| index.due(object, world.now()));
        assert_eq!(due.next().is_some(), synced);
    }
}

#[test]
fn an_event_that_is_not_newer_changes_nothing() {
    let mut world = World::probing(&[idle()]);
    let old = world
        .cluster
        .snapshot(WatchedKind::Pod, &p0(), Source::Watch)
        .unwrap();
    world.edit(|pod| drop(pod.labels.insert("app".into(), mark("y", Owner::User))));
    world.settle();
    world.observe(old.clone());
    world.drain();
    assert_eq!(world.writes, []);
    // The late reply to a write to a pod that is gone.
    world.cluster.delete(WatchedKind::Pod, &p0());
    world.drain();
    world.observe(old.clone());
    world.drain();
    assert_eq!(world.node_writes(), 0);
    // A list is taken as it is: the API server may have been restored.
    let Event::Pod(pod, _) = old else {
        unreachable!()
    };
    world.observe(Event::Pod(pod, Source::List(at(1))));
    world.drain();
    assert_eq!(world.entries(), ["way#idle"]);
}

// PPM-11, DEF-10
#[test]
fn equal_snapshots_change_nothing() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    world.settle();
    for kind in [
        WatchedKind::Marker,
        WatchedKind::Pod,
        WatchedKind::Node,
        WatchedKind::NodePodProbe,
    ] {
        let id = match kind {
            WatchedKind::Marker => name("a", "way"),
            WatchedKind::Pod => p0(),
            WatchedKind::Node | WatchedKind::NodePodProbe => name("", "n0"),
        };
        let source = Source::List(at(world.cluster.version));
        let snapshot = world.cluster.snapshot(kind, &id, source).unwrap();
        world.observe(snapshot);
        assert!(world.dirty.is_empty(), "{kind:?}");
    }
}

// PPM-8, PPM-13
#[test]
fn a_refused_write_is_left_alone_until_another_is_due() {
    let mut world = World::probing(&[idle()]);
    world.cluster.edit_node_pod_probe("n0", |_| {});
    let object = WriteTarget::PodMarks(p0());
    world.verdict("way#idle", "Succeeded", "");
    world.settle();
    world
        .cluster
        .edit_pod(&p0(), |pod| drop(pod.labels.remove("role")));
    while world.deliver() {}
    let now = world.now();
    world.refuse(&object, "too long");
    assert_eq!(world.index.due(&object, now), None);
    world.drain();
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "InvalidSpec");
    assert!(message.contains("p0: too long"), "{message}");
    world.edit(|pod| pod.ip = "10.0.0.9".to_owned());
    assert!(!world.pod().labels.contains_key("role"));
    assert_eq!(world.ready("way").0, "InvalidSpec");
    world.verdict("way#idle", "Failed", "");
    assert_eq!(world.pod().labels["idle"].value, "false");
    assert_eq!(world.ready("way").0, "Probing");
}

/// What stood in the way may have been a webhook, a quota or the store of the API server: no watch shows its end.
#[test]
fn a_refused_write_is_tried_again_after_minutes() {
    let mut world = World::probing(&[idle()]);
    let pod = WriteTarget::PodMarks(p0());
    let node = WriteTarget::NodePodProbe("n0".to_owned());
    let status = WriteTarget::MarkerStatus(name("a", "way"));
    world.verdict("way#idle", "Succeeded", "");
    world.settle();
    world
        .cluster
        .edit_pod(&p0(), |pod| drop(pod.labels.remove("role")));
    world
        .cluster
        .edit_node_pod_probe("n0", |object| object.spec.pod_probes.clear());
    while world.deliver() {}
    for object in [&pod, &node, &status] {
        world.refuse(object, "no");
    }
    world.drain();
    assert!(!world.pod().labels.contains_key("role"));
    assert!(world.entries().is_empty());
    world.pass(SignedDuration::from_mins(5));
    world.drain();
    assert_eq!(world.pod().labels["role"].value, "main");
    assert_eq!(world.entries(), ["way#idle"]);
    assert_eq!(world.ready("way").0, "Probing");
}

#[test]
fn a_refusal_of_a_known_object_is_remembered_and_its_message_is_bounded() {
    let mut world = World::probing(&[idle()]);
    let gone = WriteTarget::PodMarks(name("a", "gone"));
    let marks = PodMarks {
        pod: name("a", "gone"),
        uid: "u9".to_owned(),
        remove: None,
        apply: Some(json!({})),
    };
    let write = Box::new(Write::PodMarks(Box::new(marks)));
    world.observe(Event::Refused(gone, write, "no".to_owned()));
    world.drain();
    assert_eq!(world.ready("way").0, "Probing");
    world.verdict("way#idle", "Succeeded", "");
    world
        .cluster
        .edit_pod(&p0(), |pod| drop(pod.labels.remove("role")));
    while world.deliver() {}
    world.refuse(&WriteTarget::PodMarks(p0()), &"é".repeat(100_000));
    world.drain();
    let (reason, message) = world.ready("way");
    assert_eq!(
        (reason.as_str(), message.len() <= 4096),
        ("InvalidSpec", true)
    );
}

#[test]
fn others_conditions_on_a_marker_stay() {
    let mut world = World::probing(&[idle()]);
    let theirs = serde_json::from_value(json!({
        "type": "Approved", "status": "True", "reason": "Reviewed", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }));
    let marker = world.cluster.markers.get_mut(&name("a", "way")).unwrap();
    let conditions = &mut marker.status.as_mut().unwrap().conditions;
    conditions.insert(0, theirs.unwrap());
    let mut edited = idle();
    edited["containerName"] = json!("none");
    for (probes, reason) in [(edited, "ContainerNotFound"), (idle(), "Probing")] {
        world.mark("way", &[probes]);
        let conditions = world.status("way").conditions;
        let found: Vec<_> = conditions.iter().map(|one| one.reason.as_str()).collect();
        assert_eq!(found, ["Reviewed", reason]);
    }
}

#[test]
fn an_object_that_is_created_again_is_filled_again() {
    let mut world = World::probing(&[idle()]);
    let mut empty = NodePodProbe::new("n0", leadsman_api::NodePodProbeSpec::default());
    empty.metadata.uid = Some("another".to_owned());
    world.cluster.put_node_pod_probe(empty);
    world.drain();
    assert_eq!(world.entries(), ["way#idle"]);
}

/// The API server moves the generation with the spec, but one that was restored may show an old one with another spec.
#[test]
fn entries_are_read_again_where_the_generation_moved_and_from_every_list() {
    let object_due = |world: &mut World, generation: Option<i64>, source| {
        let mut emptied = world.cluster.node_pod_probes["n0"].clone();
        emptied.spec.pod_probes.clear();
        emptied.metadata.resource_version = Some("999".to_owned());
        emptied.metadata.generation = generation;
        let event = Event::NodePodProbe(Arc::new(emptied), source);
        world.index.observe(event, world.now());
        let object = WriteTarget::NodePodProbe("n0".to_owned());
        world.index.due(&object, world.now()).is_some()
    };
    let probing = || World::probing(&[idle()]);
    let generation = probing().cluster.node_pod_probes["n0"].metadata.generation;
    assert!(generation.is_some());
    let table = [
        (generation, Source::Watch, false),
        (generation, Source::List(at(999)), true),
        (generation.map(|it| it + 1), Source::Watch, true),
        (None, Source::Watch, true),
    ];
    for (generation, source, due) in table {
        let found = object_due(&mut probing(), generation, source);
        assert_eq!(found, due, "{generation:?} {source:?}");
    }
}

/// An answer to a write may show nothing; then the watch is what makes the pod due again.
#[test]
fn a_pod_that_lacks_its_marks_is_due_with_every_snapshot() {
    let mut world = World::probing(&[idle()]);
    let dirty = |world: &mut World, version: u64| {
        let mut pod = world.pod().clone();
        pod.version = version;
        let event = Event::Pod(Arc::new(pod.wire(&p0())), Source::Watch);
        world.index.observe(event, world.now()).dirty
    };
    assert_eq!(dirty(&mut world, 900), []);
    let marks = WriteTarget::PodMarks(p0());
    let bare = world.pod().clone();
    world.verdict("way#idle", "Succeeded", "up");
    world.cluster.pods.insert(p0(), bare);
    // The marks were written and are not there: that counts as undone.
    world.pass(SignedDuration::from_secs(61));
    for version in [901, 902] {
        let due = dirty(&mut world, version);
        assert_eq!(due, std::slice::from_ref(&marks));
    }
}

// PPM-2, PPM-9
#[test]
fn a_new_leader_acts_on_deletions_that_its_watches_have_not_shown() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    assert!(world.pod().labels.contains_key("role"));
    world.lose_lead();
    let edited = marker(&app_x(), &[idle(), probe("two", "main", exec("/two"))]);
    world.cluster.put_marker(&name("a", "way"), edited);
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    world.lead_again();
    while world.work() {}
    assert_eq!(world.entries(), Vec::<String>::new());
    assert!(!world.pod().labels.contains_key("role"));
    // What the watches show of it later is old.
    world.writes.clear();
    world.drain();
    assert_eq!(world.writes, []);
}

// PPM-2
#[test]
fn a_new_leader_keeps_what_was_made_after_its_list() {
    let mut world = World::probing(&[idle()]);
    let listed = world.cluster.version;
    world.mark("later", &[probe("two", "main", exec("/two"))]);
    let names = [name("a", "way")].into();
    let list = Event::Relisted(WatchedKind::Marker, names, at(listed));
    world.observe(list);
    world.drain();
    assert_eq!(world.entries(), ["later#two", "way#idle"]);
}

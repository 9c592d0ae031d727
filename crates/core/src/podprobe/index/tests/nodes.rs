//! Nodes, their objects and the entries in them, rule by rule.

use leadsman_api::node_pod_probe::NodePodProbe;
use rstest::rstest;
use serde_json::{Value, json};

use super::cluster::name;
use super::driver::{Event, WatchedKind, WriteTarget};
use super::pod::SimPod;
use super::scene::{exec, idle, p0, probe};
use super::world::World;
use crate::podprobe::index::Config;

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
    world.observe(Event::Unwritten(written, false));
    world.cluster.edit_node_pod_probe("n0", without_fields);
    world.cluster.edit_marker(&name("a", "way"), |marker| {
        let status = marker.status.as_mut().unwrap();
        status.matched_pods = Some(7);
    });
    while world.deliver() {}
    let written = WriteTarget::MarkerStatus(name("a", "way"));
    let lost = world.index.due(&written, world.now());
    assert!(lost.is_some());
    world.observe(Event::Unwritten(written, false));
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

#[test]
fn an_object_that_is_created_again_is_filled_again() {
    let mut world = World::probing(&[idle()]);
    let mut empty = NodePodProbe::new("n0", leadsman_api::NodePodProbeSpec::default());
    empty.metadata.uid = Some("another".to_owned());
    world.cluster.put_node_pod_probe(empty);
    world.drain();
    assert_eq!(world.entries(), ["way#idle"]);
}

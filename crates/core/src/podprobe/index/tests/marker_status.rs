//! What a marker's status says of the marker itself: what is wrong with it, its counts, the generation it is about.

use rstest::rstest;
use serde_json::{Value, json};

use super::cluster::{Reply, name};
use super::driver::{Event, WatchedKind, WriteTarget};
use super::pod::SimPod;
use super::proof::marker;
use super::scene::{app_x, exec, idle, probe};
use super::world::World;

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

/// The list of conditions is replaced as a whole: one that another client has added meanwhile must not be lost.
// PPM-13
#[test]
fn a_condition_that_another_client_adds_before_a_status_is_written_is_kept() {
    let mut world = World::probing(&[idle()]);
    let way = name("a", "way");
    let target = WriteTarget::MarkerStatus(way.clone());
    world.cluster.edit_marker(&way, |marker| {
        marker.spec.probes[0].container_name = "none".to_owned();
    });
    while world.deliver() {}
    let due = world.index.due(&target, world.now()).unwrap();
    let foreign = json!({
        "type": "example.com/Synced", "status": "True", "reason": "Synced", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    world.cluster.edit_marker(&way, |marker| {
        let status = marker.status.get_or_insert_default();
        let foreign = serde_json::from_value(foreign).unwrap();
        status.conditions.push(foreign);
    });
    assert!(matches!(world.cluster.execute(due), Reply::Conflict));
    world.observe(Event::Unwritten(target, true));
    world.settle();
    let conditions = world.status("way").conditions;
    let types: Vec<_> = conditions.iter().map(|one| one.type_.as_str()).collect();
    assert_eq!(types, ["Ready", "example.com/Synced"]);
    assert_eq!(world.ready("way").0, "ContainerNotFound");
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

// PPM-10
#[test]
fn a_probe_of_a_container_that_the_pod_lacks_is_in_nobodys_way() {
    let mut other = idle();
    other["containerName"] = json!("other");
    let mut world = World::probing(&[other]);
    world.mark("zoo", &[idle()]);
    world.verdict("zoo#idle", "Succeeded", "zoo");
    world.settle();
    let condition = &world.pod().conditions["game.io/idle"].value;
    assert_eq!(condition["message"], "zoo");
    assert_eq!(world.pod().labels["role"].value, "main");
    assert_eq!(world.ready("zoo").0, "Probing");
    assert_eq!(world.ready("way").0, "ContainerNotFound");
    // It holds what nobody claims any more.
    world.cluster.delete(WatchedKind::Marker, &name("a", "zoo"));
    world.settle();
    assert_eq!(world.pod().labels["role"].value, "main");
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
    world.observe(Event::Written(object));
    assert_eq!(world.status("way").observed_generation, 1);
    world.drain();
    assert_eq!(world.status("way").observed_generation, 2);
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

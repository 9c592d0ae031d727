//! Objects that do not decode when a manager starts.

use serde_json::json;

use super::cluster::name;
use super::driver::WatchedKind;
use super::pod::{Owner, SimPod, mark};
use super::proof::marker;
use super::scene::{app_x, exec, idle, p0, plain, probe};
use super::world::World;
use crate::cluster::ObjectName;

const KINDS: [WatchedKind; 4] = [
    WatchedKind::NodePodProbe,
    WatchedKind::Pod,
    WatchedKind::Marker,
    WatchedKind::Node,
];

/// The pod has marks of `a/way`, and another marker probes it too.
fn marked() -> World {
    let mut world = World::probing(&[idle()]);
    world.mark("other", &[probe("busy", "main", exec("busy"))]);
    world.verdict("way#idle", "Succeeded", "well");
    world.settle();
    assert_eq!(plain(&world.pod().labels)["role"], "main");
    world
}

impl World {
    /// A manager starts that cannot decode this object.
    fn restart_without(&mut self, kind: WatchedKind, own: &ObjectName) {
        self.cluster.undecodable.insert((kind, own.clone()));
        self.writes.clear();
        self.restart(KINDS);
        self.drain();
    }
}

fn way() -> ObjectName {
    name("a", "way")
}

// PPM-2, PPM-9
#[test]
fn what_a_marker_that_does_not_decode_asked_for_stays_over_a_restart() {
    let mut world = marked();
    world.restart_without(WatchedKind::Marker, &way());
    assert_eq!(world.writes, []);
    // The node's object and the pod's marks are written for another marker.
    world.mark(
        "third",
        &[
            json!({ "name": "t", "containerName": "main", "probe": exec("t"),
            "markerPolicy": [{ "state": "Failed", "labels": { "t": "1" } }] }),
        ],
    );
    world.verdict("third#t", "Failed", "");
    world.rest();
    assert_eq!(world.entries(), ["other#busy", "third#t", "way#idle"]);
    let labels = plain(&world.pod().labels);
    assert_eq!(
        (&labels["role"], &labels["t"]),
        (&json!("main"), &json!("1"))
    );
    assert_eq!(
        world.pod().conditions["game.io/idle"].value["status"],
        "True"
    );
    // It is mended, and asks for something else.
    world.cluster.undecodable.clear();
    let mended = marker(&app_x(), &[probe("new", "main", exec("new"))]);
    world.cluster.put_marker(&way(), mended);
    world.rest();
    assert_eq!(world.entries(), ["other#busy", "third#t", "way#new"]);
    assert_eq!(plain(&world.pod().labels), json!({ "app": "x", "t": "1" }));
}

// PPM-2
#[test]
fn a_marker_that_decodes_again_as_it_was_leads_to_no_write_of_pods_or_nodes() {
    let mut world = marked();
    world.restart_without(WatchedKind::Marker, &way());
    world.cluster.undecodable.clear();
    world.cluster.edit_marker(&way(), |marker| {
        marker.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
    });
    world.rest();
    assert_eq!((world.node_writes(), world.pod_writes().len()), (0, 0));
    world.verdict("way#idle", "Failed", "ill");
    world.rest();
    assert_eq!(plain(&world.pod().labels)["idle"], "false");
}

// PPM-9
#[rstest::rstest]
#[case::as_the_watch_says(false)]
#[case::as_a_list_says(true)]
fn a_marker_deleted_while_it_does_not_decode_takes_entries_and_marks_with_it(#[case] list: bool) {
    let mut world = marked();
    world.restart_without(WatchedKind::Marker, &way());
    world.cluster.delete(WatchedKind::Marker, &way());
    if list {
        world.cluster.list_again(WatchedKind::Marker);
    }
    world.rest();
    assert_eq!(world.entries(), ["other#busy"]);
    assert_eq!(plain(&world.pod().labels), json!({ "app": "x" }));
    assert!(!world.pod().conditions.contains_key("game.io/idle"));
}

// PPM-2
#[test]
fn a_marker_that_does_not_decode_holds_nothing_of_other_namespaces_and_other_markers() {
    let mut world = marked();
    world
        .cluster
        .delete(WatchedKind::Marker, &name("a", "other"));
    world.restart_without(WatchedKind::Marker, &name("b", "way"));
    assert_eq!(world.entries(), ["way#idle"]);
    world.cluster.delete(WatchedKind::Marker, &way());
    world.rest();
    assert!(world.entries().is_empty());
    assert_eq!(plain(&world.pod().labels), json!({ "app": "x" }));
}

// PPM-2
#[test]
fn a_marker_known_before_stays_known_while_it_does_not_decode() {
    let mut world = marked();
    world
        .cluster
        .undecodable
        .insert((WatchedKind::Marker, way()));
    world.cluster.list_again(WatchedKind::Marker);
    world.rest();
    world.verdict("way#idle", "Failed", "ill");
    world.rest();
    assert_eq!(plain(&world.pod().labels)["idle"], "false");
}

// PPM-2
#[test]
fn entries_and_marks_of_a_pod_that_does_not_decode_stay_over_a_restart() {
    let mut world = marked();
    world.restart_without(WatchedKind::Pod, &p0());
    assert_eq!((world.node_writes(), world.pod_writes().len()), (0, 0));
    // The node's object is written for another pod.
    let other = SimPod::new("u1", "n0", &[("app", "x")]);
    world.cluster.put_pod(&name("a", "p1"), other);
    world.verdict("way#idle", "Failed", "ill");
    world.rest();
    assert_eq!(world.node_writes(), 1);
    assert_eq!(world.entries(), ["other#busy", "way#idle"]);
    assert_eq!(plain(&world.pod().labels)["idle"], "true");
    // It decodes again.
    world.cluster.undecodable.clear();
    world.edit(|pod| drop(pod.labels.insert("tier".into(), mark("1", Owner::User))));
    world.rest();
    assert_eq!(plain(&world.pod().labels)["idle"], "false");
    assert_eq!(world.node_writes(), 1);
}

// PPM-2
#[rstest::rstest]
#[case::as_the_watch_says(false)]
#[case::as_a_list_says(true)]
fn a_pod_deleted_while_it_does_not_decode_takes_its_entries_with_it(#[case] list: bool) {
    let mut world = marked();
    world.restart_without(WatchedKind::Pod, &p0());
    world.cluster.delete(WatchedKind::Pod, &p0());
    if list {
        world.cluster.list_again(WatchedKind::Pod);
    }
    world.rest();
    assert!(world.entries().is_empty());
}

//! When a marker that is being deleted is let go.

use jiff::SignedDuration;
use leadsman_api::PodProbeMarker;

use super::cluster::{Reply, name};
use super::driver::{Event, WatchedKind, Write, WriteTarget};
use super::pod::{Owner, SimPod, mark};
use super::proof::marker;
use super::scene::{app_x, idle, p0};
use super::world::World;
use crate::podprobe::Compatibility;
use crate::podprobe::index::{Config, FINALIZER};

const OTHER: &str = "example.com/other";

/// A marker `a/way` with these finalizers, and a pod that it has marked.
fn marked(finalizers: &[&str]) -> World {
    let mut world = World::bare();
    let mut marker = marker(&app_x(), &[idle()]);
    marker.metadata.finalizers = Some(finalizers.iter().map(ToString::to_string).collect());
    world.cluster.put_marker(&name("a", "way"), marker);
    world
        .cluster
        .put_pod(&p0(), SimPod::new("u0", "n0", &[("app", "x")]));
    world.settle();
    world.verdict("way#idle", "Succeeded", "");
    assert_eq!(world.pod().labels["role"].value, "main");
    world.settle();
    world
}

fn way(world: &World) -> Option<&PodProbeMarker> {
    world.cluster.markers.get(&name("a", "way"))
}

fn finalizers(world: &World) -> Vec<String> {
    let meta = way(world).map(|marker| marker.metadata.clone());
    meta.unwrap_or_default().finalizers.unwrap_or_default()
}

fn delete(world: &mut World) {
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    while world.deliver() {}
}

/// Lets the manager write one object; what is due of it at all.
fn write(world: &mut World, object: &WriteTarget) -> Option<Write> {
    let write = world.index.due(object, world.now())?;
    if let Reply::Done(Some(reply)) = world.cluster.execute(write.clone()) {
        world.observe(reply);
    }
    while world.deliver() {}
    Some(write)
}

/// Lets the manager write everything but one object.
fn work_but(world: &mut World, stuck: &WriteTarget) {
    while world.dirty.iter().any(|object| object != stuck) {
        world.dirty.remove(stuck);
        world.work();
        while world.deliver() {}
    }
}

// PPM-9, DEF-4
#[test]
fn a_marker_is_let_go_after_its_entries_and_its_marks() {
    let way_finalizer = WriteTarget::MarkerFinalizer(name("a", "way"));
    let node = WriteTarget::NodePodProbe("n0".to_owned());
    let pod = WriteTarget::PodMarks(p0());
    for order in [[&node, &pod], [&pod, &node]] {
        let mut world = marked(&[FINALIZER]);
        delete(&mut world);
        for object in order {
            assert_eq!(write(&mut world, &way_finalizer), None);
            assert!(write(&mut world, object).is_some());
        }
        assert!(world.entries().is_empty() && world.pod().conditions.is_empty());
        assert!(way(&world).is_some());
        assert!(write(&mut world, &way_finalizer).is_some());
        assert!(way(&world).is_none());
    }
}

// PPM-9
#[test]
fn a_marker_is_let_go_by_itself_in_one_write() {
    let mut world = marked(&[FINALIZER]);
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    world.drain();
    assert!(way(&world).is_none());
    let to_markers =
        |(object, _): &&(WriteTarget, Write)| matches!(object, WriteTarget::MarkerFinalizer(_));
    assert_eq!(world.writes.iter().filter(to_markers).count(), 1);
}

/// As on a cluster that was `OpenKruise`'s, or in a namespace that is being deleted: nothing was ever matched.
// PPM-9
#[test]
fn a_marker_that_is_found_being_deleted_is_let_go() {
    let mut world = marked(&[FINALIZER]);
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    world.restart([
        WatchedKind::Marker,
        WatchedKind::NodePodProbe,
        WatchedKind::Pod,
        WatchedKind::Node,
    ]);
    world.drain();
    assert!(way(&world).is_none());
    assert!(world.entries().is_empty() && world.pod().conditions.is_empty());
}

// PPM-9
#[test]
fn finalizers_of_others_are_left_alone() {
    let mut world = marked(&["example.com/first", FINALIZER, OTHER]);
    world.drain();
    assert_eq!(finalizers(&world).len(), 3);
    delete(&mut world);
    world.drain();
    assert_eq!(finalizers(&world), ["example.com/first", OTHER]);
}

/// The list of finalizers is replaced as a whole: what somebody else did to it meanwhile must not be undone.
// PPM-9
#[test]
fn a_list_of_finalizers_that_has_changed_is_not_replaced() {
    let mut world = marked(&[FINALIZER, OTHER]);
    delete(&mut world);
    for object in [
        WriteTarget::PodMarks(p0()),
        WriteTarget::NodePodProbe("n0".to_owned()),
    ] {
        write(&mut world, &object);
    }
    let object = WriteTarget::MarkerFinalizer(name("a", "way"));
    let due = world.index.due(&object, world.now()).unwrap();
    world.cluster.edit_marker(&name("a", "way"), |marker| {
        marker.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    });
    assert!(matches!(world.cluster.execute(due), Reply::Conflict));
    world.observe(Event::Unwritten(object, true));
    assert_eq!(finalizers(&world), [FINALIZER]);
    world.drain();
    assert!(way(&world).is_none());
}

/// A pod whose marks cannot be taken away, or a node's object that cannot be written.
// PPM-9
#[test]
fn a_deletion_never_hangs_on_us() {
    let objects = [
        WriteTarget::PodMarks(p0()),
        WriteTarget::NodePodProbe("n0".to_owned()),
    ];
    for stuck in objects {
        let mut world = marked(&[FINALIZER]);
        delete(&mut world);
        work_but(&mut world, &stuck);
        world.pass(SignedDuration::from_secs(59));
        work_but(&mut world, &stuck);
        assert!(way(&world).is_some(), "{stuck:?}");
        world.pass(SignedDuration::from_secs(1));
        world.drain();
        assert!(way(&world).is_none(), "{stuck:?}");
        // What was left goes without the marker.
        write(&mut world, &stuck);
        assert!(world.entries().is_empty() && world.pod().conditions.is_empty());
    }
}

// PPM-9
#[test]
fn marks_in_another_namespace_and_of_pods_that_end_hold_no_marker() {
    let mut world = marked(&[FINALIZER]);
    world.edit(|pod| pod.deleting = true);
    let mut other = SimPod::new("u1", "n0", &[("app", "x")]);
    other
        .labels
        .insert("role".to_owned(), mark("main", Owner::Ours));
    world.cluster.put_pod(&name("b", "p1"), other);
    while world.deliver() {}
    delete(&mut world);
    work_but(&mut world, &WriteTarget::PodMarks(name("b", "p1")));
    assert!(way(&world).is_none());
    assert!(world.pod().labels.contains_key("role"));
}

// PPM-9
#[test]
fn clients_of_openkruise_find_the_finalizer_on_live_markers() {
    let mut world = World::with(Config {
        compatibility: Compatibility::OpenKruise,
        ..Config::default()
    });
    let mut marker = marker(&app_x(), &[idle()]);
    marker.metadata.finalizers = Some(vec![OTHER.to_owned()]);
    world.cluster.put_marker(&name("a", "way"), marker);
    world.drain();
    assert_eq!(finalizers(&world), [OTHER, FINALIZER]);
    world.writes.clear();
    world.restart([
        WatchedKind::Marker,
        WatchedKind::NodePodProbe,
        WatchedKind::Pod,
        WatchedKind::Node,
    ]);
    world.drain();
    assert_eq!(world.writes, []);
    delete(&mut world);
    world.drain();
    assert_eq!(finalizers(&world), [OTHER]);
}

//! Events that show nothing new, come late or are missing: lists, snapshots that are older or equal, and what a new leader
//! has not seen.

use std::sync::Arc;

use jiff::SignedDuration;

use super::cluster::{at, name};
use super::driver::{Event, Index, WatchedKind, WriteTarget};
use super::pod::{Owner, SimPod, mark};
use super::proof::marker;
use super::scene::{app_x, exec, idle, p0, probe};
use super::world::World;
use crate::cluster::Source;
use crate::podprobe::index::Config;

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

/// Kubelets report of nodes and pods all the time, and hardly any of it is read.
#[test]
fn what_is_not_read_of_nodes_and_pods_has_no_key_run() {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    world.settle();
    for (kind, id) in [
        (WatchedKind::Pod, p0()),
        (WatchedKind::Node, name("", "n0")),
    ] {
        let source = Source::List(at(world.cluster.version));
        let snapshot = world.cluster.snapshot(kind, &id, source).unwrap();
        assert!(!world.index.has_key_run(snapshot, world.now()), "{kind:?}");
    }
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

/// The pods that the object of the node has entries of.
fn probed(world: &World) -> Vec<&str> {
    let object = &world.cluster.node_pod_probes["n0"];
    let pods = object.spec.pod_probes.iter();
    pods.map(|pod| pod.name.as_str()).collect()
}

/// Another manager has written entries of the pod `a/p1`, which this one has not seen yet when it leads again.
fn led_again_before_the_watch_of_pods(meanwhile: impl FnOnce(&mut World)) -> World {
    let mut world = World::probing(&[idle()]);
    let pod = SimPod::new("u1", "n0", &[("app", "x")]);
    world.cluster.put_pod(&name("a", "p1"), pod);
    world.lose_lead();
    assert_eq!(probed(&world), ["p0", "p1"]);
    meanwhile(&mut world);
    world.writes.clear();
    world.lead_again();
    while world.work() {}
    assert_eq!((probed(&world), world.node_writes()), (vec!["p0", "p1"], 0));
    world
}

// PPM-2
#[test]
fn a_new_leader_keeps_the_entries_of_a_pod_that_its_watch_shows_later() {
    let mut world = led_again_before_the_watch_of_pods(|_| {});
    world.rest();
    assert_eq!((probed(&world), world.node_writes()), (vec!["p0", "p1"], 0));
}

// PPM-2
#[test]
fn a_new_leader_takes_the_entries_of_a_pod_away_when_its_watch_has_shown_that_it_is_gone() {
    let mut world = led_again_before_the_watch_of_pods(|world| {
        world.cluster.delete(WatchedKind::Pod, &name("a", "p1"));
    });
    world.drain();
    assert_eq!(probed(&world), ["p0"]);
}

// PPM-2
#[test]
fn a_new_leader_takes_the_entries_of_a_pod_away_that_is_not_selected_once_its_watch_shows_it() {
    let mut world = led_again_before_the_watch_of_pods(|world| {
        world.cluster.edit_pod(&name("a", "p1"), |pod| {
            pod.labels.insert("app".to_owned(), mark("y", Owner::User));
        });
    });
    world.rest();
    assert_eq!(probed(&world), ["p0"]);
}

// PPM-2
#[test]
fn entries_of_a_pod_that_no_watch_shows_go_after_two_minutes() {
    let mut world = led_again_before_the_watch_of_pods(|world| {
        world.cluster.pending.clear();
        world.cluster.pods.remove(&name("a", "p1"));
    });
    world.pass(SignedDuration::from_secs(119));
    world.drain();
    assert_eq!(probed(&world), ["p0", "p1"]);
    world.pass(SignedDuration::from_secs(1));
    world.drain();
    assert_eq!(probed(&world), ["p0"]);
}

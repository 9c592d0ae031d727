//! Which pods a marker matches.

use rstest::rstest;
use serde_json::{Value, json};

use super::cluster::name;
use super::driver::{WatchedKind, WriteTarget};
use super::pod::{Owner, SimPod, mark};
use super::proof::marker;
use super::scene::{app_x, exec, idle, p0, plain, probe};
use super::world::World;
use crate::podprobe::index::InspectedFit;
use crate::podprobe::marker::MARKERS_PER_POD;
use crate::podprobe::status::Pending;

// PPM-1
#[rstest]
#[case::running(|_: &mut SimPod| {}, true)]
#[case::ended(|pod: &mut SimPod| pod.phase = "Succeeded", false)]
#[case::failed(|pod: &mut SimPod| pod.phase = "Failed", false)]
#[case::terminating(|pod: &mut SimPod| pod.deleting = true, false)]
#[case::not_initialized(|pod: &mut SimPod| pod.initialized = false, false)]
#[case::unbound(|pod: &mut SimPod| pod.node = None, false)]
#[case::not_running_yet(|pod: &mut SimPod| pod.phase = "Pending", true)]
#[case::without_address(|pod: &mut SimPod| pod.ip = String::new(), true)]
#[case::relabelled_out(|pod: &mut SimPod| drop(pod.labels.insert("app".into(), mark("y", Owner::User))), false)]
#[case::without_labels(|pod: &mut SimPod| pod.labels.clear(), false)]
fn a_marker_matches_active_initialized_pods_on_a_node(
    #[case] edit: fn(&mut SimPod),
    #[case] matches: bool,
) {
    let mut world = World::probing(&[idle()]);
    world.edit(edit);
    assert_eq!(!world.entries().is_empty(), matches);
    assert_eq!(world.status("way").matched_pods, Some(i64::from(matches)));
}

// PPM-1, DEF-15
#[rstest]
#[case::empty(json!({}), false)]
#[case::absent_key(json!({ "matchExpressions": [{ "key": "tier", "operator": "DoesNotExist" }] }), true)]
#[case::all_requirements(json!({ "matchLabels": { "app": "x", "tier": "1" } }), false)]
fn a_pod_without_labels_is_matched_by_absence_alone(
    #[case] selector: Value,
    #[case] matches: bool,
) {
    let mut world = World::bare();
    world.cluster.put_pod(&p0(), SimPod::new("u0", "n0", &[]));
    world
        .cluster
        .put_marker(&name("a", "way"), marker(&selector, &[idle()]));
    world.drain();
    assert_eq!(!world.entries().is_empty(), matches);
}

// PPM-1
#[test]
fn a_marker_matches_in_its_own_namespace_alone() {
    let mut world = World::probing(&[]);
    world
        .cluster
        .put_marker(&name("b", "way"), marker(&app_x(), &[idle()]));
    world.drain();
    assert!(world.entries().is_empty());
}

// PPM-1, PPM-12
#[test]
fn a_static_pod_is_probed_and_marked_by_the_uid_that_its_node_knows() {
    let mut world = World::bare();
    world.mark("way", &[idle()]);
    let mut pod = SimPod::new("u0", "n0", &[("app", "x")]);
    pod.mirror("hash");
    world.cluster.put_pod(&p0(), pod);
    world.settle();
    assert_eq!(world.pod_probe().unwrap().uid, "hash");
    world.verdict("way#idle", "Succeeded", "");
    assert_eq!(plain(&world.pod().labels)["role"], "main");
    assert_eq!(world.pod_writes().last().unwrap().uid, "u0");
    // Its file changed: the kubelet makes another mirror of the same name, and the verdict was the old one's.
    world.cluster.delete(WatchedKind::Pod, &p0());
    let mut pod = SimPod::new("u1", "n0", &[("app", "x")]);
    pod.mirror("other");
    world.cluster.put_pod(&p0(), pod);
    world.settle();
    assert_eq!(world.pod_probe().unwrap().uid, "other");
    assert!(!world.pod().labels.contains_key("role"));
    assert_eq!(world.status("way").probes[0].pending, 1);
}

// PPM-2, DEF-14
#[test]
fn a_label_change_alone_starts_and_ends_a_probe() {
    let mut world = World::probing(&[idle()]);
    for (app, entries) in [("y", 0), ("x", 1)] {
        world.edit(|pod| drop(pod.labels.insert("app".into(), mark(app, Owner::User))));
        assert_eq!(world.entries().len(), entries);
    }
}

// PPM-12
#[rstest]
#[case::ended(|pod: &mut SimPod| pod.phase = "Failed")]
#[case::terminating(|pod: &mut SimPod| pod.deleting = true)]
fn pods_that_end_are_probed_no_more_and_written_no_more(#[case] end: fn(&mut SimPod)) {
    let mut world = World::probing(&[idle()]);
    world.verdict("way#idle", "Succeeded", "");
    world.settle();
    world.edit(end);
    world.cluster.delete(WatchedKind::Marker, &name("a", "way"));
    world.drain();
    assert!(world.entries().is_empty());
    assert_eq!(world.pod_writes().len(), 0);
    let now = world.now();
    assert_eq!(world.index.due(&WriteTarget::PodMarks(p0()), now), None);
}

// PPM-1
#[test]
fn of_more_markers_than_a_pod_can_have_the_oldest_are_acted_on() {
    let mut world = World::bare();
    let pod = SimPod::new("u0", "n0", &[("app", "x")]);
    world.cluster.put_pod(&p0(), pod);
    let own = |number: usize| format!("m{number:03}");
    for number in 0..MARKERS_PER_POD + 2 {
        world.mark(
            &own(number),
            &[probe(&format!("l{number}"), "main", exec("/idle"))],
        );
    }
    assert_eq!(world.entries().len(), MARKERS_PER_POD);
    assert_eq!(world.ready(&own(MARKERS_PER_POD - 1)).0, "Probing");
    let surplus = own(MARKERS_PER_POD + 1);
    let (reason, message) = world.ready(&surplus);
    assert_eq!(reason, "TooManyProbes");
    let text = "pods that 64 older markers match; 0 of 1 matching pods have their verdicts";
    assert!(message.contains(text), "{message}");
    let pod = world.index.inspect_pod(&p0(), world.now()).unwrap();
    let marker = pod
        .markers
        .iter()
        .find(|one| one.name.name == surplus)
        .unwrap();
    let InspectedFit::Matches(_, probes) = &marker.fit else {
        panic!("{marker:?}");
    };
    assert_eq!(probes[0].cause, Some(Pending::TooManyProbes));

    // One that is deleted makes room for the next.
    world
        .cluster
        .delete(WatchedKind::Marker, &name("a", &own(3)));
    world.settle();
    assert_eq!(world.entries().len(), MARKERS_PER_POD);
    assert_eq!(world.ready(&own(MARKERS_PER_POD)).0, "Probing");
    assert_eq!(world.ready(&surplus).0, "TooManyProbes");
}

//! Markers that would never let the cluster come to rest.

use jiff::SignedDuration;
use leadsman_api::PodProbeMarker;
use serde_json::{Value, json};

use super::cluster::name;
use super::driver::WatchedKind;
use super::pod::SimPod;
use super::proof::marker;
use super::scene::{app_x, exec, p0, plain};
use super::world::World;
use crate::podprobe::index::markers::comparisons;

/// A probe that sets this label.
fn sets(label: &str) -> Value {
    json!({
        "name": format!("p-{label}"), "containerName": "main", "probe": exec(label),
        "markerPolicy": [{ "state": "Succeeded", "labels": { label: "yes" } }],
    })
}

/// Pods labelled `app=x` that do not have these labels.
fn without(labels: &[&str]) -> Value {
    let expressions: Vec<_> = labels
        .iter()
        .map(|key| json!({ "key": key, "operator": "NotIn", "values": ["gone"] }))
        .collect();
    json!({ "matchLabels": { "app": "x" }, "matchExpressions": expressions })
}

impl World {
    /// A marker that reads some labels and sets one, the younger the later.
    fn reads_and_sets(&mut self, own: &str, reads: &[&str], label: &str) {
        let marker = marker(&without(reads), &[sets(label)]);
        self.cluster.put_marker(&name("a", own), marker);
        self.settle();
    }

    fn with_pod() -> Self {
        let mut world = Self::bare();
        world
            .cluster
            .put_pod(&p0(), SimPod::new("u0", "n0", &[("app", "x")]));
        world.settle();
        world
    }
}

// PPM-13
#[test]
fn of_two_markers_that_feed_each_other_the_younger_is_stopped() {
    let mut world = World::with_pod();
    world.reads_and_sets("old", &["b"], "a");
    world.reads_and_sets("young", &["a"], "b");
    assert_eq!(world.entries(), ["old#p-a"]);
    assert_eq!(world.ready("old").0, "Probing");
    let (reason, message) = world.ready("young");
    assert_eq!(reason, "Cycle");
    for text in ["sets label b", "marker old", "sets label a"] {
        assert!(message.contains(text), "{message}");
    }
    assert_eq!(world.status("young").matched_pods, Some(0));
    assert_eq!(world.status("young").observed_generation, 1);

    // Nothing is written for its own sake, and another manager finds the same.
    world.writes.clear();
    world.restart([
        WatchedKind::Pod,
        WatchedKind::Marker,
        WatchedKind::NodePodProbe,
        WatchedKind::Node,
    ]);
    world.drain();
    assert!(world.writes.is_empty(), "{:?}", world.writes);

    world.cluster.delete(WatchedKind::Marker, &name("a", "old"));
    world.settle();
    assert_eq!(world.entries(), ["young#p-b"]);
    assert_eq!(world.ready("young").0, "Probing");
}

// PPM-13
#[test]
fn an_edit_ends_a_loop_and_its_marks_go_while_it_lasts() {
    let mut world = World::with_pod();
    world.reads_and_sets("young", &["a"], "b");
    world.verdict("young#p-b", "Succeeded", "");
    assert_eq!(plain(&world.pod().labels)["b"], "yes");
    // By name it would go first.
    world.reads_and_sets("also-young", &["b"], "a");
    assert_eq!(world.entries(), ["young#p-b"]);
    assert_eq!(world.ready("also-young").0, "Cycle");
    world.mark("young", &[sets("c")]);
    assert_eq!(world.entries().len(), 2);
    assert_eq!(world.ready("also-young").0, "Probing");
    assert!(!world.pod().labels.contains_key("b"));
}

#[test]
fn three_in_a_loop_stop_the_youngest_alone() {
    let mut world = World::with_pod();
    world.reads_and_sets("one", &["c"], "a");
    world.reads_and_sets("two", &["a"], "b");
    world.reads_and_sets("three", &["b"], "c");
    assert_eq!(world.entries(), ["one#p-a", "two#p-b"]);
    let message = world.ready("three").1;
    for text in ["label c", "marker one", "label a", "marker two", "label b"] {
        assert!(message.contains(text), "{message}");
    }
}

#[test]
fn feeding_one_way_is_no_loop_nor_is_feeding_other_pods() {
    let mut world = World::with_pod();
    world.reads_and_sets("one", &["c"], "a");
    world.reads_and_sets("two", &["a"], "b");
    world.reads_and_sets("three", &["a", "b"], "d");
    assert_eq!(world.entries().len(), 3);
    // It would close two loops, if it selected the same pods.
    let other = json!({ "matchLabels": { "app": "y" }, "matchExpressions": [{ "key": "d", "operator": "Exists" }] });
    world
        .cluster
        .put_marker(&name("a", "other"), marker(&other, &[sets("c")]));
    world.settle();
    for own in ["one", "two", "three", "other"] {
        assert_ne!(world.ready(own).0, "Cycle", "{own}");
    }
}

// PPM-13
#[test]
fn a_marker_that_sets_what_two_others_require_closes_their_loop_while_it_exists() {
    let mut world = World::with_pod();
    for (own, tier, reads, label) in [("one", "1", "b", "a"), ("two", "2", "a", "b")] {
        let selector = json!({
            "matchLabels": { "tier": tier },
            "matchExpressions": [{ "key": reads, "operator": "Exists" }],
        });
        let marker = marker(&selector, &[sets(label)]);
        world.cluster.put_marker(&name("a", own), marker);
        world.settle();
    }
    let reasons = |world: &World| ["one", "two"].map(|own| world.ready(own).0 == "Cycle");
    assert_eq!(reasons(&world), [false, false], "no pod has both tiers");
    world.reads_and_sets("three", &[], "tier");
    assert_eq!(reasons(&world), [false, true]);
    let three = name("a", "three");
    world.cluster.delete(WatchedKind::Marker, &three);
    world.settle();
    assert_eq!(reasons(&world), [false, false]);
}

/// A workload whose selector reads label `role`, and a marker that sets it.
struct War {
    world: World,
    pods: usize,
}

impl War {
    fn new() -> Self {
        let mut world = World::bare();
        world
            .cluster
            .put_marker(&name("a", "way"), marker(&app_x(), &[sets("role")]));
        world.settle();
        Self { world, pods: 0 }
    }

    /// The workload makes a pod. It has one at a time here, of one name.
    fn make(&mut self, controller: &str) {
        let uid = format!("u{}", self.pods);
        self.pods += 1;
        let mut pod = SimPod::new(&uid, "n0", &[("app", "x")]);
        pod.controller = Some(controller.to_owned());
        self.world.cluster.delete(WatchedKind::Pod, &p0());
        self.world.cluster.put_pod(&p0(), pod);
        self.world.settle();
    }

    /// The pod is marked, if it is probed, and then let go.
    fn release(&mut self) {
        if !self.world.entries().is_empty() {
            self.world.verdict("way#p-role", "Succeeded", "");
        }
        self.world.edit(|pod| pod.controller = None);
        self.world.settle();
    }

    fn reason(&self) -> String {
        self.world.ready("way").0
    }
}

#[test]
fn a_workload_that_makes_pods_without_end_stops_the_marker_that_takes_them_from_it() {
    let mut war = War::new();
    for _ in 0..2 {
        war.make("rs");
        war.release();
        assert_eq!(war.reason(), "Probing");
    }
    war.make("rs");
    war.release();
    let (reason, message) = war.world.ready("way");
    assert_eq!(reason, "Cycle");
    assert!(
        message.contains("label role") && message.contains("p0"),
        "{message}"
    );
    assert!(war.world.entries().is_empty());
    assert!(!war.world.pod().labels.contains_key("role"), "its marks go");

    // Its status was written and seen, and it stays so; another pod is left alone.
    war.make("rs");
    assert!(war.world.entries().is_empty());
    assert_eq!(war.reason(), "Cycle");

    war.world.mark("way", &[sets("other")]);
    assert_eq!(war.world.entries(), ["way#p-other"]);
    assert_eq!(war.reason(), "Probing");
}

#[test]
fn pods_that_are_orphaned_together_do_not_stop_a_marker() {
    let mut war = War::new();
    let names: Vec<_> = (0..5)
        .map(|number| name("a", &format!("q{number}")))
        .collect();
    for name in &names {
        let mut pod = SimPod::new(&name.name, "n0", &[("app", "x")]);
        pod.controller = Some("rs".to_owned());
        war.world.cluster.put_pod(name, pod);
    }
    war.world.settle();
    for name in &names {
        war.world.cluster.edit_pod(name, |pod| {
            pod.own_label("role", "yes");
            pod.controller = None;
        });
    }
    war.world.drain();
    assert_eq!(war.reason(), "Probing");
}

#[test]
fn pods_that_are_released_now_and_then_or_by_several_workloads_do_not_stop_a_marker() {
    let mut war = War::new();
    for _ in 0..6 {
        war.make("rs");
        war.release();
        war.world.pass(SignedDuration::from_mins(6));
    }
    assert_eq!(war.reason(), "Probing");
    for controller in ["r1", "r2", "r3", "r4"] {
        war.make(controller);
        war.release();
    }
    assert_eq!(war.reason(), "Probing");
}

// PPM-13
#[test]
fn a_search_for_loops_compares_only_markers_that_share_a_label() {
    const MARKERS: usize = 100;
    let mut world = World::with_pod();
    // The youngest feeds the one before it, that one the next, down to the oldest.
    let marks = |world: &mut World, place: usize| {
        let (reads, label) = (format!("l{place}"), format!("l{}", place - 1));
        let marker = marker(&without(&[&reads]), &[sets(&label)]);
        world
            .cluster
            .put_marker(&name("a", &format!("m{place}")), marker);
        world.drain();
    };
    (1..MARKERS).for_each(|place| marks(&mut world, place));
    let (compared, _) = world.cost_of(|world| marks(world, MARKERS));
    assert!((1..=4 * MARKERS).contains(&compared), "{compared}");
    // The whole chain closes.
    world.settle();
    world.reads_and_sets("closing", &["l0"], &format!("l{MARKERS}"));
    let (reason, message) = world.ready("closing");
    assert_eq!(reason, "Cycle");
    for text in [
        "this marker sets label l100, by which marker m100 selects",
        "by which marker m99 selects; (markers in between: 97); marker m1",
        "marker m1 sets label l0, by which this marker selects; choose other labels",
    ] {
        assert!(message.contains(text), "{message}");
    }
    assert!(!message.contains("m98"), "{message}");
}

/// A marker that reads one label and sets another, with 14 further requirements of so many values, of which one is common
/// to all markers: the expensive case for whoever compares them.
fn many_values(reads: &str, label: &str, own: usize, values: usize) -> PodProbeMarker {
    let mut expressions = vec![json!({ "key": reads, "operator": "Exists" })];
    expressions.extend((0..14).map(|key| {
        let mut values: Vec<_> = (1..values)
            .map(|value| format!("{label}{own}-{value}"))
            .collect();
        values.push("zz".to_owned());
        json!({ "key": format!("k{key}"), "operator": "In", "values": values })
    }));
    marker(&json!({ "matchExpressions": expressions }), &[sets(label)])
}

impl World {
    /// Half of the markers read what the other half sets.
    fn with_sides(markers: usize, values: usize) -> Self {
        let mut world = Self::with_pod();
        for own in 0..markers {
            world.put_side(own, values);
        }
        world
    }

    fn put_side(&mut self, own: usize, values: usize) {
        let (reads, label) = if own.is_multiple_of(2) {
            ("a", "b")
        } else {
            ("b", "a")
        };
        let marker = many_values(reads, label, own, values);
        self.cluster
            .put_marker(&name("a", &format!("m{own:03}")), marker);
        self.drain();
    }

    fn cost_of(&mut self, change: impl FnOnce(&mut Self)) -> (usize, usize) {
        let before = comparisons::counts();
        change(self);
        let after = comparisons::counts();
        (after.0 - before.0, after.1 - before.1)
    }
}

// PPM-20
#[rstest::rstest]
// Values beyond the bound are not compared at all.
#[case(100, 256, 0)]
#[case(100, 16, 100 * 14 * 32)]
#[case(400, 256, 0)]
#[case(400, 16, 256 * 14 * 32)]
fn an_edit_among_markers_that_feed_each_other_compares_only_the_edited_one(
    #[case] markers: usize,
    #[case] values: usize,
    #[case] compared_values: usize,
) {
    let mut world = World::with_sides(markers, values);
    assert_eq!(world.ready("m000").0, "Probing");
    assert_eq!(world.ready("m001").0, "Cycle");
    let last = world.ready(&format!("m{:03}", markers - 1)).1;
    let is_surplus = last.contains("more than 128 markers of this namespace");
    assert_eq!(is_surplus, markers > 128, "{last}");

    let (pairs, compared) = world.cost_of(|world| world.put_side(0, values - 1));
    assert_eq!(pairs > 0, values == 16);
    assert!(pairs <= 256, "{pairs}");
    assert!(compared <= compared_values, "{compared}");
    // Nothing that is read of the marker has changed.
    let mut edited = many_values("b", "a", 1, values);
    edited.spec.probes[0].container_name = "another".to_owned();
    let (pairs, compared) = world.cost_of(|world| {
        world.cluster.put_marker(&name("a", "m001"), edited);
        world.drain();
    });
    assert_eq!((pairs, compared), (0, 0));

    // A start compares each pair of those that are compared at all.
    let kinds = [
        WatchedKind::Marker,
        WatchedKind::Pod,
        WatchedKind::Node,
        WatchedKind::NodePodProbe,
    ];
    let (pairs, compared) = world.cost_of(|world| world.restart(kinds));
    assert!(pairs <= 128 * 128, "{pairs}");
    assert!(compared <= pairs * 14 * 32, "{compared}");
}

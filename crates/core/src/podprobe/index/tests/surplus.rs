//! Markers beyond those of which a pod has probes, and beyond those that are acted on in a namespace.

use super::cluster::name;
use super::driver::WatchedKind;
use super::pod::{Owner, SimPod, mark};
use super::proof::marker;
use super::scene::{app_x, exec, p0, probe};
use super::world::World;
use crate::podprobe::index::{Config, InspectedFit};
use crate::podprobe::marker::{MARKERS_PER_NAMESPACE, MARKERS_PER_POD};
use crate::podprobe::status::Trouble;

fn numbered(own: usize) -> String {
    format!("m{own:04}")
}

impl World {
    /// As many pods of namespace `a` as are asked for, each of which all of the markers match. Nothing is written.
    fn crowded(config: Config, markers: usize, pods: usize) -> Self {
        let mut world = Self::with(config);
        for own in 0..markers {
            world.put_numbered(own, "/idle");
        }
        world.see_all();
        for own in 0..pods {
            let pod = SimPod::new(&format!("u{own}"), "n0", &[("app", "x")]);
            world.cluster.put_pod(&name("a", &format!("p{own}")), pod);
        }
        world.see_all();
        world
    }

    /// Lets the manager see all events, and follow what they lead to.
    fn see_all(&mut self) {
        while self.deliver() || self.take_turn() {}
    }

    fn put_numbered(&mut self, own: usize, command: &str) {
        let probes = [probe(&format!("l{own}"), "main", exec(command))];
        let marker = marker(&app_x(), &probes);
        self.cluster.put_marker(&name("a", &numbered(own)), marker);
    }

    fn delete_numbered(&mut self, own: usize) {
        self.cluster
            .delete(WatchedKind::Marker, &name("a", &numbered(own)));
        self.drain();
    }

    fn matched(&self, own: usize) -> Option<i64> {
        self.status(&numbered(own)).matched_pods
    }
}

// PPM-20
#[test]
fn what_is_kept_and_done_of_markers_for_one_pod_is_bounded() {
    const PODS: usize = 50;
    let mut world = World::crowded(Config::default(), 2_000, PODS);
    let (contributions, names) = world.index.pods.kept_contributions();
    assert_eq!(contributions, PODS * MARKERS_PER_POD);
    assert_eq!(names, PODS * (MARKERS_PER_NAMESPACE - MARKERS_PER_POD));

    world.dirty.clear();
    world.cluster.delete(WatchedKind::Pod, &p0());
    world.see_all();
    // And the object of the node.
    assert_eq!(world.dirty.len(), MARKERS_PER_NAMESPACE + 1);
}

// PPM-1
#[test]
fn a_marker_beyond_those_of_its_pods_counts_them_without_naming_them() {
    let mut world = World::crowded(Config::default(), MARKERS_PER_POD + 2, 3);
    world.drain();
    let last = MARKERS_PER_POD + 1;
    let (reason, message) = world.ready(&numbered(last));
    assert_eq!(reason, "TooManyProbes");
    let text = "pods that 64 older markers match; 0 of 3 matching pods have their verdicts; 3 pending: 3 TooManyProbes";
    assert!(message.ends_with(text), "{message}");
    assert_eq!(world.matched(last), Some(3));
    assert_eq!(world.status(&numbered(last)).probes[0].pending, 3);

    world.cluster.delete(WatchedKind::Pod, &name("a", "p1"));
    world.drain();
    assert_eq!(world.matched(last), Some(2));
    world.edit(|pod| drop(pod.labels.insert("app".into(), mark("y", Owner::User))));
    assert_eq!(world.matched(last), Some(1));
    // An edit of its own.
    world.put_numbered(last, "/other");
    world.drain();
    assert_eq!(world.matched(last), Some(1));

    // Of two that are deleted, each makes room for the next one.
    world.delete_numbered(0);
    let first = world.ready(&numbered(MARKERS_PER_POD));
    assert_eq!(
        (first.0.as_str(), world.matched(MARKERS_PER_POD)),
        ("Probing", Some(1))
    );
    assert_eq!(world.ready(&numbered(last)).0, "TooManyProbes");
    world.delete_numbered(1);
    assert_eq!(world.ready(&numbered(last)).0, "Probing");
    assert_eq!(world.matched(last), Some(1));
}

// PPM-1
#[test]
fn of_more_markers_than_a_namespace_can_have_the_oldest_are_acted_on() {
    let config = Config {
        markers_per_namespace: 2,
        ..Config::default()
    };
    let mut world = World::crowded(config, 4, 1);
    world.drain();
    assert_eq!(world.entries(), ["m0000#l0", "m0001#l1"]);
    let (reason, message) = world.ready("m0003");
    assert_eq!(reason, "TooManyProbes");
    let text = "not acted on: 2 older markers of this namespace are";
    assert!(message.starts_with(text), "{message}");
    let pod = world.index.inspect_pod(&p0(), world.now()).unwrap();
    let mut markers = pod.markers.iter();
    let last = markers.find(|one| one.name.name == "m0003").unwrap();
    let is_told = matches!(last.fit, InspectedFit::Stopped(_, Trouble::TooManyProbes, told) if told == message);
    assert!(is_told, "{last:?}");

    world.put_numbered(2, "/other");
    world.drain();
    assert_eq!(world.entries(), ["m0000#l0", "m0001#l1"]);
    let status = world.status("m0002");
    assert_eq!(
        (status.observed_generation, status.matched_pods),
        (2, Some(0))
    );
    world.delete_numbered(0);
    assert_eq!(world.entries(), ["m0001#l1", "m0002#l2"]);
    assert_eq!(world.ready("m0002").0, "Probing");
    assert_eq!(world.ready("m0003").0, "TooManyProbes");
}

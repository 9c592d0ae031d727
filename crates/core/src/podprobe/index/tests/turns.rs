//! Whose pods are planned when one event concerns many.

use serde_json::json;

use super::cluster::name;
use super::pod::SimPod;
use super::proof::marker;
use super::scene::{app_x, exec, idle, p0, probe};
use super::world::World;
use crate::podprobe::event::{Event, WriteTarget};
use crate::podprobe::index::turns::POD;

// PPM-20
#[test]
fn an_edit_that_concerns_many_pods_leaves_others_their_turn() {
    const PODS: usize = 40;
    let many = name("b", "many");
    let mut world = World::bare();
    world
        .cluster
        .put_pod(&p0(), SimPod::new("u0", "n0", &[("app", "x")]));
    world.mark("way", &[idle()]);
    for own in 0..PODS {
        let pod = SimPod::new(&format!("b{own}"), "n0", &[("app", "x")]);
        world.cluster.put_pod(&name("b", &format!("p{own}")), pod);
    }
    world.mark_in("b", "many", &[idle()]);

    world.index.turns.set_size(2 * POD);
    let other = probe("other", "main", exec("/other"));
    let edited = marker(&app_x(), &[idle(), other]);
    world.cluster.put_marker(&many, edited);
    let before = world.index.pods.plans;
    world.deliver();
    assert!(world.index.pods.plans - before <= 4, "the rest waits");
    let node = WriteTarget::NodePodProbe("n0".to_owned());
    assert!(
        !world.dirty.contains(&node),
        "it would be written again after the last of them"
    );
    assert!(
        !world.dirty.contains(&WriteTarget::MarkerStatus(many)),
        "its status would say what is not true of all pods yet"
    );
    // A verdict elsewhere does not.
    world.report("way#idle", "Succeeded", "", |_| {});
    world.deliver();
    assert!(world.dirty.contains(&WriteTarget::PodMarks(p0())));
    let before = world.index.pods.plans;
    world.observe(Event::Deadline);
    assert!((1..=4).contains(&(world.index.pods.plans - before)));

    world.drain();
    let object = &world.cluster.node_pod_probes["n0"];
    let pods = object.spec.pod_probes.iter();
    let both = pods.filter(|pod| pod.namespace == "b" && pod.probes.len() == 2);
    assert_eq!(both.count(), PODS);
    let status = world.cluster.markers[&name("b", "many")].status.as_ref();
    assert_eq!(status.unwrap().observed_generation, 2);
}

// PPM-20
#[test]
fn after_pods_that_waited_only_markers_that_were_affected_are_compared() {
    const OTHERS: usize = 100;
    let mut world = World::bare();
    for own in 0..10 {
        let pod = SimPod::new(&format!("u{own}"), "n0", &[("app", "x")]);
        world.cluster.put_pod(&name("b", &format!("p{own}")), pod);
    }
    let nothing = json!({ "matchLabels": { "app": "nothing" } });
    for own in 0..OTHERS {
        let other = marker(&nothing, &[idle()]);
        world
            .cluster
            .put_marker(&name("b", &format!("o{own}")), other);
    }
    world.mark_in("b", "many", &[idle()]);
    world.index.turns.set_size(POD);
    let edited = marker(&app_x(), &[idle(), probe("other", "main", exec("/other"))]);
    world.cluster.put_marker(&name("b", "many"), edited);
    let before = world.index.markers.comparisons;
    world.deliver();
    while world.take_turn() {}
    let compared = world.index.markers.comparisons - before;
    assert!((1..=3).contains(&compared), "{compared}");
}

/// Otherwise nodes that are last in the order would never be written while a namespace keeps pods waiting.
// PPM-20
#[test]
fn an_object_whose_turn_to_be_sent_has_come_waits_for_no_pods() {
    let mut world = World::bare();
    for own in ["p0", "p1", "p2", "p3"] {
        let pod = SimPod::new(own, "n0", &[("app", "x")]);
        world.cluster.put_pod(&name("b", own), pod);
    }
    world.mark_in("b", "many", &[idle()]);
    world.index.turns.set_size(POD);
    let other = probe("other", "main", exec("/other"));
    let edited = marker(&app_x(), &[idle(), other]);
    world.cluster.put_marker(&name("b", "many"), edited);
    world.deliver();
    let node = WriteTarget::NodePodProbe("n0".to_owned());
    assert!(!world.dirty.contains(&node));
    assert!(world.index.due(&node, world.now()).is_some());
}

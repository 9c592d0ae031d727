//! Whose pods are planned when one event concerns many.

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
    let node = &world.cluster.node_pod_probes["n0"];
    let pods = node.spec.pod_probes.iter();
    let both = pods.filter(|pod| pod.namespace == "b" && pod.probes.len() == 2);
    assert_eq!(both.count(), PODS);
    let status = world.cluster.markers[&name("b", "many")].status.as_ref();
    assert_eq!(status.unwrap().observed_generation, 2);
}

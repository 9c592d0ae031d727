//! A node whose object is full: who is in, who is refused, and what one namespace leaves for others.

use super::cluster::name;
use super::driver::{WatchedKind, Write, WriteTarget};
use super::pod::SimPod;
use super::scene::{exec, idle, probe};
use super::world::World;
use crate::cluster::Refusal;
use crate::podprobe::index::Config;

/// A node of 1,050 bytes, of which a pod with one entry takes about 295.
fn small_node() -> World {
    World::with(Config {
        node_bytes: 1050,
        ..Config::default()
    })
}

pub(super) fn put_pod(world: &mut World, namespace: &str, own: &str) {
    let uid = format!("{namespace}-{own}");
    let pod = SimPod::new(&uid, "n0", &[("app", "x")]);
    world.cluster.put_pod(&name(namespace, own), pod);
    world.drain();
}

fn pods_of_n0(world: &World) -> Vec<String> {
    let pods = &world.cluster.node_pod_probes["n0"].spec.pod_probes;
    pods.iter()
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect()
}

// PPM-13
#[test]
fn a_node_without_room_refuses_the_surplus_and_says_so() {
    let mut world = small_node();
    world.mark("way", &[idle()]);
    for own in ["p3", "p2", "p1"] {
        put_pod(&mut world, "a", own);
    }
    assert_eq!(pods_of_n0(&world), ["a/p2", "a/p3"]);
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "TooManyProbes");
    assert!(
        message.contains("p1") && !message.contains("p2"),
        "{message}"
    );
    world.cluster.delete(WatchedKind::Pod, &name("a", "p3"));
    world.drain();
    assert_eq!(pods_of_n0(&world), ["a/p1", "a/p2"]);
    assert_eq!(world.ready("way").0, "Probing");
}

// PPM-13
#[test]
fn who_is_in_a_full_node_stays_in_also_after_a_restart() {
    let mut world = small_node();
    for namespace in ["a", "z"] {
        world.mark_in(namespace, "way", &[idle()]);
    }
    put_pod(&mut world, "z", "late");
    put_pod(&mut world, "z", "later");
    // A new pod takes the rest that is kept for others, and another one nobody's place.
    put_pod(&mut world, "a", "new");
    put_pod(&mut world, "a", "newer");
    let names = ["a/new", "z/late", "z/later"];
    assert_eq!(pods_of_n0(&world), names);
    world.restart([
        WatchedKind::NodePodProbe,
        WatchedKind::Node,
        WatchedKind::Marker,
        WatchedKind::Pod,
    ]);
    world.settle();
    assert_eq!(pods_of_n0(&world), names);
}

// PPM-13
#[test]
fn entries_that_grow_in_a_full_node_throw_nobody_out() {
    let mut world = small_node();
    for namespace in ["a", "z"] {
        world.mark_in(namespace, "way", &[idle()]);
    }
    put_pod(&mut world, "a", "p");
    put_pod(&mut world, "z", "p");
    assert_eq!(pods_of_n0(&world), ["a/p", "z/p"]);
    world.mark_in("a", "way", &[probe("p", "main", exec(&"x".repeat(900)))]);
    assert_eq!(pods_of_n0(&world), ["z/p"]);
    world.mark_in("a", "way", &[idle()]);
    assert_eq!(pods_of_n0(&world), ["a/p", "z/p"]);
}

// PPM-13
#[test]
fn one_namespace_leaves_room_for_those_that_come_later() {
    let mut world = small_node();
    for namespace in ["a", "z"] {
        world.mark_in(namespace, "way", &[idle()]);
    }
    for own in ["p0", "p1", "p2", "p3"] {
        put_pod(&mut world, "a", own);
    }
    assert_eq!(pods_of_n0(&world), ["a/p0", "a/p1"]);
    put_pod(&mut world, "z", "p");
    assert_eq!(pods_of_n0(&world), ["a/p0", "a/p1", "z/p"]);
}

/// The API server stores `&` as `\u0026`.
// PPM-13
#[test]
fn a_command_takes_the_room_that_the_api_server_stores_it_with() {
    let mut world = small_node();
    for namespace in ["a", "z"] {
        world.mark_in(namespace, "way", &[idle()]);
    }
    put_pod(&mut world, "z", "p");
    // 420 bytes as they are sent, 920 as they are stored.
    world.mark_in("a", "way", &[probe("p", "main", exec(&"&".repeat(100)))]);
    put_pod(&mut world, "a", "p");
    assert_eq!(pods_of_n0(&world), ["z/p"]);
    assert_eq!(world.ready("way").0, "TooManyProbes");
}

/// Its sandbox is made anew, with a longer address, when its namespace has more than its share.
// PPM-13
#[test]
fn a_pod_that_grows_and_fits_stays_until_another_namespace_wants_the_room() {
    let mut world = World::with(Config {
        node_bytes: 1300,
        ..Config::default()
    });
    for namespace in ["a", "m", "z"] {
        world.mark_in(namespace, "way", &[idle()]);
    }
    for (namespace, own) in [("a", "p0"), ("a", "p1"), ("a", "p2"), ("z", "p")] {
        put_pod(&mut world, namespace, own);
    }
    let all = ["a/p0", "a/p1", "a/p2", "z/p"];
    assert_eq!(pods_of_n0(&world), all);
    for ip in ["10.0.0.10", "10.0.0.100"] {
        let grown = name("a", "p1");
        world.cluster.edit_pod(&grown, |pod| pod.ip = ip.to_owned());
        world.drain();
        assert_eq!(pods_of_n0(&world), all, "{ip}");
        assert_eq!(
            world.cluster.node_pod_probes["n0"].spec.pod_probes[1].ip,
            ip
        );
    }
    put_pod(&mut world, "m", "p");
    assert_eq!(pods_of_n0(&world), ["a/p0", "a/p2", "m/p", "z/p"]);
    assert_eq!(world.ready("way").0, "TooManyProbes");
}

/// Entries are made small, and then as large as the node.
// PPM-13
#[test]
fn entries_that_grow_leave_room_for_those_that_come_later() {
    let mut world = small_node();
    for namespace in ["a", "z"] {
        world.mark_in(namespace, "way", &[idle()]);
    }
    for own in ["p0", "p1"] {
        put_pod(&mut world, "a", own);
    }
    world.mark_in("a", "way", &[probe("p", "main", exec(&"x".repeat(180)))]);
    assert_eq!(pods_of_n0(&world), ["a/p0", "a/p1"]);
    put_pod(&mut world, "z", "p");
    assert_eq!(pods_of_n0(&world), ["a/p0", "z/p"]);
}

/// etcd may be set to take less, and another client may have made the object larger.
// PPM-13
#[test]
fn an_object_that_is_too_large_for_the_api_server_is_written_without_the_largest_namespace() {
    let mut world = World::with(Config {
        node_bytes: 4_000,
        ..Config::default()
    });
    for namespace in ["a", "z"] {
        world.mark_in(namespace, "way", &[idle()]);
    }
    put_pod(&mut world, "z", "p");
    for own in ["p0", "p1", "p2", "p3", "p4"] {
        let pod = SimPod::new(own, "n0", &[("app", "x")]);
        world.cluster.put_pod(&name("a", own), pod);
    }
    let node = WriteTarget::NodePodProbe("n0".to_owned());
    while world.deliver() {}
    let mut sizes = Vec::new();
    for _ in 0..2 {
        let refusal = Refusal::TooLarge("etcdserver: request is too large".to_owned());
        let Write::ReplaceNodePodProbe(sent) = world.refuse_due(&node, refusal) else {
            panic!("a PUT");
        };
        sizes.push(sent.spec.pod_probes.len());
    }
    assert_eq!(sizes, [6, 4]);
    world.drain();
    assert_eq!(pods_of_n0(&world), ["a/p0", "a/p1", "z/p"]);
    assert_eq!(world.ready("way").0, "TooManyProbes");
    // What was in the way may have passed.
    world.pass(jiff::SignedDuration::from_mins(31));
    world.drain();
    assert_eq!(pods_of_n0(&world).len(), 6);
}

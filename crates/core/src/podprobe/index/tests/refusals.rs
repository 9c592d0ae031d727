//! Writes that the API server refuses: how long they wait, and where the refusal is shown.

use jiff::SignedDuration;

use super::cluster::name;
use super::driver::{Event, WriteTarget};
use super::scene::{idle, p0};
use super::world::World;
use crate::cluster::Refusal;

// PPM-8, PPM-13
#[test]
fn a_refused_write_is_left_alone_until_another_is_due() {
    let mut world = World::probing(&[idle()]);
    world.cluster.edit_node_pod_probe("n0", |_| {});
    let object = WriteTarget::PodMarks(p0());
    world.verdict("way#idle", "Succeeded", "");
    world.settle();
    world
        .cluster
        .edit_pod(&p0(), |pod| drop(pod.labels.remove("role")));
    while world.deliver() {}
    let now = world.now();
    world.refuse(&object, "too long");
    assert_eq!(world.index.due(&object, now), None);
    world.drain();
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "InvalidSpec");
    assert!(message.contains("p0: too long"), "{message}");
    world.edit(|pod| pod.ip = "10.0.0.9".to_owned());
    assert!(!world.pod().labels.contains_key("role"));
    assert_eq!(world.ready("way").0, "InvalidSpec");
    world.verdict("way#idle", "Failed", "");
    assert_eq!(world.pod().labels["idle"].value, "false");
    assert_eq!(world.ready("way").0, "Probing");
}

/// What stood in the way may have been a webhook, a quota or the store of the API server: no watch shows its end.
#[test]
fn a_refused_write_is_tried_again_after_minutes() {
    let mut world = World::probing(&[idle()]);
    let pod = WriteTarget::PodMarks(p0());
    let node = WriteTarget::NodePodProbe("n0".to_owned());
    let status = WriteTarget::MarkerStatus(name("a", "way"));
    world.verdict("way#idle", "Succeeded", "");
    world.settle();
    world
        .cluster
        .edit_pod(&p0(), |pod| drop(pod.labels.remove("role")));
    world
        .cluster
        .edit_node_pod_probe("n0", |object| object.spec.pod_probes.clear());
    while world.deliver() {}
    for object in [&pod, &node, &status] {
        world.refuse(object, "no");
    }
    world.drain();
    assert!(!world.pod().labels.contains_key("role"));
    assert!(world.entries().is_empty());
    world.pass(SignedDuration::from_mins(5));
    world.drain();
    assert_eq!(world.pod().labels["role"].value, "main");
    assert_eq!(world.entries(), ["way#idle"]);
    assert_eq!(world.ready("way").0, "Probing");
}

#[test]
fn a_refusal_of_a_known_object_is_remembered_and_its_message_is_bounded() {
    let mut world = World::probing(&[idle()]);
    let gone = WriteTarget::PodMarks(name("a", "gone"));
    let refusal = Refusal::Forbidden("no".to_owned());
    world.observe(Event::Refused(gone, refusal));
    world.drain();
    assert_eq!(world.ready("way").0, "Probing");
    world.verdict("way#idle", "Succeeded", "");
    world
        .cluster
        .edit_pod(&p0(), |pod| drop(pod.labels.remove("role")));
    while world.deliver() {}
    world.refuse(&WriteTarget::PodMarks(p0()), &"é".repeat(100_000));
    world.drain();
    let (reason, message) = world.ready("way");
    assert_eq!(
        (reason.as_str(), message.len() <= 4096),
        ("InvalidSpec", true)
    );
}

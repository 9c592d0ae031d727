//! Pods that a set selects and that were created without it.

use super::*;

// SDF-2, SDF-4
#[test]
fn pods_that_no_webhook_saw_are_counted_and_named() {
    let mut world = world(1);
    world.create_pod(1, false);
    world.settle();
    let (status, reason, message) = world.reason("log");
    assert_eq!((status, reason), ("False", "NotInjected"));
    assert!(
        message
            .starts_with("1 pod without its containers that it selects: shop/web-01 was created"),
        "{message}"
    );
    assert_eq!(world.events().last().unwrap().0, "NotInjected");
    assert_eq!((world.sums().counts.matched, world.sums().lacking), (1, 1));
    let lack = world.inspect().inspect_pod(&pod_name(1))[0].lack.clone();
    assert_eq!(lack, Some(Lack::Missed));
    // A restart knows it too, and has nothing to write.
    world.writes.clear();
    world.restart();
    world.settle();
    assert_eq!(world.writes, []);
    world.delete(&pod_key(1));
    world.settle();
    assert_eq!(world.reason("log").1, "InForce");
}

// SDF-2, SDF-14
#[test]
fn a_pod_that_has_the_annotations_of_another_and_none_of_the_containers_was_missed() {
    let mut world = world(1);
    let mut copy = world.objects[&pod_key(0)].clone();
    let containers = copy["spec"]["containers"].as_array_mut().unwrap();
    containers.retain(|container| container["name"] == "app");
    world.create(&pod_key(1), copy);
    world.settle();
    assert_eq!(world.counts("log"), [1, 1, 1]);
    let (_, reason, message) = world.reason("log");
    assert_eq!(reason, "NotInjected");
    assert!(
        message.contains("1 pod ") && message.contains("shop/web-01"),
        "{message}"
    );
    let inspection = world.inspect();
    let sets = inspection.inspect_pod(&pod_name(1));
    assert_eq!(sets.len(), 1);
    assert_eq!(sets[0].lack, Some(Lack::Missed));
    // One that got other containers than the set has now was not.
    world.edit("log", "/spec/containers/0/name", &json!("other-side"));
    world.delete(&pod_key(1));
    world.settle();
    assert_eq!(world.counts("log"), [0, 0, 0]);
    assert_eq!(world.reason("log").1, "InForce");
}

// SDF-2, SCS-5
#[test]
fn pods_from_before_the_set_are_not_missed() {
    let mut world = World::new();
    world.create_pod(0, false);
    world.pass(10);
    world.create(&set_key("log"), spec("log"));
    world.settle();
    assert_eq!(world.reason("log").1, "InForce");
    // And neither are those that come while injection is paused.
    world.pass(10);
    world.edit("log", "/spec/injectionStrategy", &json!({"paused": true}));
    world.create_pod(1, false);
    world.settle();
    assert_eq!(
        world.reason("log"),
        (
            "True",
            "InForce",
            "injection is paused: new pods get nothing"
        )
    );
    world.pass(10);
    world.edit("log", "/spec/injectionStrategy", &json!({"paused": false}));
    world.settle();
    assert_eq!(world.reason("log").1, "InForce");
}

// SDF-2, SCS-5
#[test]
fn pods_are_missed_as_long_as_the_set_selects_them_and_since_it_was_in_force() {
    let mut world = world(1);
    world.pass(10);
    world.create_pod(1, false);
    world.settle();
    let lacking = |world: &World| world.lacking("log").len();
    assert_eq!(lacking(&world), 1);
    let since = world.status("log")["inForce"]["since"].clone();
    let created = world.objects[&pod_key(1)]["metadata"]["creationTimestamp"].clone();
    // Another leader has found it in force later, or when the pod was created.
    world.pass(10);
    let later = json!(world.now().wall.to_string());
    for (now, missed) in [(later, 0), (created, 0), (since, 1)] {
        world.change(&set_key("log"), |set| {
            set["status"]["inForce"]["since"] = now;
        });
        world.deliver_all();
        assert_eq!(lacking(&world), missed);
    }
    let selector = "/spec/selector/matchLabels/app";
    // This one was there before the set selected it.
    world.create_pod(2, false);
    world.change(&pod_key(2), |pod| {
        pod["metadata"]["labels"]["app"] = json!("other");
    });
    world.settle();
    world.edit("log", selector, &json!("other"));
    world.settle();
    assert_eq!(lacking(&world), 0);
}

// SDF-2, SDF-19
#[test]
fn a_pod_that_an_older_set_would_not_have_got_either_was_missed() {
    let mut world = world(1);
    world.pass(10);
    let mut other = spec("mesh");
    other["spec"]["containers"][0]["name"] = json!("log-side");
    world.create(&set_key("mesh"), other);
    world.settle();
    world.pass(10);
    world.create_pod(1, true);
    world.edit("log", "/spec/injectionStrategy", &json!({"paused": true}));
    world.settle();
    // These gave way to the older one when they were created.
    let lacking = |world: &World| world.lacking("mesh").len();
    assert_eq!(lacking(&world), 0);
    world.pass(10);
    world.create_pod(2, false);
    world.settle();
    assert_eq!(lacking(&world), 1);
    world.create_pod(3, true);
    world.settle();
    assert_eq!((lacking(&world), world.counts("mesh")), (1, [1, 1, 1]));
}

// SCS-5, SCS-6
#[test]
fn a_static_pod_that_was_copied_from_an_injected_one_belongs_to_no_set() {
    let mut world = world(1);
    let mut copy = world.objects[&pod_key(0)].clone();
    copy["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("hash");
    world.create(&pod_key(1), copy);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    assert_eq!((world.image(0), world.image(1)), ("i:2", "i:1"));
    assert_eq!(world.counts("log"), [1, 1, 1]);
    assert_eq!(world.reason("log").1, "InForce");
}

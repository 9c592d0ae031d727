//! Upgrades: budgets, order, refused and unanswered writes, hot pairs.

use super::*;

// SCS-46, SCS-50, SCS-53, SDF-42, SDF-44, SDF-50
#[test]
fn pods_are_upgraded_one_after_the_other_by_one_write_each() {
    let mut world = world(3);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    assert!(world.send(0));
    while world.send(0) {}
    let pods = world.in_flight.iter().filter(|one| one.is(&UPGRADE_POD));
    assert_eq!(pods.count(), 1);
    world.settle();
    assert_eq!(world.upgraded().len(), 3);
    assert_eq!(world.counts("log"), [3, 3, 3]);
    // The condition is written where it says something.
    assert_eq!(world.condition(0), None);
}

// SDF-34, SDF-42
#[test]
fn a_pod_that_vanishes_in_mid_upgrade_frees_its_place() {
    let mut world = world(2);
    world.edit("log", "/spec/containers/0/image", &json!(BAD));
    let first = [0, 1]
        .into_iter()
        .find(|pod| world.take(*pod).is_some())
        .unwrap();
    let other = 1 - first;
    assert_eq!(world.take(other), None);
    world.delete(&pod_key(first));
    world.deliver_all();
    assert!(world.take(other).is_some());
}

// SDF-58
#[test]
fn the_next_pod_waits_until_the_one_before_has_been_ready_for_as_long_as_the_set_wants() {
    let mut world = world(2);
    world.edit(
        "log",
        "/metadata/annotations",
        &json!({MIN_READY_SECONDS_ANNOTATION: "10"}),
    );
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    let first = (0..2).find(|pod| world.image(*pod) == "i:2").unwrap();
    assert_eq!(
        (world.upgraded().len(), world.counts("log")),
        (1, [2, 1, 2])
    );
    world.pass(9);
    world.settle();
    assert_eq!(world.upgraded().len(), 1);
    // It fails in time: no other pod gets the image.
    world.gate(first, false);
    world.pass(60);
    world.settle();
    assert_eq!(world.upgraded().len(), 1);
    // Ready again, it has to stay so.
    world.gate(first, true);
    world.pass(9);
    world.settle();
    assert_eq!(world.upgraded().len(), 1);
    // Nothing happens then but that time passes.
    world.pass(2);
    world.settle();
    assert_eq!(
        (world.upgraded().len(), world.counts("log")),
        (2, [2, 2, 2])
    );
}

fn wait_for_readiness(world: &mut World) {
    world.edit(
        "log",
        "/metadata/annotations",
        &json!({MIN_READY_SECONDS_ANNOTATION: "10"}),
    );
}

// SDF-58
#[test]
fn new_pods_that_are_created_all_the_time_hold_up_no_upgrade() {
    let mut world = world(1);
    wait_for_readiness(&mut world);
    world.edit("log", "/spec/updateStrategy/paused", &json!(true));
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    world.create_pod(1, true);
    world.settle();
    assert_eq!((world.image(0), world.image(1)), ("i:1", "i:2"));
    world.edit("log", "/spec/updateStrategy/paused", &json!(false));
    world.settle();
    assert_eq!(world.image(0), "i:2");
}

// SDF-58, SDF-37
#[test]
fn an_image_is_mended_before_it_has_been_ready_for_as_long_as_the_set_wants() {
    let mut world = world(2);
    wait_for_readiness(&mut world);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    let first = (0..2).find(|pod| world.image(*pod) == "i:2").unwrap();
    world.edit("log", "/spec/containers/0/image", &json!("i:3"));
    world.settle();
    assert_eq!((world.image(first), world.image(1 - first)), ("i:3", "i:1"));
}

// SDF-58
#[test]
fn a_time_that_is_to_come_holds_up_no_upgrade() {
    let mut world = world(2);
    wait_for_readiness(&mut world);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    let first = (0..2).find(|pod| world.image(*pod) == "i:2").unwrap();
    // The clock of the pod's node is ahead.
    world.change(&pod_key(first), |pod| {
        pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] =
            json!("9999-01-01T00:00:00Z");
    });
    world.deliver_all();
    world.pass(11);
    world.settle();
    assert_eq!(world.image(1 - first), "i:2");
}

// SCS-50, SCS-55, SDF-32
#[test]
fn a_container_that_only_crashed_keeps_the_place_of_its_pod_until_its_upgrade_must_be_done() {
    let mut world = world(2);
    for pod in 0..2 {
        // Left by a later kubelet, before the node was rolled back to one that does not write it.
        world.objects.get_mut(&pod_key(pod)).unwrap()["status"]["observedGeneration"] = json!(1);
    }
    world.are_kubelets_late = true;
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    let first = (0..2).find(|pod| world.take(*pod).is_some()).unwrap();
    world.lose_answer(first);
    world.edit("log", "/spec/updateStrategy/paused", &json!(false));
    while world.image(first) != "i:2" {
        world.send(0);
        while !world.in_flight.is_empty() {
            world.carry_out(0, true);
        }
    }
    world.crash(&pod_key(first));
    world.deliver_all();
    assert_eq!(world.take(1 - first), None);
    // Longer than the containers may take to end, it is another name of the image.
    world.dirty.clear();
    world.pass(39);
    assert_eq!(world.take(1 - first), None);
    world.pass(2);
    assert!(world.dirty.contains(&upgrade_of(1 - first)));
    assert!(world.take(1 - first).is_some());
}

// SCS-57, SDF-35, SDF-55
#[test]
fn a_pod_whose_write_is_refused_holds_up_no_other() {
    let mut world = world(3);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    let first = (0..3).find(|pod| world.take(*pod).is_some()).unwrap();
    let refusal = Refusal::Forbidden("policy \"p\" forbids it".to_owned());
    let now = world.now();
    world
        .reconciler
        .note_refused(&upgrade_of(first), refusal, now);
    world.pass(0);
    world.settle();
    assert_eq!(world.counts("log"), [3, 2, 3]);
    let (status, reason, message) = world.reason("log");
    assert_eq!((status, reason), ("False", "WriteRefused"));
    assert_eq!(world.sums().refused, 1);
    assert!(
        message.contains("forbids it") && message.contains(&format!("shop/web-0{first}")),
        "{message}"
    );
    assert_eq!(world.take(first), None);
    world.pass(301);
    world.settle();
    assert_eq!(world.counts("log"), [3, 3, 3]);
    assert_eq!(world.reason("log").1, "InForce");
}

// SDF-34
/// The watch does not show that it is gone, as where a proxy answers so.
#[test]
fn a_pod_that_is_said_to_be_gone_holds_up_no_other() {
    let mut world = world(3);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    let first = (0..3).find(|pod| world.take(*pod).is_some()).unwrap();
    let now = world.now();
    world.reconciler.note_gone(&upgrade_of(first), now);
    world.pass(0);
    assert!(world.take(first).is_some(), "it is asked again at once");
    world.reconciler.note_gone(&upgrade_of(first), now);
    assert_eq!(world.take(first), None);
    world.pass(0);
    world.settle();
    assert_eq!(world.counts("log"), [3, 2, 3]);
    world.pass(1);
    world.settle();
    assert_eq!(world.counts("log"), [3, 3, 3]);
}

// SDF-35
#[test]
fn the_writes_of_two_sets_that_one_pod_is_refused_are_not_repeated_in_turns() {
    let mut world = world(0);
    world.create(&set_key("mesh"), spec("mesh"));
    world.settle();
    world.pass(10);
    world.create_pod(0, true);
    world.settle();
    for set in ["log", "mesh"] {
        world.edit(set, "/spec/containers/0/image", &json!("i:2"));
    }
    let mut refused = 0;
    while world.send(0) {
        let is_pod = |one: &Sent| one.is(&UPGRADE_POD);
        while let Some(place) = world.in_flight.iter().position(is_pod) {
            refused += 1;
            assert!(refused <= 2, "a refused write is repeated at once");
            world.refuse(place);
        }
        while !world.in_flight.is_empty() {
            world.carry_out(0, true);
        }
    }
    for set in ["log", "mesh"] {
        assert_eq!(world.reason(set).1, "WriteRefused");
    }
    world.pass(301);
    world.settle();
    assert_eq!(
        (world.counts("log"), world.counts("mesh")),
        ([1, 1, 1], [1, 1, 1])
    );
}

// SDF-34
#[test]
fn an_upgrade_that_is_undone_each_time_rests_longer_and_holds_up_no_other() {
    let mut world = world(2);
    let order = json!({"orderPriority": [{"orderedKey": "rank"}]});
    let strategy = json!({"maxUnavailable": 1, "priorityStrategy": order});
    world.edit("log", "/spec/updateStrategy", &strategy);
    world.rank(0, "r-5");
    world.rank(1, "r-4");
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    // An admission webhook puts the pod back as it was: the API server stores nothing.
    for wait in [0, 0, 1, 2, 4] {
        world.pass(wait);
        assert!(world.take(0).is_some(), "{wait}");
        world.answer(&upgrade_of(0), Some(&pod_key(0)));
    }
    assert_eq!(world.take(0), None);
    world.settle();
    assert_eq!((world.image(0), world.image(1)), ("i:1", "i:2"));
    assert_eq!(world.reason("log").1, "WriteRefused");
    world.pass(301);
    world.settle();
    assert_eq!(world.image(0), "i:2");
    assert_eq!(world.reason("log").1, "InForce");
}

// SCS-48, SCS-49, SCS-51, SDF-36
#[test]
fn a_partition_keeps_pods_and_a_pause_stops_all() {
    let mut world = world(4);
    world.edit(
        "log",
        "/spec/updateStrategy",
        &json!({"maxUnavailable": 4, "partition": 3}),
    );
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    assert_eq!(world.upgraded().len(), 1);
    let inspection = world.inspect();
    let kept = (0..4).map(|pod| {
        let sets = inspection.inspect_pod(&pod_name(pod));
        sets[0].membership.as_ref().unwrap().turn
    });
    assert_eq!(kept.filter(|turn| *turn == Turn::Kept).count(), 3);
    world.edit(
        "log",
        "/spec/updateStrategy",
        &json!({"maxUnavailable": 4, "paused": true}),
    );
    world.settle();
    assert_eq!(world.upgraded().len(), 1);
    assert_eq!(
        world.reason("log").2,
        "new pods are injected; upgrades are paused"
    );
}

// SDF-37, SDF-50
#[test]
fn a_bad_image_stops_after_max_unavailable_and_heals() {
    let mut world = world(4);
    world.edit("log", "/spec/updateStrategy", &json!({"maxUnavailable": 2}));
    world.edit("log", "/spec/containers/0/image", &json!(BAD));
    world.settle();
    assert_eq!(world.counts("log"), [4, 2, 2]);
    assert_eq!(world.inspect().holders("log", true).len(), 2);
    world.edit("log", "/spec/containers/0/image", &json!("i:3"));
    world.settle();
    assert_eq!(world.counts("log"), [4, 4, 4]);
}

// SCS-50, SDF-37
#[test]
fn an_image_that_starts_and_never_gets_ready_takes_down_no_more_after_an_edit() {
    let mut world = world(6);
    world.edit("log", "/spec/updateStrategy", &json!({"maxUnavailable": 2}));
    world.edit("log", "/spec/containers/0/image", &json!(UNREADY));
    world.settle();
    assert_eq!(world.counts("log"), [6, 2, 4]);
    // The edit is due for those two, and for no pod that is ready, whichever is asked first.
    world.edit("log", "/spec/containers/0/image", &json!("i:3"));
    let (down, ready): (Vec<_>, Vec<_>) = (0..6).partition(|pod| world.image(*pod) == UNREADY);
    assert!(ready.iter().all(|pod| world.take(*pod).is_none()));
    assert!(down.iter().all(|pod| world.take(*pod).is_some()));
    world.restart();
    world.settle();
    assert_eq!(world.counts("log"), [6, 6, 6]);
}

// SDF-37
#[test]
fn pods_that_are_not_ready_all_the_same_do_not_all_get_an_image_that_never_gets_ready() {
    let mut world = world(4);
    world.edit("log", "/spec/updateStrategy", &json!({"paused": true}));
    for pod in 0..4 {
        world.change(&pod_key(pod), |pod| {
            let statuses = &mut pod["status"]["containerStatuses"];
            let mut statuses = statuses.as_array_mut().unwrap().iter_mut();
            statuses.find(|status| status["name"] == "app").unwrap()["ready"] = json!(false);
        });
    }
    world.edit("log", "/spec/containers/0/image", &json!(UNREADY));
    world.edit("log", "/spec/updateStrategy", &json!({"maxUnavailable": 2}));
    world.settle();
    assert_eq!(world.counts("log"), [4, 2, 0]);
    // With a good image all of them move, though none of them gets ready.
    world.edit("log", "/spec/containers/0/image", &json!("i:3"));
    world.settle();
    assert_eq!(world.counts("log"), [4, 4, 0]);
}

// SCS-50, SDF-37
#[test]
fn an_application_that_never_gets_ready_holds_up_no_other_pod() {
    let mut world = world(4);
    world.gate(0, false);
    // One that is created anew with the set's image is not ready either.
    world.edit("log", "/spec/updateStrategy/paused", &json!(true));
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.delete(&pod_key(1));
    world.create_pod(1, true);
    world.gate(1, false);
    world.edit("log", "/spec/updateStrategy/paused", &json!(false));
    world.settle();
    assert_eq!(world.counts("log"), [4, 4, 2]);
    // Nor does it with the next image, and to another manager.
    world.restart();
    world.edit("log", "/spec/containers/0/image", &json!("i:3"));
    world.settle();
    assert_eq!(world.counts("log"), [4, 4, 2]);
}

// SCS-50, SDF-37
#[test]
fn an_application_that_fails_long_after_an_upgrade_does_not_hold_up_the_next() {
    for (seconds, updated) in [(599, 1), (601, 3)] {
        let mut world = world(3);
        world.edit("log", "/spec/containers/0/image", &json!("i:2"));
        world.settle();
        world.pass(seconds);
        world.gate(0, false);
        world.edit("log", "/spec/containers/0/image", &json!("i:3"));
        world.settle();
        assert_eq!(world.counts("log"), [3, updated, 2], "{seconds}");
    }
}

// SCS-50, SDF-37
#[test]
fn an_upgrade_that_breaks_an_application_takes_down_one_pod_whatever_image_follows() {
    let mut world = world(3);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    let mut first = None;
    while first.is_none() {
        world.send(0);
        while !world.in_flight.is_empty() {
            world.carry_out(0, true);
        }
        first = (0..3).find(|pod| world.image(*pod) == "i:2");
    }
    let first = first.unwrap();
    world.gate(first, false);
    for (image, later) in [("i:2", 0), ("i:3", 3600), ("i:4", 3600)] {
        world.edit("log", "/spec/containers/0/image", &json!(image));
        world.settle();
        world.pass(later);
        world.restart();
        world.settle();
        let with_image = (0..3).filter(|pod| world.image(*pod) == image);
        assert_eq!(with_image.collect::<Vec<_>>(), [first], "{image}");
    }
}

// SCS-7, SCS-50
#[test]
fn a_pod_that_an_earlier_set_took_down_holds_up_no_pod_of_the_next() {
    let mut world = world(1);
    world.edit("log", "/spec/containers/0/image", &json!(UNREADY));
    world.settle();
    world.delete(&set_key("log"));
    world.settle();
    world.pass(60);
    world.create(&set_key("log"), spec("log"));
    world.settle();
    world.pass(60);
    world.create_pod(1, true);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    assert_eq!((world.image(0), world.image(1)), (UNREADY, "i:2"));
}

// SCS-50, SDF-34
#[test]
fn a_pod_whose_write_is_under_way_keeps_its_place_when_others_come_before_it() {
    let mut world = world(3);
    let order = json!({"orderPriority": [{"orderedKey": "rank"}]});
    let strategy = json!({"maxUnavailable": 1, "priorityStrategy": order});
    world.edit("log", "/spec/updateStrategy", &strategy);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.rank(0, "r-5");
    world.rank(1, "r-4");
    world.rank(2, "r-3");
    assert!(world.take(0).is_some());
    world.rank(2, "r-9");
    assert_eq!(world.take(2), None);
    // It was not answered: it may have been carried out, so no other is taken down.
    world.lose_answer(0);
    assert!(world.take(0).is_some());
    assert_eq!((world.take(1), world.take(2)), (None, None));
    // The watch shows that it was not, and that something else has happened to it.
    world.change(&pod_key(0), |pod| {
        pod["metadata"]["annotations"]["a"] = json!("b");
    });
    world.deliver_all();
    world.lose_answer(0);
    assert_eq!(world.take(0), None);
    assert!(world.take(2).is_some());
}

/// A world with a set of two pods of which the first is upgraded first, and was not answered.
fn unanswered(strategy: &Value) -> World {
    let mut world = world(2);
    let mut strategy = strategy.clone();
    strategy["priorityStrategy"] = json!({"orderPriority": [{"orderedKey": "rank"}]});
    world.edit("log", "/spec/updateStrategy", &strategy);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.rank(0, "r-5");
    world.rank(1, "r-4");
    assert!(world.take(0).is_some());
    world.lose_answer(0);
    world.rank(1, "r-9");
    world
}

// SCS-50, SDF-34
#[test]
fn an_upgrade_without_an_answer_keeps_its_place_while_the_set_is_paused() {
    for waits in [0, 301] {
        let mut world = unanswered(&json!({"maxUnavailable": 1}));
        world.edit("log", "/spec/updateStrategy/paused", &json!(true));
        assert_eq!(world.take(0), None);
        world.dirty.clear();
        world.pass(waits);
        world.edit("log", "/spec/updateStrategy/paused", &json!(false));
        if waits == 0 {
            assert_eq!(world.take(1), None);
            // It is asked again.
            assert!(world.dirty.contains(&upgrade_of(0)));
            assert!(world.take(0).is_some());
        } else {
            // No watch has shown it for minutes: it was not carried out.
            assert!(world.take(1).is_some());
        }
    }
}

// SCS-50, SDF-34
#[test]
fn an_upgrade_under_way_keeps_its_place_when_a_list_shows_its_pod_as_it_was() {
    let mut world = unanswered(&json!({"maxUnavailable": 1}));
    world.list();
    assert_eq!(world.take(1), None);
    // A list that shows the pod with another change proves that the upgrade is refused: it was for the version before.
    world.change(&pod_key(0), |pod| {
        pod["metadata"]["annotations"]["a"] = json!("b");
    });
    world.list();
    assert!(world.take(1).is_some());
}

// SCS-48, SCS-50, SDF-34
#[test]
fn an_upgrade_without_an_answer_keeps_its_place_where_pods_are_spread() {
    let scatter = json!([{"key": "app", "value": "web"}]);
    let mut world = unanswered(&json!({"maxUnavailable": 1, "scatterStrategy": scatter}));
    assert!(world.take(0).is_some());
    assert_eq!(world.take(1), None);
}

// SCS-59, SCS-60, SCS-67, SDF-46
#[test]
fn containers_that_take_turns_are_upgraded_and_reset_also_when_it_is_paused_in_between() {
    let mut world = World::new();
    let mut set = spec("mesh");
    set["spec"]["containers"][0]["upgradeStrategy"] =
        json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "i:empty"});
    world.create(&set_key("mesh"), set);
    world.settle();
    world.pass(10);
    for pod in 0..2 {
        world.create_pod(pod, true);
    }
    world.settle();
    assert_eq!(world.counts("mesh"), [2, 2, 2]);
    world.writes.clear();
    let images = |world: &World, pod: usize| {
        let containers = world.objects[&pod_key(pod)]["spec"]["containers"]
            .as_array()
            .unwrap();
        [0, 1].map(|place| containers[place]["image"].as_str().unwrap().to_owned())
    };
    assert_eq!(images(&world, 0), ["i:1", "i:empty"]);
    world.edit("mesh", "/spec/containers/0/image", &json!("i:2"));
    let first = [0, 1]
        .into_iter()
        .find(|pod| world.take(*pod).is_some())
        .unwrap();
    // One at a time, and a pod with two working containers is none that serves.
    assert_eq!(world.take(1 - first), None);
    world.lose_answer(first);
    while world.image_of_either(first) != "i:2" {
        world.send(0);
        while !world.in_flight.is_empty() {
            world.carry_out(0, true);
        }
    }
    world.edit("mesh", "/spec/updateStrategy", &json!({"paused": true}));
    world.settle();
    assert_eq!(images(&world, first), ["i:empty", "i:2"]);
    assert_eq!(images(&world, 1 - first), ["i:1", "i:empty"]);
    world.edit("mesh", "/spec/updateStrategy", &json!({}));
    world.settle();
    world.edit("mesh", "/spec/containers/0/image", &json!("i:3"));
    world.settle();
    assert_eq!(
        [images(&world, 0), images(&world, 1)],
        [["i:3", "i:empty"]; 2]
    );
    assert_eq!(world.counts("mesh"), [2, 2, 2]);
    // An upgrade and a reset for each pod and image.
    assert_eq!(world.upgraded().len(), 8);
    let told = world
        .events()
        .into_iter()
        .filter(|(reason, _)| *reason == "ResetContainerSucceed");
    assert_eq!(told.count(), 4);
}

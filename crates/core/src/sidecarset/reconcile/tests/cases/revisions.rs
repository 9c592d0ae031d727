//! Revisions, and pins.

use leadsman_reconcile::WriteKind;
use rstest::rstest;

use super::*;

// SCS-35, SCS-36, SCS-37, SDF-27
#[test]
fn revisions_are_created_renumbered_labelled_and_cleaned_up() {
    let mut world = world(1);
    world.edit("log", "/spec/revisionHistoryLimit", &json!(2));
    world.edit("log", "/spec/updateStrategy", &json!({"type": "NotUpdate"}));
    for image in ["i:2", "i:3", "i:4"] {
        world.edit("log", "/spec/containers/0/image", &json!(image));
        world.settle();
    }
    // The pod keeps the first.
    let numbers = |world: &World| {
        world
            .revisions()
            .iter()
            .map(|(number, _)| *number)
            .collect::<Vec<_>>()
    };
    assert_eq!(numbers(&world), [1, 4]);
    let first = world.revisions()[0].1.clone();
    world.edit("log", "/spec/containers/0/image", &json!("i:1"));
    world.settle();
    assert_eq!(world.revisions()[1], (5, first.clone()));
    assert_eq!(world.status("log")["latestRevision"], first.as_str());
    let label = "apps.kruise.io/sidecarset-custom-version";
    let key = (WatchedKind::Revision, object("leadsman-system", &first));
    for version in [Some("v1"), Some("v2"), None] {
        let labels = version.map_or_else(|| json!({}), |version| json!({label: version}));
        world.change(&set_key("log"), |set| set["metadata"]["labels"] = labels);
        world.settle();
        let stored = world.objects[&key]["metadata"]["labels"].get(label);
        assert_eq!(stored.and_then(Value::as_str), version);
    }
}

// SCS-37, SDF-55
#[test]
fn a_revision_that_is_deleted_is_gone_before_the_watch_shows_it_and_is_not_deleted_again() {
    let mut world = world(0);
    world.edit("log", "/spec/revisionHistoryLimit", &json!(1));
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    let take = |world: &mut World, kind: &WriteKind| {
        while world.send(0) {}
        let place = world.in_flight.iter().position(|sent| sent.is(kind));
        place.map(|place| world.carry_out(place, true))
    };
    assert!(take(&mut world, &CREATE_REVISION).is_some());
    world.deliver_all();
    assert!(take(&mut world, &DELETE_REVISION).is_some());
    // The watch is late.
    assert!(take(&mut world, &DELETE_REVISION).is_none());
    assert!(take(&mut world, &SET_HASHES).is_some());
    while world.send(0) {}
    let status = world.in_flight.iter().find(|sent| sent.is(&SET_STATUS));
    let condition = &status.unwrap().body["status"]["conditions"][0];
    assert_eq!(condition["reason"], "InForce", "{condition}");
    world.restart();
    world.settle();
    assert_eq!((world.revisions().len(), world.events()), (1, vec![]));
}

// SDF-1, SCS-39
#[test]
fn a_pinned_revision_that_is_missing_is_said_and_one_that_is_there_is_kept() {
    let mut world = world(0);
    let first = world.revisions()[0].1.clone();
    world.edit("log", "/spec/revisionHistoryLimit", &json!(1));
    let pin = |name: &str| json!({"revision": {"revisionName": name}});
    world.edit("log", "/spec/injectionStrategy", &pin(&first));
    for image in ["i:2", "i:3"] {
        world.edit("log", "/spec/containers/0/image", &json!(image));
        world.settle();
    }
    assert!(world.revisions().iter().any(|(_, name)| *name == first));
    assert_eq!(world.reason("log").1, "InForce");
    let snapshot = world.take_changed_snapshot().unwrap();
    assert_eq!(
        snapshot.sets[0].history.revisions[0].revision.name,
        first.as_str().into()
    );
    world.edit("log", "/spec/injectionStrategy", &pin("log-other"));
    world.settle();
    let (status, reason, message) = world.reason("log");
    assert_eq!((status, reason), ("False", "RevisionMissing"));
    assert!(message.contains("\"log-other\""), "{message}");
    assert_eq!(world.revisions().len(), 1);
}

// SDF-51, SCS-41
#[test]
fn a_pod_that_got_the_pinned_revision_though_a_later_one_was_there_stays() {
    let mut world = world(1);
    let first = world.revisions()[0].1.clone();
    let pin = json!({"revision": {"revisionName": first}});
    world.edit("log", "/spec/injectionStrategy", &pin);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    // In the second in which the revision became the newest, and later.
    world.create_pod(1, true);
    world.settle();
    world.pass(10);
    world.create_pod(2, true);
    world.settle();
    assert_eq!([0, 1, 2].map(|pod| world.image(pod)), ["i:2", "i:1", "i:1"]);
    assert_eq!(world.counts("log"), [3, 1, 3]);
    let inspection = world.inspect();
    let pod = &inspection.inspect_pod(&pod_name(1))[0];
    assert_eq!(pod.membership.as_ref().unwrap().hold, Some(&Hold::Pinned));
    let (status, reason, message) = world.reason("log");
    assert_eq!((status, reason), ("True", "PinnedPods"));
    let said = format!("2 pods injected with the pinned revision {first}, shop/web-01 among them");
    assert!(message.starts_with(&said), "{message}");
    world.restart();
    assert_eq!(world.settle(), 0);
    world.edit("log", "/spec/injectionStrategy", &json!({}));
    world.settle();
    assert_eq!([1, 2].map(|pod| world.image(pod)), ["i:2", "i:2"]);
    assert_eq!(world.reason("log").1, "InForce");
}

// SDF-51, SCS-41
#[test]
fn a_pinned_pod_is_upgraded_when_the_set_has_yet_another_revision() {
    let mut world = world(0);
    let first = world.revisions()[0].1.clone();
    let pin = json!({"revision": {"revisionName": first}});
    world.edit("log", "/spec/injectionStrategy", &pin);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    world.create_pod(0, true);
    world.settle();
    assert_eq!(world.image(0), "i:1");
    world.edit("log", "/spec/containers/0/image", &json!("i:3"));
    world.settle();
    assert_eq!(world.image(0), "i:3");
    // What an upgrade has written was given by no pin.
    let hashes = world.objects[&pod_key(0)]["metadata"]["annotations"][HASH].as_str();
    assert!(!hashes.unwrap().contains("newestRevision"), "{hashes:?}");
}

/// Takes away what an injection records of the newest revision, which `OpenKruise` and former versions did not write.
fn forget_newest(world: &mut World, pod: usize) {
    world.change(&pod_key(pod), |pod| {
        let hash = &mut pod["metadata"]["annotations"][HASH];
        let mut entries: Value = serde_json::from_str(hash.as_str().unwrap()).unwrap();
        let entry = entries["log"].as_object_mut().unwrap();
        entry.remove("newestRevision");
        *hash = entries.to_string().into();
    });
}

// SDF-51, SCS-41
#[rstest]
#[case::held(false, "i:1")]
#[case::taken_as_openkruise_does(true, "i:2")]
fn a_pod_without_a_record_that_has_the_pinned_revision_counts_as_pinned(
    #[case] upgrades_pinned: bool,
    #[case] image: &str,
) {
    let mut world = world(0);
    let first = world.revisions()[0].1.clone();
    let pin = json!({"revision": {"revisionName": first}});
    world.edit("log", "/spec/injectionStrategy", &pin);
    world.edit("log", "/spec/updateStrategy/paused", &json!(true));
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    world.create_pod(0, true);
    forget_newest(&mut world, 0);
    world.config.upgrades_pinned = upgrades_pinned;
    world.restart();
    world.edit("log", "/spec/updateStrategy/paused", &json!(false));
    world.settle();
    assert_eq!(world.image(0), image);
    // The pin ends, and with it the hold.
    world.edit("log", "/spec/injectionStrategy", &json!({}));
    world.settle();
    assert_eq!(world.image(0), "i:2");
}

// SDF-51, SCS-41
#[test]
fn a_pod_without_a_record_that_an_upgrade_gave_the_pinned_revision_is_upgraded() {
    let mut world = world(1);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    let second = world.revisions()[1].1.clone();
    forget_newest(&mut world, 0);
    let pin = json!({"revision": {"revisionName": second}});
    world.edit("log", "/spec/injectionStrategy", &pin);
    world.edit("log", "/spec/containers/0/image", &json!("i:3"));
    world.settle();
    assert_eq!(world.image(0), "i:3");
}

// SCS-41
#[test]
fn a_pinned_pod_is_upgraded_like_others_where_openkruise_did_so() {
    let mut world = world(0);
    world.config.upgrades_pinned = true;
    world.restart();
    let first = world.revisions()[0].1.clone();
    let pin = json!({"revision": {"revisionName": first}});
    world.edit("log", "/spec/injectionStrategy", &pin);
    world.edit("log", "/spec/updateStrategy/paused", &json!(true));
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    for pod in 0..2 {
        world.pass(10);
        world.create_pod(pod, true);
        world.settle();
    }
    assert_eq!([0, 1].map(|pod| world.image(pod)), ["i:1", "i:1"]);
    assert_eq!(world.counts("log"), [2, 0, 2]);
    world.edit("log", "/spec/updateStrategy/paused", &json!(false));
    world.settle();
    assert_eq!([0, 1].map(|pod| world.image(pod)), ["i:2", "i:2"]);
}

// SDF-51, SCS-41
#[test]
fn a_pod_from_before_a_revision_became_the_newest_again_is_upgraded_though_new_ones_are_pinned() {
    let mut world = world(0);
    let first = world.revisions()[0].1.clone();
    let pin = json!({"revision": {"revisionName": first}});
    world.edit("log", "/spec/injectionStrategy", &pin);
    for image in ["i:2", "i:1"] {
        world.edit("log", "/spec/containers/0/image", &json!(image));
        world.settle();
        world.pass(10);
    }
    world.create_pod(0, true);
    world.settle();
    world.pass(10);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    assert_eq!(world.image(0), "i:2");
    world.pass(10);
    world.create_pod(1, true);
    world.settle();
    assert_eq!(world.image(1), "i:1");
    world.restart();
    assert_eq!(world.settle(), 0);
}

// SDF-51, SCS-41
#[test]
fn a_pod_that_got_the_pinned_revision_stays_also_when_another_set_upgrades_it() {
    let mut world = world(0);
    world.create(&set_key("mesh"), spec("mesh"));
    world.settle();
    let first = world.revisions().into_iter().map(|(_, name)| name);
    let first = first.into_iter().find(|name| name.starts_with("log"));
    let pin = json!({"revision": {"revisionName": first}});
    world.edit("log", "/spec/injectionStrategy", &pin);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    world.pass(10);
    world.create_pod(0, true);
    world.settle();
    let images = |world: &World| {
        let pod = &world.objects[&pod_key(0)]["spec"]["containers"];
        [0, 1].map(|place| pod[place]["image"].clone())
    };
    assert_eq!(images(&world), ["i:1", "i:1"]);
    world.edit("mesh", "/spec/containers/0/image", &json!("i:3"));
    world.settle();
    assert_eq!(images(&world), ["i:1", "i:3"]);
}

// SDF-48
#[test]
fn a_revision_of_a_deleted_set_is_not_taken_for_the_new_ones() {
    let mut world = world(0);
    // The garbage collector is late.
    let revisions = world.keys(WatchedKind::Revision);
    let stale = world.objects[&revisions[0]].clone();
    world.delete(&set_key("log"));
    world.objects.insert(revisions[0].clone(), stale);
    world.list();
    world.create(&set_key("log"), spec("log"));
    world.settle();
    assert_eq!(world.status("log").get("latestRevision"), None);
    let events = world.writes.iter();
    assert_eq!(events.filter(|sent| sent.is(&CREATE_REVISION)).count(), 0);
    world.delete(&revisions[0]);
    world.settle();
    let name = world.revisions()[0].1.clone();
    assert_eq!(world.status("log")["latestRevision"], name.as_str());
    assert_eq!(world.status("log")["collisionCount"], 0);
}

// SCS-35, SDF-55
#[test]
fn a_revision_that_was_given_the_highest_number_there_is_ends_no_process() {
    let mut world = world(1);
    let first = world.revisions()[0].1.clone();
    let key = (WatchedKind::Revision, object("leadsman-system", &first));
    world.change(&key, |revision| revision["revision"] = json!(i64::MAX));
    for image in ["i:2", "i:1"] {
        world.edit("log", "/spec/containers/0/image", &json!(image));
        world.settle();
        assert_eq!((world.image(0), world.counts("log")), (image, [1, 1, 1]));
    }
}

// SCS-35, SDF-55
#[test]
fn a_revision_whose_label_was_taken_away_is_found_by_its_name() {
    let mut world = world(1);
    let first = world.revisions()[0].1.clone();
    let key = (WatchedKind::Revision, object("leadsman-system", &first));
    world.change(&key, |revision| {
        revision["metadata"]["labels"] = json!({});
    });
    world.settle();
    for restarts in [false, true] {
        if restarts {
            world.restart();
        }
        let replicas = if restarts { 2 } else { 1 };
        world.create_pod(replicas, true);
        world.settle();
        let counted = u64::try_from(replicas + 1).unwrap();
        assert_eq!(world.counts("log")[0], counted);
        assert_eq!(world.status("log")["latestRevision"], first.as_str());
        assert_eq!(world.revisions().len(), 1);
    }
}

// SCS-39
#[test]
fn a_webhook_knows_how_many_pods_a_set_has_that_pins_some() {
    let mut world = world(1);
    let first = world.revisions()[0].1.clone();
    let pin = json!({"revision": {"revisionName": first, "policy": "Partial"}});
    world.edit("log", "/spec/injectionStrategy", &pin);
    world.edit("log", "/spec/updateStrategy", &json!({"partition": 1}));
    world.settle();
    world.take_changed_snapshot();
    world.create_pod(1, true);
    world.settle();
    let snapshot = world.take_changed_snapshot().unwrap();
    let matched: Vec<_> = snapshot.sets.iter().map(|it| it.history.matched).collect();
    assert_eq!(matched, [2]);
}

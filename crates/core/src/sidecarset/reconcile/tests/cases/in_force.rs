//! Hashes, and from which generation on a set is in force.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::*;
use crate::sidecarset::scope::SetScope;
use crate::sidecarset::set::{FAILURE_POLICY_ANNOTATION, FailurePolicy};

// SCS-22, SCS-38, SCS-62, SCS-63, SCS-65, SDF-6, SDF-54, SDF-55
#[test]
fn a_set_gets_its_revision_its_hashes_and_a_status_that_names_the_generation_in_force() {
    let world = world(2);
    let set = world.set("log").unwrap();
    let annotations = &world.objects[&set_key("log")]["metadata"]["annotations"];
    assert_eq!(annotations[HASH], *set.hashes.hash);
    assert_eq!(annotations[HASH_WITHOUT_IMAGE], *set.hashes.without_image);
    let status = world.status("log");
    assert_eq!(world.counts("log"), [2, 2, 2]);
    assert_eq!(status["updatedReadyPods"], 2);
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!(status["inForce"]["generation"], 1);
    assert_eq!(status["collisionCount"], 0);
    assert_eq!(status["latestRevision"], world.revisions()[0].1.as_str());
    assert_eq!(
        world.reason("log"),
        ("True", "InForce", "new pods are injected")
    );
}

/// Both are writes of the set, and the status has its version.
// SCS-22, SDF-55
#[test]
fn a_status_waits_for_the_hashes_unless_these_are_refused() {
    let is_status = |sent: &Sent| sent.is(&SET_STATUS);
    for is_refused in [false, true] {
        let mut world = world(1);
        world.edit("log", "/spec/containers/0/image", &json!("i:2"));
        while world.send(0) {}
        let other = |one: &Sent| !one.is(&SET_HASHES);
        while let Some(place) = world.in_flight.iter().position(other) {
            world.carry_out(place, true);
            while world.send(0) {}
        }
        assert!(!world.writes.iter().any(is_status), "{is_refused}");
        if is_refused {
            world.refuse(0);
        } else {
            world.carry_out(0, true);
        }
        world.settle();
        assert_eq!(world.status("log")["observedGeneration"], 2);
        let hash = world.set("log").unwrap().hashes.hash.clone();
        let annotations = &world.objects[&set_key("log")]["metadata"]["annotations"];
        assert_eq!(annotations[HASH] == *hash, !is_refused);
    }
}

// SCS-22, SDF-55
#[test]
fn a_status_does_not_wait_for_hashes_that_another_client_keeps_taking_away() {
    let mut world = world(0);
    world.create_pod(0, true);
    for _ in 0..3 {
        world.change(&set_key("log"), |set| {
            set["metadata"]["annotations"] = json!({});
        });
        world.deliver_all();
        while world.send(0) {}
        while !world.in_flight.is_empty() {
            let is_status = |one: &Sent| one.is(&SET_STATUS);
            let status = world.in_flight.iter().position(is_status);
            world.carry_out(status.unwrap_or_default(), true);
        }
    }
    assert_eq!(world.counts("log"), [1, 1, 1]);
}

// SCS-22
#[test]
fn hashes_that_are_written_late_are_those_of_the_last_edit_in_the_end() {
    let mut world = world(1);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    while world.send(0) {}
    world.edit("log", "/spec/containers/0/image", &json!("i:3"));
    world.settle();
    let set = world.set("log").unwrap();
    let annotations = &world.objects[&set_key("log")]["metadata"]["annotations"];
    assert_eq!(annotations[HASH], *set.hashes.hash);
}

// SDF-6
#[test]
fn a_generation_is_in_force_when_the_webhook_injects_it() {
    let mut world = world(1);
    world.set_barrier(Some(barrier(0)));
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    assert_eq!(world.status("log")["inForce"]["generation"], 1);
    assert_eq!(world.status("log")["observedGeneration"], 2);
    let (status, reason, message) = world.reason("log");
    assert_eq!((status, reason), ("False", "NotInForce"));
    assert!(message.contains("generation 1"), "{message}");
    let since = world.status("log")["inForce"]["since"].clone();
    world.pass(60);
    world.set_barrier(Some(barrier(1_000_000)));
    world.settle();
    assert_eq!(
        world.status("log")["inForce"],
        json!({"generation": 2, "since": since})
    );
    assert_eq!(world.reason("log").1, "InForce");
    // No webhook at all.
    world.set_barrier(None);
    world.settle();
    assert_eq!(world.status("log").get("inForce"), None);
    assert_eq!(world.reason("log").1, "NotInForce");
}

// SCS-39, SDF-6
#[test]
fn a_pin_is_in_force_when_the_webhook_knows_its_revision() {
    let mut world = world(0);
    let first = world.revisions()[0].1.clone();
    let key = (WatchedKind::Revision, object("leadsman-system", &first));
    let high = ResourceVersion::from(1_000_000);
    let known_by = |revisions| SnapshotVersion {
        sets: high,
        revisions: ResourceVersion::from(revisions),
        whitelist: high,
    };
    world.set_barrier(Some(known_by(1)));
    let pin = json!({"revision": {"customVersion": "v1"}});
    world.edit("log", "/spec/injectionStrategy", &pin);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    assert_eq!(world.reason("log").1, "RevisionMissing");
    // The revision gets the version that pins it: a replica that has not seen this gives pods another.
    let label = "apps.kruise.io/sidecarset-custom-version";
    world.change(&key, |revision| {
        revision["metadata"]["labels"][label] = json!("v1");
    });
    world.edit("log", "/spec/containers/0/image", &json!("i:3"));
    world.settle();
    assert_eq!(world.reason("log").1, "NotInForce");
    assert_eq!(world.status("log")["inForce"]["generation"], 3);
    let version = world.objects[&key]["metadata"]["resourceVersion"].clone();
    let needed = ResourceVersion::parse(version.as_str());
    let snapshot = world.take_changed_snapshot().unwrap();
    assert_eq!(snapshot.barrier().revisions, needed);
    assert!(!snapshot.version.lacks(snapshot.barrier()));
    world.set_barrier(Some(known_by(needed.number().unwrap())));
    world.settle();
    assert_eq!(world.reason("log").1, "InForce");
    // A process that starts finds nothing to tell the API server.
    world.restart();
    let snapshot = world.take_changed_snapshot().unwrap();
    assert_eq!(snapshot.barrier(), SnapshotVersion::default());
}

// SDF-6, SDF-17
#[test]
fn a_set_that_patches_annotations_is_in_force_when_the_webhook_knows_the_whitelist() {
    let mut world = world(0);
    let rules = json!({"rules": [{"allowedAnnotationKeyExprs": ["^a.example/"]}]});
    let key = (
        WatchedKind::Configuration,
        object("leadsman-system", CONFIGURATION),
    );
    let list = json!({"metadata": {}, "data": {WHITELIST: rules.to_string()}});
    world.create(&key, list);
    world.deliver_all();
    let version = world.objects[&key]["metadata"]["resourceVersion"].clone();
    let needed = ResourceVersion::parse(version.as_str());
    // It patches none, so it depends on no list.
    let barrier_of = |world: &mut World| world.take_changed_snapshot().unwrap().barrier();
    assert_eq!(barrier_of(&mut world).whitelist, ResourceVersion::UNKNOWN);
    let high = ResourceVersion::from(1_000_000);
    let known_by = |whitelist| SnapshotVersion {
        sets: high,
        revisions: high,
        whitelist,
    };
    let before = ResourceVersion::from(needed.number().unwrap() - 1);
    world.set_barrier(Some(known_by(before)));
    let patch = json!([{"annotations": {"a.example/x": "1"}}]);
    world.edit("log", "/spec/patchPodMetadata", &patch);
    world.settle();
    assert_eq!(world.reason("log").1, "NotInForce");
    assert_eq!(barrier_of(&mut world).whitelist, needed);
    world.set_barrier(Some(known_by(needed)));
    world.settle();
    assert_eq!(world.reason("log").1, "InForce");
    // A revision that patches them needs the list too, where new pods are pinned to it.
    let patching = world.status("log")["latestRevision"].clone();
    world.edit("log", "/spec/patchPodMetadata", &json!([]));
    world.settle();
    assert_eq!(barrier_of(&mut world).whitelist, ResourceVersion::UNKNOWN);
    let pin = json!({"revision": {"revisionName": patching}});
    world.edit("log", "/spec/injectionStrategy", &pin);
    world.settle();
    assert_eq!(barrier_of(&mut world).whitelist, needed);
}

// SDF-6
#[test]
fn a_replica_has_come_as_far_as_its_watch_also_where_a_reply_was_faster() {
    let mut world = world(0);
    world.change(&set_key("log"), |set| {
        set["metadata"]["labels"]["apps.kruise.io/sidecarset-custom-version"] = json!("v1");
        set["spec"]["injectionStrategy"] = json!({"revision": {"customVersion": "v1"}});
    });
    world.deliver_all();
    while world.send(0) {}
    let is_patch = |sent: &Sent| sent.is(&PATCH_REVISION);
    let patch = world.in_flight.iter().position(is_patch).unwrap();
    world.carry_out(patch, true);
    let lacks_its_own = |world: &mut World| {
        let snapshot = world.take_changed_snapshot().unwrap();
        snapshot.version.lacks(snapshot.barrier())
    };
    assert!(lacks_its_own(&mut world));
    // Nothing follows but that the watch shows the same.
    world.deliver_all();
    assert!(!lacks_its_own(&mut world));
}

/// A set of no pods that patches an annotation, and the whitelist that allows it, by its key.
fn world_with_whitelist() -> (World, Key) {
    let mut world = world(0);
    let key = (
        WatchedKind::Configuration,
        object("leadsman-system", CONFIGURATION),
    );
    let rules = json!({"rules": [{"allowedAnnotationKeyExprs": ["^a.example/"]}]});
    let list = json!({"metadata": {}, "data": {WHITELIST: rules.to_string()}});
    world.create(&key, list);
    let patch = json!([{"annotations": {"a.example/x": "1"}}]);
    world.edit("log", "/spec/patchPodMetadata", &patch);
    (world, key)
}

// SDF-6, SDF-17
#[test]
fn a_replica_knows_that_the_whitelist_was_deleted_when_its_watch_has_shown_that() {
    let (mut world, key) = world_with_whitelist();
    world.settle();
    assert_eq!(world.reason("log").1, "InForce");
    world.delete(&key);
    world.settle();
    assert_eq!(world.reason("log").1, "MetadataNotAllowed");
    let snapshot = world.take_changed_snapshot().unwrap();
    assert!(!snapshot.version.lacks(snapshot.barrier()));
}

// SDF-6
#[test]
fn after_etcd_was_restored_a_generation_of_the_same_number_is_in_force_when_it_is_injected() {
    let mut world = world(1);
    let backup = (world.objects.clone(), world.version);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    assert_eq!(world.status("log")["inForce"]["generation"], 2);
    (world.objects, world.version) = backup;
    world.set_barrier(Some(barrier(world.version)));
    // Somebody edits it before the watches begin again.
    world.change(&set_key("log"), |set| {
        set["spec"]["containers"][0]["image"] = json!("i:3");
    });
    let edited = ResourceVersion::from(world.version);
    world.list();
    world.settle();
    let snapshot = world.take_changed_snapshot().unwrap();
    assert_eq!(snapshot.barrier().sets, edited);
    assert_eq!(world.status("log")["inForce"]["generation"], 1);
    assert_eq!(world.reason("log").1, "NotInForce");
    world.set_barrier(Some(barrier(world.version)));
    world.settle();
    assert_eq!(world.status("log")["inForce"]["generation"], 2);
    assert_eq!(world.reason("log").1, "InForce");
}

// SDF-6
#[test]
fn after_etcd_was_restored_no_set_waits_for_a_version_of_before() {
    let (mut world, key) = world_with_whitelist();
    world.edit("log", "/spec/customVersion", &json!("v1"));
    let pin = json!({"revision": {"customVersion": "v1"}});
    world.edit("log", "/spec/injectionStrategy", &pin);
    world.settle();
    let backup = (world.objects.clone(), world.version);
    world.version += 1000;
    // Taken away and given back: what is stored is as in the backup, and of later versions.
    let before = world.objects[&key].clone();
    world.change(&key, |config| config["data"] = json!({}));
    world.edit("log", "/spec/customVersion", &json!("v2"));
    world.settle();
    world.change(&key, |config| config["data"] = before["data"].clone());
    world.edit("log", "/spec/customVersion", &json!("v1"));
    world.settle();
    let needed = world.take_changed_snapshot().unwrap().barrier();
    assert!(needed.whitelist.number() > Some(1000) && needed.revisions.number() > Some(1000));
    (world.objects, world.version) = backup;
    let newest_object = ResourceVersion::from(world.version);
    // Something else was written since.
    world.version += 50;
    world.list();
    world.settle();
    let snapshot = world.take_changed_snapshot().unwrap();
    let needed = snapshot.barrier();
    assert!(!snapshot.version.lacks(needed), "{needed:?}");
    // A replica that listed before has seen the same objects, and no later version.
    for version in [needed.sets, needed.revisions, needed.whitelist] {
        assert!(!version.is_later_than(newest_object), "{needed:?}");
    }
}

// SDF-6, SDF-17
#[test]
fn a_whitelist_that_a_list_shows_to_be_gone_asks_no_replica_for_the_version_of_that_list() {
    let (mut world, key) = world_with_whitelist();
    world.settle();
    let known = world.take_changed_snapshot().unwrap().barrier();
    world.objects.remove(&key);
    world.version += 50;
    world.list();
    world.settle();
    assert_eq!(world.reason("log").1, "MetadataNotAllowed");
    let needed = world.take_changed_snapshot().unwrap().barrier();
    assert!(
        !needed.whitelist.is_later_than(known.whitelist),
        "{needed:?}"
    );
}

// SDF-6
#[test]
fn a_list_beside_a_silent_watch_makes_a_snapshot_as_new_as_itself() {
    let mut world = world(1);
    world.settle();
    world.take_changed_snapshot();
    world.change(&set_key("log"), |set| {
        set["spec"]["containers"][0]["image"] = json!("i:2");
    });
    let edited = ResourceVersion::from(world.version);
    world.list_beside_watch(WatchedKind::Set);
    let snapshot = world.take_changed_snapshot().unwrap();
    assert!(!edited.is_later_than(snapshot.version.sets));
    assert!(!snapshot.version.lacks(snapshot.barrier()));
    // Also where it shows nothing new: another replica may have asked for it.
    world.version += 1;
    world.list_beside_watch(WatchedKind::Set);
    let snapshot = world.take_changed_snapshot().unwrap();
    assert_eq!(snapshot.version.sets, ResourceVersion::from(world.version));
}

/// The pods for which the API server is told to call in such a way that it refuses them without an answer.
fn refused_without_an_answer(world: &mut World) -> Vec<(LabelSelector, Option<String>)> {
    let snapshot = world.take_changed_snapshot().unwrap();
    let calls = SetScope::new(&snapshot, &[]).calls.into_iter();
    let calls = calls.filter(|call| call.failure_policy == FailurePolicy::Fail);
    calls
        .map(|call| (call.namespaces, call.expression))
        .collect()
}

fn ask_to_fail(set: &mut Value) {
    set["metadata"]["annotations"][FAILURE_POLICY_ANNOTATION] = json!("Fail");
}

// SDF-59
#[test]
fn a_set_that_asks_to_fail_keeps_its_call_while_it_is_invalid() {
    let mut world = world(0);
    world.change(&set_key("log"), ask_to_fail);
    world.deliver_all();
    let valid = refused_without_an_answer(&mut world);
    assert_eq!(valid.len(), 1);
    let resources = json!({"limits": {"cpu": "much"}});
    world.edit("log", "/spec/containers/0/resources", &resources);
    assert_eq!(refused_without_an_answer(&mut world), valid);
    world.settle();
    let (_, reason, message) = world.reason("log");
    assert_eq!(reason, "InvalidSpec");
    assert!(message.contains("its new pods are refused"), "{message}");
}

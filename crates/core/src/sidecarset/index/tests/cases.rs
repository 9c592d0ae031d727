//! Single cases: what is written for a set and its pods, and what is not.

use serde_json::{Value, json};

use super::world::{BAD, InFlight, UNREADY, World, barrier, object, pod_key, pod_name, set_key};
use crate::cluster::ResourceVersion;
use crate::sidecarset::annotations::{HASH, HASH_WITHOUT_IMAGE, INJECTED_LIST};
use crate::sidecarset::condition::UPGRADABLE;
use crate::sidecarset::event::{CONFIGURATION, Event, WatchedKind, Write, WriteTarget};
use crate::sidecarset::index::{ADOPT_PODS, Hold, Lack, SetByName, Turn};
use crate::sidecarset::metadata::WHITELIST;
use crate::sidecarset::snapshot::SnapshotVersion;

fn spec(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {}, "annotations": {}},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": format!("{name}-side"), "image": "i:1"}],
            "updateStrategy": {"maxUnavailable": 1},
        },
    })
}

/// A world with a set and so many injected pods, where nothing is due.
fn world(pods: usize) -> World {
    let mut world = World::new();
    world.create(&set_key("log"), spec("log"));
    world.settle();
    world.pass(10);
    for pod in 0..pods {
        world.create_pod(pod, true);
    }
    world.settle();
    world.writes.clear();
    world
}

impl World {
    fn edit(&mut self, set: &str, pointer: &str, value: &Value) {
        let at = pointer.rsplit_once('/').unwrap();
        self.change(&set_key(set), |object| {
            object.pointer_mut(at.0).unwrap()[at.1] = value.clone();
        });
        self.deliver_all();
    }

    fn status(&self, set: &str) -> &Value {
        &self.objects[&set_key(set)]["status"]
    }

    fn counts(&self, set: &str) -> [u64; 3] {
        let status = self.status(set);
        ["matchedPods", "updatedPods", "readyPods"].map(|field| status[field].as_u64().unwrap())
    }

    fn reason(&self, set: &str) -> (&str, &str, &str) {
        let condition = &self.status(set)["conditions"][0];
        assert_eq!(condition["type"], "Ready");
        let text = |field: &str| condition[field].as_str().unwrap();
        (text("status"), text("reason"), text("message"))
    }

    fn image(&self, pod: usize) -> &str {
        self.objects[&pod_key(pod)]["spec"]["containers"][0]["image"]
            .as_str()
            .unwrap()
    }

    /// The pods that are upgraded by the writes so far.
    fn upgraded(&self) -> Vec<String> {
        let pods = self.writes.iter().filter_map(|write| match write {
            Write::Pod { pod, .. } => Some(pod.name.clone()),
            _ => None,
        });
        pods.collect()
    }

    fn events(&self) -> Vec<(&'static str, String)> {
        let notes = self.writes.iter().filter_map(|write| match write {
            Write::Event(note) => Some((note.reason, note.note.clone())),
            _ => None,
        });
        notes.collect()
    }

    fn revisions(&self) -> Vec<(i64, String)> {
        let keys = self.keys(WatchedKind::Revision);
        let mut revisions: Vec<_> = keys
            .iter()
            .map(|key| {
                (
                    self.objects[key]["revision"].as_i64().unwrap(),
                    key.1.name.clone(),
                )
            })
            .collect();
        revisions.sort();
        revisions
    }

    fn condition(&self, pod: usize) -> Option<&Value> {
        let mut conditions = self.objects[&pod_key(pod)]["status"]["conditions"]
            .as_array()?
            .iter();
        conditions.find(|condition| condition["type"] == UPGRADABLE)
    }

    /// The image that either of the first two containers of a pod has got last.
    fn image_of_either(&self, pod: usize) -> &str {
        self.objects[&pod_key(pod)]["spec"]["containers"][1]["image"]
            .as_str()
            .unwrap()
    }

    fn rank(&mut self, pod: usize, rank: &str) {
        let key = pod_key(pod);
        self.change(&key, |pod| pod["metadata"]["labels"]["rank"] = json!(rank));
        self.deliver_all();
    }

    /// Takes out the upgrade of a pod, which is not answered.
    fn take(&mut self, pod: usize) -> Option<Write> {
        let now = self.now();
        self.index.due(&WriteTarget::Pod(pod_name(pod)), now)
    }
}

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

// SCS-22
#[test]
fn a_status_that_is_written_at_the_same_time_does_not_keep_the_hashes_from_being_written() {
    let mut world = world(1);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    while world.send(0) {}
    let is_hashes = |one: &InFlight| matches!(one.write, Write::SetHashes { .. });
    while let Some(place) = world.in_flight.iter().position(|one| !is_hashes(one)) {
        world.carry_out(place, true);
        while world.send(0) {}
    }
    let is_status = |write: &Write| matches!(write, Write::SetStatus { .. });
    assert!(world.writes.iter().any(is_status));
    world.carry_out(0, true);
    let set = world.set("log").unwrap();
    let annotations = &world.objects[&set_key("log")]["metadata"]["annotations"];
    assert_eq!(annotations[HASH], *set.hashes.hash);
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
    world.tell(barrier(0));
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    assert_eq!(world.status("log")["inForce"]["generation"], 1);
    assert_eq!(world.status("log")["observedGeneration"], 2);
    let (status, reason, message) = world.reason("log");
    assert_eq!((status, reason), ("False", "NotInForce"));
    assert!(message.contains("generation 1"), "{message}");
    let since = world.status("log")["inForce"]["since"].clone();
    world.pass(60);
    world.tell(barrier(1_000_000));
    world.settle();
    assert_eq!(
        world.status("log")["inForce"],
        json!({"generation": 2, "since": since})
    );
    assert_eq!(world.reason("log").1, "InForce");
    // No webhook at all.
    world.tell(Event::WebhookBarrier(None));
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
    world.tell(Event::WebhookBarrier(Some(known_by(1))));
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
    let snapshot = world.index.take_changed_snapshot().unwrap();
    assert_eq!(snapshot.barrier().revisions, needed);
    assert!(!snapshot.version.lacks(snapshot.barrier()));
    world.tell(Event::WebhookBarrier(Some(known_by(
        needed.number().unwrap(),
    ))));
    world.settle();
    assert_eq!(world.reason("log").1, "InForce");
    // A process that starts finds nothing to tell the API server.
    world.restart();
    let snapshot = world.index.take_changed_snapshot().unwrap();
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
    let barrier_of = |world: &mut World| world.index.take_changed_snapshot().unwrap().barrier();
    assert_eq!(barrier_of(&mut world).whitelist, ResourceVersion::UNKNOWN);
    let high = ResourceVersion::from(1_000_000);
    let known_by = |whitelist| SnapshotVersion {
        sets: high,
        revisions: high,
        whitelist,
    };
    let before = ResourceVersion::from(needed.number().unwrap() - 1);
    world.tell(Event::WebhookBarrier(Some(known_by(before))));
    let patch = json!([{"annotations": {"a.example/x": "1"}}]);
    world.edit("log", "/spec/patchPodMetadata", &patch);
    world.settle();
    assert_eq!(world.reason("log").1, "NotInForce");
    assert_eq!(barrier_of(&mut world).whitelist, needed);
    world.tell(Event::WebhookBarrier(Some(known_by(needed))));
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
    assert_eq!(
        world.index.inspect_pod(&pod_name(1))[0].lack,
        Some(&Lack::Missed)
    );
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
    let sets = world.index.inspect_pod(&pod_name(1));
    assert_eq!((sets.len(), sets[0].lack), (1, Some(&Lack::Missed)));
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
    let target = WriteTarget::Revisions("log".to_owned());
    let take = |world: &mut World| {
        let now = world.now();
        let write = world.index.due(&target, now)?;
        world.in_flight.push(InFlight {
            target: target.clone(),
            write: write.clone(),
        });
        world.carry_out(0, true);
        Some(write)
    };
    assert!(matches!(take(&mut world), Some(Write::CreateRevision(_))));
    world.deliver_all();
    assert!(matches!(
        take(&mut world),
        Some(Write::DeleteRevision { .. })
    ));
    // The watch is late.
    assert_eq!(take(&mut world), None);
    let now = world.now();
    let status = WriteTarget::SetStatus("log".to_owned());
    match world.index.due(&status, now) {
        Some(Write::SetStatus { patch, .. }) => {
            let condition = &patch["status"]["conditions"][0];
            assert_eq!(condition["reason"], "InForce", "{condition}");
        }
        other => panic!("{other:?}"),
    }
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
    let snapshot = world.index.take_changed_snapshot().unwrap();
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
    world.pass(10);
    world.create_pod(1, true);
    world.settle();
    assert_eq!((world.image(0), world.image(1)), ("i:2", "i:1"));
    assert_eq!(world.counts("log"), [2, 1, 2]);
    let pod = &world.index.inspect_pod(&pod_name(1))[0];
    assert_eq!(pod.membership.as_ref().unwrap().hold, Some(&Hold::Pinned));
    world.edit("log", "/spec/injectionStrategy", &json!({}));
    world.settle();
    assert_eq!(world.image(1), "i:2");
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

// SCS-46, SCS-50, SCS-53, SDF-42, SDF-44, SDF-50
#[test]
fn pods_are_upgraded_one_after_the_other_by_one_write_each() {
    let mut world = world(3);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    assert!(world.send(0));
    while world.send(0) {}
    let pods = world
        .in_flight
        .iter()
        .filter(|one| matches!(one.write, Write::Pod { .. }));
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

// SCS-50, SCS-55, SDF-32
#[test]
fn a_container_that_only_crashed_keeps_the_place_of_its_pod_until_its_upgrade_must_be_done() {
    let mut world = world(2);
    for pod in 0..2 {
        // The kubelet does not say which generation it has seen.
        world.objects.get_mut(&pod_key(pod)).unwrap()["status"]["observedGeneration"] = Value::Null;
    }
    world.are_kubelets_late = true;
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    let first = (0..2).find(|pod| world.take(*pod).is_some()).unwrap();
    let target = WriteTarget::Pod(pod_name(first));
    world.dirty.insert(target);
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
    assert!(world.dirty.contains(&WriteTarget::Pod(pod_name(1 - first))));
    assert!(world.take(1 - first).is_some());
}

// SCS-57, SDF-35, SDF-55
#[test]
fn a_pod_whose_write_is_refused_holds_up_no_other() {
    let mut world = world(3);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    let first = (0..3).find(|pod| world.take(*pod).is_some()).unwrap();
    let target = WriteTarget::Pod(pod_name(first));
    let write = Write::Pod {
        pod: pod_name(first),
        patch: Box::default(),
    };
    world.tell(Event::Refused(
        target,
        Box::new(write),
        "policy \"p\" forbids it".to_owned(),
    ));
    world.settle();
    assert_eq!(world.counts("log"), [3, 2, 3]);
    let (status, reason, message) = world.reason("log");
    assert_eq!((status, reason), ("False", "WriteRefused"));
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
        let is_pod = |one: &InFlight| matches!(one.write, Write::Pod { .. });
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
fn a_write_that_changes_nothing_is_not_repeated_at_once() {
    let mut world = world(1);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    let target = WriteTarget::Pod(pod_name(0));
    assert!(world.take(0).is_some());
    // An admission webhook has put the pod back as it was: the API server stores nothing.
    world.tell(Event::Written(target));
    assert_eq!(world.take(0), None);
    world.pass(301);
    assert!(world.take(0).is_some());
}

// SCS-47, SCS-66, SCS-68, SDF-39, SDF-47
#[test]
fn pods_that_cannot_be_upgraded_say_so_and_the_set_names_pod_and_field() {
    let mut world = world(2);
    let env = json!([{"name": "A", "value": "b"}]);
    world.edit("log", "/spec/containers/0/env", &env);
    world.settle();
    assert_eq!(world.upgraded(), [] as [String; 0]);
    assert_eq!(world.condition(0).unwrap()["status"], "False");
    assert_eq!(world.condition(0).unwrap()["message"], "{\"log\":false}");
    let (status, reason, message) = world.reason("log");
    assert_eq!((status, reason), ("True", "NotUpgradablePods"));
    assert!(
        message.contains("2 pods")
            && message.contains("shop/web-00, first in containers[log-side].env"),
        "{message}"
    );
    let events = world.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].0, "NotUpgradablePods");
    // The edit is taken back.
    world.edit("log", "/spec/containers/0/env", &Value::Null);
    world.settle();
    assert_eq!(world.condition(0).unwrap()["status"], "True");
    assert_eq!(world.reason("log").1, "InForce");
}

// SCS-31, SDF-41
#[test]
fn pods_that_differ_in_what_is_in_no_hash_are_counted_for_each_part_also_after_an_upgrade() {
    let mut world = world(2);
    let plain = "new pods are injected";
    world.edit("log", "/spec/revisionHistoryLimit", &json!(1));
    world.edit(
        "log",
        "/spec/volumes",
        &json!([{"name": "v", "emptyDir": {}}]),
    );
    world.settle();
    assert_eq!(
        (world.counts("log"), world.reason("log").1),
        ([2, 2, 2], "InForce")
    );
    let message = world.reason("log").2;
    let expected = "; old in what no upgrade changes, until they are re-created: 2 pods in volumes";
    assert_eq!(message, format!("{plain}{expected}"));
    // The images are replaced, and the rest stays as it was injected.
    for image in ["i:2", "i:3"] {
        world.edit("log", "/spec/containers/0/image", &json!(image));
        world.settle();
        assert_eq!(world.counts("log"), [2, 2, 2]);
        assert_eq!(
            world.reason("log").2,
            format!("{plain}{expected}"),
            "{image}"
        );
    }
    world.edit("log", "/spec/imagePullSecrets", &json!([{"name": "s"}]));
    world.delete(&pod_key(0));
    world.settle();
    world.pass(10);
    world.create_pod(0, true);
    world.settle();
    let message = world.reason("log").2;
    assert!(
        message.contains("re-created: 1 pod in imagePullSecrets, 1 pod in volumes"),
        "{message}"
    );
    world.restart();
    assert_eq!(world.settle(), 0);
    world.delete(&pod_key(1));
    world.settle();
    assert_eq!(world.reason("log").2, plain);
}

// SCS-79, SDF-39
#[test]
fn a_deleted_set_changes_no_pod_but_its_condition() {
    let mut world = world(2);
    world.edit("log", "/spec/containers/0/env", &json!([{"name": "A"}]));
    world.settle();
    assert!(world.condition(0).is_some());
    let containers = world.objects[&pod_key(0)]["spec"].clone();
    world.delete(&set_key("log"));
    world.settle();
    assert_eq!(world.condition(0), None);
    let pod = &world.objects[&pod_key(0)];
    assert_eq!(pod["spec"], containers);
    assert_eq!(pod["metadata"]["annotations"][INJECTED_LIST], "log");
    assert_eq!(
        world.index.inspect_pod(&pod_name(0))[0].set,
        SetByName::Gone
    );
    assert_eq!(world.revisions(), []);
}

// SCS-7, SDF-48
#[test]
fn a_set_made_anew_takes_over_no_pods_unless_it_says_so() {
    let mut world = world(2);
    world.delete(&set_key("log"));
    world.settle();
    world.pass(60);
    let mut set = spec("log");
    set["spec"]["containers"][0]["image"] = json!("i:2");
    world.create(&set_key("log"), set);
    world.settle();
    assert_eq!(world.upgraded(), [] as [String; 0]);
    assert_eq!(world.counts("log"), [2, 0, 2]);
    let (status, reason, message) = world.reason("log");
    assert_eq!((status, reason), ("True", "FormerPods"));
    assert!(message.contains(ADOPT_PODS), "{message}");
    world.change(&set_key("log"), |set| {
        set["metadata"]["annotations"][ADOPT_PODS] = json!("true");
    });
    world.settle();
    assert_eq!(world.counts("log"), [2, 2, 2]);
    assert_eq!(world.reason("log").1, "InForce");
}

// SDF-19, SDF-55, SCS-78
#[test]
fn of_two_sets_that_claim_the_same_the_newer_says_conflict_unless_they_are_disjoint() {
    let mut world = world(1);
    world.pass(10);
    let mut other = spec("other");
    other["spec"]["containers"][0]["name"] = json!("log-side");
    world.create(&set_key("other"), other);
    world.settle();
    let (status, reason, message) = world.reason("other");
    assert_eq!((status, reason), ("False", "Conflict"));
    assert!(
        message.contains("SidecarSet log is older and has container \"log-side\" too"),
        "{message}"
    );
    assert_eq!(world.reason("log").1, "InForce");
    world.edit(
        "other",
        "/spec/selector",
        &json!({"matchLabels": {"app": "db"}}),
    );
    world.settle();
    assert_eq!(world.reason("other").1, "InForce");
}

// SCS-78, SDF-19, SDF-55
#[test]
fn a_pod_of_two_sets_that_come_to_claim_the_same_is_left_to_the_older() {
    let mut world = world(0);
    world.create(&set_key("mesh"), spec("mesh"));
    world.settle();
    world.pass(10);
    for pod in 0..2 {
        world.create_pod(pod, true);
    }
    world.settle();
    world.writes.clear();
    // Both are on the pods when the newer comes to have another volume of the same name.
    let volume = |name: &str| json!([{"name": "shared", "emptyDir": {"medium": name}}]);
    world.edit("log", "/spec/volumes", &volume(""));
    world.edit("mesh", "/spec/volumes", &volume("Memory"));
    world.settle();
    let (status, reason, message) = world.reason("mesh");
    assert_eq!((status, reason), ("False", "Conflict"));
    assert!(message.contains("SidecarSet log is older"), "{message}");
    assert_eq!(world.reason("log").1, "InForce");
    let told = world.events();
    let conflicts = told.iter().filter(|(reason, _)| *reason == "Conflict");
    assert_eq!((told.len(), conflicts.count()), (1, 1), "{told:?}");

    world.edit("mesh", "/spec/containers/0/image", &json!("i:2"));
    world.edit("log", "/spec/containers/0/image", &json!("i:3"));
    world.settle();
    assert_eq!(world.counts("mesh"), [2, 0, 2]);
    assert_eq!(world.counts("log"), [2, 2, 2]);
    let sets = world.index.inspect_pod(&pod_name(0));
    let holds = sets.iter().map(|set| set.membership.as_ref().unwrap().hold);
    let holds: Vec<_> = holds.collect();
    assert_eq!(holds, [None, Some(&Hold::Conflict("log".into()))]);
    // The pods can be upgraded in place, so their condition does not say otherwise.
    assert!(
        world
            .condition(0)
            .is_none_or(|condition| condition["status"] == "True")
    );

    world.edit("mesh", "/spec/volumes", &volume(""));
    world.settle();
    assert_eq!(world.counts("mesh"), [2, 2, 2]);
    assert_eq!(world.reason("mesh").1, "InForce");
}

// SDF-54, SDF-55
#[test]
fn a_set_that_breaks_a_rule_is_not_acted_on_and_says_what_is_wrong() {
    let mut world = world(1);
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.edit("log", "/spec/updateStrategy", &json!({"maxUnavailable": 0}));
    world.settle();
    let (status, reason, message) = world.reason("log");
    assert_eq!((status, reason), ("False", "InvalidSpec"));
    assert!(
        message.contains("spec.updateStrategy.maxUnavailable"),
        "{message}"
    );
    assert_eq!(world.status("log").get("inForce"), None);
    assert_eq!((world.counts("log")[0], world.image(0)), (1, "i:1"));
    assert!(world.index.take_changed_snapshot().unwrap().sets.is_empty());
    world.edit("log", "/spec/updateStrategy", &json!({"maxUnavailable": 1}));
    world.settle();
    assert_eq!((world.reason("log").1, world.image(0)), ("InForce", "i:2"));
}

// SDF-17
#[test]
fn annotations_that_the_whitelist_does_not_allow_are_said_with_its_typos() {
    let mut world = world(0);
    let patch = json!([{"annotations": {"a.example/x": "1"}}]);
    world.edit("log", "/spec/patchPodMetadata", &patch);
    world.settle();
    let (status, reason, _) = world.reason("log");
    assert_eq!((status, reason), ("False", "MetadataNotAllowed"));
    let key = (
        WatchedKind::Configuration,
        object("leadsman-system", CONFIGURATION),
    );
    let rule = json!({"rules": [{"allowedAnnotationKeyExpr": ["^a.example/"]}]});
    world.create(
        &key,
        json!({"metadata": {}, "data": {WHITELIST: rule.to_string()}}),
    );
    world.settle();
    assert!(
        world.reason("log").2.contains("allowedAnnotationKeyExpr"),
        "{}",
        world.reason("log").2
    );
    let rule = json!({"rules": [{"allowedAnnotationKeyExprs": ["^a.example/"]}]});
    world.change(&key, |config| {
        config["data"][WHITELIST] = rule.to_string().into();
    });
    world.settle();
    assert_eq!(world.reason("log").1, "InForce");
    world.delete(&key);
    world.settle();
    assert_eq!(world.reason("log").1, "MetadataNotAllowed");
}

// SCS-64, SDF-40
#[test]
fn counts_follow_pods_namespaces_and_labels_also_where_nothing_is_upgraded() {
    let mut world = world(3);
    world.edit("log", "/spec/updateStrategy", &json!({"type": "NotUpdate"}));
    world.edit(
        "log",
        "/spec/namespaceSelector",
        &json!({"matchLabels": {"tier": "gold"}}),
    );
    world.settle();
    assert_eq!(world.counts("log"), [3, 3, 3]);
    world.change(&pod_key(0), |pod| {
        pod["metadata"]["labels"]["app"] = json!("other");
    });
    world.settle();
    assert_eq!(world.counts("log"), [2, 2, 2]);
    world.delete(&pod_key(1));
    world.settle();
    assert_eq!(world.counts("log"), [1, 1, 1]);
    let namespace = (WatchedKind::Namespace, object("", "shop"));
    world.change(&namespace, |value| {
        value["metadata"]["labels"]["tier"] = json!("tin");
    });
    world.settle();
    assert_eq!(world.counts("log"), [0, 0, 0]);
    // It was there, and is taken away by name.
    assert_eq!(world.status("log").get("updatedReadyPods"), None);
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
    let kept = (0..4).map(|pod| {
        let sets = world.index.inspect_pod(&pod_name(pod));
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
    assert_eq!(world.index.inspect_set("log").unwrap().down.len(), 2);
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

// SDF-43
#[test]
fn an_event_of_a_pod_affects_its_own_sets_alone() {
    let mut world = world(3);
    world.create(&set_key("other"), spec("other"));
    world.settle();
    world.dirty.clear();
    world.change(&pod_key(0), |pod| {
        pod["status"]["conditions"][0]["status"] = json!("False");
    });
    world.deliver_all();
    let dirty: Vec<_> = world.dirty.iter().cloned().collect();
    assert_eq!(dirty, [WriteTarget::SetStatus("log".to_owned())]);
}

#[test]
fn a_status_that_the_crd_prunes_is_not_written_again() {
    let mut world = world(1);
    world.tell(Event::FieldsKept(false));
    world.change(&set_key("log"), |set| {
        let status = set["status"].as_object_mut().unwrap();
        status.remove("conditions");
        status.remove("inForce");
    });
    world.deliver_all();
    let now = world.now();
    assert_eq!(
        world
            .index
            .due(&WriteTarget::SetStatus("log".to_owned()), now),
        None
    );
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
    assert_eq!(
        events
            .filter(|write| matches!(write, Write::CreateRevision(_)))
            .count(),
        0
    );
    world.delete(&revisions[0]);
    world.settle();
    let name = world.revisions()[0].1.clone();
    assert_eq!(world.status("log")["latestRevision"], name.as_str());
    assert_eq!(world.status("log")["collisionCount"], 0);
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
    assert!(world.take(0).is_some());
    assert_eq!((world.take(1), world.take(2)), (None, None));
    // The watch shows that it was not, and that something else has happened to it.
    world.change(&pod_key(0), |pod| {
        pod["metadata"]["annotations"]["a"] = json!("b");
    });
    world.deliver_all();
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
            assert!(world.dirty.contains(&WriteTarget::Pod(pod_name(0))));
            assert!(world.take(0).is_some());
        } else {
            // No watch has shown it for minutes: it was not carried out.
            assert!(world.take(1).is_some());
        }
    }
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
    world.dirty.insert(WriteTarget::Pod(pod_name(first)));
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

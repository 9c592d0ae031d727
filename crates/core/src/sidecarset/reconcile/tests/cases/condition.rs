//! What the status and its condition say, and the condition on pods.

use super::*;

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
    assert_eq!(world.sums().not_upgradable, 2);
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

/// The list of conditions is replaced as a whole: one that another client has added meanwhile must not be lost.
// SDF-55
#[test]
fn a_condition_that_another_client_adds_before_a_status_is_written_is_kept() {
    let mut world = world(1);
    world.edit("log", "/spec/updateStrategy", &json!({"paused": true}));
    world.deliver_all();
    let status = status_of("log");
    let place = world.dirty.iter().position(|id| *id == status).unwrap();
    assert!(world.send(place));
    world.change(&set_key("log"), |set| {
        let foreign = json!({
            "type": "example.com/Synced", "status": "True", "reason": "Synced", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let conditions = set["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(foreign);
    });
    world.settle();
    let conditions = world.status("log")["conditions"].as_array().unwrap();
    let types: Vec<_> = conditions.iter().map(|one| &one["type"]).collect();
    assert_eq!(types, ["Ready", "example.com/Synced"]);
    assert!(world.reason("log").2.contains("upgrades are paused"));
}

// SDF-11
#[test]
fn pods_without_a_variable_that_is_transferred_are_counted_and_one_is_named() {
    let mut world = World::new();
    let mut set = spec("log");
    set["spec"]["containers"][0]["transferEnv"] =
        json!([{"sourceContainerName": "app", "envName": "ROLE"}]);
    world.create(&set_key("log"), set);
    world.settle();
    world.pass(10);
    for pod in 0..2 {
        world.create_pod(pod, true);
    }
    world.settle();
    let found = |name: &str| {
        format!(
            "new pods are injected; {name} without a variable of transferEnv: shop/web-01 has no \"ROLE\" from container \"app\""
        )
    };
    let first = found("2 pods").replace("web-01", "web-00");
    assert_eq!(world.reason("log"), ("True", "InForce", &*first));
    // An upgrade of the image changes no variable.
    world.edit("log", "/spec/containers/0/image", &json!("i:2"));
    world.settle();
    assert_eq!(world.reason("log").2, first);
    world.delete(&pod_key(0));
    world.deliver_all();
    world.settle();
    assert_eq!(world.reason("log").2, found("1 pod"));
    // From another container: nothing is known about that.
    let source = "/spec/containers/0/transferEnv/0/sourceContainerName";
    world.edit("log", source, &json!("other"));
    world.settle();
    let message = world.reason("log").2;
    assert!(!message.contains("ROLE"), "{message}");
    world.edit("log", source, &json!("app"));
    world.settle();
    assert_eq!(world.reason("log").2, found("1 pod"));
    // The set transfers another one: nothing is known about that, and nobody asks for the first any more.
    world.edit(
        "log",
        "/spec/containers/0/transferEnv/0/envName",
        &json!("LEVEL"),
    );
    world.settle();
    let message = world.reason("log").2;
    assert!(!message.contains("ROLE"), "{message}");
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
    let inspection = world.inspect();
    assert_eq!(inspection.inspect_pod(&pod_name(0))[0].set, SetByName::Gone);
    assert_eq!(world.revisions(), []);
}

// SCS-79
#[test]
fn a_set_that_waits_for_its_finalizers_upgrades_nothing() {
    let mut world = world(2);
    world.change(&set_key("log"), |set| {
        set["metadata"]["deletionTimestamp"] = json!("2026-01-03T00:00:00Z");
        set["metadata"]["finalizers"] = json!(["example.com/last"]);
        set["spec"]["containers"][0]["image"] = json!("i:2");
    });
    world.deliver_all();
    world.settle();
    assert_eq!(world.upgraded(), [] as [&str; 0]);
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
    assert_eq!(world.sums().former, 2);
    assert!(message.contains(ADOPT_PODS), "{message}");
    world.change(&set_key("log"), |set| {
        set["metadata"]["annotations"][ADOPT_PODS] = json!("true");
    });
    world.settle();
    assert_eq!(world.counts("log"), [2, 2, 2]);
    assert_eq!(world.reason("log").1, "InForce");
}

// SDF-48
#[test]
fn a_pod_that_a_set_upgraded_in_the_second_of_its_creation_is_its_own() {
    for (is_upgraded, former) in [(false, 1), (true, 0)] {
        let mut world = world(1);
        world.delete(&set_key("log"));
        world.settle();
        world.pass(60);
        let mut set = spec("log");
        set["spec"]["containers"][0]["image"] = json!("i:2");
        world.create(&set_key("log"), set);
        let created = world.objects[&set_key("log")]["metadata"]["creationTimestamp"].clone();
        if is_upgraded {
            world.change(&pod_key(0), |pod| {
                for key in [HASH, HASH_WITHOUT_IMAGE] {
                    let entry = &mut pod["metadata"]["annotations"][key];
                    let mut hash: Value = serde_json::from_str(entry.as_str().unwrap()).unwrap();
                    hash["log"]["updateTimestamp"] = created.clone();
                    *entry = json!(hash.to_string());
                }
            });
        }
        world.settle();
        assert_eq!(world.sums().former, former, "{created}");
    }
}

// SCS-78, SDF-19
#[test]
fn a_set_made_anew_while_the_watch_was_cut_is_the_younger_and_in_force_from_then_on() {
    let mut world = world(1);
    world.pass(60);
    let mut other = spec("other");
    other["spec"]["containers"][0]["name"] = json!("log-side");
    world.create(&set_key("other"), other);
    world.settle();
    assert_eq!(world.reason("other").1, "Conflict");
    world.pass(60);
    world.delete(&set_key("log"));
    world.create(&set_key("log"), spec("log"));
    // A list shows the new one, and nothing that the old one was gone.
    world.list();
    world.settle();
    let reasons = ["log", "other"].map(|set| world.reason(set).1);
    assert_eq!(reasons, ["Conflict", "InForce"]);
    let object = &world.objects[&set_key("log")];
    let since = object["status"]["inForce"]["since"].as_str();
    let created = object["metadata"]["creationTimestamp"].as_str();
    assert!(since >= created && created.is_some(), "{object}");
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
    let inspection = world.inspect();
    let sets = inspection.inspect_pod(&pod_name(0));
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
    assert!(world.take_changed_snapshot().unwrap().sets.is_empty());
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
    assert_eq!(dirty, [status_of("log")]);
}

#[test]
fn a_status_that_the_crd_prunes_is_not_written_again() {
    let mut world = world(1);
    world.keep_fields(false);
    world.change(&set_key("log"), |set| {
        let status = set["status"].as_object_mut().unwrap();
        status.remove("conditions");
        status.remove("inForce");
    });
    world.deliver_all();
    assert_eq!(world.take_due(&status_of("log")), None);
}

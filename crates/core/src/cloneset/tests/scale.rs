//! Creation, what is refused, and what others do with pods.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::cluster::{Answer, Cluster, Kind, SET};

// CLS-9, CLS-12, CLS-13, CLS-50, CLD-48
#[test]
fn a_set_gets_its_pods_with_two_writes_each() {
    let cluster = Cluster::with_set(json!({"replicas": 3}));
    assert_eq!(cluster.active().len(), 3);
    assert_eq!(cluster.count_ready(), 3);
    assert_eq!(cluster.writes["cloneset_create_pod"], 3);
    assert_eq!(cluster.writes["cloneset_mark_pod"], 3);
    let revision = &cluster.names(Kind::Revision)[0];
    for name in cluster.active() {
        let pod = cluster.pod(&name);
        let labels = &pod["metadata"]["labels"];
        assert_eq!(labels["controller-revision-hash"], json!(revision));
        let hash = revision.rsplit('-').next().unwrap();
        assert_eq!(labels["pod-template-hash"], json!(hash));
        let id = labels["apps.kruise.io/cloneset-instance-id"]
            .as_str()
            .unwrap();
        assert_eq!((format!("{SET}-{id}"), id.len()), (name.clone(), 5));
        assert_eq!(cluster.state_of(&name), "Normal");
        let owner = &pod["metadata"]["ownerReferences"][0];
        assert_eq!(owner["kind"], "CloneSet");
        assert_eq!(
            pod["spec"]["readinessGates"][0]["conditionType"],
            "InPlaceUpdateReady"
        );
    }
    let status = cluster.status();
    for (field, count) in [
        ("replicas", 3),
        ("readyReplicas", 3),
        ("availableReplicas", 3),
        ("updatedReplicas", 3),
        ("updatedReadyReplicas", 3),
        ("updatedAvailableReplicas", 3),
        ("expectedUpdatedReplicas", 3),
        ("observedGeneration", 1),
        ("collisionCount", 0),
    ] {
        assert_eq!(status[field], count, "{field}: {status}");
    }
    assert_eq!(status["updateRevision"], json!(revision));
    assert_eq!(status["currentRevision"], json!(revision));
    assert_eq!(status["labelSelector"], "app=s");
}

// CLD-1, CLD-2
#[test]
fn a_creation_whose_answer_is_lost_makes_no_pod_too_many() {
    for answer in [Answer::Lost, Answer::DoneAndLost] {
        let mut cluster = Cluster::new();
        cluster.create_set(SET, json!({"replicas": 4}));
        cluster.step();
        // The revision is there, and four creations are under way.
        for _ in 0..4 {
            cluster.answer(answer);
            cluster.turn();
        }
        cluster.settle();
        assert_eq!(cluster.active().len(), 4);
        assert_eq!(cluster.created.len(), 4, "{answer:?}");
        assert!(cluster.deleted.is_empty());
    }
}

// CLS-16
#[test]
fn pods_that_are_deleted_or_fail_are_replaced() {
    let mut cluster = Cluster::with_set(json!({"replicas": 3}));
    let pods = cluster.active();
    cluster.delete_pod(&pods[0]);
    cluster.patch(Kind::Pod, &pods[1], &json!({"status": {"phase": "Failed"}}));
    cluster.settle();
    assert_eq!(cluster.active().len(), 3);
    assert!(
        cluster.get(Kind::Pod, &pods[1]).is_some(),
        "it stays for whoever asks why"
    );
    assert!(!cluster.active().contains(&pods[1]));
}

// CLD-10
#[test]
fn of_many_failed_pods_the_newest_stay() {
    let mut cluster = Cluster::with_set(json!({"replicas": 1}));
    for _ in 0..13 {
        let pod = cluster.active()[0].clone();
        cluster.patch(Kind::Pod, &pod, &json!({"status": {"phase": "Failed"}}));
        for _ in 0..40 {
            cluster.settle();
            if cluster.active().len() == 1 {
                break;
            }
        }
    }
    cluster.settle();
    assert_eq!(cluster.pods().len(), 1 + 10);
}

// CLS-17
#[test]
fn a_pod_that_leaves_the_selector_is_released_and_replaced() {
    let mut cluster = Cluster::with_set(json!({"replicas": 2}));
    let pod = cluster.active()[0].clone();
    cluster.patch(
        Kind::Pod,
        &pod,
        &json!({"metadata": {"labels": {"app": "other"}}}),
    );
    cluster.settle();
    assert_eq!(cluster.active().len(), 3);
    assert_eq!(cluster.pod(&pod)["metadata"]["ownerReferences"], json!([]));
    assert_eq!(cluster.status()["replicas"], 2);
}

// CLD-4, CLD-8, CLD-24
#[test]
fn a_quota_is_said_and_what_it_lets_through_is_created_within_a_minute() {
    let mut cluster = Cluster::new();
    cluster.policy = Box::new(|label, _, _| label == "cloneset_create_pod");
    cluster.create_set(SET, json!({"replicas": 30}));
    cluster.settle();
    assert_eq!(cluster.active().len(), 0);
    assert_eq!(cluster.reasons(), ["Refused"]);
    assert_eq!(cluster.status()["conditions"][0]["type"], "FailedScale");
    let tried = cluster.writes["cloneset_create_pod"];
    for _ in 0..10 {
        cluster.settle();
    }
    // Five minutes and ten names at a time.
    assert!(cluster.writes["cloneset_create_pod"] <= tried + 60);
    cluster.policy = Box::new(|_, _, _| false);
    cluster.wait(Duration::from_mins(1));
    cluster.settle();
    cluster.settle();
    assert_eq!(cluster.active().len(), 30);
    assert!(cluster.reasons().is_empty(), "it goes when it is over");
}

// CLD-4
#[test]
fn one_name_that_is_refused_costs_no_other_pod() {
    let mut cluster = Cluster::new();
    cluster.create_set(SET, json!({"replicas": 5}));
    let refused = std::cell::RefCell::new(None::<String>);
    cluster.policy = Box::new(move |label, name, _| {
        let is_first =
            |first: &mut Option<String>| *first.get_or_insert_with(|| name.to_owned()) == name;
        label == "cloneset_create_pod" && is_first(&mut refused.borrow_mut())
    });
    cluster.settle();
    assert_eq!(cluster.active().len(), 5);
}

// CLS-26
#[test]
fn creations_wait_for_others_where_the_set_says_so() {
    let mut cluster = Cluster::new();
    cluster.create_set(
        SET,
        json!({"replicas": 6, "scaleStrategy": {"maxUnavailable": 2}}),
    );
    cluster.step();
    cluster.step();
    assert_eq!(cluster.active().len(), 2);
    cluster.settle();
    assert_eq!(cluster.active().len(), 6);
}

/// A set that was stored without `replicas`, and edits of it.
// CLD-45
#[test]
fn a_set_that_does_not_say_how_many_has_one() {
    let mut cluster = Cluster::with_set(json!({}));
    assert_eq!(cluster.active().len(), 1);
    cluster.patch(
        Kind::Set,
        SET,
        &json!({"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": null, "minReadySeconds": 1}}),
    );
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.with_image("app:2").len(), 1);
    assert_eq!(cluster.active().len(), 1);
}

// CLD-62
#[test]
fn a_template_with_the_mark_of_deletion_makes_no_pods_without_end() {
    let labels = json!({"app": SET, "apps.kruise.io/specified-delete": "true"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "app:1"}]}});
    let cluster = Cluster::with_set(json!({"replicas": 2, "template": template}));
    assert_eq!((cluster.active().len(), cluster.created.len()), (2, 2));
}

/// A template that is copied from a pod, and cleaned up later, both in place.
// CLD-62
#[test]
fn labels_of_a_set_in_a_template_neither_come_to_its_pods_nor_go_from_them() {
    let mut cluster =
        Cluster::with_set(json!({"replicas": 2, "updateStrategy": {"type": "InPlaceIfPossible"}}));
    let pods = cluster.active();
    let labels = |cluster: &Cluster| {
        let labels = pods.iter();
        let labels = labels.map(|pod| cluster.pod(pod)["metadata"]["labels"].clone());
        let labels = labels.map(|mut labels| {
            labels
                .as_object_mut()
                .unwrap()
                .retain(|key, _| key.contains("kruise"));
            labels
        });
        labels.collect::<Vec<_>>()
    };
    let before = labels(&cluster);
    for value in [json!("x"), json!(null)] {
        let own = json!({"apps.kruise.io/specified-delete": value, "apps.kruise.io/cloneset-instance-id": value,
            "lifecycle.apps.kruise.io/state": value});
        cluster.edit(&json!({"template": {"metadata": {"labels": own}}}));
        cluster.settle();
        assert_eq!(labels(&cluster), before);
        assert_eq!(cluster.status()["updatedReplicas"], 2);
    }
    assert_eq!((cluster.active(), cluster.created.len()), (pods, 2));
}

/// Kubernetes has its own defaults for what a template does not say, and fields that we have never heard of.
// CLD-57, CLD-58
#[test]
fn a_pod_has_what_its_template_has_and_nothing_else() {
    let spec = json!({"containers": [{"name": "main", "image": "app:1", "mood": "calm", "resources": {}}], "hat": {"colour": "red"}});
    let template = json!({"metadata": {"labels": {"app": SET}}, "spec": spec});
    let cluster = Cluster::with_set(json!({"replicas": 1, "template": template}));
    let pod = &cluster.pod(&cluster.active()[0])["spec"];
    assert_eq!(pod["hat"], json!({"colour": "red"}));
    assert_eq!(pod["containers"][0], spec["containers"][0]);
}

// CLS-54
#[test]
fn events_say_what_became_of_which_pod() {
    let mut cluster =
        Cluster::with_set(json!({"replicas": 1, "updateStrategy": {"type": "InPlaceIfPossible"}}));
    let pod = cluster.active()[0].clone();
    cluster.set_image("app:2");
    cluster.settle();
    let revision = cluster.status()["updateRevision"]
        .as_str()
        .unwrap()
        .to_owned();
    cluster.edit(&json!({"replicas": 0}));
    cluster.settle();
    let wanted = [
        ("SuccessfulCreate", format!("succeed to create pod {pod}")),
        (
            "SuccessfulUpdatePodInPlace",
            format!("successfully update pod {pod} in-place(revision {revision})"),
        ),
        ("SuccessfulDelete", format!("succeed to delete pod {pod}")),
    ];
    let told: Vec<_> = cluster
        .told
        .iter()
        .map(|(reason, note)| (&**reason, note.clone()))
        .collect();
    assert_eq!(told, wanted);
}

// CLS-57, CLS-59, CLD-19, CLD-56, CLD-60
#[rstest]
#[case(json!({"selector": {"matchLabels": null}}), "spec.selector: must not be empty")]
#[case(json!({"template": {"metadata": {"labels": {"app": "b"}}}}), "spec.template.metadata.labels: does not match")]
#[case(json!({"template": {"spec": {"restartPolicy": "Never"}}}), "spec.template.spec.restartPolicy: must be Always")]
#[case(json!({"template": {"spec": {"containers": []}}}), "spec.template.spec.containers: must not be empty")]
#[case(json!({"updateStrategy": {"type": "Recreate"}}), "spec.updateStrategy.type: \"Recreate\" is not known")]
#[case(json!({"updateStrategy": {"partition": -1}}), "spec.updateStrategy.partition: must not be negative")]
#[case(json!({"updateStrategy": {"maxSurge": -1}}), "spec.updateStrategy.maxSurge: must not be negative")]
#[case(json!({"replicas": 0, "updateStrategy": {"maxUnavailable": "0%", "maxSurge": 0}}), "spec.updateStrategy.maxUnavailable: must not be 0")]
#[case(json!({"scaleStrategy": {"maxUnavailable": "x"}}), "spec.scaleStrategy.maxUnavailable: \"x\" is neither")]
#[case(json!({"updateStrategy": {"scatterStrategy": [{"key": "", "value": "a"}]}}), "spec.updateStrategy.scatterStrategy[0].key")]
#[case(json!({"updateStrategy": {"priorityStrategy": {"weightPriority": [{"weight": 1, "matchSelector": {}}]}}}), "spec.updateStrategy.priorityStrategy.weightPriority[0]")]
fn what_is_not_valid_is_said_by_its_field_and_nothing_is_done(
    #[case] spec: Value,
    #[case] message: &str,
) {
    let mut cluster = Cluster::with_set(json!({"replicas": 2}));
    let pods = cluster.active();
    cluster.edit(&spec);
    cluster.settle();
    assert_eq!(cluster.reasons(), ["Invalid"]);
    let condition = &cluster.status()["conditions"][0]["message"];
    assert!(
        condition.as_str().unwrap().starts_with(message),
        "{condition}"
    );
    assert_eq!((cluster.active(), cluster.created.len()), (pods, 2));
}

// CLD-5
#[test]
fn a_set_with_a_long_name_gets_its_pods() {
    let name = "a".repeat(60);
    let mut cluster = Cluster::new();
    cluster.create_set(&name, json!({"replicas": 1}));
    cluster.settle();
    let pod = &cluster.active()[0];
    let hash = &cluster.pod(pod)["metadata"]["labels"]["controller-revision-hash"];
    assert!(hash.as_str().unwrap().len() <= 63);
    assert_eq!(cluster.count_ready(), 1);
}

// CLS-63
#[test]
fn a_set_that_is_being_deleted_is_left_alone() {
    let mut cluster = Cluster::with_set(json!({"replicas": 2}));
    cluster.patch(
        Kind::Set,
        SET,
        &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    );
    let pod = cluster.active()[0].clone();
    cluster.delete_pod(&pod);
    cluster.settle();
    assert_eq!(cluster.active().len(), 1);
}

/// A small set does not wait for a large one.
// CLD-51
#[test]
fn a_set_of_ten_has_its_pods_while_one_of_five_thousand_grows() {
    let mut cluster = Cluster::new();
    cluster.create_set("large", json!({"replicas": 5_000}));
    for _ in 0..4 {
        cluster.step();
    }
    assert!(cluster.active().len() < 1_000);
    cluster.create_set("small", json!({"replicas": 10}));
    let before = cluster.writes["cloneset_create_pod"];
    let small = |cluster: &Cluster| {
        cluster
            .active()
            .iter()
            .filter(|pod| pod.starts_with("small"))
            .count()
    };
    while small(&cluster) < 10 {
        assert!(
            cluster.writes["cloneset_create_pod"] < before + 300,
            "{}",
            small(&cluster)
        );
        cluster.step();
    }
}

// CLD-52
#[test]
fn a_revision_without_an_owner_is_adopted() {
    let mut cluster = Cluster::with_set(json!({"replicas": 1}));
    let revision = cluster.names(Kind::Revision)[0].clone();
    cluster.remove(Kind::Set, SET);
    for pod in cluster.pods() {
        cluster.remove(Kind::Pod, &pod);
    }
    cluster.step();
    cluster.step();
    cluster.patch(
        Kind::Revision,
        &revision,
        &json!({"metadata": {"ownerReferences": null}}),
    );
    cluster.create_set(SET, json!({"replicas": 1}));
    cluster.settle();
    assert_eq!(
        cluster.names(Kind::Revision),
        std::slice::from_ref(&revision)
    );
    let owner = &cluster.get(Kind::Revision, &revision).unwrap()["metadata"]["ownerReferences"][0];
    assert_eq!(
        owner["uid"],
        cluster.get(Kind::Set, SET).unwrap()["metadata"]["uid"]
    );
}

/// A new leader writes nothing where all is as it is to be.
#[test]
fn a_new_leader_writes_nothing() {
    let mut cluster = Cluster::with_set(json!({"replicas": 5}));
    let writes = cluster.writes.clone();
    cluster.crash(true);
    cluster.settle();
    assert_eq!(cluster.writes, writes);
}

//! Updates: in place and by other pods.

use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{Cluster, Kind, SET, is_ready};

pub(super) fn in_place(replicas: usize, strategy: &Value) -> Value {
    let mut strategy = strategy.clone();
    strategy["type"] = json!("InPlaceIfPossible");
    json!({"replicas": replicas, "updateStrategy": strategy})
}

fn uids(cluster: &Cluster) -> Vec<Value> {
    let pods = cluster.active().into_iter();
    pods.map(|pod| cluster.pod(&pod)["metadata"]["uid"].clone())
        .collect()
}

/// Lets a roll-out run, and returns the fewest pods that were ready and the most that there were.
fn roll_out(cluster: &mut Cluster, rounds: usize) -> (usize, usize) {
    let (mut least, mut most) = (usize::MAX, 0);
    for _ in 0..rounds {
        cluster.step();
        least = least.min(cluster.count_ready());
        most = most.max(cluster.active().len());
        cluster.run_kubelets();
        cluster.wait(Duration::from_secs(1));
    }
    (least, most)
}

// CLS-22, CLS-37, CLS-40, CLD-49
#[test]
fn pods_are_re_created_within_the_budget_with_three_writes_each() {
    let mut cluster = Cluster::with_set(json!({"replicas": 10}));
    let old = uids(&cluster);
    let before = cluster.writes.clone();
    cluster.set_image("app:2");
    let (least, most) = roll_out(&mut cluster, 60);
    assert_eq!((least, most), (8, 10));
    assert_eq!(cluster.with_image("app:2").len(), 10);
    assert!(uids(&cluster).iter().all(|pod| !old.contains(pod)));
    let writes = |label: &str| cluster.writes[label] - before.get(label).copied().unwrap_or(0);
    assert_eq!(writes("cloneset_create_pod"), 10);
    assert_eq!(writes("cloneset_delete_pod"), 10);
    assert_eq!(writes("cloneset_mark_pod"), 10);
    assert!(!cluster.writes.contains_key("cloneset_update_pod"));
    let status = cluster.status();
    assert_eq!(status["currentRevision"], status["updateRevision"]);
}

// CLS-21
#[test]
fn with_a_surge_nobody_is_missed() {
    let strategy = json!({"maxUnavailable": 0, "maxSurge": 3});
    let mut cluster = Cluster::with_set(json!({"replicas": 6, "updateStrategy": strategy}));
    cluster.set_image("app:2");
    let (least, most) = roll_out(&mut cluster, 60);
    assert_eq!((least, most), (6, 9));
    assert_eq!(cluster.with_image("app:2").len(), 6);
    assert_eq!(cluster.active().len(), 6);
}

// CLS-41, CLS-42, CLS-43, CLD-32, CLD-49
#[test]
fn an_image_is_changed_in_the_pod_with_three_writes() {
    let mut cluster = Cluster::with_set(in_place(5, &json!({"maxUnavailable": 1})));
    let pods = cluster.active();
    let before = cluster.writes.clone();
    cluster.set_image("app:2");
    let (least, most) = roll_out(&mut cluster, 80);
    assert_eq!((least, most), (4, 5));
    assert_eq!(cluster.active(), pods);
    assert_eq!(cluster.with_image("app:2").len(), 5);
    assert_eq!(cluster.writes["cloneset_update_pod"], 5);
    let marks = cluster.writes["cloneset_mark_pod"] - before["cloneset_mark_pod"];
    assert_eq!(marks, 10);
    assert_eq!(cluster.writes["cloneset_create_pod"], 5);
    let update = cluster.status()["updateRevision"].clone();
    for name in &pods {
        let pod = cluster.pod(name);
        assert_eq!(cluster.state_of(name), "Normal");
        assert_eq!(
            pod["metadata"]["labels"]["controller-revision-hash"],
            update
        );
        let state = pod["metadata"]["annotations"]["apps.kruise.io/inplace-update-state"].as_str();
        let state: Value = serde_json::from_str(state.unwrap()).unwrap();
        assert_eq!(state["revision"], update);
        let former = &state["lastContainerStatuses"]["main"]["imageID"];
        assert_eq!(*former, json!("sha256:app:1"));
        assert!(is_ready(pod));
    }
}

/// The images change only after the pod has left service.
#[test]
fn a_pod_is_out_of_service_before_its_image_changes() {
    let mut cluster = Cluster::with_set(in_place(1, &json!({})));
    let pod = cluster.active()[0].clone();
    cluster.set_image("app:2");
    cluster.step();
    cluster.step();
    assert_eq!(cluster.with_image("app:2").len(), 0);
    cluster.run_kubelets();
    assert!(!is_ready(cluster.pod(&pod)));
    cluster.step();
    assert_eq!(cluster.with_image("app:2"), [pod]);
}

// CLD-23
#[test]
fn a_change_of_labels_takes_no_pod_out_of_service() {
    let mut cluster = Cluster::with_set(in_place(4, &json!({})));
    let marks = cluster.writes["cloneset_mark_pod"];
    cluster.edit(
        &json!({"template": {"metadata": {"labels": {"tier": "web"}, "annotations": {"a": "b"}}}}),
    );
    let (least, _) = roll_out(&mut cluster, 30);
    assert_eq!(least, 4);
    for pod in cluster.active() {
        let metadata = &cluster.pod(&pod)["metadata"];
        assert_eq!(
            (&metadata["labels"]["tier"], &metadata["annotations"]["a"]),
            (&json!("web"), &json!("b"))
        );
    }
    assert_eq!(cluster.writes["cloneset_mark_pod"], marks);
}

// CLS-40
#[test]
fn what_cannot_be_changed_in_place_re_creates_the_pod_or_is_said() {
    let env = json!([{"name": "main", "image": "app:1", "env": [{"name": "A", "value": "b"}]}]);
    let template = json!({"template": {"spec": {"containers": env}}});
    let mut cluster = Cluster::with_set(in_place(2, &json!({})));
    let old = uids(&cluster);
    cluster.edit(&template);
    roll_out(&mut cluster, 30);
    assert!(uids(&cluster).iter().all(|pod| !old.contains(pod)));
    let mut cluster =
        Cluster::with_set(json!({"replicas": 2, "updateStrategy": {"type": "InPlaceOnly"}}));
    let old = uids(&cluster);
    cluster.edit(&template);
    roll_out(&mut cluster, 30);
    assert_eq!(uids(&cluster), old);
    assert_eq!(cluster.reasons(), ["NotInPlace"]);
    let message = &cluster.status()["conditions"][0]["message"];
    assert!(
        message.as_str().unwrap().contains("spec.containers[0].env"),
        "{message}"
    );
}

// CLS-20, CLS-5
#[test]
fn a_partition_keeps_pods_and_takes_nobody_back() {
    let mut cluster = Cluster::with_set(in_place(5, &json!({"partition": 3})));
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.with_image("app:2").len(), 2);
    assert_eq!(cluster.status()["expectedUpdatedReplicas"], 2);
    assert_ne!(
        cluster.status()["currentRevision"],
        cluster.status()["updateRevision"]
    );
    cluster.edit(&json!({"updateStrategy": {"partition": 5}}));
    cluster.settle();
    assert_eq!(cluster.with_image("app:2").len(), 2);
    // A pod that goes comes back of the revision that is missing.
    let old = cluster.with_image("app:1")[0].clone();
    cluster.delete_pod(&old);
    cluster.settle();
    assert_eq!(cluster.with_image("app:1").len(), 3);
    cluster.edit(&json!({"updateStrategy": {"partition": "99%"}}));
    cluster.settle();
    assert_eq!(cluster.with_image("app:2").len(), 2);
    cluster.edit(&json!({"updateStrategy": {"partition": 0}}));
    cluster.settle();
    cluster.settle();
    assert_eq!(cluster.with_image("app:2").len(), 5);
}

// CLD-31
#[test]
fn scaling_to_nothing_and_back_does_not_end_a_partition() {
    let mut cluster = Cluster::with_set(in_place(2, &json!({"partition": "99%"})));
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.with_image("app:2").len(), 1);
    cluster.edit(&json!({"replicas": 0}));
    cluster.settle();
    cluster.edit(&json!({"replicas": 4}));
    cluster.settle();
    assert_eq!(
        (
            cluster.with_image("app:1").len(),
            cluster.with_image("app:2").len()
        ),
        (3, 1)
    );
}

// CLS-34
#[test]
fn a_paused_set_updates_nobody_and_creates_pods() {
    let mut cluster = Cluster::with_set(
        json!({"replicas": 3, "updateStrategy": {"paused": true, "maxSurge": 2}}),
    );
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.with_image("app:1").len(), 3);
    let pod = cluster.active()[0].clone();
    cluster.delete_pod(&pod);
    cluster.settle();
    assert_eq!(
        (
            cluster.with_image("app:1").len(),
            cluster.with_image("app:2").len()
        ),
        (2, 1)
    );
}

/// A template that is never ready stops by itself, and going back heals it.
// CLS-38, CLD-21, CLD-54
#[test]
fn a_broken_template_stops_within_the_budget_and_going_back_heals_it() {
    for kind in ["ReCreate", "InPlaceIfPossible"] {
        let strategy = json!({"type": kind, "maxUnavailable": 2});
        let mut cluster = Cluster::with_set(json!({"replicas": 6, "updateStrategy": strategy}));
        cluster.set_image("bad:1");
        cluster.settle();
        cluster.settle();
        assert_eq!(cluster.with_image("bad:1").len(), 2, "{kind}");
        assert_eq!(cluster.count_ready(), 4);
        let good = cluster.with_image("app:1");
        cluster.set_image("app:1");
        cluster.settle();
        cluster.settle();
        assert_eq!(cluster.count_ready(), 6, "{kind}");
        let kept = good
            .iter()
            .filter(|pod| cluster.active().contains(pod))
            .count();
        assert_eq!(kept, 4, "pods that were never touched stay");
        assert_eq!(
            cluster.names(Kind::Revision).len(),
            2,
            "the earlier one is numbered anew"
        );
    }
}

// CLD-22
#[test]
fn a_pod_that_cannot_be_written_costs_no_other_its_update() {
    let mut cluster = Cluster::with_set(in_place(4, &json!({"maxUnavailable": 1})));
    let stubborn = cluster.active()[0].clone();
    let name = stubborn.clone();
    cluster.policy = Box::new(move |label, pod, _| label == "cloneset_update_pod" && pod == name);
    cluster.set_image("app:2");
    for _ in 0..4 {
        cluster.settle();
    }
    assert!(
        cluster.with_image("app:2").len() >= 3,
        "{:?}",
        cluster.with_image("app:2")
    );
    assert_eq!(cluster.reasons(), ["Refused"]);
    cluster.policy = Box::new(|_, _, _| false);
    cluster.wait(Duration::from_mins(5));
    cluster.settle();
    cluster.settle();
    assert_eq!(cluster.with_image("app:2").len(), 4);
    assert_eq!((cluster.reasons().len(), cluster.count_ready()), (0, 4));
}

// CLS-44, CLD-55
#[test]
fn the_newest_image_is_written_once_when_the_grace_period_ends() {
    let strategy = json!({"inPlaceUpdateStrategy": {"gracePeriodSeconds": 20}});
    let mut cluster = Cluster::with_set(in_place(1, &strategy));
    cluster.set_image("app:2");
    let mut seen = Vec::new();
    for second in 0..60 {
        cluster.step();
        cluster.run_kubelets();
        cluster.wait(Duration::from_secs(1));
        if second == 8 {
            cluster.set_image("app:3");
        }
        let pod = &cluster.active()[0];
        let image = cluster.pod(pod)["spec"]["containers"][0]["image"]
            .as_str()
            .unwrap();
        if seen.last().is_none_or(|(last, _)| last != image) {
            seen.push((image.to_owned(), second));
        }
    }
    let images: Vec<_> = seen.iter().map(|(image, _)| &**image).collect();
    assert_eq!(images, ["app:1", "app:3"], "{seen:?}");
    assert!((18..26).contains(&seen[1].1), "{seen:?}");
    assert_eq!(cluster.count_ready(), 1);
}

// CLS-46, CLD-27
#[test]
fn an_update_is_done_where_the_content_of_the_image_is_equal() {
    let mut cluster = Cluster::with_set(in_place(1, &json!({})));
    let pod = cluster.active()[0].clone();
    cluster.set_image("app:2");
    for _ in 0..3 {
        cluster.step();
        cluster.run_kubelets();
        cluster.wait(Duration::from_secs(1));
    }
    // The runtime reports the earlier name and the same content, in another container.
    let container = |id: &str| {
        json!({"status": {"containerStatuses": [{"name": "main", "image": "docker.io/library/app:1",
        "imageID": "sha256:app:1", "containerID": id, "state": {"running": {}}}]}})
    };
    cluster.patch(Kind::Pod, &pod, &container("id://new"));
    for _ in 0..50 {
        cluster.step();
        cluster.wait(Duration::from_secs(1));
    }
    assert_eq!(cluster.state_of(&pod), "Normal");
}

// CLS-36
#[test]
fn priorities_and_what_serves_least_come_first() {
    let weights = json!([{"weight": 10, "matchSelector": {"matchLabels": {"first": "yes"}}}]);
    let strategy = json!({"partition": 3, "priorityStrategy": {"weightPriority": weights}});
    let mut cluster = Cluster::with_set(in_place(4, &strategy));
    let first = cluster.active()[2].clone();
    cluster.patch(
        Kind::Pod,
        &first,
        &json!({"metadata": {"labels": {"first": "yes"}}}),
    );
    cluster.settle();
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.with_image("app:2"), [first]);
}

// CLS-36
#[test]
fn pods_with_a_label_are_spread() {
    let strategy = json!({"partition": 4, "maxUnavailable": "100%", "scatterStrategy": [{"key": "side", "value": "*"}]});
    let mut cluster = Cluster::with_set(in_place(8, &strategy));
    for (index, pod) in cluster.active().into_iter().enumerate() {
        let side = if index < 4 { "left" } else { "right" };
        cluster.patch(
            Kind::Pod,
            &pod,
            &json!({"metadata": {"labels": {"side": side}}}),
        );
    }
    cluster.settle();
    cluster.set_image("app:2");
    cluster.settle();
    let updated = cluster.with_image("app:2");
    let left = updated
        .iter()
        .filter(|pod| cluster.pod(pod)["metadata"]["labels"]["side"] == "left");
    assert_eq!((updated.len(), left.count()), (4, 2));
}

// CLS-8, CLS-11
#[test]
fn revisions_beyond_the_limit_go_and_those_in_use_stay() {
    let mut cluster = Cluster::with_set(json!({"replicas": 1, "revisionHistoryLimit": 2}));
    for version in 2..8 {
        cluster.set_image(&format!("app:{version}"));
        cluster.settle();
    }
    cluster.settle();
    assert_eq!(cluster.names(Kind::Revision).len(), 3);
    cluster.edit(&json!({"revisionHistoryLimit": 0}));
    cluster.settle();
    assert_eq!(cluster.names(Kind::Revision).len(), 1);
}

// CLD-30
#[test]
fn a_pod_that_has_left_service_comes_back_where_the_partition_is_met() {
    let strategy = json!({"partition": 1, "inPlaceUpdateStrategy": {"gracePeriodSeconds": 60}});
    let mut cluster = Cluster::with_set(in_place(2, &strategy));
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.count_ready(), 1);
    // An old one is deleted and comes back new, or the edit is taken back.
    cluster.edit(&json!({"updateStrategy": {"partition": 2}}));
    cluster.settle();
    assert_eq!(
        (cluster.count_ready(), cluster.with_image("app:1").len()),
        (2, 2)
    );
    assert_eq!(
        cluster.get(Kind::Set, SET).unwrap()["status"]["readyReplicas"],
        2
    );
}

// CLS-10, CLD-31
#[test]
fn the_current_revision_is_the_one_before_until_all_pods_are_new() {
    let mut cluster = Cluster::with_set(in_place(3, &json!({"partition": 2})));
    let revision = |cluster: &Cluster, of: &str| cluster.status()[of].as_str().unwrap().to_owned();
    let first = revision(&cluster, "currentRevision");
    cluster.set_image("app:2");
    cluster.settle();
    let second = revision(&cluster, "updateRevision");
    assert_eq!(revision(&cluster, "currentRevision"), first);
    // A third template: the current one stays the first.
    cluster.set_image("app:3");
    cluster.settle();
    assert_ne!(revision(&cluster, "updateRevision"), second);
    assert_eq!(revision(&cluster, "currentRevision"), first);
    // Readiness does not matter, the number does.
    cluster.set_image("bad:1");
    cluster.edit(&json!({"updateStrategy": {"partition": 0, "maxUnavailable": "100%"}}));
    cluster.settle();
    assert_eq!(cluster.count_ready(), 0);
    assert_eq!(
        revision(&cluster, "currentRevision"),
        revision(&cluster, "updateRevision")
    );
}

// CLD-61
#[test]
fn a_revision_that_somebody_deletes_ends_no_partition() {
    let mut cluster = Cluster::with_set(in_place(4, &json!({"partition": 3})));
    let first = cluster.status()["currentRevision"]
        .as_str()
        .unwrap()
        .to_owned();
    cluster.set_image("app:2");
    cluster.settle();
    cluster.remove(Kind::Revision, &first);
    cluster.settle();
    assert_eq!(cluster.with_image("app:1").len(), 3);
    // Its template is nowhere: who goes comes back new.
    let old = cluster.with_image("app:1")[0].clone();
    cluster.delete_pod(&old);
    cluster.settle();
    assert_eq!(
        (
            cluster.with_image("app:1").len(),
            cluster.with_image("app:2").len()
        ),
        (2, 2)
    );
    assert_eq!(cluster.created.len(), 5);
}

// CLS-18
#[test]
fn only_the_template_makes_a_revision() {
    let mut cluster = Cluster::with_set(in_place(3, &json!({})));
    let pods = uids(&cluster);
    cluster.edit(&json!({
        "minReadySeconds": 5,
        "revisionHistoryLimit": 3,
        "updateStrategy": {"type": "ReCreate", "partition": 1, "maxUnavailable": 2, "maxSurge": 1},
        "scaleStrategy": {"maxUnavailable": 1},
        "lifecycle": {"preDelete": {"finalizersHandler": ["a/b"]}},
    }));
    cluster.settle();
    assert_eq!(
        (cluster.names(Kind::Revision).len(), uids(&cluster)),
        (1, pods)
    );
    assert_eq!(cluster.status()["observedGeneration"], 2);
}

// CLS-35
#[test]
fn a_pod_that_is_held_before_its_deletion_is_not_updated() {
    let mut spec = in_place(3, &json!({"maxUnavailable": "100%"}));
    spec["lifecycle"] = json!({"preDelete": {"labelsHandler": {"drain": "yes"}}});
    let mut cluster = Cluster::with_set(spec);
    let held = cluster.active()[0].clone();
    let labels = json!({"drain": "yes", "apps.kruise.io/specified-delete": "true"});
    cluster.patch(Kind::Pod, &held, &json!({"metadata": {"labels": labels}}));
    cluster.settle();
    assert_eq!(cluster.state_of(&held), "PreparingDelete");
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.with_image("app:1"), [held]);
    assert_eq!(cluster.with_image("app:2").len(), 2);
}

// CLS-51
#[test]
fn the_numbers_of_a_status_are_those_of_its_generation() {
    let mut cluster = Cluster::with_set(json!({"replicas": 5}));
    for (generation, partition) in [(2, 1), (3, 4), (4, 2)] {
        cluster.edit(&json!({"updateStrategy": {"partition": partition}}));
        let mut is_observed = false;
        for _ in 0..20 {
            cluster.step();
            let status = cluster.status();
            is_observed = status["observedGeneration"] == generation;
            assert!(
                !is_observed || status["expectedUpdatedReplicas"] == 5 - partition,
                "{status}"
            );
            cluster.wait(Duration::from_millis(500));
        }
        assert!(is_observed);
    }
}

// CLS-44, CLD-35
#[test]
fn another_leader_ends_a_grace_period_when_it_is_over() {
    let strategy = json!({"inPlaceUpdateStrategy": {"gracePeriodSeconds": 20}});
    let mut cluster = Cluster::with_set(in_place(1, &strategy));
    cluster.set_image("app:2");
    let mut updated_at = None;
    for second in 0..40 {
        cluster.step();
        cluster.run_kubelets();
        cluster.wait(Duration::from_secs(1));
        if second == 8 {
            cluster.crash(true);
        }
        let is_updated = !cluster.with_image("app:2").is_empty();
        updated_at = updated_at.or(is_updated.then_some(second));
    }
    assert!((18..26).contains(&updated_at.unwrap()), "{updated_at:?}");
    assert_eq!(cluster.count_ready(), 1);
}

// CLS-22
#[test]
fn in_place_with_a_surge_as_many_are_there_in_the_end_and_nobody_is_missed() {
    let mut cluster = Cluster::with_set(in_place(5, &json!({"maxUnavailable": 0, "maxSurge": 2})));
    cluster.set_image("app:2");
    let (least, most) = roll_out(&mut cluster, 80);
    assert_eq!((least, most), (5, 7));
    assert_eq!(
        (cluster.with_image("app:2").len(), cluster.active().len()),
        (5, 5)
    );
    assert_eq!(cluster.created.len(), 7);
}

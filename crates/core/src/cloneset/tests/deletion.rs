//! Which pods are deleted, and what keeps them.

use serde_json::{Value, json};

use super::cluster::{Answer, Cluster, KINDS, Kind, SET};

fn label(cluster: &mut Cluster, pod: &str, key: &str, value: &Value) {
    cluster.patch(
        Kind::Pod,
        pod,
        &json!({"metadata": {"labels": {key: value}}}),
    );
}

fn cost(cluster: &mut Cluster, pod: &str, cost: &str) {
    let annotations = json!({"controller.kubernetes.io/pod-deletion-cost": cost});
    cluster.patch(
        Kind::Pod,
        pod,
        &json!({"metadata": {"annotations": annotations}}),
    );
}

// CLS-27
#[test]
fn what_serves_least_goes_first() {
    let mut cluster = Cluster::with_set(json!({"replicas": 6}));
    let pods = cluster.active();
    cluster.patch(Kind::Pod, &pods[1], &json!({"spec": {"nodeName": null}}));
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    cluster.patch(Kind::Pod, &pods[2], &unready);
    cost(&mut cluster, &pods[3], "-5");
    cost(&mut cluster, &pods[4], "7");
    cluster.edit(&json!({"replicas": 2}));
    cluster.step();
    let deleted = &cluster.deleted;
    assert_eq!(deleted.len(), 4);
    assert!(deleted.contains(&pods[1]) && deleted.contains(&pods[2]) && deleted.contains(&pods[3]));
    assert!(!deleted.contains(&pods[4]), "it costs most");
}

// CLS-28
#[test]
fn of_equal_pods_those_go_whose_node_has_more() {
    let mut cluster = Cluster::with_set(json!({"replicas": 4}));
    let pods = cluster.active();
    for (pod, node) in pods.iter().zip(["a", "a", "a", "b"]) {
        cluster.patch(Kind::Pod, pod, &json!({"spec": {"nodeName": node}}));
    }
    cluster.edit(&json!({"replicas": 2}));
    cluster.step();
    assert!(!cluster.deleted.contains(&pods[3]), "{:?}", cluster.deleted);
}

// CLS-25, CLD-18, CLD-46
#[test]
fn named_pods_go_instead_of_others_or_are_replaced() {
    let mut cluster = Cluster::with_set(json!({"replicas": 4}));
    let pods = cluster.active();
    let named = json!([pods[1], "s-gone", pods[2]]);
    cluster.edit(&json!({"replicas": 3, "scaleStrategy": {"podsToDelete": named}}));
    cluster.settle();
    assert_eq!(cluster.active().len(), 3);
    let mut deleted = cluster.deleted.clone();
    deleted.sort();
    assert_eq!(deleted, [pods[1].clone(), pods[2].clone()]);
    let set = cluster.get(Kind::Set, SET).unwrap();
    assert_eq!(
        set["spec"]["scaleStrategy"]["podsToDelete"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    label(
        &mut cluster,
        &pods[0],
        "apps.kruise.io/specified-delete",
        &json!("x"),
    );
    cluster.settle();
    assert_eq!(cluster.active().len(), 3);
    assert!(cluster.deleted.contains(&pods[0]));
}

// CLS-22
#[test]
fn named_pods_go_within_the_budget() {
    let mut cluster =
        Cluster::with_set(json!({"replicas": 4, "updateStrategy": {"maxUnavailable": 1}}));
    let pods = cluster.active();
    cluster.edit(&json!({"scaleStrategy": {"podsToDelete": pods}}));
    for _ in 0..40 {
        cluster.step();
        assert!(cluster.count_ready() >= 3);
        cluster.run_kubelets();
        cluster.wait(std::time::Duration::from_secs(1));
    }
    assert!(pods.iter().all(|pod| cluster.deleted.contains(pod)));
    assert_eq!(cluster.count_ready(), 4);
}

// CLS-21
#[test]
fn a_named_pod_goes_after_its_stand_in_is_there_where_none_may_be_missed() {
    let strategy = json!({"maxUnavailable": 0, "maxSurge": 1});
    let mut cluster = Cluster::with_set(json!({"replicas": 3, "updateStrategy": strategy}));
    let pod = cluster.active()[0].clone();
    label(
        &mut cluster,
        &pod,
        "apps.kruise.io/specified-delete",
        &json!("true"),
    );
    for _ in 0..20 {
        cluster.step();
        assert!(cluster.count_ready() >= 3);
        cluster.run_kubelets();
        cluster.wait(std::time::Duration::from_secs(1));
    }
    assert!(cluster.deleted.contains(&pod));
    assert_eq!(cluster.active().len(), 3);
}

// CLD-12
#[test]
fn young_pods_that_are_too_many_go_without_a_budget() {
    let mut cluster = Cluster::with_set(json!({"replicas": 5, "minReadySeconds": 9999}));
    assert_eq!(cluster.status()["availableReplicas"], 0);
    cluster.edit(&json!({"replicas": 3}));
    cluster.settle();
    assert_eq!(cluster.active().len(), 3);
}

// CLD-13
#[test]
fn with_a_share_of_old_pods_none_that_serves_goes_before_one_that_does_not() {
    let strategy =
        json!({"partition": "50%", "type": "InPlaceIfPossible", "maxUnavailable": "100%"});
    let mut cluster = Cluster::with_set(json!({"replicas": 4, "updateStrategy": strategy}));
    cluster.set_image("app:2");
    cluster.settle();
    let old = cluster.with_image("app:1");
    assert_eq!(old.len(), 2);
    for pod in &old {
        let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        cluster.patch(Kind::Pod, pod, &unready);
    }
    cluster.watch(Kind::Pod, usize::MAX);
    cluster.edit(&json!({"replicas": 2, "updateStrategy": {"paused": true}}));
    cluster.step();
    let mut deleted = cluster.deleted.clone();
    deleted.sort();
    assert_eq!(deleted, old);
}

// CLD-13
#[test]
fn with_a_share_of_old_pods_and_a_surge_the_roll_out_ends() {
    for surge in 1..3 {
        let strategy = json!({"partition": "50%", "maxSurge": surge, "maxUnavailable": 0});
        let mut cluster = Cluster::with_set(json!({"replicas": 5, "updateStrategy": strategy}));
        cluster.set_image("app:2");
        cluster.settle();
        assert_eq!(cluster.with_image("app:2").len(), 2);
        assert_eq!((cluster.active().len(), cluster.created.len()), (5, 7));
        assert!(cluster.reasons().is_empty());
    }
}

// CLD-63
#[test]
fn a_surge_stays_where_old_pods_may_not_be_deleted() {
    let strategy = json!({"maxUnavailable": 0, "maxSurge": 2});
    let mut cluster = Cluster::with_set(json!({"replicas": 5, "updateStrategy": strategy}));
    // As many as the surge: once all others are new, nothing else is left to update.
    let old = cluster.active()[..2].to_vec();
    cluster.policy = Box::new(move |label, pod, _| {
        label == "cloneset_delete_pod" && old.iter().any(|one| one == pod)
    });
    cluster.set_image("app:2");
    for _ in 0..5 {
        cluster.settle();
        cluster.wait(std::time::Duration::from_mins(6));
    }
    assert_eq!(
        (cluster.active().len(), cluster.created.len()),
        (6, 9),
        "the last two stay beside four new ones, each created once"
    );
    cluster.policy = Box::new(|_, _, _| false);
    for _ in 0..3 {
        cluster.wait(std::time::Duration::from_mins(6));
        cluster.settle();
    }
    assert_eq!(cluster.with_image("app:2").len(), 5);
}

// CLS-22
#[test]
fn a_named_pod_that_is_missed_already_takes_the_place_of_another_named_one() {
    let mut cluster =
        Cluster::with_set(json!({"replicas": 5, "updateStrategy": {"maxUnavailable": 1}}));
    let pods = cluster.active();
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    cluster.patch(Kind::Pod, &pods[0], &unready);
    cluster.watch(Kind::Pod, usize::MAX);
    cluster.edit(&json!({"scaleStrategy": {"podsToDelete": &pods[..2]}}));
    cluster.step();
    assert_eq!(cluster.deleted, pods[..1]);
}

// CLS-22
#[test]
fn a_named_pod_that_is_refused_keeps_no_other_from_going() {
    let mut cluster =
        Cluster::with_set(json!({"replicas": 5, "updateStrategy": {"maxUnavailable": 1}}));
    let pods = cluster.active();
    let first = pods[0].clone();
    cluster.policy = Box::new(move |label, pod, _| label == "cloneset_delete_pod" && pod == first);
    cluster.edit(&json!({"scaleStrategy": {"podsToDelete": &pods[..2]}}));
    cluster.settle();
    assert_eq!(cluster.deleted, pods[1..2]);
}

/// Pods that nobody has asked to go: 20 of a set of 20 are shown as its own.
// CLD-63
#[test]
fn pods_that_nobody_wants_deleted_stop_the_set_which_says_so() {
    let mut cluster = Cluster::with_set(json!({"replicas": 20}));
    let strangers: Vec<_> = (0..20).map(|number| format!("s-other{number}")).collect();
    let adopt = |cluster: &mut Cluster| {
        for (name, like) in strangers.iter().zip(cluster.active()) {
            let mut pod = cluster.pod(&like).clone();
            pod["metadata"]["name"] = json!(name);
            cluster.create(Kind::Pod, name, pod);
        }
    };
    adopt(&mut cluster);
    cluster.settle();
    assert_eq!(
        cluster.deleted.len(),
        10,
        "as many as may be too many by a change of leaders"
    );
    assert_eq!(cluster.reasons(), ["TooManyDeletions"]);
    // Neither time nor another leader lets them go.
    cluster.wait(std::time::Duration::from_mins(30));
    cluster.crash(true);
    cluster.settle();
    assert_eq!(cluster.deleted.len(), 10);
    assert_eq!(cluster.reasons(), ["TooManyDeletions"]);
    cluster.edit(&json!({"replicas": 21}));
    cluster.settle();
    assert_eq!(cluster.active().len(), 21);
    assert!(cluster.reasons().is_empty());
}

// CLD-63
#[test]
fn an_edit_lets_as_many_go_as_it_says() {
    let mut cluster = Cluster::with_set(json!({"replicas": 100}));
    while cluster.active().len() < 100 {
        cluster.settle();
    }
    cluster.edit(&json!({"replicas": 1}));
    // Half of them, then another leader.
    cluster.step();
    assert!(cluster.deleted.len() >= 40);
    cluster.crash(false);
    cluster.settle();
    cluster.settle();
    assert_eq!(cluster.active().len(), 1);
    assert!(cluster.reasons().is_empty());
}

// CLS-58, CLD-46
#[test]
fn a_name_that_is_there_twice_counts_once() {
    let mut cluster = Cluster::with_set(json!({"replicas": 3}));
    let pod = cluster.active()[1].clone();
    let names = json!([&pod, "s-nobody", &pod]);
    cluster.edit(&json!({"scaleStrategy": {"podsToDelete": names}}));
    cluster.settle();
    assert_eq!(cluster.deleted, [pod]);
    assert_eq!((cluster.active().len(), cluster.created.len()), (3, 4));
}

// CLD-14
#[test]
fn a_pod_that_somebody_has_made_anew_is_not_deleted() {
    let mut cluster = Cluster::with_set(json!({"replicas": 1}));
    let pod = cluster.active()[0].clone();
    cluster.edit(&json!({"replicas": 0}));
    for kind in KINDS {
        cluster.watch(kind, usize::MAX);
    }
    cluster.turn();
    assert_eq!(cluster.writes["cloneset_delete_pod"], 1);
    // The deletion is under way, and meets another pod of the name.
    cluster.remove(Kind::Pod, &pod);
    let theirs = json!({"metadata": {"name": pod, "namespace": "ns"}, "spec": {"nodeName": "n"}});
    cluster.create(Kind::Pod, &pod, theirs);
    for kind in KINDS {
        cluster.answer(Answer::Done);
        cluster.watch(kind, usize::MAX);
    }
    let there = cluster.get(Kind::Pod, &pod).unwrap();
    assert!(there["metadata"].get("deletionTimestamp").is_none());
    assert!(cluster.deleted.is_empty());
}

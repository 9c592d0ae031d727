//! What holds all the while that a roll-out goes on.

use std::time::Duration;

use serde_json::json;

use super::cluster::{Cluster, Kind};
use super::update::in_place;

// CLD-33
#[test]
fn no_image_changes_while_the_gate_is_open() {
    let mut cluster = Cluster::with_set(in_place(1, &json!({})));
    let pod = cluster.active()[0].clone();
    let condition = |type_: &str, status: &str| json!({"status": {"conditions": [{"type": type_, "status": status}]}});
    let is_open = |cluster: &Cluster| {
        let conditions = cluster.pod(&pod)["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|one| one["type"] == "InPlaceUpdateReady" && one["status"] == "True")
    };
    cluster.set_image("app:2");
    cluster.step();
    cluster.step();
    assert!(!is_open(&cluster));
    // Somebody opens it again before the kubelet has heard of it, and the pod serves.
    cluster.patch(Kind::Pod, &pod, &condition("InPlaceUpdateReady", "True"));
    let mut closed = 0;
    while cluster.with_image("app:2").is_empty() {
        closed += 1;
        assert!(closed < 20, "it goes on");
        cluster.step();
        cluster.run_kubelets();
        cluster.wait(Duration::from_secs(1));
        assert!(cluster.with_image("app:2").is_empty() || !is_open(&cluster));
    }
    assert!(closed > 1, "it was closed again before");
}

// CLD-34
#[test]
fn the_surge_stays_until_the_last_batch() {
    let strategy = json!({"maxUnavailable": 0, "maxSurge": "25%"});
    let mut cluster = Cluster::with_set(json!({"replicas": 8, "updateStrategy": strategy}));
    cluster.set_image("app:2");
    let mut batches = vec![0];
    for _ in 0..80 {
        cluster.step();
        let updated = cluster.with_image("app:2").len();
        if batches.last() != Some(&updated) {
            batches.push(updated);
        }
        assert!((8..=10).contains(&cluster.active().len()));
        cluster.run_kubelets();
        cluster.wait(Duration::from_secs(1));
    }
    assert_eq!(batches, [0, 2, 4, 6, 8]);
    assert_eq!((cluster.active().len(), cluster.count_ready()), (8, 8));
}

// CLD-37
#[test]
fn what_is_not_known_of_a_pod_stays() {
    let mut cluster = Cluster::with_set(in_place(1, &json!({})));
    let pod = cluster.active()[0].clone();
    let newer = json!({"spec": {"newField": {"a": 1}}, "status": {"observedGeneration": 7}});
    cluster.patch(Kind::Pod, &pod, &newer);
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.with_image("app:2"), std::slice::from_ref(&pod));
    let pod = cluster.pod(&pod);
    assert_eq!(pod["spec"]["newField"], json!({"a": 1}));
    assert_eq!(pod["status"]["observedGeneration"], 7);
}

//! Roll-outs with a deadline.

use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::Cluster;

fn with_deadline(seconds: i64) -> Cluster {
    Cluster::with_set(json!({"replicas": 3, "progressDeadlineSeconds": seconds,
        "updateStrategy": {"maxUnavailable": 1}}))
}

fn condition(cluster: &Cluster) -> Value {
    let conditions = cluster.status()["conditions"].as_array().cloned();
    let mut conditions = conditions.unwrap_or_default().into_iter();
    conditions
        .find(|one| one["type"] == "Progressing")
        .unwrap_or_default()
}

/// Status and reason.
fn progress(cluster: &Cluster) -> (String, String) {
    let condition = condition(cluster);
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

#[track_caller]
fn check(cluster: &Cluster, status: &str, reason: &str) {
    let expected = (status.to_owned(), reason.to_owned());
    assert_eq!(progress(cluster), expected, "{}", cluster.status());
}

/// Everything is carried out, and nothing runs.
fn pass(cluster: &mut Cluster, seconds: u64) {
    for _ in 0..seconds {
        cluster.step();
        cluster.wait(Duration::from_secs(1));
    }
}

// CLS-53
#[test]
fn a_roll_out_says_how_far_it_is() {
    let mut cluster = with_deadline(600);
    check(&cluster, "True", "CloneSetAvailable");
    assert_eq!(condition(&cluster)["message"], "CloneSet is available");
    cluster.edit(&json!({"updateStrategy": {"partition": 2}}));
    cluster.set_image("app:2");
    pass(&mut cluster, 3);
    check(&cluster, "True", "CloneSetUpdated");
    cluster.settle();
    check(&cluster, "True", "ProgressPartitionAvailable");
    cluster.edit(&json!({"updateStrategy": {"partition": 0, "paused": true}}));
    cluster.settle();
    check(&cluster, "True", "CloneSetPaused");
    cluster.edit(&json!({"updateStrategy": {"paused": false}}));
    cluster.settle();
    cluster.settle();
    check(&cluster, "True", "CloneSetAvailable");
    let writes = cluster.writes.clone();
    cluster.wait(Duration::from_mins(20));
    cluster.settle();
    assert_eq!(cluster.writes, writes, "written without need");
}

// CLS-53
#[test]
fn without_a_deadline_nothing_is_said() {
    for spec in [json!({}), json!({"progressDeadlineSeconds": i32::MAX})] {
        assert_eq!(condition(&Cluster::with_set(spec)), Value::Null);
    }
}

// CLS-53, CLD-26
#[test]
fn a_roll_out_without_progress_times_out_and_goes_on() {
    let mut cluster = with_deadline(20);
    // What was before the edit does not count.
    cluster.wait(Duration::from_mins(10));
    cluster.set_image("bad:1");
    pass(&mut cluster, 5);
    check(&cluster, "True", "CloneSetUpdated");
    for _ in 0..4 {
        cluster.settle();
    }
    check(&cluster, "False", "ProgressDeadlineExceeded");
    let revision = cluster.status()["updateRevision"].as_str().unwrap();
    let message = format!("CloneSet revision {revision} has timed out progressing");
    assert_eq!(condition(&cluster)["message"], message);
    assert_eq!(cluster.reasons(), ["ProgressDeadlineExceeded"]);
    // It stops nothing, and another template begins anew.
    cluster.set_image("app:3");
    pass(&mut cluster, 5);
    check(&cluster, "True", "CloneSetUpdated");
    cluster.settle();
    cluster.settle();
    check(&cluster, "True", "CloneSetAvailable");
}

// CLD-26
#[test]
fn each_pod_that_is_updated_is_progress() {
    let mut cluster = with_deadline(30);
    cluster.set_image("app:2");
    // One pod after the other, each in less than the deadline, all in more.
    let mut ends = 0;
    while cluster.with_image("app:2").len() < 3 || cluster.count_ready() < 3 {
        pass(&mut cluster, 12);
        cluster.run_kubelets();
        ends += 1;
        assert!(
            ends < 30 && progress(&cluster).0 == "True",
            "{}",
            cluster.status()
        );
    }
    assert!(ends * 12 > 30);
}

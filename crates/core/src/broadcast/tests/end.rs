//! How jobs end, and what fails.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::cluster::{Answer, Cluster, JOB, KINDS, Kind};
use super::{fail, on_failure, succeed, uid_of};

fn condition(type_: &str, message: &str) -> (String, String) {
    (type_.to_owned(), message.to_owned())
}

// BCJ-2, BCJ-13
#[test]
fn a_job_is_complete_when_each_node_has_had_its_pod() {
    let mut cluster = Cluster::with_job(json!({}));
    assert_eq!(cluster.status(), ("running".to_owned(), [3, 0, 0, 3]));
    succeed(&mut cluster, &["n1", "n2"]);
    assert_eq!(cluster.status(), ("running".to_owned(), [1, 2, 0, 3]));
    succeed(&mut cluster, &["n3"]);
    assert_eq!(cluster.status(), ("completed".to_owned(), [0, 3, 0, 3]));
    let message = "Job completed, 3 pods succeeded, 0 pods failed";
    assert_eq!(cluster.condition(), Some(condition("Complete", message)));
    let status = &cluster.job()["status"];
    let condition = &status["conditions"][0];
    assert_eq!(status["startTime"], "2026-11-18T11:06:40Z");
    for time in [
        &condition["lastProbeTime"],
        &condition["lastTransitionTime"],
    ] {
        assert_eq!(*time, status["completionTime"]);
    }
    assert_eq!(
        (&condition["reason"], &condition["status"]),
        (&json!("Complete"), &json!("True"))
    );
}

// BCJ-13
#[test]
fn without_a_node_a_job_waits() {
    let mut cluster = Cluster::new();
    cluster.create_job(json!({}));
    cluster.settle();
    assert_eq!(cluster.status(), ("running".to_owned(), [0, 0, 0, 0]));
    cluster.add_node("n1");
    cluster.settle();
    succeed(&mut cluster, &["n1"]);
    assert_eq!(cluster.status().0, "completed");
}

// BCJ-14, BCD-10
#[test]
fn the_first_failure_stops_the_others() {
    let mut cluster = Cluster::with_job(json!({"failurePolicy": {"type": "FailFast"}}));
    fail(&mut cluster, "n2");
    assert_eq!(cluster.status(), ("failed".to_owned(), [0, 0, 1, 3]));
    let message = "failure policy is FailurePolicyTypeFailFast and failed pod is found";
    assert_eq!(cluster.condition(), Some(condition("Failed", message)));
    for node in ["n1", "n3"] {
        cluster.collect(node);
    }
    cluster.settle();
    assert_eq!(cluster.nodes_with_pods(), ["n2"]);
    assert_eq!(cluster.status(), ("failed".to_owned(), [0, 0, 1, 3]));
}

/// The process ends right after the end was written; the next one deletes the pods.
// BCJ-14
#[test]
fn what_a_failed_job_leaves_is_stopped_by_the_next_process() {
    let mut cluster = Cluster::with_job(json!({}));
    cluster.report("n2", "Failed", 0);
    cluster.watch(Kind::Pod, usize::MAX);
    cluster.wait(Duration::from_secs(3));
    cluster.crash(true);
    assert_eq!(cluster.status(), ("failed".to_owned(), [2, 0, 1, 3]));
    cluster.settle();
    assert_eq!(cluster.status(), ("failed".to_owned(), [0, 0, 1, 3]));
}

// BCJ-13, BCD-11
#[test]
fn a_job_that_never_ends_does_not_fail() {
    let policy =
        json!({"completionPolicy": {"type": "Never"}, "failurePolicy": {"type": "FailFast"}});
    let mut cluster = Cluster::with_job(policy);
    fail(&mut cluster, "n2");
    succeed(&mut cluster, &["n1", "n3"]);
    assert_eq!(cluster.status(), ("running".to_owned(), [0, 2, 1, 3]));
    cluster.add_node("n4");
    cluster.settle();
    assert_eq!(cluster.status(), ("running".to_owned(), [1, 2, 1, 4]));
}

/// Another word is read as Continue, where the schema of OpenKruise has let it pass.
// BCJ-15
#[rstest]
#[case("Continue")]
#[case("Foo")]
fn with_continue_the_other_nodes_go_on(#[case] policy: &str) {
    let mut cluster =
        Cluster::with_job(json!({"failurePolicy": {"type": policy}, "parallelism": 1}));
    fail(&mut cluster, "n1");
    succeed(&mut cluster, &["n2"]);
    assert_eq!(cluster.status(), ("running".to_owned(), [1, 1, 1, 3]));
    succeed(&mut cluster, &["n3"]);
    let message = "Job completed, 2 pods succeeded, 1 pods failed";
    assert_eq!(cluster.condition(), Some(condition("Complete", message)));
}

// BCJ-16, BCD-3
#[test]
fn a_failure_pauses_until_it_is_acknowledged() {
    let mut cluster =
        Cluster::with_job(json!({"failurePolicy": {"type": "Pause"}, "parallelism": 1}));
    fail(&mut cluster, "n1");
    assert_eq!(cluster.status(), ("paused".to_owned(), [0, 0, 1, 3]));
    cluster.edit_job(&json!({"paused": true}));
    cluster.settle();
    assert_eq!(cluster.acknowledged(), 1);
    cluster.edit_job(&json!({"paused": false}));
    cluster.settle();
    assert_eq!(cluster.status(), ("running".to_owned(), [1, 0, 1, 3]));
    // Another process keeps to it, and the next failure pauses again.
    cluster.crash(true);
    cluster.settle();
    assert_eq!(cluster.status().0, "running");
    fail(&mut cluster, "n2");
    assert_eq!(cluster.status(), ("paused".to_owned(), [0, 0, 2, 3]));
    // To delete the failed pod helps too: its node gets another one.
    cluster.delete_pod("n2");
    cluster.settle();
    assert_eq!(cluster.status(), ("running".to_owned(), [1, 0, 1, 3]));
    fail(&mut cluster, "n2");
    assert_eq!(cluster.status().0, "paused", "it fails anew");
}

// BCJ-17, BCD-4
#[test]
fn a_deadline_is_kept_by_whichever_process() {
    let mut cluster = Cluster::with_job(json!({"completionPolicy": {"activeDeadlineSeconds": 75}}));
    cluster.crash(true);
    cluster.settle();
    cluster.wait(Duration::from_secs(34));
    assert_eq!(cluster.status().0, "running");
    cluster.wait(Duration::from_secs(2));
    cluster.settle();
    assert_eq!(cluster.status(), ("failed".to_owned(), [0, 0, 0, 3]));
    let message = "Job b/ok was active longer than specified deadline";
    assert_eq!(cluster.condition(), Some(condition("Failed", message)));
}

// BCJ-17
#[test]
fn a_deadline_passes_while_the_job_is_paused_and_counts_afterwards() {
    let policy = json!({"activeDeadlineSeconds": 10});
    let mut cluster = Cluster::with_job(json!({"completionPolicy": policy, "paused": true}));
    cluster.wait(Duration::from_mins(1));
    cluster.settle();
    assert_eq!(cluster.status(), ("paused".to_owned(), [0, 0, 0, 3]));
    cluster.edit_job(&json!({"paused": null}));
    cluster.settle();
    assert_eq!(cluster.status(), ("failed".to_owned(), [0, 0, 0, 3]));
    assert!(cluster.nodes_with_pods().is_empty());
}

/// The schema of OpenKruise lets it pass.
// BCJ-17
#[test]
fn a_deadline_of_no_seconds_creates_no_pod() {
    let cluster = Cluster::with_job(json!({"completionPolicy": {"activeDeadlineSeconds": 0}}));
    assert_eq!(cluster.status().0, "failed");
    assert!(!cluster.writes.contains_key("broadcastjob_create_pod"));
}

// BCJ-18
#[rstest]
#[case(json!({"completionPolicy": {"ttlSecondsAfterFinished": 30}}), false)]
#[case(json!({}), true)]
fn a_job_that_has_ended_is_deleted_after_its_time(#[case] spec: Value, #[case] is_set_later: bool) {
    let mut cluster = Cluster::with_job(spec);
    succeed(&mut cluster, &["n1", "n2", "n3"]);
    if is_set_later {
        cluster.edit_job(&json!({"completionPolicy": {"ttlSecondsAfterFinished": 30}}));
    }
    cluster.crash(true);
    cluster.step();
    cluster.wait(Duration::from_secs(5));
    assert!(cluster.get(Kind::Job, JOB).is_some());
    cluster.wait(Duration::from_secs(6));
    cluster.step();
    assert!(cluster.get(Kind::Job, JOB).is_none());
}

// BCJ-20
#[test]
fn after_the_end_nothing_is_created_or_changed() {
    let mut cluster = Cluster::with_job(json!({}));
    succeed(&mut cluster, &["n1", "n2", "n3"]);
    let (status, writes) = (cluster.job()["status"].clone(), cluster.writes.clone());
    cluster.add_node("n4");
    cluster.delete_pod("n1");
    cluster.patch(Kind::Node, "n2", &json!({"spec": {"unschedulable": true}}));
    cluster.edit_job(&json!({"parallelism": 1, "paused": true}));
    cluster.settle();
    assert_eq!(
        (&cluster.job()["status"], &cluster.writes),
        (&status, &writes)
    );
}

// BCJ-10, BCD-7
#[test]
fn a_pod_above_the_limit_of_restarts_is_stopped_and_has_failed() {
    let spec =
        json!({"template": on_failure(), "failurePolicy": {"type": "Continue", "restartLimit": 2}});
    let mut cluster = Cluster::with_job(spec);
    cluster.report("n1", "Running", 2);
    cluster.settle();
    assert_eq!(cluster.status().1, [3, 0, 0, 3]);
    cluster.report("n1", "Running", 3);
    succeed(&mut cluster, &["n2", "n3"]);
    assert_eq!(
        cluster.status(),
        ("running".to_owned(), [0, 2, 1, 3]),
        "it runs still"
    );
    assert_eq!(cluster.writes["broadcastjob_stop_pod"], 1);
    // The kubelet ends it.
    cluster.report("n1", "Running", 3);
    cluster.settle();
    assert_eq!(cluster.status(), ("completed".to_owned(), [0, 2, 1, 3]));
}

// BCJ-14, BCD-19
#[test]
fn a_pod_that_fails_the_job_by_its_restarts_is_stopped_with_the_others() {
    let mut cluster = Cluster::with_job(json!({"template": on_failure()}));
    cluster.report("n1", "Running", 1);
    cluster.settle();
    for node in ["n1", "n2", "n3"] {
        cluster.collect(node);
    }
    cluster.settle();
    assert!(cluster.nodes_with_pods().is_empty());
    assert_eq!(cluster.status(), ("failed".to_owned(), [0, 0, 1, 3]));
}

// BCJ-26, BCD-6
#[test]
fn a_status_that_is_not_written_at_once_is_written_later() {
    let mut cluster = Cluster::with_job(json!({}));
    for node in ["n1", "n2", "n3"] {
        cluster.report(node, "Succeeded", 0);
    }
    for kind in KINDS {
        cluster.watch(kind, usize::MAX);
    }
    for answer in [Answer::NotDone, Answer::Lost, Answer::Refused] {
        cluster.wait(Duration::from_secs(10));
        while cluster.is_busy() {
            cluster.answer(answer);
        }
    }
    assert_eq!(cluster.status().0, "running");
    cluster.wait(Duration::from_mins(5));
    cluster.settle();
    assert_eq!(cluster.status().0, "completed");
}

// BCJ-21
#[test]
fn a_job_that_is_being_deleted_creates_nothing() {
    let mut cluster = Cluster::with_job(json!({"parallelism": 1}));
    let going = json!({"metadata": {"deletionTimestamp": "2026-11-18T11:07:00Z"}});
    cluster.patch(Kind::Job, JOB, &going);
    succeed(&mut cluster, &["n1"]);
    assert_eq!(cluster.nodes_with_pods(), ["n1"]);
    assert!(uid_of(&cluster, "n2").is_none());
}

fn told(cluster: &Cluster) -> Vec<&str> {
    let reasons = cluster.told.iter().map(|(reason, _)| reason.as_str());
    reasons
        .filter(|reason| *reason != "SuccessfulCreate")
        .collect()
}

// BCJ-22, BCD-15, BCD-22
#[test]
fn what_happens_is_told_once() {
    let mut cluster = Cluster::with_job(json!({}));
    let (name, _) = cluster.pod_of("n1").unwrap();
    let created = (
        "SuccessfulCreate".to_owned(),
        format!("Created pod: {name}"),
    );
    assert!(cluster.told.contains(&created), "{:?}", cluster.told);
    assert_eq!(cluster.told.len(), 3);
    cluster.edit_job(&json!({"paused": true}));
    cluster.settle();
    cluster.edit_job(&json!({"paused": false}));
    cluster.settle();
    succeed(&mut cluster, &["n1", "n2", "n3"]);
    let complete = "Job b/ok is completed, 3 pods succeeded, 0 pods failed";
    let last = ("JobComplete".to_owned(), complete.to_owned());
    assert_eq!(cluster.told.last(), Some(&last));
    assert_eq!(told(&cluster), ["Continue", "JobComplete"]);
    let mut cluster = Cluster::with_job(json!({}));
    fail(&mut cluster, "n1");
    assert_eq!(
        told(&cluster),
        ["PodFailed", "SuccessfulDelete", "SuccessfulDelete"]
    );
    let found = "failure policy is FailurePolicyTypeFailFast and failed pod is found: 0 pods succeeded, 1 pods failed";
    assert!(
        cluster.told.iter().any(|(_, note)| note == found),
        "{:?}",
        cluster.told
    );
}

/// A state that stands is told once.
// BCJ-7, BCJ-12, BCJ-16, BCD-8, BCD-9, BCD-13
#[test]
fn what_is_not_as_it_should_be_is_told_once() {
    let mut cluster = Cluster::with_job(json!({"failurePolicy": {"type": "Pause"}}));
    fail(&mut cluster, "n1");
    cluster.edit_job(&json!({"parallelism": 1, "template": on_failure()}));
    cluster.settle();
    let (name, _) = cluster.pod_of("n2").unwrap();
    let conditions =
        json!([{"type": "PodScheduled", "status": "False", "message": "no free ports"}]);
    cluster.patch(
        Kind::Pod,
        &name,
        &json!({"status": {"conditions": conditions}}),
    );
    cluster.settle();
    let expected = [
        "Paused",
        "TooManyActivePods",
        "TemplateChanged",
        "Unschedulable",
    ];
    assert_eq!(told(&cluster), expected);
    cluster.edit_job(&json!({"parallelism": 0}));
    cluster.settle();
    assert_eq!(told(&cluster).last(), Some(&"InvalidParallelism"));
}

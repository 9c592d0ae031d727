//! What is said of a set, and when.

use std::sync::Arc;
use std::time::Duration;

use leadsman_api::slim::Pod;
use leadsman_reconcile::{Class, Feature as _, Source};
use serde_json::{Value, json};

use super::super::CloneSets;
use super::super::status::REASONS;
use super::cluster::{Cluster, Kind, SET};

/// The reasons that the gauge has sets with.
fn counted(cluster: &Cluster) -> Vec<(&'static str, usize)> {
    let counts = CloneSets::count_reasons(cluster.reconciler.world());
    let counted = REASONS.into_iter().zip(counts.iter().copied());
    counted.filter(|(_, count)| *count > 0).collect()
}

// CLS-52, CLD-24
#[test]
fn each_condition_has_the_message_of_the_first_problem() {
    let mut cluster = Cluster::with_set(json!({"replicas": 2,
        "updateStrategy": {"type": "InPlaceIfPossible", "maxUnavailable": 4}}));
    cluster.policy =
        Box::new(|label, _, _| ["cloneset_create_pod", "cloneset_update_pod"].contains(&label));
    cluster.edit(&json!({"replicas": 4}));
    cluster.set_image("app:2");
    for _ in 0..3 {
        cluster.settle();
    }
    let conditions = cluster.status()["conditions"].as_array().unwrap();
    let types: Vec<_> = conditions.iter().map(|one| &one["type"]).collect();
    assert_eq!(types, ["FailedScale", "FailedUpdate"]);
    for condition in conditions {
        let message = condition["message"].as_str().unwrap();
        assert_eq!(condition["status"], "True");
        assert!(
            message.starts_with("pod s-") && message.ends_with(": no"),
            "{message}"
        );
    }
}

// CLS-55
#[test]
fn statuses_have_a_pace_and_pods_have_none() {
    let spacing = |class: &Class| class.spacing;
    let spacings: Vec<_> = CloneSets::CLASSES.iter().map(spacing).collect();
    let [pods, status, others @ ..] = spacings.as_slice() else {
        panic!("{spacings:?}");
    };
    assert_eq!((*pods, *status), (Duration::ZERO, Duration::from_secs(2)));
    assert!(others.iter().all(Duration::is_zero));
}

// CLS-56
#[test]
fn pods_that_no_set_waits_for_make_nothing_run() {
    let mut cluster = Cluster::with_set(json!({"replicas": 1}));
    let now = cluster.time();
    let mut runs_after = |name: &str| {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": "1"}});
        let pod: Arc<Pod> = serde_json::from_value(pod).unwrap();
        cluster.reconciler.observe_object(pod, Source::Watch);
        let deadline = cluster.reconciler.take_effects(now).deadline;
        let runs = deadline.is_some_and(|deadline| deadline <= now.monotonic);
        cluster.reconciler.run_keys(now);
        runs
    };
    // A name that the set may wait for, and others.
    assert!(runs_after("s-abcde"));
    assert!(!runs_after("web-6d5f8b7c9d-abcde") && !runs_after("s-a-abcde") && !runs_after("s"));
}

#[test]
fn sets_are_counted_by_what_is_said_of_them() {
    let mut cluster = Cluster::with_set(json!({"replicas": 2,
        "updateStrategy": {"type": "InPlaceOnly"}}));
    assert_eq!(counted(&cluster), [("Complete", 1)]);
    cluster.edit(&json!({"replicas": 3}));
    cluster.step();
    assert_eq!(counted(&cluster), [("UnderWay", 1)]);
    cluster.settle();
    assert_eq!(counted(&cluster), [("Complete", 1)]);
    let of_host = json!({"template": {"spec": {"hostNetwork": true}}});
    cluster.edit(&of_host);
    cluster.settle();
    assert_eq!(counted(&cluster), [("NotInPlace", 1)]);
    let others: Value = json!({"replicas": 1, "updateStrategy": {"paused": true}});
    cluster.create_set("t", others);
    cluster.settle();
    assert_eq!(counted(&cluster), [("Complete", 1), ("NotInPlace", 1)]);
    cluster.remove(Kind::Set, SET);
    cluster.step();
    assert_eq!(counted(&cluster), [("Complete", 1)]);
}

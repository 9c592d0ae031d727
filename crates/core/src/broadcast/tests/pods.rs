//! Which nodes get a pod, when, and which pod.

use std::time::Duration;

use leadsman_api::slim::Pod;
use leadsman_reconcile::ObjectName;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::JobPod;
use super::super::job::node_hash;
use super::cluster::{Answer, Cluster, JOB, Kind};
use super::{annotate_job, fail, succeed, uid_of};

// BCJ-8, BCJ-9, BCD-23
#[test]
fn a_pod_is_the_template_with_labels_owner_and_node() {
    let template = json!({
        "metadata": {
            "name": "fixed", "namespace": "other", "finalizers": ["example.com/x"],
            "annotations": {"extra": "kept"}, "labels": {"app": "x"}, "creationTimestamp": null,
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "busybox:1", "later": {"field": 1}}],
            "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1", "n2"]}]}]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
            }},
        },
    });
    let cluster = Cluster::with_job(json!({"template": template}));
    assert_eq!(cluster.nodes_with_pods(), ["n1", "n2"]);
    let (_, mut pod) = cluster.pod_of("n1").unwrap();
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("ok-") && name.len() == 15, "{name}");
    for field in [
        "name",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
    ] {
        pod["metadata"].as_object_mut().unwrap().remove(field);
    }
    let uid = &cluster.job()["metadata"]["uid"];
    let expected = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "b", "finalizers": ["example.com/x"], "annotations": {"extra": "kept"},
            "labels": {"app": "x", "broadcastjob-name": "ok", "broadcastjob-controller-uid": uid},
            "ownerReferences": [{"apiVersion": "apps.kruise.io/v1beta1", "kind": "BroadcastJob", "name": "ok", "uid": uid,
                "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "busybox:1", "later": {"field": 1}}],
            "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
            }},
        },
    });
    assert_eq!(pod, expected);
}

#[test]
fn the_name_of_a_pod_is_a_dns_label_however_long_that_of_its_job() {
    let mut job = serde_json::from_value(
        json!({"metadata": {"name": "j".repeat(63), "uid": "u"}, "spec": {}}),
    )
    .unwrap();
    let name = super::super::Job::read(&job).pod_name(&super::super::node_hash("u", "n1"));
    assert_eq!(name.name.len(), 63);
    job.metadata.uid = Some("v".to_owned());
    let other = super::super::Job::read(&job).pod_name(&super::super::node_hash("v", "n1"));
    assert_ne!(name, other, "the pods of an earlier job may still be there");
}

// BCJ-1, BCJ-7, BCD-9
#[rstest]
#[case(json!(null), 3)]
#[case(json!(1), 1)]
#[case(json!("34%"), 2)]
#[case(json!("1%"), 1)]
#[case(json!("150%"), 3)]
#[case(json!(0), 0)]
#[case(json!(-1), 0)]
#[case(json!("0%"), 0)]
#[case(json!("abc"), 0)]
#[case(json!("5"), 0)]
fn as_many_pods_run_at_a_time_as_parallelism_says(
    #[case] parallelism: Value,
    #[case] active: usize,
) {
    let mut cluster = Cluster::with_job(json!({"parallelism": parallelism}));
    assert_eq!(cluster.nodes_with_pods().len(), active);
    assert_eq!(
        cluster.status(),
        (
            "running".to_owned(),
            [i64::try_from(active).unwrap(), 0, 0, 3]
        )
    );
    if active > 0 {
        succeed(&mut cluster, &["n1"]);
        assert_eq!(cluster.nodes_with_pods().len(), 3.min(active + 1));
    }
}

// BCJ-11
#[test]
fn a_pod_that_succeeds_while_its_deletion_is_under_way_is_not_made_again() {
    let mut cluster = Cluster::with_job(json!({}));
    // It waits for a node that is gone, and that comes back under its name.
    cluster.remove_node("n3");
    cluster.watch(Kind::Node, 1);
    cluster.turn();
    assert_eq!(cluster.first_under_way(), Some("broadcastjob_delete_pod"));
    cluster.add_node("n3");
    cluster.report("n3", "Succeeded", 0);
    cluster.watch(Kind::Node, 1);
    cluster.watch(Kind::Pod, 1);
    cluster.turn();
    cluster.settle();
    assert_eq!(cluster.nodes_with_pods(), ["n1", "n2"]);
    assert_eq!(cluster.status().1, [2, 1, 0, 3]);
}

// BCJ-7
#[test]
fn a_lower_parallelism_stops_no_pod() {
    let mut cluster = Cluster::with_job(json!({}));
    cluster.edit_job(&json!({"parallelism": 1}));
    cluster.settle();
    assert_eq!(cluster.status().1, [3, 0, 0, 3]);
}

// BCJ-5, BCD-1, BCD-14
#[rstest]
#[case(json!({"spec": {"unschedulable": true}}))]
#[case(json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}))]
#[case(json!({"metadata": {"labels": {"zone": "b"}}}))]
fn a_node_that_ceases_to_fit_keeps_its_pod_and_runs_no_other(#[case] change: Value) {
    let mut template = super::on_failure();
    template["spec"]["nodeSelector"] = json!({"zone": "a"});
    let mut cluster = Cluster::with_job(json!({"template": template}));
    succeed(&mut cluster, &["n1"]);
    let pods = ["n1", "n2"].map(|node| uid_of(&cluster, node));
    for node in ["n1", "n2"] {
        cluster.patch(Kind::Node, node, &change);
    }
    cluster.add_node("n4");
    cluster.patch(Kind::Node, "n4", &change);
    cluster.settle();
    assert_eq!(["n1", "n2"].map(|node| uid_of(&cluster, node)), pods);
    assert_eq!(cluster.nodes_with_pods(), ["n1", "n2", "n3"]);
    assert_eq!(cluster.status().1, [2, 1, 0, 3]);
    let heal = json!({"spec": {"unschedulable": null, "taints": null}, "metadata": {"labels": {"zone": "a"}}});
    for node in ["n1", "n2", "n4"] {
        cluster.patch(Kind::Node, node, &heal);
    }
    cluster.settle();
    assert_eq!(["n1", "n2"].map(|node| uid_of(&cluster, node)), pods);
    assert_eq!(cluster.status().1, [3, 1, 0, 4]);
    succeed(&mut cluster, &["n2", "n3", "n4"]);
    assert_eq!(cluster.status(), ("completed".to_owned(), [0, 4, 0, 4]));
}

// BCJ-5
#[test]
fn a_pod_that_is_evicted_is_made_again_where_the_node_fits_again() {
    let mut cluster = Cluster::with_job(json!({}));
    cluster.taint("n1", Some("NoExecute"));
    cluster.settle();
    cluster.collect("n1");
    succeed(&mut cluster, &["n2", "n3"]);
    // A node that takes no pod is not waited for.
    assert_eq!(cluster.status(), ("completed".to_owned(), [0, 2, 0, 2]));
    let mut cluster = Cluster::with_job(json!({}));
    let evicted = uid_of(&cluster, "n1");
    cluster.taint("n1", Some("NoExecute"));
    cluster.settle();
    cluster.collect("n1");
    cluster.taint("n1", None);
    cluster.settle();
    assert!(uid_of(&cluster, "n1").is_some() && uid_of(&cluster, "n1") != evicted);
}

// BCJ-6, BCD-16
#[test]
fn nodes_that_come_get_a_pod_and_those_that_go_are_not_waited_for() {
    let mut cluster = Cluster::with_job(json!({"parallelism": 1}));
    cluster.add_node("n4");
    cluster.report("n1", "Running", 0);
    cluster.settle();
    assert_eq!(cluster.status().1, [1, 0, 0, 4]);
    for node in ["n1", "n4"] {
        cluster.remove_node(node);
    }
    cluster.settle();
    assert_eq!(
        cluster.status().1,
        [1, 0, 0, 3],
        "the pod on n1 is not collected yet"
    );
    // It is back under its name while its pod is there.
    cluster.add_node("n1");
    cluster.settle();
    assert_eq!(cluster.status().1, [1, 0, 0, 3]);
    succeed(&mut cluster, &["n1"]);
    succeed(&mut cluster, &["n2"]);
    succeed(&mut cluster, &["n3"]);
    assert_eq!(cluster.status(), ("completed".to_owned(), [0, 3, 0, 3]));
}

// BCD-16
#[test]
fn a_pod_that_waits_for_a_node_that_is_gone_is_deleted() {
    let mut cluster = Cluster::with_job(json!({"parallelism": 1}));
    assert_eq!(cluster.nodes_with_pods(), ["n1"]);
    cluster.remove_node("n1");
    cluster.settle();
    assert_eq!(cluster.nodes_with_pods(), ["n2"]);
    assert_eq!(cluster.status().1, [1, 0, 0, 2]);
}

// BCD-16
#[test]
fn a_pod_that_fails_as_its_node_goes_fails_no_job() {
    let mut cluster = Cluster::with_job(json!({}));
    cluster.report("n1", "Running", 0);
    cluster.remove_node("n1");
    cluster.settle();
    cluster.collect("n1");
    cluster.settle();
    assert_eq!(cluster.status(), ("running".to_owned(), [2, 0, 0, 2]));
}

// BCD-2
#[test]
fn a_node_that_is_replaced_under_its_name_gets_a_pod() {
    let mut cluster = Cluster::with_job(json!({"completionPolicy": {"type": "Never"}}));
    succeed(&mut cluster, &["n1", "n2", "n3"]);
    cluster.remove_node("n1");
    cluster.settle();
    cluster.collect("n1");
    cluster.settle();
    cluster.add_node("n1");
    cluster.settle();
    assert_eq!(cluster.status().1, [1, 2, 0, 3]);
}

// BCD-18
#[test]
fn a_template_of_one_node_or_of_too_many_requirements_makes_no_pod() {
    let labels: serde_json::Map<_, _> = (0..=128).map(|n| (format!("l{n}"), json!(""))).collect();
    for (field, why) in [
        (json!({"nodeName": "n1"}), "nodeName binds each pod"),
        (json!({"nodeSelector": labels}), "it has 129 labels"),
        (
            json!({"x": "y".repeat(64 * 1024)}),
            "bytes of JSON, more than 65536",
        ),
    ] {
        let mut cluster = Cluster::with_job(json!({}));
        succeed(&mut cluster, &["n1"]);
        let before = cluster.writes["broadcastjob_create_pod"];
        cluster.edit_job(&json!({"template": {"spec": field}}));
        cluster.add_node("n4");
        cluster.settle();
        assert_eq!(cluster.writes["broadcastjob_create_pod"], before);
        let told = cluster
            .told
            .iter()
            .any(|(reason, note)| reason == "InvalidTemplate" && note.contains(why));
        assert!(told, "{why}: {:?}", cluster.told);
        let annotations = &cluster.job()["metadata"]["annotations"];
        assert_eq!(
            annotations["broadcastjob.leadsman.io/succeeded"],
            node_hash(cluster.job()["metadata"]["uid"].as_str().unwrap(), "n1")
        );
    }
}

// BCD-9
#[test]
fn a_pod_that_cannot_be_decoded_has_its_place() {
    let mut cluster = Cluster::with_job(json!({"parallelism": 1, "paused": true}));
    let uid = cluster.job()["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    for (namespace, job) in [("b", JOB), ("c", JOB), ("b", "okay")] {
        let name = ObjectName {
            namespace: namespace.to_owned(),
            name: format!("{job}-{}", node_hash(&uid, "n1")),
        };
        cluster.reconciler.observe_undecodable::<Pod>(&name);
    }
    cluster.edit_job(&json!({"paused": false}));
    cluster.settle();
    assert!(cluster.nodes_with_pods().is_empty());
    cluster.edit_job(&json!({"parallelism": 2}));
    cluster.settle();
    assert_eq!(cluster.nodes_with_pods(), ["n2"]);
    let told = cluster
        .told
        .iter()
        .any(|(reason, _)| reason == "PodNameTaken");
    assert!(told, "{:?}", cluster.told);
}

// BCJ-9
#[test]
fn a_pod_of_another_namespace_counts_nowhere() {
    let mut cluster = Cluster::with_job(json!({}));
    let (name, mut pod) = cluster.pod_of("n1").unwrap();
    pod["metadata"]["namespace"] = json!("other");
    pod["status"] = json!({"phase": "Succeeded"});
    cluster.create(Kind::Pod, &name.replace("ok-", "zk-"), pod);
    cluster.settle();
    assert_eq!(cluster.status().1, [3, 0, 0, 3]);
}

// BCJ-11, BCD-2
#[test]
fn a_lost_pod_is_made_again_unless_it_had_succeeded() {
    let mut cluster = Cluster::with_job(json!({}));
    succeed(&mut cluster, &["n1"]);
    cluster.report("n2", "Running", 0);
    let lost = uid_of(&cluster, "n2");
    for node in ["n1", "n2"] {
        cluster.delete_pod(node);
    }
    cluster.report("n3", "Succeeded", 0);
    cluster.settle();
    // One that takes its time to end is not done.
    assert_eq!(cluster.status(), ("running".to_owned(), [0, 2, 0, 3]));
    cluster.collect("n2");
    cluster.settle();
    assert_eq!(cluster.nodes_with_pods(), ["n2", "n3"]);
    assert_ne!(uid_of(&cluster, "n2"), lost);
    // Another process knows it too.
    cluster.crash(true);
    cluster.settle();
    assert_eq!(cluster.nodes_with_pods(), ["n2", "n3"]);
    succeed(&mut cluster, &["n2"]);
    assert_eq!(cluster.status(), ("completed".to_owned(), [0, 3, 0, 3]));
}

#[test]
fn a_success_is_recorded_after_a_while_and_forgotten_with_its_node() {
    let mut cluster = Cluster::with_job(json!({"parallelism": 1}));
    cluster.report("n1", "Succeeded", 0);
    cluster.step();
    assert!(!cluster.writes.contains_key("broadcastjob_record"));
    cluster.settle();
    assert_eq!(cluster.writes["broadcastjob_record"], 1);
    cluster.crash(true);
    cluster.delete_pod("n1");
    cluster.settle();
    assert_eq!(cluster.status().1, [1, 1, 0, 3]);
    cluster.remove_node("n1");
    succeed(&mut cluster, &["n2"]);
    cluster.add_node("n1");
    succeed(&mut cluster, &["n3"]);
    assert!(
        uid_of(&cluster, "n1").is_some(),
        "it is another node of that name"
    );
}

#[test]
fn successes_without_end_are_recorded_together() {
    let mut cluster = Cluster::with_job(json!({}));
    for number in 0..60 {
        cluster.add_node(&format!("m{number}"));
    }
    cluster.settle();
    for number in 0..60 {
        cluster.report(&format!("m{number}"), "Succeeded", 0);
        cluster.step();
        cluster.wait(Duration::from_secs(1));
    }
    let records = cluster.writes["broadcastjob_record"];
    assert!((5..=7).contains(&records), "{records} in a minute");
}

// BCJ-9
#[test]
fn a_pod_that_openkruise_has_created_stands_for_its_node() {
    let mut cluster = Cluster::with_job(json!({"paused": true}));
    let uid = cluster.job()["metadata"]["uid"].clone();
    for (name, spec) in [
        ("ok-ctwr6", json!({"nodeName": "n1"})),
        (
            "ok-ctwr7",
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}}}}),
        ),
    ] {
        let pod = json!({"metadata": {"name": name, "namespace": "b",
            "labels": {"broadcastjob-name": JOB, "broadcastjob-controller-uid": uid},
            "ownerReferences": [{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "BroadcastJob", "name": JOB, "uid": uid,
                "controller": true}]}, "spec": spec});
        cluster.create(Kind::Pod, name, pod);
    }
    cluster.settle();
    cluster.edit_job(&json!({"paused": null}));
    cluster.settle();
    assert_eq!(cluster.nodes_with_pods(), ["n1", "n2", "n3"]);
    succeed(&mut cluster, &["n1", "n2", "n3"]);
    assert_eq!(cluster.status(), ("completed".to_owned(), [0, 3, 0, 3]));
}

/// Labels and the uid of the controller make a pod the job's.
// BCJ-9, BCJ-21
#[rstest]
#[case(json!({"labels": {"broadcastjob-name": "ok"}}), false)]
#[case(json!({"labels": {"broadcastjob-controller-uid": "u"}}), false)]
#[case(json!({"labels": {"broadcastjob-name": "ok", "broadcastjob-controller-uid": "v"}}), false)]
#[case(json!({"labels": {"broadcastjob-name": "ok", "broadcastjob-controller-uid": "u"}}), true)]
fn a_pod_belongs_to_a_job_by_labels_and_controller(
    #[case] mut metadata: Value,
    #[case] is_owned: bool,
) {
    metadata["ownerReferences"] = json!([{"uid": "u", "controller": true}]);
    let pod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
    assert_eq!(JobPod::read(&pod).owner.is_some(), is_owned);
}

/// The name of a pod follows from job and node, and somebody else may have used it.
// BCJ-9
#[test]
fn a_foreign_pod_of_the_name_is_left_alone_and_waited_for() {
    let mut cluster = Cluster::with_job(json!({"paused": true}));
    let uid = cluster.job()["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    let name = format!("{JOB}-{}", super::super::node_hash(&uid, "n1"));
    let foreign = json!({"metadata": {"name": name, "namespace": "b"}});
    cluster.create(Kind::Pod, &name, foreign);
    // It is met by the creation, before the watch has shown it.
    cluster.edit_job(&json!({"paused": null}));
    cluster.watch(Kind::Job, 1);
    cluster.turn();
    cluster.settle();
    let created = cluster.writes["broadcastjob_create_pod"];
    assert_eq!(cluster.status().1, [2, 0, 0, 3]);
    cluster.settle();
    assert_eq!(cluster.writes["broadcastjob_create_pod"], created);
    let told = cluster
        .told
        .iter()
        .filter(|(reason, _)| reason == "PodNameTaken");
    assert_eq!(told.count(), 1);
    cluster.remove(Kind::Pod, &name);
    cluster.settle();
    assert_eq!(cluster.status().1, [3, 0, 0, 3]);
}

// BCJ-12, BCD-10
#[test]
fn a_refused_pod_counts_nowhere_and_is_tried_again_when_another_one_has_ended() {
    let mut cluster = Cluster::new();
    cluster.add_node("n1");
    cluster.add_node("n2");
    cluster.create_job(json!({}));
    for kind in super::cluster::KINDS {
        cluster.watch(kind, usize::MAX);
    }
    cluster.turn();
    // A quota lets one of them through.
    while cluster.is_busy() {
        let is_refused = !cluster.nodes_with_pods().is_empty() && cluster.is_creation_first();
        cluster.answer(if is_refused {
            Answer::Refused
        } else {
            Answer::Done
        });
        cluster.turn();
    }
    cluster.settle();
    assert_eq!(cluster.status().1, [1, 0, 0, 2]);
    assert_eq!(cluster.writes["broadcastjob_create_pod"], 2);
    let refused = ("FailedCreate".to_owned(), "Error creating: no".to_owned());
    assert!(cluster.told.contains(&refused), "{:?}", cluster.told);
    let first = cluster.nodes_with_pods().remove(0);
    cluster.report(&first, "Succeeded", 0);
    cluster.step();
    cluster.step();
    assert_eq!(cluster.nodes_with_pods().len(), 2);
}

// BCJ-19
#[test]
fn while_it_is_paused_no_pod_is_created_and_nothing_ends() {
    let mut cluster = Cluster::with_job(json!({"parallelism": 2}));
    cluster.edit_job(&json!({"paused": true}));
    succeed(&mut cluster, &["n1"]);
    assert_eq!(cluster.status(), ("paused".to_owned(), [1, 1, 0, 3]));
    fail(&mut cluster, "n2");
    assert_eq!(cluster.status(), ("paused".to_owned(), [0, 1, 1, 3]));
    cluster.edit_job(&json!({"paused": false}));
    cluster.settle();
    assert_eq!(cluster.status().0, "failed");
}

// BCJ-25, BCD-6
#[test]
fn another_look_writes_nothing_that_is_there() {
    let mut cluster = Cluster::with_job(json!({}));
    succeed(&mut cluster, &["n1"]);
    cluster.settle();
    let writes = cluster.writes.clone();
    annotate_job(&mut cluster, "a");
    cluster.patch(Kind::Node, "n1", &json!({"status": {"heartbeat": "now"}}));
    cluster.crash(true);
    cluster.settle();
    assert_eq!(cluster.writes, writes);
}

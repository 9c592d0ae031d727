//! Claims: created before their pod, kept for the next one, and deleted with it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{Answer, Cluster, KINDS, Kind, SET, claims_of};

fn template(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"vl": name}, "annotations": {"a": "b"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"}})
}

fn with_claims(replicas: usize) -> Value {
    json!({"replicas": replicas, "volumeClaimTemplates": [template("logs"), template("data")],
        "updateStrategy": {"maxUnavailable": "100%"}})
}

/// The uids of the claims of a pod.
fn uids(cluster: &Cluster, pod: &str) -> Vec<String> {
    let claims = claims_of(cluster.pod(pod)).into_iter();
    let uid = |claim: String| {
        let claim = cluster.get(Kind::Claim, &claim).unwrap();
        claim["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    claims.map(uid).collect()
}

/// The claims that no pod has.
fn left(cluster: &Cluster) -> Vec<String> {
    let pods = cluster.pods();
    let used: BTreeSet<_> = pods
        .iter()
        .flat_map(|pod| claims_of(cluster.pod(pod)))
        .collect();
    let mut claims = cluster.names(Kind::Claim);
    claims.retain(|claim| !used.contains(claim));
    claims
}

// CLS-14, CLD-20
#[test]
fn a_pod_gets_its_claims_before_it_is_created() {
    let mut spec = with_claims(2);
    spec["template"] = json!({"metadata": {"labels": {"app": SET}}, "spec": {
        "containers": [{"name": "main", "image": "app:1"}], "volumes": [{"name": "cfg", "emptyDir": {}}]}});
    let mut cluster = Cluster::new();
    cluster.create_set(SET, spec);
    cluster.step();
    // Claims are under way, and no pod is created before they have been seen.
    for _ in 0..3 {
        cluster.answer(Answer::Done);
        cluster.turn();
    }
    assert!(cluster.pods().is_empty());
    cluster.settle();
    let set = cluster.get(Kind::Set, SET).unwrap().clone();
    for pod in cluster.active() {
        let id = pod.strip_prefix("s-").unwrap();
        let names = [format!("logs-s-{id}"), format!("data-s-{id}")];
        assert_eq!(claims_of(cluster.pod(&pod)), names);
        let volumes = cluster.pod(&pod)["spec"]["volumes"].as_array().unwrap();
        let volumes: Vec<_> = volumes.iter().map(|volume| &volume["name"]).collect();
        assert_eq!(volumes, ["logs", "data", "cfg"]);
        let claim = cluster.get(Kind::Claim, &names[1]).unwrap();
        let labels = json!({"vl": "data", "app": SET, "apps.kruise.io/cloneset-instance-id": id});
        assert_eq!(claim["metadata"]["labels"], labels);
        assert_eq!(claim["metadata"]["annotations"], json!({"a": "b"}));
        let owner = &claim["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["kind"], &owner["controller"]),
            (&json!("CloneSet"), &json!(true))
        );
        assert_eq!(owner["uid"], set["metadata"]["uid"]);
        assert_eq!(claim["spec"], template("data")["spec"]);
        assert!(claim["status"].is_null());
    }
    assert_eq!(cluster.writes["cloneset_create_claim"], 4);
}

// CLS-12, CLS-15
#[test]
fn a_pod_that_others_delete_leaves_name_and_claims_to_the_next_one() {
    let mut cluster = Cluster::with_set(with_claims(3));
    let pod = cluster.active()[1].clone();
    let before = uids(&cluster, &pod);
    let uid = cluster.pod(&pod)["metadata"]["uid"].clone();
    cluster.delete_pod(&pod);
    cluster.run_kubelets();
    cluster.settle();
    assert_ne!(cluster.pod(&pod)["metadata"]["uid"], uid);
    assert_eq!(uids(&cluster, &pod), before);
    assert_eq!(cluster.names(Kind::Claim).len(), 6);
}

// CLS-15, CLD-66
#[test]
fn a_pod_that_terminates_is_waited_for_where_it_leaves_claims() {
    for (scale, is_awaited) in [(json!({}), true), (json!({"disablePVCReuse": true}), false)] {
        let mut spec = with_claims(3);
        spec["scaleStrategy"] = scale.clone();
        let mut cluster = Cluster::with_set(spec);
        let pods = cluster.active();
        let before = uids(&cluster, &pods[1]);
        cluster.delete_pod(&pods[1]);
        for _ in 0..5 {
            cluster.step();
            cluster.wait(Duration::from_secs(2));
        }
        let active = if is_awaited { 2 } else { 3 };
        assert_eq!(cluster.active().len(), active, "{scale}");
        // One more is wanted meanwhile: it has nobody to wait for.
        cluster.edit(&json!({"replicas": 4}));
        cluster.step();
        cluster.step();
        cluster.step();
        assert_eq!(cluster.active().len(), active + 1, "{scale}");
        cluster.run_kubelets();
        cluster.settle();
        assert_eq!(cluster.active().len(), 4, "{scale}");
        assert_eq!(cluster.names(Kind::Claim).len(), 8, "{scale}");
        if is_awaited {
            assert_eq!(uids(&cluster, &pods[1]), before);
        }
    }
}

// CLS-15, CLD-66
#[test]
fn a_creation_that_is_under_way_makes_nobody_stop_waiting() {
    let mut cluster = Cluster::with_set(with_claims(2));
    let pods = cluster.active();
    let before: Vec<_> = pods.iter().map(|pod| uids(&cluster, pod)).collect();
    for pod in &pods {
        cluster.delete_pod(pod);
    }
    cluster.step();
    cluster.run_kubelet(&pods[0]);
    cluster.watch(Kind::Pod, usize::MAX);
    cluster.turn();
    assert_eq!(cluster.first_under_way(), Some("cloneset_create_pod"));
    let label = json!({"metadata": {"labels": {"seen": "true"}}});
    cluster.patch(Kind::Pod, &pods[1], &label);
    cluster.watch(Kind::Pod, usize::MAX);
    cluster.turn();
    cluster.step();
    cluster.step();
    assert_eq!(cluster.names(Kind::Claim).len(), 4);
    cluster.settle();
    assert_eq!(cluster.active(), pods);
    let after: Vec<_> = pods.iter().map(|pod| uids(&cluster, pod)).collect();
    assert_eq!(after, before);
    assert_eq!(cluster.names(Kind::Claim).len(), 4);
}

// CLD-3
#[test]
fn a_failed_pod_keeps_name_and_claims_and_another_one_comes() {
    let mut cluster = Cluster::with_set(with_claims(2));
    let pod = cluster.active()[0].clone();
    let before = uids(&cluster, &pod);
    cluster.patch(Kind::Pod, &pod, &json!({"status": {"phase": "Failed"}}));
    cluster.settle();
    assert_eq!((cluster.active().len(), cluster.pods().len()), (2, 3));
    assert_eq!(uids(&cluster, &pod), before);
    assert_eq!(cluster.names(Kind::Claim).len(), 6);
    // Once it is gone, the next pod gets what it has left.
    cluster.remove(Kind::Pod, &pod);
    cluster.edit(&json!({"replicas": 3}));
    cluster.settle();
    assert_eq!(uids(&cluster, &pod), before);
    assert_eq!(cluster.names(Kind::Claim).len(), 6);
}

// CLS-15, CLD-64
#[test]
fn claims_go_with_the_pods_that_the_set_deletes() {
    for named in ["number", "label", "list", "template"] {
        let mut cluster = Cluster::with_set(with_claims(3));
        let pod = cluster.active()[0].clone();
        let before = uids(&cluster, &pod);
        match named {
            "number" => cluster.edit(&json!({"replicas": 2})),
            "label" => {
                let labels = json!({"apps.kruise.io/specified-delete": "x"});
                cluster.patch(Kind::Pod, &pod, &json!({"metadata": {"labels": labels}}));
            }
            "list" => cluster.edit(&json!({"scaleStrategy": {"podsToDelete": [pod]}})),
            _ => cluster.set_image("app:2"),
        }
        cluster.settle();
        let count = if named == "number" { 2 } else { 3 };
        assert_eq!(cluster.active().len(), count, "{named}");
        assert_eq!(cluster.names(Kind::Claim).len(), 2 * count, "{named}");
        let kept: Vec<_> = cluster
            .active()
            .iter()
            .flat_map(|pod| uids(&cluster, pod))
            .collect();
        assert!(
            named == "number" || before.iter().all(|uid| !kept.contains(uid)),
            "{named}"
        );
    }
}

// CLD-64
#[test]
fn claims_go_though_another_process_takes_over_after_their_pod_was_deleted() {
    let mut cluster = Cluster::with_set(with_claims(3));
    cluster.edit(&json!({"replicas": 2}));
    // The kubelets are slow: the pod terminates, and its claims are not deleted yet.
    while cluster.deleted.is_empty() {
        cluster.watch(Kind::Set, 1);
        cluster.watch(Kind::Pod, 1);
        cluster.turn();
        cluster.answer(Answer::Done);
    }
    assert_eq!(cluster.writes.get("cloneset_delete_claim"), None);
    cluster.crash(false);
    cluster.settle();
    assert_eq!(cluster.names(Kind::Claim).len(), 4);
}

// CLS-15
#[test]
fn claims_go_with_a_pod_that_is_gone_at_once() {
    let mut cluster = Cluster::with_set(with_claims(1));
    cluster.edit(&json!({"replicas": 3}));
    // Nobody schedules them.
    for _ in 0..4 {
        cluster.step();
    }
    assert_eq!(
        (cluster.active().len(), cluster.names(Kind::Claim).len()),
        (3, 6)
    );
    cluster.edit(&json!({"replicas": 1}));
    for _ in 0..6 {
        cluster.step();
    }
    assert_eq!(
        (cluster.pods().len(), cluster.names(Kind::Claim).len()),
        (1, 2)
    );
}

// CLD-14
#[test]
fn a_claim_that_somebody_has_made_anew_is_not_deleted() {
    let mut cluster = Cluster::with_set(with_claims(1));
    let pod = cluster.active()[0].clone();
    let claim = format!("data-{pod}");
    cluster.edit(&json!({"replicas": 0}));
    while !cluster.writes.contains_key("cloneset_delete_claim") {
        for kind in KINDS {
            cluster.watch(kind, 1);
        }
        cluster.turn();
        if !cluster.writes.contains_key("cloneset_delete_claim") {
            cluster.answer(Answer::Done);
        }
    }
    // The deletion is under way, and meets another claim of the name.
    let theirs = json!({"metadata": {"name": claim, "namespace": "ns"}});
    cluster.remove(Kind::Claim, &claim);
    cluster.create(Kind::Claim, &claim, theirs);
    cluster.settle();
    let there = cluster.get(Kind::Claim, &claim).unwrap();
    assert!(there["metadata"].get("deletionTimestamp").is_none());
    assert_eq!(cluster.names(Kind::Claim), [claim]);
}

// CLS-30, CLS-15
#[test]
fn a_pod_that_is_not_deleted_after_all_keeps_its_claims() {
    let mut cluster = Cluster::with_set(with_claims(3));
    let before = cluster.names(Kind::Claim);
    let hooked = cluster.active()[0].clone();
    cluster.edit(&json!({"replicas": 2}));
    // The pod says that it goes, and is not deleted yet.
    cluster.watch(Kind::Set, 1);
    cluster.turn();
    cluster.answer(Answer::Done);
    assert!(
        cluster
            .active()
            .iter()
            .any(|pod| cluster.state_of(pod) == "PreparingDelete")
    );
    cluster.edit(&json!({"replicas": 3}));
    cluster.settle();
    assert_eq!((cluster.active().len(), cluster.deleted.len()), (3, 0));
    assert_eq!(cluster.names(Kind::Claim), before);
    assert_eq!(cluster.state_of(&hooked), "Normal");
}

// CLS-15, CLS-3
#[test]
fn without_reuse_claims_go_once_no_pod_has_them() {
    let mut spec = with_claims(2);
    spec["scaleStrategy"] = json!({"disablePVCReuse": true});
    let mut cluster = Cluster::with_set(spec);
    let pods = cluster.active();
    let before: Vec<_> = pods.iter().flat_map(|pod| uids(&cluster, pod)).collect();
    cluster.patch(Kind::Pod, &pods[0], &json!({"status": {"phase": "Failed"}}));
    cluster.delete_pod(&pods[1]);
    cluster.run_kubelets();
    cluster.settle();
    assert_eq!(cluster.active().len(), 2);
    for pod in cluster.active() {
        assert!(uids(&cluster, &pod).iter().all(|uid| !before.contains(uid)));
    }
    // The failed pod has its own until it is gone.
    assert_eq!(uids(&cluster, &pods[0]), before[..2]);
    assert_eq!(cluster.names(Kind::Claim).len(), 6);
    cluster.remove(Kind::Pod, &pods[0]);
    cluster.settle();
    assert_eq!(cluster.names(Kind::Claim).len(), 4);
}

// CLS-15, CLS-3
#[test]
fn without_reuse_claims_go_whose_pod_does_not_come() {
    let mut spec = with_claims(0);
    spec["scaleStrategy"] = json!({"disablePVCReuse": true});
    let mut cluster = Cluster::with_set(spec);
    cluster.policy = Box::new(|label, _, _| label == "cloneset_create_pod");
    cluster.edit(&json!({"replicas": 2}));
    cluster.settle();
    assert_eq!(cluster.names(Kind::Claim).len(), 4);
    cluster.edit(&json!({"replicas": 0}));
    cluster.settle();
    assert_eq!(cluster.names(Kind::Claim).len(), 0);
}

// CLS-12, CLS-15
#[test]
fn claims_whose_pod_does_not_come_are_the_next_ones() {
    let mut cluster = Cluster::with_set(with_claims(0));
    cluster.policy = Box::new(|label, _, _| label == "cloneset_create_pod");
    cluster.edit(&json!({"replicas": 2}));
    cluster.settle();
    let left = cluster.names(Kind::Claim);
    assert_eq!(left.len(), 4);
    // Nothing was deleted by the set, and so nothing of theirs goes.
    cluster.edit(&json!({"replicas": 0}));
    cluster.settle();
    assert_eq!(cluster.names(Kind::Claim), left);
    cluster.policy = Box::new(|_, _, _| false);
    cluster.edit(&json!({"replicas": 2}));
    cluster.wait(Duration::from_mins(1));
    cluster.settle();
    assert_eq!(
        (cluster.active().len(), cluster.names(Kind::Claim)),
        (2, left)
    );
    cluster.edit(&json!({"replicas": 0}));
    cluster.settle();
    assert!(cluster.names(Kind::Claim).is_empty());
}

// CLS-14, CLS-18
#[test]
fn an_edit_of_claim_templates_makes_no_revision_and_counts_for_new_pods() {
    let mut cluster = Cluster::with_set(with_claims(1));
    let first = cluster.active()[0].clone();
    cluster.edit(
        &json!({"replicas": 2, "volumeClaimTemplates": [template("data"), template("more")]}),
    );
    cluster.settle();
    assert_eq!(cluster.names(Kind::Revision).len(), 1);
    let second = cluster
        .active()
        .into_iter()
        .find(|pod| *pod != first)
        .unwrap();
    let volumes = |pod: &str| claims_of(cluster.pod(pod)).len();
    assert_eq!((volumes(&first), volumes(&second)), (2, 2));
    assert!(claims_of(cluster.pod(&second))[1].starts_with("more-s-"));
    // Each goes with all its claims, whatever the templates are by then.
    cluster.edit(&json!({"replicas": 0, "volumeClaimTemplates": []}));
    cluster.settle();
    assert!(cluster.names(Kind::Claim).is_empty());
}

// CLD-6
#[test]
fn a_pod_of_an_earlier_template_gets_the_claims_that_it_mounts() {
    let container = |mounts: &[&str]| {
        let mounts: Vec<_> = mounts
            .iter()
            .map(|name| json!({"name": name, "mountPath": name}))
            .collect();
        json!([{"name": "main", "image": "app:1", "volumeMounts": mounts}])
    };
    let mut spec = with_claims(1);
    spec["template"] = json!({"metadata": {"labels": {"app": SET}}, "spec": {"containers": container(&["data", "logs"])}});
    let mut cluster = Cluster::with_set(spec);
    let template_now =
        json!({"metadata": {"labels": {"app": SET}}, "spec": {"containers": container(&["data"])}});
    cluster.edit(
        &json!({"replicas": 3, "template": template_now, "volumeClaimTemplates": [template("data")],
        "updateStrategy": {"partition": 2}}),
    );
    cluster.settle();
    let mut counts: Vec<_> = cluster
        .active()
        .iter()
        .map(|pod| {
            let mounts = &cluster.pod(pod)["spec"]["containers"][0]["volumeMounts"];
            (
                mounts.as_array().unwrap().len(),
                claims_of(cluster.pod(pod)).len(),
            )
        })
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [(1, 1), (2, 2), (2, 2)]);
}

// CLD-1, CLD-2
#[test]
fn a_claim_whose_answer_is_lost_is_not_doubled() {
    for answer in [Answer::Lost, Answer::DoneAndLost, Answer::NotDone] {
        for crashes in [false, true] {
            let mut cluster = Cluster::new();
            cluster.create_set(SET, with_claims(3));
            cluster.step();
            for _ in 0..6 {
                cluster.answer(answer);
                cluster.turn();
            }
            if crashes {
                cluster.crash(true);
            }
            cluster.settle();
            cluster.settle();
            assert_eq!((cluster.active().len(), cluster.created.len()), (3, 3));
            assert_eq!(cluster.names(Kind::Claim).len(), 6, "{answer:?} {crashes}");
        }
    }
}

// CLD-4
#[test]
fn a_refused_claim_is_said_and_tried_again_and_no_pod_comes_without_it() {
    let mut cluster = Cluster::with_set(with_claims(0));
    cluster.policy =
        Box::new(|label, claim, _| label == "cloneset_create_claim" && claim.starts_with("data"));
    cluster.edit(&json!({"replicas": 2}));
    for _ in 0..5 {
        cluster.settle();
    }
    assert!(cluster.pods().is_empty());
    assert_eq!(cluster.reasons(), ["Refused"]);
    let message = cluster.status()["conditions"][0]["message"]
        .as_str()
        .unwrap();
    assert!(message.starts_with("claim data-s-"), "{message}");
    assert_eq!(
        cluster.names(Kind::Claim).len(),
        2,
        "no more than the pods that are missing have"
    );
    cluster.policy = Box::new(|_, _, _| false);
    cluster.wait(Duration::from_mins(1));
    cluster.settle();
    assert_eq!(
        (cluster.active().len(), cluster.names(Kind::Claim).len()),
        (2, 4)
    );
    assert!(cluster.reasons().is_empty());
}

// CLD-3
#[test]
fn a_name_whose_claim_is_somebody_elses_is_no_name_for_a_pod() {
    let mut cluster = Cluster::with_set(with_claims(1));
    let pod = cluster.active()[0].clone();
    cluster.edit(&json!({"replicas": 0}));
    cluster.settle();
    let claim = format!("data-{pod}");
    let theirs = json!({"metadata": {"name": claim, "namespace": "ns", "labels": {"app": "x"}}});
    cluster.create(Kind::Claim, &claim, theirs);
    cluster.edit(&json!({"replicas": 1}));
    cluster.settle();
    assert_eq!(cluster.active().len(), 1);
    assert_ne!(cluster.active()[0], pod);
    assert_eq!(left(&cluster), [claim]);
}

// CLS-17
#[test]
fn the_claims_of_a_pod_that_leaves_the_selector_stay_with_it() {
    let mut spec = with_claims(1);
    spec["scaleStrategy"] = json!({"disablePVCReuse": true});
    let mut cluster = Cluster::with_set(spec);
    let pod = cluster.active()[0].clone();
    let before = uids(&cluster, &pod);
    cluster.patch(
        Kind::Pod,
        &pod,
        &json!({"metadata": {"labels": {"app": "other"}}}),
    );
    cluster.settle();
    assert_eq!(cluster.active().len(), 2);
    assert_eq!(uids(&cluster, &pod), before);
    assert_eq!(cluster.names(Kind::Claim).len(), 4);
}

// CLS-57
#[test]
fn a_claim_template_that_is_no_volume_of_its_own_is_said() {
    for (claims, said) in [
        (
            json!([{"metadata": {"name": "cfg"}}]),
            "is the name of another volume",
        ),
        (
            json!([template("data"), template("data")]),
            "is the name of another volume",
        ),
        (
            json!([{"metadata": {"name": "A_b"}}]),
            "volumeClaimTemplates[0].metadata.name",
        ),
    ] {
        let mut spec = with_claims(1);
        spec["template"] = json!({"metadata": {"labels": {"app": SET}}, "spec": {
            "containers": [{"name": "main", "image": "app:1"}], "volumes": [{"name": "cfg"}]}});
        spec["volumeClaimTemplates"] = claims;
        let cluster = Cluster::with_set(spec);
        assert!(cluster.pods().is_empty() && cluster.names(Kind::Claim).is_empty());
        let message = cluster.status()["conditions"][0]["message"]
            .as_str()
            .unwrap();
        assert!(message.contains(said), "{message}");
    }
}

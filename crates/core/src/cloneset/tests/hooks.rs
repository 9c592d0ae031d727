//! Hooks: pods that are held, restored and brought back.

use serde_json::{Value, json};

use super::cluster::{Cluster, Kind, SET};

pub(super) const HOOK: &str = "hook.example/drain";

pub(super) fn held_by_finalizer(replicas: usize, more: &Value) -> Value {
    let mut spec = more.clone();
    spec["replicas"] = json!(replicas);
    spec["lifecycle"] = json!({"preDelete": {"finalizersHandler": [HOOK]}});
    spec["template"] = json!({
        "metadata": {"labels": {"app": SET}, "finalizers": [HOOK]},
        "spec": {"containers": [{"name": "main", "image": "app:1"}]},
    });
    spec
}

pub(super) fn release(cluster: &mut Cluster, pod: &str) {
    let mut object = cluster.pod(pod).clone();
    object["metadata"]["finalizers"] = json!([]);
    let uid = object["metadata"]["uid"].clone();
    cluster.remove(Kind::Pod, pod);
    cluster.create(Kind::Pod, pod, object);
    // The same pod, as an edit of its finalizers leaves it.
    cluster.patch(Kind::Pod, pod, &json!({"metadata": {"uid": uid}}));
}

fn held(cluster: &Cluster) -> Vec<String> {
    let mut pods = cluster.active();
    pods.retain(|pod| cluster.state_of(pod) == "PreparingDelete");
    pods
}

fn exclude_held(cluster: &mut Cluster) {
    let labels = json!({"apps.kruise.io/cloneset-scaling-exclude-preparing-delete": "true"});
    cluster.patch(Kind::Set, SET, &json!({"metadata": {"labels": labels}}));
}

/// N to N - 1 and back: the held pod is normal again, and nothing is created.
// CLS-30, CLS-31
#[test]
fn a_held_pod_is_restored_when_it_is_needed_again() {
    for excludes_held in [false, true] {
        let mut cluster = Cluster::with_set(held_by_finalizer(3, &json!({})));
        if excludes_held {
            exclude_held(&mut cluster);
        }
        cluster.edit(&json!({"replicas": 2}));
        cluster.settle();
        assert_eq!((held(&cluster).len(), cluster.active().len()), (1, 3));
        cluster.edit(&json!({"replicas": 3}));
        cluster.settle();
        assert_eq!(held(&cluster).len(), 0);
        assert_eq!((cluster.created.len(), cluster.deleted.len()), (3, 0));
        let normal = |pod: &String| cluster.state_of(pod) == "Normal";
        assert!(cluster.active().iter().all(normal));
    }
}

/// podsToDelete [p] and N - 1, back to N: without the label it waits until p terminates, with it another one is created at once.
// CLS-31
#[test]
fn beside_a_named_pod_that_is_held_others_are_created_where_the_set_says_so() {
    for excludes_held in [false, true] {
        let mut cluster = Cluster::with_set(held_by_finalizer(3, &json!({})));
        if excludes_held {
            exclude_held(&mut cluster);
        }
        let pod = cluster.active()[0].clone();
        cluster.edit(&json!({"replicas": 2, "scaleStrategy": {"podsToDelete": [pod]}}));
        cluster.settle();
        assert_eq!(held(&cluster), std::slice::from_ref(&pod));
        cluster.edit(&json!({"replicas": 3}));
        cluster.settle();
        assert_eq!(held(&cluster), std::slice::from_ref(&pod));
        assert_eq!(cluster.created.len(), if excludes_held { 4 } else { 3 });
        release(&mut cluster, &pod);
        cluster.settle();
        assert_eq!((cluster.active().len(), cluster.created.len()), (3, 4));
        assert!(!cluster.active().contains(&pod));
    }
}

/// A pod is named, N unchanged: the same.
// CLS-31
#[test]
fn a_named_pod_that_is_held_is_replaced() {
    for excludes_held in [false, true] {
        let mut cluster = Cluster::with_set(held_by_finalizer(3, &json!({})));
        if excludes_held {
            exclude_held(&mut cluster);
        }
        let pod = cluster.active()[0].clone();
        let labels = json!({"apps.kruise.io/specified-delete": "true"});
        cluster.patch(Kind::Pod, &pod, &json!({"metadata": {"labels": labels}}));
        cluster.settle();
        assert_eq!(held(&cluster), std::slice::from_ref(&pod));
        assert_eq!(cluster.created.len(), if excludes_held { 4 } else { 3 });
        release(&mut cluster, &pod);
        cluster.settle();
        assert_eq!((cluster.active().len(), cluster.created.len()), (3, 4));
    }
}

// CLD-11
#[test]
fn held_pods_count_as_going_and_the_rest_goes_on() {
    let mut cluster = Cluster::with_set(held_by_finalizer(6, &json!({})));
    cluster.edit(&json!({"replicas": 4}));
    cluster.settle();
    assert_eq!(held(&cluster).len(), 2);
    let first = held(&cluster)[0].clone();
    release(&mut cluster, &first);
    cluster.settle();
    cluster.edit(&json!({"replicas": 2}));
    cluster.settle();
    assert_eq!((held(&cluster).len(), cluster.active().len()), (3, 5));
}

// CLD-21, CLS-29
#[test]
fn a_roll_back_keeps_pods_that_were_held_to_be_replaced() {
    let mut cluster = Cluster::with_set(held_by_finalizer(
        3,
        &json!({"updateStrategy": {"maxUnavailable": "100%"}}),
    ));
    cluster.set_image("bad:1");
    cluster.settle();
    assert_eq!(held(&cluster).len(), 3);
    cluster.set_image("app:1");
    cluster.settle();
    assert_eq!((held(&cluster).len(), cluster.count_ready()), (0, 3));
    assert!(cluster.deleted.is_empty());
}

// CLD-17
#[test]
fn a_restored_pod_is_normal_where_it_was_normal() {
    let mut spec = held_by_finalizer(2, &json!({}));
    spec["lifecycle"]["preNormal"] = json!({"finalizersHandler": [HOOK]});
    let mut cluster = Cluster::with_set(spec);
    assert_eq!(cluster.status()["availableReplicas"], 2);
    cluster.edit(&json!({"replicas": 1}));
    cluster.step();
    cluster.step();
    let pod = held(&cluster)[0].clone();
    cluster.edit(&json!({"replicas": 2}));
    release(&mut cluster, &pod);
    cluster.settle();
    assert_eq!(cluster.state_of(&pod), "Normal");
    assert_eq!(cluster.status()["availableReplicas"], 2);
}

pub(super) fn held_by_label(replicas: usize) -> Value {
    json!({
        "replicas": replicas,
        "lifecycle": {"inPlaceUpdate": {"labelsHandler": {"hook": "on"}}},
        "updateStrategy": {"type": "InPlaceIfPossible", "maxUnavailable": 1},
        "template": {
            "metadata": {"labels": {"app": SET, "hook": "on"}},
            "spec": {"containers": [{"name": "main", "image": "app:1"}]},
        },
    })
}

pub(super) fn set_hook(cluster: &mut Cluster, pod: &str, value: &Value) {
    cluster.patch(
        Kind::Pod,
        pod,
        &json!({"metadata": {"labels": {"hook": value}}}),
    );
}

// CLS-29
#[test]
fn a_pod_is_held_before_and_after_it_is_updated_in_place() {
    let mut cluster = Cluster::with_set(held_by_label(1));
    let pod = cluster.active()[0].clone();
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.state_of(&pod), "PreparingUpdate");
    assert_eq!(cluster.with_image("app:1"), std::slice::from_ref(&pod));
    set_hook(&mut cluster, &pod, &json!("off"));
    cluster.settle();
    assert_eq!(
        (cluster.state_of(&pod), cluster.with_image("app:2")),
        ("Updated".to_owned(), vec![pod.clone()])
    );
    assert_eq!(cluster.status()["availableReplicas"], 0);
    // A further revision: the hook is put back.
    cluster.set_image("app:3");
    cluster.settle();
    assert_eq!(cluster.state_of(&pod), "PreparingUpdate");
    assert_eq!(cluster.pod(&pod)["metadata"]["labels"]["hook"], "on");
    set_hook(&mut cluster, &pod, &json!("off"));
    cluster.settle();
    set_hook(&mut cluster, &pod, &json!("on"));
    cluster.settle();
    assert_eq!(
        (cluster.state_of(&pod), cluster.with_image("app:3")),
        ("Normal".to_owned(), vec![pod])
    );
    assert_eq!(cluster.status()["availableReplicas"], 1);
}

// CLD-53
#[test]
fn a_pod_that_waits_for_its_update_is_normal_again_when_the_edit_is_taken_back() {
    let mut cluster = Cluster::with_set(held_by_label(2));
    cluster.set_image("app:2");
    cluster.settle();
    cluster.set_image("app:1");
    cluster.settle();
    assert!(
        cluster
            .active()
            .iter()
            .all(|pod| cluster.state_of(pod) == "Normal")
    );
    assert_eq!(cluster.count_ready(), 2);
    assert_eq!(cluster.status()["availableReplicas"], 2);
}

// CLS-29, CLD-54
#[test]
fn a_new_pod_is_not_available_before_its_hook_is_there_and_can_be_replaced_before() {
    let mut cluster = Cluster::with_set(json!({
        "replicas": 2,
        "lifecycle": {"preNormal": {"labelsHandler": {"registered": "yes"}}},
        "updateStrategy": {"maxUnavailable": 1},
    }));
    assert_eq!(cluster.status()["availableReplicas"], 0);
    let pods = cluster.active();
    assert!(
        pods.iter()
            .all(|pod| cluster.state_of(pod) == "PreparingNormal")
    );
    cluster.patch(
        Kind::Pod,
        &pods[0],
        &json!({"metadata": {"labels": {"registered": "yes"}}}),
    );
    cluster.settle();
    assert_eq!(cluster.state_of(&pods[0]), "Normal");
    assert_eq!(cluster.status()["availableReplicas"], 1);
    // One waits, and a new template comes: the one that waits is replaced.
    cluster.set_image("app:2");
    cluster.settle();
    assert!(cluster.deleted.contains(&pods[1]) && !cluster.deleted.contains(&pods[0]));
}

/// All pods wait for a mark that they never get, and for one more before their update.
// CLD-54
#[test]
fn a_template_whose_pods_never_get_their_mark_is_replaced_in_place() {
    let mut spec = held_by_label(3);
    spec["lifecycle"]["preNormal"] = json!({"labelsHandler": {"registered": "yes"}});
    let mut cluster = Cluster::with_set(spec);
    let pods = cluster.active();
    assert_eq!(cluster.status()["availableReplicas"], 0);
    cluster.set_image("app:2");
    for _ in 0..8 {
        cluster.settle();
        for pod in &pods {
            let is_held = cluster.state_of(pod) == "PreparingUpdate";
            set_hook(
                &mut cluster,
                pod,
                &json!(if is_held { "off" } else { "on" }),
            );
        }
    }
    cluster.settle();
    assert_eq!(cluster.with_image("app:2"), pods);
}

/// A hook that nobody answers any more is taken out of the set: what waits for it goes on.
// CLS-29
#[test]
fn a_hook_that_is_taken_out_of_the_set_holds_nobody() {
    let mut spec = held_by_label(2);
    spec["lifecycle"]["preDelete"] = json!({"labelsHandler": {"hook": "on"}});
    let mut cluster = Cluster::with_set(spec);
    let pods = cluster.active();
    cluster.edit(&json!({"scaleStrategy": {"podsToDelete": &pods[..1]}}));
    cluster.settle();
    cluster.edit(&json!({"updateStrategy": {"maxUnavailable": 2}}));
    cluster.set_image("app:2");
    cluster.settle();
    let states = [0, 1].map(|pod| cluster.state_of(&pods[pod]));
    assert_eq!(states, ["PreparingDelete", "PreparingUpdate"]);
    cluster.edit(&json!({"lifecycle": null}));
    cluster.settle();
    assert_eq!(cluster.deleted, pods[..1]);
    assert_eq!(
        (cluster.with_image("app:2").len(), cluster.count_ready()),
        (2, 2)
    );
}

// CLS-33
#[test]
fn a_pod_that_others_delete_is_not_held_and_replaced_at_once() {
    let mut cluster = Cluster::with_set(held_by_finalizer(2, &json!({})));
    let pod = cluster.active()[0].clone();
    cluster.delete_pod(&pod);
    cluster.settle();
    assert_eq!(cluster.state_of(&pod), "Normal");
    assert_eq!((cluster.active().len(), cluster.created.len()), (2, 3));
}

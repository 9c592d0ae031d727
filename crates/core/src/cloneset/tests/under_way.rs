//! What is wanted while something is under way, refused, lost or not seen.

use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{Answer, Cluster, Kind, SET};
use super::hooks::{HOOK, held_by_finalizer, held_by_label, release, set_hook};

fn in_place(replicas: usize) -> Value {
    json!({"replicas": replicas, "updateStrategy": {"type": "InPlaceIfPossible", "maxUnavailable": 1}})
}

/// The pod that is out of service by its gate.
fn drained(cluster: &Cluster) -> Option<String> {
    let is_closed = |pod: &&String| {
        let conditions = cluster.pod(pod)["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|one| one["type"] == "InPlaceUpdateReady" && one["status"] == "False")
    };
    cluster.active().iter().find(is_closed).cloned()
}

// CLD-63
#[test]
fn pods_that_may_not_be_deleted_are_no_deletions_that_nobody_asked_for() {
    let mut cluster = Cluster::with_set(json!({"replicas": 30}));
    let refused = cluster.active().split_off(15);
    cluster.policy = Box::new(move |label, pod, _| {
        label == "cloneset_delete_pod" && refused.iter().any(|one| one == pod)
    });
    cluster.edit(&json!({"replicas": 10}));
    cluster.settle();
    assert_eq!(cluster.deleted.len(), 15);
    assert!(!cluster.reasons().contains(&"TooManyDeletions".to_owned()));
}

// CLD-30
#[test]
fn a_pod_that_has_left_service_stays_out_of_it_while_another_one_is_deleted() {
    let mut spec = in_place(3);
    spec["updateStrategy"]["inPlaceUpdateStrategy"] = json!({"gracePeriodSeconds": 30});
    spec["updateStrategy"]["partition"] = json!(2);
    spec["updateStrategy"]["maxUnavailable"] = json!(2);
    let mut cluster = Cluster::with_set(spec);
    cluster.set_image("app:2");
    cluster.step();
    cluster.step();
    let out = drained(&cluster).unwrap();
    let other = cluster.active().into_iter().find(|pod| *pod != out);
    cluster.edit(&json!({"scaleStrategy": {"podsToDelete": [other]}}));
    cluster.step();
    assert_eq!(cluster.deleted.len(), 1);
    assert_eq!(drained(&cluster), Some(out));
}

// CLS-29, CLD-30
#[test]
fn a_pod_whose_hook_has_let_it_go_is_not_returned_while_another_one_is_deleted() {
    let mut spec = held_by_label(3);
    spec["updateStrategy"]["partition"] = json!(2);
    spec["updateStrategy"]["maxUnavailable"] = json!(2);
    let mut cluster = Cluster::with_set(spec);
    cluster.set_image("app:2");
    cluster.step();
    cluster.step();
    let is_held = |pod: &&String| cluster.state_of(pod) == "PreparingUpdate";
    let held = cluster.active().iter().find(is_held).unwrap().clone();
    let other = cluster.active().into_iter().find(|pod| *pod != held);
    set_hook(&mut cluster, &held, &json!("off"));
    cluster.edit(&json!({"scaleStrategy": {"podsToDelete": [other]}}));
    cluster.watch(Kind::Set, 1);
    cluster.watch(Kind::Pod, usize::MAX);
    cluster.turn();
    while cluster.is_busy() {
        cluster.answer(Answer::Done);
    }
    assert_eq!(cluster.deleted.len(), 1);
    assert_eq!(cluster.state_of(&held), "PreparingUpdate");
}

// CLS-41
#[test]
fn a_pod_whose_images_are_being_changed_stays_out_of_service_when_the_set_is_paused() {
    let mut cluster = Cluster::with_set(in_place(1));
    let pod = cluster.active()[0].clone();
    cluster.set_image("app:2");
    cluster.step();
    cluster.step();
    cluster.run_kubelets();
    cluster.watch(Kind::Pod, usize::MAX);
    cluster.turn();
    cluster.edit(&json!({"updateStrategy": {"paused": true}}));
    cluster.watch(Kind::Set, 1);
    cluster.turn();
    while cluster.is_busy() {
        cluster.answer(Answer::Done);
    }
    assert_eq!(cluster.with_image("app:2"), std::slice::from_ref(&pod));
    assert_eq!(
        (cluster.state_of(&pod), drained(&cluster)),
        ("Updating".to_owned(), Some(pod))
    );
}

// CLD-22
#[test]
fn a_pod_that_may_not_be_held_keeps_no_other_from_being_updated() {
    let strategy = json!({"updateStrategy": {"type": "InPlaceIfPossible", "maxUnavailable": 1}});
    let mut cluster = Cluster::with_set(held_by_finalizer(4, &strategy));
    let named = cluster.active()[0].clone();
    let refused = named.clone();
    cluster.policy = Box::new(move |label, pod, _| label == "cloneset_mark_pod" && pod == refused);
    cluster.edit(&json!({"scaleStrategy": {"podsToDelete": [named]}}));
    cluster.set_image("app:2");
    for _ in 0..3 {
        cluster.settle();
    }
    assert_eq!(cluster.with_image("app:2").len(), 3);
}

// CLS-46
#[test]
fn an_edit_that_is_taken_back_before_the_kubelet_sees_it_is_done() {
    let mut cluster = Cluster::with_set(in_place(1));
    cluster.set_image("app:2");
    cluster.step();
    cluster.step();
    cluster.run_kubelets();
    cluster.step();
    assert_eq!(cluster.with_image("app:2").len(), 1);
    cluster.set_image("app:1");
    cluster.step();
    assert_eq!(cluster.with_image("app:1").len(), 1);
    assert_eq!(cluster.count_ready(), 0);
    for _ in 0..3 {
        cluster.settle();
    }
    assert_eq!(cluster.count_ready(), 1);
    assert_eq!(cluster.status()["availableReplicas"], 1);
}

// CLD-62
#[test]
fn labels_of_the_set_itself_in_its_template_are_neither_given_nor_taken() {
    let labels = json!({"app": SET, "apps.kruise.io/cloneset-instance-id": "copied"});
    let mut spec = in_place(3);
    spec["template"] = json!({"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "app:1"}]}});
    let mut cluster = Cluster::with_set(spec);
    let pods = cluster.active();
    let none = json!({"apps.kruise.io/cloneset-instance-id": null, "lifecycle.apps.kruise.io/state": "PreparingDelete"});
    cluster.edit(&json!({"template": {"metadata": {"labels": none}}}));
    cluster.settle();
    assert_eq!((cluster.active(), cluster.created.len()), (pods, 3));
}

/// A template with what `OpenKruise` fills in: of containers the policy is Always, whatever the tag.
fn filled_in(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": SET}}, "spec": {
        "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30, "securityContext": {},
        "containers": [{"name": "main", "image": image, "imagePullPolicy": "Always",
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
    }})
}

/// A template of that manifest as its author wrote it, in the place of one that is filled in.
fn bare(image: &str) -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": image}], "restartPolicy": null, "dnsPolicy": null,
        "schedulerName": null, "terminationGracePeriodSeconds": null, "securityContext": null}})
}

// CLD-36, CLD-57
#[test]
fn fields_that_are_left_out_are_what_was_filled_in() {
    for image in ["app", "app:1"] {
        let mut spec = in_place(2);
        spec["template"] = filled_in(image);
        let mut cluster = Cluster::with_set(spec);
        let pods = cluster.active();
        cluster.edit(&json!({"template": bare("app:2")}));
        cluster.settle();
        cluster.settle();
        let found = (cluster.active(), cluster.with_image("app:2").len());
        assert_eq!(found, (pods.clone(), 2), "{image}");
        // And back, as a roll-back by a revision does it.
        cluster.edit(&json!({"template": filled_in(image)}));
        cluster.settle();
        cluster.settle();
        let found = (cluster.active(), cluster.with_image(image).len());
        assert_eq!(found, (pods, 2), "{image}");
    }
}

// CLD-57
#[test]
fn another_policy_that_somebody_asks_for_re_creates_pods() {
    let mut cluster = Cluster::with_set(in_place(2));
    let containers = json!([{"name": "main", "image": "app:1", "imagePullPolicy": "Always"}]);
    cluster.edit(&json!({"template": {"spec": {"containers": containers}}}));
    cluster.settle();
    cluster.settle();
    assert_eq!((cluster.active().len(), cluster.created.len()), (2, 4));
}

// CLS-40, CLD-36
#[test]
fn a_template_that_means_the_same_re_creates_no_pod() {
    let mut cluster = Cluster::with_set(json!({"replicas": 2, "template": filled_in("app:1")}));
    let (pods, before) = (cluster.active(), cluster.status()["updateRevision"].clone());
    cluster.edit(&json!({"template": bare("app:1")}));
    cluster.settle();
    assert_eq!((cluster.active(), cluster.created.len()), (pods.clone(), 2));
    let status = cluster.status();
    assert_ne!(status["updateRevision"], before);
    assert_eq!(status["updatedReplicas"], 2);
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    let finalizers = json!({"metadata": {"finalizers": ["a.io/b"]}});
    cluster.edit(&json!({"template": finalizers}));
    cluster.settle();
    assert_eq!(cluster.created.len(), 4, "a pod is made with them");
}

// CLD-24
#[test]
fn a_condition_that_openkruise_left_goes_with_the_next_status() {
    let mut cluster = Cluster::with_set(json!({"replicas": 2}));
    let left = json!([{"type": "FailedUpdate", "status": "True", "message": "the object has been modified"}]);
    cluster.patch(Kind::Set, SET, &json!({"status": {"conditions": left}}));
    let writes = cluster.writes.clone();
    cluster.settle();
    assert_eq!(cluster.writes, writes, "written without need");
    cluster.edit(&json!({"replicas": 3}));
    cluster.settle();
    assert_eq!(cluster.reasons(), Vec::<String>::new());
    assert_eq!(cluster.status()["conditions"], json!(null));
}

// CLD-22
#[test]
fn an_edit_that_mends_a_refused_template_is_tried_at_once() {
    let mut cluster = Cluster::with_set(in_place(2));
    cluster.policy = Box::new(|label, _, body| {
        label == "cloneset_update_pod" && body.to_string().contains("app:2")
    });
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.with_image("app:1").len(), 2);
    cluster.set_image("app:3");
    cluster.settle();
    assert_eq!(cluster.with_image("app:3").len(), 2);
}

// CLD-17
#[test]
fn a_pod_that_is_restored_amid_an_update_is_normal() {
    let strategy = json!({"updateStrategy": {"type": "InPlaceIfPossible", "maxUnavailable": 1}});
    let mut spec = held_by_finalizer(2, &strategy);
    spec["lifecycle"]["preNormal"] = json!({"finalizersHandler": [HOOK]});
    let mut cluster = Cluster::with_set(spec);
    cluster.set_image("app:2");
    cluster.step();
    cluster.step();
    cluster.run_kubelets();
    cluster.step();
    let pod = cluster.with_image("app:2")[0].clone();
    assert_eq!(cluster.state_of(&pod), "Updating");
    cluster.edit(&json!({"scaleStrategy": {"podsToDelete": [pod]}}));
    cluster.step();
    cluster.step();
    assert_eq!(cluster.state_of(&pod), "PreparingDelete");
    cluster.edit(&json!({"scaleStrategy": {"podsToDelete": []}}));
    release(&mut cluster, &pod);
    cluster.settle();
    assert_eq!(cluster.state_of(&pod), "Normal");
    assert_eq!(cluster.created.len(), 2);
}

// CLD-21
#[test]
fn a_hold_whose_answer_is_lost_says_again_what_the_pod_is_replaced_for() {
    let mut cluster = Cluster::with_set(held_by_finalizer(1, &json!({})));
    let pod = cluster.active()[0].clone();
    cluster.set_image("app:2");
    cluster.watch(Kind::Set, 1);
    cluster.turn();
    while cluster.is_busy() {
        cluster.answer(Answer::Done);
    }
    cluster.watch(Kind::Revision, 1);
    cluster.turn();
    assert!(cluster.is_busy());
    while cluster.is_busy() {
        cluster.answer(Answer::Lost);
    }
    cluster.wait(Duration::from_secs(5));
    while cluster.is_busy() {
        cluster.answer(Answer::Done);
    }
    assert_eq!(cluster.state_of(&pod), "PreparingDelete");
    cluster.step();
    let annotations = &cluster.pod(&pod)["metadata"]["annotations"];
    let update = &cluster.status()["updateRevision"];
    assert_eq!(annotations["cloneset.leadsman.io/replaced-for"], *update);
}

/// Carries out and shows what comes before the creation of the set's pod, whose answer is the next one then.
fn await_creation(cluster: &mut Cluster) {
    while cluster.first_under_way() != Some("cloneset_create_pod") {
        cluster.watch(Kind::Set, usize::MAX);
        cluster.watch(Kind::Revision, usize::MAX);
        cluster.answer(Answer::Done);
        cluster.turn();
    }
}

// CLD-2
#[test]
fn a_pod_that_has_ended_has_its_place_while_its_creation_may_be_carried_out_again() {
    // The second request is under way, or the first one.
    for is_sent_again in [true, false] {
        let mut cluster = Cluster::new();
        cluster.create_set(SET, json!({"replicas": 1}));
        await_creation(&mut cluster);
        let (first, second) = if is_sent_again {
            (Answer::DoneAndLost, None)
        } else {
            (Answer::Late, Some(Answer::Done))
        };
        cluster.answer(first);
        cluster.turn();
        if let Some(second) = second {
            cluster.answer(second);
        }
        let pod = cluster.pods()[0].clone();
        cluster.patch(Kind::Pod, &pod, &json!({"status": {"phase": "Failed"}}));
        cluster.watch(Kind::Pod, usize::MAX);
        cluster.turn();
        cluster.remove(Kind::Pod, &pod);
        if !is_sent_again {
            cluster.arrive(0);
        }
        while cluster.is_busy() {
            cluster.answer(Answer::Done);
        }
        assert_eq!(cluster.active(), std::slice::from_ref(&pod));
        cluster.settle();
        assert_eq!(cluster.active(), [pod]);
    }
}

// CLD-2
#[test]
fn the_place_of_a_creation_that_can_no_longer_be_carried_out_is_free() {
    let mut cluster = Cluster::new();
    cluster.create_set(SET, json!({"replicas": 1}));
    await_creation(&mut cluster);
    cluster.answer(Answer::Lost);
    cluster.turn();
    cluster.answer(Answer::Done);
    let pod = cluster.pods()[0].clone();
    cluster.patch(Kind::Pod, &pod, &json!({"status": {"phase": "Failed"}}));
    cluster.step();
    assert_eq!(cluster.pods(), std::slice::from_ref(&pod));
    cluster.wait(Duration::from_mins(5));
    cluster.step();
    assert_eq!(cluster.active().len(), 1);
    assert_ne!(cluster.active(), [pod]);
}

// CLD-2
#[test]
fn a_creation_whose_answer_was_lost_is_over_once_its_pod_is_seen() {
    for is_sent_again in [true, false] {
        let mut cluster = Cluster::new();
        cluster.create_set(SET, json!({"replicas": 1}));
        await_creation(&mut cluster);
        cluster.answer(Answer::DoneAndLost);
        if is_sent_again {
            cluster.turn();
            cluster.answer(Answer::Done);
        }
        cluster.step();
        let pod = cluster.pods()[0].clone();
        cluster.patch(Kind::Pod, &pod, &json!({"status": {"phase": "Failed"}}));
        cluster.step();
        assert_eq!(cluster.active().len(), 1, "{is_sent_again}");
        assert_ne!(cluster.active(), [pod]);
    }
}

// CLD-2
#[test]
fn a_roll_out_after_a_lost_answer_makes_no_pod_of_the_earlier_template() {
    for strategy in [
        json!({"partition": 0}),
        json!({"partition": 1}),
        json!({"maxSurge": 1}),
    ] {
        let mut cluster = Cluster::new();
        cluster.create_set(SET, json!({"replicas": 2, "updateStrategy": strategy}));
        await_creation(&mut cluster);
        for _ in 0..2 {
            // The second request makes the pod, and the first one may do so as long as that is gone.
            cluster.answer_write("cloneset_create_pod", Answer::Lost);
        }
        cluster.settle();
        assert_eq!(cluster.created.len(), 2);
        cluster.set_image("app:2");
        cluster.settle();
        cluster.settle();
        let updated = if strategy["partition"] == 1 { 1 } else { 2 };
        assert_eq!(cluster.with_image("app:2").len(), updated, "{strategy}");
        assert_eq!(cluster.active().len(), 2, "{strategy}");
        assert_eq!(cluster.created.len(), 2 + updated, "{strategy}");
        // What is lost in a roll-out comes back on the template that is missing.
        let old = cluster.with_image("app:1");
        for pod in &old {
            cluster.delete_pod(pod);
        }
        cluster.settle();
        assert_eq!(cluster.with_image("app:1").len(), old.len());
    }
}

// CLD-2
#[test]
fn a_place_whose_creation_is_refused_after_a_lost_answer_gets_the_next_template() {
    let mut cluster = Cluster::new();
    cluster.create_set(SET, json!({"replicas": 1}));
    await_creation(&mut cluster);
    cluster.answer(Answer::Lost);
    cluster.policy =
        Box::new(|_, _, body| body["spec"]["containers"][0]["image"] == json!("app:1"));
    for _ in 0..4 {
        cluster.step();
        cluster.wait(Duration::from_mins(1));
    }
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.with_image("app:2").len(), 1);
    assert_eq!(cluster.created.len(), 1);
}

// CLD-2, CLD-18
#[test]
fn a_place_of_a_lost_answer_makes_no_pod_that_is_named_to_go() {
    let mut cluster = Cluster::new();
    cluster.create_set(SET, json!({"replicas": 1}));
    await_creation(&mut cluster);
    for _ in 0..2 {
        cluster.answer_write("cloneset_create_pod", Answer::Lost);
        cluster.turn();
    }
    cluster.settle();
    let pod = cluster.active()[0].clone();
    cluster.edit(&json!({"scaleStrategy": {"podsToDelete": [pod]}}));
    for _ in 0..12 {
        cluster.settle();
    }
    assert_eq!(cluster.active().len(), 1);
    assert!(cluster.created.len() <= 2, "{:?}", cluster.created);
}

// CLS-22
#[test]
fn a_pod_that_goes_counts_as_going_whatever_else_of_it_is_answered() {
    let mut cluster = Cluster::with_set(json!({"replicas": 3}));
    let [going, other] = [0, 1].map(|place| cluster.active()[place].clone());
    let close =
        json!({"status": {"conditions": [{"type": "InPlaceUpdateReady", "status": "False"}]}});
    cluster.patch(Kind::Pod, &going, &close);
    cluster.watch(Kind::Pod, usize::MAX);
    cluster.turn();
    assert_eq!(cluster.first_under_way(), Some("cloneset_mark_pod"));
    cluster.edit(&json!({"replicas": 2}));
    cluster.watch(Kind::Set, 1);
    cluster.turn();
    // By the time the gate is open again, another one is the first to go.
    let cheap =
        json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-1"}}});
    cluster.patch(Kind::Pod, &other, &cheap);
    cluster.watch(Kind::Pod, usize::MAX);
    cluster.answer_write("cloneset_mark_pod", Answer::Done);
    cluster.turn();
    cluster.settle();
    assert_eq!(cluster.deleted, [other]);
}

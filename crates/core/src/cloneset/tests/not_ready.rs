//! Hooks that keep a pod out of service while they hold it.

use serde_json::{Value, json};

use super::cluster::{Cluster, Kind, SET, is_ready};

fn spec(replicas: usize) -> Value {
    json!({
        "replicas": replicas,
        "lifecycle": {
            "preDelete": {"labelsHandler": {"delete": "ask"}, "markPodNotReady": true},
            "inPlaceUpdate": {"labelsHandler": {"update": "ask"}, "markPodNotReady": true},
        },
        "updateStrategy": {"type": "InPlaceIfPossible", "maxUnavailable": 1},
        "template": {
            "metadata": {"labels": {"app": SET, "delete": "ask", "update": "ask"}},
            "spec": {"containers": [{"name": "main", "image": "app:1"}]},
        },
    })
}

fn label(cluster: &mut Cluster, pod: &str, key: &str, value: &str) {
    let labels = json!({"metadata": {"labels": {key: value}}});
    cluster.patch(Kind::Pod, pod, &labels);
}

/// The status and the message of the condition.
fn service(cluster: &Cluster, pod: &str) -> (String, String) {
    let conditions = cluster.pod(pod)["status"]["conditions"].as_array().unwrap();
    let condition = conditions
        .iter()
        .find(|one| one["type"] == "KruisePodReady");
    let text = |field: &str| {
        condition.unwrap()[field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (text("status"), text("message"))
}

fn in_service() -> (String, String) {
    ("True".to_owned(), "[]".to_owned())
}

fn held_by(hook: &str) -> (String, String) {
    let message = format!(r#"[{{"userAgent":"Lifecycle","key":"{hook}"}}]"#);
    ("False".to_owned(), message)
}

fn in_state(cluster: &Cluster, state: &str) -> Vec<String> {
    let mut pods = cluster.active();
    pods.retain(|pod| cluster.state_of(pod) == state);
    pods
}

// CLS-13, CLS-32, CLD-48
#[test]
fn a_new_pod_has_the_gate_and_is_in_service_with_two_writes() {
    let cluster = Cluster::with_set(spec(2));
    assert_eq!(
        (cluster.count_ready(), cluster.writes["cloneset_mark_pod"]),
        (2, 2)
    );
    for pod in cluster.active() {
        assert_eq!(service(&cluster, &pod), in_service());
    }
}

/// The six cases of a held pod, which is not ready meanwhile.
// CLS-30, CLS-31, CLS-32, CLD-16
#[test]
fn a_held_pod_is_not_ready_and_ready_again_once_it_is_restored() {
    for excludes_held in [false, true] {
        for case in ["scaled", "listed", "labelled"] {
            let mut cluster = Cluster::with_set(spec(3));
            if excludes_held {
                let labels =
                    json!({"apps.kruise.io/cloneset-scaling-exclude-preparing-delete": "true"});
                cluster.patch(Kind::Set, SET, &json!({"metadata": {"labels": labels}}));
            }
            let first = cluster.active()[0].clone();
            match case {
                "scaled" => cluster.edit(&json!({"replicas": 2})),
                "listed" => cluster
                    .edit(&json!({"replicas": 2, "scaleStrategy": {"podsToDelete": [first]}})),
                _ => label(
                    &mut cluster,
                    &first,
                    "apps.kruise.io/specified-delete",
                    "true",
                ),
            }
            cluster.settle();
            let held = in_state(&cluster, "PreparingDelete");
            assert_eq!(held.len(), 1, "{case}");
            assert_eq!(service(&cluster, &held[0]), held_by("preDeleteHook"));
            assert!(!is_ready(cluster.pod(&held[0])));
            cluster.edit(&json!({"replicas": 3}));
            cluster.settle();
            let created = if excludes_held && case != "scaled" {
                4
            } else {
                3
            };
            assert_eq!(cluster.created.len(), created, "{case} {excludes_held}");
            if case == "scaled" {
                assert_eq!(
                    (cluster.count_ready(), service(&cluster, &held[0])),
                    (3, in_service())
                );
                assert_eq!(cluster.status()["availableReplicas"], 3);
                continue;
            }
            assert_eq!(service(&cluster, &held[0]), held_by("preDeleteHook"));
            label(&mut cluster, &held[0], "delete", "go");
            cluster.settle();
            assert_eq!((cluster.created.len(), cluster.count_ready()), (4, 3));
        }
    }
}

// CLS-29, CLS-32
#[test]
fn a_pod_is_out_of_service_until_its_update_in_place_is_done() {
    let mut cluster = Cluster::with_set(spec(1));
    let pod = cluster.active()[0].clone();
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.state_of(&pod), "PreparingUpdate");
    assert_eq!(service(&cluster, &pod), held_by("preUpdateHook"));
    label(&mut cluster, &pod, "update", "go");
    let mut seen = Vec::new();
    for _ in 0..20 {
        cluster.step();
        let (state, (status, _)) = (cluster.state_of(&pod), service(&cluster, &pod));
        seen.push((state, status));
        cluster.run_kubelets();
        cluster.wait(std::time::Duration::from_secs(1));
    }
    seen.dedup();
    let seen: Vec<_> = seen
        .iter()
        .map(|(state, status)| (&**state, &**status))
        .collect();
    assert_eq!(
        seen,
        [
            ("PreparingUpdate", "False"),
            ("Updating", "False"),
            ("Updated", "True")
        ]
    );
    assert_eq!(
        (cluster.with_image("app:2").len(), cluster.count_ready()),
        (1, 1)
    );
    // A further template: the hook is put back, and with it the pod leaves service.
    cluster.set_image("app:3");
    cluster.settle();
    assert_eq!(
        (cluster.state_of(&pod), service(&cluster, &pod)),
        ("PreparingUpdate".to_owned(), held_by("preUpdateHook"))
    );
}

// CLD-53
#[test]
fn an_edit_that_is_taken_back_brings_the_pod_back_into_service() {
    let mut cluster = Cluster::with_set(spec(2));
    cluster.set_image("app:2");
    cluster.settle();
    assert_eq!(cluster.count_ready(), 1);
    cluster.set_image("app:1");
    cluster.settle();
    assert_eq!(in_state(&cluster, "Normal").len(), 2);
    for pod in cluster.active() {
        assert_eq!(service(&cluster, &pod), in_service());
    }
    assert_eq!(
        (cluster.count_ready(), &cluster.status()["readyReplicas"]),
        (2, &json!(2))
    );
}

// CLD-53, CLS-32
#[test]
fn a_hook_that_no_longer_marks_pods_brings_them_back_and_one_that_does_takes_them_out() {
    let mut cluster = Cluster::with_set(spec(2));
    cluster.set_image("app:2");
    cluster.settle();
    let pod = in_state(&cluster, "PreparingUpdate")[0].clone();
    for (on, expected) in [(false, in_service()), (true, held_by("preUpdateHook"))] {
        cluster.edit(&json!({"lifecycle": {"inPlaceUpdate": {"markPodNotReady": on}}}));
        cluster.settle();
        assert_eq!(
            (cluster.state_of(&pod), service(&cluster, &pod)),
            ("PreparingUpdate".to_owned(), expected)
        );
    }
}

// CLS-32
#[test]
fn what_others_have_written_stays_and_pods_without_the_gate_are_left_alone() {
    let mut cluster = Cluster::with_set(spec(2));
    let pods = cluster.active();
    let theirs = r#"[{"userAgent":"Restart","key":"x"}]"#;
    let condition = json!([{"type": "KruisePodReady", "status": "False", "message": theirs}]);
    cluster.patch(
        Kind::Pod,
        &pods[0],
        &json!({"status": {"conditions": condition}}),
    );
    let gates = json!([{"conditionType": "InPlaceUpdateReady"}]);
    cluster.patch(
        Kind::Pod,
        &pods[1],
        &json!({"spec": {"readinessGates": gates}}),
    );
    cluster.settle();
    assert_eq!(
        service(&cluster, &pods[0]),
        ("False".to_owned(), theirs.to_owned())
    );
    let labels = json!({"apps.kruise.io/specified-delete": "true"});
    for pod in &pods {
        cluster.patch(Kind::Pod, pod, &json!({"metadata": {"labels": labels}}));
    }
    cluster.edit(&json!({"updateStrategy": {"maxUnavailable": 2}}));
    cluster.settle();
    let both =
        r#"[{"userAgent":"Lifecycle","key":"preDeleteHook"},{"userAgent":"Restart","key":"x"}]"#;
    assert_eq!(
        service(&cluster, &pods[0]),
        ("False".to_owned(), both.to_owned())
    );
    assert_eq!(cluster.state_of(&pods[1]), "PreparingDelete");
    assert_eq!(service(&cluster, &pods[1]), in_service());
}

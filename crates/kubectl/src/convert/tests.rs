use rstest::rstest;

use super::*;

fn deployment() -> Value {
    json!({
        "kind": "Deployment", "metadata": { "name": "game", "namespace": "ns" },
        "spec": {
            "selector": { "matchLabels": { "app": "game" } },
            "template": {
                "metadata": { "labels": { "app": "game", "version": "7" } },
                "spec": { "containers": [
                    { "name": "main", "readinessProbe": {
                        "httpGet": { "path": "/ready", "port": "web", "host": "10.0.0.9" }, "periodSeconds": 5 },
                      "livenessProbe": { "exec": { "command": ["check", "$(ROLE)"] }, "terminationGracePeriodSeconds": 9 } },
                    { "name": "proxy" },
                ] },
            },
        },
    })
}

fn choice(container: Option<&'static str>, probe: Option<ProbeKind>) -> Choice<'static> {
    Choice {
        container,
        probe,
        condition: None,
    }
}

fn errors_of(marker: &Value) -> Vec<String> {
    let decoded = decode_object::<PodProbeMarker>(marker).unwrap();
    let errors = Marker::parse(&decoded, Compatibility::default()).err();
    let errors = errors.unwrap_or_default().into_iter();
    errors.map(|error| error.to_string()).collect()
}

#[test]
fn a_probe_of_a_workload_becomes_a_marker() {
    let readiness = choice(Some("main"), Some(ProbeKind::Readiness));
    let converted = convert_object(&deployment(), &readiness).unwrap();
    let expected = json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker",
        "metadata": { "name": "game-readiness", "namespace": "ns" },
        "spec": {
            "selector": { "matchLabels": { "app": "game" } },
            "probes": [{
                "name": "readiness", "containerName": "main", "podConditionType": "main-readiness",
                "probe": { "httpGet": { "path": "/ready", "port": "web" }, "periodSeconds": 5 },
            }],
        },
    });
    assert_eq!(converted.marker, expected);
    assert!(converted.remarks[0].contains("httpGet.host 10.0.0.9 is left out"));
    assert_eq!(errors_of(&converted.marker), [""; 0]);
    let liveness = choice(Some("main"), Some(ProbeKind::Liveness));
    let converted = convert_object(&deployment(), &liveness).unwrap();
    let remarks = converted.remarks.join("\n");
    for words in ["terminationGracePeriodSeconds is left out", "$(…)"] {
        assert!(remarks.contains(words), "{words}: {remarks}");
    }
    assert_eq!(errors_of(&converted.marker), [""; 0]);
}

#[test]
fn a_pod_is_selected_by_the_labels_that_its_controller_did_not_give() {
    let mut pod = deployment()["spec"]["template"].clone();
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!("game-0");
    pod["metadata"]["labels"]["pod-template-hash"] = json!("5d4");
    let converted =
        convert_object(&pod, &choice(Some("main"), Some(ProbeKind::Readiness))).unwrap();
    let labels = &converted.marker["spec"]["selector"]["matchLabels"];
    assert_eq!(*labels, json!({ "app": "game", "version": "7" }));
    assert!(converted.remarks[0].contains("all labels of the pod"));
}

#[test]
fn what_belongs_to_one_revision_or_to_no_probe_is_left_out() {
    let mut replica_set = deployment();
    replica_set["spec"]["selector"]["matchLabels"]["pod-template-hash"] = json!("5d4");
    let container = &mut replica_set["spec"]["template"]["spec"]["containers"][0];
    container["readinessProbe"]["retries"] = json!(2);
    let readiness = choice(Some("main"), Some(ProbeKind::Readiness));
    let converted = convert_object(&replica_set, &readiness).unwrap();
    let labels = &converted.marker["spec"]["selector"]["matchLabels"];
    assert_eq!(*labels, json!({ "app": "game" }));
    let remarks = converted.remarks.join("\n");
    for words in ["label pod-template-hash is left out", "retries is left out"] {
        assert!(remarks.contains(words), "{words}: {remarks}");
    }
}

/// A selector without any label would match every pod of the namespace.
#[test]
fn labels_of_controllers_stay_where_there_are_no_others() {
    let of_controllers = json!({"controller-uid": "u", "batch.kubernetes.io/controller-uid": "u"});
    let readiness = choice(Some("main"), Some(ProbeKind::Readiness));
    let mut job = deployment();
    job["spec"]["selector"]["matchLabels"] = of_controllers.clone();
    let mut pod = deployment()["spec"]["template"].clone();
    pod["kind"] = json!("Pod");
    pod["metadata"]["labels"] = of_controllers.clone();
    for object in [job, pod] {
        let converted = convert_object(&object, &readiness).unwrap();
        let labels = &converted.marker["spec"]["selector"]["matchLabels"];
        assert_eq!(*labels, of_controllers);
    }
}

#[rstest]
#[case(None, None, "which container? --container main or proxy")]
#[case(Some("mian"), None, "no container mian; did you mean main?")]
#[case(Some("db"), None, "no container db; there is main, proxy")]
#[case(
    Some("main"),
    None,
    "which probe of container main? --probe liveness or readiness"
)]
#[case(
    Some("main"),
    Some(ProbeKind::Startup),
    "container main has no startup probe, only liveness, readiness"
)]
#[case(Some("proxy"), None, "container proxy has no probe")]
fn what_is_not_clear_is_asked_for(
    #[case] container: Option<&'static str>,
    #[case] probe: Option<ProbeKind>,
    #[case] expected: &str,
) {
    let error = convert_object(&deployment(), &choice(container, probe)).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

/// As `kubectl get -o yaml` prints it.
#[test]
fn a_marker_of_openkruise_keeps_its_meaning() {
    let object = json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker",
        "metadata": {
            "name": "m", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["kruise.io/node-pod-probe-cleanup"],
            "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "a" },
            "managedFields": [{ "manager": "manager" }], "ownerReferences": [{ "kind": "Game", "name": "g" }],
        },
        "spec": {
            "selector": { "matchLabels": { "app": "game" } },
            "probes": [{
                "name": "Idle", "containerName": "main", "podConditionType": "game.io/idle",
                "probe": { "tcpSocket": { "port": 80, "host": "" }, "periodSeconds": 10, "timeoutSeconds": 1 },
                "markerPolicy": [{ "state": "Succeeded", "labels": { "idle": "true" } }],
            }],
        },
        "status": { "observedGeneration": 2, "matchedPods": 1 },
    });
    let converted = convert_object(&object, &Choice::default()).unwrap();
    let marker = &converted.marker;
    let metadata = json!({ "name": "m", "namespace": "ns", "annotations": { "team": "a" } });
    assert_eq!(marker["metadata"], metadata);
    assert!(marker.get("status").is_none());
    let probe = json!({ "tcpSocket": { "port": 80 }, "initialDelaySeconds": 1, "periodSeconds": 10,
        "timeoutSeconds": 1, "failureThreshold": 1 });
    assert_eq!(marker["spec"]["probes"][0]["probe"], probe);
    let policy = &object["spec"]["probes"][0]["markerPolicy"];
    assert_eq!(marker["spec"]["probes"][0]["markerPolicy"], *policy);
    assert_eq!(converted.remarks.len(), 5, "{:?}", converted.remarks);
    assert_eq!(errors_of(marker), [""; 0]);
}

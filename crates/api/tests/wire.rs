//! Objects read from the wire and written back.
#![allow(clippy::unwrap_used, reason = "a failure is what a test reports")]

use leadsman_api::{NodePodProbe, PodProbeMarker};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Reads an object and returns it as it is written.
fn round_trip<T: DeserializeOwned + Serialize>(object: Value) -> Value {
    serde_json::to_value(serde_json::from_value::<T>(object).unwrap()).unwrap()
}

fn full_marker() -> Value {
    json!({
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "PodProbeMarker",
        "metadata": {"name": "game-server-probe", "namespace": "ns", "generation": 3},
        "spec": {
            "selector": {
                "matchLabels": {"app": "game-server"},
                "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a"]}],
            },
            "probes": [{
                "name": "Idle",
                "containerName": "game-server",
                "probe": {
                    "httpGet": {
                        "port": "http",
                        "path": "/idle?x=1",
                        "scheme": "HTTPS",
                        "httpHeaders": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
                    },
                    "initialDelaySeconds": 10,
                    "timeoutSeconds": 3,
                    "periodSeconds": 10,
                    "successThreshold": 1,
                    "failureThreshold": 3,
                },
                "markerPolicy": [{
                    "state": "Succeeded",
                    "labels": {"gameserver-idle": "true"},
                    "annotations": {"controller.kubernetes.io/pod-deletion-cost": "-10"},
                }],
                "podConditionType": "game.io/idle",
            }],
        },
        "status": {
            "observedGeneration": 3,
            "matchedPods": 2,
            "probes": [{"name": "Idle", "succeeded": 1, "failed": 0, "unknown": 1, "pending": 0, "silent": 0}],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Probing", "message": "",
                "lastTransitionTime": "2026-01-02T03:04:05Z", "observedGeneration": 3,
            }],
        },
    })
}

fn full_node_pod_probe() -> Value {
    json!({
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "NodePodProbe",
        "metadata": {"name": "node-1"},
        "spec": {"podProbes": [{
            "name": "pod", "namespace": "ns", "uid": "u", "IP": "10.0.0.1",
            "probes": [{
                "name": "game-server-probe#Idle",
                "containerName": "main",
                "probe": {"exec": {"command": ["true"]}},
                "revision": "r1",
                "startedContainerID": "containerd://1",
            }],
        }]},
        "status": {"podProbeStatuses": [{
            "name": "pod", "namespace": "ns", "uid": "u",
            "probeStates": [{
                "name": "game-server-probe#Idle",
                "state": "Succeeded",
                "lastProbeTime": "2026-01-02T03:04:05Z",
                "lastTransitionTime": "2026-01-02T03:04:05Z",
                "message": "ok",
                "revision": "r1",
                "containerID": "containerd://1",
            }],
            "cannotProbe": [{"name": "game-server-probe#Players", "message": "no answer"}],
        }]},
    })
}

#[test]
fn a_full_object_is_kept() {
    assert_eq!(round_trip::<PodProbeMarker>(full_marker()), full_marker());
    assert_eq!(
        round_trip::<NodePodProbe>(full_node_pod_probe()),
        full_node_pod_probe()
    );
}

#[test]
fn absent_and_null_fields_are_not_written() {
    let lean = json!({
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "PodProbeMarker",
        "metadata": {"name": "m"},
        "spec": {
            "selector": {},
            "probes": [{
                "name": "a", "containerName": "c", "probe": {},
                "markerPolicy": [{"state": "Failed"}],
            }, {
                "name": "b", "containerName": "c", "probe": {},
            }],
        },
    });
    assert_eq!(round_trip::<PodProbeMarker>(lean.clone()), lean);
    let mut nulls = lean.clone();
    nulls["metadata"]["creationTimestamp"] = Value::Null;
    nulls["status"] = Value::Null;
    nulls["spec"]["selector"] = Value::Null;
    nulls["spec"]["probes"][0]["podConditionType"] = Value::Null;
    nulls["spec"]["probes"][0]["probe"] = json!({"exec": null, "periodSeconds": null});
    nulls["spec"]["probes"][0]["markerPolicy"][0]["labels"] = Value::Null;
    nulls["spec"]["probes"][0]["markerPolicy"][0]["annotations"] = Value::Null;
    nulls["spec"]["probes"][1]["markerPolicy"] = Value::Null;
    assert_eq!(round_trip::<PodProbeMarker>(nulls.clone()), lean);
    nulls["spec"]["probes"] = Value::Null;
    nulls["status"] = json!({"probes": null, "conditions": null, "matchedPods": null});
    let read = round_trip::<PodProbeMarker>(nulls);
    assert_eq!(read["spec"], json!({"selector": {}, "probes": []}));
    assert_eq!(read["status"], json!({"observedGeneration": 0}));
}

#[test]
fn null_lists_and_times_as_go_writes_them_are_empty() {
    let object = json!({
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "NodePodProbe",
        "metadata": {"name": "node-1", "creationTimestamp": null},
        "spec": {"podProbes": [{"name": "p", "namespace": "n", "uid": "u", "IP": "", "probes": null}]},
        "status": {"podProbeStatuses": [
            {"name": "p", "namespace": "n", "uid": "u", "probeStates": [
                {"name": "m#a", "state": "Failed", "lastProbeTime": null, "lastTransitionTime": null},
            ]},
            {"name": "q", "namespace": "n", "uid": "u", "probeStates": null},
        ]},
    });
    let read = round_trip::<NodePodProbe>(object);
    assert_eq!(
        read["spec"]["podProbes"][0],
        json!({"name": "p", "namespace": "n", "uid": "u", "IP": ""})
    );
    assert_eq!(
        read["status"]["podProbeStatuses"],
        json!([
            {"name": "p", "namespace": "n", "uid": "u", "probeStates": [{"name": "m#a", "state": "Failed"}]},
            {"name": "q", "namespace": "n", "uid": "u"},
        ])
    );
    let bare = json!({"metadata": {"name": "n"}, "spec": {"podProbes": null}, "status": {"podProbeStatuses": null}});
    let bare: NodePodProbe = serde_json::from_value(bare).unwrap();
    assert_eq!(bare.spec, leadsman_api::NodePodProbeSpec::default());
}

#[test]
fn unknown_fields_are_skipped() {
    let mut object = full_marker();
    object["spec"]["paused"] = json!(true);
    object["spec"]["probes"][0]["probe"]["newer"] = json!({"a": 1});
    assert_eq!(round_trip::<PodProbeMarker>(object), full_marker());
}

//! The slim views agree with Kubernetes' own types.

use k8s_openapi::api::core::v1;
use kube::Resource;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

pub(super) fn sample() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{\"a\":\"\\u00e9\\n\"}", "b": "" },
            "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-03T03:04:05Z",
            "generateName": "game-", "finalizers": ["a/b"], "generation": 3,
            "labels": { "app": "game", "gameserver-idle": "true" },
            "name": "game-0", "namespace": "shop", "resourceVersion": "4711",
            "ownerReferences": [{ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "o" },
                { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "game", "uid": "r", "controller": true }],
            "uid": "0b5a",
            "managedFields": [
                { "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                  "time": "2026-01-02T03:04:05Z", "fieldsType": "FieldsV1",
                  "fieldsV1": { "f:metadata": { "f:generateName": {}, "f:labels": { ".": {}, "f:app": {} } },
                                "f:spec": { "f:containers": { "k:{\"name\":\"main\"}": { ".": {}, "f:image": {} } } } } },
                { "manager": "leadsman-podprobe", "operation": "Apply", "apiVersion": "v1", "subresource": "status",
                  "fieldsV1": { "f:metadata": { "f:labels": { "f:gameserver-idle": {} } },
                                "f:status": { "f:conditions": { "k:{\"type\":\"game.io/idle\"}": { "f:type": {} } } } } },
                { "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "subresource": "status",
                  "fieldsV1": { "f:status": { "f:conditions": { "k:{\"type\":\"Ready\"}": { "f:status": {} } },
                                              "f:hostIP": {}, "f:phase": {} } } },
                { "manager": "scheduler", "operation": "Update", "fieldsV1": { "f:spec": { "f:nodeName": {} } } },
            ],
        },
        "spec": {
            "nodeName": "node-1", "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "activeDeadlineSeconds": 600,
            "containers": [{
                "name": "main", "image": "game", "imagePullPolicy": "Always", "env": [{ "name": "A", "value": "b" }],
                "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }, { "containerPort": 9 }],
                "startupProbe": { "exec": { "command": ["true"] } },
            }],
            "initContainers": [{ "name": "side", "image": "s", "restartPolicy": "Always" }],
        },
        "status": {
            "phase": "Running", "observedGeneration": 2, "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }], "hostIP": "192.0.2.1",
            "conditions": [
                { "type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-02T03:04:06Z",
                  "observedGeneration": 1 },
                { "type": "game.io/idle", "status": "False", "message": "no \"idle\"", "reason": "x",
                  "lastProbeTime": "2026-01-02T03:04:07Z" },
            ],
            "containerStatuses": [{
                "name": "main", "containerID": "containerd://abc", "started": true, "ready": true, "image": "game",
                "imageID": "i", "restartCount": 3, "state": { "running": { "startedAt": "2026-01-02T03:04:05Z" } },
            }],
            "initContainerStatuses": [{ "name": "side", "started": false, "ready": false, "image": "s", "imageID": "",
                                        "restartCount": 0 }],
        },
    })
}

/// The slim view, worked out from Kubernetes' own type.
fn through_the_whole(text: &str) -> Pod {
    let pod: v1::Pod = serde_json::from_str(text).unwrap();
    let meta = pod.metadata;
    let (spec, status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
    let owners = meta.managed_fields.into_iter().flatten().map(|entry| {
        let fields = entry.fields_v1.map_or(Value::Null, |fields| fields.0);
        FieldOwner {
            manager: entry.manager.unwrap_or_default(),
            operation: entry.operation.unwrap_or_default(),
            subresource: entry.subresource.unwrap_or_default(),
            time: entry.time,
            owned: owned(&fields),
        }
    });
    let container = |it: v1::Container| Container {
        name: it.name,
        image: it.image.unwrap_or_default(),
        image_pull_policy: it.image_pull_policy,
        ports: (it.ports.into_iter().flatten())
            .map(|port| ContainerPort {
                name: port.name,
                container_port: port.container_port,
            })
            .collect(),
        startup_probe: it.startup_probe.map(|_| Present),
        restart_policy: it.restart_policy,
    };
    let reason = |reason| ContainerStateReason { reason };
    let state = |it: v1::ContainerState| ContainerState {
        running: it.running.map(|running| ContainerStateRunning {
            started_at: running.started_at,
        }),
        waiting: it.waiting.map(|waiting| reason(waiting.reason)),
        terminated: it.terminated.map(|terminated| reason(terminated.reason)),
    };
    let seen = |it: v1::ContainerStatus| ContainerStatus {
        name: it.name,
        container_id: it.container_id,
        image: it.image,
        image_id: it.image_id,
        ready: it.ready,
        restart_count: it.restart_count,
        started: it.started,
        state: it.state.map(state).unwrap_or_default(),
    };
    let condition = |it: v1::PodCondition| PodCondition {
        type_: it.type_,
        status: it.status,
        message: it.message,
        last_transition_time: it.last_transition_time,
        last_probe_time: it.last_probe_time,
    };
    Pod {
        identity: ObjectMeta {
            name: meta.name,
            namespace: meta.namespace,
            uid: meta.uid,
            resource_version: meta.resource_version,
            generation: meta.generation,
            creation_timestamp: meta.creation_timestamp,
            deletion_timestamp: meta.deletion_timestamp,
            finalizers: meta.finalizers,
            ..ObjectMeta::default()
        },
        labels: meta.labels.into_iter().flatten().collect(),
        annotations: meta.annotations.into_iter().flatten().collect(),
        controller: (meta.owner_references.into_iter().flatten())
            .find(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid),
        owners: owners.filter(|owner| !owner.is_empty()).collect(),
        spec: PodSpec {
            pinned_node: None,
            active_deadline_seconds: spec.active_deadline_seconds,
            readiness_gates: (spec.readiness_gates.into_iter().flatten())
                .map(|gate| ReadinessGate {
                    condition_type: gate.condition_type,
                })
                .collect(),
            node_name: spec.node_name,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            containers: spec.containers.into_iter().map(container).collect(),
            init_containers: (spec.init_containers.into_iter().flatten())
                .map(container)
                .collect(),
        },
        status: PodStatus {
            phase: status.phase,
            pod_ip: status.pod_ip,
            conditions: (status.conditions.into_iter().flatten())
                .map(condition)
                .collect(),
            container_statuses: (status.container_statuses.into_iter().flatten())
                .map(seen)
                .collect(),
            init_container_statuses: (status.init_container_statuses.into_iter().flatten())
                .map(seen)
                .collect(),
        },
    }
}

/// What a field set names, read from a tree of values.
fn owned(fields: &Value) -> Owned {
    let keys = |path: &[&str], prefix: &str| -> Vec<String> {
        let place = path.iter().try_fold(fields, |place, step| place.get(step));
        let keys = place.and_then(Value::as_object);
        let keys = keys.into_iter().flat_map(serde_json::Map::keys);
        keys.filter_map(|key| key.strip_prefix(prefix).map(str::to_owned))
            .collect()
    };
    let conditions = keys(&["f:status", "f:conditions"], "k:").into_iter();
    Owned {
        labels: keys(&["f:metadata", "f:labels"], "f:"),
        annotations: keys(&["f:metadata", "f:annotations"], "f:"),
        conditions: conditions
            .filter_map(|key| {
                let key: Value = serde_json::from_str(&key).ok()?;
                Some(key.get("type")?.as_str()?.to_owned())
            })
            .collect(),
    }
}

#[test]
fn a_slim_pod_agrees_with_the_whole_pod() {
    let text = sample().to_string();
    let slim: Pod = serde_json::from_str(&text).unwrap();
    assert_eq!(slim, through_the_whole(&text));
    assert_eq!(slim.owners.len(), 3);
    assert_eq!(slim.owners[1].owned.conditions, ["game.io/idle"]);
    assert_eq!(slim.meta().resource_version.as_deref(), Some("4711"));
}

#[test]
fn null_and_absent_fields_of_a_pod_are_empty() {
    for text in [
        r#"{"metadata": {"name": "a"}}"#,
        r#"{"metadata": {"name": "a", "labels": null, "annotations": null, "managedFields": null,
            "deletionTimestamp": null, "uid": null}, "spec": {"nodeName": null}, "status": {"phase": null}}"#,
        r#"{"metadata": {"name": "a", "labels": {}, "annotations": {}, "managedFields": []}, "spec": {}, "status": {}}"#,
    ] {
        let mut expected = Pod::default();
        expected.identity.name = Some("a".to_owned());
        assert_eq!(serde_json::from_str::<Pod>(text).unwrap(), expected);
    }
}

#[test]
fn a_slim_node_has_name_and_labels() {
    let text = r#"{"metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"type": "virtual-kubelet"},
        "annotations": {"a": "b"}, "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]},
        "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"images": [{"names": ["a"], "sizeBytes": 1}]}}"#;
    let node: Node = serde_json::from_str(text).unwrap();
    assert_eq!(
        node.labels,
        [("type".to_owned(), "virtual-kubelet".to_owned())]
    );
    assert_eq!(node.meta().name.as_deref(), Some("n"));
    assert_eq!(node.meta().resource_version.as_deref(), Some("7"));
}

// BCJ-3
#[test]
fn a_slim_node_has_what_decides_which_pods_it_takes() {
    let text = r#"{"metadata": {"name": "n"}, "spec": {"unschedulable": true, "taints": [
            {"key": "a", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}, {"key": "b", "value": "c", "effect": "NoExecute"}]},
        "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3920m", "pods": "110"}}}"#;
    let node: Node = serde_json::from_str(text).unwrap();
    let taint = |key: &str, value: &str, effect: &str| Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
    };
    assert_eq!(
        node.taints,
        [taint("a", "", "NoSchedule"), taint("b", "c", "NoExecute")]
    );
    assert!(node.unschedulable);
    let allocatable = [("cpu", "3920m"), ("pods", "110")];
    assert_eq!(
        node.allocatable,
        allocatable.map(|(key, value)| (key.to_owned(), value.to_owned()))
    );
    let bare: Node = serde_json::from_str(
        r#"{"metadata": {"name": "n"}, "spec": {"taints": null}, "status": {}}"#,
    )
    .unwrap();
    assert!(bare.taints.is_empty() && !bare.unschedulable && bare.allocatable.is_empty());
}

// BCJ-8
#[test]
fn the_node_that_a_pod_is_pinned_to_is_kept_until_it_is_bound() {
    let affinity = |fields: Value| json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}});
    let name =
        |operator: &str| json!([{"key": "metadata.name", "operator": operator, "values": ["n1"]}]);
    for (affinity, node, pinned) in [
        (affinity(name("In")), Value::Null, Some("n1")),
        (affinity(name("In")), json!("n1"), None),
        (affinity(name("NotIn")), Value::Null, None),
        (affinity(Value::Null), Value::Null, None),
        (json!({"podAntiAffinity": {}}), Value::Null, None),
        (
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": null}}),
            Value::Null,
            None,
        ),
        (Value::Null, Value::Null, None),
    ] {
        let pod =
            json!({"metadata": {"name": "a"}, "spec": {"affinity": affinity, "nodeName": node}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(pod.spec.pinned_node.as_deref(), pinned, "{affinity}");
    }
}

/// Field sets that are nearly right.
fn field_set() -> impl Strategy<Value = Value> {
    let key = prop::sample::select(vec![
        ".",
        "f:metadata",
        "f:status",
        "f:labels",
        "f:annotations",
        "f:conditions",
        "f:a/b",
        "f:",
        "k:{\"type\":\"Ready\"}",
        "k:{\"type\":\"a\\u00e9\\\"\"}",
        "k:{\"type\":1}",
        "k:{\"name\":\"x\"}",
        "k:{",
        "v:1",
        "i:0",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        Just(json!({})),
        any::<bool>().prop_map(|it| json!(it)),
        any::<i64>().prop_map(|it| json!(it)),
        Just(json!(1.5)),
        "[a-z\"\\\\\u{e9}]{0,3}".prop_map(|it| json!(it)),
    ];
    let tree = leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            3 => prop::collection::btree_map(key.clone(), inner.clone(), 0..5)
                .prop_map(|map| json!(map)),
            1 => prop::collection::vec(inner, 0..3).prop_map(Value::Array),
        ]
    });
    // Most trees of any shape miss the three places that count.
    (tree.clone(), tree.clone(), tree.clone(), tree, 0..4_u8).prop_map(|(a, b, c, d, shape)| {
        let metadata = json!({ "f:labels": a, "f:annotations": b, ".": {} });
        match shape {
            0 => d,
            1 => json!({ "f:metadata": metadata, "f:status": d }),
            2 => json!({ "f:metadata": d, "f:status": { "f:conditions": c } }),
            _ => json!({ "f:metadata": metadata, "f:status": { "f:conditions": c } }),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn owned_fields_agree_with_a_tree_of_values(fields in field_set()) {
        let text = json!({ "fieldsV1": fields }).to_string();
        let owner: FieldOwner = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(owner.owned, owned(&fields));
    }
}

/// All that whoever creates a pod decides about, and a manager keeps, counts.
#[test]
fn what_is_kept_of_a_pod_is_bounded() {
    let many =
        |count: usize, one: &dyn Fn(usize) -> Value| -> Value { (0..count).map(one).collect() };
    let pairs = |count: usize, length: usize| -> Value {
        let pairs = (0..count).map(|at| (format!("k{at}"), json!("v".repeat(length))));
        Value::Object(pairs.collect())
    };
    let owner = |operation: &str| {
        let labels: serde_json::Map<_, _> = (0..2_000)
            .map(|at| (format!("f:k{at}"), json!({})))
            .collect();
        let fields = json!({ "f:metadata": { "f:labels": labels } });
        let owner = json!({ "manager": "m", "operation": operation, "subresource": "status", "fieldsV1": fields });
        json!({ "metadata": { "managedFields": [owner] } })
    };
    let container = |at: usize| json!({ "name": format!("c{at}"), "image": "i" });
    let port = |at: usize| json!({ "name": format!("p{at}"), "containerPort": 1 });
    for (case, (pod, is_read)) in [
        (json!({ "metadata": { "labels": pairs(1_000, 10) } }), true),
        (json!({ "metadata": { "labels": pairs(1_000, 63) } }), false),
        (json!({ "metadata": { "annotations": pairs(10, 20_000) } }), true),
        (json!({ "metadata": { "annotations": pairs(2_000, 0) } }), false),
        (json!({ "metadata": { "finalizers": many(2_000, &|at| json!(format!("f/{at}"))) } }), false),
        (owner("Update"), true),
        (owner("Apply"), false),
        (json!({ "metadata": {}, "spec": { "containers": many(100, &container) } }), true),
        (json!({ "metadata": {}, "spec": { "containers": many(2_000, &container) } }), false),
        (json!({ "metadata": {}, "spec": { "initContainers": many(2_000, &container) } }), false),
        (json!({ "metadata": {}, "spec": { "containers": [{ "name": "c", "ports": many(2_000, &port) }] } }), false),
    ]
    .into_iter()
    .enumerate()
    {
        let read = serde_json::from_str::<Pod>(&pod.to_string());
        assert_eq!(read.is_ok(), is_read, "case {case}");
    }
}

//! What the world consists of, as JSON: nodes, pods as a ReplicaSet controller and a kubelet leave them, markers.

use serde_json::{Value, json};

/// Applications, each with a marker of its own and one pod on every node.
pub(super) const APPS: usize = 20;
/// Namespaces, with the same number of applications in each.
const NAMESPACES: usize = 4;
/// The probes of each marker.
pub(super) const PROBES: [&str; 2] = ["idle", "main"];
/// The container that is probed.
pub(super) const CONTAINER: &str = "server";

/// An application's name, which is its marker's too.
pub(super) fn app(app: usize) -> String {
    format!("app-{app:02}")
}

/// An application's namespace.
pub(super) fn namespace(app: usize) -> String {
    format!("shop-{}", app % NAMESPACES)
}

/// All namespaces.
pub(super) fn namespaces() -> impl Iterator<Item = String> {
    (0..NAMESPACES).map(namespace)
}

/// The name of an entry of a node's `NodePodProbe`.
pub(super) fn entry(app: usize, probe: &str) -> String {
    format!("{}#{probe}", self::app(app))
}

/// The label and the condition by which a probe's verdict shows on a pod.
pub(super) fn mark(probe: &str) -> String {
    format!("game.example.com/{probe}")
}

/// The annotation by which it shows: key, and value for a verdict.
pub(super) fn annotation(probe: &str, succeeded: bool) -> (String, String) {
    let value = if succeeded { "-10" } else { "10" };
    if probe == PROBES[0] {
        let key = "controller.kubernetes.io/pod-deletion-cost";
        (key.to_owned(), value.to_owned())
    } else {
        (format!("game.example.com/{probe}-cost"), value.to_owned())
    }
}

/// A node with the labels, addresses and images that real ones report.
pub(super) fn node(name: &str) -> Value {
    let images: Vec<_> = (0..20)
        .map(|n| {
            json!({
                "names": [
                    format!("registry.example.com/team/image-{n:02}@sha256:{:064x}", n + 1),
                    format!("registry.example.com/team/image-{n:02}:v1.{n}.0")
                ],
                "sizeBytes": 12_345_678 + n
            })
        })
        .collect();
    let conditions = [
        ("MemoryPressure", "False"),
        ("DiskPressure", "False"),
        ("PIDPressure", "False"),
        ("Ready", "True"),
    ];
    let conditions = conditions.map(|(kind, status)| {
        json!({"type": kind, "status": status, "reason": "Kubelet", "message": "kubelet has said so",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": "m5.large", "topology.kubernetes.io/region": "eu-1",
                "topology.kubernetes.io/zone": "eu-1a"
            },
            "annotations": {"node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true"}
        },
        "spec": {"podCIDR": "10.1.0.0/24"},
        "status": {
            "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110"},
            "allocatable": {"cpu": "8", "memory": "31Gi", "pods": "110"},
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": "192.168.1.1"}, {"type": "Hostname", "address": name}],
            "images": images
        }
    })
}

/// A pod as its `ReplicaSet`'s controller makes it, bound already.
pub(super) fn pod(name: &str, app: usize, node: &str) -> Value {
    let own = self::app(app);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace(app),
            "generateName": format!("{own}-6d5f8b7c9d-"),
            "labels": {
                "app": own, "app.kubernetes.io/part-of": "shop", "app.kubernetes.io/version": "1.27.3",
                "pod-template-hash": "6d5f8b7c9d", "team": "checkout"
            },
            "annotations": {
                "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z",
                "prometheus.io/scrape": "true", "prometheus.io/port": "9090"
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{own}-6d5f8b7c9d"),
                "uid": "7f0c2a52-6f57-4c9e-8f4e-0d6e5f1b2a3c", "controller": true, "blockOwnerDeletion": true
            }]
        },
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "containers": [server()],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 1000},
            "terminationGracePeriodSeconds": 30,
            "volumes": [
                {"name": "config", "configMap": {"name": format!("{own}-config")}},
                {"name": "scratch", "emptyDir": {}}
            ]
        }
    })
}

fn server() -> Value {
    let mut env: Vec<_> = (0..4)
        .map(|n| json!({"name": format!("SETTING_{n}"), "value": format!("some value of setting {n}")}))
        .collect();
    env.push(json!({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}));
    env.push(json!({"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "database", "key": "password"}}}));
    json!({
        "name": CONTAINER,
        "image": "registry.example.com/shop/server:1.27.3",
        "args": ["--listen=:8080", "--log-format=json"],
        "env": env,
        "ports": [{"name": "web", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "web"}, "periodSeconds": 5},
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/server", "readOnly": true},
            {"name": "scratch", "mountPath": "/tmp"}
        ]
    })
}

/// A pod's status as its kubelet reports it.
pub(super) fn running(pod: &str, ip: &str) -> Value {
    let at = "2026-01-01T00:00:00Z";
    let kinds = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ];
    let conditions = kinds.map(
        |kind| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": at}),
    );
    let image = "registry.example.com/shop/server:1.27.3";
    let container = json!({
        "name": CONTAINER, "ready": true, "started": true, "restartCount": 0, "image": image,
        "imageID": format!("{image}@sha256:{:064x}", 7),
        "containerID": format!("containerd://{}", container_id(pod, CONTAINER)),
        "state": {"running": {"startedAt": at}}
    });
    json!({"status": {
        "phase": "Running", "hostIP": "192.168.1.1", "hostIPs": [{"ip": "192.168.1.1"}], "podIP": ip,
        "podIPs": [{"ip": ip}], "qosClass": "Burstable", "startTime": at, "conditions": conditions,
        "containerStatuses": [container]
    }})
}

/// A container's id, without the runtime's name before it.
pub(super) fn container_id(pod: &str, container: &str) -> String {
    format!("{pod}-{container}-0123456789abcdef0123456789abcdef0123456789abcdef")
}

/// An application's marker: two probes, each with a label, an annotation and a condition for its verdict.
pub(super) fn marker(app: usize) -> Value {
    let policy = |probe: &str, succeeded: bool| {
        let (key, value) = annotation(probe, succeeded);
        json!({
            "state": if succeeded { "Succeeded" } else { "Failed" },
            "labels": {mark(probe): succeeded.to_string()},
            "annotations": {key: value}
        })
    };
    let handlers = [
        json!({"exec": {"command": ["/home/game/idle.sh"]}, "initialDelaySeconds": 10, "timeoutSeconds": 3,
            "periodSeconds": 10}),
        json!({"httpGet": {"path": "/main", "port": "web"}, "periodSeconds": 5}),
    ];
    let probes = PROBES.iter().zip(handlers).map(|(probe, handler)| {
        json!({
            "name": probe,
            "containerName": CONTAINER,
            "probe": handler,
            "markerPolicy": [policy(probe, true), policy(probe, false)],
            "podConditionType": mark(probe)
        })
    });
    json!({
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "PodProbeMarker",
        "metadata": {"name": self::app(app), "namespace": namespace(app)},
        "spec": {"selector": {"matchLabels": {"app": self::app(app)}}, "probes": probes.collect::<Vec<_>>()}
    })
}

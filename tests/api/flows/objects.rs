//! The objects that steps make: pods, what a kubelet reports of them, and probes.

use serde_json::{Value, json};

/// The containers of each pod; the second has a startup probe.
pub(crate) const CONTAINERS: [&str; 2] = ["main", "slow"];

/// What a played kubelet reports of a pod.
#[derive(Clone, Debug)]
pub(crate) struct Kubelet {
    pub(crate) ip: u8,
    /// The number of the container, and whether its startup probe has passed.
    pub(crate) containers: [(u32, bool); 2],
    pub(crate) finished: bool,
}

impl Kubelet {
    /// Both containers run, and the startup probe of one has not passed yet.
    pub(crate) fn new() -> Self {
        Self {
            ip: 1,
            containers: [(1, true), (1, false)],
            finished: false,
        }
    }

    /// The pod's status.
    pub(crate) fn status(&self, pod: &str) -> Value {
        let containers = CONTAINERS.iter().zip(self.containers);
        let containers: Vec<_> = containers
            .map(|(name, (number, started))| {
                json!({"name": name, "ready": started, "started": started, "restartCount": number - 1, "image": "none",
                    "imageID": "", "containerID": format!("containerd://{pod}-{name}-{number}"),
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}})
            })
            .collect();
        let (phase, ip) = (
            if self.finished {
                "Succeeded"
            } else {
                "Running"
            },
            format!("10.1.2.{}", self.ip),
        );
        json!({"phase": phase, "podIP": ip, "podIPs": [{"$patch": "replace"}, {"ip": ip}],
            "conditions": [{"type": "Initialized", "status": "True"}], "containerStatuses": containers})
    }
}

/// The name of a pod.
pub(crate) fn pod_name(pod: usize) -> String {
    format!("p{pod}")
}

/// A probe, or two with names of their own.
pub(crate) fn probes_of([first, second]: [usize; 2]) -> Value {
    let exec = |word: &str| json!({"exec": {"command": [word]}});
    let all = [
        json!({"name": "one", "containerName": "main", "probe": exec("true"), "podConditionType": "t.io/a",
            "markerPolicy": [
                {"state": "Succeeded", "labels": {"role": "main"}, "annotations": {"note": "up"}},
                {"state": "Failed", "labels": {"role": "back"}}]}),
        json!({"name": "one", "containerName": "main", "probe": exec("edited"), "podConditionType": "t.io/a"}),
        json!({"name": "two", "containerName": "main", "probe": {"tcpSocket": {"port": "web"}, "periodSeconds": 5},
            "markerPolicy": [{"state": "Succeeded", "labels": {"role": "web", "idle": "no"}}]}),
        json!({"name": "three", "containerName": "slow", "probe": {"tcpSocket": {"port": "web"}},
            "podConditionType": "t.io/b", "markerPolicy": [{"state": "Failed", "labels": {"idle": "yes"}}]}),
        json!({"name": "four", "containerName": "main", "probe": exec("true"),
            "markerPolicy": [{"state": "Failed", "annotations": {"note": "down"}}]}),
        json!({"name": "five", "containerName": "gone", "probe": exec("true"), "podConditionType": "t.io/c"}),
        json!({"name": "six", "containerName": "main", "probe": {"tcpSocket": {"port": "nope"}},
            "podConditionType": "t.io/d"}),
    ];
    let mut probes = vec![all[first].clone()];
    if let Some(second) = all.get(second)
        && second["name"] != probes[0]["name"]
    {
        probes.push(second.clone());
    }
    Value::Array(probes)
}

/// A pod of both containers.
pub(crate) fn manifest(pod: &str, node: &str, app: &str) -> Value {
    let container = |name: &str, port: u16| json!({"name": name, "image": "none", "ports": [{"name": "web", "containerPort": port}]});
    let mut slow = container("slow", 8081);
    slow["startupProbe"] = json!({"exec": {"command": ["true"]}});
    json!({
        "metadata": {"name": pod, "labels": {"app": app}},
        "spec": {
            "nodeName": node, "automountServiceAccountToken": false,
            "containers": [container("main", 8080), slow],
        },
    })
}

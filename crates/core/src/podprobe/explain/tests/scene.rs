//! A cluster in which one pod is marked as it should be, and the ways in which a test spoils it.

use serde_json::{Value, json};

use super::*;

pub(super) const NOW: &str = "2026-01-01T01:00:00Z";

pub(super) fn now() -> Timestamp {
    NOW.parse().unwrap()
}

pub(super) fn decode<T: serde::de::DeserializeOwned>(wire: &Value) -> T {
    serde_json::from_str(&wire.to_string()).unwrap()
}

/// A cluster in which pod `ns/p` is marked as it should be: probe `Idle` of marker `m` succeeds.
pub(super) struct Scene {
    /// The pod as it was when its entries were written, if that has changed.
    pub(super) planned: Option<Value>,
    pub(super) config: Config,
    pub(super) gate: bool,
    pub(super) markers: Vec<Value>,
    pub(super) pod: Value,
    pub(super) node: Option<Value>,
    pub(super) agent: Option<Value>,
    pub(super) neighbours: Vec<Value>,
    /// What the agent reports of each entry.
    pub(super) states: Vec<Value>,
    pub(super) obstacles: Vec<Value>,
    pub(super) manager: ManagerState,
    pub(super) reads_nodes: bool,
}

pub(super) fn marker(name: &str, created: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "ns", "uid": name, "generation": 1, "creationTimestamp": created },
        "spec": {
            "selector": { "matchLabels": { "app": "game-server" } },
            "probes": [{
                "name": "Idle", "containerName": "game-server", "podConditionType": "game.io/idle",
                "probe": { "exec": { "command": ["/idle"] }, "periodSeconds": 10, "failureThreshold": 3 },
                "markerPolicy": [
                    { "state": "Succeeded", "labels": { "idle": "true" } },
                    { "state": "Failed", "labels": { "idle": "false" } },
                ],
            }],
        },
    })
}

impl Scene {
    pub(super) fn new() -> Self {
        let pod = json!({
            "metadata": {
                "name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                "labels": { "app": "game-server", "idle": "true" },
                "managedFields": [
                    { "manager": "kubectl", "operation": "Update",
                      "fieldsV1": { "f:metadata": { "f:labels": { "f:app": {} } } } },
                    { "manager": "leadsman-podprobe", "operation": "Apply", "subresource": "status",
                      "time": "2026-01-01T00:50:00Z",
                      "fieldsV1": { "f:metadata": { "f:labels": { "f:idle": {} } },
                                    "f:status": { "f:conditions": { "k:{\"type\":\"game.io/idle\"}": {} } } } },
                ],
            },
            "spec": { "nodeName": "n1", "containers": [
                { "name": "game-server", "ports": [{ "name": "http", "containerPort": 8080 }] },
                { "name": "sidecar" },
            ] },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1",
                "conditions": [
                    { "type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" },
                    { "type": "game.io/idle", "status": "True", "message": "idle",
                      "lastTransitionTime": "2026-01-01T00:50:00Z", "lastProbeTime": "2026-01-01T00:50:00Z" },
                ],
                "containerStatuses": [
                    { "name": "game-server", "containerID": "containerd://c1", "started": true,
                      "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } } },
                    { "name": "sidecar", "containerID": "containerd://c2", "started": true,
                      "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } } },
                ],
            },
        });
        let agent = json!({
            "metadata": { "name": "agent", "namespace": "leadsman-system", "uid": "a", "labels": {
                "app.kubernetes.io/name": "leadsman", "app.kubernetes.io/component": "agent" } },
            "spec": { "nodeName": "n1", "containers": [{ "name": "agent" }] },
            "status": { "phase": "Running", "conditions": [
                { "type": "Initialized", "status": "True" },
                { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        });
        Self {
            planned: None,
            config: Config::default(),
            gate: true,
            markers: vec![marker("m", "2026-01-01T00:30:00Z")],
            pod,
            node: Some(json!({ "metadata": { "name": "n1", "uid": "n" } })),
            agent: Some(agent),
            neighbours: Vec::new(),
            states: vec![json!({
                "name": "m#Idle", "state": "Succeeded", "message": "idle",
                "lastTransitionTime": "2026-01-01T00:50:00Z", "lastProbeTime": "2026-01-01T00:50:00Z",
            })],
            obstacles: Vec::new(),
            manager: ManagerState::Leads("leadsman-system/manager_1".to_owned()),
            reads_nodes: true,
        }
    }

    /// As long as there is no verdict, there is no mark either.
    pub(super) fn unmarked(&mut self) {
        self.states.clear();
        let pod = &mut self.pod;
        pod["metadata"]["labels"]
            .as_object_mut()
            .unwrap()
            .remove("idle");
        pod["status"]["conditions"].as_array_mut().unwrap().pop();
        pod["metadata"]["managedFields"]
            .as_array_mut()
            .unwrap()
            .pop();
    }

    /// A probe that fails with this message, and is marked so.
    pub(super) fn fails_with(&mut self, message: &str) {
        self.states[0]["state"] = json!("Failed");
        self.states[0]["message"] = json!(message);
        self.pod["metadata"]["labels"]["idle"] = json!("false");
        let condition = &mut self.pod["status"]["conditions"][1];
        condition["status"] = json!("False");
        condition["message"] = json!(message);
    }

    pub(super) fn probe(&mut self) -> &mut Value {
        &mut self.markers[0]["spec"]["probes"][0]
    }

    /// A marker's status, as the manager wrote it.
    pub(super) fn reports(&mut self, reason: &str, message: &str) {
        self.markers[0]["status"] = json!({ "observedGeneration": 1, "conditions": [
            { "type": "Ready", "status": "False", "reason": reason, "message": message,
              "lastTransitionTime": "2026-01-01T00:50:00Z" }] });
    }

    /// The object of the node, as the manager writes it, with the agent's reports.
    fn object(&self) -> Option<NodePodProbe> {
        let planned = ObservedObjects {
            config: self.config.clone(),
            gate: self.gate,
            markers: self.markers.iter().map(decode).collect(),
            pods: vec![decode(self.planned.as_ref().unwrap_or(&self.pod))],
            neighbours: Vec::new(),
            nodes: Ok(self.node.iter().map(decode).collect()),
            node_pod_probes: Ok(Vec::new()),
            agents: Ok(Vec::new()),
            manager: Ok(ManagerState::Absent),
        };
        let cluster = ObservedCluster::new(planned, now());
        let mut wanted = cluster.reconciler.wanted();
        let object = wanted.find(|write| write.kind().resource == "nodepodprobes")?;
        let mut object = object.body();
        let revision = object["spec"]["podProbes"][0]["probes"][0]["revision"].clone();
        let mut states = self.states.clone();
        for state in &mut states {
            state["revision"] = revision.clone();
            state["containerID"] = json!("c1");
        }
        let written = |subresource: &str, time: &str| json!({ "manager": "x", "subresource": subresource, "time": time });
        object["metadata"]["managedFields"] = json!([
            written("", "2026-01-01T00:30:00Z"),
            written("status", "2026-01-01T00:50:00Z")
        ]);
        if self.agent.is_none() {
            object["metadata"]["managedFields"] = json!([written("", "2026-01-01T00:30:00Z")]);
        }
        object["status"] = json!({ "podProbeStatuses": [{
            "name": "p", "namespace": "ns", "uid": "u", "probeStates": states, "cannotProbe": self.obstacles }] });
        Some(decode(&object))
    }

    pub(super) fn observed(&self) -> ObservedObjects {
        let denied = || Unread("list nodepodprobes.apps.kruise.io is not allowed".to_owned());
        ObservedObjects {
            config: self.config.clone(),
            gate: self.gate,
            markers: self.markers.iter().map(decode).collect(),
            pods: vec![decode(&self.pod)],
            neighbours: self.neighbours.iter().map(decode).collect(),
            nodes: if self.reads_nodes {
                Ok(self.node.iter().map(decode).collect())
            } else {
                Err(denied())
            },
            node_pod_probes: if self.reads_nodes {
                Ok(self.object().into_iter().collect())
            } else {
                Err(denied())
            },
            agents: Ok(self.agent.iter().map(decode).collect()),
            manager: Ok(self.manager.clone()),
        }
    }

    pub(super) fn explain(&self) -> Explanation {
        let cluster = ObservedCluster::new(self.observed(), now());
        let name = cluster.pod_names().next().unwrap().clone();
        cluster.explain_pod(&name).unwrap()
    }
}

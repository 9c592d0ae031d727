//! A pod of the simulated API server: its containers, its marks with the owners of each, and what an apply or a patch of
//! them does.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::marker::PodContainerProbe;
use leadsman_api::slim;
use serde_json::{Value, json};

use crate::cluster::ObjectName;

/// Who writes marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    Ours,
    /// A user's Update, or a template.
    User,
    /// An Update of the status.
    Status,
    /// `OpenKruise`'s Update of the status; in a cluster its binary is called `manager`.
    Kruise,
    /// The Update of an operator, of which nearly all are called `manager` too.
    Operator,
}

pub(super) const OTHERS: [Owner; 4] = [Owner::User, Owner::Status, Owner::Kruise, Owner::Operator];

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mark {
    pub(super) value: Value,
    pub(super) owners: BTreeSet<Owner>,
}

pub(super) type Marks = BTreeMap<String, Mark>;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct SimContainer {
    pub(super) name: String,
    pub(super) startup_probe: bool,
    pub(super) id: String,
    pub(super) started: bool,
    pub(super) running_since: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct SimPod {
    pub(super) uid: String,
    pub(super) controller: Option<String>,
    pub(super) version: u64,
    pub(super) node: Option<String>,
    pub(super) ip: String,
    pub(super) phase: &'static str,
    pub(super) deleting: bool,
    pub(super) initialized: bool,
    pub(super) ready: bool,
    /// When that last changed.
    pub(super) ready_since: Timestamp,
    pub(super) labels: Marks,
    pub(super) annotations: Marks,
    pub(super) conditions: Marks,
    pub(super) containers: Vec<SimContainer>,
}

impl SimPod {
    /// Whether it has the container of a probe.
    pub(super) fn has_container(&self, probe: &PodContainerProbe) -> bool {
        let mut containers = self.containers.iter();
        containers.any(|container| container.name == probe.container_name)
    }

    pub(super) fn new(uid: &str, node: &str, labels: &[(&str, &str)]) -> Self {
        let containers = [("main", false), ("slow", true)];
        Self {
            uid: uid.to_owned(),
            controller: None,
            version: 0,
            node: Some(node.to_owned()),
            ip: "10.0.0.1".to_owned(),
            phase: "Running",
            deleting: false,
            initialized: true,
            ready: false,
            ready_since: Timestamp::UNIX_EPOCH,
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), mark(value, Owner::User)))
                .collect(),
            annotations: Marks::new(),
            conditions: Marks::new(),
            containers: containers
                .map(|(name, startup_probe)| SimContainer {
                    name: name.to_owned(),
                    startup_probe,
                    id: format!("{uid}-{name}-1"),
                    started: !startup_probe,
                    running_since: Timestamp::UNIX_EPOCH,
                })
                .into(),
        }
    }

    /// The uid that the kubelet gives its containers.
    pub(super) fn node_uid(&self) -> &str {
        let mirrored = self.annotations.get("kubernetes.io/config.mirror");
        mirrored.map_or(&self.uid, |mark| mark.value.as_str().unwrap())
    }

    /// A label that our apply has set.
    pub(super) fn own_label(&mut self, key: &str, value: &str) {
        self.labels.insert(key.to_owned(), mark(value, Owner::Ours));
    }

    /// Makes it the mirror of a static pod with this uid.
    pub(super) fn mirror(&mut self, uid: &str) {
        let key = "kubernetes.io/config.mirror".to_owned();
        self.annotations.insert(key, mark(uid, Owner::User));
    }

    pub(super) fn is_active(&self) -> bool {
        !self.deleting && !matches!(self.phase, "Succeeded" | "Failed")
    }

    fn managed_fields(&self) -> Vec<Value> {
        let mut entries = Vec::new();
        for owner in [Owner::Ours].iter().chain(&OTHERS) {
            let named = |marks: &Marks, name: fn(&str) -> String| {
                let keys = marks.iter().filter(|(_, mark)| mark.owners.contains(owner));
                let keys = keys.map(|(key, _)| (name(key), json!({})));
                Value::Object(keys.collect())
            };
            let metadata = |key: &str| format!("f:{key}");
            let condition = |key: &str| format!("k:{}", json!({ "type": key }));
            let (manager, operation, subresource) = match owner {
                Owner::Ours => ("leadsman-podprobe", "Apply", "status"),
                Owner::User => ("kubectl", "Update", ""),
                Owner::Status => ("kubelet", "Update", "status"),
                Owner::Kruise => ("manager", "Update", "status"),
                Owner::Operator => ("manager", "Update", ""),
            };
            entries.push(json!({
                "manager": manager, "operation": operation, "subresource": subresource,
                "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {
                    "f:metadata": {
                        "f:labels": named(&self.labels, metadata),
                        "f:annotations": named(&self.annotations, metadata),
                    },
                    "f:status": { "f:conditions": named(&self.conditions, condition) },
                },
            }));
        }
        entries
    }

    pub(super) fn wire(&self, name: &ObjectName) -> slim::Pod {
        let pairs = |marks: &Marks| {
            let pairs = marks
                .iter()
                .map(|(key, mark)| (key.clone(), mark.value.clone()));
            Value::Object(pairs.collect())
        };
        let mut conditions: Vec<_> = self
            .conditions
            .values()
            .map(|mark| mark.value.clone())
            .collect();
        let is = |holds: bool| if holds { "True" } else { "False" };
        conditions.push(json!({ "type": "Initialized", "status": is(self.initialized) }));
        conditions.push(json!({
            "type": "Ready", "status": is(self.ready), "lastTransitionTime": Time(self.ready_since),
        }));
        let containers = self.containers.iter().map(|container| {
            let probe = container.startup_probe.then(|| json!({ "exec": {} }));
            json!({
                "name": container.name,
                "ports": [{ "name": "http", "containerPort": 8080 }],
                "startupProbe": probe,
            })
        });
        let statuses = self.containers.iter().map(|container| {
            json!({
                "name": container.name,
                "containerID": format!("containerd://{}", container.id),
                "started": container.started,
                "state": { "running": { "startedAt": Time(container.running_since) } },
            })
        });
        let mut pod = json!({
            "metadata": {
                "namespace": name.namespace, "name": name.name, "uid": self.uid,
                "resourceVersion": self.version.to_string(),
                "labels": pairs(&self.labels), "annotations": pairs(&self.annotations),
                "managedFields": self.managed_fields(),
            },
            "spec": { "nodeName": self.node, "containers": containers.collect::<Vec<_>>() },
            "status": {
                "phase": self.phase, "podIP": self.ip, "conditions": conditions,
                "containerStatuses": statuses.collect::<Vec<_>>(),
            },
        });
        if let Some(uid) = &self.controller {
            let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": uid, "uid": uid, "controller": true });
            pod["metadata"]["ownerReferences"] = json!([owner]);
        }
        if self.deleting {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(pod).unwrap()
    }

    fn marks(&mut self) -> [&mut Marks; 3] {
        [
            &mut self.labels,
            &mut self.annotations,
            &mut self.conditions,
        ]
    }

    pub(super) fn apply(&mut self, body: &Value) {
        let pairs = |field: &str| -> BTreeMap<String, Value> {
            let pairs = body["metadata"][field].as_object();
            let pairs = pairs.into_iter().flatten();
            pairs
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        let conditions = body["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten();
        let conditions: BTreeMap<_, _> = conditions
            .map(|one| (one["type"].as_str().unwrap().to_owned(), one.clone()))
            .collect();
        let applied = [pairs("labels"), pairs("annotations"), conditions];
        for (marks, applied) in self.marks().into_iter().zip(applied) {
            let mut was_ours = false;
            marks.retain(|key, mark| {
                let is_given_up = !applied.contains_key(key) && mark.owners.remove(&Owner::Ours);
                was_ours |= is_given_up;
                !is_given_up || !mark.owners.is_empty()
            });
            // The map was ours too, and goes with all that nobody owns (`prune`, `addBackOwnedItems`).
            if was_ours && applied.is_empty() && marks.values().all(|mark| mark.owners.is_empty()) {
                marks.clear();
            }
            for (key, value) in applied {
                let known = marks.entry(key).or_insert_with(|| Mark {
                    value: value.clone(),
                    owners: BTreeSet::new(),
                });
                if known.value != value {
                    known.value = value;
                    known.owners.clear();
                }
                known.owners.insert(Owner::Ours);
            }
        }
    }

    pub(super) fn remove(&mut self, body: &Value) {
        for (field, marks) in [
            ("labels", &mut self.labels),
            ("annotations", &mut self.annotations),
        ] {
            for key in body["metadata"][field].as_object().into_iter().flatten() {
                assert_eq!(*key.1, Value::Null);
                marks.remove(key.0);
            }
        }
        for one in body["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
        {
            assert_eq!(one["$patch"], "delete");
            self.conditions.remove(one["type"].as_str().unwrap());
        }
    }
}

pub(super) fn mark(value: &str, owner: Owner) -> Mark {
    Mark {
        value: json!(value),
        owners: [owner].into(),
    }
}

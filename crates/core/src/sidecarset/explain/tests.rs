//! The answers, on generated sets and pods.

mod causes;
mod drift;
mod injection;

use std::collections::BTreeSet;
use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::cluster::words_of_tables;
use crate::sidecarset::annotations::HASH;
use crate::sidecarset::reconcile::Config;
use crate::sidecarset::revision::{SetRevision, create};
use crate::sidecarset::selection::{NewPod, offer};
use crate::sidecarset::set::MIN_READY_SECONDS_ANNOTATION;
use crate::sidecarset::tests::recorded;
use crate::workload::JsonObject;

fn parse(name: &str, created: &str, spec: &Value) -> SidecarSet {
    let mut wire = json!({
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": name, "image": "i:1"}],
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        wire["spec"][field] = value.clone();
    }
    SidecarSet::parse(&serde_json::from_value(wire).unwrap()).unwrap()
}

fn known(sets: Vec<SidecarSet>) -> KnownSets {
    let valid = sets.into_iter().map(|set| KnownSet {
        history: SetHistory::new(&set, Vec::new(), None),
        set,
        status: SidecarSetStatus::default(),
    });
    KnownSets {
        valid: valid.collect(),
        ..KnownSets::default()
    }
}

fn pod(change: &Value) -> JsonObject {
    let mut pod = json!({
        "metadata": {"name": "w", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "m"}]},
    });
    for (pointer, value) in change.as_object().unwrap() {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    pod.as_object().unwrap().clone()
}

fn reported(sets: &KnownSets, pod: &JsonObject) -> InjectionReport {
    let now = "2026-11-22T01:58:33Z".parse().unwrap();
    report(pod, "shop", sets, now)
}

fn gold() -> Labels {
    Labels::from([("tier".to_owned(), "gold".to_owned())])
}

const DAY: &str = "2026-01-01T00:00:00Z";

/// A pod that was injected by these sets, as the API server shows it.
fn created(sets: &KnownSets, change: &Value) -> PodObject {
    let report = reported(sets, &pod(change));
    let mut object = report.pod;
    object["metadata"]["namespace"] = json!("shop");
    // Among what others add: the token's mount, a variable, defaults that a set leaves out.
    for container in object["spec"]["containers"].as_array_mut().unwrap() {
        let mounts = json!([{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]);
        let field = container.as_object_mut().unwrap();
        let field = field.entry("volumeMounts").or_insert_with(|| json!([]));
        let own = field.as_array_mut().unwrap();
        own.extend(mounts.as_array().unwrap().clone());
        let env = container.as_object_mut().unwrap();
        let env = env.entry("env").or_insert_with(|| json!([]));
        env.as_array_mut()
            .unwrap()
            .push(json!({"name": "ADDED", "value": "by another webhook"}));
    }
    PodObject::read(object.into()).unwrap()
}

/// Sets and pods as they are stored.
#[derive(Default)]
struct Cluster {
    sets: Vec<Value>,
    pods: Vec<Value>,
    revisions: Vec<Value>,
    config: Config,
}

/// When the sets of a cluster were created, when they came into force, and when its pods were created.
const TIMES: [&str; 3] = [
    "2026-01-01T00:00:00Z",
    "2026-01-01T00:01:00Z",
    "2026-01-02T00:00:00Z",
];

impl Cluster {
    /// A set that is in force.
    fn set(mut self, name: &str, spec: &Value) -> Self {
        let mut set = json!({
            "metadata": {"name": name, "uid": name, "generation": 1, "creationTimestamp": TIMES[0]},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "containers": [{"name": name, "image": "i:1"}]},
            "status": {"inForce": {"generation": 1, "since": TIMES[1]}},
        });
        for (field, value) in spec.as_object().unwrap() {
            set["spec"][field] = value.clone();
        }
        self.sets.push(set);
        self
    }

    /// A pod that was injected by the sets as they are, and runs.
    fn pod(mut self, name: &str, change: &Value) -> Self {
        let (sets, _) = self.objects().parse();
        let report = reported(&sets, &pod(&json!({})));
        let mut pod = Value::Object(report.pod);
        pod["metadata"] = json!({"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1", "creationTimestamp": TIMES[2],
            "labels": {"app": "web"}, "annotations": pod["metadata"]["annotations"]});
        pod["spec"]["nodeName"] = json!("n");
        let containers = pod["spec"]["containers"].as_array().unwrap().iter();
        let statuses = containers.map(|container| {
            json!({"name": container["name"], "ready": true, "image": container["image"], "imageID": "x@sha256:1",
                "containerID": format!("containerd://{name}"), "restartCount": 0, "state": {"running": {"startedAt": TIMES[2]}}})
        });
        let statuses: Vec<_> = statuses.collect();
        pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": statuses});
        for (pointer, value) in change.as_object().unwrap() {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[field] = value.clone();
        }
        self.pods.push(pod);
        self
    }

    fn edit(mut self, spec: &Value) -> Self {
        self.sets[0]["metadata"]["generation"] = json!(2);
        for (field, value) in spec.as_object().unwrap() {
            self.sets[0]["spec"][field] = value.clone();
        }
        self
    }

    fn objects(&self) -> SetObjects {
        let sets = self.sets.iter();
        SetObjects {
            sets: sets
                .map(|set| serde_json::from_str(&set.to_string()).unwrap())
                .collect(),
            revisions: self
                .revisions
                .iter()
                .map(|one| serde_json::from_value(one.clone()).unwrap())
                .collect(),
            config: self.config.clone(),
            ..SetObjects::default()
        }
    }

    /// What is told of the first pod and the first set.
    fn explain(&self) -> SetExplanation {
        let now = "2026-11-22T01:58:33Z".parse().unwrap();
        let objects = self.objects();
        let (sets, _) = objects.parse();
        let pods: Vec<_> = self
            .pods
            .iter()
            .map(|pod| PodObject::read(pod.clone()).unwrap())
            .collect();
        let wires = pods.iter().map(|pod| pod.wire.clone()).collect();
        let observed = objects.observe(wires, now);
        let inspection = observed.inspect();
        let mut explained = explain(&pods[0], &sets, &inspection, Some(&pods), now).into_iter();
        let name = self
            .sets
            .first()
            .map_or("gone", |set| set["metadata"]["name"].as_str().unwrap());
        explained.find(|one| one.set == name).unwrap()
    }
}

const IMAGE_2: &str = r#"{"containers": [{"name": "log", "image": "i:2"}]}"#;

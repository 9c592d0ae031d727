//! What a pod takes, counted in bytes and allocations: bounds a tenth or so above what it takes today, so that nobody
//! makes 5,000 pods dearer unawares.
#![allow(clippy::unwrap_used, reason = "a failure is what a test reports")]

use std::alloc::System;
use std::sync::Arc;
use std::time::Duration;

use leadsman_api::node_pod_probe::{ContainerProbeState, PodProbeStatus};
use leadsman_api::slim::Pod;
use leadsman_api::{NodePodProbe, PodProbeMarker, slim};
use leadsman_core::cluster::{Now, ObjectName, ResourceVersion, Source};
use leadsman_core::podprobe::PodProbes;
use leadsman_reconcile::{Effects, Feature, Reconciler, Watch, WriteId};
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PODS: usize = 1000;
const NODE: usize = 25;
const TIME: &str = "2026-01-02T03:04:05Z";

/// A pod to the marker.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// It has its marks.
    Marked,
    /// It matches, and has none yet.
    Unmarked,
    /// It does not match.
    Other,
}

/// A pod as the API server sends it.
fn pod(number: usize, version: usize, kind: Kind) -> String {
    let app = if kind == Kind::Other { "other" } else { "game" };
    let mut labels =
        json!({ "app": app, "pod-template-hash": "6b9f7d5c84", "tier": "a", "zone": "b" });
    let mut conditions = vec![];
    for kind in [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ] {
        conditions.push(json!({ "type": kind, "status": "True", "lastTransitionTime": TIME, "lastProbeTime": null }));
    }
    let kubelet = json!({ "f:status": { "f:conditions": {
        "k:{\"type\":\"Ready\"}": { ".": {}, "f:lastProbeTime": {}, "f:status": {}, "f:type": {} },
        "k:{\"type\":\"Initialized\"}": { ".": {}, "f:lastProbeTime": {}, "f:status": {}, "f:type": {} },
    }, "f:containerStatuses": {}, "f:hostIP": {}, "f:phase": {}, "f:podIPs": { "k:{\"ip\":\"10.0.0.1\"}": { "f:ip": {} } } } });
    let mut managed = vec![
        json!({ "manager": "kube-controller-manager", "operation": "Update", "time": TIME, "fieldsV1": {
            "f:metadata": { "f:generateName": {}, "f:labels": { ".": {}, "f:app": {}, "f:tier": {}, "f:zone": {} } },
            "f:spec": { "f:containers": { "k:{\"name\":\"main\"}": { ".": {}, "f:image": {}, "f:env": {
                ".": {}, "k:{\"name\":\"A\"}": { ".": {}, "f:name": {}, "f:value": {} } } } } } } }),
        json!({ "manager": "kubelet", "operation": "Update", "subresource": "status", "fieldsV1": kubelet }),
    ];
    if kind == Kind::Marked {
        labels["idle"] = json!("true");
        for kind in ["game.io/idle", "game.io/ready"] {
            conditions.push(
                json!({ "type": kind, "status": "True", "message": "as it should be",
                                    "lastTransitionTime": TIME, "lastProbeTime": TIME }),
            );
        }
        managed.push(json!({ "manager": "leadsman-podprobe", "operation": "Apply", "subresource": "status", "fieldsV1": {
            "f:metadata": { "f:labels": { "f:idle": {} } },
            "f:status": { "f:conditions": { "k:{\"type\":\"game.io/idle\"}": {}, "k:{\"type\":\"game.io/ready\"}": {} } },
        } }));
    }
    json!({
        "metadata": {
            "namespace": "games", "name": format!("game-server-6b9f7d5c84-{number:05x}"), "uid": uid(number),
            "resourceVersion": version.to_string(), "creationTimestamp": TIME, "labels": labels, "managedFields": managed,
            "annotations": { "cni.example.net/status": "x".repeat(400), "prometheus.io/scrape": "true" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "game", "uid": uid(0) }],
        },
        "spec": {
            "nodeName": node(number / NODE), "serviceAccountName": "game", "tolerations": [{ "key": "a" }],
            "containers": [{ "name": "main", "image": "game", "env": [{ "name": "A", "value": "b" }],
                             "ports": [{ "name": "http", "containerPort": 8080 }] }],
        },
        "status": {
            "phase": "Running", "podIP": format!("10.1.{}.{}", number / 256, number % 256), "conditions": conditions,
            "containerStatuses": [{ "name": "main", "containerID": format!("containerd://{number:064x}"), "started": true,
                "state": { "running": { "startedAt": TIME } } }],
        },
    })
    .to_string()
}

fn uid(number: usize) -> String {
    format!("0b5ab2f4-7a1e-4c8e-9d2f-{number:012x}")
}

fn node(number: usize) -> String {
    format!("pool-a-{number:05}.example.net")
}

fn marker() -> PodProbeMarker {
    let probe = |name: &str| {
        json!({ "name": name, "containerName": "main", "podConditionType": format!("game.io/{name}"),
                "probe": { "exec": { "command": ["/bin/sh", "-c", "/home/game/idle.sh"] } },
                "markerPolicy": if name == "idle" { json!([{ "state": "Succeeded", "labels": { "idle": "true" } }]) } else { json!([]) } })
    };
    let marker = json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker",
        "metadata": { "namespace": "games", "name": "game-server-probe", "uid": uid(0), "resourceVersion": "1",
                      "creationTimestamp": TIME },
        "spec": { "selector": { "matchLabels": { "app": "game" } }, "probes": [probe("idle"), probe("ready")] },
    });
    serde_json::from_value(marker).unwrap()
}

fn now() -> Now {
    Now {
        monotonic: Duration::ZERO,
        wall: TIME.parse().unwrap(),
    }
}

/// The body of the write of a kind that is due for an object.
fn due(
    reconciler: &mut Reconciler<PodProbes>,
    label: &str,
    namespace: &str,
    name: String,
) -> Option<Value> {
    let mut kinds = PodProbes::WRITES.iter();
    let kind = kinds.position(|kind| kind.label == label)?;
    let name = Arc::new(ObjectName {
        namespace: namespace.to_owned(),
        name,
    });
    let write = reconciler.take_due(&WriteId { kind, name }, now())?;
    Some(write.body())
}

/// The object that is due for a node, with a verdict about each entry.
fn answered(reconciler: &mut Reconciler<PodProbes>, number: usize) -> Option<NodePodProbe> {
    let object = due(reconciler, "create_nodepodprobe", "", node(number))?;
    let mut object: NodePodProbe = serde_json::from_value(object).ok()?;
    object.metadata.uid = Some(uid(number));
    object.metadata.resource_version = Some("5".to_owned());
    let time = serde_json::from_value(json!(TIME)).ok();
    let pods = object.spec.pod_probes.iter().map(|pod| PodProbeStatus {
        name: pod.name.clone(),
        namespace: pod.namespace.clone(),
        uid: pod.uid.clone(),
        probe_states: pod
            .probes
            .iter()
            .map(|entry| ContainerProbeState {
                message: Some("as it should be".to_owned()),
                last_probe_time: time.clone(),
                last_transition_time: time.clone(),
                revision: entry.revision.clone(),
                ..ContainerProbeState::new(&entry.name, "Succeeded")
            })
            .collect(),
        ..PodProbeStatus::default()
    });
    object.status.get_or_insert_default().pod_probe_statuses = pods.collect();
    Some(object)
}

/// Takes an object in, and plans all that follows from it.
fn observe<K>(reconciler: &mut Reconciler<PodProbes>, object: K, source: Source) -> Effects<WriteId>
where
    PodProbes: Watch<K>,
{
    reconciler.observe_object(Arc::new(object), source);
    reconciler.publish();
    run(reconciler)
}

fn run(reconciler: &mut Reconciler<PodProbes>) -> Effects<WriteId> {
    loop {
        reconciler.run_keys(now());
        let effects = reconciler.take_effects(now());
        if effects.deadline.is_none_or(|at| at > Duration::ZERO) {
            return effects;
        }
    }
}

/// A manager that has seen these pods and a verdict of each probe, and has nothing to do but to mark those that are unmarked.
fn settled(kind: Kind) -> Reconciler<PodProbes> {
    let listed = Source::List(ResourceVersion::UNKNOWN);
    let mut reconciler = Reconciler::new(PodProbes::new(|_, _| {}), || Duration::ZERO);
    reconciler.set_now(now());
    observe(&mut reconciler, marker(), listed);
    for number in 0..PODS / NODE {
        let node = json!({ "metadata": { "name": node(number) } });
        let node: slim::Node = serde_json::from_value(node).unwrap();
        observe(&mut reconciler, node, listed);
    }
    for number in 0..PODS {
        let pod: Pod = serde_json::from_str(&pod(number, 2, kind)).unwrap();
        observe(&mut reconciler, pod, listed);
    }
    reconciler.begin_term();
    run(&mut reconciler);
    for number in 0..PODS / NODE {
        let object = answered(&mut reconciler, number).unwrap();
        let matched = if kind == Kind::Other { 0 } else { NODE };
        assert_eq!(object.spec.pod_probes.len(), matched);
        observe(&mut reconciler, object, Source::Watch);
    }
    let name = "game-server-6b9f7d5c84-00007".to_owned();
    let due = due(&mut reconciler, "pod_marks", "games", name);
    assert_eq!(due.is_some(), kind == Kind::Unmarked);
    reconciler
}

fn bytes_a_pod(kind: Kind) -> usize {
    let region = Region::new(ALLOCATOR);
    let reconciler = settled(kind);
    let stats = region.change();
    drop(reconciler);
    (stats.bytes_allocated - stats.bytes_deallocated) / PODS
}

fn allocations<T>(of: impl FnOnce() -> T) -> usize {
    let region = Region::new(ALLOCATOR);
    let kept = of();
    let stats = region.change();
    drop(kept);
    stats.allocations + stats.reallocations
}

/// One test, since the allocator counts for all threads.
#[test]
fn a_pod_takes_few_bytes_and_few_allocations() {
    let [marked, unmarked, other] = [Kind::Marked, Kind::Unmarked, Kind::Other].map(bytes_a_pod);
    let text = pod(7, 2, Kind::Marked);
    let whole =
        allocations(|| serde_json::from_str::<k8s_openapi::api::core::v1::Pod>(&text).unwrap());
    let slim = allocations(|| serde_json::from_str::<Pod>(&text).unwrap());
    let mut reconciler = settled(Kind::Marked);
    let again: Pod = serde_json::from_str(&pod(7, 9, Kind::Marked)).unwrap();
    let event = allocations(|| observe(&mut reconciler, again, Source::Watch));
    let found = json!({ "bytes of a marked pod": marked, "of one that is to be marked": unmarked, "of another": other, "allocations of the whole pod": whole,
                        "of the slim one": slim, "of an event that changes nothing": event });
    println!("{found:#}");
    let within = |name: &str, most: u64| {
        let value = found[name].as_u64().unwrap();
        assert!(value <= most, "{name}: {value}, at most {most}");
    };
    within("bytes of a marked pod", 2_200);
    within("of one that is to be marked", 3_100);
    within("of another", 1_300);
    within("of the slim one", 80);
    within("of an event that changes nothing", 22);
}

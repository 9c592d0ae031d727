//! What an injected pod takes, counted in bytes, and what an event of it allocates: bounds a tenth or so above what it
//! takes today, so that nobody makes 20,000 pods dearer unawares.
#![allow(clippy::unwrap_used, reason = "a failure is what a test reports")]

use std::alloc::System;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leadsman_api::SidecarSet;
use leadsman_api::slim::Pod;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_core::cluster::{Now, ObjectName, ResourceVersion, Source};
use leadsman_core::sidecarset::reconcile::{Config, Inspection, SidecarSets, Turn};
use leadsman_core::sidecarset::set;
use leadsman_reconcile::Reconciler;
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PODS: usize = 1000;
const TIME: &str = "2026-01-02T03:04:05Z";

fn wire() -> SidecarSet {
    let wire = json!({
        "metadata": {"name": "log-agent", "uid": "u", "resourceVersion": "1", "creationTimestamp": TIME, "generation": 1},
        "spec": {
            "selector": {"matchLabels": {"app": "game"}},
            "containers": [{"name": "log-agent", "image": "registry.example/log-agent:1.0"}],
        },
    });
    serde_json::from_value(wire).unwrap()
}

fn pod_name(number: usize) -> String {
    format!("game-server-6b9f7d5c84-{number:05x}")
}

/// A pod as the API server sends it, injected or of no set.
fn pod(number: usize, version: usize, is_injected: bool) -> Pod {
    let set = set::SidecarSet::parse(&wire()).unwrap();
    // No two pods are injected in the same second.
    let time = format!("2026-01-02T03:{:02}:{:02}Z", number / 60 % 60, number % 60);
    let hash = json!({"log-agent": {
        "updateTimestamp": time, "hash": &*set.hashes.hash, "sidecarSetName": "log-agent", "sidecarList": ["log-agent"],
        "controllerRevision": "log-agent-6bf48c598b",
    }});
    let without_image = json!({"log-agent": {
        "updateTimestamp": time, "hash": &*set.hashes.without_image, "sidecarSetName": "log-agent", "sidecarList": ["log-agent"],
    }});
    let mut annotations =
        json!({"cni.example.net/status": format!("{number:0400}"), "prometheus.io/scrape": "true"});
    let mut containers = vec!["game"];
    if is_injected {
        annotations["kruise.io/sidecarset-hash"] = hash.to_string().into();
        annotations["kruise.io/sidecarset-hash-without-image"] = without_image.to_string().into();
        annotations["kruise.io/sidecarset-injected-list"] = "log-agent".into();
        containers.push("log-agent");
    }
    let image = |name: &&str| format!("registry.example/{name}:1.0");
    let spec = containers.iter();
    let spec: Vec<Value> = spec
        .map(|name| json!({"name": name, "image": image(name), "imagePullPolicy": "IfNotPresent"}))
        .collect();
    let statuses = containers.iter();
    let statuses: Vec<Value> = statuses
        .map(|name| {
            json!({"name": name, "ready": true, "restartCount": 0, "image": image(name),
                "imageID": format!("registry.example/{name}@sha256:{:064x}", name.len()),
                "containerID": format!("containerd://{:064x}", number * 10 + name.len()),
                "state": {"running": {"startedAt": TIME}}})
        })
        .collect();
    let pod = json!({
        "metadata": {
            "namespace": "games", "name": pod_name(number),
            "uid": format!("0b5ab2f4-7a1e-4c8e-9d2f-{number:012x}"), "resourceVersion": version.to_string(),
            "creationTimestamp": TIME, "annotations": annotations,
            "labels": {"app": if is_injected { "game" } else { "other" }, "pod-template-hash": "6b9f7d5c84", "tier": "a"},
        },
        "spec": {"nodeName": "node-1", "containers": spec},
        "status": {
            "phase": "Running", "containerStatuses": statuses,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": TIME}],
        },
    });
    serde_json::from_value(pod).unwrap()
}

fn now() -> Now {
    Now {
        monotonic: Duration::ZERO,
        wall: TIME.parse().unwrap(),
    }
}

/// What has to run does.
fn run(reconciler: &mut Reconciler<SidecarSets>) {
    reconciler.run_keys(now());
    drop(reconciler.take_effects(now()));
}

/// The feature when it has seen these pods.
fn settled(is_injected: bool) -> Reconciler<SidecarSets> {
    let feature = SidecarSets::new(Config::default(), ());
    let mut reconciler = Reconciler::new(feature, || Duration::ZERO);
    let list = ResourceVersion::from(5);
    reconciler.observe_object(Arc::new(wire()), Source::List(list));
    for number in 0..PODS {
        let pod = Arc::new(pod(number, 2, is_injected));
        reconciler.observe_object(&pod, Source::List(list));
    }
    reconciler.observe_list::<ControllerRevision>(&BTreeSet::new(), list, false, now());
    reconciler.begin_term();
    run(&mut reconciler);
    reconciler
}

/// The pods that belong to the set and are as it has them.
fn count_upgraded(reconciler: &Reconciler<SidecarSets>) -> usize {
    let inspection = Inspection::new(&Config::default(), reconciler.world(), now());
    let is_upgraded = |number: &usize| {
        let name = ObjectName {
            namespace: "games".to_owned(),
            name: pod_name(*number),
        };
        let sets = inspection.inspect_pod(&name);
        let mut turns = sets
            .iter()
            .filter_map(|set| Some(set.membership.as_ref()?.turn));
        turns.any(|turn| turn == Turn::None)
    };
    (0..PODS).filter(is_upgraded).count()
}

/// Of pods that were seen once, or again since.
fn bytes_a_pod(is_injected: bool, is_seen_again: bool) -> usize {
    let region = Region::new(ALLOCATOR);
    let mut reconciler = settled(is_injected);
    for number in (0..PODS).filter(|_| is_seen_again) {
        let pod = Arc::new(pod(number, 9, is_injected));
        reconciler.observe_object(&pod, Source::Watch);
        run(&mut reconciler);
    }
    let stats = region.change();
    assert_eq!(
        count_upgraded(&reconciler),
        if is_injected { PODS } else { 0 }
    );
    (stats.bytes_allocated - stats.bytes_deallocated) / PODS
}

/// One test, since the allocator counts for all threads.
// SDF-52
#[test]
fn an_injected_pod_takes_few_bytes_and_one_of_no_set_fewer() {
    let (injected, other) = (bytes_a_pod(true, false), bytes_a_pod(false, false));
    let again = bytes_a_pod(true, true);
    assert!(
        again <= injected + AGAIN,
        "{again} bytes of one that was seen again, {injected} before"
    );
    let mut reconciler = settled(true);
    let again = Arc::new(pod(7, 9, true));
    let region = Region::new(ALLOCATOR);
    reconciler.observe_object(&again, Source::Watch);
    let event = region.change().allocations;
    println!(
        "bytes of an injected pod {injected}, of another {other}, allocations of an event {event}"
    );
    assert!(injected <= INJECTED, "{injected} bytes of an injected pod");
    assert!(other <= OTHER, "{other} bytes of a pod of no set");
    assert!(event <= EVENT, "{event} allocations of an event");
}

const INJECTED: usize = 2_300;
/// What was shared is forgotten from time to time, not at once.
const AGAIN: usize = 50;
const OTHER: usize = 720;
const EVENT: usize = 33;

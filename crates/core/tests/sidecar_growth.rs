//! What an event of one object allocates among few and among many others: a bound on how that grows, in place of a time, which
//! another process can fall into.
#![allow(clippy::unwrap_used, reason = "a failure is what a test reports")]

use std::alloc::System;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leadsman_api::SidecarSet as SidecarSetWire;
use leadsman_api::slim::Pod;
use leadsman_api::slim::config_map::ConfigMap;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_core::cluster::{Now, ResourceVersion, Source};
use leadsman_core::sidecarset::reconcile::{Config, SidecarSets};
use leadsman_core::sidecarset::set::SidecarSet;
use leadsman_reconcile::{Reconciler, Watch};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const TIME: &str = "2026-01-02T03:04:05Z";
const PODS: usize = 300;
const SETS: usize = 60;
/// How many times as many others there are.
const TIMES: usize = 4;

fn read<T: DeserializeOwned>(value: &Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value.clone()).unwrap())
}

fn set(number: usize, image: &str, container: &str) -> Value {
    // A set with a lower number is older.
    let created = format!("2026-01-01T{:02}:{:02}:00Z", number / 60, number % 60);
    json!({
        "metadata": {
            "name": format!("s{number:03}"), "uid": format!("u{number}"), "resourceVersion": "1", "generation": 1,
            "creationTimestamp": created,
        },
        "spec": {
            "selector": {"matchLabels": {"app": "game"}},
            "containers": [{"name": container, "image": image}],
            "updateStrategy": {"scatterStrategy": [{"key": "zone", "value": "*"}]},
        },
    })
}

/// A pod with the first set, in an image before its present one.
fn pod(number: usize, version: usize, is_ready: bool) -> Value {
    let set = SidecarSet::parse(&read(&set(0, "i:1", "side"))).unwrap();
    let entry = |hash: &str| {
        let entry = json!({
            "updateTimestamp": TIME, "hash": hash, "sidecarSetName": "s000", "sidecarList": ["side"],
        });
        json!({"s000": entry}).to_string()
    };
    let status = |name: &str| {
        json!({
            "name": name, "ready": true, "restartCount": 0, "image": "i:1", "imageID": "i@sha256:0",
            "containerID": format!("containerd://{number}"), "state": {"running": {"startedAt": TIME}},
        })
    };
    json!({
        "metadata": {
            "namespace": "games", "name": format!("game-{number:05}"), "uid": format!("p{number}"),
            "resourceVersion": version.to_string(), "creationTimestamp": TIME,
            "labels": {"app": "game", "zone": format!("zone-{}", number % 3)},
            "annotations": {
                "kruise.io/sidecarset-hash": entry(&set.hashes.hash),
                "kruise.io/sidecarset-hash-without-image": entry(&set.hashes.without_image),
                "kruise.io/sidecarset-injected-list": "s000",
            },
        },
        "spec": {"nodeName": "n", "containers": [{"name": "game", "image": "i:1"}, {"name": "side", "image": "i:1"}]},
        "status": {
            "phase": "Running", "containerStatuses": [status("game"), status("side")],
            "conditions": [{
                "type": "Ready", "status": if is_ready { "True" } else { "False" }, "lastTransitionTime": TIME,
            }],
        },
    })
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

fn synced(sets: &[Value], pods: &[Value]) -> Reconciler<SidecarSets> {
    let feature = SidecarSets::new(Config::default(), ());
    let mut reconciler = Reconciler::new(feature, || Duration::ZERO);
    let list = ResourceVersion::from(5);
    for set in sets {
        reconciler.observe_object::<SidecarSetWire>(&read(set), Source::List(list));
    }
    for pod in pods {
        reconciler.observe_object::<Pod>(&read(pod), Source::List(list));
    }
    reconciler.observe_list::<ControllerRevision>(&BTreeSet::new(), list, false, now());
    reconciler.observe_list::<ConfigMap>(&BTreeSet::new(), list, false, now());
    reconciler.begin_term();
    run(&mut reconciler);
    reconciler
}

/// Bytes that are allocated for an event, and for what runs after it.
fn bytes<K>(reconciler: &mut Reconciler<SidecarSets>, object: &Arc<K>) -> usize
where
    SidecarSets: Watch<K>,
{
    let region = Region::new(ALLOCATOR);
    reconciler.observe_object(object, Source::Watch);
    run(reconciler);
    region.change().bytes_allocated
}

/// A pod of so many becomes not ready, while others of its set wait for their upgrade and a place is free.
fn bytes_of_scattered_pod(pods: usize) -> usize {
    let all: Vec<_> = (0..pods).map(|number| pod(number, 2, true)).collect();
    let mut reconciler = synced(&[set(0, "i:2", "side")], &all);
    // The first event makes room in tables for the next ones.
    let mut last = 0;
    for (version, number) in [(6, 7), (7, 11), (8, 5)] {
        let pod = pod(number, version, false);
        last = bytes::<Pod>(&mut reconciler, &read(&pod));
    }
    last
}

/// The oldest of so many sets that all claim one container gets another image.
fn bytes_of_edited_set(sets: usize) -> usize {
    let all: Vec<_> = (0..sets).map(|number| set(number, "i:1", "side")).collect();
    let mut reconciler = synced(&all, &[]);
    let edits = ["i:2", "i:3"].iter().zip(2..);
    let edits = edits.map(|(image, version)| {
        let mut edited = set(0, image, "side");
        edited["metadata"]["generation"] = version.into();
        edited["metadata"]["resourceVersion"] = (version + 5).to_string().into();
        bytes::<SidecarSetWire>(&mut reconciler, &read(&edited))
    });
    edits.last().unwrap()
}

/// A set is created among so many that claim other containers.
fn bytes_of_created_set(sets: usize) -> usize {
    let created = |number| set(number, "i:1", &format!("side-{number}"));
    let all: Vec<_> = (0..sets).map(created).collect();
    let mut reconciler = synced(&all, &[]);
    // The first one makes room in tables for the next.
    let events = [sets, sets + 1].map(|number| {
        let mut created = created(number);
        created["metadata"]["resourceVersion"] = number.to_string().into();
        bytes::<SidecarSetWire>(&mut reconciler, &read(&created))
    });
    events[1]
}

/// A set that selects no pod is edited beside so many pods of another.
fn bytes_of_set_beside_pods(pods: usize, edit: fn(&mut Value, usize)) -> usize {
    let all: Vec<_> = (0..pods).map(|number| pod(number, 2, true)).collect();
    let other = |version: usize| {
        let mut other = set(1, "i:1", "other-side");
        other["spec"]["selector"]["matchLabels"]["app"] = "none".into();
        other["metadata"]["generation"] = version.into();
        other["metadata"]["resourceVersion"] = (version + 5).to_string().into();
        edit(&mut other, version);
        other
    };
    let mut reconciler = synced(&[set(0, "i:1", "side"), other(1)], &all);
    let edits =
        [2, 3].map(|version| bytes::<SidecarSetWire>(&mut reconciler, &read(&other(version))));
    edits[1]
}

/// An image is edited among so many pods.
fn bytes_of_edited_image(pods: usize) -> usize {
    bytes_of_set_beside_pods(pods, |set, version| {
        set["spec"]["containers"][0]["image"] = format!("i:{version}").into();
    })
}

/// A selector is edited among so many pods.
fn bytes_of_edited_selector(pods: usize) -> usize {
    bytes_of_set_beside_pods(pods, |set, version| {
        set["spec"]["selector"]["matchLabels"]["track"] = format!("t{version}").into();
    })
}

/// A twentieth more, for a set that is looked at takes a few bytes only.
fn is_as_much(many: usize, few: usize) -> bool {
    many <= few + few / 20
}

/// One test, since the allocator counts for all threads.
// SDF-43, SDF-52
#[test]
fn an_event_allocates_as_much_among_many_others_as_among_few() {
    type BytesAmong = fn(usize) -> usize;
    for (what, of, times, bytes) in [
        (
            "a scattered pod",
            PODS,
            // A roll-out looks at all pods of its set.
            TIMES,
            bytes_of_scattered_pod as BytesAmong,
        ),
        ("an edited image", PODS, 1, bytes_of_edited_image),
        ("an edited selector", PODS, 1, bytes_of_edited_selector),
        ("an edited set", SETS, 1, bytes_of_edited_set),
        ("a created set", SETS, 1, bytes_of_created_set),
    ] {
        let (few, many) = (bytes(of), bytes(TIMES * of));
        println!("bytes of an event of {what}: {few} and {many}");
        assert!(is_as_much(many, times * few), "of {what}: {few} and {many}");
    }
}

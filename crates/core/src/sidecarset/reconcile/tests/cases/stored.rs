//! What is compared of two states of an object: keys run for what differs, and for nothing else.

use std::sync::Arc;

use leadsman_reconcile::Stored;

use super::*;
use crate::cluster::Interners;
use crate::sidecarset::reconcile::world::{StoredPod, StoredSet};

/// A pod that a set was injected into, or not, and another state of it.
fn pods(is_injected: bool, pointer: &str, value: &Value) -> [StoredPod; 2] {
    let mut pod = json!({
        "metadata": {"name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "1",
            "labels": {"app": "web"}, "annotations": {}},
        "spec": {"containers": [{"name": "app"}]},
        "status": {"phase": "Running", "conditions": [{"type": UPGRADABLE, "status": "True"}]},
    });
    if is_injected {
        pod["metadata"]["annotations"][INJECTED_LIST] = json!("log");
    }
    let before = pod.clone();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match pod.pointer_mut(parent).unwrap() {
        Value::Array(list) => list[field.parse::<usize>().unwrap()] = value.clone(),
        parent => parent[field] = value.clone(),
    }
    let mut interners = Interners::default();
    [before, pod].map(|pod| StoredPod::new(&serde_json::from_value(pod).unwrap(), &mut interners))
}

#[rstest::rstest]
#[case::nothing("/metadata/uid", json!("u"), [true, true, true])]
#[case::version("/metadata/resourceVersion", json!("2"), [false, true, true])]
#[case::labels("/metadata/labels", json!({"app": "other"}), [false, false, false])]
#[case::uid("/metadata/uid", json!("v"), [false, false, false])]
#[case::ended("/status/phase", json!("Succeeded"), [false, false, false])]
#[case::condition("/status/conditions/0", json!({"type": UPGRADABLE, "status": "False"}), [false, false, true])]
#[case::sets("/metadata/annotations", json!({INJECTED_LIST: "log,other"}), [false, false, false])]
#[case::mirror("/metadata/annotations", json!({"kubernetes.io/config.mirror": "h"}), [false, false, false])]
fn of_a_pod_it_matters_what_sets_read(
    #[case] pointer: &str,
    #[case] value: Value,
    // Whether nothing differs that is read, with a set and without one, and whether sets select it as before.
    #[case] expected: [bool; 3],
) {
    let [before, after] = pods(true, pointer, &value);
    let [before_without, after_without] = pods(false, pointer, &value);
    let found = [
        after.is_same(&before),
        after_without.is_same(&before_without),
        after.is_selected_as(&before),
    ];
    assert_eq!(found, expected);
}

#[rstest::rstest]
#[case::nothing("/metadata/uid", json!("u"), true)]
#[case::version("/metadata/resourceVersion", json!("2"), true)]
#[case::status("/status", json!({"matchedPods": 1}), true)]
#[case::uid("/metadata/uid", json!("v"), false)]
#[case::generation("/metadata/generation", json!(2), false)]
#[case::labels("/metadata/labels", json!({"a": "b"}), false)]
#[case::annotations("/metadata/annotations", json!({"a": "b"}), false)]
#[case::deletion("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"), false)]
#[case::spec("/spec/containers", json!([]), false)]
fn of_a_set_it_matters_what_it_says(
    #[case] pointer: &str,
    #[case] value: Value,
    #[case] says_the_same: bool,
) {
    let mut set = spec("log");
    set["metadata"]["uid"] = json!("u");
    set["metadata"]["generation"] = json!(1);
    let before = set.clone();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    set.pointer_mut(parent).unwrap()[field] = value;
    let [before, after] = [before, set].map(|set| {
        let wire = serde_json::from_value(set).unwrap();
        StoredSet::new(&Arc::new(wire))
    });
    assert_eq!(after.says_the_same(&before), says_the_same);
}

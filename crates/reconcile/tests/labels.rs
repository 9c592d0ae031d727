//! The example of the crate's documentation, run by hand.

#[expect(
    unreachable_pub,
    reason = "the example of a feature is written as one that is published"
)]
mod copy_labels;

use std::sync::Arc;
use std::time::Duration;

use copy_labels::{COLOUR, COLOUR_FROM, CopyLabels};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_reconcile::{Now, Reconciler, Source, WriteId};
use serde_json::json;

fn metadata(name: &str, version: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("shop".to_owned()),
        resource_version: Some(version.to_owned()),
        ..ObjectMeta::default()
    }
}

/// A pod names a `ConfigMap`, whose colour it lacks. The identity of the write that gives it the colour.
fn uncoloured() -> (Reconciler<CopyLabels>, WriteId) {
    let mut reconciler = Reconciler::new(CopyLabels, || Duration::ZERO);
    reconciler.begin_term();
    let mut pod = Pod {
        metadata: metadata("a", "1"),
        ..Pod::default()
    };
    pod.metadata.annotations = Some([(COLOUR_FROM.to_owned(), "paint".to_owned())].into());
    reconciler.observe_object(Arc::new(pod), Source::Watch);
    let now = Now::default();
    reconciler.run_keys(now);
    assert!(
        reconciler.take_effects(now).dirty.is_empty(),
        "there is no such ConfigMap"
    );
    let mut map = ConfigMap {
        metadata: metadata("paint", "2"),
        ..ConfigMap::default()
    };
    map.metadata.labels = Some([(COLOUR.to_owned(), "red".to_owned())].into());
    reconciler.observe_object(Arc::new(map), Source::Watch);
    reconciler.run_keys(now);
    let due = reconciler.take_effects(now).dirty.remove(0);
    (reconciler, due)
}

#[test]
fn a_pod_gets_the_colour_of_the_config_map_that_it_names() {
    let (mut reconciler, due) = uncoloured();
    let now = Now::default();
    let write = reconciler.take_due(&due, now).expect("a write is due");
    assert_eq!(
        write.body(),
        json!({"metadata": {"labels": {COLOUR: "red"}}})
    );
    assert!(reconciler.take_due(&due, now).is_none(), "it is under way");
}

#[test]
fn a_write_that_rests_is_sent_at_its_time_though_nothing_else_happens() {
    let (mut reconciler, due) = uncoloured();
    let now = Now::default();
    // Carried out twice, and twice undone.
    for _ in 0..2 {
        assert!(reconciler.take_due(&due, now).is_some());
        reconciler.note_done(&due, false, now);
        reconciler.run_keys(now);
    }
    // What decides when this is called again is known before anybody asks for the write.
    let second = Duration::from_secs(1);
    assert_eq!(reconciler.take_effects(now).deadline, Some(second));
    assert!(reconciler.take_due(&due, now).is_none());
    let later = Now {
        monotonic: second,
        ..now
    };
    reconciler.run_keys(later);
    assert_eq!(
        reconciler.take_effects(later).dirty,
        std::slice::from_ref(&due)
    );
    assert!(reconciler.take_due(&due, later).is_some());
}

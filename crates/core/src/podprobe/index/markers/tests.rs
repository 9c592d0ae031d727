//! Matching, without an index around it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::selectors::SelectorIndex;
use super::{MarkerChange, Markers};
use crate::cluster::{Interners, ObjectName, Selector};
use crate::podprobe::Compatibility;
use crate::podprobe::index::context::IndexContext;
use crate::podprobe::pod::IndexedPod;

fn pod(labels: &Value) -> IndexedPod {
    let wire = json!({
        "metadata": { "namespace": "a", "name": "p", "uid": "u", "labels": labels },
        "spec": { "nodeName": "n" },
        "status": { "phase": "Running", "conditions": [{ "type": "Initialized", "status": "True" }] },
    });
    let wire = serde_json::from_value(wire).unwrap();
    IndexedPod::new(&wire, None, &mut Interners::default())
}

fn observe(
    markers: &mut Markers,
    name: &str,
    created: &str,
    selector: &Value,
) -> Option<MarkerChange> {
    let probe = json!({ "name": "idle", "containerName": "main", "podConditionType": "game.io/idle",
                        "probe": { "exec": { "command": ["/idle"] } } });
    let wire = json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker",
        "metadata": { "namespace": "a", "name": name, "uid": name, "creationTimestamp": created },
        "spec": { "selector": selector, "probes": [probe] },
    });
    let wire = serde_json::from_value(wire).unwrap();
    markers.observe_marker(&wire, &mut IndexContext::default())
}

fn matching(markers: &Markers, labels: &Value) -> Vec<String> {
    let pod = pod(labels);
    let matching = markers.markers_matching(&pod).into_iter();
    matching.map(|(name, _)| name.name.clone()).collect()
}

// PPM-1
#[test]
fn markers_match_the_older_first() {
    let mut markers = Markers::new(Compatibility::default(), 8, false);
    let selector = json!({ "matchLabels": { "app": "game" } });
    observe(&mut markers, "young", "2026-01-02T00:00:00Z", &selector);
    observe(&mut markers, "old", "2026-01-01T00:00:00Z", &selector);
    observe(&mut markers, "also-old", "2026-01-01T00:00:00Z", &selector);
    let other = json!({ "matchLabels": { "app": "web" } });
    observe(&mut markers, "other", "2026-01-01T00:00:00Z", &other);
    let found = matching(&markers, &json!({ "app": "game" }));
    assert_eq!(found, ["also-old", "old", "young"]);
    assert!(matching(&markers, &json!({})).is_empty());
}

// PPM-1
#[test]
fn a_marker_with_another_selector_matches_by_that_alone() {
    let mut markers = Markers::new(Compatibility::default(), 8, false);
    let time = "2026-01-01T00:00:00Z";
    let [game, web] = ["game", "web"].map(|app| json!({ "matchLabels": { "app": app } }));
    let change = observe(&mut markers, "m", time, &game).unwrap();
    assert!(change.selects_others);
    assert!(observe(&mut markers, "m", time, &game).is_none());
    assert!(
        observe(&mut markers, "m", time, &web)
            .unwrap()
            .selects_others
    );
    assert!(matching(&markers, &json!({ "app": "game" })).is_empty());
    assert_eq!(matching(&markers, &json!({ "app": "web" })), ["m"]);
    let name = ObjectName {
        namespace: "a".to_owned(),
        name: "m".to_owned(),
    };
    markers
        .remove_marker(&name, &mut IndexContext::default())
        .unwrap();
    assert!(matching(&markers, &json!({ "app": "web" })).is_empty());
    assert!(markers.selectors.is_empty());
}

#[test]
fn markers_are_not_looked_up_by_a_pair_that_all_of_them_have() {
    let mut selectors = SelectorIndex::default();
    let markers: Vec<_> = (0..100)
        .map(|number| {
            let wire = json!({ "matchLabels": { "app": "game", "shard": number.to_string() } });
            let selector = Selector::parse(&serde_json::from_value(wire).unwrap()).unwrap();
            let name = ObjectName {
                namespace: "a".to_owned(),
                name: format!("m{number}"),
            };
            (Arc::new(name), selector)
        })
        .collect();
    for (marker, selector) in &markers {
        selectors.insert_marker(marker, selector);
    }
    let pod = pod(&json!({ "app": "game", "shard": "7" }));
    let candidates: Vec<_> = selectors.candidates_for(&pod).collect();
    assert!(candidates.contains(&&markers[7].0));
    assert!(candidates.len() <= 2, "{candidates:?}");
    for (marker, selector) in &markers {
        selectors.remove_marker(marker, selector);
    }
    assert!(selectors.is_empty());
}

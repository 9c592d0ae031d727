//! Which annotations a pod gets when it is created, and which pods the API server asks about.

use std::collections::BTreeMap;
use std::sync::Arc;

use leadsman_api::limits::ANNOTATIONS_BYTES;
use leadsman_api::slim;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    FREE_BYTES, INJECTED_BYTES, MARKERS, MarkerScope, NotInjected, PROBES, ProviderMarkers,
};
use crate::cluster::Interners;
use crate::podprobe::pod::{FIELD_MANAGER, IndexedPod};
use crate::podprobe::{Compatibility, Marker};

/// A probe that runs `command` in container `main`.
fn probe(name: &str, condition: &str) -> Value {
    json!({ "name": name, "containerName": "main", "podConditionType": condition,
            "probe": { "exec": { "command": ["check", name] } } })
}

/// A marker on pods labelled `app: x`, made at the second `age`.
fn marker(namespace: &str, name: &str, age: u32, probes: &[Value]) -> Arc<Marker> {
    marker_of(
        namespace,
        name,
        age,
        &json!({ "matchLabels": { "app": "x" } }),
        probes,
    )
}

fn marker_of(
    namespace: &str,
    name: &str,
    age: u32,
    selector: &Value,
    probes: &[Value],
) -> Arc<Marker> {
    parse(
        &json!({ "metadata": { "namespace": namespace, "name": name,
                               "creationTimestamp": format!("2026-01-01T00:00:{age:02}Z") },
                 "spec": { "selector": selector, "probes": probes } }),
        Compatibility::Kubernetes,
    )
}

fn parse(wire: &Value, compatibility: Compatibility) -> Arc<Marker> {
    let wire = serde_json::from_value(wire.clone()).unwrap();
    Arc::new(Marker::parse(&wire, compatibility).unwrap())
}

/// A pod as it is sent: its name is still to be made up, and it names no namespace.
fn pod(annotations: &Value) -> Value {
    json!({ "metadata": { "generateName": "p-", "labels": { "app": "x" }, "annotations": annotations },
            "spec": { "containers": [{ "name": "main", "ports": [{ "name": "web", "containerPort": 8080 }] },
                                     { "name": "side" }],
                      "initContainers": [{ "name": "init" }, { "name": "native", "restartPolicy": "Always" }] } })
}

fn snapshot(markers: &[Arc<Marker>]) -> ProviderMarkers {
    let mut snapshot = ProviderMarkers::default();
    for marker in markers {
        snapshot.set_marker(&marker.name, Some(marker.clone()));
    }
    snapshot
}

fn review(markers: &[Arc<Marker>], pod: &Value) -> BTreeMap<&'static str, Option<String>> {
    let pod: slim::Pod = serde_json::from_value(pod.clone()).unwrap();
    let changes = snapshot(markers).review_pod("a", &pod);
    let changes = changes.into_iter();
    changes
        .map(|(key, value)| (key, value.map(|value| value.to_string())))
        .collect()
}

/// The names of the probes that are injected, with the markers.
fn injected(markers: &[Arc<Marker>]) -> (Vec<String>, String) {
    let changes = review(markers, &pod(&json!({})));
    let probes: Vec<Value> = serde_json::from_str(changes[PROBES].as_deref().unwrap()).unwrap();
    let names = probes
        .iter()
        .map(|probe| probe["name"].as_str().unwrap().to_owned());
    (names.collect(), changes[MARKERS].clone().unwrap())
}

// PPM-16
#[test]
fn the_annotations_are_openkruises_with_every_field_of_the_probe() {
    let wire = json!({ "metadata": { "namespace": "a", "name": "way" }, "spec": {
        "selector": { "matchLabels": { "app": "x" } },
        "probes": [{ "name": "healthy", "containerName": "main", "podConditionType": "game.io/healthy",
                     "probe": { "httpGet": { "port": "web" } },
                     "markerPolicy": [{ "state": "Succeeded", "labels": { "healthy": "yes" } }] }] } });
    for (compatibility, timing) in [
        (
            Compatibility::Kubernetes,
            r#""initialDelaySeconds":0,"periodSeconds":10,"successThreshold":1,"timeoutSeconds":1"#,
        ),
        (
            Compatibility::OpenKruise,
            r#""initialDelaySeconds":1,"periodSeconds":1,"successThreshold":1,"timeoutSeconds":1"#,
        ),
    ] {
        let failures = if compatibility == Compatibility::Kubernetes {
            3
        } else {
            1
        };
        let changes = review(&[parse(&wire, compatibility)], &pod(&json!({})));
        let expected = format!(
            r#"[{{"name":"healthy","containerName":"main","probe":{{"failureThreshold":{failures},"httpGet":{{"path":"/","port":8080,"scheme":"HTTP"}},{timing}}},"podConditionType":"game.io/healthy"}}]"#
        );
        assert_eq!(changes[PROBES].as_deref(), Some(expected.as_str()));
        assert_eq!(changes[MARKERS].as_deref(), Some("way"));
    }
}

// PPM-16
#[test]
fn names_of_markers_are_sorted_and_probes_in_the_order_of_contests() {
    let markers = [
        marker("a", "zoo", 1, &[probe("p", "z/p"), probe("q", "z/q")]),
        marker("a", "bee", 2, &[probe("r", "b/r")]),
        marker("b", "elsewhere", 0, &[probe("s", "e/s")]),
    ];
    let expected = (
        ["p", "q", "r"].map(str::to_owned).to_vec(),
        "bee,zoo".to_owned(),
    );
    assert_eq!(injected(&markers), expected);
    let reversed: Vec<_> = markers.into_iter().rev().collect();
    assert_eq!(injected(&reversed), expected);
}

// PPM-16, PPM-10
#[test]
fn the_older_marker_has_a_condition_and_a_repeated_name_says_whose_it_is() {
    let markers = [
        marker("a", "young", 2, &[probe("p", "shared"), probe("q", "own")]),
        marker("a", "old", 1, &[probe("q", "shared")]),
    ];
    let (names, list) = injected(&markers);
    assert_eq!(
        (names, list.as_str()),
        (vec!["q".to_owned(), "young#q".to_owned()], "old,young")
    );
}

// PPM-16, PPM-4
#[rstest]
#[case::container("main", json!(8080), Ok(()))]
#[case::native_sidecar("native", json!(8080), Ok(()))]
#[case::port_by_name("main", json!("web"), Ok(()))]
#[case::init_container("init", json!(8080), Err(NotInjected::ContainerNotFound))]
#[case::no_such_container("other", json!(8080), Err(NotInjected::ContainerNotFound))]
#[case::port_of_another_container("side", json!("web"), Err(NotInjected::PortNotFound("web".into())))]
fn a_probe_is_injected_where_its_container_stays_and_has_its_port(
    #[case] container: &str,
    #[case] port: Value,
    #[case] expected: Result<(), NotInjected>,
) {
    let mut wanted = probe("p", "t");
    wanted["containerName"] = json!(container);
    wanted["probe"] = json!({ "tcpSocket": { "port": port } });
    let marker = marker("a", "way", 0, &[wanted]);
    let wire = pod(&json!({}));
    assert_eq!(
        review(std::slice::from_ref(&marker), &wire).is_empty(),
        expected.is_err()
    );
    let pod = IndexedPod::new(
        &serde_json::from_value(wire).unwrap(),
        None,
        &mut Interners::default(),
    );
    let plan = super::ProviderProbes::plan_probes(&[&marker], &pod);
    assert_eq!(plan.plans, [[expected]]);
}

// PPM-16
#[test]
fn a_pod_that_no_marker_wants_is_left_alone() {
    let silent = json!({ "name": "p", "containerName": "main", "probe": { "exec": { "command": ["c"] } },
                         "markerPolicy": [{ "state": "Succeeded", "labels": { "k": "v" } }] });
    for markers in [
        vec![],
        vec![marker("b", "elsewhere", 0, &[probe("p", "t")])],
        vec![marker("a", "without-condition", 0, &[silent])],
        vec![marker_of(
            "a",
            "others",
            0,
            &json!({ "matchLabels": { "app": "y" } }),
            &[probe("p", "t")],
        )],
    ] {
        assert_eq!(review(&markers, &pod(&json!({}))), BTreeMap::new());
        assert_eq!(review(&markers, &pod(&json!(null))), BTreeMap::new());
        // Somebody's own, without the other one.
        assert_eq!(
            review(&markers, &pod(&json!({ PROBES: "[]" }))),
            BTreeMap::new()
        );
    }
}

// PPM-16
#[test]
fn annotations_of_another_pod_are_replaced_or_taken_away() {
    let copied = json!({ PROBES: "[{}]", MARKERS: "gone", "else": "stays" });
    let gone: BTreeMap<_, _> = [(PROBES, None), (MARKERS, None)].into();
    assert_eq!(review(&[], &pod(&copied)), gone);
    let replaced = review(&[marker("a", "way", 0, &[probe("p", "t")])], &pod(&copied));
    assert_eq!(replaced[MARKERS].as_deref(), Some("way"));
    assert!(
        replaced[PROBES]
            .as_deref()
            .unwrap()
            .starts_with(r#"[{"name":"p""#)
    );
    assert_eq!(replaced.len(), 2);
}

// PPM-16
#[test]
fn what_does_not_fit_is_left_out_and_no_pod_is_refused_for_it() {
    let long = |number: usize| {
        let mut probe = probe(&format!("p{number}"), &format!("t{number}"));
        probe["probe"]["exec"]["command"] = json!(["c", "x".repeat(16_000)]);
        probe
    };
    let probes: Vec<_> = (0..10).map(long).collect();
    let marker = marker("a", "way", 0, &probes);
    let (names, _) = injected(std::slice::from_ref(&marker));
    assert_eq!(names.len(), 8, "of 16 KB each");
    let changes = review(std::slice::from_ref(&marker), &pod(&json!({})));
    assert!(bytes(&changes) <= INJECTED_BYTES + PROBES.len() + MARKERS.len());
    // The pod's own annotations leave less.
    for (own, fit) in [(147_000, 5), (196_000, 2), (217_000, 0)] {
        let full = pod(&json!({ "else": "x".repeat(own) }));
        let changes = review(std::slice::from_ref(&marker), &full);
        let probes = changes
            .get(PROBES)
            .map_or("[]", |probes| probes.as_deref().unwrap());
        let probes: Vec<Value> = serde_json::from_str(probes).unwrap();
        assert_eq!(probes.len(), fit, "beside {own} bytes");
        assert!(bytes(&changes) + "else".len() + own <= ANNOTATIONS_BYTES - FREE_BYTES);
    }
}

/// What annotations take, keys included.
fn bytes(annotations: &BTreeMap<&'static str, Option<String>>) -> usize {
    let pairs = annotations.iter();
    pairs
        .map(|(key, value)| key.len() + value.as_ref().unwrap().len())
        .sum()
}

/// What fits to the last byte fits.
// PPM-16
#[test]
fn annotations_may_take_all_that_others_leave_but_a_reserve() {
    let way = marker("a", "way", 0, &[probe("p", "t")]);
    let alone = review(std::slice::from_ref(&way), &pod(&json!({})));
    let left = ANNOTATIONS_BYTES - FREE_BYTES - bytes(&alone) - "else".len();
    for (own, fits) in [(left, true), (left + 1, false)] {
        let beside = pod(&json!({ "else": "x".repeat(own) }));
        let changes = review(std::slice::from_ref(&way), &beside);
        assert_eq!(!changes.is_empty(), fits, "{own}");
    }
}

/// A copy of a marked pod has its managedFields, and annotations that nobody will take away.
// PPM-16
#[test]
fn annotations_take_room_whoever_the_request_says_has_made_them() {
    let way = marker("a", "way", 0, &[probe("p", "t")]);
    let mut copy = pod(&json!({ "mark": "x".repeat(ANNOTATIONS_BYTES) }));
    copy["metadata"]["managedFields"] = json!([{
        "manager": FIELD_MANAGER, "operation": "Apply", "subresource": "status",
        "fieldsV1": { "f:metadata": { "f:annotations": { "f:mark": {} } } },
    }]);
    assert_eq!(review(std::slice::from_ref(&way), &copy), BTreeMap::new());
}

// PPM-16
#[test]
fn a_marker_that_is_deleted_or_names_no_condition_any_more_is_in_force_no_longer() {
    let way = marker("a", "way", 0, &[probe("p", "t")]);
    let mut silent = probe("p", "");
    silent["markerPolicy"] = json!([{ "state": "Failed", "labels": { "k": "v" } }]);
    for after in [None, Some(marker("a", "way", 0, &[silent]))] {
        let mut snapshot = snapshot(&[way.clone(), marker("b", "way", 0, &[probe("p", "t")])]);
        let before = snapshot.clone();
        snapshot.set_marker(&way.name, after.clone());
        assert_ne!(snapshot, before);
        assert_eq!(
            MarkerScope::new(&snapshot).unwrap().namespaces,
            Some(vec!["b".to_owned()])
        );
        snapshot.set_marker(&way.name, after);
        snapshot.set_marker(&way.name, Some(way.clone()));
        assert_eq!(snapshot, before);
    }
}

/// The pods that are asked about, in CEL.
fn scope(markers: &[Arc<Marker>]) -> Option<MarkerScope> {
    MarkerScope::new(&snapshot(markers))
}

const COPY: &str = "object.metadata.?annotations[?'kruise.io/podprobemarker-list'].hasValue()";

// PPM-16
#[test]
fn pods_are_asked_about_by_namespace_and_label() {
    assert_eq!(scope(&[]), None);
    let selector = json!({ "matchExpressions": [
        { "key": "app", "operator": "In", "values": ["x", "y"] }, { "key": "b", "operator": "NotIn", "values": ["1"] },
        { "key": "c", "operator": "Exists" }, { "key": "d.io/d", "operator": "DoesNotExist" }] });
    let one = marker_of("a", "way", 0, &selector, &[probe("p", "t")]);
    let expression = "object.metadata.?labels[?'app'].orValue('#') in ['x', 'y'] && \
         !(object.metadata.?labels[?'b'].orValue('#') in ['1']) && object.metadata.?labels[?'c'].hasValue() && \
         !object.metadata.?labels[?'d.io/d'].hasValue()";
    let found = scope(std::slice::from_ref(&one)).unwrap();
    assert_eq!(found.namespaces, Some(vec!["a".to_owned()]));
    assert_eq!(found.expression, Some(format!("{expression} || {COPY}")));
    let others = ["c", "b"].map(|namespace| marker(namespace, "way", 0, &[probe("p", "t")]));
    let found = scope(&[&[one][..], &others].concat()).unwrap();
    assert_eq!(
        found.namespaces,
        Some(["a", "b", "c"].map(str::to_owned).to_vec())
    );
    let label =
        "request.namespace in ['b', 'c'] && object.metadata.?labels[?'app'].orValue('#') in ['x']";
    let expected = format!("request.namespace in ['a'] && {expression} || {label} || {COPY}");
    let expected = expected
        .split(" || ")
        .collect::<std::collections::BTreeSet<_>>();
    assert_eq!(
        found
            .expression
            .unwrap()
            .split(" || ")
            .collect::<std::collections::BTreeSet<_>>(),
        expected
    );
}

// PPM-16
#[rstest]
#[case::all_named(20, 20, false, "request.namespace in")]
#[case::too_many_namespaces(1001, 1, true, "object.metadata.?labels")]
#[case::namespaces_leave_no_room_for_selectors(1000, 20, false, "object.metadata.?labels")]
#[case::too_many_selectors(20, 400, true, "")]
fn what_does_not_fit_is_asked_more_widely(
    #[case] namespaces: usize,
    #[case] selectors: usize,
    #[case] is_widened: bool,
    #[case] begins: &str,
) {
    let markers = (0..namespaces.max(selectors)).map(|number| {
        let selector = json!({ "matchLabels": { "app": format!("x{}", number % selectors) } });
        let namespace = format!("a-name-of-some-length-{:04}", number % namespaces);
        marker_of(
            &namespace,
            &format!("m{number}"),
            0,
            &selector,
            &[probe("p", "t")],
        )
    });
    let markers: Vec<_> = markers.collect();
    let scope = scope(&markers).unwrap();
    assert_eq!(scope.is_widened(), is_widened);
    assert_eq!(
        scope.namespaces.is_some(),
        namespaces <= MarkerScope::NAMESPACES
    );
    assert!(
        scope
            .expression
            .as_deref()
            .unwrap_or_default()
            .starts_with(begins),
        "{scope:?}"
    );
    assert!(
        scope
            .expression
            .is_none_or(|text| text.len() <= MarkerScope::EXPRESSION_BYTES)
    );
}

/// A pod that is edited by what a review says, as the API server does.
fn edit(pod: &mut Value, changes: &BTreeMap<&'static str, Option<String>>) {
    for (key, value) in changes {
        let annotations = &mut pod["metadata"]["annotations"];
        match value {
            Some(value) => annotations[*key] = json!(value),
            None => drop(annotations.as_object_mut().unwrap().remove(*key)),
        }
    }
}

prop_compose! {
    fn any_probe()(
        name in "[pq]",
        condition in prop_oneof![Just(None), "[tuv]".prop_map(Some)],
        container in prop_oneof![Just("main"), Just("side"), Just("native"), Just("init"), Just("none")],
        port in prop_oneof![Just(json!("web")), Just(json!("other")), Just(json!(80))],
    ) -> Value {
        let mut probe = json!({ "name": name, "containerName": container, "probe": { "tcpSocket": { "port": port } },
                                "markerPolicy": [{ "state": "Failed", "labels": { "k": "v" } }] });
        if let Some(condition) = condition {
            probe["podConditionType"] = json!(condition);
        }
        probe
    }
}

prop_compose! {
    fn any_marker()(
        name in "[m-o]",
        namespace in "[ab]",
        age in 0..3_u32,
        app in "[xy]",
        probes in prop::collection::vec(any_probe(), 1..4),
    ) -> Option<Arc<Marker>> {
        let wire = json!({ "metadata": { "namespace": namespace, "name": name,
                                         "creationTimestamp": format!("2026-01-01T00:00:{age:02}Z") },
                           "spec": { "selector": { "matchLabels": { "app": app } }, "probes": probes } });
        Marker::parse(&serde_json::from_value(wire).unwrap(), Compatibility::Kubernetes).ok().map(Arc::new)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // PPM-16
    #[test]
    fn a_second_review_changes_nothing(
        markers in prop::collection::vec(any_marker(), 0..5),
        copied in prop_oneof![
            Just(json!({})), Just(json!({ PROBES: "[]" })), Just(json!({ PROBES: "[]", MARKERS: "m" })),
            Just(json!({ MARKERS: "" })),
        ],
    ) {
        let mut markers: Vec<_> = markers.into_iter().flatten().collect();
        markers.sort_by(|a, b| a.name.cmp(&b.name));
        markers.dedup_by(|a, b| a.name == b.name);
        let mut pod = pod(&copied);
        let changes = review(&markers, &pod);
        edit(&mut pod, &changes);
        prop_assert_eq!(review(&markers, &pod), BTreeMap::new());
        let annotations = pod["metadata"]["annotations"].clone();
        if let Some(probes) = annotations.get(PROBES).filter(|_| annotations.get(MARKERS).is_some()) {
            let probes: Vec<Value> = serde_json::from_str(probes.as_str().unwrap()).unwrap();
            let unique = |keys: &[&str]| {
                let keys = probes.iter().map(|probe| keys.iter().map(|key| probe[key].to_string()).collect::<Vec<_>>());
                keys.collect::<std::collections::BTreeSet<_>>().len()
            };
            prop_assert!(!probes.is_empty());
            prop_assert_eq!(unique(&["podConditionType"]), probes.len());
            prop_assert_eq!(unique(&["containerName", "name"]), probes.len());
        } else {
            prop_assert!(annotations.get(MARKERS).is_none());
        }
    }
}

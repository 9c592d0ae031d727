use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::sidecarset::scope::{ScopeCall, SetScope};
use crate::sidecarset::tests::recorded;

const NOW: &str = "2026-11-22T01:58:33Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

fn set(name: &str, spec: &Value) -> SnapshotSet {
    let mut wire = json!({
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "containers": [{"name": name, "image": "a:1"}]},
    });
    for (field, value) in spec.as_object().unwrap() {
        wire["spec"][field] = value.clone();
    }
    stored(&wire)
}

fn stored(wire: &Value) -> SnapshotSet {
    let set = SidecarSet::parse(&serde_json::from_value(wire.clone()).unwrap()).unwrap();
    let history = SetHistory::new(&set, Vec::new(), None);
    SnapshotSet {
        set: Arc::new(set),
        history: Arc::new(history),
        needs: SnapshotVersion::default(),
    }
}

fn snapshot(sets: impl IntoIterator<Item = SnapshotSet>, namespaces: &[(&str, &str)]) -> Snapshot {
    let namespaces = namespaces.iter().map(|(name, tier)| {
        let labels = [(Arc::from("tier"), Arc::from(*tier))];
        (Arc::from(*name), labels.into_iter().collect())
    });
    Snapshot {
        sets: Arc::new(sets.into_iter().collect()),
        namespaces: Arc::new(namespaces.collect()),
        ..Snapshot::default()
    }
}

fn pod(annotations: &Value) -> JsonObject {
    let pod = json!({
        "metadata": {"labels": {"app": "web"}, "annotations": annotations},
        "spec": {"containers": [{"name": "main"}]},
    });
    pod.as_object().unwrap().clone()
}

// SCS-5, SDF-5
#[test]
fn whether_a_namespace_is_known_matters_where_a_set_selects_by_its_labels() {
    let tier = json!({"namespaceSelector": {"matchLabels": {"tier": "1"}}});
    let all = snapshot([set("a", &tier)], &[("one", "1"), ("two", "2")]);
    let none = json!({});
    let names = |namespace| all.inject(&pod(&none), namespace, now()).sets.len();
    assert_eq!([names("one"), names("two"), names("new")], [1, 0, 0]);
    let knows = |namespace| all.knows_namespace(&pod(&none), namespace, None);
    assert_eq!(
        [knows("one"), knows("two"), knows("new")],
        [true, true, false]
    );
    let mut paused = tier.clone();
    paused["injectionStrategy"] = json!({"paused": true});
    let mut other = tier.clone();
    other["selector"] = json!({"matchLabels": {"app": "other"}});
    for independent in [json!({}), json!({"namespace": "new"}), paused, other] {
        let snapshot = snapshot([set("a", &independent)], &[]);
        assert!(
            snapshot.knows_namespace(&pod(&none), "new", None),
            "{independent}"
        );
    }
}

/// A namespace may be labelled anew, or deleted and made again, and the API server knows it before the watch of this replica.
// SDF-5, SDF-60
#[test]
fn labels_by_which_the_api_server_would_not_have_called_are_not_answered_by() {
    let selects = |tier: &str| json!({"namespaceSelector": {"matchLabels": {"tier": tier}}});
    let mut fails = set("b", &selects("1"));
    Arc::make_mut(&mut fails.set).failure_policy = FailurePolicy::Fail;
    let mut other_pods = selects("4");
    other_pods["selector"] = json!({"matchLabels": {"app": "other"}});
    let sets = [
        set("a", &selects("1")),
        fails,
        set("c", &selects("2")),
        set("d", &other_pods),
        set("e", &json!({})),
    ];
    let all = snapshot(sets, &[("one", "1"), ("two", "2")]);
    let calls = SetScope::new(&all, &[]).calls;
    let tag_of = |policy, tier: &str| {
        let is_of_tier = |call: &&ScopeCall| {
            let mut namespaces = call.namespaces.match_expressions.iter().flatten();
            let is_tier = |one: &[String]| one.iter().any(|value| value == tier);
            call.failure_policy == policy
                && namespaces.any(|one| one.values.as_deref().is_some_and(is_tier))
        };
        let call = calls.iter().find(is_of_tier).unwrap();
        assert!(call.tag.is_some());
        call.tag
    };
    let pod = pod(&json!({}));
    let knows = |namespace, tag| all.knows_namespace(&pod, namespace, tag);
    for policy in [FailurePolicy::Ignore, FailurePolicy::Fail] {
        let tag = tag_of(policy, "1");
        assert_eq!([knows("one", tag), knows("two", tag)], [true, false]);
    }
    let tag = tag_of(FailurePolicy::Ignore, "2");
    assert_eq!([knows("one", tag), knows("two", tag)], [false, true]);
    // Called for a pod that the set does not select, or by a set that has gone since.
    let of_others = tag_of(FailurePolicy::Ignore, "4");
    let of_no_set = tag.map(|tag| tag ^ 1);
    for tag in [None, of_others, of_no_set] {
        assert!(knows("one", tag) && knows("two", tag), "{tag:?}");
    }
    // Where too many selectors are one call, it says of none that it has selected the namespace.
    let many =
        (0..=SetScope::CALLS).map(|number| set(&number.to_string(), &selects(&number.to_string())));
    let calls = SetScope::new(&snapshot(many, &[]), &[]).calls;
    assert_eq!(
        calls.iter().map(|call| call.tag).collect::<Vec<_>>(),
        [None]
    );
}

// SDF-59
#[rstest]
#[case::it_asks_to_fail("Fail", json!({}), true)]
#[case::it_does_not("Ignore", json!({}), false)]
#[case::its_injection_is_paused("Fail", json!({"injectionStrategy": {"paused": true}}), false)]
#[case::its_pods_are_others("Fail", json!({"selector": {"matchLabels": {"app": "other"}}}), false)]
#[case::its_namespaces_are_others("Fail", json!({"namespaceSelector": {"matchLabels": {"tier": "2"}}}), false)]
#[case::its_selector_cannot_be_read("Fail", json!({"selector": {"matchLabels": {"app": "web", "-": "x"}}}), false)]
#[case::its_namespaces_cannot_be_read("Fail", json!({"namespaceSelector": {"matchLabels": {"tier": "-"}}}), false)]
fn a_set_that_is_invalid_refuses_its_pods_if_it_asks_to_fail(
    #[case] policy: &str,
    #[case] spec: Value,
    #[case] refuses: bool,
) {
    let mut wire = json!({
        "metadata": {"name": "a", "annotations": {FAILURE_POLICY_ANNOTATION: policy}},
        "spec": {"selector": {"matchLabels": {"app": "web"}},
                 "containers": [{"name": "a", "image": "a:1", "resources": {"limits": {"cpu": "much"}}}]},
    });
    for (field, value) in spec.as_object().unwrap() {
        wire["spec"][field] = value.clone();
    }
    let wire = serde_json::from_value(wire).unwrap();
    let refusing = SidecarSet::read_refusing(&wire).map(|set| RefusingSet {
        set: set.into(),
        errors: SidecarSet::parse(&wire).unwrap_err().into(),
        needs: SnapshotVersion::default(),
    });
    let known = Snapshot {
        refusing: Arc::new(refusing.into_iter().collect()),
        ..snapshot([], &[("one", "1")])
    };
    let refusal = known.refusal(&pod(&json!({})), "one");
    assert_eq!(refusal.is_some(), refuses, "{refusal:?}");
    let names_the_error = |text: String| text.contains("limits[cpu]") && text.contains("\"a\"");
    assert!(refusal.is_none_or(names_the_error));
}

// SCS-5
#[test]
fn a_pod_that_a_kubelet_runs_from_a_file_gets_nothing() {
    let all = snapshot([set("a", &json!({}))], &[]);
    let mirror = pod(&json!({"kubernetes.io/config.mirror": "hash"}));
    assert_eq!(all.inject(&mirror, "one", now()), Injected::default());
}

// SCS-8, SDF-53
#[rstest]
fn pods_of_every_namespace_and_of_the_hosts_network_are_injected(
    #[values("kube-system", "kube-public", "shop")] namespace: &str,
) {
    let all = snapshot([set("a", &json!({}))], &[]);
    let mut pod = pod(&json!({}));
    pod["spec"]["hostNetwork"] = true.into();
    assert_eq!(all.inject(&pod, namespace, now()).sets.len(), 1);
}

// SDF-7
#[test]
fn a_pod_names_the_revision_of_the_containers_that_it_gets() {
    let documents = recorded::documents("01-sidecarset-stored");
    let stored = stored(&documents[1]);
    let labels = documents[1]["spec"]["selector"]["matchLabels"].clone();
    let mut pod = pod(&json!({}));
    pod["metadata"]["labels"] = labels;
    let injected = snapshot([stored], &[]).inject(&pod, "default", now());
    let hashes = injected.additions.annotations[HASH].clone().unwrap();
    assert!(
        hashes.contains("\"controllerRevision\":\"log-agent-6bf48c598b\""),
        "{hashes}"
    );
}

// SCS-82
#[rstest]
#[case::the_same_request(5, 0, false)]
#[case::a_copy_of_an_injected_pod(300, 0, true)]
#[case::another_content(5, 1, true)]
fn a_pod_that_was_just_injected_gets_nothing_more(
    #[case] later: i64,
    #[case] edited: usize,
    #[case] is_patched: bool,
) {
    let sets = |image: usize| {
        ["a", "b"].map(|name| {
            set(
                name,
                &json!({"containers": [{"name": name, "image": format!("{image}:1")}]}),
            )
        })
    };
    let before = pod(&json!({}));
    let first = snapshot(sets(0), &[]).inject(&before, "shop", now());
    let mut pod = first.additions.apply(&before);
    // What the API server fills in after the first call is no difference.
    pod["spec"]["containers"][0]["terminationMessagePath"] = "/dev/termination-log".into();
    let later = now() + jiff::SignedDuration::from_secs(later);
    let second = snapshot(sets(edited), &[]).inject(&pod, "shop", later);
    assert_eq!(second.sets.len(), 2);
    assert_eq!(!second.additions.is_empty(), is_patched);
    let one = snapshot(sets(0).into_iter().take(1), &[]);
    assert!(
        !one.inject(&pod, "shop", later).additions.is_empty(),
        "SDF-14"
    );
}

// SDF-14, SCS-82
#[test]
fn a_copy_of_a_pod_that_was_just_injected_is_what_the_sets_say() {
    let all = snapshot([set("a", &json!({}))], &[]);
    let before = pod(&json!({}));
    let injected = all.inject(&before, "shop", now()).additions.apply(&before);
    let mut without = injected.clone();
    without["spec"]["containers"] = before["spec"]["containers"].clone();
    let mut edited = injected.clone();
    edited["spec"]["containers"][0]["image"] = "other:1".into();
    // With all that the set gives, and with more.
    let mut neutralised = injected.clone();
    neutralised["spec"]["containers"][0]["command"] = json!(["sleep", "inf"]);
    let mut upgraded = injected.clone();
    upgraded["metadata"]["annotations"][IN_PLACE_STATE] = "{\"a\":{}}".into();
    for copy in [without, edited, neutralised, upgraded] {
        let additions = all.inject(&copy, "shop", now()).additions;
        assert_eq!(additions.apply(&copy), injected);
    }
    let same = all.inject(&injected, "shop", now());
    assert_eq!(same.additions, Additions::default());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // SCS-21, SCS-82
    #[test]
    fn a_second_review_changes_nothing(sets in prop::collection::btree_set("[a-d]", 0..4), own in "[a-e]") {
        let spec = |name: &str| json!({
            "containers": [{"name": name, "image": "i:1", "shareVolumePolicy": {"type": "enabled"},
                            "transferEnv": [{"sourceContainerName": own, "envName": "E"}]}],
        });
        let sets = sets.iter().map(|name| set(name, &spec(name)));
        let snapshot = snapshot(sets, &[]);
        let mut before = pod(&json!({}));
        before["spec"]["containers"][0]["name"] = own.clone().into();
        let pod = snapshot.inject(&before, "shop", now()).additions.apply(&before);
        prop_assert!(snapshot.inject(&pod, "shop", now()).additions.is_empty());
    }
}

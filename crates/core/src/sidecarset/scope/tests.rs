use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::sidecarset::selection::SetHistory;
use crate::sidecarset::snapshot::{RefusingSet, SnapshotSet};

const COPY: &str = "object.metadata.?annotations[?'kruise.io/sidecarset-hash'].hasValue()";

fn protected() -> Vec<String> {
    ["kube-system", "leadsman-system"]
        .map(str::to_owned)
        .to_vec()
}

fn set(name: &str, policy: &str, spec: &Value) -> SnapshotSet {
    let mut wire = json!({
        "metadata": {"name": name, "annotations": {"sidecarset.leadsman.io/failure-policy": policy}},
        "spec": {"selector": {"matchLabels": {"app": name}}, "containers": [{"name": name, "image": "a:1"}]},
    });
    for (field, value) in spec.as_object().unwrap() {
        wire["spec"][field] = value.clone();
    }
    let set = SidecarSet::parse(&serde_json::from_value(wire).unwrap());
    SnapshotSet {
        set: Arc::new(set.unwrap()),
        history: Arc::new(SetHistory::default()),
        needs: crate::sidecarset::snapshot::SnapshotVersion::default(),
    }
}

fn scope(sets: impl IntoIterator<Item = SnapshotSet>) -> SetScope {
    standing_scope(None, sets)
}

fn standing_scope(
    standing_rule: Option<FailurePolicy>,
    sets: impl IntoIterator<Item = SnapshotSet>,
) -> SetScope {
    let snapshot = Snapshot {
        sets: Arc::new(sets.into_iter().collect()),
        standing_rule,
        ..Snapshot::default()
    };
    SetScope::new(&snapshot, &protected())
}

/// Policy, namespaces and expression of each call; the namespaces as `KEY OPERATOR VALUES`.
fn calls(scope: &SetScope) -> Vec<(FailurePolicy, String, String)> {
    let calls = scope.calls.iter().map(|call| {
        let namespaces = call.namespaces.match_expressions.iter().flatten();
        let namespaces = namespaces.map(|one| {
            let values = one.values.clone().unwrap_or_default().join(",");
            format!("{} {} {values}", one.key, one.operator)
        });
        let namespaces: Vec<_> = namespaces.collect();
        let expression = call.expression.clone().unwrap_or_default();
        (call.failure_policy, namespaces.join("; "), expression)
    });
    calls.collect()
}

fn app(values: &str) -> String {
    format!("object.metadata.?labels[?'app'].orValue('#') in [{values}]")
}

fn ignore(namespaces: &str, expression: &str) -> (FailurePolicy, String, String) {
    let expression = format!("{expression} || {COPY}");
    (FailurePolicy::Ignore, namespaces.to_owned(), expression)
}

fn fail(namespaces: &str, expression: &str) -> (FailurePolicy, String, String) {
    let but_for = "kubernetes.io/metadata.name NotIn kube-system,leadsman-system";
    let namespaces = match namespaces {
        "" => but_for.to_owned(),
        namespaces => format!("{namespaces}; {but_for}"),
    };
    (FailurePolicy::Fail, namespaces, expression.to_owned())
}

// SCS-81, SDF-2
#[test]
fn pods_are_asked_about_by_the_labels_and_namespaces_of_the_sets() {
    assert_eq!(scope([]), SetScope::default());
    let paused = json!({"injectionStrategy": {"paused": true}});
    assert_eq!(scope([set("a", "Ignore", &paused)]), SetScope::default());
    let sets = ["a", "b"].map(|name| set(name, "Ignore", &json!({})));
    assert_eq!(calls(&scope(sets)), [ignore("", &app("'a', 'b'"))]);
    let named = |name, namespace| set(name, "Ignore", &json!({ "namespace": namespace }));
    assert_eq!(
        calls(&scope([named("a", "x"), named("b", "y")])),
        [ignore(
            "kubernetes.io/metadata.name In x,y",
            &format!(
                "request.namespace in ['x'] && ({}) || request.namespace in ['y'] && ({})",
                app("'a'"),
                app("'b'")
            )
        )]
    );
    let everywhere = set("b", "Ignore", &json!({}));
    let within = format!("request.namespace in ['x'] && ({})", app("'a'"));
    assert_eq!(
        calls(&scope([named("a", "x"), everywhere])),
        [ignore("", &format!("{} || {within}", app("'b'")))]
    );
    let selected = |name, tier| {
        let selector = json!({"matchLabels": {"tier": tier}});
        set(name, "Ignore", &json!({ "namespaceSelector": selector }))
    };
    assert_eq!(
        calls(&scope([
            selected("a", "1"),
            selected("b", "1"),
            selected("c", "2")
        ])),
        [
            ignore("tier In 1", &app("'a', 'b'")),
            ignore("tier In 2", &app("'c'"))
        ]
    );
}

// SCS-81, SDF-2, SDF-53
#[test]
fn a_set_that_asks_for_it_refuses_only_its_pods_and_none_of_the_system() {
    let own = "kubernetes.io/metadata.name In kube-system,leadsman-system";
    let in_own = "request.namespace in ['kube-system', 'leadsman-system']";
    let tier = json!({"namespaceSelector": {"matchLabels": {"tier": "1"}}});
    let named = |name: &str| json!({ "namespace": name });
    let found = |spec| calls(&scope([set("a", "Fail", &spec)]));
    let in_own = format!("{in_own} && ({})", app("'a'"));
    assert_eq!(
        found(json!({})),
        [fail("", &app("'a'")), ignore(own, &in_own)]
    );
    assert_eq!(
        found(tier),
        [fail("tier In 1", &app("'a'")), ignore("tier In 1", &in_own)]
    );
    let in_x = format!("request.namespace in ['x'] && ({})", app("'a'"));
    assert_eq!(
        found(named("x")),
        [fail("kubernetes.io/metadata.name In x", &in_x)]
    );
    let two = scope([set("a", "Fail", &json!({})), set("b", "Ignore", &json!({}))]);
    let expression = format!("{} || {in_own}", app("'b'"));
    assert_eq!(
        calls(&two),
        [fail("", &app("'a'")), ignore("", &expression)]
    );
}

// SDF-61, SDF-53
#[rstest]
#[case(FailurePolicy::Fail)]
#[case(FailurePolicy::Ignore)]
fn a_standing_rule_is_for_all_pods_but_those_of_the_system(#[case] policy: FailurePolicy) {
    let but_for = "kubernetes.io/metadata.name NotIn kube-system,leadsman-system";
    let standing = (policy, but_for.to_owned(), String::new());
    let found = |sets| calls(&standing_scope(Some(policy), sets));
    assert_eq!(found(Vec::new()), vec![standing.clone()]);
    // In the others a pod is asked about as without it, and never refused.
    let own = "kubernetes.io/metadata.name In kube-system,leadsman-system";
    let in_own = "request.namespace in ['kube-system', 'leadsman-system']";
    let lenient = set("a", "Ignore", &json!({}));
    let in_own = |app_in: &str| format!("{in_own} && ({})", app(app_in));
    let expected = [standing.clone(), ignore(own, &in_own("'a'"))];
    assert_eq!(found(vec![lenient]), expected);
    let elsewhere = set("a", "Ignore", &json!({"namespace": "shop"}));
    assert_eq!(found(vec![elsewhere]), vec![standing.clone()]);
    // One that asks for it keeps its call, which tells its namespaces, and refuses without an answer.
    let tier = json!({"namespaceSelector": {"matchLabels": {"tier": "1"}}});
    let strict = set("b", "Fail", &tier);
    let expected = [
        standing,
        fail("tier In 1", &app("'b'")),
        ignore("tier In 1", &in_own("'b'")),
    ];
    assert_eq!(found(vec![strict]), expected);
}

// SCS-81
#[rstest]
#[case::short(100, 1, false, true)]
#[case::one_label_is_short_enough(150, 3, true, true)]
#[case::nothing_is_short_enough(2000, 1, true, false)]
fn what_does_not_fit_is_asked_more_widely_and_refuses_nobody(
    #[case] sets: usize,
    #[case] labels: usize,
    #[case] is_widened: bool,
    #[case] has_expression: bool,
) {
    for policy in ["Ignore", "Fail"] {
        let sets = (0..sets).map(|number| {
            let labels = (0..labels).map(|label| {
                let value = format!("some-{number:04}").into();
                (format!("label-{label}"), value)
            });
            let labels: serde_json::Map<String, Value> = labels.collect();
            let spec = json!({"selector": {"matchLabels": labels}});
            set(&format!("set-{number:04}"), policy, &spec)
        });
        let sets: Vec<_> = sets.collect();
        let found = scope(sets.clone());
        assert_eq!(found.is_widened, is_widened);
        let last = found.calls.last().unwrap();
        assert_eq!(last.expression.is_some(), has_expression);
        let limit = SetScope::EXPRESSION_BYTES;
        let expressions = found
            .calls
            .iter()
            .filter_map(|call| call.expression.as_ref());
        for expression in expressions {
            assert!(expression.len() <= limit, "{}", expression.len());
        }
        let fails = policy == "Fail" && !is_widened;
        let refused = |call: &ScopeCall| call.failure_policy == FailurePolicy::Fail;
        assert_eq!(found.calls.iter().any(refused), fails);
        let expected = if policy == "Fail" && !fails {
            sets.len()
        } else {
            0
        };
        assert_eq!(found.not_failing.len(), expected);
    }
}

// SCS-81
#[test]
fn namespaces_of_many_selectors_are_asked_about_together() {
    for policy in ["Ignore", "Fail"] {
        let sets = (0..=SetScope::CALLS).map(|number| {
            let selector = json!({"matchLabels": {"tier": number.to_string()}});
            let spec = json!({"namespaceSelector": selector});
            set(&format!("s{number}"), policy, &spec)
        });
        let found = scope(sets);
        let last = found.calls.last().unwrap();
        assert_eq!(last.failure_policy, FailurePolicy::Ignore);
        assert!(found.is_widened);
        let fails = |call: &&ScopeCall| call.failure_policy == FailurePolicy::Fail;
        let failing = found.calls.iter().filter(fails).count();
        let expected = if policy == "Fail" { SetScope::CALLS } else { 0 };
        assert_eq!(failing, expected);
        assert_eq!(found.not_failing.len(), usize::from(policy == "Fail"));
    }
}

// SCS-81, SDF-61
#[test]
fn a_scope_is_that_of_its_sets_and_of_those_that_refuse_pods() {
    let valid = |name| Arc::new(vec![set(name, "Fail", &json!({}))]);
    let invalid = |name| {
        let SnapshotSet { set, needs, .. } = set(name, "Fail", &json!({}));
        let errors = Arc::default();
        Arc::new(vec![RefusingSet { set, errors, needs }])
    };
    let known = Snapshot {
        sets: valid("a"),
        refusing: invalid("b"),
        ..Snapshot::default()
    };
    let mut other = known.clone();
    other.sets = valid("a");
    other.refusing = invalid("b");
    assert!(SetScope::is_same(&known, &other));
    let changes: [fn(&mut Snapshot); 4] = [
        |snapshot| snapshot.sets = Arc::default(),
        |snapshot| snapshot.sets = Arc::new(vec![set("c", "Fail", &json!({}))]),
        // A set that refused its pods was deleted: they are created again.
        |snapshot| snapshot.refusing = Arc::default(),
        |snapshot| snapshot.standing_rule = Some(FailurePolicy::Ignore),
    ];
    for change in changes {
        let mut other = known.clone();
        change(&mut other);
        assert!(!SetScope::is_same(&known, &other), "{other:?}");
    }
}

//! What a pod that is created gets, and why it lacks something.

use super::*;

// SCS-5
#[rstest]
#[case(json!({}), json!({}), &[])]
#[case(json!({"injectionStrategy": {"paused": true}}), json!({}), &["its injection is paused"])]
#[case(json!({}), json!({"/metadata/labels": {"app": "wbe"}}), &["app=web: app=wbe"])]
#[case(json!({}), json!({"/metadata/labels": {"ap": "web"}}), &["app=web: no label app, but ap"])]
#[case(json!({"namespace": "other"}), json!({}), &["it is for pods of namespace other"])]
#[case(json!({"namespaceSelector": {"matchLabels": {"tier": "tin"}}}), json!({}), &["tier=tin: tier=gold"])]
#[case(json!({}), json!({"/metadata/annotations": {"kubernetes.io/config.mirror": "x"}}), &["the pod is static"])]
#[case(
    json!({"namespace": "other", "injectionStrategy": {"paused": true}}),
    json!({"/metadata/labels": {}}),
    &["its injection is paused", "app=web: no label app", "it is for pods of namespace other"]
)]
fn a_set_that_gives_nothing_says_everything_that_is_in_the_way(
    #[case] spec: Value,
    #[case] change: Value,
    #[case] expected: &[&str],
) {
    let set = parse("log", DAY, &spec);
    let pod = pod(&change);
    let new_pod = NewPod::new(&pod, "shop");
    let labels = gold();
    let found = NotSelected::find(&set, &new_pod, Some(&labels));
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        let failing = found.terms().iter().find(|term| !term.holds);
        let text = match failing {
            Some(term) => format!("{}: {}", term.term, term.found),
            None => found.to_string(),
        };
        assert!(text.starts_with(expected), "{text}");
    }
    // The words follow from the rule.
    let history = SetHistory::new(&set, Vec::new(), None);
    let whitelist = Whitelist::default();
    let allowed = whitelist.allowed_keys(|_| None, true);
    let label = |key: &str| labels.get(key).map(String::as_str);
    let is_offered = offer(&set, &history, allowed, &new_pod, Some(label)).is_ok();
    assert_eq!(is_offered, expected.is_empty());
}

// SCS-5
#[test]
fn a_namespace_whose_labels_are_not_known_is_said_to_be_unknown() {
    let selector = json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}});
    let set = parse("log", DAY, &selector);
    let sets = known(vec![set]);
    let report = reported(&sets, &pod(&json!({})));
    let SetOutcome::NotSelected { causes } = &report.sets[0].outcome else {
        panic!("{report:?}")
    };
    let words =
        "it is for namespaces with labels tier=gold, and those of namespace shop are not known";
    assert_eq!(causes[0].to_string(), words);
    let mut sets = sets;
    sets.namespaces.insert("shop".to_owned(), gold());
    let report = reported(&sets, &pod(&json!({})));
    assert!(report.sets[0].outcome.is_injected());
}

// SDF-4, SDF-19
#[test]
fn each_set_says_what_becomes_of_it() {
    let older = parse(
        "z-older",
        DAY,
        &json!({"containers": [{"name": "same", "image": "i"}]}),
    );
    let newer = parse(
        "a-newer",
        "2026-01-02T00:00:00Z",
        &json!({"containers": [{"name": "same", "image": "i"}]}),
    );
    let own = parse(
        "own",
        DAY,
        &json!({"containers": [{"name": "main", "image": "i"}]}),
    );
    let other = parse(
        "other",
        DAY,
        &json!({"injectionStrategy": {"paused": true}}),
    );
    let mut sets = known(vec![older, newer, own, other]);
    sets.invalid.push(InvalidSet {
        name: "bad".to_owned(),
        errors: vec!["spec.selector: must not be empty".to_owned()],
    });
    let report = reported(&sets, &pod(&json!({})));
    let outcomes = report.sets.iter().map(|report| {
        let outcome = match &report.outcome {
            SetOutcome::Injected { revision } => {
                assert!(revision.starts_with("z-older-"), "{revision}");
                "injected"
            }
            SetOutcome::LeftOut { .. } => "left out",
            SetOutcome::NotSelected { .. } => "not selected",
            SetOutcome::Invalid { .. } => "invalid",
        };
        (report.set.as_str(), outcome, report.remarks.len())
    });
    let expected = [
        ("a-newer", "left out", 1),
        ("bad", "invalid", 0),
        ("other", "not selected", 0),
        ("own", "left out", 1),
        ("z-older", "injected", 0),
    ];
    assert_eq!(outcomes.collect::<Vec<_>>(), expected);
    assert!(report.sets[0].remarks[0].contains("\"z-older\", which is older"));
    let containers = report.pod["spec"]["containers"].as_array().unwrap();
    let names = containers.iter().map(|container| &container["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["same", "main"]);
}

// SDF-17
#[test]
fn an_annotation_that_no_rule_allows_is_told_where_the_list_is_known() {
    let patch = json!({"patchPodMetadata": [{"annotations": {"k": "v"}}]});
    let mut sets = known(vec![parse("log", DAY, &patch)]);
    let remarks = |sets: &KnownSets| reported(sets, &pod(&json!({}))).sets[0].remarks.len();
    assert_eq!(remarks(&sets), 0);
    sets.whitelist = Some(Whitelist::default());
    assert_eq!(remarks(&sets), 1);
    sets.is_allowed_without_rules = true;
    assert_eq!(remarks(&sets), 0);
}

// SDF-1
#[test]
fn a_revision_that_is_gone_is_remarked() {
    let pin = json!({"injectionStrategy": {"revision": {"revisionName": "log-1"}}});
    let sets = known(vec![parse("log", DAY, &pin)]);
    let report = reported(&sets, &pod(&json!({})));
    let newest: Arc<str> = sets.valid[0].history.newest.clone();
    let revision = newest.to_string();
    assert_eq!(report.sets[0].outcome, SetOutcome::Injected { revision });
    assert!(report.sets[0].remarks[0].contains("no revision with the name \"log-1\""));
}

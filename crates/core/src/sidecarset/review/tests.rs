//! What is refused when a set is written, and what is not.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::sidecarset::metadata::Whitelist;
use crate::sidecarset::selection::SetHistory;
use crate::sidecarset::set::{
    FAILURE_POLICY_ANNOTATION, FailurePolicy, MIN_READY_SECONDS_ANNOTATION,
};
use crate::sidecarset::snapshot::{SnapshotSet, SnapshotVersion};

const NEW_REVISION: &str = "log-new";

/// The object with these fields in it or, where they are null, without them.
fn with(mut object: Value, over: &Value) -> Value {
    for (key, value) in over.as_object().unwrap() {
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(key)),
            Value::Object(_) => {
                let part = object.get(key).cloned().unwrap_or_else(|| json!({}));
                object[key] = with(part, value);
            }
            value => object[key] = value.clone(),
        }
    }
    object
}

fn wire(over: &Value) -> SidecarSetWire {
    let set = json!({
        "metadata": {"name": "log", "uid": "u-log", "creationTimestamp": "2026-01-02T00:00:00Z"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": "log", "image": "log:1"}],
        },
        "status": {"matchedPods": 3},
    });
    serde_json::from_value(with(set, over)).unwrap()
}

/// Another set, which is older than the one that is written.
fn older(spec: &Value) -> SnapshotSet {
    let set = json!({
        "metadata": {"name": "old", "uid": "u-old", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": with(json!({
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": "old", "image": "old:1"}],
        }), spec),
    });
    snapshot_set(&serde_json::from_value(set).unwrap())
}

fn snapshot_set(wire: &SidecarSetWire) -> SnapshotSet {
    let set = SidecarSet::parse(wire).unwrap();
    SnapshotSet {
        history: SetHistory::new(&set, Vec::new(), None).into(),
        set: set.into(),
        needs: SnapshotVersion::default(),
    }
}

/// A cluster with another set, revisions of both sets, and a list of annotations.
fn cluster(spec_of_other: &Value) -> Snapshot {
    let list = json!({"rules": [{"allowedAnnotationKeyExprs": ["^allowed/"]}]});
    let owner = |uid: &str, set: &str, version: Option<&str>| RevisionOwner {
        uid: Some(uid.into()),
        set: Some(set.into()),
        custom_version: version.map(Arc::from),
    };
    let revisions = [
        ("log-1".into(), owner("u-log", "log", Some("v1"))),
        ("old-1".into(), owner("u-old", "old", Some("v9"))),
    ];
    Snapshot {
        sets: Arc::new(vec![older(spec_of_other)]),
        whitelist: Whitelist::read(&list.to_string()).0.into(),
        revisions: Arc::new(revisions.into()),
        own_namespace: "leadsman-system".into(),
        ..Snapshot::default()
    }
}

fn alone() -> Snapshot {
    cluster(&json!({}))
}

fn paths(judgement: &Judgement) -> Vec<&str> {
    let errors = judgement.errors.iter();
    errors.map(|error| error.path.as_str()).collect()
}

const PIN: &str = "spec.injectionStrategy.revision.revisionName";

fn pin(revision: &Value) -> Value {
    json!({"spec": {"injectionStrategy": {"revision": revision}}})
}

fn patch(policy: &str, annotations: &Value) -> Value {
    json!({"spec": {"patchPodMetadata": [{"patchPolicy": policy, "annotations": annotations}]}})
}

fn hot(kind: &str) -> Value {
    let strategy = json!({"upgradeType": kind, "hotUpgradeEmptyImage": "empty:1"});
    json!({"spec": {"containers": [{"name": "log", "image": "log:1", "upgradeStrategy": strategy}]}})
}

// SDF-62
#[test]
fn who_makes_a_set_is_told_what_to_wait_for_unless_a_standing_rule_calls_for_all_pods() {
    let set = wire(&json!({}));
    let long = wire(&json!({"metadata": {"name": "l".repeat(63)}}));
    let paused = wire(&json!({"spec": {"injectionStrategy": {"paused": true}}}));
    let other_image = json!({"spec": {"containers": [{"name": "log", "image": "log:2"}]}});
    let warnings = |after: &SidecarSetWire, before: Option<&SidecarSetWire>, standing_rule| {
        let known = Snapshot {
            standing_rule,
            ..alone()
        };
        judge(after, before, &known).warnings
    };
    let [warning] = &warnings(&long, None, None)[..] else {
        panic!("not one warning")
    };
    let command = format!(
        "`kubectl wait --for=condition=Ready sidecarset/{}`",
        "l".repeat(63)
    );
    assert!(
        warning.contains(&command) && warning.len() <= 256,
        "{warning}"
    );
    for (after, before, standing_rule) in [
        (&set, None, Some(FailurePolicy::Ignore)),
        (&set, None, Some(FailurePolicy::Fail)),
        (&paused, None, None),
        (&wire(&other_image), Some(&set), None),
    ] {
        assert_eq!(warnings(after, before, standing_rule), [] as [&str; 0]);
    }
}

// SCS-70, SCS-73, SCS-74, SCS-78, SDF-17, SDF-18, SDF-24, SDF-26
#[rstest]
#[case::nothing(json!({}), json!({}), &[])]
#[case::not_json(patch("MergePatchJson", &json!({"allowed/a": "{"})), json!({}), &["spec.patchPodMetadata[0].annotations[allowed/a]"])]
#[case::amount(json!({"spec": {"containers": [{"name": "log", "image": "log:1", "resources": {"limits": {"cpu": "much"}}}]}}), json!({}), &["spec.containers[0].resources.limits[cpu]"])]
#[case::policy(json!({"metadata": {"annotations": {FAILURE_POLICY_ANNOTATION: "Never"}}}), json!({}), &["metadata.annotations[sidecarset.leadsman.io/failure-policy]"])]
#[case::min_ready(json!({"metadata": {"annotations": {MIN_READY_SECONDS_ANNOTATION: "10s"}}}), json!({}), &["metadata.annotations[sidecarset.leadsman.io/min-ready-seconds]"])]
#[case::not_listed(patch("Retain", &json!({"allowed/a": "1", "other/b": "1"})), json!({}), &["spec.patchPodMetadata[0].annotations[other/b]"])]
#[case::container(json!({}), json!({"containers": [{"name": "log", "image": "x:1"}]}), &["spec.containers[0].name"])]
#[case::init(json!({}), json!({"containers": null, "initContainers": [{"name": "log", "image": "x:1"}]}), &["spec.containers[0].name"])]
#[case::volume(json!({"spec": {"volumes": [{"name": "v"}]}}), json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), &["spec.volumes[0]"])]
#[case::annotation(patch("Overwrite", &json!({"allowed/a": "1"})), json!({"patchPodMetadata": [{"patchPolicy": "Overwrite", "annotations": {"allowed/a": "2"}}]}), &["spec.patchPodMetadata[0].annotations[allowed/a]"])]
#[case::host_port(json!({"spec": {"containers": [
        {"name": "log", "image": "log:1", "ports": [{"containerPort": 1, "hostPort": 79}]},
        {"name": "mesh", "image": "m:1", "ports": [{"containerPort": 1, "hostPort": 80}]}]}}),
    json!({"containers": [{"name": "x", "image": "x:1", "ports": [{"containerPort": 2, "hostPort": 80}]}]}), &["spec.containers[1].ports"])]
#[case::other_pods(json!({}), json!({"selector": {"matchLabels": {"app": "other"}}, "containers": [{"name": "log", "image": "x:1"}]}), &[])]
#[case::perhaps_the_same(json!({}), json!({"selector": {"matchLabels": {"tier": "1"}}, "containers": [{"name": "log", "image": "x:1"}]}), &["spec.containers[0].name"])]
#[case::other_namespaces(json!({"spec": {"namespace": "a"}}), json!({"namespace": "b", "containers": [{"name": "log", "image": "x:1"}]}), &[])]
#[case::own_revision(pin(&json!({"revisionName": "log-1"})), json!({}), &[])]
#[case::own_version(pin(&json!({"customVersion": "v1"})), json!({}), &[])]
#[case::no_revision(pin(&json!({"revisionName": NEW_REVISION})), json!({}), &[PIN])]
#[case::version_of_another(pin(&json!({"customVersion": "v9"})), json!({}), &["spec.injectionStrategy.revision.customVersion"])]
#[case::revision_of_another(pin(&json!({"revisionName": "old-1"})), json!({}), &[PIN])]
#[case::becomes_hot(hot("HotUpgrade"), json!({}), &["spec.containers[0].upgradeStrategy.upgradeType"])]
#[case::is_said_to_be_cold(hot("ColdUpgrade"), json!({}), &[])]
fn an_edit_is_refused_for_what_it_makes_wrong(
    #[case] edit: Value,
    #[case] spec_of_other: Value,
    #[case] expected: &[&str],
) {
    let known = cluster(&spec_of_other);
    let before = wire(
        &json!({"spec": {"containers": null, "initContainers": [{"name": "i", "image": "i:1"}]}}),
    );
    // Of a container that stays, it matters what it was.
    let before = if expected.iter().any(|path| path.ends_with("upgradeType")) {
        wire(&json!({}))
    } else {
        before
    };
    let judgement = judge(&wire(&edit), Some(&before), &known);
    assert_eq!(paths(&judgement), expected, "{judgement:#?}");
}

// SDF-28, SCS-75
#[test]
fn all_that_is_wrong_comes_at_once() {
    let edit = json!({"spec": {
        "containers": [
            {"name": "log", "image": "log:1", "resources": {"limits": {"cpu": "much"}}},
            {"name": "mesh", "image": "", "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e:1"}},
        ],
        "patchPodMetadata": [
            {"patchPolicy": "MergePatchJson", "annotations": {"allowed/a": "{"}},
            {"annotations": {"other/b": "1"}},
        ],
        "injectionStrategy": {"revision": {"revisionName": "old-1"}},
    }});
    let before = wire(&json!({"spec": {"containers": [{"name": "mesh", "image": "m:1"}]}}));
    let known = cluster(&json!({"containers": [{"name": "mesh-1", "image": "x:1"}]}));
    let expected = [
        "spec.containers[0].resources.limits[cpu]",
        "spec.containers[1].image",
        "spec.patchPodMetadata[0].annotations[allowed/a]",
        "spec.containers[1].name",
        PIN,
        "spec.patchPodMetadata[1].annotations[other/b]",
        "spec.containers[1].upgradeStrategy.upgradeType",
    ];
    let judgement = judge(&wire(&edit), Some(&before), &known);
    assert_eq!(paths(&judgement), expected, "{judgement:#?}");
    assert!(judgement.depends_on_others);
}

// SDF-18
#[test]
fn a_selector_that_cannot_be_read_conflicts_with_nobody() {
    let edit = json!({"spec": {"selector": {"matchLabels": null}}});
    let known = cluster(&json!({"containers": [{"name": "log", "image": "x:1"}]}));
    let judgement = judge(&wire(&edit), None, &known);
    assert_eq!(paths(&judgement), ["spec.selector"], "{judgement:#?}");
    assert!(!judgement.depends_on_others);
}

// SCS-78, SDF-19
#[test]
fn a_conflict_says_which_of_the_two_wins() {
    let known = cluster(&json!({"containers": [{"name": "log", "image": "x:1"}]}));
    let message = |created: &str| {
        let over = json!({"metadata": {"creationTimestamp": created}});
        judge(&wire(&over), None, &known).errors.remove(0).message
    };
    let loses = message("2026-01-02T00:00:00Z");
    assert!(
        loses.contains("SidecarSet old is older") && loses.contains("container \"log\""),
        "{loses}"
    );
    let wins = message("2025-01-02T00:00:00Z");
    assert!(
        wins.contains("get this one, which is older, and no longer old"),
        "{wins}"
    );
}

// SCS-73
#[test]
fn a_new_set_may_be_pinned_to_a_revision_that_is_not_there() {
    let restored = |revision: &str| {
        judge(
            &wire(&pin(&json!({"revisionName": revision}))),
            None,
            &alone(),
        )
    };
    let missing = restored(NEW_REVISION);
    assert_eq!(paths(&missing), [] as [&str; 0]);
    assert!(
        missing.warnings[0].contains("which this set does not have"),
        "{missing:?}"
    );
    assert_eq!(paths(&restored("old-1")), [PIN]);
}

// SCS-73
#[test]
fn what_a_set_was_until_now_is_a_revision_before_that_is_seen() {
    let before = wire(&json!({"spec": {"customVersion": "v2"}}));
    let (parsed, _) = SidecarSet::read(&before);
    let hash = revision_hash(&parsed.template.revision_data(), 0);
    let name = revision_name("log", &hash);
    for revision in [
        json!({"revisionName": name}),
        json!({"customVersion": "v2"}),
    ] {
        let edit = with(
            json!({"spec": {"containers": [{"name": "log", "image": "log:2"}], "customVersion": "v3"}}),
            &pin(&revision),
        );
        let judgement = judge(&wire(&edit), Some(&before), &alone());
        assert_eq!(paths(&judgement), [] as [&str; 0], "{revision}");
    }
}

/// A set that has everything wrong that can be.
fn wrong() -> Value {
    json!({"spec": {
        "containers": [{"name": "old", "image": "log:1", "resources": {"limits": {"cpu": "much"}}}],
        "injectionStrategy": {"revision": {"revisionName": NEW_REVISION}},
        "patchPodMetadata": [{"annotations": {"other/b": "1"}}],
    }})
}

// SCS-75, SDF-54
#[rstest]
#[case::labels(json!({"metadata": {"labels": {"a": "b"}}}))]
#[case::annotations(json!({"metadata": {"annotations": {"kruise.io/sidecarset-hash": "x"}}}))]
#[case::finalizers(json!({"metadata": {"finalizers": ["a/b"]}}))]
#[case::status(json!({"status": {"matchedPods": 7}}))]
#[case::deletion(json!({"metadata": {"deletionTimestamp": "2026-01-03T00:00:00Z"}, "spec": {"containers": [{"name": "old", "image": ""}]}}))]
fn an_edit_that_says_nothing_else_about_pods_is_never_refused(#[case] edit: Value) {
    let before = wire(&wrong());
    let after = wire(&with(wrong(), &edit));
    assert_eq!(judge(&after, Some(&before), &alone()), Judgement::default());
}

// SCS-75
#[test]
fn what_was_wrong_before_is_a_warning_and_what_is_new_is_refused() {
    let before = wire(&wrong());
    // The containers move, and with them what is wrong with one of them.
    let edit = json!({"spec": {"containers": [
        {"name": "first", "image": "first:1"},
        {"name": "old", "image": "log:1", "resources": {"limits": {"cpu": "much"}}},
    ]}});
    let judgement = judge(&wire(&with(wrong(), &edit)), Some(&before), &alone());
    assert_eq!(paths(&judgement), [] as [&str; 0], "{judgement:#?}");
    let warned = [
        "spec.containers[1].resources",
        "spec.containers[1].name",
        "revisionName",
        "other/b",
    ];
    for path in warned {
        assert!(
            judgement.warnings.iter().any(|text| text.contains(path)),
            "{path}: {judgement:#?}"
        );
    }
    let edit = json!({"spec": {"containers": [
        {"name": "old", "image": "log:1", "resources": {"limits": {"cpu": "much"}}},
        {"name": "more", "image": "log:1", "resources": {"limits": {"cpu": "much"}}},
    ]}});
    let judgement = judge(&wire(&with(wrong(), &edit)), Some(&before), &alone());
    assert_eq!(
        paths(&judgement),
        ["spec.containers[1].resources.limits[cpu]"],
        "{judgement:#?}"
    );
    // The same elsewhere is new, whatever has been mended.
    let edit = json!({"spec": {
        "containers": [{"name": "old", "image": "log:1"}],
        "initContainers": [{"name": "more", "image": "log:1", "resources": {"limits": {"cpu": "much"}}}],
    }});
    let judgement = judge(&wire(&with(wrong(), &edit)), Some(&before), &alone());
    assert_eq!(
        paths(&judgement),
        ["spec.initContainers[0].resources.limits[cpu]"],
        "{judgement:#?}"
    );
}

// SCS-78
#[test]
fn a_set_is_in_no_conflict_with_what_it_was() {
    let before = wire(&json!({}));
    let mut known = alone();
    known.sets = vec![older(&json!({})), snapshot_set(&before)].into();
    let edit = json!({"spec": {"containers": [{"name": "log", "image": "log:2"}]}});
    for before in [Some(&before), None] {
        let judgement = judge(&wire(&edit), before, &known);
        assert_eq!(judgement.errors, []);
        assert!(!judgement.depends_on_others);
        // A new one is told of its pods, and of no other set.
        let warnings = &judgement.warnings;
        assert!(
            warnings.iter().all(|text| text.contains("sidecarset/log`")),
            "{warnings:?}"
        );
        assert_eq!(warnings.len(), usize::from(before.is_none()));
    }
}

// SCS-47, SDF-33
#[rstest]
#[case::image(json!({"containers": [{"name": "log", "image": "log:2"}]}), None)]
#[case::pull_policy(json!({"containers": [{"name": "log", "image": "log"}]}), None)]
#[case::metadata(json!({"patchPodMetadata": [{"annotations": {"allowed/a": "1"}}]}), None)]
#[case::env(json!({"containers": [{"name": "log", "image": "log:2", "env": [{"name": "A"}]}]}), Some("first in containers[log].env: 3 pods"))]
#[case::added(json!({"containers": [{"name": "log", "image": "log:1"}, {"name": "b", "image": "b:1"}]}), Some("first in containers[b]: 3 pods"))]
#[case::never_upgraded(json!({"containers": [{"name": "log", "image": "log:2", "env": [{"name": "A"}]}], "updateStrategy": {"type": "NotUpdate"}}), None)]
fn an_edit_that_leaves_pods_behind_says_so(#[case] spec: Value, #[case] expected: Option<&str>) {
    let judgement = judge(
        &wire(&json!({"spec": spec})),
        Some(&wire(&json!({}))),
        &alone(),
    );
    assert_eq!(judgement.errors, []);
    match expected {
        None => assert_eq!(judgement.warnings, [] as [&str; 0]),
        Some(text) => assert!(judgement.warnings[0].contains(text), "{judgement:?}"),
    }
}

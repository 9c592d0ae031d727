//! The answers, on generated sets and pods.

use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::sidecarset::annotations::HASH;
use crate::sidecarset::recorded;
use crate::sidecarset::render::RenderOptions;
use crate::sidecarset::revision::{SetRevision, create};
use crate::sidecarset::selection::{NewPod, offer};
use crate::workload::JsonObject;

fn parse(name: &str, created: &str, spec: &Value) -> SidecarSet {
    let mut wire = json!({
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": name, "image": "i:1"}],
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        wire["spec"][field] = value.clone();
    }
    SidecarSet::parse(&serde_json::from_value(wire).unwrap()).unwrap()
}

fn known(sets: Vec<SidecarSet>) -> KnownSets {
    let valid = sets.into_iter().map(|set| KnownSet {
        history: SetHistory::new(&set, Vec::new(), None),
        set,
    });
    KnownSets {
        valid: valid.collect(),
        ..KnownSets::default()
    }
}

fn pod(change: &Value) -> JsonObject {
    let mut pod = json!({
        "metadata": {"name": "w", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "m"}]},
    });
    for (pointer, value) in change.as_object().unwrap() {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    pod.as_object().unwrap().clone()
}

fn reported(sets: &KnownSets, pod: &JsonObject) -> InjectionReport {
    let now = "2026-11-22T01:58:33Z".parse().unwrap();
    report(pod, "shop", sets, RenderOptions::default(), now)
}

fn gold() -> Labels {
    Labels::from([("tier".to_owned(), "gold".to_owned())])
}

const DAY: &str = "2026-01-01T00:00:00Z";

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
            SetOutcome::LeftOut => "left out",
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

/// A pod that was injected by these sets, as the API server shows it.
fn created(sets: &KnownSets, change: &Value) -> PodObject {
    let report = reported(sets, &pod(change));
    let mut object = report.pod;
    object["metadata"]["namespace"] = json!("shop");
    // Among what others add: the token's mount, a variable, defaults that a set leaves out.
    for container in object["spec"]["containers"].as_array_mut().unwrap() {
        let mounts = json!([{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]);
        let field = container.as_object_mut().unwrap();
        let field = field.entry("volumeMounts").or_insert_with(|| json!([]));
        let own = field.as_array_mut().unwrap();
        own.extend(mounts.as_array().unwrap().clone());
        let env = container.as_object_mut().unwrap();
        let env = env.entry("env").or_insert_with(|| json!([]));
        env.as_array_mut()
            .unwrap()
            .push(json!({"name": "ADDED", "value": "by another webhook"}));
    }
    PodObject::read(object.into()).unwrap()
}

fn differences(sets: &KnownSets, pod: &PodObject) -> Vec<String> {
    let now = "2026-11-22T01:58:33Z".parse().unwrap();
    let found = sets.valid[0].differences(pod, sets, now);
    let found = found.into_iter().map(|one| {
        let value = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        format!(
            "{}: {} > {}",
            one.field,
            value(one.has),
            value(one.would_get)
        )
    });
    found.collect()
}

// SDF-41
#[test]
fn a_recorded_pod_differs_in_nothing_from_the_set_that_it_was_injected_by() {
    for (sets, pods) in [
        ("01-sidecarset-stored", "03-pod-injected"),
        ("10-native-sidecar", "10-native-sidecar"),
        ("13-pod-of-several-sets", "13-pod-of-several-sets"),
    ] {
        let sets = recorded::documents(sets).into_iter();
        let sets = sets.filter(|object| object["kind"] == "SidecarSet");
        let pods = recorded::documents(pods).into_iter();
        let pods: Vec<_> = pods.filter(|object| object["kind"] == "Pod").collect();
        assert!(!pods.is_empty());
        for set in sets {
            let set = SidecarSet::parse(&serde_json::from_value(set).unwrap()).unwrap();
            let name = set.name.clone();
            let sets = known(vec![set]);
            for pod in &pods {
                let pod = PodObject::read(pod.clone()).unwrap();
                if pod.sets().contains(&*name) {
                    assert_eq!(differences(&sets, &pod), [""; 0], "{name}");
                }
            }
        }
    }
}

fn with_revision(mut sets: KnownSets, former: &SidecarSet, pod: &mut PodObject) -> KnownSets {
    let meta = serde_json::from_value(json!({"name": former.name.to_string()})).unwrap();
    let created = create(former, &meta, "d", ("log-former", "former", 1));
    let meta = serde_json::from_value(created["metadata"].clone()).unwrap();
    let revision = SetRevision::read(&meta, 1, &created["data"]).unwrap();
    sets.valid[0].history.revisions.push(revision);
    let annotations = pod.object["metadata"]["annotations"]
        .as_object_mut()
        .unwrap();
    let hash = annotations.get_mut(HASH).unwrap();
    let newest = known(vec![former.clone()]).valid[0]
        .history
        .newest
        .to_string();
    *hash = hash.as_str().unwrap().replace(&newest, "log-former").into();
    *pod = PodObject::read(pod.object.clone().into()).unwrap();
    sets
}

/// A set with a bit of everything, and what becomes of a pod of it with an edit.
fn edited(edit: &Value) -> Vec<String> {
    let spec = json!({
        "containers": [{"name": "log", "image": "i:1", "env": [{"name": "LEVEL", "value": "info"}],
            "resources": {"limits": {"cpu": "1000m"}},
            "volumeMounts": [{"name": "logs", "mountPath": "/logs"}]}],
        "volumes": [{"name": "logs", "emptyDir": {}}],
        "patchPodMetadata": [{"patchPolicy": "Overwrite", "annotations": {"team": "a"}}],
    });
    let former = parse("log", DAY, &spec);
    let mut pod = created(&known(vec![former.clone()]), &json!({}));
    let mut spec = spec;
    for (pointer, value) in edit.as_object().unwrap() {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        let parent = spec.pointer_mut(parent).unwrap();
        match field.parse::<usize>() {
            Ok(_) => parent.as_array_mut().unwrap().push(value.clone()),
            Err(_) => parent[field] = value.clone(),
        }
    }
    let sets = known(vec![parse("log", DAY, &spec)]);
    let sets = with_revision(sets, &former, &mut pod);
    differences(&sets, &pod)
}

// SDF-41
#[rstest]
#[case(json!({}), &[])]
#[case(json!({"/containers/0/image": "i:2"}), &[r#"containers[log].image: "i:1" > "i:2""#])]
#[case(json!({"/containers/0/env": [{"name": "LEVEL", "value": "debug"}]}), &[r#"containers[log].env[LEVEL].value: "info" > "debug""#])]
#[case(json!({"/containers/0/env": []}), &[r#"containers[log].env[LEVEL]: {"name":"LEVEL","value":"info"} > -"#])]
#[case(json!({"/containers/0/resources": {"limits": {"cpu": "1"}}}), &[])]
#[case(json!({"/containers/0/resources": {"limits": {"cpu": "2"}}}), &[r#"containers[log].resources.limits.cpu: "1" > "2""#])]
#[case(json!({"/containers/0/command": ["run"]}), &[r#"containers[log].command: - > ["run"]"#])]
#[case(json!({"/volumes": [{"name": "logs", "hostPath": {"path": "/l"}}]}), &["volumes[logs]: - > -"])]
#[case(json!({"/patchPodMetadata/0/annotations": {"team": "b"}}), &[r#"annotations[team]: "a" > "b""#])]
#[case(json!({"/imagePullSecrets": [{"name": "s"}]}), &[r#"imagePullSecrets[s]: - > {"name":"s"}"#])]
fn what_a_re_creation_would_change_is_told_field_by_field(
    #[case] edit: Value,
    #[case] expected: &[&str],
) {
    assert_eq!(edited(&edit), expected);
}

// SDF-23, SDF-41
#[test]
fn a_container_that_came_or_went_is_a_difference() {
    let came = edited(&json!({"/containers/1": {"name": "new", "image": "n"}}));
    let [came] = &came[..] else {
        panic!("{came:?}")
    };
    assert!(came.starts_with("containers[new]: - > {"), "{came}");
    let went = edited(&json!({"/containers": [{"name": "new", "image": "n"}]}));
    let [came, went] = &went[..] else {
        panic!("{went:?}")
    };
    assert!(
        went.starts_with("containers[new]") || came.starts_with("containers[log]: {"),
        "{came} {went}"
    );
}

// SDF-41
#[test]
fn drift_tells_what_each_pod_takes() {
    let former = parse("log", DAY, &json!({}));
    let mut pod = created(&known(vec![former.clone()]), &json!({}));
    let image = json!([{"name": "log", "image": "i:2"}]);
    let volume = json!([{"name": "log", "image": "i:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    let both = json!({"containers": image, "imagePullSecrets": [{"name": "s"}]});
    let now = "2026-11-22T01:58:33Z".parse().unwrap();
    for (spec, expected) in [
        (json!({}), DriftRemedy::Nothing),
        (json!({"containers": image}), DriftRemedy::Upgrade),
        (both, DriftRemedy::UpgradeAndRecreation),
        (
            json!({"imagePullSecrets": [{"name": "s"}]}),
            DriftRemedy::Recreation,
        ),
        (
            json!({"containers": volume, "volumes": [{"name": "v"}]}),
            DriftRemedy::Recreation,
        ),
    ] {
        let sets = known(vec![parse("log", DAY, &spec)]);
        let sets = with_revision(sets, &former, &mut pod);
        let report = drift(&sets.valid[0], std::slice::from_ref(&pod), &sets, now);
        let takes: Vec<_> = report.pods.iter().map(|pod| pod.takes).collect();
        assert_eq!(takes, [expected], "{spec}");
    }
    // Of another set, or relabelled since.
    let other = known(vec![parse("other", DAY, &json!({}))]);
    assert!(
        drift(&other.valid[0], std::slice::from_ref(&pod), &other, now)
            .pods
            .is_empty()
    );
    pod.observed.labels = crate::cluster::SortedMap::default();
    let sets = known(vec![former]);
    assert!(drift(&sets.valid[0], &[pod], &sets, now).pods.is_empty());
}

//! The answers, on generated sets and pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::cluster::words_of_tables;
use crate::sidecarset::annotations::HASH;
use crate::sidecarset::recorded;
use crate::sidecarset::revision::{SetRevision, create};
use crate::sidecarset::selection::{NewPod, offer};
use crate::sidecarset::set::MIN_READY_SECONDS_ANNOTATION;
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
        status: SidecarSetStatus::default(),
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
    report(pod, "shop", sets, now)
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

/// Containers may have been resized since the pod was injected.
// SCS-19, SDF-33, SDF-41
#[test]
fn computed_resources_differ_only_if_they_are_computed_otherwise() {
    let policy = |cpu: &str| {
        let policy =
            json!({"targetContainersMode": "sum", "resourcesExpr": {"requests": {"cpu": cpu}}});
        let container = json!({"name": "log", "image": "i:1", "resourcesPolicy": policy});
        json!({"containers": [container]})
    };
    let fixed = json!({"containers": [{"name": "log", "image": "i:1", "resources": {"requests": {"cpu": "1"}}}]});
    let as_it_was = r#"{"resourcesExpr":{"requests":{"cpu":"cpu/2"}},"targetContainersMode":"sum","targetContainersNameRegex":".*"}"#;
    let otherwise = as_it_was.replace("cpu/2", "cpu/4");
    for (former, present, expected) in [
        (policy("cpu/2"), policy("cpu/2"), vec![]),
        (
            policy("cpu/2"),
            policy("cpu/4"),
            vec![format!(
                "containers[log].resourcesPolicy: {as_it_was} > {otherwise}"
            )],
        ),
        (
            fixed.clone(),
            policy("cpu/2"),
            vec![format!("containers[log].resourcesPolicy: - > {as_it_was}")],
        ),
        (
            policy("cpu/2"),
            fixed,
            vec![r#"containers[log].resources.requests.cpu: "0" > "1""#.to_owned()],
        ),
    ] {
        let former = parse("log", DAY, &former);
        let mut pod = created(&known(vec![former.clone()]), &json!({}));
        let own = pod.object["spec"]["containers"].as_array_mut().unwrap();
        let own = own.iter_mut().find(|one| one["name"] != "log").unwrap();
        own["resources"] = json!({"requests": {"cpu": "2"}});
        let sets = known(vec![parse("log", DAY, &present)]);
        assert_eq!(
            differences(&sets, &pod).len(),
            usize::from(present["containers"][0].get("resources").is_some()),
            "without the revision"
        );
        let sets = with_revision(sets, &former, &mut pod);
        assert_eq!(differences(&sets, &pod), expected);
    }
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
        let drift = PodDrift::of(&sets.valid[0], &pod, &sets, now);
        assert_eq!(drift.map(|drift| drift.takes), Some(expected), "{spec}");
    }
    // Of another set, or relabelled since.
    let other = known(vec![parse("other", DAY, &json!({}))]);
    assert_eq!(PodDrift::of(&other.valid[0], &pod, &other, now), None);
    pod.observed.labels = Arc::default();
    let sets = known(vec![former]);
    assert_eq!(PodDrift::of(&sets.valid[0], &pod, &sets, now), None);
}

/// Sets and pods as they are stored.
#[derive(Default)]
struct Cluster {
    sets: Vec<Value>,
    pods: Vec<Value>,
    revisions: Vec<Value>,
}

/// When the sets of a cluster were created, when they came into force, and when its pods were created.
const TIMES: [&str; 3] = [
    "2026-01-01T00:00:00Z",
    "2026-01-01T00:01:00Z",
    "2026-01-02T00:00:00Z",
];

impl Cluster {
    /// A set that is in force.
    fn set(mut self, name: &str, spec: &Value) -> Self {
        let mut set = json!({
            "metadata": {"name": name, "uid": name, "generation": 1, "creationTimestamp": TIMES[0]},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "containers": [{"name": name, "image": "i:1"}]},
            "status": {"inForce": {"generation": 1, "since": TIMES[1]}},
        });
        for (field, value) in spec.as_object().unwrap() {
            set["spec"][field] = value.clone();
        }
        self.sets.push(set);
        self
    }

    /// A pod that was injected by the sets as they are, and runs.
    fn pod(mut self, name: &str, change: &Value) -> Self {
        let (sets, _) = self.objects().parse();
        let report = reported(&sets, &pod(&json!({})));
        let mut pod = Value::Object(report.pod);
        pod["metadata"] = json!({"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1", "creationTimestamp": TIMES[2],
            "labels": {"app": "web"}, "annotations": pod["metadata"]["annotations"]});
        pod["spec"]["nodeName"] = json!("n");
        let containers = pod["spec"]["containers"].as_array().unwrap().iter();
        let statuses = containers.map(|container| {
            json!({"name": container["name"], "ready": true, "image": container["image"], "imageID": "x@sha256:1",
                "containerID": format!("containerd://{name}"), "restartCount": 0, "state": {"running": {"startedAt": TIMES[2]}}})
        });
        let statuses: Vec<_> = statuses.collect();
        pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": statuses});
        for (pointer, value) in change.as_object().unwrap() {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[field] = value.clone();
        }
        self.pods.push(pod);
        self
    }

    fn edit(mut self, spec: &Value) -> Self {
        self.sets[0]["metadata"]["generation"] = json!(2);
        for (field, value) in spec.as_object().unwrap() {
            self.sets[0]["spec"][field] = value.clone();
        }
        self
    }

    fn objects(&self) -> SetObjects {
        let sets = self.sets.iter();
        SetObjects {
            sets: sets
                .map(|set| serde_json::from_str(&set.to_string()).unwrap())
                .collect(),
            revisions: self
                .revisions
                .iter()
                .map(|one| serde_json::from_value(one.clone()).unwrap())
                .collect(),
            ..SetObjects::default()
        }
    }

    /// What is told of the first pod and the first set.
    fn explain(&self) -> SetExplanation {
        let now = "2026-11-22T01:58:33Z".parse().unwrap();
        let objects = self.objects();
        let (sets, _) = objects.parse();
        let pods: Vec<_> = self
            .pods
            .iter()
            .map(|pod| PodObject::read(pod.clone()).unwrap())
            .collect();
        let wires = pods.iter().map(|pod| pod.wire.clone()).collect();
        let index = objects.index(wires, now);
        let mut explained = explain(&pods[0], &sets, &index, Some(&pods), now).into_iter();
        let name = self
            .sets
            .first()
            .map_or("gone", |set| set["metadata"]["name"].as_str().unwrap());
        explained.find(|one| one.set == name).unwrap()
    }
}

/// Fails unless the first cause is this, with these words.
fn expect(cluster: &Cluster, reason: SetReason, words: &str) {
    let explained = cluster.explain();
    let first = explained.causes.first();
    let first = first.unwrap_or_else(|| panic!("no cause: {explained:#?}"));
    assert_eq!(first.reason, reason, "{explained:#?}");
    assert!(first.message.contains(words), "{}", first.message);
}

const IMAGE_2: &str = r#"{"containers": [{"name": "log", "image": "i:2"}]}"#;

fn image_2() -> Value {
    serde_json::from_str(IMAGE_2).unwrap()
}

#[test]
fn a_pod_that_is_as_its_set_says_has_no_cause() {
    let cluster = Cluster::default()
        .set("log", &json!({}))
        .pod("a", &json!({}));
    let explained = cluster.explain();
    assert!(
        explained.injected && explained.causes.is_empty(),
        "{explained:#?}"
    );
    assert!(explained.revision.unwrap().starts_with("log-"));
}

// SCS-13, SCS-19, SDF-10, SDF-11
#[test]
fn what_a_pod_lacks_of_what_its_set_says_is_told() {
    let policy =
        json!({"targetContainersMode": "sum", "resourcesExpr": {"limits": {"cpu": "cpu/2"}}});
    let transfer = json!([{"sourceContainerName": "main", "envName": "ROLE"}]);
    let container =
        json!({"name": "log", "image": "i:1", "transferEnv": transfer, "resourcesPolicy": policy});
    let cluster = Cluster::default()
        .set("log", &json!({"containers": [container]}))
        .pod("a", &json!({}));
    let explained = cluster.explain();
    assert!(explained.causes.is_empty(), "{explained:#?}");
    assert_eq!(
        explained.remarks,
        [
            "gives container \"log\" no limit of cpu: container \"main\" of the pod has none",
            "has no variable \"ROLE\" from container \"main\": there is none",
        ]
    );
    // What a pod that was not injected would get is not told of it.
    let cluster = Cluster::default().set("log", &json!({})).pod(
        "a",
        &json!({"/metadata/labels": {"app": "other"}, "/metadata/annotations": {}}),
    );
    assert_eq!(cluster.explain().remarks, [""; 0]);
}

// SCS-5, SDF-2, SDF-4, SDF-6, SDF-19
#[rstest]
#[case(json!({}), json!({"/metadata/labels": {"app": "wbe"}}), SetReason::Labels, "does not match the pod's labels")]
#[case(json!({"namespace": "other"}), json!({}), SetReason::Namespace, "pods of namespace other")]
#[case(json!({"namespaceSelector": {"matchLabels": {"a": "b"}}}), json!({}), SetReason::NamespaceUnknown, "are not known")]
#[case(json!({"injectionStrategy": {"paused": true}}), json!({}), SetReason::InjectionPaused, "paused")]
#[case(json!({"containers": [{"name": "log", "image": ""}]}), json!({}), SetReason::InvalidSpec, "spec.containers[0].image")]
#[case(json!({}), json!({"/metadata/creationTimestamp": "2025-01-01T00:00:00Z"}), SetReason::CreatedBefore, "older than the set")]
#[case(json!({}), json!({"/metadata/creationTimestamp": "2026-01-01T00:00:30Z"}), SetReason::NotInForce, "before every replica of the webhook knew the set")]
#[case(json!({}), json!({}), SetReason::Missed, "no webhook answered; create the pod again")]
#[case(json!({"containers": [{"name": "main", "image": "i"}]}), json!({}), SetReason::OwnContainer, "rename one of the two")]
#[case(json!({"containers": [{"name": "log", "image": "i", "ports": [{"containerPort": 1, "hostPort": 80}]}]}),
    json!({"/spec/containers/0/ports": [{"containerPort": 2, "hostPort": 80}]}), SetReason::HostPort, "change the port in one of them")]
#[case(json!({"containers": [{"name": "log", "image": "i", "volumeDevices": [{"name": "v", "devicePath": "/v"}]}], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]}),
    json!({"/spec/volumes": [{"name": "v", "emptyDir": {}}]}), SetReason::OwnVolume, "rename one of the two")]
#[case(json!({"containers": [{"name": "log", "image": "i", "lifecycle": {"preStop": {"sleep": {"seconds": 60}}}}]}), json!({}), SetReason::WouldBeInvalid, "terminationGracePeriodSeconds 30; change one of the two")]
#[case(json!({}), json!({"/metadata/annotations": {"kubernetes.io/config.mirror": "x"}}), SetReason::MirrorPod, "static")]
fn why_a_pod_was_not_injected_is_told(
    #[case] spec: Value,
    #[case] change: Value,
    #[case] reason: SetReason,
    #[case] words: &str,
) {
    let mut cluster = Cluster::default().pod("a", &change).set("log", &spec);
    expect(&cluster, reason, words);
    if reason == SetReason::Missed {
        cluster.sets[0]["status"] = json!({});
        expect(&cluster, SetReason::NotInForce, "not in force yet");
    }
}

// SDF-19
#[test]
fn the_younger_of_two_sets_says_which_one_is_older() {
    let mut cluster = Cluster::default()
        .set(
            "younger",
            &json!({"containers": [{"name": "same", "image": "i"}]}),
        )
        .set(
            "older",
            &json!({"containers": [{"name": "same", "image": "i"}]}),
        );
    cluster.sets[0]["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:01Z");
    let cluster = cluster.pod("a", &json!({}));
    expect(
        &cluster,
        SetReason::Conflict,
        "SidecarSet \"older\", which is older",
    );
}

// SCS-47, SCS-49, SCS-51, SCS-52, SDF-23, SDF-41
#[rstest]
#[case(json!({"updateStrategy": {"type": "NotUpdate"}}), SetReason::NotUpdate, "updateStrategy.type NotUpdate")]
#[case(json!({"updateStrategy": {"paused": true}}), SetReason::Paused, "the roll-out is paused")]
#[case(json!({"updateStrategy": {"selector": {"matchLabels": {"canary": "yes"}}}}), SetReason::UpdateSelector, "selects other pods")]
#[case(json!({"updateStrategy": {"partition": 1}}), SetReason::Partition, "partition keeps it")]
#[case(json!({}), SetReason::Due, "upgraded next")]
#[case(json!({"containers": [{"name": "log", "image": "i:1", "env": [{"name": "A"}]}]}), SetReason::NotUpgradable, "containers[log].env[A]; create the pod again")]
#[case(json!({"containers": [{"name": "log", "image": "i:1"}, {"name": "new", "image": "n"}]}), SetReason::NotUpgradable, "containers[new]")]
#[case(json!({"containers": [{"name": "log", "image": "i:1"}], "imagePullSecrets": [{"name": "s"}]}), SetReason::OutsideOfHash, "imagePullSecrets[s], which no upgrade changes")]
#[case(json!({"selector": {"matchLabels": {"app": "other"}}}), SetReason::NoLongerSelected, "neither counted nor upgraded")]
fn why_a_pod_is_not_upgraded_is_told(
    #[case] edit: Value,
    #[case] reason: SetReason,
    #[case] words: &str,
) {
    let cluster = Cluster::default()
        .set("log", &json!({}))
        .pod("a", &json!({}));
    let mut spec = image_2();
    for (field, value) in edit.as_object().unwrap() {
        spec[field] = value.clone();
    }
    expect(&cluster.edit(&spec), reason, words);
}

// SCS-50, SCS-55
#[test]
fn who_waits_for_others_is_told_for_whom_and_why() {
    let pull = json!({"/status/containerStatuses/0/state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
        "/status/containerStatuses/0/ready": false, "/status/conditions/0/status": "False"});
    let cluster = Cluster::default()
        .set("log", &json!({}))
        .pod("a", &json!({}));
    let mut cluster = cluster.edit(&image_2()).pod("broken", &pull);
    // As an upgrade leaves it: the new image is written, and the former container is recorded.
    let state = r#"{"log":{"revision":"h","updateTimestamp":null,"lastContainerStatuses":{"log":{"imageID":"x@sha256:1","containerID":"containerd://broken"}}}}"#;
    cluster.pods[1]["metadata"]["annotations"]["kruise.io/sidecarset-inplace-update-state"] =
        json!(state);
    expect(
        &cluster,
        SetReason::MaxUnavailable,
        "shop/broken (log: ImagePullBackOff: no such image)",
    );
    cluster.pods.swap(0, 1);
    expect(
        &cluster,
        SetReason::InProgress,
        "log: ImagePullBackOff: no such image; correct the image",
    );
}

// SDF-58
#[test]
fn until_when_a_pod_has_to_be_ready_is_told() {
    let cluster = Cluster::default()
        .set("log", &json!({}))
        .pod("a", &json!({}));
    let mut cluster = cluster.edit(&image_2()).pod("new", &json!({}));
    let annotations = json!({MIN_READY_SECONDS_ANNOTATION: "86400"});
    cluster.sets[0]["metadata"]["annotations"] = annotations;
    expect(
        &cluster,
        SetReason::MaxUnavailable,
        "shop/new (has to be ready until 2026-11-23T01:58:33Z, as sidecarset.leadsman.io/min-ready-seconds of the set says)",
    );
}

// SCS-79, SDF-48, SDF-49
#[test]
fn a_set_that_is_gone_or_was_made_again_is_told() {
    let cluster = Cluster::default()
        .set("log", &json!({}))
        .pod("a", &json!({}));
    let mut again = Cluster {
        pods: cluster.pods.clone(),
        ..Cluster::default()
    };
    again = again.set("log", &image_2());
    again.sets[0]["metadata"]["creationTimestamp"] = json!("2026-11-23T00:00:00Z");
    expect(
        &again,
        SetReason::FormerSet,
        "sidecarset.leadsman.io/adopt-pods",
    );
    let gone = Cluster {
        pods: cluster.pods,
        ..Cluster::default()
    };
    let now = "2026-11-22T01:58:33Z".parse().unwrap();
    let pods = [PodObject::read(gone.pods[0].clone()).unwrap()];
    let index = gone.objects().index(vec![pods[0].wire.clone()], now);
    let explained = explain(&pods[0], &KnownSets::default(), &index, Some(&pods), now);
    assert_eq!(explained[0].causes[0].reason, SetReason::SetDeleted);
}

// SDF-51
#[test]
fn a_pod_of_the_pinned_revision_is_as_it_is_meant() {
    let cluster = Cluster::default().set("log", &json!({}));
    let (sets, _) = cluster.objects().parse();
    let former = &sets.valid[0];
    let meta = serde_json::from_value(json!({"name": "log"})).unwrap();
    let mut revisions = Vec::new();
    let of = |known: &KnownSet, number: i64| {
        let name = known.history.newest.to_string();
        let mut revision = create(&known.set, &meta, "leadsman-system", (&name, "h", number));
        revision["metadata"]["creationTimestamp"] = json!(TIMES[1]);
        revision["metadata"]["resourceVersion"] = json!("1");
        revision
    };
    revisions.push(of(former, 1));
    let pin = json!({"revision": {"revisionName": former.history.newest.to_string()}});
    let mut cluster = cluster
        .edit(&image_2())
        .edit(&json!({"injectionStrategy": pin}));
    let (sets, _) = cluster.objects().parse();
    revisions.push(of(&sets.valid[0], 2));
    cluster.revisions = revisions;
    let cluster = cluster.pod("a", &json!({}));
    expect(&cluster, SetReason::Pinned, "new pods are pinned to");
    assert!(cluster.explain().differs.is_empty());
}

#[test]
fn the_page_of_kubectl_explains_every_cause() {
    let page = include_str!("../../../../../docs/kubectl.md");
    let not_injected = words_of_tables(page, "| reason | seen when the pod has no sidecars");
    let injected = words_of_tables(page, "| reason | seen when it was injected");
    let explained: BTreeSet<_> = not_injected.into_iter().chain(injected).collect();
    let all = SetReason::ALL.iter().map(ToString::to_string);
    assert_eq!(explained, all.collect());
}

#[test]
fn pods_are_grouped_by_what_each_set_does_to_them() {
    let explained = |set: &str, reasons: &[SetReason]| SetExplanation {
        set: set.to_owned(),
        injected: reasons != [SetReason::Labels] && reasons != [SetReason::CreatedBefore],
        revision: None,
        causes: reasons
            .iter()
            .map(|reason| SetCause {
                reason: *reason,
                message: reason.to_string(),
                terms: Vec::new(),
            })
            .collect(),
        differs: Vec::new(),
        remarks: Vec::new(),
        reported: None,
    };
    let pods = [
        (
            "a",
            vec![
                explained("log", &[]),
                explained("other", &[SetReason::Labels]),
            ],
        ),
        ("b", vec![explained("log", &[SetReason::CreatedBefore])]),
        (
            "c",
            vec![
                explained("log", &[SetReason::Partition]),
                explained("mesh", &[]),
            ],
        ),
        ("d", vec![explained("log", &[SetReason::Partition])]),
    ];
    let pods = pods.map(|(name, sets)| {
        let name = crate::cluster::ObjectName {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        };
        (name, sets)
    });
    let grouped = group_by_set(pods.iter().map(|(name, sets)| (name, sets.as_slice())));
    let told = grouped.iter().map(|set| {
        let groups = set.groups.iter().map(|group| {
            let reasons: Vec<_> = group.causes.iter().map(|it| it.reason.as_str()).collect();
            format!("{}: {}", reasons.concat(), group.pods.join(" "))
        });
        (set.set.as_str(), groups.collect::<Vec<_>>())
    });
    let of_log = ["Partition: ns/c ns/d", "CreatedBefore: ns/b", ": ns/a"];
    let expected = [
        ("log", of_log.map(str::to_owned).to_vec()),
        ("mesh", vec![": ns/c".to_owned()]),
    ];
    assert_eq!(
        told.collect::<Vec<_>>(),
        expected,
        "no pod is concerned by `other`"
    );
}

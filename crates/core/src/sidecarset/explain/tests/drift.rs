//! In which fields a pod differs from what it would get now.

use super::*;

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
#[case(json!({"/containers/0/resources": {"limits": {"memory": "1Gi"}}}), &[r#"containers[log].resources.limits.cpu: "1" > -"#, r#"containers[log].resources.limits.memory: - > "1Gi""#])]
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
    let mut image_and_volume = volume.clone();
    image_and_volume[0]["image"] = json!("i:2");
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
        // Another image takes a re-creation too where an upgrade is impossible.
        (
            json!({"containers": image_and_volume, "volumes": [{"name": "v"}]}),
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

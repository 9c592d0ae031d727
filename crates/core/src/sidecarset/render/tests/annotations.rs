//! The annotations of a pod: what is recorded, patched, and removed.

use super::*;

/// The API server refuses a pod whose annotations have more than 256 KiB together.
// SCS-42, SDF-1
#[test]
fn what_a_pod_has_no_room_for_is_not_added_to_its_annotations() {
    let mut pod = pod();
    let own = "x".repeat(100 * 1024);
    pod["metadata"]["annotations"]["own"] = json!(own);
    let patch = |key: &str, policy: &str, kib: usize| {
        let mut spec = one(key);
        let annotations = json!({key: "y".repeat(kib * 1024)});
        spec["patchPodMetadata"] = json!([{"patchPolicy": policy, "annotations": annotations}]);
        set(key, "2026-01-01T00:00:00Z", &spec)
    };
    let sets = [
        patch("a", "Overwrite", 100),
        patch("b", "Overwrite", 100),
        patch("c", "Retain", 50),
        patch("own", "Overwrite", 60),
    ];
    let injected = inject_all(&pod, &sets, RenderOptions::default(), NOW);
    let after = injected.additions.apply(&pod);
    let annotations: BTreeMap<String, String> =
        serde_json::from_value(after["metadata"]["annotations"].clone()).unwrap();
    assert!(bytes_of(&annotations) <= limits::ANNOTATIONS_BYTES);
    assert!(annotations.contains_key("a") && annotations.contains_key("c"));
    assert!(!annotations.contains_key("b"));
    assert_eq!(annotations["own"].len(), 60 * 1024);
    assert_eq!(names(&after), ["a", "b", "c", "own", "app"]);
    let remarks: Vec<_> = injected.remarks.iter().collect();
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert_eq!(
        remarks[0].1.to_string(),
        "leaves annotation \"b\" of the pod as it is: with the patch, the annotations of the pod would have more than 256 KiB, which \
         the API server refuses; shorten the patch or the pod's other annotations"
    );
}

/// etcd takes requests of 1.5 MiB, and the API server refuses a pod that is larger: `etcdserver: request is too large`.
// SDF-1
#[test]
fn sets_with_which_a_pod_would_be_too_large_are_left_out_the_youngest_first() {
    let large = |name: &str, created: &str, kib: usize| {
        let mut spec = one(name);
        spec["containers"][0]["args"] = json!(["y".repeat(kib * 1024)]);
        set(name, created, &spec)
    };
    let sets = [
        large("a", "2026-01-03T00:00:00Z", 500),
        large("b", "2026-01-01T00:00:00Z", 500),
        large("c", "2026-01-02T00:00:00Z", 500),
    ];
    let injected = inject_all(&pod(), &sets, RenderOptions::default(), NOW);
    let after = injected.additions.apply(&pod());
    assert_eq!(names(&after), ["b", "c", "app"]);
    assert_eq!(after["metadata"]["annotations"][INJECTED_LIST], "b,c");
    assert!(serde_json::to_string(&after).unwrap().len() < 1536 * 1024);
    // A copy of the pod has their containers already.
    let again = inject_all(&after, &sets, RenderOptions::default(), NOW);
    assert_eq!(names(&again.additions.apply(&after)), ["b", "c", "app"]);
    assert_eq!(again.remarks, injected.remarks);
    let [(name, remark)] = &injected.remarks[..] else {
        panic!("{:?}", injected.remarks)
    };
    assert_eq!(&**name, "a");
    assert_eq!(
        remark.to_string(),
        "is not injected: the API server would refuse the pod with it, as it would have more than 1280 KiB, of the 1536 KiB that \
         etcd takes; shorten the set's containers and volumes, or the pod's own"
    );
}

// SDF-14
#[test]
fn what_a_copied_pod_says_of_other_sets_is_removed() {
    let mut copy = pod();
    copy["metadata"]["annotations"] = json!({
        HASH: "{\"gone\":{\"hash\":\"x\"}}", HASH_WITHOUT_IMAGE: "{\"gone\":{\"hash\":\"x\"}}",
        INJECTED_LIST: "gone", "kruise.io/sidecarset-inplace-update-state": "{}", "own": "stays",
    });
    let side = set("side", "2026-01-01T00:00:00Z", &one("side"));
    let after = inject_all(&copy, &[side], RenderOptions::default(), NOW)
        .additions
        .apply(&copy);
    let annotations = after["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations[INJECTED_LIST], "side");
    assert!(!annotations[HASH].as_str().unwrap().contains("gone"));
    assert_eq!(
        (annotations.len(), &annotations["own"]),
        (4, &json!("stays"))
    );
    let after = inject_all(&copy, &[], RenderOptions::default(), NOW)
        .additions
        .apply(&copy);
    assert_eq!(after["metadata"]["annotations"], json!({"own": "stays"}));
}

// SDF-11, SDF-14
#[test]
fn variables_that_are_missing_are_recorded_on_the_pod_as_long_as_they_are() {
    let mut spec = one("side");
    let transfer = |name: &str| json!({"sourceContainerName": "app", "envName": name});
    spec["containers"][0]["transferEnv"] = json!([transfer("B"), transfer("A"), transfer("B")]);
    let sets = [set("side", "2026-01-01T00:00:00Z", &spec)];
    let injected = |pod: &JsonObject| {
        let injected = inject_all(pod, &sets, RenderOptions::default(), NOW);
        injected.additions.apply(pod)
    };
    let recorded = |pod: &JsonObject| {
        pod["metadata"]["annotations"]
            .get(MISSING_VARIABLES)
            .cloned()
    };
    let mut copy = injected(&pod());
    let text = r#"{"side":["app/A","app/B"]}"#;
    assert_eq!(recorded(&copy), Some(json!(text)));
    let both = ["A", "B"].map(|name| (String::from("app"), String::from(name)));
    assert_eq!(missing_variables(text, "side"), both);
    assert_eq!(missing_variables(text, "other"), []);
    // A pod that is made of this one, and has them.
    let app =
        items(inner(&copy, "spec").unwrap(), "containers").position(|one| one["name"] == "app");
    let env = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]);
    copy["spec"]["containers"][app.unwrap()]["env"] = env;
    assert_eq!(recorded(&injected(&copy)), None);
    // No room for it: the pod is injected all the same.
    let without = injected(&pod())["metadata"]["annotations"].clone();
    let without = without.as_object().unwrap().iter();
    let without = without.filter(|(key, _)| *key != MISSING_VARIABLES);
    let others: usize = without
        .map(|(key, value)| key.len() + value.as_str().unwrap().len())
        .sum();
    let mut full = pod();
    let most = "x".repeat(leadsman_api::limits::ANNOTATIONS_BYTES - others - "own".len());
    full["metadata"]["annotations"] = json!({"own": most});
    let after = injected(&full);
    assert_eq!(
        (recorded(&after), names(&after)),
        (None, vec!["side", "app"])
    );
}

// SDF-1
#[test]
fn no_annotation_of_a_pod_makes_an_injection_fail() {
    let mut pod = pod();
    pod["metadata"]["annotations"] = json!({HASH: "no json", "m": "null"});
    let mut spec = one("side");
    spec["patchPodMetadata"] =
        json!([{"patchPolicy": "MergePatchJson", "annotations": {"m": "{\"a\":1}"}}]);
    let injected = inject_all(
        &pod,
        &[set("s", "2026-01-01T00:00:00Z", &spec)],
        RenderOptions::default(),
        NOW,
    );
    assert_eq!((injected.sets.len(), injected.remarks.len()), (1, 1));
    assert_eq!(
        injected.additions.apply(&pod)["metadata"]["annotations"]["m"],
        "null"
    );
}

// SCS-42, SCS-45, SDF-17
#[test]
fn the_whitelist_is_asked_at_the_injection_too_and_our_own_annotations_are_no_ones() {
    let mut spec = one("side");
    spec["patchPodMetadata"] = json!([{"annotations": {"a": "1"}}]);
    let mut set = set("s", "2026-01-01T00:00:00Z", &spec);
    // No set is accepted that does.
    let patch = &mut set.template.patches[0].annotations;
    patch.insert(HASH.to_owned(), "{}".to_owned());
    let whitelist = Whitelist::default();
    for (without_rules, expected) in [(false, None), (true, Some("1"))] {
        let injection = Injection {
            set: &set,
            template: &set.template,
            hashes: &set.hashes,
            revision: "s-1",
            newest: None,
            allowed_keys: whitelist.allowed_keys(|_| None, without_rules),
            missing_pin: None,
        };
        let injected = inject_sets(
            &pod(),
            &[injection],
            RenderOptions::default(),
            NOW.parse().unwrap(),
        );
        let after = injected.additions.apply(&pod());
        let annotations = &after["metadata"]["annotations"];
        assert_eq!(annotations["a"].as_str(), expected);
        assert!(annotations[HASH].as_str().unwrap().contains("hash"));
        assert_eq!(injected.remarks.len(), 1 + usize::from(!without_rules));
    }
}

// SDF-31
#[test]
fn fields_of_later_versions_survive_in_the_sidecar_and_in_the_pod() {
    let spec = json!({"containers": [{"name": "side", "image": "i:1", "restartPolicyRules": [{"action": "Restart"}]}]});
    let injected = inject_all(
        &pod(),
        &[set("s", "2026-01-01T00:00:00Z", &spec)],
        RenderOptions::default(),
        NOW,
    );
    let after = injected.additions.apply(&pod());
    assert_eq!(
        after["spec"]["containers"][0]["restartPolicyRules"],
        json!([{"action": "Restart"}])
    );
    assert_eq!(
        after["spec"]["containers"][1],
        pod()["spec"]["containers"][0]
    );
    assert_eq!(after["spec"]["newerList"], json!([1]));
    // None of the fields that only a sidecar has.
    assert!(
        after["spec"]["containers"][0]
            .get("podInjectPolicy")
            .is_none()
    );
}

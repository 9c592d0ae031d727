//! Pods as OpenKruise injected them on a cluster.

use super::*;

// SCS-9, SCS-10, SCS-12, SCS-13, SCS-14, SCS-15, SCS-16, SCS-18, SCS-21, SCS-23, SCS-24, SDF-11
#[test]
fn a_pod_of_three_sets_is_injected_as_recorded() {
    let documents = recorded::documents("13-pod-of-several-sets");
    let (pod, sets) = documents.split_last().unwrap();
    let sets: Vec<_> = sets.iter().map(parse).collect();
    let before = before_injection(pod, &["data", "blk"], &["own"]);
    let injected = inject_all(&before, &sets, AS_RECORDED, NOW);
    let mut after = Value::Object(injected.additions.apply(&before));
    let annotations = after["metadata"]["annotations"].as_object_mut().unwrap();
    let missing = annotations.remove(MISSING_VARIABLES);
    assert_eq!(after, without_status(pod));
    // Variable GONE of a container that is not there.
    assert_eq!(missing, Some(json!(r#"{"aa-log":["nope/GONE"]}"#)));
    let remarks: Vec<_> = injected
        .remarks
        .iter()
        .map(|(set, remark)| format!("{set} {remark}"))
        .collect();
    assert_eq!(
        remarks,
        ["aa-log has no variable \"GONE\" from container \"nope\": there is none"]
    );
}

// SCS-9, SCS-12, SCS-15, SCS-23
#[test]
fn a_plain_pod_is_injected_as_recorded() {
    let set = parse(&recorded::documents("01-sidecarset-stored")[1]);
    let [pod] = recorded::documents("03-pod-injected").try_into().unwrap();
    let before = before_injection(&pod, &[], &[]);
    let injected = inject_all(&before, &[set], AS_RECORDED, "2026-11-22T01:56:25Z");
    assert_eq!(
        Value::Object(injected.additions.apply(&before)),
        without_status(&pod)
    );
}

// SCS-10, SCS-18, SDF-8
#[test]
fn init_containers_stand_as_declared_or_by_name_as_recorded() {
    let [set, pod] = recorded::documents("10-native-sidecar").try_into().unwrap();
    let set = parse(&set);
    let before = before_injection(&pod, &[], &[]);
    let names = |pod: &JsonObject| -> Vec<String> {
        let spec = inner(pod, "spec").unwrap();
        let names = items(spec, "initContainers").filter_map(|one| text(one, "name"));
        names.map(str::to_owned).collect()
    };
    let injected = inject_all(&before, std::slice::from_ref(&set), AS_RECORDED, NOW);
    assert_eq!(
        Value::Object(injected.additions.apply(&before)),
        without_status(&pod)
    );
    let injected = inject_all(&before, &[set], RenderOptions::default(), NOW);
    assert_eq!(
        names(&injected.additions.apply(&before)),
        ["setup", "proxy"]
    );
}

// SCS-26, SCS-58
#[test]
fn two_containers_that_take_turns_are_injected_as_recorded() {
    let documents = recorded::documents("07-hot-upgrade");
    let (set, pod) = (parse(&documents[0]), &documents[1]);
    let before = before_injection(pod, &[], &[]);
    let injected = inject_all(&before, &[set], AS_RECORDED, "2026-11-22T01:57:57Z");
    assert_eq!(
        Value::Object(injected.additions.apply(&before)),
        without_status(pod)
    );
}

// SCS-39
#[test]
fn a_pinned_pod_gets_the_revision_with_its_hashes_as_recorded() {
    let [set, pod, ..] = &recorded::documents("06-pinned-injection")[..] else {
        panic!("a set and a pod")
    };
    let data = &recorded::documents("02-controllerrevision-first")[0];
    let set = parse(set);
    let template = Template::of_revision(&data["data"]).unwrap();
    let hashes = template.hashes();
    let whitelist = Whitelist::default();
    let injection = Injection {
        set: &set,
        template: &template,
        hashes: &hashes,
        revision: data["metadata"]["name"].as_str().unwrap(),
        newest: None,
        allowed_keys: whitelist.allowed_keys(|_| None, true),
        missing_pin: None,
    };
    let before = before_injection(pod, &[], &[]);
    let now = "2026-11-22T01:56:38Z".parse().unwrap();
    let injected = inject_sets(&before, &[injection], AS_RECORDED, now);
    assert_eq!(
        Value::Object(injected.additions.apply(&before)),
        without_status(pod)
    );
}

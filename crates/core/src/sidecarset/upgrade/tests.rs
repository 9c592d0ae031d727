//! The upgrade of one pod, by cases.

use super::*;
use crate::sidecarset::annotations::INJECTED_LIST;
use crate::sidecarset::metadata::Whitelist;
use crate::sidecarset::pod::{LastUpgrade, PodState, PodVersion, Progress, settles_at};
use crate::sidecarset::tests::recorded;

const NOW: &str = "2026-11-22T01:56:25Z";

fn observed(pod: &Value) -> ObservedPod {
    let mut pod = pod.clone();
    pod["metadata"]["uid"] = json!("u-1");
    pod["metadata"]["resourceVersion"] = json!("7");
    ObservedPod::new(&serde_json::from_value(pod).unwrap())
}

fn set(image: &str) -> SidecarSet {
    let mut set = recorded::documents("01-sidecarset-stored").remove(1);
    set["spec"]["containers"][0]["image"] = json!(image);
    SidecarSet::parse(&serde_json::from_value(set).unwrap()).unwrap()
}

fn upgraded(set: &SidecarSet, revision: &str, pod: &ObservedPod, now: &str) -> PodUpgrade {
    let whitelist = Whitelist::default();
    let allowed = whitelist.allowed_keys(|_| None, true);
    let found = LastUpgrade::OfReady;
    plan_upgrade(set, revision, (pod, found), &allowed, now.parse().unwrap())
}

/// What a pod is so many seconds after [`NOW`].
fn state_at(set: &SidecarSet, pod: &ObservedPod, seconds: i64) -> PodState {
    let now: Timestamp = NOW.parse().unwrap();
    let now = now + jiff::SignedDuration::from_secs(seconds);
    PodState::read(set, pod, None::<fn(&str) -> Option<&'static str>>, now).unwrap()
}

fn state(set: &SidecarSet, pod: &ObservedPod) -> PodState {
    state_at(set, pod, 0)
}

// SCS-25, SCS-46, SCS-53, SDF-44
#[test]
fn images_and_annotations_are_patched_as_recorded_and_nothing_else() {
    let before = recorded::documents("03-pod-injected").remove(0);
    let after = recorded::documents("04-pod-upgraded-in-place").remove(0);
    let set = set("registry.example/log-agent:1.1");
    let pod = observed(&before);
    let upgrade = upgraded(&set, "log-agent-6cc95d769f", &pod, NOW);
    let patch = &upgrade.patch;
    assert_eq!(patch["metadata"]["uid"], "u-1");
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    assert_eq!(
        patch["spec"],
        json!({"containers": [{"name": "log-agent", "image": "registry.example/log-agent:1.1"}]})
    );
    let annotations = patch["metadata"]["annotations"].as_object().unwrap();
    let recorded = after["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(
        annotations.keys().collect::<Vec<_>>(),
        [HASH, IN_PLACE_STATE]
    );
    for (key, value) in annotations {
        // What is recorded of ours besides.
        let value = value.as_str().unwrap();
        let value = value.replace(",\"injectedRevision\":\"log-agent-6bf48c598b\"", "");
        assert_eq!(value, recorded[key]);
    }
    assert_eq!(upgrade.restarts, ["log-agent"]);
}

// SCS-46, SCS-55, SCS-56
#[test]
fn a_pod_is_upgraded_once_the_runtime_reports_the_new_image_as_recorded() {
    let [written, running, second] = &recorded::documents("04-pod-upgraded-in-place")[..] else {
        panic!("three states")
    };
    let (one, two) = (
        set("registry.example/log-agent:1.1"),
        set("registry.example/log-agent:1.2"),
    );
    let written = state(&one, &observed(written));
    assert!(written.is_updated() && written.progress == Progress::BeforeRestart);
    let running = state(&one, &observed(running));
    assert!(running.is_updated() && running.is_serving());
    let second = observed(second);
    assert!(state(&two, &second).is_updated() && !state(&one, &second).is_updated());
}

// SDF-38
#[test]
fn a_second_upgrade_records_itself() {
    let running = observed(&recorded::documents("04-pod-upgraded-in-place")[1]);
    let set = set("registry.example/log-agent:1.2");
    let upgrade = upgraded(&set, "r", &running, "2026-11-22T01:56:30Z");
    let state = upgrade.patch["metadata"]["annotations"][IN_PLACE_STATE]
        .as_str()
        .unwrap();
    let state: Value = serde_json::from_str(state).unwrap();
    assert_eq!(state["log-agent"]["revision"], *set.hashes.hash);
    assert_eq!(
        state["log-agent"]["updateTimestamp"],
        "2026-11-22T01:56:30Z"
    );
}

// SCS-23
#[test]
fn annotations_before_0_8_are_rewritten_as_recorded() {
    let [before, after] = recorded::documents("11-old-annotation-form")
        .try_into()
        .unwrap();
    let mut pod = observed(&before);
    // The status was left out of the record.
    let id = "registry.example/log-agent@sha256:269b0384ee557c02c4a41c4e2939b611ac684ec5d5c9d47429b80f7db3f9a865";
    pod.containers[0].status = Some(crate::workload::pod::ObservedStatus {
        is_ready: true,
        restarts: 0,
        image: pod.containers[0].image.clone(),
        image_id: id.into(),
        container_id: None,
        running: None,
        waits_for_pod: false,
    });
    let set = set("registry.example/log-agent:1.1");
    let upgrade = upgraded(&set, "log-agent-6cc95d769f", &pod, "2026-11-22T02:00:23Z");
    let mut annotations = pod.annotations;
    let patch = upgrade.patch["metadata"]["annotations"]
        .as_object()
        .unwrap();
    annotations.extend(
        patch
            .iter()
            .map(|(key, value)| (key.as_str().into(), value.as_str().unwrap().into())),
    );
    let recorded: BTreeMap<Box<str>, Box<str>> =
        serde_json::from_value(after["metadata"]["annotations"].clone()).unwrap();
    let annotations = annotations.iter();
    assert!(
        annotations.eq(recorded
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect::<crate::cluster::SortedMap<_>>()
            .iter())
    );
}

// SCS-53
#[test]
fn where_the_images_are_equal_annotations_alone_are_written() {
    let before = observed(&recorded::documents("03-pod-injected")[0]);
    let mut set = set("registry.example/log-agent:1.0");
    set.hashes.hash = "other".into();
    let upgrade = upgraded(&set, "r", &before, NOW);
    assert!(upgrade.restarts.is_empty() && upgrade.patch.get("spec").is_none());
    let annotations = upgrade.patch["metadata"]["annotations"]
        .as_object()
        .unwrap();
    assert_eq!(annotations.keys().collect::<Vec<_>>(), [HASH]);
}

// SCS-42, SCS-53
#[test]
fn annotations_of_a_set_are_left_out_where_an_upgrade_has_no_room_for_them() {
    let bytes = |pod: &ObservedPod| {
        let pairs = pod.annotations.iter();
        pairs
            .map(|(key, value)| key.len() + value.len())
            .sum::<usize>()
    };
    let mut wire = recorded::documents("01-sidecarset-stored").remove(1);
    wire["spec"]["containers"][0]["image"] = json!("registry.example/log-agent:1.1");
    wire["spec"]["patchPodMetadata"] =
        json!([{"patchPolicy": "Overwrite", "annotations": {"set": "x".repeat(97)}}]);
    let set = SidecarSet::parse(&serde_json::from_value(wire).unwrap()).unwrap();
    let before = observed(&recorded::documents("03-pod-injected")[0]);
    let whole = after_patch(&before, &upgraded(&set, "r", &before, NOW));
    let records = bytes(&whole) - 100;
    for (room, is_there) in [(100, true), (99, false)] {
        let own = limits::ANNOTATIONS_BYTES - records - room - "own".len();
        let mut pod = before.clone();
        pod.annotations
            .extend([("own".into(), "x".repeat(own).into())]);
        let after = after_patch(&pod, &upgraded(&set, "r", &pod, NOW));
        assert_eq!(after.annotations.contains_key("set"), is_there, "{room}");
        assert_eq!(
            bytes(&after),
            limits::ANNOTATIONS_BYTES - if is_there { 0 } else { 99 }
        );
    }
}

/// The pod of a set after the kubelet has acted on an upgrade, seen as patched.
fn after_patch(pod: &ObservedPod, upgrade: &PodUpgrade) -> ObservedPod {
    let mut pod = pod.clone();
    let annotations = upgrade.patch["metadata"]["annotations"]
        .as_object()
        .unwrap();
    pod.annotations.extend(
        annotations
            .iter()
            .map(|(key, value)| (key.as_str().into(), value.as_str().unwrap().into())),
    );
    for container in upgrade.patch["spec"]["containers"].as_array().unwrap() {
        let own = pod
            .containers
            .iter_mut()
            .find(|own| *own.name == *container["name"].as_str().unwrap());
        own.unwrap().image = container["image"].as_str().unwrap().into();
    }
    pod
}

/// A pod whose sidecar is upgraded to an image, and the set. The containers end within five seconds.
fn being_upgraded(image: &str) -> (SidecarSet, ObservedPod) {
    let mut pod = observed(&recorded::documents("03-pod-injected")[0]);
    pod.grace_period = std::time::Duration::from_secs(5);
    let status = pod.containers[0].status.as_mut().unwrap();
    status.image = "registry.example/log-agent:1.0".into();
    status.container_id = Some("containerd://1".into());
    status.running = Some(None);
    let set = set(image);
    let upgrade = upgraded(&set, "r", &pod, NOW);
    let pod = after_patch(&pod, &upgrade);
    assert_eq!(state(&set, &pod).progress, Progress::BeforeRestart);
    (set, pod)
}

/// The pod's sidecar is started anew, and its image is shown by this name.
fn start_anew(pod: &mut ObservedPod, image: &str) {
    let status = pod.containers[0].status.as_mut().unwrap();
    status.image = image.into();
    status.container_id = Some("containerd://2".into());
    status.running = Some(None);
}

// SCS-50
#[rstest::rstest]
// Written at 01:56:25. It failed soon after its sidecar was started, and long after.
#[case(
    "2026-11-22T01:57:00Z",
    true,
    "2026-11-22T02:06:00Z",
    LastUpgrade::OfReady
)]
#[case(
    "2026-11-22T01:57:00Z",
    true,
    "2026-11-22T02:08:00Z",
    LastUpgrade::OfUnready
)]
// A node that comes back starts the sidecar again after the pod has become not ready.
#[case(
    "2026-12-01T00:10:00Z",
    true,
    "2026-12-01T00:00:00Z",
    LastUpgrade::OfUnready
)]
// It is the sidecar that fails: it is not ready, or crashes again and again.
#[case(
    "2026-11-22T01:57:00Z",
    false,
    "2026-11-22T02:08:00Z",
    LastUpgrade::OfReady
)]
#[case(None, false, "2026-11-22T02:08:00Z", LastUpgrade::OfReady)]
fn an_application_that_fails_late_was_not_broken_by_the_former_image(
    #[case] started: impl Into<Option<&'static str>>,
    #[case] is_ready: bool,
    #[case] unready_since: Timestamp,
    #[case] expected: LastUpgrade,
) {
    let (present, mut pod) = being_upgraded("registry.example/log-agent:1.1");
    start_anew(&mut pod, "registry.example/log-agent:1.1");
    let status = pod.containers[0].status.as_mut().unwrap();
    let started: Option<&str> = started.into();
    status.running = started.map(|started| started.parse().ok());
    status.is_ready = is_ready;
    (pod.ready, pod.unready_since) = (None, Some(unready_since));
    let next = set("registry.example/log-agent:1.2");
    assert_eq!(state(&next, &pod).last_upgrade, expected);
    // While the image that may have broken it is rolled out, it is not upgraded elsewhere.
    assert_eq!(state(&present, &pod).last_upgrade, LastUpgrade::OfReady);
}

// SCS-50
#[test]
fn what_openkruise_found_is_not_known_once_the_set_has_another_image() {
    let pod = observed(&recorded::documents("04-pod-upgraded-in-place")[0]);
    let last_upgrade = |image| state(&set(image), &pod).last_upgrade;
    let present = last_upgrade("registry.example/log-agent:1.1");
    assert_eq!(present, LastUpgrade::OfReady);
    let next = last_upgrade("registry.example/log-agent:1.2");
    assert_eq!(next, LastUpgrade::OfUnready);
}

#[rstest::rstest]
#[case(json!({"waiting": {"reason": "ContainerCreating"}}), "n", true)]
#[case(json!({"waiting": {"reason": "PodInitializing"}}), "n", true)]
#[case(json!({"waiting": {"reason": "ErrImagePull"}}), "n", false)]
#[case(json!({"waiting": {"reason": "CrashLoopBackOff"}}), "n", false)]
#[case(json!({"running": {}}), "n", false)]
#[case(json!({"waiting": {"reason": "ErrImagePull"}}), "", true)]
fn a_sidecar_is_untried_until_its_kubelet_has_come_to_it(
    #[case] container: Value,
    #[case] node: &str,
    #[case] expected: bool,
) {
    let mut pod = recorded::documents("03-pod-injected").remove(0);
    pod["spec"]["nodeName"] = json!(node);
    let statuses = pod["status"]["containerStatuses"].as_array_mut().unwrap();
    for status in statuses {
        status["state"] = container.clone();
    }
    let set = set("registry.example/log-agent:1.0");
    assert_eq!(state(&set, &observed(&pod)).is_untried, expected);
}

// SCS-55, SDF-32
#[test]
fn a_container_that_is_started_anew_with_its_former_image_is_not_upgraded() {
    let (set, mut pod) = being_upgraded("registry.example/log-agent:1.1");
    start_anew(&mut pod, "registry.example/log-agent:1.0");
    assert_eq!(state(&set, &pod).progress, Progress::BeforeRestart);
    assert_eq!(
        settles_at(&set, &pod, NOW.parse().unwrap()),
        Some("2026-11-22T01:56:40Z".parse().unwrap())
    );
    // The kubelet has replaced it, by the digest.
    let status = pod.containers[0].status.as_mut().unwrap();
    status.image_id = "registry.example/log-agent@sha256:1".into();
    assert!(state(&set, &pod).is_consistent());
    assert_eq!(settles_at(&set, &pod, NOW.parse().unwrap()), None);
}

/// Two edits while a kubelet is away: nothing is left for it to restart.
// SCS-55, SDF-32
#[test]
fn a_container_whose_image_is_asked_for_again_need_not_be_replaced() {
    let (set, mut pod) = being_upgraded("registry.example/log-agent:1.1");
    pod.containers[0].image = "registry.example/log-agent:1.0".into();
    assert_eq!(state_at(&set, &pod, 0).progress, Progress::BeforeRestart);
    assert_eq!(
        settles_at(&set, &pod, NOW.parse().unwrap()),
        Some("2026-11-22T01:56:40Z".parse().unwrap())
    );
    assert!(state_at(&set, &pod, 15).is_consistent());
    pod.containers[0].image = "registry.example/log-agent:1.1".into();
    assert!(!state_at(&set, &pod, 1000).is_consistent());
}

// SCS-55, SDF-32
#[test]
fn another_name_of_the_same_image_is_upgraded_once_the_former_container_must_be_gone() {
    let (set, mut pod) = being_upgraded("registry.example/log-agent:1.0-same");
    // The runtime has either name for it.
    for (shown, seconds, is_consistent) in [
        ("registry.example/log-agent:1.0-same", 0, true),
        ("registry.example/log-agent:1.0", 0, false),
        ("registry.example/log-agent:1.0", 14, false),
        ("registry.example/log-agent:1.0", 15, true),
    ] {
        start_anew(&mut pod, shown);
        let state = state_at(&set, &pod, seconds);
        assert_eq!(state.is_consistent(), is_consistent, "{shown} {seconds}");
    }
    pod.containers[0].status.as_mut().unwrap().running = None;
    assert!(!state_at(&set, &pod, 1000).is_consistent());
}

// SCS-55
#[test]
fn a_container_that_did_not_exist_is_upgraded_once_its_image_is_shown() {
    let before = observed(&recorded::documents("03-pod-injected")[0]);
    let mut waiting = before.containers[0].status.clone().unwrap();
    waiting.image_id = "".into();
    waiting.container_id = None;
    // Before the kubelet has seen the pod, and while it pulls the first image.
    for status in [None, Some(waiting)] {
        let mut pod = before.clone();
        pod.containers[0].status = status;
        let set = set("registry.example/log-agent:1.1");
        let mut pod = after_patch(&pod, &upgraded(&set, "r", &pod, NOW));
        pod.containers[0].status = before.containers[0].status.clone();
        start_anew(&mut pod, "registry.example/log-agent:1.0");
        assert!(!state(&set, &pod).is_consistent());
        start_anew(&mut pod, "registry.example/log-agent:1.1");
        assert!(state(&set, &pod).is_consistent());
    }
}

// SCS-55, SDF-1
#[test]
fn a_state_that_cannot_be_read_holds_up_nobody_for_ever() {
    let (set, mut pod) = being_upgraded("registry.example/log-agent:1.1");
    start_anew(&mut pod, "registry.example/log-agent:1.0");
    pod.annotations
        .extend([(IN_PLACE_STATE.into(), "no json".into())]);
    assert!(!state(&set, &pod).is_consistent());
    assert!(state_at(&set, &pod, 15).is_consistent());
    // Neither does a time that is to come.
    let hashes = pod.annotations.get(HASH).unwrap();
    let hashes = hashes.replace("2026-11-22T", "2999-11-22T");
    pod.annotations.extend([(HASH.into(), hashes.into())]);
    assert!(state(&set, &pod).is_consistent());
}

// SCS-55, SDF-32
#[test]
fn an_upgrade_by_openkruise_to_the_same_image_ends_with_a_later_start() {
    let mut pod = observed(&recorded::documents("04-pod-upgraded-in-place")[0]);
    let set = set("registry.example/log-agent:1.1");
    for (started, seconds, is_consistent) in [
        ("2026-11-22T01:56:24Z", 60, false),
        ("2026-11-22T01:56:26Z", 0, false),
        ("2026-11-22T01:56:26Z", 60, true),
    ] {
        pod.containers[0].status.as_mut().unwrap().running = Some(Some(started.parse().unwrap()));
        assert_eq!(
            state_at(&set, &pod, seconds).is_consistent(),
            is_consistent,
            "{started} {seconds}"
        );
    }
}

// SCS-55
#[test]
fn an_image_by_digest_is_compared_by_it() {
    let mut pod = observed(&recorded::documents("03-pod-injected")[0]);
    let set = set("registry.example/log-agent:1.0");
    for (digest, is_consistent) in [
        ("sha256:b", false),
        (
            "sha256:269b0384ee557c02c4a41c4e2939b611ac684ec5d5c9d47429b80f7db3f9a865",
            true,
        ),
    ] {
        pod.containers[0].image = format!("log-agent@{digest}").into();
        assert_eq!(state(&set, &pod).is_consistent(), is_consistent, "{digest}");
        assert!(
            state_at(&set, &pod, 100_000).is_consistent(),
            "not for ever"
        );
    }
}

/// The progress of a pod at each version that a kubelet made after its upgrade, from the image of the first version to
/// that of the last.
fn progress_on_a_kubelet(case: &str) -> Vec<Progress> {
    let versions = recorded::documents("14-kubelet").into_iter();
    let versions = versions.filter(|version| version["case"] == case);
    let mut versions: Vec<Value> = versions.map(|mut it| it["pod"].take()).collect();
    let is_native = versions[0]["spec"].get("initContainers").is_some();
    let list = if is_native {
        "initContainers"
    } else {
        "containers"
    };
    let mut sidecar = versions[3]["spec"][list][0].clone();
    sidecar["imagePullPolicy"] = json!("Never");
    let wire = json!({"metadata": {"name": "side", "uid": "s"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, list: [sidecar]}});
    let set = SidecarSet::parse(&serde_json::from_value(wire).unwrap()).unwrap();
    let mut annotations = json!({"kruise.io/sidecarset-injected-list": "side"});
    let mut seen = Vec::new();
    for version in &mut versions {
        version["metadata"]["labels"] = json!({"app": "a"});
        version["metadata"]["annotations"] = annotations.clone();
        let pod = ObservedPod::new(&serde_json::from_value(version.clone()).unwrap());
        if seen.is_empty() {
            let upgrade = upgraded(&set, "r", &pod, NOW);
            let patch = upgrade.patch["metadata"]["annotations"]
                .as_object()
                .unwrap();
            annotations.as_object_mut().unwrap().extend(patch.clone());
        }
        seen.push(state_at(&set, &pod, 60).progress);
    }
    seen.split_off(1)
}

// SCS-54, SCS-55, SDF-32, SDF-57
#[test]
fn a_pod_is_upgraded_once_a_kubelet_reports_another_container() {
    use Progress::{BeforeRestart, Consistent, Starting};
    for (case, expected) in [
        ("cold", [BeforeRestart, BeforeRestart, Consistent]),
        (
            "another-name-of-the-image",
            [BeforeRestart, BeforeRestart, Consistent],
        ),
        ("broken", [BeforeRestart, BeforeRestart, Starting]),
        ("corrected", [Starting, Starting, Consistent]),
        ("native", [BeforeRestart, BeforeRestart, Consistent]),
    ] {
        assert_eq!(progress_on_a_kubelet(case), expected, "{case}");
    }
}

// SCS-47, SCS-66
#[test]
fn a_pod_that_differs_in_more_than_its_images_is_not_upgradable() {
    let pod = observed(&recorded::documents("03-pod-injected")[0]);
    let mut wire = recorded::documents("01-sidecarset-stored").remove(1);
    wire["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "1"}]);
    let set = SidecarSet::parse(&serde_json::from_value(wire).unwrap()).unwrap();
    assert_eq!(state(&set, &pod).version, PodVersion::NotUpgradable);
}

// SDF-33
#[test]
fn a_pull_policy_that_follows_from_another_tag_makes_no_pod_not_upgradable() {
    let injected = recorded::documents("03-pod-injected").remove(0);
    let wire = |image: &str, policy: Option<&str>| {
        let mut set = recorded::documents("01-sidecarset-stored").remove(0);
        set["spec"]["containers"][0]["image"] = json!(image);
        set["spec"]["containers"][0]["imagePullPolicy"] = json!(policy);
        SidecarSet::parse(&serde_json::from_value(set).unwrap()).unwrap()
    };
    let mut pod = observed(&injected);
    for (image, policy, is_upgradable) in [
        ("log-agent:1.1", None, true),
        ("log-agent:latest", None, true),
        ("log-agent:latest", Some("Always"), false),
    ] {
        let set = wire(image, policy);
        let is_found = state(&set, &pod).version == PodVersion::Upgradable;
        assert_eq!(is_found, is_upgradable, "{image} {policy:?}");
    }
    // It was injected with another policy than it has now.
    pod.containers[0].pull_policy = Some("Always".into());
    let state = state(&wire("log-agent:latest", None), &pod);
    assert_eq!(state.version, PodVersion::NotUpgradable);
}

// SCS-6
#[test]
fn a_pod_belongs_to_a_set_that_injected_it_selects_it_and_whose_containers_it_has() {
    let set = set("registry.example/log-agent:1.0");
    let member = observed(&recorded::documents("03-pod-injected")[0]);
    let is_member = |change: fn(&mut ObservedPod)| {
        let mut pod = member.clone();
        change(&mut pod);
        {
            let label = None::<fn(&str) -> Option<&'static str>>;
            PodState::read(&set, &pod, label, NOW.parse().unwrap()).is_some()
        }
    };
    assert!(is_member(|_| {}));
    assert!(!is_member(|pod| pod.is_terminating = true));
    assert!(!is_member(
        |pod| pod.phase = crate::workload::pod::PodPhase::Ended
    ));
    assert!(!is_member(|pod| pod.labels = std::sync::Arc::default()));
    assert!(!is_member(|pod| pod
        .annotations
        .extend([(INJECTED_LIST.into(), "".into())])));
    assert!(!is_member(|pod| pod.containers = Box::default()));
}

// SDF-57
#[test]
fn a_native_sidecar_is_upgraded_among_the_init_containers() {
    let [mut wire, pod] = recorded::documents("10-native-sidecar").try_into().unwrap();
    wire["spec"]["initContainers"][1]["image"] = json!("registry.example/proxy:2");
    wire["spec"]["initContainers"][0]["image"] = json!("registry.example/setup:2");
    wire["spec"]["updateStrategy"]["type"] = json!("RollingUpdate");
    let set = SidecarSet::parse(&serde_json::from_value(wire).unwrap()).unwrap();
    let upgrade = upgraded(&set, "r", &observed(&pod), NOW);
    let images =
        json!({"initContainers": [{"name": "proxy", "image": "registry.example/proxy:2"}]});
    assert_eq!(upgrade.patch["spec"], images);
}

//! The recorded pods, what OpenKruise does wrong, and what holds for any pod and any sets.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::sidecarset::annotations::missing_variable;
use crate::sidecarset::metadata::Whitelist;
use crate::sidecarset::recorded;
use crate::workload::object::{inner, items};
use crate::workload::revision::{revision_hash, revision_name};

fn parse(set: &Value) -> SidecarSet {
    let wire = serde_json::from_value(set.clone()).unwrap();
    SidecarSet::parse(&wire).unwrap_or_else(|errors| panic!("{set}: {errors:?}"))
}

/// A set that selects every pod of the tests.
fn set(name: &str, created: &str, spec: &Value) -> SidecarSet {
    let mut wire = json!({
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
    });
    for (field, value) in spec.as_object().unwrap() {
        wire["spec"][field] = value.clone();
    }
    parse(&wire)
}

fn object(value: &Value) -> JsonObject {
    value.as_object().unwrap().clone()
}

const NOW: &str = "2026-11-22T01:58:33.5Z";

/// The names under which OpenKruise sorts init containers.
const AS_RECORDED: RenderOptions = RenderOptions {
    containers: ContainerOrder::BySet,
    init_containers: ContainerOrder::ByName,
};

fn inject_all(
    pod: &JsonObject,
    sets: &[SidecarSet],
    options: RenderOptions,
    now: &str,
) -> Injected {
    let revisions: Vec<_> = sets
        .iter()
        .map(|set| revision_name(&set.name, &revision_hash(&set.template.revision_data(), 0)))
        .collect();
    let whitelist = Whitelist::default();
    let injections: Vec<_> = sets
        .iter()
        .zip(&revisions)
        .map(|(set, revision)| Injection {
            set,
            template: &set.template,
            hashes: &set.hashes,
            revision,
            allowed_keys: whitelist.allowed_keys(|_| None, true),
            missing_pin: None,
        })
        .collect();
    inject_sets(pod, &injections, options, now.parse().unwrap())
}

/// A recorded pod as it came in: without what was injected.
fn before_injection(pod: &Value, volumes: &[&str], secrets: &[&str]) -> JsonObject {
    let mut pod = object(pod);
    pod.remove("status");
    let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.retain(|key, _| !is_ours(key));
    if annotations.is_empty() {
        pod["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("annotations");
    }
    let spec = pod["spec"].as_object_mut().unwrap();
    for (list, names) in [("volumes", volumes), ("imagePullSecrets", secrets)] {
        if let Some(list) = spec.get_mut(list).and_then(Value::as_array_mut) {
            list.retain(|one| names.contains(&one["name"].as_str().unwrap()));
        }
    }
    for list in ["containers", "initContainers"] {
        if let Some(list) = spec.get_mut(list).and_then(Value::as_array_mut) {
            list.retain(|one| !is_injected(one.as_object().unwrap()));
        }
    }
    spec.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
    pod
}

fn without_status(pod: &Value) -> Value {
    let mut pod = object(pod);
    pod.remove("status");
    pod.into()
}

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

fn pod() -> JsonObject {
    object(&json!({
        "metadata": {"name": "p", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "app:1", "newerField": {"x": 1}}], "newerList": [1]},
    }))
}

fn one(name: &str) -> Value {
    json!({"containers": [{"name": name, "image": "i:1"}]})
}

fn names(pod: &JsonObject) -> Vec<&str> {
    let spec = inner(pod, "spec").unwrap();
    items(spec, "containers")
        .filter_map(|one| text(one, "name"))
        .collect()
}

// SDF-3
#[test]
fn containers_of_several_sets_stand_in_the_order_of_the_sets_names() {
    let sets: Vec<_> = ["c", "a", "b"]
        .map(|name| set(name, "2026-01-01T00:00:00Z", &one(&format!("z-{name}"))))
        .into();
    let mut reversed = sets.clone();
    reversed.reverse();
    for sets in [sets, reversed] {
        let injected = inject_all(&pod(), &sets, RenderOptions::default(), NOW);
        assert_eq!(
            names(&injected.additions.apply(&pod())),
            ["z-a", "z-b", "z-c", "app"]
        );
    }
}

// SCS-9
#[test]
fn containers_can_be_sorted_by_name() {
    let sets = [
        set("a", "2026-01-01T00:00:00Z", &one("z")),
        set("b", "2026-01-01T00:00:00Z", &one("y")),
    ];
    let options = RenderOptions {
        containers: ContainerOrder::ByName,
        ..RenderOptions::default()
    };
    let injected = inject_all(&pod(), &sets, options, NOW);
    assert_eq!(names(&injected.additions.apply(&pod())), ["y", "z", "app"]);
}

// SCS-11, SDF-4
#[test]
fn the_container_of_a_pod_stays_and_the_set_is_left_out() {
    for spec in [
        one("app"),
        json!({"initContainers": [{"name": "app", "image": "i:1"}]}),
    ] {
        let injected = inject_all(
            &pod(),
            &[set("s", "2026-01-01T00:00:00Z", &spec)],
            RenderOptions::default(),
            NOW,
        );
        assert!(injected.additions.is_empty() && injected.sets.is_empty());
        assert_eq!(
            injected.remarks,
            [("s".into(), Remark::OwnContainer("app".into()))]
        );
        assert!(injected.remarks[0].1.leaves_out_the_set());
    }
}

// SDF-1, SDF-4
#[test]
fn a_set_is_left_out_of_a_copied_pod_that_has_its_container_in_the_other_list() {
    let injected =
        json!({"name": "log", "image": "old:1", "env": [{"name": "IS_INJECTED", "value": "true"}]});
    let container = one("log");
    let native =
        json!({"initContainers": [{"name": "log", "image": "i:1", "restartPolicy": "Always"}]});
    for (spec, list, is_left_out) in [
        (&container, "containers", false),
        (&container, "initContainers", true),
        (&native, "containers", true),
        (&native, "initContainers", false),
    ] {
        let mut copy = pod();
        let copied = copy["spec"].as_object_mut().unwrap();
        let list = copied.entry(list).or_insert(json!([]));
        list.as_array_mut().unwrap().push(injected.clone());
        let set = set("s", "2026-01-01T00:00:00Z", spec);
        let injected = inject_all(&copy, &[set], RenderOptions::default(), NOW);
        let expected = is_left_out.then(|| ("s".into(), Remark::OwnContainer("log".into())));
        assert_eq!(injected.remarks, Vec::from_iter(expected), "{spec}");
    }
}

/// What is said of a set with this spec and a pod whose spec has these fields.
fn remarks(spec: &Value, own: &Value) -> Vec<String> {
    let mut pod = pod();
    for (field, value) in own.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    let set = set("s", "2026-01-01T00:00:00Z", spec);
    let injected = inject_all(&pod, &[set], RenderOptions::default(), NOW);
    let remarks = injected.remarks.into_iter();
    remarks.map(|(_, remark)| remark.to_string()).collect()
}

/// A container with ports, each with its port of the host.
fn with_ports(name: &str, ports: &[[u16; 2]]) -> Value {
    let ports = ports.iter();
    let ports = ports.map(|[own, host]| json!({"containerPort": own, "hostPort": host}));
    json!({"name": name, "image": "i:1", "ports": ports.collect::<Vec<_>>()})
}

// SDF-1
#[rstest::rstest]
#[case(json!([with_ports("side", &[[80, 0]])]), json!({"containers": [with_ports("app", &[[80, 0]])]}), "")]
#[case(json!([with_ports("side", &[[80, 8080]])]), json!({"containers": [with_ports("app", &[[80, 8081]])]}), "")]
#[case(json!([with_ports("side", &[[80, 8080]])]), json!({"containers": [with_ports("app", &[[81, 8080]])]}), "host port 8080/TCP is taken")]
// Init containers run one after the other.
#[case(json!([with_ports("side", &[[80, 8080]])]), json!({"initContainers": [with_ports("setup", &[[80, 8080]])]}), "")]
// On the host's network each port of a container is one of the host.
#[case(json!([with_ports("side", &[[80, 0]])]), json!({"hostNetwork": true}), "")]
#[case(json!([with_ports("side", &[[80, 0]])]), json!({"hostNetwork": true, "containers": [with_ports("app", &[[80, 80]])]}), "host port 80/TCP is taken")]
#[case(json!([with_ports("side", &[[80, 0]])]), json!({"hostNetwork": true, "containers": [with_ports("app", &[[80, 0]])]}), "host port 80/TCP is taken")]
#[case(json!([with_ports("side", &[[80, 0]]), with_ports("other", &[[80, 0]])]), json!({}), "")]
#[case(json!([with_ports("side", &[[80, 0]]), with_ports("other", &[[80, 0]])]), json!({"hostNetwork": true}), "host port 80/TCP is taken")]
#[case(json!([with_ports("side", &[[80, 8080]])]), json!({"hostNetwork": true}), "host port 8080/TCP cannot be another than the container's")]
#[case(json!([{"name": "side", "image": "i:1", "ports": [{"containerPort": 80}],
    "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e:1"}}]), json!({"hostNetwork": true}), "host port 80/TCP is taken")]
fn a_set_is_left_out_of_a_pod_in_which_a_port_of_the_host_is_taken(
    #[case] containers: Value,
    #[case] own: Value,
    #[case] remark: &str,
) {
    let remarks = remarks(&json!({ "containers": containers }), &own);
    assert_eq!(
        remarks.len(),
        usize::from(!remark.is_empty()),
        "{remarks:?}"
    );
    assert!(
        remarks.iter().all(|one| one.contains(remark)),
        "{remarks:?}"
    );
}

// SDF-1
#[test]
fn a_container_that_is_replaced_takes_no_port() {
    let mut old = with_ports("side", &[[80, 8080]]);
    old["env"] = json!([{"name": "IS_INJECTED", "value": "true"}]);
    let spec = json!({"containers": [with_ports("side", &[[80, 8080]])]});
    assert!(remarks(&spec, &json!({"containers": [old]})).is_empty());
}

// SDF-1, SDF-19
#[test]
fn of_two_sets_that_take_one_port_of_the_host_the_older_is_injected() {
    let of = |name, port: [u16; 2]| json!({"containers": [with_ports(name, &[port])]});
    for (port, is_on_host_network) in [([80, 8080], false), ([80, 0], true)] {
        let sets = [
            set("a", "2026-01-02T00:00:00Z", &of("one", port)),
            set("b", "2026-01-01T00:00:00Z", &of("two", port)),
        ];
        let mut pod = pod();
        pod["spec"]["hostNetwork"] = json!(is_on_host_network);
        let injected = inject_all(&pod, &sets, RenderOptions::default(), NOW);
        assert_eq!(injected.sets, ["b".into()], "{port:?}");
        let remark = injected.remarks[0].1.to_string();
        assert!(
            remark.contains("\"b\", which is older, has host port"),
            "{remark}"
        );
    }
}

// SDF-1, SDF-12
#[test]
fn a_set_is_left_out_of_a_pod_whose_volume_is_no_device_of_it() {
    let spec = json!({
        "containers": [{"name": "side", "image": "i:1", "volumeDevices": [{"name": "data", "devicePath": "/dev/x"}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "raw"}}],
    });
    for (source, claim, is_left_out) in [
        ("emptyDir", json!({}), true),
        ("persistentVolumeClaim", json!({"claimName": "other"}), true),
        ("persistentVolumeClaim", json!({"claimName": "raw"}), false),
    ] {
        let own = json!({"volumes": [{"name": "data", source: claim}]});
        let remarks = remarks(&spec, &own);
        assert_eq!(
            remarks.len(),
            usize::from(is_left_out),
            "{own}: {remarks:?}"
        );
        assert!(remarks.iter().all(|one| one.contains("is not injected")));
    }
}

// SCS-14, SDF-1
#[test]
fn no_volume_becomes_a_mount_and_a_device_of_one_container() {
    let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "raw"}});
    let mut pod = pod();
    pod["spec"]["volumes"] = json!([claim]);
    let app = &mut pod["spec"]["containers"][0];
    app["volumeMounts"] = json!([{"name": "data", "mountPath": "/m"}]);
    app["volumeDevices"] = json!([{"name": "data", "devicePath": "/dev/app"}]);
    let spec = json!({
        "containers": [{
            "name": "side", "image": "i:1", "volumeDevices": [{"name": "data", "devicePath": "/dev/x"}],
            "shareVolumePolicy": {"type": "enabled"}, "shareVolumeDevicePolicy": {"type": "enabled"},
        }],
        "volumes": [claim],
    });
    let set = set("s", "2026-01-01T00:00:00Z", &spec);
    let injected = inject_all(&pod, &[set], RenderOptions::default(), NOW);
    let side = &injected.additions.containers.before[0];
    assert_eq!(side.get("volumeMounts"), None);
    assert_eq!(side["volumeDevices"].as_array().unwrap().len(), 1);
}

// SCS-11
#[test]
fn an_injected_container_is_replaced_where_it_stands() {
    let mut pod = pod();
    let old = json!({"name": "side", "image": "old:1", "env": [{"name": "IS_INJECTED", "value": "true"}]});
    list_mut(&mut pod).push(old);
    let injected = inject_all(
        &pod,
        &[set("s", "2026-01-01T00:00:00Z", &one("side"))],
        RenderOptions::default(),
        NOW,
    );
    let after = injected.additions.apply(&pod);
    assert_eq!(names(&after), ["app", "side"]);
    assert_eq!(after["spec"]["containers"][1]["image"], "i:1");
}

/// As a real API server answered (1.34.4): with `remark` it refuses the pod with the set, else it accepts it.
// SDF-1
#[rstest::rstest]
#[case(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 60}}}}), json!({"terminationGracePeriodSeconds": 100}), "")]
#[case(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 30}}}}), json!({}), "")]
#[case(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}), json!({}), "lifecycle.preStop.sleep of 31 s of container \"side\" is not possible in a pod with terminationGracePeriodSeconds 30")]
#[case(json!({"lifecycle": {"postStart": {"sleep": {"seconds": 5}}}}), json!({"terminationGracePeriodSeconds": 0}), "lifecycle.postStart.sleep")]
#[case(json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}), json!({}), "")]
#[case(json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}), json!({"restartPolicy": "Never"}), "resizePolicy")]
#[case(json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}), json!({"restartPolicy": "Never"}), "")]
#[case(json!({"securityContext": {"runAsUser": 1}}), json!({"os": {"name": "windows"}}), "securityContext.runAsUser of container \"side\" is not possible in a pod of windows")]
#[case(json!({"securityContext": {"runAsNonRoot": true}}), json!({"os": {"name": "windows"}}), "")]
#[case(json!({"securityContext": {"windowsOptions": {"runAsUserName": "a"}}}), json!({}), "")]
#[case(json!({"securityContext": {"windowsOptions": {"runAsUserName": "a"}}}), json!({"os": {"name": "linux"}}), "securityContext.windowsOptions")]
#[case(json!({"securityContext": {"procMount": "Unmasked"}}), json!({}), "procMount Unmasked")]
#[case(json!({"securityContext": {"procMount": "Unmasked"}}), json!({"hostUsers": false}), "")]
#[case(json!({"volumeDevices": [{"name": "v", "devicePath": "/v"}]}), json!({"hostUsers": false}), "volumeDevices")]
#[case(json!({"resources": {"claims": [{"name": "x"}]}}), json!({"resourceClaims": [{"name": "x", "resourceClaimName": "y"}]}), "")]
#[case(json!({"resources": {"claims": [{"name": "x"}]}}), json!({"resourceClaims": [{"name": "y", "resourceClaimName": "y"}]}), "claim \"x\"")]
#[case(json!({}), json!({"containers": [{"name": "app", "securityContext": {"windowsOptions": {"hostProcess": true}}}]}), "hostProcess: false")]
#[case(json!({}), json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}), "")]
#[case(json!({"resources": {"requests": {"cpu": "200m"}}}), json!({"resources": {"requests": {"cpu": "100m"}}}), "more cpu")]
#[case(json!({"resources": {"requests": {"cpu": "100m"}}}), json!({"resources": {"requests": {"cpu": "100m"}}}), "")]
#[case(json!({"resources": {"requests": {"cpu": "200m"}}}), json!({"resources": {"requests": {"memory": "100Mi"}}}), "")]
#[case(json!({"resources": {"requests": {"memory": "200Mi"}}}), json!({"resources": {"limits": {"memory": "100Mi"}}}), "more memory")]
#[case(json!({"resources": {"limits": {"cpu": "200m"}, "requests": {"cpu": "10m"}}}), json!({"resources": {"limits": {"cpu": "100m"}, "requests": {"cpu": "100m"}}}), "more cpu")]
#[case(json!({"resources": {"limits": {"cpu": "200m"}, "requests": {"cpu": "1m"}}}),
    json!({"resources": {"limits": {"cpu": "300m"}}, "containers": [{"name": "app", "resources": {"limits": {"cpu": "200m"}, "requests": {"cpu": "1m"}}}]}), "")]
#[case(json!({"resources": {"requests": {"cpu": "200m"}}}),
    json!({"resources": {"requests": {"cpu": "300m"}}, "containers": [{"name": "app", "resources": {"requests": {"cpu": "200m"}}}]}), "more cpu")]
#[case(json!({"resources": {"requests": {"cpu": "200m"}}}),
    json!({"resources": {"requests": {"cpu": "300m"}}, "initContainers": [{"name": "setup", "resources": {"requests": {"cpu": "300m"}}}]}), "")]
#[case(json!({"resources": {"requests": {"cpu": "200m"}}}),
    json!({"resources": {"requests": {"cpu": "300m"}}, "initContainers": [{"name": "native", "restartPolicy": "Always", "resources": {"limits": {"cpu": "200m"}}}]}), "more cpu")]
fn a_set_is_left_out_of_a_pod_that_cannot_have_its_container(
    #[case] fields: Value,
    #[case] own: Value,
    #[case] remark: &str,
) {
    let mut side = json!({"name": "side", "image": "i:1"});
    side.as_object_mut().unwrap().extend(object(&fields));
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    let remarks = remarks(&json!({"containers": [side], "volumes": volumes}), &own);
    let expected = usize::from(!remark.is_empty());
    assert_eq!(remarks.len(), expected, "{remarks:?}");
    let is_it = |one: &String| one.starts_with("is not injected: ") && one.contains(remark);
    assert!(remarks.iter().all(is_it), "{remarks:?}");
}

// SDF-1, SDF-19
#[test]
fn the_youngest_set_is_left_out_of_a_pod_that_has_no_room_for_all() {
    let with_cpu = |name: &str, created: &str, cpu: &str| {
        let requests = json!({"requests": {"cpu": cpu}});
        let side = json!({"name": name, "image": "i:1", "resources": requests});
        set(name, created, &json!({"containers": [side]}))
    };
    let sets = [
        with_cpu("a", "2026-01-01T00:00:02Z", "200m"),
        with_cpu("b", "2026-01-01T00:00:01Z", "200m"),
        set("c", "2026-01-01T00:00:03Z", &one("c")),
    ];
    let mut crowded = pod();
    crowded["spec"]["resources"] = json!({"requests": {"cpu": "300m"}});
    let injected = inject_all(&crowded, &sets, RenderOptions::default(), NOW);
    assert_eq!(
        names(&injected.additions.apply(&crowded)),
        ["b", "c", "app"]
    );
    // Of annotations each set has some: there is room for those of one.
    let plain = inject_all(&pod(), &sets[1..2], RenderOptions::default(), NOW);
    let recorded = plain.additions.annotations.iter();
    let recorded = recorded.map(|(key, value)| key.len() + value.as_deref().map_or(0, str::len));
    let room = limits::ANNOTATIONS_BYTES - "own".len() - recorded.sum::<usize>();
    let mut annotated = pod();
    annotated["metadata"]["annotations"]["own"] = json!("x".repeat(room));
    let injected = inject_all(&annotated, &sets, RenderOptions::default(), NOW);
    assert_eq!(names(&injected.additions.apply(&annotated)), ["b", "app"]);
    let left_out: Vec<_> = injected.remarks.iter().map(|(set, _)| &**set).collect();
    assert_eq!(left_out, ["c", "a"]);
    annotated["metadata"]["annotations"]["own"] = json!("x".repeat(room + 1));
    let injected = inject_all(&annotated, &sets, RenderOptions::default(), NOW);
    assert!(injected.additions.is_empty() && injected.sets.is_empty());
}

// SCS-14, SDF-1
#[test]
fn a_mount_that_needs_privileges_is_shared_without_what_needs_them() {
    let mut pod = pod();
    pod["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": "/h"}}]);
    let app = &mut pod["spec"]["containers"][0];
    app["volumeMounts"] =
        json!([{"name": "host", "mountPath": "/h", "mountPropagation": "Bidirectional"}]);
    for (is_privileged, expected) in [(false, "HostToContainer"), (true, "Bidirectional")] {
        let spec = json!({"containers": [{
            "name": "side", "image": "i:1", "shareVolumePolicy": {"type": "enabled"},
            "securityContext": {"privileged": is_privileged},
        }]});
        let set = set("s", "2026-01-01T00:00:00Z", &spec);
        let injected = inject_all(&pod, &[set], RenderOptions::default(), NOW);
        let side = &injected.additions.containers.before[0];
        assert_eq!(side["volumeMounts"][0]["mountPropagation"], expected);
    }
}

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
        "annotation \"b\" is left as it is: with it, the annotations of the pod would have more than 256 KiB"
    );
}

fn list_mut(pod: &mut JsonObject) -> &mut Vec<Value> {
    pod["spec"]["containers"].as_array_mut().unwrap()
}

// SCS-78, SDF-18, SDF-19
#[test]
fn of_two_sets_that_cannot_be_on_one_pod_the_older_is_injected() {
    let [older, newer] = [
        set("z", "2026-01-01T00:00:00Z", &one("side")),
        set("a", "2026-01-02T00:00:00Z", &one("side")),
    ];
    for sets in [[older.clone(), newer.clone()], [newer, older]] {
        let injected = inject_all(&pod(), &sets, RenderOptions::default(), NOW);
        assert_eq!(injected.sets, ["z".into()]);
        let remark = injected.remarks[0].1.to_string();
        assert_eq!(
            remark,
            "is not injected: SidecarSet \"z\", which is older, has container \"side\" too"
        );
    }
}

// SCS-19, SCS-21, SDF-1, SDF-10
#[test]
fn resources_are_computed_from_what_no_set_injects() {
    let requests = |cpu: &str| json!({"cpu": cpu});
    let policy = |mode: &str, names: &str| {
        json!({
            "targetContainersMode": mode,
            "targetContainersNameRegex": names,
            "resourcesExpr": {"requests": requests("cpu*50%"), "limits": requests("cpu*50%")},
        })
    };
    let side = |name: &str, names: &str| json!({"name": name, "image": "i:1", "resourcesPolicy": policy("sum", names)});
    let mut hot = side("hot", ".*");
    hot["upgradeStrategy"] = json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e"});
    let mut native = side("native", "^own");
    native["restartPolicy"] = json!("Always");
    let fixed = json!({"name": "fixed", "image": "i:1", "resources": {"requests": requests("4")}});
    let sets = [
        set(
            "a",
            "2026-01-01T00:00:00Z",
            &json!({"containers": [side("side", ".*"), hot], "initContainers": [native]}),
        ),
        set("b", "2026-01-01T00:00:00Z", &json!({"containers": [fixed]})),
    ];
    let own = |name: &str, cpu: &str| json!({"name": name, "image": "i", "resources": {"requests": requests(cpu), "limits": requests(cpu)}});
    let mut own_native = own("own-native", "200m");
    own_native["restartPolicy"] = json!("Always");
    let mut pod = pod();
    pod["spec"]["containers"] = json!([own("app", "1")]);
    pod["spec"]["initContainers"] = json!([own("setup", "8"), own_native]);
    let options = RenderOptions::default();
    let injected = inject_all(&pod, &sets, options, NOW);
    assert_eq!(injected.remarks, []);
    let after = injected.additions.apply(&pod);
    let resources = |list: &str, name: &str| {
        let mut found = items(inner(&after, "spec").unwrap(), list);
        let found = found.find(|one| text(one, "name") == Some(name)).unwrap();
        found["resources"]["requests"]["cpu"].clone()
    };
    for name in ["side", "hot-1", "hot-2"] {
        assert_eq!(resources("containers", name), "600m", "{name}");
    }
    assert_eq!(resources("initContainers", "native"), "100m");
    // Of a copied pod they are what they were.
    let again = inject_all(&after, &sets, options, NOW)
        .additions
        .apply(&after);
    assert_eq!(again, after);

    pod["spec"]["containers"] = json!([{"name": "app", "image": "i"}]);
    let injected = inject_all(&pod, &sets[..1], options, NOW);
    let remarks: Vec<_> = injected
        .remarks
        .iter()
        .map(|(_, remark)| remark.to_string())
        .collect();
    let unlimited = |name: &str| {
        format!("gives container {name:?} no limit of cpu: container \"app\" of the pod has none")
    };
    assert_eq!(remarks, [unlimited("side"), unlimited("hot")]);
    assert!(!injected.remarks[0].1.leaves_out_the_set());
}

// SDF-12
#[test]
fn a_volume_of_the_pod_is_used_and_a_different_one_is_reported() {
    let spec = json!({
        "containers": [{"name": "side", "image": "i:1", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
        "volumes": [{"name": "data"}],
    });
    let set = set("s", "2026-01-01T00:00:00Z", &spec);
    for (own, remarks) in [
        (json!({"name": "data", "emptyDir": {}}), 0),
        (json!({"name": "data", "hostPath": {"path": "/"}}), 1),
    ] {
        let mut pod = pod();
        pod["spec"]["volumes"] = json!([own]);
        let injected = inject_all(
            &pod,
            std::slice::from_ref(&set),
            RenderOptions::default(),
            NOW,
        );
        assert_eq!(injected.remarks.len(), remarks, "{own}");
        assert_eq!(
            injected.additions.apply(&pod)["spec"]["volumes"],
            json!([own])
        );
    }
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
    let first = (String::from("app"), String::from("A"));
    assert_eq!(missing_variable(text, "side"), Some(first));
    assert_eq!(missing_variable(text, "other"), None);
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

// SCS-14
#[test]
fn a_device_is_not_shared_where_the_sidecar_mounts() {
    let mut pod = pod();
    pod["spec"]["containers"][0]["volumeDevices"] =
        json!([{"name": "b", "devicePath": "/x"}, {"name": "c", "devicePath": "/y"}]);
    let spec = json!({
        "containers": [{
            "name": "side", "image": "i:1", "shareVolumeDevicePolicy": {"type": "enabled"},
            "volumeMounts": [{"name": "v", "mountPath": "/x"}],
        }],
        "volumes": [{"name": "v"}],
    });
    let injected = inject_all(
        &pod,
        &[set("s", "2026-01-01T00:00:00Z", &spec)],
        RenderOptions::default(),
        NOW,
    );
    let after = injected.additions.apply(&pod);
    assert_eq!(
        after["spec"]["containers"][0]["volumeDevices"],
        json!([{"name": "c", "devicePath": "/y"}])
    );
}

/// Applies a JSON patch as far as the rules write one.
fn apply_json_patch(pod: &JsonObject, operations: &[Value]) -> Value {
    let mut pod = Value::Object(pod.clone());
    for operation in operations {
        let path = operation["path"].as_str().unwrap();
        let (parent, key) = path.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/").replace("~0", "~");
        let value = operation["value"].clone();
        match (
            pod.pointer_mut(parent).unwrap(),
            operation["op"].as_str().unwrap(),
        ) {
            (Value::Array(list), "add") if key == "-" => list.push(value),
            (Value::Array(list), "add") => list.insert(key.parse().unwrap(), value),
            (Value::Array(list), "replace") => list[key.parse::<usize>().unwrap()] = value,
            (Value::Object(object), "add") => drop(object.insert(key, value)),
            (Value::Object(object), "remove") => drop(object.remove(&key).unwrap()),
            other => panic!("{other:?}"),
        }
    }
    pod
}

fn any_set() -> impl Strategy<Value = SidecarSet> {
    let container = (0..4_usize, any::<[bool; 4]>()).prop_map(|(name, [after, hot, share, mount])| {
        let name = ["app", "side", "side-1", "log"][name];
        json!({
            "name": name, "image": "i:1",
            "podInjectPolicy": if after { "AfterAppContainer" } else { "BeforeAppContainer" },
            "upgradeStrategy": if hot { json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e:1"}) } else { json!({}) },
            "shareVolumePolicy": {"type": if share { "enabled" } else { "disabled" }},
            "volumeMounts": if mount { json!([{"name": "v", "mountPath": "/v"}]) } else { json!([]) },
            "transferEnv": [{"sourceContainerName": "app", "envName": "A"}, {"sourceContainerName": "log", "envName": "B"}],
        })
    });
    let policy = prop_oneof![Just("Retain"), Just("Overwrite"), Just("MergePatchJson")];
    (0..4_usize, 0..3_u8, container, policy, any::<bool>()).prop_map(|(name, age, container, policy, init)| {
        let mut spec = json!({
            "containers": [container], "volumes": [{"name": "v"}], "imagePullSecrets": [{"name": "r"}],
            "patchPodMetadata": [{"patchPolicy": policy, "annotations": {"m": "{\"a\":1}"}}],
        });
        if init {
            spec["initContainers"] = json!([{"name": "setup", "image": "i:1", "restartPolicy": "Always"}]);
        }
        set(["a", "b", "c", "d"][name], &format!("2026-01-0{}T00:00:00Z", age + 1), &spec)
    })
}

fn any_pod() -> impl Strategy<Value = JsonObject> {
    any::<[bool; 5]>().prop_map(|[volumes, copied, mount, merged, second]| {
        let mut pod = pod();
        pod["spec"]["containers"][0]["env"] =
            json!([{"name": "A", "value": "1"}, {"name": "P", "value": "2"}]);
        if volumes {
            pod["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": "/"}}]);
        }
        if mount {
            pod["spec"]["containers"][0]["volumeMounts"] =
                json!([{"name": "v", "mountPath": "/w", "subPathExpr": "$(P)"}]);
        }
        if merged {
            pod["metadata"]["annotations"] = json!({"m": "{\"b\": 2}"});
        }
        if copied {
            pod["metadata"]["annotations"] = json!({INJECTED_LIST: "gone", "x/y~z": "1"});
        }
        if second {
            list_mut(&mut pod)
                .push(json!({"name": "log", "image": "l:1", "env": [{"name": "B", "value": "3"}]}));
        }
        pod
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // SCS-9, SCS-21, SDF-1, SDF-3, SDF-19
    #[test]
    fn an_injection_is_the_same_in_any_order_changes_nothing_of_the_pods_own_and_repeats_itself(
        sets in proptest::collection::vec(any_set(), 0..4),
        before in any_pod(),
    ) {
        let mut unique = BTreeMap::new();
        for set in sets {
            unique.insert(set.name.clone(), set);
        }
        let sets: Vec<_> = unique.into_values().collect();
        let reversed: Vec<_> = sets.iter().rev().cloned().collect();
        let options = RenderOptions::default();
        let injected = inject_all(&before, &sets, options, NOW);
        let other = inject_all(&before, &reversed, options, NOW);
        prop_assert_eq!(&injected.additions, &other.additions);
        let after = injected.additions.apply(&before);
        prop_assert_eq!(apply_json_patch(&before, &injected.additions.json_patch(&before)), Value::Object(after.clone()));
        // Each name once, and the pod's own containers as they were, in their order.
        let all = names(&after);
        let unique: BTreeSet<_> = all.iter().collect();
        prop_assert_eq!(unique.len(), all.len());
        let own: Vec<_> = PodView::new(&after).own_containers().cloned().collect();
        let former: Vec<_> = PodView::new(&before).own_containers().cloned().collect();
        prop_assert_eq!(own, former);
        // The same sets are injected again, and but for merged annotations nothing differs.
        let again = inject_all(&after, &sets, options, NOW);
        prop_assert_eq!(&again.sets, &injected.sets);
        prop_assert_eq!(Value::Object(again.additions.apply(&after)), Value::Object(after));
    }
}

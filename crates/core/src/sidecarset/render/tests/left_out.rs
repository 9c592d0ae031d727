//! Sets that are left out of a pod that cannot have them.

use super::*;

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

/// As a real API server answered (1.34.4): with `remark` it refuses the pod with the set, else it accepts it.
// SDF-1
#[rstest::rstest]
#[case(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 60}}}}), json!({"terminationGracePeriodSeconds": 100}), "")]
#[case(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 30}}}}), json!({}), "")]
#[case(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}), json!({}), "lifecycle.preStop.sleep of 31 s of container \"side\" is not possible in a pod with terminationGracePeriodSeconds 30; shorten the sleep, or raise terminationGracePeriodSeconds")]
#[case(json!({"lifecycle": {"postStart": {"sleep": {"seconds": 5}}}}), json!({"terminationGracePeriodSeconds": 0}), "lifecycle.postStart.sleep")]
#[case(json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}), json!({}), "")]
#[case(json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}), json!({"restartPolicy": "Never"}), "with restartPolicy Never; use NotRequired in the set, or another restartPolicy in the pod")]
#[case(json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}), json!({"restartPolicy": "Never"}), "")]
#[case(json!({"securityContext": {"runAsUser": 1}}), json!({"os": {"name": "windows"}}), "securityContext.runAsUser of container \"side\" is not possible in a pod of windows; take the field out of the set")]
#[case(json!({"securityContext": {"runAsNonRoot": true}}), json!({"os": {"name": "windows"}}), "")]
#[case(json!({"securityContext": {"windowsOptions": {"runAsUserName": "a"}}}), json!({}), "")]
#[case(json!({"securityContext": {"windowsOptions": {"runAsUserName": "a"}}}), json!({"os": {"name": "linux"}}), "securityContext.windowsOptions of container \"side\" is not possible in a pod of linux; take the field out of the set")]
#[case(json!({"securityContext": {"procMount": "Unmasked"}}), json!({}), "a pod without hostUsers: false; take procMount out of the set, or add hostUsers: false to the pod")]
#[case(json!({"securityContext": {"procMount": "Unmasked"}}), json!({"hostUsers": false}), "")]
#[case(json!({"volumeDevices": [{"name": "v", "devicePath": "/v"}]}), json!({"hostUsers": false}), "a pod with hostUsers: false; take the devices out of the set, or hostUsers out of the pod")]
#[case(json!({"resources": {"claims": [{"name": "x"}]}}), json!({"resourceClaims": [{"name": "x", "resourceClaimName": "y"}]}), "")]
#[case(json!({"resources": {"claims": [{"name": "x"}]}}), json!({"resourceClaims": [{"name": "y", "resourceClaimName": "y"}]}), "has no such one in resourceClaims; add it to the pod, or take it out of the set")]
#[case(json!({}), json!({"containers": [{"name": "app", "securityContext": {"windowsOptions": {"hostProcess": true}}}]}), "a pod with true; set the field alike in both")]
#[case(json!({}), json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}), "")]
#[case(json!({"resources": {"requests": {"cpu": "200m"}}}), json!({"resources": {"requests": {"cpu": "100m"}}}), "more cpu in its containers than in spec.resources; lower the requests and limits of the set's containers, or raise")]
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

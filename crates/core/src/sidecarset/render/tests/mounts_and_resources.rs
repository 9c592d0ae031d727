//! What a sidecar shares with the pod's containers, and the resources that follow from them.

use super::*;

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

// SCS-78
#[test]
fn each_volume_of_the_sets_is_added_and_one_that_two_have_is_added_once() {
    let spec = |name: &str, volumes: [&str; 2]| {
        let mounts = volumes.map(|one| json!({"name": one, "mountPath": format!("/{one}")}));
        json!({
            "containers": [{"name": name, "image": "i:1", "volumeMounts": mounts}],
            "volumes": volumes.map(|one| json!({"name": one, "emptyDir": {}})),
        })
    };
    let sets = [
        set("a", "2026-01-01T00:00:00Z", &spec("a", ["logs", "work"])),
        set("b", "2026-01-02T00:00:00Z", &spec("b", ["work", "cache"])),
    ];
    let injected = inject_all(&pod(), &sets, RenderOptions::default(), NOW);
    let volumes = injected.additions.volumes.iter();
    let names: Vec<_> = volumes.map(|one| text(one, "name").unwrap()).collect();
    assert_eq!(names, ["logs", "work", "cache"]);
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

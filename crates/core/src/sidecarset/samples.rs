//! Valid and nearly valid sets. Tests run the parser and an API server with the CRD over the same ones, so that neither
//! accepts what the other refuses but for [`PARSER_ALONE`]. Feature `samples`, for tests alone.

use serde_json::{Value, json};

use crate::samples::Mutations;

/// Faults that the parser refuses and the CRD does not, by a part of the parser's message, and why CEL cannot say it.
pub const PARSER_ALONE: &[(&str, &str)] = &[
    (
        "is not a quantity such as",
        "amounts have no schema: a pod takes 0.5, and a schema either numbers without a point or texts",
    ),
    (
        "has a field of another type",
        "amounts, as above, and numbers beyond 32 bits, whose format the API server does not enforce",
    ),
    (
        "is mounted twice",
        "the path of a mount is that of a device; within each list it is the key of its items",
    ),
    ("is no JSON object or array", "CEL does not parse JSON"),
    ("levels deep", "CEL does not parse JSON"),
    (
        "cannot be set beside limits or requests in resources",
        "amounts, as above: CEL does not see a map of them",
    ),
    ("is not an expression of", "CEL does not parse expressions"),
    (
        "is not a regular expression",
        "a '{' that begins no repetition is a letter to RE2, by which the API server reads it, and refused by the parser",
    ),
    (
        "canary sets are not supported",
        "rules of a CRD do not see annotations",
    ),
    (
        crate::workload::validity::REFUSED,
        "a rule for each field of each container would take more than the cost that all rules may have",
    ),
    (
        "needs exactly one of exec",
        "a rule for each probe of each container would take a third of the cost that all rules may have",
    ),
];

/// The smallest valid set.
pub fn smallest() -> Value {
    json!({
        "apiVersion": "apps.kruise.io/v1beta1",
        "kind": "SidecarSet",
        "metadata": {"name": "log-agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": "log-agent", "image": "log-agent:1"}],
        },
    })
}

/// A valid set with nearly every field.
pub fn fullest() -> Value {
    let probe = json!({"httpGet": {"port": "http", "path": "/ready", "scheme": "HTTP"}, "periodSeconds": 5});
    let mesh = json!({
        "name": "mesh",
        "image": "registry.example/mesh:1.0",
        "command": ["/bin/mesh"],
        "env": [
            {"name": "A", "value": "b"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": 0.1}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "config", "mountPath": "/config"}],
        "readinessProbe": probe,
        "imagePullPolicy": "Always",
        "podInjectPolicy": "AfterAppContainer",
        "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "registry.example/empty:1"},
        "shareVolumePolicy": {"type": "enabled"},
        "shareVolumeDevicePolicy": {"type": "disabled"},
        "transferEnv": [
            {"sourceContainerName": "main", "envName": "X"},
            {"sourceContainerNameFrom": {"fieldRef": {"fieldPath": "metadata.labels['main']"}}, "envNames": ["Y", "Z"]},
        ],
    });
    let log = json!({
        "name": "log",
        "image": "registry.example/log@sha256:0123",
        "livenessProbe": {"tcpSocket": {"port": 80}},
        "volumeDevices": [{"name": "block", "devicePath": "/dev/x"}],
        "upgradeStrategy": {"upgradeType": "ColdUpgrade"},
        "fieldOfALaterVersion": {"a": [1]},
        "resourcesPolicy": resources_policy(),
    });
    let init = json!({
        "name": "init",
        "image": "init:1",
        "podInjectPolicy": "BeforeAppContainer",
        "restartPolicy": "Always",
        "resourcesPolicy": {"targetContainersMode": "max", "resourcesExpr": {"requests": {"memory": "memory/3"}}},
    });
    json!({
        "apiVersion": "apps.kruise.io/v1beta1",
        "kind": "SidecarSet",
        "metadata": {"name": "mesh"},
        "spec": {
            "selector": {
                "matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
            },
            "namespaceSelector": {"matchLabels": {"team.example/name": "x"}},
            "initContainers": [init],
            "containers": [mesh, log],
            "volumes": [
                {"name": "data"},
                {"name": "config", "configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}},
                {"name": "block", "persistentVolumeClaim": {"claimName": "x"}},
            ],
            "imagePullSecrets": [{"name": "registry"}],
            "patchPodMetadata": [
                {"patchPolicy": "MergePatchJson", "annotations": {"a.example/json": "{\"k\":1}"}},
                {"annotations": {"B.Example/text": "x"}},
            ],
            "injectionStrategy": {"revision": {"customVersion": "v1", "policy": "Partial"}},
            "updateStrategy": {
                "type": "RollingUpdate",
                "partition": "20%",
                "maxUnavailable": "10%",
                "priorityStrategy": {"weightPriority": [
                    {"weight": 20, "matchSelector": {"matchLabels": {"p": "x"}}},
                    {"weight": 100, "matchSelector": {"matchExpressions": [{"key": "p", "operator": "Exists"}]}},
                ]},
                "scatterStrategy": [{"key": "zone", "value": "*"}, {"key": "zone", "value": "a"}],
            },
            "revisionHistoryLimit": 5,
            "customVersion": "v2",
        },
    })
}

fn resources_policy() -> Value {
    json!({
        "targetContainersMode": "sum",
        "targetContainersNameRegex": "^web",
        "resourcesExpr": {
            "limits": {"cpu": "max(cpu*50%, 50m)", "memory": "200Mi"},
            "requests": {"cpu": "cpu/2", "memory": ""},
        },
    })
}

/// Sets from which random ones are made: valid ones, and some with one thing wrong that a random change seldom makes.
pub fn samples() -> Vec<Value> {
    let mut samples = vec![smallest(), fullest()];
    for (base, pointer, value) in changes() {
        let mut sample = base;
        let (parent, last) = pointer.rsplit_once('/').expect("a pointer has a '/'");
        let parent = sample.pointer_mut(parent).expect("the parent is there");
        match parent {
            Value::Array(items) => items.push(value),
            parent => parent[last] = value,
        }
        samples.push(sample);
    }
    samples
}

/// A base, the place of a change, and what is put there. A list gets one item more.
fn changes() -> impl Iterator<Item = (Value, &'static str, Value)> {
    let small = of_the_smallest().into_iter();
    let full = of_the_fullest().into_iter();
    let small = small.map(|(pointer, value)| (smallest(), pointer, value));
    small.chain(full.map(|(pointer, value)| (fullest(), pointer, value)))
}

fn of_the_smallest() -> Vec<(&'static str, Value)> {
    vec![
        ("/spec/namespace", json!("shop")),
        ("/spec/namespace", json!("Shop 1")),
        ("/spec/namespace", json!("")),
        ("/metadata/name", json!("a.b")),
        ("/metadata/name", json!("a".repeat(64))),
        (
            "/metadata/annotations",
            json!({"apps.kruise.io/sidecarset-canary": "true"}),
        ),
        (
            "/metadata/labels",
            json!({"apps.kruise.io/sidecarset-custom-version": "v1"}),
        ),
        (
            "/spec/updateStrategy",
            json!({"selector": {"matchLabels": {"a": "b"}}}),
        ),
        (
            "/spec/updateStrategy",
            json!({"selector": {"matchLabels": {"a": "b"}}, "partition": 1}),
        ),
        (
            "/spec/updateStrategy",
            json!({"selector": {"matchLabels": {"a": "b"}}, "partition": "00%"}),
        ),
        ("/spec/updateStrategy", json!({"maxUnavailable": "101%"})),
        ("/spec/updateStrategy", json!({"maxUnavailable": "100%"})),
        ("/spec/updateStrategy", json!({"maxUnavailable": "0%"})),
        ("/spec/updateStrategy", json!({"maxUnavailable": "1000%"})),
        ("/spec/updateStrategy", json!({"maxUnavailable": "250%"})),
        ("/spec/updateStrategy", json!({"maxUnavailable": 0})),
        ("/spec/updateStrategy", json!({"partition": "ten"})),
        (
            "/spec/updateStrategy",
            json!({"priorityStrategy": {"orderPriority": [{"orderedKey": "k"}]}}),
        ),
        ("/spec/containers", json!([])),
        (
            "/spec/containers",
            json!([{"name": "a", "image": "b", "resourcesPolicy": {"targetContainersMode": "sum"}}]),
        ),
        ("/spec/containers", json!([{"name": "a", "image": " b"}])),
        (
            "/spec/patchPodMetadata",
            json!([{"annotations": {"a": "b"}}, {"annotations": {"a": "b"}, "patchPolicy": "Overwrite"}]),
        ),
        (
            "/spec/patchPodMetadata",
            json!([{"annotations": {"a": "b"}, "patchPolicy": "MergePatchJson"}]),
        ),
        (
            "/spec/injectionStrategy",
            json!({"paused": true, "revision": {}}),
        ),
        (
            "/spec/injectionStrategy",
            json!({"revision": {"revisionName": "log-agent-1"}}),
        ),
    ]
}

fn of_the_fullest() -> Vec<(&'static str, Value)> {
    vec![
        ("/spec/namespace", json!("shop")),
        (
            "/spec/containers/-",
            json!({"name": "mesh-1", "image": "b"}),
        ),
        (
            "/spec/initContainers/-",
            json!({"name": "mesh-2", "image": "b"}),
        ),
        (
            "/spec/initContainers/-",
            json!({"name": "mesh", "image": "b"}),
        ),
        (
            "/spec/initContainers/-",
            json!({"name": "log", "image": "b"}),
        ),
        (
            "/spec/initContainers/0/upgradeStrategy",
            json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e"}),
        ),
        ("/spec/containers/-", json!({"name": "mesh", "image": "b"})),
        ("/spec/containers/0/name", json!("a".repeat(62))),
        (
            "/spec/containers/0/volumeMounts/-",
            json!({"name": "none", "mountPath": "/x"}),
        ),
        (
            "/spec/containers/0/volumeMounts/-",
            json!({"name": "data", "mountPath": "/data"}),
        ),
        (
            "/spec/containers/1/volumeMounts",
            json!([{"name": "data", "mountPath": "/dev/x"}]),
        ),
        (
            "/spec/containers/1/resources",
            json!({"limits": {"cpu": 1}}),
        ),
        (
            "/spec/containers/1/resources",
            json!({"limits": {}, "claims": [{"name": "gpu"}]}),
        ),
        ("/spec/initContainers/0/restartPolicy", Value::Null),
        ("/spec/containers/0/ports/0/name", json!("")),
        (
            "/spec/containers/1/resourcesPolicy/targetContainersMode",
            json!("min"),
        ),
        (
            "/spec/containers/1/resourcesPolicy/targetContainersMode",
            Value::Null,
        ),
        (
            "/spec/containers/1/resourcesPolicy/targetContainersNameRegex",
            json!("[a"),
        ),
        (
            "/spec/containers/1/resourcesPolicy/targetContainersNameRegex",
            json!(""),
        ),
        (
            "/spec/containers/1/resourcesPolicy/targetContainersNameRegex",
            Value::Null,
        ),
        (
            "/spec/containers/1/resourcesPolicy/targetContainersNameRegex",
            json!("a".repeat(1025)),
        ),
        (
            "/spec/containers/1/resourcesPolicy/resourcesExpr",
            json!({}),
        ),
        (
            "/spec/containers/1/resourcesPolicy/resourcesExpr",
            json!({"limits": {}}),
        ),
        (
            "/spec/containers/1/resourcesPolicy/resourcesExpr/limits/cpu",
            json!("cpu*50m"),
        ),
        (
            "/spec/containers/1/resourcesPolicy/resourcesExpr/limits/cpu",
            json!(format!("1{}", "+1".repeat(512))),
        ),
        (
            "/spec/updateStrategy/scatterStrategy/-",
            json!({"key": "zone", "value": "*"}),
        ),
        (
            "/spec/updateStrategy/priorityStrategy/orderPriority",
            json!([{"orderedKey": "k"}]),
        ),
    ]
}

/// Fields of a container of a set, and whether a pod can have it: as a real API server answered (1.34.4).
pub fn containers() -> Vec<(Value, bool)> {
    let exec = || json!({"command": ["a"]});
    let with_env = |from: Value| json!({"env": [{"name": "a", "valueFrom": from}]});
    let with_mount = |over: Value| {
        let mut mount = json!({"name": "claim", "mountPath": "/a"});
        mount
            .as_object_mut()
            .expect("an object")
            .extend(over.as_object().cloned().unwrap_or_default());
        json!({"volumeMounts": [mount]})
    };
    let device = json!({"name": "claim", "devicePath": "/dev/a"});
    let bad = [
        json!({"resources": {"limits": {"cpu": "100m"}, "requests": {"cpu": "200m"}}}),
        json!({"resources": {"limits": {"memory": "-1"}}}),
        json!({"resources": {"limits": {"cpus": "1"}}}),
        json!({"resources": {"limits": {"example.com/gpu": 2}, "requests": {"example.com/gpu": 1}}}),
        json!({"resources": {"requests": {"example.com/gpu": 1}}}),
        json!({"resources": {"limits": {"example.com/gpu": "500m"}}}),
        json!({"resources": {"limits": {"hugepages-2Mi": "2Mi"}}}),
        json!({"lifecycle": {"preStop": {}}}),
        json!({"lifecycle": {"preStop": {"exec": exec(), "httpGet": {"port": 80}}}}),
        json!({"lifecycle": {"postStart": {"exec": {}}}}),
        json!({"lifecycle": {"preStop": {"sleep": {"seconds": -1}}}}),
        json!({"livenessProbe": {"exec": {}}}),
        json!({"livenessProbe": {"exec": exec(), "successThreshold": 2}}),
        json!({"startupProbe": {"exec": exec(), "successThreshold": 2}}),
        json!({"readinessProbe": {"exec": exec(), "terminationGracePeriodSeconds": 5}}),
        json!({"livenessProbe": {"exec": exec(), "terminationGracePeriodSeconds": 0}}),
        json!({"livenessProbe": {"exec": exec(), "periodSeconds": -1}}),
        json!({"livenessProbe": {"httpGet": {"port": 80, "httpHeaders": [{"name": "a b", "value": ""}]}}}),
        json!({"ports": [{"containerPort": 80, "hostPort": 70000}]}),
        json!({"ports": [{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]}),
        json!({"env": [{"name": "a=b"}]}),
        json!({"env": [{"name": "a", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
        with_env(json!({})),
        with_env(
            json!({"fieldRef": {"fieldPath": "metadata.name"}, "secretKeyRef": {"name": "a", "key": "b"}}),
        ),
        with_env(json!({"fieldRef": {"fieldPath": "metadata.foo"}})),
        with_env(json!({"fieldRef": {"fieldPath": "metadata.annotations['a b']"}})),
        with_env(json!({"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v2"}})),
        with_env(json!({"resourceFieldRef": {"resource": "limits.gpu"}})),
        with_env(json!({"secretKeyRef": {"key": "b"}})),
        with_env(json!({"configMapKeyRef": {"name": "a", "key": "b c"}})),
        json!({"envFrom": [{}]}),
        json!({"envFrom": [{"configMapRef": {"name": "a"}, "secretRef": {"name": "a"}}]}),
        json!({"envFrom": [{"configMapRef": {}}]}),
        json!({"envFrom": [{"prefix": "=", "configMapRef": {"name": "a"}}]}),
        with_mount(json!({"subPath": "/x"})),
        with_mount(json!({"subPath": "a/../x"})),
        with_mount(json!({"subPathExpr": "../x"})),
        with_mount(json!({"subPath": "a", "subPathExpr": "x"})),
        with_mount(json!({"mountPropagation": "Bidirectional"})),
        with_mount(json!({"recursiveReadOnly": "Enabled"})),
        with_mount(json!({"readOnly": true, "recursiveReadOnly": "Sometimes"})),
        json!({"volumeDevices": [{"name": "empty", "devicePath": "/dev/a"}]}),
        json!({"volumeDevices": [{"name": "claim", "devicePath": "/dev/../a"}]}),
        json!({"volumeDevices": [device, {"name": "claim", "devicePath": "/dev/b"}]}),
        json!({"volumeDevices": [device], "volumeMounts": [{"name": "claim", "mountPath": "/a"}]}),
        json!({"securityContext": {"runAsUser": -1}}),
        json!({"securityContext": {"runAsGroup": 1_i64 << 31}}),
        json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false}}),
        json!({"securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": false}}),
        json!({"securityContext": {"procMount": "X"}}),
        json!({"securityContext": {"seccompProfile": {"type": "X"}}}),
        json!({"securityContext": {"seccompProfile": {"type": "Localhost"}}}),
        json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault", "localhostProfile": "a"}}}),
        json!({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "/a"}}}),
        json!({"securityContext": {"appArmorProfile": {"type": "X"}}}),
        json!({"securityContext": {"appArmorProfile": {"type": "Localhost"}}}),
        json!({"resizePolicy": [{"resourceName": "gpu", "restartPolicy": "NotRequired"}]}),
        json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "X"}]}),
    ];
    let good = [
        json!({"resources": {"limits": {"cpu": "100m"}, "requests": {"cpu": "0.1", "memory": "1Gi"}}}),
        json!({"resources": {"limits": {"example.com/gpu": 2}, "requests": {"example.com/gpu": "2"}}}),
        json!({"resources": {"limits": {"hugepages-2Mi": "2Mi", "cpu": 1}, "requests": {"ephemeral-storage": "1Gi"}}}),
        json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}, "postStart": {"exec": exec()}}}),
        json!({"livenessProbe": {"exec": exec(), "successThreshold": 0, "terminationGracePeriodSeconds": 1}}),
        json!({"readinessProbe": {"exec": exec(), "successThreshold": 2}}),
        json!({"ports": [{"containerPort": 80, "hostPort": 0}, {"containerPort": 81, "hostIP": "x"}]}),
        json!({"env": [{"name": "a", "value": "", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIPs"}}}]}),
        with_env(json!({"fieldRef": {"fieldPath": "metadata.annotations['a.example/b']"}})),
        with_env(json!({"resourceFieldRef": {"resource": "requests.hugepages-2Mi"}})),
        json!({"envFrom": [{"prefix": "a", "secretRef": {"name": "a"}}]}),
        with_mount(json!({"subPath": "a/..b"})),
        with_mount(
            json!({"readOnly": true, "recursiveReadOnly": "IfPossible", "mountPropagation": "None"}),
        ),
        json!({"volumeDevices": [device]}),
        json!({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}, "allowPrivilegeEscalation": false}}),
        json!({"securityContext": {"runAsUser": 0, "runAsNonRoot": true, "seccompProfile": {"type": "Localhost", "localhostProfile": "a"}}}),
        json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}),
    ];
    let bad = bad.into_iter().map(|fields| (fields, false));
    bad.chain(good.into_iter().map(|fields| (fields, true)))
        .collect()
}

/// Sources of a volume, and whether a pod can have it: as a real API server answered (1.34.4).
pub fn volumes() -> Vec<(Value, bool)> {
    let projected = |sources: Value| json!({"projected": {"sources": sources}});
    let secret = |item: Value| json!({"secret": {"secretName": "a", "items": [item]}});
    let bad = [
        json!({"emptyDir": {}, "hostPath": {"path": "/a"}}),
        json!({"hostPath": {"path": "/a", "type": "X"}}),
        json!({"hostPath": {"path": "/../a"}}),
        json!({"configMap": {}}),
        json!({"secret": {}}),
        json!({"secret": {"secretName": "a", "defaultMode": 1000}}),
        secret(json!({"key": "a", "path": "/x"})),
        secret(json!({"key": "a", "path": "../x"})),
        secret(json!({"key": "a", "path": "x", "mode": -1})),
        json!({"emptyDir": {"sizeLimit": "-1"}}),
        projected(json!([{"secret": {"name": "a"}, "configMap": {"name": "b"}}])),
        json!({"downwardAPI": {"items": [{"path": "a"}]}}),
        json!({"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.nodeName"}}]}}),
        json!({"downwardAPI": {"items": [{"path": "a", "resourceFieldRef": {"resource": "limits.cpu"}}]}}),
        json!({"nfs": {"server": "a", "path": "x"}}),
        json!({"ephemeral": {}}),
        json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}),
        projected(json!([{"serviceAccountToken": {"path": "a", "expirationSeconds": 5}}])),
    ];
    let claim =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let good = [
        json!({}),
        json!({"hostPath": {"path": "/a", "type": "Socket"}}),
        json!({"configMap": {"name": "a", "defaultMode": 0o777}}),
        secret(json!({"key": "a", "path": "x/y"})),
        json!({"emptyDir": {"sizeLimit": "1Gi", "medium": "Memory"}}),
        json!({"projected": {"sources": []}}),
        projected(
            json!([{}, {"secret": {"name": "a"}}, {"serviceAccountToken": {"path": "a", "expirationSeconds": 600}}]),
        ),
        json!({"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
        json!({"downwardAPI": {"items": [{"path": "a", "resourceFieldRef": {"resource": "limits.cpu", "containerName": "side"}}]}}),
        json!({"nfs": {"server": "a", "path": "/x"}}),
        json!({"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}),
    ];
    let bad = bad.into_iter().map(|source| (source, false));
    bad.chain(good.into_iter().map(|source| (source, true)))
        .collect()
}

/// A set with one container that has these fields, and two volumes for it.
pub fn set_with_container(fields: &Value) -> Value {
    let mut set = smallest();
    let container = &mut set["spec"]["containers"][0];
    for (field, value) in fields.as_object().into_iter().flatten() {
        container[field] = value.clone();
    }
    set["spec"]["volumes"] = json!([
        {"name": "empty"},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
    ]);
    set
}

/// A set with a volume of this source.
pub fn set_with_volume(source: &Value) -> Value {
    let mut set = smallest();
    let mut volume = json!({"name": "v"});
    for (field, value) in source.as_object().into_iter().flatten() {
        volume[field] = value.clone();
    }
    set["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    set["spec"]["volumes"] = json!([volume]);
    set
}

/// Random sets, determined by their seed.
pub fn mutations(seed: u64) -> Mutations {
    let words = [
        "Retain",
        "RollingUpdate",
        "OnDelete",
        "HotUpgrade",
        "enabled",
        "10%",
        "0%",
        "mesh",
        "mesh-1",
        "log",
        "data",
        "/data",
        "{}",
        "v1",
        "metadata.annotations['a']",
        "kruise.io/sidecarset-hash",
    ];
    // Most samples have something wrong already.
    let valid = std::iter::repeat_n([smallest(), fullest()], 20).flatten();
    Mutations::new(
        seed,
        samples().into_iter().chain(valid),
        words.map(str::to_owned),
    )
}

/// Whether an error is one that the CRD does not find.
pub fn is_found_by_the_parser_alone(message: &str) -> bool {
    PARSER_ALONE.iter().any(|(part, _)| message.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sidecarset::set::SidecarSet;

    #[test]
    fn mutations_are_valid_and_nearly_valid_and_unreadable() {
        let mut counts = [0; 3];
        for set in mutations(1).take(1000) {
            let parsed = serde_json::from_value(set).map(|set| SidecarSet::parse(&set));
            counts[match parsed {
                Ok(Ok(_)) => 0,
                Ok(Err(_)) => 1,
                Err(_) => 2,
            }] += 1;
        }
        assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
    }

    // SCS-70, SDF-1
    #[test]
    fn what_no_pod_can_have_no_set_has() {
        let containers = containers().into_iter();
        let containers =
            containers.map(|(fields, is_valid)| (set_with_container(&fields), is_valid));
        let volumes = volumes().into_iter();
        let volumes = volumes.map(|(source, is_valid)| (set_with_volume(&source), is_valid));
        let wrong = containers.chain(volumes).filter_map(|(set, is_valid)| {
            let wire = serde_json::from_value(set.clone()).unwrap();
            let parsed = SidecarSet::parse(&wire).map(drop);
            (parsed.is_ok() != is_valid).then(|| format!("{}: {parsed:?}", set["spec"]))
        });
        let wrong: Vec<_> = wrong.collect();
        assert!(
            wrong.is_empty(),
            "{} wrong:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
    }

    // SCS-3
    #[test]
    fn the_smallest_and_the_fullest_set_are_valid() {
        for set in [smallest(), fullest()] {
            let set = serde_json::from_value(set).unwrap();
            SidecarSet::parse(&set).unwrap();
        }
    }
}

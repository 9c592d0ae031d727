//! Valid and nearly valid sets. Tests run the parser and an API server with the CRD over the same ones, so that neither
//! accepts what the other refuses but for [`PARSER_ALONE`]. Feature `samples`, for tests alone.

use serde_json::{Value, json};

use crate::mutations::Mutations;

/// What the parser refuses and the CRD does not, by a part of the parser's message, and why CEL cannot say it.
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

    // SCS-3
    #[test]
    fn the_smallest_and_the_fullest_set_are_valid() {
        for set in [smallest(), fullest()] {
            let set = serde_json::from_value(set).unwrap();
            SidecarSet::parse(&set).unwrap();
        }
    }
}

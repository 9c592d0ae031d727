//! What holds for any pod and any sets.

use super::*;

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

//! Sets that are accepted, and what is said of those that are not.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::sidecarset::tests::recorded;

fn valid() -> Value {
    json!({
        "metadata": {"name": "log-agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": "log-agent", "image": "log-agent:1"}],
        },
    })
}

fn parse(set: Value) -> Result<SidecarSet, Vec<Invalid>> {
    SidecarSet::parse(&serde_json::from_value(set).unwrap())
}

/// The paths of what is wrong with a set whose spec has these fields.
fn wrong_paths(spec: &Value) -> Vec<String> {
    let mut set = valid();
    for (field, value) in spec.as_object().unwrap() {
        set["spec"][field] = value.clone();
    }
    let errors = parse(set).err().unwrap_or_default();
    errors.into_iter().map(|error| error.path).collect()
}

// SCS-1, SCS-2, SCS-3
#[test]
fn recorded_sets_are_accepted_and_have_the_hashes_that_they_were_given() {
    let mut compared = 0;
    for object in recorded::all().filter(|object| object["kind"] == "SidecarSet") {
        let hash = object["metadata"]["annotations"]["kruise.io/sidecarset-hash"].clone();
        let set = parse(object.clone()).unwrap_or_else(|errors| panic!("{object}: {errors:?}"));
        if let Some(hash) = hash.as_str() {
            assert_eq!(*set.hashes.hash, *hash, "{object}");
            compared += 1;
        }
    }
    assert!(compared > 8, "{compared}");
}

// SCS-2, SDF-29
#[test]
fn a_set_of_either_version_has_its_namespace_and_its_custom_version() {
    let [applied, stored, ..] = &recorded::documents("12-conversion")[..] else {
        panic!("two documents")
    };
    let [applied, stored] = [applied, stored].map(|set| parse(set.clone()).unwrap());
    assert_eq!(applied.namespaces, Namespaces::Named("shop".into()));
    let none: Option<fn(&str) -> Option<&'static str>> = None;
    assert!(applied.namespaces.contain("shop", none) && !applied.namespaces.contain("x", none));
    let labels = |key: &str| (key == "kubernetes.io/metadata.name").then_some("shop");
    assert!(stored.namespaces.contain("any", Some(labels)));
    assert_eq!(applied.custom_version.as_deref(), Some("v1"));
    assert_eq!(stored.custom_version.as_deref(), Some("v1"));
    assert_eq!(applied.hashes, stored.hashes);
}

// SCS-81, SDF-2
#[test]
fn a_set_says_what_becomes_of_its_pods_while_no_webhook_answers() {
    let policy = |value: Option<&str>| {
        let mut set = valid();
        if let Some(value) = value {
            set["metadata"]["annotations"] = json!({ FAILURE_POLICY_ANNOTATION: value });
        }
        parse(set).map(|set| set.failure_policy)
    };
    for ignored in [None, Some("Ignore")] {
        assert_eq!(policy(ignored), Ok(FailurePolicy::Ignore));
    }
    assert_eq!(policy(Some("Fail")), Ok(FailurePolicy::Fail));
    let errors = policy(Some("fail")).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "metadata.annotations[sidecarset.leadsman.io/failure-policy]: \"fail\" is not one of Ignore, Fail"
    );
}

// SDF-58
#[rstest]
#[case(None, Ok(0))]
#[case(Some("10"), Ok(10))]
#[case(Some("2147483647"), Ok(2_147_483_647))]
#[case(Some("2147483648"), Err("\"2147483648\""))]
#[case(Some("-1"), Err("\"-1\""))]
#[case(Some("10s"), Err("\"10s\""))]
#[case(Some(""), Err("\"\""))]
fn a_set_says_for_how_many_seconds_a_pod_has_to_be_ready(
    #[case] value: Option<&str>,
    #[case] expected: Result<u64, &str>,
) {
    let mut set = valid();
    if let Some(value) = value {
        set["metadata"]["annotations"] = json!({ MIN_READY_SECONDS_ANNOTATION: value });
    }
    match (parse(set), expected) {
        (Ok(set), Ok(seconds)) => assert_eq!(set.update.min_ready, Duration::from_secs(seconds)),
        (Err(errors), Err(value)) => assert_eq!(
            errors[0].to_string(),
            format!(
                "metadata.annotations[sidecarset.leadsman.io/min-ready-seconds]: {value} is not a number of seconds such as \"10\""
            )
        ),
        (found, _) => panic!("{found:?}"),
    }
}

// SCS-3
#[test]
fn what_is_left_out_has_its_default() {
    let set = parse(valid()).unwrap();
    assert_eq!(set.namespaces, Namespaces::All);
    assert_eq!((set.history_limit, set.is_injection_paused), (10, false));
    assert_eq!((set.pin, set.custom_version), (None, None));
    let update = &set.update;
    assert_eq!(
        update.mode,
        crate::sidecarset::strategy::UpdateMode::Rolling
    );
    assert_eq!(update.partition, crate::workload::amount::Amount::Number(0));
    assert_eq!(
        update.max_unavailable,
        crate::workload::amount::Amount::Number(1)
    );
}

// SCS-37
#[test]
fn at_least_one_revision_is_kept() {
    let mut set = valid();
    set["spec"]["revisionHistoryLimit"] = json!(0);
    assert_eq!(parse(set).unwrap().history_limit, 1);
}

// SCS-69
#[rstest]
#[case("a.b")]
#[case("A")]
#[case("")]
#[case(&"a".repeat(64))]
fn a_name_that_no_label_can_have_is_refused(#[case] name: &str) {
    let mut set = valid();
    set["metadata"]["name"] = json!(name);
    let errors = parse(set).unwrap_err();
    assert_eq!(errors[0].path, "metadata.name");
}

// SCS-69, SCS-70, SCS-71, SCS-72, SCS-73, SCS-76, SCS-52, SDF-9, SDF-20, SDF-21, SDF-28
#[rstest]
#[case(json!({}), &[])]
#[case(json!({"selector": null}), &["spec.selector"])]
#[case(json!({"selector": {}}), &["spec.selector"])]
#[case(json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}), &["spec.selector.matchExpressions[0].operator", "spec.selector"])]
#[case(json!({"namespaceSelector": {}}), &["spec.namespaceSelector"])]
#[case(json!({"namespace": "a", "namespaceSelector": {"matchLabels": {"a": "b"}}}), &["spec.namespaceSelector"])]
#[case(json!({"namespace": "Not A Name"}), &["spec.namespace"])]
#[case(json!({"namespace": "a".repeat(64)}), &["spec.namespace"])]
#[case(json!({"namespace": ""}), &[])]
#[case(json!({"containers": []}), &["spec.containers"])]
#[case(json!({"containers": null, "initContainers": [{"name": "a", "image": "b"}]}), &[])]
#[case(json!({"initContainers": [{"name": "a", "image": "b", "resourcesPolicy": {"targetContainersMode": "sum", "resourcesExpr": {"limits": {"cpu": "cpu"}}}}]}), &["spec.initContainers[0].resourcesPolicy"])]
#[case(json!({"initContainers": [{"name": "a", "image": "b", "restartPolicy": "Always", "resourcesPolicy": {"targetContainersMode": "sum", "resourcesExpr": {"limits": {"cpu": "cpu"}}}}]}), &[])]
#[case(json!({"containers": [{"name": "A", "image": "b"}]}), &["spec.containers[0].name"])]
#[case(json!({"containers": [{"name": "a"}]}), &["spec.containers[0].image"])]
#[case(json!({"containers": [{"name": "a", "image": " b"}]}), &["spec.containers[0].image"])]
#[case(json!({"initContainers": [{"name": "log-agent", "image": "b"}]}), &["spec.containers[0].name"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}), &["spec.containers[0]"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/v"}]}], "volumes": [{"name": "v"}]}), &["spec.containers[0].volumeMounts[1].mountPath"])]
#[case(json!({"volumes": [{"name": "v"}, {"name": "v"}]}), &["spec.volumes[1].name"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "ports": [{"containerPort": 0}]}]}), &["spec.containers[0].ports[0].containerPort"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "env": [{"value": "x"}]}]}), &["spec.containers[0].env[0].name"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "resources": {"limits": {"cpu": "one"}}}]}), &["spec.containers[0].resources.limits[cpu]"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "podInjectPolicy": "Within"}]}), &["spec.containers[0].podInjectPolicy"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "shareVolumePolicy": {"type": "on"}}]}), &["spec.containers[0].shareVolumePolicy.type"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "shareVolumeDevicePolicy": {"type": "on"}}]}), &["spec.containers[0].shareVolumeDevicePolicy.type"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "transferEnv": [{"envName": "X", "sourceContainerNameFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}]}), &["spec.containers[0].transferEnv[0].sourceContainerNameFrom.fieldRef.fieldPath"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "transferEnv": [{"envName": "X", "sourceContainerNameFrom": {"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.labels['x']"}}}]}]}), &["spec.containers[0].transferEnv[0].sourceContainerNameFrom.fieldRef.apiVersion"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "upgradeStrategy": {"upgradeType": "Warm"}}]}), &["spec.containers[0].upgradeStrategy.upgradeType"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "upgradeStrategy": {"upgradeType": "HotUpgrade"}}]}), &["spec.containers[0].upgradeStrategy.hotUpgradeEmptyImage"])]
#[case(json!({"containers": [{"name": "a".repeat(61), "image": "b", "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e"}}]}), &[])]
#[case(json!({"containers": [{"name": "a".repeat(62), "image": "b", "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e"}}]}), &["spec.containers[0].name"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e"}}, {"name": "a-2", "image": "b"}]}), &["spec.containers[1].name"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "ports": [{"containerPort": 80, "hostPort": 80}], "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e"}}]}), &["spec.containers[0].ports"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "ports": [{"containerPort": 80}], "upgradeStrategy": {"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "e"}}]}), &[])]
#[case(json!({"containers": [{"name": "a", "image": "b", "ports": [{"containerPort": 80, "hostPort": 80}]}, {"name": "c", "image": "b", "ports": [{"containerPort": 81, "hostPort": 80}]}]}), &["spec.containers[1].ports"])]
#[case(json!({"initContainers": [{"name": "c", "image": "b", "ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80}]}]}), &["spec.initContainers[0].ports"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "resourcesPolicy": {"targetContainersMode": "sum"}}]}), &["spec.containers[0].resourcesPolicy.resourcesExpr"])]
#[case(json!({"containers": [{"name": "a", "image": "b", "resourcesPolicy": {"targetContainersMode": "sum", "resourcesExpr": {"limits": {"cpu": "cpu*50m"}}}}]}), &["spec.containers[0].resourcesPolicy.resourcesExpr.limits.cpu"])]
#[case(json!({"patchPodMetadata": [{"patchPolicy": "Merge", "annotations": {"a": "b"}}]}), &["spec.patchPodMetadata[0].patchPolicy"])]
#[case(json!({"patchPodMetadata": [{"annotations": {"kruise.io/sidecarset-hash": "{}"}}]}), &["spec.patchPodMetadata[0].annotations"])]
#[case(json!({"updateStrategy": {"type": "OnDelete"}}), &["spec.updateStrategy.type"])]
#[case(json!({"updateStrategy": {"selector": {}}}), &["spec.updateStrategy.selector"])]
#[case(json!({"updateStrategy": {"partition": -1}}), &["spec.updateStrategy.partition"])]
#[case(json!({"updateStrategy": {"partition": "ten"}}), &["spec.updateStrategy.partition"])]
#[case(json!({"updateStrategy": {"partition": 1, "selector": {"matchLabels": {"a": "b"}}}}), &["spec.updateStrategy.partition"])]
#[case(json!({"updateStrategy": {"partition": 0, "selector": {"matchLabels": {"a": "b"}}}}), &[])]
#[case(json!({"updateStrategy": {"maxUnavailable": 0}}), &["spec.updateStrategy.maxUnavailable"])]
#[case(json!({"updateStrategy": {"maxUnavailable": "0%"}}), &["spec.updateStrategy.maxUnavailable"])]
#[case(json!({"updateStrategy": {"maxUnavailable": "150%"}}), &["spec.updateStrategy.maxUnavailable"])]
#[case(json!({"updateStrategy": {"scatterStrategy": [{"key": "", "value": "a"}]}}), &["spec.updateStrategy.scatterStrategy[0].key"])]
#[case(json!({"updateStrategy": {"scatterStrategy": [{"key": "a", "value": "b"}, {"key": "a", "value": "b"}]}}), &["spec.updateStrategy.scatterStrategy[1]"])]
#[case(json!({"injectionStrategy": {"revision": {}}}), &["spec.injectionStrategy.revision"])]
#[case(json!({"injectionStrategy": {"revision": {"customVersion": "v1", "policy": "Sometimes"}}}), &["spec.injectionStrategy.revision.policy"])]
#[case(json!({"customVersion": "a/b"}), &["spec.customVersion"])]
fn a_field_that_is_wrong_is_named(#[case] spec: Value, #[case] paths: &[&str]) {
    assert_eq!(wrong_paths(&spec), paths, "{spec}");
}

// SDF-25
#[rstest]
#[case("a/b")]
#[case(&"a".repeat(64))]
fn a_custom_version_that_no_label_can_have_is_refused(#[case] version: &str) {
    assert_eq!(wrong_paths(&json!({"customVersion": version})).len(), 1);
}

// SDF-22
#[test]
fn a_startup_probe_is_completed_by_the_api_server() {
    let container =
        json!({"name": "a", "image": "b", "startupProbe": {"exec": {"command": ["true"]}}});
    assert!(wrong_paths(&json!({"containers": [container]})).is_empty());
}

// SDF-57
#[test]
fn a_native_sidecar_can_be_upgraded() {
    let native = json!({"name": "a", "image": "b", "restartPolicy": "Always"});
    let rolling = json!({"type": "RollingUpdate"});
    let spec = json!({"initContainers": [native], "updateStrategy": rolling});
    assert!(wrong_paths(&spec).is_empty());
}

// SCS-20
#[test]
fn a_canary_set_is_not_taken_for_an_ordinary_one() {
    let mut set = valid();
    set["metadata"]["annotations"] = json!({"apps.kruise.io/sidecarset-canary": "true"});
    assert_eq!(parse(set).unwrap_err().len(), 1);
}

// SCS-5
#[test]
fn pods_are_selected_by_their_labels_and_their_namespace() {
    let mut wire = valid();
    wire["spec"]["namespaceSelector"] = json!({"matchLabels": {"team": "x"}});
    let set = parse(wire).unwrap();
    let selects = |team: Option<&'static str>, app: &'static str| {
        let team = team.map(|team| move |key: &str| (key == "team").then_some(team));
        set.selects("ns", team, |key| (key == "app").then_some(app))
    };
    assert!(selects(Some("x"), "web"));
    assert!(!selects(Some("y"), "web") && !selects(Some("x"), "db"));
    // A namespace that has not been seen yet.
    assert!(!selects(None, "web"));
}

// SCS-70, SDF-1
#[test]
fn only_an_init_container_that_runs_on_has_probes_and_hooks() {
    let exec = json!({"exec": {"command": ["a"]}});
    let mut init = json!({"name": "init", "image": "i:1", "livenessProbe": exec, "lifecycle": {"preStop": exec}});
    let at = |field: &str| format!("spec.initContainers[0].{field}");
    let expected = ["livenessProbe", "lifecycle"].map(at);
    assert_eq!(wrong_paths(&json!({"initContainers": [init]})), expected);
    init["restartPolicy"] = json!("Always");
    assert_eq!(wrong_paths(&json!({"initContainers": [init]})), [""; 0]);
}

// SCS-70, SDF-1
#[rstest]
#[case("RestartContainer", None, &["spec.initContainers[0].resizePolicy[0].restartPolicy"])]
#[case("RestartContainer", Some("Always"), &[])]
#[case("NotRequired", None, &[])]
fn an_init_container_that_ends_is_not_restarted_to_resize_it(
    #[case] on_resize: &str,
    #[case] restart: Option<&str>,
    #[case] expected: &[&str],
) {
    let resize = json!([{"resourceName": "cpu", "restartPolicy": on_resize}]);
    let init =
        json!({"name": "init", "image": "i:1", "restartPolicy": restart, "resizePolicy": resize});
    assert_eq!(wrong_paths(&json!({"initContainers": [init]})), expected);
}

//! Expressions by table and against a second calculation, and the resources that follow from them for a pod.

mod expression;
mod generated;

use rstest::rstest;
use serde_json::json;

use self::expression::quantity;
use super::*;
use crate::cluster::Invalid;

fn read(sidecar: &Json) -> (Option<ResourcesFormula>, Vec<Invalid>) {
    let mut errors = Vec::new();
    let mut report = FieldErrors::new(&mut errors, "c");
    let policy = ResourcesFormula::from_wire(sidecar.as_object().unwrap(), &mut report);
    (policy, errors)
}

fn policy(mode: &str, names: &str, limits: &Json, requests: &Json) -> Json {
    json!({
        "targetContainersMode": mode,
        "targetContainersNameRegex": names,
        "resourcesExpr": {"limits": limits, "requests": requests},
    })
}

// SCS-76
#[rstest]
#[case(json!({}), &[])]
#[case(json!({"resources": {"limits": {"cpu": 1}}}), &["c.resourcesPolicy"])]
#[case(json!({"resources": {"requests": {"example.com/gpu": 1}}}), &["c.resourcesPolicy"])]
#[case(json!({"resources": {"limits": {}, "claims": [{"name": "x"}]}}), &[])]
fn a_policy_is_not_beside_other_resources(#[case] over: Json, #[case] expected: &[&str]) {
    let mut sidecar = over;
    sidecar["resourcesPolicy"] = policy("sum", "app", &json!({"cpu": "cpu/2"}), &Json::Null);
    let (_, errors) = read(&sidecar);
    let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, expected, "{errors:?}");
}

// SCS-76
#[rstest]
#[case(json!({"targetContainersMode": "min"}), &[".targetContainersMode"])]
#[case(json!({"targetContainersMode": null}), &[".targetContainersMode"])]
#[case(json!({"targetContainersNameRegex": ""}), &[".targetContainersNameRegex"])]
#[case(json!({"targetContainersNameRegex": null}), &[])]
#[case(json!({"targetContainersNameRegex": "[a"}), &[".targetContainersNameRegex"])]
#[case(json!({"targetContainersNameRegex": "(a{1000}){1000}"}), &[".targetContainersNameRegex"])]
#[case(json!({"targetContainersNameRegex": "a".repeat(1025)}), &[".targetContainersNameRegex"])]
#[case(json!({"resourcesExpr": {}}), &[".resourcesExpr"])]
#[case(json!({"resourcesExpr": null}), &[".resourcesExpr"])]
#[case(json!({"resourcesExpr": {"limits": {}}}), &[])]
#[case(json!({"resourcesExpr": {"limits": {"cpu": ""}, "requests": {"memory": "5Mi"}}}), &[])]
#[case(json!({"resourcesExpr": {"limits": {"cpu": "memory"}, "requests": {"memory": "a"}}}), &[".resourcesExpr.limits.cpu", ".resourcesExpr.requests.memory"])]
#[case(json!({"resourcesExpr": {"limits": {"cpu": format!("1{}", "+1".repeat(512))}}}), &[".resourcesExpr.limits.cpu"])]
fn what_is_wrong_in_a_policy_is_named(#[case] over: Json, #[case] expected: &[&str]) {
    let mut policy = policy("max", "app", &json!({"cpu": "cpu/2"}), &Json::Null);
    for (field, value) in over.as_object().unwrap() {
        policy[field] = value.clone();
    }
    let sidecar = json!({"resourcesPolicy": policy});
    let (read, errors) = read(&sidecar);
    let paths = errors.iter().map(|error| error.path.as_str());
    let paths: Vec<_> = paths
        .filter_map(|path| path.strip_prefix("c.resourcesPolicy"))
        .collect();
    assert_eq!(paths, expected, "{errors:?}");
    assert!(read.is_some() || !errors.is_empty());
}

/// The resources that a sidecar gets in a pod with these containers, and remarks.
fn compute(policy: &Json, containers: &Json) -> (Json, Vec<String>) {
    compute_in(&Json::Null, policy, containers)
}

/// The same, in a pod with resources of its own.
fn compute_in(of_the_pod: &Json, policy: &Json, containers: &Json) -> (Json, Vec<String>) {
    let sidecar = json!({"resourcesPolicy": policy});
    let (policy, errors) = read(&sidecar);
    assert_eq!(errors, [], "{sidecar}");
    let policy = policy.unwrap();
    let containers: Vec<_> = containers
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Json::as_object)
        .collect();
    let of_the_pod = of_the_pod.as_object();
    let computed = policy.compute(containers, of_the_pod);
    let remarks = computed.remarks.iter().map(ToString::to_string).collect();
    let mut container = JsonObject::new();
    computed.write(&mut container);
    (container.remove("resources").unwrap_or_default(), remarks)
}

fn two_containers() -> Json {
    json!([
        {"name": "large.engine.v4", "resources": {
            "limits": {"cpu": "200m", "memory": "200Mi"}, "requests": {"cpu": "50m", "memory": "100Mi"},
        }},
        {"name": "large.engine.v8", "resources": {
            "limits": {"cpu": "400m", "memory": "400Mi"}, "requests": {"cpu": "100m", "memory": "200Mi"},
        }},
    ])
}

/// The stories of OpenKruise's proposal.
// SCS-19
#[rstest]
#[case("sum", "^large.engine.v4$", "100m", "50m")]
#[case("sum", "^large.engine.v.*$", "300m", "75m")]
#[case("max", "^large.engine.v.*$", "200m", "50m")]
#[case("sum", "v8", "200m", "50m")]
#[case("sum", "v[48]", "300m", "75m")]
fn targets_are_summed_or_the_largest_counts(
    #[case] mode: &str,
    #[case] names: &str,
    #[case] limit: &str,
    #[case] request: &str,
) {
    let cpu = "max(cpu*50%, 50m)";
    let policy = policy(
        mode,
        names,
        &json!({"cpu": cpu, "memory": "200Mi"}),
        &json!({"cpu": cpu, "memory": "100Mi"}),
    );
    let expected = json!({
        "limits": {"cpu": limit, "memory": "200Mi"},
        "requests": {"cpu": request, "memory": "100Mi"},
    });
    assert_eq!(compute(&policy, &two_containers()), (expected, Vec::new()));
}

/// Constants are dropped there as well, and so is what bounds an expression.
// SCS-19, SDF-10
#[test]
fn a_limit_is_left_out_for_a_target_without_one_unless_it_is_bounded() {
    let mut containers = two_containers();
    containers[1]["resources"]["limits"] = json!({"memory": "400Mi"});
    let limit = |cpu: &str| {
        let limits = json!({"cpu": cpu, "memory": "memory*30%"});
        compute(&policy("sum", ".*", &limits, &Json::Null), &containers)
    };
    let memory = json!({"limits": {"memory": "180Mi"}});
    let remark = "no limit of cpu: container \"large.engine.v8\" of the pod has none";
    assert_eq!(limit("cpu*50%"), (memory, vec![remark.to_owned()]));
    for (expression, expected) in [("250m", "250m"), ("min(cpu*50%, 500m)", "500m")] {
        let (resources, remarks) = limit(expression);
        assert_eq!(resources["limits"]["cpu"], expected);
        assert_eq!(remarks, [""; 0]);
    }
}

/// A missing request counts as 0, but for a container with a limit, whose request the API server fills in.
// SCS-19
#[test]
fn a_request_is_what_the_api_server_fills_in() {
    let containers = json!([
        {"name": "a", "resources": {"requests": {"cpu": "100m"}}},
        {"name": "b", "resources": {"limits": {"cpu": "200m"}}},
        {"name": "c"},
        {"name": "d", "resources": {"limits": {"cpu": 1}, "requests": {"cpu": null, "memory": 1024.5}}},
    ]);
    let requests = json!({"cpu": "cpu", "memory": "memory"});
    let policy = policy("sum", ".*", &Json::Null, &requests);
    let (resources, _) = compute(&policy, &containers);
    assert_eq!(
        resources,
        json!({"requests": {"cpu": "1300m", "memory": "1025"}})
    );
}

/// OpenKruise refuses these pods.
// SCS-19, SDF-1, SDF-10
#[rstest]
#[case("none", "cpu*50%", "max(cpu, 50m)", json!({"requests": {"cpu": "50m"}}), &["resources as if the pod had no containers: the name of none matches \"none\""])]
#[case("none", "min(cpu, 1)", "cpu", json!({"limits": {"cpu": "1"}, "requests": {"cpu": "0"}}), &["resources as if the pod had no containers: the name of none matches \"none\""])]
#[case("v4", "cpu-300m", "50m", json!({"requests": {"cpu": "50m"}}), &["no limit of cpu: \"cpu-300m\" is -100m for this pod"])]
#[case("v4", "cpu-200m", "cpu-60m", json!({"requests": {"cpu": "0"}}), &["no limit of cpu: \"cpu-200m\" is 0 for this pod", "a request of 0 cpu: \"cpu-60m\" is -10m for this pod"])]
#[case("v4", "100m", "cpu*4", json!({"limits": {"cpu": "100m"}, "requests": {"cpu": "100m"}}), &["a request of 100m cpu, which is its limit: \"cpu*4\" is 200m for this pod"])]
#[case("v4", "cpu*1e17", "cpu*1e20*1e20", json!({}), &["no limit of cpu: \"cpu*1e17\" is too large for this pod", "no request of cpu: \"cpu*1e20*1e20\" is too large for this pod"])]
fn a_pod_is_not_refused_for_what_an_expression_says_of_it(
    #[case] names: &str,
    #[case] limit: &str,
    #[case] request: &str,
    #[case] expected: Json,
    #[case] expected_remarks: &[&str],
) {
    let policy = policy(
        "sum",
        names,
        &json!({"cpu": limit}),
        &json!({"cpu": request}),
    );
    let (resources, remarks) = compute(&policy, &two_containers());
    let resources = Some(resources).filter(|resources| !resources.is_null());
    assert_eq!(resources.unwrap_or(json!({})), expected);
    assert_eq!(remarks, expected_remarks);
}

/// Kubernetes refuses a container above the limit of its pod, and containers that request more than their pod together.
// SCS-19, SDF-1, SDF-10
#[rstest]
#[case(json!({}), json!({"limits": {"cpu": "100m", "memory": "64Mi"}, "requests": {"cpu": "50m"}}), &[])]
#[case(json!({"limits": {"hugepages-2Mi": "2Mi"}}), json!({"limits": {"cpu": "100m", "memory": "64Mi"}, "requests": {"cpu": "50m"}}), &[])]
#[case(json!({"limits": {"cpu": "1"}}), json!({"limits": {"memory": "64Mi"}}), &["no limit and no request of cpu: the pod has resources of its own, for all its containers"])]
#[case(json!({"requests": {"cpu": "1"}}), json!({"limits": {"memory": "64Mi"}}), &["no limit and no request of cpu: the pod has resources of its own, for all its containers"])]
#[case(json!({"requests": {"memory": "1Gi"}}), json!({"limits": {"cpu": "100m"}, "requests": {"cpu": "50m"}}), &["no limit and no request of memory: the pod has resources of its own, for all its containers"])]
fn what_a_pod_has_for_all_its_containers_is_not_exceeded(
    #[case] of_the_pod: Json,
    #[case] expected: Json,
    #[case] expected_remarks: &[&str],
) {
    let limits = json!({"cpu": "cpu/2", "memory": "64Mi"});
    let policy = policy("sum", "v4", &limits, &json!({"cpu": "cpu"}));
    let (resources, remarks) = compute_in(&of_the_pod, &policy, &two_containers());
    assert_eq!(resources, expected);
    assert_eq!(remarks, expected_remarks);
}

#[test]
fn what_else_a_container_has_in_its_resources_stays() {
    for (own, expected) in [
        (
            json!({"claims": [{"name": "gpu"}], "limits": {}}),
            json!({"claims": [{"name": "gpu"}], "limits": {"cpu": "1"}}),
        ),
        (json!(null), json!({"limits": {"cpu": "1"}})),
    ] {
        let mut container = json!({"resources": own});
        let container = container.as_object_mut().unwrap();
        let mut computed = ComputedResources::default();
        computed.limits.insert("cpu".to_owned(), json!("1"));
        computed.write(container);
        assert_eq!(container["resources"], expected);
    }
}

//! Expressions by table and against a second calculation, and the resources that follow from them for a pod.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::expression::{ExpressionValue, Ratio, exactly};
use super::parser::NotAnExpression;
use super::*;
use crate::cluster::Invalid;
use crate::workload::quantity::Quantity;

fn quantity(text: &str) -> Ratio {
    exactly(&Quantity::parse(text).unwrap())
}

/// What an expression is in a pod whose containers have `own` of the resource, or no limit.
fn evaluate(resource: ResourceKind, expression: &str, own: &str) -> String {
    let parsed = parser::parse(expression, resource.name()).unwrap();
    let variable = match own {
        "none" => ExpressionValue::Unlimited,
        own => ExpressionValue::Exactly(quantity(own)),
    };
    match parsed.evaluate(variable) {
        Some(ExpressionValue::Exactly(value)) => resource.units(value).map_or_else(
            || "too large".to_owned(),
            |units| resource.quantity(units).to_string(),
        ),
        Some(ExpressionValue::Unlimited | ExpressionValue::Undefined) => "none".to_owned(),
        None => "too large".to_owned(),
    }
}

// SCS-19
#[rstest]
// Those of OpenKruise's proposal and of its tests.
#[case("max(cpu*50%, 50m)", "200m", "100m")]
#[case("max(cpu*50%, 50m)", "50m", "50m")]
#[case("max(min(cpu*50%, 100m), 50m)", "400m", "100m")]
#[case("0.5*cpu - 0.3*max(0, cpu-4) + 0.3*max(0, cpu-8)", "2", "1")]
#[case("0.5*cpu - 0.3*max(0, cpu-4) + 0.3*max(0, cpu-8)", "6", "2400m")]
#[case("0.5*cpu - 0.3*max(0, cpu-4) + 0.3*max(0, cpu-8)", "12", "4800m")]
#[case("2 + 3 * 4", "0", "14")]
#[case("(2 + 3) * 4", "0", "20")]
#[case("100% * 2", "0", "2")]
#[case("40m + 20m", "0", "60m")]
#[case("max(40m, 20)", "0", "20")]
#[case("min(40m, 20m)", "0", "20m")]
#[case("1e3 + 500", "0", "1500")]
#[case("1.5e2 * 2", "0", "300")]
#[case(" max(\t10 ,\n 20 ) ", "0", "20")]
// From the left, and the sign before all else.
#[case("10 - 4 - 3", "0", "3")]
#[case("8 / 2 / 2", "0", "2")]
#[case("8 / 2 * 4", "0", "16")]
#[case("10 - -4", "0", "14")]
#[case("10 + -2 * 3", "0", "4")]
#[case("--cpu", "5", "5")]
#[case("CPU * Max(1, 2)", "100m", "200m")]
#[case(".5 * cpu", "3", "1500m")]
#[case("cpu*100.5%", "1", "1005m")]
// Exactly, and rounded up at the end: 100m times 29 % is 28m there, by a float.
#[case("cpu*29%", "100m", "29m")]
#[case("cpu/3*3", "100m", "100m")]
#[case("cpu/3", "100m", "34m")]
#[case("cpu/1000", "1m", "1m")]
#[case("cpu - 100m", "50m", "-50m")]
#[case("cpu*9P", "1000000P", "too large")]
fn an_expression_of_cpu_has_a_value(
    #[case] expression: &str,
    #[case] own: &str,
    #[case] expected: &str,
) {
    // A product of quantities is none.
    let expression = expression.replace("9P", "9000000000000000");
    assert_eq!(evaluate(ResourceKind::Cpu, &expression, own), expected);
}

// SCS-19, SDF-10
#[rstest]
#[case("memory*50%", "512Mi", "256Mi")]
#[case("max(memory*30%, 10Mi)", "10Mi", "10Mi")]
#[case("memory + 100Mi", "200Mi", "300Mi")]
#[case("200M", "0", "200M")]
#[case("2Pi", "0", "2Pi")]
#[case("1e3", "0", "1k")]
// 354334801920m there.
#[case("memory*33%", "1Gi", "354334802")]
fn an_expression_of_memory_is_in_whole_bytes(
    #[case] expression: &str,
    #[case] own: &str,
    #[case] expected: &str,
) {
    assert_eq!(evaluate(ResourceKind::Memory, expression, own), expected);
}

/// A limit that there is not is larger than any.
// SCS-19, SDF-10
#[rstest]
#[case("cpu", "none")]
#[case("cpu*50%", "none")]
#[case("50%*cpu + 1", "none")]
#[case("cpu/2 - 1", "none")]
#[case("max(cpu, 100m)", "none")]
#[case("cpu + cpu", "none")]
#[case("200m", "200m")]
#[case("max(100m, 2*100m)", "200m")]
#[case("min(cpu*50%, 500m)", "500m")]
#[case("min(500m, max(cpu, 1))", "500m")]
#[case("min(cpu, cpu)", "none")]
// What would be less than any, or could be anything.
#[case("100m - cpu", "none")]
#[case("-cpu", "none")]
#[case("cpu * -1", "none")]
#[case("cpu * 0", "none")]
#[case("cpu - cpu", "none")]
#[case("min(cpu - cpu, 100m)", "none")]
#[case("max(100m - cpu, 100m)", "none")]
#[case("cpu / -2", "none")]
fn without_a_limit_constants_stay(#[case] expression: &str, #[case] expected: &str) {
    assert_eq!(evaluate(ResourceKind::Cpu, expression, "none"), expected);
}

// SCS-19, SCS-76, SDF-10
#[rstest]
#[case("cpu*50m", NotAnExpression::ProductOfQuantities)]
#[case("max(cpu, 1) * (2 + 50m)", NotAnExpression::ProductOfQuantities)]
#[case("cpu/50m", NotAnExpression::DivisionByQuantity)]
#[case("2 / cpu", NotAnExpression::DivisionByQuantity)]
#[case("1 / -min(1, cpu)", NotAnExpression::DivisionByQuantity)]
#[case("cpu/0", NotAnExpression::DivisionByZero)]
#[case("cpu/(1 - 100%)", NotAnExpression::DivisionByZero)]
#[case("-10", NotAnExpression::Negative)]
#[case("50m - 100m", NotAnExpression::Negative)]
#[case("1e20 * 1e20", NotAnExpression::TooLarge)]
#[case("1/1e15/1e15/1e15", NotAnExpression::TooLarge)]
fn what_would_fail_for_each_pod_is_refused_with_the_set(
    #[case] expression: &str,
    #[case] expected: NotAnExpression,
) {
    assert_eq!(parser::parse(expression, "cpu"), Err(expected));
}

// SCS-76
#[rstest]
#[case(
    " ",
    "the end stands at character 2 instead of a number, a quantity, a name or '('"
)]
#[case("cpu +*/ 50%", "\"*\" stands at character 6")]
#[case("2 + @", "\"@\" stands at character 5")]
#[case(
    "(2 + 3",
    "the end stands at character 7 instead of an operator or ')'"
)]
#[case("()", "\")\" stands at character 2")]
#[case("1 2", "\"2\" stands at character 3 instead of an operator")]
#[case("50 %", "\"%\" stands at character 4")]
#[case(
    "max(cpu*50%)",
    "\")\" stands at character 12 instead of an operator or ','"
)]
#[case(
    "max(1, 2, 3)",
    "\",\" stands at character 9 instead of an operator or ')'"
)]
#[case("max", "the end stands at character 4 instead of '('")]
#[case("cpu(1)", "\"(\" stands at character 4")]
#[case("+1", "\"+\" stands at character 1")]
#[case("ü * cpu", "\"ü\" is none of cpu, max and min")]
#[case("1 + ü", "\"ü\" is none of cpu, max and min")]
#[case("memory * 50%", "\"memory\" is none of cpu, max and min")]
#[case("sum(1, 2)", "\"sum\" is none of cpu, max and min")]
#[case("10x", "\"10x\" is neither a number")]
#[case("2cpu", "\"2cpu\" is neither a number")]
#[case("1.2.3", "\"1.2.3\" is neither a number")]
#[case("50%%", "\"50%%\" is neither a number")]
#[case("5m%", "\"5m%\" is neither a number")]
#[case("1e", "\"1e\" is neither a number")]
#[case("1E", "\"1E\" is neither a number")]
#[case("1Ei", "\"1Ei\" is neither a number")]
#[case("1e3m", "\"1e3m\" is neither a number")]
#[case("100n", "\"100n\" is neither a number")]
#[case(".", "\".\" is neither a number")]
fn what_is_no_expression_is_refused_with_its_place(#[case] text: &str, #[case] message: &str) {
    let error = parser::parse(text, "cpu").unwrap_err().to_string();
    assert!(error.contains(message), "{error}");
}

#[test]
fn an_expression_nests_so_deep_and_no_deeper() {
    let nested = |depth: usize| format!("{}cpu{}", "(".repeat(depth), ")".repeat(depth));
    assert!(parser::parse(&nested(31), "cpu").is_ok());
    for deep in [nested(32), nested(500), "-".repeat(1000) + "1"] {
        let refused = parser::parse(&deep, "cpu");
        assert_eq!(refused, Err(NotAnExpression::TooDeep));
    }
    let long = format!("cpu{}", "+1".repeat(510));
    assert_eq!(evaluate(ResourceKind::Cpu, &long, "1"), "511");
}

fn read(sidecar: &Json) -> (Option<ResourcesPolicy>, Vec<Invalid>) {
    let mut errors = Vec::new();
    let mut report = FieldErrors::new(&mut errors, "c");
    let policy = ResourcesPolicy::from_wire(sidecar.as_object().unwrap(), &mut report);
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

/// A stack has no room for their trees.
// SCS-76
#[test]
fn what_is_too_long_is_not_read() {
    let (chain, groups) = ("1+".repeat(1_000_000) + "1", "(a)".repeat(1_000_000));
    for over in [
        json!({"resourcesExpr": {"limits": {"cpu": chain}}}),
        json!({"targetContainersNameRegex": groups}),
    ] {
        let mut policy = policy("sum", "app", &json!({"cpu": "cpu"}), &Json::Null);
        for (field, value) in over.as_object().unwrap() {
            policy[field] = value.clone();
        }
        let sidecar = json!({"resourcesPolicy": policy});
        let (_, errors) = read(&sidecar);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].to_string().contains("are more than"),
            "{errors:?}"
        );
    }
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

/// An expression as it is generated.
#[derive(Clone, Debug)]
enum Generated {
    Number(u16, u8),
    Percent(u16),
    Milli(u16),
    Variable,
    Negative(Box<Self>),
    Combined(char, Box<Self>, Box<Self>),
    Called(&'static str, Box<Self>, Box<Self>),
}

impl Generated {
    fn is_quantity(&self) -> bool {
        match self {
            Self::Number(..) | Self::Percent(_) => false,
            Self::Milli(_) | Self::Variable => true,
            Self::Negative(part) => part.is_quantity(),
            Self::Combined(_, one, other) | Self::Called(_, one, other) => {
                one.is_quantity() || other.is_quantity()
            }
        }
    }

    /// With parentheses around each part that is no single word.
    fn print(&self) -> String {
        match self {
            Self::Number(whole, tenths) => format!("{whole}.{tenths}"),
            Self::Percent(percent) => format!("{percent}%"),
            Self::Milli(milli) => format!("{milli}m"),
            Self::Variable => "cpu".to_owned(),
            Self::Negative(part) => format!("(-{})", part.print()),
            Self::Combined(operation, one, other) => {
                format!("({} {operation} {})", one.print(), other.print())
            }
            Self::Called(function, one, other) => {
                format!("{function}({},{})", one.print(), other.print())
            }
        }
    }

    /// The value as a fraction that is not reduced, or nothing where something like it is refused.
    fn naive(&self, own: i128) -> Option<(i128, i128)> {
        Some(match self {
            Self::Number(whole, tenths) => (i128::from(*whole) * 10 + i128::from(*tenths), 10),
            Self::Percent(percent) => (i128::from(*percent), 100),
            Self::Milli(milli) => (i128::from(*milli), 1000),
            Self::Variable => (own, 1000),
            Self::Negative(part) => {
                let (n, d) = part.naive(own)?;
                (-n, d)
            }
            Self::Combined(operation, one, other) => {
                let ((a, b), (c, d)) = (one.naive(own)?, other.naive(own)?);
                match operation {
                    '+' => (a * d + c * b, b * d),
                    '-' => (a * d - c * b, b * d),
                    '*' if one.is_quantity() && other.is_quantity() => return None,
                    '*' => (a * c, b * d),
                    _ if other.is_quantity() || c == 0 => return None,
                    _ => (a * d * c.signum(), b * c.abs()),
                }
            }
            Self::Called(function, one, other) => {
                let ((a, b), (c, d)) = (one.naive(own)?, other.naive(own)?);
                if (a * d >= c * b) == (*function == "max") {
                    (a, b)
                } else {
                    (c, d)
                }
            }
        })
    }
}

fn generated() -> impl Strategy<Value = Generated> {
    let leaf = prop_oneof![
        (0..30_u16, 0..10_u8).prop_map(|(whole, tenths)| Generated::Number(whole, tenths)),
        (0..300_u16).prop_map(Generated::Percent),
        (0..5000_u16).prop_map(Generated::Milli),
        Just(Generated::Variable),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        let part = inner.prop_map(Box::new).boxed();
        let operation = proptest::sample::select(vec!['+', '-', '*', '/']);
        let function = proptest::sample::select(vec!["max", "min"]);
        prop_oneof![
            part.clone().prop_map(Generated::Negative),
            (operation, part.clone(), part.clone())
                .prop_map(|(operation, one, other)| Generated::Combined(operation, one, other)),
            (function, part.clone(), part)
                .prop_map(|(function, one, other)| Generated::Called(function, one, other)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // SCS-19, SDF-10
    #[test]
    fn an_expression_is_what_a_second_calculation_makes_of_it(
        expression in generated(),
        own in 0..100_000_i128,
    ) {
        let text = expression.print();
        let variable = ExpressionValue::Exactly(Ratio::new(own, 1000));
        match (parser::parse(&text, "cpu"), expression.naive(own)) {
            (Ok(parsed), Some((numerator, denominator))) => {
                let expected = ExpressionValue::Exactly(Ratio::new(numerator, denominator));
                prop_assert_eq!(parsed.evaluate(variable), Some(expected), "{}", text);
            }
            (Err(NotAnExpression::Negative), Some((numerator, _))) => {
                prop_assert!(numerator < 0, "{}", text);
                prop_assert!(!text.contains("cpu"), "{}", text);
            }
            (
                Err(
                    NotAnExpression::ProductOfQuantities
                    | NotAnExpression::DivisionByQuantity
                    | NotAnExpression::DivisionByZero,
                ),
                None,
            ) => {}
            (parsed, naive) => prop_assert!(false, "{}: {:?}, {:?}", text, parsed, naive),
        }
    }

    /// What an expression is without a limit, it is with any limit that is large enough.
    // SDF-10
    #[test]
    fn no_limit_is_larger_than_any(expression in generated()) {
        let Ok(parsed) = parser::parse(&expression.print(), "cpu") else {
            return Ok(());
        };
        let large = |own: i128| parsed.evaluate(ExpressionValue::Exactly(Ratio::from_integer(own)));
        let [Some(ExpressionValue::Exactly(one)), Some(ExpressionValue::Exactly(other))] =
            [large(10_i128.pow(12)), large(10_i128.pow(13))]
        else {
            return Ok(());
        };
        match parsed.evaluate(ExpressionValue::Unlimited) {
            Some(ExpressionValue::Exactly(value)) => {
                prop_assert_eq!((one, other), (value, value), "{}", parsed.text);
            }
            Some(ExpressionValue::Unlimited) => prop_assert!(one < other, "{}", parsed.text),
            _ => {}
        }
    }

    #[test]
    fn any_text_is_an_expression_or_refused(text in "[-+*/(),.%0-9eEmkKMGi cpumaxin@ü]{0,24}") {
        if let Ok(parsed) = parser::parse(&text, "cpu") {
            for variable in [ExpressionValue::Unlimited, ExpressionValue::Exactly(quantity("1P"))] {
                if let Some(ExpressionValue::Exactly(value)) = parsed.evaluate(variable) {
                    let _ = (ResourceKind::Cpu.units(value), ResourceKind::Memory.units(value));
                }
            }
        }
    }

    /// Whatever the pod and the set say, Kubernetes accepts what the sidecar gets.
    // SCS-19, SDF-1, SDF-10
    #[test]
    fn what_a_sidecar_gets_is_valid(
        limits in proptest::array::uniform2(generated()),
        requests in proptest::array::uniform2(generated()),
        own in proptest::collection::vec((proptest::option::of(0..9000_u32), proptest::option::of(0..9000_u32)), 0..4),
        mode in proptest::sample::select(vec!["sum", "max"]),
    ) {
        let list = |[cpu, memory]: [Generated; 2]| {
            json!({"cpu": cpu.print(), "memory": memory.print().replace("cpu", "memory")})
        };
        let policy = policy(mode, ".*", &list(limits), &list(requests));
        let (Some(policy), _) = read(&json!({"resourcesPolicy": policy})) else {
            return Ok(());
        };
        let milli = |amount: Option<u32>| amount.map(|amount| format!("{amount}m"));
        let containers: Vec<_> = own.iter().map(|(limit, request)| {
            let limits = json!({"cpu": milli(*limit), "memory": limit});
            let requests = json!({"cpu": milli(*request), "memory": request});
            let container = json!({"name": "a", "resources": {"limits": limits, "requests": requests}});
            container.as_object().unwrap().clone()
        }).collect();
        let computed = policy.compute(&containers, None);
        for resource in ResourceKind::ALL {
            let amount = |list| resource.amount(Some(list));
            let (limit, request) = (amount(&computed.limits), amount(&computed.requests));
            prop_assert!(limit.is_none_or(|limit| limit > Ratio::from_integer(0)));
            prop_assert!(request.is_none_or(|request| request >= Ratio::from_integer(0)));
            if let (Some(limit), Some(request)) = (limit, request) {
                prop_assert!(request <= limit);
            }
            let whole = |amount: Option<Ratio>| {
                amount.is_none_or(|amount| match resource {
                    ResourceKind::Cpu => (amount * 1000).is_integer(),
                    ResourceKind::Memory => amount.is_integer(),
                })
            };
            prop_assert!(whole(limit) && whole(request));
        }
    }
}

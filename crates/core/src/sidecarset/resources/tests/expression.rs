//! Expressions by themselves: their values, what is refused with its place, and how deep they nest.

use rstest::rstest;
use serde_json::json;

use super::super::expression::{ExpressionValue, Ratio, exactly};
use super::super::parser::NotAnExpression;
use super::*;
use crate::workload::quantity::Quantity;

pub(super) fn quantity(text: &str) -> Ratio {
    exactly(&Quantity::parse(text).unwrap())
}

/// What an expression is in a pod whose containers have `own` of the resource, or no limit.
pub(super) fn evaluate(resource: ResourceKind, expression: &str, own: &str) -> String {
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
#[case("1e+3 + 500", "0", "1500")]
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

//! The CEL rules of roll-outs, which `SidecarSet` and `CloneSet` have in common.

use std::borrow::Cow;

use super::{CelRule, QUALIFIED, qualified_name, rule, string_rule};

/// A rule for a number of pods, or a share of them.
pub(super) fn amount_rule(path: impl Into<Cow<'static, str>>) -> CelRule {
    let is_amount = format!(
        "type(self) in [int] ? 0 <= self && self <= {} : self.matches(r'^0*[0-9]{{1,9}}%$')",
        i32::MAX
    );
    let message = "must be a number or a percentage such as 10%, and not negative";
    rule(path, is_amount, message).naming("self")
}

/// The rules for the order in which pods are updated.
pub(super) fn priority_rules(strategy: &str) -> Vec<CelRule> {
    let key = format!("must be a qualified name: {QUALIFIED}");
    let priority = format!("{strategy}.priorityStrategy");
    let given = |list: &str| format!("has(self.{list}) && self.{list}.size() > 0");
    vec![
        string_rule(
            format!("{strategy}.scatterStrategy[].key"),
            qualified_name("self"),
            key.clone(),
        ),
        rule(
            priority.clone(),
            format!(
                "!({} && {})",
                given("weightPriority"),
                given("orderPriority")
            ),
            "has weightPriority and orderPriority, of which only one is possible",
        ),
        string_rule(
            format!("{priority}.orderPriority[].orderedKey"),
            qualified_name("self"),
            key,
        ),
    ]
}

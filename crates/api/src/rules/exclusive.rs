//! The rules of a value of a label that only one pod of a marker or of a group has.

use super::{
    CelRule, LABEL_VALUE, QUALIFIED, VALUE, full_match, qualified_name, rule, string_rule,
};

/// The rules of a value that one pod has.
pub(super) fn exclusive() -> Vec<CelRule> {
    const POLICY: &str = "spec.probes[].markerPolicy[]";
    let at = |field: &str| format!("{POLICY}.exclusive.{field}");
    let has_label = |policy: &str, key: &str| {
        let set = format!("has(m.labels) && {key} in m.labels");
        format!(
            "([{policy}].exists(m, {set}) || has({policy}.outputs) && {policy}.outputs.exists(m, {set}))"
        )
    };
    let none_of = |condition: String| {
        format!(
            "!has(self.markerPolicy) || !self.markerPolicy.exists(e, has(e.exclusive) && {condition})"
        )
    };
    vec![
        rule(
            POLICY,
            "!has(self.exclusive) || self.state != 'Failed'",
            "claims nothing: only a probe that succeeds claims an exclusive value",
        )
        .at_field(".exclusive"),
        rule(
            POLICY,
            format!(
                "!has(self.exclusive) || {}",
                has_label("self", "self.exclusive.label")
            ),
            "is no label that this policy sets",
        )
        .at_field(".exclusive.label"),
        string_rule(
            at("value"),
            format!("self != '' && {}", full_match("self", LABEL_VALUE)),
            format!("must not be empty, and {VALUE}"),
        ),
        string_rule(
            at("version"),
            full_match("self", r"\$\([A-Za-z_][A-Za-z0-9_]*\)"),
            "must be a value of the output, as $(version)",
        ),
        string_rule(
            at("groupBy"),
            qualified_name("self"),
            format!("must be a qualified name: {QUALIFIED}"),
        ),
        rule(
            "spec.probes[]",
            none_of(format!(
                "has(e.exclusive.groupBy) && self.markerPolicy.exists(n, {})",
                has_label("n", "e.exclusive.groupBy")
            )),
            "sets the label of exclusive.groupBy: a verdict would take the pod to another group",
        ),
        rule(
            "spec.probes[]",
            none_of(
                "self.markerPolicy.exists(n, n.state == 'Failed' && has(n.labels) && e.exclusive.label in n.labels && \
                 n.labels[e.exclusive.label] == e.exclusive.value)"
                    .to_owned(),
            ),
            "sets the exclusive value for Failed too, which claims nothing",
        ),
    ]
}

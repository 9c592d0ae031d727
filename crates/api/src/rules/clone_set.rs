//! The CEL rules of `CloneSet`. The rest of its pod template is judged by the API server when a pod is created.

use super::{
    CelRule, amount_rule, enumeration, priority_rules, rule, same_selector, selector_rules,
};
use crate::clone_set::SPECIFIED_DELETE_LABEL;
use crate::limits;

/// The selectors of a set, all of which must select something.
pub(crate) const CLONE_SET_SELECTORS: [&str; 2] = [
    "spec.selector",
    "spec.updateStrategy.priorityStrategy.weightPriority[].matchSelector",
];

/// Values of labels in the selector of a weight.
pub(crate) const CLONE_SET_WEIGHT_VALUES: &str = "spec.updateStrategy.priorityStrategy.weightPriority[].matchSelector.matchExpressions[].values[]";

/// All rules of `CloneSet`.
pub(crate) fn clone_set() -> Vec<CelRule> {
    let empty = "must not be empty: name a label in matchLabels or matchExpressions";
    let selectors = CLONE_SET_SELECTORS.map(|selector| selector_rules(selector, empty));
    let mut rules: Vec<_> = selectors.into_iter().flatten().collect();
    rules.retain(|rule| rule.path != CLONE_SET_WEIGHT_VALUES);
    rules.push(rule(
        "spec.selector",
        same_selector(),
        "is immutable: make another set",
    ));
    rules.extend(template());
    rules.extend(claims());
    rules.extend(strategy());
    rules.extend(unsupported());
    rules
}

fn template() -> Vec<CelRule> {
    let pod = "spec.template.spec";
    let labels = "self.template.metadata.labels";
    let has_label = format!("has(self.template.metadata) && has({labels}) && k in {labels}");
    let value = format!("{labels}[k] == self.selector.matchLabels[k]");
    vec![
        rule(
            "spec",
            format!("!has(self.selector.matchLabels) || self.selector.matchLabels.all(k, {has_label} && {value})"),
            "does not have the labels of spec.selector",
        )
        .at_field(".template"),
        rule(
            "spec.template.metadata.labels",
            format!("!('{SPECIFIED_DELETE_LABEL}' in self)"),
            format!("must not set {SPECIFIED_DELETE_LABEL}, by which a pod is deleted"),
        ),
        rule(
            pod,
            "!has(self.restartPolicy) || self.restartPolicy in ['', 'Always']",
            "must be Always",
        )
        .at_field(".restartPolicy"),
        rule(
            pod,
            "!has(self.activeDeadlineSeconds)",
            "must not be set: a pod of a set does not end",
        )
        .at_field(".activeDeadlineSeconds"),
        rule(
            pod,
            "has(self.containers) && self.containers.size() > 0",
            "must not be empty",
        )
        .at_field(".containers"),
    ]
}

/// The rules for templates of claims, each of which is a volume of the pods.
fn claims() -> [CelRule; 3] {
    let claims = "self.volumeClaimTemplates";
    let volumes = "self.template.spec.volumes";
    let each = |condition: &str| format!("!has({claims}) || {claims}.all(c, {condition})");
    let names = format!(
        "!has(self.spec.volumeClaimTemplates) || self.spec.volumeClaimTemplates.all(c, \
         c.metadata.name.size() + self.metadata.name.size() <= {})",
        limits::SUBDOMAIN - "--12345".len()
    );
    [
        rule(
            "spec",
            each(&format!(
                "{claims}.exists_one(d, d.metadata.name == c.metadata.name)"
            )),
            "has a name twice",
        )
        .at_field(".volumeClaimTemplates"),
        rule(
            "spec",
            each(&format!(
                "!has({volumes}) || {volumes}.all(v, !has(v.name) || v.name != c.metadata.name)"
            )),
            "has the name of a volume of the template: each claim is a volume of its name",
        )
        .at_field(".volumeClaimTemplates"),
        rule(
            "",
            names,
            "has a name that is too long beside that of the set, since a claim of a pod has both",
        )
        .at_field(".spec.volumeClaimTemplates"),
    ]
}

fn strategy() -> Vec<CelRule> {
    let strategy = "spec.updateStrategy";
    let is_zero = |field: &str| {
        format!(
            "(has(self.{field}) && (type(self.{field}) in [int] ? self.{field} == 0 : self.{field}.matches(r'^0+%$')))"
        )
    };
    let (unavailable, surge) = (is_zero("maxUnavailable"), is_zero("maxSurge"));
    let mut rules = vec![
        enumeration(
            format!("{strategy}.type"),
            &["", "ReCreate", "InPlaceIfPossible", "InPlaceOnly"],
        ),
        amount_rule("spec.scaleStrategy.maxUnavailable"),
        amount_rule("spec.updateStrategy.partition"),
        amount_rule("spec.updateStrategy.maxUnavailable"),
        amount_rule("spec.updateStrategy.maxSurge"),
        rule(
            strategy,
            format!("!({unavailable} && (!has(self.maxSurge) || {surge}))"),
            "must not be 0 beside maxSurge 0, since no pod could be updated: set paused for that",
        )
        .at_field(".maxUnavailable"),
        rule(
            strategy,
            format!(
                "!(has(self.type) && self.type == 'InPlaceOnly' && has(self.maxSurge)) || {surge}"
            ),
            "cannot be set with type InPlaceOnly",
        )
        .at_field(".maxSurge"),
    ];
    rules.extend(priority_rules(strategy));
    rules
}

/// Refuses what `OpenKruise` has and leadsman has not, so that nobody waits for it.
fn unsupported() -> Vec<CelRule> {
    vec![
        rule(
            "spec",
            format!(
                "!has(self.progressDeadlineSeconds) || self.progressDeadlineSeconds == {}",
                i32::MAX
            ),
            "is not supported: watch updatedAvailableReplicas in the status",
        )
        .at_field(".progressDeadlineSeconds"),
    ]
}

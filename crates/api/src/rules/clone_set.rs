//! The CEL rules of `CloneSet`. The rest of its pod template is judged by the API server when a pod is created.

use super::{
    CelRule, amount_rule, enumeration, priority_rules, rule, same_selector, selector_rules,
};
use crate::clone_set::{ON_DELETE, ROLLING_UPDATE, SPECIFIED_DELETE_LABEL};
use crate::limits;

/// The selectors of a set, all of which must select something.
pub(crate) const CLONE_SET_SELECTORS: [&str; 3] = [
    "spec.selector",
    "spec.updateStrategy.priorityStrategy.weightPriority[].matchSelector",
    "spec.updateStrategy.rollingUpdate.priorityStrategy.weightPriority[].matchSelector",
];

/// Values of labels in the selector of a weight.
pub(crate) const CLONE_SET_WEIGHT_VALUES: [&str; 2] = [
    "spec.updateStrategy.priorityStrategy.weightPriority[].matchSelector.matchExpressions[].values[]",
    "spec.updateStrategy.rollingUpdate.priorityStrategy.weightPriority[].matchSelector.matchExpressions[].values[]",
];

/// All rules of `CloneSet`.
pub(crate) fn clone_set() -> Vec<CelRule> {
    let empty = "must not be empty: name a label in matchLabels or matchExpressions";
    let selectors = CLONE_SET_SELECTORS.map(|selector| selector_rules(selector, empty));
    let mut rules: Vec<_> = selectors.into_iter().flatten().collect();
    rules.retain(|rule| !CLONE_SET_WEIGHT_VALUES.contains(&&*rule.path));
    rules.push(rule(
        "spec.selector",
        same_selector(),
        "is immutable: make another set",
    ));
    rules.extend(template());
    rules.extend(claims());
    rules.push(amount_rule("spec.scaleStrategy.maxUnavailable"));
    rules.push(enumeration(
        "spec.updateStrategy.type".to_owned(),
        &[
            "",
            "ReCreate",
            "InPlaceIfPossible",
            "InPlaceOnly",
            ROLLING_UPDATE,
            ON_DELETE,
        ],
    ));
    rules.push(enumeration(
        "spec.updateStrategy.rollingUpdate.podUpdatePolicy".to_owned(),
        &["", "ReCreate", "InPlaceIfPossible", "InPlaceOnly"],
    ));
    rules.extend(settings("spec.updateStrategy", "type"));
    rules.extend(settings(
        "spec.updateStrategy.rollingUpdate",
        "podUpdatePolicy",
    ));
    rules.extend(forms());
    rules.push(deadline());
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

/// The rules for the settings of a roll-out, in the field beside which the policy is.
fn settings(strategy: &'static str, policy: &str) -> Vec<CelRule> {
    let is_zero = |field: &str| {
        format!(
            "(has(self.{field}) && (type(self.{field}) in [int] ? self.{field} == 0 : self.{field}.matches(r'^0+%$')))"
        )
    };
    let (unavailable, surge) = (is_zero("maxUnavailable"), is_zero("maxSurge"));
    let mut rules = vec![
        amount_rule(format!("{strategy}.partition")),
        amount_rule(format!("{strategy}.maxUnavailable")),
        amount_rule(format!("{strategy}.maxSurge")),
        rule(
            strategy,
            format!("!({unavailable} && (!has(self.maxSurge) || {surge}))"),
            "must not be 0 beside maxSurge 0, since no pod could be updated: set paused for that",
        )
        .at_field(".maxUnavailable"),
        rule(
            strategy,
            format!(
                "!(has(self.{policy}) && self.{policy} == 'InPlaceOnly' && has(self.maxSurge)) || {surge}"
            ),
            "cannot be set with InPlaceOnly",
        )
        .at_field(".maxSurge"),
    ];
    rules.extend(priority_rules(strategy));
    rules
}

/// CEL: a strategy is in the form of `v1beta1`.
fn is_of_v1beta1() -> String {
    format!("(has(self.type) && self.type in ['{ROLLING_UPDATE}', '{ON_DELETE}'])")
}

/// The rules by which a strategy has one form.
fn forms() -> [CelRule; 2] {
    let is_new = is_of_v1beta1();
    let is_default =
        |field: &str, default: &str| format!("(!has(self.{field}) || self.{field} == {default})");
    let settings = [
        is_default("partition", "0"),
        is_default("maxUnavailable", "'20%'"),
        is_default("maxSurge", "0"),
        is_default("paused", "false"),
        "!has(self.priorityStrategy) && !has(self.scatterStrategy) && !has(self.inPlaceUpdateStrategy)".to_owned(),
    ];
    [
        rule(
            "spec.updateStrategy",
            format!("!has(self.rollingUpdate) || {is_new}"),
            "counts with type RollingUpdate or OnDelete alone",
        )
        .at_field(".rollingUpdate"),
        rule(
            "spec.updateStrategy",
            format!("!{is_new} || ({})", settings.join(" && ")),
            "has settings beside type RollingUpdate or OnDelete, with which those in rollingUpdate count: move them there",
        ),
    ]
}

/// The rules of one version, against clients that know the fields of that version alone: whatever else a set has, they drop.
pub(crate) fn clone_set_form(is_v1beta1: bool) -> Vec<CelRule> {
    let is_new = is_of_v1beta1();
    if is_v1beta1 {
        let settings = "has(self.partition) && has(self.maxUnavailable) && has(self.maxSurge)";
        let off = "has(self.enablePVCReuse) && !self.enablePVCReuse";
        return vec![
            rule(
                "spec.updateStrategy",
                format!("{is_new} || ({settings})"),
                "is in the form of v1alpha1: either type RollingUpdate with rollingUpdate.podUpdatePolicy, or all of partition, maxUnavailable and maxSurge",
            ),
            rule(
                "spec.scaleStrategy",
                format!("!({off}) || has(oldSelf.enablePVCReuse)"),
                "cannot be set to false in a set that reuses claims: write disablePVCReuse",
            )
            .at_field(".enablePVCReuse"),
        ];
    }
    vec![
        rule(
            "spec.updateStrategy",
            format!("!{is_new} || has(self.rollingUpdate)"),
            "is missing: the type is of v1beta1, whose settings stand here",
        )
        .at_field(".rollingUpdate"),
    ]
}

/// The rule for the deadline of a roll-out: a pod is not available sooner than it may be.
fn deadline() -> CelRule {
    rule(
        "spec",
        "!has(self.progressDeadlineSeconds) || self.progressDeadlineSeconds > (has(self.minReadySeconds) ? self.minReadySeconds : 0)",
        "must be more than minReadySeconds",
    )
    .at_field(".progressDeadlineSeconds")
}

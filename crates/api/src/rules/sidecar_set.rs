//! The CEL rules of `SidecarSet`. What they cannot say is said by the parser alone: whether a text is JSON or an amount, and
//! whatever an annotation of the set says.

use super::{
    CelRule, DNS_LABEL, LABEL_VALUE, QUALIFIED, VALUE, amount_rule, enumeration, full_match,
    keys_rule, one_of, priority_rules, qualified_name, rule, selector_rules, string_rule,
    unreserved_key,
};
use crate::limits;

/// The selectors of a set, all of which must select something.
pub(crate) const SELECTORS: [&str; 4] = [
    "spec.selector",
    "spec.namespaceSelector",
    "spec.updateStrategy.selector",
    "spec.updateStrategy.priorityStrategy.weightPriority[].matchSelector",
];

/// Values of labels in the selector of a weight.
pub(crate) const WEIGHT_VALUES: &str = "spec.updateStrategy.priorityStrategy.weightPriority[].matchSelector.matchExpressions[].values[]";

/// All rules of `SidecarSet`.
pub(crate) fn sidecar_set() -> Vec<CelRule> {
    let empty = "must not be empty: name a label in matchLabels or matchExpressions";
    let selectors = SELECTORS.map(|selector| selector_rules(selector, empty));
    let mut rules: Vec<_> = selectors.into_iter().flatten().collect();
    // The rule would cost too much in a list of selectors; there it is a pattern of the schema.
    rules.retain(|rule| rule.path != WEIGHT_VALUES);
    rules.extend(pods());
    rules.extend(containers(
        "spec.containers[]",
        &["", "ColdUpgrade", "HotUpgrade"],
    ));
    rules.extend(containers("spec.initContainers[]", &["", "ColdUpgrade"]));
    rules.push(
        rule(
            "spec.initContainers[]",
            "!has(self.resourcesPolicy) || has(self.restartPolicy) && self.restartPolicy == 'Always'",
            "is for sidecars alone, not for an init container that ends before the pod's containers start: set \
             restartPolicy: Always, or resources",
        )
        .at_field(".resourcesPolicy"),
    );
    rules.extend(names());
    rules.extend(volumes());
    rules.extend(patches());
    rules.extend(revision());
    rules.extend(update_strategy());
    rules
}

fn pods() -> Vec<CelRule> {
    vec![
        string_rule(
            "spec.namespace",
            format!("self == '' || {}", full_match("self", DNS_LABEL)),
            LABEL,
        ),
        rule(
            "spec",
            // The name is a reserved word of CEL (`celReservedSymbols`, `k8s.io/apiserver/pkg/cel/escaping.go`), which before
            // Kubernetes 1.34 is found escaped only.
            "!(has(self.__namespace__) && self.__namespace__ != '' && has(self.namespaceSelector))",
            "cannot be set beside namespace: select it by label kubernetes.io/metadata.name",
        )
        .at_field(".namespaceSelector"),
        rule(
            "spec",
            "has(self.containers) && self.containers.size() > 0 || \
             has(self.initContainers) && self.initContainers.size() > 0",
            "must not be empty unless there are initContainers",
        )
        .at_field(".containers"),
    ]
}

/// The rules of each item of a list of containers.
fn containers(container: &'static str, upgrade_types: &[&str]) -> Vec<CelRule> {
    let at = |field: &str| format!("{container}.{field}");
    let is_hot = "has(self.upgradeType) && self.upgradeType == 'HotUpgrade'";
    let strategy = "self.upgradeStrategy";
    let mut rules = vec![
        string_rule(at("name"), full_match("self", DNS_LABEL), LABEL),
        rule(container, "has(self.image) && self.image != ''", "must not be empty")
            .at_field(".image"),
        string_rule(at("image"), "self == self.trim()", "has blanks around it"),
        enumeration(at("podInjectPolicy"), &["", "BeforeAppContainer", "AfterAppContainer"]),
        enumeration(at("upgradeStrategy.upgradeType"), upgrade_types),
        rule(
            at("upgradeStrategy"),
            format!("!({is_hot}) || has(self.hotUpgradeEmptyImage) && self.hotUpgradeEmptyImage != ''"),
            "must not be empty: HotUpgrade needs an image for the container that waits",
        )
        .at_field(".hotUpgradeEmptyImage"),
        rule(
            container,
            format!(
                "!(has({strategy}) && has({strategy}.upgradeType) && {strategy}.upgradeType == 'HotUpgrade') || \
                 self.name.size() <= 61"
            ),
            "HotUpgrade appends '-1' and '-2' to it, so it must not have more than 61 characters",
        )
        .at_field(".name"),
        string_rule(
            at("upgradeStrategy.upgradeType"),
            // An empty type is ColdUpgrade: only with HotUpgrade does a pod have other containers.
            "(self == 'HotUpgrade') == (oldSelf == 'HotUpgrade')",
            limits::UPGRADE_TYPE_IS_FIXED,
        ),
    ];
    rules.extend(resources_policy(&at("resourcesPolicy")));
    for policy in ["shareVolumePolicy", "shareVolumeDevicePolicy"] {
        let policy = at(&format!("{policy}.type"));
        rules.push(enumeration(policy, &["", "enabled", "disabled"]));
    }
    let field = at("transferEnv[].sourceContainerNameFrom.fieldRef");
    rules.push(string_rule(
        format!("{field}.apiVersion"),
        one_of("self", &["", "v1"]),
        "must be v1",
    ));
    rules.push(string_rule(
        format!("{field}.fieldPath"),
        r"self.matches(r'(?s)^metadata\.(labels|annotations)\[\x27.+\x27\]$')",
        "is not a label or an annotation: metadata.labels['KEY'] or metadata.annotations['KEY']",
    ));
    rules
}

fn resources_policy(policy: &str) -> [CelRule; 3] {
    [
        string_rule(
            format!("{policy}.targetContainersMode"),
            one_of("self", &["sum", "max"]),
            "must be one of sum, max",
        ),
        string_rule(
            format!("{policy}.targetContainersNameRegex"),
            // A text that is no regular expression is an error of the evaluation, which refuses the
            // set.
            "self != '' && ''.matches(self) in [true, false]",
            "must be a regular expression (RE2), and not empty: .* matches every name",
        ),
        rule(
            format!("{policy}.resourcesExpr"),
            "has(self.limits) || has(self.requests)",
            "has neither limits nor requests: set one of them",
        ),
    ]
}

const LABEL: &str = "must be a DNS label: 1 to 63 lower-case letters, digits and '-', beginning and ending with a letter or \
                     digit";

/// No two containers of a pod have one name. Within a list the keys of its items see to that.
fn names() -> Vec<CelRule> {
    let is_hot = |container: &str| {
        format!(
            "has({container}.upgradeStrategy) && has({container}.upgradeStrategy.upgradeType) && \
                 {container}.upgradeStrategy.upgradeType == 'HotUpgrade'"
        )
    };
    let taken_by = |condition: &str, list: &str| {
        format!("has(self.{list}) && self.{list}.exists(d, {condition})")
    };
    let pair = "(d.name == c.name + '-1' || d.name == c.name + '-2')";
    let other_pair = format!("{pair} && !({})", is_hot("d"));
    let hot = is_hot("c");
    let is_taken = format!(
        "{hot} ? {} || {} : {}",
        taken_by(&other_pair, "containers"),
        taken_by(pair, "initContainers"),
        taken_by("d.name == c.name", "initContainers"),
    );
    vec![
        rule(
            "spec",
            format!("!has(self.containers) || !self.containers.exists(c, {is_taken})"),
            "is the name of two containers of this set; one with HotUpgrade has two, with '-1' and '-2' appended",
        )
        .naming(format!("self.containers.filter(c, {is_taken}).map(c, c.name)"))
        .at_field(".containers"),
    ]
}

fn volumes() -> Vec<CelRule> {
    let mut rules = vec![string_rule(
        "spec.volumes[].name",
        full_match("self", DNS_LABEL),
        LABEL,
    )];
    let declared = "(has(self.volumes) ? self.volumes.map(v, v.name) : [])";
    for (list, field) in [
        ("containers", ".containers"),
        ("initContainers", ".initContainers"),
    ] {
        for mounts in ["volumeMounts", "volumeDevices"] {
            // The names are listed once, and not again for each mount.
            let condition = format!(
                "!has(self.{list}) || [{declared}].all(names, self.{list}.all(c, !has(c.{mounts}) || \
                 c.{mounts}.all(m, m.name in names)))"
            );
            let missing = format!(
                "self.{list}.filter(c, has(c.{mounts}) && \
                 !c.{mounts}.all(m, m.name in {declared})).map(c, c.name)"
            );
            rules.push(
                rule(
                    "spec",
                    condition,
                    format!("has {mounts} of a volume that is not in volumes: declare it there"),
                )
                .naming(missing)
                .at_field(field),
            );
        }
    }
    rules
}

fn patches() -> Vec<CelRule> {
    let twice =
        "p.annotations.exists(k, !self.exists_one(q, has(q.annotations) && k in q.annotations))";
    vec![
        enumeration(
            "spec.patchPodMetadata[].patchPolicy".to_owned(),
            &["", "Retain", "Overwrite", "MergePatchJson"],
        ),
        rule(
            "spec.patchPodMetadata[]",
            "has(self.annotations) && self.annotations.size() > 0",
            "must not be empty",
        )
        .at_field(".annotations"),
        // The case of an annotation's key does not matter (`ValidateAnnotations`,
        // `k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).
        keys_rule(
            "spec.patchPodMetadata[].annotations",
            &qualified_name("k.lowerAscii()"),
            format!("must be a qualified name: {QUALIFIED}"),
        ),
        keys_rule(
            "spec.patchPodMetadata[].annotations",
            &unreserved_key("k"),
            "is reserved: a controller reads it to know its pods or their state",
        ),
        rule(
            "spec.patchPodMetadata",
            format!("!self.exists(p, has(p.annotations) && {twice})"),
            "an annotation stands in more than one entry",
        ),
    ]
}

fn revision() -> Vec<CelRule> {
    let given = |field: &str| format!("has(self.{field}) && self.{field} != ''");
    vec![
        // A set's revision has it as a label.
        string_rule("spec.customVersion", full_match("self", LABEL_VALUE), VALUE),
        rule(
            "spec.injectionStrategy.revision",
            format!("{} || {}", given("revisionName"), given("customVersion")),
            "names no revision: set revisionName or customVersion",
        ),
        enumeration(
            "spec.injectionStrategy.revision.policy".to_owned(),
            &["", "Always", "Partial"],
        ),
    ]
}

fn update_strategy() -> Vec<CelRule> {
    let strategy = "spec.updateStrategy";
    let of_kind = |number: &str, text: &str| format!("type(self) in [int] ? {number} : {text}");
    let is_more = of_kind("self != 0", "!self.matches(r'^0+%$')");
    let is_share = of_kind(
        "true",
        "!self.matches(r'^0*([1-9][0-9]{3,}|[2-9][0-9]{2}|1[1-9][0-9]|10[1-9])%$')",
    );
    let zero =
        "type(self.partition) in [int] ? self.partition == 0 : self.partition.matches(r'^0+%$')";
    let mut rules = vec![
        enumeration(
            format!("{strategy}.type"),
            &["", "RollingUpdate", "NotUpdate"],
        ),
        amount_rule("spec.updateStrategy.partition"),
        rule(
            strategy,
            format!("!has(self.selector) || !has(self.partition) || ({zero})"),
            "cannot be set beside selector: the pods that are upgraded follow from one of the two",
        )
        .at_field(".partition"),
        amount_rule("spec.updateStrategy.maxUnavailable"),
        rule(
            format!("{strategy}.maxUnavailable"),
            is_more,
            "must not be 0, which stops the roll-out: set paused for that",
        ),
        rule(
            format!("{strategy}.maxUnavailable"),
            is_share,
            "must not be above 100%",
        ),
    ];
    rules.extend(priority_rules(strategy));
    rules
}

//! The CEL rules of the CRDs, with the same messages as the parsers of `leadsman-core`.
//!
//! Names are matched by regular expressions and not by CEL's `format` library: it came with Kubernetes 1.31, and an API
//! server accepts what came with its own version only in stored CRDs, not in new ones.

mod advanced_cron_job;
mod broadcast_job;
mod clone_set;
mod exclusive;
mod handlers;
mod roll_out;
mod sidecar_set;

use std::borrow::Cow;

use serde_json::{Value, json};

pub(crate) use self::advanced_cron_job::{RUN_TEMPLATES, advanced_cron_job};
pub(crate) use self::broadcast_job::broadcast_job;
pub(crate) use self::clone_set::{
    CLONE_SET_SELECTORS, CLONE_SET_WEIGHT_VALUES, clone_set, clone_set_form,
};
use self::handlers::{handlers, http, ports};
use self::roll_out::{amount_rule, priority_rules};
pub(crate) use self::sidecar_set::{SELECTORS, WEIGHT_VALUES, sidecar_set};
use crate::limits;

/// A rule, and the field that its error names.
pub(crate) struct CelRule {
    pub(crate) path: Cow<'static, str>,
    condition: String,
    message: String,
    /// The value in the message: the API server adds only its type. For a value with a line break it uses `message` instead.
    value: Option<NamedValue>,
    /// A field below `path` that the error names instead.
    field: Option<&'static str>,
}

impl CelRule {
    pub(crate) fn to_json(&self) -> Value {
        let message = &self.message;
        let mut rule = json!({"rule": self.condition, "message": message});
        if let Some(NamedValue { form, value }) = &self.value {
            // `format` reads the message too, where a single '%' would begin a value.
            let message = message.replace('%', "%%");
            // The cost of `format` is not estimated by the size of what it is given, that of `+` is.
            rule["messageExpression"] = format!("\"{form} {message}\".format([{value}])").into();
        }
        if let Some(field) = self.field {
            rule["fieldPath"] = field.into();
        }
        rule
    }

    fn at_field(self, field: &'static str) -> Self {
        Self {
            field: Some(field),
            ..self
        }
    }

    /// Names a value in the message: a list of strings, which are quoted, or a number.
    fn naming(self, value: impl Into<String>) -> Self {
        let named = NamedValue {
            form: "%s",
            value: value.into(),
        };
        Self {
            value: Some(named),
            ..self
        }
    }
}

/// A value that a message names.
struct NamedValue {
    /// The verb for CEL's `format`.
    form: &'static str,
    /// The CEL expression.
    value: String,
}

/// A rule whose message does not name a value.
fn rule(
    path: impl Into<Cow<'static, str>>,
    condition: impl Into<String>,
    message: impl Into<String>,
) -> CelRule {
    CelRule {
        path: path.into(),
        condition: condition.into(),
        message: message.into(),
        value: None,
        field: None,
    }
}

/// A rule for a string, which the message names.
fn string_rule(
    path: impl Into<Cow<'static, str>>,
    condition: impl Into<String>,
    message: impl Into<String>,
) -> CelRule {
    let named = NamedValue {
        form: "'%s'",
        value: "self".to_owned(),
    };
    CelRule {
        value: Some(named),
        ..rule(path, condition, message)
    }
}

pub(crate) const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
pub(crate) const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]";

const QUALIFIED: &str = "at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit, \
                         after an optional DNS domain and '/'";
const VALUE: &str = "must be a label value: at most 63 letters, digits, '-', '_' and '.', beginning and ending with a \
                     letter or digit";

/// All rules of `PodProbeMarker`.
pub(crate) fn marker() -> Vec<CelRule> {
    let mut rules = selector();
    rules.extend(probes());
    rules.extend(policies());
    rules.extend(labels_of_selector());
    rules.extend(exclusive::exclusive());
    rules.extend(handlers());
    rules.extend(http());
    rules.extend(ports());
    rules
}

fn selector() -> Vec<CelRule> {
    let mut rules = vec![rule(
        "spec.selector",
        same_selector(),
        "is immutable: make another marker",
    )];
    rules.extend(selector_rules(
        "spec.selector",
        "must not be empty: name a label of the pods in matchLabels or matchExpressions",
    ));
    rules
}

/// The rules of every selector; `empty` is said of one that selects nothing.
fn selector_rules(selector: &str, empty: &str) -> Vec<CelRule> {
    let at = |field: &str| format!("{selector}.{field}");
    let (labels, expression, values) = (
        at("matchLabels"),
        at("matchExpressions[]"),
        at("matchExpressions[].values[]"),
    );
    let absent_or_empty = |field: &str| format!("(!has(self.{field}) || self.{field}.size() == 0)");
    vec![
        rule(
            selector.to_owned(),
            format!("!({} && {})", absent_or_empty("matchLabels"), absent_or_empty("matchExpressions")),
            empty,
        ),
        keys_rule(labels, &qualified_name("k"), format!("must be a qualified name: {QUALIFIED}")),
        string_rule(at("matchLabels{}"), full_match("self", LABEL_VALUE), VALUE),
        string_rule(
            at("matchExpressions[].key"),
            qualified_name("self"),
            format!("must be a qualified name: {QUALIFIED}"),
        ),
        string_rule(
            at("matchExpressions[].operator"),
            one_of("self", &["In", "NotIn", "Exists", "DoesNotExist"]),
            "must be one of In, NotIn, Exists, DoesNotExist",
        ),
        rule(
            expression.clone(),
            // Kubernetes checks selectors so (`ValidateLabelSelectorRequirement`,
            // `k8s.io/apimachinery/pkg/apis/meta/v1/validation/validation.go`).
            "!(self.operator in ['In', 'NotIn']) || has(self.values) && self.values.size() > 0",
            "In and NotIn need at least one value",
        )
        .at_field(".values"),
        rule(
            expression,
            "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || self.values.size() == 0",
            "Exists and DoesNotExist take no values",
        )
        .at_field(".values"),
        string_rule(values, full_match("self", LABEL_VALUE), VALUE),
    ]
}

/// CEL: the selector has not changed. An absent list equals an empty one.
fn same_selector() -> String {
    let labels =
        |subject: &str| format!("(has({subject}.matchLabels) ? {subject}.matchLabels : {{}})");
    let expressions = |subject: &str| {
        format!(
            "(has({subject}.matchExpressions) ? {subject}.matchExpressions.map(e, \
             [e.key, e.operator] + (has(e.values) ? e.values : [])) : [])"
        )
    };
    let same = |part: &dyn Fn(&str) -> String| format!("{} == {}", part("self"), part("oldSelf"));
    format!("{} && {}", same(&labels), same(&expressions))
}

fn probes() -> Vec<CelRule> {
    let same = "has(p.podConditionType) && p.podConditionType != '' && \
                !self.exists_one(q, has(q.podConditionType) && q.podConditionType == p.podConditionType)";
    vec![
        rule(
            "spec.probes",
            "self.size() > 0",
            "must not be empty: a marker without a probe does nothing",
        ),
        rule(
            "spec.probes",
            format!("!self.exists(p, {same})"),
            "is the podConditionType of more than one probe",
        )
        .naming(format!("self.filter(p, {same}).map(p, p.podConditionType)")),
        string_rule(
            "spec.probes[].name",
            // All printable ASCII characters except the blank and '#'.
            r#"self.matches(r'^[!-"$-~]+$')"#,
            "must be a name of a probe: printable ASCII characters without blanks and '#'",
        ),
        // Kubernetes is stricter, but a name that no container has is reported when none is found.
        rule(
            "spec.probes[].containerName",
            "self != ''",
            "must not be empty",
        ),
        string_rule(
            "spec.probes[].podConditionType",
            format!("self == '' || {}", qualified_name("self")),
            format!("must be a qualified name: {QUALIFIED}"),
        ),
        string_rule(
            "spec.probes[].podConditionType",
            format!("!({})", one_of("self", limits::RESERVED_CONDITION_TYPES)),
            "is a condition of Kubernetes or OpenKruise itself",
        ),
        rule(
            "spec.probes[]",
            "has(self.podConditionType) && self.podConditionType != '' || \
             has(self.markerPolicy) && self.markerPolicy.size() > 0",
            "has no effect: set podConditionType, markerPolicy or both",
        ),
    ]
}

/// CEL: a label's value in which `$(name)` may stand for a letter or digit.
fn label_template() -> String {
    const LETTER: &str = r"([A-Za-z0-9]|\$\([A-Za-z_][A-Za-z0-9_]*\))";
    let value = format!("({LETTER}([-_.]*{LETTER})*)?");
    full_match("self", &value)
}

/// The rules of labels and annotations, in a policy and in its entries for certain values of the output.
fn pairs(policy: &str) -> Vec<CelRule> {
    let at = |field: &str| format!("{policy}.{field}");
    let (labels, annotations) = (at("labels"), at("annotations"));
    let qualified = format!("must be a qualified name: {QUALIFIED}");
    let reserved = "is reserved: a controller reads it to know its pods or their state";
    vec![
        keys_rule(labels.clone(), &qualified_name("k"), qualified.clone()),
        keys_rule(labels, &unreserved_key("k"), reserved),
        string_rule(at("labels{}"), label_template(), VALUE),
        // The case of an annotation's key does not matter, as in Kubernetes.
        keys_rule(
            annotations.clone(),
            &qualified_name("k.lowerAscii()"),
            qualified,
        ),
        keys_rule(annotations, &unreserved_key("k"), reserved),
    ]
}

/// CEL: a policy refers to values of the output. In an annotation `$(name)` always was a text like any other, and is one
/// where the probe has no `output`.
fn uses_values(policy: &str) -> String {
    format!(
        "has({policy}.outputs) && {policy}.outputs.size() > 0 || has({policy}.message) && {policy}.message.contains('$(') || \
         has({policy}.labels) && {policy}.labels.exists(k, {policy}.labels[k].contains('$(')) || \
         has({policy}.exclusive) && has({policy}.exclusive.version)"
    )
}

fn policies() -> Vec<CelRule> {
    const POLICY: &str = "spec.probes[].markerPolicy[]";
    const OUTPUTS: &str = "spec.probes[].markerPolicy[].outputs[]";
    let sets = |field: &str| format!("has(self.{field}) && self.{field}.size() > 0");
    let sets_pairs = format!("{} || {}", sets("labels"), sets("annotations"));
    let mut rules = vec![
        string_rule(
            "spec.probes[].markerPolicy[].state",
            one_of("self", &["Succeeded", "Failed"]),
            "must be one of Succeeded, Failed",
        ),
        rule(
            POLICY,
            format!(
                "{sets_pairs} || {} || {} || has(self.holdSeconds) && self.holdSeconds > 0",
                sets("outputs"),
                sets("message")
            ),
            "sets nothing: give it labels, annotations, a message or a time to hold",
        ),
        rule(
            POLICY,
            format!("self.state != 'Failed' || !({})", uses_values("self")),
            "has no values: only a run that succeeds has output that matches",
        ),
        rule(
            OUTPUTS,
            format!("{sets_pairs} || has(self.holdSeconds)"),
            "sets nothing: give it labels, annotations or a time to hold",
        ),
        rule(
            format!("{OUTPUTS}.when"),
            "self.size() > 0",
            "must not be empty: name a value of the output",
        ),
        enumeration(
            "spec.probes[].output.mismatch".into(),
            &["", "Failed", "Unknown"],
        ),
        rule(
            "spec.probes[].output.matches",
            "self != ''",
            "must not be empty",
        ),
        rule(
            "spec.probes[]",
            format!(
                "has(self.output) || !has(self.markerPolicy) || !self.markerPolicy.exists(m, {})",
                uses_values("m")
            ),
            "refers to values of the output: set output.matches",
        ),
        rule(
            format!("{POLICY}.annotations"),
            format!(
                "self.map(k, size(bytes(k)) + size(bytes(self[k]))).sum() <= {}",
                limits::ANNOTATIONS_BYTES
            ),
            format!(
                "keys and values must not be more than {} bytes",
                limits::ANNOTATIONS_BYTES
            ),
        ),
    ];
    rules.extend(pairs(POLICY));
    rules.extend(pairs(OUTPUTS));
    rules
}

/// No policy sets a label that the marker's selector reads.
fn labels_of_selector() -> Vec<CelRule> {
    let mut rules = Vec::new();
    let read = "is a label that the selector reads: a verdict would take the pod out of it";
    for (part, keys) in [
        (
            "matchLabels",
            "self.selector.matchLabels.exists(k, k in m.labels)",
        ),
        (
            "matchExpressions",
            "self.selector.matchExpressions.exists(e, e.key in m.labels)",
        ),
    ] {
        let set = format!("has(m.labels) && {keys}");
        let condition = format!(
            "!has(self.selector.{part}) || !self.probes.exists(p, {})",
            any_policy(&set)
        );
        rules.push(
            rule("spec", condition, read)
                .naming(read_labels(part))
                .at_field(".probes"),
        );
    }
    rules
}

/// CEL: a policy `m` of probe `p`, or an entry of one for certain values of the output, fulfils a condition.
fn any_policy(condition: &str) -> String {
    format!(
        "has(p.markerPolicy) && p.markerPolicy.exists(n, [n].exists(m, {condition}) || has(n.outputs) && n.outputs.exists(m, {condition}))"
    )
}

/// CEL: the keys in a part of the selector that a policy sets.
fn read_labels(part: &str) -> String {
    let is_set = |key: &str| {
        let set = any_policy(&format!("has(m.labels) && {key} in m.labels"));
        format!("self.probes.exists(p, {set})")
    };
    match part {
        "matchLabels" => format!("self.selector.matchLabels.filter(k, {})", is_set("k")),
        _ => format!(
            "self.selector.matchExpressions.filter(e, {}).map(e, e.key)",
            is_set("e.key")
        ),
    }
}

/// CEL: the whole of `subject` matches a regular expression.
fn full_match(subject: &str, expression: &str) -> String {
    format!("{subject}.matches(r'^{expression}$')")
}

/// A rule for a string that is one of a few, or empty.
fn enumeration(path: String, values: &[&str]) -> CelRule {
    let named: Vec<_> = values
        .iter()
        .copied()
        .filter(|value| !value.is_empty())
        .collect();
    let message = format!("must be one of {}", named.join(", "));
    string_rule(path, one_of("self", values), message)
}

fn one_of(subject: &str, values: &[&str]) -> String {
    format!("{subject} in ['{}']", values.join("', '"))
}

/// A rule for each key of a map; the message names those that break it.
fn keys_rule(
    path: impl Into<Cow<'static, str>>,
    condition: &str,
    message: impl Into<String>,
) -> CelRule {
    let broken = format!("self.filter(k, !({condition}))");
    rule(path, format!("self.all(k, {condition})"), message).naming(broken)
}

/// CEL: `subject` is `name` or `domain/name`. The expression bounds the name, the position of '/' the domain.
fn qualified_name(subject: &str) -> String {
    let name = full_match(subject, &format!("({DNS_LABEL}(\\.{DNS_LABEL})*/)?{NAME}"));
    format!("{name} && {subject}.indexOf('/') <= {}", limits::SUBDOMAIN)
}

/// CEL: `subject` is no reserved key. The keys are a map, since its lookup costs 1 and the search of a list its length.
fn unreserved_key(subject: &str) -> String {
    let keys: Vec<_> = limits::RESERVED_KEYS
        .iter()
        .map(|key| format!("'{key}': 0"))
        .collect();
    let prefixes: Vec<_> = limits::RESERVED_PREFIXES
        .iter()
        .map(|prefix| format!("{subject}.startsWith('{prefix}')"))
        .collect();
    format!(
        "!({subject} in {{{}}} || {})",
        keys.join(", "),
        prefixes.join(" || ")
    )
}

//! The CEL rules of a marker's CRD. `leadsman-core` parses by the same ones.
//!
//! Names are matched by expressions of our own and not by CEL's `format`: it came with 1.31, and an API server takes
//! what came with its own version in stored CRDs only, not in new ones.

use serde_json::{Value, json};

use crate::limits;

/// One rule, and the place that an error of it names.
pub(crate) struct Rule {
    pub(crate) path: &'static str,
    condition: String,
    message: String,
    /// A field below `path` that the error names instead.
    field: Option<&'static str>,
}

impl Rule {
    pub(crate) fn to_json(&self) -> Value {
        let mut rule = json!({"rule": self.condition, "message": self.message});
        if let Some(field) = self.field {
            rule["fieldPath"] = field.into();
        }
        rule
    }

    fn of(self, field: &'static str) -> Self {
        Self {
            field: Some(field),
            ..self
        }
    }
}

fn rule(path: &'static str, condition: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule {
        path,
        condition: condition.into(),
        message: message.into(),
        field: None,
    }
}

const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]";

const QUALIFIED: &str = "at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit, \
                         after an optional DNS domain and '/'";
const VALUE: &str = "must be a label value: at most 63 letters, digits, '-', '_' and '.', beginning and ending with a \
                     letter or digit";

/// All rules of `PodProbeMarker`.
pub(crate) fn marker() -> Vec<Rule> {
    let mut rules = selector();
    rules.extend(probes());
    rules.extend(policies());
    rules.extend(handlers());
    rules
}

fn selector() -> Vec<Rule> {
    let (labels, expressions) = (
        "spec.selector.matchLabels",
        "spec.selector.matchExpressions[]",
    );
    vec![
        rule("spec.selector", "self == oldSelf", "is immutable"),
        all_keys(labels, &qualified_name("k"), format!("keys must be qualified names: {QUALIFIED}")),
        rule("spec.selector.matchLabels{}", whole("self", LABEL_VALUE), VALUE),
        rule(
            "spec.selector.matchExpressions[].key",
            qualified_name("self"),
            format!("must be a qualified name: {QUALIFIED}"),
        ),
        rule(
            "spec.selector.matchExpressions[].operator",
            one_of("self", &["In", "NotIn", "Exists", "DoesNotExist"]),
            "must be one of In, NotIn, Exists, DoesNotExist",
        ),
        rule(
            expressions,
            "!(self.operator in ['In', 'NotIn']) || has(self.values) && self.values.size() > 0",
            "In and NotIn need at least one value",
        )
        .of(".values"),
        rule(
            expressions,
            "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || self.values.size() == 0",
            "Exists and DoesNotExist take no values",
        )
        .of(".values"),
        rule("spec.selector.matchExpressions[].values[]", whole("self", LABEL_VALUE), VALUE),
    ]
}

fn probes() -> Vec<Rule> {
    vec![
        rule(
            "spec.probes",
            "self.all(p, !has(p.podConditionType) || p.podConditionType == '' || \
             self.exists_one(q, has(q.podConditionType) && q.podConditionType == p.podConditionType))",
            "two probes must not write the same condition",
        ),
        rule("spec.probes[].name", "self != ''", "must not be empty"),
        rule(
            "spec.probes[].containerName",
            whole("self", DNS_LABEL),
            "must be a DNS label: at most 63 lower-case letters, digits and '-', beginning and ending with a letter \
             or digit",
        ),
        rule(
            "spec.probes[].podConditionType",
            format!("self == '' || {}", qualified_name("self")),
            format!("must be a qualified name: {QUALIFIED}"),
        ),
        rule(
            "spec.probes[].podConditionType",
            format!("!({})", one_of("self", limits::RESERVED_CONDITION_TYPES)),
            "is a condition of Kubernetes itself",
        ),
        rule(
            "spec.probes[]",
            "has(self.podConditionType) && self.podConditionType != '' || \
             has(self.markerPolicy) && self.markerPolicy.size() > 0",
            "has no effect: set podConditionType, markerPolicy or both",
        ),
    ]
}

fn policies() -> Vec<Rule> {
    let (labels, annotations) = (
        "spec.probes[].markerPolicy[].labels",
        "spec.probes[].markerPolicy[].annotations",
    );
    let qualified = format!("keys must be qualified names: {QUALIFIED}");
    let reserved = format!(
        "keys of {} are reserved for Kubernetes itself, but for {}",
        limits::RESERVED_DOMAINS.join(", ") + ", " + &limits::RESERVED_KEYS.join(", "),
        limits::OPEN_KEYS.join(", ") + ", " + &limits::OPEN_DOMAINS.join(", ") + "/*",
    );
    vec![
        rule(
            "spec.probes[].markerPolicy[].state",
            one_of("self", &["Succeeded", "Failed"]),
            "must be one of Succeeded, Failed",
        ),
        all_keys(labels, &qualified_name("k"), qualified.clone()),
        all_keys(labels, &open_key("k"), reserved.clone()),
        rule("spec.probes[].markerPolicy[].labels{}", whole("self", LABEL_VALUE), VALUE),
        // The case of an annotation's key does not matter, as in Kubernetes.
        all_keys(annotations, &qualified_name("k.lowerAscii()"), qualified),
        all_keys(annotations, &open_key("k.lowerAscii()"), reserved),
        rule(
            "spec",
            "!has(self.selector.matchLabels) || self.probes.all(p, !has(p.markerPolicy) || \
             p.markerPolicy.all(m, !has(m.labels) || m.labels.all(k, !(k in self.selector.matchLabels))))",
            "a policy must not set a label that the selector reads: a verdict would take the pod out of it",
        )
        .of(".probes"),
        rule(
            "spec",
            "!has(self.selector.matchExpressions) || self.probes.all(p, !has(p.markerPolicy) || \
             p.markerPolicy.all(m, !has(m.labels) || \
             self.selector.matchExpressions.all(e, !(e.key in m.labels))))",
            "a policy must not set a label that the selector reads: a verdict would take the pod out of it",
        )
        .of(".probes"),
    ]
}

fn handlers() -> Vec<Rule> {
    let mut rules = vec![
        rule(
            "spec.probes[].probe",
            "[has(self.exec), has(self.httpGet), has(self.tcpSocket), has(self.grpc)].exists_one(given, given)",
            "needs exactly one of exec, httpGet, tcpSocket, grpc",
        ),
        rule(
            "spec.probes[].probe",
            "!has(self.terminationGracePeriodSeconds)",
            "no pod ends because of this probe: leave it out",
        )
        .of(".terminationGracePeriodSeconds"),
        rule(
            "spec.probes[].probe.exec",
            "has(self.command) && self.command.size() > 0",
            "must name a program",
        )
        .of(".command"),
        rule(
            "spec.probes[].probe.httpGet.scheme",
            one_of("self", &["", "HTTP", "HTTPS"]),
            "must be one of HTTP, HTTPS",
        ),
        rule(
            "spec.probes[].probe.httpGet.httpHeaders[].name",
            whole("self", "[-A-Za-z0-9]+"),
            "must be a name of an HTTP header: letters, digits and '-'",
        ),
        rule(
            "spec.probes[].probe.grpc.port",
            "1 <= self && self <= 65535",
            "must be within 1 and 65535",
        ),
    ];
    for path in [
        "spec.probes[].probe.httpGet.host",
        "spec.probes[].probe.tcpSocket.host",
    ] {
        let message = "a probe goes to its own pod: leave it out, or set the header Host";
        rules.push(rule(path, "self == ''", message));
    }
    for path in [
        "spec.probes[].probe.httpGet.port",
        "spec.probes[].probe.tcpSocket.port",
    ] {
        rules.push(rule(
            path,
            format!(
                "type(self) == int ? 1 <= self && self <= 65535 : {} && {} && !self.contains('--')",
                whole("self", DNS_LABEL),
                "self.matches('[a-z]')",
            ),
            "must be within 1 and 65535, or a name: lower-case letters, digits and single '-' between them, with at \
             least one letter",
        ));
    }
    rules
}

/// CEL: all of `subject` matches an expression.
fn whole(subject: &str, expression: &str) -> String {
    format!("{subject}.matches(r'^{expression}$')")
}

fn one_of(subject: &str, values: &[&str]) -> String {
    format!("{subject} in ['{}']", values.join("', '"))
}

fn all_keys(path: &'static str, condition: &str, message: String) -> Rule {
    rule(path, format!("self.all(k, {condition})"), message)
}

/// CEL: `subject` is `name` or `domain/name`. The expression bounds the name, the position of '/' the domain.
fn qualified_name(subject: &str) -> String {
    let name = whole(subject, &format!("({DNS_LABEL}(\\.{DNS_LABEL})*/)?{NAME}"));
    format!("{name} && {subject}.indexOf('/') <= {}", limits::SUBDOMAIN)
}

/// CEL: `subject` is no key of Kubernetes' own, or one that is open to all.
fn open_key(subject: &str) -> String {
    let domains = limits::RESERVED_DOMAINS.join("|").replace('.', "\\.");
    let keys = limits::RESERVED_KEYS.join("|");
    let reserved = whole(subject, &format!("({keys}|(.*\\.)?({domains})/.*)"));
    let open = limits::OPEN_DOMAINS.iter();
    let mut allowed = vec![one_of(subject, limits::OPEN_KEYS)];
    allowed.extend(open.map(|domain| format!("{subject}.startsWith('{domain}/')")));
    format!("!{reserved} || {}", allowed.join(" || "))
}

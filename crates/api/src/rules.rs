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
    /// CEL: what breaks the rule. The API server's own words have its type alone. Of a value with a line break it takes
    /// `message` instead.
    value: Option<Named>,
    /// A field below `path` that the error names instead.
    field: Option<&'static str>,
}

impl Rule {
    pub(crate) fn to_json(&self) -> Value {
        let message = &self.message;
        let mut rule = json!({"rule": self.condition, "message": message});
        if let Some(Named { form, value }) = &self.value {
            let message = message.replace('%', "%%");
            // The cost of `format` is not estimated by the size of what it is given, that of `+` is.
            rule["messageExpression"] = format!("\"{form} {message}\".format([{value}])").into();
        }
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

    /// Its message names a list of texts, which are quoted, or a number.
    fn naming(self, value: impl Into<String>) -> Self {
        let named = Named {
            form: "%s",
            value: value.into(),
        };
        Self {
            value: Some(named),
            ..self
        }
    }
}

/// What a message names.
struct Named {
    /// How it is written, for CEL's `format`.
    form: &'static str,
    /// CEL.
    value: String,
}

/// A rule whose message does not name a value.
fn rule(path: &'static str, condition: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule {
        path,
        condition: condition.into(),
        message: message.into(),
        value: None,
        field: None,
    }
}

/// A rule about a string, which its message names.
fn text(path: &'static str, condition: impl Into<String>, message: impl Into<String>) -> Rule {
    let named = Named {
        form: "'%s'",
        value: "self".to_owned(),
    };
    Rule {
        value: Some(named),
        ..rule(path, condition, message)
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
    rules.extend(http());
    rules.extend(ports());
    rules
}

fn selector() -> Vec<Rule> {
    let (labels, expression, values) = (
        "spec.selector.matchLabels",
        "spec.selector.matchExpressions[]",
        "spec.selector.matchExpressions[].values[]",
    );
    let absent_or_empty = |field: &str| format!("(!has(self.{field}) || self.{field}.size() == 0)");
    vec![
        rule("spec.selector", same_selector(), "is immutable: make another marker"),
        rule(
            "spec.selector",
            format!("!({} && {})", absent_or_empty("matchLabels"), absent_or_empty("matchExpressions")),
            "must not be empty: name a label of the pods in matchLabels or matchExpressions",
        ),
        all_keys(labels, &qualified_name("k"), format!("must be a qualified name: {QUALIFIED}")),
        text("spec.selector.matchLabels{}", whole("self", LABEL_VALUE), VALUE),
        text(
            "spec.selector.matchExpressions[].key",
            qualified_name("self"),
            format!("must be a qualified name: {QUALIFIED}"),
        ),
        text(
            "spec.selector.matchExpressions[].operator",
            one_of("self", &["In", "NotIn", "Exists", "DoesNotExist"]),
            "must be one of In, NotIn, Exists, DoesNotExist",
        ),
        rule(
            expression,
            "!(self.operator in ['In', 'NotIn']) || has(self.values) && self.values.size() > 0",
            "In and NotIn need at least one value",
        )
        .of(".values"),
        rule(
            expression,
            "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || self.values.size() == 0",
            "Exists and DoesNotExist take no values",
        )
        .of(".values"),
        text(values, whole("self", LABEL_VALUE), VALUE),
    ]
}

/// CEL: a selector is what it was; a list that is absent is the same as an empty one.
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

fn probes() -> Vec<Rule> {
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
            "is the condition of more than one probe",
        )
        .naming(format!("self.filter(p, {same}).map(p, p.podConditionType)")),
        text(
            "spec.probes[].name",
            // All that is printable in ASCII but a blank and '#'.
            r#"self.matches(r'^[!-"$-~]+$')"#,
            "must be a name of a probe: printable ASCII characters without blanks and '#'",
        ),
        // Kubernetes is stricter, but a name that no container has is told when none is found.
        rule(
            "spec.probes[].containerName",
            "self != ''",
            "must not be empty",
        ),
        text(
            "spec.probes[].podConditionType",
            format!("self == '' || {}", qualified_name("self")),
            format!("must be a qualified name: {QUALIFIED}"),
        ),
        text(
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

fn policies() -> Vec<Rule> {
    let (policy, labels, annotations) = (
        "spec.probes[].markerPolicy[]",
        "spec.probes[].markerPolicy[].labels",
        "spec.probes[].markerPolicy[].annotations",
    );
    let qualified = format!("must be a qualified name: {QUALIFIED}");
    let reserved = "is reserved: a controller reads it to know its pods or their state";
    let mut rules = vec![
        text(
            "spec.probes[].markerPolicy[].state",
            one_of("self", &["Succeeded", "Failed"]),
            "must be one of Succeeded, Failed",
        ),
        rule(
            policy,
            "has(self.labels) && self.labels.size() > 0 || has(self.annotations) && self.annotations.size() > 0",
            "sets nothing: give it labels, annotations or both",
        ),
        all_keys(labels, &qualified_name("k"), qualified.clone()),
        all_keys(labels, &open_key("k"), reserved),
        text(
            "spec.probes[].markerPolicy[].labels{}",
            whole("self", LABEL_VALUE),
            VALUE,
        ),
        // The case of an annotation's key does not matter, as in Kubernetes.
        all_keys(annotations, &qualified_name("k.lowerAscii()"), qualified),
        all_keys(annotations, &open_key("k"), reserved),
        rule(
            annotations,
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
        let condition = format!(
            "!has(self.selector.{part}) || !self.probes.exists(p, has(p.markerPolicy) && \
             p.markerPolicy.exists(m, has(m.labels) && {keys}))"
        );
        rules.push(
            rule("spec", condition, read)
                .naming(read_labels(part))
                .of(".probes"),
        );
    }
    rules
}

/// CEL: the selector's keys, of one of its parts, that a policy sets.
fn read_labels(part: &str) -> String {
    let is_set = |key: &str| {
        format!(
            "self.probes.exists(p, has(p.markerPolicy) && p.markerPolicy.exists(m, has(m.labels) && {key} in m.labels))"
        )
    };
    match part {
        "matchLabels" => format!("self.selector.matchLabels.filter(k, {})", is_set("k")),
        _ => format!(
            "self.selector.matchExpressions.filter(e, {}).map(e, e.key)",
            is_set("e.key")
        ),
    }
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
            "must not be set: this probe never terminates a pod",
        )
        .of(".terminationGracePeriodSeconds"),
        rule(
            "spec.probes[].probe.exec",
            "has(self.command) && self.command.size() > 0",
            "must name a program",
        )
        .of(".command"),
        rule(
            "spec.probes[].probe.exec.command",
            format!("self.map(w, size(w)).sum() <= {}", limits::COMMAND_CHARS),
            format!(
                "all words together must not be more than {} characters",
                limits::COMMAND_CHARS
            ),
        ),
    ];
    for path in [
        "spec.probes[].probe.httpGet.host",
        "spec.probes[].probe.tcpSocket.host",
    ] {
        let message =
            "is another host: a probe goes to its own pod, leave it out, or set the header Host";
        rules.push(text(path, "self == ''", message));
    }
    rules
}

/// Paths are those of Go's `url.Parse`, by which Kubernetes and OpenKruise check them; core's module `url` has the same.
fn http() -> Vec<Rule> {
    const SCHEME: &str = "[A-Za-z][-A-Za-z0-9+.]*:";
    const ESCAPE: &str = "%[0-9A-Fa-f]{2}";
    const USER: &str = r"[-A-Za-z0-9._~!$&\x27()*+,;=:@%]*@";
    const HOST: &str =
        r#"([-A-Za-z0-9._~!$&\x27()*+,;=<>"]|[^\x00-\x7f]|%25|%[89A-Fa-f][0-9A-Fa-f])*"#;
    const ADDRESS: &str = r"\[[0-9A-Fa-f:.]*\]";
    let (path, headers) = (
        "spec.probes[].probe.httpGet.path",
        "spec.probes[].probe.httpGet.httpHeaders",
    );
    let host = format!("({USER})?({ADDRESS}|{HOST})(:[0-9]*)?");
    vec![
        text(
            "spec.probes[].probe.httpGet.scheme",
            one_of("self", &["", "HTTP", "HTTPS"]),
            "must be one of HTTP, HTTPS",
        ),
        text(
            path,
            r"!self.matches(r'[\x00-\x1f\x7f]')",
            "has a control character",
        ),
        text(
            path,
            // A query is handed on as it is.
            format!(r"self.matches(r'^([^%?#]|{ESCAPE})*(\?[^#]*)?(#([^%]|{ESCAPE})*)?$')"),
            "has a '%' that two hexadecimal digits do not follow",
        ),
        text(
            path,
            format!("self.matches(r'^({SCHEME}|[^:/?#]*([/?#]|$))')"),
            "has a ':' in its first part: begin with '/'",
        ),
        text(
            path,
            format!(
                "!self.matches(r'^({SCHEME})?//') || self.matches(r'^({SCHEME})?//{host}([/?#]|$)')"
            ),
            "has no host after '//': begin with one '/'",
        ),
        rule(
            headers,
            format!(
                "self.map(h, size(bytes(h.name)) + size(bytes(h.value))).sum() <= {}",
                limits::HEADERS_BYTES
            ),
            format!(
                "all names and values must not be more than {} bytes",
                limits::HEADERS_BYTES
            ),
        ),
        text(
            "spec.probes[].probe.httpGet.httpHeaders[].name",
            whole("self", "[-A-Za-z0-9]+"),
            "must be a name of an HTTP header: letters, digits and '-'",
        ),
        rule(
            "spec.probes[].probe.httpGet.httpHeaders[].value",
            r"!self.matches(r'[\r\n]')",
            "must not have a line break",
        ),
    ]
}

fn ports() -> Vec<Rule> {
    let mut rules = vec![
        rule(
            "spec.probes[].probe.grpc.port",
            "1 <= self && self <= 65535",
            "must be within 1 and 65535",
        )
        .naming("self"),
    ];
    for path in [
        "spec.probes[].probe.httpGet.port",
        "spec.probes[].probe.tcpSocket.port",
    ] {
        let condition = format!(
            "type(self) == int ? 1 <= self && self <= 65535 : {} && {} && !self.contains('--')",
            whole("self", DNS_LABEL),
            "self.matches('[a-z]')",
        );
        let message = "must be within 1 and 65535, or a name: lower-case letters, digits and single '-' between \
                       them, with at least one letter";
        rules.push(rule(path, condition, message).naming("self"));
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

/// A rule about each key of a map; the message names those that break it.
fn all_keys(path: &'static str, condition: &str, message: impl Into<String>) -> Rule {
    let broken = format!("self.filter(k, !({condition}))");
    rule(path, format!("self.all(k, {condition})"), message).naming(broken)
}

/// CEL: `subject` is `name` or `domain/name`. The expression bounds the name, the position of '/' the domain.
fn qualified_name(subject: &str) -> String {
    let name = whole(subject, &format!("({DNS_LABEL}(\\.{DNS_LABEL})*/)?{NAME}"));
    format!("{name} && {subject}.indexOf('/') <= {}", limits::SUBDOMAIN)
}

/// CEL: `subject` is no reserved key. A map is looked up at the cost of one step, a list is searched.
fn open_key(subject: &str) -> String {
    let keys: Vec<_> = limits::RESERVED_KEYS
        .iter()
        .map(|key| format!("'{key}': 0"))
        .collect();
    let prefixes = limits::RESERVED_PREFIXES.iter();
    let prefixes: Vec<_> = prefixes
        .map(|prefix| format!("{subject}.startsWith('{prefix}')"))
        .collect();
    format!(
        "!({subject} in {{{}}} || {})",
        keys.join(", "),
        prefixes.join(" || ")
    )
}

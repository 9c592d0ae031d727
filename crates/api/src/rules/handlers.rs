//! The rules of what a probe does: its handlers, the paths and headers of HTTP, and ports.

use super::{CelRule, DNS_LABEL, full_match, one_of, rule, string_rule};
use crate::limits;

pub(super) fn handlers() -> Vec<CelRule> {
    let mut rules = vec![
        rule(
            "spec.probes[]",
            "[has(self.probe.exec), has(self.probe.httpGet), has(self.probe.tcpSocket), has(self.probe.grpc), \
             has(self.file)].exists_one(given, given)",
            "needs exactly one of exec, httpGet, tcpSocket, grpc, or file beside it",
        )
        .at_field(".probe"),
        string_rule(
            "spec.probes[].file.volume",
            full_match("self", DNS_LABEL),
            "must be a name of a volume: lower-case letters, digits and '-', beginning and ending with a letter or digit",
        ),
        string_rule(
            "spec.probes[].file.path",
            // No character below the blank, which a terminal might obey; no part that leads upwards.
            r"self.matches(r'^[^/\x00-\x1f\x7f]+(/[^/\x00-\x1f\x7f]+)*$') && !self.matches(r'(^|/)[.][.]?(/|$)')",
            "must be a path in the volume: names with one '/' between them, none of them '.' or '..'",
        ),
        rule(
            "spec.probes[].probe",
            "!has(self.terminationGracePeriodSeconds)",
            "must not be set: this probe never terminates a pod",
        )
        .at_field(".terminationGracePeriodSeconds"),
        rule(
            "spec.probes[].probe.exec",
            "has(self.command) && self.command.size() > 0",
            "must name a program",
        )
        .at_field(".command"),
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
        rules.push(string_rule(path, "self == ''", message));
    }
    rules
}

pub(super) fn http() -> Vec<CelRule> {
    let mut rules = vec![
        string_rule(
            "spec.probes[].probe.httpGet.scheme",
            one_of("self", &["", "HTTP", "HTTPS"]),
            "must be one of HTTP, HTTPS",
        ),
        string_rule(
            "spec.probes[].probe.httpGet.protocol",
            one_of("self", &["", "HTTP1", "HTTP2"]),
            "must be one of HTTP1, HTTP2",
        ),
        rule(
            "spec.probes[].probe.httpGet",
            "!has(self.protocol) || self.protocol != 'HTTP2' || !has(self.scheme) || self.scheme != 'HTTPS'",
            "HTTP2 is without TLS: leave it out, the server chooses the version",
        )
        .at_field(".protocol"),
        string_rule(
            "spec.probes[].probe.grpc.mode",
            one_of("self", &["", "Plaintext", "TLS"]),
            "must be one of Plaintext, TLS",
        ),
        rule(
            "spec.probes[].probe.httpGet.httpHeaders",
            format!(
                "self.map(h, size(bytes(h.name)) + size(bytes(h.value))).sum() <= {}",
                limits::HEADERS_BYTES
            ),
            format!(
                "all names and values must not be more than {} bytes",
                limits::HEADERS_BYTES
            ),
        ),
        string_rule(
            "spec.probes[].probe.httpGet.httpHeaders[].name",
            // Narrower than RFC 9110, as Kubernetes has it (`IsHTTPHeaderName`,
            // `k8s.io/apimachinery/pkg/util/validation/validation.go`).
            full_match("self", "[-A-Za-z0-9]+"),
            "must be a name of an HTTP header: letters, digits and '-'",
        ),
        rule(
            "spec.probes[].probe.httpGet.httpHeaders[].value",
            // A line break would begin another header (RFC 9110, 5.5).
            r"!self.matches(r'[\r\n]')",
            "must not have a line break",
        ),
    ];
    rules.extend(http_path());
    rules
}

/// A path must be one that Go's `url.Parse` accepts, by which Kubernetes and OpenKruise validate it; core's module `url` has
/// the same rules.
fn http_path() -> Vec<CelRule> {
    const SCHEME: &str = "[A-Za-z][-A-Za-z0-9+.]*:";
    const ESCAPE: &str = "%[0-9A-Fa-f]{2}";
    const USER: &str = r"[-A-Za-z0-9._~!$&\x27()*+,;=:@%]*@";
    const HOST: &str =
        r#"([-A-Za-z0-9._~!$&\x27()*+,;=<>"]|[^\x00-\x7f]|%25|%[89A-Fa-f][0-9A-Fa-f])*"#;
    const ADDRESS: &str = r"\[[0-9A-Fa-f:.]*\]";
    let path = "spec.probes[].probe.httpGet.path";
    let host = format!("({USER})?({ADDRESS}|{HOST})(:[0-9]*)?");
    vec![
        string_rule(
            path,
            r"!self.matches(r'[\x00-\x1f\x7f]')",
            "has a control character",
        ),
        string_rule(
            path,
            // A query is sent as it is.
            format!(r"self.matches(r'^([^%?#]|{ESCAPE})*(\?[^#]*)?(#([^%]|{ESCAPE})*)?$')"),
            "has a '%' that two hexadecimal digits do not follow",
        ),
        string_rule(
            path,
            format!("self.matches(r'^({SCHEME}|[^:/?#]*([/?#]|$))')"),
            "has a ':' in its first part: begin with '/'",
        ),
        string_rule(
            path,
            format!(
                "!self.matches(r'^({SCHEME})?//') || self.matches(r'^({SCHEME})?//{host}([/?#]|$)')"
            ),
            "has no host after '//': begin with one '/'",
        ),
    ]
}

pub(super) fn ports() -> Vec<CelRule> {
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
        // The type is looked up in a list for its cost, as `port_name` says.
        let condition = format!(
            "type(self) in [int] ? 1 <= self && self <= 65535 : {}",
            port_name()
        );
        let message = "must be within 1 and 65535, or a name: lower-case letters, digits and single '-' between \
                       them, with at least one letter";
        rules.push(rule(path, condition, message).naming("self"));
    }
    rules
}

/// CEL: `self`, which is not longer than `limits::PORT_NAME`, is a name of a port: words of lower-case letters and digits
/// with single '-' between them, and at least one letter.
///
/// Characters are compared one by one, and the type is looked up in a list. For Kubernetes 1.31 an int-or-string may be as
/// long as a request, whatever its `maxLength` (`SchemaDeclType` in apiserver, `pkg/cel/common/schemas.go`; 1.34 reads it), so
/// that one pass over it, by `matches` or by `==` with a type, costs more than the limit of a rule.
fn port_name() -> String {
    let letter = |at: &str| format!("'a' <= self.charAt({at}) && self.charAt({at}) <= 'z'");
    let letter_or_digit = |at: &str| {
        format!(
            "({} || '0' <= self.charAt({at}) && self.charAt({at}) <= '9')",
            letter(at)
        )
    };
    // The character at `size(self)` is an empty string, by which a name does not end with '-'.
    let each = format!(
        "{} || self.charAt(i) == '-' && i > 0 && {}",
        letter_or_digit("i"),
        letter_or_digit("i + 1")
    );
    let positions: Vec<_> = (0..limits::PORT_NAME).collect();
    format!(
        "size(self) > 0 && {positions:?}.all(i, i >= size(self) || {each}) && \
         {positions:?}.exists(i, i < size(self) && {})",
        letter("i")
    )
}

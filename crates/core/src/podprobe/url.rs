//! Validation of the path of an HTTP probe: a URL reference by the rules of Go's `url.Parse` (`net/url/url.go`), with which
//! the kubelet (`formatURL`, `pkg/probe/http/request.go`) and `OpenKruise` parse it. The CRD has the same rules as regular
//! expressions.
//!
//! Two rules are stricter than Go's, for references that are of no use in a probe: after a scheme without a slash `%` begins
//! an escape too, and a host has at most one colon, unless it is an IPv6 address in brackets.

/// Checks a path, which may include a query and a fragment.
pub(super) fn check_path(path: &str) -> Result<(), String> {
    let fault = if path.chars().any(|c| c.is_ascii_control()) {
        "has a control character"
    } else if !has_whole_escapes(path) {
        "has a '%' that is not followed by two hexadecimal digits"
    } else if !has_valid_first_segment(path) {
        "has a ':' in its first part: begin with '/'"
    } else if !has_host_after_slashes(path) {
        "has no host after '//': begin with one '/'"
    } else {
        return Ok(());
    };
    Err(format!("{path:?} is not a valid URL path: it {fault}"))
}

/// Whether each `%` in path and fragment begins an escape. A query is not decoded.
fn has_whole_escapes(path: &str) -> bool {
    let (path, fragment) = path.split_once('#').unwrap_or((path, ""));
    let path = path.split('?').next().unwrap_or_default();
    [path, fragment].into_iter().all(|text| {
        let mut escapes = text.split('%').skip(1);
        escapes.all(|after| escape_digits(after).is_some())
    })
}

/// The two digits of an escape; `after` is the text behind its `%`.
fn escape_digits(after: &str) -> Option<&[u8]> {
    let digits = after.as_bytes().get(..2)?;
    digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)
}

/// RFC 3986, section 4.2: a relative reference has no colon in its first segment, which would be a scheme's.
fn has_valid_first_segment(path: &str) -> bool {
    let end = path.find(['/', '?', '#']).unwrap_or(path.len());
    let (first, _) = path.split_at(end);
    !first.contains(':') || after_scheme(path).is_some()
}

/// The text behind the scheme, if the path has one.
fn after_scheme(path: &str) -> Option<&str> {
    let (scheme, rest) = path.split_once(':')?;
    let others = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    let is_scheme =
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.bytes().all(others);
    is_scheme.then_some(rest)
}

fn has_host_after_slashes(path: &str) -> bool {
    let path = after_scheme(path).unwrap_or(path);
    let Some(authority) = path.strip_prefix("//") else {
        return true;
    };
    let end = authority.find(['/', '?', '#']).unwrap_or(authority.len());
    let (authority, _) = authority.split_at(end);
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let is_user = |c: char| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:@%".contains(c);
    user.chars().all(is_user) && is_host(host)
}

fn is_host(host: &str) -> bool {
    let (host, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, port)) => {
            let is_address = |b: u8| b.is_ascii_hexdigit() || b":.".contains(&b);
            return address.bytes().all(is_address)
                && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
        }
        None => host.split_once(':').unwrap_or((host, "")),
    };
    let is_plain =
        |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=<>\"%".contains(c);
    // A host may have escapes only of bytes outside of ASCII and of '%' itself (`unescape` in `net/url/url.go`).
    let mut escapes = host.split('%').skip(1).filter_map(escape_digits);
    host.chars().all(is_plain)
        && escapes.all(|digits| digits == b"25" || digits[0] >= b'8')
        && is_port(port)
}

fn is_port(port: &str) -> bool {
    port.bytes().all(|b| b.is_ascii_digit())
}

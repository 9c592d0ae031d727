//! The forms of names that Kubernetes has: qualified names, values of labels, names of containers, ports and headers.

use leadsman_api::limits;

/// A name of letters, digits and `separators`, beginning and ending with a letter or digit.
fn well_formed(name: &str, alphanumeric: fn(u8) -> bool, separators: &[u8]) -> bool {
    let bytes = name.as_bytes();
    bytes.first().copied().is_some_and(alphanumeric)
        && bytes.last().copied().is_some_and(alphanumeric)
        && bytes
            .iter()
            .all(|b| alphanumeric(*b) || separators.contains(b))
}

fn lower(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn letter_or_digit(b: u8) -> bool {
    b.is_ascii_alphanumeric()
}

/// Name of a container. Kubernetes is stricter (a DNS label, `validateContainerCommon` in
/// `pkg/apis/core/validation/validation.go`), but a name that no container has is reported when none is found.
pub fn container_name(name: &str) -> Result<(), String> {
    if (1..=limits::LABEL).contains(&name.chars().count()) {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not a valid container name: 1 to 63 characters"
    ))
}

/// A DNS label, as names of containers and volumes are (`IsDNS1123Label`, `k8s.io/apimachinery/pkg/util/validation`; RFC
/// 1123).
pub fn dns_label(name: &str) -> Result<(), String> {
    if name.len() <= limits::LABEL && well_formed(name, lower, b"-") {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not a DNS label: 1 to 63 lower-case letters, digits and '-', beginning and ending with a letter or digit"
    ))
}

/// `name` or `domain/name`, as keys of labels and annotations and types of conditions are (`IsQualifiedName`,
/// `k8s.io/apimachinery/pkg/util/validation/validation.go`).
pub fn qualified_name(key: &str) -> Result<(), String> {
    let (domain, name) = match key.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, key),
    };
    // The length of a domain's parts is not bounded here, as in Kubernetes.
    let domain_ok = domain.is_none_or(|domain| {
        domain.len() <= limits::SUBDOMAIN
            && domain.split('.').all(|part| well_formed(part, lower, b"-"))
    });
    if domain_ok && name.len() <= limits::LABEL && well_formed(name, letter_or_digit, b"-_.") {
        return Ok(());
    }
    Err(format!(
        "{key:?} is not a qualified name: at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit, after an optional DNS domain and '/'"
    ))
}

/// Key of a label or annotation that no controller keeps to itself ([`limits::RESERVED_KEYS`]).
pub fn unreserved_key(key: &str) -> Result<(), String> {
    let mut prefixes = limits::RESERVED_PREFIXES.iter();
    if limits::RESERVED_KEYS.contains(&key) || prefixes.any(|prefix| key.starts_with(prefix)) {
        return Err(format!(
            "{key:?} is reserved: a controller reads it to know its pods or their state"
        ));
    }
    Ok(())
}

/// The value of a label, which may be empty (`IsValidLabelValue`, in the same file).
pub fn label_value(value: &str) -> Result<(), String> {
    if value.is_empty()
        || value.len() <= limits::LABEL && well_formed(value, letter_or_digit, b"-_.")
    {
        return Ok(());
    }
    Err(format!(
        "{value:?} is not a valid label value: at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
    ))
}

/// IANA service name, as names of ports are (`IsValidPortName`, in the same file; RFC 6335, section 5.1).
pub fn port_name(name: &str) -> Result<(), String> {
    if name.len() <= limits::PORT_NAME
        && well_formed(name, lower, b"-")
        && !name.contains("--")
        && name.bytes().any(|b| b.is_ascii_lowercase())
    {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not a valid port name: at most 15 lower-case letters, digits and single '-' between them, with at least one letter"
    ))
}

/// Name of an HTTP header, by the narrow rule for headers of probes (`IsHTTPHeaderName`, in the same file).
pub fn header_name(name: &str) -> Result<(), String> {
    if (1..=limits::HEADER_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not a valid HTTP header name: at most 256 letters, digits and '-'"
    ))
}

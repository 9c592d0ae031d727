//! Checks that a marker sets no key or condition type that Kubernetes or `OpenKruise` use themselves ([`limits`]).

use leadsman_api::limits;

/// Checks the key of a label or annotation.
pub(super) fn check_key(key: &str) -> Result<(), String> {
    let mut prefixes = limits::RESERVED_PREFIXES.iter();
    if limits::RESERVED_KEYS.contains(&key) || prefixes.any(|prefix| key.starts_with(prefix)) {
        return Err(format!(
            "{key:?} is reserved: a controller reads it to know its pods or their state"
        ));
    }
    Ok(())
}

/// Checks the type of a condition.
pub(super) fn check_condition_type(condition_type: &str) -> Result<(), String> {
    if limits::RESERVED_CONDITION_TYPES.contains(&condition_type) {
        return Err(format!(
            "{condition_type:?} is a condition of Kubernetes or OpenKruise itself"
        ));
    }
    Ok(())
}

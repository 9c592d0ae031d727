//! The keys and condition types that a marker may not set.

use leadsman_api::limits;

/// Key of a label or annotation that a marker may set.
pub(super) fn open_key(key: &str) -> Result<(), String> {
    let mut prefixes = limits::RESERVED_PREFIXES.iter();
    if limits::RESERVED_KEYS.contains(&key) || prefixes.any(|prefix| key.starts_with(prefix)) {
        return Err(format!(
            "{key:?} is reserved: a controller reads it to know its pods or their state"
        ));
    }
    Ok(())
}

/// Type of a condition that no component of Kubernetes or `OpenKruise` writes.
pub(super) fn open_condition_type(condition_type: &str) -> Result<(), String> {
    if limits::RESERVED_CONDITION_TYPES.contains(&condition_type) {
        return Err(format!(
            "{condition_type:?} is a condition of Kubernetes or OpenKruise itself"
        ));
    }
    Ok(())
}

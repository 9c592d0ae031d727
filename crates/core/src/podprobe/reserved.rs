//! Checks that a marker sets no condition type that Kubernetes or `OpenKruise` use themselves ([`limits`]).

use leadsman_api::limits;

/// Checks the type of a condition.
pub(super) fn check_condition_type(condition_type: &str) -> Result<(), String> {
    if limits::RESERVED_CONDITION_TYPES.contains(&condition_type) {
        return Err(format!(
            "{condition_type:?} is a condition of Kubernetes or OpenKruise itself"
        ));
    }
    Ok(())
}

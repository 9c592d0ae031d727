//! Reading what other writers put on the wire.

use serde::{Deserialize, Deserializer};

/// Reads `null`, which Go writes for an empty list or map, as the empty value.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

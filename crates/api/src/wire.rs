//! Deserializers for what other clients send.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Reads `null`, which Go writes for an empty list or map, as the empty value.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a probe as an API server with a schema does: a header without a name or a value is an error. `k8s-openapi`'s type
/// would read them as empty.
pub(crate) fn whole_probe<'de, D>(deserializer: D) -> Result<Probe, D::Error>
where
    D: Deserializer<'de>,
{
    let probe = Value::deserialize(deserializer)?;
    let headers = probe.pointer("/httpGet/httpHeaders");
    for header in headers.and_then(Value::as_array).into_iter().flatten() {
        for field in ["name", "value"] {
            if header.get(field).is_none_or(Value::is_null) {
                return Err(D::Error::missing_field(field));
            }
        }
    }
    serde_json::from_value(probe).map_err(D::Error::custom)
}

/// The part of an object's metadata that is read. `ObjectMeta` itself would parse managedFields
/// into trees of values.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

/// Reads the metadata of an object without its managedFields.
pub(crate) fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let wire = ObjectMetadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: wire.name,
        namespace: wire.namespace,
        uid: wire.uid,
        resource_version: wire.resource_version,
        creation_timestamp: wire.creation_timestamp,
        deletion_timestamp: wire.deletion_timestamp,
        labels: wire.labels,
        annotations: wire.annotations,
        owner_references: wire.owner_references,
        ..ObjectMeta::default()
    })
}

/// Reads a map of strings as a list, which takes less memory than a `BTreeMap`; `null` as an empty one.
pub(crate) fn pairs<'de, D>(deserializer: D) -> Result<Vec<(String, String)>, D::Error>
where
    D: Deserializer<'de>,
{
    struct PairsVisitor;

    impl<'de> Visitor<'de> for PairsVisitor {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of strings")
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
            let mut pairs = Vec::new();
            while let Some(pair) = map.next_entry()? {
                pairs.push(pair);
            }
            Ok(pairs)
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }
    }

    deserializer.deserialize_any(PairsVisitor)
}

//! Claims of volumes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use crate::wire::metadata;

/// A `PersistentVolumeClaim`: whose it is, and whether it goes. What it asks for, and what it got, is skipped.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct PersistentVolumeClaim {
    /// The metadata without `managedFields`.
    #[serde(rename = "metadata", deserialize_with = "metadata")]
    pub identity: ObjectMeta,
}

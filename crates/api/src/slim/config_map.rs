//! Settings in the cluster.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use crate::wire::{metadata, null_as_default};

/// A `ConfigMap` of texts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ConfigMap {
    /// The metadata without `managedFields`.
    #[serde(rename = "metadata", deserialize_with = "metadata")]
    pub identity: ObjectMeta,
    /// The texts by key.
    #[serde(default, deserialize_with = "null_as_default")]
    pub data: BTreeMap<String, String>,
}

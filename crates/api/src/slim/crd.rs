//! A CRD as far as leadsman reads it: which fields its schema has.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// A CRD: its name and its schemas.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Wire")]
pub struct CustomResourceDefinition {
    /// Name, uid and resourceVersion; all else in it is left empty.
    pub identity: ObjectMeta,
    /// Its versions.
    pub versions: Vec<Version>,
}

/// What is read of a CRD's version.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Version {
    /// `v1alpha1`, …
    pub name: String,
    /// How its objects are checked and cut.
    pub schema: Validation,
}

/// What is read of how a version's objects are checked.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Validation {
    /// The schema of the whole object.
    #[serde(rename = "openAPIV3Schema")]
    pub object: Schema,
}

/// What is read of a structural schema: which fields there are.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Schema {
    /// The fields of an object.
    pub properties: BTreeMap<String, Schema>,
    /// The items of a list; a structural schema has one for all of them.
    pub items: Option<Box<Schema>>,
    /// Whether fields that it does not name are kept.
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    pub preserves_unknown: bool,
}

#[derive(Deserialize)]
struct Wire {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    versions: Vec<Version>,
}

impl From<Wire> for CustomResourceDefinition {
    fn from(wire: Wire) -> Self {
        Self {
            identity: ObjectMeta {
                name: wire.metadata.name,
                uid: wire.metadata.uid,
                resource_version: wire.metadata.resource_version,
                ..ObjectMeta::default()
            },
            versions: wire.spec.versions,
        }
    }
}

impl kube::Resource for CustomResourceDefinition {
    type DynamicType = ();
    type Scope = kube::core::ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "CustomResourceDefinition".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "apiextensions.k8s.io".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "customresourcedefinitions".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.identity
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.identity
    }
}

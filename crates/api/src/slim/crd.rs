//! A CRD as far as leadsman reads it: which fields its schema has.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// The name and the schemas of a CRD.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "CrdWire")]
pub struct CustomResourceDefinition {
    /// Name, uid and resourceVersion; all other fields are empty.
    pub identity: ObjectMeta,
    /// The versions, served or not.
    pub versions: Vec<CrdVersion>,
}

/// The part of a CRD's version that is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CrdVersion {
    /// The version's name, such as `v1alpha1`.
    pub name: String,
    /// How its objects are validated and pruned.
    pub schema: CrdValidation,
}

/// The part that is read of the validation of a version's objects.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CrdValidation {
    /// The schema of the whole object.
    #[serde(rename = "openAPIV3Schema")]
    pub object: StructuralSchema,
}

/// The part of a structural schema that is read: the fields that it keeps.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StructuralSchema {
    /// The fields of an object.
    pub properties: BTreeMap<String, StructuralSchema>,
    /// The items of a list; a structural schema has one for all of them.
    pub items: Option<Box<StructuralSchema>>,
    /// Whether fields that it does not name are kept.
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    pub preserves_unknown: bool,
}

#[derive(Deserialize)]
struct CrdWire {
    metadata: CrdMetadata,
    #[serde(default)]
    spec: CrdSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CrdMetadata {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

#[derive(Default, Deserialize)]
struct CrdSpec {
    #[serde(default)]
    versions: Vec<CrdVersion>,
}

impl From<CrdWire> for CustomResourceDefinition {
    fn from(wire: CrdWire) -> Self {
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

//! Resources by type and by name.

use std::borrow::Cow;

use kube::Resource as KubeResource;
use serde::de::DeserializeOwned;

/// A type that can be watched: objects as far as they are read, parsed straight from the wire.
pub trait Watchable:
    KubeResource<DynamicType = ()> + DeserializeOwned + Clone + Send + Sync + 'static
{
}

impl<K> Watchable for K where
    K: KubeResource<DynamicType = ()> + DeserializeOwned + Clone + Send + Sync + 'static
{
}

/// A resource as RBAC names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    /// Empty for the core group.
    pub group: Cow<'static, str>,
    /// `pods`, say.
    pub plural: Cow<'static, str>,
}

impl GroupResource {
    /// The resource of a type.
    pub fn of<K: KubeResource<DynamicType = ()>>() -> Self {
        Self {
            group: K::group(&()),
            plural: K::plural(&()),
        }
    }

    /// `pods` or `deployments.apps`: as `kubectl` takes it, and as a CRD is named.
    pub fn full_name(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_string()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }
}

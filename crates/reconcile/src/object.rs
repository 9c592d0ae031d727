//! An object by name, the order of its versions, and where a snapshot of it comes from.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// An object by namespace and name; cluster-scoped ones have an empty namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectName {
    /// The name in an object's metadata.
    pub fn of(meta: &ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }

    /// Another name in the same namespace.
    #[must_use]
    pub fn beside(&self, name: impl Into<String>) -> Self {
        Self {
            namespace: self.namespace.clone(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// The origin of a snapshot of an object; it decides what the snapshot's resourceVersion means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A list that a watch begins with, and the version of the whole list: taken as it is, also when the API server was
    /// restored to an earlier state, unless a reply has overtaken it.
    List(ResourceVersion),
    /// A watch event: dropped unless newer than what is known.
    Watch,
    /// The reply to a request of ours beside the watch, a write or a read: dropped unless newer than what is known. It
    /// may be newer than a list that is observed after it.
    Reply,
}

/// A resourceVersion as far as it can be ordered. Versions of one resource are decimal numbers that grow (KEP-5504,
/// "Comparable Resource Version"); before Kubernetes 1.35 that was so but not promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceVersion(Option<u64>);

impl ResourceVersion {
    /// A version that is not known.
    pub const UNKNOWN: Self = Self(None);

    /// A version as the API server writes it; one that is absent or no number is not known.
    pub fn parse(version: Option<&str>) -> Self {
        Self(version.and_then(|version| version.parse().ok()))
    }

    /// The number, if it is known.
    pub fn number(self) -> Option<u64> {
        self.0
    }

    /// Whether a snapshot of this version may show something new when `known` has been seen: only two known versions
    /// rule it out.
    pub fn is_newer_than(self, known: Self) -> bool {
        match (self.0, known.0) {
            (Some(own), Some(known)) => own > known,
            _ => true,
        }
    }

    /// Whether this is known to be later than another version that is known.
    pub fn is_later_than(self, other: Self) -> bool {
        matches!((self.0, other.0), (Some(own), Some(other)) if own > other)
    }

    /// The earlier of two; one that is not known counts as earlier.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// The later of two; one that is not known counts as earlier.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

impl From<u64> for ResourceVersion {
    fn from(number: u64) -> Self {
        Self(Some(number))
    }
}

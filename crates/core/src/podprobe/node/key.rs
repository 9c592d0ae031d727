//! The identity of a probe on a node.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::podprobe::probe::ProbeId;

/// The identity of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodIdentity {
    /// The pod's namespace.
    pub namespace: Arc<str>,
    /// The pod's name.
    pub name: Arc<str>,
    /// The pod's uid, by which it differs from a later pod of the same name.
    pub uid: Arc<str>,
}

/// The identity of one probe of one container of one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeKey {
    /// The pod, whose namespace is the marker's.
    pub pod: PodIdentity,
    /// The container.
    pub container: Arc<str>,
    /// The probe of its marker.
    pub id: ProbeId,
}

/// Hashes only what differs mostly: a key is hashed several times a run, and the names are long.
impl Hash for ProbeKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pod.uid.hash(state);
        self.id.hash(state);
    }
}

impl fmt::Display for ProbeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PodIdentity {
            namespace, name, ..
        } = &self.pod;
        write!(f, "{namespace}/{name}/{}/{}", self.container, self.id)
    }
}

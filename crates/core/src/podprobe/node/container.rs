//! What the runtime says about a container, as far as a verdict depends on it.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::PodName;

/// A container of a pod, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerName {
    /// Its pod.
    pub pod: PodName,
    /// Its name in the pod.
    pub name: Arc<str>,
}

/// The newest containers of the node's probed pods at one moment; one that is not here is not known to the runtime.
pub type Containers = HashMap<ContainerName, Container>;

/// The newest container of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id, without a scheme.
    pub id: Arc<str>,
    /// What it does.
    pub state: ContainerState,
}

/// What a container does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// Made, not started.
    Created,
    /// Runs.
    Running {
        /// Since when.
        started_at: Timestamp,
    },
    /// Ended.
    Exited {
        /// With which code.
        exit_code: i32,
    },
    /// The runtime does not say.
    Unknown,
}

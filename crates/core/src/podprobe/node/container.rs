//! Containers as the runtime lists them, as far as verdicts depend on them.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::key::PodIdentity;

/// A container of a pod, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerName {
    /// The container's pod.
    pub pod: PodIdentity,
    /// The container's name in the pod.
    pub name: Arc<str>,
}

/// The newest container of each name in the probed pods, in one answer of the runtime. The runtime knows no others.
pub type RuntimeContainers = HashMap<ContainerName, RuntimeContainer>;

/// The newest container of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeContainer {
    /// The runtime's id, without a scheme.
    pub id: Arc<str>,
    /// The container's state.
    pub state: RuntimeState,
}

/// The state of a container, as in CRI (`ContainerState` in `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeState {
    /// Created, not started.
    Created,
    /// Running.
    Running {
        /// The start time.
        started_at: Timestamp,
    },
    /// Ended.
    Exited {
        /// The exit code.
        exit_code: i32,
    },
    /// Unknown to the runtime, or not reported by it.
    Unknown,
}

//! The container runtime of this node: a client of the Container Runtime Interface (CRI v1,
//! `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`) and the one view of the node's containers that all probes share.
//!
//! Here: calls over the runtime's unix socket ([`Runtime`]), the meaning of their errors for a probe
//! ([`leadsman_probe::Exec`] is implemented by [`Runtime`]), and which container is the current one of a pod, since when it
//! runs and at which addresses ([`View`]). Not here: when to call, how many execs may run at once, what a result does to a
//! verdict; those are the agent's and the core's.
//!
//! Only calls that change nothing are made, and `ExecSync`. The runtime's event stream is never read: up to containerd 1.7 it
//! is a single channel, and a second reader takes events away from the kubelet (`containerEventsChan` in
//! `pkg/cri/server/service.go`).

mod exec;
mod exec_output;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod runtime;
mod socket;
mod view;
#[cfg(not(feature = "wire"))]
mod wire;
#[cfg(feature = "wire")]
pub mod wire;

#[cfg(any(test, feature = "wire"))]
pub use exec_output::limit_reply;
pub use runtime::{Error, Runtime, RuntimeVersion};
pub use view::{Addresses, CurrentContainer, CurrentContainers, PodLabels, View};

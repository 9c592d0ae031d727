//! The executors: one run of one probe against one container, and what it came to.
//!
//! Here live `exec` (through the [`Exec`] trait), `httpGet`, `tcpSocket` and `grpc`, each meaning what the kubelet's prober
//! means by it. What does not live here: when a probe runs and what a verdict is (`leadsman_core`), who the container runtime
//! is (it implements [`Exec`]), and any Kubernetes object.
//!
//! Guarantees, whatever the target does:
//! - a run ends within the probe's timeout, plus at most [`PARTING`] for closing its connection, or [`EXEC_SLACK`] for `exec`;
//! - a dropped future has closed its socket; no task is spawned and none outlives the run;
//! - memory and work of one run are bounded, and so is its message ([`MAX_OUTPUT`]);
//! - no name is ever resolved, and no address dialled but the [`Target`]'s;
//! - our own shortage is a [`CannotProbe`], never a failure of the probe.

mod exec;
mod grpc;
mod http;
#[cfg(test)]
mod listener;
mod message;
mod run;
mod socket;
mod target;
mod tcp;

pub use exec::{EXEC_SLACK, Exec, ExecError, Execution};
pub use message::{MAX_OUTPUT, truncate_message};
pub use run::run;
pub use socket::PARTING;
pub use target::{Target, dialable};

#[doc(no_inline)]
pub use leadsman_core::podprobe::{CannotProbe, Outcome};

/// What HTTP and gRPC probes call themselves, as the kubelet does: `kube-probe/` and the Kubernetes minor version whose probe
/// rules are kept. Access-log filters and meshes know probes by that name, some by the `1.` behind it too; a version of
/// our own would slip through those.
pub const USER_AGENT: &str = "kube-probe/1.34";

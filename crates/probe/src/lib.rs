//! The executors: one run of one probe against one container, and its outcome.
//!
//! `exec` (through the [`Exec`] trait), `httpGet`, `tcpSocket` and `grpc`, each as the kubelet's prober runs it
//! (`pkg/kubelet/prober/prober.go`, `pkg/probe`). Not here: when a probe runs and what a verdict is (`leadsman_core`), the
//! container runtime (`leadsman_cri` implements [`Exec`]), and any Kubernetes object.
//!
//! Guarantees, whatever the target does:
//! - A run ends within its [`TimeLimit`], plus at most [`CLOSE_TIMEOUT`] for closing its connection, or [`EXEC_SLACK`] for
//!   `exec`.
//! - A dropped future has closed its socket. No task is spawned.
//! - Memory and work of one run are bounded, and so is its message ([`MAX_OUTPUT`]).
//! - No name is resolved, and no address connected to but the [`ProbeTarget`]'s. Who gives a [`Dial`] of its own ([`run_probe_over`])
//!   decides what an address leads to.
//! - A shortage on the agent's side is a [`CannotProbe`], never a failure of the probe.
//!
//! | module | holds |
//! |---|---|
//! | `run` | the entry: which executor runs a handler |
//! | `target` | the container, and which addresses may be connected to |
//! | `time_limit` | how long a run may take, on a thread that is late |
//! | `dial` | how a connection is opened: TCP, unless the caller knows another way |
//! | `connection` | HTTP's connection, plain or TLS |
//! | `exec`, `http`, `tcp`, `grpc` | the executors |
//! | `file` | a file of a volume, for whoever has the kubelet's folders |
//! | `runtime_message` | what a runtime's message says about a command |
//! | `metered_stream` | a connection of which only so much is received |
//! | `socket` | why a run ends early, and how a connection is closed |
//! | `message` | text of bounded length from any bytes |

mod connection;
mod dial;
mod exec;
mod file;
mod grpc;
mod http;
mod message;
mod metered_stream;
mod run;
mod runtime_message;
mod socket;
mod target;
mod tcp;
#[cfg(test)]
mod tests;
mod time_limit;

pub use dial::{Dial, DialError, Direct};
pub use exec::{EXEC_SLACK, Exec, ExecError, Execution};
pub use file::PodFolders;
pub use message::MAX_OUTPUT;
pub use run::{run_probe, run_probe_over};
pub use socket::CLOSE_TIMEOUT;
pub use target::{ProbeTarget, is_dialable};
pub use time_limit::TimeLimit;

#[doc(no_inline)]
pub use leadsman_core::podprobe::{CannotProbe, Outcome};

/// The `User-Agent` of HTTP and gRPC probes: `kube-probe/` and the Kubernetes minor version whose rules are kept, as the
/// kubelet sends it (`userAgent`, `pkg/probe/http/request.go`). Access-log filters and meshes recognise
/// probes by that name, some by the `1.` after it too; a version of leadsman's own would not be recognised.
pub const USER_AGENT: &str = "kube-probe/1.34";

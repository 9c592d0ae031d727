//! What a probe is, and what one run of it can come to.
//!
//! Plain values, shared by the manager, the agent and the executors. No wire type and no rule of timing here.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Names one probe of one marker within a namespace; on the wire `<marker>#<probe>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId {
    /// The marker's name.
    pub marker: Arc<str>,
    /// The probe's name within the marker.
    pub probe: Arc<str>,
}

impl fmt::Display for ProbeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.marker, self.probe)
    }
}

/// A name that is not of the form `<marker>#<probe>`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form <marker>#<probe>")]
pub struct MalformedProbeId(pub String);

impl FromStr for ProbeId {
    type Err = MalformedProbeId;

    /// A marker's name is a DNS name and never holds `#`, so the first one splits.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s.split_once('#') {
            Some((marker, probe)) if !marker.is_empty() && !probe.is_empty() => Ok(Self {
                marker: marker.into(),
                probe: probe.into(),
            }),
            _ => Err(MalformedProbeId(s.to_owned())),
        }
    }
}

/// The three verdicts, on the wire by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The probe holds.
    Succeeded,
    /// The probe does not hold.
    Failed,
    /// There was a verdict, and it is not known to hold any more.
    Unknown,
}

impl State {
    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}

/// A state that is not one of the three.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of Succeeded, Failed, Unknown")]
pub struct UnknownState(pub String);

impl FromStr for State {
    type Err = UnknownState;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "Succeeded" => Ok(Self::Succeeded),
            "Failed" => Ok(Self::Failed),
            "Unknown" => Ok(Self::Unknown),
            other => Err(UnknownState(other.to_owned())),
        }
    }
}

/// A probe ready to run: one handler, ports as numbers, defaults filled in. Times in whole seconds, as on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    /// What is done.
    pub handler: Handler,
    /// Counted from the container's start.
    pub initial_delay_seconds: u32,
    /// From one due time to the next.
    pub period_seconds: NonZeroU32,
    /// For one run.
    pub timeout_seconds: NonZeroU32,
    /// Consecutive successes that turn the verdict to Succeeded.
    pub success_threshold: NonZeroU32,
    /// Consecutive failures that turn the verdict to Failed.
    pub failure_threshold: NonZeroU32,
}

impl Probe {
    /// From the due time of one run to that of the next.
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.period_seconds.get().into())
    }

    /// For one run.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.get().into())
    }
}

/// What a probe does to its container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Handler {
    /// Runs a command in the container, without a shell.
    Exec {
        /// Program and arguments, never empty.
        command: Vec<String>,
    },
    /// GETs a path from the pod.
    HttpGet(HttpGet),
    /// Opens a connection to the pod.
    TcpSocket {
        /// The port.
        port: NonZeroU16,
    },
    /// Asks `grpc.health.v1.Health/Check` of the pod.
    Grpc {
        /// The port.
        port: NonZeroU16,
        /// The service asked about; empty is the server as a whole.
        service: String,
    },
}

/// An HTTP request to the pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpGet {
    /// Plain or TLS; a server certificate is not verified.
    pub scheme: Scheme,
    /// The port.
    pub port: NonZeroU16,
    /// Path and, after a `?`, query.
    pub path: String,
    /// Name and value, repeated names kept, in order.
    pub headers: Vec<(String, String)>,
}

/// Scheme of an HTTP probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `HTTP`
    #[default]
    Http,
    /// `HTTPS`
    Https,
}

/// What a run that took place came to. The message is the probe's own words, bounded by the executor (10 KiB).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The probe holds.
    Succeeded(String),
    /// The probe does not hold, or cannot hold: no such command, too much output, a malformed address.
    Failed(String),
}

impl Outcome {
    /// Of a command that did not end in time; the same words, whoever found out.
    pub fn timed_out(timeout: Duration) -> Self {
        Self::Failed(format!(
            "command timed out: it did not end within {timeout:?}"
        ))
    }
}

/// Why a run told us nothing about the container: our trouble, not the probe's failure. Thresholds stay untouched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotProbe {
    /// The container runtime did not take the request or lost it.
    #[error("the container runtime is unreachable or busy: {0}")]
    Runtime(String),
    /// The runtime did not answer within the probe's timeout and our slack.
    #[error("the container runtime did not answer in time (ExecSync)")]
    Deadline,
    /// We are out of something: file descriptors, ports, memory.
    #[error("out of local resources: {0}")]
    Local(String),
    /// The runtime reports no address for the pod that may be dialled.
    #[error("the container runtime reports no address of the pod that can be probed")]
    NoAddress,
    /// The pod is in the node's own network, and its address is none that this process may take for the node's.
    #[error(
        "host-network pod: no network interface of the agent has its address {0:?}; set --node-ip or run the agent with hostNetwork"
    )]
    NotOfNode(String),
    /// The container ended or was replaced while the run was on its way.
    #[error("the container is gone")]
    ContainerGone,
}

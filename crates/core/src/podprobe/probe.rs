//! A probe, and the outcomes of one run of it.
//!
//! Plain values, shared by the manager, the agent and the executors. The wire form is in `wire`, the timing in `node`.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// One probe of one marker within a namespace; on the wire `<marker>#<probe>`.
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

    /// Splits at the first `#`: the name of a marker is a DNS subdomain and has none.
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

/// The state of a verdict, on the wire by these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The probe succeeds.
    Succeeded,
    /// The probe fails.
    Failed,
    /// An earlier verdict may no longer be true.
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
    /// The action of the probe.
    pub handler: Handler,
    /// Delay of the first run after the container's start.
    pub initial_delay_seconds: u32,
    /// Time between the due times of two runs.
    pub period_seconds: NonZeroU32,
    /// Time limit of one run.
    pub timeout_seconds: NonZeroU32,
    /// Consecutive successes that turn the verdict to Succeeded.
    pub success_threshold: NonZeroU32,
    /// Consecutive failures that turn the verdict to Failed.
    pub failure_threshold: NonZeroU32,
}

impl Probe {
    /// The time between the due times of two runs.
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.period_seconds.get().into())
    }

    /// The time limit of one run.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.get().into())
    }
}

/// The action of a probe (`v1.ProbeHandler`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Handler {
    /// Runs a command in the container, without a shell.
    Exec {
        /// Program and arguments, never empty.
        command: Vec<String>,
    },
    /// Sends an HTTP GET request to the pod.
    HttpGet(HttpGet),
    /// Opens a TCP connection to the pod.
    TcpSocket {
        /// The port.
        port: NonZeroU16,
    },
    /// Calls `grpc.health.v1.Health/Check` of the pod.
    Grpc {
        /// The port.
        port: NonZeroU16,
        /// The service asked about; empty is the server as a whole.
        service: String,
        /// Whether over TLS (`mode`, KEP-4939); the server's certificate is not verified.
        over_tls: bool,
    },
    /// Reads a file in a volume of the pod.
    File(VolumeFile),
}

impl Handler {
    /// The handler's kind.
    pub fn kind(&self) -> HandlerKind {
        match self {
            Self::Exec { .. } => HandlerKind::Exec,
            Self::HttpGet(_) => HandlerKind::HttpGet,
            Self::TcpSocket { .. } => HandlerKind::TcpSocket,
            Self::Grpc { .. } => HandlerKind::Grpc,
            Self::File(_) => HandlerKind::File,
        }
    }

    /// Whether it connects to the pod.
    pub fn needs_address(&self) -> bool {
        !matches!(self, Self::Exec { .. } | Self::File(_))
    }

    /// The field of a probe by which it is known.
    pub fn field_name(&self) -> &'static str {
        self.kind().field_name()
    }
}

/// The kinds of handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HandlerKind {
    /// [`Handler::Exec`]
    Exec,
    /// [`Handler::HttpGet`]
    HttpGet,
    /// [`Handler::TcpSocket`]
    TcpSocket,
    /// [`Handler::Grpc`]
    Grpc,
    /// [`Handler::File`]
    File,
}

impl HandlerKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Exec,
        Self::HttpGet,
        Self::TcpSocket,
        Self::Grpc,
        Self::File,
    ];

    /// The field of a probe by which it is known.
    pub fn field_name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::HttpGet => "httpGet",
            Self::TcpSocket => "tcpSocket",
            Self::Grpc => "grpc",
            Self::File => "file",
        }
    }

    /// The permission that an agent lacks if it may not run handlers of this kind.
    fn missing_permission(self) -> &'static str {
        match self {
            Self::File => {
                "it needs --file-probes (agent.fileProbes of the chart), and --handlers has to list them"
            }
            _ => "its flag --handlers does not list them",
        }
    }
}

/// An HTTP request to the pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpGet {
    /// Plain or TLS; the server's certificate is not verified (`pkg/probe/http/http.go`).
    pub scheme: Scheme,
    /// The port.
    pub port: NonZeroU16,
    /// Path and, after a `?`, query.
    pub path: String,
    /// Name and value, repeated names kept, in order.
    pub headers: Vec<(String, String)>,
}

/// A file in an `emptyDir` volume of the pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VolumeFile {
    /// The volume's name, a DNS label.
    pub volume: String,
    /// The path in the volume, whose parts are neither empty nor `.` nor `..`.
    pub path: String,
    /// Seconds since it was last written, more than which is a failure.
    pub not_older_than_seconds: Option<NonZeroU32>,
}

/// Scheme of an HTTP probe, and the version of HTTP (`protocol`) where it does not leave that open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `HTTP`
    #[default]
    Http,
    /// `HTTP`, with protocol `HTTP2`: HTTP/2 without TLS and without an upgrade (KEP-5999).
    H2c,
    /// `HTTPS`
    Https,
}

/// The outcome of a run that took place, with the output of the probe, which the executor truncates to 10 KiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The probe succeeded.
    Succeeded(String),
    /// The probe failed, or can never succeed: no such command, too much output, a malformed address.
    Failed(String),
}

impl Outcome {
    /// The outcome of a command that exceeded its time limit; one text, whether the runtime or the agent enforced it.
    pub fn timed_out(timeout: Duration) -> Self {
        Self::Failed(format!(
            "command timed out: it did not end within {timeout:?}"
        ))
    }
}

/// Why a run says nothing about the container: the agent's or the runtime's failure, which counts towards no threshold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotProbe {
    /// The container runtime did not accept the request, or lost it.
    #[error("the container runtime is unreachable or busy: {0}")]
    Runtime(String),
    /// The container runtime did not answer within the probe's timeout and a margin.
    #[error("the container runtime did not answer in time (ExecSync)")]
    Deadline,
    /// The agent lacks a resource (file descriptors, ports, memory), or its executor panicked.
    #[error("the agent itself failed: {0}")]
    Local(String),
    /// The container runtime reports no address of the pod that can be probed.
    #[error("the container runtime reports no address of the pod that can be probed")]
    NoAddress,
    /// The pod is in the node's network, and no interface that the agent sees has the pod's address.
    #[error(
        "host-network pod: no network interface of the agent has its address {0:?}; set --node-ip or run the agent with hostNetwork"
    )]
    NotOfNode(String),
    /// The agent may not run handlers of this kind.
    #[error("the agent may not run {} probes: {}", .0.field_name(), .0.missing_permission())]
    Forbidden(HandlerKind),
    /// The file cannot be read, whatever the container has done: no kernel, right or folder for it. Says what to do.
    #[error("{0}")]
    File(String),
    /// The container ended or was replaced during the run.
    #[error("the container is gone")]
    ContainerGone,
}

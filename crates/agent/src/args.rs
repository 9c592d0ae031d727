//! The agent's flags.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;

use leadsman_core::podprobe::HandlerKind;
use leadsman_core::podprobe::node::{ExecLimits, HistoryLimits};

use crate::probing::ProbingConfig;

/// The kinds of probes by the names that the API has for them.
const HANDLERS: [&str; HandlerKind::ALL.len()] = ["exec", "httpGet", "tcpSocket", "grpc", "file"];

/// Run the probes of one node, and report their verdicts
///
/// There is an agent on each node, with the socket of the container runtime. It needs the CRDs and the rights that
/// `leadsman manifests` prints, and waits for them.
///
/// Every flag can also be set in the environment, as LEADSMAN_ and its name in capitals.
#[derive(Clone, Debug, clap::Args)]
pub struct AgentArgs {
    /// Name of this node in the cluster
    #[arg(long, env = "LEADSMAN_NODE_NAME", value_name = "NAME")]
    pub node_name: String,
    /// Socket of the container runtime
    #[arg(
        long,
        env = "LEADSMAN_RUNTIME_ENDPOINT",
        value_name = "ENDPOINT",
        default_value = "unix:///run/containerd/containerd.sock"
    )]
    pub runtime_endpoint: String,
    /// Addresses of this node, the primary one first, at which hostNetwork pods are probed. Needed where the agent
    /// itself does not run with hostNetwork [default: the pod's own address, if a network interface of the agent has
    /// it]
    #[arg(
        long,
        env = "LEADSMAN_NODE_IP",
        value_name = "ADDRESS",
        value_delimiter = ','
    )]
    pub node_ip: Vec<IpAddr>,
    /// Commands that may run at once on the node; one namespace gets at most three quarters of them, or half while
    /// other namespaces run some
    #[arg(
        long,
        env = "LEADSMAN_EXEC_CONCURRENCY",
        value_name = "COUNT",
        default_value = "16"
    )]
    pub exec_concurrency: NonZeroU16,
    /// Commands that may run at once in one pod; a container runtime stalls on many
    #[arg(
        long,
        env = "LEADSMAN_EXEC_CONCURRENCY_PER_POD",
        value_name = "COUNT",
        default_value = "4"
    )]
    pub exec_concurrency_per_pod: NonZeroU16,
    /// Kinds of probes that this agent may run at all; the others are reported as ones that cannot be run
    #[arg(
        long,
        env = "LEADSMAN_HANDLERS",
        value_name = "HANDLER",
        value_delimiter = ',',
        default_value = "exec,httpGet,tcpSocket,grpc,file",
        value_parser = clap::builder::PossibleValuesParser::new(HANDLERS)
    )]
    pub handlers: Vec<String>,
    /// Folder of the kubelet's pods (its --root-dir, and `pods` in it), for probes that read files of emptyDir volumes.
    /// Without it those are reported as ones that cannot be run [default: none]
    #[arg(long, env = "LEADSMAN_FILE_PROBES", value_name = "PATH")]
    pub file_probes: Option<PathBuf>,
    /// Runs of each probe that are kept for `kubectl leadsman explain`, `history` and `top`, in 4 MiB at most; 0 keeps none
    #[arg(
        long,
        env = "LEADSMAN_HISTORY",
        value_name = "COUNT",
        default_value = "10",
        value_parser = clap::value_parser!(u8).range(0..=100)
    )]
    pub history: u8,
    /// Socket on which `kubectl leadsman` asks for them, by a command in the agent's pod. Without one, none are kept [default:
    /// none]
    #[arg(long, env = "LEADSMAN_HISTORY_SOCKET", value_name = "PATH")]
    pub history_socket: Option<PathBuf>,
    /// The flags that manager and agent share.
    #[command(flatten)]
    pub process: leadsman_process::ProcessArgs,
}

impl AgentArgs {
    pub(crate) fn probing_config(&self, history: HistoryLimits) -> ProbingConfig {
        let execs = self.exec_concurrency.get();
        ProbingConfig {
            exec_limits: ExecLimits {
                per_node: execs.into(),
                per_pod: self.exec_concurrency_per_pod.get().into(),
                // A quarter of what may run at once: a command takes a few slots.
                per_slot: u32::from(execs).div_ceil(4),
            },
            handlers: self.allowed_handlers().collect(),
            file_probes: self.file_probes.clone(),
            history,
            node_ips: self.node_ip.clone(),
        }
    }

    fn allowed_handlers(&self) -> impl Iterator<Item = HandlerKind> {
        let allowed = &self.handlers;
        let all = HandlerKind::ALL
            .into_iter()
            .filter(|kind| allowed.iter().any(|name| name == kind.field_name()));
        all.filter(|kind| *kind != HandlerKind::File || self.file_probes.is_some())
    }
}

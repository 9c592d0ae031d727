//! What passes between the owner of a bed, its keeper and its supervisor: the request for a bed,
//! the events on the way, the orders afterwards. One JSON value a line.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::progress::Progress;

/// The file in a node's folder that holds [`Node::first_process`].
const FIRST_PROCESS: &str = "first-process";

/// The most nodes that one bed has addresses for.
pub const MOST_NODES: u8 = 9;

/// What a caller may vary about a bed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Options {
    arguments: BTreeMap<String, Vec<String>>,
    /// Nodes beside the first, which has the control plane.
    pub(crate) workers: u8,
    /// The one node beside the first is a virtual machine, and the first runs no pods.
    pub(crate) is_vm: bool,
}

impl Options {
    /// Adds an argument to a program's command line, after the bed's own; for most flags the last wins.
    #[must_use]
    pub fn argument(mut self, program: &str, argument: &str) -> Self {
        self.arguments
            .entry(program.into())
            .or_default()
            .push(argument.into());
        self
    }

    /// How many nodes a node bed has, 1 where this is not said.
    ///
    /// # Panics
    /// Beyond [`MOST_NODES`], or with none.
    #[must_use]
    pub fn nodes(mut self, nodes: u8) -> Self {
        assert!(
            (1..=MOST_NODES).contains(&nodes),
            "a node bed has 1 to {MOST_NODES} nodes, not {nodes}"
        );
        self.workers = nodes - 1;
        self
    }

    /// The one node that a bed then has is a virtual machine; its control plane runs outside, in namespaces as ever.
    #[must_use]
    pub fn in_vm(mut self) -> Self {
        (self.workers, self.is_vm) = (1, true);
        self
    }

    pub(crate) fn arguments_of(&self, program: &str) -> impl Iterator<Item = String> {
        self.arguments.get(program).into_iter().flatten().cloned()
    }
}

/// Which bed is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    ControlPlane,
    Node,
}

/// A bed asked for: everything it needs is already on the disk.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) options: Options,
    /// The folder of the cluster's programs.
    pub(crate) programs: PathBuf,
    /// Archives of images to import.
    pub(crate) images: Vec<PathBuf>,
    /// Where the logs of a failed bed go.
    pub(crate) logs_after_failure: PathBuf,
    /// The bed is to outlive its owner (after [`Order::Detach`]), so its keeper must not
    /// hold the owner's stderr.
    pub(crate) detached: bool,
}

/// A line from keeper or supervisor to the owner.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    Progress(Progress),
    /// The bed's facts, once known; it is not up yet.
    Bed(Box<Bed>),
    /// All parts of one supervisor are ready.
    Raised,
    /// An order was carried out.
    Done,
    /// An order was not carried out.
    Refused(String),
    /// The bed could not be raised; it is being taken away.
    Failed(String),
}

/// The facts of a bed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bed {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) server: String,
    pub(crate) keeper: u32,
    /// The first has the control plane. None in a bed of a control plane alone.
    pub(crate) nodes: Vec<Node>,
}

/// The facts of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    /// 1 for the first; parts of the others carry it.
    pub(crate) number: u8,
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) host_address: Ipv4Addr,
    /// Configuration, sockets and state of its programs.
    pub(crate) folder: PathBuf,
    /// It is a virtual machine: it sees this folder, but has sockets and state in memory of its own.
    pub(crate) is_vm: bool,
}

impl Request {
    /// How many supervisors carry the bed: one for each node, or one for the control plane alone.
    pub(crate) fn supervisors(&self) -> u8 {
        match self.kind {
            Kind::ControlPlane => 1,
            Kind::Node => 1 + self.options.workers,
        }
    }
}

impl Node {
    /// The name of a part of this node, `kubelet` for instance, unique in the bed.
    pub(crate) fn part(&self, kind: &str) -> String {
        match self.number {
            1 => kind.to_owned(),
            number => format!("{kind}-{number}"),
        }
    }

    /// What is at `/run/containerd` inside.
    pub(crate) fn runtime_sockets(&self) -> PathBuf {
        self.folder.join("runtime")
    }

    pub(crate) fn runtime_socket(&self) -> PathBuf {
        self.runtime_sockets().join("containerd.sock")
    }

    /// Where the kubelet looks for static pods.
    pub(crate) fn static_pods(&self) -> PathBuf {
        self.folder.join("static-pods")
    }

    /// Where the kubelet keeps the folders of its pods.
    pub(crate) fn pod_folders(&self) -> PathBuf {
        self.folder.join("kubelet/pods")
    }

    /// The first process of the node's namespaces as the host numbers it; another one each time that the node is started.
    pub(crate) fn first_process(&self) -> Result<Pid> {
        let text = fs::read_to_string(self.folder.join(FIRST_PROCESS));
        let text = text.with_context(|| format!("which process is the first of {}", self.name))?;
        Ok(Pid::from_raw(text.parse()?))
    }

    /// What [`Node::first_process`] then reads.
    pub(crate) fn write_first_process(&self, process: Pid) -> Result<()> {
        let file = self.folder.join(FIRST_PROCESS);
        fs::write(&file, process.to_string()).with_context(|| format!("writing {}", file.display()))
    }

    /// The end of its link in the network of the first node.
    pub(crate) fn link(&self) -> String {
        format!("node-{}", self.number)
    }
}

/// What an owner may ask of a bed that is up.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Kill a part.
    Stop(String),
    /// Start it again and wait until it is ready.
    Start(String),
    /// Kill all processes of the node of this name at once, its pods' too. Not the first, which has the control plane.
    KillNode(String),
    /// Start it again and wait until it is up, which its supervisor reports as [`Event::Raised`].
    StartNode(String),
    /// Live on when the owner is gone; from then on a signal to the keeper is the end.
    Detach,
}

/// Writes an event to stdout. Nobody may be listening any more, which is no reason to fail.
pub(crate) fn report(event: &Event) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

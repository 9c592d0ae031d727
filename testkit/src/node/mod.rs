//! A cluster of real nodes, each in network, mount, process, IPC and host-name namespaces of its own.
//!
//! The first node has the control plane: etcd, kube-apiserver (with NodeRestriction and ServiceAccount admission),
//! controller manager, scheduler. Every node has containerd, kubelet, kube-proxy, and a pod network; between nodes there
//! are links and routes. The machine's own cluster, containers and firewall are never touched; several beds live side by
//! side. From the host, the API server, the runtimes' sockets, the nodes' and the pods' addresses can be reached; cluster
//! IPs only from inside.
//!
//! A node beside the first can be cut off and healed, killed with all that runs on it, and started again.
//!
//! The one node of a bed can be a virtual machine instead (`vm`). The first is then its control plane's place alone.

pub mod commands;
mod inside;
pub(crate) mod outside;
pub(crate) mod plan;
pub(crate) mod vm;

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

pub use inside::Inside;
use nix::unistd::Pid;

use crate::cache;
use crate::control_plane::ControlPlane;
use crate::progress::Progress;
use crate::raise::logs_after_failure;
use crate::request::{self, Kind, Options, Order, Request};
use crate::{images, packages, programs};

/// Set, a suite takes a virtual machine for its node, and gives more time to what runs there.
const IN_VM: &str = "LEADSMAN_VM";

/// Whether the node of this suite is to be a virtual machine: [`Options::in_vm`].
pub fn is_in_vm() -> bool {
    std::env::var_os(IN_VM).is_some()
}

/// A cluster of one real node or of several. Dropping it ends everything in it and removes what it has outside, and so does
/// the owner's death, however it dies. What its first node can do, it can.
#[derive(Debug)]
pub struct NodeBed {
    control: Node,
    first: Node,
    workers: Vec<Node>,
}

/// One node. It stands for its cluster too: its control plane's methods are its own.
#[derive(Clone, Debug)]
pub struct Node {
    plane: Arc<ControlPlane>,
    facts: request::Node,
}

impl Deref for NodeBed {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.first
    }
}

impl Deref for Node {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.plane
    }
}

impl NodeBed {
    /// Raises a cluster; returns when all of its nodes are Ready. Needs root on Linux.
    pub async fn start(
        options: Options,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<Self> {
        tokio::task::spawn_blocking(move || Self::start_blocking(options, progress, false)).await?
    }

    /// Why a node bed cannot be raised here, if so; for tests that then count as skipped.
    pub fn why_not() -> Option<&'static str> {
        (!nix::unistd::Uid::effective().is_root()).then_some("a node bed needs root")
    }

    pub(crate) fn start_blocking(
        options: Options,
        mut progress: impl FnMut(Progress),
        detached: bool,
    ) -> Result<Self> {
        if let Some(reason) = Self::why_not() {
            bail!("{reason}");
        }
        packages::ensure(&mut progress)?;
        if options.is_vm {
            vm::ensure(&mut progress)?;
        }
        let request = Request {
            kind: Kind::Node,
            options,
            programs: programs::ensure(&mut progress)?,
            images: images::ensure(&mut progress)?,
            logs_after_failure: logs_after_failure()?,
            detached,
        };
        let plane = Arc::new(ControlPlane::raise(&request, &mut progress)?);
        // Who raised the bed through sudo is to use it without.
        cache::hand_over(plane.admin_kubeconfig())?;
        let nodes = plane.bed.nodes.iter().map(|facts| Node {
            plane: Arc::clone(&plane),
            facts: facts.clone(),
        });
        let mut nodes = nodes.peekable();
        let control = nodes.next().context("the keeper raised no node")?;
        let machine = nodes.next_if(|node| node.facts.is_vm);
        Ok(Self {
            first: machine.unwrap_or_else(|| control.clone()),
            workers: nodes.collect(),
            control,
        })
    }

    /// The first node's name, which is the bed's.
    pub fn node_name(&self) -> &str {
        self.first.name()
    }

    /// Where the control plane runs: the first node, or a place without pods beside a virtual machine.
    pub fn control(&self) -> &Node {
        &self.control
    }

    /// The first node's address; unless it is a virtual machine, the API server's too.
    pub fn node_address(&self) -> Ipv4Addr {
        self.first.address()
    }

    /// The nodes beside the first, as many as [`Options::nodes`] asked for.
    pub fn workers(&self) -> &[Node] {
        &self.workers
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        std::iter::once(&self.first).chain(&self.workers)
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        let found = self.nodes().find(|node| node.name() == name);
        found.with_context(|| format!("the bed has no node {name}"))
    }

    /// Ends the bed and waits until all is taken away, without blocking the runtime.
    pub async fn end(self) -> Result<()> {
        tokio::task::spawn_blocking(move || drop(self))
            .await
            .context("ending the bed")
    }

    pub(crate) fn into_plane(self) -> Result<ControlPlane> {
        let Self { first, control, .. } = self;
        drop(control);
        Arc::into_inner(first.plane).context("the bed is in use")
    }
}

impl Node {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.facts.name
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.facts.address
    }

    /// The host's address as seen from inside; a webhook of a test can listen on it.
    pub fn host_address(&self) -> Ipv4Addr {
        self.facts.host_address
    }

    /// containerd's socket, the same inside and outside.
    pub fn runtime_socket(&self) -> PathBuf {
        self.facts.runtime_socket()
    }

    /// The folder of the kubelet's static pods; a manifest that is put there is run.
    pub fn static_pods(&self) -> PathBuf {
        self.facts.static_pods()
    }

    /// The kubelet's folder of pods, the same inside and outside but for what is mounted in it.
    pub fn pod_folders(&self) -> PathBuf {
        self.facts.pod_folders()
    }

    /// containerd's endpoint as CRI clients name it, `unix://…`; the same inside and outside.
    pub fn runtime_endpoint(&self) -> String {
        format!("unix://{}", self.runtime_socket().display())
    }

    /// The supervisor, process 1 of the node's namespaces, as the host numbers it.
    pub fn first_process(&self) -> Result<Pid> {
        self.facts.first_process()
    }

    /// A command that runs `program` in the node's namespaces, in the root folder. The process it
    /// spawns is `nsenter`, which waits for the program and passes on neither signals nor its own
    /// death; what must be signalled or killed belongs into [`Node::spawn_inside`]. In a virtual machine a
    /// program has no stdin.
    pub fn command_inside(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        if self.facts.is_vm {
            return commands::client(self.folder(), &self.facts, program.as_ref());
        }
        Ok(inside::command(self.first_process()?, program.as_ref()))
    }

    /// Spawns a command made by [`Node::command_inside`], to be signalled and waited for as if it
    /// ran outside.
    pub async fn spawn_inside(&self, command: Command) -> Result<Inside> {
        inside::spawn(command, !self.facts.is_vm).await
    }

    /// Runs a program inside to its end and returns its stdout; anything but exit 0 is an error.
    pub async fn run_inside(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let mut command = self.command_inside(program)?;
        command.args(arguments);
        run(command).await
    }

    /// The body of an HTTP GET from inside, where cluster IPs are reachable. Not 2xx is an error.
    pub async fn get_from_inside(&self, url: &str) -> Result<String> {
        self.target(&["get", url]).await
    }

    /// The body of an HTTP POST from inside; for a target's `/set`.
    pub async fn post_from_inside(&self, url: &str) -> Result<String> {
        self.target(&["post", url]).await
    }

    async fn target(&self, arguments: &[&str]) -> Result<String> {
        let find = || images::target_program(&mut crate::progress::silent());
        let program = tokio::task::spawn_blocking(find).await??;
        self.run_inside(&program.display().to_string(), arguments)
            .await
    }

    /// Runs containerd's `ctr` in namespace `k8s.io` and returns its stdout.
    pub async fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let socket = self.runtime_socket().display().to_string();
        let mut all = vec!["--address", &socket, "--namespace", "k8s.io"];
        all.extend(arguments);
        self.run_inside("ctr", &all).await
    }

    /// Gives the node the images of an OCI archive, under the names that stand in it.
    pub async fn import_image(&self, archive: &Path) -> Result<()> {
        let archive = archive.display().to_string();
        self.ctr(&["images", "import", &archive]).await?;
        Ok(())
    }

    /// Kills a container's first process behind the kubelet's back. `id` as in a pod's
    /// `containerID`, with or without `containerd://`.
    pub async fn stop_container(&self, id: &str) -> Result<()> {
        let id = id.trim_start_matches("containerd://");
        self.ctr(&["tasks", "kill", "--signal", "SIGKILL", id])
            .await?;
        Ok(())
    }

    /// Kills the kubelet.
    pub async fn stop_kubelet(&self) -> Result<()> {
        self.order(Order::Stop(self.facts.part("kubelet"))).await
    }

    /// Starts the kubelet again and waits until it answers.
    pub async fn start_kubelet(&self) -> Result<()> {
        self.order(Order::Start(self.facts.part("kubelet"))).await
    }

    /// Kills the kubelet and starts it again.
    pub async fn restart_kubelet(&self) -> Result<()> {
        self.stop_kubelet().await?;
        self.start_kubelet().await
    }

    /// Kills containerd; containers run on.
    pub async fn stop_runtime(&self) -> Result<()> {
        self.order(Order::Stop(self.facts.part("containerd"))).await
    }

    /// Starts containerd again and waits until its socket listens.
    pub async fn start_runtime(&self) -> Result<()> {
        self.order(Order::Start(self.facts.part("containerd")))
            .await
    }

    /// Drops every packet between this node and all others, the API server included, in both directions: nobody is told,
    /// as with a broken switch. Not for the first node, which has the control plane.
    pub async fn cut_network(&self) -> Result<()> {
        self.change_cut("-I").await
    }

    /// Takes back [`Node::cut_network`].
    pub async fn heal_network(&self) -> Result<()> {
        self.change_cut("-D").await
    }

    /// The rules are the first node's, which is the others' router. In table `mangle` they stand before what kube-proxy
    /// does, and before what lets established connections through.
    async fn change_cut(&self, change: &str) -> Result<()> {
        if self.facts.number == 1 {
            bail!("the first node has the control plane and cannot be cut off");
        }
        let first = self.plane.bed.nodes.first().context("a bed has a node")?;
        let link = self.facts.link();
        for (chain, direction) in [("PREROUTING", "-i"), ("POSTROUTING", "-o")] {
            let rule = ["-w", "-t", "mangle", change, chain, direction, &link];
            let mut iptables = inside::command(first.first_process()?, "iptables".as_ref());
            iptables.args(rule).args(["-j", "DROP"]);
            run(iptables).await?;
        }
        Ok(())
    }

    /// Kills all that runs on this node at once, containers too, as a power cut would. Not for the first node, which
    /// has the control plane.
    pub async fn kill(&self) -> Result<()> {
        self.order(Order::KillNode(self.facts.name.clone())).await
    }

    /// Starts the node after [`Node::kill`], with what was on its disk, and waits until its kubelet answers.
    pub async fn start(&self) -> Result<()> {
        self.order(Order::StartNode(self.facts.name.clone())).await
    }
}

async fn run(mut command: Command) -> Result<String> {
    let output = command.kill_on_drop(true).output().await?;
    if !output.status.success() {
        let command = command.as_std();
        let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        bail!(
            "`{}` ended with {}: {}",
            words.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

//! A cluster of one real node, in network, mount, process, IPC and host-name namespaces of its own.
//!
//! etcd, kube-apiserver (with NodeRestriction and ServiceAccount admission), controller manager,
//! scheduler, containerd, kubelet and kube-proxy. The machine's own cluster, containers and firewall
//! are never touched; several beds live side by side. From the host, the API server, the runtime's
//! socket and the pods' addresses can be reached; cluster IPs only from inside.

mod inside;
pub(crate) mod outside;
pub(crate) mod plan;

use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use tokio::process::Command;

pub use inside::Inside;
use nix::unistd::Pid;

use crate::cache;
use crate::control_plane::ControlPlane;
use crate::progress::Progress;
use crate::raise::logs_after_failure;
use crate::request::{Kind, Node, Options, Order, Request};
use crate::{images, packages, programs};

/// A real node with its control plane. Dropping it ends everything in it and removes what it has
/// outside, and so does the owner's death, however it dies. Its control plane's methods are its own.
#[derive(Debug)]
pub struct NodeBed {
    plane: ControlPlane,
    node: Node,
}

impl Deref for NodeBed {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.plane
    }
}

impl NodeBed {
    /// Raises a cluster of one node; returns when the node is Ready. Needs root on Linux.
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
        let request = Request {
            kind: Kind::Node,
            options,
            programs: programs::ensure(&mut progress)?,
            images: images::ensure(&mut progress)?,
            logs_after_failure: logs_after_failure()?,
            detached,
        };
        let plane = ControlPlane::raise(&request, &mut progress)?;
        // Who raised the bed through sudo is to use it without.
        cache::hand_over(plane.admin_kubeconfig())?;
        let node = plane
            .bed
            .node
            .clone()
            .context("the keeper raised no node")?;
        Ok(Self { plane, node })
    }

    /// The node's name, which is the bed's.
    pub fn node_name(&self) -> &str {
        &self.node.name
    }

    /// The node's address, the API server's too.
    pub fn node_address(&self) -> Ipv4Addr {
        self.node.address
    }

    /// The host's address as seen from inside; a webhook of a test can listen on it.
    pub fn host_address(&self) -> Ipv4Addr {
        self.node.host_address
    }

    /// containerd's socket, the same inside and outside.
    pub fn runtime_socket(&self) -> &Path {
        &self.node.runtime_socket
    }

    /// The folder of the kubelet's static pods; a manifest that is put there is run.
    pub fn static_pods(&self) -> PathBuf {
        plan::static_pods(self.folder())
    }

    /// containerd's endpoint as CRI clients name it, `unix://…`; the same inside and outside.
    pub fn runtime_endpoint(&self) -> String {
        format!("unix://{}", self.node.runtime_socket.display())
    }

    /// The supervisor, process 1 of the bed, as the host numbers it.
    pub fn first_process(&self) -> Pid {
        Pid::from_raw(self.plane.bed.supervisor)
    }

    /// A command that runs `program` in the bed's namespaces, in the root folder. The process it
    /// spawns is `nsenter`, which waits for the program and passes on neither signals nor its own
    /// death; what must be signalled or killed belongs into [`NodeBed::spawn_inside`].
    pub fn command_inside(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        inside::command(self.first_process(), program.as_ref())
    }

    /// Spawns a command made by [`NodeBed::command_inside`], to be signalled and waited for as if it
    /// ran outside.
    pub async fn spawn_inside(&self, command: Command) -> Result<Inside> {
        inside::spawn(command).await
    }

    /// Runs a program inside to its end and returns its stdout; anything but exit 0 is an error.
    pub async fn run_inside(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output = self
            .command_inside(program)
            .args(arguments)
            .kill_on_drop(true)
            .output()
            .await?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!(
                "`{program} {}` ended inside with {}: {}",
                arguments.join(" "),
                output.status,
                words.trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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

    /// A kubeconfig with a token of a service account, bound to a pod if one of its namespace is
    /// named, as the kubelet makes them for pods.
    pub async fn service_account_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
        bound_pod: Option<&str>,
    ) -> Result<PathBuf> {
        let client = self.client().await?;
        let bound_object_ref = match bound_pod {
            None => None,
            Some(pod) => {
                let found = Api::<Pod>::namespaced(client.clone(), namespace)
                    .get(pod)
                    .await?;
                Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(pod.into()),
                    uid: found.metadata.uid,
                })
            }
        };
        let spec = TokenRequestSpec {
            audiences: Vec::new(),
            bound_object_ref,
            expiration_seconds: Some(7200),
        };
        let request = TokenRequest {
            spec,
            ..TokenRequest::default()
        };
        let accounts = Api::<ServiceAccount>::namespaced(client, namespace);
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await?;
        let token = answer.status.context("the API server made no token")?.token;
        let file = format!(
            "account-{namespace}-{name}-{}",
            bound_pod.unwrap_or("unbound")
        );
        self.authority()?
            .token_kubeconfig(&file, self.server(), &token)
    }

    /// Runs containerd's `ctr` in namespace `k8s.io` and returns its stdout.
    pub async fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let socket = self.node.runtime_socket.display().to_string();
        let mut all = vec!["--address", &socket, "--namespace", "k8s.io"];
        all.extend(arguments);
        self.run_inside("ctr", &all).await
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
        self.order(Order::Stop("kubelet".into())).await
    }

    /// Starts the kubelet again and waits until it answers.
    pub async fn start_kubelet(&self) -> Result<()> {
        self.order(Order::Start("kubelet".into())).await
    }

    /// Kills the kubelet and starts it again.
    pub async fn restart_kubelet(&self) -> Result<()> {
        self.stop_kubelet().await?;
        self.start_kubelet().await
    }

    /// Kills containerd; containers run on.
    pub async fn stop_runtime(&self) -> Result<()> {
        self.order(Order::Stop("containerd".into())).await
    }

    /// Starts containerd again and waits until its socket listens.
    pub async fn start_runtime(&self) -> Result<()> {
        self.order(Order::Start("containerd".into())).await
    }

    /// Ends the bed and waits until all is taken away, without blocking the runtime.
    pub async fn end(self) -> Result<()> {
        self.plane.end().await
    }

    pub(crate) fn into_plane(self) -> ControlPlane {
        self.plane
    }
}

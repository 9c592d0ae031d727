//! A supervisor as its keeper sees it: the process in namespaces of its own, the pipe to it, and the plan that it carries
//! out. A bed has one for each of its nodes.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::future::select_all;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde::Serialize;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

use crate::clock;
use crate::plan::Plan;
use crate::processes;
use crate::request::{Kind, Node, Order};

/// How long a supervisor gets to begin, and to end by itself.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// One supervisor of a bed.
pub(crate) struct Supervised {
    /// The node that it carries; none for a control plane alone.
    pub(crate) node: Option<Node>,
    plan: Plan,
    running: Option<Running>,
}

/// A supervisor's process, or `unshare` in front of it.
pub(crate) struct Running {
    process: Child,
    input: ChildStdin,
    /// The supervisor's own process id, which is the first in its namespaces.
    pub(crate) first_process: Pid,
}

impl Running {
    /// Starts a supervisor that waits for its plan; for a node in namespaces of its own.
    pub(crate) async fn start(kind: Kind, folder: &Path) -> Result<Self> {
        let itself = std::env::current_exe()?;
        let mut command = match kind {
            Kind::ControlPlane => Command::new(&itself),
            Kind::Node => {
                let mut command = Command::new("unshare");
                command
                    .args([
                        "--net",
                        "--mount",
                        "--pid",
                        "--ipc",
                        "--uts",
                        "--fork",
                        "--mount-proc",
                        "--kill-child",
                    ])
                    .arg(&itself);
                command
            }
        };
        command.arg("supervise").arg(folder).current_dir(folder);
        Self::spawn(command, kind == Kind::Node).await
    }

    /// Starts a supervisor by this command, which is the supervisor itself or a machine that has it, or `unshare`.
    pub(crate) async fn spawn(mut command: Command, is_unshare: bool) -> Result<Self> {
        let mut process = command
            .env("PATH", processes::search_path())
            // The bed must not follow what its owner's working folder or proxies are.
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot start the supervisor")?;
        let input = process.stdin.take();
        let input = input.context("the supervisor's stdin is a pipe")?;
        let first = if is_unshare {
            Some(first_process(&process).await?)
        } else {
            process.id().map(|id| Pid::from_raw(id.cast_signed()))
        };
        Ok(Self {
            process,
            input,
            first_process: first.context("the supervisor has ended")?,
        })
    }

    async fn send(&mut self, line: &impl Serialize) -> Result<()> {
        let line = format!("{}\n", serde_json::to_string(line)?);
        self.input
            .write_all(line.as_bytes())
            .await
            .context("the supervisor has ended")
    }
}

impl Supervised {
    /// Gives a supervisor its plan.
    pub(crate) async fn begin(
        mut running: Running,
        node: Option<Node>,
        plan: Plan,
    ) -> Result<Self> {
        running.send(&plan).await?;
        Ok(Self {
            node,
            plan,
            running: Some(running),
        })
    }

    /// Gives a new supervisor the plan of one that was killed.
    pub(crate) async fn begin_again(&mut self, mut running: Running) -> Result<()> {
        running.send(&self.plan).await?;
        self.running = Some(running);
        Ok(())
    }

    /// Whether a part of this name is its.
    pub(crate) fn has(&self, part: &str) -> bool {
        self.plan.parts.iter().any(|it| it.name == part)
    }

    /// None while its node is killed.
    pub(crate) fn first_process(&self) -> Option<Pid> {
        Some(self.running.as_ref()?.first_process)
    }

    /// Passes an order on; the supervisor itself answers the owner.
    pub(crate) async fn pass(&mut self, order: &Order) -> Result<()> {
        let running = self.running.as_mut();
        running.context("its node was killed")?.send(order).await
    }

    /// Kills it and with it all processes of its namespaces, and waits until they are gone: the first process of a
    /// process namespace is reaped last.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        if self.node.as_ref().is_some_and(|node| node.is_vm) {
            bail!("a node in a virtual machine has no disk that outlives it");
        }
        let mut running = self.running.take().context("it was killed already")?;
        // `unshare` takes its child with it (`--kill-child`), which is then the keeper's.
        running.process.kill().await?;
        let first = running.first_process;
        let reaped = tokio::task::spawn_blocking(move || waitpid(first, None)).await?;
        reaped.context("waiting for the end of the node's processes")?;
        Ok(())
    }

    /// Closes its pipe and waits for its end.
    pub(crate) async fn end(self) -> Result<Option<ExitStatus>> {
        let Some(Running {
            mut process, input, ..
        }) = self.running
        else {
            return Ok(None);
        };
        drop(input);
        if let Ok(status) = tokio::time::timeout(GRACE, process.wait()).await {
            return Ok(Some(status?));
        }
        process.kill().await?;
        Ok(Some(process.wait().await?))
    }
}

/// Waits until one of them ends by itself. One that was killed by an order counts no more.
pub(crate) async fn first_end(all: &mut [Supervised]) {
    let running = all.iter_mut().filter_map(|it| it.running.as_mut());
    let ends: Vec<_> = running.map(|it| Box::pin(it.process.wait())).collect();
    // The first supervisor runs as long as its bed.
    let _ended = select_all(ends).await;
}

/// The supervisor's process id as seen from here; its direct parent is `unshare`.
async fn first_process(unshare: &Child) -> Result<Pid> {
    let deadline = clock::now() + GRACE;
    while clock::now() < deadline {
        let Some(parent) = unshare.id() else { break };
        if let Some(first) = processes::children_of(parent).first() {
            return Ok(*first);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bail!("`unshare` could not make the bed's namespaces (its message is above)")
}

//! Commands that do not go through the runtime: `leadsman-exec` is started within the container's process namespace, enters
//! the rest and becomes the command ([`leadsman_direct`]). Whatever cannot be run like that goes through the runtime.
//!
//! Guarantees:
//! - A process id that the runtime tells is used only after `/proc` has proved it to be the container's first process, and
//!   through a descriptor of that process from then on (`pidfd_open(2)`), so that its number may be used again.
//! - A command that exceeds its timeout ends with all processes of its session and their children.
//! - Whatever fails before the command begins is tried again through the runtime; what has begun never is.
//!
//! | module | holds |
//! |---|---|
//! | `container` | containers that were looked at |
//! | `helper` | `leadsman-exec` in memory, and what the agent itself must have |
//! | `tree` | the end of a command with all of its processes |

mod container;
mod helper;
mod tree;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use leadsman_direct::{Detour, MAX_REQUEST_BYTES, Request};
use leadsman_probe::{Exec, ExecError, Execution, MAX_OUTPUT};
use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use self::container::{Container, Containers};
pub use self::helper::DirectExecError;
use crate::Runtime;

/// How long a process that was killed may take to be gone.
const DEATH: Duration = Duration::from_secs(1);
/// The longest reason that is read.
const MAX_REASON: u64 = 1024;

/// Told of each command that begins, whether directly or not.
type Observer = dyn Fn(Result<(), Detour>) + Send + Sync;

/// Runs commands directly where that is the same, and through the runtime where it is not. Clones share what they know.
#[derive(Clone)]
pub struct DirectExec {
    runtime: Runtime,
    shared: Arc<Shared>,
}

struct Shared {
    helper: File,
    /// The process namespace of the agent.
    processes: File,
    containers: Containers,
    observer: Box<Observer>,
}

impl DirectExec {
    /// Keeps the helper of this path in memory, and moves the calling thread into the node's namespace of cgroups, as only
    /// from there other cgroups can be entered. The thread must be the one that runs commands. `observer` is told how each
    /// command is run.
    ///
    /// # Errors
    /// Something is missing that only the agent's pod can be given.
    pub fn new(
        runtime: Runtime,
        helper: &Path,
        observer: impl Fn(Result<(), Detour>) + Send + Sync + 'static,
    ) -> Result<Self, DirectExecError> {
        helper::check_process()?;
        let mounts = helper::enter_cgroup_namespace()?;
        let processes = File::open("/proc/self/ns/pid");
        let shared = Shared {
            helper: helper::load(helper)?,
            processes: processes.map_err(DirectExecError::Node)?,
            containers: Containers::new(mounts),
            observer: Box::new(observer),
        };
        Ok(Self {
            runtime,
            shared: Arc::new(shared),
        })
    }

    async fn run_directly(
        &self,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<Result<Execution, ExecError>, Detour> {
        let containers = &self.shared.containers;
        let container = if let Some(known) = containers.find(id) {
            known?
        } else {
            let told = self.runtime.container_info(id).await;
            containers.look_at(id, &told.map_err(|_| Detour::Status)?)?
        };
        let request = Request {
            plan: &container.plan,
            command,
        };
        let request = serde_json::to_vec(&request).map_err(|_| Detour::Specification)?;
        if request.len() >= MAX_REQUEST_BYTES {
            return Err(Detour::Specification);
        }
        let started = self.shared.start_helper(&container);
        let mut run = started.inspect_err(|_| containers.forget(id))?;
        match tokio::time::timeout(timeout, run.finish(&request)).await {
            Ok(Ok(execution)) => Ok(Ok(execution)),
            Ok(Err(detour)) => {
                // A command that cannot be started says nothing about its container.
                if detour != Detour::Start {
                    containers.forget(id);
                }
                Err(detour)
            }
            Err(_) => {
                run.kill().await;
                // The cgroup of a paused container stops whatever enters it, which says nothing about the command.
                let late =
                    || ExecError::Runtime("the container could not be entered in time".to_owned());
                Ok(Err(if run.begun {
                    ExecError::TimedOut
                } else {
                    late()
                }))
            }
        }
    }
}

/// The same as by [`Runtime`], but for the timeout, which is kept exactly and ends all processes of the command.
impl Exec for DirectExec {
    async fn exec(
        &self,
        container_id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<Execution, ExecError> {
        match self.run_directly(container_id, command, timeout).await {
            Ok(result) => {
                (self.shared.observer)(Ok(()));
                result
            }
            Err(detour) => {
                tracing::debug!(container = container_id, reason = %detour, "running a command through the container runtime");
                (self.shared.observer)(Err(detour));
                self.runtime.exec(container_id, command, timeout).await
            }
        }
    }
}

impl Shared {
    /// Starts the helper as a process of the container's process namespace.
    fn start_helper(&self, container: &Arc<Container>) -> Result<Run, Detour> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(|_| Detour::Helper)?;
        let ours = ours.set_nonblocking(true).map(|()| ours);
        let channel = ours.and_then(UnixStream::from_std);
        let channel = channel.map_err(|_| Detour::Helper)?;
        let program = format!("/proc/self/fd/{}", self.helper.as_raw_fd());
        let mut command = Command::new(program);
        command
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        rustix::thread::move_into_thread_name_spaces(
            container.process.as_fd(),
            ThreadNameSpaceType::PROCESS_ID,
        )
        .map_err(|_| Detour::Process)?;
        let spawned = command.spawn();
        let own = Some(LinkNameSpaceType::ProcessID);
        if rustix::thread::move_into_link_name_space(self.processes.as_fd(), own).is_err() {
            // Every later program and thread would be started in that container.
            std::process::abort();
        }
        let process = spawned.map_err(|error| {
            tracing::debug!(%error, "leadsman-exec could not be started");
            Detour::Helper
        })?;
        Ok(Run {
            container: container.clone(),
            session: process.id(),
            process,
            channel,
            begun: false,
            ended: false,
        })
    }
}

/// A helper, or the command that it has become. Dropping it kills all of it.
struct Run {
    container: Arc<Container>,
    /// The id of the first process, which is that of the session too.
    session: Option<u32>,
    process: Child,
    channel: UnixStream,
    /// Whether it is the command.
    begun: bool,
    ended: bool,
}

impl Run {
    async fn finish(&mut self, request: &[u8]) -> Result<Execution, Detour> {
        self.begin(request).await?;
        self.begun = true;
        let (stdout, stderr) = (self.process.stdout.take(), self.process.stderr.take());
        // A child of the command may hold the output open: the run takes until it is closed, as it does with a runtime.
        let (stdout, stderr, status) = tokio::join!(
            read_beginning(stdout),
            read_beginning(stderr),
            self.process.wait()
        );
        let status = status.map_err(|_| Detour::Helper)?;
        self.ended = true;
        Ok(Execution {
            exit_code: exit_code(status),
            stdout,
            stderr,
        })
    }

    /// Waits until the helper is the command.
    async fn begin(&mut self, request: &[u8]) -> Result<(), Detour> {
        // A helper that has ended says more by its answer than an error of the socket.
        let _sent = self.channel.write_all(request).await;
        let _closed = self.channel.shutdown().await;
        let mut answer = Vec::new();
        let mut limited = (&mut self.channel).take(MAX_REASON);
        let read = limited.read_to_end(&mut answer).await;
        let refused = match read {
            Ok(_) => leadsman_direct::parse_answer(&answer),
            Err(_) => Err(Detour::Helper),
        };
        refused.inspect_err(|_| {
            let reason = String::from_utf8_lossy(&answer);
            tracing::debug!(%reason, "leadsman-exec could not run a command");
        })
    }

    /// Kills the command with its processes, and waits a moment for the end of the first of them.
    async fn kill(&mut self) {
        self.kill_tree();
        let _ended = tokio::time::timeout(DEATH, self.process.wait()).await;
    }

    fn kill_tree(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Some(session) = self.session {
            tree::kill_session(session, &self.container.namespace);
        }
        // Should it not have begun a session yet.
        let _sent = self.process.start_kill();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.kill_tree();
    }
}

/// Reads all of it and keeps the beginning.
async fn read_beginning(output: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut output) = output else {
        return kept;
    };
    let mut piece = [0; 4096];
    // An error is an end: the pipe is our own.
    while let Ok(read @ 1..) = output.read(&mut piece).await {
        let room = MAX_OUTPUT.saturating_sub(kept.len());
        kept.extend_from_slice(&piece[..read.min(room)]);
    }
    kept
}

/// The code by which runtimes and shells tell a signal too.
fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    let killed = || 128 + status.signal().unwrap_or_default();
    status.code().unwrap_or_else(killed)
}

/// An error that says what was read.
pub(crate) fn named(path: &str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{path}: {error}"))
}

//! The program under test, as an ordinary process with a log file of its own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::process::{Child, Command};

pub use nix::sys::signal::Signal;

/// How long a process may take to end after SIGTERM.
pub const GRACE: Duration = Duration::from_secs(20);

/// A started process; killed when dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with both streams appended to `log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", command.as_std().get_program().display()))?;
        Ok(Self {
            child,
            log: log.to_owned(),
        })
    }

    /// Its number, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("SIGKILL")
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().context("it has ended already")?;
        let pid = Pid::from_raw(pid.try_into()?);
        kill(pid, signal).with_context(|| format!("{signal} to {pid}"))
    }

    /// What it has logged.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }

    /// SIGTERM, then waits for its own end, which must be in time and a success.
    ///
    /// # Errors
    /// When it does not end within [`GRACE`] or ends with another status.
    pub async fn terminate(mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let status = tokio::time::timeout(GRACE, self.child.wait())
            .await
            .with_context(|| {
                format!(
                    "it did not end within {GRACE:?} of SIGTERM; log {}",
                    self.log.display()
                )
            })??;
        if !status.success() {
            bail!(
                "it ended with {status} after SIGTERM; log {}",
                self.log.display()
            );
        }
        Ok(())
    }
}

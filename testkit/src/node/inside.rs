//! Programs inside a bed, seen from outside.
//!
//! Entering a process namespace takes a fork: what a caller spawns is `nsenter`, what it means is
//! nsenter's child. Signals here go to that child; and since its parent may die without it, dropping
//! an [`Inside`] kills it. At the end of the bed the kernel does.

use std::ffi::OsStr;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::clock;
use crate::processes;

pub(super) fn command(first: Pid, program: &OsStr) -> Command {
    let mut command = Command::new("nsenter");
    command
        .args([
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--target",
            &first.to_string(),
            "--",
        ])
        .arg(program)
        .env("PATH", processes::search_path())
        // Ctrl-C on a terminal is for the owner of the bed, who then ends this.
        .process_group(0);
    command
}

/// A program that runs inside a bed.
#[derive(Debug)]
pub struct Inside {
    nsenter: Child,
    program: Pid,
    /// The program's stdin, if the command asked for a pipe.
    pub stdin: Option<ChildStdin>,
    /// The program's stdout, if the command asked for a pipe.
    pub stdout: Option<ChildStdout>,
    /// The program's stderr, if the command asked for a pipe.
    pub stderr: Option<ChildStderr>,
}

/// A command that is not `nsenter` stands for the program: what ends it ends the program.
pub(super) async fn spawn(mut command: Command, is_nsenter: bool) -> Result<Inside> {
    let mut nsenter = command.spawn().context("cannot run nsenter")?;
    let deadline = clock::now() + Duration::from_secs(10);
    let process = nsenter.id().context("nsenter has just been spawned")?;
    let program = loop {
        if !is_nsenter {
            break Pid::from_raw(process.cast_signed());
        }
        if let Some(program) = processes::children_of(process).first() {
            break *program;
        }
        if let Some(status) = nsenter.try_wait()? {
            bail!("the program inside ended at once, with {status}");
        }
        if clock::now() > deadline {
            bail!("nsenter started nothing");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    let (stdin, stdout, stderr) = (
        nsenter.stdin.take(),
        nsenter.stdout.take(),
        nsenter.stderr.take(),
    );
    Ok(Inside {
        nsenter,
        program,
        stdin,
        stdout,
        stderr,
    })
}

impl Inside {
    /// The program's process id as the host numbers it.
    pub fn pid(&self) -> Pid {
        self.program
    }

    /// Sends the program a signal. One that has ended gets none.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        // Until nsenter has been waited for, it has not reaped its child, or we see that it ended.
        if self.nsenter.try_wait()?.is_none() {
            match kill(self.program, signal) {
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => return Err(error).context("signalling the program inside"),
            }
        }
        Ok(())
    }

    /// Waits for the program's end. A program killed by a signal makes nsenter die by the same one.
    pub async fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.nsenter.wait().await?)
    }

    /// The program's status if it has ended.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.nsenter.try_wait()?)
    }

    /// Kills the program and waits for its end.
    pub async fn kill(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGKILL)?;
        self.wait().await
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.signal(Signal::SIGKILL);
    }
}

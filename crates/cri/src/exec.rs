//! A command in a container: `ExecSync`, and what its errors mean for a probe. The runtimes answer most of
//! what goes wrong with the code `Unknown` and words, so the words decide; each pattern below names who says it.

use std::time::Duration;

use tonic::{Code, Status};

use crate::{
    runtime::{Runtime, is_transport},
    wire,
};

/// How long beyond the command's own timeout the runtime's answer is waited for.
const SLACK: Duration = Duration::from_secs(2);

/// What a command left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// Its exit code.
    pub exit_code: i32,
    /// The beginning of what it wrote.
    pub stdout: Vec<u8>,
    /// The beginning of what it wrote to the other stream.
    pub stderr: Vec<u8>,
}

/// Why there is no exit code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The runtime ended the command at its timeout.
    #[error("timed out")]
    TimedOut,
    /// The command does not exist or cannot be started.
    #[error("cannot start: {0}")]
    CannotStart(String),
    /// It wrote more than the runtime passes on.
    #[error("too much output: {0}")]
    TooMuchOutput(String),
    /// Its container does not run (any more).
    #[error("container gone: {0}")]
    ContainerGone(String),
    /// The runtime is in trouble or cannot be reached.
    #[error("runtime: {0}")]
    Runtime(String),
    /// The runtime did not answer.
    #[error("deadline")]
    Deadline,
}

impl Runtime {
    /// Runs `command` (no shell, nothing expanded) in a running container. `timeout` is rounded up to whole
    /// seconds, at least one: the runtime knows no shorter one. An answer that is not there two seconds
    /// after it is given up; dropping the future makes the runtime end the command.
    pub async fn exec_sync(
        &self,
        container_id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<Execution, ExecError> {
        let seconds = whole_seconds(timeout);
        let request = wire::ExecSyncRequest {
            container_id: container_id.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let mut client = self.client.clone();
        let limit = Duration::from_secs(seconds).saturating_add(SLACK);
        match tokio::time::timeout(limit, client.exec_sync(request)).await {
            Ok(Ok(response)) => execution(response.into_inner()),
            Ok(Err(status)) => Err(meaning(&status)),
            Err(_) => Err(ExecError::Deadline),
        }
    }
}

/// 0 would mean "no timeout" to the runtime.
fn whole_seconds(timeout: Duration) -> u64 {
    let part = u64::from(timeout.subsec_nanos() > 0);
    timeout.as_secs().saturating_add(part).max(1)
}

/// CRI-O answers a timeout as a success with exit code −1 and these words.
fn execution(answer: wire::ExecSyncResponse) -> Result<Execution, ExecError> {
    if answer.exit_code == -1
        && contains(
            &String::from_utf8_lossy(&answer.stderr),
            &["command timed out"],
        )
    {
        return Err(ExecError::TimedOut);
    }
    Ok(Execution {
        exit_code: answer.exit_code,
        stdout: answer.stdout.into(),
        stderr: answer.stderr.into(),
    })
}

/// The container ended before or while the command was started.
const GONE: &[&str] = &[
    "container_exited",         // containerd: "container is in CONTAINER_EXITED state"
    "container_created",        // likewise
    "container_unknown",        // likewise
    "no running task found",    // containerd, the task went away under the call
    "stopped container",        // runc: "cannot exec in a stopped container"
    "stopped process",          // containerd's shim: "cannot exec in a stopped process"
    "container is not running", // crun, CRI-O
    "is not created or running", // CRI-O
    "container not running",    // runc, older
    "process already finished", // the shim, at the very end
];

/// The node or the runtime lacks something, or the start was cut short: another time it may work.
const PASSING: &[&str] = &[
    "too many open files",
    "resource temporarily unavailable",
    "cannot allocate memory",
    "no space left on device",
    "context canceled",
    "context deadline exceeded",
    "ttrpc: closed",
    "setns process", // runc lost its helper in the container's namespaces: killed, out of memory
    "paused container",
];

/// The command itself is at fault.
const CANNOT_START: &[&str] = &[
    "executable file", // Go's exec.LookPath, crun: "not found in $PATH"
    "exec format error",
    "exec failed",       // containerd: "OCI runtime exec failed: …"
    "oci runtime exec",  // likewise
    "oci runtime error", // CRI-O
];

/// Words that speak of the command only where the runtime was starting it.
const CANNOT_START_EXEC: &[&str] = &[
    "no such file or directory",
    "permission denied",
    "is a directory",
    "not a directory",
];

/// What an error of `ExecSync` means.
fn meaning(status: &Status) -> ExecError {
    let words = || status.message().to_owned();
    if is_transport(status) {
        return ExecError::Runtime(words());
    }
    match status.code() {
        Code::DeadlineExceeded => ExecError::TimedOut,
        // The client's limit, from the length in front of the message.
        Code::OutOfRange => ExecError::TooMuchOutput(words()),
        // The runtime's own limit: "trying to send message larger than max".
        Code::ResourceExhausted if contains(status.message(), &["larger than max"]) => {
            ExecError::TooMuchOutput(words())
        }
        Code::ResourceExhausted => ExecError::Runtime(words()),
        code => by_words(code, status.message()),
    }
}

fn by_words(code: Code, message: &str) -> ExecError {
    let words = message.to_owned();
    let of_the_exec = contains(message, &["exec"]) && contains(message, CANNOT_START_EXEC);
    if contains(message, GONE) {
        ExecError::ContainerGone(words)
    } else if contains(message, PASSING) {
        ExecError::Runtime(words)
    } else if contains(message, CANNOT_START) || of_the_exec {
        ExecError::CannotStart(words)
    } else if code == Code::NotFound {
        ExecError::ContainerGone(words)
    } else {
        ExecError::Runtime(words)
    }
}

fn contains(message: &str, patterns: &[&str]) -> bool {
    let message = message.to_ascii_lowercase();
    patterns.iter().any(|pattern| message.contains(pattern))
}

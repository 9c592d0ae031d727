//! The meaning for the probe of a runtime's message that it could not run a command. Runtimes have no codes for it; each
//! pattern below names the program that writes it. The agent reads such a message in the reply to `ExecSync`, a person in
//! that to the API server's exec.

use crate::exec::ExecError;

/// The container exited before or while the command was started.
const CONTAINER_GONE: &[&str] = &[
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

/// The node or the runtime is short of something, or the start was interrupted: a later run may succeed.
const TRANSIENT: &[&str] = &[
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

/// The command cannot be executed.
const CANNOT_START: &[&str] = &[
    "executable file", // Go's exec.LookPath, crun: "not found in $PATH"
    "exec format error",
    "exec failed",       // containerd: "OCI runtime exec failed: …"
    "oci runtime exec",  // likewise
    "oci runtime error", // CRI-O
];

/// Messages that are about the command only if the runtime was starting it.
const CANNOT_START_EXEC: &[&str] = &[
    "no such file or directory",
    "permission denied",
    "is a directory",
    "not a directory",
];

impl ExecError {
    /// The meaning of a runtime's message about a command that it could not run.
    pub fn from_runtime_message(message: &str) -> Self {
        let owned = message.to_owned();
        let of_the_exec =
            contains_any(message, &["exec"]) && contains_any(message, CANNOT_START_EXEC);
        // The most specific first: containerd puts the reason of runc behind its own "OCI runtime exec failed".
        if contains_any(message, CONTAINER_GONE) {
            Self::ContainerGone(owned)
        } else if contains_any(message, TRANSIENT) {
            Self::Runtime(owned)
        } else if contains_any(message, CANNOT_START) || of_the_exec {
            Self::CannotStart(without_exec_id(message))
        } else {
            Self::Runtime(owned)
        }
    }
}

/// Removes the id that containerd gives each exec: `failed to start exec "ID": …`. A probe's message must not differ from one
/// run to the next, since each difference is a status write.
fn without_exec_id(message: &str) -> String {
    let behind = message
        .split_once("failed to start exec \"")
        .and_then(|(_, rest)| rest.split_once("\": "));
    behind.map_or(message, |(_, cause)| cause).to_owned()
}

fn contains_any(message: &str, patterns: &[&str]) -> bool {
    let message = message.to_ascii_lowercase();
    patterns.iter().any(|pattern| message.contains(pattern))
}

//! What the message of a failed probe means, and what to do.

use super::explanation::{Cause, Reason};
use crate::podprobe::index::InspectedProbe;
use crate::podprobe::marker::MarkerProbe;
use crate::podprobe::probe::State;

/// What the message of a failed probe means that can hardly succeed as it is.
struct Hint {
    /// The message begins with this.
    begins: &'static str,
    /// And contains this, in lower case.
    contains: &'static str,
    reason: Reason,
    action: &'static str,
}

const fn hint(
    begins: &'static str,
    contains: &'static str,
    reason: Reason,
    action: &'static str,
) -> Hint {
    Hint {
        begins,
        contains,
        reason,
        action,
    }
}

const SLOW: &str = "it takes longer than timeoutSeconds: make it faster or raise timeoutSeconds";
const NO_COMMAND: &str = "the container has no such command: correct exec.command (no shell is involved) or add the program to the image";
const NOT_ALLOWED: &str = "the container's user may not run it: make it executable";
const NOBODY_LISTENS: &str =
    "nothing listens there: correct the port, or have the server listen on the pod's address";

/// In the words of our own executors (`Outcome::timed_out`, `leadsman_probe`), and of the runtimes that cannot start a
/// command (`CANNOT_START` in `leadsman_cri`'s `exec`). What a probe itself prints has none of these beginnings.
const HINTS: &[Hint] = &[
    hint("command timed out", "", "TimedOut", SLOW),
    hint("connecting to ", "no answer within", "TimedOut", SLOW),
    hint(
        "health check call to ",
        "no answer within",
        "TimedOut",
        SLOW,
    ),
    hint("GET from ", "within", "TimedOut", SLOW),
    hint(
        "connecting to ",
        "connection refused",
        "ConnectionRefused",
        NOBODY_LISTENS,
    ),
    hint(
        "OCI runtime exec failed",
        "permission denied",
        "CommandNotExecutable",
        NOT_ALLOWED,
    ),
    hint(
        "OCI runtime exec failed",
        "no such file or directory",
        "CommandNotFound",
        NO_COMMAND,
    ),
    hint(
        "OCI runtime exec failed",
        "executable file",
        "CommandNotFound",
        NO_COMMAND,
    ),
    hint(
        "command error: executable file",
        "not found",
        "CommandNotFound",
        NO_COMMAND,
    ),
];

/// What the message of a failed probe means.
pub(super) fn failure(probe: &MarkerProbe, known: &InspectedProbe) -> Option<Cause> {
    let verdict = known.verdict.as_ref()?;
    if verdict.state != State::Failed {
        return None;
    }
    let message = verdict.message.to_ascii_lowercase();
    let mut hints = HINTS.iter();
    let Hint { reason, action, .. } = hints
        .find(|hint| verdict.message.starts_with(hint.begins) && message.contains(hint.contains))?;
    Some(Cause::problem(
        reason,
        format!(
            "probe {}: it fails with {:?}; {action}",
            probe.name, verdict.message
        ),
    ))
}

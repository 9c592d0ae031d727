//! The meaning of a failed probe's message, and what to do.

use super::explanation::{Cause, CauseReason};
use crate::podprobe::marker::MarkerProbe;
use crate::podprobe::probe::State;
use crate::podprobe::template::HandlerTemplate;
use crate::podprobe::verdict::Verdict;

/// A hint on a probe that can hardly succeed as it is, by the message of its failure.
struct Hint {
    /// The handler of the probes that the hint is for: a command may print what another handler says.
    handler: FailedHandler,
    /// The message begins with this.
    begins: &'static str,
    /// And contains this, in lower case.
    contains: &'static str,
    reason: CauseReason,
    action: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FailedHandler {
    Exec,
    HttpGet,
    TcpSocket,
    Grpc,
    File,
}
use FailedHandler::{Exec, Grpc, HttpGet, TcpSocket};

impl FailedHandler {
    fn handler_of(probe: &MarkerProbe) -> Self {
        match probe.template.handler {
            HandlerTemplate::Exec { .. } => Exec,
            HandlerTemplate::HttpGet { .. } => HttpGet,
            HandlerTemplate::TcpSocket { .. } => TcpSocket,
            HandlerTemplate::Grpc { .. } => Grpc,
            HandlerTemplate::File(_) => Self::File,
        }
    }
}

const fn failure_hint(
    handler: FailedHandler,
    begins: &'static str,
    contains: &'static str,
    reason: CauseReason,
    action: &'static str,
) -> Hint {
    Hint {
        handler,
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

/// Hints for the words of our own executors (`Outcome::timed_out`, `leadsman_probe`), and of the runtimes that cannot start
/// a command (`CANNOT_START` in `leadsman_cri`'s `exec`). The output of a probe itself has none of these beginnings.
#[rustfmt::skip]
const HINTS: &[Hint] = &[
    failure_hint(Exec, "command timed out", "", CauseReason::TimedOut, SLOW),
    failure_hint(Exec, "OCI runtime exec failed", "permission denied", CauseReason::CommandNotExecutable, NOT_ALLOWED),
    failure_hint(Exec, "OCI runtime exec failed", "no such file or directory", CauseReason::CommandNotFound, NO_COMMAND),
    failure_hint(Exec, "OCI runtime exec failed", "executable file", CauseReason::CommandNotFound, NO_COMMAND),
    failure_hint(Exec, "command error: executable file", "not found", CauseReason::CommandNotFound, NO_COMMAND),
    failure_hint(HttpGet, "GET from ", "within", CauseReason::TimedOut, SLOW),
    failure_hint(HttpGet, "connecting to ", "no answer within", CauseReason::TimedOut, SLOW),
    failure_hint(HttpGet, "connecting to ", "connection refused", CauseReason::ConnectionRefused, NOBODY_LISTENS),
    failure_hint(TcpSocket, "connecting to ", "no answer within", CauseReason::TimedOut, SLOW),
    failure_hint(TcpSocket, "connecting to ", "connection refused", CauseReason::ConnectionRefused, NOBODY_LISTENS),
    failure_hint(Grpc, "health check call to ", "no answer within", CauseReason::TimedOut, SLOW),
    failure_hint(Grpc, "connecting to ", "no answer within", CauseReason::TimedOut, SLOW),
    failure_hint(Grpc, "connecting to ", "connection refused", CauseReason::ConnectionRefused, NOBODY_LISTENS),
];

/// The cause that a verdict's message tells, if the probe failed.
pub(super) fn diagnose_failure(probe: &MarkerProbe, verdict: &Verdict) -> Option<Cause> {
    if verdict.state != State::Failed {
        return None;
    }
    let handler = FailedHandler::handler_of(probe);
    let message = verdict.message.to_ascii_lowercase();
    let mut hints = HINTS.iter().filter(|hint| hint.handler == handler);
    let Hint { reason, action, .. } = hints
        .find(|hint| verdict.message.starts_with(hint.begins) && message.contains(hint.contains))?;
    Some(Cause::new_problem(
        *reason,
        format!(
            "probe {}: it fails with {:?}; {action}",
            probe.name, verdict.message
        ),
    ))
}

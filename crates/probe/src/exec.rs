//! Commands inside the container: the trait that the container runtime's client implements, and the outcome of its replies.
//!
//! The runtime starts the command without a shell, ends it after the timeout and collects its output. `$(VAR)` is not
//! expanded, as the kubelet does (`ExpandContainerCommandOnlyStatic`, `pkg/kubelet/container/helpers.go`): only the kubelet
//! knows the container's environment.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use leadsman_core::podprobe::{CannotProbe, Outcome};

use crate::message::{lossy_text, truncate_message};
use crate::target::ProbeTarget;
use crate::time_limit::TimeLimit;

/// How long after the command's timeout the runtime may take to report it, before the run is given up.
pub const EXEC_SLACK: Duration = Duration::from_secs(2);

/// The part of a container runtime that probes need.
pub trait Exec {
    /// Runs a command, which is never empty and begins with the program, in a running container. The runtime ends it after
    /// `timeout`, rounded up to whole seconds where it must be, never down to zero. The future may be dropped at any time,
    /// and is dropped when the run's [`TimeLimit`] and [`EXEC_SLACK`] are over.
    fn exec(
        &self,
        container_id: &str,
        command: &[String],
        timeout: Duration,
    ) -> impl Future<Output = Result<Execution, ExecError>> + Send;
}

/// The result of a command that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// 0 is a success.
    pub exit_code: i32,
    /// The standard output. At most [`MAX_OUTPUT`](crate::MAX_OUTPUT) bytes of both streams
    /// together are used.
    pub stdout: Vec<u8>,
    /// The standard error.
    pub stderr: Vec<u8>,
}

/// Why there is no exit code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The runtime ended the command after its timeout. The probe failed.
    #[error("the command did not end in time")]
    TimedOut,
    /// The command does not exist, or may not be executed. The probe failed, with the runtime's
    /// message.
    #[error("{0}")]
    CannotStart(String),
    /// The command wrote more than the runtime or its client accept. The probe failed, with the
    /// runtime's message.
    #[error("{0}")]
    TooMuchOutput(String),
    /// The container is not running, or does not exist any more.
    #[error("the container is gone: {0}")]
    ContainerGone(String),
    /// The runtime cannot be reached, is overloaded, or failed in a way that says nothing about the command.
    #[error("{0}")]
    Runtime(String),
}

/// Runs a command once. The message is its standard output and then its standard error, or its exit code if it failed
/// without output.
pub(crate) async fn run_command<E: Exec>(
    command: &[String],
    target: &ProbeTarget,
    limit: TimeLimit<'_>,
    runtime: &E,
) -> Result<Outcome, CannotProbe> {
    let reply = pin!(runtime.exec(target.container_id(), command, limit.timeout));
    match limit.with_slack(EXEC_SLACK).await_output(reply).await {
        Some(Ok(execution)) => Ok(outcome_of(&execution)),
        Some(Err(error)) => outcome_of_error(error, limit.timeout),
        None => Err(CannotProbe::Deadline),
    }
}

fn outcome_of(execution: &Execution) -> Outcome {
    let output = lossy_text(&[&execution.stdout, &execution.stderr]);
    match execution.exit_code {
        0 => Outcome::Succeeded(output),
        code if output.is_empty() => {
            Outcome::Failed(format!("the command exited with code {code}"))
        }
        _ => Outcome::Failed(output),
    }
}

fn outcome_of_error(error: ExecError, timeout: Duration) -> Result<Outcome, CannotProbe> {
    match error {
        ExecError::TimedOut => Ok(Outcome::timed_out(timeout)),
        // The container itself is why: it has no such program, or one that writes too much.
        ExecError::CannotStart(message) | ExecError::TooMuchOutput(message) => {
            Ok(Outcome::Failed(truncate_message(message)))
        }
        ExecError::ContainerGone(_) => Err(CannotProbe::ContainerGone),
        ExecError::Runtime(message) => Err(CannotProbe::Runtime(message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MAX_OUTPUT;
    use rstest::rstest;
    use std::sync::Mutex;

    /// Replies once, and records requests.
    struct Scripted {
        answer: Mutex<Option<Result<Execution, ExecError>>>,
        asked: Mutex<Vec<(String, Vec<String>, Duration)>>,
    }

    impl Exec for Scripted {
        async fn exec(
            &self,
            container_id: &str,
            command: &[String],
            timeout: Duration,
        ) -> Result<Execution, ExecError> {
            let asked = (container_id.to_owned(), command.to_vec(), timeout);
            self.asked.lock().unwrap().push(asked);
            let answer = self.answer.lock().unwrap().take();
            match answer {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        }
    }

    fn scripted(answer: Option<Result<Execution, ExecError>>) -> Scripted {
        Scripted {
            answer: Mutex::new(answer),
            asked: Mutex::default(),
        }
    }

    async fn probe(runtime: &Scripted) -> Result<Outcome, CannotProbe> {
        let command = ["sh".to_owned(), "-c".to_owned(), "echo $(X)".to_owned()];
        let target = ProbeTarget::new(&[], "abc");
        run_command(&command, &target, Duration::from_secs(3).into(), runtime).await
    }

    fn exited(exit_code: i32, stdout: &[u8], stderr: &[u8]) -> Execution {
        Execution {
            exit_code,
            stdout: stdout.to_vec(),
            stderr: stderr.to_vec(),
        }
    }

    fn succeeded(message: &str) -> Outcome {
        Outcome::Succeeded(message.to_owned())
    }

    fn failed(message: &str) -> Outcome {
        Outcome::Failed(message.to_owned())
    }

    // PRB-13, PRB-16, PRB-17
    #[rstest]
    #[case(Ok(exited(0, b"", b"")), Ok(succeeded("")))]
    #[case(Ok(exited(0, b"out", b"err")), Ok(succeeded("outerr")))]
    #[case(Ok(exited(1, b"out\n", b"err")), Ok(failed("out\nerr")))]
    #[case(Ok(exited(-1, b"", b"")), Ok(failed("the command exited with code -1")))]
    #[case(Ok(exited(0, b"a\xff", b"")), Ok(succeeded("a\u{fffd}")))]
    #[case(
        Err(ExecError::TimedOut),
        Ok(failed("command timed out: it did not end within 3s"))
    )]
    #[case(Err(ExecError::CannotStart("no such file: x".into())), Ok(failed("no such file: x")))]
    #[case(Err(ExecError::TooMuchOutput("too much".into())), Ok(failed("too much")))]
    #[case(Err(ExecError::ContainerGone("x".into())), Err(CannotProbe::ContainerGone))]
    #[case(Err(ExecError::Runtime("busy".into())), Err(CannotProbe::Runtime("busy".into())))]
    #[tokio::test]
    async fn each_reply_of_the_runtime_has_its_outcome(
        #[case] answer: Result<Execution, ExecError>,
        #[case] expected: Result<Outcome, CannotProbe>,
    ) {
        assert_eq!(probe(&scripted(Some(answer))).await, expected);
    }

    // PRB-15
    #[tokio::test]
    async fn the_command_is_passed_to_the_runtime_unchanged() {
        let runtime = scripted(Some(Ok(exited(0, b"", b""))));
        probe(&runtime).await.unwrap();
        let command = vec!["sh".into(), "-c".into(), "echo $(X)".into()];
        let expected = vec![("abc".to_owned(), command, Duration::from_secs(3))];
        assert_eq!(*runtime.asked.lock().unwrap(), expected);
    }

    // PRB-17
    #[tokio::test]
    async fn output_is_bounded() {
        let out = vec![b'o'; MAX_OUTPUT - 2];
        let runtime = scripted(Some(Ok(exited(1, &out, b"error"))));
        let Ok(Outcome::Failed(message)) = probe(&runtime).await else {
            panic!("not failed");
        };
        assert_eq!(message.len(), MAX_OUTPUT);
        assert!(message.ends_with("oer"));
    }

    // PRB-14
    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_never_replies_is_given_up_after_the_slack() {
        let start = tokio::time::Instant::now();
        let result = probe(&scripted(None)).await;
        assert_eq!(result, Err(CannotProbe::Deadline));
        assert_eq!(start.elapsed().as_secs(), 5);
    }
}

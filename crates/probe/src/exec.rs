//! Commands run inside the container: the trait the container runtime's client implements, and what its answers mean.
//!
//! The runtime starts the command without a shell, ends it after the timeout and keeps its output; here its answer becomes an
//! outcome. `$(VAR)` is not expanded: only the kubelet knows the container's environment.

use std::future::Future;
use std::time::Duration;

use leadsman_core::podprobe::{CannotProbe, Outcome};

use crate::message::{bounded, bounded_text};
use crate::target::Target;

/// What is given to the container runtime beyond the command's timeout to say that it ran out, before the run is written off.
pub const EXEC_SLACK: Duration = Duration::from_secs(2);

/// The container runtime, as far as probes need it.
pub trait Exec {
    /// Runs a command, program first and never empty, in a running container. The runtime ends it after `timeout`, rounded
    /// up to whole seconds if it must be, never down to zero. The future may be dropped at any time: at the latest
    /// [`EXEC_SLACK`] after the timeout.
    fn exec(
        &self,
        container_id: &str,
        command: &[String],
        timeout: Duration,
    ) -> impl Future<Output = Result<Execution, ExecError>> + Send;
}

/// A command that ran to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// 0 is success.
    pub exit_code: i32,
    /// What it wrote to its standard output. 10 KiB is all that is used of both streams.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
}

/// Why there is no exit code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The runtime says that the command took longer than its timeout. The probe failed.
    #[error("the command did not end in time")]
    TimedOut,
    /// There is no such command, or it may not be run. The probe failed, in the runtime's words.
    #[error("{0}")]
    CannotStart(String),
    /// It wrote more than runtime or client take. The probe failed, in the runtime's words.
    #[error("{0}")]
    TooMuchOutput(String),
    /// The container does not run, or does not exist any more.
    #[error("the container is gone: {0}")]
    ContainerGone(String),
    /// The runtime is unreachable, busy, or failed in a way that says nothing about the command.
    #[error("{0}")]
    Runtime(String),
    /// The client gave up waiting for the runtime's answer.
    #[error("no answer from the container runtime")]
    Deadline,
}

/// One run. The message is standard output, then standard error; a command that failed in silence is given its exit code.
pub(crate) async fn run<E: Exec>(
    command: &[String],
    target: &Target,
    timeout: Duration,
    runtime: &E,
) -> Result<Outcome, CannotProbe> {
    let answer = runtime.exec(target.container_id(), command, timeout);
    match tokio::time::timeout(timeout + EXEC_SLACK, answer).await {
        Ok(Ok(execution)) => Ok(judge(&execution)),
        Ok(Err(error)) => explain(error, timeout),
        Err(_) => Err(CannotProbe::Deadline),
    }
}

fn judge(execution: &Execution) -> Outcome {
    let output = bounded_text(&[&execution.stdout, &execution.stderr]);
    match execution.exit_code {
        0 => Outcome::Succeeded(output),
        code if output.is_empty() => {
            Outcome::Failed(format!("the command exited with code {code}"))
        }
        _ => Outcome::Failed(output),
    }
}

fn explain(error: ExecError, timeout: Duration) -> Result<Outcome, CannotProbe> {
    match error {
        ExecError::TimedOut => Ok(Outcome::timed_out(timeout)),
        ExecError::CannotStart(words) | ExecError::TooMuchOutput(words) => {
            Ok(Outcome::Failed(bounded(words)))
        }
        ExecError::ContainerGone(_) => Err(CannotProbe::ContainerGone),
        ExecError::Runtime(words) => Err(CannotProbe::Runtime(words)),
        ExecError::Deadline => Err(CannotProbe::Deadline),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MAX_OUTPUT;
    use rstest::rstest;
    use std::sync::Mutex;

    /// Answers once, and keeps what it was asked.
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
        let target = Target::new(&[], "abc");
        run(&command, &target, Duration::from_secs(3), runtime).await
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
    #[case(Err(ExecError::Deadline), Err(CannotProbe::Deadline))]
    #[tokio::test]
    async fn what_the_runtime_answers_becomes_an_outcome(
        #[case] answer: Result<Execution, ExecError>,
        #[case] expected: Result<Outcome, CannotProbe>,
    ) {
        assert_eq!(probe(&scripted(Some(answer))).await, expected);
    }

    // PRB-15
    #[tokio::test]
    async fn the_command_goes_to_the_runtime_as_it_stands() {
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
    async fn a_runtime_that_never_answers_is_given_up_after_the_slack() {
        let start = tokio::time::Instant::now();
        let result = probe(&scripted(None)).await;
        assert_eq!(result, Err(CannotProbe::Deadline));
        assert_eq!(start.elapsed().as_secs(), 5);
    }
}

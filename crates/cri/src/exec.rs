//! A command in a container: `ExecSync`, and what its errors mean for a probe. The runtimes answer most
//! errors with the code `Unknown` and a message, so the message decides ([`ExecError::from_runtime_message`]).

use std::time::Duration;

use leadsman_probe::{Exec, ExecError, Execution};
use tonic::{Code, Status};

use crate::{
    runtime::{Runtime, is_transport},
    wire,
};

/// No shell, nothing expanded. `timeout` is rounded up to whole seconds, at least one: the runtime knows no
/// shorter one. Of the output the beginning is kept. Dropping the future makes the runtime end the command.
impl Exec for Runtime {
    async fn exec(
        &self,
        container_id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<Execution, ExecError> {
        let seconds = whole_seconds(timeout);
        let request = wire::ExecSyncRequest {
            container_id: container_id.to_owned(),
            cmd: command.to_vec(),
            timeout: seconds.into(),
        };
        let mut client = self.exec_client();
        // The call has no deadline, since the caller has one. The runtime waits beyond the timeout
        // until the output is closed, which a grandchild of the command may hold for as long as it
        // lives.
        match client.exec_sync(request).await {
            Ok(response) => execution_of_reply(response.into_inner()),
            Err(status) => Err(interpret_status(&status)),
        }
    }
}

/// Rounds up, at least to 1: 0 means no timeout (`ExecSyncRequest.timeout` in `api.proto`).
fn whole_seconds(timeout: Duration) -> u32 {
    let part = u64::from(timeout.subsec_nanos() > 0);
    let seconds = timeout.as_secs().saturating_add(part).max(1);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// CRI-O reports a timeout as a success with exit code −1 and this message (`ExecSync`,
/// `internal/oci/runtime_oci.go`).
fn execution_of_reply(reply: wire::ExecSyncResponse) -> Result<Execution, ExecError> {
    if reply.exit_code == -1
        && contains_any(
            &String::from_utf8_lossy(&reply.stderr),
            &["command timed out"],
        )
    {
        return Err(ExecError::TimedOut);
    }
    Ok(Execution {
        exit_code: reply.exit_code,
        stdout: reply.stdout.into(),
        stderr: reply.stderr.into(),
    })
}

/// The meaning of an error of `ExecSync`.
fn interpret_status(status: &Status) -> ExecError {
    let message = || status.message().to_owned();
    if is_transport(status) {
        return ExecError::Runtime(message());
    }
    match status.code() {
        // The runtime's, for the timeout in the request. No deadline is sent to it, and tonic's own would be
        // `Cancelled`.
        Code::DeadlineExceeded => ExecError::TimedOut,
        // The client's limit, from the length in front of the message.
        Code::OutOfRange => ExecError::TooMuchOutput(message()),
        // The runtime's own limit: "trying to send message larger than max".
        Code::ResourceExhausted if contains_any(status.message(), &["larger than max"]) => {
            ExecError::TooMuchOutput(message())
        }
        Code::ResourceExhausted => ExecError::Runtime(message()),
        code => interpret_message(code, status.message()),
    }
}

fn interpret_message(code: Code, message: &str) -> ExecError {
    match ExecError::from_runtime_message(message) {
        // CRI-O answers like this for a container that has stopped.
        ExecError::Runtime(message) if code == Code::NotFound => ExecError::ContainerGone(message),
        meaning => meaning,
    }
}

fn contains_any(message: &str, patterns: &[&str]) -> bool {
    let message = message.to_ascii_lowercase();
    patterns.iter().any(|pattern| message.contains(pattern))
}

#[cfg(test)]
mod tests {
    use leadsman_probe::MAX_OUTPUT;
    use rstest::rstest;

    use super::*;
    use crate::fake::{Fake, ScriptedAnswer, within_deadline};

    const SECOND: Duration = Duration::from_secs(1);

    #[derive(Debug, PartialEq, Eq)]
    enum ExecErrorKind {
        TimedOut,
        CannotStart,
        TooMuchOutput,
        ContainerGone,
        Runtime,
    }

    fn kind(error: &ExecError) -> ExecErrorKind {
        match error {
            ExecError::TimedOut => ExecErrorKind::TimedOut,
            ExecError::CannotStart(_) => ExecErrorKind::CannotStart,
            ExecError::TooMuchOutput(_) => ExecErrorKind::TooMuchOutput,
            ExecError::ContainerGone(_) => ExecErrorKind::ContainerGone,
            ExecError::Runtime(_) => ExecErrorKind::Runtime,
        }
    }

    #[rstest]
    // containerd and runc
    #[case(Code::Unknown, r#"failed to exec in container: failed to start exec "e": OCI runtime exec failed: exec failed: unable to start container process: exec: "nosuch": executable file not found in $PATH: unknown"#, ExecErrorKind::CannotStart)]
    #[case(Code::Unknown, r#"failed to exec in container: failed to start exec "e": OCI runtime exec failed: exec failed: unable to start container process: exec: "/no/such": stat /no/such: no such file or directory: unknown"#, ExecErrorKind::CannotStart)]
    #[case(Code::Unknown, r#"failed to exec in container: failed to start exec "e": OCI runtime exec failed: exec failed: unable to start container process: exec: "/etc/passwd": permission denied: unknown"#, ExecErrorKind::CannotStart)]
    #[case(Code::NotFound, r#"failed to start exec "e": OCI runtime exec failed: exec: "nosuch": executable file not found in $PATH"#, ExecErrorKind::CannotStart)]
    #[case(
        Code::Unknown,
        "container is in CONTAINER_EXITED state",
        ExecErrorKind::ContainerGone
    )]
    #[case(
        Code::NotFound,
        r#"an error occurred when try to find container "x": not found"#,
        ExecErrorKind::ContainerGone
    )]
    #[case(Code::Unknown, r#"failed to exec in container: failed to start exec "e": OCI runtime exec failed: cannot exec in a stopped container: unknown"#, ExecErrorKind::ContainerGone)]
    #[case(
        Code::NotFound,
        "failed to load task: no running task found: task x not found: not found",
        ExecErrorKind::ContainerGone
    )]
    #[case(
        Code::DeadlineExceeded,
        "failed to exec in container: timeout 1s exceeded: context deadline exceeded",
        ExecErrorKind::TimedOut
    )]
    #[case(
        Code::ResourceExhausted,
        "grpc: trying to send message larger than max (16777300 vs. 16777216)",
        ExecErrorKind::TooMuchOutput
    )]
    #[case(Code::ResourceExhausted, "too many requests", ExecErrorKind::Runtime)]
    #[case(Code::Unknown, r#"failed to start exec "e": OCI runtime exec failed: exec failed: unable to start container process: error executing setns process: exit status 1: unknown"#, ExecErrorKind::Runtime)]
    #[case(
        Code::Unknown,
        "OCI runtime exec failed: open /dev/ptmx: too many open files: unknown",
        ExecErrorKind::Runtime
    )]
    #[case(
        Code::Unknown,
        "failed to exec in container: failed to create exec: ttrpc: closed: unknown",
        ExecErrorKind::Runtime
    )]
    #[case(
        Code::Unknown,
        "open /run/containerd/x: no such file or directory",
        ExecErrorKind::Runtime
    )]
    #[case(Code::Unavailable, "connection refused", ExecErrorKind::Runtime)]
    #[case(
        Code::Unavailable,
        "exec failed: dial /run/containerd/s/x: no such file or directory",
        ExecErrorKind::Runtime
    )]
    #[case(Code::Cancelled, "context canceled", ExecErrorKind::Runtime)]
    #[case(Code::Internal, "something new", ExecErrorKind::Runtime)]
    // CRI-O and crun
    #[case(
        Code::Unknown,
        "command error: executable file `nosuch` not found in $PATH: No such file or directory, exit code -1",
        ExecErrorKind::CannotStart
    )]
    #[case(
        Code::NotFound,
        "container is not created or running",
        ExecErrorKind::ContainerGone
    )]
    fn each_error_of_the_runtime_has_its_meaning(
        #[case] code: Code,
        #[case] message: &str,
        #[case] expected: ExecErrorKind,
    ) {
        let error = interpret_status(&Status::new(code, message));
        assert_eq!(kind(&error), expected);
    }

    #[test]
    fn the_message_is_the_same_each_time() {
        let message = |id: &str| {
            format!(
                r#"failed to exec in container: failed to start exec "{id}": OCI runtime exec failed: exec failed: unable to start container process: exec: "x": executable file not found in $PATH: unknown"#
            )
        };
        let error = interpret_status(&Status::unknown(message("09428c")));
        assert_eq!(error, interpret_status(&Status::unknown(message("968d4a"))));
        assert_eq!(
            error.to_string(),
            r#"OCI runtime exec failed: exec failed: unable to start container process: exec: "x": executable file not found in $PATH: unknown"#
        );
        let other = "executable file `x` not found in $PATH";
        assert_eq!(
            interpret_status(&Status::unknown(other)),
            ExecError::CannotStart(other.to_owned())
        );
    }

    #[rstest]
    #[case(0, 1)]
    #[case(1, 1)]
    #[case(1000, 1)]
    #[case(1001, 2)]
    #[case(5000, 5)]
    fn timeouts_are_whole_seconds_and_never_none(#[case] millis: u64, #[case] seconds: u32) {
        assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
    }

    fn answers(
        exit_code: i32,
        stdout: impl Into<Vec<u8>>,
        stderr: impl Into<Vec<u8>>,
    ) -> ScriptedAnswer<wire::ExecSyncResponse> {
        ScriptedAnswer::Ok(wire::ExecSyncResponse {
            stdout: stdout.into().into(),
            stderr: stderr.into().into(),
            exit_code,
        })
    }

    async fn exec(fake: &Fake) -> Result<Execution, ExecError> {
        let command = ["sh".to_owned(), "-c".to_owned(), "echo $HOME".to_owned()];
        fake.new_client().exec("c1", &command, SECOND).await
    }

    #[tokio::test]
    async fn exit_codes_and_output_come_back() {
        let fake = Fake::start();
        for exit_code in [0, 1, 137, -1] {
            fake.lock_world().exec = Some(answers(exit_code, "out", "err"));
            let execution = exec(&fake).await.unwrap();
            assert_eq!(
                execution,
                Execution {
                    exit_code,
                    stdout: b"out".into(),
                    stderr: b"err".into()
                }
            );
        }
        let request = fake.lock_world().execs[0].clone();
        assert_eq!(
            (
                request.container_id.as_str(),
                request.cmd.join(" ").as_str(),
                request.timeout
            ),
            ("c1", "sh -c echo $HOME", 1)
        );
    }

    #[tokio::test]
    async fn the_timeout_of_cri_o_is_recognised() {
        let fake = Fake::start();
        fake.lock_world().exec = Some(answers(-1, "", "command timed out"));
        assert_eq!(exec(&fake).await, Err(ExecError::TimedOut));
        fake.lock_world().exec = Some(answers(1, "", "command timed out"));
        assert_eq!(exec(&fake).await.unwrap().exit_code, 1);
    }

    #[tokio::test]
    async fn many_commands_may_write_much_at_once() {
        let fake = Fake::start();
        fake.lock_world().exec = Some(answers(7, vec![b'o'; 9 << 20], vec![b'e'; 9 << 20]));
        let all = futures::future::join_all((0..8).map(|_| exec(&fake))).await;
        for execution in all {
            let Execution {
                exit_code,
                stdout,
                stderr,
            } = execution.unwrap();
            assert_eq!(
                (exit_code, stdout, stderr),
                (7, vec![b'o'; MAX_OUTPUT], vec![b'e'; MAX_OUTPUT])
            );
        }
    }

    #[tokio::test]
    async fn an_error_has_the_runtimes_message() {
        let fake = Fake::start();
        assert_eq!(
            exec(&fake).await,
            Err(ExecError::ContainerGone("no such container".to_owned()))
        );
        fake.lock_world().exec = Some(ScriptedAnswer::Err(Status::deadline_exceeded("too long")));
        assert_eq!(exec(&fake).await, Err(ExecError::TimedOut));
    }

    #[tokio::test]
    async fn an_unreachable_runtime_is_no_failed_command() {
        let mut fake = Fake::start();
        fake.lock_world().exec = Some(ScriptedAnswer::Never);
        let client = fake.new_client();
        let command = ["true".to_owned()];
        let running = client.exec("c1", &command, SECOND * 60);
        let death = async {
            while fake.lock_world().execs.is_empty() {
                tokio::task::yield_now().await;
            }
            fake.vanish();
        };
        let (answer, ()) = tokio::join!(running, within_deadline(death));
        assert_eq!(kind(&answer.unwrap_err()), ExecErrorKind::Runtime);
        for _ in 0..2 {
            assert_eq!(
                kind(&client.exec("c1", &command, SECOND).await.unwrap_err()),
                ExecErrorKind::Runtime
            );
        }
        fake.lock_world().exec = Some(answers(0, "", ""));
        fake.come_back();
        let execution = within_deadline(async {
            loop {
                if let Ok(execution) = client.exec("c1", &command, SECOND).await {
                    return execution;
                }
            }
        });
        assert_eq!(execution.await.exit_code, 0);
    }
}

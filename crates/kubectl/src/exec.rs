//! A command in a container, through the API server: what `kubectl exec` does, over a WebSocket.
//!
//! The API server asks for the right to `get` `pods/exec`, from Kubernetes 1.35 on also to `create` it
//! (`AuthorizePodWebsocketUpgradeCreatePermission`). Roles that people have give both.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};
use leadsman_core::podprobe::explain::Unread;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use crate::reader::Reader;

/// The most bytes of standard error that are kept; more than a probe's message has.
const STDERR_BYTES: usize = 16 * 1024;

/// A command to run.
pub(crate) struct ExecCommand<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) container: &'a str,
    pub(crate) command: &'a [&'a str],
    /// The limit for the whole of it, the connection included.
    pub(crate) deadline: Duration,
    /// The most bytes of standard output that are kept; the rest is read and dropped.
    pub(crate) stdout_bytes: usize,
}

/// The output of a command, and how it ended.
#[derive(Debug, Default)]
pub(crate) struct ExecOutput {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// Whether there was more on standard output than is kept.
    pub(crate) is_truncated: bool,
    pub(crate) end: ExecEnd,
}

/// How a command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ExecEnd {
    /// The command exited with this code.
    Exited(i32),
    /// The command was not started, in the words of the container runtime.
    NotStarted(String),
    /// Nobody knows: the connection ended before.
    #[default]
    Unknown,
}

impl Reader {
    /// Runs a command. An error says why it could not be asked for; how it ended is part of the output.
    pub(crate) async fn exec_command(
        &self,
        command: &ExecCommand<'_>,
    ) -> Result<ExecOutput, Unread> {
        let work = async {
            let process = self.start_exec(command).await?;
            Ok(read_output(process, command.stdout_bytes).await)
        };
        let ended = timeout(command.deadline, work).await;
        ended.unwrap_or_else(|_| {
            let ExecCommand {
                namespace,
                pod,
                deadline,
                ..
            } = command;
            Err(Unread(format!(
                "running a command in pod {namespace}/{pod} did not end within {deadline:?}"
            )))
        })
    }

    /// Starts a command, without a deadline.
    pub(crate) async fn start_exec(
        &self,
        command: &ExecCommand<'_>,
    ) -> Result<AttachedProcess, Unread> {
        let pods = Api::<Pod>::namespaced(self.server.client.clone(), command.namespace);
        // No terminal: it would mix standard error into standard output.
        let params = AttachParams::default().container(command.container);
        let started = pods
            .exec(command.pod, command.command.iter().copied(), &params)
            .await;
        let ExecCommand { namespace, pod, .. } = command;
        started.map_err(|error| explain_failure((namespace, pod), EXEC, &error))
    }
}

/// Reads what a command that was started prints, and how it ends.
pub(crate) async fn read_output(mut process: AttachedProcess, stdout_bytes: usize) -> ExecOutput {
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let status = process.take_status();
    let ((stdout, is_truncated), (stderr, _), status) = futures::join!(
        read_some(stdout, stdout_bytes),
        read_some(stderr, STDERR_BYTES),
        async { status?.await },
    );
    ExecOutput {
        stdout,
        stderr,
        is_truncated,
        end: status.map(end_of_status).unwrap_or_default(),
    }
}

/// Reads to the end, and keeps so many bytes; and whether there were more.
async fn read_some(stream: Option<impl AsyncRead + Unpin>, most: usize) -> (Vec<u8>, bool) {
    let Some(mut stream) = stream else {
        return (Vec::new(), false);
    };
    let (mut kept, mut buffer, mut is_truncated) = (Vec::new(), vec![0; 16 * 1024], false);
    // An error is the end of the connection, which the status tells too.
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        // The rest is read all the same: a command whose output nobody reads does not end.
        let fits = count.min(most - kept.len());
        kept.extend_from_slice(&buffer[..fits]);
        is_truncated |= fits < count;
    }
    (kept, is_truncated)
}

/// The end of a command by the kubelet's status (`v4WriteStatusFunc` in
/// `k8s.io/kubelet/pkg/cri/streaming/remotecommand/httpstream.go`).
fn end_of_status(status: Status) -> ExecEnd {
    if status.status.as_deref() == Some("Success") {
        return ExecEnd::Exited(0);
    }
    let mut causes = status
        .details
        .and_then(|details| details.causes)
        .unwrap_or_default()
        .into_iter();
    let code = causes
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"))
        .and_then(|cause| cause.message?.parse().ok());
    match (code, status.message) {
        (Some(code), _) => ExecEnd::Exited(code),
        (None, Some(message)) => ExecEnd::NotStarted(message),
        (None, None) => ExecEnd::Unknown,
    }
}

/// An action in a pod, and the resource that the right to it is about.
pub(crate) type PodAction = (&'static str, &'static str);
const EXEC: PodAction = ("run a command in", "pods/exec");
pub(crate) const PORT_FORWARD: PodAction = ("reach a port of", "pods/portforward");

/// Why the API server does not let anybody into a pod: the right that is missing, or its message.
pub(crate) fn explain_failure(
    (namespace, pod): (&str, &str),
    (what, resource): PodAction,
    error: &kube::Error,
) -> Unread {
    Unread(match error {
        kube::Error::Api(status) if status.code == 403 && status.message.contains("User \"") => {
            // The verb depends on the cluster's version, so it is taken from the message.
            let verb = status
                .message
                .split_once(" cannot ")
                .and_then(|(_, rest)| rest.split_whitespace().next())
                .unwrap_or("create");
            format!("missing right: {verb} {resource} in namespace {namespace}")
        }
        kube::Error::Api(status) => {
            format!("cannot {what} pod {namespace}/{pod}: {}", status.message)
        }
        other => format!("cannot {what} pod {namespace}/{pod}: {other}"),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case(json!({"status": "Success"}), ExecEnd::Exited(0))]
    #[case(
        json!({"status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated with non-zero exit code",
            "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}}),
        ExecEnd::Exited(3)
    )]
    #[case(
        json!({"status": "Failure", "reason": "InternalError", "message": "no such file"}),
        ExecEnd::NotStarted("no such file".to_owned())
    )]
    #[case(json!({}), ExecEnd::Unknown)]
    fn the_status_says_how_a_command_ended(#[case] status: Value, #[case] expected: ExecEnd) {
        assert_eq!(
            end_of_status(serde_json::from_value(status).unwrap()),
            expected
        );
    }

    #[rstest]
    #[case(
        403,
        "pods \"p\" is forbidden: User \"u\" cannot get resource \"pods/exec\" in API group \"\"",
        "missing right: get pods/exec in namespace ns"
    )]
    #[case(
        404,
        "pods \"p\" not found",
        "cannot run a command in pod ns/p: pods \"p\" not found"
    )]
    fn a_failure_names_the_right_or_the_reason(
        #[case] code: u16,
        #[case] message: &str,
        #[case] expected: &str,
    ) {
        let status = json!({"code": code, "message": message});
        let error = kube::Error::Api(serde_json::from_value(status).unwrap());
        assert_eq!(explain_failure(("ns", "p"), EXEC, &error).0, expected);
    }

    #[tokio::test]
    async fn output_is_kept_up_to_its_bound() {
        let read = |most| async move { read_some(Some(&b"output"[..]), most).await };
        assert_eq!(read(6).await, (b"output".to_vec(), false));
        assert_eq!(read(3).await, (b"out".to_vec(), true));
        assert_eq!(read(0).await, (Vec::new(), true));
    }
}

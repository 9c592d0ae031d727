//! One run of a probe in a pod, with the rights of whoever asks: commands by the API server's exec, connections by its
//! port-forward. The executors are the agent's, so a run is judged as the agent's would be.
//!
//! Two things differ, since the API server offers no other way. A port-forward ends at the pod's loopback interface, and the
//! agent connects to the pod's address. And a command that does not end in time is left to itself, where the agent has the
//! runtime end it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::AttachParams;
use leadsman_core::podprobe::explain::TrialRun;
use leadsman_core::podprobe::{CannotProbe, Handler, Outcome};
use leadsman_probe::{Dial, DialError, Exec, ExecError, Execution, MAX_OUTPUT, ProbeTarget};
use leadsman_process::reply::error_chain;
use leadsman_process::{ApiServer, clock};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, DuplexStream, ReadBuf};
use tokio::time::timeout;

/// How long a refusal may take to arrive: a port-forward has no word for "accepted".
const REFUSAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// A pod in which probes are run.
pub(super) struct ReachedPod<'a> {
    api: Api<Pod>,
    namespace: &'a str,
    name: &'a str,
    /// A connection that was opened before the run, so that the time that this takes is not the pod's.
    opened: Mutex<Option<Forwarded>>,
    /// Why the pod did not accept a connection.
    refused: Arc<Mutex<Option<Refusal>>>,
}

impl<'a> ReachedPod<'a> {
    pub(super) fn new(server: &ApiServer, namespace: &'a str, name: &'a str) -> Self {
        Self {
            api: Api::namespaced(server.client.clone(), namespace),
            namespace,
            name,
            opened: Mutex::default(),
            refused: Arc::default(),
        }
    }

    /// Runs a probe once. Returns how long it took too, unless that is how long a refusal was waited for.
    ///
    /// # Errors
    /// The run could not be made, which says nothing about the container.
    pub(super) async fn run(
        &self,
        run: &TrialRun,
        ip: &str,
    ) -> Result<(Outcome, Option<Duration>), String> {
        let target = match ip.parse::<IpAddr>() {
            Ok(ip) => ProbeTarget::new(&[ip], &run.container),
            Err(_) => ProbeTarget::unreachable(CannotProbe::NoAddress, &run.container),
        };
        if let (Some(port), Ok(address)) = (port_of(&run.handler), target.address()) {
            let opened = self.open(port, &run.handler, run.timeout).await;
            match opened {
                Ok(stream) => *lock(&self.opened) = Some(stream),
                Err(DialError::Refused(reason)) => {
                    return Ok((refused(address, &Refusal { port, reason }), None));
                }
                Err(DialError::Local(reason)) => return Err(reason),
            }
        }
        let began = clock::monotonic();
        let outcome =
            leadsman_probe::run_over(&run.handler, &target, run.timeout, self, self).await;
        lock(&self.opened).take();
        let refusal = lock(&self.refused).take();
        let is_connect = matches!(run.handler, Handler::TcpSocket { .. });
        let took = (!is_connect).then(|| clock::monotonic() - began);
        match (outcome, refusal, target.address()) {
            (Ok(_), Some(refusal), Ok(address)) => Ok((refused(address, &refusal), took)),
            (Ok(outcome), _, _) => Ok((outcome, took)),
            (Err(cannot), _, _) => Err(self.explain(cannot)),
        }
    }

    /// Why a run could not be made, in the words of one that goes through the API server.
    fn explain(&self, cannot: CannotProbe) -> String {
        match cannot {
            CannotProbe::Runtime(reason) | CannotProbe::Local(reason) => reason,
            CannotProbe::Deadline => "the API server did not answer in time".to_owned(),
            CannotProbe::NoAddress | CannotProbe::NotOfNode(_) => {
                format!("pod {} has no address", self.name)
            }
            CannotProbe::ContainerGone => "the container does not run any more".to_owned(),
        }
    }

    /// Opens a port-forward, for a probe that only connects until a refusal would have come.
    async fn open(
        &self,
        port: u16,
        handler: &Handler,
        limit: Duration,
    ) -> Result<Forwarded, DialError> {
        let mut stream = self.forward(port).await?;
        if matches!(handler, Handler::TcpSocket { .. }) {
            let patience = limit.clamp(REFUSAL.0, REFUSAL.1);
            if let Ok(Some(reason)) = timeout(patience, &mut stream.refusal).await {
                return Err(DialError::Refused(shortened(&reason)));
            }
        }
        Ok(stream)
    }

    async fn forward(&self, port: u16) -> Result<Forwarded, DialError> {
        let forwarder = self.api.portforward(self.name, &[port]).await;
        let mut forwarder = forwarder
            .map_err(|error| DialError::Local(self.missing_right(&error, "pods/portforward")))?;
        let (stream, refusal) = forwarder
            .take_stream(port)
            .zip(forwarder.take_error(port))
            .expect("the port was asked for, and nothing was taken yet");
        Ok(Forwarded {
            port,
            stream,
            refusal: refusal.boxed().fuse(),
            refused: self.refused.clone(),
        })
    }

    /// Why the API server did not let us in: the right that is missing, or its message.
    fn missing_right(&self, error: &kube::Error, resource: &str) -> String {
        let kube::Error::Api(status) = error else {
            return error_chain(error);
        };
        match denied_verb(&status.message) {
            Some(verb) => format!(
                "missing right: {verb} {resource} in namespace {}",
                self.namespace
            ),
            None => status.message.clone(),
        }
    }
}

/// The verb of `User "u" cannot create resource "pods/exec" in API group "" in the namespace "ns"`: which one is asked for
/// depends on the release (`create` since Kubernetes 1.35, before that `get` for a WebSocket; issue 133515).
fn denied_verb(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once(" cannot ")?;
    rest.split_once(" resource ").map(|(verb, _)| verb)
}

/// The outcome of a probe whose connection was refused, in the words of a direct one.
fn refused(address: IpAddr, refusal: &Refusal) -> Outcome {
    let address = SocketAddr::new(address, refusal.port);
    Outcome::Failed(format!("connecting to {address}: {}", refusal.reason))
}

fn port_of(handler: &Handler) -> Option<u16> {
    match handler {
        Handler::Exec { .. } => None,
        Handler::HttpGet(get) => Some(get.port.get()),
        Handler::TcpSocket { port } | Handler::Grpc { port, .. } => Some(port.get()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What a runtime says of a port that it cannot forward names sandboxes and network namespaces; only its end matters.
fn shortened(reason: &str) -> String {
    if reason.to_ascii_lowercase().contains("connection refused") {
        "Connection refused at the pod's loopback interface, where a port-forward ends".to_owned()
    } else {
        reason.trim().to_owned()
    }
}

impl Exec for ReachedPod<'_> {
    async fn exec(
        &self,
        container: &str,
        command: &[String],
        limit: Duration,
    ) -> Result<Execution, ExecError> {
        let params = AttachParams::default().container(container).stderr(true);
        let command = command.iter().map(String::as_str);
        let command: Vec<_> = command.collect();
        let process = self.api.exec(self.name, command, &params).await;
        let mut process =
            process.map_err(|error| ExecError::Runtime(self.missing_right(&error, "pods/exec")))?;
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let status = process.take_status().expect("the status was not taken yet");
        let work = async { futures::join!(read(stdout), read(stderr), status) };
        match timeout(limit, work).await {
            Err(_) => Err(ExecError::TimedOut),
            Ok((stdout, stderr, status)) => {
                let exit_code = exit_code(status)?;
                Ok(Execution {
                    exit_code,
                    stdout,
                    stderr,
                })
            }
        }
    }
}

/// A stream to its end. What is beyond the bytes that a probe uses is discarded.
async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut stream) = stream else {
        return kept;
    };
    let mut bytes = vec![0; 4 * 1024];
    while let Ok(read @ 1..) = stream.read(&mut bytes).await {
        // Four more bytes show whether a character that crosses the limit is whole.
        let room = (MAX_OUTPUT + 4).saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..read.min(room)]);
    }
    kept
}

/// The exit code of a command (`v4WriteStatusFunc`, `k8s.io/kubelet/pkg/cri/streaming/remotecommand/httpstream.go`).
fn exit_code(status: Option<Status>) -> Result<i32, ExecError> {
    let Some(status) = status else {
        let message = "the connection ended before the command did";
        return Err(ExecError::Runtime(message.to_owned()));
    };
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status.details.and_then(|details| details.causes);
    let mut causes = causes.into_iter().flatten();
    let code = causes.find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message?.parse().ok());
    let message = status.message.unwrap_or_default();
    code.ok_or_else(|| ExecError::of_runtime_message(&message))
}

impl Dial for ReachedPod<'_> {
    type Stream = Forwarded;

    async fn dial(&self, address: SocketAddr) -> Result<Forwarded, DialError> {
        let port = address.port();
        let opened = lock(&self.opened).take_if(|opened| opened.port == port);
        match opened {
            Some(stream) => Ok(stream),
            None => self.forward(port).await,
        }
    }
}

/// A connection by port-forward.
pub(super) struct Forwarded {
    port: u16,
    stream: DuplexStream,
    /// Resolves with the reason if the pod did not accept the connection, also long after it was opened.
    refusal: Fuse<BoxFuture<'static, Option<String>>>,
    /// Where the reason is left for whoever judges the run.
    refused: Arc<Mutex<Option<Refusal>>>,
}

/// Why a port of the pod did not accept a connection.
struct Refusal {
    port: u16,
    reason: String,
}

impl Forwarded {
    /// The reason, if the connection was refused by now.
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.refusal.is_terminated() {
            return Poll::Pending;
        }
        let Some(reason) = ready!(self.refusal.poll_unpin(cx)) else {
            return Poll::Pending;
        };
        *lock(&self.refused) = Some(Refusal {
            port: self.port,
            reason: shortened(&reason),
        });
        Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()))
    }
}

impl AsyncRead for Forwarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer)?;
        if read.is_ready() && buffer.filled().len() > before {
            return Poll::Ready(Ok(()));
        }
        // A refused connection ends, too.
        match self.poll_refusal(cx) {
            Poll::Ready(refused) => Poll::Ready(refused),
            Poll::Pending => read.map(Ok),
        }
    }
}

impl AsyncWrite for Forwarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case(json!({ "status": "Success" }), Ok(0))]
    #[case(json!({ "status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated with non-zero exit code",
        "details": { "causes": [{ "reason": "ExitCode", "message": "7" }] } }), Ok(7))]
    #[case(json!({ "status": "Failure", "reason": "InternalError", "message": "Internal error occurred: failed to start exec \"9f\": \
        OCI runtime exec failed: exec: \"/no\": stat /no: no such file or directory" }),
        Err(ExecError::CannotStart("OCI runtime exec failed: exec: \"/no\": stat /no: no such file or directory".into())))]
    #[case(json!({ "status": "Failure", "message": "container not found (\"main\")" }),
        Err(ExecError::Runtime("container not found (\"main\")".into())))]
    fn the_status_of_an_exec_has_the_meaning_of_execsync(
        #[case] status: Value,
        #[case] expected: Result<i32, ExecError>,
    ) {
        let status = serde_json::from_value(status).unwrap();
        assert_eq!(exit_code(Some(status)), expected);
    }

    #[test]
    fn a_denied_request_names_its_verb() {
        let message = "pods \"p\" is forbidden: User \"u\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"n\"";
        assert_eq!(denied_verb(message), Some("create"));
        assert_eq!(denied_verb("pods \"p\" not found"), None);
    }
}

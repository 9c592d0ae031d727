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
use kube::Api;
use kube::api::AttachedProcess;
use leadsman_core::podprobe::explain::TrialRun;
use leadsman_core::podprobe::{CannotProbe, Handler, Outcome};
use leadsman_probe::{Dial, DialError, Exec, ExecError, Execution, MAX_OUTPUT, ProbeTarget};
use leadsman_process::clock;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::time::timeout;

use crate::exec::{ExecCommand, ExecEnd, PORT_FORWARD, explain_failure, read_output};
use crate::reader::{DEADLINE, Reader};

/// How long a refusal may take to arrive: a port-forward has no word for "accepted".
const REFUSAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// The most bytes of standard output that are kept; four more than a message has, to show whether a character that crosses
/// the limit is whole.
const STDOUT_BYTES: usize = MAX_OUTPUT + 4;

/// A pod in which probes are run.
pub(super) struct ReachedPod<'a> {
    reader: &'a Reader,
    namespace: &'a str,
    name: &'a str,
    /// A connection that was opened before the run, so that the time that this takes is not the pod's.
    opened: Mutex<Option<Forwarded>>,
    /// A command that was started before the run, likewise.
    started: Mutex<Option<AttachedProcess>>,
    /// Why the pod did not accept a connection.
    refused: Arc<Mutex<Option<PortRefusal>>>,
}

impl<'a> ReachedPod<'a> {
    pub(super) fn new(reader: &'a Reader, namespace: &'a str, name: &'a str) -> Self {
        Self {
            reader,
            namespace,
            name,
            opened: Mutex::default(),
            started: Mutex::default(),
            refused: Arc::default(),
        }
    }

    /// Runs a probe once. Returns how long it took too, unless that is how long a refusal was waited for.
    ///
    /// # Errors
    /// The run could not be made, which says nothing about the container.
    pub(super) async fn run_probe(
        &self,
        run: &TrialRun,
        ip: &str,
    ) -> Result<(Outcome, Option<Duration>), String> {
        let target = match ip.parse::<IpAddr>() {
            Ok(ip) => ProbeTarget::new(&[ip], &run.container),
            Err(_) => ProbeTarget::unreachable(CannotProbe::NoAddress, &run.container),
        };
        if let Handler::Exec { command } = &run.handler {
            let process = self.start_command(&run.container, command).await?;
            *lock_mutex(&self.started) = Some(process);
        }
        if let (Some(port), Ok(address)) = (port_of(&run.handler), target.address()) {
            let opened = self.open_port(port, &run.handler, run.timeout).await;
            match opened {
                Ok(stream) => *lock_mutex(&self.opened) = Some(stream),
                Err(DialError::Refused(reason)) => {
                    return Ok((
                        refused_outcome(address, &PortRefusal { port, reason }),
                        None,
                    ));
                }
                Err(DialError::Local(reason)) => return Err(reason),
            }
        }
        let began = clock::monotonic();
        let outcome =
            leadsman_probe::run_probe_over(&run.handler, &target, run.timeout, self, self).await;
        // Anything that the executor has not used is closed before the next run.
        lock_mutex(&self.opened).take();
        lock_mutex(&self.started).take();
        let refusal = lock_mutex(&self.refused).take();
        let is_connect = matches!(run.handler, Handler::TcpSocket { .. });
        let took = (!is_connect).then(|| clock::monotonic() - began);
        match (outcome, refusal, target.address()) {
            (Ok(_), Some(refusal), Ok(address)) => Ok((refused_outcome(address, &refusal), took)),
            (Ok(outcome), _, _) => Ok((outcome, took)),
            (Err(cannot), _, _) => Err(self.explain_cannot_probe(cannot)),
        }
    }

    /// Why a run could not be made, in the words of one that goes through the API server.
    fn explain_cannot_probe(&self, cannot: CannotProbe) -> String {
        match cannot {
            CannotProbe::Runtime(reason)
            | CannotProbe::Local(reason)
            | CannotProbe::File(reason) => reason,
            CannotProbe::Deadline => "the API server did not answer in time".to_owned(),
            CannotProbe::NoAddress | CannotProbe::NotOfNode(_) => {
                format!("pod {} has no address", self.name)
            }
            forbidden @ CannotProbe::Forbidden(_) => forbidden.to_string(),
            CannotProbe::ContainerGone => "the container does not run any more".to_owned(),
        }
    }

    /// Opens a port-forward, for a probe that only connects until a refusal would have come.
    async fn open_port(
        &self,
        port: u16,
        handler: &Handler,
        limit: Duration,
    ) -> Result<Forwarded, DialError> {
        let mut stream = self.forward_port(port).await?;
        // A request of HTTP or gRPC shows by its answer that somebody listens.
        if matches!(handler, Handler::TcpSocket { .. }) {
            let patience = limit.clamp(REFUSAL.0, REFUSAL.1);
            if let Ok(Some(reason)) = timeout(patience, &mut stream.refusal).await {
                return Err(DialError::Refused(shorten_reason(&reason)));
            }
        }
        Ok(stream)
    }

    /// Starts a command.
    async fn start_command(
        &self,
        container: &str,
        command: &[String],
    ) -> Result<AttachedProcess, String> {
        let words: Vec<_> = command.iter().map(String::as_str).collect();
        let command = ExecCommand {
            namespace: self.namespace,
            pod: self.name,
            container,
            command: &words,
            deadline: DEADLINE,
            stdout_bytes: STDOUT_BYTES,
        };
        match timeout(command.deadline, self.reader.start_exec(&command)).await {
            Ok(started) => started.map_err(|unread| unread.0),
            Err(_) => Err(no_answer_message()),
        }
    }

    async fn forward_port(&self, port: u16) -> Result<Forwarded, DialError> {
        let pods = Api::<Pod>::namespaced(self.reader.server.client.clone(), self.namespace);
        let mut forwarder = timeout(DEADLINE, pods.portforward(self.name, &[port]))
            .await
            .map_err(|_| DialError::Local(no_answer_message()))?
            .map_err(|error| {
                let pod = (self.namespace, self.name);
                DialError::Local(explain_failure(pod, PORT_FORWARD, &error).0)
            })?;
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
}

fn no_answer_message() -> String {
    format!("the API server did not answer within {DEADLINE:?}")
}

/// The outcome of a probe whose connection was refused, in the words of a direct one.
fn refused_outcome(address: IpAddr, refusal: &PortRefusal) -> Outcome {
    let address = SocketAddr::new(address, refusal.port);
    Outcome::Failed(format!("connecting to {address}: {}", refusal.reason))
}

fn port_of(handler: &Handler) -> Option<u16> {
    match handler {
        Handler::Exec { .. } | Handler::File(_) => None,
        Handler::HttpGet(get) => Some(get.port.get()),
        Handler::TcpSocket { port } | Handler::Grpc { port, .. } => Some(port.get()),
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Shortens a runtime's message on a port that it cannot forward: it names sandboxes and network namespaces, and only its
/// end matters.
fn shorten_reason(reason: &str) -> String {
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
        let started = lock_mutex(&self.started).take();
        let process = match started {
            Some(process) => process,
            None => (self.start_command(container, command).await).map_err(ExecError::Runtime)?,
        };
        let ended = timeout(limit, read_output(process, STDOUT_BYTES)).await;
        let output = ended.map_err(|_| ExecError::TimedOut)?;
        let exit_code = match output.end {
            ExecEnd::Exited(code) => code,
            ExecEnd::NotStarted(message) => return Err(ExecError::from_runtime_message(&message)),
            ExecEnd::Unknown => {
                let message = "the connection ended before the command did";
                return Err(ExecError::Runtime(message.to_owned()));
            }
        };
        Ok(Execution {
            exit_code,
            stdout: output.stdout,
            stderr: output.stderr,
        })
    }
}

impl Dial for ReachedPod<'_> {
    type Stream = Forwarded;

    async fn dial(&self, address: SocketAddr) -> Result<Forwarded, DialError> {
        let port = address.port();
        let opened = lock_mutex(&self.opened).take_if(|opened| opened.port == port);
        match opened {
            Some(stream) => Ok(stream),
            None => self.forward_port(port).await,
        }
    }
}

/// A connection by port-forward.
pub(super) struct Forwarded {
    port: u16,
    stream: DuplexStream,
    /// Resolves with the reason if the pod did not accept the connection, also long after it was opened.
    refusal: Fuse<BoxFuture<'static, Option<String>>>,
    /// The reason, left for whoever judges the run.
    refused: Arc<Mutex<Option<PortRefusal>>>,
}

/// Why a port of the pod did not accept a connection.
struct PortRefusal {
    port: u16,
    reason: String,
}

impl Forwarded {
    /// The reason, if the connection was refused by now.
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.refusal.is_terminated() {
            return Poll::Pending;
        }
        // Nothing was refused: the stream itself says how it ends.
        let Some(reason) = ready!(self.refusal.poll_unpin(cx)) else {
            return Poll::Pending;
        };
        *lock_mutex(&self.refused) = Some(PortRefusal {
            port: self.port,
            reason: shorten_reason(&reason),
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
    use super::*;

    #[test]
    fn a_refused_port_is_told_without_sandboxes() {
        let reason = "error forwarding port 9 to pod 6c1, uid : failed to execute portforward in network namespace \
            \"/var/run/netns/cni-1\": dial tcp4 127.0.0.1:9: connect: connection refused";
        assert!(shorten_reason(reason).starts_with("Connection refused at the pod's loopback"));
        assert_eq!(shorten_reason(" other\n"), "other");
    }
}

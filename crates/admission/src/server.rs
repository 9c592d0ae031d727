//! The TLS server: HTTP/1.1 for an API server that calls a Service, HTTP/2 for one that calls a URL
//! (`k8s.io/apiserver/pkg/util/webhook/client.go`, `issue.k8s.io/75791`).
//!
//! Bounds: connections, the time of a handshake and of a head, how long a connection may idle, and how long it may take
//! to close. Who opens connections and sends nothing keeps nobody out: when all are taken, such a one makes room. The
//! end comes in two steps: while the endpoints of the Service still name this replica everything is served, and
//! connections are given up where that fails no request; then what is under way is finished.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoints;

/// Connections at a time. An API server handles 600 requests at a time (`--max-requests-inflight`,
/// `--max-mutating-requests-inflight`), each of which may call on a connection of its own.
pub(crate) const CONNECTIONS: usize = 1024;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Longer than API servers keep idle connections: Go's `http.DefaultTransport` closes them after 90 s. Of two that
/// close the client must be the first, since a request that meets a closed connection fails.
const IDLE: Duration = Duration::from_mins(3);
/// How long a connection may take to close: longer than any answer may take, half of the longest timeout of a webhook
/// (30 s). Whoever has not read its answer by then, or ends no head, does not.
const CLOSE: Duration = Duration::from_secs(20);
/// Requests at a time on a connection of HTTP/2, as of Go's own server.
const STREAMS: u32 = 250;
/// While the endpoints of a Service spread that this replica is ending.
const DRAIN: Duration = Duration::from_secs(5);
/// For requests that are under way after that.
const FINISH: Duration = Duration::from_secs(5);
/// After a failure to accept, which is mostly a lack of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

const _: () =
    assert!(DRAIN.as_secs() + FINISH.as_secs() < leadsman_process::shutdown::DEFAULT_GRACE_SECONDS);

/// What is served, and how it ends.
pub(crate) struct Server {
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) certificate: watch::Receiver<Option<Arc<CertifiedKey>>>,
    /// Cancelled when the process is to end.
    pub(crate) shutdown: CancellationToken,
    /// The same token as that of the endpoints.
    pub(crate) draining: CancellationToken,
    /// Connections at a time.
    pub(crate) connections: usize,
}

/// Each handshake gets the newest certificate; connections that are open keep theirs.
#[derive(Debug)]
struct Newest(watch::Receiver<Option<Arc<CertifiedKey>>>);

impl ResolvesServerCert for Newest {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().clone()
    }
}

impl Server {
    /// Serves until the process is to end and everything is drained and finished.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let stop = CancellationToken::new();
        let mut connections = Connections::default();
        tokio::select! {
            () = self.accept(&listener, &mut connections, &stop) => {}
            () = self.drain() => {}
        }
        drop(listener);
        stop.cancel();
        let finished = async { while connections.tasks.join_next().await.is_some() {} };
        if timeout(FINISH, finished).await.is_err() {
            tracing::warn!("requests to admission webhooks did not finish in time, dropping them");
        }
    }

    async fn drain(&self) {
        self.shutdown.cancelled().await;
        self.draining.cancel();
        sleep(DRAIN).await;
    }

    async fn accept(
        &self,
        listener: &TcpListener,
        connections: &mut Connections,
        stop: &CancellationToken,
    ) {
        let acceptor = acceptor(self.certificate.clone());
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the admission webhooks, retrying");
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            connections.make_room(self.connections).await;
            let requests = Requests {
                counts: Arc::new(watch::Sender::default()),
                ended: Arc::clone(&connections.request_ended),
            };
            let connection = WebhookConnection {
                endpoints: Arc::clone(&self.endpoints),
                draining: self.draining.clone(),
                stop: stop.clone(),
                requests: requests.clone(),
            };
            let task = connections
                .tasks
                .spawn(connection.serve(acceptor.clone(), stream));
            connections.open.push(Open { task, requests });
        }
    }
}

/// The connections that are open.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    /// The oldest first; some may have ended.
    open: Vec<Open>,
    /// Notified when a connection is left without a request.
    request_ended: Arc<Notify>,
}

struct Open {
    task: AbortHandle,
    requests: Requests,
}

impl Connections {
    /// Waits until fewer than `most` are open. For that one without a request under way is dropped: first one that
    /// never brought a request, so that who only connects drives out no API server; then the oldest.
    async fn make_room(&mut self, most: usize) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            if self.open.len() >= most {
                self.open.retain(|open| !open.task.is_finished());
            }
            if self.open.len() < most {
                return;
            }
            let silent = self.open.iter().enumerate().filter_map(|(index, open)| {
                let counts = *open.requests.counts.borrow();
                (counts.under_way == 0).then_some((counts.begun > 0, index))
            });
            if let Some((_, index)) = silent.min() {
                tracing::debug!("dropped a connection without a request, for another one");
                self.open.remove(index).task.abort();
                continue;
            }
            tokio::select! {
                Some(_) = self.tasks.join_next() => {}
                () = self.request_ended.notified() => {}
            }
        }
    }
}

fn acceptor(certificate: watch::Receiver<Option<Arc<CertifiedKey>>>) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the suites of TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Newest(certificate)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

struct WebhookConnection {
    endpoints: Arc<Endpoints>,
    draining: CancellationToken,
    stop: CancellationToken,
    requests: Requests,
}

/// The requests of a connection.
#[derive(Clone)]
struct Requests {
    /// Every change is a sign of life.
    counts: Arc<watch::Sender<RequestCounts>>,
    /// Notified when none is left.
    ended: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RequestCounts {
    under_way: usize,
    begun: u64,
}

/// A request that is under way. A client may give it up at any moment.
struct UnderWay(Requests);

impl UnderWay {
    fn new(requests: &Requests) -> Self {
        requests.counts.send_modify(|counts| {
            counts.under_way += 1;
            counts.begun += 1;
        });
        Self(requests.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.counts.send_modify(|counts| {
            debug_assert!(counts.under_way > 0, "each request ends once");
            counts.under_way -= 1;
        });
        if self.0.counts.borrow().under_way == 0 {
            self.0.ended.notify_one();
        }
    }
}

impl WebhookConnection {
    async fn serve(self, acceptor: TlsAcceptor, stream: TcpStream) {
        // An answer is one small write.
        let _refused = stream.set_nodelay(true);
        let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake with the admission webhooks failed");
                return;
            }
            Err(_) => return,
        };
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let service = service_fn(|request| {
            let under_way = UnderWay::new(&self.requests);
            let endpoints = Arc::clone(&self.endpoints);
            async move {
                let response = endpoints.respond(request).await;
                drop(under_way);
                Ok::<_, Infallible>(response)
            }
        });
        let builder = http();
        let served = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(served);
        let ended = tokio::select! {
            ended = &mut served => Ok(ended),
            () = self.until_no_more_requests(is_http2) => {
                served.as_mut().graceful_shutdown();
                // Hyper closes what idles; half a head, an unread answer and an unanswered PING it waits for.
                timeout(CLOSE, served).await
            }
        };
        if let Ok(Err(error)) = ended {
            tracing::debug!(error, "a connection to the admission webhooks failed");
        }
    }

    /// Until the connection is to take no further request.
    async fn until_no_more_requests(&self, is_http2: bool) {
        let mut begun = self.requests.counts.subscribe();
        let drained = async {
            self.draining.cancelled().await;
            // One that was opened for a request gets its answer; GOAWAY then fails none (RFC 9113, 6.8).
            let _answered = begun.changed().await;
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = drained, if is_http2 => {}
            () = idle(self.requests.counts.subscribe()) => {}
        }
    }
}

async fn idle(mut requests: watch::Receiver<RequestCounts>) {
    loop {
        let silent = timeout(IDLE, requests.changed()).await.is_err();
        if silent && requests.borrow().under_way == 0 {
            return;
        }
    }
}

fn http() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // It counts from the answer before.
        .header_read_timeout(IDLE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS);
    builder
}

#[cfg(test)]
mod tests;

//! The TLS server: HTTP/1.1 for an API server that calls a Service, HTTP/2 for one that calls a URL
//! (`k8s.io/apiserver/pkg/util/webhook/client.go`, `issue.k8s.io/75791`).
//!
//! Bounds: the number of connections, the time of a handshake and of a request's head, how long a connection may idle,
//! and how long it may take to close. A client that opens connections and sends nothing, or never all of a request, locks nobody
//! out: when the limit is reached, such a connection is dropped. The shutdown has two phases: while the endpoints of the Service may
//! still name this replica, everything is served, and connections are closed where that fails no request; then idle
//! connections are closed and the requests under way are finished. The first phase takes its time only where API servers
//! are told to call.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use leadsman_process::clock;
use leadsman_process::watch;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoints;

/// The limit of open connections. An API server handles 600 requests at a time (`--max-requests-inflight`,
/// `--max-mutating-requests-inflight`), each of which may call on a connection of its own.
pub(crate) const CONNECTIONS: usize = 1024;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Longer than API servers keep idle connections: Go's `http.DefaultTransport` closes them after 90 s. The client must
/// be the one that closes, since a request that meets a closed connection fails.
const IDLE: Duration = Duration::from_mins(3);
/// How long a connection may take to close: longer than any answer, which takes at most half of the longest timeout of
/// a webhook (30 s). It then ends an unread answer or an incomplete head.
const CLOSE: Duration = Duration::from_secs(20);
/// Concurrent requests on an HTTP/2 connection, as in Go's own server.
const STREAMS: u32 = 250;
/// How long the removal of this replica from the endpoints of the Service may take, on the nodes of the API servers too.
/// Nothing tells a server when that is done: no request of it says so, and an API server that has none to send neither.
const DRAIN: Duration = Duration::from_secs(5);
/// How long requests may take after that.
pub(crate) const FINISH: Duration = Duration::from_secs(5);
/// The delay after a failure to accept, which is mostly a lack of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

const _: () = assert!(
    DRAIN.as_secs() + FINISH.as_secs() < leadsman_process::shutdown::SHORTEST_GRACE_SECONDS
);

/// The TLS server.
pub(crate) struct Server {
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) certificate: watch::Receiver<Option<Arc<CertifiedKey>>>,
    /// Cancelled when the process begins to stop.
    pub(crate) shutdown: CancellationToken,
    /// The token of [`Endpoints`].
    pub(crate) draining: CancellationToken,
    /// The time since which no API server is told to call. `None` means that one is, or may be.
    pub(crate) absent_since: watch::Receiver<Option<Instant>>,
    /// The limit of open connections.
    pub(crate) connections: usize,
}

/// Resolves each handshake to the newest certificate. Open connections keep theirs.
#[derive(Debug)]
struct LatestCertificate(watch::Receiver<Option<Arc<CertifiedKey>>>);

impl ResolvesServerCert for LatestCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.borrow().clone()
    }
}

impl Server {
    /// Serves until the process stops, and then until all requests are finished.
    pub(crate) async fn serve_until_stopped(self, listener: TcpListener) {
        let stop = CancellationToken::new();
        let mut connections = Connections::default();
        tokio::select! {
            // First: however many connections come, the process stops.
            biased;
            () = self.drain_connections() => {}
            () = self.accept_connection(&listener, &mut connections, &stop) => {}
        }
        // First: a connection that comes now is refused at once, and not left in the backlog.
        drop(listener);
        stop.cancel();
        let finished = async { while connections.tasks.join_next().await.is_some() {} };
        if timeout(FINISH, finished).await.is_err() {
            tracing::warn!("requests to admission webhooks did not finish in time, dropping them");
        }
    }

    pub(crate) async fn drain_connections(&self) {
        self.shutdown.cancelled().await;
        // Answers say so from here on, while the endpoints of the Service still lead here.
        self.draining.cancel();
        let began = clock::monotonic();
        let mut absent_since = self.absent_since.clone();
        loop {
            // An API server's watch of the configuration may be late as well.
            let known_since = *absent_since.borrow_and_update();
            let since = known_since.map_or(began, |since| since.min(began));
            tokio::select! {
                // The change first, which moves the end. It is rare.
                biased;
                // The configuration may be made, or go, in the meantime.
                Ok(()) = absent_since.changed() => {}
                () = sleep_until(since + DRAIN) => return,
            }
        }
    }

    async fn accept_connection(
        &self,
        listener: &TcpListener,
        connections: &mut Connections,
        stop: &CancellationToken,
    ) {
        let acceptor = tls_acceptor(self.certificate.clone());
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the admission webhooks, retrying");
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            // Room is made after the accept: no idle connection is dropped before another one has
            // come for its place.
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
                .spawn(connection.serve_connection(acceptor.clone(), stream));
            connections.open.push(Open { task, requests });
        }
    }
}

/// The open connections.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    /// Sorted by age, the oldest first. Some may have ended.
    open: Vec<Open>,
    /// Notified when a connection is left without a request that is to be answered.
    request_ended: Arc<Notify>,
}

struct Open {
    task: AbortHandle,
    requests: Requests,
}

impl Connections {
    /// Waits until fewer than `most` are open, and drops one that waits for no answer if necessary: one that has never sent
    /// a whole request, so that a client that only connects locks out no API server; or else the oldest.
    async fn make_room(&mut self, most: usize) {
        loop {
            // A `JoinSet` keeps what has ended until it is joined.
            while self.tasks.try_join_next().is_some() {}
            // Every connection is looked at only when the server seems full.
            if self.open.len() >= most {
                self.open.retain(|open| !open.task.is_finished());
            }
            if self.open.len() < most {
                return;
            }
            let silent = self.open.iter().enumerate().filter_map(|(index, open)| {
                let counts = *open.requests.counts.borrow();
                (counts.unanswered == 0).then_some((counts.received > 0, index))
            });
            if let Some((_, index)) = silent.min() {
                tracing::debug!("dropped a connection without a request, for another one");
                self.open.remove(index).task.abort();
                continue;
            }
            tokio::select! {
                // Either leads to another look at all connections.
                biased;
                Some(_) = self.tasks.join_next() => {}
                () = self.request_ended.notified() => {}
            }
        }
    }
}

fn tls_acceptor(certificate: watch::Receiver<Option<Arc<CertifiedKey>>>) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the suites of TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(LatestCertificate(certificate)));
    // API servers call by HTTP/1.1, so that calls are spread over the replicas
    // (`k8s.io/apiserver/pkg/util/webhook/client.go`, kubernetes issue 75791); only a URL of their own host they call by
    // HTTP/2.
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
    /// The counts; every change shows that the connection is in use.
    counts: Arc<watch::Sender<RequestCounts>>,
    /// Notified when none is left unanswered.
    ended: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RequestCounts {
    begun: u64,
    /// The number of requests whose bodies have come.
    received: u64,
    /// The number of these requests that have no answer yet.
    unanswered: usize,
}

/// A request under way, counted until it is dropped: the client may cancel it at any moment.
struct UnderWay {
    requests: Requests,
    is_received: bool,
}

impl UnderWay {
    fn new(requests: &Requests) -> Self {
        requests.counts.send_modify(|counts| counts.begun += 1);
        Self {
            requests: requests.clone(),
            is_received: false,
        }
    }

    /// Records that the whole request has come. A connection is kept for it from here on: before that, a slow client could
    /// hold its place.
    fn note_body(&mut self) {
        self.is_received = true;
        self.requests.counts.send_modify(|counts| {
            counts.received += 1;
            counts.unanswered += 1;
        });
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Requests { counts, ended } = &self.requests;
        counts.send_modify(|counts| {
            debug_assert!(counts.unanswered > 0 || !self.is_received, "each ends once");
            counts.unanswered -= usize::from(self.is_received);
        });
        if counts.borrow().unanswered == 0 {
            ended.notify_one();
        }
    }
}

impl WebhookConnection {
    async fn serve_connection(self, acceptor: TlsAcceptor, stream: TcpStream) {
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
            let mut under_way = UnderWay::new(&self.requests);
            let endpoints = Arc::clone(&self.endpoints);
            async move {
                let on_body = || under_way.note_body();
                let response = endpoints.respond_counted(request, on_body).await;
                drop(under_way);
                Ok::<_, Infallible>(response)
            }
        });
        let builder = http_builder();
        let served = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(served);
        let ended = tokio::select! {
            // A connection that has ended need not be closed.
            biased;
            ended = &mut served => Ok(ended),
            () = self.until_no_more_requests(is_http2) => {
                served.as_mut().graceful_shutdown();
                // Hyper closes an idle connection, but waits for an incomplete head, an unread answer and an unanswered
                // PING.
                timeout(CLOSE, served).await
            }
        };
        if let Ok(Err(error)) = ended {
            tracing::debug!(error, "a connection to the admission webhooks failed");
        }
    }

    /// Waits until the connection must take no further request.
    async fn until_no_more_requests(&self, is_http2: bool) {
        let mut begun = self.requests.counts.subscribe();
        let drained = async {
            self.draining.cancelled().await;
            // A connection that was opened for a request gets that request answered; GOAWAY then fails none (RFC 9113,
            // 6.8).
            let _answered = begun.changed().await;
        };
        tokio::select! {
            // Each of them ends the connection.
            biased;
            () = self.stop.cancelled() => {}
            () = drained, if is_http2 => {}
            () = wait_until_idle(self.requests.counts.subscribe()) => {}
        }
    }
}

async fn wait_until_idle(mut requests: watch::Receiver<RequestCounts>) {
    loop {
        // Each request restarts the time, which no body takes.
        let silent = timeout(IDLE, requests.changed()).await.is_err();
        if silent && requests.borrow().unanswered == 0 {
            return;
        }
    }
}

fn http_builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // Counted from the end of the answer before.
        .header_read_timeout(IDLE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS);
    builder
}

#[cfg(test)]
mod tests;

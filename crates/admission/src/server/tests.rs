//! The server met by clients of TLS that trust what an API server would.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use leadsman_process::{Metrics as Registry, Readiness, clock};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::certificate::publish::CertificatePublisher;
use crate::certificate::renewal::{Kept, Renewal, StoredCertificate, renewed_data};
use crate::certificate::tests::{YEAR, names};
use crate::certificate::{CaBundle, KeySource, read_chain};
use crate::metrics::AdmissionMetrics;
use crate::webhook::WebhookCalls;
use crate::webhook::tests::{echo, pod_review};

const NAME: &str = "leadsman-webhook.leadsman-system.svc";
const PATH: &str = "/echo.leadsman.test?timeout=10s";

/// A server on loopback, with a first certificate.
struct Loopback {
    address: SocketAddr,
    publisher: CertificatePublisher,
    kept: Kept,
    shutdown: CancellationToken,
    /// Since when no API server is told to call.
    absent_since: watch::Sender<Option<Instant>>,
    ended: tokio::task::JoinHandle<()>,
}

impl Loopback {
    async fn start() -> Self {
        Self::start_for(CONNECTIONS).await
    }

    async fn start_for(connections: usize) -> Self {
        let check = Readiness::default().add_check("webhook certificates", "not read");
        let metrics = AdmissionMetrics::new(&Registry::default());
        let publisher = CertificatePublisher::new(metrics.clone(), check);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, draining) = (CancellationToken::new(), CancellationToken::new());
        let (_, calls) = watch::channel(WebhookCalls::default());
        let absent_since = watch::Sender::new(None);
        let server = Server {
            endpoints: Arc::new(Endpoints::new(vec![echo(calls)], metrics, draining.clone())),
            certificate: publisher.subscribe_to_certificate(),
            shutdown: shutdown.clone(),
            draining,
            absent_since: absent_since.subscribe(),
            connections,
        };
        let ended = tokio::spawn(server.serve_until_stopped(listener));
        let kept = renewed(None, Renewal::Create);
        let mut loopback = Self {
            address,
            publisher,
            kept: kept.clone(),
            shutdown,
            absent_since,
            ended,
        };
        loopback.serve(kept);
        loopback
    }

    /// As the loops do when they have read the Secret.
    fn serve(&mut self, kept: Kept) {
        let bundle = CaBundle::Pem(kept.bundle.clone());
        self.publisher.publish_certificate(&kept.current, bundle);
        self.kept = kept;
    }

    fn client(&self) -> Client {
        Client {
            address: self.address,
            bundle: self.publisher.subscribe_to_bundle(),
        }
    }
}

fn renewed(kept: Option<&Kept>, renewal: Renewal) -> Kept {
    let data = renewed_data(
        kept,
        renewal,
        &names(&[NAME]),
        (clock::now(), YEAR),
        &mut KeySource::System,
    )
    .unwrap();
    match StoredCertificate::read_secret(&data, &names(&[NAME])) {
        StoredCertificate::Usable(kept) => *kept,
        other => panic!("{other:?}"),
    }
}

/// One that verifies as an API server: the bundle of the configuration, and the name of the Service.
#[derive(Clone)]
struct Client {
    address: SocketAddr,
    bundle: watch::Receiver<CaBundle>,
}

#[derive(Clone, Copy)]
enum Protocol {
    Http1,
    Http2,
}

impl Client {
    /// Connects, trusting a bundle.
    async fn connect(
        &self,
        bundle: &CaBundle,
        protocol: Protocol,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let CaBundle::Pem(pem) = bundle else {
            panic!("no bundle: {bundle:?}");
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(read_chain("the bundle", pem).unwrap());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![match protocol {
            Protocol::Http1 => b"http/1.1".to_vec(),
            Protocol::Http2 => b"h2".to_vec(),
        }];
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(NAME).unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }

    /// One request on a connection of its own.
    async fn call(&self, protocol: Protocol) -> Result<Value, String> {
        let bundle = self.bundle.borrow().clone();
        self.call_trusting(&bundle, protocol).await
    }

    async fn call_trusting(&self, bundle: &CaBundle, protocol: Protocol) -> Result<Value, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let stream = self.connect(bundle, protocol).await;
        let mut sender = Sender::handshake(stream.map_err(|error| text(&error))?, protocol).await;
        let response = sender.send(review_request(PATH)).await;
        let response = response.map_err(|error| text(&error))?;
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| text(&error))?.to_bytes();
        serde_json::from_slice(&body).map_err(|error| text(&error))
    }
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    async fn handshake(stream: TlsStream<TcpStream>, protocol: Protocol) -> Self {
        let io = TokioIo::new(stream);
        match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await.unwrap();
                tokio::spawn(connection);
                Self::Http1(sender)
            }
            Protocol::Http2 => {
                let handshake = http2::handshake(TokioExecutor::new(), io);
                let (sender, connection) = handshake.await.unwrap();
                tokio::spawn(connection);
                Self::Http2(sender)
            }
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

fn review_request(path: &str) -> Request<Full<Bytes>> {
    let body = pod_review("a", &json!({}));
    Request::post(format!("https://{NAME}{path}"))
        .body(Full::from(body))
        .unwrap()
}

fn is_patched(review: &Value) -> bool {
    review["response"]["allowed"] == true && review["response"]["patchType"] == "JSONPatch"
}

#[tokio::test]
async fn both_protocols_are_answered() {
    let loopback = Loopback::start().await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let review = loopback.client().call(protocol).await.unwrap();
        assert!(is_patched(&review), "{review}");
    }
}

/// How many times the certificate is replaced under load.
const ROTATIONS: usize = 12;
/// Clients that connect anew for each call, and clients that keep their connection.
const CLIENTS: usize = 4;

/// Loads the server while certificates rotate. Each client learns of a bundle some time after it was published, but
/// before a certificate relies on it, which the leader waits for.
#[tokio::test]
async fn certificates_rotate_under_load_and_no_call_fails() {
    let mut loopback = Loopback::start().await;
    let (calls, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let protocol = [Protocol::Http1, Protocol::Http2][number % 2];
        clients.spawn(load_by_new_connections(
            loopback.client(),
            protocol,
            Arc::clone(&calls),
            stop.clone(),
        ));
        clients.spawn(load_by_one_connection(
            loopback.client(),
            protocol,
            Arc::clone(&calls),
            stop.clone(),
        ));
    }
    for _ in 0..ROTATIONS {
        for renewal in [Renewal::Prepare, Renewal::TakeOver] {
            let next = renewed(Some(&loopback.kept), renewal);
            loopback.serve(next);
            let enough = calls.load(Ordering::Relaxed) + 10 * CLIENTS;
            while calls.load(Ordering::Relaxed) < enough {
                tokio::task::yield_now().await;
                assert!(
                    clients.try_join_next().is_none(),
                    "a client has met an error"
                );
            }
        }
    }
    stop.cancel();
    while let Some(ended) = clients.join_next().await {
        ended.unwrap().unwrap();
    }
}

type Loaded = Result<(), String>;

async fn load_by_new_connections(
    client: Client,
    protocol: Protocol,
    calls: Arc<AtomicUsize>,
    stop: CancellationToken,
) -> Loaded {
    // The bundle of the round before: an API server that is behind.
    let mut bundles = client.bundle.clone();
    let mut late = bundles.borrow_and_update().clone();
    while !stop.is_cancelled() {
        let review = client.call_trusting(&late, protocol).await?;
        if !is_patched(&review) {
            return Err(review.to_string());
        }
        calls.fetch_add(1, Ordering::Relaxed);
        late = bundles.borrow_and_update().clone();
    }
    Ok(())
}

async fn load_by_one_connection(
    client: Client,
    protocol: Protocol,
    calls: Arc<AtomicUsize>,
    stop: CancellationToken,
) -> Loaded {
    let bundle = client.bundle.borrow().clone();
    let stream = client.connect(&bundle, protocol).await;
    let mut sender = Sender::handshake(stream.map_err(|error| error.to_string())?, protocol).await;
    while !stop.is_cancelled() {
        let response = sender.send(review_request(PATH)).await;
        let body = response.map_err(|error| error.to_string())?.into_body();
        body.collect().await.map_err(|error| error.to_string())?;
        calls.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// That the test above could fail.
#[tokio::test]
async fn a_certificate_whose_ca_is_not_known_yet_is_refused() {
    let mut loopback = Loopback::start().await;
    let before = loopback.publisher.subscribe_to_bundle().borrow().clone();
    let prepared = renewed(Some(&loopback.kept), Renewal::Prepare);
    loopback.serve(renewed(Some(&prepared), Renewal::TakeOver));
    let error = loopback
        .client()
        .call_trusting(&before, Protocol::Http1)
        .await;
    let error = error.unwrap_err();
    assert!(error.contains("invalid peer certificate"), "{error}");
}

#[tokio::test]
async fn a_call_that_refuses_objects_gets_an_error_where_there_is_no_reliable_answer() {
    let loopback = Loopback::start().await;
    let client = loopback.client();
    let bundle = client.bundle.borrow().clone();
    let stream = client.connect(&bundle, Protocol::Http1).await.unwrap();
    let mut sender = Sender::handshake(stream, Protocol::Http1).await;
    let mut code = async |path: &str, name: &str| {
        let request = Request::post(format!(
            "https://{NAME}/echo.leadsman.test{path}?timeout=10s"
        ));
        let body = pod_review(name, &json!({}));
        let request = request.body(Full::from(Bytes::from(body))).unwrap();
        let response = sender.send(request).await.unwrap();
        let code = response.status();
        drop(response.into_body().collect().await.unwrap());
        code
    };
    assert_eq!(code("/fail", "a").await, StatusCode::OK);
    assert_eq!(
        code("/fail", "panics").await,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(code("", "panics").await, StatusCode::OK);
}

#[tokio::test]
async fn what_is_no_review_is_refused_without_harm() {
    let loopback = Loopback::start().await;
    let client = loopback.client();
    let bundle = client.bundle.borrow().clone();
    let stream = client.connect(&bundle, Protocol::Http2).await.unwrap();
    let mut sender = Sender::handshake(stream, Protocol::Http2).await;
    let post = |path: &str, body: Vec<u8>| {
        let request = Request::post(format!("https://{NAME}{path}"));
        request.body(Full::from(body)).unwrap()
    };
    let table = [
        (post("/none", Vec::new()), StatusCode::NOT_FOUND),
        (post(PATH, b"no JSON".to_vec()), StatusCode::BAD_REQUEST),
        (
            post(PATH, vec![b' '; 8 * 1024 * 1024]),
            StatusCode::PAYLOAD_TOO_LARGE,
        ),
        (
            Request::get(format!("https://{NAME}{PATH}"))
                .body(Full::default())
                .unwrap(),
            StatusCode::METHOD_NOT_ALLOWED,
        ),
        (review_request(PATH), StatusCode::OK),
    ];
    for (request, expected) in table {
        let uri = request.uri().clone();
        let response = sender.send(request).await.unwrap();
        assert_eq!(response.status(), expected, "{uri}");
    }
}

#[tokio::test]
async fn the_end_gives_connections_up_and_fails_no_request() {
    let loopback = Loopback::start().await;
    let client = loopback.client();
    let bundle = client.bundle.borrow().clone();
    let stream = client.connect(&bundle, Protocol::Http1).await.unwrap();
    let mut kept = Sender::handshake(stream, Protocol::Http1).await;
    let before = kept.send(review_request(PATH)).await.unwrap();
    assert_eq!(before.headers().get("connection"), None);
    before.into_body().collect().await.unwrap();

    loopback.shutdown.cancel();
    tokio::task::yield_now().await;
    let last = kept.send(review_request(PATH)).await.unwrap();
    assert_eq!(last.headers()["connection"], "close");
    // Endpoints of the Service may still name this replica.
    assert!(is_patched(&client.call(Protocol::Http1).await.unwrap()));
    assert!(is_patched(&client.call(Protocol::Http2).await.unwrap()));
    timeout(DRAIN + FINISH, loopback.ended)
        .await
        .unwrap()
        .unwrap();
    client.call(Protocol::Http1).await.unwrap_err();
}

/// Seconds from the begin of the shutdown to the end of the server, beside a connection that was used and is open.
async fn seconds_to_end(absent_for: Option<Duration>) -> u64 {
    let loopback = Loopback::start().await;
    let client = loopback.client();
    let bundle = client.bundle.borrow().clone();
    let stream = client.connect(&bundle, Protocol::Http1).await.unwrap();
    let mut idle = Sender::handshake(stream, Protocol::Http1).await;
    let answer = idle.send(review_request(PATH)).await.unwrap();
    answer.into_body().collect().await.unwrap();
    // From here on time goes as fast as nothing else happens.
    tokio::time::pause();
    tokio::time::advance(Duration::from_mins(1)).await;
    let began = clock::monotonic();
    let since = absent_for.map(|time| began - time);
    loopback.absent_since.send_replace(since);
    loopback.shutdown.cancel();
    loopback.ended.await.unwrap();
    let seconds = began.elapsed().as_secs();
    tokio::time::resume();
    seconds
}

#[tokio::test]
async fn the_end_waits_for_endpoints_only_where_api_servers_are_told_to_call() {
    assert_eq!(seconds_to_end(None).await, DRAIN.as_secs());
    assert_eq!(seconds_to_end(Some(DRAIN)).await, 0);
    let rest = (DRAIN * 4 / 5).as_secs();
    assert_eq!(seconds_to_end(Some(DRAIN / 5)).await, rest);
}

#[tokio::test]
async fn the_end_waits_also_where_a_call_may_be_asked_for_only_then() {
    let loopback = Loopback::start().await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_mins(1)).await;
    let began = clock::monotonic();
    let second = Duration::from_secs(1);
    loopback
        .absent_since
        .send_replace(Some(began + second - DRAIN));
    loopback.shutdown.cancel();
    sleep(second / 2).await;
    // An apply is under way.
    loopback.absent_since.send_replace(None);
    loopback.ended.await.unwrap();
    assert_eq!(began.elapsed().as_secs(), DRAIN.as_secs());
}

#[tokio::test]
async fn bodies_that_never_come_keep_no_review_out() {
    let loopback = Loopback::start().await;
    let client = loopback.client();
    let bundle = client.bundle.borrow().clone();
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = client.connect(&bundle, Protocol::Http1).await.unwrap();
        let head = b"POST /echo.leadsman.test?timeout=30s HTTP/1.1\r\nHost: a\r\nContent-Length: 7000000\r\n\r\n";
        stream.write_all(head).await.unwrap();
        stream.flush().await.unwrap();
        slow.push(stream);
    }
    // On another connection, after the heads were read.
    client.call(Protocol::Http1).await.ok();
    let review = timeout(Duration::from_secs(3), client.call(Protocol::Http2)).await;
    assert!(is_patched(&review.expect("kept out").unwrap()));
}

/// How much of a body the clients below send before they fall silent.
const STALLED: usize = 7_000_000;

/// Begins a request whose body is announced in chunks, and sends so much of it.
async fn stall(client: Client, bytes: usize) -> TlsStream<TcpStream> {
    let bundle = client.bundle.borrow().clone();
    let mut stream = client.connect(&bundle, Protocol::Http1).await.unwrap();
    let head = b"POST /echo.leadsman.test?timeout=30s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let chunk = [format!("{bytes:x}\r\n").into_bytes(), vec![b' '; bytes]].concat();
    stream.write_all(&chunk).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

#[tokio::test]
async fn bodies_that_stall_give_their_room_to_a_review() {
    let loopback = Loopback::start().await;
    let client = loopback.client();
    let mut stalled = JoinSet::new();
    for _ in 0..10 {
        stalled.spawn(stall(client.clone(), STALLED));
    }
    // All but the last, for which no room is left.
    let mut open = Vec::new();
    while open.len() < 9 {
        open.push(stalled.join_next().await.unwrap().unwrap());
    }
    let review = timeout(Duration::from_secs(2), client.call(Protocol::Http1)).await;
    assert!(is_patched(&review.expect("kept out").unwrap()));
}

#[tokio::test]
async fn connections_with_slow_bodies_keep_no_review_out_and_drive_out_no_api_server() {
    const FEW: usize = 16;
    let loopback = Loopback::start_for(FEW).await;
    let client = loopback.client();
    let bundle = client.bundle.borrow().clone();
    let stream = client.connect(&bundle, Protocol::Http1).await.unwrap();
    let mut kept = Sender::handshake(stream, Protocol::Http1).await;
    let first = kept.send(review_request(PATH)).await.unwrap();
    first.into_body().collect().await.unwrap();
    let mut slow = Vec::new();
    for _ in 1..FEW {
        slow.push(stall(client.clone(), 1).await);
    }
    let review = timeout(Duration::from_secs(3), client.call(Protocol::Http2)).await;
    assert!(is_patched(&review.expect("no room").unwrap()));
    let last = kept.send(review_request(PATH)).await.unwrap();
    assert_eq!(last.status(), StatusCode::OK);
}

/// Sends the beginning of something and says what the server makes of it in the end.
async fn send_and_wait(loopback: &Loopback, protocol: Protocol, beginning: &[u8]) {
    let bundle = loopback.publisher.subscribe_to_bundle().borrow().clone();
    let client = loopback.client();
    let mut stream = client.connect(&bundle, protocol).await.unwrap();
    stream.write_all(beginning).await.unwrap();
    stream.flush().await.unwrap();
    // From here on time goes as fast as nothing else happens.
    tokio::time::pause();
    let mut last = Vec::new();
    let closed = timeout(2 * (IDLE + CLOSE), stream.read_to_end(&mut last));
    let _how = closed.await.expect("the connection is open for ever");
}

#[tokio::test]
async fn half_a_head_is_not_waited_for_forever() {
    let loopback = Loopback::start().await;
    let half = b"POST /echo.leadsman.test HTTP/1.1\r\nHost: ";
    send_and_wait(&loopback, Protocol::Http1, half).await;
}

#[tokio::test]
async fn a_client_that_does_not_answer_the_last_ping_is_not_waited_for_forever() {
    let loopback = Loopback::start().await;
    let preface_and_settings = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    send_and_wait(&loopback, Protocol::Http2, preface_and_settings).await;
}

#[tokio::test]
async fn silent_connections_keep_no_request_out_and_drive_out_no_api_server() {
    const FEW: usize = 16;
    let loopback = Loopback::start_for(FEW).await;
    let client = loopback.client();
    let bundle = client.bundle.borrow().clone();
    let stream = client.connect(&bundle, Protocol::Http1).await.unwrap();
    let mut kept = Sender::handshake(stream, Protocol::Http1).await;
    let first = kept.send(review_request(PATH)).await.unwrap();
    first.into_body().collect().await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..2 * FEW {
        silent.push(TcpStream::connect(loopback.address).await.unwrap());
    }
    let review = timeout(HANDSHAKE / 2, client.call(Protocol::Http2)).await;
    assert!(is_patched(&review.expect("no room").unwrap()));
    let last = kept.send(review_request(PATH)).await.unwrap();
    assert_eq!(last.status(), StatusCode::OK);
}

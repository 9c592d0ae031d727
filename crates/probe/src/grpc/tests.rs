//! gRPC probes against real servers.

use super::*;
use crate::tests::{
    AMPLE, BRIEF, End, acceptor_of, answer_once, closed_port, listen_on_any_port, probe_loopback,
    read_to_end, read_until, send_bytes, serve_scripts,
};
use h2::server::SendResponse;
use http::HeaderMap;
use leadsman_core::podprobe::Handler;
use rstest::rstest;
use std::num::NonZeroU16;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

fn grpc(address: SocketAddr, service: &str) -> Handler {
    Handler::Grpc {
        port: NonZeroU16::new(address.port()).unwrap(),
        service: service.to_owned(),
        over_tls: false,
    }
}

fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect()
}

/// What a server answers: a head, and after it a body and trailers unless they are left out.
#[derive(Clone)]
struct Reply {
    http_status: u16,
    head: HeaderMap,
    body: Option<(Vec<u8>, HeaderMap)>,
}

impl Reply {
    /// A message and the trailers after it.
    fn message(frame: &[u8], trailers: &[(&'static str, &str)]) -> Self {
        Self {
            http_status: 200,
            head: map(&[("content-type", "application/grpc")]),
            body: Some((frame.to_vec(), map(trailers))),
        }
    }

    /// A serving status, in order.
    fn status(status: u8) -> Self {
        Self::message(&[0, 0, 0, 0, 2, 8, status], &[("grpc-status", "0")])
    }

    /// Headers alone.
    fn head(http_status: u16, head: &[(&'static str, &str)]) -> Self {
        Self {
            http_status,
            head: map(head),
            body: None,
        }
    }

    fn send(self, mut to: SendResponse<Bytes>) {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(self.http_status).unwrap();
        *response.headers_mut() = self.head;
        let mut stream = to.send_response(response, self.body.is_none()).unwrap();
        if let Some((body, trailers)) = self.body {
            stream.send_data(Bytes::from(body), false).unwrap();
            stream.send_trailers(trailers).unwrap();
        }
    }
}

/// Answers each call of a connection, none if there is no reply; says what was asked and how the connection ended.
async fn health_server(
    mut stream: TcpStream,
    reply: Option<Reply>,
) -> (Vec<(Request<()>, Vec<u8>)>, End) {
    let mut calls = Vec::new();
    // Ends with the client's goodbye, or with what broke it.
    let mut connection = h2::server::handshake(&mut stream).await.unwrap();
    let mut unanswered = Vec::new();
    while let Some(Ok((request, to))) = connection.accept().await {
        let (head, body) = request.into_parts();
        let read = pin!(async move {
            let mut body = body;
            let mut bytes = Vec::new();
            while let Some(Ok(data)) = body.data().await {
                bytes.extend_from_slice(&data);
            }
            bytes
        });
        let bytes = match select(
            read,
            pin!(futures::future::poll_fn(|cx| connection.poll_closed(cx))),
        )
        .await
        {
            Either::Left((bytes, _)) => bytes,
            Either::Right(_) => Vec::new(),
        };
        calls.push((Request::from_parts(head, ()), bytes));
        match reply.clone() {
            Some(reply) => reply.send(to),
            None => unanswered.push(to),
        }
    }
    drop(connection);
    let ended = read_to_end(&mut stream).await;
    (calls, ended)
}

async fn probe_health(
    reply: Option<Reply>,
    service: &str,
    timeout: Duration,
) -> (Outcome, Vec<(Request<()>, Vec<u8>)>, End, SocketAddr) {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let server = serve_scripts(listener, vec![move |stream| health_server(stream, reply)]);
    let outcome = probe_loopback(grpc(address, service), address, timeout).await;
    let (calls, end) = server.await.unwrap().remove(0);
    (outcome, calls, end, address)
}

fn succeeded() -> Outcome {
    Outcome::Succeeded("service healthy".to_owned())
}

fn failed(message: impl Into<String>) -> Outcome {
    Outcome::Failed(message.into())
}

// PRB-22
#[rstest]
#[case("", &[0, 0, 0, 0, 0])]
#[case("ab", &[0, 0, 0, 0, 4, 10, 2, b'a', b'b'])]
#[tokio::test]
async fn asks_the_health_service(#[case] service: &str, #[case] frame: &[u8]) {
    let (outcome, calls, end, address) = probe_health(Some(Reply::status(1)), service, AMPLE).await;
    assert_eq!(outcome, succeeded());
    assert_eq!(end, End::Closed);
    assert_eq!(calls.len(), 1);
    let (request, body) = &calls[0];
    assert_eq!(body, frame);
    assert_eq!(request.method(), Method::POST);
    let uri = format!("http://{address}/grpc.health.v1.Health/Check");
    assert_eq!(request.uri().to_string(), uri);
    let expected = map(&[
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", crate::USER_AGENT),
        ("grpc-timeout", "20000m"),
    ]);
    assert_eq!(*request.headers(), expected);
}

// PRB-22
#[rstest]
#[case::serving(Reply::status(1), succeeded())]
#[case::not_serving(
    Reply::status(2),
    failed("service unhealthy (responded with \"NOT_SERVING\")")
)]
#[case::unknown(
    Reply::status(0),
    failed("service unhealthy (responded with \"UNKNOWN\")")
)]
#[case::service_unknown(
    Reply::status(3),
    failed("service unhealthy (responded with \"SERVICE_UNKNOWN\")")
)]
#[case::newer(Reply::status(9), failed("service unhealthy (responded with \"9\")"))]
#[case::absent(Reply::message(&[0, 0, 0, 0, 0], &[("grpc-status", "0")]), failed("service unhealthy (responded with \"UNKNOWN\")"))]
#[tokio::test]
async fn a_serving_status_and_its_outcome(#[case] reply: Reply, #[case] expected: Outcome) {
    let (outcome, _, end, _) = probe_health(Some(reply), "", AMPLE).await;
    assert_eq!(outcome, expected);
    assert_eq!(end, End::Closed);
}

// PRB-22
#[rstest]
#[case::unimplemented(
    Reply::head(200, &[("grpc-status", "12"), ("grpc-message", "unknown service")]),
    "the server does not implement the gRPC health protocol (grpc.health.v1.Health): unknown service"
)]
#[case::not_found(Reply::head(200, &[("grpc-status", "5"), ("grpc-message", "no %22x%22")]), "NotFound: no \"x\"")]
#[case::encoded(Reply::head(200, &[("grpc-status", "5"), ("grpc-message", "%C3%9F%20x%")]), "NotFound: ß x%")]
#[case::badly_encoded(Reply::head(200, &[("grpc-status", "14"), ("grpc-message", "%ff%zz%1")]), "Unavailable: \u{fffd}%zz%1")]
#[case::malformed_details(Reply::head(200, &[("grpc-status", "5"), ("grpc-status-details-bin", "!")]), "NotFound")]
#[case::a_code_of_a_later_version(Reply::head(200, &[("grpc-status", "77"), ("grpc-message", "x")]), "Unknown: x")]
#[case::no_code(Reply::head(200, &[("grpc-status", "x")]), "Unknown")]
#[case::in_trailers(Reply::message(&[], &[("grpc-status", "14"), ("grpc-message", "later")]), "Unavailable: later")]
#[case::with_a_message(Reply::message(&[0, 0, 0, 0, 2, 8, 1], &[("grpc-status", "2")]), "Unknown")]
#[case::their_deadline(Reply::head(200, &[("grpc-status", "4")]), "no answer within 20s")]
#[case::no_message(Reply::message(&[], &[("grpc-status", "0")]), "malformed health check response")]
#[case::compressed(Reply::message(&[1, 0, 0, 0, 2, 8, 1], &[("grpc-status", "0")]), "malformed health check response")]
#[case::garbage(Reply::message(&[0, 0, 0, 0, 1, 8], &[("grpc-status", "0")]), "malformed health check response")]
#[case::no_status(Reply::message(&[0, 0, 0, 0, 2, 8, 1], &[]), "the answer has no grpc-status")]
#[case::not_grpc(Reply::head(404, &[("content-type", "text/plain")]), "HTTP status 404 in place of gRPC")]
#[case::not_grpc_body(Reply { http_status: 502, head: HeaderMap::new(), ..Reply::status(1) }, "HTTP status 502 in place of gRPC")]
#[case::no_content_type(Reply { head: HeaderMap::new(), ..Reply::status(1) }, "the answer's content type is not application/grpc")]
#[case::json(Reply { head: map(&[("content-type", "application/json")]), ..Reply::status(1) }, "the answer's content type is not application/grpc")]
#[case::nearly_grpc(Reply { head: map(&[("content-type", "application/grpcweb")]), ..Reply::status(1) }, "the answer's content type is not application/grpc")]
#[tokio::test]
async fn a_call_that_fails_says_why(#[case] reply: Reply, #[case] message: &str) {
    let (outcome, _, _, address) = probe_health(Some(reply), "x", AMPLE).await;
    assert_eq!(
        outcome,
        failed(format!("health check call to {address}: {message}"))
    );
}

/// Whatever it answered, a server may send its own goodbye after the client's.
// PRB-23
#[tokio::test]
async fn a_server_with_last_words_is_not_reset() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let script = async |mut stream: TcpStream| {
        // The request's data, which end stream 1.
        read_until(&mut stream, &[0, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]).await;
        // Settings, and headers of stream 1 that end it: `:status: 200`, `grpc-status: 5`.
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let headers = [0, 0, 16, 1, 5, 0, 0, 0, 1, 0x88, 0, 11];
        let answer = [&settings[..], &headers, b"grpc-status\x015"].concat();
        stream.write_all(&answer).await.unwrap();
        read_to_end(&mut stream).await;
        send_bytes(&mut stream, b"goodbye").await
    };
    let server = serve_scripts(listener, vec![script]);
    let outcome = probe_loopback(grpc(address, ""), address, AMPLE).await;
    let message = format!("health check call to {address}: NotFound");
    assert_eq!(outcome, failed(message));
    assert_eq!(server.await.unwrap(), [End::Closed]);
}

// PRB-27
#[tokio::test]
async fn a_server_that_pings_without_end_is_given_up() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let script = async |stream: TcpStream| {
        // Reads as well, or the connection would be at a stand when the answers have filled it.
        let (mut reader, mut writer) = stream.into_split();
        let read = async { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await };
        let write = async {
            // Empty SETTINGS, then PING (RFC 9113, 6.5 and 6.7).
            let settings = writer.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
            let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
            let mut sent = settings;
            while sent.is_ok() {
                sent = writer.write_all(&ping.repeat(100)).await;
            }
        };
        let _ended = tokio::join!(read, write);
    };
    let server = serve_scripts(listener, vec![script]);
    let outcome = probe_loopback(grpc(address, ""), address, AMPLE).await;
    let Outcome::Failed(message) = outcome else {
        panic!("not failed: {outcome:?}");
    };
    assert!(message.contains("has sent more than 256 KiB"), "{message}");
    server.await.unwrap();
}

#[tokio::test]
async fn an_answer_without_end_is_given_up() {
    let reply = Reply::message(&vec![0; 200_000], &[("grpc-status", "0")]);
    let (outcome, _, _, address) = probe_health(Some(reply), "", AMPLE).await;
    let message = format!("health check call to {address}: the answer is longer than 10240 bytes");
    assert_eq!(outcome, failed(message));
}

// PRB-22
#[tokio::test]
async fn a_call_that_is_not_answered_fails_when_time_is_up() {
    let (outcome, calls, _, address) = probe_health(None, "", BRIEF).await;
    let message = format!("health check call to {address}: no answer within 500ms");
    assert_eq!(outcome, failed(message));
    assert_eq!(calls.len(), 1);
}

// PRB-22
#[tokio::test]
async fn a_server_that_says_nothing_is_not_connected_to() {
    let (_listener, address) = listen_on_any_port("127.0.0.1").await;
    let outcome = probe_loopback(grpc(address, ""), address, BRIEF).await;
    let message = format!(
        "connecting to {address}: the port accepts, but no HTTP/2 server answered within 500ms"
    );
    assert_eq!(outcome, failed(message));
}

#[tokio::test]
async fn a_port_nobody_listens_at_fails() {
    let address = closed_port().await;
    let message = format!("connecting to {address}: Connection refused");
    assert_eq!(
        probe_loopback(grpc(address, ""), address, AMPLE).await,
        failed(message)
    );
}

/// Servers of other protocols.
#[rstest]
#[case::http1(
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "the answer is not HTTP/2"
)]
#[case::ssh(b"SSH-2.0-OpenSSH_9\r\n", "the answer is not HTTP/2")]
#[case::zeros(&[0; 64], "the answer is not HTTP/2")]
#[case::cut_frame(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 1], "")]
#[case::settings_of_a_stream(&[0, 0, 0, 4, 0, 0, 0, 0, 1], "the answer is not HTTP/2")]
#[case::nothing(b"", "")]
#[tokio::test]
async fn another_protocol_fails(#[case] response: &'static [u8], #[case] cause: &str) {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let server = serve_scripts(listener, vec![move |stream| answer_once(stream, response)]);
    let Outcome::Failed(message) = probe_loopback(grpc(address, ""), address, AMPLE).await else {
        panic!("not failed");
    };
    let start = format!("health check call to {address}: {cause}");
    assert!(message.starts_with(&start), "{message}");
    server.await.unwrap();
}

#[tokio::test]
async fn a_dropped_run_closes_its_connection() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let run = tokio::spawn(probe_loopback(grpc(address, ""), address, AMPLE));
    let (mut stream, _) = listener.accept().await.unwrap();
    stream
        .write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    run.abort();
    read_to_end(&mut stream).await;
}

#[rstest]
#[case(1, "1000m")]
#[case(99_999, "99999000m")]
#[case(100_000, "100000S")]
#[case(u64::MAX, "99999999S")]
fn a_timeout_has_at_most_eight_digits(#[case] seconds: u64, #[case] expected: &str) {
    assert_eq!(grpc_timeout(Duration::from_secs(seconds)), expected);
}

/// Answers one call over TLS with `SERVING`; says which URI was called, unless the handshake failed.
async fn serve_over_tls(acceptor: TlsAcceptor, stream: TcpStream) -> Option<String> {
    let stream = acceptor.accept(stream).await.ok()?;
    let mut connection = h2::server::handshake(stream).await.ok()?;
    let (request, to) = connection.accept().await?.ok()?;
    Reply::status(1).send(to);
    // Until the client closes it.
    while let Some(Ok(_)) = connection.accept().await {}
    Some(request.uri().to_string())
}

// PRB-29
#[rstest]
#[case::in_the_protocol_of_grpc(&["h2"], None)]
#[case::in_another_protocol(&["http/1.1"], Some("received fatal alert: NoApplicationProtocol"))]
#[case::in_none(&[], Some("the server does not choose HTTP/2 (ALPN \"h2\")"))]
#[tokio::test]
async fn a_server_with_any_certificate_is_asked_over_tls(
    #[case] protocols: &[&str],
    #[case] refusal: Option<&str>,
) {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let acceptor = acceptor_of(rustls::ALL_VERSIONS, protocols);
    let server = serve_scripts(
        listener,
        vec![move |stream| serve_over_tls(acceptor, stream)],
    );
    let handler = Handler::Grpc {
        port: NonZeroU16::new(address.port()).unwrap(),
        service: "role".to_owned(),
        over_tls: true,
    };
    let outcome = probe_loopback(handler, address, AMPLE).await;
    let called = server.await.unwrap().remove(0);
    match refusal {
        None => {
            assert_eq!(outcome, succeeded());
            let uri = format!("https://{address}/grpc.health.v1.Health/Check");
            assert_eq!(called, Some(uri));
        }
        Some(reason) => {
            let message = format!("TLS handshake with {address}: {reason}");
            assert_eq!(outcome, failed(message));
            assert_eq!(called, None);
        }
    }
}

// PRB-29
#[tokio::test]
async fn a_handshake_of_tls_that_stalls_ends_the_call() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let silent = async |mut stream: TcpStream| read_to_end(&mut stream).await;
    let server = serve_scripts(listener, vec![silent]);
    let handler = Handler::Grpc {
        port: NonZeroU16::new(address.port()).unwrap(),
        service: String::new(),
        over_tls: true,
    };
    let outcome = probe_loopback(handler, address, BRIEF).await;
    let message = format!("TLS handshake with {address}: not finished within {BRIEF:?}");
    assert_eq!(outcome, failed(message));
    server.await.unwrap();
}

//! Servers that speak HTTP/2. Over TLS the kubelet's client offers it and speaks it where the server chooses it; without, where the
//! probe says so.

use h2::server::{self, SendResponse};
use http::HeaderMap;
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::*;
use crate::tests::acceptor_of;

const BOTH: &[&str] = &["h2", "http/1.1"];

/// A request as the server received it: its target and its headers.
type ReceivedRequest = (String, HeaderMap);

/// Answers the one request of a connection by script; the connection is driven until the client closes it.
async fn serve_one(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    respond: impl FnOnce(SendResponse<Bytes>),
) -> (ReceivedRequest, End) {
    let stream = acceptor.accept(stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    serve_one_over(stream, respond).await
}

/// The same over a connection on which HTTP/2 is spoken from the first byte.
async fn serve_one_over(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    respond: impl FnOnce(SendResponse<Bytes>),
) -> (ReceivedRequest, End) {
    let mut connection = server::handshake(stream).await.unwrap();
    let (request, response) = connection.accept().await.unwrap().unwrap();
    respond(response);
    let closed = connection
        .accept()
        .await
        .is_none_or(|request| request.is_err());
    let (head, _) = request.into_parts();
    let end = if closed { End::Closed } else { End::Reset };
    ((head.uri.to_string(), head.headers), end)
}

fn respond(
    status: u16,
    headers: &[(&str, &str)],
    body: &'static [u8],
) -> impl FnOnce(SendResponse<Bytes>) + Send + use<> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    let response = response.body(()).unwrap();
    move |mut sender| {
        let mut stream = sender.send_response(response, false).unwrap();
        stream.send_data(Bytes::from_static(body), true).unwrap();
    }
}

/// Probes a server that answers once, and says the request that it received.
async fn once_over_http2(
    protocols: &[&str],
    headers: &[(&str, &str)],
    response: impl FnOnce(SendResponse<Bytes>) + Send + 'static,
) -> (Outcome, ReceivedRequest, SocketAddr) {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let acceptor = acceptor_of(rustls::ALL_VERSIONS, protocols);
    let server = serve_scripts(
        listener,
        vec![move |stream| serve_one(acceptor, stream, response)],
    );
    let handler = get(Scheme::Https, address, "/a?b", headers);
    let outcome = probe_loopback(handler, address, AMPLE).await;
    let (seen, end) = server.await.unwrap().remove(0);
    assert_eq!(end, End::Closed);
    (outcome, seen, address)
}

// PRB-18, PRB-19
#[rstest]
#[case::alone(&["h2"])]
#[case::preferred(BOTH)]
#[tokio::test]
async fn a_server_that_chooses_http2_is_spoken_to_in_it(#[case] protocols: &[&str]) {
    let (outcome, (target, headers), address) =
        once_over_http2(protocols, &[], respond(200, &[], b"ok")).await;
    assert_eq!(outcome, succeeded("ok"));
    assert_eq!(target, format!("https://{address}/a?b"));
    let mut expected = HeaderMap::new();
    expected.insert("user-agent", crate::USER_AGENT.parse().unwrap());
    expected.insert("accept", "*/*".parse().unwrap());
    assert_eq!(headers, expected);
}

// PRB-18
#[tokio::test]
async fn headers_of_the_probe_but_those_about_the_connection() {
    let headers = [
        ("Host", "a.example:8"),
        ("X-A", "1"),
        ("x-a", "2"),
        ("Connection", "keep-alive"),
        ("Keep-Alive", "3"),
        ("TE", "gzip"),
        ("User-Agent", ""),
        ("Accept", "text/plain"),
    ];
    let (outcome, (target, headers), _) =
        once_over_http2(&["h2"], &headers, respond(200, &[], b"ok")).await;
    assert_eq!(outcome, succeeded("ok"));
    assert_eq!(target, "https://a.example:8/a?b");
    let mut expected = HeaderMap::new();
    expected.append("x-a", "1".parse().unwrap());
    expected.append("x-a", "2".parse().unwrap());
    expected.insert("accept", "text/plain".parse().unwrap());
    assert_eq!(headers, expected);
}

// PRB-19, PRB-20
#[rstest]
#[case(503, &[], b"secret", failed("HTTP probe failed with statuscode: 503"))]
#[case(204, &[], b"", succeeded(""))]
#[case(
    302,
    &[("location", "https://other/")],
    b"x",
    succeeded("redirect to \"other\" not followed, response body: x")
)]
#[tokio::test]
async fn a_status_and_its_outcome(
    #[case] status: u16,
    #[case] headers: &[(&str, &str)],
    #[case] body: &'static [u8],
    #[case] expected: Outcome,
) {
    let (outcome, _, _) = once_over_http2(&["h2"], &[], respond(status, headers, body)).await;
    assert_eq!(outcome, expected);
}

// PRB-20
#[tokio::test]
async fn a_long_body_is_read_in_part() {
    static LONG: [u8; 200_000] = [b'x'; 200_000];
    let (outcome, _, _) = once_over_http2(&["h2"], &[], respond(200, &[], &LONG)).await;
    assert_eq!(outcome, succeeded(&"x".repeat(MAX_OUTPUT)));
}

// PRB-19
#[tokio::test]
async fn a_redirect_within_the_host_is_followed_in_whatever_version_the_next_server_chooses() {
    let (plain_listener, plain_address) = listen_on_any_port("127.0.0.1").await;
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let location = format!("http://{plain_address}/");
    let acceptor = acceptor_of(rustls::ALL_VERSIONS, &["h2"]);
    let first = serve_scripts(
        listener,
        vec![async move |stream| {
            let response = respond(302, &[("location", &location)], b"");
            serve_one(acceptor, stream, response).await
        }],
    );
    let second = serve_scripts(plain_listener, vec![|stream| answer_once(stream, OK)]);
    let handler = get(Scheme::Https, address, "/", &[]);
    assert_eq!(
        probe_loopback(handler, address, AMPLE).await,
        succeeded("ok")
    );
    assert_eq!(first.await.unwrap().len(), 1);
    assert_eq!(second.await.unwrap().len(), 1);
}

// PRB-20
#[tokio::test]
async fn a_body_that_is_shorter_than_said_three_times_fails() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let acceptor = acceptor_of(rustls::ALL_VERSIONS, &["h2"]);
    let cut = move |sender| respond(200, &[("content-length", "5")], b"o")(sender);
    let server = serve_scripts(
        listener,
        vec![move |stream| serve_one(acceptor, stream, cut); MAX_ATTEMPTS],
    );
    let Outcome::Failed(message) =
        probe_loopback(get(Scheme::Https, address, "/", &[]), address, AMPLE).await
    else {
        panic!("not failed");
    };
    let start = format!("GET from {address}: ");
    assert!(message.starts_with(&start), "{message}");
    assert_eq!(server.await.unwrap().len(), 3);
}

// PRB-18
/// An upgrade is HTTP/1.1's: a server that prefers HTTP/2 is not offered it.
#[tokio::test]
async fn a_request_for_an_upgrade_is_sent_in_http1() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let acceptor = acceptor_of(rustls::ALL_VERSIONS, BOTH);
    let server = serve_scripts(
        listener,
        vec![async move |stream: TcpStream| {
            let mut stream = acceptor.accept(stream).await.unwrap();
            let request = read_head(&mut stream).await;
            stream.write_all(OK.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            request
        }],
    );
    let headers = [("Connection", "Upgrade"), ("Upgrade", "websocket")];
    let handler = get(Scheme::Https, address, "/", &headers);
    assert_eq!(
        probe_loopback(handler, address, AMPLE).await,
        succeeded("ok")
    );
    assert!(server.await.unwrap()[0].contains("Upgrade: websocket\r\n"));
}

#[tokio::test]
async fn a_server_that_wants_another_protocol_fails() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let acceptor = acceptor_of(rustls::ALL_VERSIONS, &["other"]);
    let server = serve_scripts(
        listener,
        vec![async move |stream: TcpStream| acceptor.accept(stream).await.is_err()],
    );
    let handler = get(Scheme::Https, address, "/", &[]);
    let Outcome::Failed(message) = probe_loopback(handler, address, AMPLE).await else {
        panic!("not failed");
    };
    let start = format!("TLS handshake with {address}: ");
    assert!(message.starts_with(&start), "{message}");
    assert_eq!(server.await.unwrap(), [true]);
}

// PRB-29
#[tokio::test]
async fn without_tls_http2_is_spoken_where_the_probe_says_so() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let scripts = [
        respond(302, &[("location", "/next")], b""),
        respond(200, &[], b"ok"),
    ];
    let scripts = scripts.map(|response| move |stream| serve_one_over(stream, response));
    let server = serve_scripts(listener, scripts.into());
    let headers = [("Host", "a.example"), ("Upgrade", "never")];
    let handler = get(Scheme::H2c, address, "/a?b", &headers);
    let outcome = probe_loopback(handler, address, AMPLE).await;
    assert_eq!(outcome, succeeded("ok"));
    let seen = server.await.unwrap();
    let targets: Vec<_> = seen
        .iter()
        .map(|((target, _), _)| target.as_str())
        .collect();
    assert_eq!(targets, ["http://a.example/a?b", "http://a.example/next"]);
    for ((_, headers), end) in &seen {
        assert_eq!(*end, End::Closed);
        assert!(!headers.contains_key("upgrade"), "{headers:?}");
    }
}

// PRB-29
#[tokio::test]
async fn a_server_of_http1_fails_a_probe_of_http2() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let refusal = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    let server = serve_scripts(listener, vec![move |stream| answer_once(stream, refusal)]);
    let handler = get(Scheme::H2c, address, "/", &[]);
    let outcome = probe_loopback(handler, address, AMPLE).await;
    let Outcome::Failed(message) = outcome else {
        panic!("{outcome:?}");
    };
    let begin = format!("GET from {address}: the answer is not HTTP/2");
    assert!(message.starts_with(&begin), "{message}");
    server.await.unwrap();
}

/// Refuses the one request of a connection.
async fn refuse_one(stream: TcpStream, reason: h2::Reason) {
    let mut connection = server::handshake(stream).await.unwrap();
    let (_, mut response) = connection.accept().await.unwrap().unwrap();
    response.send_reset(reason);
    while let Some(Ok(_)) = connection.accept().await {}
}

/// Ends a connection whose request it has not processed.
async fn go_away(mut stream: TcpStream) {
    // Settings, and GOAWAY with no last stream and no error (RFC 9113, 6.8).
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let go_away = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let sent = [&settings[..], &go_away].concat();
    stream.write_all(&sent).await.unwrap();
    read_to_end(&mut stream).await;
}

// PRB-29
#[rstest]
#[case::refused(Some(h2::Reason::REFUSED_STREAM), true)]
#[case::protocol_error(Some(h2::Reason::PROTOCOL_ERROR), true)]
#[case::gone_away(None, true)]
#[case::another_error(Some(h2::Reason::INTERNAL_ERROR), false)]
#[tokio::test]
async fn a_request_that_was_not_processed_is_sent_again(
    #[case] reason: Option<h2::Reason>,
    #[case] again: bool,
) {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        match reason {
            Some(reason) => refuse_one(stream, reason).await,
            None => go_away(stream).await,
        }
        let (stream, _) = listener.accept().await.unwrap();
        serve_one_over(stream, respond(200, &[], b"ok")).await;
    });
    let outcome = probe_loopback(get(Scheme::H2c, address, "/", &[]), address, AMPLE).await;
    assert_eq!(outcome == succeeded("ok"), again, "{outcome:?}");
    server.abort();
}

// PRB-29
#[tokio::test]
async fn a_request_that_is_refused_three_times_fails() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let refuse = |stream| refuse_one(stream, h2::Reason::REFUSED_STREAM);
    let server = serve_scripts(listener, vec![refuse; MAX_ATTEMPTS]);
    let outcome = probe_loopback(get(Scheme::H2c, address, "/", &[]), address, AMPLE).await;
    let Outcome::Failed(message) = outcome else {
        panic!("{outcome:?}");
    };
    let begin = format!("GET from {address}: ");
    assert!(message.starts_with(&begin), "{message}");
    let connections = tokio::time::timeout(AMPLE, server).await;
    assert_eq!(connections.expect("three are made").unwrap().len(), 3);
}

// PRB-29
#[tokio::test]
async fn a_redirect_to_tls_fails_a_probe_of_http2() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let location = format!("https://{address}/");
    let server = serve_scripts(
        listener,
        vec![async move |stream| {
            let response = respond(302, &[("location", &location)], b"");
            serve_one_over(stream, response).await
        }],
    );
    let outcome = probe_loopback(get(Scheme::H2c, address, "/", &[]), address, AMPLE).await;
    let message = format!("GET from {address}: redirect to https, and HTTP2 is without TLS");
    assert_eq!(outcome, failed(&message));
    assert_eq!(server.await.unwrap().len(), 1);
}

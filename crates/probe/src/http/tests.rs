//! HTTP probes against real listeners.

use super::*;
use crate::test_server::{
    AMPLE, BRIEF, End, answer_once, closed_port, listen_on_any_port, probe_loopback, read_head,
    read_to_end, serve_scripts,
};
use leadsman_core::podprobe::{Handler, Scheme};
use rstest::rstest;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::num::NonZeroU16;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn get(scheme: Scheme, address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Handler {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Handler::HttpGet(HttpGet {
        scheme,
        port: NonZeroU16::new(address.port()).unwrap(),
        path: path.to_owned(),
        headers: headers.iter().map(own).collect(),
    })
}

fn plain(address: SocketAddr) -> Handler {
    get(Scheme::Http, address, "/", &[])
}

fn succeeded(message: &str) -> Outcome {
    Outcome::Succeeded(message.to_owned())
}

fn failed(message: &str) -> Outcome {
    Outcome::Failed(message.to_owned())
}

/// Serves one connection, and says what the probe came to, what was asked, and how the connection ended.
async fn once<S, F, T>(script: S) -> (Outcome, T, SocketAddr)
where
    S: FnOnce(TcpStream) -> F + Send + 'static,
    F: Future<Output = T> + Send,
    T: Send + 'static,
{
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let server = serve_scripts(listener, vec![script]);
    let outcome = probe_loopback(plain(address), address, AMPLE).await;
    (outcome, server.await.unwrap().remove(0), address)
}

/// The request a probe sends.
async fn request_of(ip: &str, path: &str, headers: &[(&str, &str)]) -> (String, SocketAddr) {
    let (listener, address) = listen_on_any_port(ip).await;
    let server = serve_scripts(listener, vec![|stream| answer_once(stream, OK)]);
    let outcome = probe_loopback(get(Scheme::Http, address, path, headers), address, AMPLE).await;
    assert_eq!(outcome, succeeded("ok"));
    (server.await.unwrap().remove(0).0, address)
}

// PRB-18
#[rstest]
#[case("127.0.0.1")]
#[case("::1")]
#[tokio::test]
async fn sends_what_the_kubelet_sends(#[case] ip: &str) {
    let bound = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    };
    let (request, address) = request_of(&bound, "healthz?full=1&full=2", &[]).await;
    let expected = format!(
        "GET /healthz?full=1&full=2 HTTP/1.1\r\nHost: {bound}:{}\r\nUser-Agent: {}\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        address.port(),
        crate::USER_AGENT
    );
    assert_eq!(request, expected);
}

// PRB-18
#[rstest]
#[case::host(&[("host", "a.example"), ("Host", "b.example")], &["Host: a.example"], &["127.0.0.1", "b.example"])]
#[case::empty_host(&[("Host", "")], &["Host: 127.0.0.1:"], &[])]
#[case::repeated(&[("X-A", "1"), ("x-a", " 2 "), ("X-A", "")], &["X-A: 1\r\nX-A: 2\r\nX-A: \r\n"], &[])]
#[case::defaults_set(&[("user-agent", "me"), ("accept", "text/plain")], &["User-Agent: me", "Accept: text/plain"], &["kube-probe", "*/*"])]
#[case::defaults_removed(&[("User-Agent", ""), ("Accept", "")], &["Host: "], &["User-Agent", "Accept"])]
#[case::no_body(&[("Content-Length", "5"), ("Transfer-Encoding", "chunked"), ("Trailer", "x")], &["Host: "], &["Length", "Transfer", "Trailer"])]
#[case::closes(&[("Connection", "keep-alive")], &["Connection: close"], &["keep-alive"])]
#[case::upgrades(&[("Connection", "Upgrade"), ("Upgrade", "websocket")], &["Connection: Upgrade"], &["close"])]
#[case::no_encoding(&[], &["Host: "], &["Accept-Encoding"])]
#[tokio::test]
async fn headers_of_the_probe(
    #[case] headers: &[(&str, &str)],
    #[case] there: &[&str],
    #[case] not_there: &[&str],
) {
    let (request, _) = request_of("127.0.0.1", "/", headers).await;
    for text in there {
        assert!(request.contains(text), "{text:?} is not in {request:?}");
    }
    for text in not_there {
        assert!(!request.contains(text), "{text:?} is in {request:?}");
    }
}

#[rstest]
#[case(&[("a b", "1")], "malformed header name \"a b\"")]
#[case(&[("", "1")], "malformed header name \"\"")]
#[case(&[("a", "1\r\nb: 2")], "malformed value of header \"a\"")]
#[case(&[("Host", "a\nb")], "malformed value of header \"Host\"")]
#[tokio::test]
async fn what_cannot_be_sent_fails_without_a_connection(
    #[case] headers: &[(&str, &str)],
    #[case] expected: &str,
) {
    let address = closed_port().await;
    let handler = get(Scheme::Http, address, "/", headers);
    assert_eq!(
        probe_loopback(handler, address, AMPLE).await,
        failed(expected)
    );
}

// PRB-19, PRB-20
#[rstest]
#[case::length("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", succeeded("ok"))]
#[case::until_closed("HTTP/1.1 200 OK\r\n\r\nall of it", succeeded("all of it"))]
#[case::http_1_0("HTTP/1.0 200 OK\r\n\r\nold", succeeded("old"))]
#[case::chunked(
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nTrailer: t\r\n\r\n",
    succeeded("abc")
)]
#[case::not_utf8(
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na\xffb",
    succeeded("a\u{fffd}b")
)]
#[case::no_reason("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", succeeded(""))]
#[case::no_content("HTTP/1.1 204 No Content\r\n\r\n", succeeded(""))]
#[case::folded_header(
    "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    succeeded("")
)]
#[case::informational(
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    succeeded("ok")
)]
#[case::last_success(
    "HTTP/1.1 399 Odd\r\nContent-Length: 1\r\n\r\nx",
    succeeded("status 399 names nothing to follow, response body: x")
)]
#[case::not_modified(
    "HTTP/1.1 304 Not Modified\r\n\r\n",
    succeeded("status 304 names nothing to follow, response body: ")
)]
#[case::nowhere(
    "HTTP/1.1 302 Found\r\nContent-Length: 1\r\n\r\nx",
    succeeded("status 302 names nothing to follow, response body: x")
)]
#[case::elsewhere(
    "HTTP/1.1 301 Moved\r\nLocation: https://other.example:8443/x?token=1\r\nContent-Length: 1\r\n\r\nx",
    succeeded("redirect to \"other.example:8443\" not followed, response body: x")
)]
#[case::client_error(
    "HTTP/1.1 400 Bad\r\nContent-Length: 6\r\n\r\nsecret",
    failed("HTTP probe failed with statuscode: 400")
)]
#[case::server_error(
    "HTTP/1.1 503 No\r\nContent-Length: 99\r\n\r\nsecret",
    failed("HTTP probe failed with statuscode: 503")
)]
#[case::out_of_range(
    "HTTP/1.1 999 No\r\n\r\n",
    failed("HTTP probe failed with statuscode: 999")
)]
#[case::switching(
    "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    failed("HTTP probe failed with statuscode: 101")
)]
#[tokio::test]
async fn a_response_and_its_outcome(
    #[case] response: impl AsRef<[u8]> + Send + Sync + 'static,
    #[case] expected: Outcome,
) {
    let (outcome, (_, end), _) = once(|stream| answer_once(stream, response)).await;
    assert_eq!(outcome, expected);
    assert_eq!(end, End::Closed);
}

#[rstest]
#[case::closed("", "closed")]
#[case::cut_head("HTTP/1.1 200 OK\r\nContent-", "closed")]
#[case::garbage(b"\x00\x01\x02garbage\r\n\r\n", "invalid")]
#[case::ssh("SSH-2.0-OpenSSH_9\r\n", "invalid")]
#[case::two_lengths(
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
    "content-length"
)]
#[case::malformed_location(
    "HTTP/1.1 302 Found\r\nLocation: http://[::1/\r\n\r\n",
    "malformed Location"
)]
#[tokio::test]
async fn an_answer_that_is_none_fails(
    #[case] response: impl AsRef<[u8]> + Send + Sync + 'static,
    #[case] expected: &str,
) {
    let (outcome, _, address) = once(|stream| answer_once(stream, response)).await;
    let Outcome::Failed(message) = outcome else {
        panic!("not failed: {outcome:?}");
    };
    let start = format!("GET from {address}: ");
    assert!(message.starts_with(&start), "{message}");
    assert!(message.contains(expected), "{message}");
}

/// A body that breaks off: (message of the library, response). The kubelet's client answers "unexpected EOF".
const CUT_BODY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok";

// PRB-20
/// As with the kubelet, which repeats a probe whose body could not be read, twice, and then takes it for failed.
#[rstest]
#[case::cut_body(CUT_BODY, "body")]
#[case::cut_chunk("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok", "body")]
#[case::bad_chunk(
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok",
    "chunk"
)]
#[case::of_a_redirect(
    "HTTP/1.1 302 Found\r\nLocation: http://other/\r\nContent-Length: 5\r\n\r\nok",
    "body"
)]
#[tokio::test]
async fn a_body_that_breaks_off_three_times_fails(
    #[case] response: &'static str,
    #[case] expected: &str,
) {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let server = serve_scripts(
        listener,
        vec![move |stream| answer_once(stream, response); MAX_ATTEMPTS],
    );
    let Outcome::Failed(message) = probe_loopback(plain(address), address, AMPLE).await else {
        panic!("not failed");
    };
    let start = format!("GET from {address}: ");
    assert!(message.starts_with(&start), "{message}");
    assert!(message.contains(expected), "{message}");
    assert_eq!(server.await.unwrap().len(), 3);
}

// PRB-20
#[tokio::test]
async fn a_body_that_breaks_off_once_is_asked_for_again() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let server = serve_scripts(
        listener,
        [CUT_BODY, OK]
            .map(|response| move |stream| answer_once(stream, response))
            .into(),
    );
    assert_eq!(
        probe_loopback(plain(address), address, AMPLE).await,
        succeeded("ok")
    );
    assert_eq!(server.await.unwrap().len(), 2);
}

// PRB-20
/// What comes behind the 10 KiB that are read may break off, also right behind them.
#[rstest]
#[case(MAX_OUTPUT)]
#[case(MAX_OUTPUT + 1)]
#[tokio::test]
async fn a_body_that_breaks_off_behind_what_is_read_succeeds(#[case] length: usize) {
    let body = "x".repeat(length);
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n{body}");
    let (outcome, _, _) = once(|stream| answer_once(stream, response)).await;
    assert_eq!(outcome, succeeded(&body[..MAX_OUTPUT]));
}

// PRB-19
#[rstest]
#[case(101)]
#[case(1000)]
#[tokio::test]
async fn many_headers_are_read(#[case] count: usize) {
    let headers = "X-A: b\r\n".repeat(count);
    let response = format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: 2\r\n\r\nok");
    let (outcome, _, _) = once(|stream| answer_once(stream, response)).await;
    assert_eq!(outcome, succeeded("ok"));
}

#[tokio::test]
async fn a_head_without_end_fails() {
    let line = format!("X: {}\r\n", "x".repeat(1000));
    let response = format!("HTTP/1.1 200 OK\r\n{}", line.repeat(99));
    let (outcome, _, address) = once(|stream| answer_once(stream, response)).await;
    let Outcome::Failed(message) = outcome else {
        panic!("not failed: {outcome:?}");
    };
    let start = format!("GET from {address}: ");
    assert!(message.starts_with(&start), "{message}");
    assert!(message.contains("too large"), "{message}");
}

// PRB-20
#[tokio::test]
async fn a_port_nobody_listens_at_fails() {
    let address = closed_port().await;
    let expected = format!("connecting to {address}: Connection refused");
    assert_eq!(
        probe_loopback(plain(address), address, AMPLE).await,
        failed(&expected)
    );
}

/// Bodies of more than is read. The server is closed on in order as long as a fair amount is left to read.
// PRB-20
#[rstest]
#[case::just_longer(10 * 1024 + 1, Some(End::Closed))]
#[case::much_longer(300_000, Some(End::Closed))]
#[case::huge(20_000_000, None)]
#[tokio::test]
async fn a_long_body_succeeds(#[case] length: usize, #[case] expected: Option<End>) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    let response = [head.into_bytes(), vec![b'x'; length]].concat();
    let (outcome, (_, end), _) = once(|stream| answer_once(stream, response)).await;
    assert_eq!(outcome, succeeded(&"x".repeat(MAX_OUTPUT)));
    if let Some(expected) = expected {
        assert_eq!(end, expected);
    }
}

// PRB-20
#[tokio::test]
async fn a_body_that_never_ends_succeeds() {
    let (outcome, (), _) = once(async |mut stream: TcpStream| {
        read_head(&mut stream).await;
        let mut piece = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned();
        while stream.write_all(piece.as_bytes()).await.is_ok() {
            piece = format!("400\r\n{}\r\n", "x".repeat(0x400));
        }
    })
    .await;
    assert_eq!(outcome, succeeded(&"x".repeat(MAX_OUTPUT)));
}

#[tokio::test]
async fn a_body_in_pieces_is_put_together() {
    let (outcome, end, _) = once(async |mut stream: TcpStream| {
        read_head(&mut stream).await;
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n0123456789abcdefghij";
        for byte in response {
            stream.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        read_to_end(&mut stream).await
    })
    .await;
    assert_eq!(outcome, succeeded("0123456789abcdefghij"));
    assert_eq!(end, End::Closed);
}

// PRB-23
#[tokio::test]
async fn a_server_that_keeps_the_connection_is_closed_on() {
    let (outcome, ended, _) = once(async |mut stream: TcpStream| {
        read_head(&mut stream).await;
        stream.write_all(OK.as_bytes()).await.unwrap();
        read_to_end(&mut stream).await
    })
    .await;
    assert_eq!(outcome, succeeded("ok"));
    assert_eq!(ended, End::Closed);
}

/// A server that sends a beginning, and then nothing.
// PRB-20
#[rstest]
#[case("", "GET from ADDRESS: no response within 500ms")]
#[case("HTTP/1.1 200 OK\r\n", "GET from ADDRESS: no response within 500ms")]
#[case(
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
    "GET from ADDRESS: the response did not end within 500ms"
)]
#[tokio::test]
async fn a_response_that_stalls_fails_when_time_is_up(
    #[case] part: &'static str,
    #[case] expected: &str,
) {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let server = serve_scripts(
        listener,
        vec![async move |mut stream: TcpStream| {
            read_head(&mut stream).await;
            stream.write_all(part.as_bytes()).await.unwrap();
            read_to_end(&mut stream).await
        }],
    );
    let expected = expected.replace("ADDRESS", &address.to_string());
    assert_eq!(
        probe_loopback(plain(address), address, BRIEF).await,
        failed(&expected)
    );
    assert_eq!(server.await.unwrap(), [End::Closed]);
}

#[tokio::test]
async fn a_dropped_run_closes_its_connection() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let run = tokio::spawn(probe_loopback(plain(address), address, AMPLE));
    let (mut stream, _) = listener.accept().await.unwrap();
    read_head(&mut stream).await;
    run.abort();
    assert_eq!(read_to_end(&mut stream).await, End::Closed);
}

fn moved(location: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 5\r\n\r\nmoved")
}

// PRB-19
#[tokio::test]
async fn redirects_within_the_host_are_followed() {
    let (other, other_address) = listen_on_any_port("127.0.0.1").await;
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let responses = [
        moved("/b/c"),
        moved("d?e=f"),
        moved(&format!("http://{other_address}/g")),
    ];
    let scripts = responses.map(|response| |stream| answer_once(stream, response));
    let first = serve_scripts(listener, scripts.into());
    let second = serve_scripts(other, vec![|stream| answer_once(stream, OK)]);
    let handler = get(
        Scheme::Http,
        address,
        "/a",
        &[("Host", "a.example"), ("X-A", "1")],
    );
    assert_eq!(
        probe_loopback(handler, address, AMPLE).await,
        succeeded("ok")
    );

    let mut seen = first.await.unwrap();
    seen.append(&mut second.await.unwrap());
    let expected = [
        ("/a", "a.example"),
        ("/b/c", "a.example"),
        ("/b/d?e=f", "a.example"),
        ("/g", &other_address.to_string()),
    ];
    assert_eq!(seen.len(), expected.len());
    for ((request, ended), (path, host)) in seen.iter().zip(expected) {
        let start = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n");
        assert!(request.starts_with(&start), "{start:?}: {request:?}");
        assert!(request.contains("X-A: 1\r\n"));
        assert_eq!(*ended, End::Closed);
    }
}

// PRB-19
#[tokio::test]
async fn the_tenth_redirect_is_a_failure() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let scripts = (0..10)
        .map(|_| |stream| answer_once(stream, moved("/")))
        .collect();
    let server = serve_scripts(listener, scripts);
    let expected = format!("GET from {address}: stopped after 10 redirects");
    assert_eq!(
        probe_loopback(plain(address), address, AMPLE).await,
        failed(&expected)
    );
    assert_eq!(server.await.unwrap().len(), 10);
}

// PRB-19
#[tokio::test]
async fn nine_redirects_are_followed() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let response = |n| if n < 9 { moved("/") } else { OK.to_owned() };
    let scripts = (0..10)
        .map(|n| move |stream| answer_once(stream, response(n)))
        .collect();
    let server = serve_scripts(listener, scripts);
    assert_eq!(
        probe_loopback(plain(address), address, AMPLE).await,
        succeeded("ok")
    );
    assert_eq!(server.await.unwrap().len(), 10);
}

/// A name is not resolved, whatever it would resolve to, and whatever the `Host` header says.
// PRB-19, PRB-24, DEF-21
#[rstest]
#[case("localhost")]
#[case("a.example")]
#[case("127.0.0.2")]
#[tokio::test]
async fn a_redirect_to_another_host_is_not_followed(#[case] host: &str) {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let location = format!("http://{host}:{}/", address.port());
    let server = serve_scripts(
        listener,
        vec![move |stream| answer_once(stream, moved(&location))],
    );
    let handler = get(Scheme::Http, address, "/", &[("Host", "a.example")]);
    let port = address.port();
    let expected = format!("redirect to \"{host}:{port}\" not followed, response body: moved");
    assert_eq!(
        probe_loopback(handler, address, AMPLE).await,
        succeeded(&expected)
    );
    assert_eq!(server.await.unwrap().len(), 1);
}

/// A response that is not read to its end.
fn long_failure() -> String {
    let body = "x".repeat(100_000);
    format!("HTTP/1.1 503 No\r\nContent-Length: 100000\r\n\r\n{body}")
}

/// A server with a certificate of its own making.
fn acceptor(versions: &[&'static rustls::SupportedProtocolVersion]) -> TlsAcceptor {
    acceptor_of(versions, &[])
}

/// One that chooses the first of these protocols that is offered.
fn acceptor_of(
    versions: &[&'static rustls::SupportedProtocolVersion],
    protocols: &[&str],
) -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(["other.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
    config.alpn_protocols = protocols.collect();
    TlsAcceptor::from(Arc::new(config))
}

// PRB-18
#[rstest]
#[case(&rustls::version::TLS12, OK.to_owned(), succeeded("ok"))]
#[case(&rustls::version::TLS13, OK.to_owned(), succeeded("ok"))]
#[case(&rustls::version::TLS13, long_failure(), failed("HTTP probe failed with statuscode: 503"))]
#[tokio::test]
async fn speaks_tls_with_any_certificate(
    #[case] version: &'static rustls::SupportedProtocolVersion,
    #[case] response: String,
    #[case] expected: Outcome,
) {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let acceptor = acceptor(&[version]);
    let server = serve_scripts(
        listener,
        vec![async move |stream: TcpStream| {
            let mut stream = acceptor.accept(stream).await.unwrap();
            let name = stream.get_ref().1.server_name().map(str::to_owned);
            read_head(&mut stream).await;
            stream.write_all(response.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            // An end without TLS's own goodbye would be an error.
            let goodbye = stream.read_to_end(&mut Vec::new()).await.is_ok();
            (name, goodbye, read_to_end(stream.get_mut().0).await)
        }],
    );
    let handler = get(Scheme::Https, address, "/", &[("Host", "a.example")]);
    assert_eq!(probe_loopback(handler, address, AMPLE).await, expected);
    assert_eq!(server.await.unwrap(), [(None, true, End::Closed)]);
}

#[tokio::test]
async fn tls_that_ends_without_a_goodbye_still_ends_a_body() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let acceptor = acceptor(rustls::ALL_VERSIONS);
    let server = serve_scripts(
        listener,
        vec![async move |stream: TcpStream| {
            let mut stream = acceptor.accept(stream).await.unwrap();
            read_head(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\n\r\nok")
                .await
                .unwrap();
            stream.flush().await.unwrap();
            stream.get_mut().0.shutdown().await.unwrap();
            read_to_end(stream.get_mut().0).await
        }],
    );
    let handler = get(Scheme::Https, address, "/", &[]);
    assert_eq!(
        probe_loopback(handler, address, AMPLE).await,
        succeeded("ok")
    );
    assert_eq!(server.await.unwrap(), [End::Closed]);
}

#[tokio::test]
async fn a_redirect_may_change_the_scheme() {
    let (secure, secure_address) = listen_on_any_port("127.0.0.1").await;
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let location = format!("https://{secure_address}/");
    let first = serve_scripts(
        listener,
        vec![move |stream| answer_once(stream, moved(&location))],
    );
    let acceptor = acceptor(rustls::ALL_VERSIONS);
    let second = serve_scripts(
        secure,
        vec![async move |stream| {
            let mut stream = acceptor.accept(stream).await.unwrap();
            read_head(&mut stream).await;
            stream.write_all(OK.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
        }],
    );
    assert_eq!(
        probe_loopback(plain(address), address, AMPLE).await,
        succeeded("ok")
    );
    assert_eq!(first.await.unwrap().len(), 1);
    assert_eq!(second.await.unwrap().len(), 1);
}

#[tokio::test]
async fn tls_to_a_plain_server_fails() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let server = serve_scripts(
        listener,
        vec![async |mut stream: TcpStream| stream.write_all(OK.as_bytes()).await.is_ok()],
    );
    let handler = get(Scheme::Https, address, "/", &[]);
    let Outcome::Failed(message) = probe_loopback(handler, address, AMPLE).await else {
        panic!("not failed");
    };
    let start = format!("TLS handshake with {address}: ");
    assert!(message.starts_with(&start), "{message}");
    assert_eq!(server.await.unwrap(), [true]);
}

#[tokio::test]
async fn a_handshake_that_stalls_fails_when_time_is_up() {
    let (_listener, address) = listen_on_any_port("127.0.0.1").await;
    let handler = get(Scheme::Https, address, "/", &[]);
    let expected = format!("TLS handshake with {address}: not finished within 500ms");
    assert_eq!(
        probe_loopback(handler, address, BRIEF).await,
        failed(&expected)
    );
}

mod over_http2;

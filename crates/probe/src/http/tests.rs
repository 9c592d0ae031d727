//! HTTP probes against real listeners.

mod over_http2;
mod over_tls;
mod redirects;

use std::num::NonZeroU16;

use leadsman_core::podprobe::{Handler, Scheme};
use rstest::rstest;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::tests::{
    AMPLE, BRIEF, End, answer_once, closed_port, listen_on_any_port, probe_loopback, read_head,
    read_to_end, serve_scripts,
};

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

// PRB-27
#[tokio::test]
async fn a_server_that_never_comes_to_its_answer_is_closed_on() {
    let script = async |mut stream: TcpStream| {
        read_head(&mut stream).await;
        let mut sent = 0;
        while stream.write_all(b"HTTP/1.1 103 \r\n\r\n").await.is_ok() {
            sent += 1;
        }
        sent
    };
    let (outcome, sent, address) = once(script).await;
    let Outcome::Failed(message) = outcome else {
        panic!("not failed: {outcome:?}");
    };
    let start = format!("GET from {address}: ");
    assert!(message.starts_with(&start), "{message}");
    assert!(message.contains("has sent more than 256 KiB"), "{message}");
    assert!(sent > 1_000, "{sent}");
}

#[tokio::test]
async fn a_head_without_end_fails() {
    let line = format!("X: {}\r\n", "x".repeat(1000));
    let response = format!("HTTP/1.1 200 OK\r\n{}", line.repeat(20));
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

/// A response that is not read to its end.
fn long_failure() -> String {
    let body = "x".repeat(100_000);
    format!("HTTP/1.1 503 No\r\nContent-Length: 100000\r\n\r\n{body}")
}

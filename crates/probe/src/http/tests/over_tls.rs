//! Probes by HTTPS: any certificate is accepted, and a handshake that fails or stalls ends the run.

use leadsman_core::podprobe::Scheme;
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::redirects::moved;
use super::*;
use crate::tests::{
    AMPLE, BRIEF, End, acceptor_of, answer_once, listen_on_any_port, probe_loopback, read_head,
    read_to_end, serve_scripts,
};

/// A server that negotiates no protocol.
fn acceptor(versions: &[&'static rustls::SupportedProtocolVersion]) -> TlsAcceptor {
    acceptor_of(versions, &[])
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

//! Redirects: which are followed, how many, and where to.

use leadsman_core::podprobe::Scheme;
use rstest::rstest;

use super::*;
use crate::tests::{AMPLE, End, answer_once, listen_on_any_port, probe_loopback, serve_scripts};

pub(super) fn moved(location: &str) -> String {
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

// PRB-19, PRB-20
#[tokio::test]
async fn redirects_are_not_followed_again_for_each_attempt_without_end() {
    let (listener, address) = listen_on_any_port("127.0.0.1").await;
    let responses = (0..12).map(|number| match number {
        9 => CUT_BODY.to_owned(),
        _ => moved("/"),
    });
    let scripts = responses.map(|response| |stream| answer_once(stream, response));
    let server = serve_scripts(listener, scripts.collect());
    let outcome = probe_loopback(plain(address), address, AMPLE).await;
    let message = format!("GET from {address}: stopped after 12 requests");
    assert_eq!(outcome, failed(&message));
    assert_eq!(server.await.unwrap().len(), 12);
}

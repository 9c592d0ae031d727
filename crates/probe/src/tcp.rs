//! `tcpSocket`: the port accepts a connection. Nothing is sent.

use std::net::SocketAddr;
use std::pin::pin;

use leadsman_core::podprobe::{CannotProbe, Outcome};

use crate::dial::Dial;
use crate::socket::{close_gracefully, connect_timed_out, connect_within};
use crate::time_limit::TimeLimit;

/// Runs a probe once.
pub(crate) async fn run_tcp<D: Dial>(
    address: SocketAddr,
    limit: TimeLimit<'_>,
    dialer: &D,
) -> Result<Outcome, CannotProbe> {
    let connecting = pin!(connect_within(dialer, address));
    match limit.await_output(connecting).await {
        Some(Ok(stream)) => {
            // Outside of the timeout: an accepted connection is all that was asked for.
            close_gracefully(stream).await;
            Ok(Outcome::Succeeded(String::new()))
        }
        Some(Err(stop)) => stop.into_result(),
        None => Ok(Outcome::Failed(connect_timed_out(address, limit.timeout))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{
        AMPLE, BRIEF, End, closed_port, listen_on_any_port, probe_loopback, read_to_end,
        send_bytes, serve_scripts,
    };
    use leadsman_core::podprobe::Handler;
    use std::num::NonZeroU16;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpSocket, TcpStream};

    fn socket(address: SocketAddr) -> Handler {
        Handler::TcpSocket {
            port: NonZeroU16::new(address.port()).unwrap(),
        }
    }

    // PRB-21
    #[tokio::test]
    async fn an_open_port_succeeds_and_receives_nothing() {
        let (listener, address) = listen_on_any_port("127.0.0.1").await;
        let server = serve_scripts(
            listener,
            vec![async |mut stream: TcpStream| {
                let mut received = Vec::new();
                let read = stream.read_to_end(&mut received).await;
                (read.map_err(|error| error.kind()), received)
            }],
        );
        let outcome = probe_loopback(socket(address), address, AMPLE).await;
        assert_eq!(outcome, Outcome::Succeeded(String::new()));
        assert_eq!(server.await.unwrap(), [(Ok(0), Vec::new())]);
    }

    // PRB-23
    #[tokio::test]
    async fn a_server_that_greets_is_not_reset() {
        let (listener, address) = listen_on_any_port("127.0.0.1").await;
        let server = serve_scripts(
            listener,
            vec![async |mut stream: TcpStream| {
                stream.write_all(&[b'x'; 9_000]).await.unwrap();
                read_to_end(&mut stream).await
            }],
        );
        let outcome = probe_loopback(socket(address), address, AMPLE).await;
        assert_eq!(outcome, Outcome::Succeeded(String::new()));
        assert_eq!(server.await.unwrap(), [End::Closed]);
    }

    // PRB-23
    #[tokio::test]
    async fn a_server_that_sends_after_the_client_closed_is_not_reset() {
        let (listener, address) = listen_on_any_port("127.0.0.1").await;
        let server = serve_scripts(
            listener,
            vec![async |mut stream: TcpStream| {
                read_to_end(&mut stream).await;
                send_bytes(&mut stream, b"goodbye").await
            }],
        );
        let outcome = probe_loopback(socket(address), address, AMPLE).await;
        assert_eq!(outcome, Outcome::Succeeded(String::new()));
        assert_eq!(server.await.unwrap(), [End::Closed]);
    }

    #[tokio::test]
    async fn a_port_whose_server_accepts_nothing_yet_succeeds() {
        let (_listener, address) = listen_on_any_port("127.0.0.1").await;
        let outcome = probe_loopback(socket(address), address, AMPLE).await;
        assert_eq!(outcome, Outcome::Succeeded(String::new()));
    }

    // PRB-21
    #[tokio::test]
    async fn a_closed_port_fails_at_once() {
        let address = closed_port().await;
        let outcome = probe_loopback(socket(address), address, AMPLE).await;
        let message = format!("connecting to {address}: Connection refused");
        assert_eq!(outcome, Outcome::Failed(message));
    }

    // PRB-21
    #[tokio::test]
    async fn a_port_that_does_not_answer_fails_when_time_is_up() {
        let listener = TcpSocket::new_v4().unwrap();
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        // A full queue drops what comes.
        let mut queued = Vec::new();
        while let Ok(stream) = tokio::time::timeout(BRIEF, TcpStream::connect(address)).await {
            queued.push(stream.unwrap());
        }
        let outcome = probe_loopback(socket(address), address, BRIEF).await;
        let message = format!("connecting to {address}: no answer within 500ms");
        assert_eq!(outcome, Outcome::Failed(message));
    }

    // PRB-24, DEF-7
    #[tokio::test]
    async fn without_an_address_nothing_is_dialled() {
        let target = crate::ProbeTarget::new(&["127.0.0.1".parse().unwrap()], "container");
        let handler = socket("127.0.0.1:1".parse().unwrap());
        let outcome = crate::run_probe(&handler, &target, AMPLE, &crate::tests::NoRuntime).await;
        assert_eq!(outcome, Err(CannotProbe::NoAddress));
    }
}

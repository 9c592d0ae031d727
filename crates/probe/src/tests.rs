//! For tests: real listeners on the loopback interface that answer by script and observe how each connection ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leadsman_core::podprobe::{Handler, Outcome};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::exec::{Exec, ExecError, Execution};
use crate::target::ProbeTarget;

/// Long enough never to be the reason on a busy machine.
pub(crate) const AMPLE: Duration = Duration::from_secs(20);
/// Short, where running out of time is what is tested.
pub(crate) const BRIEF: Duration = Duration::from_millis(500);

/// A runtime that must not be called.
pub(crate) struct NoRuntime;

impl Exec for NoRuntime {
    async fn exec(&self, _: &str, _: &[String], _: Duration) -> Result<Execution, ExecError> {
        Err(ExecError::Runtime("must not be called".to_owned()))
    }
}

/// Runs a probe against an address of the loopback interface.
pub(crate) async fn probe_loopback(
    handler: Handler,
    address: SocketAddr,
    timeout: Duration,
) -> Outcome {
    let target = ProbeTarget::unchecked(address.ip(), "container");
    let result = crate::run_probe(&handler, &target, timeout, &NoRuntime).await;
    result.expect("there are descriptors and an address")
}

/// How a connection ended, on the server's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The client closed in order.
    Closed,
    /// The client reset the connection.
    Reset,
}

/// A listener at a port of the system's choice.
pub(crate) async fn listen_on_any_port(ip: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(format!("{ip}:0")).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An address without a listener.
pub(crate) async fn closed_port() -> SocketAddr {
    listen_on_any_port("127.0.0.1").await.1
}

/// A server over TLS with a certificate of its own making, which chooses the first of these protocols that is offered.
pub(crate) fn acceptor_of(
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

/// Accepts one connection after the other, one for each script, and returns the results of the scripts.
pub(crate) fn serve_scripts<S, F, T>(listener: TcpListener, scripts: Vec<S>) -> JoinHandle<Vec<T>>
where
    S: FnOnce(TcpStream) -> F + Send + 'static,
    F: Future<Output = T> + Send,
    T: Send + 'static,
{
    tokio::spawn(async move {
        let mut results = Vec::new();
        for script in scripts {
            let (stream, _) = listener.accept().await.unwrap();
            results.push(script(stream).await);
        }
        results
    })
}

/// Reads a request's head.
pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    String::from_utf8(read_until(stream, b"\r\n\r\n").await).unwrap()
}

/// Reads up to some bytes, or as much as there is.
pub(crate) async fn read_until(stream: &mut (impl AsyncRead + Unpin), last: &[u8]) -> Vec<u8> {
    let mut read = Vec::new();
    while !read.ends_with(last) {
        match stream.read_u8().await {
            Ok(byte) => read.push(byte),
            Err(_) => break,
        }
    }
    read
}

/// Reads until the client is gone.
pub(crate) async fn read_to_end(stream: &mut TcpStream) -> End {
    let read = stream.read_to_end(&mut Vec::new()).await;
    end_of(read.is_ok(), stream)
}

/// Sends bytes to a client that may be gone already.
pub(crate) async fn send_bytes(stream: &mut TcpStream, bytes: &[u8]) -> End {
    let written = stream.write_all(bytes).await;
    end_of(written.is_ok(), stream)
}

/// A reset that comes after the client's end of stream is no error to a read; the socket still knows.
fn end_of(is_ok: bool, stream: &TcpStream) -> End {
    match stream.take_error() {
        Ok(None) if is_ok => End::Closed,
        _ => End::Reset,
    }
}

/// Answers one request with some bytes and closes, as a server does on `Connection: close`.
pub(crate) async fn answer_once(
    mut stream: TcpStream,
    response: impl AsRef<[u8]>,
) -> (String, End) {
    let request = read_head(&mut stream).await;
    let sent = async {
        stream.write_all(response.as_ref()).await?;
        stream.shutdown().await
    };
    let ended = match sent.await {
        Ok(()) => read_to_end(&mut stream).await,
        Err(_) => End::Reset,
    };
    (request, ended)
}

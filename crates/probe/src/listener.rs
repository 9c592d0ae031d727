//! For tests: real listeners on the loopback interface that answer by script and watch how they are parted from.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leadsman_core::podprobe::{Handler, Outcome};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::exec::{Exec, ExecError, Execution};
use crate::target::Target;

/// Long enough never to be the reason on a busy machine.
pub(crate) const AMPLE: Duration = Duration::from_secs(20);
/// Short, where running out of time is what is tested.
pub(crate) const BRIEF: Duration = Duration::from_millis(150);

/// A runtime nobody asks.
pub(crate) struct NoRuntime;

impl Exec for NoRuntime {
    async fn exec(&self, _: &str, _: &[String], _: Duration) -> Result<Execution, ExecError> {
        Err(ExecError::Runtime("not asked".to_owned()))
    }
}

/// Runs a probe against an address of the loopback interface.
pub(crate) async fn probe(handler: Handler, address: SocketAddr, timeout: Duration) -> Outcome {
    let target = Target::unchecked(address.ip(), "container");
    let result = crate::run(&handler, &target, timeout, &NoRuntime).await;
    result.expect("there are descriptors and an address")
}

/// How a connection ended, as the server saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The client closed in order.
    Closed,
    /// The client reset the connection.
    Reset,
}

/// A listener at a port of the system's choice.
pub(crate) async fn listen(ip: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(format!("{ip}:0")).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An address nobody listens at.
pub(crate) async fn deserted() -> SocketAddr {
    listen("127.0.0.1").await.1
}

/// Accepts one connection after the other, one for each script, and ends with what each of them came to.
pub(crate) fn serve<S, F, T>(listener: TcpListener, scripts: Vec<S>) -> JoinHandle<Vec<T>>
where
    S: FnOnce(TcpStream) -> F + Send + 'static,
    F: Future<Output = T> + Send,
    T: Send + 'static,
{
    tokio::spawn(async move {
        let mut seen = Vec::new();
        for script in scripts {
            let (stream, _) = listener.accept().await.unwrap();
            seen.push(script(stream).await);
        }
        seen
    })
}

/// Reads a request's head.
pub(crate) async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Reads until the client is gone.
pub(crate) async fn end(stream: &mut (impl AsyncRead + Unpin)) -> End {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => End::Reset,
        _ => End::Closed,
    }
}

/// Answers one request with some bytes and closes, as a server does that was told `Connection: close`.
pub(crate) async fn answer<T: AsyncRead + AsyncWrite + Unpin>(
    mut stream: T,
    response: impl AsRef<[u8]>,
) -> (String, End) {
    let request = head(&mut stream).await;
    let sent = async {
        stream.write_all(response.as_ref()).await?;
        stream.shutdown().await
    };
    let ended = match sent.await {
        Ok(()) => end(&mut stream).await,
        Err(_) => End::Reset,
    };
    (request, ended)
}

//! The bytes that a container sends to a probe over HTTP/1.1, HTTP/2 or gRPC: a run ends, with a message of bounded length.
#![no_main]

use std::io::{self, Cursor};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leadsman_core::podprobe::{Handler, HttpGet, Outcome, Scheme};
use leadsman_probe::{Dial, DialError, Exec, ExecError, Execution};
use leadsman_probe::{MAX_OUTPUT, ProbeTarget, run_probe_over};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Runtime};

/// Less than any request has, and more than HTTP/2 sends in front of one. Who answers before is no server.
const BEFORE_REQUEST: usize = 64;

/// Who answers the request of each connection alike.
struct Server<'a>(&'a [u8]);

impl Dial for Server<'_> {
    type Stream = Connection;

    async fn dial(&self, _: SocketAddr) -> Result<Connection, DialError> {
        Ok(Connection {
            received: 0,
            reader: None,
            reply: Cursor::new(self.0.to_vec()),
        })
    }
}

struct Connection {
    received: usize,
    reader: Option<Waker>,
    reply: Cursor<Vec<u8>>,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.received <= BEFORE_REQUEST {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut self.reply).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.received += buf.len();
        self.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

struct NoRuntime;

impl Exec for NoRuntime {
    async fn exec(&self, _: &str, _: &[String], _: Duration) -> Result<Execution, ExecError> {
        unreachable!("no probe here runs a command")
    }
}

thread_local! {
    static TOKIO: Runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((protocol, reply)) = data.split_first() else {
        return;
    };
    let get = |scheme| {
        Handler::HttpGet(HttpGet {
            scheme,
            port: NonZeroU16::MIN,
            path: "/ready".to_owned(),
            headers: Vec::new(),
        })
    };
    let handler = match protocol % 3 {
        0 => get(Scheme::Http),
        1 => get(Scheme::H2c),
        _ => Handler::Grpc {
            port: NonZeroU16::MIN,
            service: String::new(),
            over_tls: false,
        },
    };
    let target = ProbeTarget::unchecked(IpAddr::V4(Ipv4Addr::LOCALHOST), "");
    let server = Server(reply);
    let timeout = Duration::from_secs(1);
    let run = run_probe_over(&handler, &target, timeout, &NoRuntime, &server);
    let outcome = TOKIO.with(|tokio| tokio.block_on(run));
    let (Outcome::Succeeded(message) | Outcome::Failed(message)) =
        outcome.expect("nothing is lacking");
    assert!(message.len() <= MAX_OUTPUT, "{}", message.len());
});

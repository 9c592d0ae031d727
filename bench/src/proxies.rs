//! Proxies that count what passes them: bytes to an API server, calls of a container runtime.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http2::handshake;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::io::InspectReader;
use tokio_util::task::AbortOnDropHandle;

/// A proxy that counts bytes, those of TLS among them. Takes connections until it is dropped.
pub(crate) struct ByteCounter {
    address: SocketAddr,
    passed: Arc<Passed>,
    _serving: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct Passed {
    sent: AtomicU64,
    received: AtomicU64,
}

impl ByteCounter {
    /// Stands before `server`, a URL with host and port.
    pub(crate) async fn start(server: &str) -> Result<Self> {
        let server = server.trim_start_matches("https://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let passed = Arc::new(Passed::default());
        let counts = Arc::clone(&passed);
        let serving = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(pass_bytes(near, server.clone(), Arc::clone(&counts)));
            }
        });
        Ok(Self {
            address,
            passed,
            _serving: AbortOnDropHandle::new(serving),
        })
    }

    /// Its URL.
    pub(crate) fn server(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Bytes sent to and received from the server.
    pub(crate) fn passed(&self) -> [u64; 2] {
        [&self.passed.sent, &self.passed.received].map(|count| count.load(Ordering::Relaxed))
    }
}

async fn pass_bytes(near: TcpStream, server: String, passed: Arc<Passed>) -> Result<()> {
    let far = TcpStream::connect(server).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let mut near = InspectReader::new(near, |read: &[u8]| count(&passed.sent, read));
    let mut far = InspectReader::new(far, |read: &[u8]| count(&passed.received, read));
    tokio::io::copy_bidirectional(&mut near, &mut far).await?;
    Ok(())
}

fn count(bytes: &AtomicU64, read: &[u8]) {
    bytes.fetch_add(read.len() as u64, Ordering::Relaxed);
}

/// Calls by the name of their method.
pub(crate) type Calls = BTreeMap<String, u64>;

/// A proxy in front of a runtime's socket that counts calls. It passes each request on as it comes, answers and trailers
/// too. Takes connections until it is dropped.
pub(crate) struct CallCounter {
    calls: Arc<Mutex<Calls>>,
    _serving: AbortOnDropHandle<()>,
}

impl CallCounter {
    /// Listens at `socket` for the runtime at `behind`.
    pub(crate) async fn start(socket: &Path, behind: &Path) -> Result<Self> {
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("listening at {}", socket.display()))?;
        let runtime = UnixStream::connect(behind)
            .await
            .with_context(|| format!("connecting to {}", behind.display()))?;
        let (runtime, forwarding) = handshake(TokioExecutor::new(), TokioIo::new(runtime)).await?;
        tokio::spawn(forwarding);
        let calls = Arc::<Mutex<Calls>>::default();
        let counts = Arc::clone(&calls);
        let service = service_fn(move |request: Request<Incoming>| {
            let path = request.uri().path();
            let method = path.rsplit('/').next().unwrap_or(path).to_owned();
            *locked(&counts).entry(method).or_default() += 1;
            runtime.clone().send_request(request)
        });
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service.clone()));
            }
        });
        Ok(Self {
            calls,
            _serving: AbortOnDropHandle::new(serving),
        })
    }

    /// Calls since this was last asked.
    pub(crate) fn take(&self) -> Calls {
        std::mem::take(&mut *locked(&self.calls))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn bytes_are_counted_both_ways() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", server.local_addr().unwrap());
        let proxy = ByteCounter::start(&url).await.unwrap();
        let mut near = TcpStream::connect(proxy.address).await.unwrap();
        let (mut far, _) = server.accept().await.unwrap();
        near.write_all(b"12345").await.unwrap();
        let mut five = [0; 5];
        far.read_exact(&mut five).await.unwrap();
        far.write_all(b"123").await.unwrap();
        drop(far);
        let mut answer = String::new();
        near.read_to_string(&mut answer).await.unwrap();
        assert_eq!((answer.as_str(), proxy.passed()), ("123", [5, 3]));
    }
}

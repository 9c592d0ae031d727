//! A proxy that counts the calls of a container runtime.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http2::handshake;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::task::AbortOnDropHandle;

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

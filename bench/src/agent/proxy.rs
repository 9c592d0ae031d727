//! A proxy in front of the container runtime's socket that counts calls by method. It passes each request on as it
//! comes, answers and trailers too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};

/// Calls by the name of their method.
pub(super) type Calls = BTreeMap<String, u64>;

/// A proxy that runs until it is dropped.
pub(super) struct Proxy {
    socket: PathBuf,
    calls: Arc<Mutex<Calls>>,
    serving: AbortHandle,
}

impl Proxy {
    /// Listens at `socket` for the runtime at `behind`.
    pub(super) fn start(socket: PathBuf, behind: &Path) -> Result<Self> {
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("listening at {}", socket.display()))?;
        let calls = Arc::default();
        let serving = tokio::spawn(serve(listener, behind.to_owned(), Arc::clone(&calls)));
        Ok(Self {
            socket,
            calls,
            serving: serving.abort_handle(),
        })
    }

    /// As a client of the runtime names it.
    pub(super) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Calls so far.
    pub(super) fn calls(&self) -> Calls {
        locked(&self.calls).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: UnixListener, behind: PathBuf, calls: Arc<Mutex<Calls>>) {
    // With this task its connections end.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (behind, calls) = (behind.clone(), Arc::clone(&calls));
        connections.spawn(async move {
            if let Err(error) = connection(stream, &behind, calls).await {
                eprintln!("bench: the proxy of the container runtime: {error:#}");
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: UnixStream, behind: &Path, calls: Arc<Mutex<Calls>>) -> Result<()> {
    let runtime = UnixStream::connect(behind)
        .await
        .with_context(|| format!("connecting to {}", behind.display()))?;
    let (sender, forwarding) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(runtime)).await?;
    let service = service_fn(move |request| pass(request, sender.clone(), Arc::clone(&calls)));
    let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // A client that goes away is no failure.
        _ = served => Ok(()),
        ended = forwarding => Ok(ended?),
    }
}

async fn pass(
    request: Request<Incoming>,
    mut runtime: SendRequest<Incoming>,
    calls: Arc<Mutex<Calls>>,
) -> hyper::Result<Response<Incoming>> {
    let path = request.uri().path();
    let method = path.rsplit('/').next().unwrap_or(path).to_owned();
    *locked(&calls).entry(method).or_default() += 1;
    runtime.send_request(request).await
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

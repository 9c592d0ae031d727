//! A way to the API server that loses replies: what was asked is carried out, and the connection breaks before the answer. What a
//! watch shows comes late.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use futures::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use kube::Client;
use kube::client::Body;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

type BoxedBody = UnsyncBoxBody<Bytes, kube::Error>;

/// Parts of the replies to watches that are held back at a time.
const HELD_BACK: usize = 1_000;

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Losses {
    /// Of so many writes one loses its reply.
    pub one_of: usize,
    /// What a watch shows comes so much later, at most.
    pub lag: Duration,
    /// Which writes and how late: the same for the same requests in the same order.
    pub seed: u64,
}

/// Passes on the requests of one account. Ends when dropped.
pub struct LossyLink {
    address: SocketAddr,
    way: Arc<Way>,
    task: JoinHandle<()>,
}

struct Way {
    client: Client,
    losses: Losses,
    random: Mutex<fastrand::Rng>,
    lost: AtomicUsize,
}

impl LossyLink {
    /// A link for the account of this kubeconfig. Whoever goes through it needs no certificate: it speaks HTTP.
    ///
    /// # Errors
    /// When the kubeconfig makes no client, or nothing can listen.
    pub async fn of(kubeconfig: &Path, losses: Losses) -> Result<Self> {
        let options = KubeConfigOptions::default();
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
        config.default_retry = false;
        let way = Arc::new(Way {
            client: Client::try_from(config)?,
            losses,
            random: Mutex::new(fastrand::Rng::with_seed(losses.seed)),
            lost: AtomicUsize::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(serve(listener, Arc::clone(&way)));
        Ok(Self { address, way, task })
    }

    /// Its URL, for a client in the place of the server's.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many replies it has lost.
    pub fn count_lost(&self) -> usize {
        self.way.lost.load(Ordering::Relaxed)
    }
}

impl Drop for LossyLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, way: Arc<Way>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let way = Arc::clone(&way);
        connections.spawn(async move {
            // Nothing may wait here for more to come.
            let _ = stream.set_nodelay(true);
            let pass = service_fn(|request: Request<Incoming>| {
                let way = Arc::clone(&way);
                async move { way.pass(request).await }
            });
            let server = auto::Builder::new(TokioExecutor::new()).http1_only();
            // An error is a reply that is lost, or the other end's.
            let _ = server.serve_connection(TokioIo::new(stream), pass).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

impl Way {
    /// Passes a request on, and its reply back. An error breaks the connection, on which nothing else is under way.
    async fn pass(self: &Arc<Self>, request: Request<Incoming>) -> Result<Response<BoxedBody>> {
        let is_write = request.method() != Method::GET;
        let query = request.uri().query().unwrap_or_default();
        let is_watch = query.split('&').any(|part| part.starts_with("watch="));
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let request = Request::from_parts(head, Body::from(body));
        let reply = self.client.send(request).await?;
        if is_write && self.random().usize(..self.losses.one_of) == 0 {
            self.lost.fetch_add(1, Ordering::Relaxed);
            bail!("its reply is lost");
        }
        let (head, body) = reply.into_parts();
        let body = if is_watch {
            self.hold_back(body)
        } else {
            body.boxed_unsync()
        };
        Ok(Response::from_parts(head, body))
    }

    fn random(&self) -> MutexGuard<'_, fastrand::Rng> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each part of the body that much later, in its order.
    fn hold_back(self: &Arc<Self>, body: Body) -> BoxedBody {
        let way = Arc::clone(self);
        let parts = BodyStream::new(body).map(move |part| {
            let at = Instant::now() + way.losses.lag.mul_f64(way.random().f64());
            async move {
                sleep_until(at).await;
                part
            }
        });
        StreamBody::new(parts.buffered(HELD_BACK)).boxed_unsync()
    }
}

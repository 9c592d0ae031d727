//! A collector of traces for tests: it keeps all spans, and answers as it is told to.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::otlp::{self, ExportTraceServiceRequest};

/// Bytes before a message: whether it is compressed, and its length ("gRPC over HTTP2", Length-Prefixed-Message).
const PREFIX_BYTES: usize = 5;
/// `OK` and `UNAVAILABLE` of gRPC's status codes.
const OK: u32 = 0;
const UNAVAILABLE: u32 = 14;

/// A span as a collector gets it; ids in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectedSpan {
    /// `service.name` of its resource.
    pub service: String,
    /// The trace.
    pub trace: String,
    /// Its id.
    pub id: String,
    /// Its parent's id; empty if it has none.
    pub parent: String,
    /// Its name.
    pub name: String,
    /// When it began.
    pub began: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// The attributes.
    pub attributes: BTreeMap<String, String>,
    /// The message of its status, if that is an error.
    pub error: Option<String>,
}

/// A collector, until it is dropped.
#[derive(Debug)]
pub struct FakeCollector {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<CollectorState>,
    serving: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct CollectorState {
    spans: watch::Sender<Vec<CollectedSpan>>,
    /// How many requests it still answers with `UNAVAILABLE`, and how many it has answered so.
    refusals: watch::Sender<(u32, u32)>,
}

impl Drop for FakeCollector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl FakeCollector {
    /// Listens on the loopback interface.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(CollectorState::default());
        let router = Router::new()
            .route(otlp::PATH.as_str(), post(receive_export))
            .with_state(shared.clone());
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the fake collector of traces ended");
            }
        });
        Ok(Self {
            address,
            shared,
            serving,
        })
    }

    /// Answers the next requests with `UNAVAILABLE`.
    pub fn refuse_next(&self, requests: u32) {
        self.shared
            .refusals
            .send_modify(|refusals| refusals.0 = requests);
    }

    /// The number of requests that were answered with `UNAVAILABLE`.
    pub fn refused_count(&self) -> u32 {
        self.shared.refusals.borrow().1
    }

    /// All spans so far.
    pub fn collected_spans(&self) -> Vec<CollectedSpan> {
        self.shared.spans.borrow().clone()
    }

    /// Waits until the spans are as wanted. The caller has a deadline.
    pub async fn wait_for(&self, wanted: impl Fn(&[CollectedSpan]) -> bool) -> Vec<CollectedSpan> {
        let mut spans = self.shared.spans.subscribe();
        let spans = spans.wait_for(|spans| wanted(spans)).await;
        spans.expect("the sender is ours").clone()
    }
}

async fn receive_export(State(shared): State<Arc<CollectorState>>, body: Bytes) -> Response {
    let mut is_refused = false;
    shared.refusals.send_modify(|(left, done)| {
        is_refused = *left > 0;
        *left -= u32::from(is_refused);
        *done += u32::from(is_refused);
    });
    if is_refused {
        return grpc_response(UNAVAILABLE);
    }
    let message = body.slice(PREFIX_BYTES.min(body.len())..);
    let request = ExportTraceServiceRequest::decode(message).expect("a request of ours");
    let spans = request.collected_spans();
    shared.spans.send_modify(|known| known.extend(spans));
    grpc_response(OK)
}

/// An empty message, and the status.
fn grpc_response(status: u32) -> Response {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(status));
    let message = Full::new(Bytes::from_static(&[0; PREFIX_BYTES]));
    let body = message.with_trailers(async { Some(Ok(trailers)) });
    let mut reply = Response::new(Body::new(body));
    let content_type = HeaderValue::from_static("application/grpc");
    reply.headers_mut().insert("content-type", content_type);
    reply
}

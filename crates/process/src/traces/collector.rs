//! A collector of traces for tests: it keeps all spans, and answers as it is told to.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

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
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::otlp::{self, ExportTraceServiceRequest};

/// Bytes before a message: whether it is compressed, and its length ("gRPC over HTTP2", Length-Prefixed-Message).
const PREFIX_BYTES: usize = 5;
/// `OK` of gRPC's status codes.
const OK: u32 = 0;

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
    refusals: watch::Sender<PlannedRefusals>,
}

#[derive(Debug, Default)]
struct PlannedRefusals {
    /// How many requests it still answers with this status.
    left: u32,
    status: Option<Status>,
    /// How many it has answered so.
    done: u32,
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
        self.refuse_next_with(requests, Status::unavailable("refused"));
    }

    /// Answers the next requests with `RESOURCE_EXHAUSTED`, and asks for this delay if there is one.
    pub fn exhaust_next(&self, requests: u32, delay: Option<Duration>) {
        let info = delay.map(|delay| ErrorDetails::with_retry_info(Some(delay)));
        let details = info.unwrap_or_default();
        let status = Status::with_error_details(Code::ResourceExhausted, "exhausted", details);
        self.refuse_next_with(requests, status);
    }

    fn refuse_next_with(&self, requests: u32, status: Status) {
        self.shared.refusals.send_modify(|refusals| {
            refusals.left = requests;
            refusals.status = Some(status);
        });
    }

    /// The number of requests that were refused.
    pub fn refused_count(&self) -> u32 {
        self.shared.refusals.borrow().done
    }

    /// Waits until so many requests were refused. The caller has a deadline.
    pub async fn wait_for_refusals(&self, count: u32) {
        let mut refusals = self.shared.refusals.subscribe();
        let refusals = refusals.wait_for(|refusals| refusals.done >= count).await;
        refusals.expect("the sender is ours");
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
    let mut refused = None;
    shared.refusals.send_modify(|refusals| {
        if refusals.left > 0 {
            refusals.left -= 1;
            refusals.done += 1;
            refused.clone_from(&refusals.status);
        }
    });
    if let Some(status) = refused {
        return status.into_http();
    }
    let message = body.slice(PREFIX_BYTES.min(body.len())..);
    let request = ExportTraceServiceRequest::decode(message).expect("a request of ours");
    let spans = request.collected_spans();
    shared.spans.send_modify(|known| known.extend(spans));
    empty_response()
}

/// An empty message, and that it is all.
fn empty_response() -> Response {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(OK));
    let message = Full::new(Bytes::from_static(&[0; PREFIX_BYTES]));
    let body = message.with_trailers(async { Some(Ok(trailers)) });
    let mut reply = Response::new(Body::new(body));
    let content_type = HeaderValue::from_static("application/grpc");
    reply.headers_mut().insert("content-type", content_type);
    reply
}

//! A request that is due: how it is sent, and what its reply shows.

use std::time::Duration;

use http::header::ACCEPT;
use http::request::Request as HttpRequest;
use http::{HeaderValue, Method};
use jiff::Timestamp;
use kube::core::request::Error as BuildError;
use leadsman_lease::Leadership;
use leadsman_process::metrics::LatencyHistogram;
use leadsman_process::reply::{Disposition, RetryCause, Verb, not_leading};
use leadsman_process::watch;
use leadsman_process::{ApiServer, clock};
use leadsman_reconcile::{Refusal, WriteKind};
use tokio::time::Instant;

/// The deadline of a request, with what is read back after it. After it the watch shows whether the request was carried out.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks for the metadata of the object that a reply has, and for a `Status` as it is, of which there is nothing less
/// (`NegotiateOutputMediaType`, `k8s.io/apiserver/pkg/endpoints/handlers/negotiation/negotiate.go`).
const METADATA_ONLY: HeaderValue = HeaderValue::from_static(
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json",
);

/// A request that is due, and the events that its replies are for the rules.
pub struct Request<E> {
    /// The kind of the write.
    pub kind: &'static WriteKind,
    /// The request itself. A failure to build it counts as a refusal.
    pub http: Result<HttpRequest<Vec<u8>>, BuildError>,
    /// How to read the object in the reply, if there is one. (The reply to a deletion has none: the watch shows when the object
    /// is gone, in order with later events.)
    pub reply: Option<DecodeReply<E>>,
    /// The request that reads an object of the name that exists already, for a creation.
    pub read_back: Option<HttpRequest<Vec<u8>>>,
    /// How late it is, if that is measured.
    pub measured: Option<Measured>,
    /// The event that it was carried out, which follows the event of the reply.
    pub written: E,
    /// The event that the API server refused it for good, with the reason.
    pub refused: Box<dyn FnOnce(Refusal) -> E + Send>,
}

/// The time at which another process made the change that a request carries out, and the histogram
/// of the time from then until it is carried out.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The time of the change, by the clock of that process.
    pub since: Timestamp,
    /// The histogram.
    pub latency: LatencyHistogram,
}

/// Reads the object in a reply.
pub type DecodeReply<E> = fn(&[u8]) -> serde_json::Result<E>;

/// The outcome of a request.
pub(crate) struct RequestOutcome<E> {
    /// The judgement of the reply.
    pub(crate) disposition: Disposition,
    /// The object as a successful reply showed it.
    pub(crate) observed: Option<E>,
    /// The bytes of the reply.
    pub(crate) reply_bytes: usize,
    pub(crate) written: E,
    pub(crate) refused: Box<dyn FnOnce(Refusal) -> E + Send>,
}

/// Sends a request and waits for the answer: at most [`TIMEOUT`], but no longer than the Lease lasts.
pub(crate) async fn send_request<E>(
    server: &ApiServer,
    request: Request<E>,
    leadership: &watch::Receiver<Leadership>,
) -> RequestOutcome<E> {
    let mut outcome = RequestOutcome {
        disposition: Disposition::Done,
        observed: None,
        reply_bytes: 0,
        written: request.written,
        refused: request.refused,
    };
    let (kind, reply) = (request.kind, request.reply);
    let mut http = match request.http {
        Ok(http) => http,
        Err(error) => {
            let reason = format!("cannot build the request: {error}");
            outcome.disposition = Disposition::Refused { reason };
            return outcome;
        }
    };
    let deadline = clock::monotonic() + TIMEOUT;
    // Nobody reads it, and only of objects can there be less than the whole.
    if reply.is_none() {
        http.headers_mut().insert(ACCEPT, METADATA_ONLY);
    }
    let (disposition, body) = send_http(server, http, leadership, deadline).await;
    outcome.reply_bytes = body.len();
    if disposition == Disposition::Done {
        outcome.observed = decode_reply(reply, &body);
    }
    outcome.disposition = disposition;
    // Another client has created it, or the answer to an earlier attempt was lost: what is due depends on what exists.
    if let (Disposition::AlreadyExists { .. }, Some(get)) =
        (&outcome.disposition, request.read_back)
    {
        match send_http(server, get, leadership, deadline).await {
            (Disposition::Done, body) => outcome.observed = decode_reply(reply, &body),
            (failed, _) => report_unread(kind, &failed),
        }
    }
    outcome
}

/// Reports a missing right where people look, since only somebody who grants it can help. The watch
/// shows the object later.
fn report_unread(kind: &WriteKind, failed: &Disposition) {
    let (write, result, reason) = (kind.label, failed.as_label(), failed.explain_reason());
    let message = "reading back an object that already exists failed, waiting for the watch";
    if let Disposition::Retry {
        cause: RetryCause::NoRight,
        ..
    } = failed
    {
        tracing::warn!(write, result, reason, "{message}");
    } else {
        tracing::debug!(write, result, reason, "{message}");
    }
}

async fn send_http(
    server: &ApiServer,
    request: HttpRequest<Vec<u8>>,
    leadership: &watch::Receiver<Leadership>,
    deadline: Instant,
) -> (Disposition, Vec<u8>) {
    let now = clock::monotonic();
    let time_left = leadership.borrow().time_left(now);
    let Some(time_left) = time_left else {
        return (not_leading(), Vec::new());
    };
    let verb = verb_of_method(request.method());
    let timeout = time_left.min(deadline.saturating_duration_since(now));
    let reply = server.send_request(verb, request, timeout).await;
    (reply.disposition, reply.body)
}

fn verb_of_method(method: &Method) -> Verb {
    match *method {
        Method::GET => Verb::Get,
        Method::POST => Verb::Create,
        Method::DELETE => Verb::Delete,
        _ => Verb::Update,
    }
}

fn decode_reply<E>(decode: Option<DecodeReply<E>>, body: &[u8]) -> Option<E> {
    decode?(body)
        .inspect_err(|error| {
            tracing::warn!(%error, "the reply to a write cannot be decoded, waiting for the watch");
        })
        .ok()
}

#[cfg(test)]
mod tests;

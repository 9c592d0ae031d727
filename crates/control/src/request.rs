//! A request that is due: how it is sent, and what its reply shows.

use std::time::Duration;

use http::header::ACCEPT;
use http::request::Request as HttpRequest;
use http::{HeaderValue, Method};
use jiff::Timestamp;
use leadsman_lease::Leadership;
use leadsman_process::metrics::LatencyHistogram;
use leadsman_process::reply::{Disposition, RetryCause, Verb, not_leading};
use leadsman_process::watch;
use leadsman_process::{ApiServer, clock};
use leadsman_reconcile::{Refusal, WriteKind};
use tokio::time::Instant;

use crate::steps::RequestSteps;

/// The deadline of all steps of a request together. After it the watch shows whether the request was carried out.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks for the metadata of the object that a reply has, and for a `Status` as it is, of which there is nothing less
/// (`NegotiateOutputMediaType`, `k8s.io/apiserver/pkg/endpoints/handlers/negotiation/negotiate.go`).
const METADATA_ONLY: HeaderValue = HeaderValue::from_static(
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json",
);

/// A request that is due, and the events that its replies are for the rules.
pub struct Request<E> {
    /// The requests that are sent.
    pub steps: RequestSteps<E>,
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
    /// The judgement of the last reply.
    pub(crate) disposition: Disposition,
    /// The object as the last successful reply showed it.
    pub(crate) observed: Option<E>,
    /// The bytes of all replies.
    pub(crate) reply_bytes: usize,
    pub(crate) written: E,
    pub(crate) refused: Box<dyn FnOnce(Refusal) -> E + Send>,
}

/// Sends a request and waits for the answer: [`TIMEOUT`] for all its steps, but no longer than the Lease lasts.
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
    let RequestSteps {
        kind,
        requests,
        reply,
        read_back,
    } = request.steps;
    let steps = match requests {
        Ok(steps) => steps,
        Err(error) => {
            let reason = format!("cannot build the request: {error}");
            outcome.disposition = Disposition::Refused { reason };
            return outcome;
        }
    };
    let deadline = clock::monotonic() + TIMEOUT;
    for mut step in steps {
        // Nobody reads it, and only of objects can there be less than the whole.
        if reply.is_none() {
            step.headers_mut().insert(ACCEPT, METADATA_ONLY);
        }
        let (disposition, body) = send_step(server, step, leadership, deadline).await;
        outcome.reply_bytes += body.len();
        outcome.disposition = disposition;
        if outcome.disposition != Disposition::Done {
            break;
        }
        // Kept where a later step fails: this one has changed the object all the same.
        outcome.observed = decode_reply(reply, &body);
    }
    // Another client has created it, or the answer to an earlier attempt was lost: what is due depends on what exists.
    if let (Disposition::AlreadyExists { .. }, Some(get)) = (&outcome.disposition, read_back) {
        match send_step(server, get, leadership, deadline).await {
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

async fn send_step(
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

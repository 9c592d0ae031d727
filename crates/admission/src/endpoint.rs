//! The handling of a request to a webhook.
//!
//! Bounds: the bytes of a body and of all bodies together, and the time until the answer.

use std::collections::HashMap;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use leadsman_process::clock;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::webhook::{Answer, ReviewOutcome, Webhook, no_change};

/// Bytes of a body. An API server takes requests of up to 3 MiB (`MaxRequestBodyBytes` in
/// `k8s.io/apiserver/pkg/server`), and a review of an update has two objects; controller-runtime has the same limit
/// (`pkg/webhook/admission/http.go`).
const LONGEST_BODY: usize = 7 * 1024 * 1024;
/// KiB of all bodies that are being read.
const ALL_BODIES: u32 = 64 * 1024;
/// The timeout of a call if the API server does not send one (`timeoutSeconds` in
/// `k8s.io/api/admissionregistration/v1`).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

const _: () = assert!(LONGEST_BODY / 1024 < ALL_BODIES as usize);

/// All webhooks, by their paths.
pub(crate) struct Endpoints {
    webhooks: HashMap<String, Webhook>,
    bodies: Semaphore,
    metrics: Metrics,
    /// Cancelled when connections have to close after their next answer.
    draining: CancellationToken,
}

impl Endpoints {
    pub(crate) fn new(
        webhooks: Vec<Webhook>,
        metrics: Metrics,
        draining: CancellationToken,
    ) -> Self {
        for webhook in &webhooks {
            metrics.declare(webhook.name);
        }
        let by_path = |webhook: Webhook| (webhook.path(), webhook);
        Self {
            webhooks: webhooks.into_iter().map(by_path).collect(),
            bodies: Semaphore::new(ALL_BODIES as usize),
            metrics,
            draining,
        }
    }

    pub(crate) async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let version = request.version();
        let mut response = self.answer(request).await;
        // A Go client does not repeat a POST that meets the close of its connection (`shouldRetryRequest` in net/http),
        // but an answer that announces the close makes it open another one. HTTP/2 has GOAWAY for that.
        if version < Version::HTTP_2 && self.draining.is_cancelled() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        response
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let began = clock::monotonic();
        let Some(webhook) = self.webhooks.get(request.uri().path()) else {
            return plain(StatusCode::NOT_FOUND, "no webhook has this path");
        };
        if request.method() != Method::POST {
            return plain(
                StatusCode::METHOD_NOT_ALLOWED,
                "send an AdmissionReview by POST",
            );
        }
        let deadline = began + patience(request.uri());
        let (answer, without) = match timeout_at(deadline, self.read(request.into_body())).await {
            Ok(Ok(body)) => (
                webhook.answers.answer(&body, deadline),
                StatusCode::BAD_REQUEST,
            ),
            Ok(Err(Unread::TooLong)) => (
                no_change(ReviewOutcome::Malformed, b""),
                StatusCode::PAYLOAD_TOO_LARGE,
            ),
            Ok(Err(Unread::Broken)) => (
                no_change(ReviewOutcome::Malformed, b""),
                StatusCode::BAD_REQUEST,
            ),
            // Without a uid there can be no answer; `failurePolicy: Ignore` takes an error for "no change".
            Err(_) => (
                no_change(ReviewOutcome::Late, b""),
                StatusCode::SERVICE_UNAVAILABLE,
            ),
        };
        let Answer { outcome, body } = answer;
        self.metrics
            .answered(webhook.name, outcome, clock::monotonic() - began);
        match body {
            Some(body) => json(body),
            None => plain(without, "not an AdmissionReview with a uid"),
        }
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, Unread> {
        let announced = usize::try_from(body.size_hint().upper().unwrap_or(u64::MAX));
        if announced.is_ok_and(|size| size != usize::MAX && size > LONGEST_BODY) {
            return Err(Unread::TooLong);
        }
        let mut body = Limited::new(body, LONGEST_BODY);
        let (mut bytes, mut room) = (Vec::new(), Vec::new());
        // Room is taken for received bytes, not for announced ones: a client that sends nothing blocks nobody.
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                if error.is::<http_body_util::LengthLimitError>() {
                    Unread::TooLong
                } else {
                    Unread::Broken
                }
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let needed = (bytes.len() + data.len()).div_ceil(1024) - bytes.len().div_ceil(1024);
            let needed = u32::try_from(needed).unwrap_or(ALL_BODIES);
            room.push(self.bodies.acquire_many(needed).await);
            bytes.extend_from_slice(&data);
        }
        Ok(bytes.into())
    }
}

enum Unread {
    TooLong,
    Broken,
}

/// How long an answer may take: half of the timeout of the API server, which sends it in whole seconds, rounded up
/// (`timeout` in `k8s.io/apiserver/pkg/admission/plugin/webhook/mutating/dispatcher.go`). The rest is for the way.
fn patience(uri: &Uri) -> Duration {
    let parameters = uri.query().unwrap_or_default().split('&');
    let seconds = parameters
        .filter_map(|parameter| parameter.strip_prefix("timeout="))
        .find_map(|text| text.strip_suffix('s')?.parse().ok());
    let timeout = seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    timeout.min(Duration::from_secs(30)) / 2
}

fn json(body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_takes_half_of_what_the_api_server_waits() {
        let table = [
            ("/a?timeout=1s", 500),
            ("/a?timeout=2s", 1_000),
            ("/a?a=b&timeout=30s", 15_000),
            ("/a?timeout=99999s", 15_000),
            ("/a?timeout=1m0s", 5_000),
            ("/a", 5_000),
        ];
        for (uri, millis) in table {
            let uri: Uri = uri.parse().unwrap();
            assert_eq!(patience(&uri).as_millis(), millis, "{uri}");
        }
    }
}

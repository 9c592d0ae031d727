//! The handling of a request to a webhook.
//!
//! Bounds: the bytes of a body and of all bodies together, and the time until the body is there and until the answer. Both are
//! our own: whoever reaches the port may ask for less time than our configuration gives, and not for more.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes};
use leadsman_process::clock;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::barrier::parse_slot;
use crate::body_room::{BodyRoom, GaveWay, HeldRoom};
use crate::metrics::AdmissionMetrics;
use crate::webhook::{ReviewAnswer, ReviewOutcome, ReviewResult, Terms, Webhook, answer_no_change};

/// Bytes of a body. An API server takes requests of up to 3 MiB (`MaxRequestBodyBytes` in
/// `k8s.io/apiserver/pkg/server`), and a review of an update has two objects; controller-runtime has the same limit
/// (`pkg/webhook/admission/http.go`).
const LONGEST_BODY: usize = 7 * 1024 * 1024;
/// Bytes of all bodies that are being read, or wait for their answer.
const ALL_BODIES: usize = 64 * 1024 * 1024;
/// The timeout of a call while our own configuration gives none (`timeoutSeconds` in
/// `k8s.io/api/admissionregistration/v1`).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

const _: () = assert!(LONGEST_BODY < ALL_BODIES);

/// All webhooks, by their names.
pub(crate) struct Endpoints {
    webhooks: HashMap<&'static str, Webhook>,
    bodies: BodyRoom,
    metrics: AdmissionMetrics,
    /// Cancelled when connections have to close after their next answer.
    draining: CancellationToken,
}

impl Endpoints {
    pub(crate) fn new(
        webhooks: Vec<Webhook>,
        metrics: AdmissionMetrics,
        draining: CancellationToken,
    ) -> Self {
        for webhook in &webhooks {
            metrics.declare_webhook(webhook.name);
        }
        let by_name = |webhook: Webhook| (webhook.name, webhook);
        Self {
            webhooks: webhooks.into_iter().map(by_name).collect(),
            bodies: BodyRoom::new(ALL_BODIES),
            metrics,
            draining,
        }
    }

    /// Answers a request. `on_body` is called when its body is there.
    pub(crate) async fn respond_counted<B>(
        &self,
        request: Request<B>,
        on_body: impl FnOnce(),
    ) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
    {
        let version = request.version();
        let mut response = self.route_request(request, on_body).await;
        // A Go client does not repeat a POST that meets the close of its connection (`shouldRetryRequest` in net/http),
        // but an answer that announces the close makes it open another one. HTTP/2 has GOAWAY for that.
        if version < Version::HTTP_2 && self.draining.is_cancelled() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        response
    }

    async fn route_request<B>(
        &self,
        request: Request<B>,
        on_body: impl FnOnce(),
    ) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
    {
        let began = clock::monotonic();
        // Looked up before the body is read: a stranger costs no room for bodies.
        let path = CallPath::parse_path(request.uri().path());
        let Some(webhook) = self.webhooks.get(path.name) else {
            return text_response(StatusCode::NOT_FOUND, "no webhook has this path");
        };
        let CallPath {
            fails, slot, tag, ..
        } = path;
        if request.method() != Method::POST {
            return text_response(
                StatusCode::METHOD_NOT_ALLOWED,
                "send an AdmissionReview by POST",
            );
        }
        let patience = time_to_answer(request.uri(), webhook.longest_timeout());
        let deadline = began + patience;
        // Outlives the body, whose room it is.
        let mut room = self.bodies.enter();
        let (answer, without) =
            match timeout_at(deadline, read_body(request.into_body(), &mut room)).await {
                Ok(Ok(body)) => {
                    on_body();
                    let terms = Terms {
                        slot,
                        tag,
                        fails,
                        deadline,
                        may_wait: true,
                    };
                    // Half of our half of the timeout; the other half is for the answer by what there is.
                    let limit = began + patience / 2;
                    let answer = answer_review(webhook, &body, terms, (limit, &room)).await;
                    (answer, StatusCode::BAD_REQUEST)
                }
                Ok(Err(UnreadBody::TooLong)) => (
                    answer_no_change(ReviewOutcome::Malformed, b""),
                    StatusCode::PAYLOAD_TOO_LARGE,
                ),
                Ok(Err(UnreadBody::Broken)) => (
                    answer_no_change(ReviewOutcome::Malformed, b""),
                    StatusCode::BAD_REQUEST,
                ),
                // An answer needs the uid. The API server takes an error for "no change" or refuses
                // the object, by its `failurePolicy`.
                Ok(Err(UnreadBody::GaveWay)) | Err(_) => (
                    answer_no_change(ReviewOutcome::Late, b""),
                    StatusCode::SERVICE_UNAVAILABLE,
                ),
            };
        let ReviewAnswer { outcome, body } = answer;
        self.metrics
            .count_answer(webhook.name, outcome, clock::monotonic() - began);
        match body {
            Some(_) if fails && !outcome.is_relied_on() => {
                text_response(StatusCode::SERVICE_UNAVAILABLE, outcome.refusal_message())
            }
            Some(body) => json_response(body),
            // The usual cause under load: the bodies of other calls took the room.
            None if outcome == ReviewOutcome::Late => {
                text_response(without, outcome.refusal_message())
            }
            None if without == StatusCode::PAYLOAD_TOO_LARGE => {
                text_response(without, "the AdmissionReview is longer than 7 MiB")
            }
            None => text_response(without, "not an AdmissionReview with a uid"),
        }
    }
}

async fn read_body<B>(body: B, room: &mut HeldRoom<'_>) -> Result<Bytes, UnreadBody>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    let announced = usize::try_from(body.size_hint().upper().unwrap_or(u64::MAX));
    // A chunked body announces nothing, and is cut by `Limited`.
    if announced.is_ok_and(|size| size != usize::MAX && size > LONGEST_BODY) {
        return Err(UnreadBody::TooLong);
    }
    let mut body = Limited::new(body, LONGEST_BODY);
    let mut bytes = Vec::new();
    loop {
        let frame = tokio::select! {
            // First: a body of which more is always there gives way too.
            biased;
            () = room.asked_to_give_way() => return Err(UnreadBody::GaveWay),
            frame = body.frame() => frame,
        };
        let Some(frame) = frame else {
            room.mark_complete();
            return Ok(bytes.into());
        };
        let frame = frame.map_err(|error| {
            if error.is::<http_body_util::LengthLimitError>() {
                UnreadBody::TooLong
            } else {
                UnreadBody::Broken
            }
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        // Room is taken for received bytes, not for announced ones: a client that sends nothing blocks nobody.
        let grown = room.grow(data.len()).await;
        grown.map_err(|GaveWay| UnreadBody::GaveWay)?;
        bytes.extend_from_slice(&data);
    }
}

/// Answers by the latest snapshot. Where that is too old, another one is waited for: until `limit`, or until another body
/// needs the room of this one.
async fn answer_review(
    webhook: &Webhook,
    body: &[u8],
    mut terms: Terms,
    (limit, room): (Instant, &HeldRoom<'_>),
) -> ReviewAnswer {
    loop {
        terms.may_wait &= clock::monotonic() < limit;
        match webhook.answers.answer_review(body, terms) {
            ReviewResult::Now(answer) => return answer,
            ReviewResult::Outdated(changed) => tokio::select! {
                // First: whoever has to give way is answered by what there is, which is no older for it. Either leads to
                // another answer.
                biased;
                () = room.asked_to_give_way() => terms.may_wait = false,
                // The call is answered by what there is once the limit has passed.
                _passed = timeout_at(limit, changed) => {}
            },
        }
    }
}

/// The path of a call: the webhook's name, whether an error refuses the object, the slot of the barrier, and behind a slot the
/// tag of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallPath<'a> {
    pub(crate) name: &'a str,
    pub(crate) fails: bool,
    pub(crate) slot: Option<u8>,
    pub(crate) tag: Option<u16>,
}

const FAILS: &str = "fail";

impl<'a> CallPath<'a> {
    fn parse_path(path: &'a str) -> Self {
        let path = path.trim_start_matches('/');
        let (name, mut rest) = path.split_once('/').unwrap_or((path, ""));
        let fails = rest.split('/').next() == Some(FAILS);
        if fails {
            rest = rest[FAILS.len()..].trim_start_matches('/');
        }
        let (slot, tag) = rest.split_once('/').unwrap_or((rest, ""));
        let slot = parse_slot(slot);
        let tag = u16::from_str_radix(tag, 16).ok();
        Self {
            name,
            fails,
            slot,
            tag: slot.and(tag),
        }
    }
}

impl fmt::Display for CallPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.name)?;
        if self.fails {
            write!(f, "/{FAILS}")?;
        }
        let Some(slot) = self.slot else {
            return Ok(());
        };
        write!(f, "/{slot}")?;
        self.tag.map_or(Ok(()), |tag| write!(f, "/{tag:04x}"))
    }
}

enum UnreadBody {
    TooLong,
    Broken,
    GaveWay,
}

/// How long an answer may take: half of the timeout of the API server, which sends it in whole seconds, rounded up
/// (`timeout` in `k8s.io/apiserver/pkg/admission/plugin/webhook/mutating/dispatcher.go`), but of no more than our own
/// configuration gives. The rest is for the way.
fn time_to_answer(uri: &Uri, longest: Option<Duration>) -> Duration {
    let parameters = uri.query().unwrap_or_default().split('&');
    let seconds = parameters
        .filter_map(|parameter| parameter.strip_prefix("timeout="))
        .find_map(|text| text.strip_suffix('s')?.parse().ok());
    let longest = longest.unwrap_or(DEFAULT_TIMEOUT);
    seconds.map_or(longest, Duration::from_secs).min(longest) / 2
}

fn json_response(body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn text_response(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_which_webhook_is_called_and_on_which_terms() {
        let table = [
            ("/a.b.c", false, None, None),
            ("/a.b.c/fail", true, None, None),
            ("/a.b.c/7", false, Some(7), None),
            ("/a.b.c/fail/31", true, Some(31), None),
            ("/a.b.c/7/00af", false, Some(7), Some(0xaf)),
            ("/a.b.c/fail/31/ffff", true, Some(31), Some(0xffff)),
        ];
        for (path, fails, slot, tag) in table {
            let expected = CallPath {
                name: "a.b.c",
                fails,
                slot,
                tag,
            };
            assert_eq!(CallPath::parse_path(path), expected);
            assert_eq!(expected.to_string(), path);
        }
        for path in ["/a.b.c/failing/99", "/a.b.c/fail/x/99"] {
            let CallPath { slot, tag, .. } = CallPath::parse_path(path);
            assert_eq!((slot, tag), (None, None));
        }
        assert!(!CallPath::parse_path("/a.b.c/failing").fails);
    }

    #[test]
    fn an_answer_takes_half_of_what_the_api_server_waits_and_no_caller_gets_more() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let table = [
            ("/a?timeout=1s", seconds(3), 500),
            ("/a?timeout=2s", seconds(3), 1_000),
            ("/a?a=b&timeout=30s", seconds(3), 1_500),
            ("/a?timeout=99999s", seconds(3), 1_500),
            ("/a?timeout=1m0s", seconds(3), 1_500),
            ("/a", seconds(3), 1_500),
            // No call is known yet.
            ("/a?timeout=3s", None, 1_500),
            ("/a?timeout=30s", None, 5_000),
        ];
        for (uri, longest, millis) in table {
            let parsed: Uri = uri.parse().unwrap();
            let time = time_to_answer(&parsed, longest);
            assert_eq!(time.as_millis(), millis, "{uri}");
        }
    }
}

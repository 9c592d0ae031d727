//! The meaning of an API server's reply for the request that it answers. Pure.
//!
//! Every request of both processes is judged here (marks, specs, statuses, the Lease, events, lists and watches), by
//! the errors that API servers send (`k8s.io/apimachinery/pkg/api/errors/errors.go`) and not only by the status of
//! HTTP.

use std::error::Error;
use std::iter::successors;
use std::time::Duration;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use hyper_util::client::legacy;
use jiff::Timestamp;
use kube::core::Status;

use crate::backoff::Backoff;

/// The longest `Retry-After` that is obeyed; a longer one is cut to this.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(5);
/// Characters that a message quotes of a reply that is not a `Status`.
const LONGEST_REASON: usize = 300;

/// The verb of a request, as far as the meaning of a reply depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// GET of one object.
    Get,
    /// GET of a list or of a watch.
    ListOrWatch,
    /// POST.
    Create,
    /// PUT or PATCH.
    Update,
    /// DELETE.
    Delete,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The request was carried out.
    Done,
    /// The object to be created exists already: a GET returns it.
    AlreadyExists {
        /// The reply's message.
        reason: String,
    },
    /// The object does not exist, or another one has its name: there is nothing left to write. The watch shows what
    /// exists instead.
    Gone {
        /// The reply's message.
        reason: String,
    },
    /// The resourceVersion or the continue token is older than what the API server still has, or newer than what it has
    /// since etcd was restored: only a new list helps, and it need not wait.
    Expired {
        /// The reply's message.
        reason: String,
    },
    /// The request was not carried out, or whether it was is unknown; later it may be.
    Retry {
        /// Why.
        cause: RetryCause,
        /// How long the API server asked to wait (`Retry-After`).
        after: Option<Duration>,
        /// The reply's message.
        reason: String,
    },
    /// The request will not be carried out, however often it is sent.
    Refused {
        /// The reply's message.
        reason: String,
    },
    /// Likewise: the object would be too large for the API server or for its store. A smaller one may not be.
    TooLarge {
        /// The reply's message.
        reason: String,
    },
}

/// Why a request is to be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryCause {
    /// The object was written since it was read; the watch will show it.
    Conflict,
    /// The API server limits the rate of requests (429).
    Throttled,
    /// The API server, or a proxy before it, is overloaded, starting or stopping.
    Unavailable,
    /// No reply in time, or the connection ended before it.
    NoAnswer,
    /// No connection, or this process may not send it any more: the API server has seen nothing of it.
    NotSent,
    /// The API server failed on it (500).
    InternalError,
    /// The API server does not serve the kind, or the namespace does not exist. Somebody has to create it.
    NoSuchKind,
    /// A 404 that no API server sends: a proxy or a load balancer answered in its place, and says nothing of the object or
    /// its kind. Somebody has to mend the way to the API server.
    NotApiServer,
    /// The account of this process lacks a right, or is not known. Somebody has to grant it.
    NoRight,
    /// Admission forbids it. Somebody has to change the policy, or something else is to be written.
    Denied,
}

impl RetryCause {
    /// The back-off of a write that failed for this cause.
    pub const fn backoff(self) -> Backoff {
        let (first, longest) = match self {
            Self::Conflict => (Duration::from_millis(50), Duration::from_secs(10)),
            // Short, so that what an outage held up is written soon after it.
            Self::Unavailable | Self::NoAnswer | Self::NotSent => {
                (Duration::from_millis(250), Duration::from_secs(5))
            }
            // The delay is that of a whole class of requests in `leadsman-control`, and not of one
            // object alone.
            Self::Throttled => (Duration::from_millis(250), Duration::from_secs(30)),
            Self::InternalError | Self::NoSuchKind | Self::NotApiServer => {
                (Duration::from_millis(250), Duration::from_secs(30))
            }
            // Begins short: an API server that has just started denies everything until its informers have listed the
            // roles (`RBACAuthorizer`, `plugin/pkg/auth/authorizer/rbac/rbac.go`, asks their listers).
            Self::NoRight | Self::Denied => (Duration::from_millis(250), Duration::from_mins(5)),
        };
        Backoff::new(first, longest)
    }
}

impl Disposition {
    /// The values of [`Disposition::as_label`].
    pub const LABELS: [&'static str; 13] = [
        "done",
        "already_exists",
        "gone",
        "refused",
        "conflict",
        "throttled",
        "unavailable",
        "no_answer",
        "internal_error",
        "no_such_kind",
        "not_api_server",
        "no_right",
        "denied",
    ];

    /// The outcome, as metrics label it.
    pub fn as_label(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::AlreadyExists { .. } => "already_exists",
            Self::Gone { .. } | Self::Expired { .. } => "gone",
            Self::Refused { .. } | Self::TooLarge { .. } => "refused",
            Self::Retry { cause, .. } => match cause {
                RetryCause::Conflict => "conflict",
                RetryCause::Throttled => "throttled",
                RetryCause::Unavailable => "unavailable",
                RetryCause::NoAnswer | RetryCause::NotSent => "no_answer",
                RetryCause::InternalError => "internal_error",
                RetryCause::NoSuchKind => "no_such_kind",
                RetryCause::NotApiServer => "not_api_server",
                RetryCause::NoRight => "no_right",
                RetryCause::Denied => "denied",
            },
        }
    }

    /// The reply's message; `None` for a success.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Done => None,
            Self::AlreadyExists { reason }
            | Self::Gone { reason }
            | Self::Expired { reason }
            | Self::Retry { reason, .. }
            | Self::Refused { reason }
            | Self::TooLarge { reason } => Some(reason),
        }
    }

    /// The reply's message, after what to do about it where a right is missing or another server answered. Empty for a
    /// success.
    pub fn explain_reason(&self) -> String {
        let reason = self.reason().unwrap_or_default();
        match self {
            Self::Retry {
                cause: RetryCause::NoRight,
                ..
            } => describe_missing_rights([reason]),
            Self::Retry {
                cause: RetryCause::NotApiServer,
                ..
            } => format!(
                "the reply is not the API server's: check the proxy or load balancer before it, and the address of the API \
                 server in the kubeconfig ({reason})"
            ),
            _ => reason.to_owned(),
        }
    }

    /// How long the API server asked to wait, which concerns all requests of a kind, not only this one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Retry {
                cause: RetryCause::Throttled,
                after,
                ..
            } => Some(after.unwrap_or_default()),
            Self::Retry { after, .. } => *after,
            _ => None,
        }
    }
}

/// The disposition of a request, from its reply.
pub fn judge_reply(verb: Verb, code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Disposition {
    if code.is_success() {
        return Disposition::Done;
    }
    let status = serde_json::from_slice::<Status>(body).ok();
    let after = retry_after(headers, status.as_ref());
    judge_failure(verb, code, after, status.as_ref(), body)
}

/// The disposition of a watch, from its `ERROR` event, which is a reply without headers.
pub fn judge_watch_error(error: &Status) -> Disposition {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let after = retry_after(&HeaderMap::new(), Some(error));
    judge_failure(Verb::ListOrWatch, code, after, Some(error), b"")
}

fn judge_failure(
    verb: Verb,
    code: StatusCode,
    after: Option<Duration>,
    status: Option<&Status>,
    body: &[u8],
) -> Disposition {
    let reason = reply_message(code, status, body);
    if verb == Verb::ListOrWatch
        && (code == StatusCode::GONE || status.is_some_and(is_version_too_large))
    {
        return Disposition::Expired { reason };
    }
    let cause = match (code.as_u16(), verb) {
        // A 404 that is not the API server's is retried for every verb: no watch would show that the object is gone, and its
        // write would never be sent again.
        (404, _) if !is_not_found_of_api_server(status, body) => RetryCause::NotApiServer,
        // Requests of these verbs name no object that could be missing: the resource or the namespace is.
        (404, Verb::Create | Verb::ListOrWatch) => RetryCause::NoSuchKind,
        // A 404 without a `Status` says that nothing serves the path, and nothing of the object.
        (404, Verb::Update) if status.is_none() => RetryCause::NoSuchKind,
        (404 | 410, _) => return Disposition::Gone { reason },
        (409, Verb::Create) => return Disposition::AlreadyExists { reason },
        (409, _) => RetryCause::Conflict,
        (422, _) if status.is_some_and(is_uid_mismatch) => return Disposition::Gone { reason },
        (401, _) => RetryCause::NoRight,
        (403, _) if denied_by_authorizer(&reason).is_some() => RetryCause::NoRight,
        (403, _) => RetryCause::Denied,
        (429, _) => RetryCause::Throttled,
        (500, _) if status.is_some_and(|status| status.reason == "ServerTimeout") => {
            RetryCause::Unavailable
        }
        (413, _) => return Disposition::TooLarge { reason },
        (500, _) if is_too_large_for_store(&reason) => return Disposition::TooLarge { reason },
        (500, _) => RetryCause::InternalError,
        (408 | 501..=599, _) => RetryCause::Unavailable,
        _ => return Disposition::Refused { reason },
    };
    Disposition::Retry {
        cause,
        after,
        reason,
    }
}

/// The disposition of a request whose connection failed.
pub fn no_reply(error: &(dyn Error + 'static)) -> Disposition {
    let mut causes = successors(Some(error), |cause| (*cause).source())
        .filter_map(|cause| cause.downcast_ref::<legacy::Error>());
    // A connection that an earlier request has opened may have carried this one, whatever its error is.
    let cause = if causes.any(legacy::Error::is_connect) {
        RetryCause::NotSent
    } else {
        RetryCause::NoAnswer
    };
    unanswered(cause, error_chain(error))
}

/// An error and its causes, on one line. The crate `probe` has its own: it knows nothing of API servers, nor this crate
/// of probes, and the rules that both could share know no errors of a connection.
pub fn error_chain(error: &dyn Error) -> String {
    let mut message = error.to_string();
    let causes = successors(error.source(), |cause| (*cause).source());
    for cause in causes.map(ToString::to_string) {
        if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

/// The disposition of a request whose deadline came before its reply.
pub fn timed_out(deadline: Duration) -> Disposition {
    let reason = format!("no answer within {:.1} s", deadline.as_secs_f64());
    unanswered(RetryCause::NoAnswer, reason)
}

/// The disposition of a request that is not sent, since another process may lead.
pub fn not_leading() -> Disposition {
    let reason = "not sent: this process is not the leader any more";
    unanswered(RetryCause::NotSent, reason.to_owned())
}

fn unanswered(cause: RetryCause, reason: String) -> Disposition {
    Disposition::Retry {
        cause,
        after: None,
        reason,
    }
}

fn reply_message(code: StatusCode, status: Option<&Status>, body: &[u8]) -> String {
    match status {
        Some(status) if !status.message.is_empty() => status.message.clone(),
        _ => {
            let text: String = String::from_utf8_lossy(body)
                .trim()
                .chars()
                .take(LONGEST_REASON)
                .collect();
            format!("{code} {text}").trim_end().to_owned()
        }
    }
}

/// Whether the object has another uid than the request: a server-side apply with the uid of a predecessor is a 422 with
/// this cause (`ValidateObjectMetaAccessorUpdate`, `k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).
fn is_uid_mismatch(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .into_iter()
        .any(|cause| cause.field == "metadata.uid")
}

/// Whether this is a 404 as an API server sends it. One for an object, a namespace or a subresource names its reason
/// (`NewNotFound` and `NewGenericServerResponse`, `k8s.io/apimachinery/pkg/api/errors/errors.go`). A path that nothing
/// serves gets the text of Go's `http.NotFound` (`k8s.io/apiserver/pkg/util/notfoundhandler/not_found_handler.go`); proxies
/// that are written in Go send the same, and cannot be told from an API server by it.
fn is_not_found_of_api_server(status: Option<&Status>, body: &[u8]) -> bool {
    match status {
        Some(status) => status.reason == "NotFound",
        None => body.trim_ascii() == b"404 page not found",
    }
}

/// Whether the API server has not reached the resourceVersion yet: etcd was restored, or another API server is behind
/// (`isTooLargeResourceVersionError`, `k8s.io/client-go/tools/cache/reflector.go`, which lists again on it).
fn is_version_too_large(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .into_iter()
        .any(|cause| cause.reason == "ResourceVersionTooLarge")
}

/// Whether etcd takes no object of this size, or the API server's client of etcd sends none (`isTooLargeError`,
/// `k8s.io/apiserver/pkg/endpoints/handlers/rest.go`). The API server passes both on as a 500 without a reason of its own.
fn is_too_large_for_store(reason: &str) -> bool {
    reason.contains("etcdserver: request is too large")
        || reason.contains("trying to send message larger than max")
}

/// Whether a webhook that has to be asked could not be (`failurePolicy: Fail`), by the reply's message
/// (`ErrCallingWebhook`, `k8s.io/apiserver/pkg/util/webhook/error.go`; both dispatchers make it an internal error). Webhooks
/// are asked before an object is stored.
pub fn is_webhook_failure(reason: &str) -> bool {
    reason.starts_with("Internal error occurred: failed calling webhook ")
}

/// The right that the authorizer denied: `User "…" cannot list resource "pods" in API group "" at
/// the cluster scope` (`forbiddenMessage`,
/// `k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go`). `None` for a 403 of
/// admission, whose message is its author's.
fn denied_by_authorizer(reason: &str) -> Option<&str> {
    let denied = &reason[reason.find("User \"")?..];
    denied.contains(" cannot ").then_some(denied)
}

/// Says which rights are missing and what to do about it, from the reasons of requests that failed
/// by [`RetryCause::NoRight`].
pub fn describe_missing_rights<'a>(reasons: impl IntoIterator<Item = &'a str>) -> String {
    let mut denied = Vec::new();
    for reason in reasons {
        match denied_by_authorizer(reason) {
            Some(missing) => denied.push(missing),
            // No right is missing then: the API server does not know who asks, whatever is asked.
            None => {
                return format!(
                    "the API server does not accept the credentials of this process ({reason}): check the kubeconfig, or the \
                     token of the pod's service account"
                );
            }
        }
    }
    let denied = denied.join("; ");
    format!(
        "missing right: {denied}. Grant it by RBAC, as leadsman's Helm chart and `leadsman manifests` do"
    )
}

/// The header, or `details.retryAfterSeconds` of the body.
fn retry_after(headers: &HeaderMap, status: Option<&Status>) -> Option<Duration> {
    let body = status
        .and_then(|status| Some(u64::from(status.details.as_ref()?.retry_after_seconds)))
        .filter(|seconds| *seconds > 0);
    let asked = retry_after_header(headers).or(body.map(Duration::from_secs));
    asked.map(|asked| asked.min(LONGEST_RETRY_AFTER))
}

/// Seconds or a date (RFC 9110, 10.2.3). API servers send seconds; a proxy may send a date, which is compared with the
/// `Date` of the same reply, since the clock of this machine may differ.
fn retry_after_header(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok();
    let asked = text(RETRY_AFTER)?;
    if let Ok(seconds) = asked.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let (until, sent) = (http_date(asked)?, http_date(text(DATE)?)?);
    Some(Duration::try_from(until.duration_since(sent)).unwrap_or_default())
}

/// Parses `Fri, 01 Jan 2027 00:00:00 GMT`, the preferred format of RFC 9110, 5.6.7.
fn http_date(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(text)
        .ok()
}

#[cfg(test)]
mod tests;

//! What a reply of the API server means for the request that it answers. Pure.
//!
//! One judge for every request of both processes: marks, specs, statuses, the Lease, events, lists and watches. It
//! follows what API servers send (`k8s.io/apimachinery/pkg/api/errors/errors.go`), not only what HTTP says.

use std::time::Duration;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use kube::core::Status;

use crate::backoff::Backoff;

/// A server may ask for patience, but not for ever.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(5);
/// Of a reply that is not a `Status`, so many characters go into a message.
const LONGEST_REASON: usize = 300;

/// What was asked for, as far as replies differ by it.
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

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It was carried out.
    Done,
    /// The object that was to be created is there already: a GET shows it.
    AlreadyExists {
        /// The reply's words.
        reason: String,
    },
    /// The object does not exist, or another one has its name: there is nothing to write any more. The watch tells
    /// what is there instead.
    Gone {
        /// The reply's words.
        reason: String,
    },
    /// The resource version or the continue token is older than what the API server still knows, or newer than what it
    /// knows after its store was restored: only a new list helps, and it need not wait.
    Expired {
        /// The reply's words.
        reason: String,
    },
    /// It was not carried out, or nobody knows; later it may be.
    Retry {
        /// Why.
        cause: Cause,
        /// Not before this.
        after: Option<Duration>,
        /// The reply's words.
        reason: String,
    },
    /// It will not be carried out, however often it is sent.
    Refused {
        /// The reply's words.
        reason: String,
    },
}

/// Why a request is to be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Something else wrote the object; the watch will show it.
    Conflict,
    /// The API server asks for patience.
    Throttled,
    /// The API server or something on the way to it is not there.
    Unavailable,
    /// No reply in time, or no connection.
    NoAnswer,
    /// The API server broke on it. Objects that are too large come as this as well.
    InternalError,
    /// The API server does not know the kind, or the namespace does not exist. Somebody has to apply it.
    NoSuchKind,
    /// Our account lacks a right. Somebody has to grant it.
    NoRight,
    /// An admission policy forbids it. Somebody has to change the policy, or something else is to be written.
    Denied,
}

impl Cause {
    /// The distances at which a write is repeated.
    pub const fn backoff(self) -> Backoff {
        let (first, longest) = match self {
            Self::Conflict => (Duration::from_millis(50), Duration::from_secs(10)),
            // What an outage held up is written soon after it.
            Self::Unavailable | Self::NoAnswer => {
                (Duration::from_millis(250), Duration::from_secs(5))
            }
            Self::Throttled | Self::InternalError | Self::NoSuchKind => {
                (Duration::from_millis(250), Duration::from_secs(30))
            }
            // API servers that have just started answer so until they have read the roles.
            Self::NoRight | Self::Denied => (Duration::from_millis(250), Duration::from_mins(5)),
        };
        Backoff::new(first, longest)
    }
}

impl Disposition {
    /// The reply's words, if it was not a success.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Done => None,
            Self::AlreadyExists { reason }
            | Self::Gone { reason }
            | Self::Expired { reason }
            | Self::Retry { reason, .. }
            | Self::Refused { reason } => Some(reason),
        }
    }

    /// How long the API server asked to be left alone: for all requests of this kind, not only for this one.
    pub fn slow_down(&self) -> Option<Duration> {
        match self {
            Self::Retry {
                cause: Cause::Throttled,
                after,
                ..
            } => Some(after.unwrap_or_default()),
            Self::Retry { after, .. } => *after,
            _ => None,
        }
    }
}

/// Reads a reply.
pub fn judge(verb: Verb, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Disposition {
    if status.is_success() {
        return Disposition::Done;
    }
    let told = serde_json::from_slice::<Status>(body).ok();
    let after = retry_after(headers, told.as_ref());
    judge_failure(verb, status, after, told.as_ref(), body)
}

/// Reads the `ERROR` event of a watch, which is a reply without headers.
pub fn judge_watch_error(told: &Status) -> Disposition {
    let status = StatusCode::from_u16(told.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let after = retry_after(&HeaderMap::new(), Some(told));
    judge_failure(Verb::ListOrWatch, status, after, Some(told), b"")
}

fn judge_failure(
    verb: Verb,
    status: StatusCode,
    after: Option<Duration>,
    told: Option<&Status>,
    body: &[u8],
) -> Disposition {
    let reason = reason(status, told, body);
    if verb == Verb::ListOrWatch
        && (status == StatusCode::GONE || told.is_some_and(is_from_the_future))
    {
        return Disposition::Expired { reason };
    }
    let cause = match (status.as_u16(), verb) {
        // What was to be created, listed or watched has no name that could be missing.
        (404, Verb::Create | Verb::ListOrWatch) => Cause::NoSuchKind,
        (404 | 410, _) => return Disposition::Gone { reason },
        (409, Verb::Create) => return Disposition::AlreadyExists { reason },
        (409, _) => Cause::Conflict,
        (422, _) if told.is_some_and(names_the_uid) => return Disposition::Gone { reason },
        (401, _) => Cause::NoRight,
        (403, _) if lacks_a_right(&reason) => Cause::NoRight,
        (403, _) => Cause::Denied,
        (429, _) => Cause::Throttled,
        (500, _) if told.is_some_and(|told| told.reason == "ServerTimeout") => Cause::Unavailable,
        (500, _) => Cause::InternalError,
        (408 | 501..=599, _) => Cause::Unavailable,
        _ => return Disposition::Refused { reason },
    };
    Disposition::Retry {
        cause,
        after,
        reason,
    }
}

/// A request that met no reply.
pub fn no_reply(error: &dyn std::error::Error) -> Disposition {
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(deeper) = source {
        let words = deeper.to_string();
        if !reason.contains(&words) {
            reason = format!("{reason}: {words}");
        }
        source = deeper.source();
    }
    no_answer(reason)
}

/// A request whose deadline came before its reply.
pub fn timed_out(deadline: Duration) -> Disposition {
    no_answer(format!("no answer within {:.1} s", deadline.as_secs_f64()))
}

fn no_answer(reason: String) -> Disposition {
    Disposition::Retry {
        cause: Cause::NoAnswer,
        after: None,
        reason,
    }
}

fn reason(status: StatusCode, told: Option<&Status>, body: &[u8]) -> String {
    match told {
        Some(told) if !told.message.is_empty() => told.message.clone(),
        _ => {
            let words = String::from_utf8_lossy(body);
            let words: String = words.trim().chars().take(LONGEST_REASON).collect();
            format!("{status} {words}").trim_end().to_owned()
        }
    }
}

/// A server-side apply with the uid of a predecessor comes back as 422 with this cause.
fn names_the_uid(told: &Status) -> bool {
    let causes = told.details.iter().flat_map(|details| &details.causes);
    causes
        .into_iter()
        .any(|cause| cause.field == "metadata.uid")
}

/// A resource version that the API server has not reached: its store was restored, or another API server is behind
/// (`apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)`, which client-go's reflector re-lists on).
fn is_from_the_future(told: &Status) -> bool {
    let causes = told.details.iter().flat_map(|details| &details.causes);
    causes
        .into_iter()
        .any(|cause| cause.reason == "ResourceVersionTooLarge")
}

/// RBAC's words are `User "…" cannot patch resource …`; an admission policy's are its author's.
fn lacks_a_right(reason: &str) -> bool {
    reason.contains("User \"") && reason.contains(" cannot ")
}

/// The header, or what says the same in the body.
fn retry_after(headers: &HeaderMap, told: Option<&Status>) -> Option<Duration> {
    let body = told
        .and_then(|told| Some(u64::from(told.details.as_ref()?.retry_after_seconds)))
        .filter(|seconds| *seconds > 0);
    let asked = retry_after_header(headers).or(body.map(Duration::from_secs));
    asked.map(|asked| asked.min(LONGEST_RETRY_AFTER))
}

/// Seconds or a date (RFC 9110, 10.2.3). API servers send seconds; proxies on the way may send a date, which counts
/// from the `Date` of the same reply: our own clock may be another.
fn retry_after_header(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok();
    let asked = text(RETRY_AFTER)?;
    if let Ok(seconds) = asked.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let (until, sent) = (http_date(asked)?, http_date(text(DATE)?)?);
    Some(Duration::try_from(until.duration_since(sent)).unwrap_or_default())
}

/// `Fri, 01 Jan 2027 00:00:00 GMT`.
fn http_date(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(text)
        .ok()
}

#[cfg(test)]
mod tests;

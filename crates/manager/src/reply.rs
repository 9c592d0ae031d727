//! What an answer of the API server means for the write that it answers. Pure.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use kube::core::Status;

/// A server may ask for patience, but not for ever.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(5);
/// Of an answer that is not a `Status`, as much goes into a message.
const LONGEST_REASON: usize = 300;

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It was carried out.
    Done,
    /// The object does not exist, or another one bears its name: there is nothing to write any more. The watch tells
    /// what is there instead.
    Gone {
        /// The answer's words.
        reason: String,
    },
    /// It was not carried out, or nobody knows; later it may be.
    Retry {
        /// Why.
        cause: Cause,
        /// Not before this.
        after: Option<Duration>,
        /// The answer's words.
        reason: String,
    },
    /// It will not be carried out, however often it is sent.
    Refused {
        /// The answer's words.
        reason: String,
    },
}

/// Why a write is to be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// Something else wrote the object; the watch will show it.
    Conflict,
    /// The API server asks for patience.
    Throttled,
    /// The API server or something on the way to it is not there.
    Unavailable,
    /// No answer in time, or no connection.
    NoAnswer,
    /// The API server broke on it. Objects that are too large come as this as well.
    InternalError,
    /// Our account lacks a right. Somebody has to grant it.
    NoRight,
    /// An admission policy forbids it. Somebody has to change the policy.
    Denied,
}

impl Cause {
    /// The wait after so many failures in a row: exponential, then scaled by 0.5 to 1, `random` being in 0 to 1.
    pub(crate) fn backoff(self, failures: u32, random: f64) -> Duration {
        let (first, longest) = match self {
            Self::Conflict => (Duration::from_millis(50), Duration::from_secs(10)),
            Self::Throttled | Self::Unavailable | Self::NoAnswer | Self::InternalError => {
                (Duration::from_millis(250), Duration::from_secs(30))
            }
            Self::NoRight | Self::Denied => (Duration::from_secs(10), Duration::from_mins(5)),
        };
        let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(longest).mul_f64(0.5 + random / 2.0)
    }
}

/// Reads an answer.
pub(crate) fn judge(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Verdict {
    if status.is_success() {
        return Verdict::Done;
    }
    let told = serde_json::from_slice::<Status>(body).ok();
    let reason = reason(status, told.as_ref(), body);
    let retry = |cause| Verdict::Retry {
        cause,
        after: retry_after(headers, told.as_ref()),
        reason: reason.clone(),
    };
    match status.as_u16() {
        404 | 410 => Verdict::Gone { reason },
        409 => retry(Cause::Conflict),
        422 if told.as_ref().is_some_and(names_the_uid) => Verdict::Gone { reason },
        401 => retry(Cause::NoRight),
        403 if lacks_a_right(&reason) => retry(Cause::NoRight),
        403 => retry(Cause::Denied),
        429 => retry(Cause::Throttled),
        500 if told
            .as_ref()
            .is_some_and(|told| told.reason == "ServerTimeout") =>
        {
            retry(Cause::Unavailable)
        }
        500 => retry(Cause::InternalError),
        408 | 501..=599 => retry(Cause::Unavailable),
        _ => Verdict::Refused { reason },
    }
}

/// A request that met no answer.
pub(crate) fn unanswered(error: &dyn std::error::Error) -> Verdict {
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(deeper) = source {
        let words = deeper.to_string();
        if !reason.contains(&words) {
            reason = format!("{reason}: {words}");
        }
        source = deeper.source();
    }
    Verdict::Retry {
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

/// RBAC's words are `User "…" cannot patch resource …`; an admission policy's are its author's.
fn lacks_a_right(reason: &str) -> bool {
    reason.contains("User \"") && reason.contains(" cannot ")
}

/// The header, or what says the same in the body. A date in the header is not used by API servers.
fn retry_after(headers: &HeaderMap, told: Option<&Status>) -> Option<Duration> {
    let header = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    let body = told
        .and_then(|told| Some(u64::from(told.details.as_ref()?.retry_after_seconds)))
        .filter(|seconds| *seconds > 0);
    header
        .or(body)
        .map(|seconds| Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn judged(code: u16, retry_after: Option<&str>, body: &str) -> Verdict {
        let mut headers = HeaderMap::new();
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, seconds.parse().unwrap());
        }
        judge(
            StatusCode::from_u16(code).unwrap(),
            &headers,
            body.as_bytes(),
        )
    }

    fn told(reason: &str, message: &str, details: &Value) -> String {
        json!({"kind": "Status", "status": "Failure", "reason": reason, "message": message, "details": details})
            .to_string()
    }

    /// The verdict in one word, with the seconds of patience asked for.
    fn word(verdict: &Verdict) -> (String, u64) {
        match verdict {
            Verdict::Retry { cause, after, .. } => {
                (format!("{cause:?}"), after.unwrap_or_default().as_secs())
            }
            Verdict::Done => ("Done".into(), 0),
            Verdict::Gone { .. } => ("Gone".into(), 0),
            Verdict::Refused { .. } => ("Refused".into(), 0),
        }
    }

    #[test]
    fn answers_are_told_apart() {
        let rbac = r#"pods "a" is forbidden: User "me" cannot patch resource "pods/status" in API group """#;
        let policy = r#"pods "a" is forbidden: ValidatingAdmissionPolicy 'no' denied request: no"#;
        let uid = json!({"causes": [{"field": "metadata.uid", "reason": "FieldValueInvalid"}]});
        let label =
            json!({"causes": [{"field": "metadata.labels", "reason": "FieldValueInvalid"}]});
        let patience = json!({"retryAfterSeconds": 7});
        let none = json!({});
        let table = [
            (200, None, "{}".to_owned(), "Done", 0),
            (201, None, "{}".to_owned(), "Done", 0),
            (400, None, told("BadRequest", "no", &none), "Refused", 0),
            (401, None, told("Unauthorized", "no", &none), "NoRight", 0),
            (403, None, told("Forbidden", rbac, &none), "NoRight", 0),
            (403, None, told("Forbidden", policy, &none), "Denied", 0),
            (404, None, told("NotFound", "no", &none), "Gone", 0),
            (409, None, told("Conflict", "no", &none), "Conflict", 0),
            (413, None, String::new(), "Refused", 0),
            (422, None, told("Invalid", "uid", &uid), "Gone", 0),
            (422, None, told("Invalid", "label", &label), "Refused", 0),
            (429, None, "Too many requests".to_owned(), "Throttled", 0),
            (429, Some("3"), String::new(), "Throttled", 3),
            (429, Some("99999"), String::new(), "Throttled", 300),
            (429, Some("Fri, 1 Jan 2027"), String::new(), "Throttled", 0),
            (429, None, told("", "no", &patience), "Throttled", 7),
            (429, Some("3"), told("", "no", &patience), "Throttled", 3),
            (
                500,
                None,
                told("InternalError", "no", &none),
                "InternalError",
                0,
            ),
            (
                500,
                None,
                told("ServerTimeout", "no", &patience),
                "Unavailable",
                7,
            ),
            (502, None, "<html>".to_owned(), "Unavailable", 0),
            (503, Some("1"), String::new(), "Unavailable", 1),
            (504, None, told("Timeout", "no", &none), "Unavailable", 0),
        ];
        for (code, header, body, expected, seconds) in table {
            let verdict = judged(code, header, &body);
            let expected = (expected.to_owned(), seconds);
            assert_eq!(word(&verdict), expected, "{code} {header:?} {body}");
        }
    }

    #[test]
    fn the_reason_is_the_status_message_or_a_cut_of_the_text() {
        let Verdict::Refused { reason } = judged(413, None, &"é".repeat(1000)) else {
            panic!("413 is final");
        };
        assert_eq!(reason.chars().filter(|c| *c == 'é').count(), LONGEST_REASON);
        let Verdict::Refused { reason } = judged(400, None, &told("", "the words", &json!({})))
        else {
            panic!("400 is final");
        };
        assert_eq!(reason, "the words");
    }

    #[test]
    fn backoff_grows_to_a_limit_and_is_spread() {
        let millis = |failures, random| Cause::Conflict.backoff(failures, random).as_millis();
        assert_eq!(
            [1, 2, 3, 9, 99].map(|n| millis(n, 1.0)),
            [50, 100, 200, 10_000, 10_000]
        );
        assert_eq!(
            [0.0, 0.5, 1.0].map(|random| millis(2, random)),
            [50, 75, 100]
        );
        let no_right = |failures| Cause::NoRight.backoff(failures, 1.0).as_secs();
        assert_eq!([1, 2, 99].map(no_right), [10, 20, 300]);
    }
}

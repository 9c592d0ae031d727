use serde_json::{Value, json};

use super::*;

fn judged(verb: Verb, code: u16, headers: &[(&str, &str)], body: &str) -> Disposition {
    let headers = headers
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect();
    let status = StatusCode::from_u16(code).unwrap();
    judge(verb, status, &headers, body.as_bytes())
}

fn told(reason: &str, message: &str, details: &Value) -> String {
    json!({"kind": "Status", "status": "Failure", "reason": reason, "message": message, "details": details}).to_string()
}

/// The disposition in one word, with the seconds of patience asked for.
fn word(disposition: &Disposition) -> (String, u64) {
    match disposition {
        Disposition::Retry { cause, after, .. } => {
            (format!("{cause:?}"), after.unwrap_or_default().as_secs())
        }
        Disposition::Done => ("Done".into(), 0),
        Disposition::AlreadyExists { .. } => ("AlreadyExists".into(), 0),
        Disposition::Gone { .. } => ("Gone".into(), 0),
        Disposition::Expired { .. } => ("Expired".into(), 0),
        Disposition::Refused { .. } => ("Refused".into(), 0),
    }
}

#[test]
fn replies_to_an_update_are_told_apart() {
    let rbac =
        r#"pods "a" is forbidden: User "me" cannot patch resource "pods/status" in API group """#;
    let policy = r#"pods "a" is forbidden: ValidatingAdmissionPolicy 'no' denied request: no"#;
    let uid = json!({"causes": [{"field": "metadata.uid", "reason": "FieldValueInvalid"}]});
    let label = json!({"causes": [{"field": "metadata.labels", "reason": "FieldValueInvalid"}]});
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
        (429, Some("nonsense"), String::new(), "Throttled", 0),
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
        let header = header.map(|seconds| ("retry-after", seconds));
        let disposition = judged(Verb::Update, code, header.as_slice(), &body);
        let expected = (expected.to_owned(), seconds);
        assert_eq!(word(&disposition), expected, "{code} {header:?} {body}");
    }
}

#[test]
fn the_same_code_means_another_thing_to_another_verb() {
    use Verb::{Create, Delete, Get, ListOrWatch, Update};
    let expired = told("Expired", "too old resource version: 1 (9)", &json!({}));
    let restored = told(
        "Timeout",
        "Too large resource version: 9, current: 1",
        &json!({"retryAfterSeconds": 1, "causes": [{"reason": "ResourceVersionTooLarge"}]}),
    );
    let none = String::new();
    let table = [
        // A POST's 409 names an object that is there, and no newer version of the one that was sent.
        (Create, 409, &none, "AlreadyExists"),
        (Update, 409, &none, "Conflict"),
        (Delete, 409, &none, "Conflict"),
        (Create, 404, &none, "NoSuchKind"),
        (ListOrWatch, 404, &none, "NoSuchKind"),
        (Get, 404, &none, "Gone"),
        (Delete, 404, &none, "Gone"),
        (ListOrWatch, 410, &expired, "Expired"),
        (Update, 410, &expired, "Gone"),
        (ListOrWatch, 504, &restored, "Expired"),
        (Get, 504, &restored, "Unavailable"),
        (ListOrWatch, 504, &none, "Unavailable"),
    ];
    for (verb, code, body, expected) in table {
        let (found, _) = word(&judged(verb, code, &[], body));
        assert_eq!(found, expected, "{verb:?} {code} {body}");
    }
}

#[test]
fn an_error_event_of_a_watch_is_judged_like_a_reply() {
    let table = [
        (410, "Expired", "Expired"),
        (500, "InternalError", "InternalError"),
        (0, "", "InternalError"),
        (429, "TooManyRequests", "Throttled"),
    ];
    for (code, reason, expected) in table {
        let status = json!({"code": code, "reason": reason, "message": "the words"});
        let disposition = judge_watch_error(&serde_json::from_value(status).unwrap());
        assert_eq!(word(&disposition).0, expected, "{code}");
        assert_eq!(disposition.reason(), Some("the words"));
    }
}

#[test]
fn a_date_to_retry_after_counts_from_the_date_of_the_reply() {
    const SENT: &str = "Fri, 01 Jan 2027 00:00:00 GMT";
    let table = [
        ("Fri, 01 Jan 2027 00:00:42 GMT", Some(SENT), 42),
        ("Fri, 01 Jan 2027 09:00:00 GMT", Some(SENT), 300),
        ("Thu, 31 Dec 2026 23:59:59 GMT", Some(SENT), 0),
        ("Fri, 01 Jan 2027 00:00:42 GMT", None, 0),
        ("tomorrow", Some(SENT), 0),
    ];
    for (asked, sent, seconds) in table {
        let sent = sent.map(|sent| ("date", sent));
        let headers: Vec<_> = sent.into_iter().chain([("retry-after", asked)]).collect();
        let disposition = judged(Verb::Update, 503, &headers, "");
        assert_eq!(
            word(&disposition),
            ("Unavailable".into(), seconds),
            "{asked}"
        );
    }
}

#[test]
fn who_asks_for_patience_asks_it_of_all_requests_of_its_kind() {
    let slow = |code, header: Option<&str>| {
        let header = header.map(|seconds| ("retry-after", seconds));
        judged(Verb::Update, code, header.as_slice(), "")
            .slow_down()
            .map(|asked| asked.as_secs())
    };
    assert_eq!(slow(429, None), Some(0));
    assert_eq!(slow(429, Some("3")), Some(3));
    assert_eq!(slow(503, Some("3")), Some(3));
    assert_eq!(slow(503, None), None);
    assert_eq!(slow(409, None), None);
    assert_eq!(slow(200, None), None);
}

#[test]
fn the_reason_is_the_status_message_or_a_cut_of_the_text() {
    let cut = judged(Verb::Update, 413, &[], &"é".repeat(1000));
    let cut = cut.reason().unwrap();
    assert_eq!(cut.chars().filter(|c| *c == 'é').count(), LONGEST_REASON);
    let body = told("", "the words", &json!({}));
    let words = judged(Verb::Update, 400, &[], &body);
    assert_eq!(words.reason(), Some("the words"));
}

#[test]
fn writes_are_repeated_by_their_cause() {
    let millis = |cause: Cause, failures| cause.backoff().delay(failures, 1.0).as_millis();
    let no_right = |failures| millis(Cause::NoRight, failures);
    // API servers that have just started know no rights for seconds; who lacks one is not asked without end.
    assert_eq!([1, 2, 5, 99].map(no_right), [250, 500, 4000, 300_000]);
    let conflict = |failures| millis(Cause::Conflict, failures);
    assert_eq!([1, 2, 99].map(conflict), [50, 100, 10_000]);
    // What an outage held up is written soon after it.
    let no_answer = |failures| millis(Cause::NoAnswer, failures);
    assert_eq!([1, 2, 99].map(no_answer), [250, 500, 5000]);
}

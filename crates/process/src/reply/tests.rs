use serde_json::{Value, json};

use super::*;

fn judged(verb: Verb, code: u16, headers: &[(&str, &str)], body: &str) -> Disposition {
    let headers = headers
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect();
    let code = StatusCode::from_u16(code).unwrap();
    judge_reply(verb, code, &headers, body.as_bytes())
}

fn status(reason: &str, message: &str, details: &Value) -> String {
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
        Disposition::TooLarge { .. } => ("TooLarge".into(), 0),
    }
}

#[test]
fn each_disposition_has_one_of_the_labels() {
    let reason = String::new();
    let retry = |cause| Disposition::Retry {
        cause,
        after: None,
        reason: String::new(),
    };
    let all = [
        Disposition::Done,
        Disposition::AlreadyExists {
            reason: reason.clone(),
        },
        Disposition::Gone {
            reason: reason.clone(),
        },
        Disposition::Refused { reason },
        retry(RetryCause::Conflict),
        retry(RetryCause::Throttled),
        retry(RetryCause::Unavailable),
        retry(RetryCause::NoAnswer),
        retry(RetryCause::InternalError),
        retry(RetryCause::NoSuchKind),
        retry(RetryCause::NotApiServer),
        retry(RetryCause::NoRight),
        retry(RetryCause::Denied),
    ];
    assert_eq!(
        all.map(|disposition| disposition.as_label()),
        Disposition::LABELS
    );
}

#[test]
fn a_missing_right_is_named_with_account_verb_resource_and_scope() {
    let denied = |verb| {
        format!(
            "pods is forbidden: User \"system:serviceaccount:a:b\" cannot {verb} resource \"pods\" in API group \"\" at the \
             cluster scope"
        )
    };
    let (list, watch) = (denied("list"), denied("watch"));
    assert_eq!(
        describe_missing_rights([&*list, &*watch]),
        "missing right: User \"system:serviceaccount:a:b\" cannot list resource \"pods\" in API group \"\" at the cluster \
         scope; User \"system:serviceaccount:a:b\" cannot watch resource \"pods\" in API group \"\" at the cluster scope. \
         Grant it by RBAC, as leadsman's Helm chart and `leadsman manifests` do"
    );
    let unknown = describe_missing_rights(["Unauthorized"]);
    assert!(
        unknown.contains("credentials") && unknown.contains("(Unauthorized)"),
        "{unknown}"
    );
}

#[test]
fn a_404_of_a_proxy_says_whose_reply_it_is_and_what_to_check() {
    let disposition = judged(Verb::Update, 404, &[], "<html>no backend</html>\n");
    assert_eq!(
        disposition.explain_reason(),
        "the reply is not the API server's: check the proxy or load balancer before it, and the address of the API server in \
         the kubeconfig (404 Not Found <html>no backend</html>)"
    );
}

#[test]
fn each_reply_to_an_update_has_its_disposition() {
    let rbac =
        r#"pods "a" is forbidden: User "me" cannot patch resource "pods/status" in API group """#;
    let policy = r#"pods "a" is forbidden: ValidatingAdmissionPolicy 'no' denied request: no"#;
    let uid = json!({"causes": [{"field": "metadata.uid", "reason": "FieldValueInvalid"}]});
    let label = json!({"causes": [{"field": "metadata.labels", "reason": "FieldValueInvalid"}]});
    let retry_after = json!({"retryAfterSeconds": 7});
    let none = json!({});
    let table = [
        (200, None, "{}".to_owned(), "Done", 0),
        (201, None, "{}".to_owned(), "Done", 0),
        (400, None, status("BadRequest", "no", &none), "Refused", 0),
        (401, None, status("Unauthorized", "no", &none), "NoRight", 0),
        (403, None, status("Forbidden", rbac, &none), "NoRight", 0),
        (403, None, status("Forbidden", policy, &none), "Denied", 0),
        (404, None, status("NotFound", "no", &none), "Gone", 0),
        // An API server that does not serve the kind, or a proxy: nothing is said of the object.
        (
            404,
            None,
            "404 page not found\n".to_owned(),
            "NoSuchKind",
            0,
        ),
        (404, None, "<html>".to_owned(), "NotApiServer", 0),
        (404, None, "not found".to_owned(), "NotApiServer", 0),
        (404, None, String::new(), "NotApiServer", 0),
        (404, None, "{}".to_owned(), "NotApiServer", 0),
        (409, None, status("Conflict", "no", &none), "Conflict", 0),
        (413, None, String::new(), "TooLarge", 0),
        (
            500,
            None,
            status("", "etcdserver: request is too large", &none),
            "TooLarge",
            0,
        ),
        (
            500,
            None,
            status(
                "",
                "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2099005 vs. 2097152)",
                &none,
            ),
            "TooLarge",
            0,
        ),
        (
            500,
            None,
            status("", "etcdserver: mvcc: database space exceeded", &none),
            "InternalError",
            0,
        ),
        (422, None, status("Invalid", "uid", &uid), "Gone", 0),
        (422, None, status("Invalid", "label", &label), "Refused", 0),
        (429, None, "Too many requests".to_owned(), "Throttled", 0),
        (429, Some("3"), String::new(), "Throttled", 3),
        (429, Some("99999"), String::new(), "Throttled", 300),
        (429, Some("nonsense"), String::new(), "Throttled", 0),
        (429, None, status("", "no", &retry_after), "Throttled", 7),
        (
            429,
            Some("3"),
            status("", "no", &retry_after),
            "Throttled",
            3,
        ),
        (
            500,
            None,
            status("InternalError", "no", &none),
            "InternalError",
            0,
        ),
        (
            500,
            None,
            status("ServerTimeout", "no", &retry_after),
            "Unavailable",
            7,
        ),
        (502, None, "<html>".to_owned(), "Unavailable", 0),
        (503, Some("1"), String::new(), "Unavailable", 1),
        (504, None, status("Timeout", "no", &none), "Unavailable", 0),
    ];
    for (code, header, body, expected, seconds) in table {
        let header = header.map(|seconds| ("retry-after", seconds));
        let disposition = judged(Verb::Update, code, header.as_slice(), &body);
        let expected = (expected.to_owned(), seconds);
        assert_eq!(word(&disposition), expected, "{code} {header:?} {body}");
    }
}

#[test]
fn the_meaning_of_a_code_depends_on_the_verb() {
    use Verb::{Create, Delete, Get, ListOrWatch, Update};
    let expired = status("Expired", "too old resource version: 1 (9)", &json!({}));
    let restored = status(
        "Timeout",
        "Too large resource version: 9, current: 1",
        &json!({"retryAfterSeconds": 1, "causes": [{"reason": "ResourceVersionTooLarge"}]}),
    );
    let missing = status("NotFound", "no", &json!({}));
    let unserved = "404 page not found\n".to_owned();
    let foreign = "<html>".to_owned();
    let none = String::new();
    let table = [
        // The 409 of a POST says that the object exists, that of a PUT or PATCH that it was written meanwhile.
        (Create, 409, &none, "AlreadyExists"),
        (Update, 409, &none, "Conflict"),
        (Delete, 409, &none, "Conflict"),
        (Create, 404, &missing, "NoSuchKind"),
        (ListOrWatch, 404, &missing, "NoSuchKind"),
        (Get, 404, &missing, "Gone"),
        (Delete, 404, &missing, "Gone"),
        (Create, 404, &unserved, "NoSuchKind"),
        (ListOrWatch, 404, &unserved, "NoSuchKind"),
        // What is not served has no objects.
        (Get, 404, &unserved, "Gone"),
        (Delete, 404, &unserved, "Gone"),
        (Create, 404, &foreign, "NotApiServer"),
        (ListOrWatch, 404, &foreign, "NotApiServer"),
        (Get, 404, &foreign, "NotApiServer"),
        (Delete, 404, &foreign, "NotApiServer"),
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
        let status = json!({"code": code, "reason": reason, "message": "the message"});
        let disposition = judge_watch_error(&serde_json::from_value(status).unwrap());
        assert_eq!(word(&disposition).0, expected, "{code}");
        assert_eq!(disposition.reason(), Some("the message"));
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
fn a_429_or_a_retry_after_slows_all_requests_of_a_kind() {
    let slow = |code, header: Option<&str>| {
        let header = header.map(|seconds| ("retry-after", seconds));
        judged(Verb::Update, code, header.as_slice(), "")
            .retry_after()
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
fn the_reason_is_the_message_of_the_status_or_the_start_of_the_text() {
    let cut = judged(Verb::Update, 413, &[], &"é".repeat(1000));
    let cut = cut.reason().unwrap();
    assert_eq!(cut.chars().filter(|c| *c == 'é').count(), LONGEST_REASON);
    let body = status("", "the message", &json!({}));
    let refused = judged(Verb::Update, 400, &[], &body);
    assert_eq!(refused.reason(), Some("the message"));
}

#[test]
fn the_back_off_of_a_write_depends_on_the_cause() {
    let millis = |cause: RetryCause, failures| cause.backoff().delay(failures, 1.0).as_millis();
    let no_right = |failures| millis(RetryCause::NoRight, failures);
    // Seconds for an API server that has just started, minutes for a right that nobody grants.
    assert_eq!([1, 2, 5, 99].map(no_right), [250, 500, 4000, 300_000]);
    let conflict = |failures| millis(RetryCause::Conflict, failures);
    assert_eq!([1, 2, 99].map(conflict), [50, 100, 10_000]);
    // What an outage held up is written soon after it.
    let no_answer = |failures| millis(RetryCause::NoAnswer, failures);
    assert_eq!([1, 2, 99].map(no_answer), [250, 500, 5000]);
}

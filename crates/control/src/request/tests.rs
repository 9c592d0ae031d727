use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use kube::client::Body;
use leadsman_reconcile::{RightScope, WriteVerb};

use super::*;

static POST: WriteKind = WriteKind {
    label: "create_lamp",
    group: "",
    version: "v1",
    resource: "lamps",
    verb: WriteVerb::Create,
    scope: RightScope::Cluster,
    class: 0,
};

/// An API server that answers each request with this code and body, in turn; and the requests' methods.
fn answering(answers: &[(u16, &str)]) -> (ApiServer, Arc<Mutex<Vec<Method>>>) {
    let answers = answers
        .iter()
        .map(|(code, body)| (*code, (*body).to_owned()));
    let answers: Arc<Mutex<VecDeque<_>>> = Arc::new(Mutex::new(answers.collect()));
    let methods: Arc<Mutex<Vec<Method>>> = Arc::default();
    let seen = Arc::clone(&methods);
    let service = tower::service_fn(move |request: HttpRequest<Body>| {
        seen.lock().unwrap().push(request.method().clone());
        let (code, body) = answers.lock().unwrap().pop_front().unwrap();
        let response = http::Response::builder().status(code);
        let response = response.body(Body::from(body.into_bytes())).unwrap();
        std::future::ready(Ok::<_, Infallible>(response))
    });
    (
        ApiServer::new(kube::Client::new(service, "default")),
        methods,
    )
}

fn http(method: Method) -> HttpRequest<Vec<u8>> {
    let request = HttpRequest::builder().method(method).uri("/api/v1/lamps/a");
    request.body(Vec::new()).unwrap()
}

fn creation() -> Request<String> {
    Request {
        kind: &POST,
        http: Ok(http(Method::POST)),
        reply: Some(|body| serde_json::from_slice(body)),
        read_back: Some(http(Method::GET)),
        measured: None,
        written: "written".to_owned(),
        refused: Box::new(Refusal::into_reason),
    }
}

/// What came of a request, and the methods that were sent.
async fn sent(
    answers: &[(u16, &str)],
    request: Request<String>,
    lasts: Duration,
) -> (Disposition, Option<String>, Vec<Method>) {
    let leads = Leadership::Leads {
        term: 1,
        after_others: false,
        until: clock::monotonic() + lasts,
    };
    let (_sender, leadership) = watch::channel(leads);
    let (server, methods) = answering(answers);
    let outcome = send_request(&server, request, &leadership).await;
    let methods = methods.lock().unwrap().clone();
    (outcome.disposition, outcome.observed, methods)
}

const EXISTS: (u16, &str) = (409, r#"{"reason": "AlreadyExists", "code": 409}"#);
const MINUTE: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn what_is_in_the_way_of_a_creation_is_read_back_as_an_observation() {
    let answers = [EXISTS, (200, r#""theirs""#)];
    let (disposition, observed, methods) = sent(&answers, creation(), MINUTE).await;
    assert!(matches!(disposition, Disposition::AlreadyExists { .. }));
    assert_eq!(observed.as_deref(), Some("theirs"));
    assert_eq!(methods, [Method::POST, Method::GET]);
    // Gone again: whatever is due is found by the next attempt.
    let (disposition, observed, _) = sent(&[EXISTS, (404, "{}")], creation(), MINUTE).await;
    assert!(matches!(disposition, Disposition::AlreadyExists { .. }));
    assert_eq!(observed, None);
}

/// A pod may have 8 MB, which nobody would read.
#[tokio::test(start_paused = true)]
async fn of_a_reply_that_is_not_read_metadata_is_asked_for() {
    for (is_read, expected) in [(true, None), (false, Some(METADATA_ONLY))] {
        let accepted = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&accepted);
        let service = tower::service_fn(move |request: HttpRequest<Body>| {
            *seen.lock().unwrap() = request.headers().get(ACCEPT).cloned();
            let response = http::Response::new(Body::from(br#""a""#.to_vec()));
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let server = ApiServer::new(kube::Client::new(service, "default"));
        let leads = Leadership::Leads {
            term: 1,
            after_others: false,
            until: clock::monotonic() + MINUTE,
        };
        let (_sender, leadership) = watch::channel(leads);
        let mut request = creation();
        request.reply = request.reply.filter(|_| is_read);
        let outcome = send_request(&server, request, &leadership).await;
        assert_eq!(outcome.observed.is_some(), is_read);
        assert_eq!(*accepted.lock().unwrap(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_when_the_lease_is_about_to_end() {
    let lasts = Duration::from_millis(100);
    let (disposition, _, methods) = sent(&[], creation(), lasts).await;
    assert!(disposition.reason().unwrap().contains("not the leader"));
    assert!(methods.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_creation_and_what_is_read_back_share_one_deadline() {
    const SLOW: Duration = Duration::from_secs(6);
    let service = tower::service_fn(|_: HttpRequest<Body>| async {
        tokio::time::sleep(SLOW).await;
        let (code, body) = EXISTS;
        let response = http::Response::builder().status(code);
        response.body(Body::from(body.as_bytes().to_vec()))
    });
    let server = ApiServer::new(kube::Client::new(service, "default"));
    let leads = Leadership::Leads {
        term: 1,
        after_others: false,
        until: clock::monotonic() + MINUTE,
    };
    let (_sender, leadership) = watch::channel(leads);
    let start = clock::monotonic();
    let outcome = send_request(&server, creation(), &leadership).await;
    assert!(matches!(
        outcome.disposition,
        Disposition::AlreadyExists { .. }
    ));
    assert_eq!(outcome.observed, None);
    assert_eq!(start.elapsed(), TIMEOUT);
}

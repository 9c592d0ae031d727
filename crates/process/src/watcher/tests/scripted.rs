//! An API server that answers requests one after the other, as a script says, and what a watch makes of it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use http::request::Request as HttpRequest;
use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::watcher::*;

/// What the API server does with a request.
pub(super) enum Answer {
    /// Answers so.
    Reply(u16, Value),
    /// Answers so, with this Retry-After.
    After(u16, &'static str),
    /// Accepts a watch, and sends these pieces of text after so many seconds each; then ends it, or falls silent.
    Stream(Vec<(u64, String)>, End),
    /// Never answers.
    Hang,
    /// Refuses the connection.
    Refuse,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum End {
    Ended,
    Broken,
    Silent,
}

/// The script, what was asked at which second, and what is answered once the script is over.
#[derive(Clone)]
pub(super) struct ScriptedApi {
    pub(super) script: Arc<Mutex<VecDeque<Answer>>>,
    asked: Arc<Mutex<Vec<String>>>,
    pub(super) server: ApiServer,
    pub(super) start: Instant,
}

pub(super) type Events = Pin<Box<dyn Stream<Item = WatchEvent<Node>> + Send>>;

pub(super) fn scripted_watch(script: Vec<Answer>) -> (ScriptedApi, Events) {
    let script = Arc::new(Mutex::new(VecDeque::from(script)));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let start = clock::monotonic();
    let (answers, requests) = (Arc::clone(&script), Arc::clone(&asked));
    let service = tower::service_fn(move |request: HttpRequest<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let second = start.elapsed().as_secs_f64();
        requests
            .lock()
            .unwrap()
            .push(format!("{second:.0}: {}", describe_query(&query)));
        let answer = answers.lock().unwrap().pop_front();
        answer_with(answer.unwrap_or(Answer::Refuse))
    });
    let server = ApiServer::new(Client::new(service, "default"));
    let target = ListTarget::all_of::<Node>().with_page_size(2);
    let random = fastrand::Rng::with_seed(7);
    let events = list_and_watch::<Node>(
        server.clone(),
        target,
        |text| serde_json::from_str(text),
        random,
    )
    .boxed();
    let api = ScriptedApi {
        script,
        asked,
        server,
        start,
    };
    (api, events)
}

/// `list`, `list from TOKEN`, `list of 1` or `watch from VERSION`.
fn describe_query(query: &str) -> String {
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    match (value("watch"), value("continue")) {
        (Some(_), _) => format!("watch from {}", value("resourceVersion").unwrap()),
        (None, Some(token)) => format!("list from {token}"),
        (None, None) if value("limit") == Some("1") => "list of 1".to_owned(),
        (None, None) => "list".to_owned(),
    }
}

async fn answer_with(answer: Answer) -> Result<Response<axum::body::Body>, std::io::Error> {
    let (code, after, body) = match answer {
        Answer::Hang => return std::future::pending().await,
        Answer::Refuse => return Err(std::io::ErrorKind::ConnectionRefused.into()),
        Answer::Reply(code, value) => (code, None, axum::body::Body::from(value.to_string())),
        Answer::After(code, after) => (code, Some(after), axum::body::Body::empty()),
        Answer::Stream(lines, end) => {
            let lines = futures::stream::iter(lines).then(async |(seconds, line)| {
                sleep(Duration::from_secs(seconds)).await;
                Ok::<_, std::io::Error>(line)
            });
            let end = futures::stream::once(async move {
                match end {
                    End::Ended => Ok(String::new()),
                    End::Broken => Err(std::io::ErrorKind::ConnectionReset.into()),
                    End::Silent => std::future::pending().await,
                }
            });
            let body = axum::body::Body::from_stream(lines.chain(end).boxed());
            (200, None, body)
        }
    };
    let mut response = Response::builder().status(StatusCode::from_u16(code).unwrap());
    if let Some(after) = after {
        response = response.header("retry-after", after);
    }
    Ok(response.body(body).unwrap())
}

pub(super) fn page(names: &[&str], token: &str, version: &str) -> Answer {
    let items: Vec<_> = names.iter().map(|name| node(name, version)).collect();
    let metadata = json!({"continue": token, "resourceVersion": version});
    Answer::Reply(200, json!({"metadata": metadata, "items": items}))
}

pub(super) fn node(name: &str, version: &str) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": version}})
}

pub(super) fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

pub(super) fn changed(name: &str, version: &str) -> String {
    line("MODIFIED", &node(name, version))
}

pub(super) fn expired() -> Value {
    json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (9)"})
}

impl ScriptedApi {
    /// The events of the watch until this second, each with the second.
    pub(super) async fn until(&self, events: &mut Events, second: u64) -> Vec<String> {
        let mut lines = Vec::new();
        let end = self.start + Duration::from_secs(second);
        while let Ok(Some(event)) = tokio::time::timeout_at(end, events.next()).await {
            let at = self.start.elapsed().as_secs_f64();
            let name = |node: Node| node.metadata.name.unwrap_or_default();
            let text = match event {
                WatchEvent::ListStarted => "list started".to_owned(),
                WatchEvent::ListPage(version) => format!("page of {version}"),
                WatchEvent::ListItem(node) => format!("item {}", name(node)),
                WatchEvent::ListComplete(_) => "list complete".to_owned(),
                WatchEvent::Following => "following".to_owned(),
                WatchEvent::Changed(node) => format!("changed {}", name(node)),
                WatchEvent::Deleted(node) => format!("deleted {}", name(node)),
                WatchEvent::Failed(failure) => format!("failed {:?}", failure.phase),
            };
            lines.push(format!("{at:.0}: {text}"));
        }
        lines
    }

    /// Another request that begins now and comes to this at once.
    pub(super) fn record(&self, disposition: &Disposition) {
        let now = clock::monotonic();
        self.server
            .reachability
            .record_outcome(disposition, now, now);
    }

    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

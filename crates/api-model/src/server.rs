//! The API server: its state, and the way of a request through it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::Stream;
use futures::future::{BoxFuture, FutureExt, pending};
use futures::stream;
use http::header::{CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use jiff::Timestamp;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::Service;

use crate::admission::Admission;
use crate::link::{Answered, FaultlessLink, Link, RequestFacts, RequestFate};
use crate::request::Call;
use crate::resource::Resource;
use crate::status::Failure;
use crate::store::{Author, ObjectStore, StoredChange, encode};

/// The model of an API server. Clones are the same server.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    store: Mutex<ObjectStore>,
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    admission: Mutex<Option<Arc<dyn Admission>>>,
    /// The version after each change: a channel for each watch with its kind, in the order in which they began, and one for
    /// whoever watches all. Not one for all watches of a kind: tokio wakes the receivers of one channel in a random order
    /// (`BigNotify`, `tokio/src/sync/watch.rs`).
    changed: Mutex<Vec<(usize, watch::Sender<u64>)>>,
    any_changed: watch::Sender<u64>,
    requests: AtomicU64,
}

/// One client's way to the server.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) server: ApiServer,
    pub(crate) link: Arc<dyn Link>,
    user: String,
    /// Whether the client is gone: nothing of it arrives, and nothing reaches it.
    is_gone: Arc<AtomicBool>,
}

/// The bytes of a reply.
pub(crate) type Frames = Pin<Box<dyn Stream<Item = io::Result<Frame<Bytes>>> + Send>>;
type Reply = Response<StreamBody<Frames>>;

/// A reply before its headers.
pub(crate) enum Answer {
    Whole {
        code: StatusCode,
        body: Bytes,
        /// The version of the last change that the request made.
        changed: Option<u64>,
    },
    Stream(Frames),
}

impl Answer {
    pub(crate) fn of_read(body: Bytes) -> Self {
        Self::Whole {
            code: StatusCode::OK,
            body,
            changed: None,
        }
    }
}

impl ApiServer {
    /// A server without objects. `seed` makes uids and generated names; `clock` says what time it is.
    pub fn new(
        resources: Vec<Resource>,
        seed: u64,
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                store: Mutex::new(ObjectStore::new(resources, seed)),
                clock: Box::new(clock),
                admission: Mutex::new(None),
                changed: Mutex::default(),
                any_changed: watch::Sender::new(0),
                requests: AtomicU64::new(0),
            }),
        }
    }

    /// A client whose requests arrive and are answered at once. To be called on a runtime.
    pub fn client(&self, user: &str) -> kube::Client {
        self.client_with(user, Arc::new(FaultlessLink))
    }

    /// A client whose requests go by this link. To be called on a runtime.
    pub fn client_with(&self, user: &str, link: Arc<dyn Link>) -> kube::Client {
        let connection = Connection {
            server: self.clone(),
            link,
            user: user.to_owned(),
            is_gone: Arc::default(),
        };
        kube::Client::new(connection, "default")
    }

    /// The stored objects of a kind, by its plural or full name (`podprobemarkers.apps.kruise.io`).
    pub fn objects(&self, name: &str) -> Vec<Arc<Value>> {
        let store = self.store();
        let resources = store.resources.iter();
        // The kind comes first: a harness asks often, and there may be many objects of other kinds.
        let is_named: Vec<_> = resources
            .map(|resource| resource.plural == name || resource.full_name() == name)
            .collect();
        let objects = store.objects.iter().filter(|(key, _)| is_named[key.kind]);
        objects
            .map(|(_, object)| Arc::clone(&object.value))
            .collect()
    }

    /// A stored object.
    pub fn object(&self, name: &str, namespace: &str, object: &str) -> Option<Arc<Value>> {
        self.objects(name).into_iter().find(|value| {
            let metadata = &value["metadata"];
            metadata["name"] == object
                && metadata["namespace"].as_str().unwrap_or_default() == namespace
        })
    }

    /// All changes that were ever stored, from a place in their order, also those that a restore took back.
    pub fn changes(&self, from: usize) -> Vec<Arc<StoredChange>> {
        let store = self.store();
        store.story.get(from..).unwrap_or_default().to_vec()
    }

    /// The version of the last change, each time that there is one.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.shared.any_changed.subscribe()
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        self.store().version
    }

    /// Has webhooks answered. Without it none is called.
    pub fn set_webhooks(&self, admission: Arc<dyn Admission>) {
        *lock(&self.shared.admission) = Some(admission);
    }

    /// Serves a kind, or serves it by another schema.
    pub fn serve(&self, resource: Resource) {
        self.store().serve(resource);
    }

    /// Goes back to a version, as etcd does when it is restored from a snapshot: later versions are handed out anew, and all
    /// watches end.
    pub fn restore(&self, version: u64) {
        self.store().restore(version);
        self.wake_watches(None);
    }

    /// Goes on by so many versions, as if others had stored as many changes.
    pub fn skip_versions(&self, count: u64) {
        self.store().version += count;
    }

    /// Forgets how earlier versions were: watches and lists from before get a 410.
    pub fn compact(&self, version: u64) {
        let mut store = self.store();
        store.compacted = store.compacted.max(version.min(store.version));
    }

    /// Forgets all changes before a time, and deletes the Events that were written last before it, as their leases end; returns by
    /// how many places fewer [`Self::changes`] counts from then on. Nothing may be restored to before, and no watch may be so late.
    pub fn forget_before(&self, time: Timestamp) -> usize {
        let mut store = self.store();
        let by = Author {
            user: "etcd",
            verb: "delete",
            subresource: "",
            request: None,
            time: self.now(),
        };
        store.delete_events_before(time, by);
        let forgotten = store.forget_before(time);
        drop(store);
        self.wake_watches(None);
        forgotten
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, ObjectStore> {
        lock(&self.shared.store)
    }

    pub(crate) fn admission(&self) -> Option<Arc<dyn Admission>> {
        lock(&self.shared.admission).clone()
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.shared.clock)()
    }

    /// The time as objects have it.
    pub(crate) fn time(&self) -> Value {
        json!(self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }

    pub(crate) fn subscribe_to_kind(&self, kind: usize) -> watch::Receiver<u64> {
        let (sender, receiver) = watch::channel(0);
        let mut changed = lock(&self.shared.changed);
        changed.retain(|(_, sender)| !sender.is_closed());
        changed.push((kind, sender));
        receiver
    }

    /// Wakes who watches a kind, or everybody.
    pub(crate) fn wake_watches(&self, kind: Option<usize>) {
        let version = self.store().version;
        for (of, sender) in lock(&self.shared.changed).iter() {
            if kind.is_none_or(|kind| kind == *of) {
                sender.send_replace(version);
            }
        }
        self.shared.any_changed.send_replace(version);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A test that failed while it held the lock has failed already.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service<Request<Body>> for Connection {
    type Response = Reply;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Reply>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.clone().exchange(request).boxed()
    }
}

impl Connection {
    async fn exchange(self, request: Request<Body>) -> io::Result<Reply> {
        let (parts, body) = request.into_parts();
        let Some(mut call) = Call::read(&self.user, &parts) else {
            return Ok(self.not_served());
        };
        let body = body.collect().await.map_err(io::Error::other)?;
        call.body = body.to_bytes();
        if self.is_gone() {
            return pending().await;
        }
        call.number = self.server.shared.requests.fetch_add(1, Ordering::Relaxed);
        let facts = call.facts(call.number);
        let fate = self.link.fate(&facts);
        match fate {
            RequestFate::LoseRequest => return Err(broken_connection()),
            RequestFate::HangRequest => return pending().await,
            RequestFate::Refuse(code, retry_after) => {
                let failure = refusal(code, retry_after);
                self.report(&facts, fate, code, None, &failure.message);
                return Ok(self.fail(&failure));
            }
            RequestFate::CrashBefore => {
                self.is_gone.store(true, Ordering::Relaxed);
                return pending().await;
            }
            RequestFate::CrashAfter => self.is_gone.store(true, Ordering::Relaxed),
            _ => {}
        }
        let reply = if let RequestFate::Delay(delay) = fate {
            let connection = self.clone();
            // A request on its way arrives, whether or not somebody waits for its answer.
            let served = tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                connection.serve(call, &facts, fate).await
            });
            served.await.map_err(io::Error::other)?
        } else {
            self.serve(call, &facts, fate).await
        };
        match fate {
            RequestFate::LoseReply => Err(broken_connection()),
            RequestFate::HangReply | RequestFate::CrashAfter => pending().await,
            _ if self.is_gone() => pending().await,
            RequestFate::DelayReply(delay) => {
                tokio::time::sleep(delay).await;
                Ok(reply)
            }
            _ => Ok(reply),
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed) || self.link.is_dead()
    }

    /// The version that this client's watch cache has reached.
    pub(crate) fn cached_version(&self, store: &ObjectStore, resource: &str) -> u64 {
        let lag = self.link.replica_lag(resource);
        store.version.saturating_sub(lag).max(store.compacted)
    }

    /// The version that a read without a resourceVersion shows.
    pub(crate) fn read_version(&self, store: &ObjectStore, resource: &str) -> u64 {
        if self.link.reads_are_stale() {
            self.cached_version(store, resource)
        } else {
            store.version
        }
    }

    async fn serve(&self, call: Call, facts: &RequestFacts, fate: RequestFate) -> Reply {
        let kind = self
            .server
            .store()
            .find_kind(&call.group, &call.version, &call.plural);
        let Some(kind) = kind else {
            self.report(facts, fate, StatusCode::NOT_FOUND, None, "not served");
            // A group of CRDs has no server that would know it without them.
            let is_known = self.server.store().serves_group(&call.group, &call.version);
            return if is_known {
                self.fail(&not_found())
            } else {
                self.not_served()
            };
        };
        let wants_metadata = call.wants_metadata();
        match self.answer(kind, call).await {
            Ok(Answer::Whole {
                code,
                body,
                changed,
            }) => {
                self.report(facts, fate, code, changed, "");
                let body = if wants_metadata {
                    metadata_only(&body)
                } else {
                    body
                };
                self.reply(code, whole(body))
            }
            Ok(Answer::Stream(frames)) => {
                self.report(facts, fate, StatusCode::OK, None, "");
                self.reply(StatusCode::OK, frames)
            }
            Err(failure) => {
                self.report(facts, fate, failure.status_code(), None, &failure.message);
                self.fail(&failure)
            }
        }
    }

    fn report(
        &self,
        facts: &RequestFacts,
        fate: RequestFate,
        status: StatusCode,
        changed: Option<u64>,
        reason: &str,
    ) {
        let reason = reason.to_owned();
        let outcome = Answered {
            status,
            changed,
            reason,
            fate,
        };
        self.link.answered(facts, &outcome);
    }

    async fn answer(&self, kind: usize, call: Call) -> Result<Answer, Failure> {
        let resource = Arc::clone(&self.server.store().resources[kind]);
        let has_endpoint = match call.subresource.as_deref() {
            None => resource.namespaced || call.namespace.is_empty(),
            Some("status") => resource.has_status,
            Some(_) => false,
        };
        if !has_endpoint {
            return Err(not_found());
        }
        if !call.accepts_json() {
            let message = "only the following media types are accepted: application/json, application/yaml, \
                application/vnd.kubernetes.protobuf";
            return Err(Failure::new(406, "NotAcceptable", message));
        }
        let needs_namespace = resource.namespaced && !call.name.is_empty() || call.verb == "create";
        if resource.namespaced && needs_namespace && call.namespace.is_empty() {
            return Err(method_not_allowed());
        }
        match call.verb {
            "get" => self.get(kind, &call),
            "list" => self.list(kind, &call),
            "watch" => self.watch(kind, &call),
            "create" => self.create(kind, &resource, &call).await,
            "update" | "patch" => self.update(kind, &resource, &call).await,
            "delete" if call.subresource.is_none() => self.delete(kind, &resource, &call).await,
            _ => Err(method_not_allowed()),
        }
    }

    fn reply(&self, code: StatusCode, frames: Frames) -> Reply {
        let mut reply = Response::new(StreamBody::new(frames));
        *reply.status_mut() = code;
        let headers = reply.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let date = self
            .server
            .now()
            .strftime("%a, %d %b %Y %H:%M:%S GMT")
            .to_string();
        if let Ok(date) = HeaderValue::from_str(&date) {
            headers.insert(DATE, date);
        }
        reply
    }

    fn fail(&self, failure: &Failure) -> Reply {
        let mut reply = self.reply(failure.status_code(), whole(encode(&failure.to_status())));
        let after = failure
            .details
            .as_ref()
            .and_then(|details| details["retryAfterSeconds"].as_u64());
        if let Some(after) = after {
            reply
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(after));
        }
        reply
    }

    /// A path that nothing is served at (`util/notfoundhandler/not_found_handler.go` of k8s.io/apiserver).
    fn not_served(&self) -> Reply {
        let body = whole(Bytes::from_static(b"404 page not found\n"));
        let mut reply = self.reply(StatusCode::NOT_FOUND, body);
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        reply.headers_mut().insert(CONTENT_TYPE, text);
        reply
    }
}

/// A failure as an API server in trouble sends it.
fn refusal(code: StatusCode, retry_after: Option<u32>) -> Failure {
    let (reason, message) = match code.as_u16() {
        429 => (
            "TooManyRequests",
            "Too many requests, please try again later.",
        ),
        500 => (
            "InternalError",
            "Internal error occurred: etcdserver: leader changed",
        ),
        503 => ("ServiceUnavailable", "apiserver is shutting down"),
        504 => (
            "Timeout",
            "Timeout: request did not complete within requested timeout",
        ),
        403 => ("Forbidden", "forbidden: User \"model\" cannot do this"),
        401 => ("Unauthorized", "Unauthorized"),
        409 => (
            "Conflict",
            "Operation cannot be fulfilled: the object has been modified",
        ),
        _ => ("", "refused"),
    };
    let failure = Failure::new(code.as_u16(), reason, message);
    match retry_after {
        Some(seconds) => failure.with(json!({"retryAfterSeconds": seconds})),
        None => failure,
    }
}

fn not_found() -> Failure {
    let message = "the server could not find the requested resource";
    Failure::new(404, "NotFound", message).with(json!({}))
}

fn method_not_allowed() -> Failure {
    let message = "the server does not allow this method on the requested resource";
    Failure::new(405, "MethodNotAllowed", message).with(json!({}))
}

fn broken_connection() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "connection reset by peer")
}

fn whole(body: Bytes) -> Frames {
    Box::pin(stream::iter([Ok(Frame::data(body))]))
}

/// An object or a list with the metadata of its objects alone. A `Status` stays as it is.
fn metadata_only(body: &Bytes) -> Bytes {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return body.clone();
    };
    if value["kind"] == "Status" {
        return body.clone();
    }
    encode(&match value.get("items") {
        Some(Value::Array(items)) => json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": value["metadata"],
            "items": items.iter().map(partial_metadata).collect::<Vec<_>>(),
        }),
        _ => partial_metadata(&value),
    })
}

pub(crate) fn partial_metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
    })
}

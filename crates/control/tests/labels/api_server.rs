//! An API server of a few kinds: lists, watches, merge patches of labels, and POSTs that nobody keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Body as Reply;
use futures::StreamExt;
use futures::stream::unfold;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use leadsman_process::watch;
use serde_json::{Value, json};
use tokio::time::sleep;

/// The objects of one namespace, and what was asked.
#[derive(Clone)]
pub(crate) struct Cluster {
    state: Arc<Mutex<ClusterState>>,
    changed: Arc<watch::Sender<()>>,
}

#[derive(Default)]
struct ClusterState {
    version: u64,
    /// By resource and name.
    objects: BTreeMap<(String, String), Value>,
    /// Each change with its version and resource.
    changes: Vec<(u64, String, Value)>,
    unknown: BTreeSet<String>,
    hanging: Option<Method>,
    asked: Vec<String>,
    in_flight: usize,
    most_in_flight: usize,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::new(watch::Sender::new(())),
        }
    }
}

impl Cluster {
    pub(crate) fn client(&self) -> Client {
        let cluster = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let cluster = cluster.clone();
            async move { Ok::<_, Infallible>(cluster.answer_request(request).await) }
        });
        Client::new(service, "default")
    }

    fn lock_state(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().unwrap()
    }

    /// Creates or replaces an object. A pod may name the `ConfigMap` that its colour is from.
    pub(crate) fn put_object(
        &self,
        resource: &str,
        name: &str,
        labels: &[(&str, &str)],
        from: Option<&str>,
    ) {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        let annotations: BTreeMap<_, _> = from
            .map(|from| ("example.com/colour-from", from))
            .into_iter()
            .collect();
        self.store_object(
            resource,
            name,
            json!({"metadata": {
                "name": name, "namespace": "shop", "labels": labels, "annotations": annotations,
            }}),
        );
    }

    fn store_object(&self, resource: &str, name: &str, mut object: Value) -> Value {
        let mut state = self.lock_state();
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let key = (resource.to_owned(), name.to_owned());
        state.objects.insert(key, object.clone());
        state
            .changes
            .push((version, resource.to_owned(), object.clone()));
        self.changed.send_replace(());
        object
    }

    pub(crate) fn label_value(&self, resource: &str, name: &str, key: &str) -> Option<String> {
        let state = self.lock_state();
        let object = state.objects.get(&(resource.to_owned(), name.to_owned()))?;
        Some(object["metadata"]["labels"].get(key)?.as_str()?.to_owned())
    }

    /// Does not know a resource.
    pub(crate) fn forget_resource(&self, resource: &str) {
        let mut state = self.lock_state();
        state.unknown.insert(resource.to_owned());
    }

    /// Knows it again.
    pub(crate) fn serve_resource(&self, resource: &str) {
        self.lock_state().unknown.remove(resource);
    }

    /// Never answers requests of a method.
    pub(crate) fn hang_on_method(&self, method: &str) {
        self.lock_state().hanging = method.parse().ok();
    }

    /// How many requests there were of a kind: `PATCH`, `LIST pods`, `WATCH pods`.
    pub(crate) fn count_requests(&self, kind: &str) -> usize {
        let state = self.lock_state();
        let asked = state.asked.iter().filter(|asked| asked.starts_with(kind));
        asked.count()
    }

    /// The addresses of the requests of a kind, with their queries.
    pub(crate) fn request_addresses(&self, kind: &str) -> Vec<String> {
        let prefix = format!("{kind} ");
        let state = self.lock_state();
        let asked = state.asked.iter();
        let addresses = asked.filter_map(|asked| asked.strip_prefix(&prefix));
        addresses.map(str::to_owned).collect()
    }

    /// The most writes that there were at a time.
    pub(crate) fn most_in_flight(&self) -> usize {
        self.lock_state().most_in_flight
    }

    async fn answer_request(&self, request: Request<Body>) -> Response<Reply> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let query = head.uri.query().unwrap_or_default();
        // `/api/v1/…` and `/apis/GROUP/VERSION/…`.
        let version = if path.starts_with("/apis/") { 4 } else { 3 };
        let parts: Vec<_> = path.split('/').skip(version).collect();
        let (resource, name) = match parts[..] {
            [resource] | [_, _, resource] => (resource, None),
            [_, _, resource, name, ..] => (resource, Some(name)),
            _ => return json_reply(404, &json!({"code": 404, "reason": "NotFound"})),
        };
        let is_watch = query.split('&').any(|pair| pair.starts_with("watch="));
        let verb = match head.method {
            Method::GET if is_watch => "WATCH",
            Method::GET => "LIST",
            ref other => other.as_str(),
        };
        let hangs = {
            let mut state = self.lock_state();
            state.asked.push(format!("{verb} {resource} {}", head.uri));
            if state.unknown.contains(resource) {
                return json_reply(
                    404,
                    &json!({"code": 404, "reason": "NotFound", "message": "no such resource"}),
                );
            }
            state.hanging.as_ref() == Some(&head.method)
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        match verb {
            "WATCH" => {
                let from = query
                    .split('&')
                    .find_map(|pair| pair.strip_prefix("resourceVersion="));
                self.watch_objects(resource.to_owned(), from.unwrap().parse().unwrap())
            }
            "LIST" => self.list_objects(resource),
            _ => {
                let body = body.collect_bytes().await.unwrap();
                self.write_object(resource, name, &body).await
            }
        }
    }

    fn list_objects(&self, resource: &str) -> Response<Reply> {
        let state = self.lock_state();
        let objects = state.objects.iter().filter(|((of, _), _)| of == resource);
        let items: Vec<_> = objects.map(|(_, object)| object).collect();
        let metadata = json!({"resourceVersion": state.version.to_string()});
        json_reply(200, &json!({"metadata": metadata, "items": items}))
    }

    fn watch_objects(&self, resource: String, from: u64) -> Response<Reply> {
        let wakes = self.changed.subscribe();
        let state = Arc::clone(&self.state);
        let lines = unfold((from, wakes), move |(seen, mut wakes)| {
            let (state, resource) = (Arc::clone(&state), resource.clone());
            async move {
                loop {
                    let next = {
                        let state = state.lock().unwrap();
                        let mut changes = state.changes.iter();
                        let next =
                            changes.find(|(version, of, _)| *version > seen && *of == resource);
                        next.map(|(version, _, object)| (*version, object.clone()))
                    };
                    if let Some((version, object)) = next {
                        // In the order of API servers: what comes before the type is not parsed straight from the wire.
                        let line = format!(
                            "{{\"type\": \"MODIFIED\", \"object\": {object}}}
"
                        );
                        return Some((Ok::<_, Infallible>(line), (version, wakes)));
                    }
                    wakes.changed().await.ok()?;
                }
            }
        });
        Response::new(Reply::from_stream(lines.boxed()))
    }

    async fn write_object(
        &self,
        resource: &str,
        name: Option<&str>,
        body: &[u8],
    ) -> Response<Reply> {
        {
            let mut state = self.lock_state();
            state.in_flight += 1;
            state.most_in_flight = state.most_in_flight.max(state.in_flight);
        }
        sleep(Duration::from_millis(100)).await;
        self.lock_state().in_flight -= 1;
        let Some(name) = name else {
            return json_reply(201, &json!({}));
        };
        let patch: Value = serde_json::from_slice(body).unwrap();
        let mut object = {
            let state = self.lock_state();
            let key = (resource.to_owned(), name.to_owned());
            state.objects[&key].clone()
        };
        let labels = object["metadata"]["labels"].as_object_mut().unwrap();
        for (key, value) in patch["metadata"]["labels"].as_object().unwrap() {
            if value.is_null() {
                labels.remove(key);
            } else {
                labels.insert(key.clone(), value.clone());
            }
        }
        json_reply(200, &self.store_object(resource, name, object))
    }
}

fn json_reply(code: u16, body: &Value) -> Response<Reply> {
    let body = Reply::from(body.to_string());
    Response::builder().status(code).body(body).unwrap()
}

//! What each verb answers. `tests/api/api_model.rs` compares more of it with the real thing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::{
    Admission, Answered, ApiServer, EventFate, FaultlessLink, Link, RequestFacts, RequestFate,
    Variables, WebhookCall, kubernetes,
};

mod deletions;
mod faults;
mod patches;
mod reads;
mod webhooks;
mod writes;

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json";
const MAPS: &str = "/api/v1/namespaces/n/configmaps";
const PODS: &str = "/api/v1/namespaces/n/pods";
const THINGS: &str = "/apis/example.com/v1/namespaces/n/things";

/// A server with a namespace and a CRD, and a client of it.
struct Bed {
    server: ApiServer,
    client: Client,
}

impl Bed {
    async fn raise() -> Self {
        Self::with_link(Arc::new(FaultlessLink)).await
    }

    async fn with_link(link: Arc<dyn Link>) -> Self {
        let server = ApiServer::new(kubernetes(), 7, || Timestamp::UNIX_EPOCH);
        let client = server.client("setup");
        let setup = Self {
            server: server.clone(),
            client,
        };
        setup
            .post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}}))
            .await;
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        setup.post(crds, &crd()).await;
        let client = server.client_with("tester", link);
        Self { server, client }
    }

    async fn send(&self, method: Method, path: &str, form: &str, body: &Value) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", form);
        let sent = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let response = self
            .client
            .send(request.body(Body::from(sent)).unwrap())
            .await
            .unwrap();
        let code = response.status().as_u16();
        let answer = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&answer).into_owned();
        (
            code,
            serde_json::from_slice(&answer).unwrap_or(Value::String(text)),
        )
    }

    async fn post(&self, path: &str, object: &Value) -> (u16, Value) {
        self.send(Method::POST, path, JSON, object).await
    }

    async fn put(&self, path: &str, object: &Value) -> (u16, Value) {
        self.send(Method::PUT, path, JSON, object).await
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send(Method::GET, path, "", &Value::Null).await
    }

    async fn patch(&self, path: &str, form: &str, change: &Value) -> (u16, Value) {
        self.send(Method::PATCH, path, form, change).await
    }

    async fn delete(&self, path: &str, options: &Value) -> (u16, Value) {
        self.send(Method::DELETE, path, JSON, options).await
    }

    async fn make_map(&self, name: &str, data: Value) -> Value {
        let map = json!({"metadata": {"name": name}, "data": data});
        let (code, made) = self.post(MAPS, &map).await;
        assert_eq!(code, 201, "{made}");
        made
    }

    async fn make_pod(&self, name: &str) -> Value {
        let spec = json!({"nodeName": "one", "containers": [{"name": "main", "image": "a:1"}]});
        let (code, made) = self
            .post(PODS, &json!({"metadata": {"name": name}, "spec": spec}))
            .await;
        assert_eq!(code, 201, "{made}");
        made
    }

    /// The events of a watch that ends by itself.
    async fn watch(&self, path: &str) -> Vec<(String, Value)> {
        let (_, body) = self.get(path).await;
        let text = match body {
            Value::String(text) => text,
            Value::Null => String::new(),
            one => one.to_string(),
        };
        let events = text.lines().map(|line| {
            let mut event: Value = serde_json::from_str(line).unwrap();
            let kind = event["type"].as_str().unwrap().to_owned();
            (kind, event["object"].take())
        });
        events.collect()
    }
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

/// A kind with a list by name, a default and a status.
fn crd() -> Value {
    let item = json!({"type": "object", "properties": {
        "name": {"type": "string"}, "size": {"type": "integer", "default": 3},
    }});
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "items": {
                "type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            },
            "mode": {"type": "string", "default": "fast"},
        }},
        "status": {"type": "object", "properties": {"seen": {"type": "integer"}}},
    }});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

fn thing(spec: &Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": spec})
}

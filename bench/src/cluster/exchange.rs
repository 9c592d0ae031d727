//! A request as data: what the world is made with, and what a floor sends.

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use http::Request;
use kube::Client;
use kube::client::Body;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::progress::Step;

/// As many requests as the manager, and as all agents together, have on their way at once.
const AT_ONCE: usize = 32;
/// Requests on their way at once while the world is made.
const WHILE_MAKING: usize = 48;

/// One request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Exchange {
    method: String,
    path: String,
    content_type: String,
    body: String,
}

impl Exchange {
    fn new(method: &str, kind: &str, path: &str, query: &str, body: &Value) -> Self {
        Self {
            method: method.to_owned(),
            path: format!("{path}?{query}"),
            content_type: format!("application/{kind}"),
            body: body.to_string(),
        }
    }

    /// Makes an object, as this field manager.
    pub(super) fn create(collection: &str, manager: &str, body: &Value) -> Self {
        Self::new(
            "POST",
            "json",
            collection,
            &format!("fieldManager={manager}"),
            body,
        )
    }

    pub(super) fn replace(path: &str, manager: &str, body: &Value) -> Self {
        Self::new(
            "PUT",
            "json",
            path,
            &format!("fieldManager={manager}"),
            body,
        )
    }

    /// A JSON merge patch.
    pub(super) fn merge(path: &str, manager: &str, body: &Value) -> Self {
        Self::new(
            "PATCH",
            "merge-patch+json",
            path,
            &format!("fieldManager={manager}"),
            body,
        )
    }

    /// A strategic merge patch.
    pub(super) fn strategic(path: &str, manager: &str, body: &Value) -> Self {
        let query = format!("fieldManager={manager}");
        Self::new("PATCH", "strategic-merge-patch+json", path, &query, body)
    }

    /// A forced server-side apply.
    pub(super) fn apply(path: &str, manager: &str, body: &Value) -> Self {
        let query = format!("force=true&fieldManager={manager}");
        Self::new("PATCH", "apply-patch+yaml", path, &query, body)
    }

    /// Deletes all of a collection.
    pub(super) fn delete(collection: &str) -> Self {
        Self::new(
            "DELETE",
            "json",
            collection,
            "",
            &Value::Object(serde_json::Map::new()),
        )
    }

    /// Sends it; the answer's body, which must be a success.
    pub(super) async fn send(&self, client: &Client) -> Result<Vec<u8>> {
        let what = || format!("{} {}", self.method, self.path);
        let request = Request::builder()
            .method(self.method.as_str())
            .uri(self.path.as_str())
            .header("content-type", &self.content_type)
            .body(Body::from(self.body.clone().into_bytes()))?;
        let (head, body) = client.send(request).await.with_context(what)?.into_parts();
        let body = body.collect_bytes().await.with_context(what)?;
        if !head.status.is_success() {
            bail!(
                "{}: {} {}",
                what(),
                head.status,
                String::from_utf8_lossy(&body)
            );
        }
        Ok(body.into())
    }
}

/// What the bench reads of an answer.
#[derive(Debug, Deserialize)]
pub(super) struct Made {
    pub(super) metadata: MadeMetadata,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MadeMetadata {
    pub(super) uid: String,
    pub(super) resource_version: String,
}

/// Sends all of them, some at once, under a progress bar. Returns what they made, in their order.
pub(super) async fn make_all(
    client: &Client,
    name: &str,
    exchanges: Vec<Exchange>,
) -> Result<Vec<Made>> {
    let step = Step::begin(name, exchanges.len());
    let sent = exchanges.into_iter().map(|exchange| async move {
        anyhow::Ok(serde_json::from_slice(&exchange.send(client).await?)?)
    });
    let sent = futures::stream::iter(sent)
        .buffered(WHILE_MAKING)
        .enumerate();
    sent.map(|(number, made)| {
        step.at(number + 1);
        made
    })
    .try_collect()
    .await
}

/// Sends all of them, as many at once as the manager would.
pub(super) async fn send_at_once(client: &Client, exchanges: Vec<Exchange>) -> Result<()> {
    let sent = exchanges
        .into_iter()
        .map(|exchange| async move { exchange.send(client).await.map(drop) });
    futures::stream::iter(sent)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

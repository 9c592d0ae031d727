//! A request as data: what the world is made with, and what a floor sends.

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use http::Request;
use kube::Client;
use kube::client::Body;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::progress::Step;

/// Requests of ours on their way at once, where nothing else is said.
const AT_ONCE: usize = 48;

/// One request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Exchange {
    method: String,
    path: String,
    content_type: String,
    body: String,
}

impl Exchange {
    fn new(method: &str, path: String, content_type: &str, body: &Value) -> Self {
        Self {
            method: method.to_owned(),
            path,
            content_type: content_type.to_owned(),
            body: body.to_string(),
        }
    }

    /// Makes an object, as this field manager.
    pub(super) fn create(collection: &str, manager: &str, body: &Value) -> Self {
        let path = format!("{collection}?fieldManager={manager}");
        Self::new("POST", path, "application/json", body)
    }

    /// Replaces an object.
    pub(super) fn replace(path: &str, manager: &str, body: &Value) -> Self {
        let path = format!("{path}?fieldManager={manager}");
        Self::new("PUT", path, "application/json", body)
    }

    /// A JSON merge patch.
    pub(super) fn merge(path: &str, manager: &str, body: &Value) -> Self {
        let path = format!("{path}?fieldManager={manager}");
        Self::new("PATCH", path, "application/merge-patch+json", body)
    }

    /// A strategic merge patch.
    pub(super) fn strategic(path: &str, manager: &str, body: &Value) -> Self {
        let path = format!("{path}?fieldManager={manager}");
        Self::new(
            "PATCH",
            path,
            "application/strategic-merge-patch+json",
            body,
        )
    }

    /// A forced server-side apply.
    pub(super) fn apply(path: &str, manager: &str, body: &Value) -> Self {
        let path = format!("{path}?force=true&fieldManager={manager}");
        Self::new("PATCH", path, "application/apply-patch+yaml", body)
    }

    /// Deletes what is at this path, all of a collection if it is one.
    pub(super) fn delete(path: &str) -> Self {
        Self {
            method: "DELETE".to_owned(),
            path: path.to_owned(),
            content_type: "application/json".to_owned(),
            body: String::new(),
        }
    }

    /// Sends it; the answer's body, which must be a success.
    pub(super) async fn send(&self, client: &Client) -> Result<Vec<u8>> {
        let what = || format!("{} {}", self.method, self.path);
        let request = Request::builder()
            .method(self.method.as_str())
            .uri(self.path.as_str())
            .header("content-type", &self.content_type)
            .body(Body::from(self.body.clone().into_bytes()))?;
        let answer = client.send(request).await.with_context(what)?;
        let (head, body) = answer.into_parts();
        let body = body.collect_bytes().await.with_context(what)?;
        if !head.status.is_success() {
            let words = String::from_utf8_lossy(&body);
            bail!("{}: {} {words}", what(), head.status);
        }
        Ok(body.into())
    }
}

/// What the bench reads of an answer.
#[derive(Debug, Deserialize)]
pub(super) struct Made {
    pub(super) metadata: MadeMetadata,
}

/// The metadata of an answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MadeMetadata {
    pub(super) uid: String,
    pub(super) resource_version: String,
}

/// Sends all of them, many at once, under a progress bar; what they made, in their order.
pub(super) async fn send_all(
    client: &Client,
    name: &str,
    exchanges: Vec<Exchange>,
) -> Result<Vec<Made>> {
    let mut step = Step::begin(name, exchanges.len() as u64);
    let mut made = Vec::with_capacity(exchanges.len());
    let sent = exchanges.into_iter().map(|exchange| async move {
        let answer = exchange.send(client).await?;
        Ok::<Made, anyhow::Error>(serde_json::from_slice(&answer)?)
    });
    let mut sent = futures::stream::iter(sent).buffered(AT_ONCE);
    while let Some(one) = sent.try_next().await? {
        made.push(one);
        step.at(made.len() as u64);
    }
    step.end();
    Ok(made)
}

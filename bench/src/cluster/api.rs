//! Requests of the bench's own, as data, which the world is made with and a floor sends; objects as far as these need them.

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Client;
use leadsman_api::slim;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::progress::Step;

/// How many objects come with one page, where it does not matter.
pub(super) const PAGE: u32 = 500;
/// Paths of collections.
pub(super) const PODS: &str = "/api/v1/pods";
pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const POD_PROBE_MARKERS: &str = "/apis/apps.kruise.io/v1alpha1/podprobemarkers";
pub(super) const SIDECAR_SETS: &str = "/apis/apps.kruise.io/v1beta1/sidecarsets";
pub(super) const NODE_POD_PROBES: &str = "/apis/apps.kruise.io/v1alpha1/nodepodprobes";

/// As many requests as the manager, and as all agents together, have on their way at once.
pub(super) const AT_ONCE: usize = 32;
/// Requests on their way at once while the world is made.
const WHILE_MAKING: usize = 48;

/// One request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ApiRequest {
    method: String,
    uri: String,
    content_type: String,
    body: String,
}

/// How an object is written: method, content type, and what the query has beside the field manager.
#[derive(Clone, Copy)]
pub(super) struct Verb(&'static str, &'static str, &'static str);

pub(super) const CREATE: Verb = Verb("POST", "application/json", "");
/// A creation that the API server only tries.
pub(super) const TRY: Verb = Verb("POST", "application/json", "&dryRun=All");
pub(super) const REPLACE: Verb = Verb("PUT", "application/json", "");
pub(super) const MERGE: Verb = Verb("PATCH", "application/merge-patch+json", "");
pub(super) const STRATEGIC: Verb = Verb("PATCH", "application/strategic-merge-patch+json", "");
/// A forced server-side apply.
pub(super) const APPLY: Verb = Verb("PATCH", "application/apply-patch+yaml", "&force=true");

impl ApiRequest {
    /// Writes an object at this path, or into the collection there, as this field manager.
    pub(super) fn new(verb: Verb, path: &str, manager: &str, body: &Value) -> Self {
        let Verb(method, content_type, query) = verb;
        Self {
            method: method.to_owned(),
            uri: format!("{path}?fieldManager={manager}{query}"),
            content_type: content_type.to_owned(),
            body: body.to_string(),
        }
    }

    /// Sends it; the answer's body, which must be a success.
    pub(super) async fn send(&self, client: &Client) -> Result<String> {
        let request = http::Request::builder()
            .method(self.method.as_str())
            .uri(self.uri.as_str())
            .header("content-type", &self.content_type)
            .body(self.body.clone().into_bytes())?;
        let answer = client.request_text(request).await;
        answer.with_context(|| format!("{} {}", self.method, self.uri))
    }
}

/// Sends all of them, some at once. Returns what they made, in their order.
pub(super) async fn make_all(
    client: &Client,
    name: &str,
    requests: Vec<ApiRequest>,
) -> Result<Vec<NameAndLabels>> {
    let _step = Step::begin(name);
    let sent = requests.into_iter().map(|request| async move {
        anyhow::Ok(serde_json::from_str(&request.send(client).await?)?)
    });
    let sent = futures::stream::iter(sent).buffered(WHILE_MAKING);
    sent.try_collect().await
}

/// Sends all of them, as many at once as the manager would.
pub(super) async fn send_at_once(client: &Client, requests: Vec<ApiRequest>) -> Result<()> {
    let sent = requests
        .into_iter()
        .map(|request| async move { request.send(client).await.map(drop) });
    futures::stream::iter(sent)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Any object, of which nothing is read but name, uid, version and labels: all that is read of a node.
pub(super) type NameAndLabels = slim::Node;

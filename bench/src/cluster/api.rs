//! Requests and watches of the bench's own: a request as data, which the world is made with and a floor sends; objects as a
//! watch shows them; objects parsed no further than to their name and labels.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::PATIENCE;
use crate::progress::Step;

/// As many requests as the manager, and as all agents together, have on their way at once.
const AT_ONCE: usize = 32;
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

/// A watch that has been listed.
pub(super) struct Watched<K> {
    /// What was there when the watch began, as far as [`Self::next`] has not returned it yet.
    pub(super) listed: Vec<K>,
    changed: BoxStream<'static, watcher::Result<K>>,
}

impl<K> Watched<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Lists and begins to watch.
    pub(super) async fn begin(api: Api<K>, config: Config) -> Result<Self> {
        let mut events = watcher(api, config).default_backoff().boxed();
        let mut listed = Vec::new();
        loop {
            let event = events.next().await;
            match event.context("a watch ended before it had listed")?? {
                Event::Init => listed.clear(),
                Event::InitApply(object) => listed.push(object),
                Event::InitDone => break,
                Event::Apply(_) | Event::Delete(_) => {}
            }
        }
        let changed = events.applied_objects().boxed();
        Ok(Self { listed, changed })
    }

    /// What was listed, then each change of an object. A watch that breaks off begins again by itself.
    pub(super) async fn next(&mut self) -> Result<K> {
        if let Some(object) = self.listed.pop() {
            return Ok(object);
        }
        loop {
            match self.changed.next().await.context("a watch ended")? {
                Ok(object) => return Ok(object),
                Err(error) => eprintln!("bench: a watch broke off and begins again: {error}"),
            }
        }
    }

    /// Waits until so many objects are right at once; `None` is one that does not matter. Returns when each became so, in
    /// order. Nothing that is waited for is deleted meanwhile.
    pub(super) async fn until_right(
        &mut self,
        name: &str,
        wanted: usize,
        since: Instant,
        is_right: impl Fn(&K) -> Option<bool>,
    ) -> Result<Vec<Duration>> {
        let _step = Step::begin(name);
        let (mut right, mut wrong) = (BTreeMap::new(), BTreeSet::new());
        let watching = async {
            while right.len() < wanted {
                let object = self.next().await?;
                let (name, is_right) = (object.name_any(), is_right(&object));
                if is_right == Some(true) {
                    wrong.remove(&name);
                    right.entry(name).or_insert_with(|| since.elapsed());
                } else {
                    right.remove(&name);
                    is_right.map(|_| wrong.insert(name));
                }
            }
            anyhow::Ok(())
        };
        if let Ok(watched) = tokio::time::timeout(PATIENCE, watching).await {
            watched?;
            let mut times: Vec<_> = right.into_values().collect();
            times.sort();
            return Ok(times);
        }
        let (count, some) = (right.len(), wrong.iter().take(3).collect::<Vec<_>>());
        bail!("{name}: after {PATIENCE:?} {count} of {wanted} are right, not {some:?}, …")
    }
}

/// Any object, of which nothing is kept but name and labels, uid and version.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct NameAndLabels {
    #[serde(deserialize_with = "name_and_labels")]
    pub(super) metadata: ObjectMeta,
}

fn name_and_labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Read {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        labels: Option<BTreeMap<String, String>>,
    }
    let read = Read::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: read.name,
        namespace: read.namespace,
        uid: read.uid,
        resource_version: read.resource_version,
        labels: read.labels,
        ..ObjectMeta::default()
    })
}

impl Resource for NameAndLabels {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        of.kind.as_str().into()
    }
    fn group(of: &ApiResource) -> Cow<'_, str> {
        of.group.as_str().into()
    }
    fn version(of: &ApiResource) -> Cow<'_, str> {
        of.version.as_str().into()
    }
    fn plural(of: &ApiResource) -> Cow<'_, str> {
        of.plural.as_str().into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

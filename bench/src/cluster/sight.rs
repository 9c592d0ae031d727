//! Objects as a watch shows them, and objects parsed no further than to their name and labels.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;

use anyhow::{Result, bail};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt as _, watcher::Config};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// A watch that has been listed.
pub(super) struct Sight<K> {
    events: BoxStream<'static, watcher::Result<Event<K>>>,
}

/// What it shows.
pub(super) enum Change<K> {
    /// The object is so now.
    Is(K),
    /// It is gone.
    Gone(K),
}

impl<K> Sight<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Lists and begins to watch; and what was listed.
    pub(super) async fn begin(api: Api<K>, config: Config) -> Result<(Self, Vec<K>)> {
        let mut events = watcher(api, config).default_backoff().boxed();
        let mut listed = Vec::new();
        while let Some(event) = events.next().await {
            match event? {
                Event::Init => listed.clear(),
                Event::InitApply(object) => listed.push(object),
                Event::InitDone => return Ok((Self { events }, listed)),
                Event::Apply(_) | Event::Delete(_) => {}
            }
        }
        bail!("a watch ended before it had listed")
    }

    /// The next change. A watch that breaks off begins again by itself.
    pub(super) async fn next(&mut self) -> Result<Change<K>> {
        while let Some(event) = self.events.next().await {
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    return Ok(Change::Is(object));
                }
                Ok(Event::Delete(object)) => return Ok(Change::Gone(object)),
                Ok(Event::Init | Event::InitDone) => {}
                Err(error) => eprintln!("bench: a watch broke off and begins again: {error}"),
            }
        }
        bail!("a watch ended")
    }
}

/// Any object, of which nothing is kept but name and labels.
#[derive(Clone, Debug)]
pub(super) struct Scrap {
    pub(super) metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct Text {
    metadata: TextMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TextMetadata {
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

impl<'de> Deserialize<'de> for Scrap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(deserializer)?.metadata;
        let metadata = ObjectMeta {
            name: text.name,
            namespace: text.namespace,
            resource_version: text.resource_version,
            labels: text.labels,
            ..ObjectMeta::default()
        };
        Ok(Self { metadata })
    }
}

impl Resource for Scrap {
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

//! Objects as a watch shows them, and objects parsed no further than to their name and labels.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::PATIENCE;
use crate::progress::Step;

/// A watch that has been listed.
pub(super) struct Watched<K> {
    /// What was there when the watch began.
    pub(super) listed: Vec<K>,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
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
            match events
                .next()
                .await
                .context("a watch ended before it had listed")??
            {
                Event::Init => listed.clear(),
                Event::InitApply(object) => listed.push(object),
                Event::InitDone => return Ok(Self { listed, events }),
                Event::Apply(_) | Event::Delete(_) => {}
            }
        }
    }

    /// The next change: the object as it is now, or as it was when it was deleted. A watch that breaks off begins again by
    /// itself.
    pub(super) async fn next(&mut self) -> Result<Result<K, K>> {
        loop {
            match self.events.next().await.context("a watch ended")? {
                Ok(Event::Apply(object) | Event::InitApply(object)) => return Ok(Ok(object)),
                Ok(Event::Delete(object)) => return Ok(Err(object)),
                Ok(Event::Init | Event::InitDone) => {}
                Err(error) => eprintln!("bench: a watch broke off and begins again: {error}"),
            }
        }
    }

    /// Waits until so many objects are right at once; `None` is one that does not matter. Returns when each became so, in
    /// order.
    pub(super) async fn until_right(
        &mut self,
        name: &str,
        wanted: usize,
        since: Instant,
        mut is_right: impl FnMut(&K) -> Option<bool>,
    ) -> Result<Vec<Duration>> {
        let step = Step::begin(name, wanted);
        let mut times = BTreeMap::new();
        let mut wrong = BTreeMap::new();
        let mut see = |object: &K, right: Option<bool>| {
            let name = object.name_any();
            if right == Some(true) {
                wrong.remove(&name);
                times.entry(name).or_insert_with(|| since.elapsed());
            } else {
                times.remove(&name);
                right.map(|right| wrong.insert(name, right));
            }
            step.at(times.len());
            (times.len() >= wanted).then(|| times.values().copied().collect::<Vec<_>>())
        };
        let mut right = None;
        for object in &self.listed {
            right = see(object, is_right(object));
        }
        let watching = async {
            while right.is_none() {
                right = match self.next().await? {
                    Ok(object) => see(&object, is_right(&object)),
                    Err(gone) => see(&gone, None),
                };
            }
            anyhow::Ok(right.unwrap_or_default())
        };
        if let Ok(right) = tokio::time::timeout(PATIENCE, watching).await {
            let mut times = right?;
            times.sort();
            return Ok(times);
        }
        let some: Vec<_> = wrong.keys().take(3).collect();
        bail!(
            "{name}: after {PATIENCE:?} {} of {wanted} are right, not {some:?}, …",
            times.len()
        )
    }
}

/// Any object, of which nothing is kept but name and labels.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Scrap {
    #[serde(deserialize_with = "name_and_labels")]
    pub(super) metadata: ObjectMeta,
}

fn name_and_labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Read {
        name: Option<String>,
        namespace: Option<String>,
        resource_version: Option<String>,
        labels: Option<BTreeMap<String, String>>,
    }
    let Read {
        name,
        namespace,
        resource_version,
        labels,
    } = Read::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name,
        namespace,
        resource_version,
        labels,
        ..ObjectMeta::default()
    })
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

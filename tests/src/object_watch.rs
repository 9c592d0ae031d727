//! Waiting for many objects of a kind, by one watch, with a deadline that tells what was seen instead.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::StreamExt;
use futures::stream::BoxStream;
use http::Request;
use kube::api::{ObjectList, WatchEvent};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// After a watch that could not be opened.
const PAUSE: Duration = Duration::from_millis(250);

/// Objects as they were listed, and a watch on them since.
pub struct ObjectWatch<K> {
    client: Client,
    path: String,
    page: u32,
    /// What was there when the watch began, as far as [`Self::next`] has not returned it yet.
    listed: Vec<K>,
    changes: BoxStream<'static, kube::Result<WatchEvent<K>>>,
}

impl<K: Clone + DeserializeOwned + Send + 'static> ObjectWatch<K> {
    /// Lists the collection at this path, in pages of so many, and begins to watch it.
    ///
    /// # Errors
    /// The API server's.
    pub async fn begin(client: &Client, path: &str, page: u32) -> Result<Self> {
        let (mut listed, mut next) = (Vec::new(), String::new());
        let version = loop {
            let uri = format!("{path}?limit={page}&continue={next}");
            let request = Request::get(uri).body(Vec::new())?;
            let list: ObjectList<K> = client.request(request).await?;
            listed.extend(list.items);
            next = list.metadata.continue_.unwrap_or_default();
            if next.is_empty() {
                break list.metadata.resource_version.unwrap_or_default();
            }
        };
        let uri = format!("{path}?watch=true&resourceVersion={version}");
        let changes = client.request_events(Request::get(uri).body(Vec::new())?);
        Ok(Self {
            client: client.clone(),
            path: path.to_owned(),
            page,
            listed,
            changes: changes.await?.fuse().boxed(),
        })
    }

    /// Takes what was listed, as far as [`Self::next`] has not returned it yet.
    pub fn take_listed(&mut self) -> Vec<K> {
        std::mem::take(&mut self.listed)
    }

    /// What was listed, then each change of an object. A watch that ends, as the API server lets one end that does not keep
    /// up, begins again with a list.
    pub async fn next(&mut self) -> K {
        loop {
            if let Some(object) = self.listed.pop() {
                return object;
            }
            match self.changes.next().await {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    return object;
                }
                Some(Ok(WatchEvent::Deleted(_) | WatchEvent::Bookmark(_))) => {}
                Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => {
                    match Self::begin(&self.client, &self.path, self.page).await {
                        Ok(again) => *self = again,
                        Err(_) => tokio::time::sleep(PAUSE).await,
                    }
                }
            }
        }
    }

    /// Takes note of each change without a look at it, for ever.
    pub async fn follow(mut self) {
        self.listed = Vec::new();
        loop {
            drop(self.next().await);
        }
    }

    /// Waits until so many objects pass this check at once. None of them may be deleted meanwhile.
    ///
    /// # Errors
    /// After this long, with what the check said last.
    pub async fn wait_until(
        &mut self,
        what: &str,
        wanted: usize,
        within: Duration,
        check: impl Fn(&K) -> Result<()>,
    ) -> Result<()>
    where
        K: Resource,
    {
        let (mut right, mut last) = (HashSet::new(), anyhow!("no object was seen"));
        let watching = async {
            while right.len() < wanted {
                let object = self.next().await;
                match check(&object) {
                    Ok(()) => drop(right.insert(object.name_any())),
                    Err(reason) => {
                        right.remove(&object.name_any());
                        last = reason.context(object.name_any());
                    }
                }
            }
        };
        if tokio::time::timeout(within, watching).await.is_ok() {
            return Ok(());
        }
        let count = right.len();
        Err(last.context(format!(
            "{what}: {count} of {wanted} within {within:?}; of another"
        )))
    }
}

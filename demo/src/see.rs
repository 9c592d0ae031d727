//! Waiting for something to be seen in the API, by watch, with a deadline.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Result, bail};
use futures::StreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

/// How long anything may take. A machine may be slow; what is late by that much is not coming.
const PATIENCE: Duration = Duration::from_mins(2);

/// What a look at the objects found.
pub(crate) enum Look<T> {
    /// What was expected.
    Seen(T),
    /// Something else, so far.
    NotYet(String),
    /// Something after which the expected cannot come.
    Never(String),
}

/// Watches the objects that `config` selects until `look` has seen what it expects of them, by name.
pub(crate) async fn see<K, T>(
    api: &Api<K>,
    config: watcher::Config,
    mut look: impl FnMut(&BTreeMap<String, K>) -> Look<T>,
) -> Result<T>
where
    K: Clone + Debug + Send + DeserializeOwned + Resource + 'static,
{
    let mut last = "nothing, not even the list of objects".to_owned();
    let watching = async {
        let mut events = pin!(watcher::watcher(api.clone(), config));
        let mut objects = BTreeMap::new();
        let mut listed = BTreeMap::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.insert(object.name_any(), object);
                    continue;
                }
                Ok(Event::InitDone) => objects = std::mem::take(&mut listed),
                Ok(Event::Apply(object)) => {
                    objects.insert(object.name_any(), object);
                }
                Ok(Event::Delete(object)) => {
                    objects.remove(&object.name_any());
                }
                // The watcher begins again by itself; what it said is worth keeping.
                Err(error) => {
                    last = format!("no watch: {error}");
                    continue;
                }
            }
            match look(&objects) {
                Look::Seen(found) => return Ok(found),
                Look::NotYet(instead) => last = instead,
                Look::Never(instead) => bail!("seen instead: {instead}"),
            }
        }
        bail!("the watch ended")
    };
    match tokio::time::timeout(PATIENCE, watching).await {
        Ok(outcome) => outcome,
        Err(_) => bail!("not seen in {} s; seen instead: {last}", PATIENCE.as_secs()),
    }
}

/// A choice of one object.
pub(crate) fn named(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

/// A choice by label.
pub(crate) fn labelled(selector: &str) -> watcher::Config {
    watcher::Config::default().labels(selector)
}

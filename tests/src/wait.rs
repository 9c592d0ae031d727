//! Waiting for a condition of an object, by watch, with a deadline that tells what was seen instead.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use futures::StreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Resource};
use leadsman_testkit::node::is_in_vm;
use serde::de::DeserializeOwned;

/// How long a condition may take before a test gives up. Generous: the machine may be busy; a passing test never
/// waits for it.
pub fn patience() -> Duration {
    Duration::from_mins(if is_in_vm() { 5 } else { 1 })
}

/// Watches `name` until `condition` is `Ok` and returns what it returned.
///
/// # Errors
/// After [`patience`], with the condition's error for the last snapshot.
pub async fn wait_for_object<K, T>(
    api: &Api<K>,
    name: &str,
    what: &str,
    mut condition: impl FnMut(&K) -> Result<T>,
) -> Result<T>
where
    K: Clone + Debug + Send + DeserializeOwned + Resource + 'static,
{
    watch(api, name, what, |object| match object {
        None => Err(anyhow!("the object does not exist")),
        Some(object) => condition(object),
    })
    .await
}

/// Watches `name` until it does not exist.
///
/// # Errors
/// After [`patience`].
pub async fn wait_for_deletion<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Clone + Debug + Send + DeserializeOwned + Resource + 'static,
{
    watch(api, name, "its deletion", |object| match object {
        None => Ok(()),
        Some(_) => Err(anyhow!("it still exists")),
    })
    .await
}

/// Between two questions; a question at full speed would slow down what it waits for.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

async fn watch<K, T>(
    api: &Api<K>,
    name: &str,
    what: &str,
    mut condition: impl FnMut(Option<&K>) -> Result<T>,
) -> Result<T>
where
    K: Clone + Debug + Send + DeserializeOwned + Resource + 'static,
{
    let mut last = anyhow!("it was never seen");
    let waiting = async {
        let mut snapshots = pin!(watch_object(api.clone(), name));
        while let Some(snapshot) = snapshots.next().await {
            // An error of the watch is retried by it; a deleted or undecodable object shows as such.
            let Ok(object) = snapshot else { continue };
            match condition(object.as_ref()) {
                Ok(value) => return Ok(value),
                Err(reason) => last = reason,
            }
        }
        bail!("the watch ended")
    };
    match tokio::time::timeout(patience(), waiting).await {
        Ok(result) => result,
        Err(_) => Err(last).with_context(|| {
            format!(
                "{name}: {what} was not seen within {:?}; the last snapshot",
                patience()
            )
        }),
    }
}

/// Asks until there is an answer, for what no watch tells: a counter, a log, a schema that is not served yet.
///
/// # Errors
/// The attempt's own, or after [`patience`].
pub async fn wait_for_answer<T, F>(what: &str, attempt: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    wait_longer_for_answer(what, patience(), attempt).await
}

/// The same for what takes longer by design.
///
/// # Errors
/// The attempt's own, or after this time.
pub async fn wait_longer_for_answer<T, F>(
    what: &str,
    patience: Duration,
    mut attempt: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    let asking = async {
        loop {
            if let Some(answer) = attempt().await? {
                return Ok(answer);
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(patience, asking)
        .await
        .with_context(|| format!("{what} was not seen within {patience:?}"))?
}

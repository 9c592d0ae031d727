//! Every version of the pods of a namespace, for what must have been seen, and what must not.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::wait::{PAUSE, patience};

/// Records from its creation until it is dropped.
pub struct History {
    pods: Api<Pod>,
    seen: watch::Receiver<Seen>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    /// How many pods the first list had, once it is there.
    listed: Option<usize>,
    pods: Vec<Pod>,
}

impl History {
    /// Records the pods of a namespace, from what is there now.
    ///
    /// # Errors
    /// When the first list does not come in time.
    pub async fn of(client: &Client, namespace: &str) -> Result<Self> {
        let (into, mut seen) = watch::channel(Seen::default());
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let watched = pods.clone();
        let task = tokio::spawn(async move {
            let mut events = watcher(watched, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                let Ok(event) = event else {
                    // The watch tries again by itself, and at once.
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                into.send_modify(|seen| match event {
                    Event::Apply(pod) | Event::InitApply(pod) => seen.pods.push(pod),
                    Event::InitDone => {
                        let listed = seen.pods.len();
                        seen.listed.get_or_insert(listed);
                    }
                    Event::Init | Event::Delete(_) => {}
                });
            }
        });
        tokio::time::timeout(patience(), seen.wait_for(|seen| seen.listed.is_some()))
            .await
            .context("the pods were not listed in time")??;
        Ok(Self { pods, seen, task })
    }

    /// Fails if any version of any pod up to now was `wrong`.
    ///
    /// # Errors
    /// With the first such version's labels and conditions, or when the record does not reach the present.
    pub async fn never(&self, what: &str, wrong: impl Fn(&Pod) -> bool) -> Result<()> {
        self.catch_up().await?;
        if let Some(pod) = self.seen.borrow().pods.iter().find(|pod| wrong(pod)) {
            bail!(
                "{what}: seen on {:?} at {:?}: labels {:?}, conditions {:?}",
                pod.metadata.name,
                pod.metadata.resource_version,
                pod.metadata.labels,
                pod.status.as_ref().and_then(|s| s.conditions.as_ref())
            );
        }
        Ok(())
    }

    /// Every version of each pod up to now, in their order.
    ///
    /// # Errors
    /// When the record does not reach the present.
    pub async fn versions(&self) -> Result<BTreeMap<String, Vec<Pod>>> {
        self.catch_up().await?;
        let mut versions: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
        for pod in &self.seen.borrow().pods {
            let name = pod.metadata.name.clone().unwrap_or_default();
            versions.entry(name).or_default().push(pod.clone());
        }
        Ok(versions)
    }

    /// How many pods at most were so at the same time, up to now. A pod that was deleted counts as it was last.
    ///
    /// # Errors
    /// When the record does not reach the present.
    pub async fn most_at_once(&self, so: impl Fn(&Pod) -> bool) -> Result<usize> {
        Ok(*self.count_at_once(so).await?.end())
    }

    /// How few and how many pods were so at the same time, from the first list up to now. A pod that was deleted counts as it
    /// was last.
    ///
    /// # Errors
    /// When the record does not reach the present.
    pub async fn count_at_once(&self, so: impl Fn(&Pod) -> bool) -> Result<RangeInclusive<usize>> {
        self.catch_up().await?;
        let seen = self.seen.borrow();
        let (mut now, mut fewest, mut most) = (HashSet::new(), usize::MAX, 0);
        let listed = seen.listed.unwrap_or_default();
        for (number, pod) in seen.pods.iter().enumerate() {
            let uid = &pod.metadata.uid;
            if so(pod) {
                now.insert(uid.clone());
            } else {
                now.remove(uid);
            }
            most = most.max(now.len());
            if number + 1 >= listed {
                fewest = fewest.min(now.len());
            }
        }
        Ok(fewest.min(most)..=most)
    }

    /// Waits until the record reaches the present.
    async fn catch_up(&self) -> Result<()> {
        let now = self.pods.list(&ListParams::default()).await?.items;
        let version = |pod: &Pod| {
            (
                pod.metadata.uid.clone(),
                pod.metadata.resource_version.clone(),
            )
        };
        let present: Vec<_> = now.iter().map(version).collect();
        self.wait("the present", |seen| {
            let seen: HashSet<_> = seen.iter().map(version).collect();
            present.iter().all(|pod| seen.contains(pod))
        })
        .await
    }

    /// Waits until some version of some pod was `right`.
    ///
    /// # Errors
    /// After [`patience`].
    pub async fn wait_for_version(&self, what: &str, right: impl Fn(&Pod) -> bool) -> Result<()> {
        self.wait(what, |seen| seen.iter().any(&right)).await
    }

    async fn wait(&self, what: &str, mut holds: impl FnMut(&[Pod]) -> bool) -> Result<()> {
        let mut seen = self.seen.clone();
        let waiting = seen.wait_for(|seen| holds(&seen.pods));
        tokio::time::timeout(patience(), waiting)
            .await
            .with_context(|| format!("{what}: not recorded within {:?}", patience()))??;
        Ok(())
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.task.abort();
    }
}

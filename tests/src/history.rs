//! Every version of the pods of a namespace, for what must never have been seen.

use std::sync::{Arc, Mutex};

use anyhow::{Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::task::JoinHandle;

/// Records from its creation until it is dropped.
pub struct History {
    seen: Arc<Mutex<Vec<Pod>>>,
    task: JoinHandle<()>,
}

impl History {
    /// Starts to record the pods of a namespace.
    pub fn of(client: &Client, namespace: &str) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let into = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut events = watcher(pods, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                if let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event {
                    into.lock().expect("no writer panics").push(pod);
                }
            }
        });
        Self { seen, task }
    }

    /// Fails if any version of any pod so far was `wrong`.
    ///
    /// # Errors
    /// With the first such version's labels, annotations and conditions.
    pub fn never(&self, what: &str, wrong: impl Fn(&Pod) -> bool) -> Result<()> {
        let seen = self.seen.lock().expect("no writer panics");
        if let Some(pod) = seen.iter().find(|pod| wrong(pod)) {
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

    /// How many versions were seen.
    pub fn len(&self) -> usize {
        self.seen.lock().expect("no writer panics").len()
    }

    /// Whether none was seen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.task.abort();
    }
}

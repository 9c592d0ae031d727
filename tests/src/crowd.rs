//! Many pods on many nodes that nobody runs, made, reported and looked at all together.

use std::collections::BTreeMap;
use std::pin::pin;

use anyhow::{Context, Result, anyhow, bail};
use futures::future::{BoxFuture, FutureExt};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::Scene;
use crate::report::{EntryName, report_all};
use crate::scene::differs;
use crate::wait::PATIENCE;

/// Requests on their way at once.
const AT_ONCE: usize = 16;

/// A namespace of pods, spread over nodes of its own in turn.
pub struct Crowd {
    client: Client,
    ns: String,
    /// The nodes' names.
    pub nodes: Vec<String>,
    /// The pods' names; the one at place `i` is on the node at place `i` modulo their number.
    pub pods: Vec<String>,
}

impl Crowd {
    /// Makes all of them; each pod runs, as [`Scene::pod`] has it.
    ///
    /// # Errors
    /// The API server's.
    pub async fn new(client: &Client, ns: &str, nodes: usize, pods: usize) -> Result<Self> {
        let crowd = Self {
            client: client.clone(),
            ns: ns.to_owned(),
            nodes: (0..nodes).map(|n| format!("{ns}-node-{n:03}")).collect(),
            pods: (0..pods).map(|n| format!("{ns}-{n:04}")).collect(),
        };
        let scene = crowd.scene(0);
        scene.namespace(ns).await?;
        let mut made = Vec::new();
        for node in &crowd.nodes {
            made.push(scene.add_node(node, json!({})).boxed());
        }
        all(made).await?;
        let mut made = Vec::new();
        for (place, pod) in crowd.pods.iter().enumerate() {
            let scene = crowd.scene(place);
            made.push(async move { scene.pod(pod).await.map(drop) }.boxed());
        }
        all(made).await?;
        Ok(crowd)
    }

    /// The scene of the pod at this place: the namespace, and the pod's node.
    pub fn scene(&self, place: usize) -> Scene {
        Scene {
            client: self.client.clone(),
            ns: self.ns.clone(),
            node: self.nodes[place % self.nodes.len()].clone(),
        }
    }

    /// Reports a verdict for these entries of these pods as the nodes' agents would: in one write for each node.
    ///
    /// # Errors
    /// The API server's, or when one of the entries does not appear.
    pub async fn report_verdicts(
        &self,
        pods: &[String],
        entries: &[&str],
        state: &str,
    ) -> Result<()> {
        let mut nodes: BTreeMap<&str, Vec<EntryName<'_>>> = BTreeMap::new();
        for (place, pod) in self.pods.iter().enumerate() {
            if pods.contains(pod) {
                let node = nodes
                    .entry(&self.nodes[place % self.nodes.len()])
                    .or_default();
                for entry in entries {
                    node.push(((&self.ns, pod), entry));
                }
            }
        }
        let mut reports = Vec::new();
        for (node, entries) in &nodes {
            reports.push(report_all(&self.client, node, entries, state, "").boxed());
        }
        all(reports).await
    }

    /// Waits until each of these pods has these marks, as [`Scene::wait_for_marks`] does.
    ///
    /// # Errors
    /// After the deadline, with one that does not.
    pub async fn wait_for_marks(&self, pods: &[String], expected: &Value) -> Result<()> {
        let mut wrong: BTreeMap<&str, _> = pods
            .iter()
            .map(|pod| (pod.as_str(), anyhow!("it was never seen")))
            .collect();
        let waiting = async {
            let mut events = pin!(watcher(self.scene(0).pods(), Config::default()));
            while let Some(event) = events.next().await {
                let Ok(Event::InitApply(pod) | Event::Apply(pod)) = event else {
                    continue;
                };
                compare_marks(&mut wrong, pods, &pod, expected);
                if wrong.is_empty() {
                    return Ok(());
                }
            }
            bail!("the watch ended")
        };
        if let Ok(ended) = tokio::time::timeout(PATIENCE, waiting).await {
            return ended;
        }
        let others = wrong.len() - 1;
        let (pod, reason) = wrong.pop_first().context("one is wrong")?;
        Err(reason.context(format!(
            "{pod} and {others} more: not so within {PATIENCE:?}"
        )))
    }
}

fn compare_marks<'a>(
    wrong: &mut BTreeMap<&'a str, anyhow::Error>,
    pods: &'a [String],
    pod: &Pod,
    expected: &Value,
) {
    let name = pod.name_any();
    let Some(name) = pods.iter().find(|wanted| **wanted == name) else {
        return;
    };
    match differs(pod, expected) {
        Ok(()) => wrong.remove(name.as_str()),
        Err(reason) => wrong.insert(name, reason),
    };
}

/// Does them all, some at once.
async fn all(work: Vec<BoxFuture<'_, Result<()>>>) -> Result<()> {
    let work = futures::stream::iter(work).buffer_unordered(AT_ONCE);
    work.try_collect().await
}

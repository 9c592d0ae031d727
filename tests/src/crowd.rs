//! Many pods on many nodes that nobody runs, made, reported and looked at all together.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use futures::future::{BoxFuture, FutureExt};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::report::{EntryName, report_all};
use crate::scene::differs;
use crate::wait::patience;
use crate::{ObjectWatch, Scene};

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
        let path = format!("/api/v1/namespaces/{}/pods", self.ns);
        let mut watch = ObjectWatch::<Pod>::begin(&self.client, &path, 500).await?;
        let what = format!("marks {expected}");
        let check = |pod: &Pod| {
            ensure!(pods.contains(&pod.name_any()), "it is not waited for");
            differs(pod, expected)
        };
        watch.wait_until(&what, pods.len(), patience(), check).await
    }
}

/// Does them all, some at once.
async fn all(work: Vec<BoxFuture<'_, Result<()>>>) -> Result<()> {
    let work = futures::stream::iter(work).buffer_unordered(AT_ONCE);
    work.try_collect().await
}

//! The world at full size: 250 nodes, 5,000 pods, 20 markers of 250 pods.

use anyhow::{Context as _, Result};
use kube::Client;
use serde_json::json;

use super::exchange::{Exchange, make_all};
use super::objects::{self, APPS};

/// Nodes at full size.
const NODES: f64 = 250.0;

/// Paths of collections.
pub(super) const NODE_POD_PROBES: &str = "/apis/apps.kruise.io/v1alpha1/nodepodprobes";

/// The nodes and the pods on them.
pub(super) struct World {
    pub(super) nodes: Vec<String>,
    /// One of each application on each node, node by node.
    pub(super) pods: Vec<Pod>,
    /// The bytes of one of the pods as JSON.
    pub(super) bytes_a_pod: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) app: usize,
    /// The place of its node.
    pub(super) node: usize,
}

impl Pod {
    pub(super) fn path(&self) -> String {
        let namespace = objects::namespace(self.app);
        format!("/api/v1/namespaces/{namespace}/pods/{}", self.name)
    }
}

/// The path of an application's marker.
pub(super) fn marker_path(app: usize) -> String {
    format!("{}/{}", markers_path(app), objects::app(app))
}

fn markers_path(app: usize) -> String {
    let namespace = objects::namespace(app);
    format!("/apis/apps.kruise.io/v1alpha1/namespaces/{namespace}/podprobemarkers")
}

/// So many nodes are there at this scale.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most 250"
)]
fn nodes_at(scale: f64) -> usize {
    ((NODES * scale).round() as usize).max(2)
}

impl World {
    /// Makes all of it; running pods and markers on them, but nothing that a manager makes.
    pub(super) async fn make(client: &Client, scale: f64) -> Result<Self> {
        let nodes: Vec<_> = (0..nodes_at(scale))
            .map(|n| format!("node-{n:03}"))
            .collect();
        let namespaces = objects::namespaces().map(|name| {
            let body = json!({"metadata": {"name": name}});
            Exchange::create("/api/v1/namespaces", "bench", &body)
        });
        let node =
            |name: &String| Exchange::create("/api/v1/nodes", "kubelet", &objects::node(name));
        let objects = namespaces.chain(nodes.iter().map(node)).collect();
        make_all(client, "making namespaces and nodes", objects).await?;
        let pods = make_pods(client, &nodes).await?;
        let marker = |app| Exchange::create(&markers_path(app), "kubectl", &objects::marker(app));
        make_all(client, "making markers", (0..APPS).map(marker).collect()).await?;
        let first = pods.first().context("there is a pod")?;
        let text = http::Request::get(first.path()).body(Vec::new())?;
        let bytes_a_pod = client.request_text(text).await?.len();
        Ok(Self {
            nodes,
            pods,
            bytes_a_pod,
        })
    }

    /// Takes away every `NodePodProbe`.
    pub(super) async fn clear_probes(&self, client: &Client) -> Result<()> {
        Exchange::delete(NODE_POD_PROBES).send(client).await?;
        Ok(())
    }

    /// Takes away every marker's status.
    pub(super) async fn clear_statuses(&self, client: &Client) -> Result<()> {
        let body = json!({"status": null});
        let path = |app| format!("{}/status", marker_path(app));
        let cleared = (0..APPS).map(|app| Exchange::merge(&path(app), "bench", &body));
        make_all(client, "clearing the markers' statuses", cleared.collect()).await?;
        Ok(())
    }

    /// A description, for a result.
    pub(super) fn described(&self) -> String {
        let (nodes, pods, bytes) = (self.nodes.len(), self.pods.len(), self.bytes_a_pod);
        format!(
            "{nodes} nodes, {pods} running pods of {bytes} bytes of JSON, {APPS} markers of {nodes} pods with 2 probes each"
        )
    }
}

async fn make_pods(client: &Client, nodes: &[String]) -> Result<Vec<Pod>> {
    let pods = (0..nodes.len()).flat_map(|node| {
        (0..APPS).map(move |app| Pod {
            name: format!("{}-6d5f8b7c9d-n{node:03}", objects::app(app)),
            uid: String::new(),
            app,
            node,
        })
    });
    let mut pods: Vec<_> = pods.collect();
    let created = pods.iter().map(|pod| {
        let collection = format!("/api/v1/namespaces/{}/pods", objects::namespace(pod.app));
        let body = objects::pod(&pod.name, pod.app, &nodes[pod.node]);
        Exchange::create(&collection, "kube-controller-manager", &body)
    });
    let created = make_all(client, "making pods", created.collect()).await?;
    for (pod, made) in pods.iter_mut().zip(created) {
        pod.uid = made.metadata.uid;
    }
    let running = pods.iter().map(|pod| {
        let ip = format!("10.1.{}.{}", pod.node, pod.app + 2);
        let status = objects::running(&pod.name, &ip);
        Exchange::strategic(&format!("{}/status", pod.path()), "kubelet", &status)
    });
    make_all(client, "reporting pods as running", running.collect()).await?;
    Ok(pods)
}

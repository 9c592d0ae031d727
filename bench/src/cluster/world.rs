//! The world at full size: 250 nodes, 5,000 pods, 20 markers of 250 pods.

use anyhow::{Context as _, Result};
use kube::Client;
use serde_json::json;

use super::exchange::{Exchange, send_all};
use super::objects::{self, APPS};

/// Nodes at full size.
const NODES: f64 = 250.0;

/// Paths of collections.
pub(super) const NODE_POD_PROBES: &str = "/apis/apps.kruise.io/v1alpha1/nodepodprobes";

/// The nodes and the pods on them.
pub(super) struct World {
    /// Names.
    pub(super) nodes: Vec<String>,
    /// One of each application on each node, node by node.
    pub(super) pods: Vec<Pod>,
    /// The bytes of one of the pods as JSON.
    pub(super) bytes_a_pod: usize,
}

/// A pod.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    /// Its name.
    pub(super) name: String,
    /// Its uid.
    pub(super) uid: String,
    /// Its application.
    pub(super) app: usize,
    /// The place of its node.
    pub(super) node: usize,
}

impl Pod {
    /// The path of the pod.
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
    reason = "a scale is above 0 and at most 1"
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
        let mut objects: Vec<_> = objects::namespaces()
            .map(|name| {
                let body = json!({"metadata": {"name": name}});
                Exchange::create("/api/v1/namespaces", "bench", &body)
            })
            .collect();
        let node =
            |name: &String| Exchange::create("/api/v1/nodes", "kubelet", &objects::node(name));
        objects.extend(nodes.iter().map(node));
        send_all(client, "making namespaces and nodes", objects).await?;
        let pods = make_pods(client, &nodes).await?;
        let markers = (0..APPS)
            .map(|app| Exchange::create(&markers_path(app), "kubectl", &objects::marker(app)));
        send_all(client, "making markers", markers.collect()).await?;
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
        let cleared = (0..APPS).map(|app| {
            let path = format!("{}/status", marker_path(app));
            Exchange::merge(&path, "bench", &body)
        });
        send_all(client, "clearing the markers' statuses", cleared.collect()).await?;
        Ok(())
    }

    /// In words, for a result.
    pub(super) fn words(&self) -> String {
        format!(
            "{} nodes, {} running pods of {} bytes of JSON, {APPS} markers of {} pods with 2 probes each",
            self.nodes.len(),
            self.pods.len(),
            self.bytes_a_pod,
            self.nodes.len(),
        )
    }
}

async fn make_pods(client: &Client, nodes: &[String]) -> Result<Vec<Pod>> {
    let places = || (0..nodes.len()).flat_map(|node| (0..APPS).map(move |app| (node, app)));
    let name = |node: usize, app: usize| format!("{}-6d5f8b7c9d-n{node:03}", objects::app(app));
    let created = places().map(|(node, app)| {
        let collection = format!("/api/v1/namespaces/{}/pods", objects::namespace(app));
        let body = objects::pod(&name(node, app), app, &nodes[node]);
        Exchange::create(&collection, "kube-controller-manager", &body)
    });
    let created = send_all(client, "making pods", created.collect()).await?;
    let pods: Vec<_> = places()
        .zip(created)
        .map(|((node, app), made)| Pod {
            name: name(node, app),
            uid: made.metadata.uid,
            app,
            node,
        })
        .collect();
    let running = pods.iter().map(|pod| {
        let ip = format!("10.1.{}.{}", pod.node, pod.app + 2);
        let status = objects::running(&pod.name, &ip);
        Exchange::strategic(&format!("{}/status", pod.path()), "kubelet", &status)
    });
    send_all(client, "reporting pods as running", running.collect()).await?;
    Ok(pods)
}

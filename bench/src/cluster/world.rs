//! The world at full size: 250 nodes, 5,000 pods as a ReplicaSet controller and a kubelet leave them, 20 markers of 250 pods.
//! That of the record has 5,000 nodes, and pods that no marker matches.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;

use anyhow::{Context as _, Result};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use leadsman_api::NodePodProbe;
use serde_json::{Value, json};

use super::api::{ApiRequest, CREATE, MERGE, STRATEGIC, make_all};
use super::sidecars::Sidecars;
use crate::share_of;

/// Nodes at full size.
const NODES: usize = 250;
/// Applications, each with a marker of its own and one pod on every node.
const APPS: usize = 20;
/// The pods of each node of the record: applications with a marker, and after them those with sidecars and those with neither.
const MARKED: Range<usize> = 0..15;
const INJECTED: Range<usize> = 15..19;
const PLAIN: Range<usize> = 19..30;
/// Namespaces, with the same number of applications in each.
const NAMESPACES: usize = 4;
/// The probes of each marker.
pub(super) const PROBES: [&str; 2] = ["idle", "main"];

/// The nodes and the pods on them.
pub(super) struct World {
    pub(super) nodes: usize,
    /// Applications with a marker.
    pub(super) apps: usize,
    /// Those of its markers: one of each application on each node, node by node.
    pub(super) pods: Vec<AppPod>,
    /// The bytes of one of the pods as JSON.
    bytes_a_pod: usize,
}

/// A pod of an application.
#[derive(Clone, Debug)]
pub(super) struct AppPod {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) app: usize,
    /// The place of its node.
    pub(super) node: usize,
}

impl AppPod {
    pub(super) fn path(&self) -> String {
        format!("{}/{}", collection(self.app), self.name)
    }

    /// Makes it as its `ReplicaSet`'s controller does, bound already; perhaps with sidecars.
    fn create(&self, sidecars: Option<&Sidecars>) -> ApiRequest {
        let values = [
            ("$pod", self.name.as_str()),
            ("$app", &app(self.app)),
            ("$namespace", &namespace(self.app)),
            ("$node", &node(self.node)),
        ];
        let mut body = filled(include_str!("objects/pod.json"), &values);
        if let Some(sidecars) = sidecars {
            body = sidecars.inject(&body);
        }
        let collection = collection(self.app);
        ApiRequest::new(CREATE, &collection, "kube-controller-manager", &body)
    }

    /// Reports its status as its kubelet does.
    fn report_running(&self, sidecars: Option<&Sidecars>) -> ApiRequest {
        // More than 256 nodes have more than one second number.
        let (more, node) = (self.node / 256, self.node % 256);
        let ip = format!("10.{}.{node}.{}", 1 + more, self.app + 2);
        let (container, path) = (container_id(&self.name), format!("{}/status", self.path()));
        let values = [("$ip", &*ip), ("$container", &container)];
        let mut body = filled(include_str!("objects/running.json"), &values);
        if sidecars.is_some() {
            Sidecars::report_running(&mut body);
        }
        ApiRequest::new(STRATEGIC, &path, "kubelet", &body)
    }
}

names! {
    /// A node's name.
    node(number: usize) = "node-{number:03}";
    /// An application's name, which is its marker's too.
    app(number: usize) = "app-{number:02}";
    /// An application's namespace.
    namespace(app: usize) = "shop-{}", app % NAMESPACES;
    /// The path of the pods in an application's namespace.
    collection(app: usize) = "/api/v1/namespaces/{}/pods", namespace(app);
    /// The path of the markers in an application's namespace.
    markers(app: usize) = "/apis/apps.kruise.io/v1alpha1/namespaces/{}/podprobemarkers", namespace(app);
    /// The path of the status of an application's marker.
    marker_status_path(number: usize) = "{}/{}/status", markers(number), app(number);
    /// The name of an entry of a node's `NodePodProbe`.
    entry(number: usize, probe: &str) = "{}#{probe}", app(number);
    /// The label and the condition by which a probe's verdict shows on a pod.
    mark(probe: &str) = "game.example.com/{probe}";
    /// The annotation by which it does.
    cost(probe: &str) = "game.example.com/{probe}-cost";
}

/// The id of a pod's container, without the runtime's name before it: 64 hexadecimal digits, as runtimes have it.
pub(super) fn container_id(pod: &str) -> String {
    let mut hasher = DefaultHasher::new();
    pod.hash(&mut hasher);
    format!("{:016x}", hasher.finish()).repeat(4)
}

impl World {
    /// Makes all of it; running pods and markers on them, but nothing that a manager makes.
    pub(super) async fn make(client: &Client, scale: f64) -> Result<Self> {
        Self::make_with(client, scale, None).await
    }

    /// The same, with pods that these were injected into.
    pub(super) async fn make_with(
        client: &Client,
        scale: f64,
        sidecars: Option<&Sidecars>,
    ) -> Result<Self> {
        let nodes = share_of(NODES, scale).max(2);
        Self::make_nodes(client, nodes).await?;
        let pods = make_pods(client, nodes, 0..APPS, sidecars).await?;
        Self::make_markers(client, nodes, APPS, pods).await
    }

    /// The world of the record: of thirty pods of a node, fifteen are of markers, and four have these sidecars.
    pub(super) async fn make_large(
        client: &Client,
        nodes: usize,
        sidecars: &Sidecars,
    ) -> Result<Self> {
        Self::make_nodes(client, nodes).await?;
        make_pods(client, nodes, PLAIN, None).await?;
        make_pods(client, nodes, INJECTED, Some(sidecars)).await?;
        let pods = make_pods(client, nodes, MARKED, None).await?;
        Self::make_markers(client, nodes, MARKED.len(), pods).await
    }

    /// How many pods of the record have sidecars.
    pub(super) fn injected(&self) -> usize {
        self.nodes * INJECTED.len()
    }

    async fn make_nodes(client: &Client, nodes: usize) -> Result<()> {
        let namespaces = (0..NAMESPACES).map(|number| {
            let body = json!({"metadata": {"name": namespace(number)}});
            ApiRequest::new(CREATE, "/api/v1/namespaces", "bench", &body)
        });
        let objects = namespaces.chain((0..nodes).map(create_node));
        make_all(client, "making namespaces and nodes", objects.collect()).await?;
        Ok(())
    }

    async fn make_markers(
        client: &Client,
        nodes: usize,
        apps: usize,
        pods: Vec<AppPod>,
    ) -> Result<Self> {
        let made = (0..apps).map(create_marker).collect();
        make_all(client, "making markers", made).await?;
        let first = pods.first().context("there is a pod")?;
        let request = http::Request::get(first.path()).body(Vec::new())?;
        let bytes_a_pod = client.request_text(request).await?.len();
        Ok(Self {
            nodes,
            apps,
            pods,
            bytes_a_pod,
        })
    }

    /// Takes away every `NodePodProbe`.
    pub(super) async fn clear_probes(&self, client: &Client) -> Result<()> {
        let probes: Api<NodePodProbe> = Api::all(client.clone());
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        probes.delete_collection(&delete, &all).await?;
        Ok(())
    }

    /// Takes away every marker's status.
    pub(super) async fn clear_statuses(&self, client: &Client) -> Result<()> {
        let body = json!({"status": null});
        let clear = |app| ApiRequest::new(MERGE, &marker_status_path(app), "bench", &body);
        let cleared = (0..self.apps).map(clear).collect();
        make_all(client, "clearing the markers' statuses", cleared).await?;
        Ok(())
    }

    /// A description, for a result.
    pub(super) fn described(&self) -> String {
        let (nodes, pods, bytes, apps) = (self.nodes, self.pods.len(), self.bytes_a_pod, self.apps);
        format!(
            "{nodes} nodes, {pods} running pods of {bytes} bytes of JSON, {apps} markers of {nodes} pods with 2 probes each"
        )
    }
}

/// Makes a node with the labels, addresses and images that real ones report.
fn create_node(number: usize) -> ApiRequest {
    let values = [("$node", &*node(number))];
    let mut node = filled(include_str!("objects/node.json"), &values);
    let images = (0..20).map(|n| {
        let image = format!("registry.example.com/team/image-{n:02}");
        let digest = format!("{image}@sha256:{:064x}", n + 1);
        json!({"names": [digest, format!("{image}:v1.{n}.0")], "sizeBytes": 12_345_678 + n})
    });
    node["status"]["images"] = images.collect();
    ApiRequest::new(CREATE, "/api/v1/nodes", "kubelet", &node)
}

/// Makes an application's marker: two probes, each with a label, an annotation and a condition for its verdict.
fn create_marker(app: usize) -> ApiRequest {
    let values = [("$app", &*self::app(app)), ("$namespace", &namespace(app))];
    let marker = filled(include_str!("objects/marker.json"), &values);
    ApiRequest::new(CREATE, &markers(app), "kubectl", &marker)
}

async fn make_pods(
    client: &Client,
    nodes: usize,
    apps: Range<usize>,
    sidecars: Option<&Sidecars>,
) -> Result<Vec<AppPod>> {
    let pods = (0..nodes).flat_map(|node| {
        apps.clone().map(move |app| AppPod {
            name: format!("{}-6d5f8b7c9d-n{node:03}", self::app(app)),
            uid: String::new(),
            app,
            node,
        })
    });
    let mut pods: Vec<_> = pods.collect();
    let created = pods.iter().map(|pod| pod.create(sidecars)).collect();
    let created = make_all(client, "making pods", created).await?;
    for (pod, made) in pods.iter_mut().zip(created) {
        pod.uid = made.identity.uid.unwrap_or_default();
    }
    let running = pods
        .iter()
        .map(|pod| pod.report_running(sidecars))
        .collect();
    make_all(client, "reporting pods as running", running).await?;
    Ok(pods)
}

/// An object from its text, in which these words stand for values.
///
/// # Panics
/// When it is no JSON, which is this program's fault.
pub(crate) fn filled(text: &str, values: &[(&str, &str)]) -> Value {
    let mut text = text.to_owned();
    for (word, value) in values {
        text = text.replace(word, value);
    }
    serde_json::from_str(&text).expect("an object of ours is JSON")
}

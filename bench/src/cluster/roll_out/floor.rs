//! The floor of a roll-out: a bare loop that sends a patch to each pod, as many at once as the manager would, with no more
//! pods down than the manager may have, and decides nothing else.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kube::{Client, ResourceExt as _};
use leadsman_api::slim::Pod;
use leadsman_process::Component;
use leadsman_tests::ObjectWatch;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::runs;
use crate::cluster::api::{AT_ONCE, ApiRequest, PODS, STRATEGIC};
use crate::part::Questions;

/// How many pods come with one page, as for the manager.
const PAGE: u32 = 150;

/// What it is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Of the manager's account.
    pub(in crate::cluster) kubeconfig: PathBuf,
    /// The file of the patches to send.
    pub(in crate::cluster) patches: PathBuf,
}

/// All patches of a roll-out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::cluster) struct PodPatches {
    /// The image that the pods' sidecar then runs.
    pub(in crate::cluster) image: String,
    /// Pods that may be down at once.
    pub(in crate::cluster) most_down: usize,
    pub(in crate::cluster) patches: Vec<PodPatch>,
}

/// The upgrade of a pod, but for its resourceVersion, which is that of the last watch event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::cluster) struct PodPatch {
    pub(in crate::cluster) pod: String,
    pub(in crate::cluster) path: String,
    pub(in crate::cluster) patch: Value,
}

impl PodPatch {
    async fn send(mut self, client: &Client, version: Option<&String>) -> Result<()> {
        self.patch["metadata"]["resourceVersion"] = json!(version);
        let manager = "leadsman-sidecarset";
        let request = ApiRequest::new(STRATEGIC, &self.path, manager, &self.patch);
        // Its decoded answer is what a manager goes on with.
        let answer = request.send(client).await?;
        let _: Pod = serde_json::from_str(&answer)?;
        Ok(())
    }
}

/// Lists the pods, and rolls out when it is asked to.
pub(crate) async fn run(order: Order, questions: Questions) -> Result<()> {
    let patches: PodPatches = serde_json::from_slice(&std::fs::read(&order.patches)?)?;
    let client = leadsman_process::client::Args {
        kubeconfig: Some(order.kubeconfig),
        context: None,
    };
    let client = client.build_client(Component::Manager).await?;
    let mut pods = Pods {
        watch: ObjectWatch::begin(&client, PODS, PAGE).await?,
        versions: HashMap::new(),
    };
    while pods.versions.len() < patches.patches.len() {
        pods.next().await;
    }
    let mut patches = Some(patches);
    let roll_out = async || {
        let patches = patches.take().context("it has rolled out already")?;
        roll_out(&client, &mut pods, patches).await
    };
    questions.answer(roll_out).await
}

/// The pods with their versions.
struct Pods {
    watch: ObjectWatch<Pod>,
    versions: HashMap<String, String>,
}

impl Pods {
    async fn next(&mut self) -> Pod {
        let pod = self.watch.next().await;
        let version = pod.resource_version().unwrap_or_default();
        self.versions.insert(pod.name_any(), version);
        pod
    }
}

async fn roll_out(client: &Client, pods: &mut Pods, patches: PodPatches) -> Result<()> {
    let PodPatches {
        image,
        most_down,
        patches,
    } = patches;
    let mut waiting = patches.into_iter();
    let mut down = HashSet::new();
    let mut sending = FuturesUnordered::new();
    loop {
        while sending.len() < AT_ONCE
            && down.len() < most_down
            && let Some(patch) = waiting.next()
        {
            down.insert(patch.pod.clone());
            let version = pods.versions.get(&patch.pod).cloned();
            sending.push(async move { patch.send(client, version.as_ref()).await });
        }
        if sending.is_empty() && down.is_empty() {
            return Ok(());
        }
        tokio::select! {
            Some(sent) = sending.next() => sent.map_err(|error| anyhow!("a patch: {error:#}"))?,
            pod = pods.next() => {
                if runs(&pod, &image).is_ok() {
                    down.remove(&pod.name_any());
                }
            }
        }
    }
}

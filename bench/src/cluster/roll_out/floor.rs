//! The floor of a roll-out: a bare loop that sends each pod its patches, as many at once as the manager would, each once the pod
//! shows the one before, with no more pods down than the manager may have, and decides nothing else.

use std::collections::{HashMap, VecDeque};
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

use super::is_ready;
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
    /// Who sends them.
    pub(in crate::cluster) manager: String,
    /// The container that gets another image.
    pub(in crate::cluster) container: String,
    /// Pods that may be down at once.
    pub(in crate::cluster) most_down: usize,
    pub(in crate::cluster) pods: Vec<PodSteps>,
}

/// The patches of a pod, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::cluster) struct PodSteps {
    pub(in crate::cluster) pod: String,
    pub(in crate::cluster) steps: VecDeque<PodStep>,
}

/// A patch. A resourceVersion in it is replaced by that of the last watch event.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::cluster) struct PodStep {
    pub(in crate::cluster) path: String,
    pub(in crate::cluster) patch: Value,
    /// The image that the container runs once it is done, if it has another one by then.
    pub(in crate::cluster) image: Option<String>,
    /// Whether the pod is ready then.
    pub(in crate::cluster) is_ready: bool,
}

impl PodStep {
    async fn send(mut self, client: &Client, manager: &str, version: Option<String>) -> Result<()> {
        if let Some(known) = self.patch.pointer_mut("/metadata/resourceVersion") {
            *known = json!(version);
        }
        let request = ApiRequest::new(STRATEGIC, &self.path, manager, &self.patch);
        // Its decoded answer is what a manager goes on with.
        let answer = request.send(client).await?;
        let _: Pod = serde_json::from_str(&answer)?;
        Ok(())
    }

    /// Whether a pod shows that it is done.
    fn is_done(&self, pod: &Pod, container: &str) -> bool {
        let mut statuses = pod.status.container_statuses.iter();
        let runs = |image: &String| {
            statuses.any(|status| status.name == container && status.image == *image)
        };
        self.image.as_ref().is_none_or(runs) && is_ready(pod) == self.is_ready
    }
}

/// Lists the pods, and rolls out when it is asked to.
pub(crate) async fn run(order: Order, questions: Questions) -> Result<()> {
    let patches: PodPatches = serde_json::from_slice(&std::fs::read(&order.patches)?)?;
    let client = leadsman_process::client::ClientArgs {
        kubeconfig: Some(order.kubeconfig),
        context: None,
    };
    let client = client.build_client(Component::Manager).await?;
    let mut pods = Pods {
        watch: ObjectWatch::begin(&client, PODS, PAGE).await?,
        versions: HashMap::new(),
    };
    while pods.versions.len() < patches.pods.len() {
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
    let mut waiting = patches.pods.into_iter();
    let (mut down, mut due) = (0, VecDeque::new());
    // Those of which a step was sent that they do not show yet.
    let mut asked = HashMap::<String, PodSteps>::new();
    let mut sending = FuturesUnordered::new();
    loop {
        while sending.len() < AT_ONCE {
            if due.is_empty() && down < patches.most_down {
                let next = waiting.next();
                down += usize::from(next.is_some());
                due.extend(next);
            }
            let Some(pod) = due.pop_front() else { break };
            let step = pod.steps.front().context("a pod has a step")?.clone();
            let version = pods.versions.get(&pod.pod).cloned();
            asked.insert(pod.pod.clone(), pod);
            sending.push(step.send(client, &patches.manager, version));
        }
        if sending.is_empty() && down == 0 {
            return Ok(());
        }
        tokio::select! {
            Some(sent) = sending.next() => sent.map_err(|error| anyhow!("a patch: {error:#}"))?,
            pod = pods.next() => {
                let name = pod.name_any();
                let is_done = |pod_steps: &PodSteps| {
                    let step = pod_steps.steps.front();
                    step.is_some_and(|step| step.is_done(&pod, &patches.container))
                };
                if asked.get(&name).is_some_and(is_done)
                    && let Some(mut done) = asked.remove(&name)
                {
                    done.steps.pop_front();
                    if done.steps.is_empty() {
                        down -= 1;
                    } else {
                        due.push_back(done);
                    }
                }
            }
        }
    }
}

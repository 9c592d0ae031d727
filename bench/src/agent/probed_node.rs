//! A node with pods to probe, and leadsman on it with the rights that it is given, as ordinary processes.

use std::ops::Deref;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_core::podprobe::node::SLOT;
use leadsman_testkit::cluster::{AGENT_METRICS, Cluster, MANAGER_METRICS};
use leadsman_testkit::{NodeBed, Options};
use leadsman_tests::{wait_for_answer, wait_for_object};
use serde_json::{Value, json};

use crate::meter::Meter;
use crate::progress::Step;

/// Where the pods are.
const NAMESPACE: &str = "bench";
const IMAGE: &str = "docker.io/local/target:1";
/// Markers over which the pods are divided; see [`ProbedNode::mark`].
pub(super) const GROUPS: u32 = 10;
/// From one marker to the next: each lands a slot of the agent's grid further into the second than the one before.
pub(super) const STAGGER: Duration = Duration::from_secs(1).saturating_add(SLOT);

/// A pod that is probed.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) ip: String,
    /// The runtime's id of its one container, without a scheme.
    pub(super) container: String,
}

/// A node with leadsman on it, and the pods that are probed.
pub(super) struct ProbedNode {
    cluster: Cluster,
    pub(super) targets: Vec<Target>,
}

impl Deref for ProbedNode {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl ProbedNode {
    /// Raises the bed with leadsman's CRDs and rights in it, the manager, and so many pods; no agent yet.
    pub(super) async fn raise(pods: u32) -> Result<Self> {
        let bed =
            NodeBed::start(Options::default(), leadsman_testkit::progress::to_stderr()).await?;
        let logs = bed.folder().join("logs");
        let mut node = Self {
            cluster: Cluster::install(bed, logs, "info").await?,
            targets: Vec::new(),
        };
        node.start_manager().await?;
        node.ready(MANAGER_METRICS, "the manager").await?;
        node.add_pods(pods).await?;
        Ok(node)
    }

    /// Starts the agent, at this endpoint of the runtime, and waits until it is ready.
    pub(super) async fn start_ready_agent(&self, endpoint: &str) -> Result<()> {
        self.start_agent_at(endpoint).await?;
        self.ready(AGENT_METRICS, "the agent").await
    }

    async fn ready(&self, address: &str, who: &str) -> Result<()> {
        let url = format!("http://{address}/readyz");
        wait_for_answer(&format!("{who} ready"), || async {
            Ok(self.bed.get_from_inside(&url).await.ok())
        })
        .await?;
        Ok(())
    }

    /// What the agent costs.
    pub(super) fn meter(&self) -> Result<Meter> {
        Ok(Meter(self.agent_pid()?))
    }

    /// The sum of the agent's counters whose line has all these words.
    pub(super) async fn counted(&self, words: &[&str]) -> Result<u64> {
        let url = format!("http://{AGENT_METRICS}/metrics");
        let text = self.bed.get_from_inside(&url).await?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let lines = lines.filter(|line| words.iter().all(|word| line.contains(word)));
        let value = |line: &str| line.rsplit(' ').next().unwrap_or_default().parse::<u64>();
        lines
            .map(|line| value(line).with_context(|| line.to_owned()))
            .sum()
    }

    /// Makes so many pods of one container each and waits until all of them run.
    async fn add_pods(&mut self, count: u32) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        create(&namespaces, json!({"metadata": {"name": NAMESPACE}})).await?;
        let pods: Api<Pod> = self.namespaced();
        let names: Vec<_> = (0..count).map(|number| format!("pod-{number}")).collect();
        for (number, name) in (0_u32..).zip(&names) {
            let labels =
                json!({"app": NAMESPACE, "group": format!("g{}", number % GROUPS), "pod": name});
            let pod = json!({"metadata": {"name": name, "labels": labels},
                "spec": {"nodeName": self.bed.node_name(), "terminationGracePeriodSeconds": 0,
                    "automountServiceAccountToken": false,
                    "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "args": ["serve"]}]}});
            create(&pods, pod).await?;
        }
        let step = Step::begin(format!("{count} pods"), names.len());
        for (number, name) in names.into_iter().enumerate() {
            step.at(number);
            let (ip, container) = running(&pods, &name).await?;
            self.targets.push(Target {
                name,
                ip,
                container,
            });
        }
        Ok(())
    }

    /// What lives in the pods' namespace.
    pub(super) fn namespaced<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        <K as kube::Resource>::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The nodes' probes.
    pub(super) fn probes(&self) -> Api<NodePodProbe> {
        Api::all(self.client.clone())
    }

    /// Makes [`GROUPS`] markers with this probe, each for a tenth of the pods and [`STAGGER`] after the one before, and
    /// waits until all pods have a verdict.
    pub(super) async fn mark(&self, what: &str, probe: &Value) -> Result<()> {
        let markers: Api<PodProbeMarker> = self.namespaced();
        let step = Step::begin(format!("{what}: markers"), GROUPS as usize);
        for number in 0..GROUPS {
            step.at(number as usize);
            if number > 0 {
                tokio::time::sleep(STAGGER).await;
            }
            let group = format!("g{number}");
            let marker = json!({"metadata": {"name": group},
                "spec": {"selector": {"matchLabels": {"group": group}}, "probes": [probe]}});
            create(&markers, marker).await?;
        }
        drop(step);
        self.verdicts(self.targets.len()).await
    }

    /// Waits until so many pods have a verdict, and no other has an entry.
    pub(super) async fn verdicts(&self, pods: usize) -> Result<()> {
        let what = format!("{pods} verdicts");
        wait_for_object(&self.probes(), self.bed.node_name(), &what, |object| {
            let entries = object.spec.pod_probes.iter().map(|pod| pod.probes.len());
            let status = object.status.clone().unwrap_or_default();
            let verdicts = status.pod_probe_statuses.iter();
            let verdicts = verdicts.map(|pod| pod.probe_states.len());
            let (entries, verdicts) = (entries.sum::<usize>(), verdicts.sum::<usize>());
            ensure!(
                entries == pods && verdicts == pods,
                "{entries} entries and {verdicts} verdicts"
            );
            Ok(())
        })
        .await
    }

    /// Deletes all markers and waits until nothing is probed.
    pub(super) async fn unmark(&self) -> Result<()> {
        let markers: Api<PodProbeMarker> = self.namespaced();
        let all = kube::api::ListParams::default();
        markers
            .delete_collection(&DeleteParams::default(), &all)
            .await?;
        self.verdicts(0).await
    }

    /// Switches a pod's target server: `role=main`.
    pub(super) async fn set(&self, target: &Target, query: &str) -> Result<()> {
        let url = format!("http://{}:8080/set?{query}", target.ip);
        self.bed.post_from_inside(&url).await?;
        Ok(())
    }

    pub(super) async fn end(self) -> Result<()> {
        self.cluster.end().await
    }
}

/// Makes an object.
async fn create<K>(api: &Api<K>, manifest: Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let object: K = serde_json::from_value(manifest)?;
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// Waits until a pod runs; its address and its container's id.
async fn running(pods: &Api<Pod>, name: &str) -> Result<(String, String)> {
    wait_for_object(pods, name, "it running", |pod| {
        let status = pod.status.clone().unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let main = containers.first().context("no status of its container")?;
        let state = main.state.as_ref();
        ensure!(
            state.is_some_and(|state| state.running.is_some()),
            "{state:?}"
        );
        let id = main
            .container_id
            .as_deref()
            .context("its container has no id")?;
        let id = id.rsplit('/').next().unwrap_or(id).to_owned();
        Ok((status.pod_ip.context("it has no address")?, id))
    })
    .await
}

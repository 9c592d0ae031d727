//! A node with pods to probe, and leadsman on it with the rights that it is given, as ordinary processes.

use std::net::IpAddr;
use std::ops::Deref;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use leadsman_core::podprobe::node::SLOT;
use leadsman_testkit::cluster::{AGENT_METRICS, Cluster, MANAGER_METRICS};
use leadsman_testkit::{NodeBed, Options};
use leadsman_tests::{Scene, wait_for_answer, wait_for_object};
use serde_json::{Value, json};

use crate::meter::Meter;
use crate::progress::Step;

/// Where the pods are.
const NAMESPACE: &str = "bench";
const IMAGE: &str = "docker.io/local/target:1";
/// Ports of the target server in each pod.
pub(super) const TCP: u16 = 9090;
pub(super) const HTTP: u16 = 8080;
/// Markers over which the pods are divided; see [`ProbedNode::mark`].
pub(super) const GROUPS: u64 = 10;
/// From one marker to the next: each lands a slot of the agent's grid further into the second than the one before.
pub(super) const STAGGER: Duration = Duration::from_secs(1).saturating_add(SLOT);

/// A pod that is probed.
#[derive(Clone, Debug)]
pub(super) struct ProbedPod {
    pub(super) name: String,
    pub(super) ip: IpAddr,
    /// The runtime's id of its one container, without a scheme.
    pub(super) container: String,
}

/// A node with leadsman on it, and the pods that are probed.
pub(super) struct ProbedNode {
    cluster: Cluster,
    /// Their namespace on the node.
    pub(super) scene: Scene,
    pub(super) targets: Vec<ProbedPod>,
}

impl Deref for ProbedNode {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl ProbedNode {
    /// Raises the bed with leadsman's CRDs and rights in it, the manager, and so many pods; no agent yet.
    pub(super) async fn raise(pods: usize) -> Result<Self> {
        let progress = leadsman_testkit::progress::to_stderr();
        let bed = NodeBed::start(Options::default(), progress).await?;
        let logs = bed.folder().join("logs");
        let cluster = Cluster::install(bed, logs, "info").await?;
        let scene = Scene {
            client: cluster.client.clone(),
            ns: NAMESPACE.to_owned(),
            node: cluster.bed.node_name().to_owned(),
        };
        let mut node = Self {
            cluster,
            scene,
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
        let asking = || async { Ok(self.bed.get_from_inside(&url).await.ok().map(drop)) };
        wait_for_answer(&format!("{who} ready"), asking).await
    }

    /// What the agent costs.
    pub(super) fn meter(&self) -> Result<Meter> {
        Ok(Meter(self.agent_pid()?))
    }

    /// The sums of the agent's counters whose lines have all of these words, all at one moment.
    pub(super) async fn counted<const N: usize>(&self, sums: [&[&str]; N]) -> Result<[u64; N]> {
        let url = format!("http://{AGENT_METRICS}/metrics");
        let text = self.bed.get_from_inside(&url).await?;
        let mut counted = [0; N];
        for (sum, words) in counted.iter_mut().zip(sums) {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            for line in lines.filter(|line| words.iter().all(|word| line.contains(word))) {
                let value = line.rsplit(' ').next().unwrap_or_default();
                *sum += value.parse::<u64>().with_context(|| line.to_owned())?;
            }
        }
        Ok(counted)
    }

    /// Makes so many pods of one container each and waits until all of them run.
    async fn add_pods(&mut self, count: usize) -> Result<()> {
        self.scene.namespace(NAMESPACE).await?;
        let pods = self.scene.pods();
        let names: Vec<_> = (0..count).map(|number| format!("pod-{number}")).collect();
        for (number, name) in (0..).zip(&names) {
            let labels = json!({"app": NAMESPACE, "group": group(number % GROUPS), "pod": name});
            let pod = json!({"metadata": {"name": name, "labels": labels},
                "spec": {"nodeName": self.scene.node, "terminationGracePeriodSeconds": 0,
                    "automountServiceAccountToken": false,
                    "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "args": ["serve"]}]}});
            let pod = serde_json::from_value(pod)?;
            pods.create(&PostParams::default(), &pod).await?;
        }
        let _step = Step::begin(format!("{count} pods"));
        for name in names {
            self.targets.push(running(&pods, name).await?);
        }
        Ok(())
    }

    /// Makes [`GROUPS`] markers with this probe, each for a tenth of the pods and [`STAGGER`] after the one before, and
    /// waits until all pods have a verdict.
    pub(super) async fn mark(&self, what: &str, probe: &Value) -> Result<()> {
        let _step = Step::begin(format!("{what}: markers"));
        for number in 0..GROUPS {
            if number > 0 {
                tokio::time::sleep(STAGGER).await;
            }
            let group = group(number);
            let selector = json!({"matchLabels": {"group": group}});
            let marker = self.scene.marker_of(&group, selector, json!([probe]));
            marker.await?;
        }
        self.verdicts(self.targets.len()).await
    }

    /// Waits until so many pods have a verdict, and no other has an entry.
    async fn verdicts(&self, pods: usize) -> Result<()> {
        let what = format!("{pods} verdicts");
        wait_for_object(&self.scene.probes(), &self.scene.node, &what, |object| {
            let entries = object.spec.pod_probes.iter().map(|pod| pod.probes.len());
            let statuses = object.status.iter();
            let statuses = statuses.flat_map(|status| &status.pod_probe_statuses);
            let verdicts = statuses.map(|pod| pod.probe_states.len());
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
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        let markers = self.scene.markers();
        markers.delete_collection(&delete, &all).await?;
        self.verdicts(0).await
    }

    /// Switches a pod's target server: `role=main`.
    pub(super) async fn set(&self, pod: &ProbedPod, query: &str) -> Result<()> {
        let url = format!("http://{}:{HTTP}/set?{query}", pod.ip);
        self.bed.post_from_inside(&url).await?;
        Ok(())
    }

    pub(super) async fn end(self) -> Result<()> {
        self.cluster.end().await
    }
}

/// The name of a marker, and the value of the label that it selects.
fn group(number: u64) -> String {
    format!("g{number}")
}

/// Waits until a pod runs.
async fn running(pods: &Api<Pod>, name: String) -> Result<ProbedPod> {
    let (ip, container) = wait_for_object(pods, &name, "it running", |pod| {
        let status = pod.status.clone().unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let main = containers.first().context("no status of its container")?;
        let running = main.state.as_ref().and_then(|state| state.running.as_ref());
        ensure!(running.is_some(), "{:?}", main.state);
        let id = main.container_id.as_deref();
        let id = id.and_then(|id| id.rsplit('/').next());
        let id = id.context("its container has no id")?.to_owned();
        let ip = status.pod_ip.context("it has no address")?;
        Ok((ip.parse()?, id))
    })
    .await?;
    Ok(ProbedPod {
        name,
        ip,
        container,
    })
}

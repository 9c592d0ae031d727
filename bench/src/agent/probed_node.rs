//! A node with pods to probe, and leadsman on it with the rights that it is given, as ordinary processes.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::{DeleteParams, ListParams, PostParams};
use leadsman_core::podprobe::node::SLOT;
use leadsman_testkit::cluster::{AGENT_METRICS, Cluster, MANAGER_METRICS};
use leadsman_testkit::{NodeBed, Options};
use leadsman_tests::{Room, sum_of_counters, wait_for_answer, wait_for_object};
use serde_json::{Value, json};

use crate::meter::Meter;
use crate::progress::Step;

/// Where the pods are.
const NAMESPACE: &str = "bench";
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
    /// Their namespace on the node.
    pub(super) room: Room<Cluster>,
    pub(super) targets: Vec<ProbedPod>,
}

impl Deref for ProbedNode {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.room.cluster
    }
}

impl ProbedNode {
    /// Raises the bed with leadsman's CRDs and rights in it, the manager, and so many pods; no agent yet.
    pub(super) async fn raise(pods: usize) -> Result<Self> {
        let progress = leadsman_testkit::progress::to_stderr();
        let bed = NodeBed::start(Options::default(), progress).await?;
        let logs = bed.folder().join("logs");
        let cluster = Arc::new(Cluster::install(bed, "", logs, "info").await?);
        let mut node = Self {
            room: Room::new(&cluster, NAMESPACE).await?,
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
    pub(super) async fn counted(&self, sums: &[&[&str]]) -> Result<Vec<u64>> {
        let url = format!("http://{AGENT_METRICS}/metrics");
        let text = self.bed.get_from_inside(&url).await?;
        let sums = sums.iter().map(|words| sum_of_counters(&text, words));
        sums.collect()
    }

    /// Makes so many pods of one container each and waits until all of them run.
    async fn add_pods(&mut self, count: usize) -> Result<()> {
        let _step = Step::begin(format!("{count} pods"));
        let pods = self.room.scene.pods();
        let names: Vec<_> = (0..count).map(|number| format!("pod-{number}")).collect();
        for (number, name) in (0..).zip(&names) {
            let labels = json!({"group": group(number % GROUPS)});
            let over =
                json!({"metadata": {"labels": labels}, "spec": {"nodeName": self.room.scene.node}});
            let pod = serde_json::from_value(self.room.manifest(name, over))?;
            pods.create(&PostParams::default(), &pod).await?;
        }
        for name in names {
            let status = self.room.wait_until_running(&name).await?.status;
            let ip = status
                .and_then(|status| status.pod_ip)
                .context("it has no address")?;
            let id = self.room.container_id(&name, "main").await?;
            let container = id.rsplit('/').next().unwrap_or_default().to_owned();
            let ip = ip.parse()?;
            self.targets.push(ProbedPod {
                name,
                ip,
                container,
            });
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
            let marker = self.room.scene.marker_of(&group, selector, json!([probe]));
            marker.await?;
        }
        self.verdicts(self.targets.len()).await
    }

    /// Waits until so many pods have a verdict, and no other has an entry.
    async fn verdicts(&self, pods: usize) -> Result<()> {
        let (scene, what) = (&self.room.scene, format!("{pods} verdicts"));
        wait_for_object(&scene.probes(), &scene.node, &what, |object| {
            let entries = object.spec.pod_probes.iter().map(|pod| pod.probes.len());
            let statuses = object.status.iter();
            let statuses = statuses.flat_map(|status| &status.pod_probe_statuses);
            let verdicts = statuses.map(|pod| pod.probe_states.len());
            let (entries, verdicts) = (entries.sum::<usize>(), verdicts.sum::<usize>());
            let all = entries == pods && verdicts == pods;
            ensure!(all, "{entries} entries and {verdicts} verdicts");
            Ok(())
        })
        .await
    }

    /// Deletes all markers and waits until nothing is probed.
    pub(super) async fn unmark(&self) -> Result<()> {
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        let markers = self.room.scene.markers();
        markers.delete_collection(&delete, &all).await?;
        self.verdicts(0).await
    }

    pub(super) async fn end(self) -> Result<()> {
        let cluster = Arc::clone(&self.room.cluster);
        drop(self);
        let cluster = Arc::into_inner(cluster).context("somebody holds the cluster yet")?;
        cluster.end().await
    }
}

/// The name of a marker, and the value of the label that it selects.
fn group(number: u64) -> String {
    format!("g{number}")
}

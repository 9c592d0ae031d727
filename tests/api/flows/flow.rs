//! A flow: a namespace and two nodes of its own, in which steps happen. It plays user, kubelet and agents, and knows
//! when the installation is as the model says.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use futures::stream::{BoxStream, StreamExt, select_all};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{Config, watcher};
use kube::{Api, Client};
use leadsman_testkit::leadsman;
use leadsman_tests::Scene;
use leadsman_tests::scene::merge;
use serde_json::{Value, json};

use super::agent::{owed, statuses};
use super::model::Observed;
use super::objects::{CONTAINERS, Kubelet, manifest, pod_name, probes_of};
use super::step::{AgentIs, MARKERS, NODES, NodeIs, Step};
use super::watched::{Seen, Watched, by_name};

/// How long the installation may take to be as the model says. Generous: the leader may be killed meanwhile.
const PATIENCE: Duration = Duration::from_mins(2);
const AGENTS: &str = "leadsman-system";
/// Names that contain one another.
const MARKER_NAMES: [&str; MARKERS] = ["way", "gateway", "way-2"];
const APPS: [&str; 3] = ["x", "y", "z"];
const STATES: [Option<&str>; 4] = [None, Some("Succeeded"), Some("Failed"), Some("Unknown")];

pub(crate) struct Flow {
    scene: Scene,
    pods: BTreeMap<usize, Kubelet>,
    markers: BTreeSet<usize>,
    nodes: [NodeIs; NODES],
    agents: [AgentIs; NODES],
}

impl Flow {
    /// Namespace and nodes.
    pub(crate) async fn begin(client: &Client, ns: &str) -> Result<Self> {
        let flow = Self {
            scene: Scene {
                client: client.clone(),
                ns: ns.to_owned(),
                node: format!("{ns}-0"),
            },
            pods: BTreeMap::new(),
            markers: BTreeSet::new(),
            nodes: [NodeIs::Real; NODES],
            agents: [AgentIs::Gone; NODES],
        };
        flow.scene.namespace(ns).await?;
        for node in 0..NODES {
            flow.scene.add_node(&flow.node(node), json!({})).await?;
        }
        Ok(flow)
    }

    fn node(&self, node: usize) -> String {
        format!("{}-{node}", self.scene.ns)
    }

    pub(crate) async fn play(&mut self, step: &Step) -> Result<()> {
        match *step {
            Step::Mark {
                marker,
                selector,
                probes,
            } => self.mark(marker, selector, probes).await,
            Step::Unmark { marker } => self.unmark(marker).await,
            Step::MakePod { pod, node, app } => self.make_pod(pod, node, app).await,
            Step::DeletePod { pod } => match self.pods.remove(&pod) {
                Some(_) => self.scene.delete_pod(&pod_name(pod)).await,
                None => Ok(()),
            },
            Step::Relabel { pod, app } => {
                let app = APPS[app];
                self.edit(pod, json!({"metadata": {"labels": {"app": app}}}))
                    .await
            }
            Step::Readdress { pod, ip } => self.kubelet(pod, |kubelet| kubelet.ip = ip).await,
            Step::Restart { pod, container } => {
                let restart = |kubelet: &mut Kubelet| {
                    let (number, started) = &mut kubelet.containers[container];
                    *number += 1;
                    *started = CONTAINERS[container] != "slow";
                };
                self.kubelet(pod, restart).await
            }
            Step::Started { pod, started } => {
                self.kubelet(pod, |kubelet| kubelet.containers[1].1 = started)
                    .await
            }
            Step::Finish { pod } => self.kubelet(pod, |kubelet| kubelet.finished = true).await,
            Step::Node { node, is } => self.set_node(node, is).await,
            Step::Agent { node, is } => self.set_agent(node, is).await,
            Step::Report { node, bits } => self.report(node, bits).await,
            Step::Wipe { node } => {
                self.patch_status(node, json!({"podProbeStatuses": null}))
                    .await
            }
            Step::Lose { node } => {
                let (probes, params) = (self.scene.probes(), DeleteParams::default());
                absent_is_fine(probes.delete(&self.node(node), &params).await)
            }
            Step::Tamper { pod, label, value } => {
                let label = ["role", "idle"][label];
                let value = value.map(|yes| if yes { "hacked" } else { "main" });
                self.edit(pod, json!({"metadata": {"labels": {label: value}}}))
                    .await
            }
            Step::Settle => self.settle().await,
        }
    }

    async fn mark(&mut self, marker: usize, selector: usize, probes: [usize; 2]) -> Result<()> {
        let name = MARKER_NAMES[marker];
        let probes = probes_of(probes);
        if self.markers.contains(&marker) {
            // A selector cannot be changed.
            self.scene
                .edit_marker(name, json!({"spec": {"probes": probes}}))
                .await?;
        } else {
            let selector = [
                json!({"matchLabels": {"app": "x"}}),
                json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]}),
                json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}),
                json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}),
            ][selector]
                .clone();
            self.scene.marker_of(name, selector, probes).await?;
            self.markers.insert(marker);
        }
        Ok(())
    }

    async fn unmark(&mut self, marker: usize) -> Result<()> {
        if self.markers.remove(&marker) {
            let name = MARKER_NAMES[marker];
            self.scene.delete_marker(name).await?;
        }
        Ok(())
    }

    async fn make_pod(&mut self, pod: usize, node: usize, app: usize) -> Result<()> {
        if self.pods.contains_key(&pod) {
            return Ok(());
        }
        let manifest = manifest(&pod_name(pod), &self.node(node), APPS[app]);
        let params = PostParams::default();
        self.scene
            .pods()
            .create(&params, &serde_json::from_value(manifest)?)
            .await?;
        self.pods.insert(pod, Kubelet::new());
        self.kubelet(pod, |_| {}).await
    }

    /// A user's edit of a pod.
    async fn edit(&self, pod: usize, patch: Value) -> Result<()> {
        if self.pods.contains_key(&pod) {
            self.scene.edit(&pod_name(pod), "kubectl", patch).await?;
        }
        Ok(())
    }

    /// The kubelet of a pod's node sees a change, and reports the pod.
    async fn kubelet(&mut self, pod: usize, change: impl FnOnce(&mut Kubelet)) -> Result<()> {
        let Some(kubelet) = self.pods.get_mut(&pod) else {
            return Ok(());
        };
        // What has ended stays so.
        if !kubelet.finished {
            change(kubelet);
        }
        let status = kubelet.status(&pod_name(pod));
        self.scene.report_pod_status(&pod_name(pod), status).await?;
        Ok(())
    }

    async fn set_node(&mut self, node: usize, is: NodeIs) -> Result<()> {
        let (name, before) = (self.node(node), self.nodes[node]);
        let nodes: Api<Node> = Api::all(self.scene.client.clone());
        let labels = match is {
            NodeIs::Virtual => json!({"type": "virtual-kubelet"}),
            _ => json!({"type": null}),
        };
        self.nodes[node] = is;
        match (before, is) {
            (NodeIs::Gone, NodeIs::Gone) => {}
            (NodeIs::Gone, _) => {
                let mut given = json!({});
                merge(&mut given, labels);
                self.scene.add_node(&name, given).await?;
            }
            (_, NodeIs::Gone) => {
                nodes.delete(&name, &DeleteParams::default()).await?;
            }
            _ => {
                let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
                nodes.patch(&name, &PatchParams::default(), &patch).await?;
            }
        }
        Ok(())
    }

    async fn set_agent(&mut self, node: usize, is: AgentIs) -> Result<()> {
        let name = format!("agent-{}", self.node(node));
        let agents = Scene {
            client: self.scene.client.clone(),
            ns: AGENTS.to_owned(),
            node: self.node(node),
        };
        if is == AgentIs::Gone {
            if self.agents[node] != AgentIs::Gone {
                agents.delete_pod(&name).await?;
            }
        } else {
            if self.agents[node] == AgentIs::Gone {
                let mut labels = leadsman::agent_labels();
                labels["app"] = Value::Null;
                agents
                    .pod_with(&name, json!({"metadata": {"labels": labels}}))
                    .await?;
            }
            let ready = if is == AgentIs::Ready {
                "True"
            } else {
                "False"
            };
            let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
            agents.report_pod_status(&name, status).await?;
        }
        self.agents[node] = is;
        Ok(())
    }

    async fn report(&self, node: usize, bits: u16) -> Result<()> {
        let Some(object) = self.scene.probes().get_opt(&self.node(node)).await? else {
            return Ok(());
        };
        let pods = self.scene.pods().list(&ListParams::default()).await?.items;
        let pods = by_name(pods);
        let mut places = (0..8).cycle();
        let status = statuses(&object, &pods, |_, known| {
            let place = places.next().unwrap_or_default();
            let state = STATES[usize::from(bits >> (2 * place) & 3)];
            state.or(known).map(str::to_owned)
        });
        self.patch_status(node, json!(status)).await
    }

    async fn patch_status(&self, node: usize, status: Value) -> Result<()> {
        let params = PatchParams {
            field_manager: Some("agent".into()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"status": status}));
        let (probes, node) = (self.scene.probes(), self.node(node));
        absent_is_fine(probes.patch_status(&node, &params, &patch).await)
    }

    /// All agents that are there report again, as they do in the end.
    pub(crate) async fn wake_agents(&mut self) -> Result<()> {
        for node in 0..NODES {
            if self.agents[node] == AgentIs::NotReady {
                self.set_agent(node, AgentIs::Ready).await?;
            }
        }
        Ok(())
    }

    /// Waits until the installation is as the model says, while the agents do what they owe: see [`owed`].
    async fn settle(&mut self) -> Result<()> {
        let mut installation = Watched::default();
        let mut last = vec!["nothing was seen".to_owned()];
        let waiting = async {
            let mut events = pin!(self.watch());
            while let Some(event) = events.next().await {
                installation.observe(event);
                if !installation.is_listed() {
                    continue;
                }
                self.answer(&installation).await?;
                last = self.faults(&installation);
                if last.is_empty() {
                    return Ok(());
                }
            }
            bail!("the watch ended")
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(ended) => ended,
            Err(_) => Err(anyhow!(last.join("\n")).context(format!("not so within {PATIENCE:?}"))),
        }
    }

    fn faults(&self, installation: &Watched) -> Vec<String> {
        let of = |nodes: Vec<usize>| nodes.into_iter().map(|node| self.node(node)).collect();
        let all = || 0..NODES;
        let real: BTreeSet<_> = of(all().filter(|it| self.nodes[*it] == NodeIs::Real).collect());
        let reporting = of(all()
            .filter(|it| self.agents[*it] == AgentIs::Ready)
            .collect());
        let probes = installation
            .probes
            .iter()
            .flat_map(|table| table.objects.clone());
        Observed {
            markers: &installation.markers.objects,
            pods: &installation.pods.objects,
            probes: &probes.collect(),
            real: &real,
            reporting: &reporting,
        }
        .faults()
    }

    async fn answer(&self, installation: &Watched) -> Result<()> {
        for (node, table) in installation.probes.iter().enumerate() {
            for object in table.objects.values() {
                let status = statuses(object, &installation.pods.objects, owed);
                if status != object.status.clone().unwrap_or_default() {
                    self.patch_status(node, json!(status)).await?;
                }
            }
        }
        Ok(())
    }

    fn watch(&self) -> impl futures::Stream<Item = Seen> + use<> {
        let mut streams: Vec<BoxStream<'static, Seen>> = vec![
            watcher(self.scene.pods(), Config::default())
                .filter_map(async |event| event.ok().map(Box::new).map(Seen::Pod))
                .boxed(),
            watcher(self.scene.markers(), Config::default())
                .filter_map(async |event| event.ok().map(Seen::Marker))
                .boxed(),
        ];
        for node in 0..NODES {
            let own = Config::default().fields(&format!("metadata.name={}", self.node(node)));
            let events = watcher(self.scene.probes(), own);
            let events = events
                .filter_map(move |event| ready(event.ok().map(|event| Seen::Probe(node, event))));
            streams.push(events.boxed());
        }
        select_all(streams)
    }
}

fn absent_is_fine<T>(result: kube::Result<T>) -> Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error).context("a write of a NodePodProbe"),
    }
}

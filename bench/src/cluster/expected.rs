//! Waiting until a manager has planned all, marked all and counted all, as watches of the bench's own show it. When each of
//! it was written is in the audit log.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use leadsman_api::marker::ProbeSummary;
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_core::cluster::whole_seconds;
use leadsman_process::clock;
use leadsman_tests::ObjectWatch;
use leadsman_tests::scene::differs;

use super::PATIENCE;
use super::agents::Agents;
use super::api::{NODE_POD_PROBES, PAGE, POD_PROBE_MARKERS, PODS, send_at_once};
use super::stage::{Contender, Stage, Who};
use super::world::{PROBES, World, app, entry, node};
use crate::progress::Step;

/// Watches on all that a manager writes, and on what it is to come to; listed before it starts or verdicts turn.
pub(super) struct Watches {
    specs: ObjectWatch<NodePodProbe>,
    pub(super) markers: MarkerWatch,
    pods: ObjectWatch<Pod>,
}

/// A watch on the markers, whose statuses tell how far a manager is.
pub(super) struct MarkerWatch(ObjectWatch<PodProbeMarker>);

impl Watches {
    pub(super) async fn begin(client: &Client) -> Result<Self> {
        Ok(Self {
            specs: ObjectWatch::begin(client, NODE_POD_PROBES, PAGE).await?,
            markers: MarkerWatch::begin(client).await?,
            pods: ObjectWatch::begin(client, PODS, PAGE).await?,
        })
    }

    /// Waits until every node has its entries and no others, each with a revision, and every marker's status says that it
    /// matches all its pods and that all of its generation is planned.
    pub(super) async fn planned(&mut self, name: &str, world: &World) -> Result<()> {
        let _step = Step::begin(name);
        let mut expected = HashMap::<_, HashSet<_>>::new();
        for pod in &world.pods {
            let entries = PROBES.map(|probe| (pod.uid.clone(), entry(pod.app, probe), true));
            let of_node = expected.entry(node(pod.node));
            of_node.or_default().extend(entries);
        }
        let has_its_entries = |object: &NodePodProbe| {
            let pods = object.spec.pod_probes.iter();
            let entries = pods.flat_map(|pod| pod.probes.iter().map(|probe| (&pod.uid, probe)));
            let found = entries
                .map(|(uid, probe)| (uid.clone(), probe.name.clone(), probe.revision.is_some()));
            let is_right = expected.get(&object.name_any()) == Some(&found.collect());
            ensure!(is_right, "its entries are others");
            Ok(())
        };
        tokio::try_join!(
            self.specs
                .wait_until("entries", world.nodes, PATIENCE, has_its_entries),
            self.markers.planned(world),
        )?;
        Ok(())
    }

    /// Waits until every pod has all that it should: labels, annotations and conditions.
    pub(super) async fn marked(&mut self, name: &str, agents: &Agents<'_>) -> Result<()> {
        let _step = Step::begin(name);
        let pods = agents.world.pods.iter().enumerate();
        let expected = pods.map(|(place, pod)| (pod.name.clone(), agents.expected(place)));
        let expected: HashMap<_, _> = expected.collect();
        let check = |pod: &Pod| {
            let expected = expected.get(&pod.name_any());
            differs(pod, expected.context("nobody made it")?)
        };
        let pods = self.pods.wait_until(name, expected.len(), PATIENCE, check);
        pods.await
    }
}

impl MarkerWatch {
    pub(super) async fn begin(client: &Client) -> Result<Self> {
        Ok(Self(
            ObjectWatch::begin(client, POD_PROBE_MARKERS, PAGE).await?,
        ))
    }

    /// Waits until every marker's status says that it matches all its pods, and that all of its generation is planned.
    pub(super) async fn planned(&mut self, world: &World) -> Result<()> {
        let matched = i64::try_from(world.nodes)?;
        let is_planned = |marker: &PodProbeMarker| {
            let status = marker.status.clone().unwrap_or_default();
            let observed = Some(status.observed_generation) == marker.metadata.generation;
            let planned = observed && status.matched_pods == Some(matched);
            ensure!(planned, "its status is {status:?}");
            Ok(())
        };
        let markers = self
            .0
            .wait_until("statuses", world.apps, PATIENCE, is_planned);
        markers.await
    }

    /// Waits until every marker's status counts the verdicts that the agents report, each pod's among them.
    pub(super) async fn counted(&mut self, agents: &Agents<'_>) -> Result<()> {
        let counts = (0..agents.world.apps).map(|number| (app(number), agents.counts(number)));
        let counts: HashMap<_, _> = counts.collect();
        let check = |marker: &PodProbeMarker| {
            let found = marker.status.iter().flat_map(|status| &status.probes);
            // The agents that are played have no pods, so that they may pass for silent.
            let found = found.cloned().map(|one| ProbeSummary { silent: 0, ..one });
            let (found, expected) = (found.collect(), counts.get(&marker.name_any()));
            ensure!(expected == Some(&found), "it counts {found:?}");
            Ok(())
        };
        let name = "markers' counts";
        let _step = Step::begin(name);
        self.0.wait_until(name, counts.len(), PATIENCE, check).await
    }
}

/// Starts a manager and lets it come to rest: all planned, every probe succeeded, every pod marked, every status
/// counting all of them.
pub(super) async fn settle<'a>(stage: &Stage, world: &'a World) -> Result<(Agents<'a>, Contender)> {
    let mut watches = Watches::begin(&stage.client).await?;
    let manager = stage.start(Who::Manager, None).await?;
    let settled = async {
        watches.planned("planning", world).await?;
        let agents = Agents::of(&stage.client, world, whole_seconds(clock::now())).await?;
        tokio::try_join!(
            watches.marked("marking all pods", &agents),
            send_at_once(&stage.client, agents.reports()),
        )?;
        watches.markers.counted(&agents).await?;
        anyhow::Ok(agents)
    };
    let agents = settled.await.with_context(|| manager.last_lines())?;
    Ok((agents, manager))
}

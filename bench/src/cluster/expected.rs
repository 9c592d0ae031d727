//! Waiting until a manager has planned all, marked all and counted all, as watches of the bench's own show it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt as _};
use leadsman_api::{NodePodProbe, PodProbeMarker};
use leadsman_core::cluster::whole_seconds;
use leadsman_process::clock;
use tokio::time::Instant;

use super::agents::Agents;
use super::api::{NameAndLabels, Watched, send_at_once};
use super::stage::{Contender, Stage, Who};
use super::world::{APPS, PROBES, World, app, entry};

/// Watches on all that a manager plans, listed before it starts.
pub(super) struct Plans {
    specs: Watched<NodePodProbe>,
    statuses: Watched<PodProbeMarker>,
    nodes: usize,
    /// Node, uid of the pod, and name of each entry.
    entries: HashSet<(String, String, String)>,
}

/// When all was planned: the last spec, and the last of specs and markers' statuses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) specs: Duration,
    pub(super) all: Duration,
}

impl Plans {
    pub(super) async fn watch(client: &Client, world: &World) -> Result<Self> {
        let entries = world.pods.iter().flat_map(|pod| {
            let (node, uid) = (&world.nodes[pod.node], &pod.uid);
            PROBES.map(|probe| (node.clone(), uid.clone(), entry(pod.app, probe)))
        });
        Ok(Self {
            specs: Watched::begin(Api::all(client.clone()), Config::default()).await?,
            statuses: Watched::begin(Api::all(client.clone()), Config::default()).await?,
            nodes: world.nodes.len(),
            entries: entries.collect(),
        })
    }

    /// Waits until every node has its entries and no others, each with a revision, and every marker's status says that it
    /// matches all its pods and that all of its generation is planned.
    pub(super) async fn complete(&mut self, name: &str, since: Instant) -> Result<Planned> {
        let (nodes, expected) = (self.nodes, &self.entries);
        let specs = self.specs.until_right(name, nodes, since, |object| {
            let pods = object.spec.pod_probes.iter();
            let entries = pods.flat_map(|pod| pod.probes.iter().map(|probe| (&pod.uid, probe)));
            let are_right = entries.map(|(uid, probe)| {
                let entry = (object.name_any(), uid.clone(), probe.name.clone());
                probe.revision.is_some() && expected.contains(&entry)
            });
            let are_right: Vec<_> = are_right.collect();
            Some(are_right.len() == APPS * PROBES.len() && !are_right.contains(&false))
        });
        let (matched, name) = (i64::try_from(nodes)?, "markers' statuses");
        let statuses = self.statuses.until_right(name, APPS, since, |object| {
            let status = object.status.as_ref()?;
            let observed = Some(status.observed_generation) == object.metadata.generation;
            Some(observed && status.matched_pods == Some(matched))
        });
        let (specs, statuses) = tokio::try_join!(specs, statuses)?;
        let last = |times: Vec<Duration>| times.last().copied().unwrap_or_default();
        let (specs, statuses) = (last(specs), last(statuses));
        Ok(Planned {
            specs,
            all: specs.max(statuses),
        })
    }
}

/// Begins to watch all pods.
pub(super) async fn watch_pods(client: &Client) -> Result<Watched<NameAndLabels>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    Watched::begin(Api::all_with(client.clone(), &resource), Config::default()).await
}

/// Waits until each of these pods, named by its place, has the labels that it should; after how long each had.
pub(super) async fn until_marked(
    pods: &mut Watched<NameAndLabels>,
    name: &str,
    agents: &Agents<'_>,
    places: &[usize],
    since: Instant,
) -> Result<Vec<Duration>> {
    let expected = places.iter().map(|place| {
        let name = agents.world.pods[*place].name.clone();
        (name, agents.expected(*place))
    });
    let expected: HashMap<_, _> = expected.collect();
    pods.until_right(name, expected.len(), since, |pod| {
        let labels = expected.get(&pod.name_any())?["labels"].as_object()?;
        let has = |key, value: &str| pod.labels().get(key).is_some_and(|found| found == value);
        Some(
            labels
                .iter()
                .all(|(key, value)| has(key, value.as_str().unwrap_or_default())),
        )
    })
    .await
}

/// Begins to watch all markers.
pub(super) async fn watch_markers(client: &Client) -> Result<Watched<PodProbeMarker>> {
    Watched::begin(Api::all(client.clone()), Config::default()).await
}

/// Waits until every marker's status counts the verdicts that the agents report, each pod's among them.
pub(super) async fn until_counted(
    markers: &mut Watched<PodProbeMarker>,
    agents: &Agents<'_>,
) -> Result<()> {
    let counts = (0..APPS).map(|number| (app(number), agents.counts(number)));
    let counts: HashMap<_, _> = counts.collect();
    let is_counted = |marker: &PodProbeMarker| {
        let expected = counts.get(&marker.name_any())?;
        let found = &marker.status.as_ref()?.probes;
        let is_right = |(name, succeeded, failed)| {
            found.iter().any(|probe| {
                (probe.name.as_str(), probe.succeeded, probe.failed) == (name, succeeded, failed)
                    && (probe.unknown, probe.pending) == (0, 0)
            })
        };
        Some(expected.iter().copied().all(is_right))
    };
    let (name, now) = ("markers' counts", clock::monotonic());
    markers.until_right(name, APPS, now, is_counted).await?;
    Ok(())
}

/// Fails unless every pod has all that it should: labels, annotations and conditions.
pub(super) async fn check_all(client: &Client, agents: &Agents<'_>) -> Result<()> {
    let pods: Api<Pod> = Api::all(client.clone());
    let pods = pods.list(&ListParams::default()).await?;
    let mut found: HashMap<_, _> = pods.into_iter().map(|pod| (pod.name_any(), pod)).collect();
    for (place, pod) in agents.world.pods.iter().enumerate() {
        let found = found.remove(&pod.name);
        let found = found.with_context(|| format!("pod {} is gone", pod.name))?;
        leadsman_tests::scene::differs(&found, &agents.expected(place))?;
    }
    Ok(())
}

/// Starts a manager and lets it come to rest: all planned, every probe succeeded, every pod marked, every status
/// counting all of them.
pub(super) async fn settle<'a>(stage: &Stage, world: &'a World) -> Result<(Agents<'a>, Contender)> {
    let mut plans = Plans::watch(&stage.client, world).await?;
    let manager = stage.start(Who::Manager, None).await?;
    let planned = plans.complete("planning", manager.started).await;
    planned.with_context(|| manager.last_lines())?;
    let agents = Agents::of(&stage.client, world, whole_seconds(clock::now())).await?;
    let mut pods = watch_pods(&stage.client).await?;
    let mut markers = watch_markers(&stage.client).await?;
    let all: Vec<_> = (0..world.pods.len()).collect();
    let (name, now) = ("marking all pods", clock::monotonic());
    let marked = tokio::try_join!(
        until_marked(&mut pods, name, &agents, &all, now),
        send_at_once(&stage.client, agents.reports()),
    );
    marked.with_context(|| manager.last_lines())?;
    let counted = until_counted(&mut markers, &agents).await;
    counted.with_context(|| manager.last_lines())?;
    Ok((agents, manager))
}

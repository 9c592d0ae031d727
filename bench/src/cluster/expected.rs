//! Waiting until a manager has planned all, marked all and counted all, as watches of the bench's own show it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt as _};
use leadsman_api::{NodePodProbe, PodProbeMarker};

use super::QUIET;
use super::agents::Agents;
use super::exchange::send_at_once;
use super::objects::{self, APPS, CONTAINER, PROBES};
use super::stage::{Manager, Stage};
use super::watched::{Scrap, Watched};
use super::world::World;
use crate::clock;
use crate::progress::wait;
use crate::requests::Requests;

/// Watches on all that a manager plans, listed before it starts.
pub(super) struct Plans {
    specs: Watched<NodePodProbe>,
    statuses: Watched<PodProbeMarker>,
    /// The entries of each node, sorted.
    entries: HashMap<String, Vec<String>>,
}

/// When all was planned: the last spec, and the last of specs and markers' statuses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) specs: Duration,
    pub(super) all: Duration,
}

impl Plans {
    pub(super) async fn watch(client: &Client, world: &World) -> Result<Self> {
        let mut entries: HashMap<_, Vec<_>> = HashMap::new();
        for pod in &world.pods {
            let of_node = entries.entry(world.nodes[pod.node].clone()).or_default();
            for probe in PROBES {
                let name = objects::entry(pod.app, probe);
                of_node.push(format!("{} {name} {CONTAINER} true", pod.uid));
            }
        }
        for entries in entries.values_mut() {
            entries.sort();
        }
        Ok(Self {
            specs: Watched::begin(Api::all(client.clone()), Config::default()).await?,
            statuses: Watched::begin(Api::all(client.clone()), Config::default()).await?,
            entries,
        })
    }

    /// Waits until every node has its entries and no others, each with a revision, and every marker's status says that it
    /// matches all its pods and that all of its generation is planned.
    pub(super) async fn complete(&mut self, name: &str, since: Instant) -> Result<Planned> {
        let nodes = self.entries.len();
        let specs = self.specs.until_right(name, nodes, since, |object| {
            let pods = object.spec.pod_probes.iter();
            let entries =
                pods.flat_map(|pod| pod.probes.iter().map(move |probe| (&pod.uid, probe)));
            let mut entries: Vec<_> = entries
                .map(|(uid, probe)| {
                    let (name, container) = (&probe.name, &probe.container_name);
                    format!("{uid} {name} {container} {}", probe.revision.is_some())
                })
                .collect();
            entries.sort();
            Some(self.entries.get(&object.name_any()) == Some(&entries))
        });
        let matched = i64::try_from(nodes)?;
        let statuses = self
            .statuses
            .until_right("markers' statuses", APPS, since, |object| {
                let status = object.status.as_ref()?;
                let observed = Some(status.observed_generation) == object.metadata.generation;
                Some(observed && status.matched_pods == Some(matched))
            });
        let (specs, statuses) = tokio::try_join!(specs, statuses)?;
        let last = |times: Vec<Duration>| times.last().copied().unwrap_or_default();
        let specs = last(specs);
        Ok(Planned {
            specs,
            all: specs.max(last(statuses)),
        })
    }
}

/// Begins to watch all pods.
pub(super) async fn watch_pods(client: &Client) -> Result<Watched<Scrap>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    Watched::begin(Api::all_with(client.clone(), &resource), Config::default()).await
}

/// Waits until each of these pods, named by its place, has the labels that it should; after how long each had.
pub(super) async fn until_marked(
    pods: &mut Watched<Scrap>,
    name: &str,
    agents: &Agents<'_>,
    places: &[usize],
    since: Instant,
) -> Result<Vec<Duration>> {
    let labels = places.iter().map(|place| {
        (
            agents.world.pods[*place].name.clone(),
            agents.labels(*place),
        )
    });
    let labels: HashMap<_, _> = labels.collect();
    pods.until_right(name, labels.len(), since, |pod| {
        let wanted = labels.get(pod.metadata.name.as_deref()?)?;
        Some(
            wanted
                .iter()
                .all(|(key, value)| pod.labels().get(key) == Some(value)),
        )
    })
    .await
}

/// Fails unless every pod has all that it should: labels, annotations and conditions.
pub(super) async fn check_all(client: &Client, agents: &Agents<'_>) -> Result<()> {
    let pods = Api::<Pod>::all(client.clone())
        .list(&ListParams::default())
        .await?;
    let mut found: HashMap<_, _> = pods.into_iter().map(|pod| (pod.name_any(), pod)).collect();
    for (place, pod) in agents.world.pods.iter().enumerate() {
        let found = found
            .remove(&pod.name)
            .with_context(|| format!("pod {} is gone", pod.name))?;
        leadsman_tests::scene::differs(&found, &agents.expected(place))?;
    }
    Ok(())
}

pub(super) async fn watch_statuses(client: &Client) -> Result<Watched<PodProbeMarker>> {
    Watched::begin(Api::all(client.clone()), Config::default()).await
}

/// Waits until every marker's status counts what the agents report, and some more.
pub(super) async fn until_counted(
    markers: &mut Watched<PodProbeMarker>,
    agents: &Agents<'_>,
) -> Result<()> {
    let name = "markers' statuses";
    markers
        .until_right(name, APPS, clock::now(), |marker| {
            let app = (0..APPS).find(|app| objects::app(*app) == marker.name_any())?;
            let status = marker.status.as_ref()?;
            Some(PROBES.iter().enumerate().all(|(place, probe)| {
                let summary = status.probes.iter().find(|summary| summary.name == *probe);
                let succeeded = agents.succeeded(app, place);
                summary
                    .is_some_and(|it| (it.succeeded, it.pending, it.unknown) == (succeeded, 0, 0))
            }))
        })
        .await?;
    tokio::time::sleep(QUIET).await;
    Ok(())
}

/// Starts a manager and lets it come to rest: all planned, every probe succeeded, every pod marked, every status written.
pub(super) async fn settle<'a>(stage: &Stage, world: &'a World) -> Result<(Agents<'a>, Manager)> {
    let mut plans = Plans::watch(&stage.client, world).await?;
    let manager = stage.start_manager(&stage.kubeconfig)?;
    let planned = plans.complete("planning", manager.started).await;
    planned.with_context(|| manager.last_lines())?;
    let agents = Agents::of(&stage.client, world, whole_seconds(clock::wall())).await?;
    let mut pods = watch_pods(&stage.client).await?;
    let mut statuses = watch_statuses(&stage.client).await?;
    let all: Vec<_> = (0..world.pods.len()).collect();
    let marked = tokio::try_join!(
        until_marked(&mut pods, "marking all pods", &agents, &all, clock::now()),
        send_at_once(&stage.client, agents.reports()),
    );
    marked.with_context(|| manager.last_lines())?;
    until_counted(&mut statuses, &agents).await?;
    Ok((agents, manager))
}

/// Starts a manager, lets it find nothing to do, and ends it; what it sent.
pub(super) async fn restart(stage: &Stage) -> Result<Requests> {
    let mark = stage.plane.audit_mark()?;
    let manager = stage.start_manager(&stage.kubeconfig)?;
    manager.ready().await?;
    wait("a manager with nothing to do", QUIET).await;
    let requests = stage.requests(mark)?;
    manager.end().await?;
    Ok(requests)
}

/// Times in Kubernetes' objects have no fractions of a second.
pub(super) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

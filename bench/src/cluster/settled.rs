//! A manager that has nothing left to do: all planned, all verdicts in, every pod marked, every status written.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt as _};
use leadsman_api::PodProbeMarker;

use super::agents::Agents;
use super::flips::report;
use super::marks::Marks;
use super::objects::{self, APPS, PROBES};
use super::requests::Requests;
use super::sight::{Change, Sight};
use super::specs::Plans;
use super::stage::{Stage, pass};
use super::subject::{Subject, free_address};
use super::world::World;
use super::{PATIENCE, QUIET};
use crate::clock;

/// Who is there.
pub(super) struct Settled<'a> {
    /// They have found that every probe succeeds.
    pub(super) agents: Agents<'a>,
    /// It has said so on every pod.
    pub(super) manager: Subject,
}

/// Starts a manager and lets it come to rest.
pub(super) async fn settle<'a>(stage: &Stage, world: &'a World) -> Result<Settled<'a>> {
    let mut plans = Plans::watch(&stage.client, world).await?;
    let manager = Subject::manager(stage, &stage.kubeconfig, free_address()?)?;
    let planned = plans.complete("planning", manager.started).await;
    planned.with_context(|| format!("planning{}", manager.last_words()))?;
    let agents = Agents::of(&stage.client, world, whole_seconds(clock::wall())).await?;
    let mut marks = Marks::watch(&stage.client, world).await?;
    let mut statuses = Statuses::watch(&stage.client).await?;
    let marked = tokio::try_join!(
        marks.seen(
            "marking all pods",
            &agents,
            0..world.pods.len(),
            clock::now()
        ),
        report(&stage.client, agents.reports()),
    );
    marked.with_context(|| format!("marking{}", manager.last_words()))?;
    statuses.settle(&agents).await?;
    tokio::time::sleep(QUIET).await;
    Ok(Settled { agents, manager })
}

/// Starts a manager, lets it find nothing to do, and ends it; what it sent.
pub(super) async fn restart(stage: &Stage) -> Result<Requests> {
    let address = free_address()?;
    let mark = stage.plane.audit_mark()?;
    let manager = Subject::manager(stage, &stage.kubeconfig, address)?;
    manager.ready(address).await?;
    pass("a manager with nothing to do", QUIET).await;
    let requests = stage.requests(mark)?;
    manager.end().await?;
    Ok(requests)
}

/// Times in Kubernetes' objects have no fractions of a second.
pub(super) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// A watch on the markers' statuses, listed.
pub(super) struct Statuses {
    sight: Sight<PodProbeMarker>,
    markers: Vec<PodProbeMarker>,
}

impl Statuses {
    /// Begins to watch.
    pub(super) async fn watch(client: &Client) -> Result<Self> {
        let markers = Api::all(client.clone());
        let (sight, markers) = Sight::begin(markers, Config::default()).await?;
        Ok(Self { sight, markers })
    }

    /// Waits until every marker's status counts what the agents say.
    pub(super) async fn settle(&mut self, agents: &Agents<'_>) -> Result<()> {
        let mut right: BTreeSet<_> = self
            .markers
            .iter()
            .filter_map(|it| says(it, agents))
            .collect();
        let watching = async {
            while right.len() < APPS {
                let Change::Is(marker) = self.sight.next().await? else {
                    continue;
                };
                match says(&marker, agents) {
                    Some(app) => right.insert(app),
                    None => right.remove(&marker.name_any()),
                };
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(PATIENCE, watching).await {
            Ok(settled) => settled,
            Err(_) => bail!(
                "after {} s only the statuses of {right:?} say what the agents say",
                PATIENCE.as_secs()
            ),
        }
    }
}

/// The marker's name, if its status counts what the agents say.
fn says(marker: &PodProbeMarker, agents: &Agents<'_>) -> Option<String> {
    let app = (0..APPS).find(|app| objects::app(*app) == marker.name_any())?;
    let status = marker.status.as_ref()?;
    let counted = PROBES.iter().enumerate().all(|(place, probe)| {
        let summary = status.probes.iter().find(|summary| summary.name == *probe);
        let succeeded = agents.succeeded(app, place);
        summary.is_some_and(|it| it.succeeded == succeeded && it.pending == 0 && it.unknown == 0)
    });
    counted.then(|| marker.name_any())
}

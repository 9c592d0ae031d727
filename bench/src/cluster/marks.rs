//! When pods bear what the agents say, as a watch on all pods shows it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Pod as WholePod;
use kube::api::ListParams;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt as _};

use super::PATIENCE;
use super::agents::Agents;
use super::sight::{Change, Scrap, Sight};
use super::world::World;
use crate::progress::Step;

/// The watch, listed, and what is waited for.
pub(super) struct Marks {
    sight: Sight<Scrap>,
    places: HashMap<String, usize>,
}

impl Marks {
    /// Begins to watch all pods.
    pub(super) async fn watch(client: &Client, world: &World) -> Result<Self> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let pods: Api<Scrap> = Api::all_with(client.clone(), &resource);
        let (sight, _) = Sight::begin(pods, Config::default()).await?;
        let places = world.pods.iter().enumerate();
        let places = places.map(|(place, pod)| (pod.name.clone(), place));
        Ok(Self {
            sight,
            places: places.collect(),
        })
    }

    /// Waits until each of these pods, named by its place, has the labels that it should; after how long each had.
    pub(super) async fn seen(
        &mut self,
        name: &str,
        agents: &Agents<'_>,
        pods: impl IntoIterator<Item = usize>,
        since: Instant,
    ) -> Result<Vec<Duration>> {
        let mut due: HashMap<_, _> = pods
            .into_iter()
            .map(|place| (place, agents.labels(place)))
            .collect();
        let mut step = Step::begin(name, due.len() as u64);
        let mut times = Vec::with_capacity(due.len());
        let watching = async {
            while !due.is_empty() {
                let Change::Is(pod) = self.sight.next().await? else {
                    continue;
                };
                let now = since.elapsed();
                let Some(place) = self.places.get(&pod.name_any()) else {
                    continue;
                };
                let labels = pod.labels();
                let bears = |(key, value): &(String, String)| labels.get(key) == Some(value);
                if due.get(place).is_some_and(|due| due.iter().all(bears)) {
                    due.remove(place);
                    times.push(now);
                    step.at(times.len() as u64);
                }
            }
            anyhow::Ok(())
        };
        let outcome = tokio::time::timeout(PATIENCE, watching).await;
        step.end();
        match outcome {
            Ok(Ok(())) => Ok(times),
            Ok(Err(error)) => Err(error),
            Err(_) => bail!(
                "after {} s {} pods do not bear their marks, those at {:?} among them",
                PATIENCE.as_secs(),
                due.len(),
                due.keys().take(3).collect::<Vec<_>>()
            ),
        }
    }
}

/// Fails unless every pod bears all that it should: labels, annotations and conditions.
pub(super) async fn check_all(client: &Client, world: &World, agents: &Agents<'_>) -> Result<()> {
    let pods: Api<WholePod> = Api::all(client.clone());
    let mut found: HashMap<_, _> = pods
        .list(&ListParams::default())
        .await?
        .into_iter()
        .map(|pod| (pod.name_any(), pod))
        .collect();
    for (place, pod) in world.pods.iter().enumerate() {
        let Some(found) = found.remove(&pod.name) else {
            bail!("pod {} is gone", pod.name);
        };
        leadsman_tests::scene::differs(&found, &agents.expected(place))?;
    }
    Ok(())
}

//! What a manager is to plan: which entries each node's `NodePodProbe` must have, and what each marker's status must
//! say; watched until all of it is there.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt as _};
use leadsman_api::{NodePodProbe, PodProbeMarker};

use super::PATIENCE;
use super::objects::{self, APPS, CONTAINER, PROBES};
use super::sight::{Change, Sight};
use super::world::World;
use crate::progress::Step;

/// Both watches, listed.
pub(super) struct Plans {
    specs: Sight<NodePodProbe>,
    statuses: Sight<PodProbeMarker>,
    seen: Seen,
}

/// What is right so far.
struct Seen {
    /// The entries of each node, sorted.
    expected: Vec<(String, Vec<String>)>,
    right_nodes: BTreeSet<String>,
    right_markers: BTreeSet<String>,
    matched: i64,
}

/// When all was there, since a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Complete {
    /// The last spec.
    pub(super) specs: Duration,
    /// The last marker's status.
    pub(super) statuses: Duration,
}

impl Complete {
    /// Both.
    pub(super) fn all(&self) -> Duration {
        self.specs.max(self.statuses)
    }
}

impl Plans {
    /// Begins to watch, before a manager starts.
    pub(super) async fn watch(client: &Client, world: &World) -> Result<Self> {
        let mut seen = Seen::new(world);
        let (specs, listed) = Sight::begin(Api::all(client.clone()), Config::default()).await?;
        for object in &listed {
            seen.spec(object);
        }
        let (statuses, listed) = Sight::begin(Api::all(client.clone()), Config::default()).await?;
        for object in &listed {
            seen.status(object);
        }
        Ok(Self {
            specs,
            statuses,
            seen,
        })
    }

    /// Waits until every spec and every status is right, `name` being what is told meanwhile.
    pub(super) async fn complete(&mut self, name: &str, since: Instant) -> Result<Complete> {
        let nodes = self.seen.expected.len();
        let mut step = Step::begin(name, (nodes + APPS) as u64);
        let Self {
            specs,
            statuses,
            seen,
        } = self;
        let mut complete = Complete {
            specs: Duration::ZERO,
            statuses: Duration::ZERO,
        };
        let watching = async {
            while seen.right_nodes.len() < nodes || seen.right_markers.len() < APPS {
                tokio::select! {
                    change = specs.next() => {
                        seen.spec_changed(&change?);
                        complete.specs = since.elapsed();
                    }
                    change = statuses.next() => {
                        seen.status_changed(&change?);
                        complete.statuses = since.elapsed();
                    }
                }
                step.at((seen.right_nodes.len() + seen.right_markers.len()) as u64);
            }
            Ok(complete)
        };
        let outcome = tokio::time::timeout(PATIENCE, watching).await;
        step.end();
        match outcome {
            Ok(complete) => complete,
            Err(_) => bail!("{}", self.seen.missing()),
        }
    }
}

impl Seen {
    fn new(world: &World) -> Self {
        let mut expected: Vec<_> = world
            .nodes
            .iter()
            .map(|node| (node.clone(), Vec::new()))
            .collect();
        for pod in &world.pods {
            for probe in PROBES {
                let name = format!("{}#{probe}", objects::app(pod.app));
                let entry = format!("{} {name} {CONTAINER} true", pod.uid);
                expected[pod.node].1.push(entry);
            }
        }
        for (_, entries) in &mut expected {
            entries.sort();
        }
        Self {
            expected,
            right_nodes: BTreeSet::new(),
            right_markers: BTreeSet::new(),
            matched: i64::try_from(world.nodes.len()).unwrap_or(i64::MAX),
        }
    }

    fn spec_changed(&mut self, change: &Change<NodePodProbe>) {
        match change {
            Change::Is(object) => self.spec(object),
            Change::Gone(object) => drop(self.right_nodes.remove(&object.name_any())),
        }
    }

    /// Right is what has these entries and no others, each with a revision.
    fn spec(&mut self, object: &NodePodProbe) {
        let name = object.name_any();
        let mut entries: Vec<_> = object
            .spec
            .pod_probes
            .iter()
            .flat_map(|pod| pod.probes.iter().map(move |probe| (&pod.uid, probe)))
            .map(|(uid, probe)| {
                let (name, container) = (&probe.name, &probe.container_name);
                format!("{uid} {name} {container} {}", probe.revision.is_some())
            })
            .collect();
        entries.sort();
        let place = self
            .expected
            .binary_search_by(|(node, _)| node.cmp(&name))
            .ok();
        if place.is_some_and(|place| self.expected[place].1 == entries) {
            self.right_nodes.insert(name);
        } else {
            self.right_nodes.remove(&name);
        }
    }

    fn status_changed(&mut self, change: &Change<PodProbeMarker>) {
        match change {
            Change::Is(object) => self.status(object),
            Change::Gone(object) => drop(self.right_markers.remove(&object.name_any())),
        }
    }

    /// Right is what matches all its pods and says that all of its generation is planned.
    fn status(&mut self, object: &PodProbeMarker) {
        let status = object.status.clone().unwrap_or_default();
        let right = Some(status.observed_generation) == object.metadata.generation
            && status.matched_pods == Some(self.matched);
        if right {
            self.right_markers.insert(object.name_any());
        } else {
            self.right_markers.remove(&object.name_any());
        }
    }

    fn missing(&self) -> String {
        let nodes = self.expected.iter().map(|(node, _)| node);
        let wrong: Vec<_> = nodes
            .filter(|node| !self.right_nodes.contains(*node))
            .collect();
        format!(
            "after {} s {} NodePodProbes are not right ({:?}, …) and {} of {APPS} markers have no right status",
            PATIENCE.as_secs(),
            wrong.len(),
            wrong.iter().take(3).collect::<Vec<_>>(),
            APPS - self.right_markers.len(),
        )
    }
}

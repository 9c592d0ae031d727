//! Looks at the container runtime: one a second while pods are probed, none otherwise, and one at once when there
//! are new ones.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leadsman_core::podprobe::node::{self, ContainerName, PodName, SLOT};
use leadsman_cri::{Container, ContainerState, Containers, Error, PodLabels, View};
use leadsman_process::clock;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// From one look to the next.
const PERIOD: Duration = Duration::from_secs(1);

/// What is to be looked at. When it changes, a look follows at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The uids of the pods that are probed.
    pub(crate) pods: Arc<HashSet<Arc<str>>>,
    /// Probes that were ever new in the plan: each waits for a look that begins after it came.
    pub(crate) hired: u64,
}

/// One look at the container runtime.
#[derive(Debug)]
pub(crate) struct Look {
    /// When it began; since the agent's start.
    pub(crate) began: Duration,
    /// What it showed; the same `Arc` as before when nothing changed.
    pub(crate) containers: Result<Arc<Containers>, Error>,
}

/// Looks until nobody listens any more. Times are on the grid that begins at `start`, so that no look costs a wake-up
/// of its own.
pub(crate) async fn look(
    mut view: View,
    start: Instant,
    mut wanted: watch::Receiver<Wanted>,
    looks: mpsc::Sender<Look>,
) {
    loop {
        let pods = wanted.borrow_and_update().pods.clone();
        if pods.is_empty() {
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        }
        let begun = clock::monotonic();
        let looked = view.refresh(|uid| pods.contains(uid)).await;
        let look = Look {
            began: begun.saturating_duration_since(start),
            containers: looked.map(|()| view.containers()),
        };
        if looks.send(look).await.is_err() {
            return;
        }
        tokio::select! {
            () = sleep_until(on_grid(start, begun, PERIOD)) => {}
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                // However fast the plan changes.
                sleep_until(on_grid(start, begun, SLOT)).await;
            }
        }
    }
}

/// The first multiple of `step` since `start` that is after `then`.
fn on_grid(start: Instant, then: Instant, step: Duration) -> Instant {
    let since = then.saturating_duration_since(start).as_millis();
    let steps = since / step.as_millis() + 1;
    start + step * u32::try_from(steps).unwrap_or(u32::MAX)
}

/// The labels that the kubelet gives the containers of a pod.
pub(crate) fn labels(pod: &PodName) -> PodLabels<'_> {
    PodLabels {
        namespace: &pod.namespace,
        name: &pod.name,
        uid: &pod.uid,
    }
}

/// What the state machine reads of these containers.
pub(crate) fn known(
    containers: &Containers,
    names: impl Iterator<Item = ContainerName>,
) -> node::ObservedContainers {
    names
        .filter_map(|name| {
            let container = containers.get(labels(&name.pod), &name.name)?;
            Some((name, seen(container)))
        })
        .collect()
}

fn seen(container: &Container) -> node::ObservedContainer {
    node::ObservedContainer {
        id: container.id.clone(),
        state: match container.state {
            ContainerState::Created => node::ContainerState::Created,
            ContainerState::Running { started_at } => node::ContainerState::Running { started_at },
            ContainerState::Exited { exit_code } => node::ContainerState::Exited { exit_code },
            ContainerState::Unknown => node::ContainerState::Unknown,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn looks_lie_on_the_grid() {
        let start = clock::monotonic();
        let at = |millis| start + Duration::from_millis(millis);
        for (then, next) in [(0, 1_000), (999, 1_000), (1_000, 2_000), (2_345, 3_000)] {
            assert_eq!(on_grid(start, at(then), PERIOD), at(next), "{then}");
        }
        assert_eq!(on_grid(start, at(2_345), SLOT), at(2_400));
    }
}

//! Polling the runtime for the list of containers: once a second while pods are probed, at once when the plan has new
//! probes, and otherwise only until the runtime answers. So an agent that cannot reach its runtime is not ready, whether
//! there is something to probe yet or not.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leadsman_core::podprobe::node::{
    ContainerName, NodeEvent, PodIdentity, RuntimeContainer, RuntimeContainers, SLOT,
};
use leadsman_cri::{CurrentContainer, CurrentContainers, Error, PodLabels, View};
use leadsman_process::clock;
use leadsman_process::watch;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::health::Health;

/// The time from one list to the next.
const PERIOD: Duration = Duration::from_secs(1);

/// The pods whose containers are listed. When it changes, a list follows at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolledPods {
    uids: Arc<HashSet<Arc<str>>>,
    /// The number of probes ever added: each one waits for a list that begins after it was added.
    probes_added: u64,
}

/// One answer of the runtime.
#[derive(Debug)]
pub(crate) struct PolledContainers {
    /// The time at which the request was sent; since the agent's start.
    began: Duration,
    /// The same `Arc` as before when nothing has changed.
    containers: Result<Arc<CurrentContainers>, Error>,
}

/// Lists containers until the receiver is dropped. The times lie on the grid that begins at `start`, so that a list
/// costs no wake-up of its own.
pub(crate) async fn poll_containers(
    mut view: View,
    start: Instant,
    mut polled: watch::Receiver<PolledPods>,
    lists: mpsc::Sender<PolledContainers>,
) {
    let mut answers = false;
    loop {
        let uids = polled.borrow_and_update().uids.clone();
        // The runtime is asked without entries only until it has answered once, which readiness
        // needs.
        if uids.is_empty() && answers {
            if polled.changed().await.is_err() {
                return;
            }
            continue;
        }
        // The time before the request: what the list shows is at least as new.
        let began = clock::monotonic();
        let refreshed = view.refresh_wanted(|uid| uids.contains(uid)).await;
        answers = refreshed.is_ok();
        let list = PolledContainers {
            began: began.saturating_duration_since(start),
            containers: refreshed.map(|()| view.current_containers()),
        };
        if lists.send(list).await.is_err() {
            return;
        }
        tokio::select! {
            // Either leads to the next list.
            biased;
            () = sleep_until(next_on_grid(start, began, PERIOD)) => {}
            changed = polled.changed() => {
                if changed.is_err() {
                    return;
                }
                // One list a slot at most, however fast the plan changes.
                sleep_until(next_on_grid(start, began, SLOT)).await;
            }
        }
    }
}

/// The first multiple of `step` since `start` that is after `then`.
fn next_on_grid(start: Instant, then: Instant, step: Duration) -> Instant {
    let since = then.saturating_duration_since(start).as_millis();
    // A u32 of slots is 13 years.
    let steps = since / step.as_millis() + 1;
    start + step * u32::try_from(steps).unwrap_or(u32::MAX)
}

/// The last list, and which pods the next one is for. Times are since the agent's start.
pub(crate) struct ContainerLists {
    polled: watch::Sender<PolledPods>,
    last: Option<Arc<CurrentContainers>>,
    /// The time at which the last list came, or at which there began to be something to list for.
    succeeded_at: Duration,
    /// The time at which the plan changed, until a list that began later has succeeded. The plan
    /// may name other containers of the same pods, so the next list is passed on even if it is
    /// equal.
    plan_changed_at: Option<Duration>,
    health: Health,
}

impl ContainerLists {
    pub(crate) fn new(health: Health) -> Self {
        Self {
            polled: watch::Sender::default(),
            last: None,
            succeeded_at: Duration::ZERO,
            plan_changed_at: None,
            health,
        }
    }

    pub(crate) fn subscribe_to_pods(&self) -> watch::Receiver<PolledPods> {
        self.polled.subscribe()
    }

    pub(crate) fn last_containers(&self) -> Option<&CurrentContainers> {
        self.last.as_deref()
    }

    /// Takes in the pods of a new plan, and how many probes were ever added.
    pub(crate) fn follow_plan(
        &mut self,
        uids: HashSet<Arc<str>>,
        probes_added: u64,
        now: Duration,
    ) {
        if uids.is_empty() || self.polled.borrow().uids.is_empty() {
            // No list was due before.
            self.succeeded_at = now;
        }
        if uids.is_empty() {
            // The list may be hours old when something is probed again.
            self.last = None;
        }
        self.plan_changed_at = Some(now);
        self.polled.send_if_modified(|polled| {
            let is_other = polled.probes_added != probes_added || *polled.uids != uids;
            if is_other {
                *polled = PolledPods {
                    uids: Arc::new(uids),
                    probes_added,
                };
            }
            is_other
        });
    }

    /// Applies a list. Returns the event for the state machine, with the containers of these names.
    pub(crate) fn observe_list(
        &mut self,
        list: PolledContainers,
        names: impl Iterator<Item = ContainerName>,
        now: Duration,
    ) -> Option<NodeEvent<'static>> {
        let PolledContainers { began, containers } = list;
        let containers = match containers {
            Ok(containers) => containers,
            Err(error) => {
                if self
                    .health
                    .record_failure(&error.to_string(), self.succeeded_at)
                {
                    tracing::warn!(
                        %error,
                        "listing containers from the container runtime failed, retrying each second; if its socket is \
                         elsewhere, set --runtime-endpoint (agent.runtime of the Helm chart)"
                    );
                }
                return None;
            }
        };
        self.health.record_success();
        self.succeeded_at = now;
        let known = self.last.as_ref();
        let is_equal = known.is_some_and(|known| Arc::ptr_eq(known, &containers));
        let is_news = !is_equal || self.plan_changed_at.is_some();
        self.plan_changed_at = self
            .plan_changed_at
            .filter(|changed_at| began < *changed_at);
        let observed = is_news.then(|| observed_containers(&containers, names));
        // A list that began before the last pod left would be kept until the next one.
        self.last = Some(containers).filter(|_| !self.polled.borrow().uids.is_empty());
        Some(NodeEvent::ContainersListed {
            began,
            containers: observed,
        })
    }
}

impl PolledContainers {
    pub(crate) fn succeeded(&self) -> bool {
        self.containers.is_ok()
    }
}

/// The labels that the kubelet gives the containers of a pod (`newContainerLabels` in
/// `pkg/kubelet/kuberuntime/labels.go`).
pub(crate) fn pod_labels(pod: &PodIdentity) -> PodLabels<'_> {
    PodLabels {
        namespace: &pod.namespace,
        name: &pod.name,
        uid: &pod.uid,
    }
}

/// The containers of these names, as the state machine sees them.
fn observed_containers(
    containers: &CurrentContainers,
    names: impl Iterator<Item = ContainerName>,
) -> RuntimeContainers {
    names
        .filter_map(|name| {
            let container = containers.get(pod_labels(&name.pod), &name.name)?;
            Some((name, observed_container(container)))
        })
        .collect()
}

fn observed_container(container: &CurrentContainer) -> RuntimeContainer {
    RuntimeContainer {
        id: container.id.clone(),
        state: container.state,
    }
}

#[cfg(test)]
mod tests {
    use leadsman_cri::fake::Fake;
    use leadsman_process::Readiness;

    use super::*;
    use crate::health::HealthChecks;

    #[tokio::test(start_paused = true)]
    async fn lists_lie_on_the_grid() {
        let start = clock::monotonic();
        let at = |millis| start + Duration::from_millis(millis);
        for (then, next) in [(0, 1_000), (999, 1_000), (1_000, 2_000), (2_345, 3_000)] {
            assert_eq!(next_on_grid(start, at(then), PERIOD), at(next), "{then}");
        }
        assert_eq!(next_on_grid(start, at(2_345), SLOT), at(2_400));
    }

    #[tokio::test]
    async fn without_pods_the_runtime_is_asked_until_it_answers() {
        let mut runtime = Fake::start();
        runtime.vanish();
        let polled = watch::Sender::<PolledPods>::default();
        let (sender, mut lists) = mpsc::channel(1);
        let view = View::new(runtime.new_client());
        let polling = poll_containers(view, clock::monotonic(), polled.subscribe(), sender);
        let polling = tokio::spawn(polling);
        assert!(!lists.recv().await.unwrap().succeeded());
        runtime.come_back();
        while !lists.recv().await.unwrap().succeeded() {}
        let another = tokio::time::timeout(2 * PERIOD, lists.recv()).await;
        assert!(another.is_err(), "{another:?}");
        drop(polled);
        polling.await.unwrap();
    }

    #[test]
    fn a_plan_without_probes_does_not_vouch_for_the_runtime() {
        let readiness = Readiness::default();
        let checks = HealthChecks::new(readiness.clone());
        let mut lists = ContainerLists::new(checks.register_check("runtime", "not tried"));
        lists.follow_plan(HashSet::new(), 0, Duration::from_secs(1));
        assert!(!readiness.is_ready());
        let list = PolledContainers {
            began: Duration::from_secs(2),
            containers: Ok(Arc::default()),
        };
        lists.observe_list(list, std::iter::empty(), Duration::from_secs(2));
        assert!(readiness.is_ready());
    }

    #[test]
    fn an_equal_list_is_news_once_after_the_plan_has_changed() {
        let checks = HealthChecks::new(Readiness::default());
        let mut lists = ContainerLists::new(checks.register_check("runtime", "not tried"));
        let containers: Arc<CurrentContainers> = Arc::default();
        let seconds = Duration::from_secs;
        let list = |lists: &mut ContainerLists, began| {
            let list = PolledContainers {
                began: seconds(began),
                containers: Ok(containers.clone()),
            };
            match lists.observe_list(list, std::iter::empty(), seconds(began)) {
                Some(NodeEvent::ContainersListed { containers, .. }) => containers.is_some(),
                other => panic!("{other:?}"),
            }
        };
        lists.follow_plan(HashSet::from(["u".into()]), 1, seconds(1));
        assert!(list(&mut lists, 1) && !list(&mut lists, 2));
        lists.follow_plan(HashSet::from(["u".into()]), 1, seconds(4));
        // One that began before the plan changed does not settle it.
        assert!(list(&mut lists, 3) && list(&mut lists, 4) && !list(&mut lists, 5));
        assert!(lists.last_containers().is_some());
        lists.follow_plan(HashSet::new(), 1, seconds(6));
        assert!(lists.last_containers().is_none());
    }
}

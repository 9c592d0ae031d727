//! The one view of the node's containers that all probes share: one list for each refresh, and one more call for each
//! container or sandbox that is new or has changed. The current container of a pod and name is the one with the newest
//! attempt.
//!
//! It fails static: while the runtime cannot be reached, the view stays as it was.
//!
//! A list is read once a second as long as a pod is probed, and mostly nothing has changed: then nothing is allocated beyond
//! the list itself.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use leadsman_core::podprobe::node::RuntimeState;
use leadsman_probe::is_dialable;

use crate::runtime::{
    self, ContainerDetails, Error, ListedContainer, ListedState, Network, Runtime,
};
use crate::wire;

/// The current container of one name in one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentContainer {
    /// The runtime's id, without a scheme.
    pub id: Arc<str>,
    /// 0 for the first container of this name, one more at each restart.
    pub attempt: u32,
    /// The container's state; one that is Unknown is asked for again at the next refresh.
    pub state: RuntimeState,
    /// The id of its sandbox.
    pub sandbox: Arc<str>,
    /// The namespace of its pod.
    pub pod_namespace: Arc<str>,
    /// The name of its pod.
    pub pod_name: Arc<str>,
    /// The addresses of the container.
    pub addresses: Addresses,
}

/// The addresses at which a container can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addresses {
    /// The runtime has not reported any, or the container has not run since it was first seen.
    Unknown,
    /// The pod is in the node's network namespace: its addresses are the node's, which the runtime
    /// does not report.
    Node,
    /// The addresses of its pod in the order of the runtime: at least one, and only dialable ones.
    Pod(Arc<[IpAddr]>),
}

/// A pod, by the labels of its containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodLabels<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's name.
    pub name: &'a str,
    /// The pod's uid.
    pub uid: &'a str,
}

/// The containers of all wanted pods at one moment.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct CurrentContainers {
    pods: HashMap<Arc<str>, HashMap<Arc<str>, CurrentContainer>>,
}

impl CurrentContainers {
    /// The current container of this name in this pod. One whose pod has the uid but another namespace or name is another
    /// pod's: the caller may have the uid from somebody who was free to choose it.
    pub fn get(&self, pod: PodLabels<'_>, name: &str) -> Option<&CurrentContainer> {
        let container = self.pods.get(pod.uid)?.get(name)?;
        let agrees = *container.pod_namespace == *pod.namespace && *container.pod_name == *pod.name;
        agrees.then_some(container)
    }
}

/// The view, and the client that it is refreshed with.
#[derive(Debug)]
pub struct View {
    runtime: Runtime,
    cache: ContainerCache,
    containers: Arc<CurrentContainers>,
}

impl View {
    /// A view without containers.
    pub fn new(runtime: Runtime) -> Self {
        Self {
            runtime,
            cache: ContainerCache::default(),
            containers: Arc::default(),
        }
    }

    /// Refreshes the view of the pods whose uid is `wanted`; all others are forgotten. Dropped at an await it leaves the view
    /// as it was.
    ///
    /// # Errors
    /// The runtime could not be reached, and the view is as it was. That the runtime fails to report a single container or
    /// sandbox is no error: it is Unknown, or without addresses, until the runtime does.
    pub async fn refresh_wanted(&mut self, wanted: impl Fn(&str) -> bool) -> Result<(), Error> {
        let to_listed = self.runtime.list_containers().await?;
        // Nearly every list of a quiet node is the same again: nothing is parsed, asked or published then.
        if self.cache.is_as_listed(&to_listed, &wanted) {
            return Ok(());
        }
        let listed = self.cache.read_list(&to_listed, &wanted);
        let mut current = newest_of_each_name(listed, wanted);
        self.cache.retain_current(&current);
        // Containers that failed the last time come last, so that they do not keep the others
        // waiting.
        current.sort_by_cached_key(|listed| (self.cache.is_failing(listed), listed.id.clone()));
        let (mut may_ask, count) = (true, current.len());
        let mut present = Vec::with_capacity(count);
        for listed in current {
            let asked = if may_ask {
                self.ask_details(&listed).await
            } else {
                Ok(())
            };
            match asked {
                Ok(()) => {}
                // Not of this container: the view stays as it was, and so do the marks.
                Err(error @ Error::Unreachable { .. }) => return Err(error),
                // Removed since it was listed.
                Err(Error::NotFound { .. }) => continue,
                Err(error) => {
                    self.cache.mark_failing(&listed, &error);
                    // One missed deadline for each refresh is enough; the next one asks for the rest.
                    may_ask = !matches!(error, Error::TimedOut { .. });
                }
            }
            present.push(listed);
        }
        // A container that is listed but has no status is asked for as long as it is listed.
        self.cache.settled = present.len() == count && self.cache.is_complete(&present);
        self.publish_current(present);
        Ok(())
    }

    /// The containers as of the last refresh. The same `Arc` as long as nothing has changed.
    pub fn current_containers(&self) -> Arc<CurrentContainers> {
        self.containers.clone()
    }

    async fn ask_details(&mut self, listed: &ListedContainer) -> Result<(), Error> {
        if self.cache.known_state(listed).is_none() {
            let details = self.runtime.container_status(&listed.id).await?;
            self.cache.set_details(listed, details);
        }
        if self.cache.lacks_addresses(listed) {
            let network = self.runtime.sandbox_network(&listed.sandbox).await?;
            self.cache.set_network(listed, network);
        }
        self.cache.failing.remove(&listed.id);
        Ok(())
    }

    fn publish_current(&mut self, current: Vec<ListedContainer>) {
        let mut containers = CurrentContainers::default();
        for listed in current {
            let container = self.cache.to_current(&listed);
            containers
                .pods
                .entry(listed.pod_uid)
                .or_default()
                .insert(listed.name, container);
        }
        // The same Arc tells the readers, by one comparison of pointers, that nothing has changed.
        if *self.containers != containers {
            self.containers = Arc::new(containers);
        }
    }
}

/// The runtime's reports of listed containers of wanted pods.
#[derive(Debug, Default)]
struct ContainerCache {
    /// All containers of the last list by their ids.
    known: HashMap<Arc<str>, KnownContainer>,
    /// Whether the last refresh left nothing to ask: the same list again has nothing new.
    settled: bool,
    /// The state by `ContainerStatus`, and the state by the list when it was asked: valid until the list shows another.
    states: HashMap<Arc<str>, (ListedState, RuntimeState)>,
    sandboxes: HashMap<Arc<str>, Addresses>,
    /// Containers whose status the runtime failed to report. Each is logged once.
    failing: HashSet<Arc<str>>,
}

/// A container of the last list, of whatever pod.
#[derive(Debug, Clone)]
struct KnownContainer {
    /// The listed container. `None` stands for one without the kubelet's labels.
    listed: Option<ListedContainer>,
    state: ListedState,
    /// Whether its pod was wanted.
    wanted: bool,
}

impl ContainerCache {
    /// Whether the list shows the same as the last one, of the same wanted pods, and nothing is left to ask.
    fn is_as_listed(&self, listed: &[wire::Container], wanted: impl Fn(&str) -> bool) -> bool {
        let is_same = |container: &wire::Container| {
            let known = runtime::container_id(container).and_then(|id| self.known.get(id));
            known.is_some_and(|known| {
                let uid = known.listed.as_ref().map(|listed| &*listed.pod_uid);
                known.state == runtime::to_listed_state(container.state())
                    && known.wanted == uid.is_some_and(&wanted)
            })
        };
        // Ids are unique, so as many as there were, and all of them known, are the same ones.
        self.settled && listed.len() == self.known.len() && listed.iter().all(is_same)
    }

    /// Reads a list, without containers that lack the kubelet's labels. Of a container nothing but its state ever changes.
    fn read_list(
        &mut self,
        listed: &[wire::Container],
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<ListedContainer> {
        self.settled = false;
        // A status that is not moved over is forgotten, so the cache holds no more than the last
        // list.
        let mut before = std::mem::take(&mut self.known);
        let mut containers = Vec::with_capacity(listed.len());
        for container in listed {
            let Some(id) = runtime::container_id(container) else {
                continue;
            };
            let state = runtime::to_listed_state(container.state());
            let (id, mut known) = before.remove_entry(id).unwrap_or_else(|| {
                let listed = runtime::to_listed(container);
                let id = listed
                    .as_ref()
                    .map_or_else(|| id.into(), |listed| listed.id.clone());
                let wanted = false;
                (
                    id,
                    KnownContainer {
                        listed,
                        state,
                        wanted,
                    },
                )
            });
            known.state = state;
            known.wanted = false;
            if let Some(listed) = &mut known.listed {
                listed.state = state;
                known.wanted = wanted(&listed.pod_uid);
                containers.push(listed.clone());
            }
            self.known.insert(id, known);
        }
        containers
    }

    /// Whether nothing is left to ask of these.
    fn is_complete(&self, present: &[ListedContainer]) -> bool {
        let is_known = |listed: &ListedContainer| {
            self.known_state(listed).is_some() && !self.lacks_addresses(listed)
        };
        self.failing.is_empty() && present.iter().all(is_known)
    }

    fn retain_current(&mut self, current: &[ListedContainer]) {
        let ids: HashSet<&Arc<str>> = current.iter().map(|listed| &listed.id).collect();
        let sandboxes: HashSet<&Arc<str>> = current.iter().map(|listed| &listed.sandbox).collect();
        self.states.retain(|id, _| ids.contains(id));
        self.failing.retain(|id| ids.contains(id));
        self.sandboxes.retain(|id, _| sandboxes.contains(id));
    }

    /// The state with its details, unless `ContainerStatus` has to be asked for them.
    fn known_state(&self, listed: &ListedContainer) -> Option<RuntimeState> {
        match listed.state {
            ListedState::Created => Some(RuntimeState::Created),
            ListedState::Unknown => Some(RuntimeState::Unknown),
            ListedState::Running | ListedState::Exited => {
                let (then, state) = self.states.get(&listed.id)?;
                (*then == listed.state).then_some(*state)
            }
        }
    }

    fn set_details(&mut self, listed: &ListedContainer, details: ContainerDetails) {
        let state = match details.state {
            ListedState::Running => RuntimeState::Running {
                started_at: details.started_at,
            },
            // The exit counts even if the list, which is older, shows it running.
            ListedState::Exited => RuntimeState::Exited {
                exit_code: details.exit_code,
            },
            // Details that contradict the list are asked for again.
            ListedState::Created | ListedState::Unknown => return,
        };
        self.states.insert(listed.id.clone(), (listed.state, state));
    }

    /// Whether the addresses have to be asked for: once a container runs, since its sandbox has them then.
    fn lacks_addresses(&self, listed: &ListedContainer) -> bool {
        listed.state == ListedState::Running && !self.sandboxes.contains_key(&listed.sandbox)
    }

    fn set_network(&mut self, listed: &ListedContainer, network: Network) {
        let addresses = match network {
            Network::Node => Addresses::Node,
            Network::Own(addresses) => {
                // Filtered once: what may not be dialled is no address of the pod to anybody.
                let dialable = addresses
                    .into_iter()
                    .filter(|address| is_dialable(*address));
                Addresses::Pod(dialable.collect())
            }
        };
        // A sandbox without any is asked for again.
        if !matches!(&addresses, Addresses::Pod(none) if none.is_empty()) {
            self.sandboxes.insert(listed.sandbox.clone(), addresses);
        }
    }

    fn is_failing(&self, listed: &ListedContainer) -> bool {
        self.failing.contains(&listed.id)
    }

    fn mark_failing(&mut self, listed: &ListedContainer, error: &Error) {
        if self.failing.insert(listed.id.clone()) {
            let ListedContainer {
                id,
                pod_namespace,
                pod_name,
                name,
                ..
            } = listed;
            tracing::warn!(container = %id, pod = %format_args!("{pod_namespace}/{pod_name}"), %name, %error, "ContainerStatus failed for a container, skipping it");
        }
    }

    fn to_current(&self, listed: &ListedContainer) -> CurrentContainer {
        CurrentContainer {
            id: listed.id.clone(),
            attempt: listed.attempt,
            state: self.known_state(listed).unwrap_or(RuntimeState::Unknown),
            sandbox: listed.sandbox.clone(),
            pod_namespace: listed.pod_namespace.clone(),
            pod_name: listed.pod_name.clone(),
            addresses: (self.sandboxes.get(&listed.sandbox).cloned()).unwrap_or(Addresses::Unknown),
        }
    }
}

/// The newest container of each name in each wanted pod: by attempt, since the clock may jump.
fn newest_of_each_name(
    listed: Vec<ListedContainer>,
    wanted: impl Fn(&str) -> bool,
) -> Vec<ListedContainer> {
    let mut newest: HashMap<(Arc<str>, Arc<str>), ListedContainer> = HashMap::new();
    let age = |listed: &ListedContainer| (listed.attempt, listed.created_at);
    for candidate in listed {
        if !wanted(&candidate.pod_uid) {
            continue;
        }
        let key = (candidate.pod_uid.clone(), candidate.name.clone());
        if newest
            .get(&key)
            .is_none_or(|best| age(best) < age(&candidate))
        {
            newest.insert(key, candidate);
        }
    }
    newest.into_values().collect()
}

#[cfg(test)]
mod tests;

//! The node's containers as all probes see them: one list per refresh, and one more call for each container
//! or sandbox that is new or has changed. Which container is the current one is decided here, as the kubelet
//! does: of one pod and name the newest attempt.
//!
//! It fails static: when the runtime cannot be reached, what was known stays.
//!
//! A list is looked through once a second as long as a pod is probed, and mostly all is as it was: then nothing is made
//! of it, and nothing allocated beyond what it came in.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use jiff::Timestamp;
use leadsman_probe::is_dialable;

use crate::runtime::{self, Details, Error, Listed, ListedState, Network, Runtime};
use crate::wire;

/// The current container of one name in one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// The runtime's id, without a scheme.
    pub id: Arc<str>,
    /// 0 for the first container of this name, one more at each restart.
    pub attempt: u32,
    /// What it does.
    pub state: ContainerState,
    /// The id of its sandbox.
    pub sandbox: Arc<str>,
    /// The namespace of its pod.
    pub pod_namespace: Arc<str>,
    /// The name of its pod.
    pub pod_name: Arc<str>,
    /// Where it can be dialled.
    pub addresses: Addresses,
}

/// Where a container can be dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addresses {
    /// The runtime has not said yet, or the container never ran under our eyes.
    Unknown,
    /// Its pod is in the node's network namespace: its addresses are the node's, and the runtime does not say which.
    Node,
    /// Its pod's own, the primary one first: at least one, and never an unspecified, loopback, link-local or multicast one.
    Pod(Arc<[IpAddr]>),
}

/// A pod as all of its labels name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodLabels<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
}

/// What a container does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerState {
    /// Made, not started.
    Created,
    /// Runs.
    Running {
        /// Since when, by the runtime's clock.
        started_at: Timestamp,
    },
    /// Ended.
    Exited {
        /// With which code.
        exit_code: i32,
    },
    /// The runtime does not know or did not say; asked again at the next refresh.
    Unknown,
}

/// The containers of all wanted pods at one moment.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Containers {
    pods: HashMap<Arc<str>, HashMap<Arc<str>, Container>>,
}

impl Containers {
    /// The newest container of this name in this pod. One whose pod has the uid and another name is another pod's: whoever
    /// asks may have the uid from somebody who was free to choose it.
    pub fn get(&self, pod: PodLabels<'_>, name: &str) -> Option<&Container> {
        let container = self.pods.get(pod.uid)?.get(name)?;
        let agrees = *container.pod_namespace == *pod.namespace && *container.pod_name == *pod.name;
        agrees.then_some(container)
    }
}

/// The view itself: what is known, and how to learn more.
#[derive(Debug)]
pub struct View {
    runtime: Runtime,
    memory: Memory,
    containers: Arc<Containers>,
}

impl View {
    /// A view that knows nothing yet.
    pub fn new(runtime: Runtime) -> Self {
        Self {
            runtime,
            memory: Memory::default(),
            containers: Arc::default(),
        }
    }

    /// Looks at the node again, for the pods whose uid is `wanted`; all others are forgotten.
    ///
    /// An error means that the runtime could not be reached and the view is as it was. A single container
    /// or sandbox about which the runtime fails to answer is no error: it is Unknown, or without
    /// addresses, until it does. May be dropped at any await; the view is then as it was, too.
    pub async fn refresh(&mut self, wanted: impl Fn(&str) -> bool) -> Result<(), Error> {
        let listed = self.runtime.list().await?;
        if self.memory.is_as_listed(&listed, &wanted) {
            return Ok(());
        }
        let listed = self.memory.read(&listed, &wanted);
        let mut current = newest(listed, wanted);
        self.memory.retain(&current);
        // What failed the last time comes last, so that it does not stand in the way of the others.
        current.sort_by_cached_key(|listed| (self.memory.is_mute(listed), listed.id.clone()));
        let (mut patient, count) = (true, current.len());
        let mut present = Vec::with_capacity(count);
        for listed in current {
            let learned = if patient {
                self.learn(&listed).await
            } else {
                Ok(())
            };
            match learned {
                Ok(()) => {}
                Err(error @ Error::Unreachable { .. }) => return Err(error),
                Err(Error::NotFound { .. }) => continue,
                Err(error) => {
                    self.memory.mark_mute(&listed, &error);
                    // One deadline a round is enough; the rest is asked at the next refresh.
                    patient = !matches!(error, Error::Late { .. });
                }
            }
            present.push(listed);
        }
        // One that the status does not know is asked about for as long as it is listed.
        self.memory.settled = present.len() == count && self.memory.is_complete(&present);
        self.publish(present);
        Ok(())
    }

    /// All of it at this moment. The same `Arc` as before while nothing has changed.
    pub fn containers(&self) -> Arc<Containers> {
        self.containers.clone()
    }

    async fn learn(&mut self, listed: &Listed) -> Result<(), Error> {
        if self.memory.state(listed).is_none() {
            let details = self.runtime.container_status(&listed.id).await?;
            self.memory.put_details(listed, details);
        }
        if self.memory.lacks_addresses(listed) {
            let network = self.runtime.sandbox_network(&listed.sandbox).await?;
            self.memory.put_network(listed, network);
        }
        self.memory.mute.remove(&listed.id);
        Ok(())
    }

    fn publish(&mut self, current: Vec<Listed>) {
        let mut containers = Containers::default();
        for listed in current {
            let container = self.memory.container(&listed);
            containers
                .pods
                .entry(listed.pod_uid)
                .or_default()
                .insert(listed.name, container);
        }
        if *self.containers != containers {
            self.containers = Arc::new(containers);
        }
    }
}

/// The details learned so far, of listed containers of wanted pods only.
#[derive(Debug, Default)]
struct Memory {
    /// All containers of the last list by their ids.
    known: HashMap<Arc<str>, Known>,
    /// Whether the last refresh learned all there was to learn: the same list again has nothing new.
    settled: bool,
    /// What the status said, and what the list had said when it was asked: good until the list says otherwise.
    states: HashMap<Arc<str>, (ListedState, ContainerState)>,
    sandboxes: HashMap<Arc<str>, Addresses>,
    /// Containers about which the runtime failed to answer; said once each.
    mute: HashSet<Arc<str>>,
}

/// A container of the last list, of whatever pod.
#[derive(Debug, Clone)]
struct Known {
    /// `None` when no kubelet made it.
    listed: Option<Listed>,
    state: ListedState,
    /// Whether its pod was wanted.
    wanted: bool,
}

impl Memory {
    /// Whether the list says what the last one said, of pods that are wanted as they were then, and nothing is left to ask.
    fn is_as_listed(&self, listed: &[wire::Container], wanted: impl Fn(&str) -> bool) -> bool {
        let is_same = |container: &wire::Container| {
            let known = runtime::id(container).and_then(|id| self.known.get(id));
            known.is_some_and(|known| {
                let uid = known.listed.as_ref().map(|listed| &*listed.pod_uid);
                known.state == runtime::state(container.state())
                    && known.wanted == uid.is_some_and(&wanted)
            })
        };
        // Ids are unique, so as many as there were, and all of them known, are the same ones.
        self.settled && listed.len() == self.known.len() && listed.iter().all(is_same)
    }

    /// What is listed, made by a kubelet. Nothing but its state ever changes of a container.
    fn read(&mut self, listed: &[wire::Container], wanted: impl Fn(&str) -> bool) -> Vec<Listed> {
        self.settled = false;
        let mut before = std::mem::take(&mut self.known);
        let mut containers = Vec::with_capacity(listed.len());
        for container in listed {
            let Some(id) = runtime::id(container) else {
                continue;
            };
            let state = runtime::state(container.state());
            let (id, mut known) = before.remove_entry(id).unwrap_or_else(|| {
                let listed = runtime::listed(container);
                let id = listed
                    .as_ref()
                    .map_or_else(|| id.into(), |listed| listed.id.clone());
                let wanted = false;
                (
                    id,
                    Known {
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

    /// Whether nothing is left to ask about these.
    fn is_complete(&self, present: &[Listed]) -> bool {
        let is_known =
            |listed: &Listed| self.state(listed).is_some() && !self.lacks_addresses(listed);
        self.mute.is_empty() && present.iter().all(is_known)
    }

    fn retain(&mut self, current: &[Listed]) {
        let ids: HashSet<&Arc<str>> = current.iter().map(|listed| &listed.id).collect();
        let sandboxes: HashSet<&Arc<str>> = current.iter().map(|listed| &listed.sandbox).collect();
        self.states.retain(|id, _| ids.contains(id));
        self.mute.retain(|id| ids.contains(id));
        self.sandboxes.retain(|id, _| sandboxes.contains(id));
    }

    /// The state in full, unless the status has to be asked for it.
    fn state(&self, listed: &Listed) -> Option<ContainerState> {
        match listed.state {
            ListedState::Created => Some(ContainerState::Created),
            ListedState::Unknown => Some(ContainerState::Unknown),
            ListedState::Running | ListedState::Exited => {
                let (then, state) = self.states.get(&listed.id)?;
                (*then == listed.state).then_some(*state)
            }
        }
    }

    fn put_details(&mut self, listed: &Listed, details: Details) {
        let state = match details.state {
            ListedState::Running => ContainerState::Running {
                started_at: details.started_at,
            },
            // Also when the list, a moment older, had it running.
            ListedState::Exited => ContainerState::Exited {
                exit_code: details.exit_code,
            },
            // That contradicts the list: no answer to keep.
            ListedState::Created | ListedState::Unknown => return,
        };
        self.states.insert(listed.id.clone(), (listed.state, state));
    }

    /// Addresses are asked for once a container runs: only then are they dialled, and its sandbox has them.
    fn lacks_addresses(&self, listed: &Listed) -> bool {
        listed.state == ListedState::Running && !self.sandboxes.contains_key(&listed.sandbox)
    }

    fn put_network(&mut self, listed: &Listed, network: Network) {
        let addresses = match network {
            Network::Node => Addresses::Node,
            Network::Own(addresses) => {
                let dialable = addresses
                    .into_iter()
                    .filter(|address| is_dialable(*address));
                Addresses::Pod(dialable.collect())
            }
        };
        // None at all is no answer to keep: the next refresh asks again.
        if !matches!(&addresses, Addresses::Pod(none) if none.is_empty()) {
            self.sandboxes.insert(listed.sandbox.clone(), addresses);
        }
    }

    fn is_mute(&self, listed: &Listed) -> bool {
        self.mute.contains(&listed.id)
    }

    fn mark_mute(&mut self, listed: &Listed, error: &Error) {
        if self.mute.insert(listed.id.clone()) {
            let Listed {
                id,
                pod_namespace,
                pod_name,
                name,
                ..
            } = listed;
            tracing::warn!(container = %id, pod = %format_args!("{pod_namespace}/{pod_name}"), %name, %error, "ContainerStatus failed for a container, skipping it");
        }
    }

    fn container(&self, listed: &Listed) -> Container {
        Container {
            id: listed.id.clone(),
            attempt: listed.attempt,
            state: self.state(listed).unwrap_or(ContainerState::Unknown),
            sandbox: listed.sandbox.clone(),
            pod_namespace: listed.pod_namespace.clone(),
            pod_name: listed.pod_name.clone(),
            addresses: (self.sandboxes.get(&listed.sandbox).cloned()).unwrap_or(Addresses::Unknown),
        }
    }
}

/// Of each name in each wanted pod the newest container: by attempt, since the clock may jump.
fn newest(listed: Vec<Listed>, wanted: impl Fn(&str) -> bool) -> Vec<Listed> {
    let mut newest: HashMap<(Arc<str>, Arc<str>), Listed> = HashMap::new();
    let age = |listed: &Listed| (listed.attempt, listed.created_at);
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

//! The truth on the nodes: the containers that run, what probes' commands answer, and when they did. Kubelets change it,
//! container runtimes show it, and marks are judged by it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leadsman_cri::Runtime;
use leadsman_cri::fake::{FakePod, FakeWorld, InMemoryRuntime, ScriptedAnswer, exec_response};
use leadsman_cri::wire::{ContainerState, ExecSyncRequest, ExecSyncResponse, NamespaceMode};
use tokio::time::Instant;
use tonic::Status;

use crate::plan::{NODES, ProbeAnswer};
use crate::tenants::PRIMARY;

/// A container of a pod.
#[derive(Clone, Debug)]
pub(crate) struct GroundContainer {
    /// The runtime's id of the container.
    pub(crate) id: String,
    /// The node that it is on.
    pub(crate) node: usize,
    /// The pod's uid, namespace and name.
    pub(crate) pod: [String; 3],
    /// The name in the pod's spec.
    pub(crate) name: String,
    /// The image that it was started from.
    pub(crate) image: String,
    /// 0 for the first one of this name.
    pub(crate) attempt: u32,
    /// The time of the container's creation and start.
    pub(crate) started_at: Timestamp,
    /// The time of the container's end, if it has ended; since the start of the simulation.
    pub(crate) ended: Option<Duration>,
}

/// A run of a probe's command, or more of the same outcome.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroundRun {
    /// The container's id.
    pub(crate) container: String,
    /// The outcome that the command asked for.
    pub(crate) key: usize,
    /// Whether it exited with 0.
    pub(crate) succeeded: bool,
}

/// Shared by all nodes.
#[derive(Clone)]
pub(crate) struct Ground {
    start: Instant,
    epoch: Timestamp,
    state: Arc<Mutex<GroundState>>,
    runtimes: Vec<InMemoryRuntime>,
}

/// The containers, and what commands answer and have answered.
#[derive(Default)]
pub(crate) struct GroundState {
    /// The containers by id, those that have ended and were removed included: what was true of them is looked up.
    pub(crate) containers: BTreeMap<String, GroundContainer>,
    /// The answers of commands, by the pod's name and key, where they differ from those for all pods.
    pub(crate) answers: BTreeMap<(String, usize), ProbeAnswer>,
    /// Grows with each container that starts or ends.
    pub(crate) revision: u64,
    /// All runs that gave an answer.
    pub(crate) runs: BTreeSet<GroundRun>,
}

impl Ground {
    /// Nothing, at this time of day.
    pub(crate) fn new(epoch: Timestamp) -> Self {
        let ground = Self {
            start: Instant::now(),
            epoch,
            state: Arc::default(),
            runtimes: (0..NODES).map(|_| InMemoryRuntime::default()).collect(),
        };
        for runtime in &ground.runtimes {
            let state = Arc::clone(&ground.state);
            let answer = move |request: &ExecSyncRequest| {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.exec(request)
            };
            runtime.lock_world().answer_exec = Some(Box::new(answer));
        }
        ground
    }

    /// A client of the runtime of a node.
    pub(crate) fn runtime(&self, node: usize) -> Runtime {
        self.runtimes[node].new_client()
    }

    /// The state, between two tasks' turns.
    pub(crate) fn lock(&self) -> MutexGuard<'_, GroundState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The true time of day, which jumps of a clock do not change.
    pub(crate) fn now(&self) -> Timestamp {
        self.epoch + SignedDuration::try_from(self.elapsed()).unwrap_or_default()
    }

    /// Starts a container of a pod, which is its uid, namespace and name; the container before of its name has ended.
    pub(crate) fn start_container(
        &self,
        node: usize,
        pod: [&str; 3],
        name: &str,
        image: &str,
        attempt: u32,
    ) {
        let started_at = self.now();
        let fake = FakePod {
            uid: pod[0],
            namespace: pod[1],
            name: pod[2],
        };
        let times = (
            ContainerState::ContainerRunning,
            nanoseconds(started_at),
            nanoseconds(started_at),
        );
        let id = self.runtimes[node]
            .lock_world()
            .set_container_of(fake, name, attempt, times);
        // The agent takes a pod without an address for one whose sandbox is being made.
        let mut world = self.runtimes[node].lock_world();
        world.set_network(pod[0], &["10.0.0.1"], NamespaceMode::Pod);
        drop(world);
        let container = GroundContainer {
            id: id.clone(),
            node,
            pod: pod.map(str::to_owned),
            name: name.to_owned(),
            image: image.to_owned(),
            attempt,
            started_at,
            ended: None,
        };
        let mut state = self.lock();
        state.revision += 1;
        state.containers.insert(id, container);
    }

    /// Ends the containers that this is true of. The runtime shows those of pods that are still there.
    pub(crate) fn end_containers(
        &self,
        is_pod_there: bool,
        is_meant: impl Fn(&GroundContainer) -> bool,
    ) {
        let now = self.elapsed();
        let mut guard = self.lock();
        let state = &mut *guard;
        let running = state
            .containers
            .values_mut()
            .filter(|one| one.ended.is_none());
        for container in running.filter(|one| is_meant(one)) {
            container.ended = Some(now);
            state.revision += 1;
            let mut world = self.runtimes[container.node].lock_world();
            let [uid, namespace, name] = &container.pod;
            let times = (
                ContainerState::ContainerExited,
                nanoseconds(container.started_at),
                nanoseconds(container.started_at),
            );
            let id = world.set_container_of(
                FakePod {
                    uid,
                    namespace,
                    name,
                },
                &container.name,
                container.attempt,
                times,
            );
            if !is_pod_there {
                world.remove_container(&id);
            }
        }
    }
}

impl Ground {
    /// Forgets the containers that ended before a time, but for those of these pods, by uid and name, the answers of commands in
    /// pods that are gone, and what the runtimes were asked. The runtimes forget the same containers, as a kubelet removes them.
    pub(crate) fn forget_before(&self, time: Duration, pods: &BTreeSet<(&str, &str)>) {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.containers.retain(|_, one| {
            let [uid, _, name] = &one.pod;
            one.ended.is_none_or(|ended| ended >= time) || pods.contains(&(uid, name))
        });
        state
            .answers
            .retain(|(pod, _), _| pods.iter().any(|(_, name)| name == pod));
        let containers = &state.containers;
        state
            .runs
            .retain(|run| containers.contains_key(&run.container));
        for runtime in &self.runtimes {
            let mut world = runtime.lock_world();
            world.calls.clear();
            world.execs.clear();
            let FakeWorld {
                containers,
                statuses,
                sandboxes,
                ..
            } = &mut *world;
            let kept: BTreeSet<&[u8]> = state.containers.keys().map(String::as_bytes).collect();
            containers.retain(|one| kept.contains(&one.id[..]));
            statuses.retain(|id, _| kept.contains(id.as_bytes()));
            let is_there = |id: &String| {
                containers
                    .iter()
                    .any(|one| one.pod_sandbox_id == id.as_bytes())
            };
            sandboxes.retain(|id, _| is_there(id));
        }
    }
}

fn nanoseconds(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX)
}

impl GroundState {
    /// Runs a probe's command, whose only argument is its key.
    fn exec(&mut self, request: &ExecSyncRequest) -> ScriptedAnswer<ExecSyncResponse> {
        let id = &request.container_id;
        let known = self
            .containers
            .get(id)
            .filter(|known| known.ended.is_none());
        let Some(known) = known else {
            // containerd's own message.
            return ScriptedAnswer::Err(Status::not_found(format!(
                "no running task found: task {id} not found"
            )));
        };
        let key: usize = request
            .cmd
            .get(1)
            .and_then(|key| key.parse().ok())
            .unwrap_or(0);
        let answer = self.answer(&known.pod[2], key);
        let succeeded = match answer {
            ProbeAnswer::Succeeds | ProbeAnswer::Leads(_) => true,
            ProbeAnswer::Fails => false,
            ProbeAnswer::CannotRun => {
                return ScriptedAnswer::Err(Status::unknown("the runtime is broken"));
            }
        };
        self.runs.insert(GroundRun {
            container: id.clone(),
            key,
            succeeded,
        });
        let text = match answer {
            ProbeAnswer::Leads(version) => format!("{PRIMARY} {version}"),
            _ => format!("key {key}: {succeeded}"),
        };
        ScriptedAnswer::Ok(exec_response(i32::from(!succeeded), text))
    }

    /// The answer of a pod's command now.
    pub(crate) fn answer(&self, pod: &str, key: usize) -> ProbeAnswer {
        let own = self.answers.get(&(pod.to_owned(), key));
        let of_all = if key == 1 {
            ProbeAnswer::Fails
        } else {
            ProbeAnswer::Succeeds
        };
        own.copied().unwrap_or(of_all)
    }

    /// Lets all commands be run from now on.
    pub(crate) fn heal(&mut self) {
        self.answers
            .retain(|_, answer| *answer != ProbeAnswer::CannotRun);
    }

    /// Makes it the opposite.
    pub(crate) fn flip_answer(&mut self, pod: &str, key: usize) {
        let opposite = match self.answer(pod, key) {
            ProbeAnswer::Succeeds | ProbeAnswer::Leads(_) => ProbeAnswer::Fails,
            ProbeAnswer::Fails | ProbeAnswer::CannotRun => ProbeAnswer::Succeeds,
        };
        self.answers.insert((pod.to_owned(), key), opposite);
    }

    /// The newest container of a pod.
    pub(crate) fn newest(&self, uid: &str, name: &str) -> Option<&GroundContainer> {
        let of_name = self
            .containers
            .values()
            .filter(|one| one.pod[0] == uid && one.name == name);
        of_name.max_by_key(|one| one.attempt)
    }

    /// Whether a verdict may follow from a container: any of its commands answered this, or it has ended.
    pub(crate) fn follows(&self, id: &str, succeeded: bool) -> bool {
        let mut runs = self.runs.iter();
        let container = self.containers.get(id);
        container.is_some_and(|one| one.ended.is_some() && !succeeded)
            || runs.any(|run| run.container == id && run.succeeded == succeeded)
    }

    /// Whether a command answered this in a container of the pod that ran at some time since then. A container that has ended
    /// has failed.
    pub(crate) fn was_true(
        &self,
        (uid, name): (&str, &str),
        key: usize,
        succeeded: bool,
        since: Duration,
    ) -> bool {
        let ran = |container: &GroundContainer| container.ended.is_none_or(|ended| ended >= since);
        let is_it = |container: &GroundContainer| container.pod[0] == uid && container.name == name;
        let mut containers = self.containers.values();
        let ended = containers.any(|one| is_it(one) && one.ended.is_some() && ran(one));
        let mut runs = self.runs.iter();
        (ended && !succeeded)
            || runs.any(|run| {
                let container = &self.containers[&run.container];
                run.key == key && run.succeeded == succeeded && is_it(container) && ran(container)
            })
    }
}

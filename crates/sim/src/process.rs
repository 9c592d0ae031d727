//! The processes of leadsman: managers and agents, which are the real ones, on clients of the model. An incarnation ends when it is
//! stopped or dies; the next one knows nothing of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use fastrand::Rng;
use leadsman_admission::{InProcessCaller, serve_in_process};
use leadsman_api_model::ApiServer as Model;
use leadsman_manager::WebhookServing;
use leadsman_process::{ApiServer, Process, RandomSource};
use tokio::task::JoinHandle;

use crate::faults::{Crash, Faults};
use crate::ground::Ground;
use crate::kubelet::node_name;
use crate::link::FaultyLink;
use crate::plan::{MANAGERS, NODES, ProcessId};
use crate::story::Story;

/// How long a process may take to stop, as its pod's grace period.
const GRACE: Duration = Duration::from_secs(20);

#[derive(Parser)]
struct ManagerLine {
    #[command(flatten)]
    args: leadsman_manager::ManagerArgs,
}

#[derive(Parser)]
struct AgentLine {
    #[command(flatten)]
    args: leadsman_agent::AgentArgs,
}

/// The surroundings that processes are started with.
#[derive(Clone)]
pub(crate) struct Surroundings {
    /// The API server.
    pub(crate) server: Model,
    /// The truth on the nodes.
    pub(crate) ground: Ground,
    /// The story of the run.
    pub(crate) story: Story,
    /// Whether sets of sidecars are acted on.
    pub(crate) has_sets: bool,
    /// How long a request or an event takes at most where it meets no fault.
    pub(crate) latency: Duration,
    /// How many objects a page of a list has at most.
    pub(crate) page: u64,
}

/// A process over all its incarnations.
pub(crate) struct Host {
    id: ProcessId,
    /// The faults that the process's requests meet.
    pub(crate) faults: Faults,
    rng: Rng,
    running: Option<Running>,
    /// The time at which the next incarnation starts.
    starts_at: Option<Duration>,
    /// How long the process is down after it dies.
    down: Duration,
}

struct Running {
    process: Process,
    task: JoinHandle<()>,
    caller: Option<InProcessCaller>,
    /// The time at which the process is killed, once it was told to stop.
    killed_at: Option<Duration>,
}

/// All processes.
pub(crate) struct Hosts {
    by_id: BTreeMap<ProcessId, Host>,
    surroundings: Surroundings,
}

/// The name that the API server knows an incarnation by.
fn user(id: ProcessId, incarnation: u64) -> String {
    match id {
        ProcessId::Manager(number) => format!("manager-{number}.{incarnation}"),
        ProcessId::Agent(node) => format!("agent-{node}.{incarnation}"),
    }
}

/// Whether a user is an incarnation of the manager.
pub(crate) fn is_manager(user: &str) -> bool {
    user.starts_with("manager-")
}

/// Whether a user is one of leadsman's.
pub(crate) fn is_leadsman(user: &str) -> bool {
    is_manager(user) || user.starts_with("agent-")
}

impl Hosts {
    /// All processes, none of which has started.
    pub(crate) fn new(surroundings: Surroundings, rng: &mut Rng) -> Self {
        let managers = (0..MANAGERS).map(ProcessId::Manager);
        let ids = managers.chain((0..NODES).map(ProcessId::Agent));
        let host = |id| {
            let host = Host {
                id,
                faults: Faults::new(rng.fork(), surroundings.latency),
                rng: rng.fork(),
                running: None,
                starts_at: Some(Duration::from_millis(rng.u64(..800))),
                down: Duration::ZERO,
            };
            (id, host)
        };
        Self {
            by_id: ids.map(host).collect(),
            surroundings,
        }
    }

    /// A process.
    pub(crate) fn host(&mut self, id: ProcessId) -> &mut Host {
        self.by_id
            .get_mut(&id)
            .expect("all are there from the beginning")
    }

    /// Starts what is due, and buries what has died.
    pub(crate) async fn look_after(&mut self) {
        for host in self.by_id.values_mut() {
            host.look_after(&self.surroundings).await;
        }
    }

    /// Ends all faults, and starts all processes that are down. Agents of nodes that have gone stay down. Returns when the last
    /// arrives of what is held back.
    pub(crate) fn heal(&mut self, nodes: &[bool]) -> Duration {
        let mut until = Duration::ZERO;
        for (id, host) in &mut self.by_id {
            until = until.max(host.faults.heal());
            let is_there = match id {
                ProcessId::Manager(_) => true,
                ProcessId::Agent(node) => nodes[*node],
            };
            if is_there && host.starts_at.is_some_and(|at| at > host.faults.elapsed()) {
                host.starts_at = Some(host.faults.elapsed());
            }
            host.down = Duration::ZERO;
        }
        until
    }

    /// The kinds whose events are late for a process.
    pub(crate) fn late_kinds(&self, user: &str) -> BTreeSet<String> {
        let host = self.by_user(user);
        host.map(|host| host.faults.late_kinds())
            .unwrap_or_default()
    }

    /// Whether events of any kind are late for any process.
    pub(crate) fn is_any_late(&self) -> bool {
        let mut hosts = self.by_id.values();
        hosts.any(|host| !host.faults.late_kinds().is_empty())
    }

    /// Whether a process runs.
    pub(crate) fn is_alive(&self, user: &str) -> bool {
        let host = self.by_user(user);
        host.is_some_and(|host| host.running.is_some() && !host.faults.lock().is_dead)
    }

    fn by_user(&self, name: &str) -> Option<&Host> {
        let mut hosts = self.by_id.values();
        hosts.find(|host| user(host.id, host.faults.lock().incarnation) == name)
    }

    /// Cuts all connections until then.
    pub(crate) fn cut_off(&self, until: Duration) {
        for host in self.by_id.values() {
            host.faults.lock().outage.until = until;
        }
    }

    /// Kills all processes; they start again at once.
    pub(crate) fn restart_all(&mut self) {
        for host in self
            .by_id
            .values_mut()
            .filter(|host| host.running.is_some())
        {
            host.down = Duration::from_millis(100);
            host.faults.kill();
        }
    }

    /// Whether a process is ready, as its readiness probe asks.
    pub(crate) fn is_ready(&self, id: ProcessId) -> bool {
        let running = self.by_id.get(&id).and_then(|host| host.running.as_ref());
        running.is_some_and(|running| running.process.readiness.is_ready())
    }

    /// Callers of the replicas that answer calls of webhooks: those that are ready, and alive.
    pub(crate) fn callers(&self) -> Vec<InProcessCaller> {
        let hosts = self.by_id.values();
        let running = hosts.filter_map(|host| host.running.as_ref());
        let ready = running.filter(|running| running.process.readiness.is_ready());
        ready.filter_map(|running| running.caller.clone()).collect()
    }
}

impl Host {
    async fn look_after(&mut self, surroundings: &Surroundings) {
        let now = self.faults.elapsed();
        let is_dead = self.faults.lock().is_dead;
        let is_over = |running: &mut Running| {
            is_dead || running.killed_at.is_some_and(|at| at <= now) || running.task.is_finished()
        };
        if let Some(running) = self.running.take_if(is_over) {
            let user = user(self.id, self.faults.lock().incarnation);
            self.faults.kill();
            // All that it has begun ends with its task.
            running.task.abort();
            running.process.shutdown.cancel();
            if let Err(error) = running.task.await
                && error.is_panic()
            {
                surroundings
                    .story
                    .violate("no process panics", format_args!("{user}: {error}"));
            }
            surroundings.story.tell(&user, "has ended");
            self.starts_at = Some(now + self.down);
        }
        if self.running.is_none() && self.starts_at.is_some_and(|at| at <= now) {
            self.starts_at = None;
            self.start(surroundings);
        }
    }

    fn start(&mut self, surroundings: &Surroundings) {
        let incarnation = self.faults.begin_incarnation();
        let user = user(self.id, incarnation);
        surroundings.story.tell(&user, "starts");
        let link = FaultyLink::new(
            (self.faults.clone(), incarnation),
            user.clone(),
            surroundings.clone(),
        );
        let client = surroundings.server.client_with(&user, Arc::new(link));
        let random = RandomSource::from_seed(self.rng.u64(..));
        let process = Process::new(ApiServer::new(client), random, &user);
        let (task, caller) = match self.id {
            ProcessId::Manager(_) => start_manager(process.clone(), surroundings),
            ProcessId::Agent(node) => (start_agent(node, process.clone(), surroundings), None),
        };
        self.running = Some(Running {
            process,
            task,
            caller,
            killed_at: None,
        });
    }

    /// Lets the process die at its next write but some.
    pub(crate) fn crash(&mut self, crash: Crash, down: Duration) {
        self.down = down;
        self.faults.lock().crash = Some(crash);
    }

    /// Kills the process for good, as with its node.
    pub(crate) fn bury(&mut self) {
        self.down = Duration::from_hours(1);
        if self.running.is_some() {
            self.faults.kill();
        } else {
            self.starts_at = None;
        }
    }

    /// Starts it soon, if it does not run.
    pub(crate) fn start_soon(&mut self) {
        self.down = Duration::ZERO;
        self.starts_at = Some(self.faults.elapsed() + Duration::from_millis(500));
    }

    /// Tells the process to stop.
    pub(crate) fn stop(&mut self, down: Duration) {
        self.down = down;
        let now = self.faults.elapsed();
        if let Some(running) = &mut self.running {
            running.process.shutdown.cancel();
            running.killed_at.get_or_insert(now + GRACE);
        }
    }
}

fn start_manager(
    process: Process,
    surroundings: &Surroundings,
) -> (JoinHandle<()>, Option<InProcessCaller>) {
    let gates = if surroundings.has_sets {
        "SidecarSetGate=true"
    } else {
        ""
    };
    let args = ManagerLine::parse_from(["manager", "--feature-gates", gates]).args;
    let (door, caller) = serve_in_process();
    let story = surroundings.story.clone();
    let task = tokio::spawn(async move {
        let ended =
            leadsman_manager::run_features(&args, process, WebhookServing::InProcess(door)).await;
        if let Err(error) = ended {
            story.violate("no process fails", error);
        }
    });
    (task, surroundings.has_sets.then_some(caller))
}

fn start_agent(node: usize, process: Process, surroundings: &Surroundings) -> JoinHandle<()> {
    let args = AgentLine::parse_from(["agent", "--node-name", &node_name(node)]).args;
    let runtime = surroundings.ground.runtime(node);
    let story = surroundings.story.clone();
    tokio::spawn(async move {
        if let Err(error) = leadsman_agent::run_tasks(&args, process, runtime).await {
            story.violate("no process fails", error);
        }
    })
}

//! A run of a plan: the API server, the processes of leadsman and all others, and the clock that moves on when nobody has
//! anything to do.

mod churn;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};
use leadsman_api_model::ApiServer;
use leadsman_process::clock;
use serde_json::Value;

use crate::ground::Ground;
use crate::invariants::Invariants;
use crate::kubelet::{Kubelet, node_name, text};
use crate::oracle::Oracle;
use crate::plan::{NODES, Plan, ProcessId, Step};
use crate::process::{Hosts, Surroundings};
use crate::resources::{add_node, install};
use crate::rest::RestClient;
use crate::story::{Story, Violation};
use crate::tenants::Tenants;
use crate::webhooks::Webhooks;

pub use self::churn::{ChurnHour, ChurnOutcome, churn};

/// How often everybody but leadsman acts.
const TICK: Duration = Duration::from_millis(100);
/// How long all may take to be right after the last fault: a Lease and its retries, the thresholds of probes, kubelets that
/// are late, marks that are fought over, what waits for the next retry, and two minutes after a takeover where a node's object
/// has entries of a pod that went meanwhile, and nothing that changes shows how far the watch of pods has come.
const PATIENCE: Duration = Duration::from_secs(150);
/// How long a process that was not restarted may take to find that etcd was restored: a watch is silent for so long
/// ([`leadsman_process::watcher::LONGEST_SILENCE`]), and the list may have to be asked for again.
const SUSPICION: Duration = Duration::from_secs(130);
/// How long an outage lasts, and after which time its end is forgotten.
const OUTAGE: Duration = Duration::from_secs(20);
const RECOVERY: Duration = Duration::from_secs(30);
/// The time for which nothing may be written at rest.
const SILENCE: Duration = Duration::from_secs(30);

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedOutcome {
    /// The plan that was run.
    pub plan: Plan,
    /// The story, line by line.
    pub story: Vec<String>,
    /// The violations, the first one first.
    pub violations: Vec<Violation>,
    /// How long all took to be right after the last fault.
    pub settled: Option<Duration>,
}

/// Runs a plan, on a runtime of its own. One plan has one outcome.
pub fn run(plan: &Plan) -> SeedOutcome {
    simulate(plan, async |simulation| simulation.play().await)
}

/// Lets a simulation be played, on a runtime of its own.
fn simulate<'a, T>(plan: &'a Plan, act: impl AsyncFnOnce(Simulation<'a>) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing of the system");
    // Code that still asks the thread's own generator gets the same numbers each time.
    fastrand::seed(plan.seed);
    runtime.block_on(async {
        let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().expect("it is a time");
        let _time = clock::simulate_time_of_day(epoch);
        // Another one than that of the plan's own events.
        clock::simulate_costs(Rng::with_seed(!plan.seed));
        act(Simulation::new(plan, epoch).await).await
    })
}

struct Simulation<'a> {
    plan: &'a Plan,
    story: Story,
    ground: Ground,
    server: ApiServer,
    rest: RestClient,
    tenants: Tenants,
    kubelets: Vec<Kubelet>,
    /// Whether each node is there.
    nodes: Vec<bool>,
    hosts: Hosts,
    invariants: Invariants,
    ticks: u64,
    /// How many changes were judged.
    judged: usize,
    /// The version before which etcd is never restored: of an installed cluster.
    installed: u64,
    /// The version before others' objects changed.
    skipped: Option<u64>,
    /// How many seconds leadsman's clocks are ahead of the time.
    clock_ahead: i64,
    /// The time at which all that faults hold back has arrived, and all know of a restore.
    held_until: Duration,
}

impl<'a> Simulation<'a> {
    async fn new(plan: &'a Plan, epoch: Timestamp) -> Self {
        let mut rng = Rng::with_seed(plan.seed);
        let story = Story::begin();
        let ground = Ground::new(epoch);
        let clock = ground.clone();
        let server = ApiServer::new(leadsman_api_model::kubernetes(), plan.seed, move || {
            clock.now()
        });
        let rest = RestClient(server.client("controller"));
        install(&rest, plan.has_sets).await;
        let surroundings = Surroundings {
            server: server.clone(),
            ground: ground.clone(),
            story: story.clone(),
            has_sets: plan.has_sets,
            latency: Duration::from_millis(plan.latency_ms),
            page: plan.page,
        };
        let kubelet = |node| {
            let rest = RestClient(server.client(&format!("kubelet-{node}")));
            Kubelet::new(node, rest, ground.clone(), rng.fork())
        };
        let kubelets = (0..NODES).map(kubelet).collect();
        let meddler = RestClient(server.client("meddler"));
        let hosts = Hosts::new(surroundings, &mut rng);
        let mut world = Self {
            plan,
            invariants: Invariants::new(story.clone(), ground.clone(), plan.has_meddlers()),
            story,
            tenants: Tenants::new(
                rest.clone(),
                meddler,
                ground.clone(),
                (rng.fork(), plan.has_bare_pods),
            ),
            ground,
            server,
            rest,
            kubelets,
            nodes: vec![true; NODES],
            hosts,
            ticks: 0,
            judged: 0,
            installed: 0,
            skipped: None,
            clock_ahead: 0,
            held_until: Duration::ZERO,
        };
        for node in 0..NODES {
            add_node(&world.rest, node).await;
        }
        world.installed = world.server.version();
        world
    }

    async fn play(mut self) -> SeedOutcome {
        let webhooks = self.set_webhooks();
        let settled = self.play_steps(&self.plan.steps, &webhooks).await;
        if settled.is_some() {
            self.keep_silent(&webhooks).await;
            self.change_once(&webhooks).await;
            self.recover_once(&webhooks).await;
        }
        let plan = self.plan.clone();
        let (story, violations) = self.story.end();
        SeedOutcome {
            plan,
            story,
            violations,
            settled,
        }
    }

    fn set_webhooks(&self) -> Arc<Webhooks> {
        let webhooks = Arc::new(Webhooks::new(self.story.clone()));
        self.server.set_webhooks(webhooks.clone());
        webhooks
    }

    /// Carries steps out, each at its time from now on, and then waits until all is as it should be.
    async fn play_steps(&mut self, steps: &[Step], webhooks: &Webhooks) -> Option<Duration> {
        let began = self.story.elapsed();
        for step in steps {
            while self.story.elapsed() < began + Duration::from_millis(step.at_ms) {
                self.tick(webhooks).await;
            }
            self.story.tell("step", format_args!("{:?}", step.action));
            self.carry_out(&step.action).await;
        }
        // Actions begun last have their time too.
        for _ in 0..20 {
            self.tick(webhooks).await;
        }
        self.story.tell("step", "all faults end");
        self.held_until = self.held_until.max(self.hosts.heal(&self.nodes));
        self.ground.lock().heal();
        self.tenants.heal();
        while self.story.elapsed() < self.held_until {
            self.tick(webhooks).await;
        }
        self.settle(webhooks).await
    }

    /// Lets a moment pass in which everybody does what is due.
    async fn tick(&mut self, webhooks: &Webhooks) {
        self.hosts.look_after().await;
        webhooks.set_callers(self.hosts.callers());
        let pods = self.server.objects("pods");
        for node in (0..NODES).filter(|node| self.nodes[*node]) {
            let is_ready = self.hosts.is_ready(ProcessId::Agent(node));
            self.kubelets[node].act(&pods, is_ready).await;
        }
        self.tenants.control(&pods, &self.nodes).await;
        if self.tenants.go_on_fighting(&pods).await {
            let what = "a label was put back each time that it was removed";
            self.story
                .violate("an undone write keeps its distance", what);
        }
        if self.ticks.is_multiple_of(10) {
            self.server.collect_garbage();
        }
        self.ticks += 1;
        tokio::time::sleep(TICK).await;
        self.judge_changes();
    }

    fn judge_changes(&mut self) {
        for change in self.server.changes(self.judged) {
            self.judged += 1;
            self.invariants.observe(&change, &self.hosts);
        }
    }

    /// Waits until all is as it should be.
    async fn settle(&mut self, webhooks: &Webhooks) -> Option<Duration> {
        let from = self.story.elapsed();
        loop {
            let faults = Oracle::look(&self.server, &self.ground, &self.nodes).faults();
            let took = self.story.elapsed().saturating_sub(from);
            if faults.is_empty() && self.are_kubelets_done() && self.is_led() {
                self.story.tell("all", "is as it should be");
                return Some(took);
            }
            if took > PATIENCE {
                for fault in faults {
                    self.story.violate("all is right in the end", fault);
                }
                if !self.are_kubelets_done() || !self.is_led() {
                    let what = "the leader is dead, or kubelets and controllers still act";
                    self.story.violate("all is right in the end", what);
                }
                return None;
            }
            for _ in 0..10 {
                self.tick(webhooks).await;
            }
        }
    }

    /// Whether the leader lives.
    fn is_led(&self) -> bool {
        let leader = self.invariants.leader();
        leader.is_some_and(|user| self.hosts.is_alive(user))
    }

    /// Whether nobody but leadsman has anything to do. A kubelet whose node is gone does nothing.
    fn are_kubelets_done(&self) -> bool {
        let mut kubelets = self.kubelets.iter().zip(&self.nodes);
        kubelets.all(|(kubelet, is_there)| !is_there || kubelet.is_done()) && self.tenants.is_done()
    }

    /// Nobody writes where nothing differs.
    async fn keep_silent(&mut self, webhooks: &Webhooks) {
        // Writes that were decided already may be on their way, and messages have a pace of ten seconds.
        for _ in 0..12 {
            tokio::time::sleep(10 * TICK).await;
            self.tick(webhooks).await;
        }
        self.story.take_writes();
        let until = self.story.elapsed() + SILENCE;
        while self.story.elapsed() < until {
            // Nobody else has anything to do.
            tokio::time::sleep(10 * TICK).await;
            self.tick(webhooks).await;
        }
        for (what, count) in self.story.take_writes() {
            self.story.violate(
                "nothing is written at rest",
                format_args!("{count} times {what}"),
            );
        }
    }

    /// One outcome changes, and each object that says so is written once.
    async fn change_once(&mut self, webhooks: &Webhooks) {
        let probed = Oracle::look(&self.server, &self.ground, &self.nodes).probed_key();
        let Some((pod, key, count)) = probed else {
            return;
        };
        self.story.tell(
            "step",
            format_args!("key {key} of {pod}, which {count} probes ask for, changes"),
        );
        self.ground.lock().flip_answer(&pod, key);
        for _ in 0..120 {
            self.tick(webhooks).await;
        }
        for fault in Oracle::look(&self.server, &self.ground, &self.nodes).faults() {
            self.story.violate("a change is seen within seconds", fault);
        }
        for (what, written) in self.story.take_writes() {
            let most = match what.split(' ').nth(2).unwrap_or_default() {
                "nodepodprobes/status" | "events" => count,
                // Fields that others own too are taken away by a request of their own; a status has its own pace.
                "pods/status" | "podprobemarkers/status" => 2 * count,
                _ => 0,
            };
            if written > most {
                let what = format_args!("{written} times {what}, at most {most}");
                self.story.violate("one write a change", what);
            }
        }
    }

    /// All connections die, and an outcome changes meanwhile. Once the API server answers again, nobody waits for a watch that is
    /// dead.
    async fn recover_once(&mut self, webhooks: &Webhooks) {
        let probed = Oracle::look(&self.server, &self.ground, &self.nodes).probed_key();
        let Some((pod, key, _)) = probed else {
            return;
        };
        let until = self.story.elapsed() + OUTAGE;
        self.story.tell(
            "step",
            format_args!("all connections die, key {key} of {pod} changes"),
        );
        self.hosts.cut_off(until);
        self.ground.lock().flip_answer(&pod, key);
        while self.story.elapsed() < until + RECOVERY {
            tokio::time::sleep(5 * TICK).await;
            self.tick(webhooks).await;
        }
        for fault in Oracle::look(&self.server, &self.ground, &self.nodes).faults() {
            self.story
                .violate("the end of an outage is seen within seconds", fault);
        }
    }

    /// The pod of this number, of those of the tenant that are there.
    fn pod(&self, number: usize) -> Option<Arc<Value>> {
        let mut pods = self.server.objects("pods");
        pods.retain(|pod| text(pod, "namespace") == crate::resources::TENANT);
        pods.sort_by(|a, b| text(a, "name").cmp(text(b, "name")));
        (!pods.is_empty()).then(|| Arc::clone(&pods[number % pods.len()]))
    }

    fn object(&self, plural: &str, name: &str) -> Option<Arc<Value>> {
        let objects = self.server.objects(plural);
        objects
            .into_iter()
            .find(|object| text(object, "name") == name)
    }

    async fn remove_node(&mut self, node: usize) {
        if std::mem::replace(&mut self.nodes[node], false) {
            self.hosts.host(ProcessId::Agent(node)).bury();
            self.ground.end_containers(false, |one| one.node == node);
            let path = format!("{}/{}", crate::resources::NODE_PATH, node_name(node));
            let _gone = self.rest.delete(&path, true).await;
        }
    }

    async fn add_node(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node], true) {
            add_node(&self.rest, node).await;
            self.hosts.host(ProcessId::Agent(node)).start_soon();
        }
    }

    fn jump_clock(&mut self, seconds: i64) {
        self.clock_ahead += seconds;
        clock::jump_time_of_day(SignedDuration::from_secs(seconds));
    }
}

//! The agent's life: the loop that owns the node's state machine and carries out what it says.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use leadsman_api::NodePodProbe;
use leadsman_core::cluster::Now;
use leadsman_core::podprobe::node::{
    NodeAction, NodeEvent, NodeProbes, StatusWriteEnd, VerdictChange, cut,
};
use leadsman_cri::{Containers, Runtime, View};
use leadsman_process::{ApiServer, Component, Process, RunError, clock};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::args::Args;
use crate::look::{self, Look, Wanted};
use crate::metrics::Metrics;
use crate::plan::{self, Newest, Sight};
use crate::prober::{Finished, Prober};
use crate::standing::Standing;
use crate::status::{self, WriteError};
use crate::targets::Targets;
use crate::tell::Teller;

/// From one check of what works to the next.
const CHECK: Duration = Duration::from_secs(5);
/// Bytes of a probe's words in the log.
const LOGGED: usize = 256;
/// For the last write, at the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// Why the agent ended.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The runtime's endpoint is none.
    #[error("--runtime-endpoint: {0}")]
    Endpoint(#[from] leadsman_cri::Error),
    /// The watch came to its end.
    #[error("the watch of the node's plan ended, which it never does")]
    WatchEnded,
    /// The task that looks at the runtime broke.
    #[error("the container runtime poller ended")]
    LooksEnded,
}

/// Runs the agent until SIGTERM or SIGINT.
pub fn run(args: &Args) -> Result<(), RunError<AgentError>> {
    leadsman_process::run(&args.process, Component::Agent, |process| {
        probe_node(args, process)
    })
}

async fn probe_node(args: &Args, process: Process) -> Result<(), AgentError> {
    let runtime = Runtime::connect(&args.runtime_endpoint)?;
    let start = clock::monotonic();
    let mut agent = Agent::new(args, &process, runtime.clone(), start);
    let plans = plan::follow(process.server.clone(), &args.node_name);
    let (looks, mut looked) = mpsc::channel(1);
    let view = View::new(runtime);
    let mut looking = JoinSet::new();
    looking.spawn(look::look(view, start, agent.wanted.subscribe(), looks));
    let ended = agent
        .follow(pin!(plans), &mut looked, process.shutdown.cancelled())
        .await;
    if ended.is_ok() {
        agent.farewell().await;
    }
    ended
}

type Written = Result<Box<NodePodProbe>, WriteError>;

/// What the loop owns.
struct Agent {
    node_name: String,
    node: NodeProbes,
    start: Instant,
    server: ApiServer,
    newest: Newest,
    /// The last look, for the addresses in it.
    containers: Option<Arc<Containers>>,
    /// When it was, or when there began to be something to look at.
    looked: Duration,
    /// When the plan changed, if no look that began after it has succeeded: it may name other containers of the pods
    /// that were looked at.
    unread: Option<Duration>,
    wanted: watch::Sender<Wanted>,
    targets: Targets,
    prober: Prober<Runtime>,
    /// One write at most.
    writes: JoinSet<Written>,
    /// Failed writes in a row.
    write_failures: u32,
    teller: Teller,
    metrics: Metrics,
    plan: Standing,
    /// Whether the object is one that cannot be decoded; then a watch that stands is no sign that the plan is known.
    undecodable: bool,
    runtime: Standing,
    status: Standing,
    /// Whether the lack of an object was spoken of.
    missed: bool,
}

impl Agent {
    fn new(args: &Args, process: &Process, runtime: Runtime, start: Instant) -> Self {
        let metrics = Metrics::new(&process.metrics);
        let readiness = &process.readiness;
        let mut status = Standing::new(readiness, "status", "");
        status.works();
        let mut looks = Standing::new(readiness, "runtime", "");
        // Nothing is looked at before there is something to probe.
        looks.works();
        Self {
            node_name: args.node_name.clone(),
            node: NodeProbes::new(args.exec_limits(), moment(start)),
            start,
            server: process.server.clone(),
            newest: Newest::default(),
            containers: None,
            looked: Duration::ZERO,
            unread: None,
            wanted: watch::Sender::default(),
            targets: Targets::new(args.node_ip.clone()),
            prober: Prober::new(runtime),
            writes: JoinSet::new(),
            write_failures: 0,
            teller: Teller::start(process.server.clone(), &args.node_name, &metrics),
            metrics,
            plan: Standing::new(
                readiness,
                "nodepodprobe",
                "this node's NodePodProbe has not been read yet",
            ),
            undecodable: false,
            runtime: looks,
            status,
            missed: false,
        }
    }

    /// Carries out until told to stop.
    async fn follow(
        &mut self,
        mut plans: impl Stream<Item = Sight> + Unpin,
        looks: &mut mpsc::Receiver<Look>,
        stopped: impl Future<Output = ()>,
    ) -> Result<(), AgentError> {
        let mut stopped = pin!(stopped);
        let mut check_at = self.start + CHECK;
        let mut alarm = pin!(sleep_until(check_at));
        loop {
            let turn = self.node.next().map(|at| self.start + at);
            let wake = turn.map_or(check_at, |turn| turn.min(check_at));
            if alarm.deadline() != wake || alarm.is_elapsed() {
                alarm.as_mut().reset(wake);
            }
            tokio::select! {
                () = &mut stopped => return Ok(()),
                sight = plans.next() => self.saw(sight.ok_or(AgentError::WatchEnded)?),
                look = looks.recv() => self.looked(look.ok_or(AgentError::LooksEnded)?),
                finished = self.prober.next() => self.all_finished(finished),
                Some(written) = self.writes.join_next() => self.written(written),
                () = &mut alarm => self.apply(NodeEvent::Tick),
            }
            self.write();
            let now = clock::monotonic();
            if now >= check_at {
                self.check();
                check_at = now + CHECK;
            }
        }
    }

    fn now(&self) -> Now {
        moment(self.start)
    }

    fn apply(&mut self, event: NodeEvent<'_>) {
        let now = self.now();
        for action in self.node.apply(event, now) {
            match action {
                NodeAction::StartRun(run) => {
                    self.metrics.lag.observe(run.lag.as_secs_f64());
                    if !run.waited.is_zero() {
                        self.metrics.exec_wait.observe(run.waited.as_secs_f64());
                    }
                    let target = self.targets.of(&run, self.containers.as_deref());
                    self.prober.start(run, target);
                }
                NodeAction::VerdictChanged(change) => self.changed(change, now),
                NodeAction::RunDropped {
                    key,
                    cause,
                    first: true,
                } => {
                    tracing::warn!(probe = %key, %cause, "could not probe");
                }
                NodeAction::RunDropped { key, cause, .. } => {
                    tracing::debug!(probe = %key, %cause, "could still not probe");
                }
                NodeAction::MalformedEntries(entries) => {
                    self.metrics.malformed.set(count(entries.len()));
                    for entry in entries {
                        tracing::warn!(%entry, "ignoring an invalid entry of the NodePodProbe");
                    }
                }
            }
        }
        let (running, waiting) = self.node.exec_counts();
        self.metrics.execs.set(count(running));
        self.metrics.execs_waiting.set(count(waiting));
    }

    fn changed(&mut self, change: VerdictChange, now: Now) {
        let from = change.from.map_or("none", |from| from.as_str());
        let to = change.to;
        let words = cut(&change.message, LOGGED).trim_end();
        tracing::info!(probe = %change.key, from, to = to.as_str(), words, "verdict");
        self.metrics.changed(to);
        if change.send_event {
            self.teller.tell(change, now.wall);
        }
    }

    fn saw(&mut self, sight: Sight) {
        let error = match sight {
            Sight::Undecodable(error) => {
                self.undecodable = true;
                format!("it cannot be decoded, what was known of it holds: {error}")
            }
            Sight::Failed(error) => error,
            Sight::Follows if self.undecodable => return,
            Sight::Follows => return self.plan.works(),
            sight => {
                self.undecodable = false;
                self.plan(&sight);
                return self.plan.works();
            }
        };
        let now = self.now().monotonic;
        if self.plan.fails(&error, now) {
            tracing::warn!(
                error,
                "cannot read this node's NodePodProbe, keeping the last one; retrying"
            );
        }
    }

    fn plan(&mut self, sight: &Sight) {
        if !self.newest.is_news(sight) {
            return;
        }
        let object = match sight {
            Sight::Listed(object) | Sight::Live(object) | Sight::Answered(object) => {
                Some(&**object)
            }
            _ => None,
        };
        if object.is_none() && !self.missed {
            tracing::info!(
                node = self.node_name,
                "no NodePodProbe of this name: nothing to probe here; if pods on this node match a marker, check --node-name"
            );
        }
        self.missed = object.is_none();
        self.targets.plan(object.map(|object| &object.spec));
        self.apply(NodeEvent::Plan(object));
        let pods: HashSet<Arc<str>> = self
            .node
            .probed_containers()
            .map(|name| name.pod.uid)
            .collect();
        self.metrics
            .entries
            .set(count(self.node.probed_containers().count()));
        if pods.is_empty() || self.wanted.borrow().pods.is_empty() {
            // No look tells, or none has yet.
            self.runtime.works();
            self.looked = self.now().monotonic;
        }
        if pods.is_empty() {
            // Nobody looks any more: by the time that there is something to probe again, this may be long past.
            self.containers = None;
        }
        self.unread = Some(self.now().monotonic);
        let hired = self.node.probes_added();
        self.wanted.send_if_modified(|known| {
            let other = known.hired != hired || *known.pods != pods;
            if other {
                let pods = Arc::new(pods);
                *known = Wanted { pods, hired };
            }
            other
        });
    }

    fn looked(&mut self, look: Look) {
        let Look { began, containers } = look;
        self.metrics.looked(containers.is_ok());
        match containers {
            Ok(containers) => {
                self.runtime.works();
                self.looked = self.now().monotonic;
                let same = self
                    .containers
                    .as_ref()
                    .is_some_and(|known| Arc::ptr_eq(known, &containers));
                let other = !same || self.unread.is_some();
                self.unread = self.unread.filter(|planned| began < *planned);
                let known = other.then(|| look::known(&containers, self.node.probed_containers()));
                // One that was begun before the last pod went would stay for as long as none comes.
                self.containers =
                    Some(containers).filter(|_| !self.wanted.borrow().pods.is_empty());
                self.apply(NodeEvent::ContainersListed {
                    began,
                    containers: known,
                });
            }
            Err(error) => {
                if self.runtime.fails(&error.to_string(), self.looked) {
                    tracing::warn!(%error, "listing containers from the runtime failed");
                }
            }
        }
    }

    /// What is due in one slot ends together, mostly.
    fn all_finished(&mut self, first: Finished) {
        self.finished(first);
        while let Some(finished) = self.prober.ready() {
            self.finished(finished);
        }
    }

    fn finished(&mut self, finished: Finished) {
        let Finished {
            run,
            handler,
            result,
        } = finished;
        let result = self.node.classify_result(run, result);
        self.metrics.ran(handler, &result);
        self.apply(NodeEvent::RunFinished { run, result });
    }

    fn write(&mut self) {
        let now = self.now();
        if let Some(status) = self.node.write(now) {
            let write = status::write(self.server.clone(), self.node_name.clone(), status);
            self.writes.spawn(write);
        }
    }

    fn written(&mut self, written: Result<Written, JoinError>) {
        let written = written.unwrap_or_else(|lost| Err(lost.into()));
        self.metrics.wrote(written.is_ok());
        let end = match written {
            Ok(object) => {
                let unprobed = status::shows_unprobed(&object);
                // First what is there now, else the write would seem to be due again.
                self.plan(&Sight::Answered(object));
                self.status.works();
                self.write_failures = 0;
                StatusWriteEnd::Written {
                    shows_unprobed: unprobed,
                }
            }
            Err(error) => {
                let now = self.now().monotonic;
                let since = self.node.write_overdue_since().unwrap_or(now);
                if self.status.fails(&error.to_string(), since) {
                    tracing::warn!(%error, "the status was not written");
                }
                self.write_failures = self.write_failures.saturating_add(1);
                status::failed(&error, self.write_failures)
            }
        };
        self.apply(NodeEvent::StatusWritten(end));
    }

    fn check(&mut self) {
        let now = self.now().monotonic;
        if self.node.write_overdue_since().is_none() {
            // What could not be written need not be any more.
            self.status.works();
        }
        self.plan.check(now);
        self.runtime.check(now);
        self.status.check(now);
    }

    /// Writes what is held and not written yet, if that can be done soon. Runs on their way are dropped.
    async fn farewell(&mut self) {
        let flushed = tokio::time::timeout(FAREWELL, async {
            loop {
                if let Some(written) = self.writes.join_next().await {
                    self.written(written);
                    continue;
                }
                self.write();
                let soon = self.now().monotonic + FAREWELL;
                match self.node.write_at().filter(|at| *at < soon) {
                    _ if !self.writes.is_empty() => {}
                    Some(at) => sleep_until(self.start + at).await,
                    None => return,
                }
            }
        });
        if flushed.await.is_err() {
            tracing::warn!("the last status was not written in time");
        }
    }
}

fn moment(start: Instant) -> Now {
    Now {
        monotonic: clock::monotonic().saturating_duration_since(start),
        wall: clock::now(),
    }
}

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

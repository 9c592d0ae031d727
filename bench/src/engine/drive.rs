//! The process that is measured: the rules of one node and the executors, and nothing else of the agent.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use leadsman_api::NodePodProbe;
use leadsman_core::cluster::Now;
use leadsman_core::podprobe::node::{
    ContainerName, ContainerState, ExecLimits, NodeAction, NodeEvent, NodeProbes,
    ObservedContainer, ObservedContainers, PodName, ProbeRun, RunId, SLOT, StatusWriteEnd,
};
use leadsman_core::podprobe::{CannotProbe, Outcome};
use leadsman_probe::{Exec, ExecError, Execution, ProbeTarget};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::{Driven, Order, address};
use crate::clock;
use crate::meter::Meter;
use crate::part::bare::{Exchange, Tally};
use crate::part::{Question, converse};

/// Until the first run.
const DELAY: u32 = 2;
/// When nothing is due and all is on its way.
const IDLE: Duration = Duration::from_hours(1);

/// Probes until nobody asks any more.
pub(crate) async fn run(order: Order) -> Result<()> {
    raise_limit()?;
    let mut engine = Engine::new(order)?;
    let (ask, asked) = mpsc::channel(1);
    tokio::select! {
        ended = converse(ask) => ended,
        () = engine.run(asked) => Ok(()),
    }
}

/// A thousand connections may be open at once.
pub(super) fn raise_limit() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raising the limit of descriptors")
}

struct Engine {
    node: NodeProbes,
    object: NodePodProbe,
    start: Instant,
    runs: JoinSet<(RunId, Result<Outcome, CannotProbe>)>,
    order: Order,
    tally: Tally,
    lags: Vec<u32>,
    schedule_bytes: u64,
}

impl Engine {
    fn new(order: Order) -> Result<Self> {
        let limits = ExecLimits {
            per_node: 1,
            per_pod: 1,
            per_slot: 1,
        };
        let start = Instant::from_std(clock::now());
        let containers = Some(containers(order.probes, clock::wall()));
        let mut engine = Self {
            node: NodeProbes::new(limits, now(start)),
            object: plan(&order)?,
            start,
            runs: JoinSet::new(),
            order,
            tally: Tally::default(),
            lags: Vec::new(),
            schedule_bytes: 0,
        };
        let meter = Meter(std::process::id());
        let before = meter.held()?.rss;
        let at = now(start);
        engine.node.apply(NodeEvent::Plan(Some(&engine.object)), at);
        let began = at.monotonic;
        engine
            .node
            .apply(NodeEvent::ContainersListed { began, containers }, at);
        engine.schedule_bytes = meter.held()?.rss.saturating_sub(before);
        Ok(engine)
    }

    async fn run(&mut self, mut asked: mpsc::Receiver<Question<Driven>>) {
        loop {
            let wake = self.start + self.node.next().unwrap_or(IDLE);
            tokio::select! {
                Some(question) = asked.recv() => {
                    let _ = question.send(self.driven());
                }
                Some(Ok((run, result))) = self.runs.join_next() => {
                    match &result {
                        Ok(Outcome::Succeeded(_)) => self.tally.done += 1,
                        _ => self.tally.failed += 1,
                    }
                    self.apply(NodeEvent::RunFinished { run, result });
                }
                () = sleep_until(wake) => self.apply(NodeEvent::Tick),
            }
            self.write();
        }
    }

    fn apply(&mut self, event: NodeEvent<'_>) {
        let actions = self.node.apply(event, now(self.start));
        self.carry_out(actions);
    }

    /// Whatever the event was, its actions may hold runs that have come due meanwhile.
    fn carry_out(&mut self, actions: Vec<NodeAction>) {
        for action in actions {
            if let NodeAction::StartRun(run) = action {
                let lag = u32::try_from(run.lag.as_micros()).unwrap_or(u32::MAX);
                self.lags.push(lag);
                self.begin(run);
            }
        }
    }

    fn begin(&mut self, run: ProbeRun) {
        // The uid of a pod is the number of its probe.
        let probe = run.key.pod.uid.parse().unwrap_or(0);
        let ip = address(probe, self.order.port).ip();
        self.runs.spawn(async move {
            let target = ProbeTarget::unchecked(ip, &*run.container);
            let timeout = Duration::from_secs(run.probe.timeout_seconds.get().into());
            let result =
                leadsman_probe::run(&run.probe.handler, &target, timeout, &NoRuntime).await;
            (run.id, result)
        });
    }

    /// Statuses go nowhere, and are there.
    fn write(&mut self) {
        if let Some(status) = self.node.write(now(self.start)) {
            self.object.status = Some(status);
            let at = now(self.start);
            let actions = self.node.apply(NodeEvent::Plan(Some(&self.object)), at);
            self.carry_out(actions);
            self.apply(NodeEvent::StatusWritten(StatusWriteEnd::Written {
                shows_unprobed: false,
            }));
        }
    }

    fn driven(&mut self) -> Driven {
        let mut lags = std::mem::take(&mut self.lags);
        lags.sort_unstable();
        let share = |percent: usize| {
            let place = (lags.len() * percent / 100).min(lags.len().saturating_sub(1));
            lags.get(place).copied().unwrap_or(0)
        };
        Driven {
            tally: self.tally,
            schedule_bytes: self.schedule_bytes,
            lags: [50, 99, 100].map(share),
        }
    }
}

fn now(start: Instant) -> Now {
    Now {
        monotonic: Instant::from_std(clock::now()).saturating_duration_since(start),
        wall: clock::wall(),
    }
}

/// One pod with one probe for each.
fn plan(order: &Order) -> Result<NodePodProbe> {
    let port = NonZeroU16::new(order.port).context("no port")?;
    let mut probe = json!({"periodSeconds": 1, "timeoutSeconds": 5, "initialDelaySeconds": DELAY,
        "successThreshold": 1, "failureThreshold": 3});
    match order.exchange {
        Exchange::Http => {
            probe["httpGet"] = json!({"port": port, "path": "/healthz", "scheme": "HTTP"});
        }
        _ => probe["tcpSocket"] = json!({"port": port}),
    }
    let pod = |number: u32| {
        json!({"name": format!("pod-{number}"), "namespace": "engine", "uid": number.to_string(), "IP": "",
            "probes": [{"name": "marker#probe", "containerName": "main", "probe": probe}]})
    };
    let pods: Vec<_> = (0..order.probes).map(pod).collect();
    let object =
        json!({"metadata": {"name": "node", "resourceVersion": "1"}, "spec": {"podProbes": pods}});
    Ok(serde_json::from_value(object)?)
}

/// They began to run at different times, so that their first runs, a delay after that, are in different slots.
fn containers(probes: u32, now: Timestamp) -> ObservedContainers {
    let container = |number: u32| {
        let pod = PodName {
            namespace: "engine".into(),
            name: format!("pod-{number}").into(),
            uid: number.to_string().into(),
        };
        let started_at = now - SLOT * (number % super::SLOTS);
        let state = ContainerState::Running { started_at };
        let id = format!("container-{number}").into();
        (
            ContainerName {
                pod,
                name: "main".into(),
            },
            ObservedContainer { id, state },
        )
    };
    (0..probes).map(container).collect::<HashMap<_, _>>()
}

/// Commands are not driven here.
struct NoRuntime;

impl Exec for NoRuntime {
    async fn exec(&self, _: &str, _: &[String], _: Duration) -> Result<Execution, ExecError> {
        Err(ExecError::Runtime("there is none".to_owned()))
    }
}

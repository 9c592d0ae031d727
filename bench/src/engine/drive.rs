//! The process that is measured: the rules of one node and the executors, and nothing else of the agent.

use std::cell::RefCell;
use std::collections::HashMap;
use std::num::NonZeroU16;
use std::time::Duration;

use anyhow::{Context as _, Result};
use leadsman_api::NodePodProbe;
use leadsman_core::cluster::Now;
use leadsman_core::podprobe::node::{
    ContainerName, ContainerState, ExecLimits, NodeAction, NodeEvent, NodeProbes,
    ObservedContainer, ObservedContainers, PodName, ProbeRun, RunId, SLOT, StatusWriteEnd,
};
use leadsman_core::podprobe::{CannotProbe, Outcome};
use leadsman_probe::{Exec, ExecError, Execution, ProbeTarget};
use leadsman_process::clock;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::{Driven, Order, Protocol, SLOTS, address};
use crate::meter::Meter;
use crate::part::Questions;
use crate::part::bare::Tally;

/// Seconds until the first run.
const DELAY: u32 = 2;
/// When nothing is due and all is on its way.
const IDLE: Duration = Duration::from_hours(1);

/// Probes until nobody asks any more.
pub(crate) async fn run(order: Order, questions: Questions) -> Result<()> {
    let ended = RefCell::new(Ended::default());
    let mut engine = Engine::new(order, &ended)?;
    let schedule_bytes = engine.take_in_plan()?;
    let driven = async || {
        let mut ended = ended.borrow_mut();
        Ok(Driven {
            tally: ended.tally,
            schedule_bytes,
            lags: ended.take_lags(),
        })
    };
    tokio::select! {
        ended = questions.answer(driven) => ended,
        () = engine.run() => Ok(()),
    }
}

/// What is told of the runs.
#[derive(Default)]
struct Ended {
    tally: Tally,
    /// Of those begun since somebody asked, in microseconds.
    lags: Vec<u32>,
}

impl Ended {
    fn count(&mut self, result: &Result<Outcome, CannotProbe>) {
        match result {
            Ok(Outcome::Succeeded(_)) => self.tally.done += 1,
            _ => self.tally.failed += 1,
        }
    }

    /// The median, 99 in 100, the largest.
    fn take_lags(&mut self) -> [Duration; 3] {
        let mut lags = std::mem::take(&mut self.lags);
        lags.sort_unstable();
        [50, 99, 100].map(|percent| {
            let place = (lags.len() * percent / 100).min(lags.len().saturating_sub(1));
            Duration::from_micros(lags.get(place).copied().unwrap_or_default().into())
        })
    }
}

struct Engine<'a> {
    node: NodeProbes,
    object: NodePodProbe,
    start: Instant,
    runs: JoinSet<(RunId, Result<Outcome, CannotProbe>)>,
    order: Order,
    ended: &'a RefCell<Ended>,
}

impl<'a> Engine<'a> {
    fn new(order: Order, ended: &'a RefCell<Ended>) -> Result<Self> {
        let limits = ExecLimits {
            per_node: 1,
            per_pod: 1,
            per_slot: 1,
        };
        let start = clock::monotonic();
        Ok(Self {
            node: NodeProbes::new(limits, now(start)),
            object: plan(&order)?,
            start,
            runs: JoinSet::new(),
            order,
            ended,
        })
    }

    /// Schedules all. Returns the memory that this took.
    fn take_in_plan(&mut self) -> Result<u64> {
        let (meter, at) = (Meter(std::process::id()), now(self.start));
        let containers = Some(containers(self.order.probes, at));
        let before = meter.held()?.rss;
        self.node.apply(NodeEvent::Plan(Some(&self.object)), at);
        let began = at.monotonic;
        let listed = NodeEvent::ContainersListed { began, containers };
        self.node.apply(listed, at);
        Ok(meter.held()?.rss.saturating_sub(before))
    }

    async fn run(&mut self) {
        loop {
            let wake = self.start + self.node.next().unwrap_or(IDLE);
            tokio::select! {
                Some(Ok((run, result))) = self.runs.join_next() => {
                    self.ended.borrow_mut().count(&result);
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
                self.ended.borrow_mut().lags.push(lag);
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
}

fn now(start: Instant) -> Now {
    Now {
        monotonic: start.elapsed(),
        wall: clock::now(),
    }
}

/// One pod with one probe for each.
fn plan(order: &Order) -> Result<NodePodProbe> {
    let port = NonZeroU16::new(order.port).context("no port")?;
    let mut probe = json!({"periodSeconds": 1, "timeoutSeconds": 5, "initialDelaySeconds": DELAY,
        "successThreshold": 1, "failureThreshold": 3});
    match order.protocol {
        Protocol::Tcp => probe["tcpSocket"] = json!({"port": port}),
        Protocol::Http => {
            probe["httpGet"] = json!({"port": port, "path": "/healthz", "scheme": "HTTP"});
        }
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
fn containers(probes: u32, now: Now) -> ObservedContainers {
    let container = |number: u32| {
        let pod = PodName {
            namespace: "engine".into(),
            name: format!("pod-{number}").into(),
            uid: number.to_string().into(),
        };
        let started_at = now.wall - SLOT * (number % SLOTS);
        let state = ContainerState::Running { started_at };
        let id = format!("container-{number}").into();
        let name = "main".into();
        (ContainerName { pod, name }, ObservedContainer { id, state })
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

//! The process that is measured: the rules of one node and the executors, and nothing else of the agent.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, bail};
use leadsman_api::NodePodProbe;
use leadsman_core::cluster::Now;
use leadsman_core::podprobe::node::{
    ContainerName, ExecLimits, HistoryLimits, NodeAction, NodeEvent, NodeProbes, PodIdentity,
    ProbeRun, RunId, RuntimeContainer, RuntimeContainers, RuntimeState, SLOT, StatusWriteEnd,
};
use leadsman_core::podprobe::{CannotProbe, Outcome};
use leadsman_probe::{Exec, ExecError, Execution, ProbeTarget};
use leadsman_process::clock;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Driven;
use crate::at_share;
use crate::meter::Meter;
use crate::part::Questions;
use crate::part::bare::{Exchange, Order, Tally};

/// Seconds until the first run.
const DELAY: u32 = 2;
/// When nothing is due and all is on its way.
const IDLE: Duration = Duration::from_hours(1);

/// Probes until nobody asks any more.
pub(crate) async fn run(order: Order, questions: Questions) -> Result<()> {
    let ended = RefCell::new(Ended::default());
    let (mut engine, schedule_bytes) = Engine::new(order, &ended)?;
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
        [0.5, 0.99, 1.0].map(|share| Duration::from_micros(at_share(&lags, share).into()))
    }
}

struct Engine<'a> {
    node: NodeProbes,
    object: NodePodProbe,
    start: Instant,
    runs: JoinSet<(RunId, Result<Outcome, CannotProbe>, Duration)>,
    order: Order,
    ended: &'a RefCell<Ended>,
}

impl<'a> Engine<'a> {
    /// With all scheduled; and the memory that this took.
    fn new(order: Order, ended: &'a RefCell<Ended>) -> Result<(Self, u64)> {
        let limits = ExecLimits {
            per_node: 1,
            per_pod: 1,
            per_slot: 1,
        };
        let start = clock::monotonic();
        let at = now(start);
        let (object, containers) = plan(&order, at)?;
        let mut engine = Self {
            node: NodeProbes::new(limits, HistoryLimits::NONE, at),
            object,
            start,
            runs: JoinSet::new(),
            order,
            ended,
        };
        let meter = Meter(std::process::id());
        let (began, containers) = (at.monotonic, Some(containers));
        let before = meter.held()?.rss;
        engine
            .node
            .apply_event(NodeEvent::Plan(Some(&engine.object)), at);
        let listed = NodeEvent::ContainersListed { began, containers };
        engine.node.apply_event(listed, at);
        Ok((engine, meter.held()?.rss.saturating_sub(before)))
    }

    async fn run(&mut self) {
        loop {
            let wake = self.start + self.node.next_tick_at().unwrap_or(IDLE);
            tokio::select! {
                Some(Ok((run, result, took))) = self.runs.join_next() => {
                    self.ended.borrow_mut().count(&result);
                    self.apply(NodeEvent::RunFinished { run, result, took });
                }
                () = sleep_until(wake) => self.apply(NodeEvent::Tick),
            }
            self.write();
        }
    }

    fn apply(&mut self, event: NodeEvent<'_>) {
        let actions = self.node.apply_event(event, now(self.start));
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
        // The uid of a pod is the number of its exchange.
        let number: usize = run.key.pod.uid.parse().unwrap_or(0);
        let (Exchange::Tcp(to) | Exchange::Http(to)) = self.order.exchanges[number].0 else {
            return;
        };
        self.runs.spawn(async move {
            let target = ProbeTarget::unchecked(to.ip(), &*run.container);
            let timeout = Duration::from_secs(run.probe.timeout_seconds.get().into());
            let began = clock::monotonic();
            let result =
                leadsman_probe::run_probe(&run.probe.handler, &target, timeout, &NoRuntime).await;
            (run.id, result, clock::monotonic() - began)
        });
    }

    /// Statuses go nowhere, and are there.
    fn write(&mut self) {
        if let Some(status) = self.node.begin_due_write(now(self.start)) {
            self.object.status = Some(status);
            let at = now(self.start);
            let actions = self
                .node
                .apply_event(NodeEvent::Plan(Some(&self.object)), at);
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

/// One pod with one probe for each exchange. Its container began to run so that the first run, a delay after that, is in the
/// slot of the exchange.
fn plan(order: &Order, now: Now) -> Result<(NodePodProbe, RuntimeContainers)> {
    let (mut pods, mut containers) = (Vec::new(), HashMap::new());
    for (number, (exchange, slot)) in order.exchanges.iter().enumerate() {
        let mut probe = json!({"periodSeconds": 1, "timeoutSeconds": 5, "initialDelaySeconds": DELAY,
            "successThreshold": 1, "failureThreshold": 3});
        let (handler, value) = match exchange {
            Exchange::Tcp(to) => ("tcpSocket", json!({"port": to.port()})),
            Exchange::Http(to) => (
                "httpGet",
                json!({"port": to.port(), "path": "/healthz", "scheme": "HTTP"}),
            ),
            Exchange::Exec(..) => bail!("commands are not driven here"),
        };
        probe[handler] = value;
        let [name, uid] = [format!("pod-{number}"), number.to_string()];
        let probes = json!([{"name": "marker#probe", "containerName": "main", "probe": probe}]);
        let planned =
            json!({"name": name, "namespace": "engine", "uid": uid, "IP": "", "probes": probes});
        pods.push(planned);
        let pod = PodIdentity {
            namespace: "engine".into(),
            name: name.into(),
            uid: uid.into(),
        };
        let started_at = now.wall - SLOT * u32::try_from(*slot)?;
        let state = RuntimeState::Running { started_at };
        let id = format!("container-{number}").into();
        let name = "main".into();
        containers.insert(ContainerName { pod, name }, RuntimeContainer { id, state });
    }
    let object =
        json!({"metadata": {"name": "node", "resourceVersion": "1"}, "spec": {"podProbes": pods}});
    Ok((serde_json::from_value(object)?, containers))
}

/// Commands are not driven here.
struct NoRuntime;

impl Exec for NoRuntime {
    async fn exec(&self, _: &str, _: &[String], _: Duration) -> Result<Execution, ExecError> {
        Err(ExecError::Runtime("there is none".to_owned()))
    }
}

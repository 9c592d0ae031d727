//! What is measured: each handler at two periods, a window of the agent and one of the bare loop.

use std::time::Duration;

use anyhow::{Result, ensure};
use leadsman_core::podprobe::node::SLOT;
use leadsman_testkit::leadsman::AGENT;
use leadsman_tests::room::probe;
use serde_json::{Value, json};

use super::probed_node::{GROUPS, HTTP, ProbedNode, ProbedPod, STAGGER, TCP};
use crate::call_counter::CallCounter;
use crate::figures;
use crate::meter::Held;
use crate::part::bare::{Exchange, Order};
use crate::part::{Part, Talk};
use crate::progress::wait;
use crate::report::{Amount as _, Kind, Report, Target};

/// The connection of a bare loop to the runtime, and the first of everything, come before what is measured.
const SETTLE: Duration = Duration::from_secs(3);

/// A command of which next to nothing is run in a container.
const NOTHING: &str = "true";

/// A handler at a period.
pub(super) struct Case {
    name: String,
    /// The handler as the agent's metric has it, in its quotation marks.
    metric: &'static str,
    handler: Value,
    period: Duration,
    /// Microseconds of CPU a probe to reach at fifty a second.
    cpu: Option<f64>,
    /// What a bare loop does instead; `None` where there is no bare loop.
    bare: Option<Bare>,
}

type Bare = fn(&ProbedPod) -> Exchange;

pub(super) fn all() -> impl Iterator<Item = Case> {
    let exec: Bare = |pod| Exchange::Exec(pod.container.clone(), vec![NOTHING.to_owned()]);
    let tcp: Bare = |pod| Exchange::Tcp((pod.ip, TCP).into());
    let http: Bare = |pod| Exchange::Http((pod.ip, HTTP).into());
    let exec_probe = json!({"exec": {"command": [NOTHING]}});
    let tcp_probe = json!({"tcpSocket": {"port": TCP}});
    let http_probe = json!({"httpGet": {"path": "/healthz", "port": HTTP}});
    let grpc_probe = json!({"grpc": {"port": 50051}});
    let handlers = [
        ("exec", "\"exec\"", exec_probe, Some(250.0), Some(exec)),
        ("tcp", "\"tcp_socket\"", tcp_probe, Some(150.0), Some(tcp)),
        ("http", "\"http_get\"", http_probe, Some(190.0), Some(http)),
        ("grpc", "\"grpc\"", grpc_probe, None, None),
    ];
    let at_both_periods = |(name, metric, handler, cpu, bare): (_, _, Value, Option<_>, _)| {
        [1, 10].map(|period| Case {
            name: format!("{name} every {period} s"),
            metric,
            handler: handler.clone(),
            period: Duration::from_secs(period),
            cpu: cpu.filter(|_| period == 1),
            bare,
        })
    };
    handlers.into_iter().flat_map(at_both_periods)
}

/// What an agent took in a window.
pub(super) struct Window {
    length: Duration,
    cpu: Duration,
    held: Held,
    requests: usize,
}

impl Window {
    pub(super) async fn measure(node: &ProbedNode, name: &str, length: Duration) -> Result<Self> {
        let (meter, mark) = (node.meter()?, node.bed.audit_mark()?);
        let cpu = meter.cpu_over(format!("{name}: measuring"), length).await?;
        let mut requests = node.bed.audit(mark)?;
        // A watch that was opened again, as the API server asks for every few minutes, is none.
        requests.retain(|request| request.user == AGENT && request.verb != "watch");
        Ok(Self {
            length,
            cpu,
            held: meter.held()?,
            requests: requests.len(),
        })
    }

    /// CPU over so much time, at the same rate.
    pub(super) fn cpu_in(&self, time: Duration) -> Duration {
        self.cpu.mul_f64(time.div_duration_f64(self.length))
    }

    /// What is written of every window.
    pub(super) fn add_figures(&self, rss: &Kind, add: &mut Report) {
        add.add(rss, self.held.rss);
        add.add(&figures::THREADS_HELD, self.held.threads);
        add.add(&figures::DESCRIPTORS_HELD, self.held.descriptors);
        add.add(&figures::API_REQUESTS, self.requests);
    }
}

impl Case {
    /// Brings the case's markers to the node, lets them settle, and does `act` for this time or a whole period; the runs
    /// that the agent has counted meanwhile, and those of them that succeeded. Nothing is probed afterwards.
    async fn probed_during<T>(
        &self,
        node: &ProbedNode,
        length: Duration,
        act: impl AsyncFnOnce(Duration) -> Result<T>,
    ) -> Result<(T, [u64; 2])> {
        let mut handler = self.handler.clone();
        handler["periodSeconds"] = json!(self.period.as_secs());
        handler["timeoutSeconds"] = json!(5);
        node.mark(&self.name, &probe("probe", handler)).await?;
        let settle = Duration::from_secs(5) + self.period;
        wait(format!("{}: settling", self.name), settle).await;
        let succeeded = ["leadsman_prober_probe_total", self.metric, "\"succeeded\""];
        let counted = async || node.counted(&[&succeeded[..2], &succeeded]).await;
        let before = counted().await?;
        let done = act(length.max(self.period)).await?;
        let after = counted().await?;
        node.unmark().await?;
        let [runs, succeeded] = [0, 1].map(|which| after[which] - before[which]);
        ensure!(runs > 0, "{}: nothing was probed", self.name);
        Ok((done, [runs, succeeded]))
    }

    /// Measures a window of an agent, and then of a bare loop with nothing probed otherwise.
    pub(super) async fn measure(
        &self,
        node: &ProbedNode,
        length: Duration,
        report: &mut Report,
    ) -> Result<()> {
        let measure = async |length| Window::measure(node, &self.name, length).await;
        let (window, [runs, succeeded]) = self.probed_during(node, length, measure).await?;
        let add = report.section(&self.name);
        let cpu = window.cpu.div_f64(runs.amount());
        let cpu = match self.floor(node, window.length).await? {
            Some(floor) => add.compare(&figures::CPU_A_PROBE, cpu, floor),
            None => add.add(&figures::CPU_A_PROBE, cpu),
        };
        if let Some(most) = self.cpu {
            cpu.targets = vec![Target::AtMost(most), Target::TimesFloor(1.25)];
        }
        let a_second = window.cpu_in(Duration::from_secs(1));
        add.add(&figures::CPU_A_SECOND, a_second);
        let rate = runs.amount() / window.length.as_secs_f64();
        let probes = add.add(&figures::PROBES, rate);
        if succeeded < runs {
            probes.note = format!("{} of the runs did not succeed", runs - succeeded);
        }
        let rss = match self.period.as_secs() {
            1 => &figures::BUSY_RSS,
            _ => &figures::RSS,
        };
        window.add_figures(rss, add);
        Ok(())
    }

    /// The CPU that a probe costs a bare loop; `None` where there is no bare loop. The same pods in the same slots: a group's
    /// together, each group a stagger after the one before.
    async fn floor(&self, node: &ProbedNode, window: Duration) -> Result<Option<Duration>> {
        let Some(exchange) = self.bare else {
            return Ok(None);
        };
        let slots = |time: Duration| u64::try_from(time.as_millis() / SLOT.as_millis());
        let (period, stagger) = (slots(self.period)?, slots(STAGGER)?);
        let pods = u64::try_from(node.targets.len())?;
        let exchanges = (0..).zip(&node.targets).map(|(number, pod)| {
            let exchange = exchange(pod);
            let slot = match exchange {
                // Commands are spread evenly over the period, as the agent does.
                Exchange::Exec(..) => number * period / pods,
                Exchange::Tcp(_) | Exchange::Http(_) => number % GROUPS * stagger,
            };
            (exchange, slot)
        });
        let order = Part::Bare(Order {
            exchanges: exchanges.collect(),
            period,
            runtime: Some(node.bed.runtime_endpoint()),
        });
        let mut talk = Talk::inside(&node.bed, &order).await?;
        let cost = talk.cost_of_exchange(&self.name, SETTLE, window);
        cost.await.map(Some)
    }

    /// Counts what an agent asks of the runtime in a window.
    pub(super) async fn count_calls(
        &self,
        node: &ProbedNode,
        proxy: &CallCounter,
        length: Duration,
        report: &mut Report,
    ) -> Result<()> {
        let count = async |length| {
            proxy.take();
            let what = format!("{}: counting calls of the runtime", self.name);
            wait(what, length).await;
            Ok((proxy.take(), length))
        };
        let ((calls, length), [runs, _]) = self.probed_during(node, length, count).await?;
        let lists = calls.get("ListContainers").copied().unwrap_or(0);
        let others = calls.values().sum::<u64>() - lists;
        let calls = calls
            .iter()
            .map(|(method, count)| format!("{method} {count}"));
        let calls = calls.collect::<Vec<_>>().join(", ");
        let hundredths = |value: f64| (value * 100.0).round() / 100.0;
        let a_probe = if self.metric == "\"exec\"" { 1.0 } else { 0.0 };
        let add = report.section(&self.name);
        let others = hundredths(others.amount() / runs.amount());
        add.add(&figures::CRI_CALLS_A_PROBE, others)
            .note(format!("{calls}; {runs} runs"))
            .targets = vec![Target::Exactly(a_probe)];
        let lists = hundredths(lists.amount() / length.as_secs_f64());
        add.add(&figures::CONTAINER_LISTS, lists);
        Ok(())
    }
}

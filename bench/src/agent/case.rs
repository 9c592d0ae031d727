//! What is measured: each handler at two periods, a window of each.

use std::time::Duration;

use anyhow::{Result, ensure};
use leadsman_testkit::audit::Mark;
use serde_json::{Value, json};

use super::MEBI;
use super::probed_node::ProbedNode;
use super::proxy::Proxy;
use crate::engine::wait;
use crate::meter::Held;
use crate::report::{Figure, Report, Target, count};
use leadsman_testkit::leadsman::AGENT;

/// By what the pods are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handler {
    Exec,
    Tcp,
    Http,
    Grpc,
}

impl Handler {
    /// In words, as the agent's metric has it, and as a probe has it.
    fn words(self) -> (&'static str, &'static str, Value) {
        match self {
            Self::Exec => ("exec", "exec", json!({"exec": {"command": COMMAND}})),
            Self::Tcp => ("tcp", "tcp_socket", json!({"tcpSocket": {"port": 9090}})),
            Self::Http => (
                "http",
                "http_get",
                json!({"httpGet": {"path": "/healthz", "port": 8080}}),
            ),
            Self::Grpc => ("grpc", "grpc", json!({"grpc": {"port": 50051}})),
        }
    }

    /// Microseconds of CPU a probe at fifty a second.
    fn cpu_to_reach(self) -> Option<f64> {
        match self {
            Self::Exec => Some(250.0),
            Self::Tcp => Some(150.0),
            Self::Http => Some(190.0),
            Self::Grpc => None,
        }
    }

    /// Calls of the runtime a probe.
    fn calls_to_reach(self) -> f64 {
        if self == Self::Exec { 1.0 } else { 0.0 }
    }
}

/// What is run in a container: next to nothing.
pub(super) const COMMAND: [&str; 1] = ["true"];

/// A handler at a period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) handler: Handler,
    /// Seconds.
    pub(super) period: u32,
}

/// All of them.
pub(super) fn all() -> impl Iterator<Item = Case> {
    let handlers = [Handler::Exec, Handler::Tcp, Handler::Http, Handler::Grpc];
    handlers
        .into_iter()
        .flat_map(|handler| [1, 10].map(|period| Case { handler, period }))
}

impl Case {
    pub(super) fn name(self) -> String {
        format!("{} every {} s", self.handler.words().0, self.period)
    }

    /// As a marker has it.
    pub(super) fn probe(self) -> Value {
        let mut probe = self.handler.words().2;
        probe["periodSeconds"] = json!(self.period);
        probe["timeoutSeconds"] = json!(5);
        json!({"name": "probe", "containerName": "main", "podConditionType": "bench.io/probe", "probe": probe})
    }

    /// From the last first verdict until what is measured.
    pub(super) fn settle(self) -> Duration {
        Duration::from_secs(5) + Duration::from_secs(self.period.into())
    }

    fn figure(self, what: &str, value: f64, unit: &str) -> Figure {
        Figure::new(format!("{}: {what}", self.name()), value, unit)
    }

    /// Runs that the agent has counted.
    async fn runs(self, node: &ProbedNode) -> Result<u64> {
        let handler = format!("\"{}\"", self.handler.words().1);
        node.counted(&["leadsman_probe_runs_total", &handler]).await
    }

    async fn runs_in_vain(self, node: &ProbedNode) -> Result<u64> {
        let handler = format!("\"{}\"", self.handler.words().1);
        let succeeded = ["leadsman_probe_runs_total", "\"succeeded\"", &handler];
        let succeeded = node.counted(&succeeded).await?;
        Ok(self.runs(node).await?.saturating_sub(succeeded))
    }
}

/// Requests of the agent since then. A watch that was opened anew, as the API server asks for every few minutes, is none.
pub(super) fn requests(node: &ProbedNode, mark: Mark) -> Result<f64> {
    let requests = node.bed.audit(mark)?.into_iter();
    let requests = requests.filter(|request| request.user == AGENT && request.verb != "watch");
    Ok(count(requests.count() as u64))
}

/// What an agent took in a window.
pub(super) struct Window {
    length: Duration,
    runs: u64,
    in_vain: u64,
    cpu: Duration,
    held: Held,
    requests: f64,
}

impl Window {
    pub(super) async fn measure(node: &ProbedNode, case: Case, length: Duration) -> Result<Self> {
        let meter = node.meter()?;
        let in_vain = case.runs_in_vain(node).await?;
        let runs = case.runs(node).await?;
        let mark = node.bed.audit_mark()?;
        let before = meter.cpu()?;
        wait(&format!("{}: measuring", case.name()), length).await;
        let cpu = meter.cpu()?.saturating_sub(before);
        let held = meter.held()?;
        let requests = requests(node, mark)?;
        let runs = case.runs(node).await?.saturating_sub(runs);
        let in_vain = case.runs_in_vain(node).await?.saturating_sub(in_vain);
        ensure!(runs > 0, "{}: nothing was probed", case.name());
        Ok(Self {
            length,
            runs,
            in_vain,
            cpu,
            held,
            requests,
        })
    }

    /// Beside the floor, in microseconds a probe.
    pub(super) fn write(&self, case: Case, floor: Option<f64>, report: &mut Report) {
        let seconds = self.length.as_secs_f64();
        let a_probe = self.cpu.as_secs_f64() * 1e6 / count(self.runs);
        let each_second = case.period == 1;
        let mut cpu = case.figure("CPU a probe", a_probe, "µs");
        if let Some(floor) = floor {
            cpu = cpu.floor(floor);
        }
        if let (true, Some(most)) = (each_second, case.handler.cpu_to_reach()) {
            cpu = cpu
                .reach(Target::AtMost(most))
                .reach(Target::TimesFloor(1.25));
        }
        report.add(cpu);
        let in_all = self.cpu.as_secs_f64() * 1000.0 / seconds;
        report.add(case.figure("CPU a second", in_all, "ms"));
        let note = format!("{} of the runs did not succeed", self.in_vain);
        let rate = count(self.runs) / seconds;
        report.add(
            case.figure("probes", rate, "a second")
                .note(if self.in_vain > 0 {
                    note
                } else {
                    String::new()
                }),
        );
        let mut rss = case.figure("RSS", count(self.held.rss) / MEBI, "MiB");
        if each_second {
            rss = rss.reach(Target::AtMost(14.0));
        }
        report.add(rss);
        report.add(case.figure("threads", count(self.held.threads), "threads"));
        let descriptors = count(self.held.descriptors);
        report.add(case.figure("descriptors", descriptors, "descriptors"));
        let requests = case.figure("API requests", self.requests, "requests");
        report.add(requests.reach(Target::Exactly(0.0)));
    }
}

/// What an agent asked of the runtime in a window.
pub(super) struct Calls {
    length: Duration,
    runs: u64,
    by_method: super::proxy::Calls,
}

impl Calls {
    pub(super) async fn count(
        node: &ProbedNode,
        case: Case,
        proxy: &Proxy,
        length: Duration,
    ) -> Result<Self> {
        let runs = case.runs(node).await?;
        let before = proxy.calls();
        wait(
            &format!("{}: counting calls of the runtime", case.name()),
            length,
        )
        .await;
        let mut calls = proxy.calls();
        let runs = case.runs(node).await?.saturating_sub(runs);
        ensure!(runs > 0, "{}: nothing was probed", case.name());
        for (method, count) in &mut calls {
            *count -= before.get(method).copied().unwrap_or(0);
        }
        calls.retain(|_, count| *count > 0);
        Ok(Self {
            length,
            runs,
            by_method: calls,
        })
    }

    pub(super) fn write(&self, case: Case, report: &mut Report) {
        const LIST: &str = "ListContainers";
        let listed = self.by_method.get(LIST).copied().unwrap_or(0);
        let others: u64 = self
            .by_method
            .iter()
            .filter(|(method, _)| *method != LIST)
            .map(|(_, count)| count)
            .sum();
        let hundredths = |value: f64| (value * 100.0).round() / 100.0;
        let note = self
            .by_method
            .iter()
            .map(|(method, count)| format!("{method} {count}"))
            .collect::<Vec<_>>()
            .join(", ");
        let note = format!("{note}; {} runs", self.runs);
        report.add(
            case.figure(
                "CRI calls a probe",
                hundredths(count(others) / count(self.runs)),
                "calls",
            )
            .reach(Target::Exactly(case.handler.calls_to_reach()))
            .note(note),
        );
        let a_second = hundredths(count(listed) / self.length.as_secs_f64());
        report.add(case.figure("ListContainers", a_second, "a second"));
    }
}

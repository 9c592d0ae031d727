//! What is measured: each handler at two periods, a window of each.

use std::time::Duration;

use anyhow::{Result, ensure};
use leadsman_testkit::audit::Mark;
use leadsman_testkit::leadsman::AGENT;
use serde_json::{Value, json};

use super::probed_node::ProbedNode;
use super::proxy::{self, Proxy};
use crate::meter::Held;
use crate::part::bare::Exchange;
use crate::progress::wait;
use crate::report::{Amount as _, Report, Target, mebibytes};

/// A handler at a period.
pub(super) struct Case {
    pub(super) name: String,
    /// The handler as the agent's metric has it, in its quotation marks.
    metric: &'static str,
    handler: Value,
    /// Seconds.
    pub(super) period: u32,
    /// Microseconds of CPU a probe to reach at fifty a second.
    cpu: Option<f64>,
    /// What a bare loop does instead, and at which port; `None` where there is no bare loop.
    pub(super) bare: Option<(Exchange, u16)>,
}

pub(super) fn all() -> impl Iterator<Item = Case> {
    // Next to nothing is run in a container.
    let command = ["true"];
    let exec = Exchange::Exec(command.map(str::to_owned).into());
    let handlers = [
        (
            "exec",
            "\"exec\"",
            json!({"exec": {"command": command}}),
            Some(250.0),
            Some((exec, 0)),
        ),
        (
            "tcp",
            "\"tcp_socket\"",
            json!({"tcpSocket": {"port": 9090}}),
            Some(150.0),
            Some((Exchange::Tcp, 9090)),
        ),
        (
            "http",
            "\"http_get\"",
            json!({"httpGet": {"path": "/healthz", "port": 8080}}),
            Some(190.0),
            Some((Exchange::Http, 8080)),
        ),
        (
            "grpc",
            "\"grpc\"",
            json!({"grpc": {"port": 50051}}),
            None,
            None,
        ),
    ];
    handlers
        .into_iter()
        .flat_map(|(name, metric, handler, cpu, bare)| {
            [1, 10].map(|period| Case {
                name: format!("{name} every {period} s"),
                metric,
                handler: handler.clone(),
                period,
                cpu: cpu.filter(|_| period == 1),
                bare: bare.clone(),
            })
        })
}

impl Case {
    /// Brings the case's markers to the node and lets them settle.
    pub(super) async fn begin(&self, node: &ProbedNode) -> Result<()> {
        let mut probe = self.handler.clone();
        probe["periodSeconds"] = json!(self.period);
        probe["timeoutSeconds"] = json!(5);
        let probe = json!({"name": "probe", "containerName": "main", "podConditionType": "bench.io/probe", "probe": probe});
        node.mark(&self.name, &probe).await?;
        let settle = Duration::from_secs(5) + Duration::from_secs(self.period.into());
        wait(format!("{}: settling", self.name), settle).await;
        Ok(())
    }

    /// Runs that the agent has counted, and those of them that succeeded.
    async fn runs(&self, node: &ProbedNode) -> Result<(u64, u64)> {
        let succeeded = ["leadsman_probe_runs_total", self.metric, "\"succeeded\""];
        Ok((
            node.counted(&succeeded[..2]).await?,
            node.counted(&succeeded).await?,
        ))
    }
}

/// Requests of the agent since then. A watch that was opened again, as the API server asks for every few minutes, is none.
pub(super) fn requests(node: &ProbedNode, mark: Mark) -> Result<usize> {
    let requests = node.bed.audit(mark)?.into_iter();
    let requests = requests.filter(|request| request.user == AGENT && request.verb != "watch");
    Ok(requests.count())
}

/// What an agent took in a window.
pub(super) struct Window {
    length: Duration,
    pub(super) cpu: Duration,
    pub(super) held: Held,
    pub(super) requests: usize,
}

impl Window {
    pub(super) async fn measure(node: &ProbedNode, name: &str, length: Duration) -> Result<Self> {
        let (meter, mark) = (node.meter()?, node.bed.audit_mark()?);
        let cpu = meter.cpu_over(format!("{name}: measuring"), length).await?;
        Ok(Self {
            length,
            cpu,
            held: meter.held()?,
            requests: requests(node, mark)?,
        })
    }

    /// What is written of every window.
    pub(super) fn write(&self, name: &str, most_rss: Option<f64>, report: &mut Report) {
        let mut add = report.section(name);
        let rss = add.add("RSS", mebibytes(self.held.rss), "MiB");
        rss.targets.extend(most_rss.map(Target::AtMost));
        add.add("threads", self.held.threads, "threads");
        add.add("descriptors", self.held.descriptors, "descriptors");
        add.add("API requests", self.requests, "requests")
            .reach(Target::Exactly(0.0));
    }
}

/// Measures a window of an agent, and then of a bare loop with nothing probed otherwise.
pub(super) async fn measure(
    node: &ProbedNode,
    case: &Case,
    length: Duration,
    report: &mut Report,
) -> Result<()> {
    case.begin(node).await?;
    let before = case.runs(node).await?;
    let window = Window::measure(node, &case.name, length).await?;
    let after = case.runs(node).await?;
    let (runs, succeeded) = (after.0 - before.0, after.1 - before.1);
    ensure!(runs > 0, "{}: nothing was probed", case.name);
    node.unmark().await?;
    let floor = super::floor::measure(node, case, length).await?;

    let mut add = report.section(&case.name);
    let cpu = add.add(
        "CPU a probe",
        window.cpu.as_secs_f64() * 1e6 / runs.amount(),
        "µs",
    );
    cpu.floor = floor;
    if let Some(most) = case.cpu {
        cpu.reach(Target::AtMost(most))
            .reach(Target::TimesFloor(1.25));
    }
    let seconds = window.length.as_secs_f64();
    add.add(
        "CPU a second",
        window.cpu.as_secs_f64() * 1000.0 / seconds,
        "ms",
    );
    let probes = add.add("probes", runs.amount() / seconds, "a second");
    if succeeded < runs {
        probes.note(format!("{} of the runs did not succeed", runs - succeeded));
    }
    window.write(&case.name, (case.period == 1).then_some(14.0), report);
    Ok(())
}

/// Counts what an agent asks of the runtime in a window.
pub(super) async fn count_calls(
    node: &ProbedNode,
    case: &Case,
    proxy: &Proxy,
    length: Duration,
    report: &mut Report,
) -> Result<()> {
    case.begin(node).await?;
    let (before, calls_before) = (case.runs(node).await?.0, proxy.calls());
    wait(
        format!("{}: counting calls of the runtime", case.name),
        length,
    )
    .await;
    let (mut calls, runs): (proxy::Calls, _) = (proxy.calls(), case.runs(node).await?.0 - before);
    node.unmark().await?;
    ensure!(runs > 0, "{}: nothing was probed", case.name);
    for (method, count) in &mut calls {
        *count -= calls_before.get(method).copied().unwrap_or(0);
    }
    calls.retain(|_, count| *count > 0);
    let listed = calls.get("ListContainers").copied().unwrap_or(0);
    let others = calls.values().sum::<u64>() - listed;
    let all_calls = calls
        .iter()
        .map(|(method, count)| format!("{method} {count}"))
        .collect::<Vec<_>>();
    let hundredths = |value: f64| (value * 100.0).round() / 100.0;
    let mut add = report.section(&case.name);
    let of_a_probe = if case.metric == "\"exec\"" { 1.0 } else { 0.0 };
    add.add(
        "CRI calls a probe",
        hundredths(others.amount() / runs.amount()),
        "calls",
    )
    .reach(Target::Exactly(of_a_probe))
    .note(format!("{}; {runs} runs", all_calls.join(", ")));
    let a_second = listed.amount() / length.as_secs_f64();
    add.add("ListContainers", hundredths(a_second), "a second");
    Ok(())
}

//! The metrics of probing. Labels have closed lists of values.
//!
//! A run costs a few additions here: the metrics of each handler are looked up when the agent starts.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use leadsman_core::podprobe::node::ProbeRun;
use leadsman_core::podprobe::{CannotProbe, Handler, HandlerKind, Outcome, State};
use leadsman_process::Metrics;
use leadsman_process::metrics::{Counters, Labels, WriteCounters};
use leadsman_process::reply::Disposition;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The buckets of a run's duration, in seconds. A probe's timeout is a second by default.
const DURATIONS: [f64; 12] = [
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];
/// The only object that an agent writes, besides events.
const STATUS: &str = "nodepodprobe_status";

/// The kind of a handler, as metrics name it.
pub(crate) fn handler_label(kind: HandlerKind) -> &'static str {
    match kind {
        HandlerKind::Exec => "exec",
        HandlerKind::HttpGet => "http_get",
        HandlerKind::TcpSocket => "tcp_socket",
        HandlerKind::Grpc => "grpc",
        HandlerKind::File => "file",
    }
}

/// The metrics of probing. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ProbingMetrics {
    runs: [RunMetrics; HandlerKind::ALL.len()],
    cannot_probe: Counters<1>,
    verdicts: Counters<1>,
    writes: WriteCounters,
    lists: Counters<1>,
    events: Counters<1>,
    probes: Gauge,
    malformed: Gauge,
    execs: Gauge,
    execs_waiting: Gauge,
    exec_wait: Histogram,
    connections: Gauge,
    connections_waiting: Gauge,
    connection_wait: Histogram,
    lag: Histogram,
    loop_lag: Counter<f64, AtomicU64>,
}

/// The metrics of the runs of one kind of handler.
#[derive(Clone, Debug)]
struct RunMetrics {
    succeeded: Counter,
    failed: Counter,
    cannot_probe: Counter,
    duration: Histogram,
}

impl RunMetrics {
    /// Registers the metrics of all kinds, by the names of the kubelet's
    /// (`pkg/kubelet/prober/prober_manager.go`).
    fn register_all_kinds(registry: &mut Registry) -> [Self; HandlerKind::ALL.len()] {
        let results = Counters::<2>::default();
        let durations: Family<Labels<1>, Histogram> =
            Family::new_with_constructor(|| Histogram::new(DURATIONS));
        registry.register(
            "prober_probe",
            "Probe runs that have ended, by handler and result; cannot_probe says nothing about the container",
            results.clone(),
        );
        registry.register_with_unit(
            "prober_probe_duration",
            "Duration of probe runs that had a result, by handler",
            Unit::Seconds,
            durations.clone(),
        );
        HandlerKind::ALL.map(|kind| {
            let handler = ("handler", handler_label(kind));
            let count = |result| results.get_or_create_owned(&[handler, ("result", result)]);
            Self {
                succeeded: count("succeeded"),
                failed: count("failed"),
                cannot_probe: count("cannot_probe"),
                duration: durations.get_or_create_owned(&[handler]),
            }
        })
    }
}

/// The fate of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventResult {
    Sent,
    Failed,
    /// The queue was full.
    Overflowed,
    /// The pod has had its share.
    Suppressed,
}

impl ProbingMetrics {
    pub(crate) fn new(registry: &Metrics) -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.001, 4.0, 8));
        let metrics = Self {
            runs: registry.register(RunMetrics::register_all_kinds),
            cannot_probe: Family::default(),
            verdicts: Family::default(),
            writes: WriteCounters::new(registry),
            lists: Family::default(),
            events: Family::default(),
            probes: Gauge::default(),
            malformed: Gauge::default(),
            execs: Gauge::default(),
            execs_waiting: Gauge::default(),
            exec_wait: seconds(),
            connections: Gauge::default(),
            connections_waiting: Gauge::default(),
            connection_wait: seconds(),
            lag: seconds(),
            loop_lag: Counter::default(),
        };
        metrics.register_metrics(registry);
        metrics.writes.declare_write(STATUS);
        declare_values(&metrics.cannot_probe, "cause", &CAUSES);
        declare_values(&metrics.verdicts, "to", &STATES);
        declare_values(&metrics.lists, "result", &ENDS);
        declare_values(&metrics.events, "result", &EventResult::LABELS);
        metrics
    }

    fn register_metrics(&self, registry: &Metrics) {
        registry.register(|r| {
            let help = "Probe runs that say nothing about the container, and count neither as success nor as failure, by cause";
            r.register("prober_probe_errors", help, self.cannot_probe.clone());
            let help = "Changes of a verdict's state, by the new state";
            r.register("verdict_changes", help, self.verdicts.clone());
            let help = "Container lists requested from the container runtime, by result";
            r.register("container_lists", help, self.lists.clone());
            let help = "Events about pods, by result: sent, failed, overflowed (queue full), suppressed (rate limit of the pod)";
            r.register("pod_events", help, self.events.clone());
            let help = "Probes in this node's NodePodProbe that are run";
            r.register("probes", help, self.probes.clone());
            let help = "Entries of this node's NodePodProbe that are ignored because they are invalid";
            r.register("invalid_entries", help, self.malformed.clone());
            let help = "exec probes whose command is running";
            r.register("execs_running", help, self.execs.clone());
            let help = "exec probes that wait because of --exec-concurrency";
            r.register("execs_waiting", help, self.execs_waiting.clone());
            let help = "Time that exec probes waited because of --exec-concurrency";
            r.register_with_unit("exec_wait", help, Unit::Seconds, self.exec_wait.clone());
            let help = "httpGet, tcpSocket and grpc probes that are under way";
            r.register("connections_running", help, self.connections.clone());
            let help = "httpGet, tcpSocket and grpc probes that wait because of the limits of a pod, a namespace or the node";
            let waiting = self.connections_waiting.clone();
            r.register("connections_waiting", help, waiting);
            let help = "Time that httpGet, tcpSocket and grpc probes waited because of the limits of a pod, a namespace or the node";
            let wait = self.connection_wait.clone();
            r.register_with_unit("connection_wait", help, Unit::Seconds, wait);
            let help = "Delay between a probe's due time and its start";
            r.register_with_unit("probe_lag", help, Unit::Seconds, self.lag.clone());
            let help = "Time by which the agent itself was late while probes were under way; a probe that times out meanwhile is given as much more, once";
            r.register_with_unit("loop_lag", help, Unit::Seconds, self.loop_lag.clone());
        });
    }

    /// Observes how late a run was started, and how long it waited for a permit.
    pub(crate) fn observe_start(&self, run: &ProbeRun) {
        self.lag.observe(run.lag.as_secs_f64());
        if !run.waited.is_zero() {
            let wait = match run.probe.handler {
                Handler::Exec { .. } => &self.exec_wait,
                _ => &self.connection_wait,
            };
            wait.observe(run.waited.as_secs_f64());
        }
    }

    pub(crate) fn set_probes(&self, count: usize) {
        self.probes.set(gauge_value(count));
    }

    pub(crate) fn set_malformed(&self, count: usize) {
        self.malformed.set(gauge_value(count));
    }

    pub(crate) fn set_execs(&self, (running, waiting): (usize, usize)) {
        self.execs.set(gauge_value(running));
        self.execs_waiting.set(gauge_value(waiting));
    }

    pub(crate) fn set_connections(&self, (running, waiting): (usize, usize)) {
        self.connections.set(gauge_value(running));
        self.connections_waiting.set(gauge_value(waiting));
    }

    /// Brings the counter up to this time since the agent's start.
    pub(crate) fn set_loop_lag(&self, total: Duration) {
        let more = total.as_secs_f64() - self.loop_lag.get();
        if more > 0.0 {
            self.loop_lag.inc_by(more);
        }
    }

    pub(crate) fn count_run(
        &self,
        handler: HandlerKind,
        result: &Result<Outcome, CannotProbe>,
        took: Duration,
    ) {
        // `ALL` made them, in the order of the variants.
        let runs = &self.runs[handler as usize];
        match result {
            Ok(Outcome::Succeeded(_)) => runs.succeeded.inc(),
            Ok(Outcome::Failed(_)) => runs.failed.inc(),
            Err(cause) => {
                increment_value(&self.cannot_probe, "cause", cause_label(cause));
                runs.cannot_probe.inc()
            }
        };
        // A run that could not be made has taken as long as our own deadline, not as the container.
        if result.is_ok() {
            runs.duration.observe(took.as_secs_f64());
        }
    }

    /// Counts a probe that is never run.
    pub(crate) fn count_forbidden(&self, cause: &CannotProbe) {
        increment_value(&self.cannot_probe, "cause", cause_label(cause));
    }

    pub(crate) fn count_change(&self, to: State) {
        increment_value(&self.verdicts, "to", state_label(to));
    }

    pub(crate) fn count_write(&self, disposition: &Disposition) {
        self.writes.count_write(STATUS, disposition);
    }

    pub(crate) fn count_list(&self, succeeded: bool) {
        let [done, failed] = ENDS;
        increment_value(&self.lists, "result", if succeeded { done } else { failed });
    }

    pub(crate) fn count_event(&self, result: EventResult) {
        increment_value(&self.events, "result", result.as_label());
    }
}

/// Shows a counter for each value, each 0 so far.
fn declare_values(counters: &Counters<1>, label: &'static str, values: &[&'static str]) {
    // All series exist from the start, since `rate` does not see the event with which a counter begins.
    for value in values {
        drop(counters.get_or_create(&[(label, *value)]));
    }
}

fn increment_value(counters: &Counters<1>, label: &'static str, value: &'static str) {
    counters.get_or_create(&[(label, value)]).inc();
}

impl EventResult {
    const LABELS: [&'static str; 4] = ["sent", "failed", "overflowed", "suppressed"];

    fn as_label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

const STATES: [&str; 3] = ["succeeded", "failed", "unknown"];

fn state_label(state: State) -> &'static str {
    let [succeeded, failed, unknown] = STATES;
    match state {
        State::Succeeded => succeeded,
        State::Failed => failed,
        State::Unknown => unknown,
    }
}

const CAUSES: [&str; 8] = [
    "runtime",
    "deadline",
    "local",
    "no_address",
    "not_of_node",
    "container_gone",
    "forbidden",
    "file",
];

/// The result of a run, as metrics label it.
pub(crate) fn result_label(result: &Result<Outcome, CannotProbe>) -> &'static str {
    match result {
        Ok(Outcome::Succeeded(_)) => "succeeded",
        Ok(Outcome::Failed(_)) => "failed",
        Err(_) => "cannot_probe",
    }
}

/// Why a run says nothing, as metrics label it.
pub(crate) fn cause_label(cause: &CannotProbe) -> &'static str {
    let [
        runtime,
        deadline,
        local,
        no_address,
        not_of_node,
        container_gone,
        forbidden,
        file,
    ] = CAUSES;
    match cause {
        CannotProbe::Runtime(_) => runtime,
        CannotProbe::Deadline => deadline,
        CannotProbe::Local(_) => local,
        CannotProbe::NoAddress => no_address,
        CannotProbe::NotOfNode(_) => not_of_node,
        CannotProbe::ContainerGone => container_gone,
        CannotProbe::Forbidden(_) => forbidden,
        CannotProbe::File(_) => file,
    }
}

const ENDS: [&str; 2] = ["done", "failed"];

fn gauge_value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_by_handler_and_result_and_timed_if_they_had_one() {
        let registry = Metrics::default();
        let metrics = ProbingMetrics::new(&registry);
        let took = Duration::from_millis(20);
        let failed = Ok(Outcome::Failed("no".to_owned()));
        metrics.count_run(HandlerKind::Grpc, &failed, took);
        metrics.count_run(HandlerKind::Grpc, &Err(CannotProbe::NoAddress), took);
        let text = registry.text().unwrap();
        for line in [
            r#"leadsman_prober_probe_total{handler="grpc",result="failed"} 1"#,
            r#"leadsman_prober_probe_total{handler="grpc",result="cannot_probe"} 1"#,
            r#"leadsman_prober_probe_total{handler="exec",result="succeeded"} 0"#,
            r#"leadsman_prober_probe_errors_total{cause="no_address"} 1"#,
            r#"leadsman_prober_probe_duration_seconds_count{handler="grpc"} 1"#,
            r#"leadsman_writes_total{write="nodepodprobe_status",result="conflict"} 0"#,
            r#"leadsman_pod_events_total{result="suppressed"} 0"#,
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
    }
}

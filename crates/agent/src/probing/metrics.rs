//! The metrics of probing. Labels have closed lists of values.

use leadsman_core::podprobe::node::ProbeRun;
use leadsman_core::podprobe::{CannotProbe, Handler, Outcome, State};
use leadsman_process::Metrics;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

/// Counters by the values of `N` labels, each with its name.
type Counters<const N: usize> = Family<[(&'static str, &'static str); N], Counter>;

/// The metrics of probing. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ProbingMetrics {
    runs: Counters<2>,
    cannot_probe: Counters<1>,
    verdicts: Counters<1>,
    writes: Counters<1>,
    lists: Counters<1>,
    events: Counters<1>,
    probes: Gauge,
    malformed: Gauge,
    execs: Gauge,
    execs_waiting: Gauge,
    exec_wait: Histogram,
    lag: Histogram,
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
        let metrics = Self {
            runs: Family::default(),
            cannot_probe: Family::default(),
            verdicts: Family::default(),
            writes: Family::default(),
            lists: Family::default(),
            events: Family::default(),
            probes: Gauge::default(),
            malformed: Gauge::default(),
            execs: Gauge::default(),
            execs_waiting: Gauge::default(),
            exec_wait: Histogram::new(exponential_buckets(0.001, 4.0, 8)),
            lag: Histogram::new(exponential_buckets(0.001, 4.0, 8)),
        };
        metrics.register(registry);
        metrics
    }

    fn register(&self, registry: &Metrics) {
        registry.register(|r| {
            let help = "Probe runs that have ended, by handler and result";
            r.register("probe_runs", help, self.runs.clone());
            let help = "Probe runs that say nothing about the container, and count neither as success nor as failure, by cause";
            r.register("probe_run_errors", help, self.cannot_probe.clone());
            let help = "Changes of a verdict's state, by the new state";
            r.register("verdict_changes", help, self.verdicts.clone());
            let help = "Writes of the NodePodProbe's status, by result";
            r.register("status_writes", help, self.writes.clone());
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
            let help = "Delay between a probe's due time and its start";
            r.register_with_unit("probe_lag", help, Unit::Seconds, self.lag.clone());
        });
    }

    /// Observes how late a run was started, and how long it waited for a permit.
    pub(crate) fn observe_start(&self, run: &ProbeRun) {
        self.lag.observe(run.lag.as_secs_f64());
        if !run.waited.is_zero() {
            self.exec_wait.observe(run.waited.as_secs_f64());
        }
    }

    pub(crate) fn set_probes(&self, count: usize) {
        self.probes.set(gauge(count));
    }

    pub(crate) fn set_malformed(&self, count: usize) {
        self.malformed.set(gauge(count));
    }

    pub(crate) fn set_execs(&self, (running, waiting): (usize, usize)) {
        self.execs.set(gauge(running));
        self.execs_waiting.set(gauge(waiting));
    }

    pub(crate) fn count_run(&self, handler: &'static str, result: &Result<Outcome, CannotProbe>) {
        let result = match result {
            Ok(Outcome::Succeeded(_)) => "succeeded",
            Ok(Outcome::Failed(_)) => "failed",
            Err(cause) => {
                increment(&self.cannot_probe, [("cause", cause_label(cause))]);
                "cannot_probe"
            }
        };
        increment(&self.runs, [("handler", handler), ("result", result)]);
    }

    pub(crate) fn count_change(&self, to: State) {
        let to = match to {
            State::Succeeded => "succeeded",
            State::Failed => "failed",
            State::Unknown => "unknown",
        };
        increment(&self.verdicts, [("to", to)]);
    }

    pub(crate) fn count_write(&self, succeeded: bool) {
        increment(&self.writes, [("result", end_label(succeeded))]);
    }

    pub(crate) fn count_list(&self, succeeded: bool) {
        increment(&self.lists, [("result", end_label(succeeded))]);
    }

    pub(crate) fn count_event(&self, result: EventResult) {
        let result = match result {
            EventResult::Sent => "sent",
            EventResult::Failed => "failed",
            EventResult::Overflowed => "overflowed",
            EventResult::Suppressed => "suppressed",
        };
        increment(&self.events, [("result", result)]);
    }
}

fn increment<const N: usize>(counters: &Counters<N>, labels: [(&'static str, &'static str); N]) {
    counters.get_or_create(&labels).inc();
}

pub(crate) fn handler_label(handler: &Handler) -> &'static str {
    match handler {
        Handler::Exec { .. } => "exec",
        Handler::HttpGet(_) => "http_get",
        Handler::TcpSocket { .. } => "tcp_socket",
        Handler::Grpc { .. } => "grpc",
    }
}

fn cause_label(cause: &CannotProbe) -> &'static str {
    match cause {
        CannotProbe::Runtime(_) => "runtime",
        CannotProbe::Deadline => "deadline",
        CannotProbe::Local(_) => "local",
        CannotProbe::NoAddress => "no_address",
        CannotProbe::NotOfNode(_) => "not_of_node",
        CannotProbe::ContainerGone => "container_gone",
    }
}

fn end_label(succeeded: bool) -> &'static str {
    if succeeded { "done" } else { "failed" }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

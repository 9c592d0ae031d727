//! The metrics of probing. Labels have closed lists of values.

use leadsman_core::podprobe::node::ProbeRun;
use leadsman_core::podprobe::{CannotProbe, Outcome, State};
use leadsman_process::Metrics;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

use super::prober::HandlerKind;

/// The metrics of probing. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ProbingMetrics {
    runs: Family<RunLabels, Counter>,
    cannot: Family<CauseLabels, Counter>,
    verdicts: Family<StateLabels, Counter>,
    writes: Family<EndLabels, Counter>,
    lists: Family<EndLabels, Counter>,
    events: Family<EventLabels, Counter>,
    probes: Gauge,
    malformed: Gauge,
    execs: Gauge,
    execs_waiting: Gauge,
    exec_wait: Histogram,
    lag: Histogram,
}

/// A label with a closed list of values.
macro_rules! label {
    ($(#[$doc:meta])* $label:ident { $($value:ident => $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum $label { $($value,)* }

        impl EncodeLabelValue for $label {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
                match self { $(Self::$value => $text,)* }.encode(encoder)
            }
        }
    };
}
label!(ResultLabel {
    Succeeded => "succeeded",
    Failed => "failed",
    CannotProbe => "cannot_probe",
});
label!(HandlerLabel {
    Exec => "exec",
    HttpGet => "http_get",
    TcpSocket => "tcp_socket",
    Grpc => "grpc",
});
label!(CauseLabel {
    Runtime => "runtime",
    Deadline => "deadline",
    Local => "local",
    NoAddress => "no_address",
    NotOfNode => "not_of_node",
    ContainerGone => "container_gone",
});
label!(StateLabel {
    Succeeded => "succeeded",
    Failed => "failed",
    Unknown => "unknown",
});
label!(EndLabel {
    Done => "done",
    Failed => "failed",
});
label!(
    /// The fate of an event.
    EventResult {
        Sent => "sent",
        Failed => "failed",
        Overflowed => "overflowed",
        Suppressed => "suppressed",
    }
);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    handler: HandlerLabel,
    result: ResultLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    cause: CauseLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    to: StateLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    result: EndLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    result: EventResult,
}

impl ProbingMetrics {
    pub(crate) fn new(registry: &Metrics) -> Self {
        let metrics = Self {
            runs: Family::default(),
            cannot: Family::default(),
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
            let help = "Probe runs that could not be carried out and count neither as success nor as failure, by cause";
            r.register("probe_cannot", help, self.cannot.clone());
            let help = "Verdicts whose state has changed, by the new state";
            r.register("verdict_changes", help, self.verdicts.clone());
            let help = "Writes of the NodePodProbe's status, by result";
            r.register("status_writes", help, self.writes.clone());
            let help = "Container lists requested from the container runtime, by result";
            r.register("runtime_looks", help, self.lists.clone());
            let help = "Events about pods, by result: sent, failed, overflowed (queue full), suppressed (rate limit of the pod)";
            r.register("pod_events", help, self.events.clone());
            let help = "Probes in this node's NodePodProbe that are run";
            r.register("probes", help, self.probes.clone());
            let help = "Entries of this node's NodePodProbe that are ignored because they are invalid";
            r.register("probes_malformed", help, self.malformed.clone());
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

    pub(crate) fn count_run(&self, handler: HandlerKind, result: &Result<Outcome, CannotProbe>) {
        let handler = match handler {
            HandlerKind::Exec => HandlerLabel::Exec,
            HandlerKind::HttpGet => HandlerLabel::HttpGet,
            HandlerKind::TcpSocket => HandlerLabel::TcpSocket,
            HandlerKind::Grpc => HandlerLabel::Grpc,
        };
        let result = match result {
            Ok(Outcome::Succeeded(_)) => ResultLabel::Succeeded,
            Ok(Outcome::Failed(_)) => ResultLabel::Failed,
            Err(cause) => {
                self.count_cause(cause);
                ResultLabel::CannotProbe
            }
        };
        self.runs
            .get_or_create(&RunLabels { handler, result })
            .inc();
    }

    fn count_cause(&self, cause: &CannotProbe) {
        let cause = match cause {
            CannotProbe::Runtime(_) => CauseLabel::Runtime,
            CannotProbe::Deadline => CauseLabel::Deadline,
            CannotProbe::Local(_) => CauseLabel::Local,
            CannotProbe::NoAddress => CauseLabel::NoAddress,
            CannotProbe::NotOfNode(_) => CauseLabel::NotOfNode,
            CannotProbe::ContainerGone => CauseLabel::ContainerGone,
        };
        self.cannot.get_or_create(&CauseLabels { cause }).inc();
    }

    pub(crate) fn count_change(&self, to: State) {
        let to = match to {
            State::Succeeded => StateLabel::Succeeded,
            State::Failed => StateLabel::Failed,
            State::Unknown => StateLabel::Unknown,
        };
        self.verdicts.get_or_create(&StateLabels { to }).inc();
    }

    pub(crate) fn count_write(&self, succeeded: bool) {
        self.writes.get_or_create(&end_labels(succeeded)).inc();
    }

    pub(crate) fn count_list(&self, succeeded: bool) {
        self.lists.get_or_create(&end_labels(succeeded)).inc();
    }

    pub(crate) fn count_event(&self, result: EventResult) {
        self.events.get_or_create(&EventLabels { result }).inc();
    }
}

fn end_labels(succeeded: bool) -> EndLabels {
    let result = if succeeded {
        EndLabel::Done
    } else {
        EndLabel::Failed
    };
    EndLabels { result }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

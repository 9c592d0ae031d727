//! What the agent counts. Labels are from closed lists.

use leadsman_core::podprobe::{CannotProbe, Outcome, State};
use leadsman_process::Metrics as Shown;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

use crate::prober::HandlerKind;

/// The agent's metrics.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    runs: Family<RunLabels, Counter>,
    cannot: Family<CauseLabels, Counter>,
    verdicts: Family<StateLabels, Counter>,
    writes: Family<EndLabels, Counter>,
    looks: Family<EndLabels, Counter>,
    events: Family<TellingLabels, Counter>,
    /// Entries of the plan that are followed, and that cannot be.
    pub(crate) entries: Gauge,
    pub(crate) malformed: Gauge,
    pub(crate) execs: Gauge,
    pub(crate) execs_waiting: Gauge,
    /// How long commands waited for a place.
    pub(crate) exec_wait: Histogram,
    /// How long after its slot had begun a run was taken up.
    pub(crate) lag: Histogram,
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
    /// What became of an event.
    Telling {
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
struct TellingLabels {
    result: Telling,
}

impl Metrics {
    pub(crate) fn new(shown: &Shown) -> Self {
        let metrics = Self {
            runs: Family::default(),
            cannot: Family::default(),
            verdicts: Family::default(),
            writes: Family::default(),
            looks: Family::default(),
            events: Family::default(),
            entries: Gauge::default(),
            malformed: Gauge::default(),
            execs: Gauge::default(),
            execs_waiting: Gauge::default(),
            exec_wait: Histogram::new(exponential_buckets(0.001, 4.0, 8)),
            lag: Histogram::new(exponential_buckets(0.001, 4.0, 8)),
        };
        metrics.register(shown);
        metrics
    }

    fn register(&self, shown: &Shown) {
        shown.register(|r| {
            r.register("probe_runs", "Attempts at a probe", self.runs.clone());
            let help = "Probe attempts that could not be run, by cause";
            r.register("probe_cannot", help, self.cannot.clone());
            let help = "Verdicts that changed";
            r.register("verdict_changes", help, self.verdicts.clone());
            let help = "Writes of the node's status";
            r.register("status_writes", help, self.writes.clone());
            let help = "Container lists read from the runtime";
            r.register("runtime_looks", help, self.looks.clone());
            r.register("pod_events", "Events on pods", self.events.clone());
            let help = "Probes of the plan that are followed";
            r.register("probes", help, self.entries.clone());
            let help = "Probes of the plan that cannot be followed";
            r.register("probes_malformed", help, self.malformed.clone());
            let help = "Commands that run in containers";
            r.register("execs_running", help, self.execs.clone());
            let help = "exec probes waiting for --exec-concurrency";
            r.register("execs_waiting", help, self.execs_waiting.clone());
            let help = "How long exec probes waited for --exec-concurrency";
            r.register_with_unit("exec_wait", help, Unit::Seconds, self.exec_wait.clone());
            let help = "Delay between a probe's due time and its start";
            r.register_with_unit("probe_lag", help, Unit::Seconds, self.lag.clone());
        });
    }

    pub(crate) fn ran(&self, handler: HandlerKind, result: &Result<Outcome, CannotProbe>) {
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
                self.could_not(cause);
                ResultLabel::CannotProbe
            }
        };
        self.runs
            .get_or_create(&RunLabels { handler, result })
            .inc();
    }

    fn could_not(&self, cause: &CannotProbe) {
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

    pub(crate) fn changed(&self, to: State) {
        let to = match to {
            State::Succeeded => StateLabel::Succeeded,
            State::Failed => StateLabel::Failed,
            State::Unknown => StateLabel::Unknown,
        };
        self.verdicts.get_or_create(&StateLabels { to }).inc();
    }

    pub(crate) fn wrote(&self, done: bool) {
        self.writes.get_or_create(&end(done)).inc();
    }

    pub(crate) fn looked(&self, done: bool) {
        self.looks.get_or_create(&end(done)).inc();
    }

    pub(crate) fn told(&self, result: Telling) {
        self.events.get_or_create(&TellingLabels { result }).inc();
    }
}

fn end(done: bool) -> EndLabels {
    let result = if done {
        EndLabel::Done
    } else {
        EndLabel::Failed
    };
    EndLabels { result }
}

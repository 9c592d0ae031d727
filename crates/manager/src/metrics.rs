//! What the manager counts. Labels are from closed lists.

use leadsman_core::podprobe::event::Kind;
use leadsman_process::Metrics as Shown;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

use crate::request::WriteKind;
use leadsman_process::reply::{Cause, Disposition};

/// The manager's metrics.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    writes: Family<WriteLabels, Counter>,
    undecodable: Family<KindLabels, Counter>,
    /// Writes on their way.
    pub(crate) in_flight: Gauge,
    /// Objects whose turn to be written is to come.
    pub(crate) pending: Gauge,
    leader: Gauge,
    leadership_changes: Counter,
    /// From an event's arrival to its being applied.
    pub(crate) event_lag: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    write: WriteLabel,
    result: ResultLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: KindLabel,
}

macro_rules! label {
    ($label:ident($wraps:ty) { $($pattern:pat => $text:literal,)* }) => {
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        struct $label($wraps);

        impl EncodeLabelValue for $label {
            fn encode(
                &self,
                encoder: &mut prometheus_client::encoding::LabelValueEncoder,
            ) -> Result<(), std::fmt::Error> {
                match self.0 { $($pattern => $text,)* }.encode(encoder)
            }
        }
    };
}
label!(KindLabel(Kind) {
    Kind::Marker => "podprobemarker",
    Kind::Pod => "pod",
    Kind::Node => "node",
    Kind::NodePodProbe => "nodepodprobe",
});
label!(WriteLabel(WriteKind) {
    WriteKind::CreateNodePodProbe => "create_nodepodprobe",
    WriteKind::ReplaceNodePodProbe => "replace_nodepodprobe",
    WriteKind::DeleteNodePodProbe => "delete_nodepodprobe",
    WriteKind::PodMarks => "pod_marks",
    WriteKind::MarkerStatus => "marker_status",
    WriteKind::MarkerFinalizers => "marker_finalizers",
});
label!(ResultLabel(Ended) {
    Ended::Done => "done",
    Ended::AlreadyExists => "already_exists",
    Ended::Gone => "gone",
    Ended::Refused => "refused",
    Ended::Failed(Cause::Conflict) => "conflict",
    Ended::Failed(Cause::Throttled) => "throttled",
    Ended::Failed(Cause::Unavailable) => "unavailable",
    Ended::Failed(Cause::NoAnswer) => "no_answer",
    Ended::Failed(Cause::InternalError) => "internal_error",
    Ended::Failed(Cause::NoSuchKind) => "no_such_kind",
    Ended::Failed(Cause::NoRight) => "no_right",
    Ended::Failed(Cause::Denied) => "denied",
});

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Ended {
    Done,
    AlreadyExists,
    Gone,
    Refused,
    Failed(Cause),
}

impl Metrics {
    /// Registers them.
    pub(crate) fn new(shown: &Shown) -> Self {
        let metrics = Self {
            writes: Family::default(),
            undecodable: Family::default(),
            in_flight: Gauge::default(),
            pending: Gauge::default(),
            leader: Gauge::default(),
            leadership_changes: Counter::default(),
            event_lag: Histogram::new(exponential_buckets(0.001, 4.0, 8)),
        };
        shown.register(|registry| {
            registry.register(
                "writes",
                "Writes to the API server by what became of them",
                metrics.writes.clone(),
            );
            registry.register(
                "writes_in_flight",
                "Writes on their way to the API server",
                metrics.in_flight.clone(),
            );
            registry.register(
                "writes_pending",
                "Objects waiting to be written, first time or retry",
                metrics.pending.clone(),
            );
            registry.register(
                "leader",
                "1 while this manager is the one that writes",
                metrics.leader.clone(),
            );
            registry.register(
                "leadership_changes",
                "How often this manager began or ceased to be the one that writes",
                metrics.leadership_changes.clone(),
            );
            registry.register(
                "undecodable_objects",
                "Objects that could not be decoded",
                metrics.undecodable.clone(),
            );
            registry.register_with_unit(
                "event_lag",
                "From the arrival of a watch event to its being applied",
                Unit::Seconds,
                metrics.event_lag.clone(),
            );
        });
        metrics
    }

    /// A write ended.
    pub(crate) fn wrote(&self, kind: WriteKind, disposition: &Disposition) {
        let ended = match disposition {
            Disposition::Done => Ended::Done,
            Disposition::AlreadyExists { .. } => Ended::AlreadyExists,
            Disposition::Gone { .. } | Disposition::Expired { .. } => Ended::Gone,
            Disposition::Refused { .. } => Ended::Refused,
            Disposition::Retry { cause, .. } => Ended::Failed(*cause),
        };
        let labels = WriteLabels {
            write: WriteLabel(kind),
            result: ResultLabel(ended),
        };
        self.writes.get_or_create(&labels).inc();
    }

    /// It leads now, or it does not any more.
    pub(crate) fn leads(&self, leads: bool) {
        self.leader.set(leads.into());
        self.leadership_changes.inc();
    }

    /// An object of this kind does not decode.
    pub(crate) fn undecodable(&self, kind: Kind) {
        let kind = KindLabel(kind);
        self.undecodable.get_or_create(&KindLabels { kind }).inc();
    }
}

//! The metrics of all features. Labels come from closed lists: the kinds, the classes and the requests that features declare.

use leadsman_process::metrics::{Labels, WriteCounters};
use leadsman_process::reply::Disposition;
use leadsman_reconcile::{ReasonGauge, WriteKind};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

#[derive(Clone, Debug)]
pub(crate) struct ControlMetrics {
    registry: leadsman_process::Metrics,
    writes: WriteCounters,
    undecodable: Family<[(&'static str, String); 1], Counter>,
    depth: Family<Labels<1>, Gauge>,
    /// Requests in flight.
    pub(crate) in_flight: Gauge,
    /// The time from an event's arrival to its being observed.
    pub(crate) event_lag: Histogram,
}

impl ControlMetrics {
    /// Registers them.
    pub(crate) fn new(registry: &leadsman_process::Metrics) -> Self {
        let metrics = Self {
            registry: registry.clone(),
            writes: WriteCounters::new(registry),
            undecodable: Family::default(),
            depth: Family::default(),
            in_flight: Gauge::default(),
            event_lag: Histogram::new(exponential_buckets(0.001, 4.0, 8)),
        };
        registry.register(|registry| {
            registry.register(
                "writes_in_flight",
                "Writes sent to the API server and not answered yet",
                metrics.in_flight.clone(),
            );
            registry.register(
                "workqueue_depth",
                "Objects waiting to be written, including retries, by what is written",
                metrics.depth.clone(),
            );
            registry.register(
                "undecodable_objects",
                "Observations of objects that could not be decoded, by kind",
                metrics.undecodable.clone(),
            );
            registry.register_with_unit(
                "event_lag",
                "Time from receiving a watch event to processing it",
                Unit::Seconds,
                metrics.event_lag.clone(),
            );
        });
        metrics
    }

    /// Shows what a feature may write, each 0 so far.
    pub(crate) fn declare_writes(&self, kinds: &[WriteKind]) {
        for kind in kinds {
            self.writes.declare_write(kind.label);
        }
    }

    /// The targets of a class that are to be written, now or later.
    pub(crate) fn depth_gauge(&self, class: &'static str) -> Gauge {
        self.depth.get_or_create_owned(&[("name", class)])
    }

    /// Registers the gauge of a feature: one for each of its reasons.
    pub(crate) fn reason_gauges(&self, gauge: ReasonGauge) -> Vec<Gauge> {
        let family = Family::<Labels<1>, Gauge>::default();
        let reasons = gauge.reasons.iter();
        let gauges = reasons
            .map(|reason| family.get_or_create_owned(&[("reason", *reason)]))
            .collect();
        let register = |registry: &mut Registry| registry.register(gauge.name, gauge.help, family);
        self.registry.register(register);
        gauges
    }

    /// Counts a request that has ended.
    pub(crate) fn count_write(&self, kind: &WriteKind, disposition: &Disposition) {
        self.writes.count_write(kind.label, disposition);
    }

    /// The observations of objects of a kind that do not decode.
    pub(crate) fn undecodable_counter(&self, kind: &str) -> Counter {
        let kind = kind.to_ascii_lowercase();
        self.undecodable.get_or_create_owned(&[("kind", kind)])
    }
}

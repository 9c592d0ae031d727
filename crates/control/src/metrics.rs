//! The metrics of all features. Labels come from closed lists: the kinds and the requests that features declare.

use leadsman_process::reply::{Cause, Disposition};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

use crate::request::RequestKind;

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    writes: Family<[(&'static str, &'static str); 2], Counter>,
    undecodable: Family<[(&'static str, String); 1], Counter>,
    /// Requests in flight.
    pub(crate) in_flight: Gauge,
    /// Targets that are to be written, now or later.
    pub(crate) pending: Gauge,
    /// From an event's arrival to its being observed.
    pub(crate) event_lag: Histogram,
}

/// The result of a write, as the label says it.
fn result(disposition: &Disposition) -> &'static str {
    match disposition {
        Disposition::Done => "done",
        Disposition::AlreadyExists { .. } => "already_exists",
        Disposition::Gone { .. } | Disposition::Expired { .. } => "gone",
        Disposition::Refused { .. } => "refused",
        Disposition::Retry { cause, .. } => match cause {
            Cause::Conflict => "conflict",
            Cause::Throttled => "throttled",
            Cause::Unavailable => "unavailable",
            Cause::NoAnswer => "no_answer",
            Cause::InternalError => "internal_error",
            Cause::NoSuchKind => "no_such_kind",
            Cause::NoRight => "no_right",
            Cause::Denied => "denied",
        },
    }
}

impl Metrics {
    /// Registers them.
    pub(crate) fn new(registry: &leadsman_process::Metrics) -> Self {
        let metrics = Self {
            writes: Family::default(),
            undecodable: Family::default(),
            in_flight: Gauge::default(),
            pending: Gauge::default(),
            event_lag: Histogram::new(exponential_buckets(0.001, 4.0, 8)),
        };
        registry.register(|registry| {
            registry.register(
                "writes",
                "Writes to the API server by their result",
                metrics.writes.clone(),
            );
            registry.register(
                "writes_in_flight",
                "Writes sent to the API server and not answered yet",
                metrics.in_flight.clone(),
            );
            registry.register(
                "writes_pending",
                "Objects waiting to be written, including retries",
                metrics.pending.clone(),
            );
            registry.register(
                "undecodable_objects",
                "Observations of objects that could not be decoded",
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

    /// Counts a request that has ended.
    pub(crate) fn count_write(&self, kind: RequestKind, disposition: &Disposition) {
        let labels = [("write", kind.label), ("result", result(disposition))];
        self.writes.get_or_create(&labels).inc();
    }

    /// Counts an observation of an object that does not decode, by its kind in lower case.
    pub(crate) fn undecodable(&self, kind: &str) {
        let kind = kind.to_ascii_lowercase();
        self.undecodable.get_or_create(&[("kind", kind)]).inc();
    }
}

//! Requests to the API server, and its watches, by the names of client-go (`k8s.io/component-base/metrics/prometheus/restclient`
//! and `k8s.io/client-go/tools/cache`, where a list with its watch is a reflector).

use std::time::Duration;

use http::{Method, StatusCode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::Metrics;
use crate::clock;

/// Metrics by `N` labels, whose values are status codes, methods and resources.
type Labelled<const N: usize, M> = Family<[(&'static str, String); N], M>;

/// A request that got no reply, as client-go labels it.
const NO_REPLY: &str = "<error>";
/// The buckets of a request's duration, in seconds; a write takes up to 10.
const BUCKETS: [f64; 9] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0];

/// The metrics of the requests to the API server. Clones share them.
#[derive(Clone, Debug)]
pub struct ClientMetrics {
    requests: Labelled<2, Counter>,
    durations: Labelled<1, Histogram>,
    lists: Labelled<1, Counter>,
    watches: Labelled<1, Counter>,
    failures: Labelled<2, Counter>,
    last_sync: Labelled<1, Gauge>,
}

impl Default for ClientMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            lists: Family::default(),
            watches: Family::default(),
            failures: Family::default(),
            last_sync: Family::default(),
        }
    }
}

impl ClientMetrics {
    /// Registers them.
    pub fn register_client_metrics(&self, registry: &Metrics) {
        registry.register(|registry| {
            self.register_requests(registry);
            self.register_watches(registry);
        });
    }

    fn register_requests(&self, registry: &mut Registry) {
        registry.register(
            "rest_client_requests",
            "Requests to the API server, by method and by HTTP status code; <error> without a reply",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "rest_client_request_duration",
            "Time from a request to the API server to the end of its reply, of a watch to the head of it, by method",
            Unit::Seconds,
            self.durations.clone(),
        );
    }

    fn register_watches(&self, registry: &mut Registry) {
        registry.register(
            "reflector_lists",
            "Lists that were completed before a watch, by resource: one at the start, and one whenever a watch could not be resumed",
            self.lists.clone(),
        );
        registry.register(
            "reflector_watches",
            "Watches that the API server has accepted, by resource; it ends each after a few minutes",
            self.watches.clone(),
        );
        registry.register(
            "reflector_failures",
            "Lists and watches that failed or broke off, by resource and phase; each is tried again",
            self.failures.clone(),
        );
        registry.register_with_unit(
            "reflector_last_sync_timestamp",
            "Unix time of the last list page, event or bookmark received, by resource. Bookmarks arrive every minute, so more \
             than 100 s ago is stale",
            Unit::Seconds,
            self.last_sync.clone(),
        );
    }

    /// Counts a request that has ended.
    pub(crate) fn observe_request(
        &self,
        method: &Method,
        status: Option<StatusCode>,
        took: Duration,
    ) {
        let code = status.as_ref().map_or(NO_REPLY, StatusCode::as_str);
        let method = ("method", method.to_string());
        let requests = [("code", code.to_owned()), method.clone()];
        self.requests.get_or_create(&requests).inc();
        let duration = self.durations.get_or_create(&[method]);
        duration.observe(took.as_secs_f64());
    }

    /// The metrics of a watch, by its resource: the plural, or `plural/name` of one object.
    pub(crate) fn watch_metrics(&self, resource: &str) -> WatchMetrics {
        // All series exist from the start, since `rate` does not see the event with which a counter begins.
        let labels = [("resource", resource.to_owned())];
        let failures = |phase: &str| {
            let [resource] = labels.clone();
            let of_phase = [resource, ("phase", phase.to_owned())];
            self.failures.get_or_create_owned(&of_phase)
        };
        WatchMetrics {
            failed_lists: failures("list"),
            failed_watches: failures("watch"),
            lists: self.lists.get_or_create_owned(&labels),
            watches: self.watches.get_or_create_owned(&labels),
            last_sync: self.last_sync.get_or_create_owned(&labels),
        }
    }
}

/// The metrics of the watches of one resource.
#[derive(Clone, Debug)]
pub(crate) struct WatchMetrics {
    lists: Counter,
    watches: Counter,
    failed_lists: Counter,
    failed_watches: Counter,
    last_sync: Gauge,
}

impl WatchMetrics {
    pub(crate) fn count_list(&self) {
        self.lists.inc();
        self.note_sync();
    }

    pub(crate) fn count_watch(&self) {
        self.watches.inc();
        self.note_sync();
    }

    pub(crate) fn count_failed_list(&self) {
        self.failed_lists.inc();
    }

    pub(crate) fn count_failed_watch(&self) {
        self.failed_watches.inc();
    }

    /// Notes that what the API server has is known here now.
    pub(crate) fn note_sync(&self) {
        // The time of day, since a query compares it with `time()`.
        self.last_sync.set(clock::now().as_second());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_watches_are_shown_by_clientgos_names() {
        let (metrics, client) = (Metrics::default(), ClientMetrics::default());
        client.register_client_metrics(&metrics);
        client.observe_request(&Method::PATCH, Some(StatusCode::CONFLICT), Duration::ZERO);
        client.observe_request(&Method::GET, None, Duration::from_secs(7));
        let watch = client.watch_metrics("pods");
        watch.count_failed_list();
        watch.count_list();
        let text = metrics.text().unwrap();
        for line in [
            "leadsman_rest_client_requests_total{code=\"409\",method=\"PATCH\"} 1",
            "leadsman_rest_client_requests_total{code=\"<error>\",method=\"GET\"} 1",
            "leadsman_rest_client_request_duration_seconds_bucket{le=\"10.0\",method=\"GET\"} 1",
            "leadsman_rest_client_request_duration_seconds_bucket{le=\"5.0\",method=\"GET\"} 0",
            "leadsman_reflector_lists_total{resource=\"pods\"} 1",
            "leadsman_reflector_watches_total{resource=\"pods\"} 0",
            "leadsman_reflector_failures_total{resource=\"pods\",phase=\"list\"} 1",
            "leadsman_reflector_failures_total{resource=\"pods\",phase=\"watch\"} 0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
        assert!(
            !text.contains("timestamp_seconds{resource=\"pods\"} 0\n"),
            "{text}"
        );
    }
}

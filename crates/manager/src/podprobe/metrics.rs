//! The metrics of markers: their statuses, added up, and how late marks are. No label is the name of a marker or a pod.

use std::array;

use leadsman_core::podprobe::totals::{REASONS, StatusTotals};
use leadsman_process::Metrics;
use leadsman_process::metrics::{Labels, LatencyHistogram};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Gauges by one label.
type MarkerGauges = Family<Labels<1>, Gauge>;

/// The metrics of all markers.
pub(super) struct MarkerMetrics {
    /// How late marks are.
    pub(super) mark_latency: LatencyHistogram,
    shown: StatusTotals,
    markers: [Gauge; REASONS.len()],
    matched_pods: Gauge,
    silent: Gauge,
    succeeded: Gauge,
    failed: Gauge,
    unknown: Gauge,
    pending: Gauge,
}

impl MarkerMetrics {
    /// Registers them.
    pub(super) fn new(registry: &Metrics) -> Self {
        let (markers, verdicts): (MarkerGauges, MarkerGauges) = Default::default();
        let state = |state| verdicts.get_or_create_owned(&[("state", state)]);
        let metrics = Self {
            mark_latency: LatencyHistogram::new(
                registry,
                "mark_latency",
                "Time from a verdict's lastTransitionTime, in whole seconds by its node's clock, until the API server has the \
                 pod's marks",
            ),
            shown: StatusTotals::default(),
            markers: array::from_fn(|place| {
                markers.get_or_create_owned(&[("reason", REASONS[place])])
            }),
            matched_pods: Gauge::default(),
            silent: Gauge::default(),
            succeeded: state("succeeded"),
            failed: state("failed"),
            unknown: state("unknown"),
            pending: state("pending"),
        };
        registry.register(|registry| {
            registry.register(
                "markers",
                "Markers by the reason of their condition Ready, which is Probing if nothing is wrong",
                markers,
            );
            registry.register(
                "matched_pods",
                "Pods that match a marker, counted once for each marker",
                metrics.matched_pods.clone(),
            );
            registry.register(
                "verdicts",
                "Probes of matched pods by their verdict; pending ones have none yet",
                verdicts,
            );
            registry.register(
                "silent_probes",
                "Probes of matched pods whose agent does not report; they count by their last verdict too",
                metrics.silent.clone(),
            );
        });
        metrics
    }

    /// Shows the totals if they have changed.
    pub(super) fn publish_totals(&mut self, totals: StatusTotals) {
        // Asked with each event, few of which change a status.
        if self.shown == totals {
            return;
        }
        for (gauge, count) in self.markers.iter().zip(totals.markers) {
            gauge.set(count);
        }
        self.matched_pods.set(totals.matched_pods);
        self.silent.set(totals.silent);
        self.succeeded.set(totals.succeeded);
        self.failed.set(totals.failed);
        self.unknown.set(totals.unknown);
        self.pending.set(totals.pending);
        self.shown = totals;
    }
}

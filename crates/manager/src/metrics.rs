//! The metrics of leadership. Those of events and writes are in `leadsman_control`.

use leadsman_process::metrics::Labels;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// The manager's metrics.
#[derive(Clone, Debug)]
pub(crate) struct LeadershipMetrics {
    /// Labelled by the name of the Lease, as client-go has it
    /// (`k8s.io/component-base/metrics/prometheus/clientgo/leaderelection`).
    master_status: Family<Labels<1>, Gauge>,
    leadership_changes: Counter,
    lease: &'static str,
}

impl LeadershipMetrics {
    /// Registers them, under the name of the Lease.
    pub(crate) fn new(registry: &leadsman_process::Metrics, lease: &'static str) -> Self {
        let metrics = Self {
            master_status: Family::default(),
            leadership_changes: Counter::default(),
            lease,
        };
        // A standby shows 0, and not nothing.
        metrics.set_leading_gauges(false);
        registry.register(|registry| {
            registry.register(
                "leader_election_master_status",
                "1 while this manager leads, which is when it writes, by the name of the Lease",
                metrics.master_status.clone(),
            );
            registry.register(
                "leadership_changes",
                "Changes of leadership of this manager: gained or lost",
                metrics.leadership_changes.clone(),
            );
        });
        metrics
    }

    /// Records that this manager has gained or lost leadership.
    pub(crate) fn record_leadership(&self, leads: bool) {
        self.set_leading_gauges(leads);
        self.leadership_changes.inc();
    }

    fn set_leading_gauges(&self, leads: bool) {
        let status = self.master_status.get_or_create(&[("name", self.lease)]);
        status.set(leads.into());
    }
}

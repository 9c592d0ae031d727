//! The metrics of leadership. Those of events and writes are in `leadsman_control`.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

/// The manager's metrics.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    leader: Gauge,
    leadership_changes: Counter,
}

impl Metrics {
    /// Registers them.
    pub(crate) fn new(registry: &leadsman_process::Metrics) -> Self {
        let metrics = Self {
            leader: Gauge::default(),
            leadership_changes: Counter::default(),
        };
        registry.register(|registry| {
            registry.register(
                "leader",
                "1 while this manager leads, which is when it writes",
                metrics.leader.clone(),
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
    pub(crate) fn leads(&self, leads: bool) {
        self.leader.set(leads.into());
        self.leadership_changes.inc();
    }
}

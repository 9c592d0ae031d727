//! The metrics. Labels are the names of the webhooks and closed lists.

use std::time::Duration;

use jiff::Timestamp;
use leadsman_process::Metrics as Registry;
use leadsman_process::metrics::{Counters, Labels};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

use crate::webhook::ReviewOutcome;

/// The metrics of the webhooks.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionMetrics {
    /// Labelled by `webhook` and `outcome`.
    requests: Counters<2>,
    /// Labelled by `webhook`.
    duration: Family<Labels<1>, Histogram>,
    expiration: Gauge,
}

impl ReviewOutcome {
    const ALL: [Self; 8] = [
        Self::Patched,
        Self::Unchanged,
        Self::Refused,
        Self::NotReady,
        Self::Late,
        Self::Panicked,
        Self::Outdated,
        Self::Malformed,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Patched => "patched",
            Self::Unchanged => "unchanged",
            Self::Refused => "refused",
            Self::NotReady => "not_ready",
            Self::Late => "late",
            Self::Panicked => "panicked",
            Self::Outdated => "outdated",
            Self::Malformed => "malformed",
        }
    }
}

impl AdmissionMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let duration = || Histogram::new(exponential_buckets(0.000_1, 4.0, 10));
        let metrics = Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(duration),
            expiration: Gauge::default(),
        };
        registry.register(|registry| {
            registry.register(
                "webhook_requests",
                "Requests to admission webhooks by outcome; patched ones change the object, refused ones are invalid objects",
                metrics.requests.clone(),
            );
            registry.register_with_unit(
                "webhook_request_duration",
                "Time from the head of an admission request to its answer",
                Unit::Seconds,
                metrics.duration.clone(),
            );
            registry.register_with_unit(
                "webhook_certificate_expiration_timestamp",
                "Expiry of the served webhook certificate, in seconds since 1970; 0 while none is served",
                Unit::Seconds,
                metrics.expiration.clone(),
            );
        });
        metrics
    }

    /// Shows a webhook, of which nothing has been asked yet.
    pub(crate) fn declare_webhook(&self, webhook: &'static str) {
        let webhook = ("webhook", webhook);
        // All series exist from the start, since `rate` does not see the event with which a counter begins.
        for outcome in ReviewOutcome::ALL {
            let labels = [webhook, ("outcome", outcome.as_str())];
            drop(self.requests.get_or_create(&labels));
        }
        drop(self.duration.get_or_create(&[webhook]));
    }

    pub(crate) fn count_answer(
        &self,
        webhook: &'static str,
        outcome: ReviewOutcome,
        took: Duration,
    ) {
        let webhook = ("webhook", webhook);
        self.requests
            .get_or_create(&[webhook, ("outcome", outcome.as_str())])
            .inc();
        self.duration
            .get_or_create(&[webhook])
            .observe(took.as_secs_f64());
    }

    pub(crate) fn set_not_after(&self, not_after: Timestamp) {
        self.expiration.set(not_after.as_second());
    }
}

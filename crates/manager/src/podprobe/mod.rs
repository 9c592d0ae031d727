//! `PodProbeMarker` as a feature: how `leadsman_core::podprobe` is connected to the API server.
//!
//! | module | holds |
//! |---|---|
//! | `kinds` | the kinds that are observed |
//! | `metrics` | the metrics of markers and marks |
//! | `serverless` | the webhook that gives pods their probes for virtual nodes |

use leadsman_admission::Webhook;
use leadsman_control::Reconciled;
use leadsman_core::podprobe::{Config, Machines, PodProbes};
use leadsman_process::Metrics;

use self::kinds::ProbeKinds;
use self::metrics::MarkerMetrics;
use self::serverless::InjectionWebhook;

mod kinds;
mod metrics;
mod serverless;

/// The rules of `PodProbeMarker`.
pub(crate) type PodProbeRules = Reconciled<ProbeKinds>;

/// Rules that have observed nothing yet, and the webhooks of the feature.
pub(crate) fn new_rules(config: Config, metrics: &Metrics) -> (PodProbeRules, Vec<Webhook>) {
    // The webhook for serverless pods, unless their gate is off.
    let mut injection = config.serverless.then(InjectionWebhook::new);
    let webhooks = injection
        .iter()
        .map(InjectionWebhook::injection_webhook)
        .collect();
    let mut metrics = MarkerMetrics::new(metrics);
    let latency = metrics.mark_latency.clone();
    let feature = PodProbes::new(move |machines, are_listed| {
        metrics.publish_totals(machines.status_totals());
        if let Some(injection) = &mut injection {
            injection.take_over_changes(machines, are_listed);
        }
    });
    let rules = Reconciled::with_memory(feature, Machines::new(config), latency);
    (rules, webhooks)
}

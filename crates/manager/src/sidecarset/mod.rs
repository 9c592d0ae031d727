//! `SidecarSet` as a feature: how the rules of `leadsman_core::sidecarset` are connected to the API server.
//!
//! | module | holds |
//! |---|---|
//! | `kinds` | the kinds that are observed |
//! | `metrics` | the metrics of sets |
//! | `webhook` | the webhook for pods: injects containers as they are created |
//! | `review` | the webhook for sets: refuses invalid ones as they are written |

use std::sync::Arc;

use futures::stream::{Stream, unfold};
use leadsman_admission::{StateVersion, Webhook};
use leadsman_control::ReconcilerEvent;
use leadsman_core::sidecarset::reconcile::{Config, Publisher, SetTotals, SetWorld, SidecarSets};
use leadsman_core::sidecarset::snapshot::Snapshot;
use leadsman_process::Metrics;
use leadsman_process::watch;

pub(crate) use self::kinds::SidecarSetRules;
use self::metrics::SetMetrics;
use self::review::ReviewFeed;
use self::webhook::SetInjection;

mod kinds;
mod metrics;
mod review;
mod webhook;

/// `SidecarSet` as the control loop runs it, with its webhooks: that for pods, whose barrier tells how far sets are in force,
/// and that for sets.
pub(crate) fn sidecar_sets(
    config: Config,
    metrics: &Metrics,
) -> (SidecarSetRules, Webhook, Webhook) {
    let publisher = SetPublisher {
        injection: SetInjection::new(&config, metrics),
        review: ReviewFeed::new(),
        metrics: SetMetrics::new(metrics),
    };
    let injection = publisher.injection.injection_webhook();
    let review = publisher.review.review_webhook();
    let feature = SidecarSets::new(config, publisher);
    (SidecarSetRules::new(feature), injection, review)
}

/// State that webhooks and metrics show.
struct SetPublisher {
    injection: SetInjection,
    review: ReviewFeed,
    metrics: SetMetrics,
}

impl Publisher for SetPublisher {
    fn publish_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        self.review.publish_snapshot(snapshot.clone());
        self.injection.publish_snapshot(snapshot);
    }

    fn publish_totals(&mut self, totals: &SetTotals) {
        self.metrics.publish_totals(totals);
    }
}

/// How far the sets are in force in what API servers are told ([`Webhook::barrier_in_force`]), as events.
pub(crate) fn barrier_events(
    in_force: watch::Receiver<Option<StateVersion>>,
) -> impl Stream<Item = ReconcilerEvent<SidecarSets>> {
    unfold(in_force, async |mut in_force| {
        in_force.changed().await.ok()?;
        let version = *in_force.borrow_and_update();
        let barrier = version.map(webhook::from_state_version);
        let event = ReconcilerEvent::of_world(move |world: &mut SetWorld, affected| {
            world.set_barrier(barrier, affected);
        });
        Some((event, in_force))
    })
}

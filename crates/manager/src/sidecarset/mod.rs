//! `SidecarSet` as a feature: how the rules of `leadsman_core::sidecarset` are connected to the API server.
//!
//! | module | holds |
//! |---|---|
//! | `kinds` | the kinds that are observed, as events for the index |
//! | `requests` | writes as HTTP requests |
//! | `metrics` | the metrics of sets |
//! | `webhook` | the webhook for pods: injects containers as they are created |
//! | `review` | the webhook for sets: refuses invalid ones as they are written |

use std::time::Duration;

use futures::stream::{Stream, unfold};
use leadsman_admission::{StateVersion, Webhook};
use leadsman_control::{After, Class, Effects, Kind, Request, RequestKind, Rules};
use leadsman_core::cluster::Now;
use leadsman_core::sidecarset::event::{Event, WatchedKind, WriteTarget};
use leadsman_core::sidecarset::index::{Config, Index};
use leadsman_process::Metrics;
use leadsman_process::watch;

use self::metrics::SetMetrics;
use self::review::SetReview;
use self::webhook::SetInjection;

mod kinds;
mod metrics;
mod requests;
mod review;
mod webhook;

/// The rules of `SidecarSet`.
pub(crate) struct SidecarSetRules {
    index: Index,
    injection: SetInjection,
    review: SetReview,
    /// The manager's, in which revisions are.
    namespace: String,
    metrics: SetMetrics,
}

impl SidecarSetRules {
    /// Nothing is observed yet.
    pub(crate) fn new(config: Config, metrics: &Metrics) -> Self {
        Self {
            injection: SetInjection::new(&config, metrics),
            review: SetReview::new(),
            namespace: config.namespace.clone(),
            index: Index::new(config),
            metrics: SetMetrics::new(metrics),
        }
    }

    /// The webhook for pods, whose barrier tells how far sets are in force.
    pub(crate) fn injection_webhook(&self) -> Webhook {
        self.injection.injection_webhook()
    }

    /// The webhook for sets.
    pub(crate) fn review_webhook(&self) -> Webhook {
        self.review.review_webhook()
    }
}

/// How far the sets are in force in what API servers are told ([`Webhook::barrier_in_force`]), as events.
pub(crate) fn barrier_events(
    in_force: watch::Receiver<Option<StateVersion>>,
) -> impl Stream<Item = Event> {
    unfold(in_force, async |mut in_force| {
        in_force.changed().await.ok()?;
        let barrier = *in_force.borrow_and_update();
        let barrier = barrier.map(webhook::from_state_version);
        Some((Event::WebhookBarrier(barrier), in_force))
    })
}

// Indices into CLASSES.
const REVISIONS: usize = 0;
const PODS: usize = 1;
const CONDITIONS: usize = 2;
const SETS: usize = 3;
const STATUSES: usize = 4;
const EVENTS: usize = 5;

impl Rules for SidecarSetRules {
    const NAME: &'static str = "sidecarset";
    const KINDS: &'static [Kind<Self>] = kinds::KINDS;
    const CLASSES: &'static [Class] = &[
        Class::new("sidecarset_revisions"),
        Class::new("sidecarset_pods").paced_by_size(),
        Class::new("sidecarset_conditions").paced_by_size(),
        Class::new("sidecarset_hashes"),
        // A status counts the pods and names the newest revision: written before that exists, it would be written twice.
        Class::new("sidecarset_status")
            .spacing(Duration::from_secs(2))
            .after(After {
                class: REVISIONS,
                at_most: Duration::from_secs(10),
            }),
        Class::new("sidecarset_events"),
    ];

    type Event = Event;
    type Target = WriteTarget;

    fn requests() -> Vec<RequestKind> {
        requests::ALL.to_vec()
    }

    fn observe_event(&mut self, event: Event, now: Now) -> Effects<WriteTarget> {
        // A set's status contains what its pods come to, so each change shows with the next status.
        let is_of_sets = matches!(
            event,
            Event::Set(..)
                | Event::Listed(WatchedKind::Set, ..)
                | Event::Deleted(WatchedKind::Set, ..)
        );
        let effects = self.index.observe(event, now);
        if let Some(snapshot) = self.index.take_changed_snapshot() {
            self.review.publish_snapshot(snapshot.clone());
            self.injection.publish_snapshot(snapshot);
        }
        // The order matters: a set that is counted is injected.
        if is_of_sets {
            self.metrics.publish_totals(&self.index.set_totals());
        }
        effects
    }

    fn synced(&mut self, now: Now) -> Effects<WriteTarget> {
        self.observe_event(Event::Synced, now)
    }

    fn deadline_passed(&mut self, now: Now) -> Effects<WriteTarget> {
        self.observe_event(Event::Deadline, now)
    }

    fn due_request(&mut self, target: &WriteTarget, now: Now) -> Option<Request<Event>> {
        let write = self.index.due(target, now)?;
        Some(requests::build_request(
            target.clone(),
            write,
            &self.namespace,
            now.wall,
        ))
    }

    fn class_index(target: &WriteTarget) -> usize {
        match target {
            WriteTarget::Revisions(_) => REVISIONS,
            WriteTarget::Pod(_) => PODS,
            WriteTarget::PodCondition(_) => CONDITIONS,
            WriteTarget::SetHashes(_) => SETS,
            WriteTarget::SetStatus(_) => STATUSES,
            WriteTarget::SetEvent(_) | WriteTarget::PodEvent(_) => EVENTS,
        }
    }

    fn namespace(target: &WriteTarget) -> Option<&str> {
        match target {
            WriteTarget::Pod(name)
            | WriteTarget::PodCondition(name)
            | WriteTarget::PodEvent(name) => Some(&name.namespace),
            WriteTarget::SetStatus(_)
            | WriteTarget::SetHashes(_)
            | WriteTarget::Revisions(_)
            | WriteTarget::SetEvent(_) => None,
        }
    }
}

//! `PodProbeMarker` as a feature: how the rules of `leadsman_core::podprobe` are connected to the API server.
//!
//! | module | holds |
//! |---|---|
//! | `kinds` | the kinds that are observed, as events for the index |
//! | `requests` | writes as HTTP requests |
//! | `metrics` | the metrics of markers and marks |
//! | `serverless` | the webhook that gives pods their probes for virtual nodes |

use std::time::Duration;

use leadsman_admission::Webhook;
use leadsman_control::{After, Class, Effects, Kind, Measured, Request, RequestKind, Rules};
use leadsman_core::cluster::Now;
use leadsman_core::podprobe::event::{self, Event, WriteTarget};
use leadsman_core::podprobe::{Config, Index};
use leadsman_process::Metrics;

use self::metrics::MarkerMetrics;
use self::serverless::InjectionWebhook;

mod kinds;
mod metrics;
mod requests;
mod serverless;

/// The rules of `PodProbeMarker`.
pub(crate) struct PodProbeRules {
    index: Index,
    /// The webhook for serverless pods. `None` if their gate is off.
    injection: Option<InjectionWebhook>,
    metrics: MarkerMetrics,
}

impl PodProbeRules {
    /// Nothing is observed yet.
    pub(crate) fn new(config: Config, metrics: &Metrics) -> Self {
        let injection = config.serverless.then(InjectionWebhook::new);
        let index = Index::new(config);
        Self {
            index,
            injection,
            metrics: MarkerMetrics::new(metrics),
        }
    }

    /// The webhooks of the feature.
    pub(crate) fn webhooks(&self) -> Vec<Webhook> {
        let injection = self.injection.iter();
        injection.map(InjectionWebhook::injection_webhook).collect()
    }
}

// Indices into CLASSES.
const MARKS: usize = 0;
const SPECS: usize = 1;
const STATUSES: usize = 2;
const FINALIZERS: usize = 3;

impl Rules for PodProbeRules {
    const NAME: &'static str = "podprobe";
    const KINDS: &'static [Kind<Self>] = kinds::KINDS;
    const CLASSES: &'static [Class] = &[
        Class::new("pod_marks").paced_by_size(),
        Class::new("nodepodprobes"),
        // A marker's status changes with every pod. It says that specs are written: written before them, it would be
        // written twice. But specs may come without end.
        Class::new("marker_status")
            .paced_by_size()
            .spacing(Duration::from_secs(2))
            .after(After {
                class: SPECS,
                at_most: Duration::from_secs(10),
            }),
        Class::new("marker_finalizers").paced_by_size(),
    ];

    type Event = Event;
    type Target = WriteTarget;

    fn requests() -> Vec<RequestKind> {
        requests::ALL.to_vec()
    }

    fn observe_event(&mut self, event: Event, now: Now) -> Effects<WriteTarget> {
        let lists_markers = matches!(event, Event::Listed(event::WatchedKind::Marker, ..));
        let effects = self.index.observe_in_turns(event, now);
        self.metrics.publish_totals(self.index.status_totals());
        if let Some(injection) = &mut self.injection {
            injection.take_over_changes(&mut self.index, lists_markers);
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
        // A write has to be due: the index keeps since when until the marks are written.
        let measured = self.index.verdict_since(target).map(|since| Measured {
            since,
            latency: self.metrics.mark_latency.clone(),
        });
        let request = requests::build_request(target.clone(), write);
        Some(Request {
            measured,
            ..request
        })
    }

    fn class_index(target: &WriteTarget) -> usize {
        match target {
            WriteTarget::PodMarks(_) => MARKS,
            WriteTarget::NodePodProbe(_) => SPECS,
            WriteTarget::MarkerStatus(_) => STATUSES,
            WriteTarget::MarkerFinalizer(_) => FINALIZERS,
        }
    }

    fn namespace(target: &WriteTarget) -> Option<&str> {
        match target {
            WriteTarget::PodMarks(name)
            | WriteTarget::MarkerStatus(name)
            | WriteTarget::MarkerFinalizer(name) => Some(&name.namespace),
            WriteTarget::NodePodProbe(_) => None,
        }
    }
}

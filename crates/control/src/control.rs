//! All features together: one watch per kind, one limit of requests in flight, one leadership.

use std::sync::Arc;

use std::future::pending;
use std::pin::pin;

use futures::{Stream, StreamExt, stream};
use leadsman_lease::Leadership;
use leadsman_process::watch;
use leadsman_process::{Process, Readiness, clock};
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::feature::{FeatureContext, FeatureLoop};
use crate::kind::Kind;
use crate::metrics::ControlMetrics;
use crate::permissions::Permissions;
use crate::places::{Places, SharedPlaces};
use crate::rules::Rules;
use crate::schema::{self, Schema};
use crate::watch::{Arrival, WatchContext, WatchesByType};

/// Events between the watches and a feature. A feature that falls behind slows its watches down instead of taking
/// memory.
const ARRIVALS: usize = 1024;
/// Requests in flight of all features together. API priority and fairness divides the API server's time among its
/// clients, so more requests would only lengthen our queue there.
const IN_FLIGHT: usize = 32;

/// Runs features. A feature that is not added costs no watch, no memory and no right.
pub struct Control {
    shared: FeatureContext,
    readiness: Readiness,
    stop: CancellationToken,
    watches: WatchesByType,
    tasks: JoinSet<()>,
    features: JoinSet<()>,
}

/// Why [`Control::run`] ended before it was to stop.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A task panicked.
    #[error("a watch or a feature panicked: {0}")]
    Task(#[from] JoinError),
    /// A watch ended, which none does while a feature listens.
    #[error("a watch ended while features depend on it")]
    WatchEnded,
    /// A feature ended, which none does while its watches run.
    #[error("a feature ended before the process was to stop")]
    FeatureEnded,
}

impl Control {
    /// No feature yet. Writes are sent only while `leadership` permits them. `own_namespace` is that of the manager, in which
    /// features may have objects of their own.
    pub fn new(
        process: &Process,
        leadership: watch::Receiver<Leadership>,
        own_namespace: &str,
    ) -> Self {
        let check = process
            .readiness
            .add_own_check("rights to write", "nothing has been written yet");
        let shared = FeatureContext {
            server: process.server.clone(),
            own_namespace: own_namespace.into(),
            leadership,
            places: SharedPlaces::new(Places::new(IN_FLIGHT)),
            permissions: Permissions::new(check),
            metrics: ControlMetrics::new(&process.metrics),
            random: process.random.clone(),
        };
        Self {
            shared,
            readiness: process.readiness.clone(),
            // A child, so that a failed feature can stop the others; what becomes of the process is up to the error
            // of `run`.
            stop: process.shutdown.child_token(),
            watches: WatchesByType::default(),
            tasks: JoinSet::new(),
            features: JoinSet::new(),
        }
    }

    /// Adds a feature. It begins to observe when [`Control::run`] is called.
    pub fn add_feature<R: Rules>(&mut self, rules: R) {
        let leadership = self.shared.leadership.clone();
        self.add_feature_led_by(rules, leadership);
    }

    /// Adds a feature that writes only while a leadership of its own permits it.
    pub fn add_feature_led_by<R: Rules>(
        &mut self,
        rules: R,
        leadership: watch::Receiver<Leadership>,
    ) {
        self.add_feature_with_events(rules, leadership, stream::pending());
    }

    /// Adds a feature that is also told what this process itself knows, beside the kinds that it observes.
    pub fn add_feature_with_events<R: Rules>(
        &mut self,
        rules: R,
        leadership: watch::Receiver<Leadership>,
        events: impl Stream<Item = R::Event> + Send + 'static,
    ) {
        self.shared.metrics.declare_writes(R::WRITES);
        let (sender, arrivals) = channel(ARRIVALS);
        for (index, kind) in R::KINDS.iter().enumerate() {
            (kind.subscribe)(&mut self.watches, kind, index, &sender);
            if let Some(schema) = self.schema_to_follow(kind) {
                let follow = schema::follow_schema(
                    schema,
                    self.watch_context(),
                    kind.fields_kept,
                    index,
                    sender.clone(),
                );
                self.tasks.spawn(follow);
            }
        }
        self.tasks.spawn(forward_events(events, sender));
        let shared = FeatureContext {
            leadership,
            ..self.shared.clone()
        };
        let feature = FeatureLoop::new(rules, shared);
        self.features
            .spawn(feature.run(arrivals, self.stop.clone()));
    }

    fn schema_to_follow<R: Rules>(&self, kind: &Kind<R>) -> Option<Schema> {
        let fields = kind.optional_fields?;
        let crd = kind.crd_name()?;
        let check = self
            .readiness
            .add_own_check(format!("schema of {crd}"), "not read yet");
        Some(Schema::new(crd, (kind.version)(), fields, check))
    }

    fn watch_context(&self) -> WatchContext {
        WatchContext {
            server: self.shared.server.clone(),
            own_namespace: Arc::clone(&self.shared.own_namespace),
            leadership: self.shared.leadership.clone(),
            readiness: self.readiness.clone(),
            metrics: self.shared.metrics.clone(),
            random: self.shared.random.clone(),
        }
    }

    /// Runs until the process is to stop or a task fails, and then until every feature has ended its requests in
    /// flight.
    pub async fn run(mut self) -> Result<(), ControlError> {
        let context = self.watch_context();
        let watches = std::mem::take(&mut self.watches);
        watches.spawn_all(&mut self.tasks, &context);
        let (features, tasks) = (&mut self.features, &mut self.tasks);
        let ended = join_until_ended(features, tasks, &self.stop).await;
        // The release of the Lease waits for this: no request is in flight afterwards.
        self.stop.cancel();
        while self.features.join_next().await.is_some() {}
        ended
    }
}

/// Passes events on to a feature, like those of a watch. It does not end, as no watch does.
async fn forward_events<E>(events: impl Stream<Item = E>, feature: Sender<Arrival<E>>) {
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        let arrival = Arrival {
            at: clock::monotonic(),
            completes: None,
            event,
        };
        if feature.send(arrival).await.is_err() {
            break;
        }
    }
    pending::<()>().await;
}

async fn join_until_ended(
    features: &mut JoinSet<()>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Result<(), ControlError> {
    loop {
        tokio::select! {
            // Features first: a watch also ends because the feature that listens to it has ended or panicked, and the
            // cause is to be reported.
            biased;
            ended = features.join_next() => match ended {
                None => return Ok(()),
                Some(Ok(())) if stop.is_cancelled() => {}
                Some(Ok(())) => return Err(ControlError::FeatureEnded),
                Some(Err(error)) => return Err(error.into()),
            },
            Some(ended) = tasks.join_next() => match ended {
                Ok(()) if stop.is_cancelled() => {}
                Ok(()) => return Err(ControlError::WatchEnded),
                Err(error) => return Err(error.into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use leadsman_process::{ApiServer, Metrics as Registry, RandomSource};

    use super::*;

    #[tokio::test]
    async fn when_one_feature_breaks_the_others_end_their_requests() {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        let readiness = Readiness::default();
        let leadership = watch::Sender::new(Leadership::Standby);
        let mut control = Control {
            shared: FeatureContext {
                server: ApiServer::new(kube::Client::new(service, "default")),
                own_namespace: "leadsman-system".into(),
                leadership: leadership.subscribe(),
                places: SharedPlaces::new(Places::new(IN_FLIGHT)),
                permissions: Permissions::new(readiness.add_check("rights", "")),
                metrics: ControlMetrics::new(&Registry::default()),
                random: RandomSource::from_seed(7),
            },
            readiness,
            stop: CancellationToken::new(),
            watches: WatchesByType::default(),
            tasks: JoinSet::new(),
            features: JoinSet::new(),
        };
        let drained = Arc::new(AtomicBool::new(false));
        let (stop, ended) = (control.stop.clone(), Arc::clone(&drained));
        control.features.spawn(async move {
            stop.cancelled().await;
            tokio::task::yield_now().await;
            ended.store(true, Ordering::Relaxed);
        });
        control
            .features
            .spawn(async { panic!("as no feature should") });
        assert!(matches!(control.run().await, Err(ControlError::Task(_))));
        assert!(drained.load(Ordering::Relaxed));
    }
}

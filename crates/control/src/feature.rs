//! The loop of a feature: events into its rules, due requests out of them, replies back in as events.
//!
//! It owns the rules, so nothing here needs a lock. It guarantees that only the leader writes, and not before every
//! kind has been listed once and every schema been read: until then a missing object would look like a deleted one. A
//! standby observes everything and keeps no target; when it becomes the leader, everything is compared once.

use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use leadsman_lease::Leadership;
use leadsman_process::reply::{Disposition, RetryCause, is_webhook_failure};
use leadsman_process::shutdown::SHORTEST_GRACE_SECONDS;
use leadsman_process::{ApiServer, RandomSource, clock, watch};
use leadsman_reconcile::{Class, Effects, Now, ReasonGauge, Refusal, WriteKind, WriteVerb};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::metrics::ControlMetrics;
use crate::permissions::Permissions;
use crate::places::SharedPlaces;
use crate::queue::{Retried, WriteQueue, WriteResult};
use crate::relist::relist_kinds;
use crate::request::{self, Measured, Request, RequestOutcome};
use crate::rules::{Rules, Unwritten};
use crate::stage::Stage;
use crate::watch::{Arrival, Prerequisite};

/// The number of events observed before due requests are started again.
const BATCH: usize = 128;
/// How long requests in flight may take when the process stops: longer than each of them may ([`request::TIMEOUT`]),
/// and less than the grace period of the process.
const DRAIN: Duration = Duration::from_secs(12);
const _: () = assert!(DRAIN.as_secs() > request::TIMEOUT.as_secs());
const _: () = assert!(DRAIN.as_secs() < SHORTEST_GRACE_SECONDS);

/// A feature's rules, and the state of their loop.
pub(crate) struct FeatureLoop<R: Rules> {
    rules: R,
    shared: FeatureContext,
    queue: WriteQueue<R::Target>,
    in_flight: FuturesUnordered<BoxFuture<'static, AnsweredWrite<R>>>,
    missing: BTreeSet<Prerequisite>,
    stage: Stage<R::Event>,
    /// Whether another process may have written since the last complete re-list. It stays true if the Lease is lost
    /// during a re-list, or gained before the first lists are complete.
    must_relist: bool,
    /// The rules' monotonic clock counts from here.
    start: Instant,
    deadline: Option<Instant>,
    gauges: FeatureGauges,
}

/// The handles that all features share.
#[derive(Clone)]
pub(crate) struct FeatureContext {
    pub(crate) server: ApiServer,
    /// The namespace that the manager runs in.
    pub(crate) own_namespace: Arc<str>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) places: SharedPlaces,
    pub(crate) permissions: Permissions,
    pub(crate) metrics: ControlMetrics,
    pub(crate) random: RandomSource,
}

struct AnsweredWrite<R: Rules> {
    target: R::Target,
    kind: &'static WriteKind,
    measured: Option<Measured>,
    outcome: RequestOutcome<R::Event>,
}

impl<R: Rules> FeatureLoop<R> {
    /// A loop that has observed nothing yet.
    pub(crate) fn new(rules: R, mut shared: FeatureContext) -> Self {
        let random = shared.random.fork_rng();
        let queue = shared.places.update_and_wake(|places| {
            WriteQueue::new(R::CLASSES, R::class_index, R::namespace, places, random)
        });
        Self {
            rules,
            queue,
            in_flight: FuturesUnordered::new(),
            missing: write_prerequisites::<R>(),
            stage: Stage::Standby,
            must_relist: false,
            start: clock::monotonic(),
            deadline: None,
            gauges: FeatureGauges::new(R::CLASSES, R::GAUGE, &shared.metrics),
            shared,
        }
    }

    /// Runs until it is to stop or no watch is left; then waits for the requests in flight.
    pub(crate) async fn run(
        mut self,
        mut arrivals: Receiver<Arrival<R::Event>>,
        stop: CancellationToken,
    ) {
        let mut batch = Vec::with_capacity(BATCH);
        // The loop below wakes for changes only, and this process may lead already.
        self.follow_leadership();
        loop {
            self.take_ready(&mut arrivals, &mut batch);
            let looked = self.begin_writes();
            // Neither events nor what rules have left for later may keep the thread to themselves: the Lease is renewed and
            // health checks are answered on it too.
            tokio::task::yield_now().await;
            // Writes alone wait for a time, and a process that may not write is woken by the change of
            // leadership.
            let wake = self.queue.next_wake(looked).filter(|_| self.may_write());
            tokio::select! {
                // Leadership first, without which nothing may be written, and the pages of a list, which ends. What rules
                // have left for later may be due on each turn: it starves neither ends nor events, of which each turn takes
                // some by itself (`take_ready`). The last two only begin a turn.
                biased;
                () = stop.cancelled() => break,
                Ok(()) = self.shared.leadership.changed() => self.follow_leadership(),
                page = self.stage.next_page() => self.apply_relisted_page(page),
                () = clock::sleep_until(self.deadline) => {
                    self.deadline = None;
                    let effects = self.rules.deadline_passed(self.rules_time());
                    self.apply_effects(effects);
                    // The next event may put out of date what has just been planned.
                    self.begin_writes();
                }
                Some(answered) = self.in_flight.next() => self.end_write(answered),
                received = arrivals.recv_many(&mut batch, BATCH) => {
                    // Every sender is gone, so no watch is left.
                    if received == 0 {
                        break;
                    }
                    self.receive_batch(&mut batch);
                }
                () = self.shared.places.wait_for_change() => {}
                () = clock::sleep_until(wake) => {}
            }
        }
        self.drain_in_flight().await;
    }

    /// Ends a write that has been answered, and takes a batch of events that have arrived.
    fn take_ready(
        &mut self,
        arrivals: &mut Receiver<Arrival<R::Event>>,
        batch: &mut Vec<Arrival<R::Event>>,
    ) {
        if let Some(Some(answered)) = self.in_flight.next().now_or_never() {
            self.end_write(answered);
        }
        batch.extend(iter::from_fn(|| arrivals.try_recv().ok()).take(BATCH));
        self.receive_batch(batch);
    }

    fn receive_batch(&mut self, batch: &mut Vec<Arrival<R::Event>>) {
        for arrival in batch.drain(..) {
            self.receive_arrival(arrival);
        }
    }

    fn receive_arrival(&mut self, arrival: Arrival<R::Event>) {
        let lag = clock::monotonic().saturating_duration_since(arrival.at);
        self.shared.metrics.event_lag.observe(lag.as_secs_f64());
        self.observe_event(arrival.event);
        let Some(completed) = arrival.completes else {
            return;
        };
        // The order matters: the rules must know the whole list when writing begins.
        if self.missing.remove(&completed) && self.missing.is_empty() {
            tracing::info!(feature = R::NAME, "initial lists complete, schemas read");
            if let Stage::Listing { term } = self.stage {
                self.begin_term(term);
            }
        }
    }

    fn rules_time(&self) -> Now {
        Now {
            monotonic: clock::monotonic().saturating_duration_since(self.start),
            wall: clock::now(),
        }
    }

    fn observe_event(&mut self, event: R::Event) {
        let effects = self.rules.observe_event(event, self.rules_time());
        self.apply_effects(effects);
    }

    fn apply_effects(&mut self, effects: Effects<R::Target>) {
        // The rules return their next deadline with every event, so it replaces the one before.
        let deadline = effects.deadline;
        self.deadline = deadline.and_then(|deadline| self.start.checked_add(deadline));
        // A standby finds its targets when it becomes the leader, however much has changed by then.
        if let Stage::Writing { .. } = self.stage {
            for target in effects.dirty {
                self.queue.mark_dirty(target);
            }
        }
    }

    /// The Lease was taken, renewed or lost.
    fn follow_leadership(&mut self) {
        let leadership = *self.shared.leadership.borrow_and_update();
        if !self.stage.is_past(leadership) {
            return;
        }
        self.stage = Stage::Standby;
        // `Rules::synced` finds again in the next term what was dirty in the last one. A standby
        // sends nothing, so nothing that it was forbidden may keep it from being ready.
        self.queue.forget_idle();
        self.shared.permissions.note_idle(R::NAME);
        let Leadership::Leads {
            term, after_others, ..
        } = leadership
        else {
            return;
        };
        // Never cleared here: a term that ends during its re-list leaves the need for one to the next.
        self.must_relist |= after_others;
        if self.missing.is_empty() {
            self.begin_term(term);
        } else {
            self.stage = Stage::Listing { term };
        }
    }

    /// Every kind has been listed: begins to write, after a re-list if another process may have written.
    fn begin_term(&mut self, term: u64) {
        if self.must_relist {
            let pages = relist_kinds::<R>(
                &self.shared.server,
                &self.shared.own_namespace,
                &self.shared.random,
            );
            self.stage = Stage::Relisting { term, pages };
        } else {
            self.begin_writing(term);
        }
    }

    fn apply_relisted_page(&mut self, page: Option<Vec<R::Event>>) {
        match (page, self.stage.term()) {
            (Some(events), _) => events
                .into_iter()
                .for_each(|event| self.observe_event(event)),
            (None, Some(term)) => {
                self.must_relist = false;
                self.begin_writing(term);
            }
            // Pages come in a stage that re-lists alone, and that stage has a term.
            (None, None) => {}
        }
    }

    fn begin_writing(&mut self, term: u64) {
        tracing::info!(feature = R::NAME, "leader and in sync, writes begin");
        self.stage = Stage::Writing { term };
        let effects = self.rules.synced(self.rules_time());
        self.apply_effects(effects);
    }

    /// The gate that every write passes. A request asks again how much time is left when it is sent.
    fn may_write(&self) -> bool {
        let leadership = *self.shared.leadership.borrow();
        matches!(self.stage, Stage::Writing { .. })
            // The term may have changed since the loop last followed it; what is queued belongs to the former one.
            && !self.stage.is_past(leadership)
            && leadership.time_left(clock::monotonic()).is_some()
    }

    /// Begins all due requests for which there is room, and returns the time at which it found no more.
    fn begin_writes(&mut self) -> Instant {
        let looked = loop {
            let now = clock::monotonic();
            let target = if self.may_write() {
                let queue = &mut self.queue;
                self.shared
                    .places
                    .update_and_wake(|places| queue.take_next(now, places))
            } else {
                self.shared
                    .places
                    .update_and_wake(|places| self.queue.stop_all_waiting(places));
                None
            };
            let Some(target) = target else {
                break now;
            };
            // Asked only once there is a place: what the rules plan here is sent, and is no older than the request.
            if let Some(request) = self.rules.due_request(&target, self.rules_time()) {
                self.begin_write(target, request);
                continue;
            }
            self.release_target(target, WriteResult::NothingDue);
            if self.queue.is_empty() {
                self.shared.permissions.note_idle(R::NAME);
            }
        };
        self.gauges
            .update_gauges(self.queue.in_flight_count(), self.queue.class_depths());
        self.gauges.count_reasons(self.rules.count_reasons());
        looked
    }

    fn begin_write(&mut self, target: R::Target, mut request: Request<R::Event>) {
        // Kept here: what is measured ends when the loop has observed the reply, not when the reply has come.
        let (kind, measured) = (request.kind, request.measured.take());
        tracing::debug!(object = %target, write = kind.label, "writing");
        let FeatureContext {
            server, leadership, ..
        } = self.shared.clone();
        self.in_flight.push(Box::pin(async move {
            let outcome = request::send_request(&server, request, &leadership).await;
            AnsweredWrite {
                target,
                kind,
                measured,
                outcome,
            }
        }));
    }

    fn release_target(&mut self, target: R::Target, result: WriteResult) -> Retried {
        let now = clock::monotonic();
        let queue = &mut self.queue;
        let places = &mut self.shared.places;
        places.update_and_wake(|places| queue.end_write(target, result, now, places))
    }

    fn end_write(&mut self, answered: AnsweredWrite<R>) {
        let AnsweredWrite {
            target,
            kind,
            measured,
            outcome,
        } = answered;
        let disposition = outcome.disposition;
        self.shared.metrics.count_write(kind, &disposition);
        self.shared
            .permissions
            .note_reply(R::NAME, kind, &disposition);
        let shown = outcome.observed.is_some().then_some(outcome.reply_bytes);
        // The order matters: the rules judge that the write was carried out by the object that its
        // reply shows, and the target is released last, so that what the reply made dirty is
        // reconsidered with it.
        if let Some(observed) = outcome.observed {
            self.observe_event(observed);
        }
        if disposition == Disposition::Done {
            if let Some(measured) = measured {
                let now = clock::now();
                measured.latency.observe_latency(measured.since, now);
            }
            self.observe_event(outcome.written);
        }
        let retried = self.release_target(target.clone(), write_result(&disposition, shown));
        let unwritten = why_unwritten(kind, &disposition);
        if let Some(refusal) = report_unwritten(&target, kind, disposition, retried) {
            self.observe_event((outcome.refused)(refusal));
        } else if let Some(unwritten) = unwritten
            && let Some(effects) =
                self.rules
                    .observe_unwritten(&target, unwritten, self.rules_time())
        {
            self.apply_effects(effects);
        }
    }

    async fn drain_in_flight(mut self) {
        let writes = self.in_flight.len();
        let ended = async { while self.in_flight.next().await.is_some() {} };
        let is_drained = timeout(DRAIN, ended).await.is_ok();
        let given_up = if is_drained { 0 } else { self.in_flight.len() };
        tracing::info!(feature = R::NAME, writes, given_up, "stopped writing");
    }
}

impl<R: Rules> Drop for FeatureLoop<R> {
    fn drop(&mut self) {
        // Even after a panic the other features go on until they have ended, with all places and
        // gauges that are right.
        self.gauges.update_gauges(0, R::CLASSES.iter().map(|_| 0));
        let places = &mut self.shared.places;
        places.update_and_wake(|places| self.queue.give_back_in_flight(places));
    }
}

/// Everything that must be known before the first write.
fn write_prerequisites<R: Rules>() -> BTreeSet<Prerequisite> {
    let kinds = R::KINDS.iter().enumerate();
    let prerequisites = kinds.flat_map(|(index, kind)| {
        let schema = kind
            .optional_fields
            .map(|_| Prerequisite::SchemaRead(index));
        [Some(Prerequisite::Listed(index)), schema]
    });
    prerequisites.flatten().collect()
}

/// The meaning of a reply for the queue. `shown` are the bytes of the object that the reply contained, if it did.
fn write_result(disposition: &Disposition, shown: Option<usize>) -> WriteResult {
    if let (Disposition::Done, Some(bytes)) = (disposition, shown) {
        return WriteResult::Written { bytes };
    }
    match disposition {
        // The watch shows the result if the reply has no object.
        Disposition::Done
        | Disposition::Gone { .. }
        | Disposition::Expired { .. }
        | Disposition::Refused { .. }
        | Disposition::TooLarge { .. }
        // Admission has denied this request only: another one need not wait.
        | Disposition::Retry { cause: RetryCause::Denied, .. } => WriteResult::Over,
        // The object was read back and observed, so something else may be due now.
        Disposition::AlreadyExists { .. } => WriteResult::Failed {
            cause: RetryCause::Conflict,
            after: None,
        },
        Disposition::Retry { cause, after, .. } => WriteResult::Failed {
            cause: *cause,
            after: *after,
        },
    }
}

/// Why a request was not carried out, if it was not.
fn why_unwritten(kind: &WriteKind, disposition: &Disposition) -> Option<Unwritten> {
    match disposition {
        Disposition::Done => None,
        Disposition::Gone { .. } | Disposition::Expired { .. } => Some(Unwritten::Gone),
        // A deletion asks webhooks again before it removes what it has marked (`Store.Delete`,
        // `k8s.io/apiserver/pkg/registry/generic/registry/store.go`).
        Disposition::Retry {
            cause: RetryCause::InternalError,
            reason,
            ..
        } if kind.verb != WriteVerb::Delete && is_webhook_failure(reason) => {
            Some(Unwritten::NotDone)
        }
        Disposition::Retry {
            cause:
                RetryCause::NoAnswer
                | RetryCause::Unavailable
                | RetryCause::InternalError
                | RetryCause::NotApiServer,
            ..
        } => Some(Unwritten::Unknown),
        Disposition::Retry { .. }
        | Disposition::AlreadyExists { .. }
        | Disposition::Refused { .. }
        | Disposition::TooLarge { .. } => Some(Unwritten::NotDone),
    }
}

/// Logs a request that was not carried out. Returns the reason if it never will be.
fn report_unwritten<T: std::fmt::Display>(
    target: &T,
    kind: &WriteKind,
    disposition: Disposition,
    retried: Retried,
) -> Option<Refusal> {
    // The names and values are those of the labels of the metric `leadsman_writes_total`.
    let (write, result) = (kind.label, disposition.as_label());
    let explained = disposition.explain_reason();
    match (disposition, retried) {
        (Disposition::Done, _) => {}
        (Disposition::Gone { reason } | Disposition::Expired { reason }, _) => {
            tracing::debug!(object = %target, write, result, reason, "object is gone or was replaced, nothing to write");
        }
        (Disposition::AlreadyExists { reason }, _) => {
            tracing::debug!(object = %target, write, result, reason, "already exists, comparing");
        }
        (
            Disposition::Refused { reason }
            | Disposition::Retry {
                cause: RetryCause::Denied,
                reason,
                ..
            },
            _,
        )
        | (Disposition::Retry { reason, .. }, Retried::GivenUp) => {
            tracing::warn!(object = %target, write, result, reason, "the API server refuses a write");
            return Some(Refusal::Forbidden(reason));
        }
        (Disposition::TooLarge { reason }, _) => {
            tracing::warn!(object = %target, write, result, reason, "the API server refuses a write for its size, a smaller one follows if there is one");
            return Some(Refusal::TooLarge(reason));
        }
        (Disposition::Retry { cause, reason, .. }, Retried::Yes) => match cause {
            // A conflict is no fault, and of a missing right the readiness check warns, with what to do about it.
            RetryCause::Conflict | RetryCause::NoRight => {
                tracing::debug!(object = %target, write, result, reason, "write failed, retrying");
            }
            _ => {
                tracing::info!(object = %target, write, result, reason = explained, "write failed, retrying");
            }
        },
    }
    None
}

/// A feature's part of the gauges.
struct FeatureGauges {
    /// All features share it; with the value that this one has added.
    in_flight: (Gauge, i64),
    /// The depths of its classes' queues.
    depths: Vec<Gauge>,
    /// Objects by their reasons.
    reasons: Vec<Gauge>,
}

impl FeatureGauges {
    fn new(classes: &[Class], reasons: Option<ReasonGauge>, metrics: &ControlMetrics) -> Self {
        let reasons = reasons.map(|gauge| metrics.reason_gauges(gauge));
        Self {
            in_flight: (metrics.in_flight.clone(), 0),
            depths: classes
                .iter()
                .map(|class| metrics.depth_gauge(class.name))
                .collect(),
            reasons: reasons.unwrap_or_default(),
        }
    }

    fn count_reasons(&self, counts: &[usize]) {
        for (gauge, count) in self.reasons.iter().zip(counts) {
            gauge.set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    fn update_gauges(&mut self, in_flight: usize, depths: impl Iterator<Item = usize>) {
        let count = |count| i64::try_from(count).unwrap_or(i64::MAX);
        let (gauge, shown) = &mut self.in_flight;
        gauge.inc_by(count(in_flight) - *shown);
        *shown = count(in_flight);
        for (gauge, depth) in self.depths.iter().zip(depths) {
            gauge.set(count(depth));
        }
    }
}

#[cfg(test)]
mod tests;

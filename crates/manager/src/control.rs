//! The control loop: events into the rules, due writes out of them, answers back in.
//!
//! It owns the rules' state, so nothing here needs a lock. It guarantees that nothing is written but by the leader, and
//! not before every kind has been listed once and the schemas of ours are read: until then what is missing would look like
//! what is to be removed. A standby takes all events in and keeps nothing to be written; when it leads, everything is looked at once.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use leadsman_core::cluster::Now;
use leadsman_core::podprobe::event::{Effects, Event, Kind, Write, WriteTarget};
use leadsman_lease::Leadership;
use leadsman_process::{ApiServer, Condition, clock};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use self::stage::Stage;
use crate::kinds::KINDS;
use crate::metrics::Metrics;
use crate::request::{self, Sent, WriteKind};
use crate::schemas;
use crate::slots::{Next, Slots, Turn};
use crate::watch::Arrival;
use leadsman_process::reply::{Cause, Disposition, describe_missing_rights};

mod anew;
mod stage;

/// Events taken in before writes are looked for again.
const BATCH: usize = 128;
/// Writes under way when the end comes may take this long, less than the process's grace period.
const DRAIN: Duration = Duration::from_secs(12);

/// The rules: what follows from an event, and what is due to be written.
pub(crate) trait Rules {
    /// Takes in an event.
    fn apply(&mut self, event: Event, now: Now) -> Effects;
    /// The write that is due on an object.
    fn write(&mut self, object: &WriteTarget, now: Now) -> Option<Write>;
}

/// The loop and what it owns.
pub(crate) struct Control<R> {
    rules: R,
    server: ApiServer,
    slots: Slots,
    under_way: FuturesUnordered<BoxFuture<'static, Answered>>,
    unlisted: Vec<Kind>,
    unread: Vec<Kind>,
    leadership: watch::Receiver<Leadership>,
    stage: Stage,
    /// The rules' monotonic clock counts from here.
    start: Instant,
    deadline: Option<Instant>,
    rights: Rights,
    metrics: Metrics,
}

struct Answered {
    object: WriteTarget,
    write: Write,
    kind: WriteKind,
    sent: Sent,
}

/// Writes that our account lacks the right for, and what the API server says about each.
struct Rights {
    lacking: BTreeMap<WriteKind, String>,
    condition: Condition,
}

impl<R: Rules> Control<R> {
    /// A loop that has seen nothing yet. `rights` holds while no write has been refused for lack of a right.
    pub(crate) fn new(
        rules: R,
        server: ApiServer,
        slots: Slots,
        leadership: watch::Receiver<Leadership>,
        rights: Condition,
        metrics: Metrics,
    ) -> Self {
        rights.ready();
        Self {
            rules,
            server,
            slots,
            under_way: FuturesUnordered::new(),
            unlisted: KINDS.to_vec(),
            unread: schemas::KINDS.map(|(kind, _)| kind).to_vec(),
            leadership,
            stage: Stage::Standby,
            start: clock::monotonic(),
            deadline: None,
            rights: Rights {
                lacking: BTreeMap::new(),
                condition: rights,
            },
            metrics,
        }
    }

    /// Runs until told to stop or no watch is left; then waits for the writes under way.
    pub(crate) async fn run(mut self, mut arrivals: Receiver<Arrival>, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        self.led();
        loop {
            self.begin_writes();
            let wake = self.slots.next_wake().filter(|_| self.may_write());
            tokio::select! {
                () = stop.cancelled() => break,
                Some(answered) = self.under_way.next() => self.answered(answered),
                received = arrivals.recv_many(&mut batch, BATCH) => {
                    if received == 0 {
                        break;
                    }
                    batch.drain(..).for_each(|arrival| self.arrived(arrival));
                }
                Ok(()) = self.leadership.changed() => self.led(),
                page = self.stage.page() => self.caught_up(page),
                () = clock::sleep_until(wake) => {}
                () = clock::sleep_until(self.deadline) => {
                    self.deadline = None;
                    self.apply(Event::Deadline);
                }
            }
        }
        self.drain().await;
    }

    fn arrived(&mut self, (at, event): Arrival) {
        let lag = clock::monotonic().saturating_duration_since(at);
        self.metrics.event_lag.observe(lag.as_secs_f64());
        let knew = self.knows_enough();
        match &event {
            Event::Listed(kind, ..) => self.unlisted.retain(|unlisted| unlisted != kind),
            Event::FieldsKept(kind, _) => self.unread.retain(|unread| unread != kind),
            _ => {}
        }
        self.apply(event);
        if !knew && self.knows_enough() {
            tracing::info!("initial lists complete, schemas read");
            if let Stage::Listing { term } = self.stage {
                self.begin_writing(term);
            }
        }
    }

    /// Whether what is seen is all that there is.
    fn knows_enough(&self) -> bool {
        self.unlisted.is_empty() && self.unread.is_empty()
    }

    fn now(&self) -> Now {
        Now {
            monotonic: clock::monotonic().saturating_duration_since(self.start),
            wall: clock::now(),
        }
    }

    fn apply(&mut self, event: Event) {
        let effects = self.rules.apply(event, self.now());
        self.deadline = effects
            .deadline
            .and_then(|deadline| self.start.checked_add(deadline));
        // What a standby would have to write is found when it leads, however much has changed by then.
        if let Stage::Writing { .. } = self.stage {
            for object in effects.dirty {
                self.slots.mark_dirty(object);
            }
        }
    }

    /// The Lease was taken, renewed or lost.
    fn led(&mut self) {
        let leadership = *self.leadership.borrow_and_update();
        if !self.stage.is_past(leadership) {
            return;
        }
        self.stage = Stage::Standby;
        self.slots.clear();
        let Leadership::Leads {
            term, after_others, ..
        } = leadership
        else {
            return;
        };
        if !self.knows_enough() {
            self.stage = Stage::Listing { term };
        } else if after_others {
            let pages = anew::read(self.server.clone());
            self.stage = Stage::CatchingUp { term, pages };
        } else {
            self.begin_writing(term);
        }
    }

    fn caught_up(&mut self, page: Option<Vec<Event>>) {
        match (page, self.stage.term()) {
            (Some(events), _) => events.into_iter().for_each(|event| self.apply(event)),
            (None, Some(term)) => self.begin_writing(term),
            (None, None) => {}
        }
    }

    fn begin_writing(&mut self, term: u64) {
        tracing::info!("leader and in sync, writes begin");
        self.stage = Stage::Writing { term };
        self.apply(Event::Synced);
    }

    /// The one gate that every write passes; what is sent later asks for the time that is left once more.
    fn may_write(&self) -> bool {
        let leadership = *self.leadership.borrow();
        matches!(self.stage, Stage::Writing { .. })
            && !self.stage.is_past(leadership)
            && leadership.time_left(clock::monotonic()).is_some()
    }

    fn begin_writes(&mut self) {
        while self.may_write()
            && let Some(object) = self.slots.take(clock::monotonic())
        {
            match self.rules.write(&object, self.now()) {
                Some(write) => self.begin(object, write),
                None => {
                    self.slots.end(object, Turn::NothingDue, clock::monotonic());
                }
            }
        }
        self.show_counts();
    }

    fn begin(&mut self, object: WriteTarget, write: Write) {
        let server = self.server.clone();
        let leadership = self.leadership.clone();
        let kind = WriteKind::of(&write);
        tracing::debug!(object = shown(&object), ?kind, "writing");
        self.under_way.push(Box::pin(async move {
            let sent = request::send(&server, &write, &leadership).await;
            Answered {
                object,
                write,
                kind,
                sent,
            }
        }));
    }

    fn answered(&mut self, answered: Answered) {
        let Answered {
            object,
            write,
            kind,
            sent,
        } = answered;
        self.metrics.wrote(kind, &sent.disposition);
        self.rights.note(kind, &sent.disposition);
        let shows = sent.observed.is_some();
        if let Some(observed) = sent.observed {
            self.apply(observed);
        }
        if sent.disposition == Disposition::Done {
            self.apply(Event::Written(object.clone()));
        }
        let turn = match &sent.disposition {
            Disposition::Done if shows => Turn::Written,
            // An answer that shows nothing leaves it to the watch to show what there is now.
            Disposition::Done
            | Disposition::Gone { .. }
            | Disposition::Expired { .. }
            | Disposition::Refused { .. }
            // It is about this write: another one may be allowed, and does not wait for it.
            | Disposition::Retry { cause: Cause::Denied, .. } => Turn::Over,
            // What is there was read back above: with it something else may be due.
            Disposition::AlreadyExists { .. } => Turn::Failed {
                cause: Cause::Conflict,
                after: None,
            },
            Disposition::Retry { cause, after, .. } => Turn::Failed {
                cause: *cause,
                after: *after,
            },
        };
        let next = self.slots.end(object.clone(), turn, clock::monotonic());
        self.report(kind, sent.disposition, next, object, write);
    }

    /// Speaks of a write that was not carried out, and tells the rules of one that never will be.
    fn report(
        &mut self,
        kind: WriteKind,
        disposition: Disposition,
        next: Next,
        object: WriteTarget,
        write: Write,
    ) {
        match (disposition, next) {
            (Disposition::Done, _) => {}
            (Disposition::Gone { reason } | Disposition::Expired { reason }, _) => {
                tracing::debug!(
                    object = shown(&object),
                    ?kind,
                    reason,
                    "object is gone or was replaced, nothing to write"
                );
            }
            (Disposition::AlreadyExists { reason }, _) => {
                tracing::debug!(
                    object = shown(&object),
                    ?kind,
                    reason,
                    "already exists, comparing"
                );
            }
            (
                Disposition::Refused { reason }
                | Disposition::Retry {
                    cause: Cause::Denied,
                    reason,
                    ..
                },
                _,
            )
            | (Disposition::Retry { reason, .. }, Next::GivenUp) => {
                tracing::warn!(
                    object = shown(&object),
                    ?kind,
                    reason,
                    "the API server refuses a write"
                );
                self.apply(Event::Refused(object, Box::new(write), reason));
            }
            (Disposition::Retry { cause, reason, .. }, Next::Goes) => match cause {
                Cause::Conflict | Cause::NoRight => {
                    tracing::debug!(
                        object = shown(&object),
                        ?kind,
                        ?cause,
                        reason,
                        "write failed, retrying"
                    );
                }
                _ => tracing::info!(
                    object = shown(&object),
                    ?kind,
                    ?cause,
                    reason,
                    "write failed, retrying"
                ),
            },
        }
    }

    fn show_counts(&self) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.in_flight.set(count(self.slots.in_flight()));
        self.metrics.pending.set(count(self.slots.pending()));
    }

    async fn drain(mut self) {
        let writes = self.under_way.len();
        let ended = async { while self.under_way.next().await.is_some() {} };
        let drained = timeout(DRAIN, ended).await.is_ok();
        let given_up = if drained { 0 } else { self.under_way.len() };
        tracing::info!(writes, given_up, "stopped writing");
    }
}

impl Rights {
    fn note(&mut self, kind: WriteKind, disposition: &Disposition) {
        let changed = match disposition {
            Disposition::Retry {
                cause: Cause::NoRight,
                reason,
                ..
            } => self.lacking.insert(kind, reason.clone()).is_none(),
            Disposition::Done => self.lacking.remove(&kind).is_some(),
            _ => false,
        };
        // The first object's words stand for all: each has other words, with its own name.
        if changed {
            self.show();
        }
    }

    fn show(&self) {
        if self.lacking.is_empty() {
            self.condition.ready();
            return;
        }
        let reasons = self.lacking.values().map(String::as_str);
        self.condition.not_ready(describe_missing_rights(reasons));
    }
}

/// An object's name; what is written of it, the kind of the write says.
fn shown(object: &WriteTarget) -> String {
    match object {
        WriteTarget::PodMarks(name)
        | WriteTarget::MarkerStatus(name)
        | WriteTarget::MarkerFinalizer(name) => name.to_string(),
        WriteTarget::NodePodProbe(name) => name.clone(),
    }
}

#[cfg(test)]
mod tests;

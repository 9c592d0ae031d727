//! Writes of the node's status: when one is due, and how far apart they are.
//!
//! The verdicts are compared with the status that the API server shows. Any difference is due, whoever caused it, so a
//! status that somebody has emptied is restored. Writes are kept few, because a large status is expensive for the API
//! server (66 ms of CPU for 87 KB, measured) and for each of its watchers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leadsman_api::NodePodProbeStatus;

use super::key::ProbeKey;
use super::message_limits::MessageLimits;
use super::status_draft::{
    DraftInput, MESSAGE_PAUSE, StatusDraft, StatusRow, Unprobed, has_same_unprobed, shows_unprobed,
};
use crate::cluster::Now;

/// The shortest time from the begin of a write to the begin of the next.
const WRITE_PAUSE: Duration = Duration::from_millis(200);
/// The same as a multiple of the duration of the write: the more a write costs the API server, the rarer it is.
const PAUSE_PER_LENGTH: u32 = 10;
/// The limit of that multiple: one slow write says little about the next.
const MAX_WRITE_PAUSE: Duration = Duration::from_secs(5);
const _: () = assert!(WRITE_PAUSE.as_millis() < MAX_WRITE_PAUSE.as_millis());
/// The longest `Retry-After` that is obeyed.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// The pause after the API server has refused a status without any message for its size: nothing but a smaller spec helps.
const PAUSE_WITHOUT_MESSAGES: Duration = Duration::from_mins(1);
/// How long messages take no more than what was accepted after such a refusal.
const ROOM_KEPT: Duration = Duration::from_mins(10);

/// How a write of the status ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StatusWriteEnd {
    /// The status is written. What the API server shows now comes as a [`NodeEvent::Plan`](super::NodeEvent::Plan) before this.
    Written {
        /// Whether the status in the reply names anything that cannot be probed.
        shows_unprobed: bool,
    },
    /// The API server refuses it for its size: the next one is smaller, if it can be.
    TooLarge {
        /// The time from the begin of the failed write to the begin of the next.
        backoff: Duration,
    },
    /// The status is not written, or not known to be.
    Failed {
        /// The time from the begin of the failed write to the begin of the next: it grows with the failures in a row.
        backoff: Duration,
        /// The API server's `Retry-After`, from now on.
        retry_after: Option<Duration>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WritePace {
    /// No write is under way, and none begins before `until`.
    Pausing { until: Duration },
    /// A write is under way.
    Writing {
        since: Duration,
        /// Whether it names anything that cannot be probed.
        shows_unprobed: bool,
    },
}

/// The field of the status for what cannot be probed, which OpenKruise's definition of the kind lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CannotProbeField {
    /// The time when it was last sent with something new, or first seen with what an earlier agent has sent.
    sent_at: Option<Duration>,
    /// Whether the API server drops it. Then no write is due for what only this field would say.
    is_dropped: bool,
}

/// The bytes that all messages may take where the API server refuses statuses for their size, by its refusals alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MessageRoom {
    bytes: Option<usize>,
    /// Whether it has refused the last status.
    is_refused: bool,
    /// The time when whole messages are tried again.
    until: Duration,
}

/// The status that the API server shows, and when it is written. Times are since the agent's start.
#[derive(Debug)]
pub(super) struct StatusReporter {
    /// `None` while there is no object to write to.
    observed: Option<NodePodProbeStatus>,
    /// The time to compare again; `None` if nothing has changed.
    look_at: Option<Duration>,
    pace: WritePace,
    overdue_since: Option<Duration>,
    /// The time when each entry was last sent with more than a new time.
    sent_at: HashMap<Arc<ProbeKey>, Duration>,
    cannot_probe: CannotProbeField,
    message_limits: MessageLimits,
    message_room: MessageRoom,
}

impl StatusReporter {
    pub(super) fn new() -> Self {
        Self {
            observed: None,
            look_at: None,
            pace: WritePace::Pausing {
                until: Duration::ZERO,
            },
            overdue_since: None,
            sent_at: HashMap::new(),
            cannot_probe: CannotProbeField::default(),
            message_limits: MessageLimits::default(),
            message_room: MessageRoom::default(),
        }
    }

    /// Takes in the status that the API server shows; `None` without an object.
    pub(super) fn observe_status(&mut self, status: Option<NodePodProbeStatus>) {
        self.observed = status;
        if let Some(shown) = &self.observed {
            // The definition may have been upgraded: once the field is seen, it is kept.
            self.cannot_probe.is_dropped &= !shows_unprobed(shown);
        } else {
            // Nothing can be written without an object, so nothing is late.
            self.overdue_since = None;
            self.cannot_probe = CannotProbeField::default();
        }
        self.compare_at_once();
    }

    /// Compares as soon as a write may begin: a verdict may have changed.
    pub(super) fn compare_at_once(&mut self) {
        self.look_at = Some(Duration::ZERO);
    }

    /// Compares when the message of an entry may be sent, if nothing else has changed. Not earlier: comparing all
    /// entries after each run would cost the node far more than the probes do.
    pub(super) fn compare_when_message_due(&mut self, key: &Arc<ProbeKey>) {
        let sent_at = self.sent_at.get(key);
        let at = sent_at.map_or(Duration::ZERO, |sent_at| *sent_at + MESSAGE_PAUSE);
        self.look_at = Some(self.look_at.map_or(at, |look_at| look_at.min(at)));
    }

    /// Forgets an entry that has left the plan.
    pub(super) fn forget_entry(&mut self, key: &Arc<ProbeKey>) {
        self.sent_at.remove(key);
    }

    /// The time since which a due write has not succeeded.
    pub(super) fn overdue_since(&self) -> Option<Duration> {
        self.overdue_since
    }

    /// The time to call [`StatusReporter::begin_write`] next.
    pub(super) fn write_at(&self) -> Option<Duration> {
        match (self.pace, &self.observed, self.look_at) {
            (WritePace::Pausing { until }, Some(_), Some(at)) => Some(at.max(until)),
            _ => None,
        }
    }

    /// The status to write, if a write is due. [`StatusReporter::end_write`] is to follow.
    pub(super) fn begin_write(
        &mut self,
        rows: &[StatusRow<'_>],
        unprobed: &[Unprobed],
        now: Now,
    ) -> Option<NodePodProbeStatus> {
        if self.write_at()? > now.monotonic {
            return None;
        }
        let observed = self.observed.as_ref()?;
        if self.cannot_probe.sent_at.is_none() && shows_unprobed(observed) {
            // Written by an earlier agent: the first runs will show whether it still holds.
            self.cannot_probe.sent_at = Some(now.monotonic);
        }
        let CannotProbeField {
            sent_at,
            is_dropped,
        } = self.cannot_probe;
        if self.message_room.until <= now.monotonic {
            self.message_room.bytes = None;
        }
        let mut draft = StatusDraft::new(DraftInput {
            rows,
            unprobed,
            observed,
            keeps_unprobed: !is_dropped,
            sent_at: &self.sent_at,
            limits: &self.message_limits,
            message_room: self.message_room.bytes,
            is_refused: self.message_room.is_refused,
            now,
        });
        self.message_room.bytes = draft.message_room;
        self.message_room.is_refused = false;
        self.message_limits = std::mem::take(&mut draft.limits);
        let is_news = !has_same_unprobed(&draft.status, observed);
        if is_news && !is_dropped {
            let at = sent_at.map_or(Duration::ZERO, |sent_at| sent_at + MESSAGE_PAUSE);
            draft.is_due |= at <= now.monotonic;
            draft.due_at = Some(draft.due_at.map_or(at, |due_at| due_at.min(at)));
        }
        self.look_at = draft.due_at;
        if !draft.is_due {
            self.overdue_since = None;
            return None;
        }
        // Although the write may fail: one whose reply is lost was carried out all the same.
        for key in draft.changed {
            self.sent_at.insert(key, now.monotonic);
        }
        // Not moved by further attempts: it says since when the status is behind.
        self.overdue_since.get_or_insert(now.monotonic);
        if is_news {
            self.cannot_probe.sent_at = Some(now.monotonic);
        }
        self.pace = WritePace::Writing {
            since: now.monotonic,
            shows_unprobed: shows_unprobed(&draft.status),
        };
        Some(draft.status)
    }

    pub(super) fn end_write(&mut self, end: StatusWriteEnd, now: Now) {
        let WritePace::Writing {
            since,
            shows_unprobed: sent,
        } = self.pace
        else {
            debug_assert!(false, "a write ends once: {end:?}");
            return;
        };
        let now = now.monotonic;
        let until = match end {
            StatusWriteEnd::Written { shows_unprobed } => {
                self.overdue_since = None;
                // A status shows whether the field is kept only if it names something.
                if sent {
                    self.cannot_probe.is_dropped = !shows_unprobed;
                }
                // The time that the write took stands for what it costs the API server.
                let took = now.saturating_sub(since);
                since + (took * PAUSE_PER_LENGTH).clamp(WRITE_PAUSE, MAX_WRITE_PAUSE)
            }
            StatusWriteEnd::TooLarge { backoff } => {
                let is_smallest = self.message_room.bytes == Some(0);
                self.message_room.is_refused = !is_smallest;
                self.message_room.until = now + ROOM_KEPT;
                let least = if is_smallest {
                    PAUSE_WITHOUT_MESSAGES
                } else {
                    WRITE_PAUSE
                };
                (since + backoff).max(now + least)
            }
            StatusWriteEnd::Failed {
                backoff,
                retry_after,
            } => {
                // Counted from its begin, since a write that timed out has taken long already; but at least a pause
                // from now.
                let asked = retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
                (since + backoff).max(now + asked.max(backoff.min(WRITE_PAUSE)))
            }
        };
        self.pace = WritePace::Pausing { until };
        // Verdicts may have changed while the write was under way, and after a failure all
        // differences are left.
        self.compare_at_once();
    }
}

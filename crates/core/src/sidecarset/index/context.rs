//! What the parts of the index share while an event is processed: the time, the timers, and what the event affects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::{Now, ObjectName};
use crate::sidecarset::event::WriteTarget;

/// Name of a set.
pub(super) type SetName = Arc<str>;
/// Name of a pod.
pub(super) type PodName = Arc<ObjectName>;

#[derive(Debug)]
pub(super) struct IndexContext {
    /// When the current event happened.
    pub(super) now: Now,
    /// Whether every kind has been listed and this process writes. Pods are not compared with sets before.
    pub(super) synced: bool,
    pub(super) affected: Affected,
    pub(super) timers: Timers,
}

impl Default for IndexContext {
    fn default() -> Self {
        Self {
            now: Now {
                monotonic: Duration::ZERO,
                wall: jiff::Timestamp::UNIX_EPOCH,
            },
            synced: false,
            affected: Affected::default(),
            timers: Timers::default(),
        }
    }
}

/// What an event affects. Empty between events.
#[derive(Debug, Default)]
pub(super) struct Affected {
    /// Pods that may be something else to the sets that they were injected by.
    pub(super) pods: BTreeSet<PodName>,
    /// Pods that sets may select that they were not injected by.
    pub(super) selected: BTreeSet<PodName>,
    /// Sets whose writes may be due.
    pub(super) sets: BTreeSet<SetName>,
    /// Targets whose write may be due.
    pub(super) due: BTreeSet<WriteTarget>,
}

/// Refused writes that may be tried again, by their time on the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Duration, WriteTarget)>);

impl Timers {
    pub(super) fn set(&mut self, time: Duration, target: WriteTarget) {
        self.0.insert((time, target));
    }

    /// Takes a target out whose time has come.
    pub(super) fn pop_due(&mut self, now: Duration) -> Option<WriteTarget> {
        let (time, _) = self.0.first()?;
        if *time > now {
            return None;
        }
        self.0.pop_first().map(|(_, target)| target)
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.0.first().map(|(time, _)| *time)
    }
}

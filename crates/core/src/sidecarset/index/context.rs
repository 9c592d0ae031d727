//! What the parts of the index share while an event is processed: the time, the timers, and what the event affects.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::{Now, Timers};
use crate::sidecarset::event::WriteTarget;

pub(super) use crate::cluster::PodName;

/// Name of a set.
pub(super) type SetName = Arc<str>;

#[derive(Debug, Default)]
pub(super) struct IndexContext {
    /// When the current event happened.
    pub(super) now: Now,
    /// Whether every kind has been listed and this process writes. Pods are not compared with sets before.
    pub(super) synced: bool,
    pub(super) affected: Affected,
    /// Targets to be looked at again: after a refusal, without a reply, or once a pod has settled.
    pub(super) timers: Timers<WriteTarget>,
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

//! The index: the observed state of the cluster as far as sets need it, and the writes that follow from it.
//!
//! A state machine without a clock, a client or a task. [`Index::observe`] takes an event and returns the objects that
//! may have to be written; [`Index::due`] returns the write of an object when there is room to send it.

use super::condition::WhenWritten;
use super::event::{Event, IndexEffects, Write, WriteTarget};
use crate::cluster::Now;

/// The settings of the index.
#[derive(Clone, Debug)]
pub struct Config {
    /// The namespace of the manager: of revisions and of the whitelist.
    pub namespace: String,
    /// Whether sets may patch any annotation where the whitelist has no rule for them.
    pub allows_unlisted_metadata: bool,
    /// When a pod gets the condition that says whether it can be upgraded.
    pub condition: WhenWritten,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: "leadsman-system".to_owned(),
            allows_unlisted_metadata: false,
            condition: WhenWritten::default(),
        }
    }
}

/// The observed state of the cluster, and the writes that follow from it.
#[derive(Debug)]
pub struct Index {
    #[expect(dead_code, reason = "what follows from events is not built yet")]
    config: Config,
}

impl Index {
    /// An index that has observed nothing yet.
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Takes in what happened at `now`.
    pub fn observe(&mut self, event: Event, now: Now) -> IndexEffects {
        let _ = (event, now);
        IndexEffects::default()
    }

    /// The write that is due for a target, if there is one. It counts as sent.
    pub fn due(&mut self, target: &WriteTarget, now: Now) -> Option<Write> {
        let _ = (target, now);
        None
    }
}

//! The events that a watch delivers, and why it delivers nothing.

use std::time::Duration;

use crate::reply::{Disposition, RetryCause};

/// An event that a watch delivers.
#[derive(Debug)]
pub enum WatchEvent<K> {
    /// A list begins. Items of an earlier list that did not complete are void.
    ListStarted,
    /// A page of the list was received; its items come next. The resourceVersion is that of the whole list.
    ListPage(String),
    /// An object of the list.
    ListItem(K),
    /// The list is complete, at this resourceVersion. What it did not contain does not exist.
    ListComplete(String),
    /// A watch is established: changes are delivered from now on.
    Following,
    /// An object that was created or changed.
    Changed(K),
    /// An object that was deleted, in its last state.
    Deleted(K),
    /// Changes are not delivered until the next [`WatchEvent::Following`]. The watch retries by itself.
    Failed(WatchFailure),
}

/// Why changes are not delivered.
#[derive(Debug)]
pub struct WatchFailure {
    /// The request that failed.
    pub phase: WatchPhase,
    /// The meaning of its reply.
    pub disposition: Disposition,
    /// The longest time until the next attempt.
    pub retry_in: Duration,
}

impl WatchFailure {
    /// Why changes of this resource are not delivered, beginning with what an operator can do about it; `advice` is that
    /// where the API server does not know the resource.
    pub fn explain_failure(&self, resource: &str, advice: &'static str) -> String {
        let reply = self.disposition.reason().unwrap_or_default();
        let cause = match self.disposition {
            Disposition::Retry { cause, .. } => Some(cause),
            _ => None,
        };
        match cause {
            Some(RetryCause::NoSuchKind) => {
                format!("the API server does not serve {resource}: {advice} ({reply})")
            }
            Some(RetryCause::NoRight) => self.disposition.explain_reason(),
            _ => {
                let verb = match self.phase {
                    WatchPhase::Listing => "list",
                    WatchPhase::Watching => "watch",
                };
                format!(
                    "cannot {verb} {resource}: {}",
                    self.disposition.explain_reason()
                )
            }
        }
    }
}

/// The two kinds of requests of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchPhase {
    /// LIST: until it is complete, what exists is not known.
    Listing,
    /// WATCH from the version of a complete list.
    Watching,
}

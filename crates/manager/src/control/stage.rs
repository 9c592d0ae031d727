//! What stands between this manager and writing.

use std::future::pending;

use futures::StreamExt;
use futures::stream::BoxStream;
use leadsman_core::podprobe::event::Event;
use leadsman_lease::Leadership;

/// How far it has come. Terms are those of [`Leadership`].
pub(super) enum Stage {
    /// Another manager writes, or nobody does.
    Standby,
    /// It leads, and not every kind has been listed, or a schema is not read yet.
    Listing { term: u64 },
    /// It leads after another one, and reads anew what its decisions hang on.
    CatchingUp {
        term: u64,
        pages: BoxStream<'static, Vec<Event>>,
    },
    /// It writes.
    Writing { term: u64 },
}

impl Stage {
    /// The term that it belongs to.
    pub(super) fn term(&self) -> Option<u64> {
        match self {
            Self::Standby => None,
            Self::Listing { term } | Self::CatchingUp { term, .. } | Self::Writing { term } => {
                Some(*term)
            }
        }
    }

    /// Whether it belongs to another term than this one.
    pub(super) fn is_past(&self, leadership: Leadership) -> bool {
        self.term() != leadership.term()
    }

    /// The next of what is read anew; none when that is all.
    pub(super) async fn page(&mut self) -> Option<Vec<Event>> {
        match self {
            Self::CatchingUp { pages, .. } => pages.next().await,
            Self::Standby | Self::Listing { .. } | Self::Writing { .. } => pending().await,
        }
    }
}

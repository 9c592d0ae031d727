//! The stages of a feature on the way to its first write.

use std::future::pending;

use futures::StreamExt;
use futures::stream::BoxStream;
use leadsman_lease::Leadership;

/// How far a feature has come. Terms are those of [`Leadership`]. `E` is its event.
pub(crate) enum Stage<E> {
    /// Another process leads, or nobody does.
    Standby,
    /// The process leads, but a kind has not been listed or a schema has not been read yet.
    Listing { term: u64 },
    /// The process leads after another one, and re-lists the kinds that its decisions depend on.
    Relisting {
        term: u64,
        pages: BoxStream<'static, Vec<E>>,
    },
    /// The process leads and writes.
    Writing { term: u64 },
}

impl<E> Stage<E> {
    /// The term that it belongs to.
    pub(crate) fn term(&self) -> Option<u64> {
        match self {
            Self::Standby => None,
            Self::Listing { term } | Self::Relisting { term, .. } | Self::Writing { term } => {
                Some(*term)
            }
        }
    }

    /// Whether it belongs to another term than this leadership.
    pub(crate) fn is_past(&self, leadership: Leadership) -> bool {
        self.term() != leadership.term_number()
    }

    /// The next page of what is re-listed; none when that was the last.
    pub(crate) async fn next_page(&mut self) -> Option<Vec<E>> {
        match self {
            Self::Relisting { pages, .. } => pages.next().await,
            Self::Standby | Self::Listing { .. } | Self::Writing { .. } => pending().await,
        }
    }
}

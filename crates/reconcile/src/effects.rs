//! The effects of an event on the targets of writes.

use std::time::Duration;

/// The effects of an event on the targets `T` of a feature's writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effects<T> {
    /// Targets whose desired or observed state changed. Whether a write is due is asked when there is room to send it.
    pub dirty: Vec<T>,
    /// The time at which the feature wants to be called again unless another event comes first, by the monotonic clock of
    /// [`Now`](crate::Now).
    pub deadline: Option<Duration>,
}

// Derived, it would want a default of the targets.
impl<T> Default for Effects<T> {
    fn default() -> Self {
        Self {
            dirty: Vec::new(),
            deadline: None,
        }
    }
}

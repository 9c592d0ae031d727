//! Timers: what is reconsidered when its time comes.

use std::collections::BTreeSet;
use std::time::Duration;

/// Timers `T`, sorted by their time on the monotonic clock of [`Now`](crate::Now), or on another one (`C`).
#[derive(Debug)]
pub struct Timers<T, C = Duration>(BTreeSet<(C, T)>);

impl<T, C> Default for Timers<T, C> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: Ord, C: Copy + Ord> Timers<T, C> {
    /// Moves a timer from the time that it is `set` for to the `next`.
    pub fn reset(&mut self, set: &mut Option<C>, next: Option<C>, timer: impl Fn() -> T) {
        let before = std::mem::replace(set, next);
        if before == next {
            return;
        }
        if let Some(before) = before {
            self.0.remove(&(before, timer()));
        }
        self.0.extend(next.map(|next| (next, timer())));
    }

    /// Sets a timer that is never moved.
    pub fn set(&mut self, time: C, timer: T) {
        self.0.insert((time, timer));
    }

    /// Takes a timer out whose time has come.
    pub fn pop_due(&mut self, now: C) -> Option<T> {
        let (time, _) = self.0.first()?;
        if *time > now {
            return None;
        }
        self.0.pop_first().map(|(_, timer)| timer)
    }

    /// The time at which the first timer is due.
    pub fn deadline(&self) -> Option<C> {
        self.0.first().map(|(time, _)| *time)
    }
}

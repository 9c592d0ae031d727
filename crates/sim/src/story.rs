//! The story of a run: what happened, in order. It is what a failing seed is explained by, and its hash shows that a seed tells
//! the same story twice.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The story so far. Clones share it.
#[derive(Clone)]
pub(crate) struct Story {
    start: Instant,
    state: Arc<Mutex<StoryLines>>,
}

#[derive(Default)]
struct StoryLines {
    lines: Vec<String>,
    violations: Vec<Violation>,
    writes: BTreeMap<String, usize>,
    failed_call: Option<Duration>,
}

/// A violation: something that should never happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule, by which a shrunk plan is known to fail likewise.
    pub rule: &'static str,
    /// An account of what happened.
    pub what: String,
}

impl Story {
    /// A story that begins now.
    pub(crate) fn begin() -> Self {
        Self {
            start: Instant::now(),
            state: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, StoryLines> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells that somebody did something.
    pub(crate) fn tell(&self, who: &str, what: impl Display) {
        let at = self.start.elapsed().as_secs_f64();
        self.lock()
            .lines
            .push(format!("{at:9.3}  {who:<14}  {what}"));
    }

    /// Tells of a violation.
    pub(crate) fn violate(&self, rule: &'static str, what: impl Display) {
        let what = what.to_string();
        self.tell("VIOLATION", format_args!("{rule}: {what}"));
        self.lock().violations.push(Violation { rule, what });
    }

    /// Counts a write of leadsman, by what was written.
    pub(crate) fn count_write(&self, what: String) {
        *self.lock().writes.entry(what).or_default() += 1;
    }

    /// The writes since the last call.
    pub(crate) fn take_writes(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.lock().writes)
    }

    /// Remembers that the call of a webhook failed.
    pub(crate) fn note_failed_call(&self) {
        self.lock().failed_call = Some(self.start.elapsed());
    }

    /// How long ago the call of a webhook failed last.
    pub(crate) fn since_failed_call(&self) -> Option<Duration> {
        let at = self.lock().failed_call?;
        Some(self.start.elapsed().saturating_sub(at))
    }

    /// Forgets the lines so far.
    pub(crate) fn forget_lines(&self) {
        self.lock().lines.clear();
    }

    /// Whether anything was violated.
    pub(crate) fn is_violated(&self) -> bool {
        !self.lock().violations.is_empty()
    }

    /// Time since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The lines and violations.
    pub(crate) fn end(self) -> (Vec<String>, Vec<Violation>) {
        let mut state = self.lock();
        (
            std::mem::take(&mut state.lines),
            std::mem::take(&mut state.violations),
        )
    }
}

//! What the demo prints: what was done, expected, seen, and how long it took.

use std::cell::Cell;
use std::time::{Duration, Instant};

use leadsman_testkit::clock;

/// The narrator.
pub(crate) struct Tell {
    began: Instant,
    /// What passed between the user's Enter and the start of this process.
    before: Duration,
    step: Cell<u32>,
}

impl Tell {
    pub(crate) fn new() -> Self {
        let before = std::env::var("LEADSMAN_DEMO_SPENT")
            .ok()
            .and_then(|seconds| seconds.parse().ok());
        let before = before.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self {
            began: clock::now(),
            before: before.unwrap_or_default(),
            step: Cell::new(0),
        }
    }

    /// Since the user hit Enter.
    pub(crate) fn since_enter(&self) -> Duration {
        self.before + self.began.elapsed()
    }

    /// A new part of the story.
    pub(crate) fn title(text: &str) {
        println!("\n== {text}");
    }

    /// A remark.
    pub(crate) fn note(text: &str) {
        println!("   {text}");
    }

    /// A step begins: what is done, and what must come of it.
    pub(crate) fn step(&self, done: &str, expected: &str) -> Instant {
        self.step.set(self.step.get() + 1);
        println!("\n{:>2} done      {done}", self.step.get());
        println!("   expected  {expected}");
        clock::now()
    }

    /// It came, `since` the step's beginning.
    pub(crate) fn seen(&self, since: Instant, what: &str) {
        println!("   seen      {what}");
        println!(
            "             after {:.1} s ({:.0} s since Enter)",
            since.elapsed().as_secs_f64(),
            self.since_enter().as_secs_f64()
        );
    }
}

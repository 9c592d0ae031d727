//! Runs of many seeds, spread over threads. Each run has a runtime of its own, so none knows of another.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::plan::{FaultClass, Plan};
use crate::shrink::shrink;
use crate::story::Violation;
use crate::world::{SeedOutcome, run};

/// A seed that fails.
#[derive(Debug)]
pub struct FailedSeed {
    /// The seed.
    pub seed: u64,
    /// The outcome of the plan as it was made.
    pub whole: SeedOutcome,
}

impl FailedSeed {
    /// The rule that was violated first.
    pub fn rule(&self) -> &'static str {
        self.whole
            .violations
            .first()
            .map_or("", |violation| violation.rule)
    }

    /// The outcome of the fewest steps that violate the same rule, found by at most `runs` runs.
    pub fn shrunk(&self, runs: usize) -> SeedOutcome {
        let rule = self.rule();
        let plan = shrink(&self.whole.plan, runs, |plan| {
            run(plan)
                .violations
                .iter()
                .any(|violation| violation.rule == rule)
        });
        run(&plan)
    }
}

/// Runs seeds from one on until so many have run, or until `is_over`; returns how many ran, and those that failed, by seed.
pub fn run_seeds(
    seeds: std::ops::Range<u64>,
    jobs: usize,
    classes: &[FaultClass],
    is_over: impl Fn() -> bool + Sync,
) -> (u64, Vec<FailedSeed>) {
    let next = AtomicU64::new(seeds.start);
    let count = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while !is_over() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let whole = run(&Plan::of_seed(seed, classes));
                    count.fetch_add(1, Ordering::Relaxed);
                    if !whole.violations.is_empty() {
                        let mut failures = failures.lock().expect("no thread panics with it");
                        failures.push(FailedSeed { seed, whole });
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("all threads have ended");
    failures.sort_by_key(|failure| failure.seed);
    (count.into_inner(), failures)
}

impl SeedOutcome {
    /// The story and its end, to be read.
    pub fn render(&self) -> String {
        let mut text = self.story.join("\n");
        for violation in &self.violations {
            let Violation { rule, what } = violation;
            text.extend(["\nVIOLATED ", rule, ": ", what]);
        }
        if let Some(settled) = self.settled.filter(|settled| *settled > Duration::ZERO) {
            text.extend(["\nright after ", &format!("{settled:?}")]);
        }
        text + "\n"
    }
}

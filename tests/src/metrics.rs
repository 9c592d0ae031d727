//! What leadsman's `/metrics` say.

use anyhow::{Context, Result};

/// The sum of the counters whose lines have all of these words; zero where there is none yet.
///
/// # Errors
/// When one is no whole number.
pub fn sum_of_counters(metrics: &str, words: &[&str]) -> Result<u64> {
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    let counters = lines.filter(|line| words.iter().all(|word| line.contains(word)));
    let counts = counters.map(|line| {
        let count = line.rsplit(' ').next().unwrap_or_default();
        count.parse::<u64>().with_context(|| line.to_owned())
    });
    counts.sum()
}

/// Whether a manager has nothing to write, now or later, and waits for no answer.
pub fn is_at_rest(metrics: &str) -> bool {
    let gauges = ["leadsman_writes_in_flight ", "leadsman_workqueue_depth{"];
    gauges.iter().all(|gauge| {
        let mut lines = metrics
            .lines()
            .filter(|line| line.starts_with(gauge))
            .peekable();
        lines.peek().is_some() && lines.all(|line| line.ends_with(" 0"))
    })
}

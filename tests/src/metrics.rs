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

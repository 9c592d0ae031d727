//! How generated flows of any feature are chosen, made by a seed and described.

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::ops::Range;

use anyhow::{Context, Result};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// How many flows are played, and the seed of the first: `LEADSMAN_FLOWS` and `LEADSMAN_FLOW_SEED`, else `count` and any.
pub(crate) fn chosen_flows(count: usize) -> Result<(usize, u64)> {
    let count = number("LEADSMAN_FLOWS")?.map_or(Ok(count), usize::try_from)?;
    let first = number("LEADSMAN_FLOW_SEED")?;
    let first = first.unwrap_or_else(|| RandomState::new().hash_one("flows") >> 16);
    Ok((count, first))
}

fn number(variable: &str) -> Result<Option<u64>> {
    let value = std::env::var(variable).ok();
    let number = value.map(|value| value.parse::<u64>()).transpose();
    number.with_context(|| format!("{variable} is no number"))
}

/// So many steps of a seed. The same seed has the same steps as long as the strategy is as it is.
pub(crate) fn generate_steps<S: Debug>(
    seed: u64,
    step: impl Strategy<Value = S>,
    count: Range<usize>,
) -> Vec<S> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let all = prop::collection::vec(step, count);
    let tree = all.new_tree(&mut runner);
    tree.expect("nothing is filtered out").current()
}

/// How to play a flow again, and its steps, a line each.
pub(crate) fn describe_flow(seed: u64, steps: &[impl Debug]) -> String {
    let again = format!("the flow LEADSMAN_FLOW_SEED={seed} LEADSMAN_FLOWS=1");
    let steps = steps.iter().enumerate();
    let steps = steps.map(|(place, step)| format!("{place:>4} {step:?}"));
    let lines: Vec<_> = iter::once(again).chain(steps).collect();
    lines.join("\n")
}

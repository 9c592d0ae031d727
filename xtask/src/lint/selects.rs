//! Each `tokio::select!` of `crates/` polls its branches in the order in which they stand, and says why in that order: one
//! of a random order makes a simulation that differs from run to run, and an order without a thought may starve a branch.

use anyhow::{Context as _, Result};

use super::Findings;
use crate::{cargo, sources};

pub(super) fn check() -> Result<Findings> {
    let root = cargo::root();
    let mut findings = Vec::new();
    for file in sources::rust_files(&root.join("crates"), &|_| false)? {
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("reading {}", file.display()))?;
        let place = file.strip_prefix(root).unwrap_or(&file).display();
        let lines = selects_without_order(&text).into_iter();
        findings.extend(lines.map(|line| {
            format!(
                "{place}:{line}: begin the `select!` with a comment on its order, and `biased;`"
            )
        }));
    }
    Ok(findings)
}

/// The numbers of the lines of those `select!` that have no `biased;` first, or no comment beside it.
fn selects_without_order(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let begins = |line: &&str| line.ends_with("select! {") && !line.starts_with("//");
    let selects = lines.iter().enumerate().filter(|(_, line)| begins(line));
    let without = selects.filter(|(at, _)| {
        let inside = &lines[at + 1..];
        let comments = inside.iter().take_while(|line| line.starts_with("//"));
        let before = comments.count();
        let is_biased = inside.get(before) == Some(&"biased;");
        let is_told = before > 0 || inside.get(1).is_some_and(|line| line.starts_with("//"));
        !(is_biased && is_told)
    });
    without.map(|(at, _)| at + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_select_has_an_order_and_a_reason() {
        for (text, without) in [
            (
                "x = tokio::select! {\n// Why.\n// More.\nbiased;\na => b,\n}",
                vec![],
            ),
            ("tokio::select! {\nbiased;\n// Why.\na => b,\n}", vec![]),
            ("tokio::select! {\nbiased;\na => b,\n}", vec![1]),
            ("\ntokio::select! {\n// Why.\na => b,\n}", vec![2]),
            ("// tokio::select! {\n", vec![]),
        ] {
            assert_eq!(selects_without_order(text), without, "{text}");
        }
    }
}

//! Tests that a page names as proofs: `path.rs::name`, as `cargo xtask rules` prints them. A test that is renamed would leave
//! a claim behind that nobody can check.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::Findings;
use crate::cargo;

/// Pages that name a test in each row.
const PAGES: &[&str] = &["docs/fixed-here.md"];

pub(super) fn check() -> Result<Findings> {
    let mut findings = Vec::new();
    for page in PAGES {
        let text = fs::read_to_string(cargo::root().join(page)).context(*page)?;
        let missing = named_tests(&text).filter(|(file, name)| {
            let source = fs::read_to_string(cargo::root().join(file));
            !source.is_ok_and(|source| source.contains(&format!("fn {name}(")))
        });
        findings.extend(missing.map(|(file, name)| {
            format!("{page} names {file}::{name}, which is not there; name another test, or take the row away")
        }));
    }
    Ok(findings)
}

/// File and function of each test that stands in backquotes.
fn named_tests(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|code| code.split_once("::"))
        .filter(|(file, _)| Path::new(file).extension().is_some_and(|it| it == "rs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_by_file_and_function() {
        let page = "| `kubectl` | `a/b.rs::one`, `c.rs::two` | `module::three` |";
        let found: Vec<_> = named_tests(page).collect();
        assert_eq!(found, [("a/b.rs", "one"), ("c.rs", "two")]);
    }

    #[test]
    fn each_page_names_tests_and_all_of_them_are_there() {
        for page in PAGES {
            let text = fs::read_to_string(cargo::root().join(page)).unwrap();
            assert!(named_tests(&text).next().is_some(), "{page}");
        }
        assert_eq!(check().unwrap(), [""; 0]);
    }
}

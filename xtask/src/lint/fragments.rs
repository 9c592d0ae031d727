//! A comment of the product begins with what it is about. One that begins with a pronoun or a preposition ("Of a name that …",
//! "By which …", "None if …") has to be read twice, and cannot be understood where a tool shows it alone.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::Findings;
use crate::{cargo, sources};

/// The words that no comment begins with.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "After", "Against", "Also", "As", "At", "Before", "Beside", "By", "For", "From", "His", "In", "It", "Its", "More", "None",
    "Of", "On", "Only", "Since", "Such", "That", "Their", "Then", "There", "They", "Those", "To", "Until", "Up", "What",
    "When", "Where", "Which", "Who", "Whose", "With", "Within", "Without",
];

pub(super) fn check() -> Result<Findings> {
    let mut findings = Vec::new();
    let is_tests = |path: &Path| path.ends_with("tests");
    let folder = |name: &str| sources::rust_files(&cargo::root().join(name), &is_tests);
    for file in folder("crates")?.into_iter().chain(folder("image")?) {
        let place = file.strip_prefix(cargo::root()).unwrap_or(&file).display();
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {place}"))?;
        if file.ends_with("tests.rs") {
            continue;
        }
        findings.extend(fragments(&text).map(|(line, word)| {
            format!("{place}:{line}: begin with a noun or a verb in place of {word:?}")
        }));
    }
    Ok(findings)
}

/// The numbers of the lines in which a comment begins with one of [`WORDS`], with that word. Test modules are left out.
fn fragments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let product = text.split("#[cfg(test)]\nmod tests {").next();
    let lines = product.unwrap_or_default().lines().map(str::trim_start);
    let mut before = "";
    lines.enumerate().filter_map(move |(at, line)| {
        let begins = comment(line).filter(|_| comment(before).is_none());
        before = line;
        let word = begins?
            .split(|letter: char| !letter.is_alphanumeric())
            .next()?;
        WORDS.contains(&word).then_some((at + 1, word))
    })
}

/// The text of a line that is a comment, or the documentation of an item.
fn comment(line: &str) -> Option<&str> {
    let text = line.strip_prefix("//")?;
    let text = text.strip_prefix('/').unwrap_or(text);
    (!text.starts_with(['!', '/'])).then(|| text.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_begins_with_a_noun() {
        for (text, found) in [
            ("/// Of a name.\nfn a() {}", &[(1, "Of")][..]),
            ("fn a() {\n    // None: nothing.\n}", &[(2, "None")]),
            ("/// A name,\n/// of course.", &[]),
            ("/// Whether it is.\n/// `None` means no.", &[]),
            ("// Ofen.\n//! Of a module.\n//// Of nothing.", &[]),
            ("x; // By the way.", &[]),
            ("fn a() {}\n\n#[cfg(test)]\nmod tests {\n// By it.\n}", &[]),
        ] {
            assert_eq!(fragments(text).collect::<Vec<_>>(), found, "{text}");
        }
    }
}

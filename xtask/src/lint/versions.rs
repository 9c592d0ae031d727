//! One version: that of the workspace. Chart, Dockerfile and texts that name leadsman's version name this one. And the fuzz
//! targets, which have a lock file of their own, are built with the versions of crates that are shipped.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::Findings;
use crate::{cargo, sources};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where leadsman's version may be named.
const PLACES: &[&str] = &[
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "Dockerfile",
    "docs",
    "charts",
    "kustomize",
];

/// What stands before leadsman's version, in names of images and archives and in fields.
const BEFORE: &[&str] = &[
    "leadsman:",
    "leadsman-",
    "image.version=",
    "app.kubernetes.io/version: ",
    "\nversion: ",
    "\nappVersion: ",
];

const CHANGELOG: &str = "CHANGELOG.md";

pub(super) fn check() -> Result<Findings> {
    let root = cargo::root();
    let mut findings = Vec::new();
    for place in PLACES {
        for file in sources::files(&root.join(place), &|_| false, &|_| true)? {
            // What is no text names no version.
            let Ok(text) = fs::read_to_string(&file) else {
                continue;
            };
            findings.extend(other_versions(&text).map(|other| finding(&file, other)));
        }
    }
    let changelog = root.join(CHANGELOG);
    let text = fs::read_to_string(&changelog).context(CHANGELOG)?;
    let newest = newest_release(&text).filter(|version| *version != VERSION);
    findings.extend(newest.map(|other| finding(&changelog, other)));
    let lock = |path: &str| fs::read_to_string(root.join(path)).context(path.to_owned());
    let (own, fuzz) = (lock("Cargo.lock")?, lock("fuzz/Cargo.lock")?);
    findings.extend(other_crates(&own, &fuzz).map(|(name, version)| {
        format!(
            "fuzz/Cargo.lock has {name} {version}, Cargo.lock has another; run `cargo update --manifest-path fuzz/Cargo.toml \
             {name} --precise VERSION`"
        )
    }));
    Ok(findings)
}

/// Crates, with their versions, of a lock file that another one has in other versions alone.
fn other_crates<'a>(
    own: &'a str,
    other: &'a str,
) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
    let known: BTreeSet<_> = locked(own).collect();
    let names: BTreeSet<_> = known.iter().map(|(name, _)| *name).collect();
    locked(other).filter(move |one| names.contains(one.0) && !known.contains(one))
}

/// The names and versions of the crates in a lock file, where the one stands on the line after the other.
fn locked(lock: &str) -> impl Iterator<Item = (&str, &str)> {
    let crates = lock.split("\nname = \"").skip(1);
    crates.filter_map(|one| {
        let (name, rest) = one.split_once("\"\nversion = \"")?;
        Some((name, rest.split('"').next()?))
    })
}

fn finding(file: &Path, other: &str) -> String {
    let file = file.strip_prefix(cargo::root()).unwrap_or(file);
    format!(
        "{} names version {other}, the workspace is {VERSION}; change it there, or `version` in Cargo.toml",
        file.display()
    )
}

/// Versions of leadsman that are not the workspace's.
fn other_versions(text: &str) -> impl Iterator<Item = &str> {
    let after = move |before: &&'static str| {
        let before = *before;
        text.match_indices(before)
            .map(move |(at, _)| &text[at + before.len()..])
    };
    let named = BEFORE.iter().flat_map(after).filter_map(version);
    named.filter(|version| *version != VERSION)
}

/// The version at the beginning of a text, behind a quote or not.
fn version(text: &str) -> Option<&str> {
    let text = text.trim_start_matches(['"', '\'']);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let number = text[..end.unwrap_or(text.len())].trim_end_matches('.');
    (number.split('.').count() == 3).then_some(number)
}

/// The version of the first section that is one.
fn newest_release(changelog: &str) -> Option<&str> {
    let mut headings = changelog
        .lines()
        .filter_map(|line| line.strip_prefix("## ["));
    headings.find_map(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_of_leadsman_are_found() {
        for (text, found) in [
            ("docker pull leadsman:9.9.9", Some("9.9.9")),
            ("helm install leadsman-9.9.9.tgz", Some("9.9.9")),
            ("name: leadsman\nversion: 9.9.9\n", Some("9.9.9")),
            ("name: leadsman\nappVersion: \"9.9.9\"\n", Some("9.9.9")),
            (
                "LABEL org.opencontainers.image.version=\"9.9.9\"",
                Some("9.9.9"),
            ),
            ("leadsman-9.9.9.", Some("9.9.9")),
            ("Kubernetes 1.34.4, leadsman-manager, leadsman:9", None),
            ("  version: 9.9.9", None),
        ] {
            assert_eq!(other_versions(text).next(), found, "{text}");
        }
        let own = format!("leadsman:{VERSION}");
        assert_eq!(other_versions(&own).next(), None);
    }

    #[test]
    fn this_workspace_names_one_version() {
        assert_eq!(check().unwrap(), [""; 0]);
    }

    #[test]
    fn a_crate_of_another_version_is_found() {
        let lock = |crates: &[(&str, &str)]| {
            let crates = crates.iter();
            let crates = crates.map(|(name, version)| {
                format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n\n")
            });
            format!("version = 4\n\n{}", crates.collect::<String>())
        };
        let own = lock(&[("a", "1.0.0"), ("a", "2.0.0"), ("b", "1.0.0")]);
        let other = lock(&[("a", "2.0.0"), ("b", "1.0.1"), ("c", "1.0.0")]);
        let found: Vec<_> = other_crates(&own, &other).collect();
        assert_eq!(found, [("b", "1.0.1")]);
    }

    #[test]
    fn the_newest_release_stands_first() {
        let text = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-01-01\n\n## [0.2.0]\n";
        assert_eq!(newest_release(text), Some("0.3.0"));
        assert_eq!(newest_release("# Changelog\n\n## [Unreleased]\n"), None);
    }
}

//! The full texts of the licences of what a program links. Most of them must be passed on with each copy of the program.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::crates::{Graph, Id};
use crate::cargo::cargo;

/// How the names of files with such texts begin, in capitals.
const BEGINNINGS: &[&str] = &["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

const INTRODUCTION: &str = "\
leadsman is under the Apache License 2.0. Its program contains code of the libraries below, each under its own licence, whose
texts follow. It is also linked with glibc (LGPL-2.1-or-later), whose sources Debian and others give out: who wants to link it
with another one builds it anew from its sources.
";

/// The texts for all packages of the graph: each text once, below the names of the packages that have it.
pub(super) fn text(graph: &Graph, target: &str) -> Result<String> {
    let folders = folders(target)?;
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut list = String::new();
    for package in graph.packages.values().filter(|it| it.checksum.is_some()) {
        let folder = folders.get(&package.id());
        let folder = folder.with_context(|| format!("no folder of {}", package.reference()))?;
        let name = format!("{} {}", package.name, package.version);
        let licence = package.licence.as_deref().unwrap_or("see its text");
        writeln!(list, "  {name}: {licence}")?;
        for file in licences_in(folder)? {
            let text = String::from_utf8_lossy(&fs::read(&file)?).trim().to_owned();
            texts.entry(text).or_default().push(name.clone());
        }
    }
    Ok(joined(&list, &texts))
}

fn joined(list: &str, texts: &BTreeMap<String, Vec<String>>) -> String {
    let line = "-".repeat(80);
    let texts = texts.iter().map(|(text, packages)| {
        let mut packages = packages.clone();
        packages.dedup();
        format!("\n{line}\n{}\n{line}\n\n{text}\n", packages.join(", "))
    });
    let texts: String = texts.collect();
    format!("{INTRODUCTION}\n{list}{texts}")
}

/// The files with licences of a package, in the folders of the sources of others too, as those of jemalloc in its bindings.
fn licences_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_licence = BEGINNINGS.iter().any(|it| name.starts_with(it));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files.extend(licences_in(&entry.path())?);
        } else if is_licence && kind.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Where cargo has unpacked each package.
fn folders(target: &str) -> Result<BTreeMap<Id, PathBuf>> {
    let output = cargo()
        .args([
            "metadata",
            "--locked",
            "--format-version=1",
            "--filter-platform",
            target,
        ])
        .output()
        .context("running cargo metadata")?;
    if !output.status.success() {
        bail!(
            "`cargo metadata` failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let folders = packages.filter_map(|package| {
        let text = |name: &str| package[name].as_str().map(ToOwned::to_owned);
        let folder = PathBuf::from(text("manifest_path")?).parent()?.to_owned();
        Some(((text("name")?, text("version")?), folder))
    });
    Ok(folders.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_licences_are_found_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "LICENSE-MIT",
            "license.txt",
            "COPYING",
            "Cargo.toml",
            "licensing.rs",
        ] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir(folder.path().join("library")).unwrap();
        fs::write(folder.path().join("library/COPYING"), "").unwrap();
        let found = licences_in(folder.path()).unwrap();
        let names = found
            .iter()
            .map(|it| it.strip_prefix(folder.path()).unwrap());
        let expected = ["COPYING", "LICENSE-MIT", "library/COPYING", "license.txt"];
        assert!(names.eq(expected.map(Path::new)), "{found:?}");
    }

    #[test]
    fn a_text_that_several_have_stands_once() {
        let texts = BTreeMap::from([
            (
                "The text.".to_owned(),
                vec!["a 1.0.0".to_owned(), "b 2.0.0".to_owned()],
            ),
            ("Another.".to_owned(), vec!["b 2.0.0".to_owned()]),
        ]);
        let joined = joined("  a 1.0.0: MIT\n  b 2.0.0: MIT\n", &texts);
        assert_eq!(joined.matches("The text.").count(), 1);
        assert!(joined.contains("\na 1.0.0, b 2.0.0\n"), "{joined}");
    }
}

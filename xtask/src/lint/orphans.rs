//! Source files that no `mod` line reaches. Cargo never compiles them, so neither rustc nor clippy reports that they are
//! dead; rust-analyzer's `unlinked-file` does, but only in an editor.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Findings;
use crate::{cargo, sources};

pub(super) fn check(metadata: &Value) -> Result<Findings> {
    let packages = metadata["packages"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let folders: Vec<&Path> = packages
        .iter()
        .filter_map(|package| Path::new(package["manifest_path"].as_str()?).parent())
        .collect();
    let mut findings = Vec::new();
    for (package, folder) in packages.iter().zip(&folders) {
        let targets = package["targets"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let mut reached = BTreeSet::new();
        for root in targets
            .iter()
            .filter_map(|target| target["src_path"].as_str())
        {
            reach(Path::new(root), true, &mut reached)?;
        }
        // Files of a package inside another's folder are checked with that package.
        let nested = |path: &Path| {
            folders
                .iter()
                .any(|other| *other == path && other != folder)
        };
        let files = sources::rust_files(folder, &nested)?;
        findings.extend(
            files
                .iter()
                .filter(|file| !reached.contains(*file))
                .map(|file| {
                    let place = file
                        .strip_prefix(cargo::root().canonicalize().unwrap_or_default())
                        .unwrap_or(file);
                    format!(
                        "no `mod` line reaches {}; declare it or delete it",
                        place.display()
                    )
                }),
        );
    }
    Ok(findings)
}

/// Adds `file` and all files its `mod` lines lead to. `owns_folder`: a crate root, a `mod.rs` or the file of a path
/// attribute, whose modules are its neighbours; those of any other file are in a folder of the file's name.
fn reach(file: &Path, owns_folder: bool, reached: &mut BTreeSet<PathBuf>) -> Result<()> {
    if !reached.insert(file.to_owned()) {
        return Ok(());
    }
    let text =
        std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let neighbours = file.parent().context("a file has a folder")?;
    let folder = if owns_folder {
        neighbours.to_owned()
    } else {
        file.with_extension("")
    };
    let mut path = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            path = rest.split('"').next();
        } else if let Some(name) = declared(line) {
            // rustc looks for a path attribute beside the file itself.
            let path = path.take();
            let candidates = match path {
                Some(path) => vec![neighbours.join(path)],
                None => vec![
                    folder.join(format!("{name}.rs")),
                    folder.join(name).join("mod.rs"),
                ],
            };
            if let Some(found) = candidates.iter().find(|candidate| candidate.is_file()) {
                // The modules of a file with a path attribute are its neighbours too.
                let owns_folder =
                    path.is_some() || found.file_name().is_some_and(|name| name == "mod.rs");
                reach(found, owns_folder, reached)?;
            }
        }
    }
    Ok(())
}

/// `name` of a line `pub(crate) mod name;`. A module with a body is no file.
pub(super) fn declared(line: &str) -> Option<&str> {
    let words = line.split(" //").next()?.trim_end().strip_suffix(';')?;
    let (visibility, name) = words.rsplit_once("mod ")?;
    let visibility = visibility.trim_end();
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (plain && (visibility.is_empty() || visibility.starts_with("pub"))).then_some(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_lines_that_declare_a_file_count() {
        for (line, name) in [
            ("mod a;", Some("a")),
            ("pub mod a_1;", Some("a_1")),
            ("pub(crate) mod a; // why", Some("a")),
            ("mod tests {", None),
            ("// mod a;", None),
            ("use mod a;", None),
            ("let model = 1;", None),
        ] {
            assert_eq!(declared(line), name, "{line}");
        }
    }

    #[test]
    fn a_file_that_nothing_declares_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(place("src/a")).unwrap();
        std::fs::write(
            place("src/lib.rs"),
            "mod a;\n#[path = \"odd/place.rs\"]\nmod c;\n",
        )
        .unwrap();
        std::fs::write(place("src/a.rs"), "mod b;\n").unwrap();
        std::fs::create_dir(place("src/odd")).unwrap();
        for file in ["src/a/b.rs", "src/odd/place.rs", "src/b.rs"] {
            std::fs::write(place(file), "").unwrap();
        }
        let metadata = json!({"packages": [{
            "manifest_path": place("Cargo.toml"),
            "targets": [{"src_path": place("src/lib.rs")}],
        }]});
        let findings = check(&metadata).unwrap();
        assert!(
            findings.len() == 1 && findings[0].contains("src/b.rs"),
            "{findings:?}"
        );
    }
}

//! Calling cargo, and what it says about the workspace.
//!
//! Tests and demo are built with `--workspace` and a choice of targets, never with `-p`: cargo unites the features of
//! what is selected, so one selection means that each dependency is compiled once. Only what is measured is built alone,
//! as it is shipped.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// The workspace's folder.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A cargo command at the workspace's root, the same cargo that runs this program.
///
/// Without what that cargo says about the package `xtask` in the environment: build scripts (ring's) look at such
/// variables and would run again at each change between this cargo and one that a user calls.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// What `cargo metadata` says of the workspace's own packages, without their dependencies.
pub(crate) fn metadata() -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version=1"])
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo metadata")?;
    if !output.status.success() {
        bail!("`cargo metadata` failed, its words are above");
    }
    serde_json::from_slice(&output.stdout).context("what cargo metadata printed")
}

/// A program that cargo built.
#[derive(Debug)]
pub(crate) struct Executable {
    /// The package it belongs to.
    pub(crate) package: String,
    /// The target: for a library's unit tests its name, for an integration test the file's.
    pub(crate) target: String,
    /// `lib`, `bin`, `test`, `example`.
    pub(crate) kind: String,
    /// A test harness, rather than the program itself.
    pub(crate) harness: bool,
    pub(crate) path: PathBuf,
    /// The package's folder, where cargo starts tests.
    pub(crate) folder: PathBuf,
}

/// An example in every build: cargo then counts the features of dev-dependencies in, as it does for tests, and what one
/// verb has compiled serves all others.
const AS_FOR_TESTS: [&str; 2] = ["--example", "crds"];

/// Builds the targets that `selection` names in all packages, showing cargo's own progress.
pub(crate) fn build(selection: &[&str]) -> Result<Vec<Executable>> {
    let all = ["--workspace"].iter().chain(&AS_FOR_TESTS).chain(selection);
    build_only(&all.copied().collect::<Vec<_>>())
}

/// Builds what these arguments of `cargo build` say and no more, showing cargo's own progress.
pub(crate) fn build_only(arguments: &[&str]) -> Result<Vec<Executable>> {
    let mut child = cargo()
        .args(["build", "--message-format=json-render-diagnostics"])
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .context("running cargo build")?;
    let stdout = child.stdout.take().context("cargo's stdout is a pipe")?;
    let mut built = Vec::new();
    for line in BufReader::new(stdout).lines() {
        built.extend(
            serde_json::from_str(&line?)
                .ok()
                .as_ref()
                .and_then(executable),
        );
    }
    if !child.wait()?.success() {
        bail!(
            "`cargo build {}` failed, its words are above",
            arguments.join(" ")
        );
    }
    Ok(built)
}

/// The program `name` among what was built.
pub(crate) fn program(built: &[Executable], name: &str) -> Result<PathBuf> {
    let found = built.iter().find(|it| !it.harness && it.target == name);
    found
        .map(|it| it.path.clone())
        .with_context(|| format!("the workspace has no program `{name}`"))
}

fn executable(message: &Value) -> Option<Executable> {
    let path = message["executable"].as_str()?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some(Executable {
        package: package_name(message["package_id"].as_str()?),
        target: message["target"]["name"].as_str()?.to_owned(),
        kind: message["target"]["kind"][0].as_str()?.to_owned(),
        harness: message["profile"]["test"].as_bool()?,
        path: path.into(),
        folder: folder.to_owned(),
    })
}

/// The name in a package id: `path+file:///w/xtask#0.1.0` or `path+file:///w/crates/api#leadsman-api@0.1.0`.
fn package_name(id: &str) -> String {
    let (place, version) = id.rsplit_once('#').unwrap_or((id, ""));
    match version.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => place.rsplit('/').next().unwrap_or(place).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_forms_of_a_package_id() {
        for (id, name) in [
            ("path+file:///w/xtask#0.1.0", "xtask"),
            (
                "path+file:///w/crates/api#leadsman-api@0.1.0",
                "leadsman-api",
            ),
        ] {
            assert_eq!(super::package_name(id), name);
        }
    }
}

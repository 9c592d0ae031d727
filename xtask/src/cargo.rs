//! Runs cargo, and reads its JSON: the workspace's metadata and the programs that a build made.
//!
//! Tests and the demo are built with `--workspace` and a choice of targets, never with `-p`. Cargo unifies the features of
//! the packages that one command selects (The Cargo Book, "Feature unification"), so with one selection each dependency is
//! compiled once. Only the bench and a release build packages alone, with the features that are shipped.
//!
//! Programs are linked statically, because leadsman's run in an image without a libc. The tests' own are linked likewise, so
//! that clippy, rustdoc, the tests and the image of the test bed share what is compiled for one of them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::image::Architecture;

/// The root folder of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A command of the cargo that runs this program, at the root of the workspace.
///
/// Cargo sets `CARGO_PKG_*` and `CARGO_MANIFEST_*` for the package that it runs, here `xtask`. They are removed: ring's
/// build script watches them (`rerun-if-env-changed`), and would run again whenever a build by `cargo xtask` follows one by
/// `cargo`, or the other way round.
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

/// rustc's flag that links the libc into a program.
pub(crate) const STATIC: &str = "-Ctarget-feature=+crt-static";

/// Cargo with this verb, for static programs of this machine. A target is named, because the flags of rustc concern macros and
/// build scripts too where none is, and those cannot be linked like this.
pub(crate) fn for_tests(verb: &str) -> Result<Command> {
    let architecture = Architecture::native()?;
    architecture.check()?;
    let mut command = cargo();
    command
        .args([verb, "--target", architecture.triple()])
        .env("CARGO_ENCODED_RUSTFLAGS", STATIC);
    Ok(command)
}

/// The output of `cargo metadata` for the packages of the workspace, without their dependencies.
pub(crate) fn metadata() -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version=1"])
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo metadata")?;
    if !output.status.success() {
        bail!("`cargo metadata` failed; its message is above");
    }
    serde_json::from_slice(&output.stdout).context("parsing the output of `cargo metadata`")
}

/// An executable that cargo built.
#[derive(Debug)]
pub(crate) struct Executable {
    /// The name of its package.
    pub(crate) package: String,
    /// The name of its target. Unit tests have that of their library or program.
    pub(crate) target: String,
    /// `lib`, `bin`, `test`, `example`.
    pub(crate) kind: String,
    /// Whether it is a test executable, and not the program itself.
    pub(crate) harness: bool,
    pub(crate) path: PathBuf,
    /// The folder of its package, in which cargo runs tests.
    pub(crate) folder: PathBuf,
}

/// Selects an example in every build. Cargo then unifies the features of dev-dependencies too, as it does for tests, so
/// that all verbs of xtask share what one of them has compiled.
const AS_FOR_TESTS: [&str; 2] = ["--example", "crds"];

/// Builds the selected targets of all packages. Cargo's progress goes to stderr.
pub(crate) fn build(selection: &[&str]) -> Result<Vec<Executable>> {
    let mut command = for_tests("build")?;
    command.arg("--workspace").args(AS_FOR_TESTS);
    build_by(command.args(selection))
}

/// Runs `cargo build` with exactly these arguments. Cargo's progress goes to stderr.
pub(crate) fn build_only(arguments: &[&str]) -> Result<Vec<Executable>> {
    build_by(cargo().arg("build").args(arguments))
}

/// Runs this `cargo build`. Cargo's progress goes to stderr.
pub(crate) fn build_by(command: &mut Command) -> Result<Vec<Executable>> {
    let arguments: Vec<_> = command
        .get_args()
        .map(|it| it.to_string_lossy().into_owned())
        .collect();
    let mut child = command
        .arg("--message-format=json-render-diagnostics")
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
            "`cargo {}` failed; its messages are above",
            arguments.join(" ")
        );
    }
    Ok(built)
}

/// The path of the program `name` among the executables that were built.
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

/// The package's name in a package id: `path+file:///w/xtask#0.1.0` or `path+file:///w/crates/api#leadsman-api@0.1.0`.
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

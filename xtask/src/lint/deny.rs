//! What may be linked: licences, sources and banned crates, by cargo-deny and `deny.toml`.
//!
//! cargo-deny is no component of a toolchain. If PATH has it in another version or not at all, it is compiled once, which
//! takes minutes, and kept in the cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::{Findings, passes};
use crate::cache;
use crate::cargo::{self, cargo};

/// The version that the gate runs: another may know other checks.
const VERSION: &str = "0.20.2";

const ADVICE: &str =
    "see what cargo-deny says above; `deny.toml` has the reasons of what is allowed";

/// Everything that needs no network.
pub(super) fn check() -> Result<Findings> {
    let mut command = Command::new(program()?);
    command
        .args([
            "check",
            "--hide-inclusion-graph",
            "bans",
            "licenses",
            "sources",
        ])
        .current_dir(cargo::root());
    passes(&mut command, ADVICE)
}

/// Known vulnerabilities of what is linked, for a release.
///
/// They come to be known by themselves, and their database is a git repository elsewhere: the verdict is none on a commit,
/// so the gate does not ask for it. False if the database could not be fetched.
pub(crate) fn advisories() -> Result<bool> {
    let program = program()?;
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(cargo::root()).status()
    };
    if !run(&["--log-level=error", "fetch", "db"])?.success() {
        return Ok(false);
    }
    if !run(&[
        "check",
        "--disable-fetch",
        "--hide-inclusion-graph",
        "advisories",
    ])?
    .success()
    {
        bail!(
            "see the advisories above; one that does not concern leadsman goes into `deny.toml`, with the reason"
        );
    }
    Ok(true)
}

/// cargo-deny in the version of the gate, compiled if there is none.
fn program() -> Result<PathBuf> {
    let kept = cache::folder()?.join(format!("cargo-deny-{VERSION}"));
    let compiled = kept.join("bin/cargo-deny");
    let known = ["cargo-deny".into(), compiled.clone()];
    if let Some(program) = known.into_iter().find(|program| is_current(program)) {
        return Ok(program);
    }
    eprintln!("lint: compiling cargo-deny {VERSION} (minutes, the first time only)");
    // Unoptimised: it reads a few hundred manifests, and would take three times as long to compile.
    let status = cargo()
        .args(["install", "--quiet", "--locked", "--debug", "--root"])
        .arg(&kept)
        .arg(format!("cargo-deny@{VERSION}"))
        .status()?;
    if !status.success() {
        bail!("cargo-deny {VERSION} could not be compiled; its messages are above");
    }
    Ok(compiled)
}

fn is_current(program: &Path) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|it| it.stdout.trim_ascii() == format!("cargo-deny {VERSION}").as_bytes())
}

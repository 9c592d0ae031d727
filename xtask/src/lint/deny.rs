//! What may be linked: licences, sources and banned crates, by cargo-deny and `deny.toml`.

use std::process::Command;

use anyhow::{Result, bail};

use super::{Findings, passes};
use crate::cargo;
use crate::tool::Tool;

const CARGO_DENY: Tool = Tool {
    name: "cargo-deny",
    version: "0.20.2",
    features: &[],
};

const ADVICE: &str =
    "see what cargo-deny says above; `deny.toml` has the reasons of what is allowed";

/// Everything that needs no network.
pub(super) fn check() -> Result<Findings> {
    let mut command = Command::new(CARGO_DENY.program()?);
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
    let program = CARGO_DENY.program()?;
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

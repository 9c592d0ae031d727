//! `cargo xtask crds`: the committed CRDs, written from the types of `leadsman-api` or compared with them.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::cargo;

/// Arguments of `crds`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail if a committed file is not what the types say
    #[arg(long)]
    pub(crate) check: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let built = cargo::build(&[])?;
    let status = Command::new(cargo::program(&built, "crds")?)
        .args(arguments.check.then_some("--check"))
        .current_dir(cargo::root())
        .status()
        .context("running the example `crds` of leadsman-api")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

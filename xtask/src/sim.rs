//! `cargo xtask sim`: builds the simulation and runs it. It needs no cluster and no root.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::cargo;

/// Arguments of `sim`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build it with optimisations, for many seeds; before the simulation's own options
    #[arg(long)]
    release: bool,
    /// The simulation's own options: --seeds COUNT, --from SEED, --minutes MINUTES, --jobs COUNT, --story SEED, --replay FILE,
    /// --without CLASS, --churn HOURS
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "OPTIONS"
    )]
    words: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut selection = vec!["--package", "leadsman-sim", "--bins"];
    if arguments.release {
        selection.extend(["--profile", "measure"]);
    }
    let program = cargo::program(&cargo::build_only(&selection)?, "sim")?;
    let error = Command::new(program).args(&arguments.words).exec();
    Err(error).context("running the simulation")
}

//! `cargo xtask bed`: a test bed that stays up, by the program `leadsman-bed` of testkit.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::{cargo, root};

/// Arguments of `bed`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Raise a bed, or end those that were raised
    action: Action,
    /// With `down`: which one, by the name that `up` printed; all when left out
    name: Option<String>,
    /// Only etcd and kube-apiserver: needs no root and runs no pods
    #[arg(long)]
    control_plane: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Action {
    Up,
    Down,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let built = cargo::build(&["--bin", "leadsman-bed"])?;
    let program = cargo::program(&built, "leadsman-bed")?;
    let mut words = match (arguments.action, arguments.control_plane) {
        (Action::Up, true) => vec!["up", "--detach", "--control-plane"],
        (Action::Up, false) => vec!["up", "--detach"],
        (Action::Down, _) => vec!["down"],
    };
    words.extend(arguments.name.as_deref());
    let mut command = if arguments.control_plane {
        let mut command = Command::new(program);
        command.args(words);
        command
    } else {
        if matches!(arguments.action, Action::Up) {
            prepare_as_user(&program)?;
        }
        root::command(&program, &words, &[])?
    };
    let status = command.status().context("running leadsman-bed")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Compiles the cluster's programs as the user that hit Enter, so that the long part needs no root and the cache stays
/// the user's.
pub(crate) fn prepare_as_user(program: &Path) -> Result<()> {
    if root::is_root() {
        return Ok(());
    }
    let status = Command::new(program)
        .args(["prepare", "--control-plane"])
        .status()
        .context("running leadsman-bed")?;
    if !status.success() {
        bail!("the cluster's programs could not be compiled, the reason is above");
    }
    Ok(())
}

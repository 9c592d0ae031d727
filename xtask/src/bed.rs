//! `cargo xtask bed`: a test bed that stays up, by the program `leadsman-bed` of testkit.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::image::{self, Architecture, Profile};
use crate::{cargo, root};

/// The exit status by which `leadsman-bed down` says that only root can end what is left.
const LEFT_TO_ROOT: i32 = 4;

/// The variable by which `leadsman-bed prepare` tells where the cluster's programs are.
const PROGRAMS: &str = "LEADSMAN_PROGRAMS";

/// Arguments of `bed`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Raise a bed and print its name and its kubeconfig
    Up {
        /// Only etcd and kube-apiserver: needs no root and runs no pods
        #[arg(long)]
        control_plane: bool,
        /// How many nodes; the first has the control plane
        #[arg(long, default_value = "1", conflicts_with = "control_plane")]
        nodes: String,
    },
    /// End beds of either kind
    Down {
        /// Which one, by the name that `up` printed; all when left out
        name: Option<String>,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let built = cargo::build(&["--bin", "leadsman-bed"])?;
    let program = cargo::program(&built, "leadsman-bed")?;
    let status = match &arguments.action {
        Action::Up {
            control_plane: true,
            ..
        } => status(Command::new(program).args(["up", "--detach", "--control-plane"]))?,
        Action::Up { nodes, .. } => {
            let environment = prepare_as_user(&program)?;
            let words = ["up", "--detach", "--nodes", nodes];
            status(&mut root::command(&program, &words, &environment)?)?
        }
        Action::Down { name } => down(&program, name.as_deref())?,
    };
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Ends what the user can end, and through root what is left then.
fn down(program: &Path, name: Option<&str>) -> Result<ExitStatus> {
    let words: Vec<&str> = ["down"].into_iter().chain(name).collect();
    let ended = status(Command::new(program).args(&words))?;
    if ended.code() != Some(LEFT_TO_ROOT) {
        return Ok(ended);
    }
    let environment = prepare_as_user(program)?;
    status(&mut root::command(program, &words, &environment)?)
}

fn status(command: &mut Command) -> Result<ExitStatus> {
    command.status().context("running leadsman-bed")
}

/// Builds leadsman once as the test bed takes it, as programs that run by themselves and as an image of them. Returns the
/// environment in which testkit finds program and image. The agent's program and the plugin are beside `LEADSMAN_BIN`.
pub(crate) fn build_product() -> Result<[(String, OsString); 2]> {
    let image = image::make(Profile::Dev, Architecture::native()?)?;
    let leadsman = image.programs.find("leadsman")?;
    Ok([
        ("LEADSMAN_BIN".to_owned(), leadsman.into()),
        ("LEADSMAN_IMAGE".to_owned(), image.path.into_os_string()),
    ])
}

/// Compiles and makes what a node bed needs as the user that hit Enter, so that the long part needs no root and all that
/// is compiled stays the user's. Returns the environment in which root finds it; empty for root.
pub(crate) fn prepare_as_user(program: &Path) -> Result<Vec<(String, OsString)>> {
    if root::is_root() {
        return Ok(Vec::new());
    }
    prepare(program, &[])
}

/// Compiles and makes what a bed needs while `meanwhile` compiles with cargo. Go and rustc both have long parts on one core, so
/// that two cores do both sooner than one after the other.
pub(crate) fn prepare_beside<T>(
    program: &Path,
    words: &[&str],
    meanwhile: impl FnOnce() -> Result<T>,
) -> Result<T> {
    std::thread::scope(|scope| {
        let prepared = scope.spawn(|| prepare(program, words));
        let made = meanwhile();
        let prepared = prepared.join();
        prepared.map_err(|_| anyhow!("what the cluster needs could not be compiled"))??;
        made
    })
}

/// Compiles the cluster's programs, if they are not there yet, and returns their folder.
pub(crate) fn programs(program: &Path) -> Result<PathBuf> {
    let environment = prepare(program, &["--control-plane"])?;
    let folder = environment.into_iter().find(|(name, _)| name == PROGRAMS);
    let (_, folder) = folder.context("leadsman-bed named no folder of programs")?;
    Ok(folder.into())
}

/// Compiles the programs of another version, such as `kubernetes-1.31`, if they are not there yet, and returns their folder.
pub(crate) fn programs_of_other_version(program: &Path, name: &str) -> Result<PathBuf> {
    let folder = output(program, &["programs", name])?;
    Ok(folder.trim_end().into())
}

/// Runs `leadsman-bed prepare` and returns the environment that it prints.
fn prepare(program: &Path, words: &[&str]) -> Result<Vec<(String, OsString)>> {
    let words = output(program, &[&["prepare"], words].concat())?;
    let pairs = words.lines().filter_map(|line| line.split_once('='));
    Ok(pairs
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect())
}

/// What `leadsman-bed` prints when it compiles something.
fn output(program: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(words)
        .stderr(Stdio::inherit())
        .output()
        .context("running leadsman-bed")?;
    if !output.status.success() {
        bail!("what the cluster needs could not be compiled, the reason is above");
    }
    String::from_utf8(output.stdout).context("what leadsman-bed printed")
}

//! `cargo xtask bench`: builds leadsman as it is shipped and the program `leadsman-bench`, then runs that, as root where
//! nodes are needed.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::{bed, cargo, image, root};

/// Where results are committed.
const RESULTS: &str = "docs/performance";

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Measure the programs `leadsman` and `leadsman-agent` of this folder, such as those of an earlier commit, instead of
    /// building them; before WHAT
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// What to measure: agent, cold-start, flips, roll-out, injection, schedules, broadcast, clonesets, record, sets, restart, index, engine,
    /// tenants; all when left out. Then the bench's own options: --compare FILE, --scale PERCENT, --out FOLDER, --only ATTACK
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WHAT"
    )]
    words: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let leadsman = program(arguments.programs.as_deref())?;
    eprintln!("building the bench and the test bed");
    let built = cargo::build_only(&[
        "--profile",
        "measure",
        "--package",
        "leadsman-bench",
        "--package",
        "leadsman-testkit",
        "--bins",
    ])?;
    let bed = cargo::program(&built, "leadsman-bed")?;
    let mut environment = bed::prepare_as_user(&bed)?;
    environment.extend([
        ("LEADSMAN_BIN".to_owned(), leadsman.into_os_string()),
        ("LEADSMAN_BED".to_owned(), bed.into_os_string()),
    ]);
    let program = cargo::program(&built, "leadsman-bench")?;
    let words = words(&arguments.words);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut command = if needs_root(&words) {
        root::command(&program, &words, &environment)?
    } else {
        plain(&program, &words, environment)
    };
    let error = command.current_dir(cargo::root()).exec();
    Err(error).context("running leadsman-bench")
}

/// The program to measure, with the others beside it.
fn program(folder: Option<&Path>) -> Result<PathBuf> {
    if let Some(folder) = folder {
        let program = folder.join("leadsman").canonicalize();
        return program.with_context(|| format!("no `leadsman` in {}", folder.display()));
    }
    eprintln!("building leadsman as it is shipped; the first time takes about ten minutes");
    let built = image::shipped_programs()?;
    built.find("leadsman").map(Path::to_owned)
}

fn plain(program: &Path, words: &[&str], environment: Vec<(String, OsString)>) -> Command {
    let mut command = Command::new(program);
    command.args(words).envs(environment);
    command
}

/// Results of the full size go where they are committed, unless `--out` names another folder.
fn words(given: &[String]) -> Vec<String> {
    let has = |option: &str| given.iter().any(|word| word.starts_with(option));
    let mut words = given.to_vec();
    if !has("--out") && !has("--scale") && !has("--help") {
        words.extend(["--out".to_owned(), RESULTS.to_owned()]);
    }
    words
}

/// Only those that name others alone can do without.
fn needs_root(words: &[&str]) -> bool {
    const WITHOUT: [&str; 11] = [
        "cold-start",
        "flips",
        "roll-out",
        "injection",
        "schedules",
        "broadcast",
        "clonesets",
        "record",
        "sets",
        "index",
        "engine",
    ];
    let needs = words
        .iter()
        .any(|word| matches!(*word, "agent" | "restart" | "tenants"));
    needs || !words.iter().any(|word| WITHOUT.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nodes_need_root() {
        for (words, needs) in [
            (&[][..], true),
            (&["agent"], true),
            (&["tenants", "--only", "labels"], true),
            (&["flips", "restart"], true),
            (&["index", "--scale", "1"], false),
            (&["--out", "folder", "cold-start"], false),
        ] {
            assert_eq!(needs_root(words), needs, "{words:?}");
        }
    }

    #[test]
    fn only_results_are_written_without_being_told_to() {
        let words =
            |given: &[&str]| words(&given.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(words(&["index"]), ["index", "--out", RESULTS]);
        assert_eq!(words(&["index", "--scale", "1"]), ["index", "--scale", "1"]);
        assert_eq!(words(&["--out=x"]), ["--out=x"]);
    }
}

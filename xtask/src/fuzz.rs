//! `cargo xtask fuzz`: builds the targets of `fuzz` with libFuzzer and runs them, one after another.
//!
//! No nightly toolchain is needed, since no sanitizer is: there is no unsafe code to watch. libFuzzer sees which branches an
//! input takes, and reports panics, inputs that take long, and those that take much memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::cargo::{self, cargo};
use crate::image::Architecture;

/// Coverage as cargo-fuzz has it compiled in (`src/project.rs` of cargo-fuzz).
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];
/// The manifest of the targets, which are a workspace of their own.
pub(crate) const MANIFEST: &str = "fuzz/Cargo.toml";
/// What one input may take: seconds, megabytes of the whole process, and bytes of input.
const BOUNDS: &[&str] = &["-timeout=10", "-rss_limit_mb=1024", "-max_len=16384"];

/// Arguments of `fuzz`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these targets, files of `fuzz/fuzz_targets`
    targets: Vec<String>,
    /// How long each target runs; with 0 it runs once for each input that is known
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Run one target once, with this file
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let folder = cargo::root().join("target/fuzz");
    let mut build = cargo();
    build
        .args(["build", "--release", "--manifest-path", MANIFEST])
        .args(["--target", Architecture::native()?.triple()])
        .arg("--target-dir")
        .arg(&folder)
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
    // Of a name that is no target, cargo says which there are.
    for target in &arguments.targets {
        build.args(["--bin", target]);
    }
    let programs = cargo::build_by(&mut build)?;
    ensure!(
        arguments.input.is_none() || programs.len() == 1,
        "--input needs the target that the file is for"
    );
    for target in &programs {
        eprintln!("fuzz: {}", target.target);
        let mut command = Command::new(&target.path);
        match &arguments.input {
            Some(input) => command.arg(input),
            None => add_corpora(&mut command, &folder, &target.target, arguments.seconds)?,
        };
        let status = command.args(BOUNDS).status()?;
        ensure!(
            status.success(),
            "{0} has failed; its file is named above: `cargo xtask fuzz {0} --input FILE`",
            target.target
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds what was found before, to which more is added, and the inputs that are committed.
fn add_corpora<'a>(
    command: &'a mut Command,
    folder: &Path,
    target: &str,
    seconds: u32,
) -> Result<&'a mut Command> {
    let found = folder.join("corpus").join(target);
    let failures = folder.join("artifacts").join(target);
    for folder in [&found, &failures] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    command
        .arg(found)
        .arg(cargo::root().join("fuzz/corpus").join(target))
        .arg(format!("-artifact_prefix={}/", failures.display()))
        .arg("-print_final_stats=1");
    Ok(match seconds {
        0 => command.arg("-runs=0"),
        seconds => command.arg(format!("-max_total_time={seconds}")),
    })
}

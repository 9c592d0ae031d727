//! Small questions about processes and their logs, asked of `/proc` and the disk.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::unistd::Pid;

/// This process's children, those of all its threads.
pub(crate) fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    threads
        .flat_map(|thread| listed(&thread.path().join("children")))
        .collect()
}

/// The children of another process that has one thread.
pub(crate) fn children_of(process: u32) -> Vec<Pid> {
    listed(Path::new(&format!(
        "/proc/{process}/task/{process}/children"
    )))
}

fn listed(path: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .map(Pid::from_raw)
        .collect()
}

/// The last lines of a file, for an error message.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Cargo, without what a cargo that runs this program says about its package: build scripts (ring's) look at that and
/// would compile again at each change between the two.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// PATH with the places of system programs, which an ordinary user's PATH may lack.
pub(crate) fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin");
    path
}

/// Runs a program to its end and returns its stdout; its stderr is the error.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String> {
    run_command(
        Command::new(program)
            .args(arguments)
            .env("PATH", search_path()),
    )
}

/// Runs a command to its end and returns its stdout; its stderr is the error.
pub(crate) fn run_command(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let arguments: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        bail!(
            "`{program} {}` ended with {}: {}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

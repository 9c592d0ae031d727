//! The pages of `docs/reference/`: what programs say of themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cargo::{self, Executable};

const FIELDS: &str = "docs/reference/fields.md";
const COMMANDS: &str = "docs/reference/commands.md";

const COMMANDS_BEGIN: &str = "\
# Commands and flags

This page lists every subcommand and flag of leadsman's three programs: [`leadsman`](#leadsman) (manager, manifests, preflight),
[`leadsman-agent`](#leadsman-agent), and the plugin [`kubectl leadsman`](#kubectl-leadsman). `cargo xtask docs` writes it from their own help.

A flag can also be set by the environment variable that is named with it, if there is one. The chart sets flags of manager and agent by its values; for
other flags, use `manager.extraArgs` and `agent.extraArgs`. `leadsman manager --feature-gates` describes the feature gates.
";

/// Writes them.
pub(super) fn write() -> Result<()> {
    for (path, text) in pages()? {
        let folder = path.parent().context("a page is in a folder")?;
        fs::create_dir_all(folder)?;
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Those that are not what would be written.
pub(super) fn findings() -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for (path, text) in pages()? {
        if fs::read_to_string(&path).ok() != Some(text) {
            let path = path.strip_prefix(cargo::root()).unwrap_or(&path);
            findings.push(format!(
                "{} is not what the program says; run `cargo xtask docs` and commit what it wrote",
                path.display()
            ));
        }
    }
    Ok(findings)
}

fn pages() -> Result<[(PathBuf, String); 2]> {
    // With the selection of `manifests`, so that one build serves both.
    let programs = [
        "leadsman",
        "leadsman-agent",
        "kubectl-leadsman",
        "leadsman-bed",
    ];
    let built = cargo::build(&programs.map(|name| ["--bin", name]).concat())?;
    let fields = printed(&cargo::program(&built, "crds")?, &["--fields"])?;
    let root = cargo::root();
    Ok([
        (root.join(FIELDS), fields),
        (root.join(COMMANDS), commands(&built)?),
    ])
}

/// The help of the programs and of each of their verbs, as it is printed.
fn commands(built: &[Executable]) -> Result<String> {
    let mut page = COMMANDS_BEGIN.to_owned();
    for (program, typed) in [
        ("leadsman", "leadsman"),
        ("leadsman-agent", "leadsman-agent"),
        ("kubectl-leadsman", "kubectl leadsman"),
    ] {
        let path = cargo::program(built, program)?;
        let all = printed(&path, &["--help"])?;
        page.push_str(&section(typed, &all));
        for verb in verbs(&all) {
            let help = printed(&path, &[verb, "--help"])?;
            page.push_str(&section(&format!("{typed} {verb}"), &help));
            for further in verbs(&help) {
                let help = printed(&path, &[verb, further, "--help"])?;
                page.push_str(&section(&format!("{typed} {verb} {further}"), &help));
            }
        }
    }
    Ok(page)
}

fn section(title: &str, help: &str) -> String {
    format!("\n## {title}\n\n```text\n{}```\n", trimmed(help))
}

/// The words that begin the lines below `Commands:`.
fn verbs(help: &str) -> Vec<&str> {
    let (_, commands) = help.split_once("Commands:\n").unwrap_or_default();
    let lines = commands.lines().take_while(|line| !line.is_empty());
    // What belongs to the line before is further in.
    let own = lines.filter_map(|line| line.strip_prefix("  "));
    let own = own.filter(|line| !line.starts_with(' '));
    let words = own.filter_map(|line| line.split_whitespace().next());
    words.filter(|verb| *verb != "help").collect()
}

/// Without blanks at the ends of lines, which editors take away.
fn trimmed(help: &str) -> String {
    let lines: Vec<_> = help.lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}

/// What a program prints that sees no terminal, whose width it would keep to, and no variable, whose value it would show.
fn printed(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).env_clear().output();
    let output = output.with_context(|| program.display().to_string())?;
    if !output.status.success() {
        bail!(
            "{} {}: {}",
            program.display(),
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn verbs_are_found_in_a_help() {
        let help = "Usage: x\n\nCommands:\n  run   Runs\n          it\n  stop  Stops\n  help  Helps\n\nOptions:\n  -h\n";
        assert_eq!(super::verbs(help), ["run", "stop"]);
    }
}

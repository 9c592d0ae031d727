//! What is written and not by hand: the pages of `docs/reference/`, what programs say of themselves, and the picture of the demo's
//! terminal.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cargo::{self, Executable};

const FIELDS: &str = "docs/reference/fields.md";
const COMMANDS: &str = "docs/reference/commands.md";
/// The commands of the demo with what they print, which a case of the node suite types and compares.
const TOUR: &str = "demo/tour.md";
const TERMINAL: &str = "docs/terminal.svg";

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
                "{} is not what would be written; run `cargo xtask docs` and commit what it wrote",
                path.display()
            ));
        }
    }
    Ok(findings)
}

fn pages() -> Result<[(PathBuf, String); 3]> {
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
    let tour = fs::read_to_string(root.join(TOUR)).context(TOUR)?;
    Ok([
        (root.join(TERMINAL), terminal(&tour)),
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

/// A picture of a terminal in which the commands of a page were typed: those of its console blocks, one after the other.
fn terminal(page: &str) -> String {
    let mut lines = Vec::new();
    let mut is_typed = false;
    for line in page.lines() {
        match line {
            "```console" => is_typed = true,
            "```" => is_typed = false,
            _ if !is_typed => {}
            _ => {
                if line.starts_with("$ ") && !lines.is_empty() {
                    lines.push("");
                }
                lines.push(line);
            }
        }
    }
    // Pixels of a letter of this size.
    let columns = lines.iter().map(|line| line.chars().count()).max();
    let (width, height) = (columns.unwrap_or_default() * 8 + 32, lines.len() * 19 + 32);
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\" \
         aria-label=\"The demo's commands in a terminal, with what they print\">\n\
         <style>text {{ font: 13px monospace; fill: #d8dee9; white-space: pre }} .typed {{ fill: #ffffff; font-weight: bold }}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1f2933\"/>\n"
    );
    let shown = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| !line.is_empty());
    for (place, line) in shown {
        let (y, columns) = (place * 19 + 29, line.chars().count() * 8);
        let class = if line.starts_with("$ ") {
            " class=\"typed\""
        } else {
            ""
        };
        let text = line
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        // The width of letters differs by font: columns of tables are to stand below one another.
        let _ = writeln!(
            picture,
            "<text x=\"16\" y=\"{y}\" textLength=\"{columns}\" xml:space=\"preserve\"{class}>{text}</text>"
        );
    }
    picture + "</svg>\n"
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
    fn a_terminal_shows_what_is_typed_and_printed_and_nothing_else() {
        let page = "Text.\n\n```console\n$ a <b\nout & in\n```\n\nMore.\n\n```console\n$ c\n```\n";
        let picture = super::terminal(page);
        let lines: Vec<_> = picture
            .lines()
            .filter(|line| line.starts_with("<text"))
            .collect();
        assert_eq!(lines.len(), 3, "{picture}");
        assert!(
            lines[0].ends_with("class=\"typed\">$ a &lt;b</text>"),
            "{picture}"
        );
        assert!(
            lines[1].ends_with("xml:space=\"preserve\">out &amp; in</text>"),
            "{picture}"
        );
        assert!(lines[2].contains("y=\"86\""), "{picture}");
    }

    #[test]
    fn verbs_are_found_in_a_help() {
        let help = "Usage: x\n\nCommands:\n  run   Runs\n          it\n  stop  Stops\n  help  Helps\n\nOptions:\n  -h\n";
        assert_eq!(super::verbs(help), ["run", "stop"]);
    }
}

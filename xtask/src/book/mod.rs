//! `cargo xtask docs`: the documentation as a book of mdBook, in `target/book/html`.
//!
//! The pages are the repository's own Markdown files, as they are read there. mdBook wants all of them in one folder, so they
//! are copied into one, in the layout of the repository: a link that works in the one place works in the other.
//! `docs/SUMMARY.md` says which pages there are, and in which order. Those of `docs/reference/` and the picture of the terminal are written
//! here.

mod generated;
mod html;
mod links;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::tool::Tool;
use crate::{cargo, sources};

/// Without its server, its watcher and its own colours for code in other themes: only building and searching.
const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.5.2",
    features: &["--no-default-features", "--features=search"],
};

const DOCS: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";
/// What mdBook reads beside the pages, from its book's root.
const SETTINGS: [&str; 3] = ["book.toml", "leadsman.css", "leadsman.js"];

/// Arguments of `docs`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Show it in a browser
    #[arg(long)]
    open: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    generated::write()?;
    let built = build()?;
    for finding in &built.findings {
        eprintln!("{finding}");
    }
    let first = built.site.join("index.html");
    println!("{}", first.display());
    if arguments.open {
        let opened = Command::new("xdg-open").arg(&first).status();
        opened.context("xdg-open, which opens a browser")?;
    }
    Ok(if built.findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The lint: generated pages are fresh, every page is in the book, and every link of it leads somewhere.
pub(crate) fn findings() -> Result<Vec<String>> {
    let mut findings = generated::findings()?;
    findings.extend(build()?.findings);
    Ok(findings)
}

struct Book {
    /// The folder of its HTML.
    site: PathBuf,
    /// What is wrong with it, a line each.
    findings: Vec<String>,
}

fn build() -> Result<Book> {
    let root = cargo::root().canonicalize()?;
    let program = MDBOOK.program()?;
    let book = root.join("target/book");
    // What was a page once is none any more.
    for folder in ["src", "html"] {
        let folder = book.join(folder);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
    }
    let summary = fs::read_to_string(root.join(SUMMARY)).context(SUMMARY)?;
    let pages = pages(&summary);
    copy(&root.join(DOCS), &book, SETTINGS)?;
    copy(&root, &book.join("src"), pages.iter().map(String::as_str))?;
    fs::write(book.join("src/SUMMARY.md"), from_root(&summary))?;
    let status = Command::new(program)
        .arg("build")
        .arg(&book)
        .env("MDBOOK_LOG", "warn")
        .status();
    if !status.context("running mdbook")?.success() {
        bail!("mdbook failed; its message is above");
    }
    let site = book.join("html");
    let mut findings = missing_pages(&root, &pages)?;
    findings.extend(links::check(&root, &site)?);
    Ok(Book { site, findings })
}

/// Copies files, by their paths in `from`, to the same paths in `to`.
fn copy<'a>(from: &Path, to: &Path, files: impl IntoIterator<Item = &'a str>) -> Result<()> {
    for file in files {
        let (source, target) = (from.join(file), to.join(file));
        let folder = target.parent().context("a file is in a folder")?;
        fs::create_dir_all(folder)?;
        fs::copy(&source, &target).with_context(|| source.display().to_string())?;
    }
    Ok(())
}

/// The files that a summary links to, by their paths in the repository.
fn pages(summary: &str) -> Vec<String> {
    let targets = summary.lines().filter_map(target);
    targets.map(path_from_root).collect()
}

/// The target of a line `- [title](target)`.
fn target(line: &str) -> Option<&str> {
    let (_, target) = line.split_once("](")?;
    target.strip_suffix(')')
}

/// `../README.md` is `README.md`, `install.md` is `docs/install.md`.
fn path_from_root(target: &str) -> String {
    match target.strip_prefix("../") {
        Some(path) => path.to_owned(),
        None => format!("{DOCS}/{target}"),
    }
}

/// The summary as mdBook reads it, which knows pages by their paths below the folder of `SUMMARY.md`.
fn from_root(summary: &str) -> String {
    let lines = summary.lines().map(|line| match target(line) {
        Some(target) => {
            let before = &line[..line.len() - target.len() - 1];
            format!("{before}{})\n", path_from_root(target))
        }
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// Markdown files of `docs` that no line of the summary names.
fn missing_pages(root: &Path, pages: &[String]) -> Result<Vec<String>> {
    let is_page = |path: &Path| path.extension().is_some_and(|extension| extension == "md");
    let files = sources::files(&root.join(DOCS), &|_| false, &is_page)?;
    let mut findings = Vec::new();
    for file in files {
        let path = file.strip_prefix(root)?.display().to_string();
        if path != SUMMARY && !pages.contains(&path) {
            findings.push(format!("{path} is no page of {SUMMARY}: add it there"));
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_names_pages_by_their_paths_in_the_repository() {
        let summary =
            "# Book\n\n[Start](../README.md)\n- [Costs](performance/README.md)\n  - [A](a.md)\n";
        let paths = ["README.md", "docs/performance/README.md", "docs/a.md"];
        assert_eq!(pages(summary), paths);
        assert_eq!(
            from_root(summary),
            "# Book\n\n[Start](README.md)\n- [Costs](docs/performance/README.md)\n  - [A](docs/a.md)\n"
        );
    }
}

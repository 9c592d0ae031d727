//! What the pages of the documentation show: manifests, and commands with what they print.
//!
//! The pages are those of `docs/SUMMARY.md`. Tests read them, so that nothing which a page shows is written a second time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const FENCE: &str = "```";
/// In the place of the random end of a name.
const RANDOM: &str = "<random>";

/// A fenced block of a page.
#[derive(Clone, Debug)]
pub struct Block {
    /// The page's path in the repository.
    pub page: String,
    /// Of its first line.
    pub line: usize,
    /// `yaml`, `console`; empty if the fence names none.
    pub language: String,
    /// The file as which the page says to save it: the line before the block ends with its name and a colon.
    pub saved_as: Option<String>,
    /// The text, each line with its end.
    pub text: String,
}

/// A command of a `console` block, and what the page shows below it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The page's path in the repository.
    pub page: String,
    /// Of the command.
    pub line: usize,
    /// As it is typed, without the `$ ` and without a comment behind it. It may have several lines.
    pub command: String,
    /// Empty if the page shows none.
    pub output: String,
}

/// The repository's folder.
pub fn root() -> &'static Path {
    Path::new(ROOT)
}

/// The pages, by their paths in the repository.
///
/// # Errors
/// If the summary cannot be read.
pub fn pages() -> Result<Vec<String>> {
    let summary = read("docs/SUMMARY.md")?;
    let targets = summary.lines().filter_map(|line| {
        let (_, target) = line.split_once("](")?;
        target.strip_suffix(')')
    });
    let paths = targets.map(|target| match target.strip_prefix("../") {
        Some(path) => path.to_owned(),
        None => format!("docs/{target}"),
    });
    Ok(paths.collect())
}

/// All blocks of all pages.
///
/// # Errors
/// If a page cannot be read, or a fence is not closed.
pub fn blocks() -> Result<Vec<Block>> {
    let mut all = Vec::new();
    for page in pages()? {
        all.extend(blocks_of(&page, &read(&page)?)?);
    }
    Ok(all)
}

/// All commands of all pages.
///
/// # Errors
/// As [`blocks`], and if a command is none that a shell understands.
pub fn exchanges() -> Result<Vec<Exchange>> {
    exchanges_in(blocks()?)
}

/// The files that a page has its reader save, by their names.
///
/// # Errors
/// As [`blocks`].
pub fn saved_files(page: &str) -> Result<Vec<(String, String)>> {
    let blocks = blocks_of(page, &read(page)?)?.into_iter();
    let saved = blocks.filter_map(|block| Some((block.saved_as?, block.text)));
    Ok(saved.collect())
}

/// All commands of a page, which need not be one of [`pages`].
///
/// # Errors
/// As [`exchanges`].
pub fn exchanges_of_page(page: &str) -> Result<Vec<Exchange>> {
    exchanges_in(blocks_of(page, &read(page)?)?)
}

fn exchanges_in(blocks: Vec<Block>) -> Result<Vec<Exchange>> {
    let mut all = Vec::new();
    for block in blocks {
        if block.language == "console" {
            all.extend(exchanges_of(&block)?);
        }
    }
    Ok(all)
}

/// What a page says under a heading, such as `## Metrics`, down to the next heading of its level or above.
///
/// # Errors
/// If the page cannot be read, or has no such heading.
pub fn section(page: &str, heading: &str) -> Result<String> {
    section_of(&read(page)?, heading).with_context(|| format!("{page} has no section {heading:?}"))
}

/// As [`section`], of a text.
pub fn section_of(text: &str, heading: &str) -> Option<String> {
    let level = heading.find(' ')?;
    let ends = |line: &&str| {
        let other = line.bytes().take_while(|byte| *byte == b'#').count();
        (1..=level).contains(&other) && line[other..].starts_with(' ')
    };
    let mut lines = text.split_inclusive('\n');
    lines.find(|line| line.trim_end() == heading)?;
    Some(lines.take_while(|line| !ends(line)).collect())
}

/// Fails unless the page shows this command with this output.
///
/// # Errors
/// What the page shows instead.
pub fn expect_shown(page: &str, command: &str, printed: &str) -> Result<()> {
    let mut shown = exchanges()?.into_iter();
    let shown = shown.find(|it| it.page == page && it.command == command && !it.output.is_empty());
    let shown = shown.with_context(|| format!("{page} shows no output of `{command}`"))?;
    shown.expect(printed)
}

impl Exchange {
    /// Fails unless this output is what the page shows.
    ///
    /// # Errors
    /// Both outputs.
    pub fn expect(&self, printed: &str) -> Result<()> {
        let Self { page, line, .. } = self;
        ensure!(
            is_same_output(&self.output, printed),
            "{page}:{line} shows of `{}`\n{}\nwhich prints\n{printed}",
            self.command,
            self.output
        );
        Ok(())
    }
}

fn read(page: &str) -> Result<String> {
    std::fs::read_to_string(root().join(page)).with_context(|| page.to_owned())
}

fn blocks_of(page: &str, text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    let mut before = "";
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        match (line.strip_prefix(FENCE), open.as_mut()) {
            (Some(_), Some(_)) => {
                blocks.extend(open.take());
                before = "";
            }
            (Some(language), None) => {
                open = Some(Block {
                    page: page.to_owned(),
                    line: number + 1,
                    language: language.trim().to_owned(),
                    saved_as: named_file(before),
                    text: String::new(),
                });
            }
            (None, Some(block)) => block.text += line,
            (None, None) if line.trim().is_empty() => {}
            (None, None) => before = line,
        }
    }
    ensure!(open.is_none(), "{page}: a block is not closed");
    Ok(blocks)
}

/// `marker.yaml` of "Save it as `marker.yaml`:".
fn named_file(line: &str) -> Option<String> {
    let name = line.trim_end().strip_suffix("`:")?;
    let (_, name) = name.rsplit_once('`')?;
    Path::new(name)
        .extension()
        .is_some_and(|it| it == "yaml")
        .then(|| name.to_owned())
}

/// A line that begins with `$ ` is a command. It goes on below as long as a shell would ask for more; the rest, up to the
/// next command, is its output.
fn exchanges_of(block: &Block) -> Result<Vec<Exchange>> {
    let Block { page, .. } = block;
    let mut exchanges = Vec::<Exchange>::new();
    let mut lines = block.text.lines().zip(block.line..);
    while let Some((line, number)) = lines.next() {
        let Some(command) = line.strip_prefix("$ ") else {
            let last = exchanges.last_mut();
            let last = last.with_context(|| format!("{page}:{number}: no command is before it"))?;
            last.output += line;
            last.output.push('\n');
            continue;
        };
        let mut command = without_comment(command).to_owned();
        while !is_complete(&command)? {
            let Some((line, _)) = lines.next() else {
                bail!("{page}:{number}: the command has no end");
            };
            command = format!("{command}\n{line}");
        }
        exchanges.push(Exchange {
            page: page.clone(),
            line: number,
            command,
            output: String::new(),
        });
    }
    exchanges.retain(|it| !it.command.is_empty());
    Ok(exchanges)
}

/// A comment for the reader stands apart from what is typed.
fn without_comment(command: &str) -> &str {
    let end = command.find("  # ").unwrap_or(command.len());
    match &command[..end] {
        comment if comment.starts_with("# ") => "",
        command => command.trim_end(),
    }
}

fn is_complete(command: &str) -> Result<bool> {
    if command.ends_with('\\') {
        return Ok(false);
    }
    let parsed = Command::new("sh")
        .args(["-n", "-c", command])
        .stderr(Stdio::null())
        .status();
    Ok(parsed.context("sh")?.success())
}

/// Whether a page shows what was printed. Ages, times and the random ends of names are taken for equal, and so is the space
/// between two words, since columns are as wide as what is in them. Rows with such names come in any order. `…` stands for
/// anything within its line, and for any lines where it is alone.
fn is_same_output(shown: &str, printed: &str) -> bool {
    let lines = |text: &str| -> Vec<String> {
        let mut lines: Vec<_> = text.trim_end().lines().map(comparable).collect();
        let is_row = |line: &String| line.contains(RANDOM);
        for rows in lines.chunk_by_mut(|one, other| is_row(one) && is_row(other)) {
            rows.sort();
        }
        lines
    };
    same_lines(&lines(shown), &lines(printed))
}

fn same_lines(shown: &[String], printed: &[String]) -> bool {
    match (shown.split_first(), printed.split_first()) {
        (None, None) => true,
        (Some((line, shown)), _) if line == "…" => {
            (0..=printed.len()).any(|skipped| same_lines(shown, &printed[skipped..]))
        }
        (Some((line, shown)), Some((other, printed))) => {
            same_line(line, other) && same_lines(shown, printed)
        }
        _ => false,
    }
}

fn same_line(shown: &str, printed: &str) -> bool {
    let Some((before, after)) = shown.split_once('…') else {
        return shown == printed;
    };
    let Some(rest) = printed.strip_prefix(before) else {
        return false;
    };
    let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.any(|end| same_line(after, &rest[end..]))
}

fn comparable(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-:.".contains(c);
        let mut parts = word.split_inclusive(|c| !is_of_name(c));
        let comparable = parts.by_ref().map(|part| {
            let name = part.trim_end_matches(|c| !is_of_name(c) || c == '.' || c == ':');
            let end = &part[name.len()..];
            format!("{}{end}", without_chance(name))
        });
        comparable.collect::<String>()
    });
    let line = words.collect::<Vec<_>>().join(" ");
    // Between two lines of a table there is none.
    line.trim_end().to_owned()
}

/// What is another at each run is replaced by what it is.
fn without_chance(name: &str) -> String {
    if is_age(name) {
        return "<age>".to_owned();
    }
    if name.parse::<jiff::Timestamp>().is_ok() {
        return "<time>".to_owned();
    }
    let parts: Vec<_> = name.split('-').collect();
    match parts.as_slice() {
        [base @ .., hash, end]
            if !base.is_empty() && is_random(hash, 8..=10) && is_random(end, 5..=5) =>
        {
            format!("{}-{RANDOM}", base.join("-"))
        }
        _ => name.to_owned(),
    }
}

/// `54s`, `3m12s`, as kubectl writes them (`duration.HumanDuration`).
fn is_age(word: &str) -> bool {
    let units = word.split_inclusive(|c: char| !c.is_ascii_digit());
    let is_one = |part: &str| part.len() > 1 && part.ends_with(['s', 'm', 'h', 'd', 'y']);
    !word.is_empty() && units.clone().all(is_one)
}

/// As Kubernetes makes ends of names (`k8s.io/apimachinery/pkg/util/rand`, `SafeEncodeString`).
fn is_random(word: &str, lengths: std::ops::RangeInclusive<usize>) -> bool {
    lengths.contains(&word.len())
        && word
            .chars()
            .all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c))
}

/// The folder of a page's neighbours: manifests that pages name.
pub fn manifests() -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for folder in ["demo/manifests", "examples"] {
        let folder = root().join(folder);
        if folder.is_dir() {
            list_yaml(&folder, &mut all)?;
        }
    }
    all.sort();
    Ok(all)
}

fn list_yaml(folder: &Path, all: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list_yaml(&path, all)?;
        } else if path.extension().is_some_and(|it| it == "yaml")
            // It is no object; a page applies it.
            && !path.ends_with("kustomization.yaml")
        {
            all.push(path);
        }
    }
    Ok(())
}

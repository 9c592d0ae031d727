//! The answers of verbs: a report is serialized for `-o json` and `-o yaml`, has names for `-o name`, and adds its lines to a
//! [`Text`] for people. Here are the forms and the parts that texts are made of: lines, headings, tables, styles.

use std::fmt::{Display, Write as _};

use anstyle::{AnsiColor, Style};
use jiff::Timestamp;
use leadsman_core::cluster::SelectorTerm;
use leadsman_core::podprobe::explain::format_age;
use serde::Serialize;

use crate::VerbError;
use crate::output::{self, OutputFormat};

/// The most names of a group that are printed, unless all are asked for.
const FEW_NAMES: usize = 5;
/// The most characters that are shown of what a probe printed.
const LINE_CHARS: usize = 100;

/// The answer of a verb.
pub(crate) trait Report: Serialize {
    /// The lines for people.
    fn add_text(&self, text: &mut Text);

    /// The lines of `-o name`.
    fn names(&self) -> Vec<String>;
}

/// Prints a report in the form that was asked for. Ages in it are those at `now`.
pub(crate) fn print_report(
    format: OutputFormat,
    now: Timestamp,
    report: &impl Report,
) -> Result<(), VerbError> {
    output::print_text(&match output::format_structured(format, report) {
        Some(text) => text?,
        None if format == OutputFormat::Name => {
            let names = report.names().into_iter();
            names.map(|name| name + "\n").collect()
        }
        None => format_text(report, format == OutputFormat::Wide, now),
    })
}

/// A report as text.
pub(crate) fn format_text(report: &impl Report, is_wide: bool, now: Timestamp) -> String {
    let mut text = Text::new(is_wide, now);
    report.add_text(&mut text);
    text.lines
}

/// The same without colours, as tests compare it.
#[cfg(test)]
pub(crate) fn plain_text(report: &impl Report, is_wide: bool, now: &str) -> String {
    let text = format_text(report, is_wide, now.parse().unwrap());
    anstream::adapter::strip_str(&text).to_string()
}

/// Text that is written line by line.
pub(crate) struct Text {
    lines: String,
    /// Whether more is asked for (`-o wide`).
    pub(crate) is_wide: bool,
    /// The time when all was read.
    pub(crate) now: Timestamp,
}

/// Adds a line to a [`Text`], after so many blanks.
macro_rules! line {
    ($text:expr, $indent:literal => $($words:tt)+) => {
        $text.add_line($indent, format_args!($($words)+))
    };
}
/// Adds a row to a [`TextTable`].
macro_rules! row {
    ($table:expr => $($cell:expr),+) => { $table.add_row(&[$(&$cell as &dyn std::fmt::Display),+]) };
}
pub(crate) use {line, row};

impl Text {
    pub(crate) fn new(is_wide: bool, now: Timestamp) -> Self {
        Self {
            lines: String::new(),
            is_wide,
            now,
        }
    }

    pub(crate) fn add_line(&mut self, indent: usize, line: impl Display) {
        writeln!(self.lines, "{:indent$}{line}", "").expect("writing to a String cannot fail");
    }

    /// An empty line, unless nothing stands above it.
    pub(crate) fn add_gap(&mut self) {
        if !self.lines.is_empty() {
            self.lines.push('\n');
        }
    }

    pub(crate) fn add_heading(&mut self, heading: impl Display) {
        self.add_gap();
        self.add_line(0, bold(heading));
    }

    pub(crate) fn add_table(&mut self, indent: usize, table: &TextTable) {
        self.lines.push_str(&table.to_text(indent, true));
    }

    /// Adds what could not be read.
    pub(crate) fn add_unread(&mut self, unread: &[String]) {
        if !unread.is_empty() {
            self.add_heading("Not read");
        }
        for why in unread {
            self.add_line(2, why);
        }
    }

    /// The requirements of a selector, and what `the pod` or another object has instead.
    pub(crate) fn add_terms(&mut self, whose: &str, terms: &[SelectorTerm]) {
        for SelectorTerm { term, holds, found } in terms {
            let mark = if *holds { good("yes") } else { bad("no ") };
            match found.as_str() {
                "" => line!(self, 4 => "{mark}  {term}"),
                found => line!(self, 4 => "{mark}  {term}   {whose} has {found}"),
            }
        }
    }

    /// The first of these names, or all.
    pub(crate) fn format_names(&self, names: &[String]) -> String {
        match names.split_at_checked(FEW_NAMES) {
            Some((few, more @ [_, ..])) if !self.is_wide => {
                format!("{} and {} more (-o wide)", few.join(", "), more.len())
            }
            _ => names.join(", "),
        }
    }

    /// How long ago it was.
    pub(crate) fn format_age(&self, time: Timestamp) -> String {
        format_age(time, self.now)
    }

    /// The output of a probe, on one line of a table.
    pub(crate) fn one_line(&self, output: &str) -> String {
        let text = output.trim_end().replace('\n', "\\n").replace('\t', "\\t");
        if self.is_wide {
            text
        } else {
            cut(&text, LINE_CHARS)
        }
    }
}

/// The first characters of a text.
pub(crate) fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// `1 pod`, `2 pods`.
pub(crate) fn count_pods(count: usize) -> String {
    format!("{count} pod{}", if count == 1 { "" } else { "s" })
}

/// `1.204s`, or `-` for no time at all.
pub(crate) fn format_seconds(seconds: f64) -> String {
    if seconds < 0.000_5 {
        "-".to_owned()
    } else {
        format!("{seconds:.3}s")
    }
}

/// The value, or `-` without one.
pub(crate) fn or_dash(value: Option<impl Display>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

/// How a text looks where colours are allowed. Whoever prints removes them if need be.
fn styled(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Something is wrong.
pub(crate) fn bad(text: impl Display) -> String {
    styled(AnsiColor::Red.on_default(), text)
}

/// Something resolves by itself, or is not known.
pub(crate) fn waiting(text: impl Display) -> String {
    styled(AnsiColor::Yellow.on_default(), text)
}

/// All is well.
pub(crate) fn good(text: impl Display) -> String {
    styled(AnsiColor::Green.on_default(), text)
}

/// A heading.
pub(crate) fn bold(text: impl Display) -> String {
    styled(Style::new().bold(), text)
}

/// A verdict, or the result of a run.
pub(crate) fn verdict(state: &str) -> String {
    match state {
        "Succeeded" => good(state),
        "Failed" => bad(state),
        _ => waiting(state),
    }
}

/// Columns, as kubectl prints them: three blanks apart, as wide as their widest cell.
pub(crate) struct TextTable {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            headings: headings.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }

    /// Each cell is on one line, whatever is in it.
    pub(crate) fn add_row(&mut self, row: &[&dyn Display]) {
        let cells = row
            .iter()
            .map(|cell| cell.to_string().replace(['\n', '\t'], " "));
        self.rows.push(cells.collect());
    }

    /// Removes all rows.
    pub(crate) fn clear_rows(&mut self) {
        self.rows.clear();
    }

    /// The lines, each after so many blanks.
    pub(crate) fn to_text(&self, indent: usize, with_headings: bool) -> String {
        // Escape codes have no width, and each character counts as one wide, as for kubectl (Go's `text/tabwriter`).
        let width_of = |cell: &String| {
            anstream::adapter::strip_str(cell)
                .to_string()
                .chars()
                .count()
        };
        let width = |column: usize| {
            // Headings count too where they are not printed: rows of a watch stand below headings that were.
            let rows = self.rows.iter().chain([&self.headings]);
            let widths = rows.filter_map(|row| row.get(column)).map(width_of);
            widths.max().unwrap_or_default()
        };
        let widths: Vec<_> = (0..self.headings.len()).map(width).collect();
        let headings = with_headings.then_some(&self.headings);
        let lines = headings.into_iter().chain(&self.rows).map(|row| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| {
                let gap = width + 3 - width_of(cell);
                format!("{cell}{:gap$}", "")
            });
            format!("{:indent$}{}\n", "", cells.collect::<String>().trim_end())
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_whatever_its_colour() {
        let mut table = TextTable::new(&["NAME", "PODS", "MESSAGE"]);
        row!(table => "game-server", good(3), "ok");
        row!(table => "é", 12, "a\nb");
        let lines = table.to_text(2, true);
        let plain = anstream::adapter::strip_str(&lines).to_string();
        assert_eq!(
            plain,
            "  NAME          PODS   MESSAGE\n  game-server   3      ok\n  é             12     a b\n"
        );
        assert!(lines.contains("\u{1b}["));
        assert_eq!(table.to_text(0, false).lines().count(), 2);
    }

    #[test]
    fn only_some_of_many_names_are_printed_unless_all_are_asked_for() {
        let text = |is_wide| Text::new(is_wide, Timestamp::UNIX_EPOCH);
        let names: Vec<_> = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).into();
        assert_eq!(text(false).format_names(&names[..5]), "a, b, c, d, e");
        let few = "a, b, c, d, e and 1 more (-o wide)";
        assert_eq!(text(false).format_names(&names), few);
        assert_eq!(text(true).format_names(&names), "a, b, c, d, e, f");
    }
}

//! Table, JSON, YAML or names, to the terminal.
//!
//! Whoever may write a marker, or has a pod whose probe prints something, chooses what stands in an answer. A terminal
//! obeys control characters: it would move the cursor, hide lines or answer as if somebody typed (CVE-2021-25743 was
//! this in kubectl). So all that is printed passes [`harmless`].

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::VerbError;

/// The form of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns and sentences
    #[default]
    Table,
    /// The same with more columns, and all names
    Wide,
    /// One JSON object
    Json,
    /// The same as YAML
    Yaml,
    /// KIND/NAME, one a line
    Name,
}

/// Prints text with colours, if standard output is a terminal that has some and `NO_COLOR` is not set.
pub(crate) fn print(text: &str) -> Result<(), VerbError> {
    let mut out = anstream::stdout().lock();
    out.write_all(harmless(text).as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Prints a document for another program. What is harmful on a terminal is only there written otherwise: in YAML that is
/// another value.
pub(crate) fn print_document(text: &str) -> Result<(), VerbError> {
    if std::io::stdout().is_terminal() {
        return print(text);
    }
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Prints a line to standard error.
pub(crate) fn print_remark(line: &str) {
    anstream::eprintln!("{}", harmless(line));
}

/// The codes of [`Style`](anstyle::Style)s in `table`. Text that brings one along can change its colour, and nothing else.
const STYLES: [&str; 5] = [
    "\u{1b}[0m",
    "\u{1b}[1m",
    "\u{1b}[31m",
    "\u{1b}[32m",
    "\u{1b}[33m",
];

/// Text in which all control characters but ends of lines are written as `\uXXXX`, which JSON takes for the same.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_harmful) {
        let (before, harmful) = rest.split_at(at);
        out.push_str(before);
        let mut styles = STYLES.iter();
        let taken = match styles.find(|style| harmful.starts_with(**style)) {
            Some(style) => {
                out.push_str(style);
                style.len()
            }
            None => harmful.chars().next().map_or(0, |c| {
                write!(out, "\\u{:04x}", u32::from(c)).expect("writing to a String cannot fail");
                c.len_utf8()
            }),
        };
        rest = &harmful[taken..];
    }
    if out.is_empty() {
        return Cow::Borrowed(text);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// C0, DEL and C1, and what turns the direction of the text around it (Unicode TR 9, explicit formatting).
fn is_harmful(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Prints a value as JSON or YAML. None for the other formats.
pub(crate) fn structured(
    format: Format,
    value: &impl Serialize,
) -> Option<Result<String, VerbError>> {
    let failed =
        |error: &dyn std::fmt::Display| VerbError::Io(std::io::Error::other(error.to_string()));
    Some(match format {
        Format::Json => {
            let text = serde_json::to_string_pretty(value);
            text.map(|text| text + "\n").map_err(|error| failed(&error))
        }
        Format::Yaml => serde_norway::to_string(value).map_err(|error| failed(&error)),
        Format::Table | Format::Wide | Format::Name => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{BAD, Cell, GOOD, HEADING, Table, WAITING};

    #[test]
    fn control_characters_are_written_out() {
        for (text, expected) in [
            ("idle\n\tnow é", "idle\n\tnow é"),
            ("\u{1b}]0;title\u{7}", "\\u001b]0;title\\u0007"),
            ("busy\ridle", "busy\\u000didle"),
            ("\u{1b}[2J\u{1b}[8mhidden", "\\u001b[2J\\u001b[8mhidden"),
            ("\u{9b}2J\u{7f}", "\\u009b2J\\u007f"),
            ("\u{202e}abc", "\\u202eabc"),
        ] {
            assert_eq!(harmless(text), expected, "{text:?}");
        }
        let json = serde_json::to_string("\u{1b}\u{9b}\r").unwrap();
        let read: String = serde_json::from_str(&harmless(&json)).unwrap();
        assert_eq!(read, "\u{1b}\u{9b}\r");
    }

    #[test]
    fn the_own_styles_stay() {
        let mut table = Table::new(&["A"]);
        for style in [BAD, GOOD, WAITING, HEADING] {
            table.add(vec![Cell::styled("x", style)]);
        }
        let text = table.lines("", true);
        assert_eq!(harmless(&text), text);
    }

    #[test]
    fn a_cell_is_one_line() {
        let mut table = Table::new(&["A", "B"]);
        table.add(vec!["x\ny".into(), "z".into()]);
        assert_eq!(table.lines("", false), "x y   z\n");
    }
}

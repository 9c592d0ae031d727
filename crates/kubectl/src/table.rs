//! Columns, as kubectl prints them: three blanks apart, as wide as their widest cell.

use anstyle::{AnsiColor, Style};

/// A cell, and how it looks on a terminal with colours.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

/// Something is wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// It resolves by itself.
pub(crate) const WAITING: Style = AnsiColor::Yellow.on_default();
/// All is well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// A heading.
pub(crate) const HEADING: Style = Style::new().bold();

impl Cell {
    /// A cell with a style. It is one line, whatever is in it.
    pub(crate) fn with_style(text: impl Into<String>, style: Style) -> Self {
        let text = text.into().replace(['\n', '\t'], " ");
        Self { text, style }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::with_style(text, Style::new())
    }
}

/// A table with a line of headings.
#[derive(Debug)]
pub(crate) struct TextTable {
    headings: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl TextTable {
    pub(crate) fn new(headings: &[&'static str]) -> Self {
        Self {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn add_row(&mut self, row: Vec<Cell>) {
        self.rows.push(row);
    }

    /// Removes all rows.
    pub(crate) fn clear_rows(&mut self) {
        self.rows.clear();
    }

    /// The lines, each after this indentation. The colours are escape codes, which whoever prints removes if need be.
    pub(crate) fn to_text(&self, indent: &str, with_headings: bool) -> String {
        let headings = self.headings.iter().map(|heading| Cell::from(*heading));
        let headings: Vec<_> = headings.collect();
        let all = with_headings
            .then_some(&headings)
            .into_iter()
            .chain(&self.rows);
        let width = |column: usize| {
            // Of the headings too where they are not printed: rows of a watch stand below headings that were.
            let cells = std::iter::once(&headings).chain(&self.rows);
            let cells = cells.filter_map(|row| row.get(column));
            cells
                // Each character counts as one wide, as for kubectl (Go's `text/tabwriter`).
                .map(|cell| cell.text.chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<_> = (0..self.headings.len()).map(width).collect();
        let lines = all.map(|row| {
            let last = row.len().saturating_sub(1);
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (Cell { text, style }, width))| {
                // The escape codes have no width.
                let gap = if column == last {
                    0
                } else {
                    width + 3 - text.chars().count()
                };
                format!("{style}{text}{style:#}{:gap$}", "")
            });
            format!("{indent}{}\n", cells.collect::<String>().trim_end())
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
        table.add_row(vec![
            "game-server".into(),
            Cell::with_style("3", GOOD),
            "ok".into(),
        ]);
        table.add_row(vec!["é".into(), "12".into(), "".into()]);
        let lines = table.to_text("  ", true);
        let plain = anstream::adapter::strip_str(&lines).to_string();
        assert_eq!(
            plain,
            "  NAME          PODS   MESSAGE\n  game-server   3      ok\n  é             12\n"
        );
        assert!(lines.contains("\u{1b}["));
        assert_eq!(table.to_text("", false).lines().count(), 2);
    }
}

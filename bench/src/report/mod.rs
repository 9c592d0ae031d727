//! A result: figures beside their targets and floors, and curves.

mod plot;
mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use leadsman_process::clock;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;

/// What one bench found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The bench's name, which is its files' too.
    pub(crate) bench: String,
    /// When it ended, in UTC.
    pub(crate) taken: String,
    pub(crate) machine: Machine,
    /// Of the full size and duration; below 1 the figures are no result.
    pub(crate) scale: f64,
    /// What was done: a list in Markdown, an item a line.
    pub(crate) how: String,
    pub(crate) figures: Vec<Figure>,
    pub(crate) plots: Vec<Plot>,
    /// Of the names of the figures that are added next.
    #[serde(skip)]
    begin: String,
}

/// One measured value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// What it is the value of; the key by which runs are compared.
    pub(crate) name: String,
    pub(crate) value: f64,
    /// For instance `µs` or `requests`.
    pub(crate) unit: String,
    /// The same of the bare loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) floor: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) targets: Vec<Target>,
    /// How it was obtained, where the bench's own `how` does not say it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) note: String,
}

/// What is to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Target {
    AtMost(f64),
    Exactly(f64),
    /// No more than so many times the floor.
    TimesFloor(f64),
}

/// Curves over a common axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plot {
    /// Part of the file's name.
    pub(crate) name: String,
    pub(crate) title: String,
    /// Below the horizontal axis.
    pub(crate) x: String,
    /// Beside the vertical axis.
    pub(crate) y: String,
    /// Both axes by powers of ten.
    #[serde(default)]
    pub(crate) logarithmic: bool,
    pub(crate) curves: Vec<(String, Vec<(f64, f64)>)>,
}

/// A kind of figure, as the table of [`crate::figures`] has it.
pub(crate) struct Kind {
    /// Its name, or the end of its name.
    pub(crate) what: &'static str,
    /// By which its values are scaled, if [`scaled`] knows it.
    pub(crate) unit: &'static str,
    pub(crate) targets: &'static [Target],
    /// The note of each such figure.
    pub(crate) how: &'static str,
}

/// An amount of seconds, of bytes, or of what is counted, in this unit.
pub(crate) fn scaled(value: impl Amount, unit: &str) -> f64 {
    let factor = match unit {
        "ms" => 1e3,
        "µs" => 1e6,
        "MiB" => 1.0 / (1024.0 * 1024.0),
        _ => 1.0,
    };
    value.amount() * factor
}

/// What can be a figure's value: a number, a count, or a time in seconds.
pub(crate) trait Amount {
    fn amount(self) -> f64;
}

impl Amount for f64 {
    fn amount(self) -> f64 {
        self
    }
}

impl Amount for u64 {
    #[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^52")]
    fn amount(self) -> f64 {
        self as f64
    }
}

impl Amount for usize {
    fn amount(self) -> f64 {
        (self as u64).amount()
    }
}

impl Amount for Duration {
    fn amount(self) -> f64 {
        self.as_secs_f64()
    }
}

impl Report {
    /// An empty report, taken now; the machine is filled in by who asked for it.
    pub(crate) fn new(bench: &str, scale: f64, how: &str) -> Self {
        Self {
            bench: bench.to_owned(),
            taken: clock::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            machine: Machine::default(),
            scale,
            how: how.trim_end().replace("\n  ", " "),
            figures: Vec::new(),
            plots: Vec::new(),
            begin: String::new(),
        }
    }

    /// From here on figures are of something, whose name comes before theirs: `idle: RSS`.
    pub(crate) fn section(&mut self, of: impl std::fmt::Display) -> &mut Self {
        self.named(format!("{of}: "))
    }

    /// From here on the names of figures begin with these words.
    pub(crate) fn named(&mut self, begin: impl Into<String>) -> &mut Self {
        self.begin = begin.into();
        self
    }

    pub(crate) fn add(&mut self, kind: &Kind, value: impl Amount) -> &mut Figure {
        self.figures.push(Figure {
            name: format!("{}{}", self.begin, kind.what),
            value: scaled(value, kind.unit),
            unit: kind.unit.to_owned(),
            floor: None,
            targets: kind.targets.to_vec(),
            note: kind.how.to_owned(),
        });
        let last = self.figures.len() - 1;
        &mut self.figures[last]
    }

    /// Adds a figure beside the same of the bare loop.
    pub(crate) fn compare<A: Amount>(&mut self, kind: &Kind, value: A, floor: A) -> &mut Figure {
        let figure = self.add(kind, value);
        figure.floor = Some(scaled(floor, kind.unit));
        figure
    }

    /// Reads a result that [`Report::write`] wrote.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("what is in {}", file.display()))
    }

    /// Writes the result into a folder, for machines, for people, and its plots. Returns the files.
    pub(crate) fn write(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let mut files = Vec::new();
        for plot in &self.plots {
            let name = self.file_of(plot);
            files.push(folder.join(&name));
            let drawn = plot::draw(plot, &files[files.len() - 1]);
            drawn.with_context(|| format!("drawing {name}"))?;
        }
        let json = serde_json::to_string_pretty(self)? + "\n";
        for (extension, text) in [("json", json), ("md", self.page())] {
            let file = folder.join(format!("{}.{extension}", self.bench));
            std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
            files.push(file);
        }
        Ok(files)
    }

    /// The page that is committed: the text, and its plots.
    fn page(&self) -> String {
        let mut page = self.text(None);
        for plot in &self.plots {
            page.extend(["![", &plot.title, "](", &self.file_of(plot), ")\n"]);
        }
        page
    }

    fn file_of(&self, plot: &Plot) -> String {
        format!("{}-{}.svg", self.bench, plot.name)
    }
}

/// Writes the pages of all results in a folder anew. Returns the files.
pub(crate) fn write_pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for file in results(folder)? {
        let page = file.with_extension("md");
        let text = Report::read(&file)?.page();
        std::fs::write(&page, text).with_context(|| format!("writing {}", page.display()))?;
        files.push(page);
    }
    Ok(files)
}

/// The results in a folder, which are all JSON that is there.
fn results(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = folder.read_dir();
    let entries = entries.with_context(|| format!("reading {}", folder.display()))?;
    let files: std::io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut files = files?;
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "json")
    });
    files.sort();
    Ok(files)
}

impl Figure {
    pub(crate) fn note(&mut self, note: impl Into<String>) -> &mut Self {
        self.note = note.into();
        self
    }

    /// Whether all targets are reached; `None` without targets. A share of a floor that is missing is not reached.
    pub(crate) fn reached(&self) -> Option<bool> {
        let reaches = |target: &Target| match *target {
            Target::AtMost(most) => self.value <= most,
            Target::Exactly(value) => (self.value - value).abs() < 1e-9,
            Target::TimesFloor(times) => {
                self.floor.is_some_and(|floor| self.value <= times * floor)
            }
        };
        (!self.targets.is_empty()).then(|| self.targets.iter().all(reaches))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_reached_up_to_its_value_and_a_share_of_no_floor_is_not() {
        let reached = |value: f64, floor: Option<f64>, targets: &[Target]| {
            let figure = Figure {
                value,
                floor,
                targets: targets.to_vec(),
                ..Figure::default()
            };
            figure.reached()
        };
        let (most, times) = (Target::AtMost(5.0), Target::TimesFloor(1.25));
        for (value, floor, targets, expected) in [
            (5.0, None, &[][..], None),
            (5.0, None, &[most], Some(true)),
            (5.1, None, &[most], Some(false)),
            (3.0, None, &[Target::Exactly(3.0)], Some(true)),
            (2.0, None, &[Target::Exactly(3.0)], Some(false)),
            (5.0, Some(4.0), &[times], Some(true)),
            (5.1, Some(4.0), &[times], Some(false)),
            (0.0, None, &[times], Some(false)),
            (5.0, Some(3.0), &[most, times], Some(false)),
        ] {
            let found = reached(value, floor, targets);
            assert_eq!(found, expected, "{value} beside {floor:?}: {targets:?}");
        }
    }

    #[test]
    fn the_committed_pages_are_those_of_the_committed_results() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance"));
        let results = results(folder).unwrap();
        assert!(results.len() > 5, "{results:?}");
        for file in results {
            let page = std::fs::read_to_string(file.with_extension("md")).unwrap();
            let expected = Report::read(&file).unwrap().page();
            assert!(
                page == expected,
                "{} is outdated: cargo run -p leadsman-bench -- --pages docs/performance",
                file.with_extension("md").display()
            );
        }
    }
}

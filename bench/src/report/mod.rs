//! A result: figures beside their targets and floors, and curves.

mod plot;
mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::clock;
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
    /// What was done, in sentences.
    pub(crate) how: String,
    pub(crate) figures: Vec<Figure>,
    pub(crate) plots: Vec<Plot>,
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

/// Figures whose names begin with the same words.
pub(crate) struct Section<'a> {
    report: &'a mut Report,
    of: String,
}

impl Section<'_> {
    pub(crate) fn add(&mut self, what: &str, value: impl Amount, unit: &str) -> &mut Figure {
        self.report.add(format!("{}: {what}", self.of), value, unit)
    }
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

pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes.amount() / (1024.0 * 1024.0)
}

impl Report {
    /// An empty report, taken now; the machine is filled in by who asked for it.
    pub(crate) fn new(bench: &str, scale: f64, how: impl Into<String>) -> Self {
        Self {
            bench: bench.to_owned(),
            taken: clock::wall().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            machine: Machine::default(),
            scale,
            how: how.into(),
            figures: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Adds a figure, whose floor, targets and note are added to it.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        value: impl Amount,
        unit: &str,
    ) -> &mut Figure {
        self.figures.push(Figure {
            name: name.into(),
            value: value.amount(),
            unit: unit.to_owned(),
            ..Figure::default()
        });
        let last = self.figures.len() - 1;
        &mut self.figures[last]
    }

    pub(crate) fn section(&mut self, of: impl Into<String>) -> Section<'_> {
        Section {
            report: self,
            of: of.into(),
        }
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
        let mut page = self.text(None);
        for plot in &self.plots {
            let name = format!("{}-{}.svg", self.bench, plot.name);
            page.extend(["![", &plot.title, "](", &name, ")\n"]);
            files.push(folder.join(name));
            plot::draw(plot, &files[files.len() - 1])?;
        }
        let json = serde_json::to_string_pretty(self)? + "\n";
        for (extension, text) in [("json", json), ("md", page)] {
            let file = folder.join(format!("{}.{extension}", self.bench));
            std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
            files.push(file);
        }
        Ok(files)
    }

    /// As a table for people, beside an earlier result.
    pub(crate) fn text(&self, earlier: Option<&Self>) -> String {
        table::text(self, earlier)
    }
}

impl Figure {
    /// The same of the bare loop.
    pub(crate) fn floor(&mut self, floor: impl Amount) -> &mut Self {
        self.floor = Some(floor.amount());
        self
    }

    /// Something to reach; more than one may be given.
    pub(crate) fn reach(&mut self, target: Target) -> &mut Self {
        self.targets.push(target);
        self
    }

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

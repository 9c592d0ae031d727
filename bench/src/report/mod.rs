//! A result: figures beside their targets and floors, and curves.

mod plot;
mod table;

use std::path::{Path, PathBuf};

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
    /// Where.
    pub(crate) machine: Machine,
    /// Of the full size and duration; below 1 the figures are no result.
    pub(crate) scale: f64,
    /// What was done, in sentences.
    pub(crate) how: String,
    /// What was measured.
    pub(crate) figures: Vec<Figure>,
    /// Plots.
    pub(crate) plots: Vec<Plot>,
}

/// One measured value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// What it is the value of; the key by which runs are compared.
    pub(crate) name: String,
    /// The value.
    pub(crate) value: f64,
    /// Its unit, for instance `µs` or `requests`.
    pub(crate) unit: String,
    /// The same of the bare loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) floor: Option<f64>,
    /// What is to be reached.
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
    /// No more than this.
    AtMost(f64),
    /// This and nothing else.
    Exactly(f64),
    /// No more than so many times the floor.
    TimesFloor(f64),
}

/// Curves over a common axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plot {
    /// Part of the file's name.
    pub(crate) name: String,
    /// Above it.
    pub(crate) title: String,
    /// Below it.
    pub(crate) x: String,
    /// Beside it.
    pub(crate) y: String,
    /// Both axes by powers of ten.
    #[serde(default)]
    pub(crate) logarithmic: bool,
    /// The curves, each with its name.
    pub(crate) curves: Vec<(String, Vec<(f64, f64)>)>,
}

/// A count as a figure's value; counts here are far below 2^52.
#[expect(clippy::cast_precision_loss, reason = "no count here is so large")]
pub(crate) fn count(count: u64) -> f64 {
    count as f64
}

impl Report {
    /// An empty one, taken now; the machine is filled in by who asked for it.
    pub(crate) fn new(bench: &str, scale: f64, how: &str) -> Self {
        Self {
            bench: bench.to_owned(),
            taken: clock::wall().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            machine: Machine::default(),
            scale,
            how: how.to_owned(),
            figures: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Adds a figure.
    pub(crate) fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// Reads a result that [`Report::write`] wrote.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("what is in {}", file.display()))
    }

    /// Writes the result into a folder, for machines, for people, and its plots; the files.
    pub(crate) fn write(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let file = folder.join(format!("{}.json", self.bench));
        std::fs::write(&file, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| format!("writing {}", file.display()))?;
        let mut files = vec![file];
        let mut page = self.text(None);
        for plot in &self.plots {
            let name = format!("{}-{}.svg", self.bench, plot.name);
            page += &["![", &plot.title, "](", &name, ")\n"].concat();
            let file = folder.join(name);
            plot::draw(plot, &file)?;
            files.push(file);
        }
        let file = folder.join(format!("{}.md", self.bench));
        std::fs::write(&file, page).with_context(|| format!("writing {}", file.display()))?;
        files.push(file);
        Ok(files)
    }

    /// As a table for people, beside an earlier result.
    pub(crate) fn text(&self, earlier: Option<&Self>) -> String {
        table::text(self, earlier)
    }
}

impl Figure {
    /// A value without target and floor.
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self {
            name: name.into(),
            value,
            unit: unit.to_owned(),
            floor: None,
            targets: Vec::new(),
            note: String::new(),
        }
    }

    /// With the same of the bare loop.
    pub(crate) fn floor(mut self, floor: f64) -> Self {
        self.floor = Some(floor);
        self
    }

    /// With something to reach; more than one may be given.
    pub(crate) fn reach(mut self, target: Target) -> Self {
        self.targets.push(target);
        self
    }

    /// With a word on how it was obtained.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Whether all targets are reached; `None` without targets. A share of a floor that is missing is not reached.
    pub(crate) fn reached(&self) -> Option<bool> {
        if self.targets.is_empty() {
            return None;
        }
        let reached = self.targets.iter().all(|target| match target {
            Target::AtMost(most) => self.value <= *most,
            Target::Exactly(value) => (self.value - value).abs() < 1e-9,
            Target::TimesFloor(times) => {
                self.floor.is_some_and(|floor| self.value <= times * floor)
            }
        });
        Some(reached)
    }
}

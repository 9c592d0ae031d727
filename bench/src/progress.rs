//! What is told while something is measured: a bar with the time left on a terminal, else a line now and then.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::clock;
use crate::report::count;

/// Between two lines where there is no terminal.
const QUIET: Duration = Duration::from_secs(10);

/// One step of known length.
pub(crate) struct Step {
    name: String,
    total: u64,
    bar: Option<ProgressBar>,
    began: Instant,
    told: Instant,
}

impl Step {
    /// Begins a step of so many parts (pods, seconds).
    pub(crate) fn begin(name: impl Into<String>, total: u64) -> Self {
        let (name, began) = (name.into(), clock::now());
        let bar = std::io::stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("bench: {msg} {wide_bar} {pos}/{len} {eta} left")
                    .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total)
                .with_style(style)
                .with_message(name.clone())
        });
        if bar.is_none() {
            eprintln!("bench: {name}");
        }
        Self {
            name,
            total,
            bar,
            began,
            told: began,
        }
    }

    /// So many parts are done.
    pub(crate) fn at(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done.min(self.total));
        } else if self.told.elapsed() >= QUIET {
            self.told = clock::now();
            let left = self.began.elapsed().as_secs_f64() / count(done.max(1))
                * count(self.total.saturating_sub(done));
            eprintln!(
                "bench: {}: {done} of {}, about {left:.0} s left",
                self.name, self.total
            );
        }
    }

    /// It is over.
    pub(crate) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
        let seconds = self.began.elapsed().as_secs_f64();
        eprintln!("bench: {} ({seconds:.1} s)", self.name);
    }
}

//! What a bed tells while it is raised, and one listener that shows it to a person.
//!
//! Raising a bed takes from seconds (warm) to minutes (the first time, when the programs are
//! compiled), so every long step reports. Listeners are plain closures: tests pass [`silent`] or
//! [`to_stderr`], a program may pass its own.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::clock;

/// One report from a bed that is being raised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// Something worth a line: a package being installed, a folder left behind.
    Note(String),
    /// Go packages compiled so far, of about how many. What the build cache holds already is not
    /// compiled again, so `done` may end below `total`.
    Compiling {
        /// Packages compiled so far.
        done: usize,
        /// All packages the programs depend on.
        total: usize,
    },
    /// A step is done.
    Step {
        /// Its name, for instance `etcd`.
        name: String,
        /// How long it took, in seconds.
        seconds: f64,
    },
}

/// A listener that shows nothing.
pub fn silent() -> impl FnMut(Progress) + Send + 'static {
    |_| {}
}

/// A listener that writes to stderr: a bar for the compilation when stderr is a terminal, else a
/// plain line every few seconds.
pub fn to_stderr() -> impl FnMut(Progress) + Send + 'static {
    let mut bar: Option<ProgressBar> = None;
    let mut last_line: Option<Instant> = None;
    let terminal = std::io::stderr().is_terminal();
    move |progress| {
        if let Progress::Compiling { done, total } = progress {
            if terminal {
                let bar = bar.get_or_insert_with(|| compile_bar(total));
                bar.set_position(done.min(total) as u64);
            } else if last_line.is_none_or(|at| at.elapsed() >= Duration::from_secs(5)) {
                last_line = Some(clock::now());
                eprintln!(
                    "bed: compiling the cluster's programs, {done} of about {total} packages"
                );
            }
            return;
        }
        if let Some(bar) = bar.take() {
            bar.finish_and_clear();
        }
        match progress {
            Progress::Note(text) => eprintln!("bed: {text}"),
            Progress::Step { name, seconds } => eprintln!("bed: {name} ({seconds:.1} s)"),
            Progress::Compiling { .. } => {}
        }
    }
}

fn compile_bar(total: usize) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "bed: compiling the cluster's programs {wide_bar} {pos}/{len} {elapsed}",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total as u64).with_style(style)
}

//! What is said while something is measured: a bar with the time left on a terminal, else a line at the end.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::clock;

/// One step of known length; over when dropped.
pub(crate) struct Step {
    name: String,
    bar: Option<ProgressBar>,
    began: Instant,
}

impl Step {
    /// Begins a step of so many parts (pods, seconds).
    pub(crate) fn begin(name: impl Into<String>, total: usize) -> Self {
        let (name, began) = (name.into(), clock::now());
        let bar = std::io::stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("bench: {msg} {wide_bar} {pos}/{len} {eta} left")
                    .unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(total as u64).with_style(style);
            bar.with_message(name.clone())
        });
        Self { name, bar, began }
    }

    /// So many parts are done.
    pub(crate) fn at(&self, done: usize) {
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let seconds = self.began.elapsed().as_secs_f64();
        eprintln!("bench: {} ({seconds:.1} s)", self.name);
    }
}

/// Lets time pass over which something is measured.
pub(crate) async fn wait(what: impl Into<String>, time: Duration) {
    const TICK: Duration = Duration::from_millis(500);
    let ticks = time.div_duration_f64(TICK).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "minutes at most"
    )]
    let ticks = ticks as usize;
    let step = Step::begin(what, ticks);
    let until = clock::now() + time;
    for tick in 0..ticks {
        step.at(tick);
        tokio::time::sleep(until.saturating_duration_since(clock::now()).min(TICK)).await;
    }
}

//! What is said while something is measured: a line when a step is over.

use std::time::Duration;

use leadsman_process::clock;
use tokio::time::Instant;

/// One step; over when dropped.
pub(crate) struct Step {
    name: String,
    began: Instant,
}

impl Step {
    pub(crate) fn begin(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            began: clock::monotonic(),
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let seconds = self.began.elapsed().as_secs_f64();
        eprintln!("bench: {} ({seconds:.1} s)", self.name);
    }
}

/// Lets time pass over which something is measured.
pub(crate) async fn wait(what: impl Into<String>, time: Duration) {
    let _step = Step::begin(what);
    tokio::time::sleep(time).await;
}

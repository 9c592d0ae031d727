//! xtask's one door to the clock: how long things took. No rule is timed by it.

use std::fs;
use std::time::{Duration, Instant};

/// The present moment.
#[expect(
    clippy::disallowed_methods,
    reason = "durations for a reader; this is xtask's only door to the clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// How long ago this process began. `cargo run` becomes the program it runs, so this counts from when the user hit
/// Enter, cargo's own look at the workspace included. `None` where there is no `/proc`.
pub(crate) fn since_enter() -> Option<Duration> {
    let up: f64 = fs::read_to_string("/proc/uptime")
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()?;
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name may hold blanks; what follows its closing bracket begins with field 3, and starttime is field 22.
    let ticks: f64 = stat
        .rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()?;
    // USER_HZ, 100 on every Linux that user space sees.
    Duration::try_from_secs_f64(up - ticks / 100.0).ok()
}

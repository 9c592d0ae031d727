//! What a process has used and holds, from `/proc`.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::progress::wait;

/// A process that is being measured, by its number in our own PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meter(pub(crate) u32);

/// What a process holds at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Resident set, in bytes.
    pub(crate) rss: u64,
    /// The largest that it ever was, in bytes (`VmHWM`).
    pub(crate) peak: u64,
    pub(crate) threads: u64,
    pub(crate) descriptors: u64,
}

impl Meter {
    /// CPU that all its living threads have used so far, to the nanosecond: the scheduler's own account.
    pub(crate) fn cpu(self) -> Result<Duration> {
        let mut nanoseconds = 0;
        for task in self.folder("task")? {
            // A thread may end between the listing and the look at it.
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else {
                continue;
            };
            let used = text
                .split_whitespace()
                .next()
                .context("an empty schedstat")?;
            nanoseconds += used.parse::<u64>().context("a schedstat")?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// CPU that it uses while time passes.
    pub(crate) async fn cpu_over(
        self,
        what: impl Into<String>,
        time: Duration,
    ) -> Result<Duration> {
        let before = self.cpu()?;
        wait(what, time).await;
        Ok(self.cpu()?.saturating_sub(before))
    }

    /// What it holds now.
    pub(crate) fn held(self) -> Result<Held> {
        let path = format!("/proc/{}/status", self.0);
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let number = |name: &str| -> Result<u64> {
            let mut words = text.split_whitespace().skip_while(|word| *word != name);
            let value = words
                .nth(1)
                .with_context(|| format!("{path} has no {name}"))?;
            Ok(value.parse()?)
        };
        Ok(Held {
            rss: number("VmRSS:")? * 1024,
            peak: number("VmHWM:")? * 1024,
            threads: number("Threads:")?,
            descriptors: self.folder("fd")?.count() as u64,
        })
    }

    fn folder(self, name: &str) -> Result<impl Iterator<Item = fs::DirEntry>> {
        let path = format!("/proc/{}/{name}", self.0);
        let entries = fs::read_dir(&path).with_context(|| format!("reading {path}"))?;
        Ok(entries.flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_computes_uses_cpu_and_holds_memory() {
        let meter = Meter(std::process::id());
        let before = meter.cpu().unwrap();
        let mut sum = 0_u64;
        while meter.cpu().unwrap() < before + Duration::from_millis(20) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let held = meter.held().unwrap();
        assert!(held.rss > 0 && held.peak >= held.rss && held.threads > 0 && held.descriptors > 0);
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        assert!(Meter(u32::MAX).cpu().is_err());
    }
}

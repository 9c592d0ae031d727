//! What a process has used and holds, from `/proc`.

use std::time::Duration;

use anyhow::{Context as _, Result};
use procfs::process::Process;

use crate::progress::wait;

/// A process that is being measured, by its number in our own PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meter(pub(crate) u32);

/// What a process holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Resident set, in bytes.
    pub(crate) rss: u64,
    /// The largest that it ever was, in bytes (`VmHWM`).
    pub(crate) peak: u64,
    pub(crate) threads: u64,
    pub(crate) descriptors: usize,
}

impl Meter {
    /// CPU that all its living threads have used so far, to the nanosecond: the scheduler's own account.
    pub(crate) fn cpu(self) -> Result<Duration> {
        let threads = self.process()?.tasks()?;
        // A thread may end between the listing and the look at it.
        let accounts = threads.filter_map(|thread| thread.ok()?.schedstat().ok());
        let used = accounts.map(|account| account.sum_exec_runtime);
        Ok(Duration::from_nanos(used.sum()))
    }

    /// CPU that it uses while time passes.
    pub(crate) async fn cpu_over(self, what: String, time: Duration) -> Result<Duration> {
        let before = self.cpu()?;
        wait(what, time).await;
        Ok(self.cpu()?.saturating_sub(before))
    }

    /// What it holds now.
    pub(crate) fn held(self) -> Result<Held> {
        let process = self.process()?;
        let status = process.status()?;
        let bytes = |kibibytes: Option<u64>| {
            let kibibytes = kibibytes.context("it has no memory")?;
            anyhow::Ok(kibibytes * 1024)
        };
        Ok(Held {
            rss: bytes(status.vmrss)?,
            peak: bytes(status.vmhwm)?,
            threads: status.threads,
            descriptors: process.fd_count()?,
        })
    }

    fn process(self) -> Result<Process> {
        let process = Process::new(self.0.try_into()?);
        process.with_context(|| format!("reading /proc/{}", self.0))
    }
}

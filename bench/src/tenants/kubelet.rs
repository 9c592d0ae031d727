//! The kubelet of leadsman's own processes, played: a process that ends, that takes more memory than the chart allows it, or
//! whose `/healthz` is silent is started again.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use anyhow::Result;
use leadsman_process::clock;
use tokio::time::{sleep, timeout};

use crate::meter::Meter;

/// The chart's limits of memory, `resources.limits.memory`.
pub(crate) const MANAGER_MEMORY: u64 = 512 << 20;
pub(crate) const AGENT_MEMORY: u64 = 128 << 20;
/// Between two looks at a process. A cgroup looks at each page.
const LOOK: Duration = Duration::from_millis(20);
/// The defaults of a liveness probe, which the chart leaves as they are: `periodSeconds` and `failureThreshold`. A client
/// asks within `timeoutSeconds`, [`ANSWER`].
const PERIOD: Duration = Duration::from_secs(10);
const FAILURES: u32 = 3;
pub(crate) const ANSWER: Duration = Duration::from_secs(1);
/// A second restart waits (`pkg/kubelet/kubelet.go`, `backOffPeriod`); here it does not double.
const BACK_OFF: Duration = Duration::from_secs(10);
/// How long a manager may take to be ready.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(40);
const PAUSE: Duration = Duration::from_millis(20);

/// A process of leadsman.
pub(crate) trait Kept {
    /// The most memory that it may have, in bytes.
    fn limit(&self) -> u64;
    /// An error where it does not run.
    fn meter(&self) -> Result<Meter>;
    /// Whether it answers this path with success within [`ANSWER`].
    async fn answers(&self, path: &str) -> bool;
    /// SIGTERM, and SIGKILL if that does not end it.
    async fn stop(&self);
    /// SIGKILL, if it runs.
    async fn kill(&self);
    async fn start(&self) -> Result<()>;
}

/// A process, and what was seen of it.
pub(crate) struct Tended<K> {
    pub(crate) process: K,
    seen: RefCell<Seen>,
}

/// What was seen of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Resident set, in bytes, the largest of all that ran one after the other.
    pub(crate) peak: u64,
    /// Why it was started again, each time.
    pub(crate) restarts: Vec<&'static str>,
}

impl<K: Kept> Tended<K> {
    pub(crate) fn new(process: K) -> Self {
        Self {
            process,
            seen: RefCell::default(),
        }
    }

    pub(crate) fn take(&self) -> Seen {
        self.seen.take()
    }

    /// Keeps it alive, for ever.
    pub(crate) async fn tend(&self) -> Result<()> {
        let failures = Cell::new(0);
        let asking = async {
            loop {
                sleep(PERIOD).await;
                let answers = self.process.answers("/healthz").await;
                failures.set(if answers { 0 } else { failures.get() + 1 });
            }
        };
        let looking = async {
            loop {
                if let Some(why) = self.reason_to_restart(failures.get()) {
                    self.restart(why).await?;
                    failures.set(0);
                }
                sleep(LOOK).await;
            }
        };
        tokio::select! {
            failed = looking => failed,
            () = asking => Ok(()),
        }
    }

    fn reason_to_restart(&self, failures: u32) -> Option<&'static str> {
        let Ok(held) = self.process.meter().and_then(Meter::held) else {
            return Some("it ended");
        };
        let mut seen = self.seen.borrow_mut();
        seen.peak = seen.peak.max(held.peak);
        if held.peak > self.process.limit() {
            return Some("it took more memory than its limit");
        }
        (failures >= FAILURES).then_some("/healthz was silent")
    }

    async fn restart(&self, why: &'static str) -> Result<()> {
        eprintln!("bench: a process is started again: {why}");
        self.process.kill().await;
        let is_first = self.seen.borrow().restarts.is_empty();
        self.seen.borrow_mut().restarts.push(why);
        if !is_first {
            sleep(BACK_OFF).await;
        }
        self.process.start().await
    }

    /// Ends and starts it; after how long `/readyz` says 200, if that is within [`READY_WITHIN`].
    pub(crate) async fn start_anew(&self) -> Result<Option<Duration>> {
        self.process.stop().await;
        let began = clock::monotonic();
        self.process.start().await?;
        let ready = async {
            while !self.process.answers("/readyz").await {
                sleep(PAUSE).await;
            }
        };
        tokio::select! {
            ready = timeout(READY_WITHIN, ready) => Ok(ready.ok().map(|()| began.elapsed())),
            failed = self.tend() => failed.map(|()| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_the_charts() {
        let values = include_str!("../../../charts/leadsman/values.yaml");
        for (of, limit) in [
            ("\nmanager:\n", MANAGER_MEMORY),
            ("\nagent:\n", AGENT_MEMORY),
        ] {
            let (_, values) = values.split_once(of).unwrap();
            let (_, values) = values.split_once("limits: {memory: ").unwrap();
            let expected = format!("{}Mi}}", limit >> 20);
            assert!(values.starts_with(&expected), "{of}{expected}");
        }
    }
}

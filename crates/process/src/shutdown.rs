//! Signals, and a shutdown within the grace period.
//!
//! The first SIGTERM or SIGINT cancels the process's token: each task that holds it finishes what it has begun. A
//! second signal, or the end of the grace period, ends the process at once. So an API server that does not answer
//! cannot delay the exit until the kubelet kills the process.

use std::fmt;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The shortest grace period. Whatever drains during a shutdown asserts that its own deadline is shorter.
pub const SHORTEST_GRACE_SECONDS: u64 = 15;

const DEFAULT_GRACE_SECONDS: u64 = 20;

const _: () = assert!(
    DEFAULT_GRACE_SECONDS < 30,
    "the kubelet kills a pod after 30 s unless its spec says otherwise \
     (`DefaultTerminationGracePeriodSeconds`, k8s.io/api/core/v1/types.go)"
);

/// Flags of the shutdown.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Shutdown")]
pub struct ShutdownArgs {
    /// Seconds from a signal to the exit at the latest, whatever is still in progress; at least 15, and less than the pod's
    /// terminationGracePeriodSeconds
    #[arg(
        long,
        env = "LEADSMAN_SHUTDOWN_GRACE_SECONDS",
        value_name = "SECONDS",
        default_value_t = DEFAULT_GRACE_SECONDS,
        value_parser = clap::value_parser!(u64).range(SHORTEST_GRACE_SECONDS..)
    )]
    pub shutdown_grace_seconds: u64,
}

impl ShutdownArgs {
    /// The grace period.
    pub fn grace_period(&self) -> Duration {
        Duration::from_secs(self.shutdown_grace_seconds)
    }
}

/// A signal that begins the shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, which the kubelet sends.
    Terminate,
    /// SIGINT, which Ctrl-C sends.
    Interrupt,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
        })
    }
}

/// Why the process ended before its work did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forced {
    /// The grace period was over.
    #[error("shutdown was not finished within {seconds} s of {signal} (--shutdown-grace-seconds)", seconds = grace.as_secs())]
    Grace {
        /// The signal that began the shutdown.
        signal: Signal,
        /// The grace period.
        grace: Duration,
    },
    /// A second signal came.
    #[error("{0} received during the shutdown, which was not finished")]
    Again(Signal),
}

/// The stream of signals.
#[derive(Debug)]
pub struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// Catches both signals from now on, in place of their default action.
    pub fn catch_signals() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next_signal(&mut self) -> Signal {
        tokio::select! {
            // Either signal stops the process, and the other one is still there for the next call.
            biased;
            _ = self.terminate.recv() => Signal::Terminate,
            _ = self.interrupt.recv() => Signal::Interrupt,
        }
    }
}

/// Runs `work` to its end, but not longer than `grace` after the first signal.
///
/// `on_stop` is called with the first signal, before the token is cancelled.
pub async fn until_stopped<W: Future>(
    work: W,
    mut next_signal: impl AsyncFnMut() -> Signal,
    token: CancellationToken,
    grace: Duration,
    on_stop: impl FnOnce(Signal),
) -> Result<W::Output, Forced> {
    tokio::pin!(work);
    let first = tokio::select! {
        // Work that has ended at the same moment as the signal comes need not be stopped.
        biased;
        output = &mut work => return Ok(output),
        signal = next_signal() => signal,
    };
    tracing::info!(signal = %first, grace_seconds = grace.as_secs(), "stopping");
    on_stop(first);
    token.cancel();
    tokio::select! {
        biased;
        // Work that has ended at the same moment as the grace period has ended in time.
        output = work => Ok(output),
        signal = next_signal() => Err(Forced::Again(signal)),
        () = tokio::time::sleep(grace) => Err(Forced::Grace { signal: first, grace }),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const GRACE: Duration = Duration::from_secs(20);

    /// Signals that come at these times after the start, then never again.
    fn at(times: &'static [(u64, Signal)]) -> impl AsyncFnMut() -> Signal {
        let start = tokio::time::Instant::now();
        let mut times = times.iter();
        async move || {
            let Some((second, signal)) = times.next() else {
                return pending().await;
            };
            tokio::time::sleep_until(start + Duration::from_secs(*second)).await;
            *signal
        }
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ShutdownArgs,
    }

    #[test]
    fn a_grace_period_lets_all_parts_drain() {
        let parsed = |seconds: &str| {
            let line = ["program", "--shutdown-grace-seconds", seconds];
            let parsed = <Line as clap::Parser>::try_parse_from(line).ok();
            parsed.map(|line| line.args.grace_period().as_secs())
        };
        assert_eq!([parsed("14"), parsed("15")], [None, Some(15)]);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_ends_by_itself_is_returned_without_a_signal() {
        let token = CancellationToken::new();
        let end = until_stopped(async { 7 }, at(&[]), token.clone(), GRACE, |_| ()).await;
        assert_eq!(end, Ok(7));
        assert!(!token.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_cancels_the_token_and_the_work_finishes() {
        let token = CancellationToken::new();
        let work = token.clone().cancelled_owned();
        let signals = at(&[(1, Signal::Terminate)]);
        let mut stopped_by = None;
        let end = until_stopped(work, signals, token, GRACE, |signal| {
            stopped_by = Some(signal);
        })
        .await;
        assert_eq!(end, Ok(()));
        assert_eq!(stopped_by, Some(Signal::Terminate));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_hangs_is_abandoned_after_the_grace_period() {
        let start = tokio::time::Instant::now();
        let signals = at(&[(1, Signal::Terminate)]);
        let token = CancellationToken::new();
        let end = until_stopped(pending::<()>(), signals, token, GRACE, |_| ()).await;
        let signal = Signal::Terminate;
        let grace = GRACE;
        assert_eq!(end, Err(Forced::Grace { signal, grace }));
        assert_eq!(start.elapsed().as_secs(), 21);
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_signal_ends_the_process_at_once() {
        let start = tokio::time::Instant::now();
        let signals = at(&[(1, Signal::Terminate), (3, Signal::Interrupt)]);
        let token = CancellationToken::new();
        let end = until_stopped(pending::<()>(), signals, token, GRACE, |_| ()).await;
        assert_eq!(end, Err(Forced::Again(Signal::Interrupt)));
        assert_eq!(start.elapsed().as_secs(), 3);
    }
}

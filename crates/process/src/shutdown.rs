//! Signals, and an end that comes in time.
//!
//! The first SIGTERM or SIGINT cancels the process's token: everything that holds it finishes what it has begun. A
//! second signal, or the end of the grace period, ends the process at once. So an API server that does not answer
//! cannot keep it alive until the kubelet kills it.

use std::fmt;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The grace period if none is given: what an end takes by its own constants is shorter.
pub const DEFAULT_GRACE_SECONDS: u64 = 20;

/// How long an end may take.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Shutdown")]
pub struct Args {
    /// Seconds from the signal to the end of the process, whatever is still under way; less than the pod's
    /// terminationGracePeriodSeconds
    #[arg(
        long,
        env = "LEADSMAN_SHUTDOWN_GRACE_SECONDS",
        value_name = "SECONDS",
        default_value_t = DEFAULT_GRACE_SECONDS
    )]
    pub shutdown_grace_seconds: u64,
}

impl Args {
    /// The grace period.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.shutdown_grace_seconds)
    }
}

/// A signal that asks for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, what the kubelet sends.
    Terminate,
    /// SIGINT, Ctrl-C.
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
    #[error("{signal} was {seconds} s ago and work is still under way: giving up", seconds = grace.as_secs())]
    Grace {
        /// The signal that began the end.
        signal: Signal,
        /// The grace period.
        grace: Duration,
    },
    /// Another signal came.
    #[error("{0} came while an earlier signal was being obeyed: giving up")]
    Again(Signal),
}

/// The source of signals.
#[derive(Debug)]
pub struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// Catches both signals from now on.
    pub fn catch() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The next signal.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Terminate,
            _ = self.interrupt.recv() => Signal::Interrupt,
        }
    }
}

/// Runs `work` to its end, within `grace` of the first signal.
///
/// `stopping` is told of the first signal before the token is cancelled.
pub async fn until_stopped<W: Future>(
    work: W,
    mut next_signal: impl AsyncFnMut() -> Signal,
    token: CancellationToken,
    grace: Duration,
    stopping: impl FnOnce(Signal),
) -> Result<W::Output, Forced> {
    tokio::pin!(work);
    let first = tokio::select! {
        output = &mut work => return Ok(output),
        signal = next_signal() => signal,
    };
    tracing::info!(signal = %first, grace_seconds = grace.as_secs(), "stopping");
    stopping(first);
    token.cancel();
    tokio::select! {
        biased;
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

    #[tokio::test(start_paused = true)]
    async fn work_that_ends_by_itself_needs_no_signal() {
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
        let mut told = None;
        let end = until_stopped(work, signals, token, GRACE, |signal| told = Some(signal)).await;
        assert_eq!(end, Ok(()));
        assert_eq!(told, Some(Signal::Terminate));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_hangs_is_given_up_after_the_grace_period() {
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
    async fn a_second_signal_ends_at_once() {
        let start = tokio::time::Instant::now();
        let signals = at(&[(1, Signal::Terminate), (3, Signal::Interrupt)]);
        let token = CancellationToken::new();
        let end = until_stopped(pending::<()>(), signals, token, GRACE, |_| ()).await;
        assert_eq!(end, Err(Forced::Again(Signal::Interrupt)));
        assert_eq!(start.elapsed().as_secs(), 3);
    }
}

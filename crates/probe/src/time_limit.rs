//! How long a run may take.

use std::pin::Pin;
use std::time::Duration;

/// How long a run may take: its timeout, and once more the time that it lost by then. While the thread on which runs wait is
/// late, nothing that arrives is seen, so that time was not the target's. A run that is still not answered then has failed:
/// where time is always lost, a target that hangs would otherwise never fail.
#[derive(Clone, Copy)]
pub struct TimeLimit<'a> {
    pub(crate) timeout: Duration,
    lost_time: Option<&'a (dyn Fn() -> Duration + Sync)>,
}

impl From<Duration> for TimeLimit<'_> {
    /// A limit for a thread that is never late.
    fn from(timeout: Duration) -> Self {
        Self {
            timeout,
            lost_time: None,
        }
    }
}

impl<'a> TimeLimit<'a> {
    /// A timeout, and how much time the run has lost since it began, which is asked for when the timeout is over.
    pub fn new(timeout: Duration, lost_time: &'a (dyn Fn() -> Duration + Sync)) -> Self {
        Self {
            timeout,
            lost_time: Some(lost_time),
        }
    }

    /// The same with a longer timeout.
    #[must_use]
    pub fn with_slack(self, slack: Duration) -> Self {
        Self {
            timeout: self.timeout + slack,
            ..self
        }
    }

    /// Waits for the output of a future; `None` if it takes too long. By reference, since an argument of an `async fn` that is
    /// pinned there is twice in its state.
    pub async fn await_output<F: Future>(self, mut future: Pin<&mut F>) -> Option<F::Output> {
        if let Ok(output) = tokio::time::timeout(self.timeout, future.as_mut()).await {
            return Some(output);
        }
        // The extra time begins now, not at the end of the timeout, which may have passed long ago.
        let more = (self.lost_time?)();
        tokio::time::timeout(more, future).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{Instant, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    // PRB-13
    #[tokio::test(start_paused = true)]
    async fn time_that_was_lost_is_given_back_once() {
        // Answered after; lost; answered in time; ended after. In tenths of a second.
        let table = [
            (9, 0, true, 9),
            (11, 0, false, 10),
            (11, 5, true, 11),
            (16, 5, false, 15),
            (1_000, 30, false, 40),
        ];
        for (answer, lost, in_time, ended) in table {
            let (asked, start) = (AtomicU32::new(0), Instant::now());
            let lost_time = || {
                asked.fetch_add(1, Ordering::Relaxed);
                SECOND / 10 * lost
            };
            let limit = TimeLimit::new(SECOND, &lost_time);
            let output = limit.await_output(pin!(sleep(SECOND / 10 * answer))).await;
            assert_eq!(output.is_some(), in_time, "{answer} {lost}");
            assert_eq!(start.elapsed().as_millis() / 100, ended, "{answer} {lost}");
            assert_eq!(asked.into_inner(), u32::from(answer > 10));
        }
    }
}

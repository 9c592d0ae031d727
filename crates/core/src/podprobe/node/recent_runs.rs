//! The last runs of each probe, kept for people who ask why a verdict is what it is. Nothing is decided by them.
//!
//! What they take is bounded twice: each probe has so many runs at most, and all probes of the node together so many
//! bytes, of which each probe has an equal share. So no pod's output displaces the history of another's.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use leadsman_api::limits;

use crate::cluster::truncate;
use crate::podprobe::history::{RecordedRun, RunResult};
use crate::podprobe::probe::{CannotProbe, Outcome};
use crate::podprobe::verdict::VERDICT_MESSAGE_BYTES;

/// The bytes of a run without its output.
const RUN_BYTES: usize = size_of::<RecentRun>();
/// The bytes of an output besides its text: the counts of an `Arc`.
const OUTPUT_BYTES: usize = 2 * size_of::<usize>();

const _: () = assert!(
    (u32::MAX / 1_000_000).cast_signed() > limits::TIMEOUT_SECONDS,
    "the microseconds of the longest run are kept as they are"
);
// Said in docs/scale.md.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(RUN_BYTES == 40);

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// The runs of one probe. With 0 nothing is kept.
    pub runs_per_probe: usize,
    /// The bytes that all runs of the node may take.
    pub bytes: usize,
}

impl HistoryLimits {
    /// Nothing is kept.
    pub const NONE: Self = Self::with_runs_per_probe(0);

    /// Makes limits of this many runs of each probe, in at most 4 MiB.
    pub const fn with_runs_per_probe(runs_per_probe: usize) -> Self {
        Self {
            runs_per_probe,
            bytes: 4 << 20,
        }
    }

    /// The limits of one of so many probes.
    pub(super) fn share_of_one(self, probes: usize) -> ProbeHistoryLimits {
        ProbeHistoryLimits {
            runs: self.runs_per_probe,
            bytes: self.bytes / probes.max(1),
        }
    }
}

/// How much is kept of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeHistoryLimits {
    runs: usize,
    bytes: usize,
}

impl ProbeHistoryLimits {
    pub(super) fn keeps_any(self) -> bool {
        self.runs > 0
    }
}

/// The times of a run that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunTimes {
    pub(super) ended: Timestamp,
    pub(super) took: Duration,
    pub(super) waited: Duration,
}

/// A run as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecentRun {
    began: i64,
    /// Equal outputs of runs in a row are one. None if it is empty.
    output: Option<Arc<str>>,
    micros: u32,
    waited_micros: u32,
    result: RunResult,
}

/// The last runs of one probe, the newest one last.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentRuns(Vec<RecentRun>);

impl RecentRuns {
    /// The form in which a run is kept after those that there are.
    pub(super) fn compact_run(
        &self,
        result: &Result<Outcome, CannotProbe>,
        times: RunTimes,
        limits: ProbeHistoryLimits,
    ) -> RecentRun {
        let cause;
        let (result, output) = match result {
            Ok(Outcome::Succeeded(output)) => (RunResult::Succeeded, output.as_str()),
            Ok(Outcome::Failed(output)) => (RunResult::Failed, output.as_str()),
            Err(error) => {
                cause = error.to_string();
                (RunResult::CannotProbe, cause.as_str())
            }
        };
        // An output that exceeds the share alone would be trimmed at once, and with it its run.
        let room = limits.bytes.saturating_sub(RUN_BYTES + OUTPUT_BYTES);
        let output = truncate(output, VERDICT_MESSAGE_BYTES.min(room));
        let last = self.0.last().and_then(|last| last.output.as_ref());
        let output = match last {
            _ if output.is_empty() => None,
            // A probe prints the same for hours: one allocation for all of these runs.
            Some(last) if **last == *output => Some(last.clone()),
            _ => Some(output.into()),
        };
        let took = SignedDuration::try_from(times.took).unwrap_or(SignedDuration::MAX);
        let began = times.ended.checked_sub(took).unwrap_or(times.ended);
        RecentRun {
            began: began.as_microsecond(),
            output,
            micros: saturating_micros(times.took),
            waited_micros: saturating_micros(times.waited),
            result,
        }
    }

    /// Adds a run, and removes the oldest ones beyond the limits.
    pub(super) fn push(&mut self, run: RecentRun, limits: ProbeHistoryLimits) {
        let keeps = limits.runs.saturating_sub(1);
        // First, so that a full history uses the room of its oldest run and allocates nothing.
        self.remove_oldest(self.0.len().saturating_sub(keeps));
        // One by one: what is reserved would count.
        self.0.reserve_exact(1);
        self.0.push(run);
        self.trim_to_limits(limits);
    }

    /// Removes the oldest runs beyond the limits.
    pub(super) fn trim_to_limits(&mut self, limits: ProbeHistoryLimits) {
        let mut bytes = 0;
        let mut newer: Option<&RecentRun> = None;
        // The newest without a gap: a gap would read as runs that were not made.
        let fit = self
            .0
            .iter()
            .rev()
            .take_while(|run| {
                bytes += run.bytes_beside_newer(newer);
                newer = Some(run);
                bytes <= limits.bytes
            })
            .count()
            .min(limits.runs);
        if fit < self.0.len() {
            self.remove_oldest(self.0.len() - fit);
            self.0.shrink_to_fit();
        }
    }

    fn remove_oldest(&mut self, count: usize) {
        self.0.drain(..count.min(self.0.len()));
    }

    /// Forgets them: the probe has become another one.
    pub(super) fn clear(&mut self) {
        // `Vec::clear` would keep what is allocated.
        self.0 = Vec::new();
    }

    /// The runs as they are told.
    pub(super) fn to_recorded_runs(&self, without_output: bool) -> Vec<RecordedRun> {
        let runs = self.0.iter().map(|run| RecordedRun {
            time: MicroTime(Timestamp::from_microsecond(run.began).unwrap_or_default()),
            duration_seconds: micros_to_seconds(run.micros),
            waited_seconds: micros_to_seconds(run.waited_micros),
            result: run.result,
            output: run.output.clone().filter(|_| !without_output),
        });
        runs.collect()
    }
}

impl RecentRun {
    /// The bytes of the run, beside a newer one whose output it may share.
    fn bytes_beside_newer(&self, newer: Option<&Self>) -> usize {
        let shares = |output: &Arc<str>| {
            let newer = newer.and_then(|newer| newer.output.as_ref());
            newer.is_some_and(|newer| Arc::ptr_eq(newer, output))
        };
        let output = self.output.as_ref().filter(|output| !shares(output));
        RUN_BYTES + output.map_or(0, |output| OUTPUT_BYTES + output.len())
    }
}

fn saturating_micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

fn micros_to_seconds(micros: u32) -> f64 {
    f64::from(micros) / 1e6
}

#[cfg(test)]
mod tests;

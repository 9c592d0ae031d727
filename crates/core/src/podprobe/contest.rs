//! Marks that somebody keeps taking away are put back with growing distance, so that no war is fought at full speed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::marks::Wants;
use super::pod::Version;

/// A pod that has been left alone for so long is contested no more.
const QUIET: Duration = Duration::from_mins(3);

/// From this distance on the marker's status says so.
const VISIBLE: Duration = Duration::from_secs(4);

/// How much one pod's marks are fought over.
#[derive(Clone, Debug, Default)]
pub(super) struct Contest {
    /// What the pod bore when it last bore all that was wanted.
    settled: Option<u64>,
    /// What has been written since.
    written: Option<Written>,
    /// How often marks were taken away, and when last.
    disturbed: Option<(u32, Duration)>,
    /// Nothing is written before.
    not_before: Option<Duration>,
}

/// Writes of one and the same that have not been seen to last.
#[derive(Clone, Copy, Debug)]
struct Written {
    wanted: u64,
    /// The pod that the last one was made for.
    version: Version,
    times: u32,
    last: Duration,
}

impl Contest {
    /// Takes note of a pod as it is now; `differs` if something would have to be written.
    pub(super) fn observe(&mut self, wants: &Wants, differs: bool, now: Duration) {
        self.calm_down(now);
        let wanted = fingerprint(wants);
        if !differs {
            *self = Self {
                settled: (!wants.is_empty()).then_some(wanted),
                disturbed: self.disturbed,
                ..Self::default()
            };
            return;
        }
        if self.settled == Some(wanted) {
            let times = self.disturbed.map_or(0, |(times, _)| times);
            self.disturbed = Some((times.saturating_add(1), now));
            self.not_before = Some(now.saturating_add(distance(times)));
        } else if self.settled.is_some() {
            self.not_before = None;
        }
        self.settled = None;
        match self.written {
            Some(written) if written.wanted == wanted => {
                // It was written and is not there.
                let times = written.times.saturating_sub(1);
                let next = Some(written.last.saturating_add(distance(times)));
                self.not_before = self.not_before.max(next);
            }
            Some(_) => {
                self.written = None;
                self.not_before = None;
            }
            None => {}
        }
    }

    /// Takes note of a write. One that is repeated for the same sight of the pod has only failed.
    pub(super) fn wrote(&mut self, wants: &Wants, version: Version, now: Duration) {
        let wanted = fingerprint(wants);
        let before = self.written.filter(|written| written.wanted == wanted);
        let times = before.map_or(1, |before| {
            let repeated = before.version == version;
            before.times.saturating_add(u32::from(!repeated))
        });
        self.written = Some(Written {
            wanted,
            version,
            times,
            last: now,
        });
    }

    /// Whether a write has to wait.
    pub(super) fn holds(&self, now: Duration) -> bool {
        self.not_before.is_some_and(|time| now < time)
    }

    /// Whether the marker's status should say so.
    pub(super) fn is_visible(&self) -> bool {
        let disturbed = self.disturbed.map_or(0, |(times, _)| times);
        let vain = self.written.map_or(0, |written| written.times);
        distance(disturbed.max(vain).saturating_sub(1)) >= VISIBLE
    }

    /// When to look again: at the end of the wait, or when quiet has lasted long enough.
    pub(super) fn deadline(&self, now: Duration) -> Option<Duration> {
        let wait = self.not_before.filter(|time| now < *time);
        let quiet = self.disturbed.map(|(_, last)| last.saturating_add(QUIET));
        match (wait, quiet) {
            (Some(wait), Some(quiet)) => Some(wait.min(quiet)),
            (wait, quiet) => wait.or(quiet),
        }
    }

    fn calm_down(&mut self, now: Duration) {
        if let Some((_, last)) = self.disturbed
            && last.saturating_add(QUIET) <= now
        {
            self.disturbed = None;
        }
    }
}

/// Stands for what is wanted, within this process.
fn fingerprint(wants: &Wants) -> u64 {
    let mut hasher = DefaultHasher::new();
    wants.hash(&mut hasher);
    hasher.finish()
}

/// 0 s after the first time, then 1, 2, 4 … 60 s.
fn distance(times_before: u32) -> Duration {
    match times_before {
        0 => Duration::ZERO,
        1..=6 => Duration::from_secs(1 << (times_before - 1)),
        _ => Duration::from_mins(1),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::podprobe::marks::Want;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn wants(value: &str) -> Wants {
        let mut wants = Wants::default();
        wants
            .labels
            .insert(Arc::from("role"), Want::Value(value.into()));
        wants
    }

    fn version(number: u64) -> Version {
        Version::parse(Some(&number.to_string()))
    }

    /// What an admission webhook takes out of each write comes back different for ever.
    #[test]
    fn a_write_that_never_lasts_is_repeated_ever_later() {
        let (mut contest, mut now) = (Contest::default(), 0);
        let mut waits = Vec::new();
        for sight in 0..9 {
            let start = now;
            contest.observe(&wants("main"), true, at(now));
            while contest.holds(at(now)) {
                now += 1;
            }
            waits.push(now - start);
            contest.wrote(&wants("main"), version(sight), at(now));
        }
        assert_eq!(waits, [0, 0, 1, 2, 4, 8, 16, 32, 60]);
        assert!(contest.is_visible());
        contest.observe(&wants("other"), true, at(now));
        assert!(!contest.holds(at(now)) && !contest.is_visible());
    }

    #[test]
    fn a_write_that_fails_is_not_fought_over() {
        let mut contest = Contest::default();
        for _ in 0..9 {
            contest.wrote(&wants("main"), version(1), at(0));
        }
        contest.observe(&wants("main"), true, at(0));
        assert!(!contest.holds(at(0)) && !contest.is_visible());
    }
}

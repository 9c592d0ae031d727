//! What somebody keeps taking away or undoing is written again with growing distance, so that no war is fought at full
//! speed.
//!
//! Only what was seen counts: a write that the API server carried out and whose value is not there, or a value that was
//! there and is not any more. A write that failed, or whose reply was lost, is no contest; the back-off of requests is
//! for those. Each thing that can be fought over waits by itself: a mark of a pod, the spec of a `NodePodProbe`, the
//! status of a marker.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::time::Duration;

use super::marks::Mark;

/// What has been left alone for so long is contested no more.
const QUIET: Duration = Duration::from_mins(3);

/// From this distance on the marker's status says so.
const VISIBLE: Duration = Duration::from_secs(4);

/// How much one thing is fought over. Times are on the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
struct Fight {
    /// Stands for the value that it is about.
    wanted: u64,
    /// How often values were taken away after they had been seen, and when last.
    taken_away: Option<(u32, Duration)>,
    /// How often this value was written and not seen.
    undone: u32,
    /// It is not written before.
    not_before: Option<Duration>,
}

impl Fight {
    fn take_away(&mut self, now: Duration) {
        let times = self.taken_away.map_or(0, |(times, _)| times);
        self.taken_away = Some((times.saturating_add(1), now));
        self.not_before = Some(now.saturating_add(distance(times)));
    }

    fn undo(&mut self, now: Duration) {
        let until = now.saturating_add(distance(self.undone));
        self.undone = self.undone.saturating_add(1);
        self.not_before = self.not_before.max(Some(until));
    }

    /// Another value is wanted, which nobody has taken away yet: it goes at once.
    fn want(&mut self, wanted: u64) {
        if self.wanted != wanted {
            *self = Self {
                wanted,
                taken_away: self.taken_away,
                ..Self::default()
            };
        }
    }

    /// The value is there. None if nothing needs to be remembered.
    fn settle(self, now: Duration) -> Option<Self> {
        let taken_away = self
            .taken_away
            .filter(|(_, last)| now < last.saturating_add(QUIET));
        taken_away?;
        Some(Self {
            wanted: self.wanted,
            taken_away,
            ..Self::default()
        })
    }

    fn holds(&self, now: Duration) -> bool {
        self.not_before.is_some_and(|time| now < time)
    }

    fn is_visible(&self) -> bool {
        let times = self.taken_away.map_or(0, |(times, _)| times);
        distance(times.max(self.undone).saturating_sub(1)) >= VISIBLE
    }

    /// When to look again: at the end of the wait, or when quiet has lasted long enough.
    fn deadline(&self, now: Duration) -> Option<Duration> {
        let wait = self.not_before.filter(|time| now < *time);
        let quiet = self.taken_away.map(|(_, last)| last.saturating_add(QUIET));
        let quiet = quiet.filter(|time| now < *time);
        wait.into_iter().chain(quiet).min()
    }
}

/// A write of something as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentWhole {
    /// Stands for what is wanted.
    pub(super) wanted: u64,
    /// Whether its reply shows what came of it; else the watch does, a little later.
    pub(super) is_shown: bool,
}

/// One thing that is written as a whole, and how much it is fought over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contest {
    /// The value with which it was last seen.
    settled: Option<u64>,
    /// The write under way.
    sent: Option<SentWhole>,
    fight: Option<Fight>,
}

impl Contest {
    /// Takes note of the thing as it is now: which value is wanted, by a number that stands for it, and whether the
    /// thing lacks it.
    pub(super) fn observe(&mut self, wanted: u64, differs: bool, now: Duration) {
        if !differs {
            // Another value is on its way, and will take the place of this one without anybody's doing.
            let is_overtaken = self.sent.is_some_and(|sent| sent.wanted != wanted);
            self.settled = (!is_overtaken).then_some(wanted);
            self.sent = self.sent.filter(|_| is_overtaken);
            self.fight = self.fight.and_then(|fight| fight.settle(now));
            return;
        }
        if let Some(fight) = &mut self.fight {
            fight.want(wanted);
        }
        if self.settled.take() == Some(wanted) {
            let fight = self.fight.get_or_insert_default();
            fight.want(wanted);
            fight.take_away(now);
        }
    }

    /// Takes note of a write that is sent, and whether its reply will show what came of it.
    pub(super) fn send(&mut self, wanted: u64, is_shown: bool) {
        self.sent = Some(SentWhole { wanted, is_shown });
    }

    /// Takes note that the last write was carried out, after [`Contest::observe`] was told what it led to. Returns
    /// whether it was undone.
    pub(super) fn written(&mut self, now: Duration) -> bool {
        let Some(sent) = self.sent.take() else {
            return false;
        };
        match &mut self.fight {
            // By now something else is wanted.
            Some(fight) if fight.wanted != sent.wanted => false,
            fight => {
                let fight = fight.get_or_insert_default();
                fight.want(sent.wanted);
                if !sent.is_shown {
                    fight.undone = fight.undone.max(1);
                }
                fight.undo(now);
                true
            }
        }
    }

    /// Whether a write has to wait.
    pub(super) fn holds(&self, now: Duration) -> bool {
        self.fight.is_some_and(|fight| fight.holds(now))
    }

    /// When to look again.
    pub(super) fn deadline(&self, now: Duration) -> Option<Duration> {
        self.fight?.deadline(now)
    }
}

/// How much the marks of one pod are fought over, each by itself.
#[derive(Clone, Debug, Default)]
pub(super) struct MarkContests {
    /// Stand for the marks that were last seen as they were wanted.
    settled: Box<[u64]>,
    /// The marks that the write under way changes, and what stands for each with what was wanted of it.
    sent: Box<[(Mark, u64)]>,
    /// Whether that write has been carried out.
    written: bool,
    /// Few at most, and none for most pods.
    fights: Vec<(Mark, Fight)>,
}

/// A mark, and whether the pod has it as it is wanted.
#[derive(Clone, Debug)]
pub(super) struct ComparedMark {
    /// The mark.
    pub(super) mark: Mark,
    /// Stands for the mark and what is wanted of it.
    pub(super) wanted: u64,
    /// Whether something would have to be written.
    pub(super) differs: bool,
}

impl MarkContests {
    /// Takes note of all marks of a pod as they are now.
    pub(super) fn observe(&mut self, marks: &[ComparedMark], now: Duration) {
        let mut fights = std::mem::take(&mut self.fights);
        for compared in marks {
            let place = fights.iter().position(|(mark, _)| *mark == compared.mark);
            let fight = place.map(|place| fights.swap_remove(place).1);
            if let Some(fight) = self.observe_one(compared, fight, now) {
                self.fights.push((compared.mark.clone(), fight));
            }
        }
        if std::mem::take(&mut self.written) {
            self.sent = Box::default();
        }
        let seen = marks.iter().filter(|compared| !compared.differs);
        // Where another value is on its way, it will take the place of this one without anybody's doing.
        let sent = &self.sent;
        let settled = seen.filter(|compared| {
            let mut sent = sent.iter();
            !sent.any(|(mark, wanted)| *mark == compared.mark && *wanted != compared.wanted)
        });
        let settled = settled.map(|compared| compared.wanted);
        if !settled.clone().eq(self.settled.iter().copied()) {
            self.settled = settled.collect();
        }
        let is_seen = |(_, wanted): &&(Mark, u64)| self.settled.contains(wanted);
        if self.sent.iter().any(|sent| is_seen(&sent)) {
            // What happens to it from now on was not undone, but taken away.
            let sent = self.sent.iter().filter(|sent| !is_seen(sent));
            self.sent = sent.cloned().collect();
        }
    }

    fn observe_one(
        &self,
        compared: &ComparedMark,
        fight: Option<Fight>,
        now: Duration,
    ) -> Option<Fight> {
        let wanted = compared.wanted;
        if !compared.differs {
            return fight.and_then(|fight| fight.settle(now));
        }
        let was_settled = self.settled.contains(&wanted);
        let mut sent = self.sent.iter();
        let is_undone = self.written && sent.any(|(_, sent)| *sent == wanted);
        if fight.is_none() && !was_settled && !is_undone {
            return None;
        }
        let mut fight = fight.unwrap_or_default();
        fight.want(wanted);
        if was_settled {
            fight.take_away(now);
        }
        if is_undone {
            fight.undo(now);
        }
        Some(fight)
    }

    /// Takes note of a write that is sent, which changes these marks.
    pub(super) fn send(&mut self, sent: Box<[(Mark, u64)]>) {
        self.sent = sent;
        self.written = false;
    }

    /// Takes note that the last write was carried out. What it led to, the next [`MarkContests::observe`] says, if
    /// anything it changed has not been seen: then this returns true.
    pub(super) fn written(&mut self) -> bool {
        self.written = !self.sent.is_empty();
        self.written
    }

    /// Whether a mark is left as it is for now.
    pub(super) fn holds(&self, mark: &Mark, now: Duration) -> bool {
        let mut fights = self.fights.iter();
        fights.any(|(fought, fight)| fought == mark && fight.holds(now))
    }

    /// The marks of which the marker's status should say that they are fought over.
    pub(super) fn visible(&self) -> impl Iterator<Item = &Mark> {
        let visible = self.fights.iter().filter(|(_, fight)| fight.is_visible());
        visible.map(|(mark, _)| mark)
    }

    /// When to look again.
    pub(super) fn deadline(&self, now: Duration) -> Option<Duration> {
        let fights = self.fights.iter();
        fights.filter_map(|(_, fight)| fight.deadline(now)).min()
    }
}

/// Stands for a value, within this process.
pub(super) fn fingerprint(value: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
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

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn compared(key: &str, value: &str, differs: bool) -> ComparedMark {
        ComparedMark {
            mark: label(key),
            wanted: fingerprint((key, value)),
            differs,
        }
    }

    fn label(key: &str) -> Mark {
        Mark::Label(Arc::from(key))
    }

    /// Sends the marks that differ, has the write carried out, and observes that nothing came of it.
    fn write_in_vain(contests: &mut MarkContests, marks: &[ComparedMark], now: u64) {
        let due = marks.iter().filter(|compared| compared.differs);
        contests.send(due.map(|one| (one.mark.clone(), one.wanted)).collect());
        contests.written();
        contests.observe(marks, at(now));
    }

    // PPM-8
    /// What an admission webhook takes out of each write comes back different for ever.
    #[test]
    fn a_write_that_is_undone_each_time_is_repeated_ever_later() {
        let (mut contests, mut now) = (MarkContests::default(), 0);
        let role = label("role");
        let main = [compared("role", "main", true)];
        let mut waits = Vec::new();
        for _ in 0..9 {
            let start = now;
            contests.observe(&main, at(now));
            while contests.holds(&role, at(now)) {
                now += 1;
            }
            waits.push(now - start);
            write_in_vain(&mut contests, &main, now);
        }
        assert_eq!(waits, [0, 0, 1, 2, 4, 8, 16, 32, 60]);
        assert_eq!(contests.visible().collect::<Vec<_>>(), [&role]);
        contests.observe(&[compared("role", "other", true)], at(now));
        assert!(!contests.holds(&role, at(now)) && contests.visible().next().is_none());
    }

    // PPM-8
    #[test]
    fn a_write_that_fails_is_not_fought_over() {
        let mut contests = MarkContests::default();
        let main = [compared("role", "main", true)];
        for _ in 0..9 {
            contests.send(Box::new([(main[0].mark.clone(), main[0].wanted)]));
            contests.observe(&main, at(0));
        }
        assert!(!contests.holds(&label("role"), at(0)) && contests.visible().next().is_none());
    }

    // PPM-8
    #[test]
    fn a_mark_that_is_fought_over_waits_alone_and_another_value_does_not_wait() {
        let mut contests = MarkContests::default();
        let mut now = 0;
        for differs in [false, true].repeat(5) {
            let marks = [
                compared("role", "main", differs),
                compared("idle", "true", false),
            ];
            contests.observe(&marks, at(now));
            now += 1;
        }
        let (role, idle) = (label("role"), label("idle"));
        assert!(contests.holds(&role, at(now)) && !contests.holds(&idle, at(now)));
        let marks = [
            compared("role", "back", true),
            compared("idle", "false", true),
        ];
        contests.observe(&marks, at(now));
        assert!(!contests.holds(&role, at(now)) && !contests.holds(&idle, at(now)));
        // But the war goes on if that is taken away as well.
        contests.observe(&[compared("role", "back", false)], at(now));
        contests.observe(&[compared("role", "back", true)], at(now));
        assert!(contests.holds(&role, at(now + 15)) && !contests.holds(&role, at(now + 16)));
    }

    // PPM-8
    #[test]
    fn a_whole_that_flaps_while_its_write_is_under_way_is_not_fought_over() {
        let mut contest = Contest::default();
        contest.observe(1, false, at(0));
        for _ in 0..8 {
            contest.observe(2, true, at(0));
            contest.send(2, true);
            contest.observe(1, false, at(0));
            // The reply shows the second value.
            contest.observe(1, true, at(0));
            contest.written(at(0));
            contest.observe(1, true, at(0));
            assert!(!contest.holds(at(0)));
            contest.send(1, true);
            contest.observe(1, false, at(0));
            contest.written(at(0));
        }
    }

    // PPM-8
    #[test]
    fn a_whole_that_is_undone_waits_until_something_else_is_wanted() {
        let mut contest = Contest::default();
        for _ in 0..4 {
            contest.observe(1, true, at(0));
            contest.send(1, true);
            contest.written(at(0));
        }
        assert!(contest.holds(at(3)) && !contest.holds(at(4)));
        contest.observe(2, true, at(0));
        assert!(!contest.holds(at(0)));
    }
}

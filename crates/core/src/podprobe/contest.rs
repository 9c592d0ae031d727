//! Exponential back-off for values that another client keeps removing or changing, so that two controllers that want different
//! values do not write against each other at full speed.
//!
//! Only observations count: a value is contested if it is missing after a write that the API server carried out, or if it was
//! observed and is gone. A write that failed, or whose reply was lost, is left to the back-off of requests. Each target has a
//! back-off of its own: a mark of a pod, the spec of a `NodePodProbe`, the status of a marker.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::time::Duration;

/// A contest ends after this time without another change.
const QUIET: Duration = Duration::from_mins(3);

/// From this wait on the marker's status reports the contest.
const VISIBLE: Duration = Duration::from_secs(4);

/// The longest wait: shorter than `QUIET`, or a contest would end while its back-off is running.
const LONGEST: Duration = Duration::from_mins(1);

const _: () = assert!(VISIBLE.as_secs() < LONGEST.as_secs() && LONGEST.as_secs() < QUIET.as_secs());

/// The back-off of one target, a mark or a whole object. Values are [`fingerprint`]s, times are of the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contest {
    phase: WantedValue,
    fight: Option<Fight>,
}

/// What was observed of the value that was wanted last.
#[derive(Clone, Copy, Debug, Default)]
enum WantedValue {
    /// Not observed.
    #[default]
    Missing,
    /// This value was the last one observed. If it goes, another client removed it.
    Seen(u64),
    /// A write of this value is under way. If it is not observed by the time the write has been carried out, another client or
    /// an admission webhook undid it.
    Sent(SentValue),
}

/// A value that is being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentValue {
    /// The value.
    pub(super) wanted: u64,
    /// Whether the reply to the write shows the result; otherwise the watch does, shortly after it.
    pub(super) is_shown: bool,
}

impl Contest {
    /// Records the state of the target: which value is wanted, and whether it has another one.
    pub(super) fn observe_value(&mut self, wanted: u64, differs: bool, now: Duration) {
        if !differs {
            // A write of another value that is under way will replace this one: nobody else removes it then.
            if !matches!(self.phase, WantedValue::Sent(sent) if sent.wanted != wanted) {
                self.phase = WantedValue::Seen(wanted);
            }
            self.fight = self.fight.and_then(|fight| fight.settle_observed(now));
            return;
        }
        // Another value begins without a wait; the times that values were removed stay, since the other client is the
        // same.
        if let Some(fight) = &mut self.fight {
            fight.want_value(wanted);
        }
        if let WantedValue::Seen(seen) = self.phase {
            self.phase = WantedValue::Missing;
            // A value that we replaced ourselves was not removed by anybody.
            if seen == wanted {
                self.fight_over(wanted).count_removal(now);
            }
        }
    }

    /// Records a write that is sent.
    pub(super) fn record_send(&mut self, sent: SentValue) {
        self.phase = WantedValue::Sent(sent);
    }

    /// Records that the last write was carried out, after [`Contest::observe_value`] has had its result. Returns whether it was undone.
    pub(super) fn record_written(&mut self, now: Duration) -> bool {
        let WantedValue::Sent(sent) = self.phase else {
            return false;
        };
        self.phase = WantedValue::Missing;
        if self.fight.is_some_and(|fight| fight.wanted != sent.wanted) {
            // Another value is wanted by now.
            return false;
        }
        let fight = self.fight_over(sent.wanted);
        // The reply to a deletion does not show its effect, so the first comparison after it proves nothing and waits a
        // second.
        if !sent.is_shown {
            fight.undone = fight.undone.max(1);
        }
        fight.count_undone_write(now);
        true
    }

    fn fight_over(&mut self, wanted: u64) -> &mut Fight {
        let fight = self.fight.get_or_insert_default();
        fight.want_value(wanted);
        fight
    }

    /// Whether writes have to wait.
    pub(super) fn delays_writes(&self, now: Duration) -> bool {
        self.fight.is_some_and(|fight| fight.delays_writes(now))
    }

    /// Whether a write waits for so long that markers' statuses should say so.
    pub(super) fn is_visible(&self) -> bool {
        let waits = |fight: Fight| fight.not_before.is_some() && fight.is_visible();
        self.fight.is_some_and(waits)
    }

    /// When to compare again.
    pub(super) fn next_comparison_at(&self, now: Duration) -> Option<Duration> {
        self.fight?.next_comparison_at(now)
    }
}

/// How often a value was removed or a write of it undone.
#[derive(Clone, Copy, Debug, Default)]
struct Fight {
    /// The value.
    wanted: u64,
    /// How often values were removed after they had been observed, and when last.
    taken_away: Option<(u32, Duration)>,
    /// How often this value was written and not observed afterwards.
    undone: u32,
    /// The time before which the value is not written again.
    not_before: Option<Duration>,
}

impl Fight {
    fn count_removal(&mut self, now: Duration) {
        let times = self.taken_away.map_or(0, |(times, _)| times);
        self.taken_away = Some((times.saturating_add(1), now));
        self.not_before = Some(now.saturating_add(back_off_after(times)));
    }

    fn count_undone_write(&mut self, now: Duration) {
        let until = now.saturating_add(back_off_after(self.undone));
        self.undone = self.undone.saturating_add(1);
        // The longer of the two waits: a value that is removed and whose writes are undone has both reasons.
        self.not_before = self.not_before.max(Some(until));
    }

    /// Another value is wanted: as nobody has removed it yet, it is written at once.
    fn want_value(&mut self, wanted: u64) {
        if self.wanted != wanted {
            *self = Self {
                wanted,
                taken_away: self.taken_away,
                ..Self::default()
            };
        }
    }

    /// The value is observed. None if the contest is over.
    fn settle_observed(self, now: Duration) -> Option<Self> {
        let quiet = |(_, last): &(u32, Duration)| now < last.saturating_add(QUIET);
        Some(Self {
            wanted: self.wanted,
            taken_away: Some(self.taken_away.filter(quiet)?),
            ..Self::default()
        })
    }

    fn delays_writes(&self, now: Duration) -> bool {
        self.not_before.is_some_and(|time| now < time)
    }

    fn is_visible(&self) -> bool {
        let times = self.taken_away.map_or(0, |(times, _)| times);
        back_off_after(times.max(self.undone).saturating_sub(1)) >= VISIBLE
    }

    /// When to compare again: at the end of the wait, or of the quiet time that ends the contest.
    fn next_comparison_at(&self, now: Duration) -> Option<Duration> {
        let wait = self.not_before.filter(|time| now < *time);
        let quiet = self.taken_away.map(|(_, last)| last.saturating_add(QUIET));
        let quiet = quiet.filter(|time| now < *time);
        wait.into_iter().chain(quiet).min()
    }
}

/// The contests of targets that are written together, by key: the marks of a pod. Each has a back-off of its own.
#[derive(Clone, Debug)]
pub(super) struct Contests<K> {
    /// The values that were observed last and are not contested, which is all that most pods have.
    seen: Box<[u64]>,
    /// The targets with a write under way or a contest.
    contests: Vec<(K, Contest)>,
}

/// A target by its key, and whether it has the value that is wanted.
#[derive(Clone, Debug)]
pub(super) struct Compared<K> {
    /// The key.
    pub(super) key: K,
    /// Fingerprint of the key and the wanted value.
    pub(super) wanted: u64,
    /// Whether a write is needed.
    pub(super) differs: bool,
}

impl<K> Default for Contests<K> {
    fn default() -> Self {
        Self {
            seen: Box::default(),
            contests: Vec::new(),
        }
    }
}

impl<K: Clone + PartialEq> Contests<K> {
    /// Records the state of all targets.
    pub(super) fn observe_values(&mut self, all: &[Compared<K>], now: Duration) {
        let mut before = std::mem::take(&mut self.contests);
        for one in all {
            let place = before.iter().position(|(key, _)| *key == one.key);
            let mut contest = place.map_or_else(
                || self.contest_at_rest(one.wanted),
                |place| before.swap_remove(place).1,
            );
            contest.observe_value(one.wanted, one.differs, now);
            if contest.fight.is_some() || matches!(contest.phase, WantedValue::Sent(_)) {
                self.contests.push((one.key.clone(), contest));
            }
        }
        let contests = &self.contests;
        let seen = all.iter().filter(|one| {
            let mut contests = contests.iter();
            !one.differs && !contests.any(|(key, _)| *key == one.key)
        });
        let seen = seen.map(|one| one.wanted);
        // Compared first: most events of a pod change no mark, and need no allocation.
        if !seen.clone().eq(self.seen.iter().copied()) {
            self.seen = seen.collect();
        }
    }

    /// The state of a target without a write under way and without a contest.
    fn contest_at_rest(&self, wanted: u64) -> Contest {
        let phase = if self.seen.contains(&wanted) {
            WantedValue::Seen(wanted)
        } else {
            WantedValue::Missing
        };
        Contest { phase, fight: None }
    }

    /// Records a write that is sent and changes these targets.
    pub(super) fn record_send(&mut self, sent: impl IntoIterator<Item = (K, u64)>) {
        for (_, contest) in &mut self.contests {
            // At most one write of a target is under way: a second one means that nothing is known of the first.
            if let WantedValue::Sent(_) = contest.phase {
                contest.phase = WantedValue::Missing;
            }
        }
        for (key, wanted) in sent {
            let value = SentValue {
                wanted,
                is_shown: true,
            };
            let mut contests = self.contests.iter_mut();
            if let Some((_, contest)) = contests.find(|(known, _)| *known == key) {
                contest.record_send(value);
            } else {
                let mut contest = Contest::default();
                contest.record_send(value);
                self.contests.push((key, contest));
            }
        }
    }

    /// Records that the last write was carried out, after [`Contests::observe_values`] has had its result. Returns whether any of its
    /// changes was undone.
    pub(super) fn record_written(&mut self, now: Duration) -> bool {
        let contests = self.contests.iter_mut();
        // Not `any`, which would stop at the first one that was undone: each contest has to end its write.
        contests.fold(false, |undone, (_, contest)| {
            contest.record_written(now) | undone
        })
    }

    /// Whether writes of a target have to wait.
    pub(super) fn delays_writes_of(&self, key: &K, now: Duration) -> bool {
        let mut contests = self.contests.iter();
        contests.any(|(contested, contest)| contested == key && contest.delays_writes(now))
    }

    /// The targets whose contest the marker's status reports.
    pub(super) fn visible_targets(&self) -> impl Iterator<Item = &K> {
        let is_visible = |fight: Fight| fight.is_visible();
        let contests = self.contests.iter();
        let visible = contests.filter(move |(_, contest)| contest.fight.is_some_and(is_visible));
        visible.map(|(key, _)| key)
    }

    /// When to compare again.
    pub(super) fn next_comparison_at(&self, now: Duration) -> Option<Duration> {
        let contests = self.contests.iter();
        contests
            .filter_map(|(_, contest)| contest.next_comparison_at(now))
            .min()
    }
}

/// A 64-bit hash in place of a value, the same within one process.
pub(super) fn fingerprint(value: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

/// 0 s after the first time, then 1, 2, 4 … 60 s.
fn back_off_after(times_before: u32) -> Duration {
    match times_before {
        0 => Duration::ZERO,
        1..=6 => Duration::from_secs(1 << (times_before - 1)),
        _ => LONGEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn sent(wanted: u64) -> SentValue {
        SentValue {
            wanted,
            is_shown: true,
        }
    }

    fn compared(key: &'static str, value: &str, differs: bool) -> Compared<&'static str> {
        Compared {
            key,
            wanted: fingerprint((key, value)),
            differs,
        }
    }

    /// Sends the marks that differ, has the write carried out, and observes that they still differ.
    fn write_in_vain(
        contests: &mut Contests<&'static str>,
        marks: &[Compared<&'static str>],
        now: u64,
    ) {
        let due = marks.iter().filter(|compared| compared.differs);
        contests.record_send(due.map(|one| (one.key, one.wanted)));
        contests.record_written(at(now));
        contests.observe_values(marks, at(now));
    }

    // PPM-8
    /// An admission webhook that removes a value from each write never lets it be observed.
    #[test]
    fn a_write_that_is_undone_each_time_backs_off_exponentially() {
        let (mut contests, mut now) = (Contests::default(), 0);
        let role = "role";
        let main = [compared("role", "main", true)];
        let mut waits = Vec::new();
        for _ in 0..9 {
            let start = now;
            contests.observe_values(&main, at(now));
            while contests.delays_writes_of(&role, at(now)) {
                now += 1;
            }
            waits.push(now - start);
            write_in_vain(&mut contests, &main, now);
        }
        assert_eq!(waits, [0, 0, 1, 2, 4, 8, 16, 32, 60]);
        assert_eq!(contests.visible_targets().collect::<Vec<_>>(), [&role]);
        contests.observe_values(&[compared("role", "other", true)], at(now));
        assert!(
            !contests.delays_writes_of(&role, at(now))
                && contests.visible_targets().next().is_none()
        );
    }

    // PPM-8
    #[test]
    fn a_write_that_fails_is_not_contested() {
        let mut contests = Contests::default();
        let main = [compared("role", "main", true)];
        for _ in 0..9 {
            contests.record_send([(main[0].key, main[0].wanted)]);
            contests.observe_values(&main, at(0));
        }
        assert!(
            !contests.delays_writes_of(&"role", at(0))
                && contests.visible_targets().next().is_none()
        );
    }

    // PPM-8
    #[test]
    fn a_contested_mark_waits_alone_and_another_value_of_it_does_not_wait() {
        let mut contests = Contests::default();
        let mut now = 0;
        for differs in [false, true].repeat(5) {
            let marks = [
                compared("role", "main", differs),
                compared("idle", "true", false),
            ];
            contests.observe_values(&marks, at(now));
            now += 1;
        }
        let (role, idle) = ("role", "idle");
        assert!(
            contests.delays_writes_of(&role, at(now)) && !contests.delays_writes_of(&idle, at(now))
        );
        let marks = [
            compared("role", "back", true),
            compared("idle", "false", true),
        ];
        contests.observe_values(&marks, at(now));
        assert!(
            !contests.delays_writes_of(&role, at(now))
                && !contests.delays_writes_of(&idle, at(now))
        );
        // The back-off continues if the other value is removed as well.
        contests.observe_values(&[compared("role", "back", false)], at(now));
        contests.observe_values(&[compared("role", "back", true)], at(now));
        assert!(
            contests.delays_writes_of(&role, at(now + 15))
                && !contests.delays_writes_of(&role, at(now + 16))
        );
    }

    // PPM-8
    #[test]
    fn an_object_whose_wanted_value_flaps_during_its_write_is_not_contested() {
        let mut contest = Contest::default();
        contest.observe_value(1, false, at(0));
        for _ in 0..8 {
            contest.observe_value(2, true, at(0));
            contest.record_send(sent(2));
            contest.observe_value(1, false, at(0));
            // The reply shows the second value.
            contest.observe_value(1, true, at(0));
            contest.record_written(at(0));
            contest.observe_value(1, true, at(0));
            assert!(!contest.delays_writes(at(0)));
            contest.record_send(sent(1));
            contest.observe_value(1, false, at(0));
            contest.record_written(at(0));
        }
    }

    // PPM-8
    #[test]
    fn an_object_that_is_undone_waits_until_another_value_is_wanted() {
        let mut contest = Contest::default();
        for _ in 0..4 {
            contest.observe_value(1, true, at(0));
            contest.record_send(sent(1));
            contest.record_written(at(0));
        }
        assert!(contest.delays_writes(at(3)) && !contest.delays_writes(at(4)));
        contest.observe_value(2, true, at(0));
        assert!(!contest.delays_writes(at(0)));
    }
}

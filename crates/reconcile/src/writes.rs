//! The history of an object's writes: which one is under way, which ones were refused, and which one is undone by somebody
//! each time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::object::ObjectName;
use crate::plan::{Purpose, WriteId, WritePart};
use crate::refusal::Refusal;

/// How long a refused write rests: the cause may have been a webhook, a quota or a policy, and no watch shows that it is
/// over.
const REFUSED: Duration = Duration::from_mins(5);
/// The refusals that are kept of one identity. Others are of what was wanted before an edit, and whoever may edit an object
/// could make any number of them.
const MOST: usize = 16;
/// A write that is wanted again after this time was not undone: something else has changed.
pub const QUIET: Duration = Duration::from_mins(3);
/// The longest time between two writes of which each undoes what somebody else has done.
const LONGEST: Duration = Duration::from_mins(1);

const _: () = assert!(LONGEST.as_secs() < QUIET.as_secs());

/// How long a write rests after so many repetitions: not at all before the first one, then 1, 2, 4 … seconds, up to a
/// minute.
pub fn rest_after_undone(times: u32) -> Duration {
    match times {
        0 => Duration::ZERO,
        times => Duration::from_secs(1 << (times - 1).min(31)).min(LONGEST),
    }
}

/// The fate of a write that is not simply done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate<'a> {
    /// The API server refuses it, in its own words.
    Refused(&'a Refusal),
    /// The write was carried out so many times, and is wanted again.
    Undone(u32),
    /// The write was sent so many times, and each time but one at most its object was gone: a watch that is late, or a
    /// webhook that answers so.
    Gone(u32),
}

/// The fate of a write that is wanted again, and its rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest<'a> {
    /// The goal of the write.
    pub purpose: Purpose,
    /// The fate of the write.
    pub fate: Fate<'a>,
    /// The time at which the write may be sent again, on the monotonic clock: at once, if it was sent a single time.
    pub until: Duration,
}

/// The histories of all identities. One whose writes are simply done is forgotten after a while.
#[derive(Debug, Default)]
pub(crate) struct Histories {
    /// The histories by kind of write and object.
    by_kind: BTreeMap<usize, BTreeMap<Arc<ObjectName>, WriteHistory>>,
    /// The identities with refused writes: few, while those whose writes are done may be many.
    refused: BTreeSet<WriteId>,
}

/// The fate of a part of a write that was carried out and is wanted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRest {
    /// How often it was carried out.
    pub times: u32,
    /// The time at which the part may be sent again, on the monotonic clock.
    pub until: Duration,
    /// The time at which the part is forgotten.
    pub quiet_at: Duration,
}

#[derive(Debug, Default)]
struct WriteHistory {
    under_way: Option<Purpose>,
    /// The parts of the write that is under way.
    parts_under_way: Box<[WritePart]>,
    /// The parts that were carried out last.
    parts: Vec<(Purpose, Done)>,
    /// Whether the answer to the last attempt was lost.
    is_unknown: bool,
    refused: Vec<Refused>,
    done: Option<Done>,
}

#[derive(Debug)]
struct Refused {
    purpose: Purpose,
    refusal: Refusal,
    until: Duration,
}

/// The write that was sent last without being refused, and how often in a row.
#[derive(Clone, Copy, Debug)]
struct Done {
    purpose: Purpose,
    times: u32,
    /// How often it was carried out: not where its object was gone, which nobody has undone.
    carried_out: u32,
    at: Duration,
}

impl Histories {
    fn get(&self, kind: usize, name: &ObjectName) -> Option<&WriteHistory> {
        self.by_kind.get(&kind)?.get(name)
    }

    fn of(&self, id: &WriteId) -> Option<&WriteHistory> {
        self.get(id.kind, &id.name)
    }

    fn of_mut(&mut self, id: &WriteId) -> Option<&mut WriteHistory> {
        self.by_kind.get_mut(&id.kind)?.get_mut(&id.name)
    }

    fn remove(&mut self, id: &WriteId) {
        if let Some(of_kind) = self.by_kind.get_mut(&id.kind) {
            of_kind.remove(&id.name);
        }
    }

    fn begin_history(&mut self, id: &WriteId) -> &mut WriteHistory {
        let of_kind = self.by_kind.entry(id.kind).or_default();
        of_kind.entry(id.name.clone()).or_default()
    }

    /// The time at which a write that is wanted may be sent: at once or later; `None` means at the end of the one that is
    /// under way.
    pub(crate) fn sends_at(
        &self,
        id: &WriteId,
        purpose: Purpose,
        now: Duration,
    ) -> Option<Duration> {
        let Some(history) = self.of(id) else {
            return Some(now);
        };
        if history.under_way.is_some() {
            return None;
        }
        let refused = history
            .refused
            .iter()
            .find(|refused| refused.purpose == purpose);
        let done = history.done.filter(|done| done.purpose == purpose);
        let refused = refused.map_or(now, |refused| refused.until);
        Some(done.map_or(now, Done::next).max(refused).max(now))
    }

    /// Records that a write is sent.
    pub(crate) fn begin(&mut self, id: &WriteId, purpose: Purpose, parts: Box<[WritePart]>) {
        let history = self.begin_history(id);
        history.under_way = Some(purpose);
        history.parts_under_way = parts;
        history.is_unknown = false;
    }

    /// Whether a write is under way.
    pub(crate) fn is_under_way(&self, id: &WriteId) -> bool {
        let history = self.of(id);
        history.is_some_and(|history| history.under_way.is_some())
    }

    /// Records that nothing of this identity is under way.
    pub(crate) fn end(&mut self, id: &WriteId) {
        if let Some(history) = self.of_mut(id) {
            history.under_way = None;
            history.parts_under_way = Box::default();
        }
    }

    /// Records that it is not known what became of the last attempt; [`Histories::forget_unknown`] ends it.
    pub(crate) fn set_unknown(&mut self, id: &WriteId) {
        self.begin_history(id).is_unknown = true;
    }

    pub(crate) fn forget_unknown(&mut self, id: &WriteId, now: Duration) {
        if let Some(history) = self.of_mut(id) {
            history.is_unknown = false;
        }
        self.forget_past(id, now);
    }

    pub(crate) fn is_unknown(&self, kind: usize, name: &ObjectName) -> bool {
        self.get(kind, name)
            .is_some_and(|history| history.is_unknown)
    }

    /// Records that the write under way was carried out. Returns when that may be forgotten.
    pub(crate) fn end_done(&mut self, id: &WriteId, now: Duration) -> Option<Duration> {
        let forget_at = self.note_done(id, true, now);
        self.index_refused(id);
        forget_at
    }

    /// Records that the object of the write under way is gone or was replaced: it rests as a whole then, since nobody has undone
    /// it or its parts. Returns when that may be forgotten.
    pub(crate) fn end_gone(&mut self, id: &WriteId, now: Duration) -> Option<Duration> {
        if let Some(history) = self.of_mut(id) {
            history.parts_under_way = Box::default();
        }
        let forget_at = self.note_done(id, false, now);
        self.index_refused(id);
        forget_at
    }

    fn note_done(&mut self, id: &WriteId, is_carried_out: bool, now: Duration) -> Option<Duration> {
        let history = self.of_mut(id)?;
        let purpose = history.under_way.take()?;
        let parts = std::mem::take(&mut history.parts_under_way);
        if parts.is_empty() {
            let done = Done::after(history.done, purpose, is_carried_out, now);
            history.done = Some(done);
        }
        for WritePart { part, purpose } in parts {
            let place = history.parts.iter().position(|(known, _)| *known == part);
            let before = place.map(|place| history.parts.swap_remove(place).1);
            history
                .parts
                .push((part, Done::after(before, purpose, is_carried_out, now)));
        }
        history.refused.retain(|refused| refused.purpose != purpose);
        Some(now.saturating_add(QUIET))
    }

    /// Records that the write under way was refused. Returns until when it rests.
    pub(crate) fn end_refused(
        &mut self,
        id: &WriteId,
        refusal: Refusal,
        now: Duration,
    ) -> Option<Duration> {
        let history = self.of_mut(id)?;
        let purpose = history.under_way.take()?;
        let until = now.saturating_add(REFUSED);
        history
            .refused
            .retain(|known| known.purpose != purpose && known.until > now);
        history.refused.push(Refused {
            purpose,
            refusal,
            until,
        });
        if history.refused.len() > MOST {
            history.refused.remove(0);
        }
        self.index_refused(id);
        Some(until)
    }

    fn index_refused(&mut self, id: &WriteId) {
        let history = self.of(id);
        if history.is_some_and(|history| !history.refused.is_empty()) {
            self.refused.insert(id.clone());
        } else {
            self.refused.remove(id);
        }
    }

    /// The objects of a namespace of which a write of a kind was refused.
    pub(crate) fn refused_in<'a>(
        &'a self,
        kind: usize,
        namespace: &str,
    ) -> impl Iterator<Item = &'a ObjectName> + use<'a> {
        let name = Arc::new(ObjectName {
            namespace: namespace.to_owned(),
            name: String::new(),
        });
        let refused = self
            .refused
            .range(
                WriteId {
                    kind,
                    name: name.clone(),
                }..,
            )
            .map(|id| (id.kind, &*id.name))
            .take_while(move |(of, object)| *of == kind && object.namespace == name.namespace);
        refused.map(|(_, object)| object)
    }

    /// The API server's verdict on a dry run with this purpose. A verdict stands as long as its identity is remembered, so
    /// one that is asked for again is not over ([`Histories::forget_past`]).
    pub(crate) fn verdict(&self, id: &WriteId, purpose: Purpose) -> Option<Result<(), &Refusal>> {
        let history = self.of(id)?;
        let refused = history
            .refused
            .iter()
            .find(|refused| refused.purpose == purpose);
        let accepted = history.done.is_some_and(|done| done.purpose == purpose);
        refused
            .map(|refused| Err(&refused.refusal))
            .or(accepted.then_some(Ok(())))
    }

    /// Forgets what is over.
    pub(crate) fn forget_past(&mut self, id: &WriteId, now: Duration) {
        let Some(history) = self.of_mut(id) else {
            return;
        };
        history.refused.retain(|refused| refused.until > now);
        history.done = history.done.filter(|done| !done.is_quiet(now));
        history.parts.retain(|(_, done)| !done.is_quiet(now));
        let is_answered = history.under_way.is_none() && !history.is_unknown;
        let is_over = is_answered && history.parts.is_empty();
        if is_over && history.refused.is_empty() && history.done.is_none() {
            self.remove(id);
        }
        self.index_refused(id);
    }

    /// Forgets an identity.
    pub(crate) fn forget(&mut self, id: &WriteId) {
        self.remove(id);
        self.refused.remove(id);
    }

    /// Forgets everything: another process may have written since.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The fate and the rest of a write that is wanted again.
    pub(crate) fn rest(
        &self,
        kind: usize,
        name: &ObjectName,
        purpose: Purpose,
    ) -> Option<Rest<'_>> {
        let mut rests = self.get(kind, name)?.rests();
        rests.find(|rest| rest.purpose == purpose)
    }

    /// The fate of a part of a write that is wanted again.
    pub(crate) fn part_rest(
        &self,
        kind: usize,
        name: &ObjectName,
        part: WritePart,
    ) -> Option<PartRest> {
        let mut parts = self.get(kind, name)?.parts.iter();
        let known = parts.find(|(known, done)| *known == part.part && done.purpose == part.purpose);
        known.map(|(_, done)| PartRest {
            times: done.times,
            until: done.next(),
            quiet_at: done.at.saturating_add(QUIET),
        })
    }

    /// Whether anything is known of the writes of an object.
    pub(crate) fn knows(&self, kind: usize, name: &ObjectName) -> bool {
        self.get(kind, name).is_some()
    }

    /// Forgets the parts of which something else is wanted.
    pub(crate) fn want_parts(&mut self, id: &WriteId, wanted: &[WritePart]) {
        if let Some(history) = self.of_mut(id) {
            history.parts.retain(|(part, done)| {
                let purpose = done.purpose;
                wanted.contains(&WritePart {
                    part: *part,
                    purpose,
                })
            });
        }
    }

    /// The fates of the writes of a kind, and their rests.
    pub(crate) fn rests_of(&self, kind: usize) -> impl Iterator<Item = (&ObjectName, Rest<'_>)> {
        let histories = self.by_kind.get(&kind).into_iter().flatten();
        histories.flat_map(|(name, history)| history.rests().map(|rest| (&**name, rest)))
    }

    pub(crate) fn fate(&self, kind: usize, name: &ObjectName) -> Option<Fate<'_>> {
        let history = self.get(kind, name)?;
        let again = history.done.filter(|done| done.times > 1);
        let refused = history.refused.last();
        refused
            .map(|refused| Fate::Refused(&refused.refusal))
            .or(again.map(Done::fate))
    }
}

impl WriteHistory {
    fn rests(&self) -> impl Iterator<Item = Rest<'_>> {
        let refused = self.refused.iter().map(|refused| Rest {
            purpose: refused.purpose,
            fate: Fate::Refused(&refused.refusal),
            until: refused.until,
        });
        let done = self.done.iter().map(|done| Rest {
            purpose: done.purpose,
            fate: done.fate(),
            until: done.next(),
        });
        refused.chain(done)
    }
}

impl Done {
    /// One more write of a purpose, after the one before.
    fn after(before: Option<Self>, purpose: Purpose, is_carried_out: bool, now: Duration) -> Self {
        let before = before.filter(|done| done.purpose == purpose && !done.is_quiet(now));
        let carried_out = before.map_or(0, |done| done.carried_out);
        Self {
            purpose,
            times: before.map_or(1, |done| done.times.saturating_add(1)),
            carried_out: carried_out.saturating_add(is_carried_out.into()),
            at: now,
        }
    }

    fn fate(self) -> Fate<'static> {
        if self.carried_out < self.times.min(2) {
            Fate::Gone(self.times)
        } else {
            Fate::Undone(self.carried_out)
        }
    }

    /// The time at which the write may be repeated: at once, then after 1, 2, 4 … seconds.
    fn next(self) -> Duration {
        let rest = rest_after_undone(self.times.saturating_sub(1));
        self.at.saturating_add(rest)
    }

    fn is_quiet(self, now: Duration) -> bool {
        self.at.saturating_add(QUIET) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> WriteId {
        id_of(0, "shop", "a")
    }

    fn id_of(kind: usize, namespace: &str, name: &str) -> WriteId {
        let name = Arc::new(ObjectName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        });
        WriteId { kind, name }
    }

    /// What became of a write whose object was gone (false) or that was carried out (true), once after the other.
    fn fate_after(answers: &[bool]) -> Option<String> {
        let (mut histories, purpose, id) = (Histories::default(), Purpose::of("red"), id());
        for is_carried_out in answers {
            histories.begin(&id, purpose, Box::default());
            if *is_carried_out {
                histories.end_done(&id, Duration::ZERO);
            } else {
                histories.end_gone(&id, Duration::ZERO);
            }
        }
        let fate = histories.fate(0, &id.name)?;
        Some(format!("{fate:?}"))
    }

    #[test]
    fn what_is_sent_again_was_undone_only_if_it_was_carried_out() {
        assert_eq!(fate_after(&[false]), None);
        assert_eq!(fate_after(&[true]), None);
        assert_eq!(fate_after(&[false; 3]).as_deref(), Some("Gone(3)"));
        let once = fate_after(&[true, false, false]);
        assert_eq!(once.as_deref(), Some("Gone(3)"));
        assert_eq!(fate_after(&[true; 2]).as_deref(), Some("Undone(2)"));
        let twice = fate_after(&[true, false, true]);
        assert_eq!(twice.as_deref(), Some("Undone(2)"));
    }

    #[test]
    fn a_write_of_another_purpose_begins_anew_and_so_does_one_after_a_while() {
        let (mut histories, id) = (Histories::default(), id());
        for (purpose, seconds, times) in [
            ("red", 0, 1),
            ("red", 1, 2),
            ("blue", 1, 1),
            ("red", 1, 1),
            ("red", 2, 2),
            ("red", 2 + QUIET.as_secs(), 1),
        ] {
            let purpose = Purpose::of(purpose);
            histories.begin(&id, purpose, Box::default());
            histories.end_done(&id, Duration::from_secs(seconds));
            let rest = histories.rest(0, &id.name, purpose);
            let fate = rest.map(|rest| rest.fate);
            assert_eq!(fate, Some(Fate::Undone(times)), "{seconds}");
        }
        assert_eq!(histories.rest(0, &id.name, Purpose::of("blue")), None);
    }

    #[test]
    fn so_many_refusals_are_known_and_each_until_its_end() {
        let (mut histories, id) = (Histories::default(), id());
        let purpose = |n: usize| Purpose::of(n);
        let known = |histories: &Histories| {
            let rests = (0..=MOST).map(|n| histories.rest(0, &id.name, purpose(n)));
            rests.map(|rest| rest.is_some()).collect::<Vec<_>>()
        };
        let mut refuse = |n: usize, now: Duration| {
            histories.begin(&id, purpose(n), Box::default());
            histories.end_refused(&id, Refusal::Forbidden(n.to_string()), now);
            known(&histories)
        };
        for n in 0..MOST - 1 {
            refuse(n, Duration::ZERO);
        }
        let mut expected = vec![true; MOST + 1];
        expected[MOST] = false;
        assert_eq!(refuse(MOST - 1, Duration::ZERO), expected);
        (expected[0], expected[MOST]) = (false, true);
        assert_eq!(refuse(MOST, Duration::ZERO), expected);
        let last = refuse(0, REFUSED);
        assert_eq!(last.iter().filter(|is_known| **is_known).count(), 1);
        assert!(last[0]);
    }

    #[test]
    fn refused_writes_are_found_by_kind_and_namespace_until_they_are_over() {
        let (mut histories, purpose) = (Histories::default(), Purpose::of("red"));
        let refused = [
            id_of(0, "shop", "a"),
            id_of(0, "shop", "b"),
            id_of(0, "zoo", "c"),
            id_of(1, "shop", "d"),
        ];
        for id in &refused {
            histories.begin(id, purpose, Box::default());
            let refusal = Refusal::Forbidden(String::new());
            histories.end_refused(id, refusal, Duration::ZERO);
        }
        let found = |histories: &Histories, kind, namespace| {
            let names = histories.refused_in(kind, namespace);
            names.map(|it| it.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(found(&histories, 0, "shop"), ["a", "b"]);
        assert_eq!(found(&histories, 0, "zoo"), ["c"]);
        assert_eq!(found(&histories, 1, "shop"), ["d"]);
        assert!(found(&histories, 1, "zoo").is_empty());
        histories.begin(&refused[0], purpose, Box::default());
        histories.end_done(&refused[0], Duration::ZERO);
        assert_eq!(found(&histories, 0, "shop"), ["b"]);
        histories.forget(&refused[1]);
        assert!(found(&histories, 0, "shop").is_empty());
        histories.forget_past(&refused[2], REFUSED.saturating_sub(Duration::from_nanos(1)));
        assert_eq!(found(&histories, 0, "zoo"), ["c"]);
        histories.forget_past(&refused[2], REFUSED);
        assert!(found(&histories, 0, "zoo").is_empty());
    }

    #[test]
    fn what_is_not_over_is_not_forgotten() {
        let (purpose, id, now) = (Purpose::of("red"), id(), Duration::ZERO);
        let after = |prepare: fn(&mut Histories, &WriteId, Purpose)| {
            let mut histories = Histories::default();
            histories.begin(&id, purpose, Box::default());
            prepare(&mut histories, &id, purpose);
            histories.forget_past(&id, now);
            histories
        };
        let under_way = after(|_, _, _| {});
        assert!(under_way.is_under_way(&id));
        let mut unknown = after(|histories, id, _| {
            histories.end(id);
            histories.set_unknown(id);
        });
        assert!(unknown.is_unknown(0, &id.name));
        unknown.forget_unknown(&id, now);
        assert!(!unknown.is_unknown(0, &id.name));
        let refused = after(|histories, id, _| {
            let refusal = Refusal::Forbidden(String::new());
            histories.end_refused(id, refusal, Duration::ZERO);
        });
        assert!(refused.rest(0, &id.name, purpose).is_some());
        let mut done = after(|histories, id, _| {
            histories.end_done(id, Duration::ZERO);
        });
        assert!(done.rest(0, &id.name, purpose).is_some());
        done.forget_past(&id, QUIET);
        assert!(done.rest(0, &id.name, purpose).is_none());
        let mut in_part = after(|histories, id, purpose| {
            let part = WritePart {
                part: Purpose::of("part"),
                purpose,
            };
            histories.begin(id, purpose, Box::new([part]));
            histories.end_done(id, Duration::ZERO);
        });
        assert!(in_part.get(0, &id.name).is_some());
        in_part.forget_past(&id, QUIET);
        assert!(in_part.get(0, &id.name).is_none());
    }
}

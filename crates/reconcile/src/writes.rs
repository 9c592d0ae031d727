//! What became of the writes of an object: which one is under way, which ones were refused, and which one is undone by
//! somebody each time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::object::ObjectName;
use crate::plan::{Purpose, WriteId};
use crate::refusal::Refusal;

/// How long a refused write rests: the cause may have been a webhook, a quota or a policy, and no watch shows that it is
/// over.
const REFUSED: Duration = Duration::from_mins(5);
/// The refusals that are kept of one identity. Others are of what was wanted before an edit, and whoever may edit an object
/// could make any number of them.
const MOST: usize = 16;
/// A write that is wanted again after this time was not undone: something else has changed.
const QUIET: Duration = Duration::from_mins(3);
/// The longest time between two writes of which each undoes what somebody else has done.
const LONGEST: Duration = Duration::from_mins(1);

const _: () = assert!(LONGEST.as_secs() < QUIET.as_secs());

/// What has become of a write, where it is not simply done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate<'a> {
    /// The API server refuses it, in its own words.
    Refused(&'a Refusal),
    /// It was carried out so many times, and is wanted again.
    Undone(u32),
}

/// What has become of a write that is wanted again, and its rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest<'a> {
    /// What the write is to achieve.
    pub purpose: Purpose,
    /// What has become of it.
    pub fate: Fate<'a>,
    /// When it may be sent again, on the monotonic clock: at once, if it was carried out a single time.
    pub until: Duration,
}

/// What is remembered of all identities. One whose writes are simply done is forgotten after a while.
#[derive(Debug, Default)]
pub(crate) struct Histories {
    by_id: BTreeMap<WriteId, History>,
    /// The identities of which something was refused: few, while those whose writes are done may be many.
    refused: BTreeSet<WriteId>,
}

#[derive(Debug, Default)]
struct History {
    under_way: Option<Purpose>,
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

/// The write that was carried out last, and how often in a row.
#[derive(Clone, Copy, Debug)]
struct Done {
    purpose: Purpose,
    times: u32,
    at: Duration,
}

impl Histories {
    /// When a write that is wanted may be sent: at once, at a later time, or at the end of the one that is under way (None).
    pub(crate) fn sends_at(
        &self,
        id: &WriteId,
        purpose: Purpose,
        now: Duration,
    ) -> Option<Duration> {
        let Some(history) = self.by_id.get(id) else {
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
    pub(crate) fn begin(&mut self, id: &WriteId, purpose: Purpose) {
        let history = self.by_id.entry(id.clone()).or_default();
        history.under_way = Some(purpose);
        history.is_unknown = false;
    }

    /// Records that nothing of this identity is under way.
    pub(crate) fn end(&mut self, id: &WriteId) -> Option<Purpose> {
        self.by_id.get_mut(id)?.under_way.take()
    }

    /// Records that it is not known what became of the last attempt; [`Histories::forget_unknown`] ends it.
    pub(crate) fn set_unknown(&mut self, id: &WriteId) {
        self.by_id.entry(id.clone()).or_default().is_unknown = true;
    }

    pub(crate) fn forget_unknown(&mut self, id: &WriteId, now: Duration) {
        if let Some(history) = self.by_id.get_mut(id) {
            history.is_unknown = false;
        }
        self.forget_past(id, now);
    }

    pub(crate) fn is_unknown(&self, id: &WriteId) -> bool {
        self.by_id.get(id).is_some_and(|history| history.is_unknown)
    }

    /// Records that the write under way was carried out. Returns when that may be forgotten.
    pub(crate) fn end_done(&mut self, id: &WriteId, now: Duration) -> Option<Duration> {
        let forget_at = self.note_done(id, now);
        self.index_refused(id);
        forget_at
    }

    fn note_done(&mut self, id: &WriteId, now: Duration) -> Option<Duration> {
        let history = self.by_id.get_mut(id)?;
        let purpose = history.under_way.take()?;
        let before = history
            .done
            .filter(|done| done.purpose == purpose && !done.is_quiet(now));
        history.done = Some(Done {
            purpose,
            times: before.map_or(1, |done| done.times.saturating_add(1)),
            at: now,
        });
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
        let history = self.by_id.get_mut(id)?;
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
        let history = self.by_id.get(id);
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
        let name = ObjectName {
            namespace: namespace.to_owned(),
            name: String::new(),
        };
        let refused = self.refused.range(
            WriteId {
                kind,
                name: name.clone(),
            }..,
        );
        let refused = refused.map(|id| (id.kind, &id.name));
        let refused = refused
            .take_while(move |(of, object)| *of == kind && object.namespace == name.namespace);
        refused.map(|(_, object)| object)
    }

    /// What the API server has said of a dry run with this purpose. A verdict stands as long as its identity is remembered, so
    /// one that is asked for again is not over ([`Histories::forget_past`]).
    pub(crate) fn verdict(&self, id: &WriteId, purpose: Purpose) -> Option<Result<(), &Refusal>> {
        let history = self.by_id.get(id)?;
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
        let Some(history) = self.by_id.get_mut(id) else {
            return;
        };
        history.refused.retain(|refused| refused.until > now);
        history.done = history.done.filter(|done| !done.is_quiet(now));
        let is_over = history.under_way.is_none() && !history.is_unknown;
        if is_over && history.refused.is_empty() && history.done.is_none() {
            self.by_id.remove(id);
        }
        self.index_refused(id);
    }

    /// Forgets an identity.
    pub(crate) fn forget(&mut self, id: &WriteId) {
        self.by_id.remove(id);
        self.refused.remove(id);
    }

    /// Forgets everything: another process may have written since.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// What has become of a write that is wanted again.
    pub(crate) fn rest(&self, id: &WriteId, purpose: Purpose) -> Option<Rest<'_>> {
        let mut rests = self.by_id.get(id)?.rests();
        rests.find(|rest| rest.purpose == purpose)
    }

    /// What has become of the writes from this identity on that are of its kind.
    pub(crate) fn rests_from(
        &self,
        first: WriteId,
    ) -> impl Iterator<Item = (&ObjectName, Rest<'_>)> {
        let kind = first.kind;
        let histories = self.by_id.range(first..);
        let histories = histories.take_while(move |(id, _)| id.kind == kind);
        histories.flat_map(|(id, history)| history.rests().map(|rest| (&id.name, rest)))
    }

    pub(crate) fn fate(&self, id: &WriteId) -> Option<Fate<'_>> {
        let history = self.by_id.get(id)?;
        let undone = history.done.filter(|done| done.times > 1);
        let undone = undone.map(|done| Fate::Undone(done.times));
        let refused = history.refused.last();
        refused
            .map(|refused| Fate::Refused(&refused.refusal))
            .or(undone)
    }
}

impl History {
    fn rests(&self) -> impl Iterator<Item = Rest<'_>> {
        let refused = self.refused.iter().map(|refused| Rest {
            purpose: refused.purpose,
            fate: Fate::Refused(&refused.refusal),
            until: refused.until,
        });
        let done = self.done.iter().map(|done| Rest {
            purpose: done.purpose,
            fate: Fate::Undone(done.times),
            until: done.next(),
        });
        refused.chain(done)
    }
}

impl Done {
    /// When it may be repeated: at once, then after 1, 2, 4 … seconds.
    fn next(self) -> Duration {
        let wait = match self.times {
            0 | 1 => Duration::ZERO,
            times => Duration::from_secs(1 << (times - 2).min(6)).min(LONGEST),
        };
        self.at.saturating_add(wait)
    }

    fn is_quiet(self, now: Duration) -> bool {
        self.at.saturating_add(QUIET) <= now
    }
}

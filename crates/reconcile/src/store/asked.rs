//! The writes that this process has asked for, until it is known what became of them.

use std::sync::Arc;
use std::time::Duration;

use super::{Store, Stored};
use crate::object::ObjectName;

/// How long a write whose fate no event shows keeps its effect. A watch is re-established sooner.
const ASKED: Duration = Duration::from_mins(5);

/// A write of an object that this process has asked the API server for, and that no event has shown yet.
pub(super) struct Asked<K> {
    assumption: Assumption<K>,
    /// The object as it is if the write is carried out on what is known by now.
    pub(super) assumed: Option<Arc<K>>,
    /// The object that was known when it was asked.
    uid: Option<String>,
    /// Whether the answer is awaited. A state that shows the outcome may be that of an earlier attempt then.
    is_under_way: bool,
    /// Whether it was carried out.
    is_done: bool,
    /// Whether an earlier attempt may have been carried out, whatever the answer to this one is.
    is_repeated: bool,
    /// The time at which the assumption is given up, on the monotonic clock.
    until: Duration,
}

/// Creations of an object whose answers were lost.
pub(super) struct Late<K> {
    pub(super) object: Arc<K>,
    /// How many of them may still be carried out.
    count: usize,
    /// The uid of the object of this name of which it is known already who has made it.
    known: Option<String>,
    /// The time at which the creations are given up, on the monotonic clock: no request is under way for so long.
    until: Duration,
}

/// The effect of a write on an object.
pub enum Assumption<K> {
    /// The write makes this of what is there. Others may change the object while the write is under way, so this is done
    /// again with each state that is observed.
    Changed(ObjectChange<K>),
    /// The write makes the object, which has no uid yet.
    Created(Arc<K>),
    /// The write takes the object away.
    Gone,
}

/// A change of an object's state.
pub type ObjectChange<K> = Box<dyn Fn(&K) -> K + Send + Sync>;

impl<K> Assumption<K> {
    fn apply(&self, observed: Option<&Arc<K>>) -> Option<Arc<K>> {
        match self {
            Self::Changed(change) => observed.map(|object| Arc::new(change(object))),
            Self::Created(object) => Some(observed.unwrap_or(object).clone()),
            Self::Gone => None,
        }
    }
}

impl<K: Stored> Store<K> {
    /// Assumes that a write will be carried out.
    pub(crate) fn ask(
        &mut self,
        name: &ObjectName,
        assumption: Assumption<K>,
        now: Duration,
    ) -> Duration {
        let until = now.saturating_add(ASKED);
        let observed = self.observed(name);
        let is_creation = matches!(assumption, Assumption::Created(_));
        // A creation that can no longer be carried out is not repeated.
        let is_repeated = if is_creation {
            self.late.contains_key(name)
        } else {
            self.asked.contains_key(name)
        };
        let asked = Asked {
            assumed: assumption.apply(observed),
            uid: observed.map(|object| object.uid().to_owned()),
            assumption,
            is_under_way: true,
            is_done: false,
            is_repeated,
            until,
        };
        self.asked.insert(Arc::new(name.clone()), asked);
        until
    }

    /// Counts a creation whose answer was lost as over if this is what it has made. An attempt that was answered has made it as long
    /// as one is under way or was carried out; each makes one object at most.
    pub(super) fn count_late(&mut self, name: &ObjectName, observed: &K) {
        let Some(late) = self.late.get_mut(name) else {
            return;
        };
        let creation = self.asked.get(name).filter(|it| it.creation().is_some());
        let is_under_way = creation.is_some_and(|asked| asked.is_under_way);
        if is_under_way || late.known.as_deref() == Some(observed.uid()) {
            return;
        }
        late.known = Some(observed.uid().to_owned());
        late.count -= usize::from(creation.is_none_or(|asked| !asked.is_done));
        if late.count == 0 {
            self.late.remove(name);
        }
    }

    /// Ends what is assumed of an object if this state of it shows the outcome, and assumes it of this state otherwise.
    pub(super) fn correct_asked(&mut self, name: &ObjectName, observed: Option<&Arc<K>>) {
        if let Some(asked) = self.asked.get_mut(name) {
            let observed_object = observed.map(|object| &**object);
            if !asked.is_under_way && asked.is_shown_by(observed_object) {
                self.asked.remove(name);
            } else {
                asked.assumed = asked.assumption.apply(observed);
            }
        }
    }
}

impl<K: Stored> Asked<K> {
    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// The object whose creation was asked for.
    pub(super) fn creation(&self) -> Option<&Arc<K>> {
        match &self.assumption {
            Assumption::Created(object) => Some(object),
            Assumption::Changed(_) | Assumption::Gone => None,
        }
    }

    /// Whether a state shows that the write was carried out, or never will be. A newer version alone does not: another client
    /// may have made it before.
    fn is_shown_by(&self, observed: Option<&K>) -> bool {
        let Some(object) = observed else {
            // The watch may not have come as far as a creation.
            return !matches!(self.assumption, Assumption::Created(_));
        };
        if self.uid.as_deref() != Some(object.uid()) {
            return true;
        }
        match &self.assumption {
            Assumption::Changed(change) => change(object).is_same(object),
            Assumption::Created(_) => true,
            Assumption::Gone => false,
        }
    }
}

/// The writes that were asked for of a kind's objects, whatever the kind.
pub(crate) trait AskedObjects {
    /// Whether it is not known what has become of all that was asked.
    fn is_open(&self, name: &ObjectName) -> bool;

    /// Whether a write is under way, or was carried out without showing the result. Nothing else of the object is due before.
    fn is_taken(&self, name: &ObjectName) -> bool;

    /// Notes that the answer was lost: a creation may be carried out whatever is seen meanwhile.
    fn note_lost(&mut self, name: &ObjectName);

    /// Ends what is assumed of an object: it is known what became of the write.
    fn end_asked(&mut self, name: &ObjectName);

    /// The last attempt was not carried out: that ends what is assumed, unless an earlier one may have been.
    fn end_attempt(&mut self, name: &ObjectName);

    /// The answer was lost, or shows no object although it was carried out: what is assumed ends by a state that shows the
    /// outcome, unless it is known.
    fn await_event(&mut self, name: &ObjectName, is_done: bool);

    /// Ends what is assumed of an object for too long.
    fn expire_asked(&mut self, name: &ObjectName, now: Duration);
}

impl<K: Stored> AskedObjects for Store<K> {
    fn is_open(&self, name: &ObjectName) -> bool {
        self.asked.contains_key(name) || self.late.contains_key(name)
    }

    fn is_taken(&self, name: &ObjectName) -> bool {
        let asked = self.asked.get(name);
        asked.is_some_and(|asked| asked.is_under_way || asked.is_done)
    }

    fn note_lost(&mut self, name: &ObjectName) {
        let Some(asked) = self.asked.get(name) else {
            return;
        };
        if let Some(object) = asked.creation() {
            let before = self.late.remove(name);
            let late = Late {
                object: object.clone(),
                count: 1 + before.as_ref().map_or(0, |late| late.count),
                known: before.map_or_else(|| asked.uid.clone(), |late| late.known),
                until: asked.until,
            };
            self.late.insert(Arc::new(name.clone()), late);
        }
    }

    fn end_asked(&mut self, name: &ObjectName) {
        self.asked.remove(name);
        if let Some(late) = self.late.get_mut(name) {
            late.known = self.objects.get(name).map(|made| made.uid().to_owned());
        }
    }

    fn end_attempt(&mut self, name: &ObjectName) {
        let is_repeated = self.asked.get(name).is_some_and(|asked| asked.is_repeated);
        self.await_event(name, false);
        if !is_repeated {
            self.asked.remove(name);
        }
    }

    fn await_event(&mut self, name: &ObjectName, is_done: bool) {
        let observed = self.observed(name).cloned();
        if let Some(asked) = self.asked.get_mut(name) {
            (asked.is_under_way, asked.is_done) = (false, is_done);
        }
        if let Some(observed) = &observed {
            self.count_late(name, observed);
        }
        self.correct_asked(name, observed.as_ref());
    }

    fn expire_asked(&mut self, name: &ObjectName, now: Duration) {
        if self.asked.get(name).is_some_and(|asked| asked.until <= now) {
            self.asked.remove(name);
        }
        if self.late.get(name).is_some_and(|late| late.until <= now) {
            self.late.remove(name);
        }
    }
}

//! The outcomes of the writes that were sent.

use std::sync::Arc;

use super::{Reconciler, Timer};
use crate::feature::Feature;
use crate::object::ObjectName;
use crate::plan::WriteId;
use crate::refusal::Refusal;
use crate::time::Now;

impl<F: Feature> Reconciler<F> {
    /// A write was carried out. The object that its reply showed was observed before; `has_reply` is whether it showed one.
    pub fn note_done(&mut self, id: &WriteId, has_reply: bool, now: Now) {
        let forget_at = self.histories.end_done(id, now.monotonic);
        if let Some(at) = forget_at {
            self.timers.set(at, Timer::Write(id.clone()));
        }
        let sent = self.sent.get(id).map(|sent| sent.write.clone());
        if let Some(notice) = sent
            .as_ref()
            .and_then(|write| write.told_when_done.as_ref())
        {
            self.tell(notice, now);
        }
        self.settle(id, WriteOutcome::Done { has_reply });
    }

    /// The object of a write is gone or was replaced, which the watch has not shown. If the write is wanted all the same, it
    /// comes again at the distance of one that is undone.
    pub fn note_gone(&mut self, id: &WriteId, now: Now) {
        if let Some(at) = self.histories.end_gone(id, now.monotonic) {
            self.timers.set(at, Timer::Write(id.clone()));
        }
        self.settle(id, WriteOutcome::NotDone);
    }

    /// A write was refused for good.
    pub fn note_refused(&mut self, id: &WriteId, refusal: Refusal, now: Now) {
        let sent = self.sent.get(id).map(|sent| sent.write.clone());
        if let Some(tell) = sent
            .as_ref()
            .and_then(|write| write.told_when_refused.as_ref())
        {
            self.tell(&tell(&refusal), now);
        }
        if let Some(at) = self.histories.end_refused(id, refusal, now.monotonic) {
            self.timers.set(at, Timer::Write(id.clone()));
        }
        self.settle(id, WriteOutcome::NotDone);
    }

    /// A write was not carried out for now, or it is not known whether it was.
    pub fn note_failed(&mut self, id: &WriteId, is_surely_not_done: bool) {
        self.histories.end(id);
        self.histories.forget_past(id, self.now.monotonic);
        let sent = self.sent.get(id);
        if !is_surely_not_done && sent.is_some_and(|sent| sent.write.effect.is_some()) {
            self.histories.set_unknown(id);
        }
        let outcome = if is_surely_not_done {
            WriteOutcome::NotDone
        } else {
            WriteOutcome::Unknown
        };
        self.settle(id, outcome);
    }

    /// Corrects what was assumed of an object, and has the key run that wanted the write.
    fn settle(&mut self, id: &WriteId, outcome: WriteOutcome) {
        let sent = self.sent.get_mut(id);
        let Some(sent) = sent.filter(|sent| sent.is_under_way) else {
            // The write was a notice, and the next one about the object may be told.
            if self.notices.is_waiting(id) {
                self.dirty.insert(id.clone());
            }
            return;
        };
        sent.is_under_way = false;
        self.keys.mark_by_event(sent.key.clone());
        let Some(effect) = &sent.write.effect else {
            self.sent.remove(id);
            self.forget_wishes(id);
            return;
        };
        let store = (effect.store)(&mut self.world);
        match outcome {
            WriteOutcome::Done { has_reply: true } => store.end_asked(&id.name),
            WriteOutcome::NotDone => store.end_attempt(&id.name),
            WriteOutcome::Done { has_reply: false } => store.await_event(&id.name, true),
            WriteOutcome::Unknown => {
                store.note_lost(&id.name);
                store.await_event(&id.name, false);
            }
        }
        let is_over = !store.is_open(&id.name);
        let (feature, world, keys) = (&self.feature, &mut self.world, &mut self.keys);
        (effect.find_affected)(feature, world, &id.name, &mut |key| keys.mark_by_event(key));
        if is_over {
            self.sent.remove(id);
        }
        self.forget_wishes(id);
        self.wake_others(id);
    }

    /// Forgets what was planned of an identity before its answer, or before its object was another: it may be done. The keys run again.
    /// Those that have to run now keep it until then, and send nothing ([`Reconciler::run_waiting`] goes by it).
    fn forget_wishes(&mut self, id: &WriteId) {
        let Some(wishes) = self.wanted.get_mut(id) else {
            return;
        };
        let keys = &self.keys;
        wishes.retain(|(key, _)| !keys.is_marked(key) || keys.is_queued(key));
        if wishes.is_empty() {
            self.wanted.remove(id);
        }
    }

    /// The same of all identities of an object.
    pub(super) fn forget_wishes_of(&mut self, name: &Arc<ObjectName>) {
        if self.wanted.is_empty() {
            return;
        }
        for kind in 0..F::WRITES.len() {
            let name = name.clone();
            self.forget_wishes(&WriteId { kind, name });
        }
    }

    /// Another write of the object may have waited for one that has ended.
    pub(super) fn wake_others(&mut self, id: &WriteId) {
        let kinds = (0..F::WRITES.len()).filter(|kind| *kind != id.kind);
        let others = kinds.map(|kind| WriteId {
            kind,
            name: id.name.clone(),
        });
        let wanted = others.filter(|other| self.wanted.contains_key(other));
        self.dirty.extend(wanted);
    }
}

/// The outcome of a write, by its answer.
#[derive(Clone, Copy)]
enum WriteOutcome {
    /// The write was carried out, and the object that its reply shows was observed, if it shows one.
    Done { has_reply: bool },
    /// The write was not carried out.
    NotDone,
    /// The write may have been carried out.
    Unknown,
}

//! The writes of the feature on their way: sent, carried out, refused or lost.

use leadsman_reconcile::{WriteId, WriteVerb};
use serde_json::Value;

use super::patches::{merge, patch_conditions, patch_pod};
use super::{Key, Sent, WatchedKind, World};
use crate::cluster::{Refusal, Source};
use crate::sidecarset::reconcile::writes::{EVENT, POD_CONDITION, UPGRADE_POD, WRITES};

/// Why the API server does not carry a write out.
enum Unwritten {
    Conflict,
    Gone,
}

impl World {
    /// Takes out a write that is due, if there is one, to be answered later.
    pub(in super::super) fn send(&mut self, choice: usize) -> bool {
        let under_way = |id: &WriteId| self.in_flight.iter().any(|one| one.id == *id);
        let free: Vec<_> = self
            .dirty
            .iter()
            .filter(|id| !under_way(id))
            .cloned()
            .collect();
        if free.is_empty() {
            return false;
        }
        let id = free[choice % free.len()].clone();
        self.dirty.remove(&id);
        if let Some(sent) = self.take_due(&id) {
            self.in_flight.push(sent);
        }
        true
    }

    /// The write that is due for an identity.
    pub(in super::super) fn take_due(&mut self, id: &WriteId) -> Option<Sent> {
        let write = self.reconciler.take_due(id, self.now())?;
        Some(Sent {
            id: id.clone(),
            body: write.body(),
        })
    }

    /// The API server carries a write out. `has_reply` tells whether its reply arrives.
    pub(in super::super) fn carry_out(&mut self, place: usize, has_reply: bool) {
        let sent = self.in_flight.remove(place);
        self.writes.push(sent.clone());
        let id = &sent.id;
        match self.apply(&sent) {
            Err(Unwritten::Gone) => self.reconciler.note_gone(id, self.now()),
            Err(Unwritten::Conflict) => self.fail(id, true),
            Ok(_) if !has_reply => self.fail(id, false),
            Ok(shown) => self.answer(id, shown.as_ref()),
        }
        self.run();
    }

    /// A write is answered with the object that it has made.
    pub(in super::super) fn answer(&mut self, id: &WriteId, shown: Option<&Key>) {
        if let Some(key) = shown {
            self.tell(self.shown(key, Source::Reply));
        }
        self.reconciler.note_done(id, shown.is_some(), self.now());
        self.run();
    }

    /// A write is repeated.
    fn fail(&mut self, id: &WriteId, is_surely_not_done: bool) {
        self.reconciler.note_failed(id, is_surely_not_done);
        self.dirty.insert(id.clone());
    }

    pub(in super::super) fn refuse(&mut self, place: usize) {
        let Sent { id, .. } = self.in_flight.remove(place);
        let refusal = Refusal::Forbidden("a policy forbids it".to_owned());
        self.reconciler.note_refused(&id, refusal, self.now());
        self.run();
    }

    /// Nothing was carried out, which nobody knows, and it is asked again what is due.
    pub(in super::super) fn lose(&mut self, place: usize) {
        let Sent { id, .. } = self.in_flight.remove(place);
        self.fail(&id, false);
        self.run();
        if let Some(sent) = self.take_due(&id) {
            self.in_flight.push(sent);
        }
    }

    /// Whatever is due is written and answered, and kubelets act, until nothing is due any more. Returns how many writes
    /// that took.
    pub(in super::super) fn settle(&mut self) -> usize {
        let before = self.writes.len();
        for _ in 0..400 {
            self.deliver_all();
            while !self.in_flight.is_empty() {
                self.carry_out(0, true);
            }
            let has_sent = self.send(0);
            for pod in self.keys(WatchedKind::Pod) {
                self.start_containers(&pod);
            }
            self.deliver_all();
            if !has_sent && self.in_flight.is_empty() && self.dirty.is_empty() {
                return self.writes.len() - before;
            }
        }
        panic!("there is always something due: {:?}", self.dirty);
    }

    fn apply(&mut self, sent: &Sent) -> Result<Option<Key>, Unwritten> {
        let (kind, body) = (&WRITES[sent.id.kind], &sent.body);
        if sent.is(&EVENT) {
            return Ok(None);
        }
        let of = match kind.resource {
            "pods" | "pods/status" => WatchedKind::Pod,
            "sidecarsets" | "sidecarsets/status" => WatchedKind::Set,
            _ => WatchedKind::Revision,
        };
        let key = (of, (*sent.id.name).clone());
        if kind.verb == WriteVerb::Create {
            if self.objects.contains_key(&key) {
                // It is read, and asked again what is due.
                self.tell(self.shown(&key, Source::Reply));
                return Err(Unwritten::Conflict);
            }
            self.create(&key, body.clone());
            return Ok(Some(key));
        }
        if kind.verb == WriteVerb::Delete {
            self.check(&key, &body["preconditions"])?;
            self.delete(&key);
            return Ok(None);
        }
        self.check(&key, &body["metadata"])?;
        if sent.is(&UPGRADE_POD) {
            self.note_upgrade(&key, body);
            self.change(&key, |value| patch_pod(value, body));
            if !self.are_kubelets_late {
                self.stop_containers(&key);
            }
        } else if sent.is(&POD_CONDITION) {
            self.change(&key, |value| patch_conditions(value, body));
        } else {
            self.change(&key, |value| merge(value, body));
        }
        Ok(Some(key))
    }

    fn check(&self, key: &Key, precondition: &Value) -> Result<(), Unwritten> {
        let meta = &self.objects.get(key).ok_or(Unwritten::Gone)?["metadata"];
        for (field, unwritten) in [
            ("uid", Unwritten::Gone),
            ("resourceVersion", Unwritten::Conflict),
        ] {
            let wanted = precondition.get(field).filter(|wanted| !wanted.is_null());
            if wanted.is_some_and(|wanted| *wanted != meta[field]) {
                return Err(unwritten);
            }
        }
        Ok(())
    }

    fn note_upgrade(&mut self, key: &Key, patch: &Value) {
        if self.objects[key]["status"]["conditions"][0]["status"] != "True" {
            return;
        }
        for container in patch["spec"]["containers"].as_array().into_iter().flatten() {
            let name = container["name"].as_str().unwrap();
            self.taken_down.insert((name.to_owned(), key.1.clone()));
        }
    }
}

//! The writes of the index on their way: sent, carried out, refused or lost.

use serde_json::{Value, json};

use super::patches::{merge, patch_conditions, patch_pod};
use super::{InFlight, Key, NAMESPACE, World, object, set_key};
use crate::cluster::Source;
use crate::sidecarset::event::{Event, WatchedKind, Write, WriteTarget};

impl World {
    /// Takes out a write that is due, if there is one, to be answered later.
    pub(in super::super) fn send(&mut self, choice: usize) -> bool {
        let under_way =
            |target: &WriteTarget| self.in_flight.iter().any(|one| one.target == *target);
        let free: Vec<_> = self
            .dirty
            .iter()
            .filter(|target| !under_way(target))
            .cloned()
            .collect();
        if free.is_empty() {
            return false;
        }
        let target = free[choice % free.len()].clone();
        self.dirty.remove(&target);
        let now = self.now();
        if let Some(write) = self.index.due(&target, now) {
            self.in_flight.push(InFlight { target, write });
        }
        true
    }

    /// The API server carries a write out. `has_reply` tells whether its reply arrives.
    pub(in super::super) fn carry_out(&mut self, place: usize, has_reply: bool) {
        let InFlight { target, write } = self.in_flight.remove(place);
        self.writes.push(write.clone());
        let Ok(shown) = self.apply(&write) else {
            // A conflict, or the object is gone: it is asked again what is due.
            self.dirty.insert(target);
            return;
        };
        if !has_reply {
            self.dirty.insert(target);
            return;
        }
        if let Some(key) = shown {
            self.tell(self.event(&key, Source::Reply));
        }
        self.tell(Event::Written(target));
    }

    pub(in super::super) fn refuse(&mut self, place: usize) {
        let InFlight { target, write } = self.in_flight.remove(place);
        self.tell(Event::Refused(
            target,
            Box::new(write),
            "a policy forbids it".to_owned(),
        ));
    }

    /// Nothing was carried out, and it is asked again what is due.
    pub(in super::super) fn lose(&mut self, place: usize) {
        let InFlight { target, .. } = self.in_flight.remove(place);
        let now = self.now();
        if let Some(write) = self.index.due(&target, now) {
            self.in_flight.push(InFlight { target, write });
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

    fn apply(&mut self, write: &Write) -> Result<Option<Key>, ()> {
        match write {
            Write::Pod { pod, patch } => {
                let key = (WatchedKind::Pod, pod.clone());
                self.check(&key, &patch["metadata"])?;
                self.note_upgrade(&key, patch);
                self.change(&key, |value| patch_pod(value, patch));
                if !self.are_kubelets_late {
                    self.stop_containers(&key);
                }
                Ok(Some(key))
            }
            Write::PodCondition { pod, patch } => {
                let key = (WatchedKind::Pod, pod.clone());
                self.check(&key, &patch["metadata"])?;
                self.change(&key, |value| patch_conditions(value, patch));
                Ok(Some(key))
            }
            Write::SetStatus { set, patch } | Write::SetHashes { set, patch } => {
                let key = set_key(set);
                self.check(&key, &patch["metadata"])?;
                self.change(&key, |value| merge(value, patch));
                Ok(Some(key))
            }
            Write::CreateRevision(object) => {
                let name = object["metadata"]["name"].as_str().unwrap();
                let key = (WatchedKind::Revision, self::object(NAMESPACE, name));
                if self.objects.contains_key(&key) {
                    // It is read, and asked again what is due.
                    self.tell(self.event(&key, Source::Reply));
                    return Err(());
                }
                self.create(&key, (**object).clone());
                Ok(Some(key))
            }
            Write::PatchRevision { revision, patch } => {
                let key = (WatchedKind::Revision, revision.clone());
                self.check(&key, &patch["metadata"])?;
                self.change(&key, |value| merge(value, patch));
                Ok(Some(key))
            }
            Write::DeleteRevision { revision, uid, .. } => {
                let key = (WatchedKind::Revision, revision.clone());
                self.check(&key, &json!({"uid": uid}))?;
                self.delete(&key);
                Ok(None)
            }
            Write::Event(_) => Ok(None),
        }
    }

    fn check(&self, key: &Key, precondition: &Value) -> Result<(), ()> {
        let meta = &self.objects.get(key).ok_or(())?["metadata"];
        for field in ["uid", "resourceVersion"] {
            let wanted = precondition.get(field).filter(|wanted| !wanted.is_null());
            if wanted.is_some_and(|wanted| *wanted != meta[field]) {
                return Err(());
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

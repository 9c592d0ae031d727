//! The entry of events: whether a snapshot shows anything new, and what it affects.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_api::SidecarSet as SidecarSetWire;
use leadsman_api::slim::Namespace;
use leadsman_api::slim::Pod;
use leadsman_api::slim::config_map::ConfigMap;
use leadsman_api::slim::revision::ControllerRevision;

use super::Index;
use super::context::SetName;
use super::pods::PodEntry;
use super::revisions::History;
use super::sets::{KnownBarrier, SetEntry};
use super::snapshots;
use crate::cluster::{CompleteList, ObjectName, ResourceVersion, Source};
use crate::sidecarset::event::{CONFIGURATION, Event, WatchedKind, Write, WriteTarget};
use crate::sidecarset::metadata::{WHITELIST, Whitelist};
use crate::sidecarset::revision::SET_LABEL;
use crate::sidecarset::set::SidecarSet;

impl Index {
    /// Takes in an event. What it affects is compared later.
    pub(super) fn dispatch_event(&mut self, event: Event) {
        match event {
            Event::Set(set, source) => self.observe_set(set, source),
            Event::Pod(pod, source) => self.observe_pod(&pod, source),
            Event::Namespace(namespace, source) => self.observe_namespace(&namespace, source),
            Event::Revision(revision, source) => self.observe_revision(revision, source),
            Event::Configuration(config, source) => self.observe_configuration(&config, source),
            // What cannot be decoded stays as it was known, and timers are looked at after every
            // event.
            Event::Undecodable(..) | Event::Deadline => {}
            Event::Deleted(kind, name, version) => {
                self.watches.observe(kind, Source::Watch, version);
                // The watch may lag behind the reply to a write that created a new object of this name.
                let known = self.known_version(kind, &name);
                if !known.is_some_and(|known| known.is_later_than(version)) {
                    self.remove_at_version(kind, &name, version);
                }
            }
            Event::Listed(kind, names, version) => {
                let list = self.watches.complete_list(kind, version);
                self.changes.listed.insert(kind);
                self.changes.any = true;
                self.remove_unlisted(kind, &names, list);
                if list.is_restored() {
                    self.forget_later_versions(kind);
                }
            }
            Event::Relisted(kind, names, version) => {
                let list = self.watches.complete_list_beside_watch(kind, version);
                self.changes.any |= snapshots::has_version_of(kind);
                self.remove_unlisted(kind, &names, list);
            }
            Event::Synced => self.start_writing(),
            Event::Written(target) => self.observe_written(&target),
            Event::Refused(target, _, reason) => self.observe_refused(&target, &reason),
            Event::WebhookBarrier(barrier) => {
                self.barrier = barrier.map_or(KnownBarrier::NoWebhook, KnownBarrier::At);
                self.compare_in_force();
            }
            Event::FieldsKept(are_kept) => {
                self.keeps_fields = are_kept;
                self.cx.affected.sets.extend(self.sets.names());
            }
        }
    }

    /// etcd was restored: stored versions above the list's can never be reached. Lower every
    /// requirement to what is known now: each replica has seen the objects of the list, and need not
    /// come as far as the list itself, which another one may have read earlier.
    fn forget_later_versions(&mut self, kind: WatchedKind) {
        if kind == WatchedKind::Configuration {
            let version = self.whitelist_version.unwrap_or_default();
            self.whitelist_since = self.whitelist_since.min(version);
        }
        for (_, entry) in self.sets.iter_mut() {
            let pinned = entry.history.pinned.as_deref();
            let pinned = pinned.and_then(|pinned| self.revisions.get(&pinned.revision.name));
            entry.forget_later_versions(kind, pinned.map(|revision| revision.version));
        }
        self.changes.sets = true;
        self.compare_in_force();
    }

    /// Whether a snapshot shows nothing new.
    fn is_stale(
        &mut self,
        kind: WatchedKind,
        name: &ObjectName,
        meta: &ObjectMeta,
        source: Source,
    ) -> bool {
        let version = ResourceVersion::parse(meta.resource_version.as_deref());
        let newest = self.watches.newest(kind);
        self.watches.observe(kind, source, version);
        // A snapshot is as new as what the watches have shown, also where a reply had shown it before.
        let is_newer = self.watches.newest(kind) != newest;
        self.changes.any |= is_newer && snapshots::has_version_of(kind);
        let known = self.known_version(kind, name);
        self.watches.is_stale(source, kind, name, version, known)
    }

    fn observe_set(&mut self, wire: Arc<SidecarSetWire>, source: Source) {
        let object = ObjectName::of(&wire.metadata);
        if self.is_stale(WatchedKind::Set, &object, &wire.metadata, source) {
            return;
        }
        self.changes.any = true;
        let name: SetName = self.interners.strings.share(object.name.as_str());
        let is_other = |entry: &SetEntry| entry.uid() != wire.metadata.uid.as_deref();
        // Another set of the same name: nothing that was counted of the first one holds for it.
        if self.sets.get(&name).is_some_and(is_other) {
            self.remove_set(&name);
        }
        let since = self.sets.get(&name).and_then(SetEntry::in_force_since);
        let has_changed = if let Some(entry) = self.sets.get_mut(&name) {
            let before = snapshots::matched_pods(entry);
            let has_changed = entry.replace_state(wire);
            // Each pod of a roll-out moves the status. New pods depend on its count only under a
            // partial pin, and only then is a new snapshot of the sets worth making.
            let depends = entry
                .active_set()
                .is_some_and(|set| snapshots::depends_on_count(set));
            self.changes.sets |= depends && before != snapshots::matched_pods(entry);
            has_changed
        } else {
            self.sets.insert(name.clone(), SetEntry::new(wire));
            true
        };
        self.cx.affected.sets.insert(name.clone());
        if has_changed {
            self.affect_set(&name);
        }
        let (barrier, whitelist) = (self.barrier, self.whitelist_since);
        let now = self.cx.now.wall;
        let Some(entry) = self.sets.get_mut(&name) else {
            return;
        };
        self.changes.sets |= entry.read_in_force(barrier, whitelist, now);
        if entry.in_force_since() != since {
            let selections: Vec<_> = entry.active_set().cloned().into_iter().collect();
            self.affect_selected(&selections);
        }
    }

    /// A set has changed, but for its status, or is gone.
    fn affect_set(&mut self, name: &SetName) {
        self.changes.any = true;
        self.changes.sets = true;
        self.recompute_history(name);
        self.affect_pods_of(name);
        let change = self.sets.compare_with_others(name);
        for other in change.others {
            self.affect_pods_of(&other);
            self.cx.affected.sets.insert(other);
        }
        self.affect_selected(&change.selections);
    }

    fn affect_pods_of(&mut self, set: &str) {
        let pods = self.pods.injected_by(set).cloned();
        self.cx.affected.pods.extend(pods);
    }

    /// Pods that one of these sets selects may lack other sets than before.
    fn affect_selected(&mut self, sets: &[Arc<SidecarSet>]) {
        // `Synced` compares all pods.
        if !self.cx.synced || sets.is_empty() {
            return;
        }
        let is_selected = |entry: &&PodEntry| sets.iter().any(|set| self.selects_entry(set, entry));
        let pods = self.pods.iter().filter(is_selected);
        let pods: Vec<_> = pods.map(|entry| entry.pod.name.clone()).collect();
        self.cx.affected.selected.extend(pods);
    }

    /// Works out the history of a set anew.
    fn recompute_history(&mut self, name: &SetName) {
        let Some(entry) = self.sets.get(name) else {
            return;
        };
        let collisions = entry.status().and_then(|status| status.collision_count);
        let history = match entry.active_set() {
            Some(set) => self
                .revisions
                .history_of(set, collisions.unwrap_or_default()),
            None => History::default(),
        };
        let kinds = [WatchedKind::Set, WatchedKind::Revision];
        let is_initial = !kinds.iter().all(|kind| self.changes.listed.contains(kind));
        if let Some(entry) = self.sets.get_mut(name) {
            let is_same = entry.history.pinned == history.pinned
                && entry.history.newest_name() == history.newest_name();
            if !is_same {
                let pods = entry.members.pods.iter().cloned();
                self.cx.affected.pods.extend(pods);
                self.changes.any = true;
                self.changes.sets = true;
            }
            let pinned = history.pinned.as_ref();
            let pinned = pinned.and_then(|pinned| self.revisions.get(&pinned.revision.name));
            let pinned = pinned.map(|stored| (stored.name(), stored.version));
            entry.note_pinned(pinned, is_initial);
            if entry.history.newest_name() != history.newest_name() {
                entry.drift.clear();
            }
            entry.history = history;
        }
        self.cx.affected.sets.insert(name.clone());
    }

    fn remove_set(&mut self, name: &SetName) {
        let Some(entry) = self.sets.remove(name) else {
            return;
        };
        for target in [
            WriteTarget::SetStatus(name.to_string()),
            WriteTarget::SetHashes(name.to_string()),
            WriteTarget::Revisions(name.to_string()),
        ] {
            self.refusals.forget_refusal(&target);
        }
        // Their counts went with the entry, and must not be taken out of another set of this name
        // later.
        for pod in entry.members.pods.iter().chain(entry.lacking.keys()) {
            if let Some(pod) = self.pods.get_mut(pod) {
                pod.memberships.retain(|member| member.set != *name);
                pod.lacks.retain(|(set, _)| set != name);
            }
        }
        self.affect_set(name);
    }

    fn observe_pod(&mut self, wire: &Pod, source: Source) {
        let name = ObjectName::of(&wire.identity);
        if self.is_stale(WatchedKind::Pod, &name, &wire.identity, source) {
            return;
        }
        let entry = PodEntry::new(wire, &mut self.interners);
        let name = entry.pod.name.clone();
        let before = self.pods.get(&name);
        // Exactly what `missing_sets` reads and an event may change: it asks every set, so most
        // events of a pod leave it alone.
        let is_selected_as_before = before.is_some_and(|before| {
            before.pod.labels == entry.pod.labels
                && before.injected == entry.injected
                && before.pod.uid == entry.pod.uid
                && before.pod.is_active() == entry.pod.is_active()
        });
        // Another pod of the same name: what was sent or refused was about the first one.
        if before.is_some_and(|before| before.pod.uid != entry.pod.uid) {
            self.forget_writes(&name);
        }
        self.pods.replace_pod(entry);
        self.cx.affected.pods.insert(name.clone());
        if !is_selected_as_before {
            self.cx.affected.selected.insert(name);
        }
    }

    fn forget_writes(&mut self, pod: &ObjectName) {
        self.resets.forget_pod(pod);
        self.unanswered.remove(pod);
        self.refusals.forget_refusal(&WriteTarget::Pod(pod.clone()));
        self.refusals
            .forget_refusal(&WriteTarget::PodCondition(pod.clone()));
    }

    fn observe_namespace(&mut self, namespace: &Namespace, source: Source) {
        let name = ObjectName::of(&namespace.identity);
        if self.is_stale(WatchedKind::Namespace, &name, &namespace.identity, source) {
            return;
        }
        let strings = &mut self.interners.strings;
        let name = strings.share(name.name.as_str());
        let labels = namespace.labels.iter();
        let labels = labels
            .map(|(key, value)| (strings.share(key.as_str()), strings.share(value.as_str())))
            .collect();
        let version = ResourceVersion::parse(namespace.identity.resource_version.as_deref());
        self.namespace_versions.insert(name.clone(), version);
        if self.namespaces.get(&name) != Some(&labels) {
            // Copied only while a snapshot for the webhook shares it.
            Arc::make_mut(&mut self.namespaces).insert(name.clone(), labels);
            self.changes.any = true;
            self.affect_namespace(&name);
        }
    }

    fn affect_namespace(&mut self, namespace: &str) {
        if !self.cx.synced {
            return;
        }
        let pods = self.pods.iter().map(|entry| &entry.pod.name);
        let pods = pods.filter(|name| *name.namespace == *namespace);
        for pod in pods {
            self.cx.affected.pods.insert(pod.clone());
            self.cx.affected.selected.insert(pod.clone());
        }
    }

    fn observe_revision(&mut self, revision: Arc<ControllerRevision>, source: Source) {
        let name = ObjectName::of(&revision.identity);
        if name.namespace != self.config.namespace {
            return;
        }
        // One that is in the way of a creation, and whose label somebody has taken away: no list and no watch shows it, so
        // what they have shown says nothing about it.
        let labels = revision.identity.labels.as_ref();
        let is_hidden = labels.is_none_or(|labels| !labels.contains_key(SET_LABEL));
        let is_known = self.known_version(WatchedKind::Revision, &name).is_some();
        let is_news = source == Source::Reply && is_hidden && !is_known;
        if !is_news && self.is_stale(WatchedKind::Revision, &name, &revision.identity, source) {
            return;
        }
        // At least the version of the snapshot has.
        self.changes.any = true;
        let set = self.revisions.insert_revision(revision);
        self.affect_history(set);
    }

    /// The revisions of a set have changed; without a label it may be any.
    fn affect_history(&mut self, set: Option<Arc<str>>) {
        self.changes.any = true;
        self.changes.revisions = true;
        let sets = set.map_or_else(|| self.sets.names(), |set| vec![set]);
        for set in sets {
            self.recompute_history(&set);
        }
    }

    fn observe_configuration(&mut self, config: &ConfigMap, source: Source) {
        let name = ObjectName::of(&config.identity);
        let is_ours = name.namespace == self.config.namespace && name.name == CONFIGURATION;
        if !is_ours || self.is_stale(WatchedKind::Configuration, &name, &config.identity, source) {
            return;
        }
        let version = ResourceVersion::parse(config.identity.resource_version.as_deref());
        self.whitelist_version = Some(version);
        let text = config.data.get(WHITELIST);
        self.set_whitelist(text.map(String::as_str), version);
    }

    fn set_whitelist(&mut self, text: Option<&str>, version: ResourceVersion) {
        let (whitelist, errors) = text.map(Whitelist::read).unwrap_or_default();
        // The ConfigMap has other keys too. A replica may answer without having seen an edit of
        // those.
        if text != self.whitelist_text.as_deref() {
            self.whitelist_text = text.map(str::to_owned);
            self.whitelist_since = version;
            self.changes.sets = true;
        }
        self.whitelist = whitelist.into();
        self.changes.any = true;
        self.whitelist_errors = errors.into();
        self.cx.affected.sets.extend(self.sets.names());
    }

    fn remove_unlisted(
        &mut self,
        kind: WatchedKind,
        names: &BTreeSet<ObjectName>,
        list: CompleteList,
    ) {
        let cluster_scoped = |name: &str| ObjectName {
            namespace: String::new(),
            name: name.to_owned(),
        };
        let mut known: Vec<ObjectName> = match kind {
            WatchedKind::Set => self
                .sets
                .iter()
                .map(|(name, _)| cluster_scoped(name))
                .collect(),
            WatchedKind::Pod => self
                .pods
                .iter()
                .map(|entry| (*entry.pod.name).clone())
                .collect(),
            WatchedKind::Namespace => self
                .namespaces
                .keys()
                .map(|name| cluster_scoped(name))
                .collect(),
            WatchedKind::Revision => {
                let names = self.revisions.names();
                names.map(|name| self.in_own_namespace(name)).collect()
            }
            WatchedKind::Configuration => {
                let known = self.whitelist_version.map(|_| CONFIGURATION);
                known
                    .map(|name| self.in_own_namespace(name))
                    .into_iter()
                    .collect()
            }
        };
        known.retain(|name| !names.contains(name));
        // The pods are hashed: unsorted, two runs would remember the deletions in another order.
        known.sort();
        for name in known {
            if list.proves_deletion(self.known_version(kind, &name)) {
                self.remove_at_version(kind, &name, list.version());
                if kind == WatchedKind::Configuration {
                    // When it was deleted is not known, and a replica that listed earlier may never come as far as this
                    // list. One that has not heard of it yet patches an annotation too many, and injects all sidecars.
                    self.whitelist_since = ResourceVersion::UNKNOWN;
                }
            }
        }
    }

    fn in_own_namespace(&self, name: &str) -> ObjectName {
        ObjectName {
            namespace: self.config.namespace.clone(),
            name: name.to_owned(),
        }
    }

    fn remove_at_version(
        &mut self,
        kind: WatchedKind,
        name: &ObjectName,
        version: ResourceVersion,
    ) {
        let now = self.cx.now.monotonic;
        self.watches.note_deletion(kind, name, version, now);
        match kind {
            WatchedKind::Set => self.remove_set(&name.name.as_str().into()),
            WatchedKind::Pod => {
                if let Some(entry) = self.pods.remove_pod(name) {
                    self.uncount_pod(&entry);
                    self.forget_writes(name);
                }
            }
            WatchedKind::Namespace => {
                self.namespace_versions.remove(&*name.name);
                Arc::make_mut(&mut self.namespaces).remove(&*name.name);
                self.changes.any = true;
                self.affect_namespace(&name.name);
            }
            WatchedKind::Revision => {
                if self.known_version(kind, name).is_some() {
                    let set = self.revisions.remove_revision(&name.name);
                    self.affect_history(set);
                }
            }
            WatchedKind::Configuration => {
                if *name == self.in_own_namespace(CONFIGURATION) {
                    self.whitelist_version = None;
                    self.set_whitelist(None, version);
                }
            }
        }
    }

    /// From now on this process writes. Everything is counted anew: another process may have written meanwhile.
    fn start_writing(&mut self) {
        self.cx.synced = true;
        self.unanswered.clear();
        for (_, set) in self.sets.iter_mut() {
            set.members = super::sets::SetMembers::default();
            set.lacking.clear();
        }
        for pod in self.pods.iter_mut() {
            pod.memberships.clear();
            pod.lacks.clear();
            pod.sent = None;
        }
        let pods: Vec<_> = self
            .pods
            .iter()
            .map(|entry| entry.pod.name.clone())
            .collect();
        self.cx.affected.selected.extend(pods.iter().cloned());
        self.cx.affected.pods.extend(pods);
        for set in self.sets.names() {
            self.recompute_history(&set);
        }
        self.compare_in_force();
    }

    fn compare_in_force(&mut self) {
        let (barrier, whitelist) = (self.barrier, self.whitelist_since);
        let now = self.cx.now.wall;
        let (mut moved, mut selections) = (Vec::new(), Vec::new());
        for (name, entry) in self.sets.iter_mut() {
            let since = entry.in_force_since();
            if entry.read_in_force(barrier, whitelist, now) {
                moved.push(name.clone());
            }
            // Most sets go on from one generation to the next, in which the same pods were missed.
            if entry.in_force_since() != since {
                selections.extend(entry.active_set().cloned());
            }
        }
        if !moved.is_empty() {
            self.changes.any = true;
            self.changes.sets = true;
        }
        self.affect_selected(&selections);
        self.cx.affected.sets.extend(moved);
    }

    /// A write was carried out. If it is still due, another client or an admission webhook has undone it.
    fn observe_written(&mut self, target: &WriteTarget) {
        let purpose = self.refusals.take_sent_purpose(target);
        match target {
            WriteTarget::Pod(pod) => {
                self.record_reset_answer(pod, None);
                // The reply showed the pod in another version, unless nothing has changed.
                let is_unchanged = self.pods.get(pod).is_some_and(|entry| entry.sent.is_some());
                if let Some(purpose) = purpose.filter(|_| is_unchanged) {
                    self.remember_refusal(target, (purpose, UNDONE));
                }
            }
            WriteTarget::SetStatus(set) => {
                if let Some(entry) = self.sets.get_mut(set) {
                    // The event follows its status, so that whoever reads it finds the condition that it tells of.
                    entry.event.due = entry.event.with_status.take();
                    if entry.event.due.is_some() {
                        let target = WriteTarget::SetEvent(set.clone());
                        self.cx.affected.due.insert(target);
                    }
                }
                let due = self.due_status(set).map(|due| due.purpose);
                if let Some(purpose) = purpose.filter(|purpose| due == Some(*purpose)) {
                    self.remember_refusal(target, (purpose, UNDONE));
                }
            }
            _ => {
                if let WriteTarget::SetHashes(set) = target
                    && let Some(entry) = self.sets.get_mut(set)
                {
                    entry.written_hashes = purpose;
                }
                // The next revision may be due now.
                let due = self.wanted_write(target);
                match due.filter(|(_, due)| purpose == Some(*due)) {
                    // No reply shows that it is gone; the watch does.
                    Some((Write::DeleteRevision { revision, .. }, _)) => {
                        self.revisions.note_deletion(&revision.name);
                    }
                    Some((_, purpose)) => self.remember_refusal(target, (purpose, UNDONE)),
                    None => {}
                }
                self.mark_for_recomputing(target);
            }
        }
    }

    /// Tells of a reset that has been answered.
    fn record_reset_answer(&mut self, pod: &ObjectName, refused: Option<&str>) {
        let Some(entry) = self.pods.get(pod) else {
            return;
        };
        if self
            .resets
            .record_answer(&entry.pod.name, &entry.pod.uid, refused)
        {
            let target = WriteTarget::PodEvent(pod.clone());
            self.cx.affected.due.insert(target);
        }
    }

    fn observe_refused(&mut self, target: &WriteTarget, reason: &str) {
        if let WriteTarget::Pod(pod) = target {
            self.record_reset_answer(pod, Some(reason));
        }
        if let Some(purpose) = self.refusals.take_sent_purpose(target) {
            self.remember_refusal(target, (purpose, reason));
        }
    }

    /// Lets a target rest, and its place in a roll-out go to another.
    fn remember_refusal(
        &mut self,
        target: &WriteTarget,
        refusal: (super::refusals::Purpose, &str),
    ) {
        let now = self.cx.now.monotonic;
        let timers = &mut self.cx.timers;
        self.refusals.remember_refusal(target, refusal, now, timers);
        if let WriteTarget::Pod(pod) = target
            && let Some(entry) = self.pods.get_mut(pod)
        {
            entry.sent = None;
        }
        self.mark_for_recomputing(target);
    }
}

/// Why a write that was carried out has changed nothing.
const UNDONE: &str = "the API server carried the write out, and another client or an admission webhook has undone it";

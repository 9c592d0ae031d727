//! The store: objects, versions, and every change with what was before, so that any earlier state can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use hyper::body::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use crate::resource::Resource;

/// The most bytes of an object that etcd takes (`DefaultMaxRequestBytes`, `server/embed/config.go`). They are counted as JSON,
/// also of kinds that are stored as protobuf, which is shorter.
const LONGEST_OBJECT: usize = 3 << 19;

/// An object as it is stored. Its text is written once.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) value: Arc<Value>,
    text: OnceLock<Bytes>,
}

impl Object {
    fn new(value: Value) -> Arc<Self> {
        Arc::new(Self {
            value: Arc::new(value),
            text: OnceLock::new(),
        })
    }

    pub(crate) fn text(&self) -> Bytes {
        self.text.get_or_init(|| encode(&self.value)).clone()
    }

    pub(crate) fn version(&self) -> u64 {
        version_of(&self.value)
    }
}

pub(crate) fn encode(value: &Value) -> Bytes {
    serde_json::to_vec(value)
        .expect("a value of JSON can be written")
        .into()
}

/// The resourceVersion in an object; 0 if there is none.
pub(crate) fn version_of(value: &Value) -> u64 {
    let version = value
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str);
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

/// The place of an object: that of its kind among those that are served, namespace, name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    pub(crate) kind: usize,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A change that was stored.
#[derive(Debug)]
pub struct StoredChange {
    /// The version that it made.
    pub version: u64,
    /// The time at which it was made.
    pub time: Timestamp,
    /// The number of the request that made it. None if it was made by [`ApiServer::collect_garbage`].
    ///
    /// [`ApiServer::collect_garbage`]: crate::ApiServer::collect_garbage
    pub request: Option<u64>,
    /// The user who made it.
    pub user: String,
    /// `create`, `update`, `patch`, `apply` or `delete`.
    pub verb: &'static str,
    /// The plural of the kind.
    pub resource: String,
    /// The subresource; empty for the object itself.
    pub subresource: String,
    /// The namespace; empty for an object without one.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The object before. None if it was created.
    pub before: Option<Arc<Value>>,
    /// The object after. None if it was deleted.
    pub after: Option<Arc<Value>>,
    pub(crate) key: ObjectKey,
    pub(crate) old: Option<Arc<Object>>,
    pub(crate) new: Option<Arc<Object>>,
    /// A deletion shows the object in its last state, with the version of the deletion.
    pub(crate) deleted: Option<Arc<Object>>,
}

/// The author of a change, and its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Author<'a> {
    pub(crate) user: &'a str,
    pub(crate) verb: &'static str,
    pub(crate) subresource: &'a str,
    pub(crate) request: Option<u64>,
    pub(crate) time: Timestamp,
}

/// Objects, by their keys.
pub(crate) type Objects = BTreeMap<ObjectKey, Arc<Object>>;

pub(crate) struct ObjectStore {
    pub(crate) resources: Vec<Arc<Resource>>,
    pub(crate) objects: Objects,
    pub(crate) version: u64,
    /// Watches and lists of earlier versions are refused.
    pub(crate) compacted: u64,
    /// The changes that led to the present state, by their versions.
    log: Vec<Arc<StoredChange>>,
    /// All changes that were ever made, also those that a restore took back.
    pub(crate) story: Vec<Arc<StoredChange>>,
    /// Grows with each restore, which ends all watches.
    pub(crate) restores: u64,
    pub(crate) random: fastrand::Rng,
}

impl ObjectStore {
    pub(crate) fn new(resources: Vec<Resource>, seed: u64) -> Self {
        Self {
            resources: resources.into_iter().map(Arc::new).collect(),
            objects: Objects::new(),
            version: 1,
            compacted: 0,
            log: Vec::new(),
            story: Vec::new(),
            restores: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// A uid that no object has had.
    pub(crate) fn next_uid(&mut self) -> String {
        let random = self.random.u128(..);
        let hex = format!("{random:032x}");
        let part = |from: usize, to: usize| &hex[from..to];
        let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
        parts.map(|(from, to)| part(from, to)).join("-")
    }

    /// Serves a kind, or serves it by another schema.
    pub(crate) fn serve(&mut self, resource: Resource) {
        match self.find_kind(&resource.group, &resource.version, &resource.plural) {
            Some(place) => self.resources[place] = Arc::new(resource),
            None => self.resources.push(Arc::new(resource)),
        }
    }

    /// Whether Kubernetes itself serves a version of a group.
    pub(crate) fn serves_group(&self, group: &str, version: &str) -> bool {
        let is_of =
            |resource: &Arc<Resource>| resource.group == group && resource.version == version;
        self.resources
            .iter()
            .any(|resource| !resource.is_custom && is_of(resource))
    }

    /// The place of a kind that is served.
    pub(crate) fn find_kind(&self, group: &str, version: &str, plural: &str) -> Option<usize> {
        self.resources.iter().position(|resource| {
            resource.plural == plural && resource.group == group && resource.version == version
        })
    }

    /// Stores an object under the next version, and returns it. None if it is too large.
    pub(crate) fn put(
        &mut self,
        key: ObjectKey,
        mut value: Value,
        by: Author<'_>,
    ) -> Option<Arc<Object>> {
        let version = self.version + 1;
        value["metadata"]["resourceVersion"] = version.to_string().into();
        let object = Object::new(value);
        if object.text().len() > LONGEST_OBJECT {
            return None;
        }
        self.version = version;
        let old = self.objects.insert(key.clone(), Arc::clone(&object));
        self.note_change(key, old, Some(Arc::clone(&object)), by);
        Some(object)
    }

    /// Removes an object under the next version. Returns its last state, with that version.
    pub(crate) fn remove(&mut self, key: &ObjectKey, by: Author<'_>) -> Option<Arc<Object>> {
        let old = self.objects.remove(key)?;
        self.version += 1;
        let change = self.note_change(key.clone(), Some(old), None, by);
        change.deleted.clone()
    }

    fn note_change(
        &mut self,
        key: ObjectKey,
        old: Option<Arc<Object>>,
        new: Option<Arc<Object>>,
        by: Author<'_>,
    ) -> Arc<StoredChange> {
        let plural = &self.resources[key.kind].plural;
        let deleted = old.as_ref().filter(|_| new.is_none()).map(|old| {
            let mut last = (*old.value).clone();
            last["metadata"]["resourceVersion"] = self.version.to_string().into();
            Object::new(last)
        });
        let value = |object: &Option<Arc<Object>>| object.as_ref().map(|o| Arc::clone(&o.value));
        let change = Arc::new(StoredChange {
            version: self.version,
            time: by.time,
            request: by.request,
            user: by.user.to_owned(),
            verb: by.verb,
            resource: plural.clone(),
            subresource: by.subresource.to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            before: value(&old),
            after: value(&new),
            key,
            old,
            new,
            deleted,
        });
        self.log.push(Arc::clone(&change));
        self.story.push(Arc::clone(&change));
        change
    }

    /// The changes after a version.
    pub(crate) fn changes_after(&self, version: u64) -> &[Arc<StoredChange>] {
        let first = self.log.partition_point(|change| change.version <= version);
        &self.log[first..]
    }

    /// The objects of a kind as they were at a version.
    pub(crate) fn objects_at(&self, kind: usize, version: u64) -> Objects {
        let first = ObjectKey {
            kind,
            namespace: String::new(),
            name: String::new(),
        };
        let of_kind = self
            .objects
            .range(first..)
            .take_while(|(key, _)| key.kind == kind);
        let mut objects: Objects = of_kind
            .map(|(key, object)| (key.clone(), Arc::clone(object)))
            .collect();
        for change in self.changes_after(version).iter().rev() {
            if change.key.kind == kind {
                undo(&mut objects, change);
            }
        }
        objects
    }

    /// An object as it was at a version.
    pub(crate) fn object_at(&self, key: &ObjectKey, version: u64) -> Option<Arc<Object>> {
        let mut later = self.changes_after(version).iter();
        match later.find(|change| change.key == *key) {
            Some(next) => next.old.clone(),
            None => self.objects.get(key).cloned(),
        }
    }

    /// Deletes the Events that no change since a time concerns.
    pub(crate) fn delete_events_before(&mut self, time: Timestamp, by: Author<'_>) {
        let first = self.log.partition_point(|change| change.time < time);
        let written: BTreeSet<_> = self.log[first..].iter().map(|change| &change.key).collect();
        let is_of_events = |key: &&ObjectKey| self.resources[key.kind].plural == "events";
        let events = self.objects.keys().filter(is_of_events);
        let old: Vec<_> = events
            .filter(|key| !written.contains(key))
            .cloned()
            .collect();
        for key in old {
            self.remove(&key, by);
        }
    }

    /// Forgets the changes before a time, as with compaction; returns how many.
    pub(crate) fn forget_before(&mut self, time: Timestamp) -> usize {
        let is_earlier = |change: &Arc<StoredChange>| change.time < time;
        let places = [&self.log, &self.story].map(|changes| changes.partition_point(is_earlier));
        if let Some(last) = self.log[..places[0]].last() {
            self.compacted = self.compacted.max(last.version);
        }
        self.log.drain(..places[0]);
        self.story.drain(..places[1]);
        places[1]
    }

    /// Goes back to a version, as etcd does when it is restored from a snapshot. Later versions are handed out anew.
    pub(crate) fn restore(&mut self, version: u64) {
        let later = self.log.partition_point(|change| change.version <= version);
        for change in self.log.drain(later..).rev() {
            undo(&mut self.objects, &change);
        }
        self.version = version;
        self.compacted = self.compacted.min(version);
        self.restores += 1;
    }
}

fn undo(objects: &mut Objects, change: &StoredChange) {
    match &change.old {
        Some(old) => objects.insert(change.key.clone(), Arc::clone(old)),
        None => objects.remove(&change.key),
    };
}

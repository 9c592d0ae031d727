//! The objects of one kind as they are known: what events show of them, and what this process has asked for since.

mod asked;

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::asked::AskedObjects;
use self::asked::{Asked, Late};
pub use self::asked::{Assumption, ObjectChange};
use crate::object::{ObjectName, ResourceVersion, Source};
use crate::watches::{CompleteList, WatchProgress};

/// An object as a feature reads it.
pub trait Stored: Send + Sync + 'static {
    /// The object's name.
    fn name(&self) -> ObjectName;

    /// The same, which the store keeps. A feature that shares it has it in memory once.
    fn shared_name(&self) -> Arc<ObjectName> {
        Arc::new(self.name())
    }

    /// The object's uid.
    fn uid(&self) -> &str;

    /// The version that it shows.
    fn version(&self) -> ResourceVersion;

    /// Passes on the words under which [`Store::find`] has it: the uid of its owner, the name of its node.
    fn words(&self, _found: &mut dyn FnMut(&str)) {}

    /// Whether no list and no watch of the kind shows it, as they are restricted to objects with a label that it lacks. It is
    /// known from the reply to a creation that it was in the way of.
    fn is_hidden(&self) -> bool {
        false
    }

    /// Whether nothing that a feature reads differs from another state of the object: no key has to run then, and what a write
    /// does is done.
    fn is_same(&self, other: &Self) -> bool;
}

/// The objects of a kind.
pub struct Store<K> {
    objects: BTreeMap<Arc<ObjectName>, Arc<K>>,
    /// The objects themselves, so that going through those of a word looks none of them up.
    by_word: BTreeMap<(Arc<str>, Arc<ObjectName>), Arc<K>>,
    undecodable: BTreeSet<ObjectName>,
    asked: BTreeMap<Arc<ObjectName>, Asked<K>>,
    late: BTreeMap<Arc<ObjectName>, Late<K>>,
    watch: WatchProgress,
    is_unserved: bool,
    is_listed: bool,
}

/// A change of an object. Both states are absent if it exists and cannot be decoded.
#[derive(Debug)]
pub struct Change<K> {
    /// The object's name.
    pub name: Arc<ObjectName>,
    /// The state of before, if it was known. The object may be another one of the same name.
    pub before: Option<Arc<K>>,
    /// The state now, unless it is gone.
    pub now: Option<Arc<K>>,
    /// Whether a list that the watch begins with shows it, and not the watch or a reply: the API server may have been restored.
    pub is_listed: bool,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            by_word: BTreeMap::new(),
            undecodable: BTreeSet::new(),
            asked: BTreeMap::new(),
            late: BTreeMap::new(),
            watch: WatchProgress::default(),
            is_unserved: false,
            is_listed: false,
        }
    }
}

impl<K: Stored> Store<K> {
    /// Whether a list has been completed, so that what is not here does not exist.
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// The version up to which all objects are known.
    pub fn known_until(&self) -> ResourceVersion {
        self.watch.known_until()
    }

    /// The object as events show it.
    pub fn observed(&self, name: &ObjectName) -> Option<&Arc<K>> {
        self.objects.get(name)
    }

    /// The object as it is if what was asked has been carried out.
    pub fn assumed(&self, name: &ObjectName) -> Option<&Arc<K>> {
        match self.asked.get(name) {
            Some(asked) => asked.assumed.as_ref(),
            None => self.observed(name),
        }
    }

    /// Whether something was asked whose outcome no event has shown.
    pub fn is_asked(&self, name: &ObjectName) -> bool {
        self.asked.contains_key(name)
    }

    /// Whether the answer to what was asked is awaited.
    pub fn is_under_way(&self, name: &ObjectName) -> bool {
        let asked = self.asked.get(name);
        asked.is_some_and(Asked::is_under_way)
    }

    /// Whether an object of this name may still be created ([`Store::find_coming_in`]).
    pub fn is_coming(&self, name: &ObjectName) -> bool {
        let asked = self.asked.get(name).and_then(Asked::creation);
        asked.is_some() || self.late.contains_key(name)
    }

    /// The version in which an object is known.
    pub fn version(&self, name: &ObjectName) -> Option<ResourceVersion> {
        self.objects.get(name).map(|object| object.version())
    }

    /// All objects as events show them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<ObjectName>, &Arc<K>)> {
        self.objects.iter()
    }

    /// The objects of a namespace as events show them, by name.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> {
        of_namespace(&self.objects, namespace).map(|(_, object)| object)
    }

    /// The objects of all namespaces that have a word ([`Stored::words`]) as events show them, by name.
    pub fn find<'a>(&'a self, word: &str) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.entries_of_word("", word).map(|(_, object)| object)
    }

    /// The objects of a namespace that have a word as events show them, by name: an owner has what it owns in its own namespace,
    /// and anybody may write its uid into an object of another one.
    pub fn find_in<'a, 'n>(
        &'a self,
        namespace: &'n str,
        word: &str,
    ) -> impl Iterator<Item = &'a Arc<K>> + use<'a, 'n, K> {
        self.entries_in(namespace, word).map(|(_, object)| object)
    }

    /// The same, each beside what it is if what was asked has been carried out: nothing, if it was asked to go.
    pub fn find_with_assumed_in<'a, 'n>(
        &'a self,
        namespace: &'n str,
        word: &str,
    ) -> impl Iterator<Item = (&'a Arc<K>, Option<&'a Arc<K>>)> + use<'a, 'n, K> {
        let found = self.entries_in(namespace, word);
        found.map(|(name, object)| match self.asked.get(name) {
            Some(asked) => (object, asked.assumed.as_ref()),
            None => (object, Some(object)),
        })
    }

    /// The objects that have a word and whose creation was asked for, as long as no event has shown them.
    pub fn find_created_in<'a>(
        &'a self,
        namespace: &'a str,
        word: &'a str,
    ) -> impl Iterator<Item = &'a Arc<K>> {
        let asked = of_namespace(&self.asked, namespace);
        let created = asked
            .filter(|(name, _)| !self.objects.contains_key(*name))
            .filter_map(|(_, asked)| asked.assumed.as_ref());
        created.filter(move |object| has_word(&***object, word))
    }

    /// The objects of a namespace that have a word and may still be created. That one of the name is known does not keep any
    /// out: a creation that was sent again meets what the first attempt has made, unless that is gone by then. So where it counts
    /// how many there are, each has its place until all attempts are over: answered, seen by what they have made, or given up after
    /// five minutes. What has ended and stays under its name needs no second place.
    pub fn find_coming_in<'a>(
        &'a self,
        namespace: &'a str,
        word: &'a str,
    ) -> impl Iterator<Item = &'a Arc<K>> {
        let all = of_namespace(&self.asked, namespace);
        let asked = all.filter_map(|(_, asked)| asked.creation());
        let late = of_namespace(&self.late, namespace).filter(|(name, _)| {
            let asked = self.asked.get(*name).and_then(Asked::creation);
            asked.is_none()
        });
        let coming = asked.chain(late.map(|(_, late)| &late.object));
        coming.filter(move |object| has_word(&***object, word))
    }

    /// The objects that exist and could never be decoded. What may belong to them is better left alone.
    pub fn undecodable(&self) -> &BTreeSet<ObjectName> {
        &self.undecodable
    }

    /// Whether the API server has the kind. What was known of a kind that is served no longer stays.
    pub fn is_served(&self) -> bool {
        !self.is_unserved
    }

    fn entries_in<'a, 'n>(
        &'a self,
        namespace: &'n str,
        word: &str,
    ) -> impl Iterator<Item = (&'a Arc<ObjectName>, &'a Arc<K>)> + use<'a, 'n, K> {
        self.entries_of_word(namespace, word)
            .take_while(move |(name, _)| name.namespace == namespace)
    }

    /// The objects under a word, from a namespace on.
    fn entries_of_word<'a>(
        &'a self,
        namespace: &str,
        word: &str,
    ) -> impl Iterator<Item = (&'a Arc<ObjectName>, &'a Arc<K>)> + use<'a, K> {
        let word: Arc<str> = word.into();
        let first = Arc::new(ObjectName {
            namespace: namespace.to_owned(),
            name: String::new(),
        });
        let found = self.by_word.range((word.clone(), first)..);
        found
            .take_while(move |((known, _), _)| *known == word)
            .map(|((_, name), object)| (name, object))
    }

    /// Takes in a state. None if it shows nothing new.
    pub(crate) fn observe(&mut self, object: Arc<K>, source: Source) -> Option<Change<K>> {
        let (name, version) = (object.shared_name(), object.version());
        self.watch.observe(source, version);
        // Looked up once: among many objects that costs more than all else.
        let entry = self.objects.entry(name);
        let known = match &entry {
            Entry::Occupied(known) => Some(known.get().version()),
            Entry::Vacant(_) => None,
        };
        let is_found = source == Source::Reply && known.is_none() && object.is_hidden();
        if !is_found && self.watch.is_stale(source, entry.key(), version, known) {
            return None;
        }
        let name = entry.key().clone();
        let before = match entry {
            Entry::Occupied(mut known) => Some(known.insert(object.clone())),
            Entry::Vacant(place) => {
                place.insert(object.clone());
                None
            }
        };
        self.undecodable.remove(&name);
        if let Some(before) = &before {
            self.forget_words(&name, before);
        }
        object.words(&mut |word| self.insert_word(word, &name, &object));
        self.count_late(&name, &*object);
        self.correct_asked(&name, Some(&object));
        let is_same = before
            .as_ref()
            .is_some_and(|before| before.uid() == object.uid() && object.is_same(before));
        (!is_same).then_some(Change {
            name,
            before,
            now: Some(object),
            is_listed: matches!(source, Source::List(_)),
        })
    }

    /// Takes in that an object exists and cannot be decoded: what was known of it stays.
    pub(crate) fn observe_undecodable(&mut self, name: &ObjectName) -> Option<Change<K>> {
        let is_news = !self.objects.contains_key(name) && self.undecodable.insert(name.clone());
        is_news.then(|| Change {
            name: Arc::new(name.clone()),
            before: None,
            now: None,
            is_listed: false,
        })
    }

    /// Takes in that the watch shows a deletion, with its version.
    pub(crate) fn observe_deletion(
        &mut self,
        name: &ObjectName,
        version: ResourceVersion,
        now: Duration,
    ) -> Option<Change<K>> {
        self.watch.observe(Source::Watch, version);
        // The watch may lag behind the reply to a write that created a new object of this name.
        let known = self.version(name);
        if known.is_some_and(|known| known.is_later_than(version)) {
            return None;
        }
        self.remove(name, version, now)
    }

    /// Takes in that a list is complete: what it does not name did not exist at its version. Returns what is gone. A list of
    /// nothing, of no version, says that the kind is not served.
    pub(crate) fn observe_list(
        &mut self,
        names: &BTreeSet<ObjectName>,
        version: ResourceVersion,
        is_beside_watch: bool,
        now: Duration,
    ) -> Vec<Change<K>> {
        self.is_listed = true;
        self.is_unserved = version == ResourceVersion::UNKNOWN && names.is_empty();
        if self.is_unserved {
            return Vec::new();
        }
        let list = if is_beside_watch {
            self.watch.complete_list_beside_watch(version)
        } else {
            self.watch.complete_list(version)
        };
        let is_gone =
            |name: &ObjectName, known| !names.contains(name) && list.proves_deletion(known);
        let decoded = self
            .objects
            .iter()
            .map(|(name, object)| (&**name, Some(object.version())));
        let undecodable = self.undecodable.iter().map(|name| (name, None));
        let gone: Vec<ObjectName> = decoded
            .chain(undecodable)
            .filter(|(name, known)| is_gone(name, *known))
            .map(|(name, _)| name.clone())
            .collect();
        self.forget_asked_if_restored(list);
        gone.iter()
            .filter_map(|name| self.remove(name, version, now))
            .collect()
    }

    /// Forgets all that was asked if the API server was restored: nothing is left then of what was carried out.
    fn forget_asked_if_restored(&mut self, list: CompleteList) {
        if list.is_restored() {
            self.asked.clear();
            self.late.clear();
        }
    }

    fn remove(
        &mut self,
        name: &ObjectName,
        version: ResourceVersion,
        now: Duration,
    ) -> Option<Change<K>> {
        self.watch.note_deletion(name, version, now);
        self.correct_asked(name, None);
        let was_undecodable = self.undecodable.remove(name);
        let Some((name, before)) = self.objects.remove_entry(name) else {
            return was_undecodable.then(|| Change {
                name: Arc::new(name.clone()),
                before: None,
                now: None,
                is_listed: false,
            });
        };
        self.forget_words(&name, &before);
        Some(Change {
            name,
            before: Some(before),
            now: None,
            is_listed: false,
        })
    }

    fn insert_word(&mut self, word: &str, name: &Arc<ObjectName>, object: &Arc<K>) {
        let mut entry: (Arc<str>, _) = (word.into(), name.clone());
        // Objects share their words: each is kept once.
        let before = self.by_word.range(..&entry).next_back();
        let after = self.by_word.range(&entry..).next();
        let mut neighbours = before.into_iter().chain(after);
        if let Some(((known, _), _)) = neighbours.find(|((known, _), _)| **known == *word) {
            entry.0 = known.clone();
        }
        self.by_word.insert(entry, object.clone());
    }

    fn forget_words(&mut self, name: &Arc<ObjectName>, object: &K) {
        object.words(&mut |word| {
            self.by_word.remove(&(word.into(), name.clone()));
        });
    }
}

fn of_namespace<'a, V>(
    of_names: &'a BTreeMap<Arc<ObjectName>, V>,
    namespace: &str,
) -> impl Iterator<Item = (&'a Arc<ObjectName>, &'a V)> + use<'a, V> {
    let first = ObjectName {
        namespace: namespace.to_owned(),
        name: String::new(),
    };
    let from = (Bound::Included(&first), Bound::Unbounded);
    let found = of_names.range::<ObjectName, _>(from);
    found.take_while(move |(name, _)| name.namespace == first.namespace)
}

fn has_word<K: Stored>(object: &K, wanted: &str) -> bool {
    let mut is_found = false;
    object.words(&mut |word| is_found |= word == wanted);
    is_found
}

#[cfg(test)]
mod tests;

//! The progress of the watch of each kind, and the objects that were deleted. They tell whether a snapshot shows
//! anything new, whether it comes from a list, the watch or the reply to a request.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use crate::object::{ObjectName, ResourceVersion, Source};

/// The progress of the watches of kinds `K`.
#[derive(Debug)]
pub struct Watches<K> {
    progress: BTreeMap<K, WatchProgress>,
    tombstones: Tombstones<K>,
}

/// The progress of the watch of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct WatchProgress {
    /// The version of the last list, or of a later one beside the watch: what existed at this version is known.
    listed: ResourceVersion,
    /// The newest version that the list or the watch after it has shown.
    newest: ResourceVersion,
}

/// A complete list of a kind.
#[derive(Clone, Copy, Debug)]
pub struct CompleteList {
    version: ResourceVersion,
    /// Whether the API server was restored to an earlier state.
    is_restored: bool,
}

impl CompleteList {
    /// The version of the list.
    pub fn version(self) -> ResourceVersion {
        self.version
    }

    /// Whether the API server was restored to an earlier state: versions that were known before may never come again.
    pub fn is_restored(self) -> bool {
        self.is_restored
    }

    /// Whether an object that is known in this version, and that the list does not contain, was deleted. An object that
    /// is newer than the list was created afterwards, and is known from the reply to the write that created it.
    pub fn proves_deletion(self, known: Option<ResourceVersion>) -> bool {
        self.is_restored || !known.is_some_and(|known| known.is_later_than(self.version))
    }
}

impl<K> Default for Watches<K> {
    fn default() -> Self {
        Self {
            progress: BTreeMap::new(),
            tombstones: Tombstones::default(),
        }
    }
}

impl<K: Copy + Ord + Hash> Watches<K> {
    /// Records a snapshot of an object.
    pub fn observe(&mut self, kind: K, source: Source, version: ResourceVersion) {
        let shown = match source {
            Source::List(listed) => listed,
            Source::Watch => version,
            // It says nothing about how far the watch has come.
            Source::Reply => return,
        };
        let progress = self.progress.entry(kind).or_default();
        progress.newest = progress.newest.max(shown);
    }

    /// Records a complete list of a kind.
    pub fn complete_list(&mut self, kind: K, version: ResourceVersion) -> CompleteList {
        let progress = self.progress.entry(kind).or_default();
        // An API server that was restored counts from an earlier version: then nothing is newer than its list.
        let is_restored = progress.newest.is_later_than(version);
        *progress = WatchProgress {
            listed: version,
            newest: version,
        };
        self.tombstones.clear(kind);
        CompleteList {
            version,
            is_restored,
        }
    }

    /// Records a complete list that no watch begins with. The watch may be behind it: what it shows later of an earlier
    /// version, and the list did not name, was deleted in between.
    pub fn complete_list_beside_watch(
        &mut self,
        kind: K,
        version: ResourceVersion,
    ) -> CompleteList {
        let progress = self.progress.entry(kind).or_default();
        // Not `newest`: a list that the watch begins with and that was read before this one is no sign of a restored server.
        progress.listed = progress.listed.max(version);
        CompleteList {
            version,
            is_restored: false,
        }
    }

    /// The newest version that the list or the watch of a kind has shown.
    pub fn newest(&self, kind: K) -> ResourceVersion {
        let progress = self.progress.get(&kind).copied().unwrap_or_default();
        progress.newest
    }

    /// The version up to which all objects of a kind are known, also where a list beside the watch has shown them.
    pub fn known_until(&self, kind: K) -> ResourceVersion {
        let progress = self.progress.get(&kind).copied().unwrap_or_default();
        progress.newest.max(progress.listed)
    }

    /// Records that an object does not exist at `version`. `now` is on the monotonic clock.
    pub fn note_deletion(
        &mut self,
        kind: K,
        name: &ObjectName,
        version: ResourceVersion,
        now: Duration,
    ) {
        self.tombstones.set(kind, name, version, now);
    }

    /// Whether a snapshot of an object, `known` in this version, shows nothing new.
    ///
    /// A list is complete only after its last page, and meanwhile a reply may show what is newer than all of it: the watch
    /// after the list goes on from there. An object that is newer than a list for another reason was known before the API
    /// server was restored, and then the watch had come further than the list as well.
    pub fn is_stale(
        &self,
        source: Source,
        kind: K,
        name: &ObjectName,
        version: ResourceVersion,
        known: Option<ResourceVersion>,
    ) -> bool {
        if let Source::List(listed) = source {
            let is_restored = self.newest(kind).is_later_than(listed);
            return !is_restored && known.is_some_and(|known| known.is_later_than(listed));
        }
        let known = known.unwrap_or_else(|| {
            // An object that existed at that version was in the list.
            let listed = self.progress.get(&kind).map(|progress| progress.listed);
            let deleted = self.tombstones.version(kind, name);
            let versions = deleted.into_iter().chain(listed);
            versions.fold(ResourceVersion::UNKNOWN, ResourceVersion::max)
        });
        !version.is_newer_than(known)
    }
}

/// Recently deleted objects, so that a late reply to a write does not bring one back.
#[derive(Debug)]
struct Tombstones<K> {
    versions: HashMap<(K, ObjectName), (ResourceVersion, Duration)>,
    order: VecDeque<(Duration, K, ObjectName)>,
}

impl<K> Default for Tombstones<K> {
    fn default() -> Self {
        Self {
            versions: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Copy + Eq + Hash> Tombstones<K> {
    const KEPT: Duration = Duration::from_mins(5);
    /// Beyond this number they are kept only as long as a reply may be late.
    const MOST: usize = 4096;
    /// No request takes longer, with its reply or without.
    const LATEST_REPLY: Duration = Duration::from_mins(1);

    fn set(&mut self, kind: K, name: &ObjectName, version: ResourceVersion, now: Duration) {
        while let Some((time, _, _)) = self.order.front() {
            let age = now.saturating_sub(*time);
            let longest = if self.order.len() < Self::MOST {
                Self::KEPT
            } else {
                Self::LATEST_REPLY
            };
            if age <= longest {
                break;
            }
            // Of a name that was deleted again, the later entry of the queue removes the tombstone.
            let Some((time, kind, name)) = self.order.pop_front() else {
                break;
            };
            let key = (kind, name);
            if self
                .versions
                .get(&key)
                .is_some_and(|(_, last)| *last == time)
            {
                self.versions.remove(&key);
            }
        }
        self.order.push_back((now, kind, name.clone()));
        // A lagging watch may show the deletion of an earlier object of this name.
        let entry = self.versions.entry((kind, name.clone()));
        let (known, last) = entry.or_insert((version, now));
        (*known, *last) = (known.max(version), now);
    }

    fn clear(&mut self, kind: K) {
        self.versions.retain(|(cleared, _), _| *cleared != kind);
    }

    fn version(&self, kind: K, name: &ObjectName) -> Option<ResourceVersion> {
        let key = (kind, name.clone());
        self.versions.get(&key).map(|(version, _)| *version)
    }
}

const _: () = assert!(
    Tombstones::<()>::LATEST_REPLY.as_secs() < Tombstones::<()>::KEPT.as_secs(),
    "with many deletions fewer are kept, and not more"
);

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "pods";

    fn at(version: &str) -> ResourceVersion {
        ResourceVersion::parse(Some(version))
    }

    fn name(name: &str) -> ObjectName {
        ObjectName {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_late_reply_does_not_bring_a_deleted_object_back() {
        let mut watches = Watches::default();
        watches.complete_list(POD, at("5"));
        watches.note_deletion(POD, &name("p"), at("9"), Duration::ZERO);
        let is_stale = |version, source| watches.is_stale(source, POD, &name("p"), version, None);
        assert!(is_stale(at("9"), Source::Reply) && is_stale(at("8"), Source::Watch));
        assert!(!is_stale(at("10"), Source::Reply) && !is_stale(at("8"), Source::List(at("8"))));
        // What is not known may be new.
        assert!(!is_stale(ResourceVersion::UNKNOWN, Source::Watch));
    }

    #[test]
    fn a_late_page_shows_nothing_new_of_what_a_reply_has_shown_since() {
        let mut watches = Watches::default();
        watches.complete_list(POD, at("5"));
        watches.observe(POD, Source::Watch, at("7"));
        let is_stale = |watches: &Watches<_>, listed, version, known| {
            let (source, known) = (Source::List(at(listed)), Some(at(known)));
            watches.is_stale(source, POD, &name("p"), at(version), known)
        };
        // A reply at version 12 while a list of version 10 is under way, and none.
        assert!(is_stale(&watches, "10", "6", "12"));
        assert!(!is_stale(&watches, "10", "9", "7") && !is_stale(&watches, "10", "7", "7"));
        // The API server was restored to version 6, before what the watch had shown.
        assert!(!is_stale(&watches, "6", "4", "12") && !is_stale(&watches, "6", "4", "7"));
        // It was restored after some pages of a list, which begins again.
        watches.observe(POD, Source::List(at("20")), at("4"));
        assert!(!is_stale(&watches, "15", "4", "18"));
    }

    #[test]
    fn a_list_proves_the_deletion_of_what_is_not_newer_than_it() {
        let mut watches = Watches::default();
        watches.observe(POD, Source::Watch, at("7"));
        // The reply to a write may be ahead of the watch, which says nothing about a restored API server.
        watches.observe(POD, Source::Reply, at("20"));
        let list = watches.complete_list(POD, at("10"));
        assert!(list.proves_deletion(Some(at("10"))) && list.proves_deletion(None));
        assert!(!list.proves_deletion(Some(at("11"))));
        // An API server that was restored from a backup.
        let list = watches.complete_list(POD, at("3"));
        assert!(list.proves_deletion(Some(at("11"))));
    }

    #[test]
    fn a_watch_that_is_behind_a_list_beside_it_shows_nothing_that_the_list_did_not_name() {
        let mut watches = Watches::default();
        watches.complete_list(POD, at("5"));
        watches.observe(POD, Source::Watch, at("7"));
        watches.complete_list_beside_watch(POD, at("20"));
        let is_stale = |watches: &Watches<_>, source, version| {
            watches.is_stale(source, POD, &name("p"), at(version), None)
        };
        assert!(is_stale(&watches, Source::Watch, "8") && is_stale(&watches, Source::Watch, "20"));
        assert!(!is_stale(&watches, Source::Watch, "21"));
        // A list beside the watch that was read before the last one.
        watches.complete_list_beside_watch(POD, at("18"));
        assert!(is_stale(&watches, Source::Watch, "20"));
        // The API server was restored to version 6: what it shows from then on is new.
        assert!(!is_stale(&watches, Source::List(at("6")), "4"));
        assert!(
            watches
                .complete_list(POD, at("6"))
                .proves_deletion(Some(at("18")))
        );
        assert!(!is_stale(&watches, Source::Watch, "7"));
    }

    #[test]
    fn the_deletion_that_is_newest_counts_in_whichever_order_they_are_shown() {
        for versions in [["9", "7"], ["7", "9"]] {
            let mut watches = Watches::default();
            for version in versions {
                watches.note_deletion(POD, &name("p"), at(version), Duration::ZERO);
            }
            let is_stale =
                |version| watches.is_stale(Source::Reply, POD, &name("p"), at(version), None);
            assert!(
                is_stale("8") && is_stale("9") && !is_stale("10"),
                "{versions:?}"
            );
        }
    }

    #[test]
    fn tombstones_last_as_long_as_replies_and_no_longer_where_there_are_many() {
        type Names = Tombstones<&'static str>;
        let mut tombstones = Names::default();
        let mut set_many = |now: Duration| {
            for number in 0..2 * Names::MOST {
                let name = name(&format!("{number}-{now:?}"));
                tombstones.set(POD, &name, at("1"), now);
            }
            tombstones.versions.len()
        };
        assert_eq!(set_many(Duration::ZERO), 2 * Names::MOST);
        let later = Names::LATEST_REPLY + Duration::from_secs(1);
        assert_eq!(set_many(later), 2 * Names::MOST);
        tombstones.set(POD, &name("last"), at("1"), later + Names::KEPT * 2);
        assert_eq!((tombstones.versions.len(), tombstones.order.len()), (1, 1));
    }
}

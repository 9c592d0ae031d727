//! The progress of the watch of a kind, and the objects that were deleted. They tell whether a snapshot shows
//! anything new, whether it comes from a list, the watch or the reply to a request.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::object::{ObjectName, ResourceVersion, Source};

/// The progress of the watch of one kind.
#[derive(Debug, Default)]
pub struct WatchProgress {
    /// The version of the last list, or of a later one beside the watch: what existed at this version is known.
    listed: ResourceVersion,
    /// The newest version that the list or the watch after it has shown.
    newest: ResourceVersion,
    tombstones: Tombstones,
}

/// A complete list of a kind.
#[derive(Clone, Copy, Debug)]
pub struct CompleteList {
    version: ResourceVersion,
    /// Whether the API server was restored to an earlier state.
    is_restored: bool,
}

impl CompleteList {
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

impl WatchProgress {
    /// Records a snapshot of an object.
    pub fn observe(&mut self, source: Source, version: ResourceVersion) {
        let shown = match source {
            Source::List(listed) => listed,
            Source::Watch => version,
            // A reply says nothing about how far the watch has come.
            Source::Reply => return,
        };
        self.newest = self.newest.max(shown);
    }

    /// Records a complete list.
    pub fn complete_list(&mut self, version: ResourceVersion) -> CompleteList {
        // An API server that was restored counts from an earlier version: then nothing is newer than its list.
        let is_restored = self.newest.is_later_than(version);
        *self = Self {
            listed: version,
            newest: version,
            tombstones: Tombstones::default(),
        };
        CompleteList {
            version,
            is_restored,
        }
    }

    /// Records a complete list that no watch begins with. The watch may be behind it: what it shows later of an earlier
    /// version, and the list did not name, was deleted in between.
    pub fn complete_list_beside_watch(&mut self, version: ResourceVersion) -> CompleteList {
        // Not `newest`: a list that the watch begins with and that was read before this one is no sign of a restored server.
        self.listed = self.listed.max(version);
        CompleteList {
            version,
            is_restored: false,
        }
    }

    /// The version up to which all objects are known, also where a list beside the watch has shown them.
    pub fn known_until(&self) -> ResourceVersion {
        self.newest.max(self.listed)
    }

    /// Records that an object does not exist at `version`. `now` is on the monotonic clock.
    pub fn note_deletion(&mut self, name: &ObjectName, version: ResourceVersion, now: Duration) {
        self.tombstones.set(name, version, now);
    }

    /// Whether a snapshot of an object, `known` in this version, shows nothing new.
    ///
    /// A list is complete only after its last page, and meanwhile a reply may show what is newer than all of it: the watch
    /// after the list goes on from there. An object that is newer than a list for another reason was known before the API
    /// server was restored, and then the watch had come further than the list as well.
    pub fn is_stale(
        &self,
        source: Source,
        name: &ObjectName,
        version: ResourceVersion,
        known: Option<ResourceVersion>,
    ) -> bool {
        if let Source::List(listed) = source {
            let is_restored = self.newest.is_later_than(listed);
            return !is_restored && known.is_some_and(|known| known.is_later_than(listed));
        }
        let known = known.unwrap_or_else(|| {
            // An object that existed at that version was in the list.
            let deleted = self.tombstones.version(name);
            deleted.map_or(self.listed, |deleted| deleted.max(self.listed))
        });
        !version.is_newer_than(known)
    }
}

/// Recently deleted objects, so that a late reply to a write does not bring one back.
#[derive(Debug, Default)]
struct Tombstones {
    versions: HashMap<ObjectName, (ResourceVersion, Duration)>,
    order: VecDeque<(Duration, ObjectName)>,
}

impl Tombstones {
    const KEPT: Duration = Duration::from_mins(5);
    /// Beyond this number they are kept only as long as a reply may be late.
    const MOST: usize = 4096;
    /// No request takes longer, with its reply or without.
    const LATEST_REPLY: Duration = Duration::from_mins(1);

    fn set(&mut self, name: &ObjectName, version: ResourceVersion, now: Duration) {
        while let Some((time, _)) = self.order.front() {
            let age = now.saturating_sub(*time);
            let longest = if self.order.len() < Self::MOST {
                Self::KEPT
            } else {
                Self::LATEST_REPLY
            };
            if age <= longest {
                break;
            }
            // A name that was deleted again has a later entry in the queue, which removes the tombstone.
            let Some((time, name)) = self.order.pop_front() else {
                break;
            };
            let last = self.versions.get(&name);
            if last.is_some_and(|(_, last)| *last == time) {
                self.versions.remove(&name);
            }
        }
        self.order.push_back((now, name.clone()));
        // A lagging watch may show the deletion of an earlier object of this name.
        let entry = self.versions.entry(name.clone());
        let (known, last) = entry.or_insert((version, now));
        (*known, *last) = (known.max(version), now);
    }

    fn version(&self, name: &ObjectName) -> Option<ResourceVersion> {
        self.versions.get(name).map(|(version, _)| *version)
    }
}

const _: () = assert!(
    Tombstones::LATEST_REPLY.as_secs() < Tombstones::KEPT.as_secs(),
    "with many deletions fewer are kept, and not more"
);

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut watch = WatchProgress::default();
        watch.complete_list(at("5"));
        watch.note_deletion(&name("p"), at("9"), Duration::ZERO);
        let is_stale = |version, source| watch.is_stale(source, &name("p"), version, None);
        assert!(is_stale(at("9"), Source::Reply) && is_stale(at("8"), Source::Watch));
        assert!(!is_stale(at("10"), Source::Reply) && !is_stale(at("8"), Source::List(at("8"))));
        // What is not known may be new.
        assert!(!is_stale(ResourceVersion::UNKNOWN, Source::Watch));
    }

    #[test]
    fn a_late_page_shows_nothing_new_of_what_a_reply_has_shown_since() {
        let mut watch = WatchProgress::default();
        watch.complete_list(at("5"));
        watch.observe(Source::Watch, at("7"));
        let is_stale = |watch: &WatchProgress, listed, version, known| {
            let (source, known) = (Source::List(at(listed)), Some(at(known)));
            watch.is_stale(source, &name("p"), at(version), known)
        };
        // A reply at version 12 while a list of version 10 is under way, and none.
        assert!(is_stale(&watch, "10", "6", "12"));
        assert!(!is_stale(&watch, "10", "9", "7") && !is_stale(&watch, "10", "7", "7"));
        // The API server was restored to version 6, before what the watch had shown.
        assert!(!is_stale(&watch, "6", "4", "12") && !is_stale(&watch, "6", "4", "7"));
        // It was restored after some pages of a list, which begins again.
        watch.observe(Source::List(at("20")), at("4"));
        assert!(!is_stale(&watch, "15", "4", "18"));
    }

    #[test]
    fn a_list_proves_the_deletion_of_what_is_not_newer_than_it() {
        let mut watch = WatchProgress::default();
        watch.observe(Source::Watch, at("7"));
        // The reply to a write may be ahead of the watch, which says nothing about a restored API server.
        watch.observe(Source::Reply, at("20"));
        let list = watch.complete_list(at("10"));
        assert!(list.proves_deletion(Some(at("10"))) && list.proves_deletion(None));
        assert!(!list.proves_deletion(Some(at("11"))));
        // An API server that was restored from a backup.
        let list = watch.complete_list(at("3"));
        assert!(list.proves_deletion(Some(at("11"))));
    }

    #[test]
    fn a_watch_that_is_behind_a_list_beside_it_shows_nothing_that_the_list_did_not_name() {
        let mut watch = WatchProgress::default();
        watch.complete_list(at("5"));
        watch.observe(Source::Watch, at("7"));
        watch.complete_list_beside_watch(at("20"));
        let is_stale = |watch: &WatchProgress, source, version| {
            watch.is_stale(source, &name("p"), at(version), None)
        };
        assert!(is_stale(&watch, Source::Watch, "8") && is_stale(&watch, Source::Watch, "20"));
        assert!(!is_stale(&watch, Source::Watch, "21"));
        // A list beside the watch that was read before the last one.
        watch.complete_list_beside_watch(at("18"));
        assert!(is_stale(&watch, Source::Watch, "20"));
        // The API server was restored to version 6: what it shows from then on is new.
        assert!(!is_stale(&watch, Source::List(at("6")), "4"));
        assert!(watch.complete_list(at("6")).proves_deletion(Some(at("18"))));
        assert!(!is_stale(&watch, Source::Watch, "7"));
    }

    #[test]
    fn the_deletion_that_is_newest_counts_in_whichever_order_they_are_shown() {
        for versions in [["9", "7"], ["7", "9"]] {
            let mut watch = WatchProgress::default();
            for version in versions {
                watch.note_deletion(&name("p"), at(version), Duration::ZERO);
            }
            let is_stale = |version| watch.is_stale(Source::Reply, &name("p"), at(version), None);
            assert!(
                is_stale("8") && is_stale("9") && !is_stale("10"),
                "{versions:?}"
            );
        }
    }

    #[test]
    fn tombstones_last_as_long_as_replies_and_no_longer_where_there_are_many() {
        let mut tombstones = Tombstones::default();
        let mut set_many = |now: Duration| {
            for number in 0..2 * Tombstones::MOST {
                let name = name(&format!("{number}-{now:?}"));
                tombstones.set(&name, at("1"), now);
            }
            tombstones.versions.len()
        };
        assert_eq!(set_many(Duration::ZERO), 2 * Tombstones::MOST);
        let later = Tombstones::LATEST_REPLY + Duration::from_secs(1);
        assert_eq!(set_many(later), 2 * Tombstones::MOST);
        tombstones.set(&name("last"), at("1"), later + Tombstones::KEPT * 2);
        assert_eq!((tombstones.versions.len(), tombstones.order.len()), (1, 1));
    }
}

//! The history of a workload as `ControllerRevision`s: their names and numbers, and which of them are kept
//! (`pkg/controller/history/controller_history.go`).
//!
//! What the data of a revision is, its labels and its owner are the workload's own matter.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::hash::{fnv1_32, safe_encode};

/// Label of a revision: the hash in its name.
pub const HASH_LABEL: &str = "controller.kubernetes.io/hash";

/// A name has at most 253 characters; 30 of them are for the hash.
const NAME_PREFIX: usize = 223;

/// Names that are tried before a free one must be found otherwise. Two texts have the same hash once in four billion.
const MOST_COLLISIONS: i32 = 100;

/// A revision as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Name of its `ControllerRevision`.
    pub name: Arc<str>,
    /// The revision's number; the highest is that of the newest.
    pub number: i64,
    /// The content that it is a revision of, as text: equal texts are equal revisions.
    pub data: Arc<str>,
}

/// The step by which the newest revision gets given data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RevisionChange {
    /// Nothing: the newest has it.
    None,
    /// An earlier one gets the highest number.
    Renumber(i64),
    /// A revision is created.
    Create {
        /// The new revision's number.
        number: i64,
        /// The hash in its name.
        hash: String,
    },
}

/// The newest revision, and how it comes to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    /// The revision's name.
    pub name: Arc<str>,
    /// How many names were taken by other data.
    pub collisions: i32,
    /// The step to take.
    pub change: RevisionChange,
}

/// The hash in the name of a revision.
pub fn revision_hash(data: &str, collisions: i32) -> String {
    // The count is hashed as text, as `HashControllerRevision` adds its probe: the name has to be
    // the one that `OpenKruise` would give.
    let count = collisions.to_string();
    safe_encode(&fnv1_32(data.bytes().chain(count.bytes())).to_string())
}

/// The name of a revision of a workload.
pub fn revision_name(workload: &str, hash: &str) -> String {
    let prefix = crate::cluster::truncate(workload, NAME_PREFIX);
    format!("{prefix}-{hash}")
}

/// The newest revision of a workload with these data, beside the known ones. `collisions` have been counted before.
pub fn newest(workload: &str, data: &str, known: &[Revision], collisions: i32) -> Newest {
    let highest = known.iter().map(|revision| revision.number).max();
    // A client that may write revisions may give one the highest number that there is.
    let next = highest.unwrap_or(0).saturating_add(1);
    // The higher of two with the same data counts.
    let equal = known.iter().filter(|revision| *revision.data == *data);
    if let Some(equal) = equal.max_by_key(|revision| (revision.number, &revision.name)) {
        return Newest {
            name: equal.name.clone(),
            collisions,
            change: if Some(equal.number) == highest && is_newest(equal, known) {
                RevisionChange::None
            } else {
                RevisionChange::Renumber(next)
            },
        };
    }
    let mut collisions = collisions;
    loop {
        let hash = revision_hash(data, collisions);
        let name = revision_name(workload, &hash);
        let is_taken = known.iter().any(|revision| *revision.name == *name);
        if !is_taken || collisions >= MOST_COLLISIONS {
            return Newest {
                name: name.into(),
                collisions,
                change: RevisionChange::Create { number: next, hash },
            };
        }
        collisions += 1;
    }
}

/// Whether no other revision has the same number and a later name.
fn is_newest(revision: &Revision, known: &[Revision]) -> bool {
    let order = |revision: &Revision| (revision.number, revision.name.clone());
    known.iter().all(|other| order(other) <= order(revision))
}

/// The revisions that exceed the limit, oldest first. The newest is never one of them, nor is one in use; so there may be
/// more than the limit.
pub fn surplus(known: &[Revision], limit: i32, used: &BTreeSet<Arc<str>>) -> Vec<Arc<str>> {
    let limit = usize::try_from(limit.max(1)).unwrap_or(1);
    let mut by_age: Vec<_> = known.iter().collect();
    by_age.sort_by(|a, b| (a.number, &a.name).cmp(&(b.number, &b.name)));
    let excess = by_age.len().saturating_sub(limit);
    by_age.pop();
    let unused = by_age
        .into_iter()
        .filter(|revision| !used.contains(&revision.name));
    let surplus = unused.map(|revision| revision.name.clone());
    surplus.take(excess).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(name: &str, number: i64, data: &str) -> Revision {
        Revision {
            name: name.into(),
            number,
            data: data.into(),
        }
    }

    // SCS-34
    #[test]
    fn a_long_name_is_cut_before_the_hash() {
        let name = revision_name(&"a".repeat(300), "6bf48c598b");
        assert_eq!(name.len(), 223 + 1 + 10);
    }

    // SCS-35
    #[test]
    fn the_newest_stays_an_earlier_one_is_renumbered_other_data_make_a_new_one() {
        let known = [revision("w-1", 1, "one"), revision("w-2", 2, "two")];
        let change = |data| {
            let newest = newest("w", data, &known, 0);
            (newest.name.to_string(), newest.change)
        };
        assert_eq!(change("two"), ("w-2".to_owned(), RevisionChange::None));
        assert_eq!(
            change("one"),
            ("w-1".to_owned(), RevisionChange::Renumber(3))
        );
        let hash = revision_hash("three", 0);
        let create = RevisionChange::Create {
            number: 3,
            hash: hash.clone(),
        };
        assert_eq!(change("three"), (format!("w-{hash}"), create));
    }

    // SCS-35
    #[test]
    fn a_name_that_is_taken_counts_as_a_collision() {
        let taken = revision_name("w", &revision_hash("new", 0));
        let known = [revision(&taken, 1, "other")];
        let newest = newest("w", "new", &known, 0);
        assert_eq!(newest.collisions, 1);
        assert_eq!(*newest.name, *revision_name("w", &revision_hash("new", 1)));
        // The count stays: the next name is computed with it.
        let next = super::newest("w", "later", &known, newest.collisions);
        assert_eq!(*next.name, *revision_name("w", &revision_hash("later", 1)));
    }

    // SCS-37
    #[test]
    fn the_oldest_beyond_the_limit_go_but_for_those_in_use() {
        let known: Vec<_> = (1..=6)
            .map(|n| revision(&format!("w-{n}"), n, ""))
            .collect();
        let surplus = |limit, used: &[&str]| {
            let used = used.iter().map(|name| Arc::from(*name)).collect();
            let names = surplus(&known, limit, &used);
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(surplus(4, &[]), ["w-1", "w-2"]);
        assert_eq!(surplus(4, &["w-1"]), ["w-2", "w-3"]);
        assert!(surplus(6, &[]).is_empty());
        // Below 1 counts as 1, and the newest always stays.
        assert_eq!(surplus(0, &["w-2", "w-4"]), ["w-1", "w-3", "w-5"]);
    }
}

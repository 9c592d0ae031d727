//! Barriers: how a webhook answers by a state that is at least as new as the one that the API server was told to call by.
//!
//! Every replica follows the cluster by itself, so one may be behind when it is called. The leader therefore writes into
//! the configuration which version of the state its calls were made from, the *barrier*, and a replica that has not come as
//! far waits for it. A state consists of several kinds, each with versions of its own. Since a replica's watch of the
//! configuration may be behind as well, the path of a call ends in a *slot*, a number that moves with each new barrier.
//!
//! Slots go round, so a replica might take a call of the future for one of the past, if [`SLOTS`] - [`MOST_BEHIND`]
//! barriers were stored of which its watch has shown none. A watch that shows nothing is suspected after
//! [`LONGEST_SILENCE`], and neither one leader nor two of them store so many in that time, since their writes have a pace. A
//! replica whose watch fails for longer fails to follow the other kinds too, and is not ready.
//!
//! | module | holds |
//! |---|---|
//! | `progress` | which barrier a leader stores next, by how far its own state has come |
//!
//! Considered: the version itself in the path. But an API server keeps a client, with its connections, for each path that
//! it was ever told (`tlsTransportCache` in `k8s.io/client-go/transport` drops none where a Service is dialled), so there
//! must be few paths. And that each replica reports how far it has come: a write for each change and replica, and dead
//! replicas to be told from slow ones.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_process::watcher::LONGEST_SILENCE;

use crate::pace::{AT_ONCE, CHANGE};

pub(crate) mod progress;

/// Slots in turn. The clients of an API server for 200 configurations of calls are cached (`defaultCacheSize` in
/// `k8s.io/apiserver/pkg/util/webhook/client.go`): all of those of a webhook with up to four calls, and most have one or two.
const SLOTS: u8 = 50;
/// How many barriers an API server's slot may lag behind ours. Both hear of barriers by a watch, so
/// it is few. A larger gap is treated as *ahead* of us, so the call waits: the safe error.
const MOST_BEHIND: u8 = 3;

/// The most leaders, one after the other, in [`LONGEST_SILENCE`]. The pace of each begins anew.
const LEADERS: u64 = 2;

const _: () = assert!(
    ((SLOTS - MOST_BEHIND) as u64 - LEADERS * (AT_ONCE as u64 + 1)) * CHANGE.as_secs()
        > LONGEST_SILENCE.as_secs() + 10,
    "while a watch is silent and is resumed, leaders store fewer barriers than slots tell apart"
);

/// How new a state is: for each of the kinds that it consists of the version of its newest object, 0 for a kind that it does
/// not consist of. Versions grow, and those of two kinds are not compared (KEP-5504).
///
/// A feature's kinds keep their places, and a new one is added at the end. A barrier that a later version of leadsman has
/// stored may have a kind that this one does not know. Where its version is 0, nothing depends on it yet, and this process
/// goes on answering. Otherwise no state of this process includes it, so no answer of this process is relied on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateVersion(pub [u64; StateVersion::KINDS]);

impl StateVersion {
    /// A state consists of so many kinds at most, more than any feature has today: what is stored has room for them, so that
    /// every version of leadsman reads, compares and keeps those of a later one.
    pub const KINDS: usize = 8;

    /// Whether a state of this version includes one of the other.
    pub fn includes(self, other: Self) -> bool {
        self.0.iter().zip(other.0).all(|(own, other)| *own >= other)
    }

    /// Whether the other state consists of a kind that this one does not.
    pub(crate) fn lacks_kind_of(self, other: Self) -> bool {
        let mut kinds = self.0.iter().zip(other.0);
        kinds.any(|(own, other)| *own == 0 && other > 0)
    }

    /// The version of a state that includes both.
    #[must_use]
    fn union_with(self, other: Self) -> Self {
        let mut newest = self.0;
        for (own, other) in newest.iter_mut().zip(other.0) {
            *own = other.max(*own);
        }
        Self(newest)
    }

    /// Writes the versions without the zeros at the end, which say nothing.
    pub(crate) fn to_text(self) -> String {
        let last = self.0.iter().rposition(|version| *version > 0);
        let texts: Vec<_> = self.0[..=last.unwrap_or_default()]
            .iter()
            .map(ToString::to_string)
            .collect();
        texts.join(".")
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut versions = [0; Self::KINDS];
        let mut texts = text.split('.');
        for (version, text) in versions.iter_mut().zip(&mut texts) {
            *version = text.parse().ok()?;
        }
        texts.next().is_none().then_some(Self(versions))
    }
}

/// The versions of a feature's kinds, in their places.
impl<const N: usize> From<[u64; N]> for StateVersion {
    fn from(versions: [u64; N]) -> Self {
        const { assert!(N <= Self::KINDS, "a state has fewer kinds") };
        let mut kinds = [0; Self::KINDS];
        kinds[..N].copy_from_slice(&versions);
        Self(kinds)
    }
}

/// The state that calls were made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Barrier {
    pub(crate) version: StateVersion,
    /// The number in the paths of its calls.
    pub(crate) slot: u8,
}

/// The barrier of a webhook as a replica has seen it in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StoredBarrier {
    /// The configuration has not been seen.
    #[default]
    Unknown,
    /// The configuration does not exist.
    Absent,
    /// The configuration has no barrier, or one of another cluster.
    None,
    At(Barrier),
}

impl Barrier {
    /// The annotation of the configuration that has the barrier of a webhook.
    pub(crate) fn annotation_key(webhook: &str) -> String {
        format!("{webhook}/barrier")
    }

    pub(crate) fn to_text(self) -> String {
        format!("{}/{}", self.version.to_text(), self.slot)
    }

    /// The barrier of a webhook in a configuration.
    pub(crate) fn read_annotation(webhook: &str, observed: &ObjectMeta) -> Option<Self> {
        let annotations = observed.annotations.as_ref()?;
        let (version, slot) = annotations
            .get(&Self::annotation_key(webhook))?
            .split_once('/')?;
        let own = observed.resource_version.as_ref()?.parse().ok()?;
        // A version of another cluster, as by a backup, would never be reached. The first is of custom resources, which share
        // the etcd of the configuration; built-in kinds, as the others are, may have an etcd of their own
        // (`--etcd-servers-overrides` of kube-apiserver), and their versions are not compared with this one.
        let version = StateVersion::from_text(version)?;
        (version.0[0] <= own).then_some(())?;
        Some(Self {
            version,
            slot: slot.parse().ok().filter(|slot| *slot < SLOTS)?,
        })
    }

    /// The slot of the barrier after this one.
    fn next_slot(self) -> u8 {
        (self.slot + 1) % SLOTS
    }
}

impl StoredBarrier {
    /// Whether a state of this version may answer a call with this slot. An API server that has not heard of a newer
    /// configuration yet calls with an older slot.
    pub(crate) fn is_reached(self, slot: Option<u8>, version: Option<StateVersion>) -> bool {
        // Calls of a webhook without barriers have none.
        let Some(slot) = slot else {
            return true;
        };
        let Self::At(stored) = self else {
            return false;
        };
        if slot >= SLOTS {
            // Another version of leadsman made this path, in which slots go round later.
            return false;
        }
        let behind = (SLOTS + stored.slot - slot) % SLOTS;
        let is_newer = behind > MOST_BEHIND;
        // A state that has no version cannot be compared.
        !is_newer && version.is_none_or(|version| version.includes(stored.version))
    }
}

/// A slot at the end of a path.
pub(crate) fn parse_slot(text: &str) -> Option<u8> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn version(first: u64) -> StateVersion {
        [first].into()
    }

    fn barrier(first: u64, slot: u8) -> Barrier {
        Barrier {
            version: version(first),
            slot,
        }
    }

    #[test]
    fn a_state_is_as_new_as_another_if_each_kind_is() {
        let stored = StoredBarrier::At(Barrier {
            version: [7, 5, 0].into(),
            slot: 1,
        });
        for (version, is_reached) in [([7, 5, 0], true), ([9, 4, 9], false), ([6, 9, 9], false)] {
            let found = stored.is_reached(Some(1), Some(version.into()));
            assert_eq!(found, is_reached, "{version:?}");
        }
    }

    #[test]
    fn a_barrier_is_read_unless_it_is_of_another_cluster() {
        let read = |text: &str| {
            let annotations = json!({"a.b.c/barrier": text});
            let observed = json!({"resourceVersion": "50", "annotations": annotations});
            Barrier::read_annotation("a.b.c", &serde_json::from_value(observed).unwrap())
        };
        for (text, versions) in [
            ("49/3", [49, 0, 0]),
            ("49.50.7/3", [49, 50, 7]),
            ("49.0.7/3", [49, 0, 7]),
            // Another etcd, whose versions are its own.
            ("49.51.7/3", [49, 51, 7]),
        ] {
            let expected = Barrier {
                version: versions.into(),
                slot: 3,
            };
            assert_eq!(read(text), Some(expected), "{text}");
            assert_eq!(expected.to_text(), text);
        }
        assert_eq!(barrier(0, 3).to_text(), "0/3");
        assert_eq!(read(&barrier(49, 3).to_text()), Some(barrier(49, 3)));
        for wrong in [
            "51/3",
            "49/200",
            "49/50",
            "49",
            "/",
            "x/3",
            "1.2.3.4.5.6.7.8.9/3",
            "1./3",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_kind_that_a_later_version_has_added_is_not_reached_once_something_depends_on_it() {
        let metadata = |text: &str| {
            let annotations = json!({"a.b.c/barrier": text});
            json!({"resourceVersion": "50", "annotations": annotations})
        };
        for (text, is_reached) in [("40.41.42.0/3", true), ("40.41.42.43/3", false)] {
            let observed = serde_json::from_value(metadata(text)).unwrap();
            let stored = Barrier::read_annotation("a.b.c", &observed).unwrap();
            let own = StateVersion::from([99, 99, 99]);
            let found = StoredBarrier::At(stored).is_reached(Some(3), Some(own));
            assert_eq!(found, is_reached, "{text}");
            assert_eq!(own.lacks_kind_of(stored.version), !is_reached, "{text}");
        }
    }

    #[test]
    fn a_call_is_answered_by_a_state_as_new_as_its_own() {
        let stored = StoredBarrier::At(barrier(40, 5));
        let table = [
            // Without a barrier there is nothing to wait for.
            (StoredBarrier::Unknown, None, Some(1), true),
            (StoredBarrier::Unknown, Some(5), Some(99), false),
            (StoredBarrier::Absent, Some(5), Some(99), false),
            (StoredBarrier::None, Some(5), Some(99), false),
            (stored, Some(5), Some(39), false),
            (stored, Some(5), Some(40), true),
            (stored, Some(5), None, true),
            // The configuration has moved on, and this replica has not seen it.
            (stored, Some(6), Some(99), false),
            (stored, Some(29), Some(99), false),
            (stored, Some(0), Some(99), false),
            // The API server has not seen the present configuration.
            (stored, Some(4), Some(40), true),
            (stored, Some(2), Some(40), true),
            (stored, Some(2), Some(39), false),
            (stored, Some(1), Some(99), false),
            // It was written by another version of leadsman, which has more slots.
            (
                StoredBarrier::At(barrier(40, 1)),
                Some(SLOTS),
                Some(99),
                false,
            ),
            (stored, Some(u8::MAX), Some(99), false),
            (
                StoredBarrier::At(barrier(40, 1)),
                Some(SLOTS - 1),
                Some(40),
                true,
            ),
        ];
        for (stored, slot, known, expected) in table {
            let found = stored.is_reached(slot, known.map(version));
            assert_eq!(found, expected, "{stored:?} {slot:?} {known:?}");
        }
    }
}

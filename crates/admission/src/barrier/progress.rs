//! The barrier that a leader stores next: by what its calls need, and by how far its own state has come of what is stored.
//!
//! A barrier is raised, with the next slot, when calls need a later state, and otherwise left as it is, so that a restart
//! writes nothing. A leader whose own state has not come as far as what is stored writes nothing at all, since its calls
//! would replace newer ones: its predecessor has heard of something that it has not. Its watches show that within
//! [`LONGEST_LAG`], unless it does not exist. There are two ways to that. etcd was restored from a backup, and the barrier
//! is of before; where a replica saw its own state go back that is certain at once. Or a later version of leadsman has stored
//! a kind that this one does not know, and was replaced by this one. Then the barrier is lowered, for these kinds alone, to
//! what the calls need: otherwise no replica could be relied on until versions have come as far again, perhaps in hours.

use std::time::Duration;

use leadsman_process::watcher::LONGEST_SILENCE;
use tokio::time::Instant;

use super::{Barrier, StateVersion, StoredBarrier};

/// The time after which a watch has shown what exists: one that is silent is suspected and resumed
/// before.
const LONGEST_LAG: Duration = Duration::from_mins(2);

const _: () = assert!(LONGEST_SILENCE.as_secs() + 15 < LONGEST_LAG.as_secs());

/// A replica's memory of its own state and of the barrier of one webhook.
#[derive(Debug, Default)]
pub(crate) struct StateProgress {
    /// The version that its own state had.
    own: StateVersion,
    /// The kinds whose versions went back since the stored barrier was last reached.
    has_gone_back: [bool; StateVersion::KINDS],
    /// The stored barrier that its own state lacks, and since when.
    behind: Option<(StateVersion, Instant)>,
    /// The version that its own state was last compared with, and whether it included that.
    compared: Option<(StateVersion, bool)>,
    /// The barrier that was last seen. It holds on when the configuration is deleted by hand: replicas and API servers that
    /// have not heard of that would take its slot in another for the same barrier.
    last: Option<Barrier>,
}

/// The barrier of a leader's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextBarrier {
    /// Calls are not to be written before the leader's own state includes what is stored, or this time has come.
    AwaitOwn { until: Instant },
    /// Calls are written with this barrier, if with any.
    Store(Option<Barrier>),
}

impl StateProgress {
    /// Decides on the barrier of calls that want this version. `own` is the version of this process's own state; None if it
    /// has none.
    pub(crate) fn next_barrier(
        &mut self,
        stored: StoredBarrier,
        wanted: Option<StateVersion>,
        own: Option<StateVersion>,
        now: Instant,
    ) -> NextBarrier {
        let known = match stored {
            StoredBarrier::At(stored) => {
                self.last = Some(stored);
                self.last
            }
            StoredBarrier::Absent => self.last,
            StoredBarrier::Unknown | StoredBarrier::None => None,
        };
        self.compared = None;
        let Some(known) = known else {
            let slot = self.last.map_or(0, Barrier::next_slot);
            return NextBarrier::Store(wanted.map(|version| Barrier { version, slot }));
        };
        let kept = match own.map_or(Ok(known.version), |own| {
            self.existing_part(known.version, own, now)
        }) {
            Ok(kept) => kept,
            Err(at) => return NextBarrier::AwaitOwn { until: at },
        };
        let version = kept.union_with(wanted.unwrap_or_default());
        NextBarrier::Store(Some(if version == known.version {
            known
        } else {
            let slot = known.next_slot();
            Barrier { version, slot }
        }))
    }

    /// The version that its own state was last compared with, and whether it included that: the decision may be another once
    /// that has changed.
    pub(crate) fn compared(&self) -> Option<(StateVersion, bool)> {
        self.compared
    }

    /// The stored version without the kinds of which no such version exists, or until when that may yet show.
    fn existing_part(
        &mut self,
        stored: StateVersion,
        own: StateVersion,
        now: Instant,
    ) -> Result<StateVersion, Instant> {
        self.record_own(own);
        let is_included = own.includes(stored);
        self.compared = Some((stored, is_included));
        if is_included {
            (self.has_gone_back, self.behind) = Default::default();
            return Ok(stored);
        }
        let since = match self.behind {
            Some((version, since)) if version == stored => since,
            _ => now,
        };
        self.behind = Some((stored, since));
        let is_overdue = now >= since + LONGEST_LAG;
        let mut kept = stored;
        for (kind, version) in kept.0.iter_mut().enumerate() {
            if own.0[kind] >= *version {
                continue;
            }
            if !is_overdue && !self.has_gone_back[kind] {
                return Err(since + LONGEST_LAG);
            }
            *version = 0;
        }
        Ok(kept)
    }

    fn record_own(&mut self, own: StateVersion) {
        for (kind, version) in own.0.into_iter().enumerate() {
            self.has_gone_back[kind] |= version < self.own.0[kind];
        }
        self.own = own;
    }
}

#[cfg(test)]
mod tests {
    use super::super::SLOTS;
    use super::*;
    use leadsman_process::clock;

    fn at(versions: [u64; 3], slot: u8) -> Barrier {
        let version = versions.into();
        Barrier { version, slot }
    }

    fn store(versions: [u64; 3], slot: u8) -> NextBarrier {
        NextBarrier::Store(Some(at(versions, slot)))
    }

    const HIGH: [u64; 3] = [99, 99, 99];

    #[test]
    fn a_barrier_is_raised_for_each_kind_by_itself_with_another_slot() {
        let last = SLOTS - 1;
        let raised = [
            (([7, 5, 0], 3), None, ([7, 5, 0], 3)),
            (([7, 5, 0], 3), Some([6, 5, 0]), ([7, 5, 0], 3)),
            (([7, 5, 0], 3), Some([7, 0, 0]), ([7, 5, 0], 3)),
            (([7, 5, 0], 3), Some([8, 0, 0]), ([8, 5, 0], 4)),
            (([7, 5, 0], 3), Some([6, 6, 0]), ([7, 6, 0], 4)),
            (([7, 5, 0], last), Some([7, 0, 3]), ([7, 5, 3], 0)),
        ];
        let raised = raised.map(|(stored, wanted, expected)| {
            let [stored, expected] = [stored, expected].map(|(versions, slot)| at(versions, slot));
            (Some(stored), wanted, Some(expected))
        });
        let first = [
            (None, None, None),
            (None, Some([7, 0, 0]), Some(at([7, 0, 0], 0))),
        ];
        for (stored, wanted, expected) in first.into_iter().chain(raised) {
            let observed = stored.map_or(StoredBarrier::None, StoredBarrier::At);
            let wanted = wanted.map(StateVersion::from);
            for own in [None, Some(StateVersion::from(HIGH))] {
                let mut progress = StateProgress::default();
                let next = progress.next_barrier(observed, wanted, own, clock::monotonic());
                assert_eq!(next, NextBarrier::Store(expected), "{stored:?} {wanted:?}");
            }
        }
    }

    /// A replica that leads or may lead, and its clock.
    struct Replica {
        progress: StateProgress,
        now: Instant,
    }

    impl Replica {
        fn new() -> Self {
            Self {
                progress: StateProgress::default(),
                now: clock::monotonic(),
            }
        }

        fn next(&mut self, stored: StoredBarrier, wanted: [u64; 3], own: [u64; 3]) -> NextBarrier {
            let (wanted, own) = (Some(wanted.into()), Some(own.into()));
            self.progress.next_barrier(stored, wanted, own, self.now)
        }
    }

    #[test]
    fn a_leader_that_is_behind_what_is_stored_waits_for_its_watches() {
        let mut replica = Replica::new();
        let until = replica.now + LONGEST_LAG;
        let awaits = |until| NextBarrier::AwaitOwn { until };
        let stored = StoredBarrier::At(at([40, 30, 0], 5));
        assert_eq!(replica.next(stored, [0, 0, 0], [39, 30, 0]), awaits(until));
        replica.now += LONGEST_LAG / 2;
        assert_eq!(replica.next(stored, [0, 0, 0], [39, 30, 0]), awaits(until));
        // Another barrier, for which it has not waited yet.
        let newer = StoredBarrier::At(at([41, 30, 0], 6));
        let expected = awaits(replica.now + LONGEST_LAG);
        assert_eq!(replica.next(newer, [0, 0, 0], [40, 30, 0]), expected);
        assert_eq!(
            replica.next(newer, [0, 0, 0], [41, 30, 0]),
            store([41, 30, 0], 6)
        );
    }

    #[test]
    fn a_version_that_does_not_come_is_of_before_a_restore_or_of_a_kind_that_is_not_known() {
        for (stored, expected) in [
            ([40, 9000, 7], [40, 12, 7]),
            ([41, 9000, 7], [40, 12, 7]),
            ([40, 12, 9000], [40, 12, 0]),
        ] {
            let mut replica = Replica::new();
            let barrier = StoredBarrier::At(at(stored, 5));
            let (wanted, own) = ([40, 12, 0], [40, 20, 7]);
            let first = replica.next(barrier, wanted, own);
            assert!(matches!(first, NextBarrier::AwaitOwn { .. }), "{first:?}");
            replica.now += LONGEST_LAG;
            assert_eq!(replica.next(barrier, wanted, own), store(expected, 6));
        }
        // Nor does any that a later version of leadsman has added.
        let version = StateVersion::from([40, 12, 0, 3]);
        let barrier = StoredBarrier::At(Barrier { version, slot: 5 });
        let mut replica = Replica::new();
        replica.next(barrier, [0, 0, 0], [40, 12, 0]);
        replica.now += LONGEST_LAG;
        let next = replica.next(barrier, [0, 0, 0], [40, 12, 0]);
        assert_eq!(next, store([40, 12, 0], 6));
    }

    #[test]
    fn a_replica_that_saw_its_own_versions_go_back_lowers_the_barrier_at_once() {
        let mut replica = Replica::new();
        let before = StoredBarrier::At(at([800, 900, 5], 7));
        replica.next(before, [0, 900, 0], [1400, 1410, 5]);
        // Its watch of the configuration began again, and the others did not: it stores what it needed before.
        let restored = StoredBarrier::At(at([300, 200, 5], 2));
        let raised = replica.next(restored, [0, 900, 0], [1400, 1410, 5]);
        assert_eq!(raised, store([300, 900, 5], 3));
        let raised = StoredBarrier::At(at([300, 900, 5], 3));
        // One of its watches has begun again, and then the one that counts.
        let next = replica.next(raised, [0, 900, 0], [420, 1410, 5]);
        assert_eq!(next, store([300, 900, 5], 3));
        let next = replica.next(raised, [0, 210, 0], [420, 421, 5]);
        assert_eq!(next, store([300, 210, 5], 4));
        // From then on it waits again for what others have stored.
        let lowered = StoredBarrier::At(at([300, 210, 5], 4));
        let next = replica.next(lowered, [0, 210, 0], [420, 421, 5]);
        assert_eq!(next, store([300, 210, 5], 4));
        let by_another = StoredBarrier::At(at([300, 430, 5], 5));
        let next = replica.next(by_another, [0, 210, 0], [420, 421, 5]);
        assert!(matches!(next, NextBarrier::AwaitOwn { .. }), "{next:?}");
    }

    #[test]
    fn a_barrier_outlives_a_configuration_that_is_deleted_by_hand() {
        let mut replica = Replica::new();
        let stored = StoredBarrier::At(at([40, 30, 0], 5));
        replica.next(stored, [0, 0, 0], HIGH);
        let absent = StoredBarrier::Absent;
        assert_eq!(replica.next(absent, [0, 0, 0], HIGH), store([40, 30, 0], 5));
        assert_eq!(
            replica.next(absent, [41, 0, 0], HIGH),
            store([41, 30, 0], 6)
        );
        // Without its annotation, or with one of another cluster: the version is lost, and no slot comes twice.
        let next = replica.next(StoredBarrier::None, [41, 0, 0], HIGH);
        assert_eq!(next, store([41, 0, 0], 6));
        // A process that has never seen it knows nothing of it.
        let next = Replica::new().next(absent, [41, 0, 0], HIGH);
        assert_eq!(next, store([41, 0, 0], 0));
    }
}

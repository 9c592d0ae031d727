//! The state of `OpenKruise`'s manager: whether it runs, by its Lease, and whether it acts on `PodProbeMarker`s.
//! Without a clock or a client.
//!
//! It counts as running until one duration after its Lease was last seen to change, by the clock of this process alone. A
//! start does not wait for a Lease that was left behind: if its record says that it was renewed [`LONG_AGO`], its holder has
//! stopped. A Lease counts only where `OpenKruise` is installed: whoever may make namespaces can make the Lease too.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use leadsman_lease::record;
use tokio::time::Instant;

/// A time longer than the difference of the clocks of two machines in a cluster.
const LONG_AGO: Duration = Duration::from_mins(10);
/// The duration of a Lease that does not say (`defaultLeaseDuration`, `pkg/manager/manager.go` of controller-runtime).
const DEFAULT_DURATION: Duration = Duration::from_secs(15);

/// The result of one look.
#[derive(Clone, Debug)]
pub(crate) enum ManagerLook {
    /// `OpenKruise` is not installed.
    NotInstalled,
    /// `OpenKruise` is installed, and its Lease does not exist.
    NoLease,
    /// `OpenKruise`'s Lease, and the gates of whoever holds it.
    Lease(Box<Lease>, GateState),
}

/// The observed state of its Lease and its gates.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenKruiseManager {
    lease: SeenLease,
}

#[derive(Clone, Debug, Default)]
enum SeenLease {
    /// The Lease was not read yet.
    #[default]
    Unread,
    /// The Lease does not exist, or does not count.
    Absent,
    /// The Lease exists, or did until it was deleted.
    Seen {
        lease: Box<Lease>,
        /// The time at which it expires unless it is renewed; `None` if it had expired when it was
        /// first seen.
        until: Option<Instant>,
        gate: GateState,
    },
}

/// Whether its `PodProbeMarkerGate` is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GateState {
    /// The gate could not be read.
    #[default]
    Unread,
    /// The gate is on, by these `--feature-gates`.
    On(String),
    /// The gate is off.
    Off,
    /// No pod of the holder was found: it counts as on.
    NoPod,
}

/// Whether its manager acts on the objects that leadsman writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenKruiseState {
    /// The Lease was not read yet.
    Unknown,
    /// No manager runs.
    Absent,
    /// A manager runs, with `PodProbeMarkerGate` off.
    GateOff {
        /// The holder of its Lease.
        holder: String,
    },
    /// A manager runs that acts on `PodProbeMarker`s, or may do so.
    Active {
        /// The holder of its Lease.
        holder: String,
        /// The known state of its gate.
        gate: GateState,
    },
}

impl OpenKruiseManager {
    /// Records what a look has found. `wall` is the time of day.
    pub(crate) fn observe(&mut self, found: ManagerLook, now: Instant, wall: Timestamp) {
        match found {
            ManagerLook::NotInstalled => self.lease = SeenLease::Absent,
            // One that was seen counts until it expires: it may have been deleted under its holder.
            ManagerLook::NoLease => {
                if let SeenLease::Unread = self.lease {
                    self.lease = SeenLease::Absent;
                }
            }
            ManagerLook::Lease(lease, gate) => {
                let duration = record::duration_of(&lease, DEFAULT_DURATION);
                let until = match &self.lease {
                    SeenLease::Seen {
                        lease: known,
                        until,
                        ..
                    } => {
                        // The change that is seen counts and not `renewTime`, which is of another
                        // clock, as in client-go (`observedTime` in
                        // `k8s.io/client-go/tools/leaderelection`).
                        let renewed = !record::is_same(known, &lease);
                        if renewed {
                            Some(now + duration)
                        } else {
                            *until
                        }
                    }
                    // A Lease that is seen for the first time may be days old: only here does its own time count.
                    SeenLease::Unread | SeenLease::Absent => {
                        (!was_left_behind(&lease, wall)).then_some(now + duration)
                    }
                };
                self.lease = SeenLease::Seen { lease, until, gate };
            }
        }
    }

    /// The time at which its Lease expires unless it is renewed.
    pub(crate) fn expires_at(&self, now: Instant) -> Option<Instant> {
        match &self.lease {
            SeenLease::Seen { until, .. } => until.filter(|until| *until > now),
            SeenLease::Unread | SeenLease::Absent => None,
        }
    }

    /// The state at this time.
    pub(crate) fn state_at(&self, now: Instant) -> OpenKruiseState {
        let (lease, gate) = match &self.lease {
            SeenLease::Unread => return OpenKruiseState::Unknown,
            SeenLease::Absent => return OpenKruiseState::Absent,
            SeenLease::Seen { lease, gate, .. } => (lease, gate),
        };
        let runs = self.expires_at(now).is_some();
        let Some(holder) = record::holder_of(lease).filter(|_| runs) else {
            return OpenKruiseState::Absent;
        };
        let holder = holder.to_owned();
        match gate {
            GateState::Off => OpenKruiseState::GateOff { holder },
            GateState::Unread | GateState::On(_) | GateState::NoPod => OpenKruiseState::Active {
                holder,
                gate: gate.clone(),
            },
        }
    }
}

/// Whether a Lease was renewed so long ago, by its own record, that its holder has stopped.
pub(crate) fn was_left_behind(lease: &Lease, wall: Timestamp) -> bool {
    let renewed = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.renew_time.as_ref());
    renewed.is_some_and(|renewed| {
        // A time that lies in the future, of a clock that is ahead, is no duration and not long ago.
        Duration::try_from(wall.duration_since(renewed.0)).is_ok_and(|age| age > LONG_AGO)
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const WALL: &str = "2026-01-01T00:00:00Z";

    fn lease(holder: &str, renewed: &str) -> ManagerLook {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": super::super::LEASE, "namespace": super::super::NAMESPACE},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}});
        let lease = serde_json::from_value(lease).unwrap();
        ManagerLook::Lease(lease, GateState::NoPod)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn active(holder: &str) -> OpenKruiseState {
        OpenKruiseState::Active {
            holder: holder.to_owned(),
            gate: GateState::NoPod,
        }
    }

    fn observe(manager: &mut OpenKruiseManager, found: ManagerLook, now: Instant) {
        manager.observe(found, now, WALL.parse().unwrap());
    }

    fn seen(found: ManagerLook, now: Instant) -> OpenKruiseManager {
        let mut manager = OpenKruiseManager::default();
        observe(&mut manager, found, now);
        manager
    }

    // PPM-19
    #[rstest]
    #[case::just_renewed("one", "2025-12-31T23:59:59Z", true)]
    #[case::a_clock_that_is_behind("one", "2026-01-01T00:05:00Z", true)]
    #[case::minutes_ago_by_a_clock_that_may_be_wrong("one", "2025-12-31T23:52:00Z", true)]
    #[case::left_behind("one", "2025-12-31T23:49:00Z", false)]
    #[case::given_back("", "2025-12-31T23:59:59Z", false)]
    fn a_lease_that_is_first_seen_counts_unless_it_is_old_or_free(
        #[case] holder: &str,
        #[case] renewed: &str,
        #[case] alive: bool,
    ) {
        let now = Instant::now();
        let manager = seen(lease(holder, renewed), now);
        let expected = if alive {
            active("one")
        } else {
            OpenKruiseState::Absent
        };
        assert_eq!(manager.state_at(now), expected);
        assert_eq!(manager.state_at(now + seconds(15)), OpenKruiseState::Absent);
    }

    // PPM-19
    #[test]
    fn each_renewal_extends_the_lease_by_one_duration() {
        let now = Instant::now();
        let mut manager = seen(lease("one", "2025-12-31T23:59:59Z"), now);
        let mut again = |renewed, after| {
            observe(&mut manager, lease("one", renewed), now + seconds(after));
            manager.clone()
        };
        // The same record is no renewal.
        let manager = again("2025-12-31T23:59:59Z", 10);
        assert_eq!(manager.state_at(now + seconds(15)), OpenKruiseState::Absent);
        let manager = again("2026-01-01T00:00:09Z", 14);
        assert_eq!(manager.expires_at(now), Some(now + seconds(29)));
        assert_eq!(manager.state_at(now + seconds(28)), active("one"));
        // Renewed after it had expired.
        let manager = again("2026-01-01T00:01:00Z", 60);
        assert_eq!(manager.state_at(now + seconds(60)), active("one"));
    }

    // PPM-19
    #[test]
    fn a_deleted_lease_counts_until_it_expires() {
        let now = Instant::now();
        let mut manager = OpenKruiseManager::default();
        assert_eq!(manager.state_at(now), OpenKruiseState::Unknown);
        observe(&mut manager, ManagerLook::NoLease, now);
        assert_eq!(manager.state_at(now), OpenKruiseState::Absent);
        observe(&mut manager, lease("one", WALL), now);
        observe(&mut manager, ManagerLook::NoLease, now);
        assert_eq!(manager.state_at(now), active("one"));
        assert_eq!(manager.state_at(now + seconds(15)), OpenKruiseState::Absent);
    }

    // PPM-19
    #[test]
    fn a_lease_counts_only_where_openkruise_is_installed() {
        let now = Instant::now();
        let mut manager = seen(lease("one", WALL), now);
        observe(&mut manager, ManagerLook::NotInstalled, now);
        assert_eq!(manager.state_at(now), OpenKruiseState::Absent);
    }

    // PPM-19
    #[test]
    fn a_holder_whose_gate_is_off_leaves_markers_alone() {
        let now = Instant::now();
        let ManagerLook::Lease(of_one, _) = lease("one", WALL) else {
            unreachable!()
        };
        let manager = seen(ManagerLook::Lease(of_one, GateState::Off), now);
        let holder = "one".to_owned();
        assert_eq!(manager.state_at(now), OpenKruiseState::GateOff { holder });
    }
}

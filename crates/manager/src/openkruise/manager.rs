//! The state of `OpenKruise`'s manager: whether it runs, by its Lease, and whether it acts on `PodProbeMarker`s.
//! Without a clock or a client.
//!
//! It counts as running until one duration after its Lease was last seen to change, by the clock of this process alone.
//! While changes of the Lease are not received, the state stays as it was. A start does not wait for a Lease that was
//! left behind: if its record says that it was renewed [`LONG_AGO`], its holder has stopped.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use leadsman_lease::record;
use tokio::time::Instant;

/// More than the difference of the clocks of two machines in a cluster.
const LONG_AGO: Duration = Duration::from_mins(10);
/// The duration of a Lease that does not say (`defaultLeaseDuration`, `pkg/manager/manager.go` of controller-runtime).
const DEFAULT_DURATION: Duration = Duration::from_secs(15);

/// The interval in which gates that are on are read again.
const REREAD_INTERVAL: Duration = Duration::from_secs(10);

/// The observed state of its Lease and its gates.
#[derive(Clone, Debug, Default)]
pub struct OpenKruiseManager {
    lease: SeenLease,
    /// Whether changes of its Lease are currently not received.
    blind: bool,
    /// When its gates were last read.
    gate_read_at: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
enum SeenLease {
    /// It was not read yet.
    #[default]
    Unread,
    /// It does not exist.
    Absent,
    /// It exists, or did until it was deleted.
    Seen {
        lease: Box<Lease>,
        /// When it expires unless it is renewed; none if it had expired when it was first seen.
        until: Option<Instant>,
        gate: GateState,
    },
}

/// Whether its `PodProbeMarkerGate` is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GateState {
    /// It was not read yet.
    #[default]
    Unread,
    /// It is on, by these `--feature-gates`.
    On(String),
    /// It is off.
    Off,
    /// No pod of the holder was found: it counts as on.
    NoPod,
}

/// Whether its manager prevents leadsman's from writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenKruiseState {
    /// Its Lease was not read yet.
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
        /// What is known of its gate.
        gate: GateState,
    },
}

impl OpenKruiseManager {
    /// Records the Lease as the watch shows it. `wall` is the time of day. Returns whether a manager has held it and given it
    /// back meanwhile, which no state shows: while the watch was lost, say.
    pub fn observe_lease(&mut self, seen: Box<Lease>, now: Instant, wall: Timestamp) -> bool {
        let was_held_unseen = record::holder_of(&seen).is_none()
            && match &self.lease {
                // Whoever takes a Lease over adds to its transitions, and leaves them when it gives it back (`tryAcquireOrRenew`
                // and `release`, k8s.io/client-go/tools/leaderelection).
                SeenLease::Seen { lease, .. } => {
                    lease_transitions(lease) != lease_transitions(&seen)
                }
                SeenLease::Absent => true,
                SeenLease::Unread => false,
            };
        let duration = record::duration_of(&seen, DEFAULT_DURATION);
        let (until, gate) = match &self.lease {
            SeenLease::Seen { lease, until, gate } => {
                // By the change that is seen and not by `renewTime`, which is of another clock, as client-go does
                // (`observedTime` in `k8s.io/client-go/tools/leaderelection`).
                let renewed = !record::is_same(lease, &seen);
                let same_holder = record::holder_of(lease) == record::holder_of(&seen);
                let until = if renewed {
                    Some(now + duration)
                } else {
                    *until
                };
                let gate = if same_holder {
                    gate.clone()
                } else {
                    GateState::Unread
                };
                (until, gate)
            }
            SeenLease::Unread | SeenLease::Absent => {
                // A Lease that is seen for the first time may be days old: only here does its own time count.
                let until = (!was_left_behind(&seen, wall)).then_some(now + duration);
                (until, GateState::Unread)
            }
        };
        let lease = seen;
        self.lease = SeenLease::Seen { lease, until, gate };
        was_held_unseen
    }

    /// Records that the Lease does not exist. One that was seen counts until it expires: it may have been deleted under
    /// its holder.
    pub fn observe_no_lease(&mut self) {
        if let SeenLease::Unread = self.lease {
            self.lease = SeenLease::Absent;
        }
    }

    /// Records that changes of its Lease are received again. A renewal may have been missed meanwhile, so a manager
    /// that ran before gets a whole duration.
    pub fn watch_resumed(&mut self, now: Instant) {
        let was_blind = std::mem::replace(&mut self.blind, false);
        if let SeenLease::Seen {
            lease,
            until: Some(until),
            ..
        } = &mut self.lease
            && was_blind
        {
            *until = (*until).max(now + record::duration_of(lease, DEFAULT_DURATION));
        }
    }

    /// Records that changes of its Lease are no longer received.
    pub fn watch_lost(&mut self, now: Instant) {
        if std::mem::replace(&mut self.blind, true) {
            return;
        }
        // One that had expired by then stays expired.
        if let SeenLease::Seen { until, .. } = &mut self.lease {
            *until = until.filter(|until| *until > now);
        }
    }

    /// Records the gates of this holder.
    pub fn record_gate(&mut self, of: &str, read: GateState) {
        if let SeenLease::Seen { lease, gate, .. } = &mut self.lease
            // The Lease may have passed to another holder while the gates of this one were read.
            && record::holder_of(lease) == Some(of)
        {
            *gate = read;
        }
    }

    /// The holder whose gates are to be read now, if one is. They are read again until they are off: a manager that was
    /// restarted under the same name may have switched them off.
    pub fn holder_to_inspect(&mut self, now: Instant) -> Option<String> {
        let SeenLease::Seen {
            lease, until, gate, ..
        } = &self.lease
        else {
            return None;
        };
        let is_recent = |read: Instant| now < read + REREAD_INTERVAL;
        let is_due = match gate {
            GateState::Unread => true,
            GateState::On(_) | GateState::NoPod => !self.gate_read_at.is_some_and(is_recent),
            GateState::Off => false,
        };
        // As in `state_at`: who cannot see renewals takes it for running.
        let runs = self.blind && until.is_some() || is_time_left(*until, now);
        let holder = record::holder_of(lease)
            .filter(|_| is_due && runs)?
            .to_owned();
        self.gate_read_at = Some(now);
        Some(holder)
    }

    /// When its Lease expires unless it is renewed.
    pub fn expires_at(&self, now: Instant) -> Option<Instant> {
        match &self.lease {
            SeenLease::Seen { until, .. } => until.filter(|until| !self.blind && *until > now),
            SeenLease::Unread | SeenLease::Absent => None,
        }
    }

    /// The state at this time.
    pub fn state_at(&self, now: Instant) -> OpenKruiseState {
        let (lease, until, gate) = match &self.lease {
            SeenLease::Unread => return OpenKruiseState::Unknown,
            SeenLease::Absent => return OpenKruiseState::Absent,
            SeenLease::Seen { lease, until, gate } => (lease, until, gate),
        };
        // Who cannot see renewals must not conclude that there are none.
        let runs = self.blind && until.is_some() || is_time_left(*until, now);
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

fn lease_transitions(lease: &Lease) -> Option<i32> {
    lease.spec.as_ref()?.lease_transitions
}

fn is_time_left(until: Option<Instant>, now: Instant) -> bool {
    until.is_some_and(|until| until > now)
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

    fn lease(holder: &str, renewed: &str) -> Box<Lease> {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": LEASE, "namespace": "kruise-system"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}});
        Box::new(serde_json::from_value(lease).unwrap())
    }

    const LEASE: &str = super::super::LEASE;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn active(holder: &str, gate: GateState) -> OpenKruiseState {
        let holder = holder.to_owned();
        OpenKruiseState::Active { holder, gate }
    }

    fn seen(lease: Box<Lease>, now: Instant) -> OpenKruiseManager {
        let mut manager = OpenKruiseManager::default();
        manager.observe_lease(lease, now, WALL.parse().unwrap());
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
        let mut manager = seen(lease(holder, renewed), now);
        let expected = if alive {
            active("one", GateState::Unread)
        } else {
            OpenKruiseState::Absent
        };
        assert_eq!(manager.state_at(now), expected);
        assert_eq!(manager.holder_to_inspect(now).is_some(), alive);
        assert_eq!(manager.state_at(now + seconds(15)), OpenKruiseState::Absent);
    }

    // PPM-19
    #[test]
    fn each_renewal_extends_the_lease_by_one_duration() {
        let now = Instant::now();
        let mut manager = seen(lease("one", "2025-12-31T23:59:59Z"), now);
        let again = |manager: &mut OpenKruiseManager, renewed, after| {
            manager.observe_lease(
                lease("one", renewed),
                now + seconds(after),
                WALL.parse().unwrap(),
            );
        };
        // The same record is no renewal: a new list delivers it again.
        again(&mut manager, "2025-12-31T23:59:59Z", 10);
        assert_eq!(manager.state_at(now + seconds(15)), OpenKruiseState::Absent);
        again(&mut manager, "2026-01-01T00:00:09Z", 14);
        assert_eq!(manager.expires_at(now), Some(now + seconds(29)));
        assert_ne!(manager.state_at(now + seconds(28)), OpenKruiseState::Absent);
        // Renewed after it had expired.
        again(&mut manager, "2026-01-01T00:01:00Z", 60);
        assert_eq!(
            manager.state_at(now + seconds(60)),
            active("one", GateState::Unread)
        );
    }

    // PPM-19
    #[test]
    fn a_lease_that_was_taken_and_given_back_unseen_is_noticed() {
        let now = Instant::now();
        let free = |transitions: i32| {
            let mut lease = lease("", WALL);
            lease.spec.as_mut().unwrap().lease_transitions = Some(transitions);
            lease
        };
        let mut manager = OpenKruiseManager::default();
        let mut observe =
            |lease: Box<Lease>| manager.observe_lease(lease, now, WALL.parse().unwrap());
        assert!(
            !observe(free(3)),
            "nothing was written before the first read"
        );
        assert!(!observe(free(3)), "a new list delivers it again");
        assert!(observe(free(4)));
        assert!(!observe(lease("one", WALL)), "its state shows that");
        let mut manager = OpenKruiseManager::default();
        manager.observe_no_lease();
        assert!(manager.observe_lease(free(0), now, WALL.parse().unwrap()));
    }

    // PPM-19
    #[test]
    fn a_deleted_lease_counts_until_it_expires() {
        let now = Instant::now();
        let mut manager = OpenKruiseManager::default();
        assert_eq!(manager.state_at(now), OpenKruiseState::Unknown);
        manager.observe_no_lease();
        assert_eq!(manager.state_at(now), OpenKruiseState::Absent);
        manager.observe_lease(lease("one", WALL), now, WALL.parse().unwrap());
        manager.observe_no_lease();
        assert_eq!(manager.state_at(now), active("one", GateState::Unread));
        assert_eq!(manager.state_at(now + seconds(15)), OpenKruiseState::Absent);
    }

    // PPM-19
    #[test]
    fn the_gates_of_a_holder_count_for_that_holder() {
        let now = Instant::now();
        let mut manager = seen(lease("one", WALL), now);
        manager.record_gate("another", GateState::Off);
        assert_eq!(manager.holder_to_inspect(now).as_deref(), Some("one"));
        manager.record_gate("one", GateState::Off);
        assert_eq!(manager.holder_to_inspect(now), None);
        let holder = "one".to_owned();
        assert_eq!(manager.state_at(now), OpenKruiseState::GateOff { holder });
        // The next holder may have other gates.
        manager.observe_lease(
            lease("two", "2026-01-01T00:00:02Z"),
            now,
            WALL.parse().unwrap(),
        );
        assert_eq!(manager.state_at(now), active("two", GateState::Unread));
        for gate in [GateState::On(String::new()), GateState::NoPod] {
            manager.record_gate("two", gate.clone());
            assert_eq!(manager.state_at(now), active("two", gate));
        }
    }

    // PPM-19
    #[test]
    fn a_lease_whose_changes_are_not_received_does_not_expire() {
        let now = Instant::now();
        let mut manager = seen(lease("one", WALL), now);
        manager.watch_lost(now + seconds(10));
        manager.watch_lost(now + seconds(20));
        let unread = active("one", GateState::Unread);
        assert_eq!(manager.state_at(now + seconds(60)), unread);
        assert_eq!(manager.expires_at(now + seconds(60)), None);
        manager.watch_resumed(now + seconds(60));
        assert_eq!(manager.expires_at(now), Some(now + seconds(75)));
        assert_eq!(manager.state_at(now + seconds(74)), unread);
        assert_eq!(manager.state_at(now + seconds(75)), OpenKruiseState::Absent);
        // It had expired before: a watch that fails does not bring it back.
        manager.watch_lost(now + seconds(80));
        manager.watch_resumed(now + seconds(81));
        assert_eq!(manager.state_at(now + seconds(81)), OpenKruiseState::Absent);
    }

    // PPM-19
    #[test]
    fn gates_that_are_on_are_read_again() {
        let now = Instant::now();
        for gate in [GateState::On(String::new()), GateState::NoPod] {
            let mut manager = seen(lease("one", WALL), now);
            assert_eq!(manager.holder_to_inspect(now).as_deref(), Some("one"));
            manager.record_gate("one", gate);
            assert_eq!(manager.holder_to_inspect(now + seconds(9)), None);
            let later = now + seconds(10);
            assert_eq!(manager.holder_to_inspect(later).as_deref(), Some("one"));
            manager.record_gate("one", GateState::Off);
            assert_eq!(manager.holder_to_inspect(now + seconds(14)), None);
        }
    }
}

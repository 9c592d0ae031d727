//! `OpenKruise`'s manager as its Lease shows it: whether it is alive, and whether it acts on `PodProbeMarker`s. Without
//! a clock or a client.
//!
//! It is alive until one duration after its Lease was last seen to change, by our clock alone; while changes of the Lease
//! are not received, it stays what it was. A Lease that was left
//! behind is not waited for at each start: renewed [`LONG_AGO`] by its own word, its holder has ended.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use leadsman_lease::record;
use tokio::time::Instant;

/// More than clocks of one cluster are apart.
const LONG_AGO: Duration = Duration::from_mins(10);
/// For a Lease that does not say (`LeaseDuration` of controller-runtime).
const DURATION: Duration = Duration::from_secs(15);

/// Gates that stand in the way are not read again sooner.
const REREAD: Duration = Duration::from_secs(10);

/// What is known of it.
#[derive(Clone, Debug, Default)]
pub struct Neighbour {
    known: Known,
    /// Changes of its Lease are not received.
    blind: bool,
    /// When its gates were last asked for.
    asked: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
enum Known {
    /// Its Lease has not been looked for.
    #[default]
    Nothing,
    /// There is none.
    Absent,
    /// There is, or was until it was deleted.
    Seen {
        lease: Box<Lease>,
        /// When it ends unless it is renewed; none if it has ended before it was first seen.
        until: Option<Instant>,
        gate: Gate,
    },
}

/// Whether its `PodProbeMarkerGate` is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// Nobody has looked.
    #[default]
    Unread,
    /// It is, by these `--feature-gates`.
    On(String),
    /// It is off.
    Off,
    /// Its holder is no pod that can be found: it is taken for on.
    NoPod,
}

/// What it is to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has looked yet.
    Unknown,
    /// There is none, or none that lives.
    Away,
    /// This holder lives, and leaves `PodProbeMarker`s alone.
    Aside {
        /// Of its Lease.
        holder: String,
    },
    /// This holder lives, and acts on them, or may do so.
    Acts {
        /// Of its Lease.
        holder: String,
        /// Why it is thought so.
        gate: Gate,
    },
}

impl Neighbour {
    /// Its Lease was seen. `wall` is the time of day.
    pub fn lease_seen(&mut self, seen: Box<Lease>, now: Instant, wall: Timestamp) {
        let duration = record::duration(&seen, DURATION);
        let (until, gate) = match &self.known {
            Known::Seen { lease, until, gate } => {
                let renewed = !record::is_same(lease, &seen);
                let same_holder = record::holder(lease) == record::holder(&seen);
                let until = if renewed {
                    Some(now + duration)
                } else {
                    *until
                };
                let gate = if same_holder {
                    gate.clone()
                } else {
                    Gate::Unread
                };
                (until, gate)
            }
            Known::Nothing | Known::Absent => {
                let until = (!is_long_ago(&seen, wall)).then_some(now + duration);
                (until, Gate::Unread)
            }
        };
        let lease = seen;
        self.known = Known::Seen { lease, until, gate };
    }

    /// There is no such Lease. One that was seen counts until its end: it may have been deleted under its holder.
    pub fn lease_absent(&mut self) {
        if let Known::Nothing = self.known {
            self.known = Known::Absent;
        }
    }

    /// Changes of its Lease are received from now on. What was missed meanwhile may be its renewal, so that one that
    /// lived when they ceased gets one whole duration.
    pub fn follows(&mut self, now: Instant) {
        let was_blind = std::mem::replace(&mut self.blind, false);
        if let Known::Seen {
            lease,
            until: Some(until),
            ..
        } = &mut self.known
            && was_blind
        {
            *until = (*until).max(now + record::duration(lease, DURATION));
        }
    }

    /// Changes of its Lease are not received any more.
    pub fn lost(&mut self, now: Instant) {
        if std::mem::replace(&mut self.blind, true) {
            return;
        }
        // One that had ended by then does not come back to life.
        if let Known::Seen { until, .. } = &mut self.known {
            *until = until.filter(|until| *until > now);
        }
    }

    /// What the gates of this holder are.
    pub fn gate_read(&mut self, of: &str, read: Gate) {
        if let Known::Seen { lease, gate, .. } = &mut self.known
            && record::holder(lease) == Some(of)
        {
            *gate = read;
        }
    }

    /// The living holder whose gates are to be read, with a sign of its life: until they are off, as a manager that
    /// was restarted under the same name may have switched them off.
    pub fn to_be_read(&mut self, now: Instant) -> Option<String> {
        let Known::Seen {
            lease, until, gate, ..
        } = &self.known
        else {
            return None;
        };
        let is_soon = |asked: Instant| now < asked + REREAD;
        let is_due = match gate {
            Gate::Unread => true,
            Gate::On(_) | Gate::NoPod => !self.asked.is_some_and(is_soon),
            Gate::Off => false,
        };
        let lives = self.blind && until.is_some() || is_left(*until, now);
        let holder = record::holder(lease)
            .filter(|_| is_due && lives)?
            .to_owned();
        self.asked = Some(now);
        Some(holder)
    }

    /// When its Lease ends unless it is renewed.
    pub fn ends(&self, now: Instant) -> Option<Instant> {
        match &self.known {
            Known::Seen { until, .. } => until.filter(|until| !self.blind && *until > now),
            Known::Nothing | Known::Absent => None,
        }
    }

    /// What it is to us.
    pub fn standing(&self, now: Instant) -> Standing {
        let (lease, until, gate) = match &self.known {
            Known::Nothing => return Standing::Unknown,
            Known::Absent => return Standing::Away,
            Known::Seen { lease, until, gate } => (lease, until, gate),
        };
        let lives = self.blind && until.is_some() || is_left(*until, now);
        let Some(holder) = record::holder(lease).filter(|_| lives) else {
            return Standing::Away;
        };
        let holder = holder.to_owned();
        match gate {
            Gate::Off => Standing::Aside { holder },
            Gate::Unread | Gate::On(_) | Gate::NoPod => Standing::Acts {
                holder,
                gate: gate.clone(),
            },
        }
    }
}

fn is_left(until: Option<Instant>, now: Instant) -> bool {
    until.is_some_and(|until| until > now)
}

fn is_long_ago(lease: &Lease, wall: Timestamp) -> bool {
    let renewed = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.renew_time.as_ref());
    renewed.is_some_and(|renewed| {
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

    fn acts(holder: &str, gate: Gate) -> Standing {
        let holder = holder.to_owned();
        Standing::Acts { holder, gate }
    }

    fn seen(lease: Box<Lease>, now: Instant) -> Neighbour {
        let mut neighbour = Neighbour::default();
        neighbour.lease_seen(lease, now, WALL.parse().unwrap());
        neighbour
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
        let mut neighbour = seen(lease(holder, renewed), now);
        let expected = if alive {
            acts("one", Gate::Unread)
        } else {
            Standing::Away
        };
        assert_eq!(neighbour.standing(now), expected);
        assert_eq!(neighbour.to_be_read(now).is_some(), alive);
        assert_eq!(neighbour.standing(now + seconds(15)), Standing::Away);
    }

    // PPM-19
    #[test]
    fn each_renewal_that_is_seen_counts_for_one_duration_more() {
        let now = Instant::now();
        let mut neighbour = seen(lease("one", "2025-12-31T23:59:59Z"), now);
        let again = |neighbour: &mut Neighbour, renewed, after| {
            neighbour.lease_seen(
                lease("one", renewed),
                now + seconds(after),
                WALL.parse().unwrap(),
            );
        };
        // The same once more is no sign of life: a list that begins anew shows it.
        again(&mut neighbour, "2025-12-31T23:59:59Z", 10);
        assert_eq!(neighbour.standing(now + seconds(15)), Standing::Away);
        again(&mut neighbour, "2026-01-01T00:00:09Z", 14);
        assert_eq!(neighbour.ends(now), Some(now + seconds(29)));
        assert_ne!(neighbour.standing(now + seconds(28)), Standing::Away);
        // Back after its end.
        again(&mut neighbour, "2026-01-01T00:01:00Z", 60);
        assert_eq!(
            neighbour.standing(now + seconds(60)),
            acts("one", Gate::Unread)
        );
    }

    // PPM-19
    #[test]
    fn a_deleted_lease_counts_until_its_end() {
        let now = Instant::now();
        let mut neighbour = Neighbour::default();
        assert_eq!(neighbour.standing(now), Standing::Unknown);
        neighbour.lease_absent();
        assert_eq!(neighbour.standing(now), Standing::Away);
        neighbour.lease_seen(lease("one", WALL), now, WALL.parse().unwrap());
        neighbour.lease_absent();
        assert_eq!(neighbour.standing(now), acts("one", Gate::Unread));
        assert_eq!(neighbour.standing(now + seconds(15)), Standing::Away);
    }

    // PPM-19
    #[test]
    fn the_gates_of_a_holder_count_for_that_holder() {
        let now = Instant::now();
        let mut neighbour = seen(lease("one", WALL), now);
        neighbour.gate_read("another", Gate::Off);
        assert_eq!(neighbour.to_be_read(now).as_deref(), Some("one"));
        neighbour.gate_read("one", Gate::Off);
        assert_eq!(neighbour.to_be_read(now), None);
        let holder = "one".to_owned();
        assert_eq!(neighbour.standing(now), Standing::Aside { holder });
        // The next holder may have other gates.
        neighbour.lease_seen(
            lease("two", "2026-01-01T00:00:02Z"),
            now,
            WALL.parse().unwrap(),
        );
        assert_eq!(neighbour.standing(now), acts("two", Gate::Unread));
        for gate in [Gate::On(String::new()), Gate::NoPod] {
            neighbour.gate_read("two", gate.clone());
            assert_eq!(neighbour.standing(now), acts("two", gate));
        }
    }

    // PPM-19
    #[test]
    fn a_lease_whose_changes_are_not_received_does_not_end() {
        let now = Instant::now();
        let mut neighbour = seen(lease("one", WALL), now);
        neighbour.lost(now + seconds(10));
        neighbour.lost(now + seconds(20));
        let unread = acts("one", Gate::Unread);
        assert_eq!(neighbour.standing(now + seconds(60)), unread);
        assert_eq!(neighbour.ends(now + seconds(60)), None);
        neighbour.follows(now + seconds(60));
        assert_eq!(neighbour.ends(now), Some(now + seconds(75)));
        assert_eq!(neighbour.standing(now + seconds(74)), unread);
        assert_eq!(neighbour.standing(now + seconds(75)), Standing::Away);
        // It had ended before: a watch that breaks off brings it back as little.
        neighbour.lost(now + seconds(80));
        neighbour.follows(now + seconds(81));
        assert_eq!(neighbour.standing(now + seconds(81)), Standing::Away);
    }

    // PPM-19
    #[test]
    fn gates_that_stand_in_the_way_are_read_again() {
        let now = Instant::now();
        for gate in [Gate::On(String::new()), Gate::NoPod] {
            let mut neighbour = seen(lease("one", WALL), now);
            assert_eq!(neighbour.to_be_read(now).as_deref(), Some("one"));
            neighbour.gate_read("one", gate);
            assert_eq!(neighbour.to_be_read(now + seconds(9)), None);
            let later = now + seconds(10);
            assert_eq!(neighbour.to_be_read(later).as_deref(), Some("one"));
            neighbour.gate_read("one", Gate::Off);
            assert_eq!(neighbour.to_be_read(now + seconds(14)), None);
        }
    }
}

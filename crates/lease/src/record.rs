//! The record of a Lease about its holder, with the fields as client-go fills and reads them (`LeaderElectionRecord`,
//! `k8s.io/client-go/tools/leaderelection/resourcelock`), which is what `kubectl` and other tools expect.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

/// The holder's identity. None for a Lease that was released or never taken.
pub fn holder_of(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    (!holder.is_empty()).then_some(holder)
}

/// The duration of the Lease; `default` for a record without one.
pub fn duration_of(lease: &Lease, default: Duration) -> Duration {
    let given = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.lease_duration_seconds);
    let seconds = given.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(default, Duration::from_secs)
}

/// Whether two states have the same record, so that the holder has not renewed the Lease between them. Metadata does
/// not count: somebody else may have changed a label.
pub fn is_same(one: &Lease, other: &Lease) -> bool {
    let record = |lease: &Lease| {
        let spec = lease.spec.clone().unwrap_or_default();
        (
            spec.holder_identity,
            spec.lease_duration_seconds,
            spec.acquire_time,
            spec.renew_time,
            spec.lease_transitions,
        )
    };
    record(one) == record(other)
}

/// Whether `lease` is a later state than `known`. The resourceVersions of one object can be compared as numbers
/// (KEP-5504); one that is no number counts as later, so that no state is dropped by mistake.
pub(crate) fn is_newer(lease: &Lease, known: &Lease) -> bool {
    let version = |lease: &Lease| {
        lease
            .metadata
            .resource_version
            .as_ref()?
            .parse::<u128>()
            .ok()
    };
    match (version(lease), version(known)) {
        (Some(version), Some(known)) => version > known,
        _ => true,
    }
}

/// A Lease that does not exist yet, held by `identity`.
pub(crate) fn new_lease(name: &str, identity: &str, seconds: u16, now: Timestamp) -> Lease {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let spec = LeaseSpec {
        lease_transitions: Some(0),
        ..held_spec(identity, seconds, now)
    };
    Lease {
        metadata,
        spec: Some(spec),
    }
}

/// The same Lease, held by `identity` from now on.
pub(crate) fn take_lease(lease: &Lease, identity: &str, seconds: u16, now: Timestamp) -> Lease {
    let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
    with_spec(lease, |spec| LeaseSpec {
        lease_transitions: Some(transitions.unwrap_or_default().saturating_add(1)),
        // Belongs to coordinated leader election (KEP-4355), and may have been set by somebody else.
        strategy: spec.strategy,
        preferred_holder: spec.preferred_holder,
        ..held_spec(identity, seconds, now)
    })
}

/// The same Lease, renewed by its holder.
pub(crate) fn renew_lease(lease: &Lease, seconds: u16, now: Timestamp) -> Lease {
    with_spec(lease, |spec| LeaseSpec {
        lease_duration_seconds: Some(i32::from(seconds)),
        renew_time: Some(MicroTime(now)),
        ..spec
    })
}

/// The same Lease without a holder, so that the next one need not wait.
/// (`release`, `k8s.io/client-go/tools/leaderelection/leaderelection.go`, also leaves a duration of one second.)
pub(crate) fn release_lease(lease: &Lease, now: Timestamp) -> Lease {
    with_spec(lease, |spec| LeaseSpec {
        lease_transitions: spec.lease_transitions,
        strategy: spec.strategy,
        preferred_holder: spec.preferred_holder,
        // 0 would be invalid (`ValidateLeaseSpec`, `pkg/apis/coordination/validation/validation.go`).
        ..held_spec("", 1, now)
    })
}

fn held_spec(identity: &str, seconds: u16, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(i32::from(seconds)),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        ..LeaseSpec::default()
    }
}

/// The Lease with another record and everything else as it was seen, the resourceVersion included: the API server
/// accepts it only if nobody else has written meanwhile. Without managedFields, which a PUT need not carry.
fn with_spec(lease: &Lease, change: impl FnOnce(LeaseSpec) -> LeaseSpec) -> Lease {
    let metadata = ObjectMeta {
        managed_fields: None,
        ..lease.metadata.clone()
    };
    Lease {
        metadata,
        spec: Some(change(lease.spec.clone().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn seen() -> Lease {
        serde_json::from_value(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "l", "namespace": "n", "resourceVersion": "7", "labels": {"a": "b"},
                "managedFields": [{"manager": "m"}]},
            "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 4,
                "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:05.250000Z"},
        }))
        .unwrap()
    }

    fn wire(lease: &Lease) -> Value {
        serde_json::to_value(lease).unwrap()
    }

    #[test]
    fn the_record_is_written_as_client_go_does() {
        let now = "2026-01-01T00:01:00.5Z".parse().unwrap();
        let at = "2026-01-01T00:01:00.500000Z";
        let spec = |holder: &str, seconds: u16, transitions: u16, acquired: &str| {
            json!({"holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": transitions,
                "acquireTime": acquired, "renewTime": at})
        };
        let table = [
            (new_lease("l", "me", 9, now), spec("me", 9, 0, at)),
            (take_lease(&seen(), "me", 9, now), spec("me", 9, 5, at)),
            (
                renew_lease(&seen(), 9, now),
                spec("other", 9, 4, "2026-01-01T00:00:00.000000Z"),
            ),
            (release_lease(&seen(), now), spec("", 1, 4, at)),
        ];
        for (lease, expected) in table {
            assert_eq!(wire(&lease)["spec"], expected);
            let seen = json!({"name": "l", "namespace": "n", "resourceVersion": "7", "labels": {"a": "b"}});
            let metadata = &wire(&lease)["metadata"];
            assert!(
                *metadata == seen || *metadata == json!({"name": "l"}),
                "{metadata}"
            );
        }
    }

    #[test]
    fn only_the_record_is_a_sign_of_life() {
        let mut labelled = seen();
        labelled.metadata.labels = None;
        labelled.metadata.resource_version = Some("8".into());
        assert!(is_same(&seen(), &labelled));
        let renewed = renew_lease(&seen(), 15, "2026-01-01T00:00:06Z".parse().unwrap());
        assert!(!is_same(&seen(), &renewed));
    }

    #[test]
    fn a_record_without_a_holder_or_a_duration_is_read() {
        let ours = Duration::from_secs(9);
        let mut lease = seen();
        assert_eq!(holder_of(&lease), Some("other"));
        assert_eq!(duration_of(&lease, ours).as_secs(), 15);
        lease.spec.as_mut().unwrap().holder_identity = Some(String::new());
        lease.spec.as_mut().unwrap().lease_duration_seconds = None;
        assert_eq!(holder_of(&lease), None);
        assert_eq!(duration_of(&lease, ours), ours);
        lease.spec = None;
        assert_eq!(holder_of(&lease), None);
    }
}

//! What a Lease says of its holder: the fields as client-go's `leaderelection` fills and reads them, which is what
//! `kubectl` and other tools expect.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

/// The holder's identity; none of a Lease that was released or never taken.
pub(crate) fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    (!holder.is_empty()).then_some(holder)
}

/// How long the holder may go without renewing. One that does not say counts like ours.
pub(crate) fn duration(lease: &Lease, ours: Duration) -> Duration {
    let seconds = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.lease_duration_seconds);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(ours, Duration::from_secs)
}

/// Whether the holder has given no sign of life between two sights. A label that somebody set is none.
pub(crate) fn is_same(one: &Lease, other: &Lease) -> bool {
    let told = |lease: &Lease| {
        let spec = lease.spec.clone().unwrap_or_default();
        (
            spec.holder_identity,
            spec.lease_duration_seconds,
            spec.acquire_time,
            spec.renew_time,
            spec.lease_transitions,
        )
    };
    told(one) == told(other)
}

/// A Lease that does not exist yet, held by `identity`.
pub(super) fn created(name: &str, identity: &str, seconds: u16, now: Timestamp) -> Lease {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    let spec = LeaseSpec {
        lease_transitions: Some(0),
        ..held(identity, seconds, now)
    };
    Lease {
        metadata,
        spec: Some(spec),
    }
}

/// The same Lease, passed on to `identity`.
pub(super) fn taken(lease: &Lease, identity: &str, seconds: u16, now: Timestamp) -> Lease {
    let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
    changed(lease, |spec| LeaseSpec {
        lease_transitions: Some(transitions.unwrap_or_default().saturating_add(1)),
        strategy: spec.strategy,
        preferred_holder: spec.preferred_holder,
        ..held(identity, seconds, now)
    })
}

/// The same Lease, still held by the same.
pub(super) fn renewed(lease: &Lease, seconds: u16, now: Timestamp) -> Lease {
    changed(lease, |spec| LeaseSpec {
        lease_duration_seconds: Some(i32::from(seconds)),
        renew_time: Some(MicroTime(now)),
        ..spec
    })
}

/// The same Lease, held by nobody: the next one need not wait.
pub(super) fn released(lease: &Lease, now: Timestamp) -> Lease {
    changed(lease, |spec| LeaseSpec {
        lease_transitions: spec.lease_transitions,
        strategy: spec.strategy,
        preferred_holder: spec.preferred_holder,
        ..held("", 1, now)
    })
}

fn held(identity: &str, seconds: u16, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(i32::from(seconds)),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        ..LeaseSpec::default()
    }
}

/// With everything but the holder's record as it was seen, the resourceVersion included: the API server takes it only
/// if nobody was quicker.
fn changed(lease: &Lease, change: impl FnOnce(LeaseSpec) -> LeaseSpec) -> Lease {
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
            (created("l", "me", 9, now), spec("me", 9, 0, at)),
            (taken(&seen(), "me", 9, now), spec("me", 9, 5, at)),
            (
                renewed(&seen(), 9, now),
                spec("other", 9, 4, "2026-01-01T00:00:00.000000Z"),
            ),
            (released(&seen(), now), spec("", 1, 4, at)),
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
        let renewed = renewed(&seen(), 15, "2026-01-01T00:00:06Z".parse().unwrap());
        assert!(!is_same(&seen(), &renewed));
    }

    #[test]
    fn a_record_without_a_holder_or_a_duration_is_read() {
        let ours = Duration::from_secs(9);
        let mut lease = seen();
        assert_eq!(holder(&lease), Some("other"));
        assert_eq!(duration(&lease, ours).as_secs(), 15);
        lease.spec.as_mut().unwrap().holder_identity = Some(String::new());
        lease.spec.as_mut().unwrap().lease_duration_seconds = None;
        assert_eq!(holder(&lease), None);
        assert_eq!(duration(&lease, ours), ours);
        lease.spec = None;
        assert_eq!(holder(&lease), None);
    }
}

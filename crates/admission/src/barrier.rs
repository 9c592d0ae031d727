//! Barriers: how a webhook answers by a state that is at least as new as the one that the API server was told to call by.
//!
//! Every replica follows the cluster by itself, so one may be behind when it is called. The leader therefore writes into
//! the configuration which version of the state its calls were made from, the *barrier*, and a replica that has not come as
//! far waits for it. Since a replica's watch of the configuration may be behind as well, the path of a call ends in a
//! *slot*, a number that moves with each new barrier.
//!
//! Considered: the version itself in the path. But an API server keeps a client, with its connections, for each path that
//! it was ever told (`tlsTransportCache` in `k8s.io/client-go/transport` drops none where a Service is dialled), so there
//! must be few paths. And that each replica reports how far it has come: a write for each change and replica, and dead
//! replicas to be told from slow ones.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;

/// Slots in turn. The clients of an API server for 200 configurations of calls are cached (`defaultCacheSize` in
/// `k8s.io/apiserver/pkg/util/webhook/client.go`), and one webhook has a few calls.
const SLOTS: u8 = 32;

/// The state that calls were made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Barrier {
    /// Its version; versions grow.
    pub(crate) version: u64,
    /// The number in the paths of its calls.
    pub(crate) slot: u8,
}

/// The barrier of a webhook as a replica has seen it in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StoredBarrier {
    /// The configuration has not been seen.
    #[default]
    Unknown,
    /// It has none.
    None,
    At(Barrier),
}

impl Barrier {
    /// The annotation of the configuration that has the barrier of a webhook.
    pub(crate) fn annotation(webhook: &str) -> String {
        format!("{webhook}/barrier")
    }

    pub(crate) fn to_text(self) -> String {
        format!("{}/{}", self.version, self.slot)
    }

    /// The barrier of a webhook in a configuration. One that is newer than the configuration itself comes from another
    /// cluster, as by a backup, and would never be reached.
    pub(crate) fn read(webhook: &str, observed: &MutatingWebhookConfiguration) -> Option<Self> {
        let annotations = observed.metadata.annotations.as_ref()?;
        let (version, slot) = annotations
            .get(&Self::annotation(webhook))?
            .split_once('/')?;
        let barrier = Self {
            version: version.parse().ok()?,
            slot: slot.parse().ok().filter(|slot| *slot < SLOTS)?,
        };
        let own = observed.metadata.resource_version.as_ref()?.parse().ok()?;
        (barrier.version <= own).then_some(barrier)
    }

    /// The barrier to be stored: that which is, unless a newer one is wanted. So a restart writes none.
    pub(crate) fn next(stored: Option<Self>, wanted: Option<u64>) -> Option<Self> {
        match (stored, wanted) {
            (Some(stored), Some(wanted)) if wanted > stored.version => Some(Self {
                version: wanted,
                slot: (stored.slot + 1) % SLOTS,
            }),
            (None, Some(version)) => Some(Self { version, slot: 0 }),
            (stored, _) => stored,
        }
    }
}

impl StoredBarrier {
    /// Whether a state of this version may answer a call with this slot. An API server that has not heard of a newer
    /// configuration yet calls with an older slot.
    pub(crate) fn is_reached(self, slot: Option<u8>, version: Option<u64>) -> bool {
        let Some(slot) = slot else {
            return true;
        };
        let Self::At(stored) = self else {
            return false;
        };
        let ahead = (SLOTS + slot - stored.slot) % SLOTS;
        let is_newer = (1..=SLOTS / 2).contains(&ahead);
        // A state that has no version cannot be compared.
        !is_newer && version.is_none_or(|version| version >= stored.version)
    }
}

/// A slot at the end of a path.
pub(crate) fn parse_slot(text: &str) -> Option<u8> {
    text.parse().ok().filter(|slot| *slot < SLOTS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn barrier(version: u64, slot: u8) -> Barrier {
        Barrier { version, slot }
    }

    #[test]
    fn a_barrier_is_raised_with_another_slot_and_never_lowered() {
        let table = [
            (None, None, None),
            (None, Some(7), Some(barrier(7, 0))),
            (Some(barrier(7, 3)), None, Some(barrier(7, 3))),
            (Some(barrier(7, 3)), Some(6), Some(barrier(7, 3))),
            (Some(barrier(7, 3)), Some(7), Some(barrier(7, 3))),
            (Some(barrier(7, 3)), Some(8), Some(barrier(8, 4))),
            (Some(barrier(7, SLOTS - 1)), Some(8), Some(barrier(8, 0))),
        ];
        for (stored, wanted, expected) in table {
            assert_eq!(
                Barrier::next(stored, wanted),
                expected,
                "{stored:?} {wanted:?}"
            );
        }
    }

    #[test]
    fn a_barrier_is_read_unless_it_is_of_another_cluster() {
        let read = |text: &str| {
            let annotations = json!({"a.b.c/barrier": text});
            let observed =
                json!({"metadata": {"resourceVersion": "50", "annotations": annotations}});
            Barrier::read("a.b.c", &serde_json::from_value(observed).unwrap())
        };
        assert_eq!(read(&barrier(49, 3).to_text()), Some(barrier(49, 3)));
        for wrong in ["51/3", "49/200", "49/32", "49", "/", "x/3"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_call_is_answered_by_a_state_as_new_as_its_own() {
        let stored = StoredBarrier::At(barrier(40, 5));
        let table = [
            // Without a barrier there is nothing to wait for.
            (StoredBarrier::Unknown, None, Some(1), true),
            (StoredBarrier::Unknown, Some(5), Some(99), false),
            (StoredBarrier::None, Some(5), Some(99), false),
            (stored, Some(5), Some(39), false),
            (stored, Some(5), Some(40), true),
            (stored, Some(5), None, true),
            // The configuration has moved on, and this replica has not seen it.
            (stored, Some(6), Some(99), false),
            (stored, Some(21), Some(99), false),
            // The API server has not seen the present configuration.
            (stored, Some(4), Some(40), true),
            (stored, Some(22), Some(40), true),
        ];
        for (stored, slot, version, expected) in table {
            let found = stored.is_reached(slot, version);
            assert_eq!(found, expected, "{stored:?} {slot:?} {version:?}");
        }
    }
}

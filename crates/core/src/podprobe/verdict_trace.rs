//! The trace of one change of a verdict, from the run of a probe on a node to the mark of the pod.
//!
//! Nothing of it is on the wire: what the agent writes of a verdict (pod, entry, state and time of the change) tells one
//! change from all others, so that agent and manager derive the same ids from it. Time is in whole seconds, as it is on the
//! wire: two changes to one state within a second are one trace.

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::probe::State;

/// The ids of the trace, and of those of its spans that both processes know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictTrace {
    /// The trace.
    pub id: [u8; 16],
    /// The agent's span, from which the others follow.
    pub change: [u8; 8],
    /// The manager's span; repeated writes are parts of it.
    pub marking: [u8; 8],
}

impl VerdictTrace {
    /// The trace of the change of an entry `<marker>#<probe>` of a pod to a state.
    pub fn new(pod_uid: &str, entry: &str, state: State, since: Timestamp) -> Self {
        let mut hash = Sha256::new();
        for part in [pod_uid, entry, state.as_str()] {
            hash.update(part);
            // In none of them, so that no two changes give the same bytes.
            hash.update([0]);
        }
        hash.update(since.as_second().to_be_bytes());
        let hash: [u8; 32] = hash.finalize().into();
        let (id, rest) = hash.split_at(16);
        let (change, marking) = rest.split_at(8);
        Self {
            id: id.try_into().expect("16 of 32 bytes"),
            change: change.try_into().expect("8 of 16 bytes"),
            marking: marking.try_into().expect("8 of 16 bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_of_one_change_and_does_not_depend_on_fractions_of_a_second() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let since = time("2026-01-02T03:04:05Z");
        let trace = VerdictTrace::new("u", "m#p", State::Failed, since);
        let in_agent = time("2026-01-02T03:04:05.9Z");
        assert_eq!(
            trace,
            VerdictTrace::new("u", "m#p", State::Failed, in_agent)
        );
        let others = [
            VerdictTrace::new("um", "#p", State::Failed, since),
            VerdictTrace::new("u", "m#q", State::Failed, since),
            VerdictTrace::new("u", "m#p", State::Succeeded, since),
            VerdictTrace::new("u", "m#p", State::Failed, time("2026-01-02T03:04:06Z")),
        ];
        for other in others {
            assert_ne!(trace.id, other.id);
        }
        assert_ne!(trace.change, trace.marking);
    }
}
